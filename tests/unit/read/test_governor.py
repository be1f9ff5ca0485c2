"""How hard a source is driven: the decision as a table, the thread that takes it, the task that obeys, the cap."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rivet_resources.contracts.evidence import Pressure
from rivet_resources.contracts.parts import Measures
from rivet_resources.contracts.settings import Spark, Tuning, pace
from rivet_resources.contracts.source import Page
from rivet_resources.engines.postgres.source import Postgres
from rivet_resources.engines.shared.page_size import LONGEST_SECONDS, Measured, Size
from rivet_resources.errors import SourceError, StatementTimeout
from rivet_resources.read import governor_thread as governing
from rivet_resources.read.connections import Permits, permits
from rivet_resources.read.governor import LOWEST_STEP, Course, Level, level_of, signs_of
from rivet_resources.read.governor_thread import ChunkSlots, Governor
from rivet_resources.read.source_cost import harm
from rivet_resources.read.stage import Exporter
from rivet_resources.read.throttle import Latency, Throttle, read_speed, tell_speed
from rivet_resources.spark.runtime import SparkRuntime
from rivet_resources.state.store import State, open_state
from tests.fakes import FAST, ScriptedGauge, TableSource, extract_of

CALM = Pressure(
    latency_ms=2.0, active=4, lock_waits=0, lag_seconds=0.1, log_waits=100, connections=20, connections_limit=100
)
LOCKED = replace(CALM, lock_waits=3)
EAGER = FAST.model_copy(update={"adaptive": True, "min_parallel": 1})


# --- the decision --------------------------------------------------------------------------------

SIGNS = [
    ({}, ""),
    ({"active": 7}, ""),
    ({"active": 12}, "12 other sessions were at work, 4 is usual"),
    ({"lock_waits": 1}, "1 sessions waited for locks, 0 is usual"),
    ({"latency_ms": 11.0}, ""),
    ({"latency_ms": 12.0}, "a short statement took 12 ms, 2 is usual"),
    ({"lag_seconds": 4.0}, ""),
    ({"lag_seconds": 6.0}, "a replica was 6.0 s behind, 0.1 is usual"),
    ({"log_waits": 102}, "its log had to wait 2 times since the last look"),
    ({"log_waits": 3}, ""),  # the counter was reset
    ({"connections": 89}, ""),
    ({"connections": 90}, "90 of its 100 connections are taken"),
    ({"active": None, "lock_waits": None, "lag_seconds": None, "log_waits": None, "connections": None}, ""),
]


@pytest.mark.parametrize(("changed", "expected"), SIGNS)
def test_sign_is_what_is_worse_than_usual(changed: dict[str, Any], expected: str) -> None:
    """Each number has its own limit over what is usual; what cannot be read is no sign."""
    found = signs_of(replace(CALM, **changed), usual=(CALM, CALM, CALM), last=CALM)

    assert ([expected] if expected else []) == found


def test_every_number_of_a_look_is_judged() -> None:
    """A number that a gauge may tell and nobody judges would be asked for in vain."""
    judged = {name for changed, expected in SIGNS if expected for name in changed}

    told_otherwise = {"connections_limit", "waiting_for_us"}
    assert set(vars(CALM)) - told_otherwise == judged


def test_who_waits_for_us_is_not_made_to_wait_longer() -> None:
    """DDL that waits for the lock of our reading is told of, and no reason to read more slowly."""
    waiting = replace(LOCKED, waiting_for_us=1)
    course = Course().after(CALM).after(waiting)

    assert (0, 3, 1) == (course.step, course.most_lock_waits, course.most_waiting_for_us)
    assert 1 == course.after(LOCKED).step


def test_replica_that_catches_up_is_no_sign() -> None:
    """A lag that shrinks asks nothing of us any more."""
    behind, closer = replace(CALM, lag_seconds=60.0), replace(CALM, lag_seconds=50.0)

    assert [] == signs_of(closer, usual=(CALM,), last=behind)
    assert 1 == len(signs_of(behind, usual=(CALM,), last=closer))


def test_what_was_there_from_the_first_look_is_usual() -> None:
    """A server that is always busy is not governed for being busy."""
    busy = replace(CALM, active=60, lock_waits=5, latency_ms=80.0)

    assert {0} == set(steps([busy] * 10))


def steps(looks: list[Pressure | None]) -> list[int]:
    """Return the step after each look."""
    course, found = Course(), []
    for look in looks:
        course = course.after(look)
        found.append(course.step)
    return found


COURSES = [
    ("calm", [CALM] * 5, [0] * 5),
    ("down with each look, to the lowest", [CALM] + [LOCKED] * 6, [0, 1, 2, 3, 3, 3, 3]),
    ("up by one step after two calm looks", [CALM, LOCKED, LOCKED] + [CALM] * 5, [0, 1, 2, 2, 1, 1, 0, 0]),
    ("a relapse doubles the patience", [CALM, LOCKED, CALM, CALM, LOCKED] + [CALM] * 4, [0, 1, 1, 0, 1, 1, 1, 1, 0]),
    ("one that cannot be read changes nothing", [CALM, LOCKED, None, None, LOCKED], [0, 1, 1, 1, 2]),
    ("three of them end it", [CALM, LOCKED, None, None, None], [0, 1, 1, 1, 0]),
]


@pytest.mark.parametrize(("looks", "expected"), [each[1:] for each in COURSES], ids=[each[0] for each in COURSES])
def test_course_of_steps(looks: list[Pressure | None], expected: list[int]) -> None:
    """Down at once, up in patience."""
    assert expected == steps(looks)


def test_patience_is_forgotten_after_a_lasting_calm() -> None:
    """A relapse of the morning does not slow the recovery of the evening."""
    course = Course()
    for look in [CALM, LOCKED, CALM, CALM, LOCKED, *[CALM] * 12, LOCKED, CALM, CALM]:
        course = course.after(look)

    assert 0 == course.step


LEVELS = [
    (0, 8, 1, Level(1.0, 8)),
    (1, 8, 1, Level(0.5, 4)),
    (2, 5, 1, Level(0.25, 2)),
    (3, 8, 1, Level(0.125, 1)),
    (3, 8, 3, Level(0.125, 3)),
    (3, 2, 5, Level(0.125, 2)),
]


@pytest.mark.parametrize(("step", "tasks", "fewest", "expected"), LEVELS)
def test_level_halves_and_keeps_the_fewest_tasks(step: int, tasks: int, fewest: int, expected: Level) -> None:
    """Each step halves speed and tasks, never below `min_parallel`, never above what there was."""
    assert expected == level_of(step, tasks=tasks, min_parallel=fewest)


def test_memory_alone_is_reason_enough() -> None:
    """Our own processes above their threshold slow us down, however well the source is."""
    course = Course().after(CALM).after(CALM, memory="our processes hold 900 MB of 800")

    assert (1, "our processes hold 900 MB of 800") == (course.step, course.reason)


# --- the thread ----------------------------------------------------------------------------------


@dataclass
class GaugedSource(TableSource):
    """A table whose gauge is scripted, and whose pages last until the gauge has looked so often."""

    script: ScriptedGauge = field(default_factory=lambda: ScriptedGauge([CALM]))
    until: int = 0
    connected: int = 0

    @contextmanager
    def gauge(self, *, application: str, pace: Any) -> Iterator[ScriptedGauge]:
        """Yield the scripted gauge."""
        self.connected += 1
        yield self.script

    def pages(self, chunk: Any, columns: Any, **about: Any) -> Iterator[Page]:
        """Read as the table does, once the gauge has looked often enough."""
        give_up = time.monotonic() + 10
        while self.script.looked < self.until and time.monotonic() < give_up:
            time.sleep(0.005)
        yield from super().pages(chunk, columns, **about)


def table(rows: int = 400) -> pa.Table:
    """Return some rows."""
    return pa.table({"id": np.arange(rows)})


@pytest.fixture
def state(tmp_path: Path) -> State:
    """A state store of its own."""
    return open_state(f"sqlite:///{tmp_path / 'state.db'}")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look every ten milliseconds."""
    monkeypatch.setenv("RIVET_GOVERNOR_INTERVAL_MS", "10")


def staged(source: TableSource, state: State, folder: Path, **changes: Any) -> tuple[Any, list[Any]]:
    """Stage the source's table in this process; with the events that were told."""
    events: list[Any] = []
    extract = extract_of(source.table, folder, source=source, **{"pace": EAGER, "pieces": 4, **changes})
    exporter = Exporter(SparkRuntime(Spark(engine="inline")), state)
    made = exporter.stage(extract, on_event=lambda name, facts: events.append((name, dict(facts))))
    return made, events


def test_steps_are_told_with_their_reason_and_end_in_the_harm(state: State, tmp_path: Path) -> None:
    """Down and up again: each step is an event, and their number is part of the harm."""
    script = ScriptedGauge([CALM, LOCKED, LOCKED, *[CALM] * 12])
    made, events = staged(GaugedSource(table(), script=script, until=14), state, tmp_path, parallel=4)

    told = [(name, facts["from"], facts["to"], facts["speed_to"]) for name, facts in events]
    adjusted = "ParallelismAdjusted"
    assert [
        (adjusted, 4, 2, 0.5), (adjusted, 2, 1, 0.25), (adjusted, 1, 2, 0.5), (adjusted, 2, 4, 1.0)
    ] == told[:4]  # fmt: skip
    assert "3 sessions waited for locks, 0 is usual" == events[0][1]["reason"]
    assert (2, 3) == (made.harm["steps_down"], made.harm["most_lock_waits_seen"])
    assert 7 == made.harm["server_deadlocks"]


def test_source_that_cannot_be_looked_at_is_read_all_the_same(state: State, tmp_path: Path) -> None:
    """Three unreadable looks end the governing, said once; the rows are all there."""
    script = ScriptedGauge([SourceError("no permission")])
    made, events = staged(GaugedSource(table(), script=script, until=3), state, tmp_path)

    assert 400 == made.measures.rows
    assert [("GovernorStopped", {"reason": "no permission"})] == events


def test_look_that_runs_into_its_timeout_is_pressure(state: State, tmp_path: Path) -> None:
    """A server too busy for one short statement is not one that cannot be looked at."""
    script = ScriptedGauge([CALM, StatementTimeout("2 s")])
    _, events = staged(GaugedSource(table(), script=script, until=4), state, tmp_path)

    assert "a short statement took 2000 ms, 2 is usual" == events[0][1]["reason"]


def test_short_export_pays_nothing(state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An export that ends before the first look never connects for it."""
    monkeypatch.delenv("RIVET_GOVERNOR_INTERVAL_MS")
    source = GaugedSource(table())
    made, events = staged(source, state, tmp_path)

    assert (0, []) == (source.connected, events)
    assert 0 == made.harm["steps_down"]
    assert "most_lock_waits_seen" not in made.harm


def test_pace_that_is_not_adaptive_is_not_governed(state: State, tmp_path: Path) -> None:
    """`adaptive: false`, which profile fast means, looks at nothing."""
    source = GaugedSource(table(), faults=[])
    made, _ = staged(source, state, tmp_path, pace=FAST)

    assert (0, 400) == (source.connected, made.measures.rows)
    assert [False, True, True] == [pace(None, Tuning(profile=name)).adaptive for name in ("fast", "balanced", "safe")]


def test_source_without_a_gauge_is_read_all_the_same(state: State, tmp_path: Path) -> None:
    """Whatever goes wrong while looking, an export does not end of it."""
    extract = extract_of(table(), tmp_path, pace=EAGER, source=TableSource(table()))
    governor = Governor(extract, 2, tmp_path)

    governor.watch()

    assert governor.course.is_blind


def test_gate_lets_fewer_through_when_told_and_more_again() -> None:
    """What runs goes on; what waits, waits until there is room or all is called off."""
    gate, called_off, running, most, done = ChunkSlots(3), threading.Event(), [0], [0], threading.Event()
    lock = threading.Lock()

    def work() -> None:
        with gate.running(called_off):
            with lock:
                running[0] += 1
                most[0] = max(most[0], running[0])
            done.wait(5)
            with lock:
                running[0] -= 1

    gate.allow(1)
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 0.3
    while time.monotonic() < until and most[0] < 2:
        time.sleep(0.01)
    only_one = most[0]
    gate.allow(2)
    until = time.monotonic() + 5
    while time.monotonic() < until and most[0] < 2:
        time.sleep(0.01)
    two = most[0]
    called_off.set()
    done.set()
    for thread in threads:
        thread.join(5)

    assert (1, 2) == (only_one, two)
    assert not any(thread.is_alive() for thread in threads)


def test_step_down_holds_the_next_groups_back(tmp_path: Path) -> None:
    """At the lowest level one task runs; a second one waits until it has ended, whatever the slots."""
    source = GaugedSource(table(), script=ScriptedGauge([CALM, LOCKED]))
    governor = Governor(extract_of(table(), tmp_path, pace=EAGER, source=source), 4, tmp_path / "scratch")
    watching, called_off, entered = threading.Thread(target=governor.watch), threading.Event(), threading.Event()
    watching.start()
    until = time.monotonic() + 10
    while governor.level.tasks > 1 and time.monotonic() < until:
        time.sleep(0.01)
    governor.end()
    watching.join(10)

    def second() -> None:
        with governor.gate.running(called_off):
            entered.set()

    with governor.gate.running(called_off):
        thread = threading.Thread(target=second, daemon=True)
        thread.start()
        assert not entered.wait(0.3)
    assert entered.wait(10)
    thread.join(10)


# --- the task ------------------------------------------------------------------------------------


def test_speed_travels_through_the_scratch_folder(tmp_path: Path) -> None:
    """What was told is read; without a file, or with a torn one, it is full speed."""
    assert (1.0, 1.0) == (read_speed(tmp_path / "nowhere"), read_speed(None))
    tell_speed(tmp_path / "run", 0.25)
    assert 0.25 == read_speed(tmp_path / "run")
    (tmp_path / "run" / "speed").write_text("")
    assert 1.0 == read_speed(tmp_path / "run")


def test_task_at_a_quarter_waits_three_times_as_long_as_its_page_took(tmp_path: Path) -> None:
    """The pause stretches the page's own time, and the next page may have a quarter of its size."""
    tell_speed(tmp_path, 0.25)
    throttle = Throttle(EAGER, scratch=tmp_path)
    time.sleep(0.05)

    share = throttle.wait(1_000)

    assert 0.25 == share
    assert throttle.governed_seconds >= 0.05 * 3 * 0.9
    assert 0 == throttle.waited_seconds


def test_task_in_a_long_pause_notices_that_it_may_go_on(tmp_path: Path) -> None:
    """A recovery is not slept through: the pause of seconds ends soon after the file says full speed."""
    tell_speed(tmp_path, 0.01)
    throttle = Throttle(EAGER, scratch=tmp_path)
    time.sleep(0.1)
    threading.Timer(0.1, tell_speed, (tmp_path, 1.0)).start()

    share = throttle.wait(1_000)

    assert share is None
    assert throttle.governed_seconds < 5  # of 9.9


def test_task_at_full_speed_or_not_adaptive_does_not_wait(tmp_path: Path) -> None:
    """Nobody told, nothing waits; and profile fast does not even look."""
    assert Throttle(EAGER, scratch=tmp_path).wait(10) is None
    tell_speed(tmp_path, 0.01)
    throttle = Throttle(FAST, scratch=tmp_path)

    assert (None, 0.0) == (throttle.wait(10), throttle.governed_seconds)


def speeds(per_row_ms: list[float], rows: int = 1_000) -> list[float]:
    """Return the speed after each page."""
    latency, found = Latency(), []
    for each in per_row_ms:
        latency.add(rows, each * rows)
        found.append(latency.speed)
    return found


LATENCIES = [
    ("as always", [0.1] * 20, [1.0] * 20),
    ("slow pages are waited for", [0.1] * 7 + [0.8] * 3 + [0.1], [1.0] * 9 + [0.25, 1.0]),
    ("in proportion", [0.1] * 7 + [0.4] * 3, [1.0] * 9 + [0.5]),
    ("two slow pages are chance", [0.1] * 7 + [0.9, 0.9, 0.1], [1.0] * 10),
    ("short statements say nothing", [0.001] * 7 + [0.01] * 5, [1.0] * 12),
    ("what lasts is how the table is", [0.1] * 7 + [0.4] * 25, [1.0] * 9 + [0.5] * 17 + [1.0] * 6),
]


@pytest.mark.parametrize(("pages", "expected"), [each[1:] for each in LATENCIES], ids=[each[0] for each in LATENCIES])
def test_task_slows_down_when_its_own_pages_do(pages: list[float], expected: list[float]) -> None:
    """Three pages in a row, several times as slow a row as the first ones."""
    assert expected == [round(speed, 3) for speed in speeds(pages)]


def test_page_gets_its_share_of_the_usual_size() -> None:
    """A quarter of the bytes, of the seconds and of the most; and all of it again when the share ends."""
    page = Measured(rows=100_000, nbytes=800_000, statement_ms=10.0)
    usual = Size(now=100_000, most=100_000, rows=None, pace=FAST)

    lessened = usual.after(100_000, page, share=0.25)
    small = Measured(rows=lessened.now, nbytes=8 * lessened.now, statement_ms=10.0)

    assert 25_000 == lessened.now
    assert 100_000 == lessened.after(lessened.now, small).now
    just_right = replace(page, statement_ms=LONGEST_SECONDS / 2 * 1000)
    assert 2_500 == replace(usual, now=10_000).after(10_000, just_right, share=0.25).now


# --- the cap on connections ----------------------------------------------------------------------

CAPPED = Postgres(url="postgresql://me:secret@localhost:5432/shop", max_connections=3)


def held(state: State, run_id: str, **about: Any) -> Any:
    """Take permits for a run."""
    return permits(CAPPED, state=state, run_id=run_id, pace=FAST, **about)


def test_runs_together_never_hold_more_than_the_cap(state: State) -> None:
    """The first run takes its two and one more, the second waits, says so once, and gets them when they are free."""
    events: list[str] = []
    got = threading.Event()

    def second() -> None:
        with held(state, "run2", on_event=lambda name, facts: events.append(name)):
            got.set()

    with held(state, "run1") as first:
        assert (1, 0) == (first.more(5), first.more(1))
        thread = threading.Thread(target=second, daemon=True)
        thread.start()
        until = time.monotonic() + 10
        while not events and time.monotonic() < until:
            time.sleep(0.01)
        assert (["ConnectionsAwaited"], False) == (events, got.is_set())
    thread.join(15)

    assert ["ConnectionsAwaited", "ConnectionsGranted"] == events
    assert [] == state.leases("source:localhost:5432")


def test_permits_name_the_server_and_no_secret(state: State) -> None:
    """What stands in the state store is host and port."""
    with held(state, "run1"):
        found = [(lease.export, lease.window) for lease in state.leases()]

    assert [("source:localhost:5432", "connection 1"), ("source:localhost:5432", "connection 2")] == found


def test_source_without_a_cap_asks_nobody(state: State) -> None:
    """No key, no permits: everything that is wanted is given, and the store knows nothing of it."""
    with permits(TableSource(table()), state=state, run_id="run1", pace=FAST) as found:
        assert 40 == found.more(40)
        assert [] == state.leases()


@dataclass
class CountedSource(GaugedSource):
    """Tells how many of its chunks were read at once."""

    reading: int = 0
    most: int = 0
    lock: Any = field(default_factory=threading.Lock)

    def pages(self, chunk: Any, columns: Any, **about: Any) -> Iterator[Page]:
        """Read slowly enough that others may begin."""
        with self.lock:
            self.reading += 1
            self.most = max(self.most, self.reading)
        time.sleep(0.05)
        yield from super().pages(chunk, columns, **about)
        with self.lock:
            self.reading -= 1


@pytest.mark.parametrize(("cap", "expected"), [(2, (1, 0)), (3, (1, 1)), (4, (2, 1)), (None, (4, 1))])
def test_fewer_permits_mean_fewer_tasks(
    cap: int | None, expected: tuple[int, int], state: State, tmp_path: Path
) -> None:
    """Of the cap the session takes one, the first task one, the gauge one, further tasks the rest."""
    source = CountedSource(table())
    extract = extract_of(table(), tmp_path, pieces=4, parallel=4, pace=EAGER, source=source)
    with permits_of(cap, state, extract.run_id) as found:
        made = Exporter(SparkRuntime(Spark(engine="inline")), state).stage(extract, permits=found)

    assert (400, *expected) == (made.measures.rows, source.most, source.connected)


def test_pace_that_is_not_adaptive_leaves_the_gauge_its_permit_to_a_task(state: State, tmp_path: Path) -> None:
    """Nobody looks, so under a cap of three two tasks run beside the session."""
    source = CountedSource(table())
    extract = extract_of(table(), tmp_path, pieces=4, parallel=4, pace=FAST, source=source)
    with permits_of(3, state, extract.run_id) as found:
        Exporter(SparkRuntime(Spark(engine="inline")), state).stage(extract, permits=found)

    assert (2, 0) == (source.most, source.connected)


@contextmanager
def permits_of(cap: int | None, state: State, run_id: str) -> Iterator[Permits]:
    """Take the fewest permits under a cap."""
    source = CAPPED.model_copy(update={"max_connections": cap})
    with permits(source, state=state, run_id=run_id, pace=FAST) as found:
        yield found


# --- the harm ------------------------------------------------------------------------------------


def test_harm_tells_what_is_known_and_nothing_else(tmp_path: Path) -> None:
    """Numbers only, flat; what no server told is not there, and the driver's snapshot counts as a transaction."""
    governor = Governor(extract_of(table(), tmp_path), 2, tmp_path)
    known = Measures(rows=10, rows_read=20, rows_scanned=50, longest_statement_ms=7.0, connections=3)

    found = harm(known, governor, snapshot_seconds=1.5)

    expected = {
        "longest_statement_ms": 7.0, "longest_transaction_ms": 1500.0, "rows_read": 20.0, "rows_scanned": 50.0,
        "rows_scanned_per_row": 2.5, "connections": 3.0, "throttled_seconds": 0.0, "governed_seconds": 0.0,
        "steps_down": 0.0,
    }  # fmt: skip
    assert expected == found
    assert {"rows_scanned", "rows_scanned_per_row"} == set(found) - set(harm(Measures(rows_read=20), governor))


def test_lowest_step_is_an_eighth() -> None:
    """Slower would only hold the snapshot longer."""
    assert 0.125 == level_of(LOWEST_STEP, tasks=1, min_parallel=1).speed
    assert 1.5 == governing.INTERVAL_MS / 1000
