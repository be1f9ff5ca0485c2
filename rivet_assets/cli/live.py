"""What people see while exports run: live lines on a terminal, a line now and then in a log, or nothing.

Belongs here: drawing on stderr. Not here: where news come from (`launch/recorder.py`), the summary at the end
(`launch/outcome.py`).

Own lines instead of `rich`: it is there only because Dagster brings it, and three escape sequences are all we need.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TextIO

from rivet_assets.launch.recorder import News
from rivet_assets.run.progress import TELL_SECONDS, Progress

DRAW_SECONDS = 0.25
STAYS_SECONDS = 5.0  # a line of a window that is read whole
UP, CLEAR = "\x1b[{}A", "\x1b[J"  # cursor up so many lines; clear from the cursor on (ECMA-48, CUU and ED)
MOST_LINES = 8
BAR = 20  # characters


class Screen:
    """Shows news on a stream; any thread may tell it.

    On a terminal each running window has a line that is drawn again four times a second, below everything else; else
    its progress is a line every ten seconds. `quiet` shows neither, only failures; `verbose` the log of the run too.
    """

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False, verbose: bool = False) -> None:
        self._stream = stream or sys.stderr
        self._is_live = not quiet and self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._quiet, self._verbose = quiet, verbose
        self._lock = threading.Lock()
        self._running: dict[str, tuple[Progress, float]] = {}  # by export and window; and when it was told
        self._told: dict[str, float] = {}
        self._drawn = 0
        self._ended = threading.Event()

    @contextmanager
    def showing(self) -> Iterator[Screen]:
        """Keep live lines alive until the block ends, and leave none behind."""
        drawing = threading.Thread(target=self._redraw, name="rivet-live", daemon=True)
        if self._is_live:
            drawing.start()
        try:
            yield self
        finally:
            self._ended.set()
            with self._lock:
                self._erase()
                self._running.clear()
            if self._is_live:
                drawing.join()

    def __call__(self, news: News) -> None:
        """Take one piece of news."""
        if news.progress is not None:
            self._progressed(news.progress)
        elif news.what in ("committed", "failed", "finished"):
            self._leave(news)
        text = self._words(news)
        if text:
            self.say(text)

    def say(self, text: str) -> None:
        """Print a line above the live ones."""
        with self._lock:
            self._erase()
            self._stream.write(text + "\n")
            self._draw()

    def _words(self, news: News) -> str:
        if news.what == "failed":
            return f"  {news.export} failed"
        if self._quiet:
            return ""
        if news.what == "committed":
            return f"  {news.export} {news.window} committed" if news.window else f"  {news.export} committed"
        return f"  {news.export}: {news.text}" if self._verbose and news.what == "note" else ""

    def _progressed(self, progress: Progress) -> None:
        now = time.monotonic()
        with self._lock:
            self._running[progress.name] = (progress, now)
            last = self._told.setdefault(progress.name, now)
            is_due = now - last >= TELL_SECONDS and progress.done < progress.of
            if self._is_live or self._quiet or not is_due:
                return
            self._told[progress.name] = now
        self.say(f"  {progress}")

    def _leave(self, news: News) -> None:
        """Forget the lines of a window, or of all windows of an export that ended."""
        with self._lock:
            for name, (progress, _) in list(self._running.items()):
                ended = news.what != "committed" or not news.window or news.window == progress.window
                if progress.export == news.export and ended:
                    del self._running[name]

    def _redraw(self) -> None:
        while not self._ended.wait(DRAW_SECONDS):
            with self._lock:
                self._erase()
                self._draw()

    def _draw(self) -> None:
        if not self._is_live or self._ended.is_set():
            return
        width, now = shutil.get_terminal_size().columns, time.monotonic()
        # A window that is read may wait for its turn to be committed, or have nothing to commit.
        running = [(p, at) for p, at in self._running.values() if p.done < p.of or now - at < STAYS_SECONDS]
        lines = [line(replace(p, seconds=p.seconds + now - at)) for p, at in running]
        if len(lines) > MOST_LINES:
            lines = [*lines[:MOST_LINES], f"  … and {len(lines) - MOST_LINES} more"]
        self._stream.write("".join(text[: width - 1] + "\n" for text in lines))
        self._stream.flush()
        self._drawn = len(lines)

    def _erase(self) -> None:
        if self._drawn:
            self._stream.write(f"\r{UP.format(self._drawn)}{CLEAR}")
            self._drawn = 0
        self._stream.flush()


def line(progress: Progress) -> str:
    """Draw one window's line: a bar of its chunks, then counts."""
    filled = BAR * progress.done // progress.of if progress.of else 0
    return f"  {'█' * filled}{'░' * (BAR - filled)} {progress}"
