"""Rows of many events at once, in the order of the log: walked in lockstep.

Belongs here: the walk over events, the order of rows, key changes. Not here: where columns lie in a row
(row_layout.py), what the bytes mean (values.py).

Every rows event of one table has the same layout, so row k of *all* events of a batch is walked at once, as numpy
vectors over events. An event of 8 KB holds about 74 rows, so some 74 steps serve any number of events (`cdc.md`, 5.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rivet_resources.engines.mysql.binlog.events import DELETE, INSERT, UPDATE
from rivet_resources.engines.mysql.binlog.row_layout import (
    Bytes,
    Image,
    Integers,
    NullInNotNull,
    RowCells,
    RowLayout,
    Truths,
)
from rivet_resources.errors import LogRefused

PADDING = 16  # zero bytes behind the last event, so that reads of a fixed width never pass the end

# One rows event: its bytes, where its rows begin in them, operation, transaction (index into the batch's), and its
# place among all rows events of the transaction, of any table, from 1. A plain tuple: the collector passes those over,
# and there may be a hundred thousand (a class of its own costs a third of the time; measured 2026-11).
RowsEvent = tuple[bytes, int, int, int, int]


@dataclass(frozen=True)
class BinlogRows:
    """Rows in log order. `before` has its cells only where `has_before`; a key change is two rows already."""

    buffer: Bytes
    op: NDArray[np.int8]
    transaction: Integers
    seq: Integers
    cells: tuple[RowCells, ...]
    before: tuple[RowCells, ...]  # () unless asked for
    has_before: Truths


def rows_of(events: Sequence[RowsEvent], layout: RowLayout, *, key: Sequence[int], keeps_before: bool) -> BinlogRows:
    """Walk the events of one table map; rows come in the order of the events.

    Args:
        key: places of the primary key's columns; an update that changes one becomes a delete and an insert.
        keeps_before: give the row before, too.

    Raises:
        LogRefused: an event does not end where its last row does: its layout is not what the table map says.
    """
    try:
        walked = _walk(events, layout)
    except NullInNotNull:
        # Once more, with every column taken for one that may be NULL: more stretches, so it is slower and not the
        # way to begin.
        layout = RowLayout(layout.fields, all_nullable=True)
        walked = _walk(events, layout)
    op = _column(events, 2)[walked.event].astype(np.int8)
    event, row, is_old, kinds = walked.event, walked.row, np.zeros(len(op), np.int64), op
    cells, before = layout.all_cells(walked.image), walked.before
    befores = layout.all_cells(before) if keeps_before else []
    changed = _key_changes(walked, layout, key, op)
    if changed.any():
        source = np.repeat(np.arange(len(op)), 1 + changed)
        # The delete half of a key change.
        is_old = np.zeros(len(source), np.int64)
        # A changed key's row stands twice now; the first of the two places is the delete.
        is_old[np.cumsum(1 + changed)[changed] - 2] = 1
        event, row, kinds = event[source], row[source], op[source]
        kinds[changed[source]] = INSERT
        kinds[is_old == 1] = DELETE
        olds = layout.all_cells(before)
        cells = [_merge(now, old, source, is_old == 1) for now, old in zip(cells, olds, strict=True)]
        befores = [_pick(old, source) for old in befores]
    return BinlogRows(
        buffer=walked.buffer,
        op=kinds,
        transaction=_column(events, 3)[event],
        # The even number is kept free for a delete half, so that a second read, under other settings, numbers alike.
        seq=(_column(events, 4)[event] << 32) + 2 * row + 1 - is_old,
        cells=tuple(cells),
        before=tuple(befores),
        has_before=(kinds == UPDATE) | (kinds == DELETE),
    )


@dataclass
class _Walked:
    """Rows as the events hold them; `before` is the image before, and of rows without one their own."""

    buffer: Bytes
    event: Integers
    row: Integers
    image: Image
    before: Image


def _walk(events: Sequence[RowsEvent], layout: RowLayout) -> _Walked:
    sizes = np.cumsum([0, *(len(event[0]) for event in events)])
    # All events in one buffer, so that a column of all of them is one vector over it.
    buffer = np.frombuffer(b"".join([*(event[0] for event in events), bytes(PADDING)]), np.uint8)
    cursor, end = sizes[:-1] + _column(events, 1), sizes[1:]
    is_update = _column(events, 2) == UPDATE
    has_updates = bool(is_update.any())
    count, live = np.zeros(len(events), np.int64), np.nonzero(cursor < end)[0]
    at, last, updates = cursor[live], end[live], is_update[live]
    steps: list[tuple[Integers, Image, Image]] = []
    while len(live):
        before = None
        try:
            if has_updates and updates.any():
                before, after = layout.walk(buffer, at)
                # Of the others their own image stands in for it.
                at = np.where(updates, after, at)
            image, at = layout.walk(buffer, at)
        except IndexError:
            # Lengths that lead behind the end are damage, as is a row that ends behind its event.
            raise _misread() from None
        steps.append((live, image, before or image))
        count[live] += 1
        goes_on = at < last
        if goes_on.all():
            continue
        if (at > last).any():
            raise _misread()
        live, at, last, updates = live[goes_on], at[goes_on], last[goes_on], updates[goes_on]
    # An empty image still has the right number of columns.
    if not steps:
        empty, _ = layout.walk(buffer, at)
        steps.append((live, empty, empty))
    event = np.repeat(np.arange(len(events)), count)
    row = np.arange(len(event)) - np.repeat(np.cumsum(count) - count, count)
    image = _join_steps([step[1] for step in steps], steps, count)
    before = _join_steps([step[2] for step in steps], steps, count) if has_updates else image
    return _Walked(buffer, event, row, image, before)


def _column(events: Sequence[RowsEvent], place: Literal[1, 2, 3, 4]) -> Integers:
    """Return one number of each event; `zip(*events)` would make an iterator for each, for the collector to follow."""
    return np.fromiter((event[place] for event in events), np.int64, len(events))


def _join_steps(images: list[Image], steps: Sequence[tuple[Integers, Image, Image]], count: Integers) -> Image:
    """Put the rows of all steps into the order of the log: row k of an event is k places behind its first."""
    if len(images) == 1:
        return images[0]
    first = np.cumsum(count) - count
    place = np.concatenate([first[live] + k for k, (live, _, _) in enumerate(steps)])

    def in_order(parts: Sequence[NDArray[Any]], kind: Any) -> NDArray[Any]:
        found = np.empty(len(place), kind)
        found[place] = np.concatenate(parts)
        return found

    anchors, lengths, bitmaps = (list(zip(*parts, strict=True)) for parts in zip(*images, strict=True))
    return Image(
        [in_order(parts, np.int64) for parts in anchors],
        [in_order(parts, np.int64) for parts in lengths],
        [in_order(parts, np.uint8) for parts in bitmaps],
    )


def _misread() -> LogRefused:
    return LogRefused(
        "A rows event of the binary log does not end where its last row does, so its rows cannot be trusted. "
        "This is a fault of Rivet, or of the log; nothing behind the last saved position is taken as read."
    )


# --- key changes ---------------------------------------------------------------------------------


def _key_changes(walked: _Walked, layout: RowLayout, key: Sequence[int], op: NDArray[np.int8]) -> Truths:
    """Find updates whose row after has another key than the row before, byte by byte."""
    changed = np.zeros(len(op), np.bool_)
    updates = np.nonzero(op == UPDATE)[0]
    if not len(updates):
        return changed
    for place in key:
        old, new = layout.cells(walked.before, place), layout.cells(walked.image, place)
        changed[updates] |= _differ(walked.buffer, _pick(old, updates), _pick(new, updates))
    return changed


def _differ(buffer: Bytes, old: RowCells, new: RowCells) -> Truths:
    """Return which pairs of cells have other bytes; equally long ones are compared byte by byte of all at once."""
    different: Truths = (old.length != new.length) | (old.null != new.null)
    same = np.nonzero(~different)[0]
    longest = int(old.length[same].max(initial=0))
    for i in range(longest):
        same = same[old.length[same] > i]
        unequal = buffer[old.start[same] + i] != buffer[new.start[same] + i]
        different[same[unequal]] = True
        same = same[~unequal]
    return different


def _pick(cells: RowCells, rows: Integers) -> RowCells:
    return RowCells(cells.start[rows], cells.length[rows], cells.null[rows])


def _merge(now: RowCells, old: RowCells, source: Integers, is_old: Truths) -> RowCells:
    """Put cells of the delete halves between the others."""
    later, earlier = _pick(now, source), _pick(old, source)
    return RowCells(*(np.where(is_old, was, is_) for is_, was in zip(later, earlier, strict=True)))
