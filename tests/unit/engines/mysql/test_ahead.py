"""Reading ahead, by a reader of numbers: what is asked while a page is in hand, what comes when, and who ends it."""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from rivet_resources.contracts.relation import Chunk
from rivet_resources.contracts.settings import Pace, Tuning, pace
from rivet_resources.contracts.source import Page
from rivet_resources.contracts.types import Column
from rivet_resources.engines.mysql import ahead
from rivet_resources.engines.mysql.reader import CalledOff, RawPage
from rivet_resources.engines.mysql.wire.packets import RawRows
from rivet_resources.errors import SourceLost, ValueDoesNotFit

FAST = pace(Tuning(profile="fast", batch_size=10), None)
ID = Column(name="id", native="int", arrow=pa.int32(), select="`id`", facts=(("base", "int"),))
SECONDS = 20


class Numbers:
    """A reader of 1 to 95, ten a page, that says what it is asked for; `hold` lets a page wait until somebody lets go.

    An emulator of `Reader`, for what no server can be told: to stop exactly here.
    """

    def __init__(self, speed: Pace = FAST, *, place: str | None = None) -> None:
        self.chunk = Chunk(index=0, reader="keyset", relation="`t`", key=("id",))
        self.columns, self.items, self.pace, self.place = (ID,), ["`id`"], speed, place
        self.asked: list[int] = []  # by the first number of the page
        self.waited: list[int] = []
        self.given = 0
        self.lost: dict[int, Exception] = {}  # what becomes of the page that begins so
        self.unfit: set[int] = set()
        self.hold: dict[int, threading.Event] = {}
        self.begun = {first: threading.Event() for first in range(1, 100)}
        self.is_called_off = threading.Event()

    def wait(self, rows: int) -> None:
        self.waited.append(rows)

    def receive(self, statement: str, *, what: str, can_shrink: bool) -> RawPage | None:
        after = statement.partition("> ")[2].split(" ")[0].strip("()`")
        first = int(after or 0) + 1
        self.asked.append(first)
        self.begun[first].set()
        if first in self.hold:
            held = self.hold[first]
            while not held.wait(0.01):
                if self.is_called_off.is_set():
                    raise CalledOff
        if first in self.lost:
            raise self.lost[first]
        numbers = np.arange(first, min(first + 10, 96))
        return RawPage(RawRows((), np.zeros(len(numbers), np.uint8), numbers, numbers), 0.001, 0)

    def last_key(self, answer: RawPage) -> list[str] | None:
        return [str(answer.raw.starts[-1])]

    def page(self, answer: RawPage) -> Page:
        numbers = answer.raw.starts
        if int(numbers[0]) in self.unfit:
            raise ValueDoesNotFit("no")
        return Page(pa.table({"id": pa.array(numbers, pa.int32())}), {}, 1.0)

    def begins_ahead(self) -> None:
        self.given += 1

    def call_off(self) -> None:
        self.is_called_off.set()


def walk(reader: Numbers) -> Generator[Page]:
    """Walk along the key."""
    return ahead.keyset(cast(Any, reader))


def numbers(pages: Generator[Page]) -> list[int]:
    """All numbers of the pages, in their order."""
    return [number for page in pages for number in page.table.column("id").to_pylist()]


def test_each_page_comes_once_and_in_order() -> None:
    """Whether it was asked for ahead or not; the pause is told of each page that another one follows."""
    reader = Numbers()

    assert numbers(walk(reader)) == list(range(1, 96))
    assert reader.asked == list(range(1, 96, 10))
    assert reader.waited == [10] * 9


def test_next_page_is_asked_for_while_one_is_in_hand() -> None:
    """The server works on the third page before the second is handed out."""
    reader = Numbers()
    pages = walk(reader)
    next(pages)

    second = next(pages)

    assert second.table.column("id")[0].as_py() == 11
    assert reader.begun[21].wait(SECONDS)
    assert reader.given > 0
    pages.close()


RESTING = {
    "a pause": Numbers(pace(Tuning(throttle_ms=1, batch_size=10), None)),
    "a limit": Numbers(FAST.model_copy(update={"reads_ahead": False})),
    "a meeting": Numbers(place="line"),
}


@pytest.mark.parametrize("reader", RESTING.values(), ids=RESTING)
def test_nothing_is_asked_ahead_where_the_server_is_to_rest(reader: Numbers) -> None:
    """Nor at a meeting, whose line others need."""
    pages = walk(reader)
    for _ in range(3):
        next(pages)

    assert (reader.asked, reader.given) == ([1, 11, 21], 0)
    pages.close()


def test_fault_of_the_next_page_comes_behind_the_one_in_hand() -> None:
    """What was read before it is not lost: the caller has it."""
    reader = Numbers()
    reader.lost[31] = SourceLost("gone")
    pages = walk(reader)

    got = [next(pages).table.column("id")[0].as_py() for _ in range(3)]

    assert got == [1, 11, 21]
    with pytest.raises(SourceLost, match="gone"):
        next(pages)


@pytest.mark.parametrize("how", ["closed", "unfit"])
def test_who_stops_ends_what_is_under_way(how: str) -> None:
    """A caller that wants no more, and a page that cannot be decoded, both call the next one off and wait for that."""
    reader = Numbers()
    reader.hold[31] = threading.Event()  # never let go
    pages = walk(reader)
    next(pages)
    next(pages)
    if how == "closed":
        next(pages)
        assert reader.begun[31].wait(SECONDS)
        pages.close()
    else:
        reader.unfit.add(21)
        with pytest.raises(ValueDoesNotFit):
            next(pages)

    assert reader.is_called_off.is_set()
    assert not any(each.name == "rivet-reads-ahead" for each in threading.enumerate())
