"""Being gentle from inside a task: the pause between pages, and the wait for memory to come back.

Belongs here: what slows one task down on purpose, and how a task learns that the driver wants it slower. Not here:
retries (`retry.py`), how many tasks run, and why (`governor.py`).

The driver tells its tasks a speed through a file in the run's scratch folder. On other machines each job that begins
brings it along (`executor.py`), for the tasks that run there already too.
"""

from __future__ import annotations

import logging
import os
import statistics
import time
import uuid
from collections import deque
from pathlib import Path

import psutil
import pyarrow as pa

from rivet_resources.contracts.settings import Pace
from rivet_resources.scratch import private_folder

log = logging.getLogger(__name__)

MB = 1024 * 1024
SPEED_FILE = "speed"
LOOK_SECONDS = 0.2  # how soon a task in a long pause notices that it may go on
LONGEST_HOLD_SECONDS = 10.0


def tell_speed(scratch: Path, speed: float) -> None:
    """Let the tasks of a run know the speed they may have, above 0 and at most 1; whole or not at all."""
    private_folder(scratch)
    # A name of its own: on a worker two tasks may tell at once.
    new = scratch / f"{SPEED_FILE}.{uuid.uuid4().hex}"
    new.write_text(f"{speed:.6f}")
    # Replaced in one step: a task that reads half a number would take it for full speed.
    os.replace(new, scratch / SPEED_FILE)


def read_speed(scratch: Path | None) -> float:
    """Read the speed the driver allows; 1.0 where nobody wrote one."""
    if scratch is None:
        return 1.0
    try:
        # Never 0: a task divides by its speed.
        return min(1.0, max(0.01, float((scratch / SPEED_FILE).read_text())))
    except (OSError, ValueError):
        # No file, or none yet: full speed. A task must not stand still because nobody wrote.
        return 1.0


class Throttle:
    """Pauses `throttle_ms` per full batch of rows, and in proportion for less or more.

    Pages are sized by bytes, so the pause follows their rows: rows per second are the same whatever the page. Where
    the driver allows less than full speed, or this task's own statements became slow, it pauses longer: at half speed
    as long again as the page took, and the next page may have half of its usual size.
    """

    def __init__(self, pace: Pace, *, scratch: Path | None = None) -> None:
        self.waited_seconds = 0.0
        self.governed_seconds = 0.0
        self._seconds_per_row = pace.throttle_ms / 1000 / pace.batch_size
        self._is_adaptive = pace.adaptive
        self._scratch = scratch
        self._latency = Latency()
        self._since = time.monotonic()

    def saw(self, rows: int, statement_ms: float) -> None:
        """Remember how long the page took that `wait` will be told of."""
        self._latency.add(rows, statement_ms)

    def wait(self, rows: int) -> float | None:
        """Sleep for the page just read; a source calls it between statements, never inside one.

        Returns:
            The share of its usual size that the next page may have; None: all of it.
        """
        pause = rows * self._seconds_per_row
        if pause > 0:
            time.sleep(pause)
            self.waited_seconds += pause
        # A page's period is everything since the last wait, its pause and its writing too: stretching only the
        # statement would leave half speed nearly full.
        speed = self._hold(time.monotonic() - self._since) if self._is_adaptive else 1.0
        self._since = time.monotonic()
        return speed if speed < 1 else None

    def limited(self, seconds: float) -> None:
        """Remember a wait for a `rate_limit`, which is no sign of how long the page took."""
        self.waited_seconds += seconds
        # Moved on, as if the wait had not been: `_hold` would stretch it by the speed.
        self._since += seconds

    def _hold(self, period: float) -> float:
        """Wait on top of a page's period until it is stretched as the speed says; gives the speed at the end."""
        started = time.monotonic()
        # Read again while waiting: a pause of the low speed ends when the governor lets go, and not seconds later.
        while (speed := min(read_speed(self._scratch), self._latency.speed)) < 1:
            # A page of minutes at low speed would hold its transaction open for as long again, which hurts the
            # source in another way.
            held = time.monotonic() - started
            left = min(period * (1 / speed - 1), LONGEST_HOLD_SECONDS) - held
            if left <= 0:
                break
            time.sleep(min(left, LOOK_SECONDS))
        self.governed_seconds += time.monotonic() - started
        return speed


class Latency:
    """How long a row takes this task, against how long it took in the beginning.

    A page counts as slow when its rows took several times as long. After three in a row the task slows down in
    proportion, until a page is quick again. What stays slow is how the table is (sparse matches, wide rows), not how
    the server feels: then it becomes the new measure.
    """

    FIRST_PAGES = 7  # pages grow from small ones, whose rows seem dear
    SLOW = 4.0
    SLOW_PAGES = 3
    FEWEST_MS = 20.0  # shorter statements say nothing
    LASTING_PAGES = 20
    LOWEST_SPEED = 0.25

    def __init__(self) -> None:
        self.speed = 1.0
        self._usual: float | None = None
        self._first: list[float] = []
        self._slow: deque[float] = deque(maxlen=self.LASTING_PAGES)

    def add(self, rows: int, statement_ms: float) -> None:
        """Judge one page."""
        if not rows:
            return
        per_row = statement_ms / rows
        # The first pages are small, so their rows carry the whole cost of a statement: the median of several, not
        # the first one.
        if self._usual is None:
            self._first.append(per_row)
            if len(self._first) == self.FIRST_PAGES:
                self._usual = statistics.median(self._first)
            return
        ratio = per_row / self._usual if self._usual else 1.0
        # Both: a statement of a few milliseconds is four times as long by chance.
        if ratio < self.SLOW or statement_ms < self.FEWEST_MS:
            self._slow.clear()
            self.speed = 1.0
            return
        self._slow.append(per_row)
        if len(self._slow) == self.LASTING_PAGES:
            # Twenty slow pages in a row are how this part of the table is. Without a new measure the task would
            # crawl to its end.
            self._usual, self.speed = statistics.median(self._slow), 1.0
            self._slow.clear()
        elif len(self._slow) >= self.SLOW_PAGES:
            # A page that is exactly at the limit halves the speed; a slower one lowers it in proportion.
            self.speed = max(self.LOWEST_SPEED, self.SLOW / 2 / ratio)


class MemoryGate:
    """Waits between pages while this process holds more than `memory_threshold_mb`.

    One process reads one chunk, so what does not come back within `patience_seconds` will not come back at all:
    then it warns and stays open for the rest of the chunk, rather than standing still forever.
    """

    def __init__(self, pace: Pace, *, patience_seconds: float = 20.0) -> None:
        self.waited_seconds = 0.0
        self._threshold_mb = pace.memory_threshold_mb
        self._patience_seconds = patience_seconds
        self._process = psutil.Process()

    def wait(self) -> None:
        """Return unused memory to the system and wait until this process is below the threshold, or for long enough."""
        if not self._threshold_mb or self._resident_mb() < self._threshold_mb:
            return
        # Arrow's pool holds on to freed pages, and they count as ours; often they are all that is above the
        # threshold.
        pa.default_memory_pool().release_unused()
        until = time.monotonic() + self._patience_seconds
        while self._resident_mb() >= self._threshold_mb:
            if time.monotonic() >= until:
                log.warning(
                    "Memory is %.0f MB, above memory_threshold_mb %d, and did not fall in %.0f s; going on. "
                    "Raise it, or read smaller pages with `tuning: {batch_size_memory_mb: …}`.",
                    self._resident_mb(), self._threshold_mb, self._patience_seconds,
                )  # fmt: skip
                # Open for good: a threshold below what this chunk needs would otherwise cost the whole patience at
                # every page.
                self._threshold_mb = 0
                return
            time.sleep(0.1)
            self.waited_seconds += 0.1

    def _resident_mb(self) -> float:
        """Measure the resident memory of this process."""
        return float(self._process.memory_info().rss) / MB
