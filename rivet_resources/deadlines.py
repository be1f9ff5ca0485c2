"""Waits that the other side would never end: one thread ends them, by closing the line under whoever waits.

Belongs here: the clock of all waits, how long one may take, the sockets that a C library opens and does not show. Not
here: what a silent server means to a run (each engine's table of faults).

A server keeps its own statement timeout, but one that hangs, a stuck pooler or a NAT that forgot the line keep nothing,
and libpq and Microsoft's driver then wait for ever. Neither can be told to stop: their own cancelling asks the same
silent server. A socket that is shut down wakes everybody who waits on it, in whatever library.
"""

from __future__ import annotations

import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from typing import Generic, Self, TypeVar

T = TypeVar("T")

MARGIN_SECONDS = 60.0  # at most; on top of the server's own limit
LEAST_MARGIN_SECONDS = 5.0
# Of a server without a limit of its own (0, which the profile `fast` has): work that takes longer than this before its
# next byte is rare, and can be given a limit; a server that is stuck would hold its run for ever.
LONGEST_SILENCE_SECONDS = 6 * 3600.0
KEEPALIVE = {"idle": 60, "interval": 10, "count": 3}  # a line whose other end is gone is noticed after 90 s
UNACKNOWLEDGED_SECONDS = 60  # what was sent and never confirmed
SILENT = "answered nothing for"
LOOK_AT_LINE = "Look at the server and at what stands between (pooler, firewall), then run again."
OPEN_FILES = "/dev/fd"  # of Linux and macOS; elsewhere the sockets of C libraries are not found

_connecting = threading.Lock()


class Silent(Exception):
    """The other side kept the line and did not answer in time; the line is shut down now."""

    def __init__(self, seconds: float) -> None:
        longer = "; work that is silent for longer needs `tuning.statement_timeout_s` above that"
        is_unlimited = seconds == LONGEST_SILENCE_SECONDS
        super().__init__(f"the server kept the connection and {SILENT} {seconds:.0f} s{longer if is_unlimited else ''}")


def patience_seconds(limit_seconds: float) -> float:
    """Return how long to wait for a word of a server that has this limit itself; 0: it has none."""
    if not limit_seconds:
        return LONGEST_SILENCE_SECONDS
    return limit_seconds + min(MARGIN_SECONDS, max(LEAST_MARGIN_SECONDS, limit_seconds))


class EndOverdue(KeyboardInterrupt):
    """An end was asked for, and what was to be finished first takes too long; raised where the main thread waits."""


class _Wait:
    """One wait: when it must be over, what ends it, and what may prolong it by as much again."""

    def __init__(self, seconds: float, end: Callable[[], object], is_at_work: Callable[[], bool] | None) -> None:
        self.seconds, self.end, self.is_at_work = seconds, end, is_at_work
        self.due, self.has_passed = time.monotonic() + seconds, False


class _Clock:
    """All waits of this process, and the thread that ends those that are due."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waits: set[_Wait] = set()
        self._wakes_at = float("inf")
        self._thread: threading.Thread | None = None

    def add(self, wait: _Wait) -> None:
        with self._changed:
            self._waits.add(wait)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True, name="rivet-deadlines")
                self._thread.start()
            # A wait that is due later is found when the thread wakes for an earlier one.
            elif wait.due < self._wakes_at:
                self._changed.notify()

    def remove(self, wait: _Wait) -> None:
        """Forget a wait; when this returns, its `end` is over or will never be called."""
        with self._changed:
            self._waits.discard(wait)

    def _run(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                for wait in [each for each in self._waits if each.due <= now]:
                    if wait.is_at_work is None:
                        self._end(wait)
                    else:
                        wait.due = float("inf")  # until the answer is there
                        threading.Thread(target=self._asked, args=(wait,), daemon=True, name="rivet-asks").start()
                self._wakes_at = min((each.due for each in self._waits), default=float("inf"))
                self._changed.wait(None if self._wakes_at == float("inf") else self._wakes_at - now)

    def _end(self, wait: _Wait) -> None:
        self._waits.discard(wait)
        wait.has_passed = True
        with suppress(Exception):  # one line that cannot be ended must not keep the others
            wait.end()

    def _asked(self, wait: _Wait) -> None:
        """Prolong a wait, or end it; the question has an end of its own."""
        is_at_work = False
        with suppress(Exception):
            # Without the lock, since the answer may take a while.
            is_at_work = wait.is_at_work is not None and wait.is_at_work()
        with self._changed:
            # Its block ended meanwhile.
            if wait not in self._waits:
                return
            if not is_at_work:
                self._end(wait)
                return
            wait.due = time.monotonic() + wait.seconds
            self._changed.notify()


_clock = _Clock()


def _begin_anew() -> None:
    """Begin without waits: a fork copies no thread, and whoever held our locks is not here."""
    global _clock, _connecting
    _clock, _connecting = _Clock(), threading.Lock()


os.register_at_fork(after_in_child=_begin_anew)


@contextmanager
def deadline(
    seconds: float | None, end: Callable[[], object], *, is_at_work: Callable[[], bool] | None = None
) -> Iterator[None]:
    """Call `end` from another thread when the block takes longer; None: it may take as long as it likes.

    Args:
        end: wakes the block, at once and without waiting itself, such as `hang_up`.
        is_at_work: asked when the time is over, for work without a limit; while it is true the block gets as long
            again. What it raises means no. It needs an end of its own.

    Raises:
        Silent: in place of what the block raised, when its time was over.
    """
    if seconds is None:
        yield
        return
    wait, clock = _Wait(seconds, end, is_at_work), _clock
    clock.add(wait)
    try:
        yield
    except Exception:
        if wait.has_passed:
            raise Silent(seconds) from None
        raise
    finally:
        clock.remove(wait)


def interruptible(act: Callable[[], T], cancel: Callable[[], object]) -> T:
    """Run a call that waits in a C library so that a signal to this process ends the wait; give its answer.

    Python runs the handlers of signals in the main thread and between two of its own instructions, so in there another
    thread makes the call. ADBC would even take SIGINT for itself: it cancels its statement with it, and what comes
    back is told by nothing from a cancellation at the server (adbc_driver_manager 1.13, `_blocking_call`).

    Args:
        cancel: called when this thread was interrupted; lets `act` come back, and may wait itself.
    """
    if threading.current_thread() is not threading.main_thread():
        return act()
    answer: Future[T] = Future()
    thread = threading.Thread(target=answer_into, args=(answer, act), daemon=True, name="rivet-waits")
    try:
        thread.start()  # an interrupt may come in here too, when the call has begun and when it has not
        return answer.result()  # not `join`: Python 3.11 takes a thread whose join was interrupted for ended
    except BaseException:
        if not answer.cancel() and not answer.done():  # begun, and not ended; a call that has not begun never will
            cancel_within(0, cancel)
            wait([answer])  # nobody may close under the call what it works on
        raise


class Ahead(Generic[T]):
    """Calls one after another that wait in a C library, each made while the answer before it is used.

    Not for two threads. Leaving the block ends the call that is under way; what it answers nobody needs.

    Args:
        act: one call; None is the last answer.
        cancel: lets `act` come back, and may wait itself.
    """

    def __init__(self, act: Callable[[], T | None], cancel: Callable[[], object]) -> None:
        self._act, self._cancel = act, cancel
        self._answer: Future[T | None] | None = None

    def __enter__(self) -> Self:
        """Call nothing yet: an interrupt in here would leave a call that nobody ends."""
        return self

    def __exit__(self, *fault: object) -> None:
        """End the call that is under way."""
        answer, self._answer = self._answer, None
        if answer is not None and not answer.cancel() and not answer.done():
            cancel_within(0, self._cancel)
            wait([answer])  # nobody may close under the call what it works on

    def __iter__(self) -> Iterator[T]:
        """Yield the answers; an interrupt ends the wait for one.

        Raises:
            Exception: what the call raised.
        """
        answer = self._begin()
        while (found := answer.result()) is not None:
            answer = self._begin()
            yield found

    def _begin(self) -> Future[T | None]:
        answer: Future[T | None] = Future()
        self._answer = answer
        threading.Thread(target=answer_into, args=(answer, self._act), daemon=True, name="rivet-waits").start()
        return answer


def cancel_within(seconds: float, cancel: Callable[[], object]) -> None:
    """Ask for an end, for so many seconds at most: libpq asks over a line of its own, and waits for a silent server."""
    asking = threading.Thread(target=_try, args=(cancel,), daemon=True, name="rivet-cancels")
    asking.start()
    asking.join(seconds)


def _try(cancel: Callable[[], object]) -> None:
    with suppress(Exception):
        cancel()


def answer_into(answer: Future[T], act: Callable[[], T]) -> None:
    """Call, in a thread of its own, and leave what comes of it."""
    if not answer.set_running_or_notify_cancel():
        return
    try:
        answer.set_result(act())
    except BaseException as error:
        answer.set_exception(error)


# --- sockets -------------------------------------------------------------------------------------


def hang_up(lines: Collection[socket.socket]) -> None:
    """Shut lines down for both sides; whoever waits on one wakes."""
    for line in lines:
        with suppress(OSError):
            line.shutdown(socket.SHUT_RDWR)


def hang_up_file(number: int) -> None:
    """Shut down the line behind a file number that a library owns; it stays the library's to close."""
    with suppress(OSError), socket.socket(fileno=os.dup(number)) as line:
        hang_up([line])


def forget(lines: Collection[socket.socket]) -> None:
    """Close our copies of lines; the library's own stay as they are."""
    for line in lines:
        with suppress(OSError):
            line.close()


def keep_alive(line: socket.socket) -> None:
    """Let the system notice a line whose other end is gone, where it offers that; nothing for a Unix socket."""
    options = {
        "TCP_KEEPIDLE": KEEPALIVE["idle"],
        "TCP_KEEPINTVL": KEEPALIVE["interval"],
        "TCP_KEEPCNT": KEEPALIVE["count"],
        "TCP_USER_TIMEOUT": UNACKNOWLEDGED_SECONDS * 1000,
    }
    with suppress(OSError):
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options.items():
            if hasattr(socket, name):
                line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


@contextmanager
def opened_lines(ports: Collection[int]) -> Iterator[Callable[[], list[socket.socket]]]:
    """Yield what finds the lines to these ports that were opened since the block began, as copies to `forget`.

    For libraries that do not show their sockets. One such block at a time, so that nobody takes another one's line.
    """
    with _connecting:
        before = set(_sockets())

        def found() -> list[socket.socket]:
            copies = [_duplicate(number) for key, number in _sockets().items() if key not in before]
            lines = [line for line in copies if line is not None and _leads_to(line, ports)]
            forget([line for line in copies if line is not None and line not in lines])
            return lines

        yield found


def _sockets() -> dict[tuple[int, int], int]:
    """List this process's sockets: their identity, and the file number."""
    found: dict[tuple[int, int], int] = {}
    with suppress(OSError):
        for name in os.listdir(OPEN_FILES):
            with suppress(OSError, ValueError):
                about = os.fstat(int(name))
                if stat.S_ISSOCK(about.st_mode):
                    # By inode: the number of a socket that is closed goes to the next one that is opened.
                    found[(about.st_dev, about.st_ino)] = int(name)
    return found


def _duplicate(number: int) -> socket.socket | None:
    with suppress(OSError):
        return socket.socket(fileno=os.dup(number))
    return None


def _leads_to(line: socket.socket, ports: Collection[int]) -> bool:
    """Return whether the other end has one of these ports; a Unix socket has it at the end of its name."""
    try:
        peer = line.getpeername()
    except OSError:
        return False
    if isinstance(peer, tuple):
        return peer[1] in ports
    name = peer.decode(errors="replace") if isinstance(peer, bytes) else str(peer)
    return name.endswith(tuple(f".{port}" for port in ports))
