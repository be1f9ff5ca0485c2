"""How the rows of one table lie in events: widths, NULLs, where each column of many rows begins.

Belongs here: `RowLayout`, reading numbers at many places. Not here: events and their order (rows.py), what the bytes
mean (values.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rivet_resources.engines.mysql.binlog import events as ev
from rivet_resources.engines.mysql.binlog.events import Field
from rivet_resources.errors import LogRefused

Bytes = NDArray[np.uint8]
Integers = NDArray[np.int64]
Truths = NDArray[np.bool_]

# Source: MySQL, strings/decimal.cc, `dig2bytes`.
DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)  # of 0 to 9 decimal digits
FIXED = {ev.TINY: 1, ev.SHORT: 2, ev.LONG: 4, ev.INT24: 3, ev.LONGLONG: 8, ev.FLOAT: 4, ev.DOUBLE: 8, ev.DATE: 3,
         ev.YEAR: 1, ev.TIMESTAMP: 4, ev.TIME: 3, ev.DATETIME: 8}  # fmt: skip
MOST_DIGITS = 65
# Times since MySQL 5.6: whole seconds, then a byte for each two digits of a fraction.
FRACTIONS = {ev.TIMESTAMP2: 4, ev.DATETIME2: 5, ev.TIME2: 3}


class RowCells(NamedTuple):
    """One column of some rows: where each cell's bytes lie."""

    start: Integers
    length: Integers
    null: Truths


def decimal_bytes(precision: int, scale: int) -> int:
    """Return the width of a DECIMAL: groups of nine digits are four bytes.

    Raises:
        LogRefused: no DECIMAL has so many digits.
    """
    if not scale <= precision <= MOST_DIGITS:
        raise ev.malformed_bytes(f"A DECIMAL({precision},{scale})")
    whole = precision - scale
    return whole // 9 * 4 + DIGIT_BYTES[whole % 9] + scale // 9 * 4 + DIGIT_BYTES[scale % 9]


def width_of(field: Field) -> int | None:
    """Return the width of a column whose cells are all equally long; None for the others.

    Raises:
        LogRefused: the table map describes it as no server does.
    """
    kind, meta = field.type, field.meta
    if kind in FIXED:
        return FIXED[kind]
    if kind == ev.DECIMAL:
        return decimal_bytes(*meta)
    if kind in FRACTIONS:
        return _up_to(8, FRACTIONS[kind] + (meta[0] + 1) // 2, field)
    if kind == ev.BIT:
        # A BIT is described by the bits beyond its whole bytes, then by these bytes.
        return _up_to(8, meta[1] + (meta[0] + 7) // 8, field)
    return _up_to(8, meta[1], field) if kind in (ev.ENUM, ev.SET) else None


def _up_to(most: int, width: int, field: Field) -> int:
    """Return a width in bytes, from 1 to `most`: numbers are read from 8 bytes, and lengths never have a sign.

    Raises:
        LogRefused
    """
    if not 1 <= width <= most:
        raise ev.malformed_bytes(f"The description of column {field.name}")
    return width


def prefix_of(field: Field) -> int:
    """Return how many bytes hold the length of a column of any length.

    Raises:
        LogRefused: a type we do not know: where the next column begins cannot be told.
    """
    if field.type in (ev.VARCHAR, ev.VAR_STRING, ev.STRING, ev.VARCHAR_COMPRESSED):
        # By the length that was declared, not by the cell's own.
        return 2 if field.length > 255 else 1
    if field.type in (ev.BLOB, ev.JSON, ev.GEOMETRY, ev.VECTOR, ev.BLOB_COMPRESSED):
        return _up_to(4, field.meta[0], field)
    raise LogRefused(
        f"Column {field.name} has type {field.type} in the binary log, which Rivet does not know, so nothing behind it "
        f"can be read. Leave the table out of this export, or ask for a Rivet that knows it."
    )


def little(buffer: Bytes, at: Integers, size: int) -> Integers:
    """Read unsigned little-endian numbers of 1 to 8 bytes; eight bytes wrap into the sign."""
    if size == 1:
        return buffer[at].astype(np.int64)
    width = 2 if size == 2 else 4 if size <= 4 else 8
    # Three bytes, and five to seven, are read as the next wider number and cut; the reads past the last row's end
    # fall on `PADDING`.
    found = _words(buffer, f"<u{width}", at).astype(np.int64)
    return found if size == width else found & ((1 << 8 * size) - 1)


def big(buffer: Bytes, at: Integers, size: int) -> Integers:
    """Read unsigned big-endian numbers of 0 to 8 bytes."""
    if size <= 1:
        return buffer[at].astype(np.int64) if size else np.zeros(len(at), np.int64)
    width = 2 if size == 2 else 4 if size <= 4 else 8
    found = _words(buffer, f">u{width}", at).astype(np.uint64)
    return (found >> np.uint64(8 * (width - size))).astype(np.int64)


def _words(buffer: Bytes, kind: str, at: Integers) -> NDArray[Any]:
    """Read a number at each place, aligned or not: one that begins at every byte, of which some are taken."""
    width = int(kind[2:])
    words: NDArray[Any] = np.ndarray((len(buffer) - width + 1,), kind, buffer.data, strides=(1,))
    return words[at]


class Image(NamedTuple):
    """Where the columns of some row images lie, folded: `Layout.cells` unfolds them."""

    anchors: list[Integers]  # of each stretch of columns
    lengths: list[Integers]  # of each column of any length
    bitmap: list[Bytes]  # which columns are NULL


class RowLayout:
    """How one table's rows lie in events: stretches of columns whose distance is always the same.

    A stretch ends with a column of any length, or one that may be NULL and then takes no room. Only where stretches
    begin is found row by row; where a column begins is its stretch's beginning plus a constant.
    """

    def __init__(self, fields: Sequence[Field], *, all_nullable: bool = False) -> None:
        self.widths = [width_of(field) for field in fields]
        self.prefixes = [0 if width is not None else prefix_of(f) for f, width in zip(fields, self.widths, strict=True)]
        self.bitmap = (len(fields) + 7) // 8
        self.fields = fields
        self.columns: list[tuple[int, int, int | None]] = []  # of each column: stretch, distance, which of the lengths
        self.ends: list[tuple[int, int]] = []  # of each stretch: its last column, and that one's distance
        self.never = np.zeros(self.bitmap, np.uint8)  # bits of columns that are never NULL
        # Columns of a fixed width that are never NULL only add to the distance; each other one begins a new
        # stretch.
        stretch, distance, variable = 0, 0, 0
        for i, (field, width) in enumerate(zip(fields, self.widths, strict=True)):
            self.columns.append((stretch, distance + self.prefixes[i], variable if width is None else None))
            variable += width is None
            if not (field.nullable or all_nullable):
                self.never[i >> 3] |= 1 << (i & 7)
            if width is None or field.nullable or all_nullable:
                self.ends.append((i, distance))
                stretch, distance = stretch + 1, 0
            else:
                distance += width
        self.rest = distance  # of the columns behind the last stretch's end
        self.has_rest = stretch == 0 or distance > 0
        used = np.frombuffer(((1 << len(fields)) - 1).to_bytes(self.bitmap, "little"), np.uint8)
        self.used = used  # bits behind the last column are set, and mean nothing

    def walk(self, buffer: Bytes, at: Integers) -> tuple[Image, Integers]:
        """Walk one row image at each place; where its stretches lie, and the places behind.

        Raises:
            NullInNotNull
        """
        bitmap = [buffer[at + i] & self.used[i] for i in range(self.bitmap)]
        has_nulls = [bool(part.any()) for part in bitmap]
        # The rows may lie otherwise than the stretches assume, so none of the places found so far can be trusted.
        if any(has and (part & never).any() for has, part, never in zip(has_nulls, bitmap, self.never, strict=True)):
            raise NullInNotNull
        at = at + self.bitmap
        anchors: list[Integers] = []
        lengths: list[Integers] = []
        for i, distance in self.ends:
            anchors.append(at)
            width = self.widths[i]
            length: Integers | int
            if width is None:
                head = self.prefixes[i]
                length = little(buffer, at + distance, head)
                size: Integers | int = length + (distance + head)
            else:
                length, size = width, distance + width
            # A NULL has no bytes in a row, not even those of its length.
            if has_nulls[i >> 3] and (null := (bitmap[i >> 3] >> (i & 7)) & 1 == 1).any():
                size = np.where(null, distance, size)
                length = np.where(null, 0, length)
            if width is None:
                assert not isinstance(length, int)
                lengths.append(length)
            at = at + size
        if self.has_rest:
            anchors.append(at)
            at = at + self.rest
        return Image(anchors, lengths, bitmap), at

    def cells(self, image: Image, column: int) -> RowCells:
        """Return where each cell of one column lies; a NULL has the length 0."""
        stretch, distance, variable = self.columns[column]
        anchor, part = image.anchors[stretch], image.bitmap[column >> 3]
        start = anchor + distance if distance else anchor
        null = (part >> (column & 7)) & 1 == 1 if part.any() else np.broadcast_to(np.False_, len(start))
        if variable is not None:
            return RowCells(start, image.lengths[variable], null)
        width = self.widths[column]
        assert width is not None
        whole = np.broadcast_to(np.int64(width), len(start))
        return RowCells(start, np.where(null, 0, whole) if null.any() else whole, null)

    def all_cells(self, image: Image) -> list[RowCells]:
        """Return where the cells of all columns lie."""
        return [self.cells(image, column) for column in range(len(self.columns))]


class NullInNotNull(Exception):
    """A NULL in a column that the table map calls NOT NULL: the rows do not lie as `RowLayout` took them to."""
