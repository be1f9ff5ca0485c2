"""How far running exports are, passed on to whoever watches in this process.

Belongs here: the value, the watchers, the line for a log. Not here: a terminal (`cli/live.py`), Dagster's events
(`launch/recorder.py`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rivet_resources.contracts.extract import Window

TELL_SECONDS = 10.0  # between lines in a log


@dataclass(frozen=True)
class Progress:
    """So far of one window: finished chunks of all, their rows, seconds since it began to be read."""

    export: str
    window: str
    done: int
    of: int
    rows: int
    seconds: float

    def __str__(self) -> str:
        """Return it in one line: `orders: 12 of 40 chunks, 1,200,000 rows, 410,000 rows/s, 3 s`."""
        name = self.export if self.window in ("all", "") or Window(self.window).kind == "after" else self.name
        rate = f", {round(self.rows / self.seconds, -3 if self.rows > 10_000 else 0):,.0f} rows/s" if self.rows else ""
        return f"{name}: {self.done} of {self.of} chunks, {self.rows:,} rows{rate}, {self.seconds:.0f} s"

    @property
    def name(self) -> str:
        """Name export and window."""
        return f"{self.export} {self.window}"


Watcher = Callable[[Progress], None]

# Exports run in the process that started them (`definitions.py`), so a plain list of watchers is enough.
_watchers: list[Watcher] = []
_lock = threading.Lock()


@contextmanager
def watch_progress(watcher: Watcher) -> Iterator[None]:
    """Call `watcher` with all progress in this process until the block ends, from whatever thread makes it."""
    with _lock:
        _watchers.append(watcher)
    try:
        yield
    finally:
        with _lock:
            _watchers.remove(watcher)


class Reporter:
    """Passes the progress of one export on: to all watchers, or without any as a line every ten seconds."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._told: dict[str, float] = {}

    def __call__(self, progress: Progress) -> None:
        """Take a step of progress."""
        with _lock:
            watchers = list(_watchers)
        for watcher in watchers:
            watcher(progress)
        now = time.monotonic()
        last = self._told.setdefault(progress.name, now)
        if not watchers and now - last >= TELL_SECONDS and progress.done < progress.of:
            self._told[progress.name] = now
            self._tell(f"{progress}.")
