"""Rows of MySQL's text protocol as Arrow columns: all rows at once, column by column.

Belongs here: cutting rows into values, gathering the values of a column, the check that text is UTF-8. Not here: bytes
from the socket (packets.py), types (mysql/values.py).

Column k of all rows is read in lockstep: one vector of places, one of lengths, and every place moves on. The values are
gathered by Arrow itself: value, gap, value, gap … is already a binary array over the raw bytes, whose even elements
`take` copies at the speed of memory, 16 ns a value and no index per byte (measured 2026-11; `engine.md`, section 3, has
an index vector, 35-110 ns). Values of one length are copied by numpy as records of that size, 5-8 ns each.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rivet_resources.engines.mysql.wire.packets import Definition, RawRows

NULL = 0xFB  # first byte of a value: below it a length, above it the number of length bytes
LENGTH_BYTES = {0xFC: 2, 0xFD: 3, 0xFE: 8}
BINARY_CHARSET = 63
# Types that report the binary charset and are ASCII or, for JSON, UTF-8 on the wire; FIELD_TYPE numbers.
# Source: MySQL internals manual, "Column Definition" and "Text Resultset Row"; MySQL 9.7 and MariaDB 10.11 agree.
ALWAYS_TEXT = frozenset({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 17, 18, 19, 245, 246})
BIT = 16
LARGEST_OFFSET = 2**31 - 1
# Mean length above which values are copied one by one: a slice costs 0.2 µs, but `take` copies twice when it must grow.
LONG_BYTES = 1024

Places = NDArray[np.int64]


class Cut(NamedTuple):
    """Where one column's values are: `buffer[start:start+length]`; length 0 where null. `null` None: none is."""

    start: Places
    length: Places
    null: NDArray[np.bool_] | None
    common: int  # the length all of them have, or -1


def batch(raw: RawRows) -> pa.RecordBatch:
    """Return one column per result column: binary for binary columns and BIT, string for the rest.

    A text column with bytes that are not UTF-8 comes as binary too: readers find out by the type, and which cells.
    Columns beyond 2 GB come as large_string or large_binary.

    Raises:
        pymysql.err.InternalError: a row is not what its column definitions say.
    """
    arrays = [column(raw.buffer, cut, definition) for cut, definition in zip(_cuts(raw), raw.columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=[definition.name for definition in raw.columns])


def is_binary(definition: Definition) -> bool:
    """Return whether a column's values are bytes and not text."""
    if definition.type_code == BIT:
        return True
    return definition.charset == BINARY_CHARSET and definition.type_code not in ALWAYS_TEXT


# --- cutting -------------------------------------------------------------------------------------


def _cuts(raw: RawRows) -> list[Cut]:
    """Cut all rows, and check that each ends where its packet does."""
    from pymysql import err  # driver

    place = raw.starts
    cuts = []
    for _ in raw.columns:
        cut = lengths_behind(raw.buffer, place)
        cuts.append(cut)
        place = cut.start + cut.length
    # The one check that finds every broken length: a row read wrongly does not end where its packet does.
    if not np.array_equal(place, raw.ends):
        raise err.InternalError("a row does not end where its packet does")
    return cuts


def lengths_behind(buffer: NDArray[np.uint8], place: Places) -> Cut:
    """Find the length-coded value at every place."""
    # A broken length may lead anywhere: clipped here, found by the comparison of the rows' ends. That holds as long as
    # no length is negative or so large that sums wrap: places then only grow, and none is behind its row's end.
    first = buffer.take(place, mode="clip") if len(buffer) else np.zeros(len(place), np.uint8)
    largest = int(first.max(initial=0))
    start = place + 1
    # No NULL and no long value among them: the first byte is the length, as in most columns.
    if largest < NULL:
        common = largest if len(first) and int(first.min()) == largest else -1
        return Cut(start, first.astype(np.int64), None, common)
    null = first == NULL
    length = np.where(null, 0, first).astype(np.int64)
    for code, width in LENGTH_BYTES.items():
        if largest >= code:
            rows = np.flatnonzero(first == code)
            length[rows] = _lengths(buffer, start[rows], width)
            start[rows] += width
    return Cut(start, length, null if null.any() else None, -1)


def _lengths(buffer: NDArray[np.uint8], place: Places, width: int) -> Places:
    """Read lengths of several bytes; those of eight bytes come from rows of 16 MB and more, and from broken lines."""
    from pymysql import err  # driver

    found = _little_endian(buffer, place, width)
    if width == 8 and ((found < 0) | (found > len(buffer))).any():
        raise err.InternalError("a value is longer than the answer that holds it")
    return found


def _little_endian(buffer: NDArray[np.uint8], place: Places, width: int) -> Places:
    number = np.zeros(len(place), np.int64)
    for i in range(width):
        number |= buffer.take(place + i, mode="clip").astype(np.int64) << (8 * i)
    return number


# --- gathering -----------------------------------------------------------------------------------


def column(buffer: NDArray[np.uint8], cut: Cut, definition: Definition) -> pa.Array:
    """Copy the values of one column out of the answer: binary, or string where they are text."""
    # By the mean and not by the longest: `take` over short values with one long one is still the faster way.
    if len(cut.start) and int(cut.length.sum()) > LONG_BYTES * len(cut.start):
        array = _of_long(buffer, cut)
    else:
        array = _of_one_length(buffer, cut) if cut.common > 0 else _of_any_length(buffer, cut)
    return array if is_binary(definition) else _as_text(array)


def _of_one_length(buffer: NDArray[np.uint8], cut: Cut) -> pa.Array:
    """Copy values that all have one length, none of them NULL."""
    rows, length = len(cut.start), cut.common
    # A view with a record beginning at every byte; indexing it copies whole values.
    records = np.ndarray(len(buffer) - length + 1, f"V{length}", buffer.data, strides=(1,))
    # Offsets of 32 bits where they reach, or every column would come as a large type and be another one than its
    # neighbours' pages.
    offsets = np.arange(0, rows * length + 1, length, dtype=_offset_type(rows * length))
    return _array(rows, None, offsets, records[cut.start])


def _of_long(buffer: NDArray[np.uint8], cut: Cut) -> pa.Array:
    """Copy long values one by one, into exactly the memory they need."""
    view, ends = buffer.data, cut.start + cut.length
    text = b"".join([view[start:end] for start, end in zip(cut.start.tolist(), ends.tolist(), strict=True)])
    offsets = np.zeros(len(ends) + 1, _offset_type(len(text)))
    np.cumsum(cut.length, out=offsets[1:])
    return _array(len(ends), _validity(cut), offsets, np.frombuffer(text, np.uint8))


def _of_any_length(buffer: NDArray[np.uint8], cut: Cut) -> pa.Array:
    """Copy values of any length: the raw bytes are an array of values and gaps; take the values."""
    rows = len(cut.start)
    if not rows:
        return pa.array([], pa.binary())
    bounds = np.empty(2 * rows + 1, _offset_type(len(buffer)))
    bounds[:-1:2] = cut.start
    np.add(cut.start, cut.length, out=bounds[1::2], casting="same_kind")
    # The last gap is empty: what stands behind the last value belongs to nobody.
    bounds[-1] = bounds[-2]
    spread = _array(2 * rows, None, bounds, buffer)
    values = pc.take(spread, pa.array(np.arange(0, 2 * rows, 2, dtype=np.int32)), boundscheck=False)
    if pa.types.is_large_binary(values.type) and int(cut.length.sum()) <= LARGEST_OFFSET:
        values = values.cast(pa.binary())
    if cut.null is None:
        return values
    _, offsets, bytes_ = values.buffers()
    return pa.Array.from_buffers(values.type, rows, [_validity(cut), offsets, bytes_], offset=values.offset)


def _validity(cut: Cut) -> pa.Buffer | None:
    return None if cut.null is None else pa.py_buffer(np.packbits(~cut.null, bitorder="little"))


def _offset_type(largest: int) -> type[np.int32] | type[np.int64]:
    return np.int32 if largest <= LARGEST_OFFSET else np.int64


def _array(rows: int, valid: pa.Buffer | None, offsets: NDArray[np.generic], values: NDArray[np.generic]) -> pa.Array:
    arrow = pa.binary() if offsets.dtype == np.int32 else pa.large_binary()
    return pa.Array.from_buffers(arrow, rows, [valid, pa.py_buffer(offsets), pa.py_buffer(values)])


# --- text ----------------------------------------------------------------------------------------


def _as_text(array: pa.Array) -> pa.Array:
    """Call an array of bytes text, if every value is UTF-8; else give it back as it is."""
    large = pa.types.is_large_binary(array.type)
    # Binary instead of an error: readers find which cells it is, and the policy for them (`mysql/values.py`).
    if not is_utf8(array):
        return array
    return array.view(pa.large_string() if large else pa.string())


def is_utf8(array: pa.Array) -> bool:
    """Return whether every value is UTF-8, looking at all bytes at once.

    The bytes of all values in a row are UTF-8 and no value begins inside a character: then each is UTF-8 alone.
    """
    _, offsets, values = array.buffers()
    width = np.int64 if pa.types.is_large_binary(array.type) else np.int32
    bounds: Places = np.frombuffer(offsets, width).astype(np.int64)[array.offset : array.offset + len(array) + 1]
    if not len(array) or bounds[0] == bounds[-1]:
        return True
    text = np.frombuffer(values, np.uint8)[bounds[0] : bounds[-1]]
    # ASCII is most of what comes, and `max` is cheaper than any other look.
    if int(text.max()) < 0x80:
        return True
    firsts = text.take(bounds[:-1] - bounds[0], mode="clip")
    # An empty value begins nowhere, so the byte at its place is another one's.
    if ((firsts & 0xC0) == 0x80)[bounds[:-1] < bounds[1:]].any():
        return False
    whole = pa.Array.from_buffers(
        pa.large_binary(), 1, [None, pa.py_buffer(np.array([0, len(text)])), pa.py_buffer(text)]
    )
    try:
        whole.cast(pa.large_string())
    except pa.ArrowInvalid:
        return False
    return True
