"""One window is published while the next one is read: in order, one at a time, and nothing behind a window that failed.

Belongs here: what two windows at once may do to each other, over a log in memory. Not here: one window
(`test_drain.py`), real servers (`tests/faults/test_drain_deaths.py`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rivet_resources.contracts.extract import Staged
from rivet_resources.destinations.local import Local
from rivet_resources.drain import drain as drain_module
from rivet_resources.drain import publish_behind, window_size
from rivet_resources.drain.publish_behind import PublicationStopped, PublishBehind
from rivet_resources.errors import DestinationUnreachable, DriftRefused
from rivet_resources.state.checkpoints.stores import state_checkpoints
from tests.fake_log import FakeLog, FakeReader
from tests.unit.drain.test_drain import LATER, LINES, ORDERS, Bench, Killed, write

PATIENCE = 20.0  # of a test that waits for the other thread; what it waits for comes at once
PUBLISHING = ["parts", "manifest", "success", "cursor", "acknowledge", "metrics", "checkpoint"]
READING = ["read", "part", "staged"]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Return a drain that has begun, of seven transactions in windows of two."""
    monkeypatch.setattr(window_size, "MOST_CHANGES", 4)
    made = Bench(tmp_path, FakeLog({"orders": ORDERS, "lines": LINES}))
    made.run()
    write(made.log, 0, 7)
    return made


class Meeting:
    """Steps of a drain, by the thread that is told of them; `hold` keeps one from beginning until another one has."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.met = True
        self._changed = threading.Condition()
        self._holds: dict[tuple[str, int], tuple[str, int]] = {}

    def hold(self, step: str, nth: int, *, until: tuple[str, int]) -> None:
        """Let the n-th step of this name begin only behind another one."""
        self._holds[step, nth] = until

    def __call__(self, name: str) -> None:
        who = "publishes" if threading.current_thread().name == "rivet-publishes" else "reads"
        with self._changed:
            self.told.append((who, name))
            self._changed.notify_all()
            until = self._holds.get((name, self._count(name)))
            if until is not None:
                self.met &= self._changed.wait_for(lambda: self._count(until[0]) >= until[1], PATIENCE)

    def _count(self, name: str) -> int:
        return sum(each == name for _, each in self.told)


def staged_runs(bench: Bench) -> set[str]:
    """Name the runs that have something staged."""
    lake = Local(type="local", path=str(bench.folder / "lake"))
    return set().union(*(lake.root(f"shop/{table}").staged_runs() for table in bench.tables))


def test_next_window_is_read_and_staged_while_one_is_published(bench: Bench) -> None:
    """The first manifest waits for the second window's parts; the third one's for the fourth's."""
    steps = Meeting()
    steps.hold("manifest", 1, until=("staged", 2))
    steps.hold("manifest", 5, until=("staged", 4))  # two tables a window

    done = bench.run(steps)

    assert steps.met
    assert list(range(7)) == bench.ids("orders") == bench.ids("lines")
    assert (4, 14, 0, 7) == (done.windows, done.changes, done.disorder, done.transactions)
    assert 7 == bench.log.acknowledged
    assert {"publishes"} == {who for who, name in steps.told if name in PUBLISHING}
    assert {"reads"} == {who for who, name in steps.told if name in (*READING, "source", "acknowledged")}


def test_windows_are_published_and_acknowledged_one_after_the_other(bench: Bench) -> None:
    """A window begins when the one before stands in the checkpoint, and the source was told of it."""
    steps = Meeting()

    bench.run(steps)

    whole = ["parts", "manifest", "success", "cursor", "acknowledge", "metrics"] * 2
    published = [name for _, name in steps.told if name in (*PUBLISHING, "source", "acknowledged")]
    assert [*whole, "checkpoint", "source", "acknowledged"] * 4 == published
    assert [2, 2, 2, 1] == bench.sizes("orders")


@pytest.mark.matrix
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
@pytest.mark.parametrize("fatal", LATER)
def test_death_while_windows_follow_each_other(bench: Bench, fatal: str, nth: int) -> None:
    """Whatever the other thread was at, each change is there once after the next drain."""
    before = dict(_stored(bench))
    with suppress(Killed):
        bench.run(_dying(fatal, nth))
    assert bench.log.acknowledged <= _number(_stored(bench)), "the source was told of what no checkpoint has"
    assert _number(before) <= _number(_stored(bench))
    seen = max(bench.ids("orders"), default=-1) + 1
    assert seen <= _number(_stored(bench)) + 2, "more than one window is shown that the checkpoint does not have"

    write(bench.log, 7, 3)
    bench.run()

    assert list(range(10)) == bench.ids("orders") == bench.ids("lines")
    assert 10 == bench.log.acknowledged


@pytest.mark.matrix
@pytest.mark.parametrize("held", PUBLISHING)
@pytest.mark.parametrize("fatal", READING)
def test_death_of_the_reader_amid_a_publication(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, fatal: str, held: str
) -> None:
    """The publication ends where its next step would begin, and shows nothing afterwards."""
    steps = Meeting()
    monkeypatch.setattr(publish_behind, "LAST_STEP_SECONDS", PATIENCE)
    released = threading.Event()

    def step(name: str) -> None:
        steps(name)
        if name == held and steps._count(held) == 1:
            released.wait(PATIENCE)
        if name == fatal and steps._count("read") == 2:
            released.set()
            raise Killed

    with pytest.raises(Killed):
        bench.run(step)

    told = len(steps.told)
    write(bench.log, 7, 3)
    bench.run()
    assert told == len(steps.told)
    assert list(range(10)) == bench.ids("orders") == bench.ids("lines")


def test_refused_window_keeps_the_next_one_from_being_shown(bench: Bench) -> None:
    """The second window's columns are refused when the third one is staged; the first one stays, nothing else does."""
    steps, judged = Meeting(), list[int]()

    def judge(table: str, staged: Staged, *, is_between: bool = False) -> None:
        judged.append(len(bench.ids("orders")))
        if len(judged) == 3:  # two tables a window
            steps("judged")
            raise DriftRefused("a column came")

    steps.hold("judged", 1, until=("staged", 3))
    with pytest.raises(DriftRefused):
        bench.run(steps, services={"judge": judge})

    assert steps.met
    assert [0, 0, 2] == judged, "a window is judged when the one before is published"
    assert [0, 1] == bench.ids("orders") == bench.ids("lines")
    assert 2 == bench.log.acknowledged
    assert set() == staged_runs(bench)
    bench.run()
    assert list(range(7)) == bench.ids("orders") == bench.ids("lines")


def test_publication_that_fails_ends_the_reading_at_the_next_change(bench: Bench) -> None:
    """Its error is the drain's, and what was staged of the next window is gone."""
    steps = Meeting()
    steps.hold("part", 6, until=("failed", 1))  # in the second window, which has more to come

    def step(name: str) -> None:
        steps(name)
        if name == "manifest":
            steps("failed")
            raise DestinationUnreachable("the store is away")

    with pytest.raises(DestinationUnreachable, match="the store is away"):
        bench.run(step)

    assert steps.met
    assert [] == bench.ids("orders") == bench.ids("lines")
    assert 0 == bench.log.acknowledged
    bench.run()
    assert list(range(7)) == bench.ids("orders") == bench.ids("lines")


def test_window_before_a_broken_line_is_published_and_acknowledged(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read whole before the line broke is what a drain that takes turns would have shown."""
    steps = Meeting()
    steps.hold("manifest", 1, until=("broke", 1))
    _break_at(monkeypatch, 6, lambda: steps("broke"))

    with pytest.raises(ConnectionResetError):
        bench.run(steps)

    assert steps.met
    assert [0, 1] == bench.ids("orders") == bench.ids("lines")
    assert 2 == bench.log.acknowledged
    assert set() == staged_runs(bench)


def test_error_of_the_window_before_comes_first(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two that fail, the drain tells what a drain that takes turns would have told."""
    steps = Meeting()
    _break_at(monkeypatch, 6, lambda: steps("broke"))
    steps.hold("manifest", 1, until=("broke", 1))

    def step(name: str) -> None:
        steps(name)
        if name == "manifest":
            raise DestinationUnreachable("the store is away")

    with pytest.raises(DestinationUnreachable):
        bench.run(step)

    assert steps.met
    assert [] == bench.ids("orders")


def test_drain_that_is_asked_to_end_finishes_one_window_not_two(bench: Bench) -> None:
    """The one that is published; what is read behind it is left, so that the end comes soon."""
    steps = Meeting()
    steps.hold("manifest", 1, until=("ends", 1))
    told = list[str]()

    def tell(text: str) -> None:
        told.append(text)
        steps("ends")

    done = bench.run(
        steps,
        is_asked_to_end=lambda: steps._count("part") >= 6,
        services={"tell": tell},
        until_current=False,
    )

    assert steps.met
    assert ["shop: ends as asked, and leaves a window to the next run."] == told
    assert [0, 1] == bench.ids("orders") == bench.ids("lines")
    assert (1, 4, 2) == (done.windows, done.changes, bench.log.acknowledged)
    assert set() == staged_runs(bench)


def test_log_that_is_asked_anew_has_all_windows_before_acknowledged(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source that sends again what is not acknowledged is not made to: reading waits there, and nowhere else."""
    read = FakeReader.read
    seen = list[int]()

    def asking(self: FakeReader, *args: Any, before_asking: Callable[[], None], **named: Any) -> Any:
        before_asking()
        seen.append(self.log.acknowledged)
        yield from read(self, *args, **named)

    monkeypatch.setattr(FakeReader, "read", asking)

    bench.run()

    assert [0, 2, 4, 6] == seen
    assert list(range(7)) == bench.ids("orders")


def test_interrupt_leaves_a_store_that_hangs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The drain ends without it, and whatever it answers later, nothing follows: no lease would stop a checkpoint."""
    monkeypatch.setattr(publish_behind, "LAST_STEP_SECONDS", 0.01)
    hangs, answered, told = threading.Event(), threading.Event(), list[str]()

    def step(name: str) -> None:
        told.append(name)
        if name == "metrics" and told.count("metrics") == 2:  # the last step of the last table
            hangs.set()
            answered.wait(PATIENCE)
        if name == "read" and told.count("read") == 2:
            hangs.wait(PATIENCE)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench.run(step)

    before = _stored(bench)
    (publishing,) = [each for each in threading.enumerate() if each.name == "rivet-publishes"]
    answered.set()
    publishing.join(PATIENCE)
    assert "checkpoint" not in told
    assert before == _stored(bench)
    bench.run()
    assert list(range(7)) == bench.ids("orders") == bench.ids("lines")


def test_window_takes_as_long_as_until_it_is_published(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the next one takes to be read meanwhile is not counted: `commit_every` bounds what a reader waits."""
    learned = list[tuple[int, float]]()
    monkeypatch.setattr(
        window_size.WindowSize, "learn_seconds", lambda self, changes, seconds: learned.append((changes, seconds))
    )
    clock = [100.0]
    monkeypatch.setattr(drain_module, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def step(name: str) -> None:
        if name == "checkpoint":
            clock[0] += 1.0
        if name == "source":
            clock[0] += 50.0

    bench.run(step)

    assert [4, 4, 4, 2] == [changes for changes, _ in learned]
    assert 1.0 == learned[0][1]


# --- the class by itself -------------------------------------------------------------------------


def test_publications_take_turns() -> None:
    """One is under way until it is settled; settled twice, there is none."""
    with PublishBehind[int]() as behind:
        assert behind.settle() is None
        behind.begin(lambda: 1)
        assert 1 == behind.settle()
        assert behind.settle() is None
        assert not behind.is_busy


def test_failure_is_raised_once_and_without_waiting() -> None:
    """While it is under way nothing is raised."""
    goes_on = threading.Event()

    def fail() -> int:
        goes_on.wait(PATIENCE)
        raise DestinationUnreachable("away")

    with PublishBehind[int]() as behind:
        behind.begin(fail)
        behind.raise_failed()
        assert behind.is_busy
        goes_on.set()
        deadline = time.monotonic() + PATIENCE
        while behind.is_busy and time.monotonic() < deadline:
            time.sleep(0.001)
        with pytest.raises(DestinationUnreachable):
            behind.raise_failed()
        assert behind.settle() is None


def test_publication_of_a_drain_that_was_left_begins_no_step() -> None:
    """Whoever left does not come back."""
    behind = PublishBehind[int]()
    with behind:
        behind.go_on()

    with pytest.raises(PublicationStopped):
        behind.go_on()


# --- what they share -----------------------------------------------------------------------------


def _dying(fatal: str, nth: int) -> Callable[[str], None]:
    seen = 0

    def step(name: str) -> None:
        nonlocal seen
        seen += name == fatal
        if name == fatal and seen == nth:
            raise Killed

    return step


def _break_at(monkeypatch: pytest.MonkeyPatch, change: int, then: Callable[[], None]) -> None:
    """Let the line break once so many changes were sent in all."""
    sent = 0
    make = FakeReader._change

    def counting(self: FakeReader, *args: Any) -> Any:
        nonlocal sent
        sent += 1
        if sent > change:
            then()
            raise ConnectionResetError("the line broke")
        return make(self, *args)

    monkeypatch.setattr(FakeReader, "_change", counting)


def _stored(bench: Bench) -> dict[str, str]:
    """Read the position that is kept."""
    found = dict(state_checkpoints(bench.state).list())
    return {key: record.sort_key for key, record in found.items() if record is not None}


def _number(stored: dict[str, str]) -> int:
    return int(stored["fake.shop"], 16)
