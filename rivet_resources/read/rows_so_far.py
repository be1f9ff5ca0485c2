"""How many rows the tasks of a stage have read so far, for people who watch.

Belongs here: the count that a task leaves once a second, and the thread of the driver that adds the counts up. Not
here: what is done with the sum (`rivet_assets/run/progress.py`).

A task writes its count into its own scratch folder, which it removes with everything in it, however it ends: so what
a failed attempt read is not counted twice. Tasks on other machines have other folders, and there only finished chunks
count, as with the speed of `throttle.py`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

FILE = "rows"
SECONDS = 1.0

Progress = Callable[[int, int, int], None]  # chunks done, chunks in all, rows so far


def nobody_watches(done: int, of: int, rows: int) -> None:
    """Do nothing: what a stage tells when nobody asked how far it is."""


class RowsSoFar:
    """The rows of one attempt at a chunk, written at most once a second: a page pays for a look at the clock."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE
        # The first count comes after a second: a chunk that is done by then tells its rows by its result.
        self._rows = 0
        self._due = time.monotonic() + SECONDS

    def add(self, rows: int) -> None:
        """Count a page; a count that cannot be written is not worth an export."""
        self._rows += rows
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + SECONDS
        _write(self._file, self._rows)


def _write(file: Path, rows: int) -> None:
    # Also a full disk: the parts that are written to it will say so with better words.
    with suppress(OSError):
        new = file.with_name(f"{FILE}.new")
        new.write_text(str(rows))
        # Whole or not at all: whoever watches may read at any moment.
        os.replace(new, file)


def rows_of(scratch: Path) -> int:
    """Return the rows that a run on this machine has read so far, those of finished chunks too."""
    # What the driver has told last; before its first word, what tasks have counted.
    with suppress(OSError, ValueError):
        return int((scratch / FILE).read_text())
    return rows_in(scratch)


def rows_in(scratch: Path) -> int:
    """Return the rows of all attempts that are running below a run's scratch folder on this machine."""
    rows = 0
    with suppress(OSError):  # the run ended, or is another user's
        for attempt in scratch.iterdir():
            # The attempt ended, or has written no count yet.
            with suppress(OSError, ValueError):
                rows += int((attempt / FILE).read_text())
    return rows


@dataclass
class StageProgress:
    """How far a stage is: told with each finished chunk, and once a second while chunks are read.

    `tell` takes chunks done, chunks in all, and rows; the last two calls may come from different threads. Rows told
    never become fewer before the end, though those of a chunk vanish for a moment when its task ends.
    """

    scratch: Path
    of: int
    tell: Progress
    done: int = 0
    rows: int = 0  # of finished chunks
    _told: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def chunk_done(self, rows: int) -> None:
        """Count a finished chunk."""
        with self._lock:
            self.done += 1
            self.rows += rows
        self._look()

    @contextmanager
    def while_reading(self) -> Iterator[None]:
        """Look once a second until the block ends."""
        if self.tell is nobody_watches:
            yield
            return
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(SECONDS):
                self._look(only_news=True)

        thread = threading.Thread(target=watch, name="rivet-rows", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            # Joined, so that no call comes after the stage has told its last number.
            thread.join()

    def _look(self, *, only_news: bool = False) -> None:
        with self._lock:
            before = self._told
            # A task's folder goes before its result arrives, so for a moment its rows are in neither number; `max`
            # hides the dip. At the end the finished chunks alone count, for they are exact.
            self._told = self.rows if self.done == self.of else max(before, self.rows + rows_in(self.scratch))
            if self._told != before or not only_news:
                # For other processes, which see no finished chunk (`rivet status`).
                _write(self.scratch / FILE, self._told)
                self.tell(self.done, self.of, self._told)
