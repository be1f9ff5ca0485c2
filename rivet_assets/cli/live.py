"""What people see while exports run: live lines on a terminal, a line now and then in a log, or nothing.

Belongs here: drawing on stderr. Not here: where news come from (`launch/recorder.py`), the summary at the end
(`launch/outcome.py`), when a stream is a terminal (`terminal.py`).
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, TextIO

from rivet_assets.cli.terminal import console_of, is_terminal
from rivet_assets.launch.recorder import News
from rivet_assets.run.progress import TELL_SECONDS, Progress

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

DRAWS_PER_SECOND = 4
STAYS_SECONDS = 5.0  # a line of a window that is read whole
MOST_LINES = 8
BAR = 20  # characters


class Screen:
    """Shows news on a stream; any thread may tell it.

    On a terminal each running window has a line that is drawn again four times a second, below everything else; else
    its progress is a line every ten seconds. `quiet` shows neither, only failures; `verbose` the log of the run too.
    """

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False, verbose: bool = False) -> None:
        self._stream = stream or sys.stderr
        self._is_live = not quiet and is_terminal(self._stream)
        self._quiet, self._verbose = quiet, verbose
        self._lock = threading.Lock()  # never held while rich is asked: its thread draws with a lock of its own
        self._starting = threading.Lock()
        self._running: dict[str, tuple[Progress, float]] = {}  # by export and window; and when it was told
        self._told: dict[str, float] = {}
        self._live: Live | None = None  # from the first progress on: until then a JVM starts, which must not wait

    @contextmanager
    def showing(self) -> Iterator[Screen]:
        """Leave no live line behind when the block ends."""
        try:
            yield self
        finally:
            with self._lock:
                self._running.clear()
            if self._live is not None:
                self._live.stop()

    def _start(self) -> None:
        """Begin to draw, unless that was done."""
        with self._starting:
            if self._live is not None:
                return
            from rich.live import Live  # start

            self._live = Live(
                console=console_of(self._stream),
                get_renderable=self._lines,
                refresh_per_second=DRAWS_PER_SECOND,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
            self._live.console.show_cursor(True)  # whoever ends this process need not bring it back

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
        if self._live is not None:
            self._live.console.print(text, soft_wrap=True)
        else:
            self._stream.write(text + "\n")
            self._stream.flush()

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
            is_due = is_due and not (self._is_live or self._quiet)
            if is_due:
                self._told[progress.name] = now
        if self._is_live:
            self._start()
        elif is_due:
            self.say(f"  {progress}")

    def _leave(self, news: News) -> None:
        """Forget the lines of a window, or of all windows of an export that ended."""
        with self._lock:
            for name, (progress, _) in list(self._running.items()):
                ended = news.what != "committed" or not news.window or news.window == progress.window
                if progress.export == news.export and ended:
                    del self._running[name]

    def _lines(self) -> Table:
        """Draw a line for each running window: a bar of its chunks, then counts."""
        from rich.progress_bar import ProgressBar  # start
        from rich.table import Table  # start
        from rich.text import Text  # start

        now = time.monotonic()
        with self._lock:
            # A window that is read may wait for its turn to be committed, or have nothing to commit.
            running = [(p, at) for p, at in self._running.values() if p.done < p.of or now - at < STAYS_SECONDS]
        lines = Table.grid(padding=(0, 1, 0, 0))
        lines.add_column(width=BAR + 1)
        lines.add_column(no_wrap=True, overflow="ellipsis")
        for progress, at in running[:MOST_LINES]:
            is_one = progress.of == 1 and not progress.done  # how much of it there is nobody knows: it moves
            bar = ProgressBar(max(1, progress.of), progress.done, width=BAR, pulse=is_one)
            lines.add_row(bar, Text(str(replace(progress, seconds=progress.seconds + now - at))))
        if len(running) > MOST_LINES:
            lines.add_row("", Text(f"… and {len(running) - MOST_LINES} more"))
        return lines
