"""The rows of types.md, section 7, for MySQL and MariaDB, and what either has alone."""

from __future__ import annotations

import struct
from decimal import Decimal
from uuid import UUID

import pyarrow as pa

from rivet_resources.contracts.types import INSTANT, NAIVE
from tests.engines.type_cases import (
    DAY,
    MICRO,
    STRING,
    Cell,
    Misfit,
    Override,
    Special,
    TypeCases,
    day,
    moment,
    single,
)

BOOL, BYTES, TIME = pa.bool_(), pa.binary(), pa.time64("us")
STAMP = moment(2016, 11, 4, 13 * 3600 + 51 * 60 + 30, 123456)
LABELS = r"enum('sm','''lg''','Internal,Comma','   Leading Spaces','Internal\nNewline','')"
SRID = struct.pack("<I", 0)


def point(x: float, y: float) -> bytes:
    """Return the WKB of a point."""
    return struct.pack("<BIdd", 1, 1, x, y)


def several(kind: int, *members: bytes) -> bytes:
    """Return the WKB of a collection of this kind."""
    return struct.pack("<BII", 1, kind, len(members)) + b"".join(members)


def line(*points: tuple[float, float]) -> bytes:
    """Return the WKB of a line."""
    return struct.pack("<BII", 1, 2, len(points)) + b"".join(struct.pack("<dd", *each) for each in points)


RING = ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 0.0))
RING_TEXT = "((0 0,1 0,1 1,0 0))"
POLYGON = struct.pack("<BIII", 1, 3, 1, 4) + b"".join(struct.pack("<dd", *each) for each in RING)


def shape(text: str) -> str:
    """Write a geometry as SQL."""
    return f"ST_GeomFromText('{text}')"


NUMBERS = (
    Cell("tinyint(1)", "0", BOOL, False),
    Cell("tinyint(1)", "1", BOOL, True),
    Cell("bool", "NULL", BOOL, None),
    Cell("bit(1)", "b'1'", BOOL, True),
    Cell("bit(1)", "b'0'", BOOL, False),
    Cell("tinyint", "-128", pa.int16(), -128),
    Cell("tinyint unsigned", "255", pa.int16(), 255),
    Cell("tinyint unsigned", "222", pa.int16(), 222),
    Cell("smallint", "-32768", pa.int16(), -32768),
    Cell("smallint unsigned", "65535", pa.int32(), 65535),
    Cell("smallint unsigned", "55555", pa.int32(), 55555),
    Cell("mediumint", "-8388608", pa.int32(), -8388608),
    Cell("mediumint unsigned", "16777215", pa.int64(), 16777215),
    Cell("mediumint unsigned", "11111111", pa.int64(), 11111111),
    Cell("int", "-2147483648", pa.int32(), -2147483648),
    Cell("int unsigned", "4294967295", pa.int64(), 4294967295),
    Cell("int unsigned", "3333333333", pa.int64(), 3333333333),
    Cell("int(6) zerofill", "42", pa.int64(), 42),
    Cell("bigint", "9223372036854775807", pa.int64(), 9223372036854775807),
    Cell("bigint", "-9223372036854775808", pa.int64(), -9223372036854775808),
    Cell("bigint unsigned", "17777777777777777777", pa.uint64(), 17777777777777777777),
    Cell("bigint unsigned", "18446744073709551615", pa.uint64(), 18446744073709551615),
    Cell("bigint unsigned", "9223372036854775808", pa.uint64(), 9223372036854775808),
    Cell("year", "'18'", pa.int16(), 2018),
    Cell("year", "70", pa.int16(), 1970),
    Cell("year", "0", pa.int16(), 0),
    Cell("year", "2155", pa.int16(), 2155),
    Cell("year", "1901", pa.int16(), 1901),
    Cell("bit(14)", "b'11010101101111'", pa.int64(), 13679),
    Cell("bit(20)", "b'11100011100011100011'", pa.int64(), 932067),
    Cell("bit(63)", f"b'{'1' * 63}'", pa.int64(), 9223372036854775807),
    Cell("bit(64)", f"b'{'1' * 64}'", pa.uint64(), 18446744073709551615),
    Cell("float", "123.456", pa.float32(), single(123.456)),
    Cell("float", "3.3", pa.float32(), single(3.3)),
    Cell("double", "4.44", pa.float64(), 4.44),
    Cell("double", "1.7976931348623157e308", pa.float64(), 1.7976931348623157e308),
    Cell("double", "-0.1", pa.float64(), -0.1),
    Cell("double(20,5)", "1.5", pa.float64(), 1.5),
    Cell("double unsigned zerofill", "0.25", pa.float64(), 0.25),
    Cell("decimal(10,4)", "123.456", pa.decimal128(10, 4), Decimal("123.4560")),
    Cell("decimal(10,4)", "-999999.9999", pa.decimal128(10, 4), Decimal("-999999.9999")),
    Cell("decimal(4)", "10.11", pa.decimal128(4, 0), Decimal("10")),
    Cell("decimal(6,2) unsigned", "1.5", pa.decimal128(6, 2), Decimal("1.50")),
    Cell("decimal(9,2) zerofill", "1.5", pa.decimal128(9, 2), Decimal("1.50")),
    Cell("decimal(5,0) zerofill", "7", pa.decimal128(5, 0), Decimal("7")),
    Cell("decimal(30,30)", f"-0.{'9' * 30}", pa.decimal128(30, 30), Decimal(f"-0.{'9' * 30}")),
    Cell("decimal(60,3)", "780780780.780", pa.decimal256(60, 3), Decimal("780780780.780")),
    Cell("decimal(65,30)", f"-{'9' * 35}.{'9' * 30}", pa.decimal256(65, 30), Decimal(f"-{'9' * 35}.{'9' * 30}")),
)
TEXTS = (
    Cell("char(10)", "'foo  '", STRING, "foo"),
    Cell("varchar(10)", "'foo  '", STRING, "foo  "),
    Cell("text", "'ñ ✓ 🎉'", STRING, "ñ ✓ 🎉"),
    Cell("text", "''", STRING, ""),
    Cell("text", r"'\\N'", STRING, r"\N"),
    Cell("text", "'NULL'", STRING, "NULL"),
    Cell("text", "NULL", STRING, None),
    Cell("tinytext", r"'tab\tnewline\n'", STRING, "tab\tnewline\n"),
    Cell("mediumtext", "repeat('é', 70000)", STRING, "é" * 70000),
    Cell("longtext", "'%s {} \"'", STRING, '%s {} "'),
    Cell("varchar(20) CHARACTER SET latin1", "'café'", STRING, "café"),
    Cell("varchar(20) CHARACTER SET gbk", "'你好'", STRING, "你好"),
    Cell("varchar(20) CHARACTER SET ascii", "'a'", STRING, "a"),
    Cell("text CHARACTER SET utf16", "'🎉'", STRING, "🎉"),
    Cell("varchar(20) COLLATE utf8mb4_bin", "'ß'", STRING, "ß"),
    Cell(LABELS, "'sm'", STRING, "sm"),
    Cell(LABELS, "'''lg'''", STRING, "'lg'"),
    Cell(LABELS, "'Internal,Comma'", STRING, "Internal,Comma"),
    Cell(LABELS, "'   Leading Spaces'", STRING, "   Leading Spaces"),
    Cell(LABELS, r"'Internal\nNewline'", STRING, "Internal\nNewline"),
    Cell(LABELS, "''", STRING, ""),
    Cell("set('a','b')", "'b,a'", STRING, "a,b"),
    Cell("set('a','b')", "''", STRING, ""),
    Cell("binary(8)", "x'E228A1'", BYTES, bytes.fromhex("E228A10000000000")),
    Cell("binary(16)", "x'000102030405060708090A0B0C0D0E00'", BYTES, bytes([*range(15), 0])),
    Cell("binary(16)", f"x'{'00' * 16}'", BYTES, bytes(16)),
    Cell("varbinary(20)", "x''", BYTES, b""),
    Cell("tinyblob", "x'00'", BYTES, b"\0"),
    Cell("blob", "x'DEADBEEF'", BYTES, b"\xde\xad\xbe\xef"),
    Cell("mediumblob", "x'27225C0A'", BYTES, b"'\"\\\n"),
    Cell("longblob", "repeat(x'FF', 70000)", BYTES, b"\xff" * 70000),
    Cell("json", "'18446744073709551615'", pa.json_(), "18446744073709551615"),
    Cell("json", "'1234567890123456789'", pa.json_(), "1234567890123456789"),
    Cell("json", "'9007199254740993'", pa.json_(), "9007199254740993"),
    Cell("json", "'null'", pa.json_(), "null"),
    Cell("json", "NULL", pa.json_(), None),
)
TIMES = (
    Cell("date", "'2016-11-04'", pa.date32(), day(2016, 11, 4)),
    Cell("date", "'9999-12-31'", pa.date32(), day(9999, 12, 31)),
    Cell("date", "'0018-04-01'", pa.date32(), -712863),
    Cell("datetime", "'1000-06-15'", NAIVE, moment(1000, 6, 15)),
    Cell("datetime", "'9999-06-15'", NAIVE, moment(9999, 6, 15)),
    Cell("datetime", "'0600-12-02'", NAIVE, moment(600, 12, 2)),
    Cell("datetime", "'0018-04-01'", NAIVE, -712863 * DAY * MICRO),
    Cell("datetime(6)", "'2016-11-04 13:51:30.123456'", NAIVE, STAMP),
    Cell("datetime(3)", "'2016-11-04 13:51:30.123'", NAIVE, STAMP - 456),
    Cell("timestamp(6) NULL", "'2016-11-04 13:51:30.123456'", INSTANT, STAMP),
    Cell("timestamp NULL", "'1970-01-01 00:00:01'", INSTANT, MICRO),
    Cell("timestamp NULL", "'2038-01-19 03:14:07'", INSTANT, (2**31 - 1) * MICRO),
    Cell("timestamp NULL", "NULL", INSTANT, None),
    Cell("time", "'00:00:00'", TIME, 0),
    Cell("time(6)", "'23:59:59.999999'", TIME, DAY * MICRO - 1),
    Cell("time(2)", "'14:21:00.65'", TIME, (14 * 3600 + 21 * 60) * MICRO + 650000),
)
SHAPES = (
    Cell("point", shape("POINT(1 2)"), BYTES, SRID + point(1, 2)),
    Cell("linestring", shape("LINESTRING(0 0,1 0)"), BYTES, SRID + line((0, 0), (1, 0))),
    Cell("polygon", shape(f"POLYGON{RING_TEXT}"), BYTES, SRID + POLYGON),
    Cell("multipoint", shape("MULTIPOINT(1 2,3 4)"), BYTES, SRID + several(4, point(1, 2), point(3, 4))),
    Cell("multilinestring", shape("MULTILINESTRING((0 0,1 0))"), BYTES, SRID + several(5, line((0, 0), (1, 0)))),
    Cell("multipolygon", shape(f"MULTIPOLYGON({RING_TEXT})"), BYTES, SRID + several(6, POLYGON)),
    Cell("geometrycollection", shape("GEOMETRYCOLLECTION(POINT(1 2))"), BYTES, SRID + several(7, point(1, 2))),
    Cell("geometry", shape("POINT(1 2)"), BYTES, SRID + point(1, 2)),
)
SPECIALS = (
    Special("date", "'0000-00-00'", "zero_date", "0000-00-00"),
    Special("date", "'2000-01-00'", "zero_date", "2000-01-00"),
    Special("date NOT NULL", "'0000-00-00'", "zero_date", "0000-00-00"),
    Special("datetime", "'2000-00-01 00:00:00'", "zero_date", "2000-00-01 00:00:00"),
    Special("datetime(6)", "'0000-00-00 00:00:00'", "zero_date", "0000-00-00 00:00:00.000000"),
    Special("timestamp NULL", "'0000-00-00 00:00:00'", "zero_date", "0000-00-00 00:00:00"),
    Special("time", "'765:43:21'", "time_range", "765:43:21"),
    Special("time(6)", "'-838:59:58.999999'", "time_range", "-838:59:58.999999"),
    Special("time", "'-800:0:1'", "time_range", "-800:00:01"),
    Special("time", "'24:00:00'", "time_range", "24:00:00"),
    Special("tinyint(1)", "2", "not_bool", None),
    Special("tinyint(1)", "-1", "not_bool", None),
    Special("tinyint(1)", "127", "not_bool", None),
)
OVERRIDES = (
    Override("tinyint(1)", "int2", "127", pa.int16(), 127),
    Override("int", "bool", "1", BOOL, True),
    Override("bigint", "int2", "7", pa.int16(), 7),
    Override("bit(14)", "int4", "b'11010101101111'", pa.int32(), 13679),
    Override("year", "int8", "1901", pa.int64(), 1901),
    Override("bigint unsigned", "decimal(20,0)", "18446744073709551615", pa.decimal128(20, 0),
             Decimal(18446744073709551615)),
    Override("decimal(5,0)", "int4", "42", pa.int32(), 42),
    Override("decimal(10,2)", "float8", "1.5", pa.float64(), 1.5),
    Override("decimal(10,2)", "decimal(18,4)", "1.5", pa.decimal128(18, 4), Decimal("1.5000")),
    Override("varchar(20)", "decimal(6,2)", "'12.5'", pa.decimal128(6, 2), Decimal("12.50")),
    Override("time", "int8", "'765:43:21'", pa.int64(), 2756601000000),
    Override("datetime", "date", "'2020-01-02 00:00:00'", pa.date32(), day(2020, 1, 2)),
    Override("date", "timestamp", "'2020-01-02'", NAIVE, moment(2020, 1, 2)),
    Override("datetime(6)", "timestamp_ns", "'2016-11-04 13:51:30.123456'", pa.timestamp("ns"), STAMP * 1000),
    Override("varchar(40)", "timestamp_tz", "'2016-11-04T13:51:30.123456+02:00'", INSTANT, STAMP - 7200 * MICRO),
    Override("varchar(20)", "date", "'2020-01-02'", pa.date32(), day(2020, 1, 2)),
    Override("bigint unsigned", "text", "18446744073709551615", STRING, "18446744073709551615"),
    Override("decimal(10,2)", "text", "1.5", STRING, "1.50"),
    Override("datetime", "text", "'2020-01-02 00:00:00'", STRING, "2020-01-02 00:00:00"),
    Override("varchar(20)", "binary", "'é'", BYTES, "é".encode()),
    Override("text", "json", "'{\"a\": 1.10}'", pa.json_(), '{"a": 1.10}'),
    Override("char(36)", "uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", pa.uuid(),
             UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")),
    Override("binary(16)", "uuid", "x'A0EEBC999C0B4EF8BB6D6BB9BD380A11'", pa.uuid(),
             UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")),
)  # fmt: skip
MISFITS = (
    Misfit("int", "bool", "2", "not_bool"),
    Misfit("bigint", "int2", "40000", "out_of_range"),
    Misfit("decimal(10,2)", "int4", "1.5", "out_of_range"),
    Misfit("decimal(10,3)", "decimal(6,2)", "1.555", "digits"),
    Misfit("varchar(20)", "decimal(6,2)", "'x'", "digits"),
    Misfit("datetime", "date", "'2020-01-02 00:00:01'", "not_midnight"),
    Misfit("varchar(20)", "date", "'yesterday'", "unparsable"),
    Misfit("varchar(40)", "timestamp_tz", "'2016-11-04T13:51:30'", "unparsable"),
    Misfit("text", "json", "'{'", "unparsable"),
    Misfit("char(36)", "uuid", "'x'", "unparsable"),
)
MARIADB_ONLY = (
    Cell("json", '\'{"b":  1.10, "a": null}\'', pa.json_(), '{"b":  1.10, "a": null}'),
    Cell("datetime", "'2016-11-04 13:51:56.987654'", NAIVE, moment(2016, 11, 4, 13 * 3600 + 51 * 60 + 56)),
    Cell("inet4", "'192.168.0.1'", STRING, "192.168.0.1"),
    Cell("inet6", "'::1'", STRING, "::1"),
    Cell("uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", pa.uuid(), UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")),
    Cell("text COMPRESSED", "repeat('z', 3000)", STRING, "z" * 3000),
    Cell("varbinary(4000) COMPRESSED", "repeat(x'00', 3000)", BYTES, bytes(3000)),
)
# MySQL has no zones by name before an administrator loads them; the tests' MariaDB knows this one.
MARIADB_OVERRIDES = (
    Override("datetime(6)", {"type": "timestamp_tz", "timezone": "Europe/Berlin"}, "'2016-11-04 13:51:30.123456'",
             INSTANT, STAMP - 3600 * MICRO),
)  # fmt: skip
MYSQL_ONLY = (
    Cell("json", '\'{"b":  1.10, "a": null}\'', pa.json_(), '{"a": null, "b": 1.1}'),
    Cell("datetime", "'2016-11-04 13:51:56.987654'", NAIVE, moment(2016, 11, 4, 13 * 3600 + 51 * 60 + 57)),
    Cell("vector(3)", "STRING_TO_VECTOR('[1,2,3.5]')", BYTES, struct.pack("<fff", 1, 2, 3.5)),
)
EVERY = (*NUMBERS, *TEXTS, *TIMES, *SHAPES)
PERMISSIVE = ("SET sql_mode = ''",)

MARIADB = TypeCases((*EVERY, *MARIADB_ONLY), SPECIALS, (*OVERRIDES, *MARIADB_OVERRIDES), MISFITS, permissive=PERMISSIVE)
MYSQL = TypeCases((*EVERY, *MYSQL_ONLY), SPECIALS, OVERRIDES, MISFITS, permissive=PERMISSIVE)
