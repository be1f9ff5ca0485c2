"""The order of effects of a drain, over a log in memory: windows, parts, checkpoints, and death at each step."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import delete, update

from rivet_assets.run import interruption
from rivet_resources.commit.manifest import current_manifests, window_manifest
from rivet_resources.contracts.change_log import Capture, Position, change_schema
from rivet_resources.contracts.evidence import Finding
from rivet_resources.contracts.extract import CursorMove, Extract, Staged, Window
from rivet_resources.contracts.parts import Measures
from rivet_resources.contracts.relation import Relation
from rivet_resources.contracts.settings import pace
from rivet_resources.contracts.source import TypeRules
from rivet_resources.contracts.types import Column
from rivet_resources.destinations.local import Local
from rivet_resources.drain import drain as drain_module
from rivet_resources.drain import window_size
from rivet_resources.drain.drain import drain
from rivet_resources.drain.plan import Drained, DrainPlan, DrainServices, EndWithin, never_ends
from rivet_resources.errors import (
    CheckpointUnusable,
    DriftRefused,
    LogSetup,
    PositionLost,
    ProvenanceRefused,
    RivetError,
    WindowTaken,
)
from rivet_resources.shape.transforms.mask_tags import MaskRule, TagMasks
from rivet_resources.state.checkpoints.stores import state_checkpoints
from rivet_resources.state.leases import export_lease
from rivet_resources.state.store import State, default_url, open_state
from rivet_resources.write.formats.parquet import Parquet
from tests.fake_log import FakeLog, FakeReader, FakeSource, place

ORDERS = (Column("id", "int8", pa.int64(), '"id"', nullable=False), Column("total", "int8", pa.int64(), '"total"'))
LINES = (Column("id", "int8", pa.int64(), '"id"', nullable=False),)


class Killed(BaseException):
    """Stands for the process's end."""


@dataclass
class Bench:
    """A log, a lake and a store; `run` drains once."""

    folder: Path
    log: FakeLog
    tables: tuple[str, ...] = ("orders", "lines")
    state: State = field(init=False)
    runs: int = 0

    def __post_init__(self) -> None:
        self.state = open_state(default_url(self.folder))

    def plan(self, **changes: Any) -> DrainPlan:
        self.runs += 1
        capture = Capture("shop", self.tables, TypeRules({}), max_events=changes.pop("max_events", None))
        plan = DrainPlan(
            capture=capture,
            source=FakeSource(self.log),  # type: ignore[arg-type]
            destination=Local(type="local", path=str(self.folder / "lake")),
            format=Parquet(type="parquet"),
            pace=pace(None, None),
            key="fake.shop",
            run_id=f"shop_20260101T000000.000_{self.runs:06x}",
            started_at=datetime.now(UTC),
            folders={table: f"shop/{table}" for table in self.tables},
        )
        return replace(plan, **changes)

    def run(
        self,
        step: Callable[[str], None] = lambda name: None,
        is_asked_to_end: Callable[[], bool] = lambda: False,
        end_within: EndWithin = never_ends,
        services: Mapping[str, Any] = MappingProxyType({}),
        **changes: Any,
    ) -> Drained:
        plan = self.plan(**changes)
        roots = {table: plan.destination.root(plan.folders[table]) for table in self.tables}

        def copy(table: str, position: Position, handover: object, *, absent: frozenset[str]) -> Staged:
            extract = Extract(
                export=plan.folders[table], mode="cdc", window=Window("after=start"), run_id=plan.run_of(table),
                relation=Relation(table, table, self.log.columns[table], True), chunks=(),
                source=plan.source, destination=plan.destination, format=plan.format, pace=plan.pace,
                consistency="log", cursor=CursorMove(None, position.key, "__pos"),
            )  # fmt: skip
            schema = change_schema(pa.schema([column.field for column in self.log.columns[table]]))
            standing = window_manifest(roots[table], extract.window)
            return Staged(
                extract, (), Measures(), schema.serialize().to_pybytes(), standing[1] if standing else None,
                datetime.now(UTC), consistency="log",
            )  # fmt: skip

        with self.state.lease("shop", "drain", plan.run_id) as lease:
            hands = DrainServices(
                state=self.state, checkpoints=state_checkpoints(self.state), lease=lease, roots=roots, copy=copy,
                scratch=self.folder, step=step, is_asked_to_end=is_asked_to_end, end_within=end_within,
                **{"judge": lambda table, staged, is_between=False: None, **services},
            )  # fmt: skip
            return drain(plan, hands)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Read what the manifests of a table show, in log order."""
        root = Local(type="local", path=str(self.folder / "lake")).root(f"shop/{table}")
        found: list[dict[str, Any]] = []
        for manifest in current_manifests(root).values():
            for part in manifest.parts:
                found += pq.read_table(f"{root.uri}/{part.path}", partitioning=None).to_pylist()
        return sorted(found, key=lambda row: (row["__pos"], row["__seq"]))

    def sizes(self, table: str) -> list[int]:
        """Count the rows of each window of a table, in their order."""
        found = current_manifests(Local(type="local", path=str(self.folder / "lake")).root(f"shop/{table}")).values()
        return [each.row_count for each in sorted(found, key=lambda each: each.cursor.high) if each.row_count]

    def ids(self, table: str) -> list[int]:
        return [row["id"] for row in self.rows(table)]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, FakeLog({"orders": ORDERS, "lines": LINES}))


def write(log: FakeLog, first: int, count: int) -> None:
    for number in range(first, first + count):
        log.commit(
            ("orders", "insert", {"id": number, "total": 1}),
            ("other", "insert", {}),
            ("lines", "insert", {"id": number}),
        )


def test_changes_since_the_beginning_are_published_once(bench: Bench) -> None:
    write(bench.log, 0, 3)
    bench.run()
    assert bench.ids("orders") == []  # what was there before the drain began is the first copy's business
    write(bench.log, 3, 5)
    done = bench.run()
    write(bench.log, 8, 2)
    bench.run()
    assert bench.ids("orders") == bench.ids("lines") == [3, 4, 5, 6, 7, 8, 9]
    assert (done.changes, done.tables["orders"].rows, done.windows, done.disorder) == (10, 5, 1, 0)
    assert [row["__seq"] for row in bench.rows("lines")] == [5] * 7


def test_an_idle_drain_asks_the_source_once(bench: Bench) -> None:
    bench.run()
    bench.log.statements.clear()
    done = bench.run()
    assert bench.log.statements == ["survey"]
    assert done.windows == 0


def test_changes_of_other_tables_move_the_source_without_a_window(bench: Bench) -> None:
    bench.run()
    bench.log.commit(("other", "insert", {}))
    done = bench.run()
    assert (done.windows, bench.log.acknowledged) == (0, 1)
    assert bench.run().started_from == done.position


def test_parts_are_cut_by_rows_over_all_tables(bench: Bench) -> None:
    bench.run()
    write(bench.log, 0, 10)
    done = bench.run(rollover=6)
    assert [done.tables[table].files for table in bench.tables] == [4, 4]
    assert bench.ids("orders") == list(range(10))


def test_max_events_ends_at_the_first_commit_at_or_past_it(bench: Bench) -> None:
    bench.run()
    write(bench.log, 0, 10)
    done = bench.run(max_events=3)
    assert done.changes == 4
    assert bench.ids("orders") == [0, 1]
    bench.run()
    assert bench.ids("orders") == list(range(10))


@pytest.mark.parametrize("most", [7, None])
def test_drain_without_end_follows_until_its_bound_or_until_it_is_asked(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, most: int | None
) -> None:
    """It looks again where the log ended, and brings what came meanwhile; the window at hand is finished."""
    monkeypatch.setattr(drain_module, "IDLE_SECONDS", 0.01)
    bench.run()
    asked = 0

    def writing() -> bool:  # asked between windows and before each look
        nonlocal asked
        asked += 1
        if asked <= 5:
            write(bench.log, asked, 1)
        return most is None and asked > 12

    done = bench.run(is_asked_to_end=writing, until_current=False, max_events=most)

    assert done.changes == (8 if most else 10)
    assert bench.ids("orders") == list(range(1, done.changes // 2 + 1))


def test_windows_are_made_smaller_where_changes_are_large(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first window goes by a guess, the next ones by what it came to; none parts a transaction."""
    monkeypatch.setattr(window_size, "FEWEST_CHANGES", 1)
    bench.run()
    write(bench.log, 0, 60)  # two changes each

    done = bench.run(window_bytes=2 * 40 * window_size.FIRST_BYTES)  # two are under way

    assert list(range(60)) == bench.ids("orders")
    first, *others = bench.sizes("orders")
    assert (20, 120) == (first, done.changes)
    assert [40] == others  # a change has fewer bytes than was guessed

    write(bench.log, 60, 20)
    bench.run(window_bytes=2 * 4 * window_size.FIRST_BYTES)

    assert list(range(80)) == bench.ids("orders")
    assert 2 == bench.sizes("orders")[2]


def test_drain_without_end_waits_between_windows_and_hears_that_it_is_to_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`commit_every: 60` is a minute between two looks, in naps of a second."""
    clock, naps = [1000.0], list[float]()

    def nap(seconds: float) -> None:
        naps.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr(drain_module, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=nap))
    bench.run()
    bench.log.statements.clear()

    bench.run(is_asked_to_end=lambda: len(naps) >= 90, until_current=False, commit_every=60.0)

    assert [1.0] * 90 == naps
    assert ["survey"] * 3 == bench.log.statements  # at its start, after a minute, and when it was woken to end


def test_table_is_admitted_before_its_first_change_is_written(bench: Bench) -> None:
    """All tables before a first copy; later the first one of the list, and others when they have changes."""
    told: list[str] = []
    services = {"admit": lambda table, found: told.append(f"admit {table}"), "begin": told.append}
    bench.run(services=services)
    assert ["admit orders", "orders", "admit lines", "lines"] == told

    told.clear()
    bench.run(services=services)
    assert ["admit orders"] == told

    told.clear()
    bench.log.commit(("lines", "insert", {"id": 1, "text": "x"}))
    bench.run(services=services, step=lambda name: told.append(name) if name == "part" else None)
    assert ["admit orders", "admit lines", "lines", "part"] == told

    def refuse(table: str, found: object) -> None:
        if table == "lines":
            raise ProvenanceRefused("another database's")

    bench.log.commit(("lines", "insert", {"id": 2, "text": "x"}))
    with pytest.raises(ProvenanceRefused):
        bench.run(services={"admit": refuse})
    assert [1] == bench.ids("lines")


@pytest.mark.parametrize(("patience", "published"), [(60.0, [0, 1, 2]), (-1.0, [])], ids=["short", "long"])
def test_window_that_is_read_for_too_long_is_left_to_the_next_run(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, patience: float, published: list[int]
) -> None:
    """A drain that was asked to end amid a window finishes it if that is soon done; else nothing of it is seen."""
    bench.run()
    before = bench.log.acknowledged
    write(bench.log, 0, 3)
    monkeypatch.setattr(drain_module, "ENDING_SECONDS", patience)
    steps: list[str] = []

    done = bench.run(step=steps.append, is_asked_to_end=lambda: "part" in steps, until_current=False)

    assert published == bench.ids("orders")
    assert bool(published) == (bench.log.acknowledged > before)
    assert bool(published) == (done.position.key > place(before).key)
    assert done.lag is not None, "what was left unread is told, not taken for nothing"
    monkeypatch.undo()
    bench.run()
    assert [0, 1, 2] == bench.ids("orders") == bench.ids("lines")


@pytest.fixture
def own_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the wish to end from the tests that come later in this process."""
    monkeypatch.setattr(interruption, "_wish", interruption._Wish())
    monkeypatch.setattr(interruption, "_hush", lambda: None)


@pytest.mark.usefixtures("own_wish")
def test_drain_that_waits_for_the_log_ends_when_it_is_asked(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that looks through its log without a word is left waiting, and what it would have said comes again."""
    bench.run()
    write(bench.log, 0, 3)
    monkeypatch.setattr(drain_module, "ENDING_SECONDS", 0.05)
    read = FakeReader.read

    def silent(*args: Any, **named: Any) -> Iterator[Any]:
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(60)
        yield from read(*args, **named)

    monkeypatch.setattr(FakeReader, "read", silent)
    with interruption.gently() as end:  # in the main thread, where pytest-xdist runs tests
        done = bench.run(is_asked_to_end=end.is_asked, end_within=end.within, until_current=False)

    assert (0, []) == (done.changes, bench.ids("orders"))
    assert done.lag is not None
    monkeypatch.undo()
    bench.run()
    assert [0, 1, 2] == bench.ids("orders") == bench.ids("lines")


@pytest.mark.usefixtures("own_wish")
def test_first_copy_ends_when_a_drain_is_asked_to(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of hours does not keep its process; nothing of it is seen, and the next run begins it again."""
    monkeypatch.setattr(drain_module, "ENDING_SECONDS", 0.05)
    steps: list[str] = []

    def waiting(name: str) -> None:
        steps.append(name)
        if name == "copy" and steps.count("copy") == 1:
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Event().wait(60)

    with pytest.raises(KeyboardInterrupt), interruption.gently() as end:
        bench.run(step=waiting, is_asked_to_end=end.is_asked, end_within=end.within, until_current=False)

    assert steps.count("copy") == 1
    write(bench.log, 0, 2)
    bench.run(step=steps.append)
    write(bench.log, 2, 2)
    bench.run()
    assert [2, 3] == bench.ids("orders")[-2:]


def test_windows_form_one_chain(bench: Bench) -> None:
    for first in (0, 1, 2):
        bench.run()
        bench.log.commit(("other", "insert", {}))
        bench.run()
        write(bench.log, first, 1)
    bench.run()
    root = Local(type="local", path=str(bench.folder / "lake")).root("shop/orders")
    cursors = [manifest.cursor for manifest in current_manifests(root).values()]
    lows = {cursor.low for cursor in cursors if cursor}
    highs = {cursor.high for cursor in cursors if cursor}
    assert len(cursors) == 4
    assert lows - highs == {None}


def test_a_table_altered_inside_a_window_has_parts_of_both_schemas(bench: Bench) -> None:
    bench.run()
    write(bench.log, 0, 2)
    wider = (*ORDERS, Column("note", "text", pa.string(), '"note"'))
    bench.log.altered[2] = {"orders": wider}
    bench.log.commit(("orders", "insert", {"id": 2, "total": 1, "note": "new"}))
    done = bench.run()
    assert done.tables["orders"].files == 2
    assert [row.get("note") for row in bench.rows("orders")] == [None, None, "new"]


STEPS = ["begin", "begun", "copy", "parts", "manifest", "success", "cursor", "acknowledge", "metrics"]
LATER = ["read", "admitted", "part", "staged", *STEPS[3:], "checkpoint", "source", "acknowledged"]


@pytest.mark.parametrize("fatal", STEPS)
def test_death_in_the_first_run(bench: Bench, fatal: str) -> None:
    with pytest.raises(Killed):
        bench.run(_dying(fatal))
    write(bench.log, 0, 3)
    bench.run()
    write(bench.log, 3, 2)
    bench.run()
    ids = bench.ids("orders")
    assert ids == sorted(set(ids))
    assert set(ids) >= {3, 4}


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("fatal", LATER)
def test_death_at_any_step_then_more_writes(bench: Bench, fatal: str, nth: int) -> None:
    bench.run()
    write(bench.log, 0, 7)
    with suppress(Killed):  # some steps come once only
        bench.run(_dying(fatal, nth), rollover=4)
    write(bench.log, 7, 3)
    bench.run()
    assert bench.ids("orders") == bench.ids("lines") == list(range(10))
    assert bench.log.acknowledged == 10


def test_a_line_that_breaks_leaves_everything_as_it_was(bench: Bench) -> None:
    bench.run()
    write(bench.log, 0, 5)
    bench.log.break_after = 3
    with pytest.raises(ConnectionResetError):
        bench.run()
    assert bench.ids("orders") == []
    assert bench.log.acknowledged == 0
    bench.log.break_after = None
    bench.run()
    assert bench.ids("orders") == list(range(5))


def test_another_source_under_the_same_name_is_refused(bench: Bench) -> None:
    bench.run()
    bench.log.identity = "fake:2"
    with pytest.raises(CheckpointUnusable, match=r"fake:1.*fake:2"):
        bench.run()


def test_a_log_moved_on_by_somebody_else_is_refused(bench: Bench) -> None:
    bench.run()
    write(bench.log, 0, 2)
    bench.log.acknowledged = 1
    with pytest.raises(PositionLost):
        bench.run()


def test_missing_prerequisites_are_all_named_before_anything_is_made(bench: Bench) -> None:
    bench.log.findings = (
        Finding("wal_level", "fail", "wal_level is replica.", "ALTER SYSTEM SET wal_level = logical"),
        Finding("role", "fail", "no REPLICATION.", "ALTER ROLE x REPLICATION"),
    )
    with pytest.raises(LogSetup, match=r"(?s)ALTER SYSTEM.*ALTER ROLE"):
        bench.run()
    assert "begin" not in bench.log.statements


def test_a_table_that_joins_later_needs_its_own_beginning(bench: Bench) -> None:
    bench.tables = ("orders",)
    bench.run()
    bench.tables = ("orders", "lines")
    with pytest.raises(CheckpointUnusable, match="lines joined"):
        bench.run()


def test_a_writer_that_fails_ends_the_drain_and_leaves_no_staged_part(bench: Bench) -> None:
    bench.run()
    write(bench.log, 0, 3)

    def fill(name: str) -> None:
        if name == "staged":
            raise RivetError("the disk is full")

    with pytest.raises(RivetError):
        bench.run(fill)
    root = Local(type="local", path=str(bench.folder / "lake")).root("shop/orders")
    assert root.staged_runs() == set()


def _dying(fatal: str, nth: int = 1) -> Callable[[str], None]:
    seen = 0

    def step(name: str) -> None:
        nonlocal seen
        seen += name == fatal
        if name == fatal and seen == nth:
            raise Killed

    return step


def test_drain_whose_lease_was_taken_publishes_nothing(bench: Bench) -> None:
    """Believed dead, it finds out before its window is shown; the next drain brings every change once."""
    bench.run()
    write(bench.log, 0, 3)

    def take(name: str) -> None:
        if name == "part":
            with bench.state._database.write() as connection:
                connection.execute(update(export_lease).values(run_id="its successor"))

    with pytest.raises(WindowTaken):
        bench.run(take)
    assert [] == bench.ids("orders") == bench.ids("lines")
    with bench.state._database.write() as connection:
        connection.execute(delete(export_lease))
    bench.run()

    assert [0, 1, 2] == bench.ids("orders") == bench.ids("lines")


# --- masks by tag --------------------------------------------------------------------------------

PEOPLE = (
    Column("id", "int8", pa.int64(), '"id"', nullable=False),
    Column("email", "text", pa.string(), '"email"'),
)
PHONE = Column("phone", "text", pa.string(), '"phone"')
REDACTED = "[REDACTED]"


@pytest.fixture
def tagged(tmp_path: Path) -> Bench:
    """A log of one table of people whose address is tagged."""
    log = FakeLog({"people": PEOPLE}, comments={"people": {"id": "", "email": "pii"}})
    return Bench(tmp_path, log, tables=("people",))


STEPS = (TagMasks({"pii": MaskRule(method="redact")}, of_log=True),)


def test_comments_are_read_behind_the_survey_and_once(tagged: Bench) -> None:
    """What the log has up to its end was written under these comments, or under older ones."""
    tagged.run(steps=STEPS)
    for number in range(3):
        tagged.log.commit(("people", "insert", {"id": number, "email": "a@x.org"}))
    tagged.log.statements.clear()

    tagged.run(steps=STEPS)

    assert ["survey", "read", "comments of people", "acknowledge"] == tagged.log.statements
    assert [REDACTED] * 3 == [row["email"] for row in tagged.rows("people")]
    tagged.log.statements.clear()
    tagged.run(steps=STEPS)
    assert ["survey"] == tagged.log.statements


def test_comments_are_read_again_where_columns_change_and_after_each_look(
    tagged: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column that comes is masked from its first value, and a tag that comes from the next look on."""
    monkeypatch.setattr(drain_module, "IDLE_SECONDS", 0.01)
    tagged.run(steps=STEPS)
    tagged.log.comments["people"] = {"id": "", "email": "", "phone": "pii"}
    tagged.log.commit(("people", "insert", {"id": 0, "email": "a@x.org"}))
    tagged.log.altered[1] = {"people": (*PEOPLE, PHONE)}
    tagged.log.commit(("people", "insert", {"id": 1, "email": "b@x.org", "phone": "7"}))
    asked = 0

    def writing() -> bool:
        nonlocal asked
        asked += 1
        if asked == 4:  # behind the first window
            tagged.log.comments["people"]["email"] = "pii"
            tagged.log.commit(("people", "insert", {"id": 2, "email": "c@x.org", "phone": "8"}))
        return asked > 12

    tagged.run(steps=STEPS, is_asked_to_end=writing, until_current=False)

    rows = tagged.rows("people")
    assert ["a@x.org", "b@x.org", REDACTED] == [row["email"] for row in rows]
    assert [None, REDACTED, REDACTED] == [row.get("phone") for row in rows]


def test_window_names_every_column_that_it_masked(tagged: Bench) -> None:
    """Also one that is gone at its end."""
    tagged.run(steps=STEPS)
    tagged.log.comments["people"]["phone"] = "pii"
    tagged.log.altered[0] = {"people": (*PEOPLE, PHONE)}
    tagged.log.commit(("people", "insert", {"id": 0, "email": "a@x.org", "phone": "7"}))
    tagged.log.altered[1] = {"people": PEOPLE}
    tagged.log.commit(("people", "insert", {"id": 1, "email": "b@x.org"}))

    tagged.run(steps=STEPS)

    root = Local(type="local", path=str(tagged.folder / "lake")).root("shop/people")
    newest = max(current_manifests(root).values(), key=lambda each: each.finished_at)
    assert {"email": "pii", "phone": "pii"} == newest.masked


def test_a_truncate_of_a_table_that_is_gone_needs_no_comments(tagged: Bench) -> None:
    """It has no cell; neither is there a column to ask for."""
    tagged.run(steps=STEPS)
    tagged.log.altered[0] = {"people": ()}
    tagged.log.comments.clear()
    tagged.log.commit(("people", "truncate", {}))

    tagged.run(steps=STEPS)

    assert ["truncate"] == [row["__op"] for row in tagged.rows("people")]


def test_refused_tags_publish_nothing(tagged: Bench) -> None:
    """The position stays where it was."""
    tagged.run(steps=STEPS)
    before = tagged.log.acknowledged
    tagged.log.commit(("people", "insert", {"id": 0, "email": "a@x.org"}))

    def refuse(table: str, relation: Relation) -> Relation:
        raise DriftRefused(table)

    with pytest.raises(DriftRefused):
        tagged.run(steps=STEPS, services={"judge_tags": refuse})

    assert ([], before) == (tagged.rows("people"), tagged.log.acknowledged)
