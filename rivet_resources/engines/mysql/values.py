"""Cells of MySQL and MariaDB: from what either protocol's decoder gives to what `Column.arrow` says.

Belongs here: one reader per kind of column, and how each finds values that do not fit. Not here: bytes of cells
(wire/cells.py), policies and messages (shared/cells.py), which type a column has (types.py, columns.py).

Every reader has a fast way for pages without anything special, nearly all of them, and looks for the special values
only when that way refuses.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources.contracts.types import JSON, NAIVE, Column
from rivet_resources.engines.mysql.wire import cells
from rivet_resources.engines.shared.cells import Read, fitted, masked, nulls, overriding

WORD = 8  # bytes of the widest BIT
PARTIAL = r"^\d{4}-(00-\d\d|\d\d-00)"  # no month or no day: zero dates too
UUID_LENGTH, UUID_DASHES = 36, (8, 13, 18, 23)


def _plain(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    return array if array.type == column.arrow else array.cast(column.arrow)


def _text(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    """Text that is not UTF-8 arrives as binary, the whole page's column; find the cells."""
    if array.type == column.arrow:
        return array
    return fitted(array, lambda part: part.cast(pa.string()), "invalid_bytes", counts, nulls(column)).cast(column.arrow)


def _json(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    text = fitted(array, lambda part: part.cast(pa.string()), "invalid_bytes", counts, nulls(column))
    return text if column.arrow == text.type else pa.ExtensionArray.from_storage(JSON, text)


# --- numbers -------------------------------------------------------------------------------------


def _integer(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    return fitted(array, lambda part: part.cast(column.arrow), "out_of_range", counts, nulls(column))


def _bool(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    """0 and 1, as a number or digits of a tinyint(1) or the byte of a bit(1)."""
    if pa.types.is_integer(array.type):
        strange = pc.invert(pc.is_in(array, pa.array([0, 1], array.type)))
        return masked(array, {"not_bool": pc.and_(array.is_valid(), strange)}, counts, nulls(column)).cast(pa.bool_())
    zero = ord("0") if pa.types.is_string(array.type) else 0
    found = cells.texts(array)
    # All values one byte long, as nearly always: one subtraction reads the column.
    if found.common == 1:
        truth = found.records(1)[:, 0] - zero
        if int(truth.max()) <= 1:
            return _truth(truth.astype(bool), found.rows)
    # Whatever else there is (10, -1, another byte) is looked for by its text.
    allowed = pa.array([bytes([zero]), bytes([zero + 1])], pa.binary())
    raw = array.cast(pa.binary())
    strange = pc.and_(pc.is_valid(raw), pc.invert(pc.is_in(raw, allowed)))
    return pc.equal(masked(raw, {"not_bool": strange}, counts, nulls(column)), allowed[1])


def _truth(
    values: np.ndarray[tuple[int], np.dtype[np.bool_]], rows: np.ndarray[tuple[int], np.dtype[np.bool_]] | None
) -> pa.Array:
    if rows is None:
        return pa.array(values)
    spread = np.zeros(len(rows), bool)
    spread[rows] = values
    return pa.array(spread, mask=~rows)


def _bits(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    """BIT(n) arrives as big-endian bytes, as many as n needs."""
    found = cells.texts(array)
    width = found.common
    # Of one column all have the same width; another one means that the column was altered.
    if not 0 <= width <= WORD:
        raise pa.ArrowInvalid("bits of different widths")
    padded = np.zeros((len(found.starts), WORD), np.uint8)
    if width:
        padded[:, WORD - width :] = found.records(width)
    number = cells.fixed_width_array(padded.view(">u8")[:, 0].astype(np.uint64), found.rows, pa.uint64())
    return fitted(number, lambda part: part.cast(column.arrow), "out_of_range", counts, nulls(column))


def _float(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    """`col + 0E0` gives a FLOAT's own value with all digits, so narrowing it is exact."""
    return fitted(array, lambda part: part.cast(pa.float64()), "unparsable", counts, nulls(column)).cast(column.arrow)


def _decimal(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    return fitted(array, lambda part: part.cast(column.arrow), "digits", counts, nulls(column))


# --- dates and times -----------------------------------------------------------------------------


def _date(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    return _on_calendar(array, pa.date32(), column, counts)


def _stamp(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    """DATETIME is naive; TIMESTAMP is UTC, since the session's zone is."""
    # By way of the number: a cast from naive to UTC would ask for a zone, and the session is in UTC already.
    found = _on_calendar(array, NAIVE, column, counts)
    return found.view(pa.int64()).view(column.arrow) if found.type == NAIVE else found


def _on_calendar(array: pa.Array, arrow: pa.DataType, column: Column, counts: dict[str, int]) -> pa.Array:
    """Read dates or times; Arrow refuses what the calendar does not have, and so shows that a look is needed."""
    if not pa.types.is_string(array.type):
        # Of the type it has; that it is the column's is compared behind every reader.
        return array
    try:
        return array.cast(arrow)
    except pa.ArrowInvalid:
        # A zero date, or a day that no calendar has. Only then is every cell looked at.
        array = _without_partial(array, column, counts)
        return fitted(array, lambda part: part.cast(arrow), "unparsable", counts, nulls(column))


def _without_partial(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    """Find dates without a month or a day: zero dates are that too."""
    return masked(array, {"zero_date": pc.match_substring_regex(array, PARTIAL)}, counts, nulls(column))


def _time(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    """Times within a day; in portable files as text, HH:MM:SS.ffffff."""
    micros = _time_us(array, column, counts)
    outside = pc.or_(pc.less(micros, 0), pc.greater_equal(micros, cells.DAY_MICROSECONDS))
    times = masked(micros, {"time_range": outside}, counts, nulls(column)).view(pa.time64("us"))
    return times.cast(column.arrow)


def _time_us(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    """A TIME as microseconds, of either sign and up to 838 hours."""
    if pa.types.is_integer(array.type):
        return array.cast(pa.int64())
    read = cells.clock(array)
    if read is not None:
        return read

    def cast(part: pa.Array) -> pa.Array:
        micros = cells.clock(part)
        if micros is None:
            raise ValueError
        return micros

    return fitted(array, cast, "unparsable", counts, nulls(column))


# --- bytes ---------------------------------------------------------------------------------------


def _uuid(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    """MariaDB's UUID, as canonical text; 16 bytes where the file holds the type."""
    if pa.types.is_string(column.arrow):
        return array.cast(column.arrow)
    found = cells.texts(array)
    # UUID of MariaDB prints 36 letters always.
    if found.common not in (0, UUID_LENGTH):
        raise pa.ArrowInvalid("uuids of different lengths")
    letters = np.delete(found.records(UUID_LENGTH), UUID_DASHES, axis=1)
    # Bit 6 is set in letters only, and a and A end in 1: with 9 that is ten.
    nibbles = (letters & np.uint8(0xF)) + np.uint8(9) * (letters >> np.uint8(6))
    packed = nibbles[:, ::2] << np.uint8(4) | nibbles[:, 1::2]
    return pa.ExtensionArray.from_storage(column.arrow, cells.fixed_width_array(packed, found.rows, pa.binary(16)))


def _binary(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    return array.cast(column.arrow)


BASE: Mapping[str, Read] = {
    "plain": _plain,
    "integer": _integer,
    "bool": _bool,
    "bits": _bits,
    "float": _float,
    "decimal": _decimal,
    "decimal_text": _text,
    "date": _date,
    "stamp": _stamp,
    "time": _time,
    "time_us": _time_us,
    "text": _text,
    "json": _json,
    "binary": _binary,
    "uuid": _uuid,
}
READ: Mapping[str, Read] = {**BASE, "override": overriding(BASE)}
