"""Which pieces changes touch, against the plain rule; and what cannot be kept."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivet_resources.contracts.extract import Piece
from rivet_resources.tables import pieces
from rivet_resources.tables.pieces import Cutting, Group, Span, rewriting, sortable

RANGES = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=6)
KEYS = st.sets(st.integers(-5, 90), max_size=8)


def made(ranges: list[tuple[int, int]]) -> tuple[list[Piece], dict[str, int]]:
    """Make pieces of one part each."""
    found = [Piece((f"{n}.parquet",), low, low + width, 10) for n, (low, width) in enumerate(ranges)]
    return found, {each.paths[0]: 100 for each in found}


@given(ranges=RANGES, keys=KEYS, is_full=st.booleans())
def test_kept_pieces_hold_no_changed_key_and_every_row_has_a_place(
    ranges: list[tuple[int, int]], keys: set[int], is_full: bool
) -> None:
    """However ranges overlap: what may hold a key is written again, and a row goes to a task that writes."""
    known, sizes = made(ranges)
    if is_full:
        sizes = dict.fromkeys(sizes, pieces.PIECE_BYTES)

    chosen = rewriting(known, sorted(keys), sizes)

    assert sorted(map(id, (*chosen.kept, *chosen.touched))) == sorted(map(id, known))
    assert not any(each.low <= key <= each.high for each in chosen.kept for key in keys)  # type: ignore[operator]
    assert list(chosen.bounds) == sorted(chosen.bounds)  # type: ignore[type-var]
    assert bool(keys) == bool(chosen.chunks)
    if keys:
        for key in keys:  # the piece that a key goes to is the last that begins before it, kept or not
            place = max(0, bisect_right(list(chosen.bounds), key) - 1)  # type: ignore[type-var]
            kept_before = [each.low for each in chosen.kept if each.low <= key]  # type: ignore[operator]
            is_between = place < len(chosen.touched) and any(
                low > chosen.touched[place].low
                for low in kept_before  # type: ignore[operator]
            )
            assert not is_between


def test_keys_beyond_all_make_a_new_piece_where_the_last_is_full() -> None:
    """So that a table that grows at its end is not written again from some size on."""
    known, sizes = made([(0, 9), (10, 9)])

    assert (known[1],) == rewriting(known, [25], sizes).touched
    full = rewriting(known, [25, 30], dict.fromkeys(sizes, pieces.PIECE_BYTES))
    assert ((), (25,), 1) == (full.touched, full.bounds, full.chunks)
    both = rewriting(known, [3, 25], dict.fromkeys(sizes, pieces.PIECE_BYTES))
    assert ((known[0],), (0, 25)) == (both.touched, both.bounds)


def test_piece_without_keys_is_kept() -> None:
    """All its keys are NULL, and a changed NULL is not asked about here."""
    nameless = Piece(("n.parquet",), None, None, 3)

    assert (nameless,) == rewriting([nameless], [5], {"n.parquet": 1}).kept


@pytest.mark.parametrize(
    ("cells", "wanted"),
    [
        (pa.array([3, None], pa.int16()), [3, None]),
        (pa.array(["b", "é"]), ["b", "é"]),
        (pa.array([1], pa.timestamp("us", "UTC")), [1]),
        (pa.array([1], pa.date32()), [1]),
        (pa.array([2**64 - 1], pa.uint64()), None),
        (pa.array([1.5]), None),
        (pa.array([b"x"]), None),
        (pa.array([True]), None),
    ],
    ids=lambda each: str(getattr(each, "type", "")),
)
def test_keys_that_sort_as_python_does(cells: pa.Array, wanted: list[Any] | None) -> None:
    """Others are of tables that are written whole."""
    found = sortable(cells)

    assert wanted == (None if found is None else found.to_pylist())


def test_span_grows_and_is_unknown_for_good() -> None:
    """One batch of keys without an order is enough."""
    span = Span()
    for cells in (pa.array([5, None]), pa.array([], pa.int64()), pa.array([2, 9])):
        span.add(cells)
    assert [2, 9] == span.told

    span.add(pa.array([1.5]))
    assert span.told is None


def test_row_groups_are_dealt_in_their_order() -> None:
    """A part may be cut between them, and a task may get the end of one part and the beginning of the next."""
    cutting = Cutting(target=100)

    first = cutting.deal([Group(10, 60, 1), Group(10, 60, 11), Group(5, 60, 21)])
    second = cutting.deal([Group(7, 50, 26), Group(7, 30, 33)])

    assert ((0, (20,)), (1, (7,))) == (first, second)
    assert [1, 21, 33] == cutting.bounds
