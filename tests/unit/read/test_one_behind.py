"""One page is worked on while the next is read: order, memory, and how either side's fault ends the other."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from rivet_resources.contracts.source import Page
from rivet_resources.read import one_behind as module
from rivet_resources.read.one_behind import one_behind

PATIENCE_SECONDS = 20.0


class Stopped(BaseException):
    """What Python raises where a process is told to end, of a class of its own."""


def page(number: int) -> Page:
    return Page(table=pa.table({"n": [number]}), special={}, statement_ms=0.0)


def number_of(given: Page) -> int:
    return int(given.table["n"][0].as_py())


def test_next_page_is_read_while_one_is_written() -> None:
    """The caller comes back with a page in work, and can read on."""
    begun, go_on = threading.Event(), threading.Event()

    def work(given: Page) -> None:
        begun.set()
        assert go_on.wait(PATIENCE_SECONDS)

    with one_behind(work) as hand_over:
        hand_over(page(1))
        assert begun.wait(PATIENCE_SECONDS)  # and this thread is here, where it would read
        go_on.set()


def test_pages_are_worked_on_one_at_a_time_in_their_order() -> None:
    """No page begins before the one before it is done, so that a part's rows stay in order; two are held at most."""
    running, most, done = 0, 0, []

    def work(given: Page) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        done.append(number_of(given))
        running -= 1

    with one_behind(work) as hand_over:
        for number in range(200):
            hand_over(page(number))

    assert done == list(range(200))
    assert most == 1


def test_fault_of_the_work_ends_the_reading() -> None:
    """What writing raised comes up at the next page; none after it is worked on."""
    seen = []

    def work(given: Page) -> None:
        seen.append(number_of(given))
        if number_of(given) == 2:
            raise OSError("disk")

    read = []
    with pytest.raises(OSError, match="disk"), one_behind(work) as hand_over:  # noqa: PT012
        for number in range(10):
            read.append(number)
            hand_over(page(number))

    assert seen == [0, 1, 2]
    assert read == [0, 1, 2, 3]


def test_fault_of_the_last_page_is_not_lost() -> None:
    """The end of the block waits for the last page, and raises what it raised, interrupts included."""

    def work(given: Page) -> None:
        raise Stopped

    with pytest.raises(Stopped), one_behind(work) as hand_over:
        hand_over(page(1))


def test_fault_of_the_reading_waits_for_the_page_in_work() -> None:
    """Nobody removes what was staged under a page that is still being written."""
    begun, go_on, done = threading.Event(), threading.Event(), []

    def work(given: Page) -> None:
        begun.set()
        assert go_on.wait(PATIENCE_SECONDS)
        done.append(number_of(given))

    with pytest.raises(ValueError, match="read"), one_behind(work) as hand_over:  # noqa: PT012
        hand_over(page(1))
        assert begun.wait(PATIENCE_SECONDS)
        threading.Timer(0.05, go_on.set).start()
        raise ValueError("read")

    assert done == [1]


def test_interrupt_does_not_wait_for_a_page_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that is told to end does so though a store takes nothing: after so long, no longer."""
    monkeypatch.setattr(module, "LAST_PAGE_SECONDS", 0.01)
    go_on = threading.Event()

    def work(given: Page) -> None:
        go_on.wait(PATIENCE_SECONDS)

    with pytest.raises(Stopped), one_behind(work) as hand_over:  # noqa: PT012
        hand_over(page(1))
        raise Stopped

    assert not go_on.is_set()
    go_on.set()
