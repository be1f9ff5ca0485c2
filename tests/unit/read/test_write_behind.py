"""One page is worked on while the next is read: order, memory, and how either side's fault ends the other."""

from __future__ import annotations

import itertools
import threading

import pyarrow as pa
import pytest

from rivet_resources.contracts.source import Page
from rivet_resources.read import write_behind as module
from rivet_resources.read.write_behind import write_behind

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

    with write_behind(work) as hand_over:
        hand_over(page(1))
        assert begun.wait(PATIENCE_SECONDS)  # and this thread is here, where it would read
        go_on.set()


def test_pages_are_worked_on_one_at_a_time_in_their_order() -> None:
    """No page begins before the one before it is done, so that a part's rows stay in order."""
    running, most, done = 0, 0, []

    def work(given: Page) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        done.append(number_of(given))
        running -= 1

    with write_behind(work) as hand_over:
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

    with pytest.raises(OSError, match="disk"), write_behind(work) as hand_over:  # noqa: PT012
        for number in itertools.count():
            hand_over(page(number))

    assert seen == [0, 1, 2]


def test_pages_that_wait_for_the_writer_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading goes on while there is room for the page, and not beyond: memory does not grow with a slow disk."""
    monkeypatch.setattr(module, "MOST_BYTES", 3 * page(0).table.nbytes)
    go_on, handed = threading.Event(), []

    def work(given: Page) -> None:
        assert go_on.wait(PATIENCE_SECONDS)

    def read() -> None:
        with write_behind(work) as hand_over:
            for number in range(10):
                hand_over(page(number))
                handed.append(number)

    reading = threading.Thread(target=read)
    reading.start()
    while len(handed) < 3:
        assert reading.is_alive()
    reading.join(0.1)

    assert handed == [0, 1, 2]
    go_on.set()
    reading.join(PATIENCE_SECONDS)
    assert handed == list(range(10))


def test_page_larger_than_the_room_is_taken_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One page is always allowed, whatever its size."""
    monkeypatch.setattr(module, "MOST_BYTES", 1)
    done = []

    with write_behind(lambda given: done.append(number_of(given))) as hand_over:
        for number in range(5):
            hand_over(page(number))

    assert done == [0, 1, 2, 3, 4]


def test_fault_of_the_last_page_is_not_lost() -> None:
    """The end of the block waits for the last page, and raises what it raised, interrupts included."""

    def work(given: Page) -> None:
        raise Stopped

    with pytest.raises(Stopped), write_behind(work) as hand_over:
        hand_over(page(1))


def test_fault_of_the_reading_waits_for_the_page_in_work() -> None:
    """Nobody removes what was staged under a page that is still being written."""
    begun, go_on, done = threading.Event(), threading.Event(), []

    def work(given: Page) -> None:
        begun.set()
        assert go_on.wait(PATIENCE_SECONDS)
        done.append(number_of(given))

    with pytest.raises(ValueError, match="read"), write_behind(work) as hand_over:  # noqa: PT012
        hand_over(page(1))
        hand_over(page(2))  # which nobody works on any more
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

    with pytest.raises(Stopped), write_behind(work) as hand_over:  # noqa: PT012
        hand_over(page(1))
        raise Stopped

    assert not go_on.is_set()
    go_on.set()


def test_system_without_threads_ends_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Python says is raised at the first page; nobody waits for one that no thread works on."""
    before = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == "rivet-writes":
            raise RuntimeError("can't start new thread")
        before(thread)

    def run() -> None:
        try:
            with write_behind(lambda given: None) as hand_over:
                hand_over(page(1))
        except RuntimeError as error:
            raised.append(str(error))

    raised: list[str] = []
    monkeypatch.setattr(threading.Thread, "start", start)
    task = threading.Thread(target=run, daemon=True)
    task.start()
    task.join(PATIENCE_SECONDS)

    assert raised == ["can't start new thread"]
