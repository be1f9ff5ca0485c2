"""Waiting in a C library, as far as it needs no server; with one: `tests/end_to_end/test_interruption.py`."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from rivet_resources.deadlines import Ahead, interruptible


def interrupted(monkeypatch: pytest.MonkeyPatch, *, once: Callable[[], object] | None) -> None:
    """Let Ctrl-C come while the thread that waits is started: as soon as `once` returns, or None: before it runs."""
    start = threading.Thread.start

    def begin(thread: threading.Thread) -> None:
        is_waiting = thread.name == "rivet-waits"
        if not is_waiting or once is not None:
            start(thread)
        if is_waiting:
            if once is not None:
                once()
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", begin)


def test_call_that_began_under_an_interrupt_is_cancelled_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The statement is at the server already, though starting it was interrupted: it must not stay there."""
    begun, asked, ended = threading.Event(), threading.Event(), threading.Event()

    def act() -> None:
        begun.set()
        asked.wait(30)
        ended.set()

    interrupted(monkeypatch, once=lambda: begun.wait(30))

    with pytest.raises(KeyboardInterrupt):
        interruptible(act, asked.set)

    assert asked.is_set()
    assert ended.is_set()


def test_call_that_had_not_begun_is_never_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for it either."""
    called = threading.Event()
    interrupted(monkeypatch, once=None)

    with pytest.raises(KeyboardInterrupt):
        interruptible(called.set, called.set)

    assert not called.is_set()


def test_answer_and_fault_come_back() -> None:
    """Without an interrupt it is as if the call were made here."""

    def fail() -> None:
        raise ValueError("no")

    assert 7 == interruptible(lambda: 7, lambda: None)
    with pytest.raises(ValueError, match="no"):
        interruptible(fail, lambda: None)


def test_next_call_is_made_while_an_answer_is_used() -> None:
    """The second one has begun before the first answer was asked for more."""
    calls = [threading.Event() for _ in range(3)]
    answers = iter((1, 2, None))
    made = iter(calls)

    def act() -> int | None:
        next(made).set()
        return next(answers)

    with Ahead(act, lambda: None) as ahead:
        found = iter(ahead)
        assert next(found) == 1
        assert calls[1].wait(30)
        assert list(found) == [2]
    assert calls[2].is_set()


def test_call_under_way_is_cancelled_and_waited_for_when_nobody_wants_it() -> None:
    """Nobody may close a connection under a thread that reads from it."""
    asked, ended = threading.Event(), threading.Event()
    answers = iter((1,))

    def act() -> int:
        if (answer := next(answers, None)) is not None:
            return answer
        asked.wait(30)
        ended.set()
        return 2

    with Ahead(act, asked.set) as ahead:
        assert next(iter(ahead)) == 1
    assert asked.is_set()
    assert ended.is_set()


def test_call_ahead_that_began_under_an_interrupt_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a single one is."""
    begun, asked, ended = threading.Event(), threading.Event(), threading.Event()

    def act() -> None:
        begun.set()
        asked.wait(30)
        ended.set()

    interrupted(monkeypatch, once=lambda: begun.wait(30))

    with pytest.raises(KeyboardInterrupt), Ahead(act, asked.set) as ahead:
        next(iter(ahead))

    assert asked.is_set()
    assert ended.is_set()


def test_fault_of_a_call_ahead_comes_in_its_place() -> None:
    """Behind the answers before it, and not earlier."""
    answers = iter((1, 2))

    def act() -> int:
        if (answer := next(answers, None)) is not None:
            return answer
        raise ValueError("no")

    with Ahead(act, lambda: None) as ahead:
        found = iter(ahead)
        assert [next(found), next(found)] == [1, 2]
        with pytest.raises(ValueError, match="no"):
            next(found)
