"""The rows of types.md, section 8, for SQL Server: read from the emulator, and unchanged from a real one."""

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

CELLS = (
    Cell("bit", "1", BOOL, True),
    Cell("bit", "0", BOOL, False),
    Cell("tinyint", "255", pa.int16(), 255),
    Cell("smallint", "-32768", pa.int16(), -32768),
    Cell("int", "-2147483648", pa.int32(), -2147483648),
    Cell("bigint", "9223372036854775807", pa.int64(), 9223372036854775807),
    Cell("bigint", "-9223372036854775808", pa.int64(), -9223372036854775808),
    Cell("bigint", "NULL", pa.int64(), None),
    Cell("real", "3.3", pa.float32(), single(3.3)),
    Cell("float", "4.44", pa.float64(), 4.44),
    Cell("float", "-1.7976931348623157e308", pa.float64(), -1.7976931348623157e308),
    Cell("decimal(10,4)", "123.456", pa.decimal128(10, 4), Decimal("123.4560")),
    Cell("numeric(38,0)", "-" + "9" * 38, pa.decimal128(38, 0), Decimal("-" + "9" * 38)),
    Cell("money", "9990000.3647", pa.decimal128(19, 4), Decimal("9990000.3647")),
    Cell("money", "922337203685477.5807", pa.decimal128(19, 4), Decimal("922337203685477.5807")),
    Cell("smallmoney", "-214748.3647", pa.decimal128(10, 4), Decimal("-214748.3647")),
    Cell("smallmoney", "6.323", pa.decimal128(10, 4), Decimal("6.3230")),
    Cell("char(5)", "'abc'", STRING, "abc  "),
    Cell("varchar(20)", "'foo  '", STRING, "foo  "),
    Cell("nchar(5)", "N'ж'", STRING, "ж    "),
    Cell("nvarchar(20)", "N'Привет 你好 🎉'", STRING, "Привет 你好 🎉"),
    Cell("nvarchar(max)", "N''", STRING, ""),
    Cell("nvarchar(20)", "NULL", STRING, None),
    Cell("varchar(20) COLLATE Cyrillic_General_CI_AS", "N'Привет'", STRING, "Привет"),
    Cell("varchar(20) COLLATE Latin1_General_100_CI_AS_SC_UTF8", "N'Привет 🎉'", STRING, "Привет 🎉"),
    Cell("text", "'old text'", STRING, "old text"),
    Cell("ntext", "N'älter'", STRING, "älter"),
    Cell("sysname NULL", "N'name'", STRING, "name"),
    Cell("binary(4)", "0x0102", BYTES, b"\x01\x02\0\0"),
    Cell("varbinary(10)", "0xDEADBEEF", BYTES, b"\xde\xad\xbe\xef"),
    Cell("varbinary(max)", "0x00", BYTES, b"\0"),
    Cell("image", "0xFF", BYTES, b"\xff"),
    Cell("uniqueidentifier", "'A0eebc99-9C0B-4EF8-BB6D-6BB9BD380A11'", pa.uuid(),
         UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")),
    Cell("date", "'0001-01-01'", pa.date32(), day(1, 1, 1)),
    Cell("date", "'9999-12-31'", pa.date32(), day(9999, 12, 31)),
    Cell("smalldatetime", "'2018-07-13 14:23:45'", NAIVE, moment(2018, 7, 13, 14 * 3600 + 24 * 60)),
    Cell("datetime", "'2018-07-13 12:23:59.997'", NAIVE, moment(2018, 7, 13, 12 * 3600 + 23 * 60 + 59, 997000)),
    Cell("datetime2(0)", "'2018-07-13 12:23:59'", NAIVE, moment(2018, 7, 13, 12 * 3600 + 23 * 60 + 59)),
    Cell("datetime2(6)", "'2016-11-04 13:51:30.123456'", NAIVE, STAMP),
    Cell("datetime2(7)", "'2016-11-04 13:51:30.1234560'", NAIVE, STAMP),
    Cell("datetime2(6)", "'0018-04-01'", NAIVE, -712863 * DAY * MICRO),
    Cell("time(6)", "'10:23:45.678901'", TIME, (10 * 3600 + 23 * 60 + 45) * MICRO + 678901),
    Cell("time(7)", "'23:59:59.9999990'", TIME, DAY * MICRO - 1),
    Cell("datetimeoffset(3)", "'2018-07-13 12:23:45.456 +11:00'", INSTANT,
         moment(2018, 7, 13, 3600 + 23 * 60 + 45, 456000)),
    Cell("datetimeoffset(6)", "'9999-12-31 23:59:59.999999 +14:00'", INSTANT,
         moment(9999, 12, 31, 9 * 3600 + 59 * 60 + 59, 999999)),
    Cell("xml", "N'<a/>'", STRING, "<a/>"),
    Cell("xml", "N''", STRING, ""),
    Cell("hierarchyid", "'/1/1/'", STRING, "/1/1/"),
    Cell("sql_variant", "CAST(7 AS int)", STRING, "7"),
    Cell("geometry", "'POINT (1 2)'", BYTES, struct.pack("<BIdd", 1, 1, 1, 2)),
    Cell("geography", "'POINT (1 2)'", BYTES, struct.pack("<BIdd", 1, 1, 1, 2)),
)  # fmt: skip
SPECIALS = (
    Special("time(7)", "'10:23:45.6789012'", "seventh_digit", "10:23:45.6789012"),
    Special("datetime2(7)", "'9999-12-31 23:59:59.9999999'", "seventh_digit", "9999-12-31 23:59:59.9999999"),
    Special("datetimeoffset(7)", "'2018-07-13 12:23:45.1234567 +11:00'", "seventh_digit",
            "2018-07-13 12:23:45.1234567 +11:00"),
)  # fmt: skip
OVERRIDES = (
    Override("int", "bool", "1", BOOL, True),
    Override("bigint", "int2", "7", pa.int16(), 7),
    Override("int", "float8", "3", pa.float64(), 3.0),
    Override("decimal(5,0)", "int4", "42", pa.int32(), 42),
    Override("decimal(10,2)", "decimal(18,4)", "1.5", pa.decimal128(18, 4), Decimal("1.5000")),
    Override("nvarchar(20)", "decimal(6,2)", "N'12.5'", pa.decimal128(6, 2), Decimal("12.50")),
    Override("datetime2(6)", "date", "'2020-01-02 00:00:00'", pa.date32(), day(2020, 1, 2)),
    Override("date", "timestamp", "'2020-01-02'", NAIVE, moment(2020, 1, 2)),
    Override("nvarchar(40)", "timestamp_tz", "N'2016-11-04T13:51:30.123456+02:00'", INSTANT, STAMP - 7200 * MICRO),
    Override("decimal(10,2)", "text", "1.5", STRING, "1.50"),
    Override("nvarchar(20)", "binary", "N'é'", BYTES, "é".encode()),
    Override("nvarchar(20)", "json", "N'{\"a\": 1.10}'", pa.json_(), '{"a": 1.10}'),
    Override("nvarchar(36)", "uuid", "N'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", pa.uuid(),
             UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")),
)  # fmt: skip
MISFITS = (
    Misfit("int", "bool", "2", "not_bool"),
    Misfit("bigint", "int2", "40000", "out_of_range"),
    Misfit("nvarchar(20)", "decimal(6,2)", "N'x'", "digits"),
    Misfit("datetime2(6)", "date", "'2020-01-02 00:00:01'", "not_midnight"),
    Misfit("nvarchar(20)", "uuid", "N'x'", "unparsable"),
)

SQLSERVER = TypeCases(CELLS, SPECIALS, OVERRIDES, MISFITS)
