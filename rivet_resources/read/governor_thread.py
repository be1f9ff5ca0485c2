"""The governor at work: a thread of the driver that looks at the source while tasks read it, and lets them know.

Belongs here: when to look, what a look that fails means, telling tasks and journal, holding groups back. Not here: the
decision (`governor.py`), the pause inside a task (`throttle.py`).

Tasks on this machine learn their speed before each page through a file in the run's scratch folder, which ends with
it. Hosts of a cluster do not see the file: there each job that begins brings the speed along, and how many run at once
is governed from here all the time. The first look comes after `RIVET_GOVERNOR_INTERVAL_MS` (1500), so that short
exports pay nothing, not even a connection.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from rivet_resources.contracts.evidence import Gauge, Pressure
from rivet_resources.contracts.extract import Extract
from rivet_resources.errors import RivetError, StatementTimeout
from rivet_resources.read.governor import Course, Level, level_of
from rivet_resources.read.throttle import tell_speed

log = logging.getLogger(__name__)

MB = 1024 * 1024
INTERVAL_MS = 1500
LATE_MS = 2000.0  # what a look that ran into its timeout says of the source's latency

Event = Callable[[str, Mapping[str, Any]], None]


def interval_seconds() -> float:
    """Return the time between two looks."""
    # A value that is no number is passed over: a typo in a variable for experts must not end an export.
    with suppress(ValueError):
        return max(0.01, int(os.environ.get("RIVET_GOVERNOR_INTERVAL_MS", INTERVAL_MS)) / 1000)
    return INTERVAL_MS / 1000


class ChunkSlots:
    """Lets at most so many groups of chunks run at once; the number may change while they do."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._running = 0
        self._changed = threading.Condition()

    def allow(self, most: int) -> None:
        """Change the number; what runs goes on."""
        with self._changed:
            self._most = most
            self._changed.notify_all()

    @contextmanager
    def running(self, called_off: threading.Event) -> Iterator[None]:
        """Wait for a place and take it; where all is called off nobody waits."""
        with self._changed:
            # Where all is called off everybody passes at once, over the number: what follows looks at `called_off`
            # and ends.
            while self._running >= self._most and not called_off.is_set():
                # In steps, as nobody notifies when all is called off.
                self._changed.wait(0.2)
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()


@dataclass(frozen=True)
class Decision:
    """One change of level."""

    at_seconds: float  # since the stage began
    before: Level
    after: Level
    reason: str


@dataclass
class Governor:
    """Governs one stage. Its numbers are read when the stage has ended."""

    extract: Extract
    slots: int
    scratch: Path
    on_event: Event | None = None
    gate: ChunkSlots = field(init=False)
    course: Course = field(default_factory=Course)
    decisions: list[Decision] = field(default_factory=list)
    looks: int = 0
    _first: Mapping[str, float] = field(default_factory=dict)
    _newest: Mapping[str, float] = field(default_factory=dict)
    _ended: threading.Event = field(default_factory=threading.Event)
    _began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.gate = ChunkSlots(self.slots)

    @property
    def level(self) -> Level:
        """Return the level that holds now."""
        return level_of(self.course.step, tasks=self.slots, min_parallel=self.extract.pace.min_parallel)

    @property
    def steps_down(self) -> int:
        """Count how often it slowed the reading down."""
        return sum(one.after.speed < one.before.speed for one in self.decisions)

    @property
    def growth(self) -> dict[str, float]:
        """Return by how much the server's counters grew between the first look and the end; {} without a look."""
        return {name: max(0.0, value - self._first.get(name, value)) for name, value in self._newest.items()}

    def end(self) -> None:
        """Let the thread come to its end."""
        self._ended.set()

    def watch(self) -> None:
        """Look until the stage ends, or until the source could not be looked at three times; the thread's whole life.

        No fault in here may end an export, so everything that goes wrong is a look that could not be read.
        """
        interval = interval_seconds()
        # The first look comes after one interval, so that a short export does not pay for a connection.
        while not self._ended.wait(interval) and not self.course.is_blind:
            try:
                with self.extract.source.gauge(
                    application=f"rivet:{self.extract.export}", pace=self.extract.pace
                ) as gauge:
                    self._look_often(gauge, interval)
            except Exception as error:
                # Any exception: governing is a courtesy to the source, and must not end the export that it watches.
                self._take(None)
                if self.course.is_blind:
                    self._stop(error)

    def _look_often(self, gauge: Gauge, interval: float) -> None:
        """Look at intervals over one connection; its counters are read at both ends."""
        # Kept over a lost connection: growth is counted from the first look of the stage, not from the last
        # reconnect.
        self._first = self._first or dict(gauge.counters())
        while True:
            try:
                look = gauge.look()
            except StatementTimeout:
                # A look that ran into its timeout is an answer: the source is that slow.
                look = Pressure(latency_ms=LATE_MS)
            self._take(look)
            if self._ended.wait(interval):
                break
        self._newest = dict(gauge.counters())

    def _take(self, look: Pressure | None) -> None:
        """Decide, and let tasks and journal know of a change."""
        before = self.level
        self.looks += look is not None
        # Told once, at the first session that waits; each look would otherwise repeat it every 1.5 seconds.
        had_waiting = bool(self.course.most_waiting_for_us)
        self.course = self.course.after(look, memory=self._memory())
        if self.course.most_waiting_for_us and not had_waiting:
            self._warn_of_waiting(self.course.most_waiting_for_us)
        if self.level == before:
            return
        self.decisions.append(
            Decision(time.monotonic() - self._began, before=before, after=self.level, reason=self.course.reason)
        )
        # The file first, then the gate: a task that the gate lets in now already reads at the new speed.
        tell_speed(self.scratch, self.level.speed)
        self.gate.allow(self.level.tasks)
        self._tell(
            "ParallelismAdjusted",
            {
                "from": before.tasks, "to": self.level.tasks, "speed_from": before.speed, "speed_to": self.level.speed,
                "reason": self.course.reason,
            },
        )  # fmt: skip

    def _memory(self) -> str:
        """Return that our processes on this machine hold more than their threshold, each its own; '' when not."""
        # The threshold is of one process, as `memory_threshold_mb` says to the user; here all of them are looked at
        # together.
        threshold = self.extract.pace.memory_threshold_mb * self.slots
        if not threshold:
            return ""
        held = sum(_resident_mb(one) for one in [psutil.Process(), *psutil.Process().children(recursive=True)])
        return f"our processes hold {held:.0f} MB of {threshold}" if held > threshold else ""

    def _warn_of_waiting(self, sessions: int) -> None:
        """Report, once, of those who wait for a lock that only the end of the export gives free."""
        log.warning(
            "%d sessions wait for a lock of export %s, as ALTER TABLE does while a table is read. It goes on at its "
            "pace, since slowing down would make them wait longer; end the run if they cannot wait.",
            sessions, self.extract.export,
        )  # fmt: skip
        self._tell("OthersWaitForUs", {"sessions": sessions})

    def _stop(self, error: Exception) -> None:
        why = str(error) if isinstance(error, RivetError) else type(error).__name__
        log.warning(
            "Export %s is read without a governor: the source cannot be looked at. %s", self.extract.export, why
        )
        self._tell("GovernorStopped", {"reason": why})

    def _tell(self, event: str, facts: Mapping[str, Any]) -> None:
        if self.on_event is None:
            return
        try:
            self.on_event(event, facts)
        except Exception as error:
            # A journal that is away for a moment must not end the governing.
            log.warning("Event %s of export %s was not kept: %s", event, self.extract.export, type(error).__name__)


def _resident_mb(process: psutil.Process) -> float:
    """Return a process's memory; none of the JVM's, which no page passes through, and none of one that is gone."""
    try:
        return 0.0 if process.name() == "java" else float(process.memory_info().rss) / MB
    except psutil.Error:
        return 0.0


@contextmanager
def govern(
    extract: Extract, *, slots: int, scratch: Path, on_event: Event | None, may_look: bool
) -> Iterator[Governor]:
    """Govern a stage while the block runs, where its pace is adaptive; else nothing is looked at and nothing changes.

    Args:
        may_look: false where the cap on connections leaves none for looking.
    """
    governor = Governor(extract, slots, scratch, on_event)
    # Parts of a change export, read again, have no server to look at.
    is_server = hasattr(extract.source, "gauge")
    if not (extract.pace.adaptive and may_look and is_server):
        yield governor
        return
    # A daemon: an interpreter that has to end is not kept by a look that hangs.
    thread = threading.Thread(target=governor.watch, daemon=True, name=f"rivet-governor-{extract.export}")
    thread.start()
    try:
        yield governor
    finally:
        governor.end()
        # A look ends by its own timeout of 2 s.
        thread.join(timeout=5)
