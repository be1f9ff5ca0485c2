"""The wish to end: SIGINT, SIGTERM and SIGHUP, noticed whoever's handler is in place, and kept within ten seconds.

Belongs here: hearing a signal, ending in time and without a word too many, the gentle end of a drain. Not here: what is
said (`cli/main.py`), what a run that was interrupted leaves (`attempt.py`: nothing that a reader sees).

Python writes each signal to a file besides (`signal.set_wakeup_fd`), and a thread reads that one.
"""

from __future__ import annotations

import atexit
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import NoReturn

from rivet_resources.deadlines import EndOverdue
from rivet_resources.errors import RivetError

# Dagster and PySpark put handlers of their own in place while they work, and an exception that a handler raises in the
# middle of a call to the JVM leaves half an answer behind, which the next call reads as its own: so handlers cannot be
# trusted alone.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE_SECONDS = 6.0  # for the command to end by itself; then it is ended
LOOK_SECONDS = 0.5
EXIT_CODE = 130
CODE = "RIVET_INTERRUPTED"
CHILDREN_SECONDS = 2.0  # for a JVM to remove its files


@dataclass
class _Wish:
    """What this process was asked; `gentle` while, and after, only a drain was asked to end."""

    asked: bool = False
    gentle: bool = False
    patient: int = 0  # who sees to the end himself, and may take longer
    wanted: frozenset[int] = frozenset()  # that mean it
    heard: int = 0  # of these
    forgiven: int = 0  # of these, taken for the gentle end of a drain
    signals: int = -1  # the file that Python writes each signal's number to; -1: nobody listens
    lock: threading.Lock = field(default_factory=threading.Lock)

    def hear(self) -> None:
        """Read which signals have come since; both threads ask, so that neither is behind the other."""
        with self.lock, suppress(BlockingIOError, OSError):
            # Each byte is the number of a signal (`signal.set_wakeup_fd`).
            self.heard += sum(number in self.wanted for number in os.read(self.signals, 64))
        # A drain takes the first signal itself, and its handler may run later than this is read.
        is_first_free = bool(self.patient) and not self.forgiven
        if self.heard - self.forgiven > is_first_free and not self.asked:
            self.asked = True
            _hush()


_wish = _Wish()


def is_asked() -> bool:
    """Return whether this process was told to end: what fails from now on fails because of it."""
    if _wish.signals >= 0:
        _wish.hear()
    return _wish.asked


def is_asked_gently() -> bool:
    """Return whether a drain ended because it was asked to: what is still to come does not begin."""
    return _wish.gentle


def status_of(error: BaseException) -> str:
    """Name the end of a run: failed, or interrupted when it was, or when the process was told to end before."""
    return "failed" if isinstance(error, Exception) and not is_asked() else "interrupted"


def code_and_text(error: BaseException) -> tuple[str, str]:
    """Return what may be stored of what ended a run: only our own errors promise to hold no secret and no value."""
    if isinstance(error, RivetError):
        return error.code, str(error)
    # Dagster, Python and a closed generator have a class each for it, which tells a reader nothing.
    if status_of(error) == "interrupted":
        return CODE, "The run was told to end before the export was done; nothing of what it had not committed shows."
    return type(error).__name__, type(error).__name__


def stop_here() -> None:
    """Begin nothing once an end was asked for.

    Raises:
        KeyboardInterrupt
    """
    if is_asked() or _wish.gentle:
        raise KeyboardInterrupt


@contextmanager
def listening(end: Callable[[], object]) -> Iterator[None]:
    """Let the three signals end this process: as a KeyboardInterrupt at first, and in any case in time.

    SIGHUP and SIGINT stay ignored where whoever started the process said so (`nohup`, a script's `&`).

    Args:
        end: says so; called by a thread when the main one did not end in time, before the process is left.
    """
    global _wish
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # A new one for each command: several may run in one process, one after the other, and an old wish would end the
    # next at once.
    _wish = _Wish()
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in before.items():
        if handler is signal.SIG_IGN and number != signal.SIGTERM:
            # Ours does nothing either. Dagster gives SIGTERM whatever SIGINT has, and what is ignored nobody hears.
            signal.signal(number, lambda *_: None)
        else:
            _wish.wanted |= {number}
            signal.signal(number, _interrupt)
    read, write = os.pipe()
    # `set_wakeup_fd` takes no file whose writer could block, and `hear` must not wait for a signal.
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    _wish.signals = read
    # A full pipe needs no warning: the first byte in it has said everything.
    other = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    # A thread, since the main one may be inside a C call or wait for the JVM, where no Python handler runs.
    threading.Thread(target=_watch, args=(read, end), name="rivet-signals", daemon=True).start()
    try:
        yield
    finally:
        # Else the end of the process is watched to its very end.
        if not is_asked():
            signal.set_wakeup_fd(other)
            for number, handler in before.items():
                signal.signal(number, handler)
            _wish.signals = -1
            os.close(write)


def _in_child() -> None:
    """Hear no signals for who forked us: a child has its own."""
    if _wish.signals >= 0:
        with suppress(ValueError):
            signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_in_child)


def end_children() -> None:
    """End every process that this one started, and theirs; gently first, so that a JVM removes its files."""
    import psutil  # start

    # Grandchildren too: Spark's daemon forks the workers, and they hold the connections to the source.
    children = psutil.Process().children(recursive=True)
    for child in children:
        _quietly(child.terminate)
    _, left = psutil.wait_procs(children, timeout=CHILDREN_SECONDS)
    for child in left:
        _quietly(child.kill)


def leave(code: int) -> NoReturn:
    """End this process with this exit code, after what was registered for its end."""
    # Not `sys.exit`: where the interrupt came while Python ran a text (`exec`, by which dataclasses get their methods),
    # Python 3.11 remembers it as one that nobody handled, and at the very end sends itself SIGINT (`exit_sigint`).
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextmanager
def defer_end() -> Iterator[None]:
    """See to the end in this block: nobody ends the process meanwhile, until a second signal comes."""
    _wish.patient += 1
    try:
        yield
    finally:
        _wish.patient -= 1


class GentleEnd:
    """An end that waits for what is at hand. `is_asked` says whether it was asked for."""

    def __init__(self) -> None:
        self._wanted = False
        self._seconds = 0.0  # that the block at hand gets from then on; 0: as long as it takes

    def is_asked(self) -> bool:
        """Return whether the signal has come."""
        return self._wanted

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Let the block run for so long after the signal, and no longer. In the main thread only: others never end.

        Raises:
            EndOverdue: in the block, wherever it waits.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._seconds = seconds
        self._start_clock()
        try:
            yield
        finally:
            self._seconds = 0.0
            # Before the handler goes: an alarm that comes later would end the process, which is what SIGALRM does by
            # itself.
            signal.setitimer(signal.ITIMER_REAL, 0)

    def note(self, number: int, frame: object) -> None:
        """Take the first signal for the wish to end; the second one ends at once."""
        if self._wanted:
            _interrupt(number, frame)
        self._wanted = _wish.gentle = True
        # Counted, since the other thread reads the same signal from the pipe, and would take it for the wish to end at
        # once.
        _wish.forgiven += 1
        self._start_clock()

    def overdue(self, number: int, frame: object) -> None:
        """Handle SIGALRM; one that comes when its block has ended is nobody's."""
        if self._seconds:
            _hush()
            raise EndOverdue

    def _start_clock(self) -> None:
        if self._wanted and self._seconds:
            signal.setitimer(signal.ITIMER_REAL, self._seconds)


@contextmanager
def gently() -> Iterator[GentleEnd]:
    """Let the first signal end what runs in this block when it suits, and a second one at once.

    Raises:
        KeyboardInterrupt: also where a block of `GentleEnd.within` took too long, and nobody caught that.
    """
    end = GentleEnd()
    if threading.current_thread() is not threading.main_thread():
        yield end
        return
    # Outside of the main thread the end is never asked for.
    ours = {**dict.fromkeys(_wish.wanted or SIGNALS, end.note), signal.SIGALRM: end.overdue}
    before = {number: signal.getsignal(number) for number in ours}
    for number, handler in ours.items():
        signal.signal(number, handler)
    try:
        with defer_end():
            yield end
    except EndOverdue:
        _wish.asked = True
        raise KeyboardInterrupt from None
    finally:
        for number, former in before.items():
            signal.signal(number, former)


def _interrupt(number: int, frame: object) -> None:
    _wish.asked = True
    _hush()
    raise KeyboardInterrupt


def _watch(read: int, end: Callable[[], object]) -> None:
    """Wait for a signal that asks for the end; then for the end itself."""
    wish = _wish
    while not wish.asked:
        # The other thread may have read it.
        select.select([read], [], [], LOOK_SECONDS)
        if wish.signals != read:
            os.close(read)
            return
        wish.hear()
    # The usual way out comes first: it gives the lease back and removes what was staged.
    time.sleep(GRACE_SECONDS)
    _within(CHILDREN_SECONDS + 1, end_children)
    _within(1.0, end)
    os._exit(EXIT_CODE)


def _within(seconds: float, act: Callable[[], object]) -> None:
    """Do something that may meet a lock of a thread that will never move again."""
    acting = threading.Thread(target=act, daemon=True)
    acting.start()
    acting.join(seconds)


def _hush() -> None:
    """Silence what breaks because of the interrupt: half-read answers of the JVM, threads whose session is gone."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    # py4j calls `logging.exception`; records of named loggers pass.
    logging.getLogger().addFilter(lambda _: False)
    threading.excepthook = lambda _: None
    sys.unraisablehook = lambda _: None


def _quietly(act: Callable[[], object]) -> None:
    import psutil  # start

    try:
        act()
    except psutil.Error:
        return
