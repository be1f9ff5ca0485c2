"""Staging: what comes back of chunks, of faults and of dead runs, on Spark and in this process."""

from __future__ import annotations

import inspect
import os
import pickle
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rivet_resources import errors, scratch
from rivet_resources.contracts.extract import Extract
from rivet_resources.contracts.relation import Chunk
from rivet_resources.contracts.settings import Spark, Tuning
from rivet_resources.contracts.source import Page
from rivet_resources.errors import DestinationUnreachable, RivetError, SourcePermission, UnknownColumn
from rivet_resources.read import executor, stage
from rivet_resources.read.executor import ROWS_DDL, TaskFailed, describe, rebuild, run_descriptors, run_in_arrow
from rivet_resources.read.stage import Exporter, groups
from rivet_resources.read.throttle import read_speed, tell_speed
from rivet_resources.spark.runtime import SparkRuntime
from rivet_resources.state.store import State, open_state
from tests import processes
from tests.fakes import extract_of

ORDERS = pa.table({"id": pa.array(range(1, 401), pa.int64()), "note": ["x" * (i % 7) for i in range(400)]})
FOUND = UnknownColumn("creted_at", relation="public.orders", known=("id", "created_at"), key="cursor_column")


@dataclass(frozen=True)
class Stage:
    """A source over ORDERS in which chunks do what their script says; `folder` is its memory across processes."""

    folder: Path
    script: dict[int, str] = field(default_factory=dict)
    password: str = "s3cr3t-inline"
    type: str = "stage"
    tuning: Tuning | None = None

    def pages(self, chunk: Chunk, columns: Any, **_: Any) -> Iterator[Page]:
        """Note the reading, act, give the rows."""
        tries = self._note(f"read-{chunk.index}")
        self._note(f"beside-{len(list(self.folder.glob('active-*')))}")
        active = self.folder / f"active-{chunk.index}"
        active.touch()
        try:
            getattr(self, self.script.get(chunk.index, "read_well"))(tries)
            first, end = chunk.blocks
            size = 1 if self.script.get(chunk.index) == "trickle" else end - first
            for row in range(first, end, size):
                yield Page(ORDERS.slice(row, size), {}, statement_ms=1.0)
                if size == 1 and not (self.folder / "watched").exists():
                    time.sleep(0.05)
        finally:
            active.unlink()
        (self.folder / f"done-{chunk.index}").touch()

    def read_well(self, tries: int) -> None:
        """Do nothing."""

    def wait_for_company(self, tries: int) -> None:
        """Stay until some other chunk is done."""
        self._until("done-*")

    def fail_for_good(self, tries: int) -> None:
        """Meet a fault that stays, after some other chunk is done."""
        self._until("done-*")
        raise FOUND

    def fail_at_once(self, tries: int) -> None:
        """Meet a fault that stays, while chunk 1 is being read."""
        self._until("active-1")
        raise FOUND

    def dawdle(self, tries: int) -> None:
        """Never come to an end."""
        self._until("never")

    def stumble(self, tries: int) -> None:
        """Meet a fault that passes, twice."""
        if tries < 3:
            raise DestinationUnreachable("The store at lake.example does not answer.")

    def never_up(self, tries: int) -> None:
        """Meet a fault that would pass, and does not."""
        raise DestinationUnreachable("The store at lake.example does not answer.")

    def die(self, tries: int) -> None:
        """Take the whole process away, at the first try."""
        if tries == 1:
            os._exit(1)

    def always_die(self, tries: int) -> None:
        """Take the whole process away."""
        os._exit(1)

    def break_down(self, tries: int) -> None:
        """Meet a fault nobody foresaw, whose text holds a value."""
        raise ValueError(f"cannot convert 'card {'4' * 8}'")

    def trickle(self, tries: int) -> None:
        """Give row by row, slowly until somebody has seen how many there are: 20 s at most."""

    def lineage_name(self, table: str) -> tuple[str, str]:
        """Split a name into schema and table."""
        schema, _, name = table.rpartition(".")
        return schema, name

    def readings(self) -> dict[int, int]:
        """Return how often each chunk was read."""
        return {int(file.name[5:]): file.stat().st_size for file in sorted(self.folder.glob("read-*"))}

    def _note(self, name: str) -> int:
        with (self.folder / name).open("ab", buffering=0) as file:
            file.write(b".")
        return (self.folder / name).stat().st_size

    def _until(self, pattern: str) -> None:
        deadline = time.monotonic() + 60
        while not list(self.folder.glob(pattern)):
            if time.monotonic() > deadline:
                raise AssertionError(f"{pattern} did not come")
            time.sleep(0.01)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkRuntime]:
    """One session for the tests of this file."""
    runtime = SparkRuntime(Spark(master="local[2,3]"))
    yield runtime
    runtime.stop()


@pytest.fixture(params=["inline", pytest.param("spark", marks=pytest.mark.spark)])
def runtime(request: pytest.FixtureRequest) -> SparkRuntime:
    """Both engines, one after the other."""
    if request.param == "inline":
        return SparkRuntime(Spark(engine="inline"))
    found: SparkRuntime = request.getfixturevalue("spark")
    return found


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    """A state store of its own."""
    opened = open_state(f"sqlite:///{tmp_path}/state.db")
    yield opened
    opened.close()


def plan(folder: Path, script: dict[int, str] | None = None, *, pieces: int = 2, **changes: Any) -> Extract:
    """Plan an export of ORDERS whose chunks follow a script."""
    memory = folder / "memory"
    memory.mkdir(exist_ok=True)
    return extract_of(ORDERS, folder / "lake", pieces=pieces, source=Stage(memory, script or {}), **changes)


def resumable(extract: Extract, run_id: str) -> Extract:
    """Name the chunks so that they outlive their run."""
    chunks = tuple(replace(chunk, identity=f"rows {chunk.blocks}") for chunk in extract.chunks)
    return replace(extract, chunks=chunks, fingerprint="plan-1", run_id=run_id)


def staged_files(extract: Extract) -> set[str]:
    """List what lies staged."""
    return extract.destination.root(extract.export).staged()  # type: ignore[attr-defined, no-any-return]


def test_staged_window_holds_the_rows_of_all_chunks_in_order(
    runtime: SparkRuntime, state: State, tmp_path: Path
) -> None:
    """A staged window holds every row once, its parts in the order of the chunks."""
    extract = plan(tmp_path, pieces=5)

    staged = Exporter(runtime, state).stage(extract)

    paths = [tmp_path / "lake" / "orders" / part.staged["path"] for part in staged.parts]
    assert ORDERS.column("id").to_pylist() == [i for path in paths for i in pq.read_table(path)["id"].to_pylist()]
    assert (400, 5, None, "single") == (
        staged.measures.rows,
        staged.measures.pages,
        staged.previous,
        staged.consistency,
    )


def test_stage_tells_its_progress_after_each_chunk(runtime: SparkRuntime, state: State, tmp_path: Path) -> None:
    """Whoever asks is told chunks done, chunks in all and rows so far, once per chunk."""
    told: list[tuple[int, int, int]] = []

    Exporter(runtime, state).stage(plan(tmp_path, pieces=4), on_progress=lambda *args: told.append(args))

    last_of_each = {done: (done, of, rows) for done, of, rows in told}
    assert [(1, 4, 100), (2, 4, 200), (3, 4, 300), (4, 4, 400)] == [last_of_each[done] for done in range(1, 5)]


def test_rows_are_told_while_a_chunk_is_read(runtime: SparkRuntime, state: State, tmp_path: Path) -> None:
    """The only chunk of a table: before it is done its rows are told, more and more of them, and at the end all."""
    told: list[tuple[int, int, int]] = []
    extract = plan(tmp_path, {0: "trickle"}, pieces=1)

    def watch(done: int, of: int, rows: int) -> None:
        told.append((done, of, rows))
        if 2 == len(told):
            (tmp_path / "memory" / "watched").touch()

    staged = Exporter(runtime, state).stage(extract, on_progress=watch)

    assert (400, (1, 1, 400)) == (staged.measures.rows, told[-1])
    assert len(told) > 2
    assert [rows for _, _, rows in told] == sorted(rows for _, _, rows in told)
    assert {0} == {done for done, _, _ in told[:2]}
    assert all(0 < rows < 400 for _, _, rows in told[:2])


def test_window_without_chunks_stages_no_part(runtime: SparkRuntime, state: State, tmp_path: Path) -> None:
    """Where nothing is to be read, an empty staged window with its schema comes back."""
    staged = Exporter(runtime, state).stage(replace(plan(tmp_path), chunks=()))

    assert ((), 0) == (staged.parts, staged.measures.rows)
    assert ["id", "note"] == pa.ipc.read_schema(pa.py_buffer(staged.schema_ipc)).names


def test_standing_manifest_is_the_fence_of_the_swap(runtime: SparkRuntime, state: State, tmp_path: Path) -> None:
    """`previous` is the version of the window's manifest as it was before the first row was read."""
    from rivet_resources.commit.publish import publish

    exporter = Exporter(runtime, state)
    extract = plan(tmp_path)
    publish(exporter.stage(extract), root=extract.destination.root("orders"), state=state)

    again = exporter.stage(replace(extract, run_id="orders_20260131T130000.000_abcdef"))

    standing = extract.destination.root("orders").read("_rivet/all.json")
    assert standing is not None
    assert standing[1] == again.previous


def test_permanent_fault_comes_back_as_itself_and_nothing_stays(
    runtime: SparkRuntime, state: State, tmp_path: Path
) -> None:
    """A fault that no retry helps is raised with its class and text after one try; finished parts are discarded."""
    extract = plan(tmp_path, {1: "fail_for_good"}, parallel=1)

    with pytest.raises(UnknownColumn) as caught:
        Exporter(runtime, state).stage(extract)

    assert str(FOUND) == str(caught.value)
    assert (1, set()) == (extract.source.readings()[1], staged_files(extract))  # type: ignore[attr-defined]


def test_passing_fault_is_tried_again(runtime: SparkRuntime, state: State, tmp_path: Path) -> None:
    """A task that fails twice with a retryable fault succeeds at its third attempt, and its rows count once."""
    extract = plan(tmp_path, {0: "stumble"})

    staged = Exporter(runtime, state).stage(extract)

    assert (400, {0: 3, 1: 1}) == (staged.measures.rows, extract.source.readings())  # type: ignore[attr-defined]
    assert {part.staged["path"] for part in staged.parts} == staged_files(extract)


def test_fault_that_does_not_pass_keeps_its_class(runtime: SparkRuntime, state: State, tmp_path: Path) -> None:
    """After the last attempt the task's own fault is raised, not Spark's story about it."""
    extract = plan(tmp_path, {0: "never_up"})

    with pytest.raises(DestinationUnreachable, match=r"^The store at lake.example does not answer\.$"):
        Exporter(runtime, state).stage(extract)

    assert 3 == extract.source.readings()[0]  # type: ignore[attr-defined]


def test_unforeseen_fault_names_its_place_and_no_value(runtime: SparkRuntime, state: State, tmp_path: Path) -> None:
    """Of a foreign exception only type and place are told: its text may hold a value of a row."""
    with pytest.raises(TaskFailed) as caught:
        Exporter(runtime, state).stage(plan(tmp_path, {0: "break_down"}))

    assert "chunk 0 ended in a ValueError at test_stage.py:" in str(caught.value)
    assert "44444444" not in str(caught.value) + "".join(caught.value.__notes__)


@pytest.mark.spark
def test_death_of_a_worker_costs_an_attempt_and_no_row(spark: SparkRuntime, state: State, tmp_path: Path) -> None:
    """A worker that dies is replaced; its chunk is read again and counts once."""
    extract = plan(tmp_path, {0: "die"})

    staged = Exporter(spark, state).stage(extract)

    assert (400, {0: 2, 1: 1}) == (staged.measures.rows, extract.source.readings())  # type: ignore[attr-defined]


@pytest.mark.spark
def test_chunk_that_kills_every_worker_is_named(spark: SparkRuntime, state: State, tmp_path: Path) -> None:
    """When all attempts of a task die, the error says which chunk and what to do, and the session still works."""
    with pytest.raises(TaskFailed, match=r"chunk 1: its Python process died in each of 3 attempts"):
        Exporter(spark, state).stage(plan(tmp_path, {1: "always_die"}))

    assert 3 == spark.session().range(3).count()


@pytest.mark.spark
def test_fault_of_one_chunk_calls_off_the_others(spark: SparkRuntime, state: State, tmp_path: Path) -> None:
    """The first fault ends the stage: a chunk that would go on is killed, one that waits is never read."""
    extract = plan(tmp_path, {0: "fail_at_once", 1: "dawdle"}, pieces=3)

    with pytest.raises(UnknownColumn):
        Exporter(spark, state).stage(extract)

    assert not (extract.source.folder / "done-1").exists()  # type: ignore[attr-defined]
    assert {0: 1, 1: 1} == extract.source.readings()  # type: ignore[attr-defined]


def test_parallel_caps_how_many_chunks_are_read_at_once(runtime: SparkRuntime, state: State, tmp_path: Path) -> None:
    """`parallel: 1` reads chunk after chunk, never two together."""
    extract = plan(tmp_path, pieces=4, parallel=1)

    Exporter(runtime, state).stage(extract)

    assert ["beside-0"] == [file.name for file in extract.source.folder.glob("beside-*")]  # type: ignore[attr-defined]


def test_parallel_reads_several_chunks_at_once(runtime: SparkRuntime, state: State, tmp_path: Path) -> None:
    """With `parallel: 2` a chunk that waits for the other one's end comes to its own."""
    extract = plan(tmp_path, {0: "wait_for_company"}, parallel=2)

    assert 400 == Exporter(runtime, state).stage(extract).measures.rows


def test_next_run_reads_only_what_a_failed_one_left(runtime: SparkRuntime, state: State, tmp_path: Path) -> None:
    """Finished chunks of a resumable window stay staged and are used by the next run, which says `resumed`."""
    failing = resumable(plan(tmp_path, {2: "fail_for_good"}, pieces=3, parallel=1), "orders_20260131T120000.000_aaaaaa")
    with pytest.raises(UnknownColumn):
        Exporter(runtime, state).stage(failing)

    well = replace(failing, run_id="orders_20260131T130000.000_bbbbbb", source=replace(failing.source, script={}))
    staged = Exporter(runtime, state).stage(well)

    assert {0: 1, 1: 1, 2: 2} == well.source.readings()  # type: ignore[attr-defined]
    assert (400, "resumed", [0, 1, 2]) == (
        staged.measures.rows,
        staged.consistency,
        [part.chunk for part in staged.parts],
    )


def test_finished_chunk_whose_file_is_gone_is_read_again(runtime: SparkRuntime, state: State, tmp_path: Path) -> None:
    """The state store's word is not enough: a chunk counts as finished only while its parts are there."""
    failing = resumable(plan(tmp_path, {1: "fail_for_good"}, parallel=1), "orders_20260131T120000.000_aaaaaa")
    with pytest.raises(UnknownColumn):
        Exporter(runtime, state).stage(failing)
    for file in staged_files(failing):
        (tmp_path / "lake" / "orders" / file).unlink()

    well = replace(failing, run_id="orders_20260131T130000.000_bbbbbb", source=replace(failing.source, script={}))
    staged = Exporter(runtime, state).stage(well)

    assert ({0: 2, 1: 2}, "single") == (well.source.readings(), staged.consistency)  # type: ignore[attr-defined]


def test_progress_under_another_plan_does_not_count(runtime: SparkRuntime, state: State, tmp_path: Path) -> None:
    """Chunks finished under another fingerprint are read again."""
    failing = resumable(plan(tmp_path, {1: "fail_for_good"}, parallel=1), "orders_20260131T120000.000_aaaaaa")
    with pytest.raises(UnknownColumn):
        Exporter(runtime, state).stage(failing)

    other = replace(failing, fingerprint="plan-2", run_id="orders_20260131T130000.000_bbbbbb")
    Exporter(runtime, state).stage(replace(other, source=replace(failing.source, script={})))

    assert {0: 2, 1: 2} == failing.source.readings()  # type: ignore[attr-defined]


DYING_RUN = """
    import os, pickle, sys
    from rivet_resources.read.stage import Exporter
    from rivet_resources.contracts.settings import Spark
    from rivet_resources.spark.runtime import SparkRuntime
    from rivet_resources.state.store import open_state

    extract = pickle.load(sys.stdin.buffer)
    exporter = Exporter(SparkRuntime(Spark(engine=sys.argv[1], master="local[2,3]")), open_state(sys.argv[2]))
    exporter.stage(extract, on_progress=lambda done, total, rows: os._exit(9) if done == 2 else None)
"""


@pytest.mark.parametrize("engine", ["inline", pytest.param("spark", marks=pytest.mark.spark)])
def test_death_of_the_driver_keeps_finished_chunks(engine: str, state: State, tmp_path: Path) -> None:
    """Chunks that were finished when the driver died are not read again by the next run."""
    extract = resumable(plan(tmp_path, pieces=4, parallel=1), "orders_20260131T120000.000_aaaaaa")
    died = processes.run("-c", DYING_RUN, engine, state.url, stdin=pickle.dumps(extract))

    after = replace(extract, run_id="orders_20260131T130000.000_bbbbbb")
    staged = Exporter(SparkRuntime(Spark(engine="inline")), state).stage(after)

    assert (9, 400, "resumed") == (died.returncode, staged.measures.rows, staged.consistency)
    assert {0: 1, 1: 1} == {chunk: extract.source.readings()[chunk] for chunk in (0, 1)}  # type: ignore[attr-defined]


def test_task_travels_by_reference(tmp_path: Path) -> None:
    """What a job ships is pickled by the standard library: names of this package and plain values, no closure."""
    extract = plan(tmp_path)
    task = partial(run_descriptors, pickle.dumps(extract.only((1,))), {}, 3, None)

    arrived = pickle.loads(pickle.dumps(task))
    travelled = pickle.loads(arrived.args[0])

    assert (run_descriptors, extract.chunks[1:2]) == (arrived.func, travelled.chunks)
    assert travelled.has_several_chunks  # so that the names of its parts tell chunks apart


class FarRuntime:
    """A cluster's runtime, of which jobs run here, and see no file of the driver."""

    is_cluster, task_attempts = True, 1

    def __init__(self, there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.there, self.patch = there, monkeypatch

    def lendable(self, extract: Extract) -> dict[str, str]:
        """Lend nothing."""
        return {}

    def tagged(self, tag: str) -> Any:
        """Tag nothing."""
        return nullcontext()

    def context(self) -> Any:
        """Stand in for Spark's."""
        return self

    def parallelize(self, numbers: range, slices: int) -> Any:
        """Take descriptors."""
        self.numbers = numbers
        return self

    def mapPartitions(self, task: Any) -> Any:
        """Take the task."""
        self.task = task
        return self

    def collect(self) -> list[Any]:
        """Run it with another folder for scratch, as on another machine."""
        with self.patch.context() as patched:
            patched.setattr(scratch, "folder_of", lambda run_id: self.there / run_id)
            return list(self.task(iter(self.numbers)))


def test_speed_travels_with_each_job_of_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the governor allows when a job begins holds for its pages, and for tasks that run on its host already."""
    extract = plan(tmp_path, pieces=3)
    here, there = scratch.folder_of(extract.run_id), tmp_path / "elsewhere"
    seen = []
    monkeypatch.setattr(executor, "run_chunk", lambda extract, chunk, *, scratch, **_: seen.append(read_speed(scratch)))
    monkeypatch.setattr(executor, "asdict", lambda result: {})
    monkeypatch.setattr(stage, "result_of", lambda body: body)
    jobs = stage._Jobs(FarRuntime(there, monkeypatch), extract)  # type: ignore[arg-type]

    with scratch.held(here):
        for speed in (None, 0.25, 1.0):
            if speed is not None:
                tell_speed(here, speed)
            jobs.run([0])

    assert seen == [1.0, 0.25, 1.0]


@pytest.mark.spark
def test_secret_given_inline_is_not_in_the_plan_of_a_job(spark: SparkRuntime, tmp_path: Path) -> None:
    """Neither the plan that Spark shows nor the rows that come back hold what the source's block holds."""
    extract = plan(tmp_path)
    task = partial(run_descriptors, pickle.dumps(extract.only((0, 1))), {}, 3, None)
    context = spark.context()
    assert context is not None
    job = context.parallelize(range(2), 1).mapPartitions(task)
    frame = spark.task_session().range(0, 2, 1, 1).mapInArrow(partial(run_in_arrow, task), ROWS_DDL)

    rows = [row.asDict() for row in frame.collect()]
    shown = f"{job.toDebugString()!r} {job.collect()} {frame._jdf.queryExecution().toString()} {rows}"

    assert [row["done"] for row in rows] == [True, True]
    assert "PythonRDD" in shown
    assert "MapInArrow" in shown
    assert "s3cr3t" not in shown


@pytest.mark.parametrize(
    ("count", "at_most", "lengths"),
    [(1, 400, [1]), (3, 2, [1, 2]), (5, 5, [1] * 5), (1000, 400, [2, 3]), (10_000, 400, [25])],
)
def test_groups_are_neighbours_of_nearly_equal_number(count: int, at_most: int, lengths: list[int]) -> None:
    """Every position is dealt once, in order, into groups whose lengths differ by one at most."""
    dealt = groups(range(count), at_most)

    assert list(range(count)) == [position for group in dealt for position in group]
    assert set(lengths) == {len(group) for group in dealt}
    assert len(dealt) <= at_most


CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, RivetError)]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_fault_crosses_from_task_to_driver(kind: type[RivetError]) -> None:
    """Each class of errors.py arrives as itself, whatever its constructor asks for."""
    fault = kind.__new__(kind)
    Exception.__init__(fault, "What is wrong; what to do.")
    fault.extra_seconds = 1.5  # type: ignore[attr-defined]

    arrived = rebuild(describe(fault))

    assert (kind, "What is wrong; what to do.", 1.5) == (type(arrived), str(arrived), arrived.extra_seconds)  # type: ignore[attr-defined]


def test_fault_of_an_unknown_class_arrives_as_a_failed_task() -> None:
    """A class that this process cannot find, or may not, is told as TaskFailed with the same text."""
    told = describe(SourcePermission("Grant SELECT."))

    arrived = [rebuild({**told, **other}) for other in ({"name": "Gone"}, {"module": "os", "name": "system"})]

    assert [(TaskFailed, "Grant SELECT.")] * 2 == [(type(error), str(error)) for error in arrived]
