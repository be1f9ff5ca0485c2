"""Being gentle from inside a task: the pause between pages, and the wait for memory to come back.

Belongs here: what slows one task down on purpose. Not here: retries (`retry.py`), and how many tasks run.
"""

from __future__ import annotations

import logging
import time

import psutil
import pyarrow as pa

from rivet_resources.settings import Pace

log = logging.getLogger(__name__)

MB = 1024 * 1024


class Throttle:
    """Pauses `throttle_ms` per full batch of rows, and in proportion for less or more.

    Pages are sized by bytes, so the pause follows their rows: rows per second are the same whatever the page.
    """

    def __init__(self, pace: Pace) -> None:
        self.waited_seconds = 0.0
        self._seconds_per_row = pace.throttle_ms / 1000 / pace.batch_size

    def wait(self, rows: int) -> None:
        """Sleep for the page just read; a source calls it between statements, never inside one."""
        pause = rows * self._seconds_per_row
        if pause > 0:
            time.sleep(pause)
            self.waited_seconds += pause


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
        pa.default_memory_pool().release_unused()
        until = time.monotonic() + self._patience_seconds
        while self._resident_mb() >= self._threshold_mb:
            if time.monotonic() >= until:
                log.warning(
                    "Memory is %.0f MB, above memory_threshold_mb %d, and did not fall in %.0f s; going on. "
                    "Raise it, or read smaller pages with `tuning: {batch_size_memory_mb: …}`.",
                    self._resident_mb(), self._threshold_mb, self._patience_seconds,
                )  # fmt: skip
                self._threshold_mb = 0
                return
            time.sleep(0.1)
            self.waited_seconds += 0.1

    def _resident_mb(self) -> float:
        """Measure the resident memory of this process."""
        return float(self._process.memory_info().rss) / MB
