"""Arrow's strings as numpy sees them: the bytes of many cells at once, and the one type Arrow cannot parse, TIME.

Belongs here: looking into string and binary arrays, making arrays of fixed width, clocks of any size and sign. Not
here: what happens to a value that does not fit (mysql/values.py), cutting rows (rows.py).

Arrow's own casts read all other types: digit arithmetic on numpy's vectors was tried for dates, datetimes and decimals
(2026-11, pages of 10 000) and took 18, 43 and 48 ns a value where Arrow takes 14, 29 and 42.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Integers = NDArray[np.int64]

DAY_MICROSECONDS = 86_400_000_000
CLOCK = re.compile(rb"(\d{2,3}):(\d\d):(\d\d)(?:\.(\d{1,6}))?")


class Texts(NamedTuple):
    """The values of an array that are not NULL: where each lies in `text`; `rows` says which they are, None for all."""

    text: NDArray[np.uint8]
    starts: Integers
    lengths: Integers
    rows: NDArray[np.bool_] | None

    @property
    def common(self) -> int:
        """The length all values have, or -1; 0 when there is no value."""
        if not len(self.lengths):
            return 0
        first = int(self.lengths[0])
        return first if (self.lengths == first).all() else -1

    def records(self, length: int) -> NDArray[np.uint8]:
        """Return values of one length as an array of shape (values, length), without a copy when they lie in a row."""
        count = len(self.starts)
        # The values lie one behind the other, without gaps of NULLs or other lengths.
        if count and int(self.starts[-1]) - int(self.starts[0]) == (count - 1) * length:
            first = int(self.starts[0])
            return self.text[first : first + count * length].reshape(count, length)
        # A window begins at every byte, so that one indexing takes all values, wherever they lie.
        pieces = np.ndarray(max(0, len(self.text) - length + 1), f"V{length}", self.text, strides=(1,))
        return pieces[self.starts].view(np.uint8).reshape(count, length)


def texts(array: pa.Array) -> Texts:
    """Look into a string or binary array, of small or large offsets."""
    valid, offsets, values = array.buffers()
    is_large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    bounds = np.frombuffer(offsets, np.int64 if is_large else np.int32).astype(np.int64)
    bounds = bounds[array.offset : array.offset + len(array) + 1]
    text = np.frombuffer(values, np.uint8) if values is not None else np.empty(0, np.uint8)
    starts, lengths = bounds[:-1], np.diff(bounds)
    if valid is None or not array.null_count:
        return Texts(text, starts, lengths, None)
    rows = array.is_valid().to_numpy(zero_copy_only=False)
    return Texts(text, starts[rows], lengths[rows], rows)


def fixed_width_array(values: NDArray[np.generic], rows: NDArray[np.bool_] | None, arrow: pa.DataType) -> pa.Array:
    """Make an Arrow array of fixed-width values; `rows` says which cells they fill, the others are NULL."""
    if rows is None:
        return pa.Array.from_buffers(arrow, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])
    spread = np.zeros((len(rows), *values.shape[1:]), values.dtype)
    spread[rows] = values
    valid = pa.py_buffer(np.packbits(rows, bitorder="little"))
    return pa.Array.from_buffers(arrow, len(rows), [valid, pa.py_buffer(spread)])


# --- times ---------------------------------------------------------------------------------------


def clock(array: pa.Array) -> pa.Array | None:
    """Read `[-]h…hh:mm:ss` with 0 to 6 digits of a fraction as int64 microseconds, of either sign and any size."""
    cells = texts(array)
    number = np.zeros(len(cells.starts), np.int64)
    negative = _begins_with_minus(cells)
    # Length and sign in one number, so that one `unique` finds the few shapes there are.
    shapes = cells.lengths * 2 + negative
    # All times of one shape have their digits at the same places, so one matrix product reads them.
    for shape in np.unique(shapes):
        of_shape = shapes == shape
        is_negative, length = int(shape & 1), int(shape >> 1)
        part = Texts(cells.text, cells.starts[of_shape] + is_negative, cells.lengths[of_shape] - is_negative, None)
        read = _clock(part.records(length - is_negative))
        # Not of the form of a TIME: the caller then reads the cells one by one, and finds which of them it is.
        if read is None:
            return None
        number[of_shape] = -read if is_negative else read
    return fixed_width_array(number, cells.rows, pa.int64())


def _begins_with_minus(cells: Texts) -> NDArray[np.bool_]:
    if not len(cells.text):
        return np.zeros(len(cells.starts), bool)
    # An empty text may begin behind the last byte: clipped here, and left out below by its length.
    is_minus: NDArray[np.bool_] = cells.text.take(cells.starts, mode="clip") == ord("-")
    return is_minus & (cells.lengths > 0)


def _clock(records: NDArray[np.uint8]) -> Integers | None:
    """Read times of one length: digits times weights; the first record says where its colons are."""
    match = CLOCK.fullmatch(records[0].tobytes())
    if match is None:
        return None
    layout = np.frombuffer(re.sub(rb"\d", b"0", match[0]), np.uint8)
    # XOR with the digit 0 leaves a digit's value, and 0 of a sign that stands where it should.
    digits, is_digit = records ^ layout, layout == ord("0")
    if digits[:, ~is_digit].any() or (digits[:, is_digit] > 9).any():
        return None
    units = ((match[1], 3_600_000_000), (match[2], 60_000_000), (match[3], 1_000_000))
    weights = [unit * 10**place for part, unit in units for place in reversed(range(len(part)))]
    weights += [10 ** (5 - place) for place in range(len(match[4] or b""))]
    total: Integers = digits[:, is_digit].astype(np.int64) @ np.array(weights, np.int64)
    return total
