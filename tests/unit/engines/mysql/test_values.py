"""Every reader of MySQL's cells, from wire text to typed cells, with every value that does not fit."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import UUID as PythonUuid

import pyarrow as pa
import pymysql
import pytest

from rivet_resources.contracts.types import INSTANT, JSON, NAIVE, UUID, Column, SpecialValue
from rivet_resources.engines.mysql import values as mysql_values
from rivet_resources.engines.mysql.wire import binary, prepared
from rivet_resources.engines.mysql.wire import rows as mysql_wire
from rivet_resources.engines.mysql.wire import stream as mysql_stream
from rivet_resources.engines.shared.cells import Cells, Special
from rivet_resources.errors import ValueDoesNotFit

MICROSECOND = timedelta(microseconds=1)
EPOCH = datetime(1970, 1, 1)


def column(read: str, arrow: pa.DataType, *, policy: SpecialValue = "fail", **facts: str) -> Column:
    known = {"relation": "shop.t", "read": read, **facts}
    return Column(name="c", native="native", arrow=arrow, select="`c`", policy=policy, facts=tuple(known.items()))


def decoded(wire: pa.Array, one: Column) -> tuple[list[Any], Special]:
    """Cells of one column and what was counted."""
    cells = Cells((one,), chunk=0, readers=mysql_values.READ)
    table, special = cells.decode([pa.RecordBatch.from_arrays([wire], names=["c"])])
    table.validate(full=True)
    array = table.column(0).combine_chunks()
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("us"))
    return array.to_pylist(), special


def day(text: str) -> int:
    return (date.fromisoformat(text) - date(1970, 1, 1)).days


# (read, type of the column, wire text, cell)
PLAIN: list[tuple[str, pa.DataType, Any, Any]] = [
    ("integer", pa.int16(), "-128", -128),
    ("integer", pa.int16(), "255", 255),
    ("integer", pa.int16(), "0000", 0),
    ("integer", pa.int16(), "2155", 2155),
    ("integer", pa.int32(), "00000042", 42),
    ("integer", pa.int64(), "-9223372036854775808", -(2**63)),
    ("integer", pa.int64(), "9223372036854775807", 2**63 - 1),
    ("integer", pa.uint64(), "18446744073709551615", 2**64 - 1),
    ("integer", pa.uint64(), "17777777777777777777", 17777777777777777777),
    ("bool", pa.bool_(), "1", True),
    ("bool", pa.bool_(), "0", False),
    ("bool", pa.bool_(), b"\x01", True),
    ("bool", pa.bool_(), b"\x00", False),
    ("bits", pa.int64(), b"\x35\x6f", 13679),
    ("bits", pa.int64(), b"\x0e\x38\xe3", 932067),
    ("bits", pa.int64(), b"\x7f" + b"\xff" * 7, 2**63 - 1),
    ("bits", pa.uint64(), b"\xff" * 8, 2**64 - 1),
    ("float", pa.float64(), "1.7976931348623157e308", 1.7976931348623157e308),
    ("float", pa.float64(), "-1e-320", -1e-320),
    ("float", pa.float64(), "-0", -0.0),
    ("float", pa.float32(), "123.45600128173828", 123.45600128173828),
    ("decimal", pa.decimal128(12, 2), "-0.05", Decimal("-0.05")),
    ("decimal", pa.decimal128(12, 2), "0.00", Decimal("0.00")),
    ("decimal", pa.decimal128(12, 2), "9999999999.99", Decimal("9999999999.99")),
    ("decimal", pa.decimal128(12, 2), "-9999999999.99", Decimal("-9999999999.99")),
    ("decimal", pa.decimal128(12, 2), "1234.56", Decimal("1234.56")),
    ("decimal", pa.decimal128(12, 2), "0000001234.50", Decimal("1234.50")),
    ("decimal", pa.decimal128(18, 0), "-999999999999999999", Decimal("-999999999999999999")),
    ("decimal", pa.decimal128(4, 0), "10", Decimal("10")),
    ("decimal", pa.decimal128(10, 7), "-123.4567891", Decimal("-123.4567891")),
    ("decimal", pa.decimal128(15, 7), "99999999.9999999", Decimal("99999999.9999999")),
    ("decimal", pa.decimal128(18, 9), "-999999999.999999999", Decimal("-999999999.999999999")),
    ("decimal", pa.decimal128(30, 30), "0.000000000000000000000000000001", Decimal("1e-30")),
    ("decimal", pa.decimal256(60, 3), "780780780.780", Decimal("780780780.780")),
    ("decimal_text", pa.string(), "1" * 60 + ".001", "1" * 60 + ".001"),
    ("date", pa.date32(), "1970-01-01", date(1970, 1, 1)),
    ("date", pa.date32(), "0018-04-01", date(18, 4, 1)),
    ("date", pa.date32(), "0600-12-02", date(600, 12, 2)),
    ("date", pa.date32(), "9999-12-31", date(9999, 12, 31)),
    ("date", pa.date32(), "2000-02-29", date(2000, 2, 29)),
    ("stamp", NAIVE, "1000-06-15 00:00:00", datetime(1000, 6, 15)),
    ("stamp", NAIVE, "9999-12-31 23:59:59.999999", datetime(9999, 12, 31, 23, 59, 59, 999999)),
    ("stamp", NAIVE, "0018-04-01 12:34:56.7", datetime(18, 4, 1, 12, 34, 56, 700000)),
    ("stamp", NAIVE, "0600-12-02 01:02:03.04", datetime(600, 12, 2, 1, 2, 3, 40000)),
    ("stamp", NAIVE, "1969-12-31 23:59:59.123", datetime(1969, 12, 31, 23, 59, 59, 123000)),
    ("stamp", NAIVE, "2016-11-04 13:51:30.1234", datetime(2016, 11, 4, 13, 51, 30, 123400)),
    ("stamp", NAIVE, "2016-11-04 13:51:30.12345", datetime(2016, 11, 4, 13, 51, 30, 123450)),
    ("stamp", INSTANT, "2038-01-19 03:14:07.000001", datetime(2038, 1, 19, 3, 14, 7, 1)),
    ("time", pa.time64("us"), "00:00:00", time(0)),
    ("time", pa.time64("us"), "23:59:59.999999", time(23, 59, 59, 999999)),
    ("time", pa.time64("us"), "14:21:00.65", time(14, 21, 0, 650000)),
    ("time", pa.string(), "14:21:00", "14:21:00.000000"),
    ("time", pa.string(), "23:59:59.9", "23:59:59.900000"),
    ("time_us", pa.int64(), "765:43:21", 2756601000000),
    ("time_us", pa.int64(), "-838:59:58.999999", -(838 * 3600 + 59 * 60 + 58) * 1000000 - 999999),
    ("time_us", pa.int64(), "-00:00:01", -1000000),
    ("text", pa.string(), "ñ ✓ 🎉", "ñ ✓ 🎉"),
    ("text", pa.string(), "0000-00-00", "0000-00-00"),
    ("text", pa.string(), "", ""),
    ("plain", pa.string(), "a", "a"),
    ("json", JSON, '{"a":  1.10}', '{"a":  1.10}'),
    ("json", pa.string(), "null", "null"),
    ("binary", pa.binary(), b"\xe2\x28\xa1\x00", b"\xe2\x28\xa1\x00"),
    ("uuid", UUID, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", PythonUuid("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")),
    ("uuid", pa.string(), "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
]


@pytest.mark.parametrize(("read", "arrow", "wire", "cell"), PLAIN)
def test_a_value_that_fits_is_exact(read: str, arrow: pa.DataType, wire: Any, cell: Any) -> None:
    """Alone, among NULLs, in a slice and as NULL only: the cell is the stored value."""
    one = column(read, arrow)
    kind = pa.binary() if isinstance(wire, bytes) else pa.string()

    for values in ([wire], [wire, None, wire, wire], [None, wire], [None], []):
        expected = [None if value is None else cell for value in values]
        assert decoded(pa.array(values, kind), one) == (expected, {})
        sliced = pa.array([wire, None, *values, wire], kind).slice(2, len(values))
        assert decoded(sliced, one) == (expected, {})


def test_every_reader_has_a_case() -> None:
    """A reader without a case here is a reader nobody has seen work."""
    assert {read for read, *_ in PLAIN} | {"override"} == set(mysql_values.READ)


# (read, type, wire text that does not fit, wire text that does, kind)
SPECIAL: list[tuple[str, pa.DataType, Any, Any, str]] = [
    ("date", pa.date32(), "0000-00-00", "2024-02-29", "zero_date"),
    ("date", pa.date32(), "2000-01-00", "2024-02-29", "zero_date"),
    ("date", pa.date32(), "2000-00-01", "2024-02-29", "zero_date"),
    ("date", pa.date32(), "2023-02-29", "2024-02-29", "unparsable"),
    ("stamp", NAIVE, "0000-00-00 00:00:00", "2024-02-29 00:00:00", "zero_date"),
    ("stamp", NAIVE, "2000-00-01 00:00:00.000000", "2024-02-29 00:00:00.000000", "zero_date"),
    ("stamp", NAIVE, "2000-01-00 12:00:00.5", "2024-02-29 00:00:00.5", "zero_date"),
    ("stamp", INSTANT, "0000-00-00 00:00:00", "2024-02-29 00:00:00", "zero_date"),
    ("stamp", NAIVE, "2023-02-29 00:00:00", "2024-02-29 00:00:00", "unparsable"),
    ("time", pa.time64("us"), "24:00:00", "23:00:00", "time_range"),
    ("time", pa.string(), "765:43:21", "23:00:00", "time_range"),
    ("time", pa.time64("us"), "-00:00:00.000001", "00:00:00.000001", "time_range"),
    ("bool", pa.bool_(), "2", "1", "not_bool"),
    ("bool", pa.bool_(), "-1", "1", "not_bool"),
    ("bool", pa.bool_(), "127", "1", "not_bool"),
    ("bool", pa.bool_(), b"\x02", b"\x01", "not_bool"),
    ("integer", pa.int16(), "40000", "1", "out_of_range"),
    ("bits", pa.int64(), b"\x80" + bytes(7), bytes(7) + b"\x01", "out_of_range"),
    ("decimal", pa.decimal128(4, 2), "123.45", "12.34", "digits"),
    ("decimal", pa.decimal128(4, 2), "1.234", "12.34", "digits"),
    ("text", pa.string(), b"caf\xe9", b"cafe", "invalid_bytes"),
    ("json", JSON, b'"\xe9"', b'"e"', "invalid_bytes"),
]


@pytest.mark.parametrize(("read", "arrow", "bad", "good", "kind"), SPECIAL)
def test_a_value_that_does_not_fit_fails_or_is_counted(
    read: str, arrow: pa.DataType, bad: Any, good: Any, kind: str
) -> None:
    """By default the page fails without showing a cell; with `null` only the cells that do not fit become NULL."""
    wire = pa.array([good, bad, None, good, bad], pa.binary() if isinstance(bad, bytes) else pa.string())
    (fits,), _ = decoded(wire.slice(0, 1), column(read, arrow))

    cells, special = decoded(wire, column(read, arrow, policy="null"))
    with pytest.raises(ValueDoesNotFit) as raised:
        decoded(wire, column(read, arrow))

    assert (cells, special) == ([fits, None, None, fits, None], {"c": {kind: 2}})
    assert "2 rows in chunk 0" in str(raised.value)
    assert f" {bad} " not in str(raised.value).replace("2 rows", "")


def test_all_days_of_the_calendar_are_read_as_python_reads_them() -> None:
    """Every 11th day of the years 1 to 9999."""
    days = [date.fromordinal(n) for n in range(1, date.max.toordinal() + 1, 11)]

    cells, _ = decoded(pa.array([d.isoformat() for d in days]), column("date", pa.date32()))

    assert cells == days


def test_decimals_of_every_width_are_read_alike() -> None:
    """One to sixteen digits, with and without a sign and a point, in one page."""
    digits = "1928374650918273"
    for scale in range(9):
        values = [f"{sign}{digits[:n]}" for n in range(1, 17 - scale) for sign in ("", "-")]
        texts = [value + ("." + digits[:scale] if scale else "") for value in values]

        cells, _ = decoded(pa.array(texts), column("decimal", pa.decimal128(17, scale)))

        assert cells == [Decimal(text) for text in texts]


OVERRIDES = [
    ("bits", "uint64", "integer", "int4", pa.int32(), b"\x05", 5),
    ("time_us", "int64", "time", "int8", pa.int64(), "765:43:21", 2756601000000),
    ("integer", "int16", "integer", "int2", pa.int16(), "127", 127),
    ("integer", "uint64", "integer", "decimal(20,0)", pa.decimal128(20, 0), "18446744073709551615", Decimal(2**64 - 1)),
    ("date", "date32[day]", "date", "timestamp", NAIVE, "2024-01-01", datetime(2024, 1, 1)),
]


@pytest.mark.parametrize(("base", "natural", "family", "target", "arrow", "wire", "cell"), OVERRIDES)
def test_an_override_converts_what_the_column_holds(
    base: str, natural: str, family: str, target: str, arrow: pa.DataType, wire: Any, cell: Any
) -> None:
    """First as the source has it, then as `columns:` asks."""
    one = column("override", arrow, base_read=base, natural=natural, family=family, target=target)

    assert decoded(pa.array([wire, None]), one)[0] == [cell, None]


# --- real servers --------------------------------------------------------------------------------

TABLE = """(id bigint unsigned NOT NULL, n int, small smallint, flag tinyint(1), y year, price decimal(12,2),
 big decimal(40,5), f double, b14 bit(14), d date, at datetime(6), at0 datetime, ts timestamp(3) NULL, t time(2),
 name varchar(200), fixed char(10), body mediumtext, raw varbinary(300), raw16 binary(16),
 e enum('sm','lg',''), s set('a','b'))"""
READS: dict[str, tuple[str, pa.DataType]] = {
    "id": ("integer", pa.uint64()), "n": ("integer", pa.int32()), "small": ("integer", pa.int16()),
    "flag": ("bool", pa.bool_()), "y": ("integer", pa.int16()), "price": ("decimal", pa.decimal128(12, 2)),
    "big": ("decimal", pa.decimal256(40, 5)), "f": ("float", pa.float64()), "b14": ("bits", pa.int64()),
    "d": ("date", pa.date32()), "at": ("stamp", NAIVE), "at0": ("stamp", NAIVE), "ts": ("stamp", NAIVE),
    "t": ("time_us", pa.int64()), "name": ("text", pa.string()), "fixed": ("text", pa.string()),
    "body": ("text", pa.string()), "raw": ("binary", pa.binary()), "raw16": ("binary", pa.binary()),
    "e": ("text", pa.string()), "s": ("text", pa.string()),
}  # fmt: skip


def rows_of_all_kinds() -> list[tuple[Any, ...]]:
    """Rows whose values change length, sign and presence from one to the next."""
    rows: list[tuple[Any, ...]] = []
    for i in range(700):
        sign = -1 if i % 2 else 1
        at = datetime(1000, 6, 15) + timedelta(days=i * 4000, microseconds=i * 7_919_123_457)
        row = (
            2**64 - 1 - i, sign * i**3, sign * (i * 40), i % 2, 1901 + i % 255, Decimal(sign * i * 7919) / 100,
            Decimal(sign) * (10**30 + i) / 10**5, sign * i * 1.37e-5, i, at.date(), at, at.replace(microsecond=0),
            datetime(1991, 8, 31, 12, 34, 56, 789000) + timedelta(days=i),
            timedelta(hours=i, milliseconds=i * 10) * sign,
            "ñ" * (i % 60), "foo", "b" * (i * 17 % 1200), bytes([i % 256]) * (i % 300), bytes(16),
            ["sm", "lg", ""][i % 3], ["", "a", "b", "a,b"][i % 4],
        )  # fmt: skip
        rows.append(tuple(None if j and (i + j) % 7 == 0 else value for j, value in enumerate(row)))
    return rows


@pytest.mark.parametrize("protocol", ["binary", "text"])
@pytest.mark.parametrize("server", ["fresh_mariadb", "fresh_mysql"])
def test_cells_are_what_pymysql_reads(server: str, protocol: str, request: pytest.FixtureRequest) -> None:
    """On a real server, every column gives the values of PyMySQL's own cursor, by either protocol."""
    url = urlsplit(request.getfixturevalue(server))
    connection = pymysql.connect(
        host=url.hostname, port=url.port or 3306, user=unquote(url.username or ""),
        password=unquote(url.password or ""), database=url.path.strip("/"), charset="utf8mb4", autocommit=True,
        init_command="SET time_zone = '+00:00'",
    )  # fmt: skip
    rows = rows_of_all_kinds()
    with connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE t {TABLE} DEFAULT CHARSET utf8mb4")
        cursor.executemany(f"INSERT INTO t VALUES ({', '.join(['%s'] * len(READS))})", rows)
        statement = f"SELECT {', '.join(f'`{name}`' for name in READS)} FROM t ORDER BY id DESC"
        cursor.execute(statement)
        expected = cursor.fetchall()
        if protocol == "text":
            prepared.TEXT_ONLY.add(connection)
        raw = mysql_stream.read_whole(connection, statement, limit_bytes=None)
        assert raw.is_binary == (protocol == "binary")
        batch = (binary if raw.is_binary else mysql_wire).batch(raw)
        cursor.execute("SELECT count(*) FROM t")  # the connection is in order
        assert cursor.fetchone() == (len(rows),)

    columns = tuple(
        Column(name=name, native="", arrow=arrow, select=name, facts=(("read", read),))
        for name, (read, arrow) in READS.items()
    )
    table, _ = Cells(columns, chunk=0, readers=mysql_values.READ).decode([batch])

    assert [tuple(row.values()) for row in table.to_pylist()] == [tuple(map(as_cell, READS, row)) for row in expected]


def as_cell(name: str, value: Any) -> Any:
    """What PyMySQL gives, as the column's cell."""
    if value is None:
        return None
    if name == "flag":
        return bool(value)
    if name == "b14":
        return int.from_bytes(value, "big")
    return value // MICROSECOND if name == "t" else value
