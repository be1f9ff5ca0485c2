"""Ask several places at once, each for so many seconds at most: what a sensor's tick and `rivet doctor` need.

Belongs here: threads that may hang without hanging their caller. Not here: what is asked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")
U = TypeVar("U")

ABREAST = 16

_hanging: dict[str, threading.Thread] = {}  # by name; so that ticks do not pile up threads on a silent server
_lock = threading.Lock()


class NoAnswer(Exception):
    """Nothing came back in time; the thread that waits is left alone."""


class _Asked(Generic[T]):
    """One question on its way."""

    def __init__(self, name: str, ask: Callable[[], T]) -> None:
        self.answer: T | Exception | None = None
        self._ask = ask
        # Decision: daemon threads instead of a pool for those, because a pool waits for its threads when the process
        # ends: a server that accepts a connection and stays silent would hold `rivet doctor` for ever.
        self.thread = threading.Thread(target=self._run, name=f"rivet-{name}", daemon=True)

    def _run(self) -> None:
        try:
            self.answer = self._ask()
        except Exception as error:  # every kind is an answer to whoever asked
            self.answer = error


def side_by_side(
    asks: Mapping[str, Callable[[], T]], *, seconds: float, begun_within: float | None = None
) -> dict[str, T | Exception]:
    """Call all, at most ABREAST at a time, and give each one's value or exception, in the order of `asks`.

    Args:
        asks: by a name that is the same each time the same place is asked.
        seconds: after which a silent one is answered for with NoAnswer. One that still hangs from an earlier
            call under its name is not asked again.
        begun_within: seconds after which nothing more is asked; None: all are, however long it takes.
    """
    answers: dict[str, T | Exception] = {}
    names, began = list(asks), time.monotonic()
    for first in range(0, len(names), ABREAST):
        together = names[first : first + ABREAST]
        if first and begun_within is not None and time.monotonic() - began >= begun_within:
            answers |= dict.fromkeys(together, NoAnswer("not asked, as those before it took all the time there is"))
            continue
        answers |= _together({name: asks[name] for name in together}, seconds)
    return answers


# Set while a fan-out is left by a signal: whoever waits in one of its threads before asking again stops waiting.
given_up = threading.Event()


def in_threads(call: Callable[[T], U], items: Iterable[T], *, most: int) -> list[U]:
    """Call with each item, at most so many at a time, and return the answers in order; one alone needs no thread.

    Raises:
        Exception: the first that a call raised, in the order of the items.
    """
    each = list(items)
    if len(each) <= 1 or most == 1:
        return [call(item) for item in each]
    # For what ends by itself, as requests with timeouts do.
    try:
        with ThreadPoolExecutor(min(most, len(each))) as pool:
            try:
                return list(pool.map(call, each))
            except BaseException as error:
                # A signal: leaving the pool waits for calls that may be waiting for a busy store themselves.
                if not isinstance(error, Exception):
                    given_up.set()
                raise
    finally:
        given_up.clear()


def into_lanes(items: Sequence[T], *, most: int, each: int) -> list[list[T]]:
    """Deal items to lanes, each to be gone through one by one: one for a few, one more per `each`, at most `most`."""
    count = max(1, min(most, len(items) // each))
    return [list(items[number::count]) for number in range(count)]


def _together(asks: Mapping[str, Callable[[], T]], seconds: float) -> dict[str, T | Exception]:
    deadline = time.monotonic() + seconds
    begun = {name: _begin(name, ask) for name, ask in asks.items()}
    answers: dict[str, T | Exception] = {}
    for name, asked in begun.items():
        if asked is None:
            answers[name] = NoAnswer("it has still not answered the question before this one")
            continue
        # One deadline for all, not one each: sixteen silent places take as long as one.
        asked.thread.join(max(0.0, deadline - time.monotonic()))
        if asked.thread.is_alive():
            answers[name] = NoAnswer(f"no answer in {seconds:g} s")
        else:
            answers[name] = asked.answer  # type: ignore[assignment]  # the thread has ended, so it is set
            with _lock:
                _hanging.pop(name, None)
    return answers


def _begin(name: str, ask: Callable[[], T]) -> _Asked[T] | None:
    """Start asking; None while the last question under this name hangs."""
    with _lock:
        before = _hanging.get(name)
        # Else each tick of a sensor would leave one more thread and one more connection at a server that is silent.
        if before is not None and before.is_alive():
            return None
        asked = _Asked(name, ask)
        _hanging[name] = asked.thread
        asked.thread.start()
        return asked
