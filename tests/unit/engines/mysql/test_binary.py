"""Rows of the binary protocol: written here by its rules, one cell at a time, and read all at once."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import date, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pymysql import err
from pymysql.constants import FIELD_TYPE

from rivet_resources.engines.mysql.wire import binary
from rivet_resources.engines.mysql.wire.packets import Definition, RawRows

UNSIGNED, UTF8, BYTES = 32, 45, 63
DAY, SECOND = 86_400_000_000, 1_000_000
Cell = object


def of(code: int, *, flags: int = 0, charset: int = UTF8) -> Definition:
    """A column of a result."""
    return Definition("c", code, charset, flags, 0, 0)


def coded(value: bytes) -> bytes:
    """A value behind its length."""
    if len(value) < 251:
        return bytes([len(value)]) + value
    width, code = (2, 0xFC) if len(value) < 1 << 16 else (3, 0xFD)
    return bytes([code]) + len(value).to_bytes(width, "little") + value


def stamp(at: datetime, *, is_day: bool = False) -> bytes:
    """A DATE, or a DATETIME without the zeros that end it."""
    day = struct.pack("<HBB", at.year, at.month, at.day)
    clock = struct.pack("<BBB", at.hour, at.minute, at.second)
    if is_day:
        return bytes([4]) + day
    if at.microsecond:
        return bytes([11]) + day + clock + at.microsecond.to_bytes(4, "little")
    return bytes([7]) + day + clock if any(clock) else bytes([4]) + day


def clock(micros: int) -> bytes:
    """A TIME without the zeros that end it."""
    seconds, us = divmod(abs(micros), SECOND)
    days, seconds = divmod(seconds, 86_400)
    if not micros:
        return b"\0"
    head = struct.pack("<BIBBB", micros < 0, days, seconds // 3600, seconds // 60 % 60, seconds % 60)
    return bytes([12]) + head + us.to_bytes(4, "little") if us else bytes([8]) + head


def raw(rows: Sequence[Sequence[bytes | None]], columns: Sequence[Definition]) -> RawRows:
    """Rows of cells that are written already, each behind a header; None is NULL."""
    lines = []
    for row in rows:
        bits = sum(1 << place + 2 for place, cell in enumerate(row) if cell is None)
        line = b"\0" + bits.to_bytes((len(row) + 9) // 8, "little") + b"".join(cell or b"" for cell in row)
        lines.append(line)
    ends = np.cumsum([len(line) + 4 for line in lines]).astype(np.int64)
    buffer = b"".join(b"head" + line for line in lines)
    starts = ends - [len(line) for line in lines] if lines else np.empty(0, np.int64)
    return RawRows(tuple(columns), np.frombuffer(buffer, np.uint8), starts, ends, is_binary=True)


NUMBERS = {
    "tinyint": (of(FIELD_TYPE.TINY), "<b", st.integers(-128, 127)),
    "tinyint unsigned": (of(FIELD_TYPE.TINY, flags=UNSIGNED), "<B", st.integers(0, 255)),
    "smallint": (of(FIELD_TYPE.SHORT), "<h", st.integers(-(2**15), 2**15 - 1)),
    "mediumint": (of(FIELD_TYPE.INT24), "<i", st.integers(-(2**23), 2**23 - 1)),
    "int unsigned": (of(FIELD_TYPE.LONG, flags=UNSIGNED), "<I", st.integers(0, 2**32 - 1)),
    "bigint": (of(FIELD_TYPE.LONGLONG), "<q", st.integers(-(2**63), 2**63 - 1)),
    "bigint unsigned": (of(FIELD_TYPE.LONGLONG, flags=UNSIGNED), "<Q", st.integers(0, 2**64 - 1)),
    "year": (of(FIELD_TYPE.YEAR, flags=UNSIGNED), "<H", st.integers(0, 2155)),
    "double": (of(FIELD_TYPE.DOUBLE), "<d", st.floats(allow_nan=False)),
    "float": (of(FIELD_TYPE.FLOAT), "<f", st.floats(width=32, allow_nan=False)),
}
MICROS = st.integers(-(839 * 3600 * SECOND), 839 * 3600 * SECOND)
STAMPS = st.one_of(
    st.datetimes(),
    st.datetimes().map(lambda at: at.replace(microsecond=0)),
    st.dates().map(lambda day: datetime(day.year, day.month, day.day)),
)
KINDS: dict[str, tuple[Definition, st.SearchStrategy[tuple[Cell, bytes]]]] = {
    **{
        name: (column, values.map(lambda value, form=form: (value, struct.pack(form, value))))  # type: ignore[misc]
        for name, (column, form, values) in NUMBERS.items()
    },
    "text": (of(FIELD_TYPE.VAR_STRING), st.text(max_size=400).map(lambda value: (value, coded(value.encode())))),
    "blob": (of(FIELD_TYPE.BLOB, charset=BYTES), st.binary(max_size=400).map(lambda value: (value, coded(value)))),
    "decimal": (of(FIELD_TYPE.NEWDECIMAL, charset=BYTES), st.just(("-1.50", coded(b"-1.50")))),
    "datetime": (of(FIELD_TYPE.DATETIME), STAMPS.map(lambda at: (at, stamp(at)))),
    "timestamp": (of(FIELD_TYPE.TIMESTAMP), STAMPS.map(lambda at: (at, stamp(at)))),
    "date": (of(FIELD_TYPE.DATE), STAMPS.map(lambda at: (at.date(), stamp(at, is_day=True)))),
    "time": (of(FIELD_TYPE.TIME), MICROS.map(lambda micros: (micros, clock(micros)))),
    "a bare NULL": (of(FIELD_TYPE.NULL, charset=BYTES), st.just((None, b""))),
}


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
@given(st.data())
def test_each_cell_is_read_as_it_was_written(data: st.DataObject) -> None:
    """Columns of any kinds beside each other, any of their cells NULL."""
    names = data.draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=20))
    kinds = [KINDS[name] for name in names]
    row = st.tuples(*(st.none() | cells for _, cells in kinds))
    rows = data.draw(st.lists(row, max_size=30))
    written = [[cell and cell[1] for cell in each] for each in rows]
    for each in written:  # a bare NULL has no bytes, and is always marked
        each[:] = [None if name == "a bare NULL" else cell for name, cell in zip(names, each, strict=True)]

    found = binary.batch(raw(written, [column for column, _ in kinds]))

    columns = [[cell and cell[0] for cell in column] for column in zip(*rows, strict=True)] or [[] for _ in kinds]
    assert [column.to_pylist() for column in found.columns] == columns


@pytest.mark.parametrize(
    ("code", "cell", "text"),
    [
        (FIELD_TYPE.DATE, b"\0", "0000-00-00"),
        (FIELD_TYPE.DATE, b"\4\xe4\7\0\0", "2020-00-00"),
        (FIELD_TYPE.DATE, b"\4\xe4\7\2\x1e", "2020-02-30"),
        (FIELD_TYPE.DATETIME, b"\0", "0000-00-00 00:00:00.000000"),
        (FIELD_TYPE.DATETIME, b"\7\xe4\7\2\x1f\1\2\3", "2020-02-31 01:02:03.000000"),
        (FIELD_TYPE.TIMESTAMP, b"\x0b\0\0\0\0\1\2\3\4\0\0\0", "0000-00-00 01:02:03.000004"),
        (FIELD_TYPE.DATE, b"\4\xff\xff\x0c\x1f", "65535-12-31"),
        (FIELD_TYPE.DATE, b"\4\xe4\7\xff\1", "2020-255-01"),
        (FIELD_TYPE.DATETIME, b"\7\xe4\7\1\1\x18\0\0", "2020-01-01 24:00:00.000000"),
        (FIELD_TYPE.TIME, b"\x08\1\x02\0\0\0\x05\x3c\0", "-53:60:00.000000"),
    ],
)
def test_what_no_calendar_has_comes_as_text(code: int, cell: bytes, text: str) -> None:
    """The whole column does, as in the text protocol, and readers find which cells it is."""
    good = clock(SECOND) if code == FIELD_TYPE.TIME else stamp(datetime(2020, 1, 2), is_day=True)

    column = binary.batch(raw([[good], [None], [cell]], [of(code)])).column(0)

    assert (column.type, column.to_pylist()[1:]) == (pa.string(), [None, text])


def test_dates_of_ten_thousand_years_are_days() -> None:
    """Each first and last day of a month, leap years among them, from year 1 to 9999."""
    days = [date(year, month, 1) for year in range(1, 10_000, 7) for month in range(1, 13)]
    days += [day - timedelta(days=1) for day in days[1:]]
    cells = [[stamp(datetime(day.year, day.month, day.day), is_day=True)] for day in days]

    assert binary.batch(raw(cells, [of(FIELD_TYPE.DATE)])).column(0).to_pylist() == days


@pytest.mark.parametrize(
    ("code", "cell"),
    [
        (FIELD_TYPE.LONGLONG, b"\1\2\3"),  # too short
        (FIELD_TYPE.LONG, bytes(5)),  # too long
        (FIELD_TYPE.VAR_STRING, b"\x09abc"),
        (FIELD_TYPE.VAR_STRING, b"\xfe" + b"\xff" * 8),
        (FIELD_TYPE.DATETIME, b"\5" + bytes(5)),  # no stamp has five bytes
        (FIELD_TYPE.TIME, b"\x0c" + bytes(3)),
    ],
)
def test_broken_rows_are_refused(code: int, cell: bytes) -> None:
    """A row that is not what its column says is never a row of something else."""
    with pytest.raises(err.InternalError):
        binary.batch(raw([[cell]], [of(code)]))


def test_a_row_begins_with_zero() -> None:
    """Anything else is no row of this protocol."""
    rows = raw([[b"\1"]], [of(FIELD_TYPE.TINY)])
    broken = rows.buffer.copy()
    broken[rows.starts[0]] = 1

    with pytest.raises(err.InternalError):
        binary.batch(RawRows(rows.columns, broken, rows.starts, rows.ends, is_binary=True))
