"""One window of a drain is published while the next one is read: one at a time, in the order of the log.

Belongs here: the thread that publishes, waiting for it, its end. Not here: what publishing a window is (`drain.py`).

Reading stays in the caller's thread: a log is one connection for one thread, and signals reach the main one alone.
What waits for a store goes aside. Nothing of a window is begun here before the one before it has ended well, so a death
leaves what it left when both took turns: at most one window that is visible and not in the checkpoint.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Generic, Self, TypeVar

from rivet_resources.deadlines import answer_into

T = TypeVar("T")

# How long an interrupted drain waits for the request at hand: a command must end within ten seconds. What it leaves
# then is what a kill leaves, and its lease and its checkpoint are fenced.
LAST_STEP_SECONDS = 3.0


class PublicationStopped(BaseException):
    """The drain was left while it published; raised where its next step would begin, and caught by nobody on the way.

    `BaseException`: a retry must not take it for a fault that passes.
    """


class PublishBehind(Generic[T]):
    """Publishes windows in a thread; not for two threads.

    Leaving the block with an error ends the publication that is under way, at its next step.
    """

    def __init__(self) -> None:
        self._under_way: Future[T] | None = None
        self._is_left = threading.Event()

    def __enter__(self) -> Self:
        """Begin nothing yet."""
        return self

    def __exit__(self, *fault: object) -> None:
        """Let no further step begin, and wait for the one at hand, for a moment."""
        self._is_left.set()
        if self._under_way is not None:
            wait([self._under_way], LAST_STEP_SECONDS)

    def begin(self, publish: Callable[[], T]) -> None:
        """Publish in the background; the window before must be settled.

        Raises:
            RuntimeError: the system gives no thread.
        """
        assert self._under_way is None, "one window at a time"
        answer: Future[T] = Future()
        # A daemon: an interpreter that must end is not held up by a store that hangs.
        thread = threading.Thread(target=answer_into, args=(answer, publish), daemon=True, name="rivet-publishes")
        # Before the start: an interrupt may come in between, and then it is waited for.
        self._under_way = answer
        try:
            thread.start()
        except RuntimeError:
            self._under_way = None
            raise

    def settle(self) -> T | None:
        """Wait for the publication under way and return what it gave; None when there is none.

        Raises:
            BaseException: what it raised.
        """
        if self._under_way is None:
            return None
        # An interrupt of this wait leaves it under way, for the end of the block.
        wait([self._under_way])
        answer, self._under_way = self._under_way, None
        return answer.result()

    @property
    def is_busy(self) -> bool:
        """Return whether a publication is under way and has not ended."""
        return self._under_way is not None and not self._under_way.done()

    def raise_failed(self) -> None:
        """Raise what the publication under way raised, if it has; wait for nothing."""
        answer = self._under_way
        if answer is not None and answer.done() and answer.exception() is not None:
            self.settle()

    def go_on(self) -> None:
        """Let the next step of a publication begin.

        Raises:
            PublicationStopped: the drain was left.
        """
        if self._is_left.is_set():
            raise PublicationStopped
