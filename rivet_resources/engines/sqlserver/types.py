"""The type facts of SQL Server: what each type of its catalog becomes (`types.md`, section 8).

Belongs here: the table, as data. Not here: how a catalog entry is found (`catalog.py`) and what its
cells go through (`values.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from rivet_resources.contracts.types import JSON, NAIVE, UUID, Fact, decimal

WIDE_TEXT = "CONVERT(nvarchar(max), {})"

# By the base name in sys.types: alias types are resolved to it, `sysname` to nvarchar, rowversion is `timestamp`.
# decimal, numeric are in `sqlserver_decimal`; the scale of times decides in columns.py whether a seventh
# digit is looked for. Money is converted because drivers hand it over as a double.
SQLSERVER: Mapping[str, Fact] = {
    "bit": Fact("bool", pa.bool_()),
    "tinyint": Fact("integer", pa.int16()),
    "smallint": Fact("integer", pa.int16()),
    "int": Fact("integer", pa.int32()),
    "bigint": Fact("integer", pa.int64()),
    "real": Fact("float", pa.float32()),
    "float": Fact("float", pa.float64()),
    "money": Fact("numeric", pa.decimal128(19, 4), "CONVERT(decimal(19,4), {})"),
    "smallmoney": Fact("numeric", pa.decimal128(10, 4), "CONVERT(decimal(10,4), {})"),
    "char": Fact("text", pa.string()),
    "varchar": Fact("text", pa.string()),
    "nchar": Fact("text", pa.string()),
    "nvarchar": Fact("text", pa.string()),
    "text": Fact("text", pa.string(), WIDE_TEXT),
    "ntext": Fact("text", pa.string(), WIDE_TEXT),
    "binary": Fact("binary", pa.binary()),
    "varbinary": Fact("binary", pa.binary()),
    "image": Fact("binary", pa.binary(), "CONVERT(varbinary(max), {})"),
    "timestamp": Fact("binary", pa.binary(), "CONVERT(binary(8), {})"),  # rowversion: big-endian, comparable
    "uniqueidentifier": Fact("uuid", UUID, logical="uuid"),
    "date": Fact("date", pa.date32()),
    "smalldatetime": Fact("timestamp", NAIVE),
    "datetime": Fact("timestamp", NAIVE),
    "datetime2": Fact("timestamp", NAIVE),
    # A naive UTC time on the wire: the driver loses nothing, and the offset is not part of the instant.
    "datetimeoffset": Fact(
        "timestamptz",
        pa.timestamp("us", "UTC"),
        "CONVERT(datetime2(7), SWITCHOFFSET({}, '+00:00'))",
        "compatible",
    ),
    "time": Fact("time", pa.time64("us")),
    "json": Fact("json", JSON, WIDE_TEXT, logical="json"),
    "xml": Fact("other", pa.string(), WIDE_TEXT, "logical_string", "xml"),
    "hierarchyid": Fact("other", pa.string(), "{}.ToString()", "logical_string", "hierarchyid"),
    "vector": Fact("other", pa.string(), WIDE_TEXT, "logical_string", "vector"),
    "geometry": Fact("geometry", pa.binary(), "{}.STAsBinary()", "compatible", "geometry"),
    "geography": Fact("geometry", pa.binary(), "{}.STAsBinary()", "compatible", "geography"),
    # The base type travels with each value: a column that holds two of them is refused.
    "sql_variant": Fact(
        "other",
        pa.string(),
        "CONVERT(nvarchar(128), SQL_VARIANT_PROPERTY({}, 'BaseType')) + N':' + CONVERT(nvarchar(4000), {})",
        "logical_string",
        "sql_variant",
    ),
}

# Types whose text form loses something, or that have none; the message says what to do instead.
SQLSERVER_REFUSED: Mapping[str, str] = {
    "cursor": "it is no value",
    "table": "it is no value",
}


def sqlserver_decimal(precision: int, scale: int) -> Fact:
    """Return decimal(p,s) and numeric(p,s), which never pass 38 digits here."""
    return Fact("numeric", decimal(precision, scale))
