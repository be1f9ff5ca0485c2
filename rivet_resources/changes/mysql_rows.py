"""Rows of many events at once: where each column's bytes lie, found in lockstep.

Belongs here: the walk over row images, the order of rows, key changes. Not here: what the bytes mean (mysql_values.py).

Every rows event of one table has the same layout, so row k of *all* events of a batch is walked at once: the null
bitmap, then column after column, as numpy vectors over events. An event of 8 KB holds about 74 rows, so some 74 steps
per column serve any number of events (`cdc.md`, 5.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rivet_resources.changes import mysql_events as ev
from rivet_resources.changes.mysql_events import DELETE, INSERT, UPDATE, Field
from rivet_resources.errors import LogRefused

Bytes = NDArray[np.uint8]
Integers = NDArray[np.int64]
Truths = NDArray[np.bool_]

DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)  # of 0 to 9 decimal digits
FIXED = {ev.TINY: 1, ev.SHORT: 2, ev.LONG: 4, ev.INT24: 3, ev.LONGLONG: 8, ev.FLOAT: 4, ev.DOUBLE: 8, ev.DATE: 3,
         ev.YEAR: 1, ev.TIMESTAMP: 4, ev.TIME: 3, ev.DATETIME: 8}  # fmt: skip
FRACTIONS = {ev.TIMESTAMP2: 4, ev.DATETIME2: 5, ev.TIME2: 3}
PADDING = 16  # zero bytes behind the last event, so that reads of a fixed width never pass the end


class RowsEvent(NamedTuple):
    """One rows event: its bytes, where its rows begin in them, and its place in the log."""

    data: bytes
    start: int
    op: int
    transaction: int  # index into the batch's transactions
    ordinal: int  # of all rows events of the transaction, of any table, from 1


class Cells(NamedTuple):
    """One column of some rows: where each cell's bytes lie."""

    start: Integers
    length: Integers
    null: Truths


@dataclass(frozen=True)
class Rows:
    """Rows in log order. `before` has its cells only where `has_before`; a key change is two rows already."""

    buffer: Bytes
    op: NDArray[np.int8]
    transaction: Integers
    seq: Integers
    cells: tuple[Cells, ...]
    before: tuple[Cells, ...]  # () unless asked for
    has_before: Truths


def decimal_bytes(precision: int, scale: int) -> int:
    """Give the width of a DECIMAL: groups of nine digits are four bytes."""
    whole = precision - scale
    return whole // 9 * 4 + DIGIT_BYTES[whole % 9] + scale // 9 * 4 + DIGIT_BYTES[scale % 9]


def width_of(field: Field) -> int | None:
    """Give the width of a column whose cells are all equally long; None for the others."""
    kind, meta = field.type, field.meta
    if kind in FIXED:
        return FIXED[kind]
    if kind == ev.DECIMAL:
        return decimal_bytes(*meta)
    if kind in FRACTIONS:
        return FRACTIONS[kind] + (meta[0] + 1) // 2
    if kind == ev.BIT:
        return meta[1] + (meta[0] + 7) // 8
    return meta[1] if kind in (ev.ENUM, ev.SET) else None


def prefix_of(field: Field) -> int:
    """Say how many bytes hold the length of a column of any length.

    Raises:
        LogRefused: a type we do not know: where the next column begins cannot be told.
    """
    if field.type in (ev.VARCHAR, ev.VAR_STRING, ev.STRING, ev.VARCHAR_COMPRESSED):
        return 2 if field.length > 255 else 1
    if field.type in (ev.BLOB, ev.JSON, ev.GEOMETRY, ev.VECTOR, ev.BLOB_COMPRESSED):
        return field.meta[0]
    raise LogRefused(
        f"Column {field.name} has type {field.type} in the binary log, which Rivet does not know, so nothing behind it "
        f"can be read. Leave the table out of this export, or ask for a Rivet that knows it."
    )


def little(buffer: Bytes, at: Integers, size: int) -> Integers:
    """Read unsigned little-endian numbers of 1 to 8 bytes; eight bytes wrap into the sign."""
    found = buffer[at].astype(np.int64)
    for i in range(1, size):
        found |= buffer[at + i].astype(np.int64) << (8 * i)
    return found


def big(buffer: Bytes, at: Integers, size: int) -> Integers:
    """Read unsigned big-endian numbers of 0 to 8 bytes."""
    found = np.zeros(len(at), np.int64)
    for i in range(size):
        found = (found << 8) | buffer[at + i]
    return found


class Layout:
    """How one table's rows lie in events."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self.widths = [width_of(field) for field in fields]
        self.prefixes = [0 if width is not None else prefix_of(f) for f, width in zip(fields, self.widths, strict=True)]
        self.bitmap = (len(fields) + 7) // 8

    def walk(self, buffer: Bytes, at: Integers) -> tuple[list[Cells], Integers]:
        """Walk one row image at each place; the cells per column, and the places behind."""
        bitmap = [buffer[at + i] for i in range(self.bitmap)]
        has_nulls = [bool(part.any()) for part in bitmap]
        none = np.zeros(len(at), np.bool_)
        found: list[Cells] = []
        at = at + self.bitmap
        for i, (width, prefix) in enumerate(zip(self.widths, self.prefixes, strict=True)):
            if width is not None:
                start, length = at, np.full(len(at), width)
            else:
                start, length = at + prefix, little(buffer, at, prefix)
            null = (bitmap[i >> 3] >> (i & 7)) & 1 == 1 if has_nulls[i >> 3] else none
            if null is not none and null.any():
                length = np.where(null, 0, length)
                at = np.where(null, at, start + length)
            else:
                at = start + length
            found.append(Cells(start, length, null))
        return found, at


def rows_of(events: Sequence[RowsEvent], layout: Layout, *, key: Sequence[int], keeps_before: bool) -> Rows:
    """Walk the events of one table map; rows come in the order of the events.

    Args:
        key: places of the primary key's columns; an update that changes one becomes a delete and an insert.
        keeps_before: give the row before, too.

    Raises:
        LogRefused: an event does not end where its last row does: its layout is not what the table map says.
    """
    walked = _walk(events, layout, befores=range(len(layout.widths)) if keeps_before else key)
    op = np.array([event.op for event in events], np.int8)[walked.event]
    changed = _key_changes(walked, key, op)
    source = np.repeat(np.arange(len(op)), 1 + changed)
    is_old = np.zeros(len(source), np.bool_)  # the delete half of a key change
    if changed.any():
        is_old[np.cumsum(1 + changed)[changed] - 2] = True
    is_new = changed[source] & ~is_old
    event, row = walked.event[source], walked.row[source]
    ordinal = np.array([event.ordinal for event in events], np.int64)[event]
    transaction = np.array([event.transaction for event in events], np.int64)[event]
    kinds = op[source]
    kinds[is_old], kinds[is_new] = DELETE, INSERT
    cells = walked.cells
    if len(source) != len(op):
        befores = layout.walk(walked.buffer, walked.old_start)[0]  # all columns; a change of key is rare
        cells = [_merged(now, old, source, is_old) for now, old in zip(cells, befores, strict=True)]
    return Rows(
        buffer=walked.buffer,
        op=kinds,
        transaction=transaction,
        seq=(ordinal << 32) + 2 * row + 1 - is_old,
        cells=tuple(cells),
        before=tuple(_picked(old, source) for old in walked.before.values()) if keeps_before else (),
        has_before=(kinds == UPDATE) | (kinds == DELETE),
    )


@dataclass
class _Walked:
    """Rows as the events hold them; `before` are the cells of the columns that were asked for."""

    buffer: Bytes
    event: Integers
    row: Integers
    cells: list[Cells]
    before: dict[int, Cells]  # by place of the column
    old_start: Integers  # where the image before begins, that of a row without one otherwise


def _walk(events: Sequence[RowsEvent], layout: Layout, *, befores: Sequence[int]) -> _Walked:
    sizes = np.cumsum([0] + [len(event.data) for event in events])
    buffer = np.frombuffer(b"".join([*(event.data for event in events), bytes(PADDING)]), np.uint8)
    cursor, end = sizes[:-1] + np.array([event.start for event in events]), sizes[1:]
    is_update = np.array([event.op == UPDATE for event in events])
    count, steps, live = np.zeros(len(events), np.int64), [], np.nonzero(cursor < end)[0]
    while len(live):
        at = cursor[live]
        old = at
        before = None
        updates = is_update[live]
        try:
            if updates.all():
                before, at = layout.walk(buffer, at)
            elif updates.any():
                before, at = _walk_some(layout, buffer, at, updates)
            image, at = layout.walk(buffer, at)
        except IndexError:
            raise _misread() from None
        steps.append((live, image, [(before or image)[i] for i in befores], old))
        count[live] += 1
        cursor[live] = at
        if (at > end[live]).any():
            raise _misread()
        live = live[at < end[live]]
    if not steps:
        empty = np.zeros(0, np.int64)
        none = Cells(empty, empty, np.zeros(0, np.bool_))
        return _Walked(buffer, empty, empty, [none] * len(layout.widths), dict.fromkeys(befores, none), empty)
    event = np.concatenate([step[0] for step in steps])
    row = np.repeat(np.arange(len(steps)), [len(step[0]) for step in steps])
    order = np.argsort((np.cumsum(count) - count)[event] + row) if len(steps) > 1 else slice(None)

    def joined(parts: list[list[Cells]]) -> list[Cells]:
        columns = zip(*parts, strict=True)
        return [Cells(*(np.concatenate(each)[order] for each in zip(*column, strict=True))) for column in columns]

    cells, old_cells = joined([step[1] for step in steps]), joined([step[2] for step in steps])
    old_start = np.concatenate([step[3] for step in steps])[order]
    return _Walked(buffer, event[order], row[order], cells, dict(zip(befores, old_cells, strict=True)), old_start)


def _walk_some(layout: Layout, buffer: Bytes, at: Integers, updates: Truths) -> tuple[list[Cells], Integers]:
    """Walk the image before of updates among other rows; the others' own image stands in for it."""
    before, after = layout.walk(buffer, at)
    return before, np.where(updates, after, at)


def _misread() -> LogRefused:
    return LogRefused(
        "A rows event of the binary log does not end where its last row does, so its rows cannot be trusted. "
        "This is a fault of Rivet, or of the log; nothing behind the last saved position is taken as read."
    )


# --- key changes ---------------------------------------------------------------------------------


def _key_changes(walked: _Walked, key: Sequence[int], op: NDArray[np.int8]) -> Truths:
    """Find updates whose row after has another key than the row before, byte by byte."""
    changed = np.zeros(len(op), np.bool_)
    updates = np.nonzero(op == UPDATE)[0]
    if not len(updates) or not key:
        return changed
    for place in key:
        old, new = walked.before[place], walked.cells[place]
        changed[updates] |= _differ(walked.buffer, _picked(old, updates), _picked(new, updates))
    return changed


def _differ(buffer: Bytes, old: Cells, new: Cells) -> Truths:
    """Say which pairs of cells have other bytes; equally long ones are compared byte by byte of all at once."""
    different: Truths = (old.length != new.length) | (old.null != new.null)
    same = np.nonzero(~different)[0]
    longest = int(old.length[same].max(initial=0))
    for i in range(longest):
        same = same[old.length[same] > i]
        unequal = buffer[old.start[same] + i] != buffer[new.start[same] + i]
        different[same[unequal]] = True
        same = same[~unequal]
    return different


def _picked(cells: Cells, rows: Integers) -> Cells:
    return Cells(cells.start[rows], cells.length[rows], cells.null[rows])


def _merged(now: Cells, old: Cells, source: Integers, is_old: Truths) -> Cells:
    """Put cells of the delete halves between the others."""
    later, earlier = _picked(now, source), _picked(old, source)
    return Cells(*(np.where(is_old, was, is_) for is_, was in zip(later, earlier, strict=True)))
