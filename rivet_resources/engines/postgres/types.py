"""The facts of PostgreSQL's types (`types.md`, sections 3 and 6): one table, and the two types that need arithmetic."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from rivet_resources.contracts.types import INSTANT, JSON, NAIVE, UUID, Fact, decimal

# The type's output function, which is what the log gives too; `::text` differs from it for inet, bpchar and
# bool. `IS DISTINCT FROM NULL`, since `IS NOT NULL` is false for a composite with one NULL field.
OUTPUT = "CASE WHEN {} IS DISTINCT FROM NULL THEN concat({}) END"
AS_TEXT = "{}::text"  # no cast function exists for these types, so it is the output function as well

# `types.md`, section 6. A type that is not here is read as text, or is an array, enum, domain, numeric or money.
POSTGRES: Mapping[str, Fact] = {
    "bool": Fact("bool", pa.bool_()),
    "int2": Fact("integer", pa.int16()),
    "int4": Fact("integer", pa.int32()),
    "int8": Fact("integer", pa.int64()),
    "oid": Fact("integer", pa.int64(), "{}::int8"),
    "float4": Fact("float", pa.float32()),
    "float8": Fact("float", pa.float64()),
    "text": Fact("text", pa.string()),
    "varchar": Fact("text", pa.string()),
    "bpchar": Fact("text", pa.string()),
    "name": Fact("text", pa.string()),
    "char": Fact("text", pa.string(), OUTPUT),
    "citext": Fact("text", pa.string(), AS_TEXT),
    "bytea": Fact("binary", pa.binary()),
    "date": Fact("date", pa.date32()),
    "time": Fact("time", pa.time64("us")),
    "timestamp": Fact("timestamp", NAIVE),
    "timestamptz": Fact("timestamptz", INSTANT),
    "uuid": Fact("uuid", UUID, logical="uuid"),
    "json": Fact("json", JSON, logical="json"),
    "jsonb": Fact("json", JSON, logical="json"),
    "bit": Fact("bit", pa.string(), OUTPUT, "logical_string", "bit"),
    "varbit": Fact("bit", pa.string(), OUTPUT, "logical_string", "bit"),
    "interval": Fact("other", pa.string(), AS_TEXT, "logical_string", "interval"),
    "geometry": Fact("geometry", pa.binary(), "decode(" + OUTPUT + ", 'hex')", "compatible", "geometry"),
    "geography": Fact("geometry", pa.binary(), "decode(" + OUTPUT + ", 'hex')", "compatible", "geography"),
}
POSTGRES_TEXT = Fact("other", pa.string(), OUTPUT, "logical_string")
POSTGRES_ENUM = Fact("text", pa.string(), AS_TEXT, logical="enum")
POSTGRES_NUMERIC_TEXT = Fact("numeric", pa.string(), AS_TEXT, "logical_string", "numeric")

# Elements whose one-dimensional arrays become lists; uuid and enum items as text. `types.md`, section 6.
POSTGRES_ITEMS = frozenset(
    {"bool", "int2", "int4", "int8", "float4", "float8", "text", "varchar", "numeric", "date", "timestamp",
     "timestamptz", "uuid"}
)  # fmt: skip


def postgres_numeric(modifier: int) -> Fact:
    """Turn a numeric's type modifier into decimal(p,s), or text when it has none or is wider than 76 digits.

    Negative scale (PostgreSQL 15 on) widens the precision, a scale above the precision becomes decimal(s,s).
    """
    if modifier < 4:
        return POSTGRES_NUMERIC_TEXT
    precision, scale = ((modifier - 4) >> 16) & 0xFFFF, (((modifier - 4) & 0x7FF) ^ 1024) - 1024
    if scale < 0:
        precision, scale = precision - scale, 0
    precision = max(precision, scale)
    return Fact("numeric", decimal(precision, scale)) if precision <= 76 else POSTGRES_NUMERIC_TEXT


def postgres_money(scale: int) -> Fact:
    """Return money's decimal; `scale` was probed from the server, since lc_monetary decides it."""
    return Fact("numeric", decimal(19, scale), "{}::numeric", "compatible", "money")
