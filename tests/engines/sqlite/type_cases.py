"""The rows of types.md, section 9: SQLite, whose declared types are promises that each cell is checked against."""

from __future__ import annotations

from decimal import Decimal
from uuid import UUID

import pyarrow as pa

from rivet_resources.contracts.types import INSTANT, NAIVE
from tests.engines.type_cases import DAY, MICRO, STRING, Cell, Misfit, Override, Special, TypeCases, day, moment

STAMP = moment(2016, 11, 4, 13 * 3600 + 51 * 60 + 30, 123456)

CELLS = (
    Cell("INTEGER", "9223372036854775807", pa.int64(), 9223372036854775807),
    Cell("INT", "-9223372036854775808", pa.int64(), -9223372036854775808),
    Cell("BIGINT", "NULL", pa.int64(), None),
    Cell("TINYINT", "7", pa.int64(), 7),
    Cell("BOOLEAN", "1", pa.bool_(), True),
    Cell("BOOLEAN", "0", pa.bool_(), False),
    Cell("REAL", "4.44", pa.float64(), 4.44),
    Cell("DOUBLE", "3", pa.float64(), 3.0),
    Cell("FLOAT", "-0.1", pa.float64(), -0.1),
    Cell("DECIMAL(10,2)", "'1.50'", STRING, "1.5"),  # numeric affinity made a double of it: nothing is promised
    Cell("NUMERIC", "42", STRING, "42"),
    Cell("TEXT", "'ñ ✓ 🎉'", STRING, "ñ ✓ 🎉"),
    Cell("TEXT", "''", STRING, ""),
    Cell("VARCHAR(3)", "'longer than three'", STRING, "longer than three"),
    Cell("CLOB", "'tab\t'", STRING, "tab\t"),
    Cell("JSON", "'{\"a\":  1.10}'", pa.json_(), '{"a":  1.10}'),
    Cell("BLOB", "x'DEADBEEF'", pa.binary(), b"\xde\xad\xbe\xef"),
    Cell("BLOB", "x''", pa.binary(), b""),
    Cell("", "'one class'", STRING, "one class"),
    Cell("DATE", "'2016-11-04'", STRING, "2016-11-04"),
    Cell("DATETIME", "'2016-11-04 13:51:30'", STRING, "2016-11-04 13:51:30"),
    Cell("TIMESTAMP", "'2016-11-04T13:51:30Z'", STRING, "2016-11-04T13:51:30Z"),
)
SPECIALS = (
    Special("INTEGER", "'x'", "other_class", "x"),
    Special("INTEGER", "1.5", "other_class", "1.5"),
    Special("REAL", "'x'", "other_class", "x"),
    Special("TEXT", "x'00'", "other_class", None),
    Special("BOOLEAN", "2", "not_bool", None),
)
OVERRIDES = (
    Override("DECIMAL(10,2)", "decimal(10,2)", "'1.50'", pa.decimal128(10, 2), Decimal("1.50")),
    Override("TEXT", "decimal(20,4)", "'12345678901234.5678'", pa.decimal128(20, 4), Decimal("12345678901234.5678")),
    Override("DATE", "date", "'2016-11-04'", pa.date32(), day(2016, 11, 4)),
    Override("DATETIME", "timestamp", "'2016-11-04 13:51:30.123456'", NAIVE, STAMP),
    Override("TIMESTAMP", "timestamp_tz", "'2016-11-04T15:51:30.123456+02:00'", INSTANT, STAMP),
    Override("INTEGER", "timestamp_tz", "86400", INSTANT, DAY * MICRO),
    Override("INTEGER", "int4", "7", pa.int32(), 7),
    Override("INTEGER", "text", "7", STRING, "7"),
    Override("INTEGER", "float8", "7", pa.float64(), 7.0),
    Override("TEXT", "uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", pa.uuid(),
             UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")),
)  # fmt: skip
MISFITS = (
    Misfit("INTEGER", "int2", "40000", "out_of_range"),
    Misfit("TEXT", "date", "'yesterday'", "unparsable"),
    Misfit("TEXT", "uuid", "'x'", "unparsable"),
    Misfit("TEXT", "decimal(6,2)", "'x'", "digits"),
)

SQLITE = TypeCases(CELLS, SPECIALS, OVERRIDES, MISFITS)
