"""Keys that two rows have at one moment: found whenever they are, and never where they are not."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rivet_resources.contracts.change_log import change_schema
from rivet_resources.errors import KeyShared
from rivet_resources.shape.change_envelope import as_inserts
from rivet_resources.tables.buckets import SurvivingRows
from rivet_resources.tables.reading import Truncate
from rivet_resources.tables.shared_keys import KeyJudge
from tests.applying import KEY, TABLE, Change, position
from tests.unit.tables.test_places import decided, parts_at

Key = tuple[Any, ...]
JUDGE = KeyJudge("orders_mirror", KEY, repeats_until="")


@dataclass
class Heap:
    """A table whose key nothing keeps unique, and its log: a row of it is its key alone."""

    random: random.Random
    rows: list[Key] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    is_shared: bool = False  # at some moment two rows had one key
    number: int = 1

    def write(self, op: str, half: int, key: Key) -> None:
        """Log a change, each in a transaction of its own: that is enough of an order."""
        cells = {**dict.fromkeys(TABLE.names), **dict(zip(KEY, key, strict=True))}
        self.changes.append(
            {"__op": op, "__pos": position(self.number), "__seq": half, "__ts": None, "__unchanged": None, **cells}
        )

    def step(self, op: str, key: Key, to: Key = ()) -> None:
        """Insert, update, delete or move one row."""
        self.number += 1
        if op == "move" and key != to:
            self.rows.remove(key)
            self.write("delete", 2, key)
        if op in ("insert", "move") and key != to:
            self.rows.append(to or key)
            self.write("insert", 3, to or key)
        elif op == "delete":
            self.rows.remove(key)
            self.write("delete", 3, key)
        else:
            self.write("update", 3, key)
        self.is_shared |= max(Counter(self.rows).values(), default=0) > 1

    def live(self, steps: int) -> None:
        """Do what applications do to rows, one of whose statements moves all of them."""
        keys = [(number, area) for number in range(4) for area in ("n", None)]
        for _ in range(steps):
            free = [key for key in keys if key not in self.rows]
            draw = self.random.random()
            if draw < 0.05 or not self.rows:  # mostly one that is free
                self.step("insert", self.random.choice(keys))
            elif draw < 0.35 and free:
                self.step("insert", self.random.choice(free))
            elif draw < 0.55:
                self.step("delete", self.random.choice(self.rows))
            elif draw < 0.75:
                self.step("update", self.random.choice(self.rows))
            elif draw < 0.95 and free:
                self.step("move", self.random.choice(self.rows), self.random.choice(free))
            else:
                moved = [row for row in self.rows if row[1] == "n"]
                for row in sorted(moved, reverse=self.random.random() < 0.8):
                    self.step("move", row, (row[0] + 1, "n"))


def judged(folder: Path, base: list[Key], changes: list[Change], *, judge: KeyJudge = JUDGE, **more: Any) -> None:
    """Decide which rows live, over parts of changes that come in disorder."""
    rows = [{**dict.fromkeys(TABLE.names), **dict(zip(KEY, key, strict=True))} for key in base]
    copied = as_inserts(pa.Table.from_pylist(rows, TABLE), position(1))
    half = len(changes) // 2
    parts = [pa.Table.from_pylist(each, change_schema(TABLE)) for each in (changes[:half], changes[half:])]
    key = pa.schema([TABLE.field(name) for name in KEY])
    choice = SurvivingRows(parts_at(folder, [copied, *parts]), 1, key, newest="", cut=None, buckets=3, judge=judge)
    decided(replace(choice, **more))


def log_of(*steps: tuple[Any, ...], rows: tuple[int, ...] = (1, 2, 3)) -> Heap:
    """Make the log of some steps over rows of these numbers."""
    heap = Heap(random.Random(0), [(row, "n") for row in rows])
    for op, *keys in steps:
        heap.step(op, *((key, "n") for key in keys))
    return heap


@pytest.mark.parametrize("seed", range(60))
def test_two_rows_of_one_key_are_found_and_nothing_else(tmp_path: Path, seed: int) -> None:
    """Over random lives of a table, in whatever order its changes lie and however often: refused, or exact."""
    heap = Heap(random.Random(seed), [(0, "n"), (1, "n"), (2, None)])
    base = list(heap.rows)
    heap.live(12)
    changes = heap.changes + heap.changes[::3]
    heap.random.shuffle(changes)

    if heap.is_shared:
        with pytest.raises(KeyShared):
            judged(tmp_path, base, changes)
    else:
        judged(tmp_path, base, changes)


SHARED = {
    "a shift in the order that hurts": (("move", 1, 2), ("move", 2, 3), ("move", 3, 4)),
    "two keys swapped by one statement": (("move", 1, 2), ("move", 2, 1)),
    "an insert of a key that is there": (("insert", 2),),
    "inserted twice": (("insert", 9), ("update", 9), ("insert", 9)),
    "moved onto one that was inserted": (("insert", 9), ("move", 1, 9)),
}
ALONE = {
    "a shift that begins at its end": (("move", 3, 4), ("move", 2, 3), ("move", 1, 2)),
    "two keys swapped by way of a third": (("move", 1, 99), ("move", 2, 1), ("move", 99, 2)),
    "deleted and inserted": (("delete", 2), ("insert", 2), ("delete", 2), ("insert", 2)),
    "moved away and back": (("move", 1, 7), ("move", 7, 1)),
    "updated": (("update", 2), ("update", 3)),
}


@pytest.mark.parametrize("steps", SHARED.values(), ids=SHARED)
def test_a_key_that_two_rows_have_is_refused_with_the_way_out(tmp_path: Path, steps: Any) -> None:
    """By the name of the key and the place in the log, and without a value of a row."""
    heap = log_of(*steps)
    assert heap.is_shared

    with pytest.raises(KeyShared, match=r"at position 0{15}\d of the log a row gets a key \(`key: id, area`\)") as told:
        judged(tmp_path, [(1, "n"), (2, "n"), (3, "n")], heap.changes)

    assert "that are unique at every moment" in str(told.value)


@pytest.mark.parametrize("steps", ALONE.values(), ids=ALONE)
def test_keys_that_one_row_has_at_a_time_pass(tmp_path: Path, steps: Any) -> None:
    """However often they change hands."""
    heap = log_of(*steps)
    assert not heap.is_shared

    judged(tmp_path, [(1, "n"), (2, "n"), (3, "n")], heap.changes)


def test_rows_of_a_copy_that_share_a_key_are_refused(tmp_path: Path) -> None:
    """Also those whose key is NULL, and where no change came since."""
    with pytest.raises(KeyShared, match="1 key"):
        judged(tmp_path, [(1, "n"), (2, None), (2, None)], [])


def test_an_insert_that_the_copy_may_hold_already_passes_and_a_later_one_does_not(tmp_path: Path) -> None:
    """What a log tells again of rows that a copy has seen is no second row; behind that it is."""
    heap = log_of(("insert", 2), rows=())
    at = heap.changes[0]["__pos"]

    judged(tmp_path, [(2, "n")], heap.changes, judge=replace(JUDGE, repeats_until=at))
    judged(tmp_path, [(2, "n")], heap.changes, judge=replace(JUDGE, repeats_until=None))

    with pytest.raises(KeyShared):
        judged(tmp_path, [(2, "n")], heap.changes, judge=replace(JUDGE, repeats_until=position(1)))


def test_update_of_a_key_that_no_row_has_is_refused(tmp_path: Path) -> None:
    """The log was read by another key, under which the row would stay; where nobody knows the rows, it passes."""
    heap = log_of(("update", 7), rows=())
    deleted = log_of(("insert", 8), ("delete", 8), ("update", 8), rows=())

    with pytest.raises(KeyShared, match="a row is changed whose key"):
        judged(tmp_path, [(1, "n")], heap.changes)
    with pytest.raises(KeyShared, match="a row is changed whose key"):
        judged(tmp_path, [], [*deleted.changes[1:], *deleted.changes], judge=replace(JUDGE, repeats_until=None))

    judged(tmp_path, [(1, "n")], heap.changes, judge=replace(JUDGE, repeats_until=None))
    judged(tmp_path, [(1, "n")], heap.changes, judge=replace(JUDGE, repeats_until=position(99)))


def test_keys_are_free_again_behind_a_truncate(tmp_path: Path) -> None:
    """For a history, which keeps what was before one; within the very transaction too."""
    heap = log_of(("insert", 9), ("insert", 9), ("insert", 1), rows=(1,))
    first, second, _ = (change["__pos"] for change in heap.changes)
    between = Truncate(first, heap.changes[0]["__seq"] + 1, None)

    judged(tmp_path, [(1, "n")], heap.changes, judge=replace(JUDGE, truncates=(between,)))

    with pytest.raises(KeyShared, match=second):
        judged(tmp_path, [], heap.changes[:2], judge=replace(JUDGE, truncates=(Truncate(position(1), 1, None),)))


@pytest.mark.parametrize(
    "cells",
    [pa.array([0.0, -0.0]), pa.array([float("nan")] * 2, pa.float32()), pa.array([[1, 2], [1, 2]])],
    ids=["zeros of both signs", "no numbers", "lists"],
)
def test_keys_that_go_through_spark_are_compared_as_spark_does(tmp_path: Path, cells: pa.Array) -> None:
    """Floats have two zeros, and lists have no order: they are one key all the same."""
    key = pa.schema([("key", cells.type)])
    place = parts_at(tmp_path, [pa.table({"key": cells})])

    with pytest.raises(KeyShared):
        decided(SurvivingRows(place, 1, key, newest="", cut=None, buckets=2, judge=JUDGE))
