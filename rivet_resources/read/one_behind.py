"""Work on one page while the next one is read: shaping, encoding, writing and sending take place in a thread.

Belongs here: the hand-over between the two, and how it ends when either fails. Not here: what the work is (`task.py`).

Reading stays in the caller's thread: drivers, their cancelling and the signals of a process belong to it. Drivers,
Arrow, zstd and checksums release the interpreter's lock, so the server, the line and the encoder are busy together;
before, each of them waited for the others. Two pages are held, never three.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager

from rivet_resources.contracts.source import Page

Work = Callable[[Page], None]

# How long an interrupted task waits for the page that is being written: a command must end within ten seconds. What it
# leaves then is swept as after a kill.
LAST_PAGE_SECONDS = 3.0


@contextmanager
def one_behind(work: Work) -> Iterator[Work]:
    """Yield what takes a page and returns once the one before is done; the block ends when all are done.

    Raises:
        BaseException: what `work` raised for a page; at the next page, or at the end of the block. It gets no further
            page then. Where the block raises, that is what is raised, after the page in work is done.
    """
    pending: list[Future[None]] = []

    def hand_over(page: Page) -> None:
        _result_of(pending)
        pending.append(_begin(work, page))

    try:
        yield hand_over
        _result_of(pending)
    except Exception:
        wait(pending)
        raise
    except BaseException:
        wait(pending, LAST_PAGE_SECONDS)
        raise


def _result_of(pending: list[Future[None]]) -> None:
    """Wait for the page in work, if there is one.

    Raises:
        BaseException: what became of it.
    """
    if pending:
        pending[0].result()
        pending.clear()


def _begin(work: Work, page: Page) -> Future[None]:
    done: Future[None] = Future()
    threading.Thread(target=_finish, args=(done, work, page), name="rivet-writes", daemon=True).start()
    return done


def _finish(done: Future[None], work: Work, page: Page) -> None:
    try:
        work(page)
    except BaseException as error:
        done.set_exception(error)
    else:
        done.set_result(None)
