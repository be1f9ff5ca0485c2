"""The facts of MySQL's and MariaDB's types (`types.md`, section 7): one table, and the two types that need arithmetic.

Keys are the catalog's DATA_TYPE, with ` unsigned` where that changes the range, and `tinyint(1)`, `bit(1)`, `bit(64)`
where the width does. The server sends every cell as text, so most types are asked for as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from rivet_resources.contracts.types import INSTANT, JSON, NAIVE, UUID, Fact, decimal

GEOMETRY = Fact("geometry", pa.binary(), fidelity="compatible", logical="geometry")
TEXT = Fact("text", pa.string())
BINARY = Fact("binary", pa.binary())

MYSQL: Mapping[str, Fact] = {
    "tinyint(1)": Fact("bool", pa.bool_(), fidelity="compatible"),
    "tinyint": Fact("integer", pa.int16()),
    "tinyint unsigned": Fact("integer", pa.int16()),
    "smallint": Fact("integer", pa.int16()),
    "smallint unsigned": Fact("integer", pa.int32()),
    "mediumint": Fact("integer", pa.int32()),
    "mediumint unsigned": Fact("integer", pa.int64()),
    "int": Fact("integer", pa.int32()),
    "int unsigned": Fact("integer", pa.int64()),
    "bigint": Fact("integer", pa.int64()),
    "bigint unsigned": Fact("integer", pa.uint64()),
    "year": Fact("integer", pa.int16()),
    "bit(1)": Fact("bool", pa.bool_(), fidelity="compatible"),
    "bit": Fact("integer", pa.int64()),
    "bit(64)": Fact("integer", pa.uint64()),
    # The server prints FLOAT with six digits; widened to DOUBLE it prints all, and narrowing gives the very FLOAT.
    "float": Fact("float", pa.float32(), "({} + 0E0)"),
    "double": Fact("float", pa.float64()),
    "char": TEXT,
    "varchar": TEXT,
    "tinytext": TEXT,
    "text": TEXT,
    "mediumtext": TEXT,
    "longtext": TEXT,
    "enum": Fact("text", pa.string(), logical="enum"),
    "set": Fact("text", pa.string(), logical="set"),
    "binary": BINARY,
    "varbinary": BINARY,
    "tinyblob": BINARY,
    "blob": BINARY,
    "mediumblob": BINARY,
    "longblob": BINARY,
    "json": Fact("json", JSON, logical="json"),
    "date": Fact("date", pa.date32()),
    "datetime": Fact("timestamp", NAIVE),
    "timestamp": Fact("timestamptz", INSTANT),
    "time": Fact("time", pa.time64("us")),
    "geometry": GEOMETRY,
    "point": GEOMETRY,
    "linestring": GEOMETRY,
    "polygon": GEOMETRY,
    "multipoint": GEOMETRY,
    "multilinestring": GEOMETRY,
    "multipolygon": GEOMETRY,
    "geometrycollection": GEOMETRY,
    "geomcollection": GEOMETRY,
    "vector": Fact("binary", pa.binary(), fidelity="compatible", logical="vector"),
    "inet4": Fact("other", pa.string(), fidelity="logical_string", logical="inet4"),
    "inet6": Fact("other", pa.string(), fidelity="logical_string", logical="inet6"),
    "uuid": Fact("uuid", UUID, logical="uuid"),
}
# A type of a later server: whatever its text form is.
MYSQL_TEXT = Fact("other", pa.string(), "CAST({} AS CHAR)", "logical_string")
# MariaDB's JSON is LONGTEXT with a CHECK: verbatim, marked.
MYSQL_JSON_TEXT = MYSQL["json"]


def mysql_decimal(precision: int, scale: int) -> Fact:
    """Return decimal(p,s); MySQL's p ends at 65, which fits decimal256."""
    return Fact("numeric", decimal(precision, scale))


@dataclass(frozen=True)
class Reading:
    """What a type is read as when an override word asks for another kind of number than its own fact gives."""

    fact: Fact
    read: str


# Base type → the number behind it, for words that want that (`types.md`, section 5: `time` as µs, truth as 0 and 1).
MYSQL_NUMBERS: Mapping[str, Reading] = {
    "tinyint(1)": Reading(MYSQL["tinyint"], "integer"),
    "bit(1)": Reading(Fact("integer", pa.int64()), "bits"),
    "time": Reading(Fact("integer", pa.int64()), "time_us"),
}
# How families are read (`mysql_values.READ`); numerics are decided by their width.
MYSQL_READS: Mapping[str, str] = {
    "bool": "bool", "integer": "integer", "float": "float", "date": "date", "timestamp": "stamp",
    "timestamptz": "stamp", "time": "time", "binary": "binary", "geometry": "binary", "json": "json", "uuid": "uuid",
}  # fmt: skip
