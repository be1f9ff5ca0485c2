"""Work on pages while the next ones are read: shaping, encoding, writing and sending take place in a thread.

Belongs here: the hand-over between the two, and how it ends when either fails. Not here: what the work is (`task.py`).

Reading stays in the caller's thread: drivers, their cancelling and the signals of a process belong to it. Drivers,
Arrow, zstd and checksums release the interpreter's lock, so the server, the line and the encoder are busy together;
before, each of them waited for the others.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rivet_resources.contracts.source import Page
from rivet_resources.process_start import share_one_heap

Work = Callable[[Page], None]

# Pages that were read and are not written yet; one is always allowed. Several, since a writer collects pages and
# encodes them in one go: with one, reading waited for 0.6 of 5.4 s (measured).
MOST_BYTES = 64 * 1024 * 1024
# How long an interrupted task waits for the page that is being written: a command must end within ten seconds. What it
# leaves then is swept as after a kill.
LAST_PAGE_SECONDS = 3.0


@contextmanager
def write_behind(work: Work) -> Iterator[Work]:
    """Yield what takes a page and returns when it may be read on; the block ends when all pages are done, in order.

    Raises:
        BaseException: what `work` raised for a page; at one of the next, or at the end of the block. It gets no further
            page then. Where the block raises, that is what is raised, after the page in work is done.
    """
    behind = _Behind(work)
    try:
        yield behind.hand_over
        behind.finish()
    except Exception:
        # After a fault the page in work is waited for, however long: the thread still writes into files that the
        # caller is about to discard. After an interrupt only for a moment, see `LAST_PAGE_SECONDS`.
        behind.stop(None)
        raise
    except BaseException:
        behind.stop(LAST_PAGE_SECONDS)
        raise


class _Behind:
    """A queue of pages and the thread that works on them; the thread ends when the queue is closed."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._changed = threading.Condition()
        self._pages: deque[Page] = deque()  # the first one is in work
        self._bytes = 0
        self._error: BaseException | None = None
        self._is_closed = False
        self._is_started = False

    def hand_over(self, page: Page) -> None:
        """Add a page once there is room for it.

        Raises:
            BaseException: what became of one before.
        """
        size = page.nbytes
        with self._changed:
            # A page larger than the limit passes alone, when nothing else waits: refusing it would stop the chunk
            # for ever.
            self._changed.wait_for(lambda: self._error or not self._pages or self._bytes + size <= MOST_BYTES)
            if self._error is not None:
                raise self._error
            self._start()
            self._pages.append(page)
            self._bytes += size
            self._changed.notify_all()

    def _start(self) -> None:
        """Start the thread at the first page, before there is one: `stop` would wait for a page that nobody works on.

        Raises:
            RuntimeError: the system gives no thread.
        """
        if not self._is_started:
            share_one_heap()
            threading.Thread(target=self._run, name="rivet-writes", daemon=True).start()
            self._is_started = True

    def finish(self) -> None:
        """Wait until every page is done.

        Raises:
            BaseException: what became of one.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._error or not self._pages)
            self._close()
            if self._error is not None:
                raise self._error

    def stop(self, seconds: float | None) -> None:
        """Begin no further page, and wait for the one in work; so many seconds at most."""
        with self._changed:
            # The thread works on the first one, which cannot be taken back any more.
            while len(self._pages) > 1:
                self._pages.pop()
            self._close()
            self._changed.wait_for(lambda: not self._pages, seconds)

    def _close(self) -> None:
        self._is_closed = True
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pages or self._is_closed)
                if not self._pages:
                    return
                # It stays in the queue while it is in work, so its bytes count.
                page = self._pages[0]
            error = _error_of(self._work, page)
            with self._changed:
                self._error = error
                self._bytes -= page.nbytes
                # Only when it is done: a page that is in work counts as waiting, for its memory and for `finish`.
                self._pages.popleft()
                if error is not None:
                    self._pages.clear()
                    self._is_closed = True
                self._changed.notify_all()
            # While this thread waits for the next page, nobody holds this one.
            del page


def _error_of(work: Work, page: Page) -> BaseException | None:
    try:
        work(page)
    except BaseException as error:
        # Every exception is for the reading thread: raised here it would end a thread that nobody looks at, and the
        # reader would wait for room for ever.
        return error
    return None
