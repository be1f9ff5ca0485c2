"""Stage a window: one Extract becomes staged, measured parts, on Spark or in this process.

Belongs here: how chunks are handed out, what is kept of a dead run, how faults come back, ending the rest
when one chunk failed. Not here: what a chunk does (`task.py`), and publishing (`commit/publish.py`).

Chunks go to Spark as many small jobs of one task each, submitted by as many threads as may run at once,
not as one job: each finished group is then known, and saved, while the others still run; the cap on
connections holds without pools; and a slow chunk delays nobody's neighbour. A job costs 60 ms of CPU, so
groups grow with the number of chunks (measured; one job of n tasks: 50 ms per task).
"""

from __future__ import annotations

import contextlib
import json
import pickle
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

from rivet_resources import scratch
from rivet_resources.commit.manifest import window_manifest
from rivet_resources.commit.rerun import refuse_rerun
from rivet_resources.contracts.extract import Extract, Staged
from rivet_resources.contracts.messages import Topic
from rivet_resources.contracts.parts import ChunkResult, Measures, Part
from rivet_resources.contracts.read_limits import MonthRead
from rivet_resources.contracts.relation import Chunk
from rivet_resources.contracts.settings import Pace
from rivet_resources.errors import RivetError
from rivet_resources.read import connections
from rivet_resources.read.connections import Permits
from rivet_resources.read.executor import (
    ROWS_DDL,
    Task,
    TaskAttempt,
    TaskFailed,
    outcome,
    rebuild,
    result_of,
    run_descriptors,
    run_in_arrow,
)
from rivet_resources.read.gathering import gathered, is_aligned, leave
from rivet_resources.read.governor_thread import ChunkSlots, Governor, govern
from rivet_resources.read.meter import is_limited, metered, refuse_now, utc_now
from rivet_resources.read.rows_so_far import Progress, StageProgress, nobody_watches
from rivet_resources.read.source_cost import harm
from rivet_resources.read.throttle import read_speed
from rivet_resources.shape.shape import schema_of
from rivet_resources.spark import cluster
from rivet_resources.spark.runtime import SparkRuntime

if TYPE_CHECKING:
    from pyspark import SparkContext

    from rivet_resources.contracts.destination import ReadableRoot, Root

INLINE_ATTEMPTS = 3  # as local[N,3] grants
GROUPS_PER_SLOT = 100  # beyond it several chunks share a job

Told = ChunkResult | RivetError  # what a task says of a chunk
Event = Callable[[str, Mapping[str, Any]], None]  # name of a journal event, its plain facts


class Chunks(Protocol):
    """What the exporter needs of the state store; `State` has it."""

    def finished_chunks(self, export: str, window: str, fingerprint: str) -> dict[str, tuple[str, ChunkResult]]:
        """Return finished chunks of this very plan by identity, each with the run that staged it."""

    def save_chunk(
        self, export: str, window: str, fingerprint: str, run_id: str, result: ChunkResult, identity: str
    ) -> None:
        """Note a chunk whose parts are staged."""

    def lease(self, export: str, window: str, run_id: str) -> AbstractContextManager[Any]:
        """Hold a name until the block ends; permits to connect are such names (`connections.py`)."""

    @property
    def url(self) -> str:
        """Return the URL that opens the same store elsewhere; asked for where reading has limits."""

    def read_in_month(self, place: str, at: datetime) -> MonthRead:
        """Return what was read of a source in the month of `at`; asked for where it has a budget."""


@dataclass(frozen=True)
class Exporter:
    """Stages extracts; one for all exports of a run."""

    spark: SparkRuntime
    state: Chunks

    def permits(
        self, source: object, *, run_id: str, pace: Pace, on_event: Event | None = None
    ) -> AbstractContextManager[Permits]:
        """Wait until a run may connect to its source (`max_connections`); hold on to them until the block ends.

        Raises:
            ReadWindowClosed, BudgetReached: the source may not be read now.
        """
        refuse_now(source, name=f"Run {run_id}", state=self.state, pace=pace, at=utc_now())
        return connections.permits(source, state=self.state, run_id=run_id, pace=pace, on_event=on_event)

    def stage(
        self,
        extract: Extract,
        *,
        on_progress: Progress = nobody_watches,
        on_event: Event | None = None,
        permits: Permits | None = None,
        seen: ReadableRoot | None = None,
    ) -> Staged:
        """Read every chunk and leave its parts staged: complete, verified, invisible.

        Of a resumable window, chunks that a dead run finished are kept when their parts are still there; and when
        this run fails, its finished chunks stay for the next. Otherwise what a failed stage finished is discarded; only
        a task killed in mid-staging may leave an invisible file, which the next sweep removes.

        Args:
            on_event: may be called by another thread.
            permits: what the run holds already, its session's and one task's among them; None: they are taken here.
            seen: what was read of the destination for this window already; None: nothing.

        Raises:
            RivetError: the first fault of any chunk, of the class the task met; the others were called off.
            SparkUnavailable: no session could be started.
        """
        started, clock = datetime.now(UTC), time.monotonic()
        extract = self._metered(extract)
        root = extract.destination.root(extract.export)
        # Read before the first row, and compared at the swap: whoever commits the window in between wins it.
        standing = window_manifest(seen or root, extract.window) if root.keeps_manifests else None
        if isinstance(root, Topic):
            refuse_rerun(extract, standing[0] if standing else None, root=root)
        extract, kept = with_one_clock(extract, self._finished_chunks(extract, root))
        # By identity and not by index: a new plan may number the same ranges differently.
        rest = [position for position, chunk in enumerate(extract.chunks) if chunk.identity not in kept]
        results = list(kept.values())
        kept_rows = sum(result.measures.rows for result in results)
        progress = StageProgress(
            scratch.folder_of(extract.run_id), len(extract.chunks), on_progress, len(kept), kept_rows
        )
        try:
            with (
                scratch.held(scratch.folder_of(extract.run_id)),
                self._govern(extract, rest, permits, on_event) as governor,
                progress.while_reading(),
            ):
                for result in self._run(extract, rest, governor, on_event):
                    results.append(result)
                    # While other chunks still run: of a resumable window a kill takes the chunks in flight, and no
                    # others.
                    self._save(extract, result)
                    progress.chunk_done(result.measures.rows)
        except BaseException:
            # A resumable window keeps its finished chunks staged, for the next run publishes them without reading.
            if not extract.resumable:
                _discard(root, [part for result in results for part in result.files])
            raise
        # Only what this run read is its harm to the source; rows of kept chunks belong to the window and not to the
        # cost.
        read = sum((result.measures for result in results[len(kept) :]), Measures())
        of_kept = sum((result.measures for result in kept.values()), Measures())
        # They finish in any order; the manifest lists parts as chunks stand in the plan.
        results.sort(key=lambda result: result.chunk)
        seconds = time.monotonic() - clock
        held_seconds = seconds if extract.snapshot and read.connections else 0.0
        return Staged(
            extract=extract,
            parts=tuple(part for result in results for part in result.parts),
            measures=of_kept + read,
            schema_ipc=schema_of(extract).serialize().to_pybytes(),
            previous=standing[1] if standing else None,
            started_at=started,
            seconds={"read": seconds},
            # The chunks of a dead run saw an earlier instant, so the window is no snapshot any more, and its
            # manifest says so.
            consistency="resumed" if kept else extract.consistency,
            chunk_measures=_by_chunk(extract, results),
            harm=harm(read, governor, snapshot_seconds=held_seconds),
            kept_chunks=len(kept),
            kept=of_kept,
            refusing=tuple(result for result in results if result.measures.refused_rows),
        )

    def _metered(self, extract: Extract) -> Extract:
        """Return what tasks need for keeping to limits, where there are any."""
        if not is_limited(extract):
            return extract
        spark = self.spark
        return metered(extract, store=self.state.url, is_far=spark.is_cluster, is_encrypted=spark.is_encrypted)

    def _finished_chunks(self, extract: Extract, root: Root) -> dict[str, ChunkResult]:
        """Find finished chunks of a dead run whose files are all still there, by identity."""
        if not extract.resumable:
            return {}
        saved = self.state.finished_chunks(extract.export, extract.window.key, extract.fingerprint)
        index = {chunk.identity: chunk.index for chunk in extract.chunks}
        return {
            identity: replace(result, chunk=index[identity])
            for identity, (_, result) in saved.items()
            # After a sweep, or in a destination that was cleaned by hand, the record of a finished chunk names
            # files that are gone.
            if identity in index and _is_whole(result, root)
        }

    def _save(self, extract: Extract, result: ChunkResult) -> None:
        if extract.resumable:
            identity = next(chunk.identity for chunk in extract.chunks if chunk.index == result.chunk)
            self.state.save_chunk(
                extract.export, extract.window.key, extract.fingerprint, extract.run_id, result, identity
            )

    @contextmanager
    def _govern(
        self, extract: Extract, positions: Sequence[int], permits: Permits | None, on_event: Event | None
    ) -> Iterator[Governor]:
        """Decide how many tasks may run, as the source's cap allows, and watch over it while they do."""
        folder = scratch.folder_of(extract.run_id)
        # Chunks that the plan proved empty need neither a permit nor a look, and no JVM.
        if not _asks_source(extract, positions):
            yield Governor(extract, min(1, len(positions)), folder)
            return
        with ExitStack() as stack:
            held = permits or stack.enter_context(
                self.permits(extract.source, run_id=extract.run_id, pace=extract.pace, on_event=on_event)
            )
            # The governor's connection comes first, or tasks would leave it none.
            may_look = extract.pace.adaptive and held.more(1) == 1
            # `permits` holds one for a task already, beside the session's.
            slots = 1 + held.more(self._slots(extract, positions) - 1)
            if is_aligned(extract) and slots > 1 and held.more(1) == 0:
                slots -= 1  # the connection that locks is one of them
            yield stack.enter_context(
                govern(extract, slots=slots, scratch=folder, on_event=on_event, may_look=may_look)
            )

    def _slots(self, extract: Extract, positions: Sequence[int]) -> int:
        """Return how many chunks could run at once, but for the source's cap."""
        if self.spark.inline:
            return min(extract.parallel or 1, len(positions))
        # A cluster may grow while it has more to do than it can, so its size of now is no bound.
        if self.spark.is_cluster:
            return min(extract.parallel or self.spark.most_parallel, len(positions))
        return min(extract.parallel or len(positions), self.spark.parallelism, len(positions))

    def _run(
        self, extract: Extract, positions: Sequence[int], governor: Governor, on_event: Event | None
    ) -> Iterator[ChunkResult]:
        """Run chunks in the wanted way, yielding results as they finish, in any order."""
        if not positions:
            return
        if is_aligned(extract):
            yield from self._run_aligned(extract, groups(positions, governor.slots), on_event)
            return
        slots, gate = governor.slots, governor.gate
        # With nothing to ask, starting Spark would be all that the stage does.
        if self.spark.inline or not _asks_source(extract, positions):
            one_by_one = [[position] for position in positions]
            yield from _in_threads(slots, one_by_one, partial(_run_inline, extract), stop=lambda: None, gate=gate)
            return
        # In place of the tasks, whose permits are there and not used yet.
        self.spark.examine(extract, at_once=slots)
        jobs = _Jobs(self.spark, extract)
        # Small groups end often, which is what a dead run's successor keeps; beyond this number the 60 ms of each
        # job weigh more than that.
        work = groups(positions, slots * GROUPS_PER_SLOT)
        yield from _in_threads(slots, work, jobs.run, stop=jobs.cancel, gate=gate)

    def _run_aligned(
        self, extract: Extract, work: Sequence[list[int]], on_event: Event | None
    ) -> Iterator[ChunkResult]:
        """Run as many tasks as groups, all at once: none can begin later, so nothing but their speed is governed."""
        if not self.spark.inline:
            self.spark.examine(extract, at_once=len(work))
        jobs = None if self.spark.inline else _Jobs(self.spark, extract)
        with gathered(extract, work, on_event=on_event) as gathering:

            def run(group: list[int]) -> list[Told]:
                mine = gathering.extract_of(group)
                return _run_inline(mine, group) if jobs is None else replace(jobs, extract=mine).run(group)

            def stop() -> None:
                gathering.ended.set()
                if jobs is not None:
                    jobs.cancel()

            # Every group has its slot: one that waited for a place would miss the meeting, and all others would
            # wait for it.
            yield from _in_threads(len(work), work, run, stop=stop, gate=ChunkSlots(len(work)))


def with_one_clock(extract: Extract, kept: dict[str, ChunkResult]) -> tuple[Extract, dict[str, ChunkResult]]:
    """Return the extract at the time that the rows of kept chunks hold, and the chunks that hold just that.

    So a window has one time, whichever run began it; chunks of another one are read again.
    """
    if extract.clock is None or not kept:
        return extract, kept
    # The time that most chunks hold: the fewest are read again.
    clock, _ = Counter(result.clock for result in kept.values()).most_common(1)[0]
    # Staged by a Rivet that did not write the time down: it cannot be told which time its rows hold.
    if not clock:
        return extract, {}
    at = datetime.fromisoformat(clock)
    meta = replace(extract.meta, exported_at=at) if extract.meta.exported_at is not None else extract.meta
    same = {identity: result for identity, result in kept.items() if result.clock == clock}
    return replace(extract, clock=at, meta=meta), same


def _asks_source(extract: Extract, positions: Sequence[int]) -> bool:
    """Return whether one of these chunks may have a row."""
    return any(not extract.chunks[position].is_empty for position in positions)


def _discard(root: Root, parts: Sequence[Part]) -> None:
    """Remove what was staged behind a failure, which a fault here must not hide; a sweep finds the rest."""
    with contextlib.suppress(RivetError):
        root.discard(parts)


def groups(positions: Sequence[int], at_most: int) -> list[list[int]]:
    """Deal positions into at most so many runs of neighbours, their lengths differing by one at most."""
    count = min(len(positions), at_most)
    edges = [len(positions) * edge // count for edge in range(count + 1)]
    return [list(positions[low:high]) for low, high in pairwise(edges)]


def _by_chunk(extract: Extract, results: Sequence[ChunkResult]) -> dict[int, Measures]:
    """Keep what each chunk measured, where chunks can be compared and read again by themselves."""
    ranged = bool(extract.chunks) and all(chunk.range is not None for chunk in extract.chunks)
    return {result.chunk: result.measures for result in results} if ranged else {}


def _is_whole(result: ChunkResult, root: Root) -> bool:
    """Return whether all files of an earlier run's chunk are still there."""
    unique = [file for files in result.measures.unique.values() for file in files]
    sidecars = [*unique, *result.measures.profile]
    # The sidecars too: without them uniqueness over the whole window, or the profile, could not be judged.
    return all(map(root.staged_exists, result.files)) and all(root.read(file) is not None for file in sidecars)


def _in_threads(
    slots: int,
    work: Sequence[list[int]],
    run: Callable[[list[int]], list[Told]],
    *,
    stop: Callable[[], None],
    gate: ChunkSlots,
) -> Iterator[ChunkResult]:
    """Run groups, `slots` at a time and as many as the gate lets through, and yield results as they come.

    At the first fault the rest is called off; what finished all the same is still yielded, then the fault is raised.
    """
    called_off = threading.Event()
    faults: list[RivetError] = []

    def call_off() -> None:
        called_off.set()
        stop()

    def guarded(group: list[int]) -> list[ChunkResult]:
        with gate.running(called_off):
            if called_off.is_set():
                return []
            try:
                told = run(group)
            except RivetError as error:
                told = [error]
        if broken := [one for one in told if isinstance(one, RivetError)]:
            faults.extend(broken)
            # By this thread, since the pool gives it its next group before anybody else looks.
            call_off()
        return [one for one in told if isinstance(one, ChunkResult)]

    # No thread: an interrupt reaches the work itself.
    if slots == 1:
        for group in work:
            yield from guarded(group)
    else:
        yield from _run_in_pool(slots, work, guarded, call_off=call_off)
    if faults:
        # The first: those after it are mostly chunks that were called off because of it.
        raise faults[0]


def _run_in_pool(
    slots: int,
    work: Sequence[list[int]],
    run: Callable[[list[int]], list[ChunkResult]],
    *,
    call_off: Callable[[], None],
) -> Iterator[ChunkResult]:
    """Run groups in threads; when the caller leaves early, call off what runs before waiting for the threads."""
    with ThreadPoolExecutor(slots, thread_name_prefix="rivet-stage") as pool:
        futures: list[Future[list[ChunkResult]]] = [pool.submit(run, group) for group in work]
        try:
            for future in as_completed(futures):
                yield from future.result()
        except BaseException:
            # Also for GeneratorExit, when the caller stops iterating: leaving the pool's block waits for all
            # threads, and tasks that nobody stops would be waited for to their end.
            call_off()
            raise


def _run_inline(extract: Extract, group: list[int]) -> list[Told]:
    """Run chunks in this process, with the attempts Spark would grant."""
    try:
        return [_attempts(extract, extract.chunks[position]) for position in group]
    finally:
        leave(extract)


def _attempts(extract: Extract, chunk: Chunk) -> Told:
    for number in range(INLINE_ATTEMPTS - 1):
        # `outcome` raises only where another attempt may help.
        with contextlib.suppress(Exception):
            return _read_row(outcome(extract, chunk, TaskAttempt(number, last=False)))
    return _read_row(outcome(extract, chunk, TaskAttempt(INLINE_ATTEMPTS - 1, last=True)))


def _read_row(row: Mapping[str, Any]) -> Told:
    """Read a task's row: a result, or the fault it met."""
    return result_of(row["body"]) if row["done"] else rebuild(json.loads(row["body"]))


@dataclass(frozen=True)
class _Jobs:
    """The Spark jobs of one stage: each runs a group of chunks in one task."""

    runtime: SparkRuntime
    extract: Extract
    tag: str = field(default_factory=lambda: f"rivet-{uuid.uuid4().hex}")

    def run(self, group: list[int]) -> list[Told]:
        """Run chunks in one task, up to the first fault.

        Raises:
            TaskFailed: all attempts of the task died.
            SparkEnded: the cluster ended the application.
            WorkerUnfit: a worker of the cluster cannot run it at all.
        """
        from py4j.protocol import Py4JError  # Spark
        from pyspark.errors import PySparkException  # Spark

        # Of this group only: the whole plan with its thousands of ranges would travel with each job.
        packed = pickle.dumps(self.extract.only(group))
        # Other machines do not see the governor's file: what it holds now goes with the job.
        speed = read_speed(scratch.folder_of(self.extract.run_id)) if self.runtime.is_cluster else None
        lent, attempts = self.runtime.lendable(self.extract), self.runtime.task_attempts
        task = partial(run_descriptors, packed, lent, attempts, speed)
        # Asked before: after a fault there may be another one.
        context = self.runtime.context()
        try:
            with self.runtime.tagged(self.tag):
                # Tagged, since a job that collects in a thread can be ended from another one by its tag alone.
                rows = self._collect(task, len(group), context)
        except (PySparkException, Py4JError) as error:
            # `from None`: the chained text would hold what Spark says, and that may quote a row.
            raise self._task_failed(group, str(error), context) from None
        return [_read_row(row) for row in rows]

    def _collect(self, task: Task, count: int, context: SparkContext | None) -> list[dict[str, Any]]:
        """Run a task over the descriptors 0 to `count`: as a plain job where that can be, since SQL starts slowly."""
        if context is not None:
            rows: list[dict[str, Any]] = context.parallelize(range(count), 1).mapPartitions(task).collect()
            return rows
        frame = self.runtime.task_session().range(0, count, 1, 1)
        return [row.asDict() for row in frame.mapInArrow(partial(run_in_arrow, task), ROWS_DDL).collect()]

    def cancel(self) -> None:
        """Call off what runs."""
        self.runtime.call_off(self.tag)

    def _task_failed(self, group: list[int], told: str, context: SparkContext | None) -> RivetError:
        """Return that a task died, by kind only: Spark's text may hold a value of a row."""
        if self.runtime.is_cluster and (found := cluster.cluster_fault(told, context)):
            return found
        crash = (
            "its Python process died" if "crashed" in told or "exited unexpectedly" in told else "Spark gave up on it"
        )
        chunks = ", ".join(str(self.extract.chunks[position].index) for position in group)
        host = cluster.host_of(told) if self.runtime.is_cluster else ""
        last = f", the last one on {host}" if host else ""
        return TaskFailed(
            f"Export {self.extract.export}, chunk {chunks}: {crash} in each of {self.runtime.task_attempts} "
            f"attempts{last}. "
            f"If the machine is short of memory, lower `tuning: batch_size_memory_mb` or `parallel`; "
            f"run again with RIVET_SPARK_LOG=- to see Spark's own log. Nothing was published."
        )
