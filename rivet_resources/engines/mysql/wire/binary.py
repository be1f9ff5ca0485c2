"""Rows of MySQL's binary protocol as Arrow columns: all rows at once, column by column.

Belongs here: numbers, dates and times as they are stored, which cells are NULL. Not here: values with a length, which
are the text protocol's (rows.py), bytes from the socket (packets.py), what a column's cells become (mysql/values.py).

Dates that no calendar has (zero dates, 31 February) have no number: a column that holds one comes as text, as in the
text protocol, and readers find the cells.
Source of the layout: MySQL internals manual, "Binary Protocol Resultset Row" and "Binary Protocol Value".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rivet_resources.engines.mysql.wire.cells import fixed_width_array
from rivet_resources.engines.mysql.wire.packets import Definition, RawRows
from rivet_resources.engines.mysql.wire.rows import Cut, column, lengths_behind

Places = NDArray[np.int64]
Mask = NDArray[np.bool_]

UNSIGNED, YEAR = 32, 13
# FIELD_TYPE numbers. A mediumint has four bytes.
NUMBERS: Mapping[int, str] = {1: "<i1", 2: "<i2", 9: "<i4", 3: "<i4", 8: "<i8", 4: "<f4", 5: "<f8", YEAR: "<u2"}
NOTHING, DAY, CLOCK, STAMPS = 6, 10, 11, (7, 12)  # the type of a bare NULL; DATE; TIME; TIMESTAMP and DATETIME
DAY_US, SECOND_US = 86_400_000_000, 1_000_000

# Whatever zeros end a date or a time are left out, so each has a few lengths.
_DAY = [("year", "<u2"), ("month", "u1"), ("day", "u1")]
_HOURS = [("hour", "u1"), ("minute", "u1"), ("second", "u1")]
_STAMPS: Mapping[int, np.dtype[Any]] = {
    4: np.dtype(_DAY), 7: np.dtype(_DAY + _HOURS), 11: np.dtype([*_DAY, *_HOURS, ("us", "<u4")]),
}  # fmt: skip
_CLOCK = [("negative", "u1"), ("days", "<u4"), *_HOURS]
_CLOCKS: Mapping[int, np.dtype[Any]] = {8: np.dtype(_CLOCK), 12: np.dtype([*_CLOCK, ("us", "<u4")])}
MOST_YEARS, MONTH_BITS = 10_000, 4


def batch(raw: RawRows) -> pa.RecordBatch:
    """Return one column per result column: numbers, dates and stamps as they are, a TIME as its microseconds.

    The rest is as in the text protocol (`rows.batch`).

    Raises:
        pymysql.err.InternalError: a row is not what its column definitions say.
    """
    from pymysql import err  # driver

    try:
        arrays = _arrays(raw) if len(raw.starts) else [_empty(each) for each in raw.columns]
    except (IndexError, ValueError):
        # A broken length leads behind the bytes there are.
        raise err.InternalError("a row does not end where its packet does") from None
    return pa.RecordBatch.from_arrays(arrays, names=[definition.name for definition in raw.columns])


def _empty(definition: Definition) -> pa.Array:
    """Return no cells, of the type that cells have."""
    nothing = np.empty(0, np.int64)
    found, _ = _decode(np.zeros(16, np.uint8), definition, nothing, None)
    return found


def _arrays(raw: RawRows) -> list[pa.Array]:
    """Decode all columns, and check that each row ends where its packet does."""
    from pymysql import err  # driver

    bits = _Bits.of(raw)
    # Behind the row's first byte, which is 0, and the bits.
    place = raw.starts + (1 + bits.width)
    arrays = []
    for index, definition in enumerate(raw.columns):
        array, place = _decode(raw.buffer, definition, place, bits.null(index))
        arrays.append(array)
    # The one check that finds every broken length: a row read wrongly does not end where its packet does.
    if raw.buffer[raw.starts].any() or not np.array_equal(place, raw.ends):
        raise err.InternalError("a row does not end where its packet does")
    return arrays


@dataclass(frozen=True)
class _Bits:
    """Which cells are NULL: one bit a column, two bits behind the begin."""

    marks: NDArray[np.uint8]  # shape (rows, width)
    any_row: NDArray[np.uint8]

    @classmethod
    def of(cls, raw: RawRows) -> _Bits:
        width = (len(raw.columns) + 9) // 8
        marks = _look(raw.buffer, np.dtype(f"V{width}"), raw.starts + 1).view(np.uint8).reshape(-1, width)
        return cls(marks, np.bitwise_or.reduce(marks, axis=0))

    @property
    def width(self) -> int:
        return len(self.any_row)

    def null(self, index: int) -> Mask | None:
        """Return which cells of a column are NULL; None when none is."""
        byte, bit = divmod(index + 2, 8)
        if not self.any_row[byte] >> bit & 1:
            return None
        return (self.marks[:, byte] >> np.uint8(bit) & np.uint8(1)).astype(bool)


def _look(buffer: NDArray[np.uint8], dtype: np.dtype[Any], places: Places) -> Any:
    """Copy a value of fixed width from every place: a window begins at each byte.

    Raises:
        IndexError, ValueError: one lies behind the bytes.
    """
    if not len(places):
        # All cells NULL: the whole answer may be shorter than one of them.
        return np.empty(0, dtype)
    return np.ndarray((len(buffer) - dtype.itemsize + 1,), dtype, buffer.data, strides=(1,))[places]


def _decode(
    buffer: NDArray[np.uint8], definition: Definition, place: Places, null: Mask | None
) -> tuple[pa.Array, Places]:
    """Read one column, and return where the next one's values begin."""
    code = definition.type_code
    if code in NUMBERS:
        return _numbers(buffer, definition, place, null)
    if code == NOTHING:
        return pa.nulls(len(place), pa.string()), place
    if code in (DAY, CLOCK, *STAMPS):
        return _times(buffer, code, place, null)
    cut = _cut(buffer, place, null)
    return column(buffer, cut, definition), cut.start + cut.length


def _numbers(
    buffer: NDArray[np.uint8], definition: Definition, place: Places, null: Mask | None
) -> tuple[pa.Array, Places]:
    dtype = np.dtype(NUMBERS[definition.type_code])
    if definition.flags & UNSIGNED and dtype.kind == "i":
        dtype = np.dtype(dtype.str.replace("i", "u"))
    valid = None if null is None else ~null
    values = _look(buffer, dtype, place if valid is None else place[valid])
    behind = place + (dtype.itemsize if valid is None else valid * dtype.itemsize)
    return fixed_width_array(values, valid, pa.from_numpy_dtype(dtype)), behind


def _cut(buffer: NDArray[np.uint8], place: Places, null: Mask | None) -> Cut:
    """Find values behind their lengths; a NULL has neither."""
    if null is None:
        return lengths_behind(buffer, place)
    rows = np.flatnonzero(~null)
    found = lengths_behind(buffer, place[rows])
    start, length = place.copy(), np.zeros(len(place), np.int64)
    start[rows], length[rows] = found.start, found.length
    return Cut(start, length, null, -1)


# --- dates and times -----------------------------------------------------------------------------


def _times(buffer: NDArray[np.uint8], code: int, place: Places, null: Mask | None) -> tuple[pa.Array, Places]:
    valid = None if null is None else ~null
    at = place if valid is None else place[valid]
    sizes = buffer[at]
    behind = place + 1
    if valid is None:
        behind += sizes
    else:
        behind[valid] += sizes
        behind[null] -= 1
    numbers = np.zeros(len(at), np.int64)
    is_real = np.ones(len(at), bool)
    layouts = _CLOCKS if code == CLOCK else _STAMPS
    for size in np.unique(sizes):
        rows = slice(None) if len(sizes) and (sizes == size).all() else np.flatnonzero(sizes == size)
        if not size:
            # No time at all is midnight; no date is none.
            is_real[rows] = code == CLOCK
            continue
        if size not in layouts:
            raise ValueError(f"a time of {size} bytes")
        found = _look(buffer, layouts[size], at[rows] + 1)
        numbers[rows], is_real[rows] = _clock(found) if code == CLOCK else _stamp(found, in_days=code == DAY)
    if not is_real.all():
        return _as_text(buffer, code, place, valid), behind
    if code == CLOCK:
        return fixed_width_array(numbers, valid, pa.int64()), behind
    if code == DAY:
        return fixed_width_array(numbers.astype(np.int32), valid, pa.date32()), behind
    return fixed_width_array(numbers, valid, pa.timestamp("us")), behind


def _stamp(found: Any, *, in_days: bool) -> tuple[Places, Mask]:
    """Return days or microseconds since 1970, and which of them the calendar has."""
    first_days, lengths = _calendar()
    year = found["year"].astype(np.int64)
    month = np.minimum(year, MOST_YEARS) << MONTH_BITS | np.minimum(found["month"], 15)
    day = found["day"].astype(np.int64)
    is_real: Mask = (day > 0) & (day <= lengths[month])
    days: Places = first_days[month] + day - 1
    if in_days or "hour" not in found.dtype.names:
        return (days, is_real) if in_days else (days * DAY_US, is_real)
    within, fits = _within_a_day(found)
    return days * DAY_US + within, is_real & fits


def _clock(found: Any) -> tuple[Places, Mask]:
    """Return microseconds of either sign; of days and hours nothing is too much for a reader to refuse."""
    within, fits = _within_a_day(found)
    micros = found["days"].astype(np.int64) * DAY_US + within
    return np.where(found["negative"] == 1, -micros, micros), fits


def _within_a_day(found: Any) -> tuple[Places, Mask]:
    hour, minute, second = (found[name].astype(np.int64) for name in ("hour", "minute", "second"))
    micros = ((hour * 60 + minute) * 60 + second) * SECOND_US
    fits: Mask = (hour < 24) & (minute < 60) & (second < 60)
    if "us" in found.dtype.names:
        fits &= found["us"] < SECOND_US
        micros += found["us"]
    return micros, fits


@cache
def _calendar() -> tuple[Places, Places]:
    """Return the first day of each month since 1970 and its length, by `year << 4 | month`; 0 days: no such month."""
    # One year more than there are, which has no months: larger ones are looked up there.
    first = np.zeros((MOST_YEARS + 1) << MONTH_BITS, np.int64)
    length = np.zeros_like(first)
    months = np.arange("0000-01", "10000-01", dtype="datetime64[M]")
    number = months.astype(np.int64) + 1970 * 12
    place = number // 12 << MONTH_BITS | number % 12 + 1
    first[place] = months.astype("datetime64[D]").astype(np.int64)
    length[place] = (months + 1).astype("datetime64[D]").astype(np.int64) - first[place]
    return first, length


def _as_text(buffer: NDArray[np.uint8], code: int, place: Places, valid: Mask | None) -> pa.Array:
    """Write dates and times as the text protocol does, cell by cell: for the few pages with one that is none."""
    present = np.ones(len(place), bool) if valid is None else valid
    texts = [_text(buffer, code, int(at)) if is_there else None for at, is_there in zip(place, present, strict=True)]
    return pa.array(texts, pa.string())


def _text(buffer: NDArray[np.uint8], code: int, at: int) -> str:
    size = int(buffer[at])
    layouts = _CLOCKS if code == CLOCK else _STAMPS
    cell = _look(buffer, layouts[size], np.array([at + 1]))[0] if size else None
    # What was left out is zero.
    part = Counter({} if cell is None else {name: int(cell[name]) for name in cell.dtype.names})
    time = f"{part['minute']:02d}:{part['second']:02d}.{part['us']:06d}"
    if code == CLOCK:
        return f"{'-' if part['negative'] else ''}{part['days'] * 24 + part['hour']:02d}:{time}"
    day = f"{part['year']:04d}-{part['month']:02d}-{part['day']:02d}"
    return day if code == DAY else f"{day} {part['hour']:02d}:{time}"
