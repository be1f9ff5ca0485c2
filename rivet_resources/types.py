"""The type contract: what every source value becomes, in every mode. Facts as tables, one per engine.

Belongs here: Column, the override words of `columns:`, the facts. Not here: how an engine reads its
catalog (`sources/`). Nobody else decides what a type becomes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

Fidelity = Literal["exact", "compatible", "logical_string", "lossy"]
SpecialValue = Literal["fail", "null", "text"]
Typing = Literal["portable", "native"]
# What a column is before anyone overrides it. `other` has a text form only.
Family = Literal[
    "bool", "integer", "float", "numeric", "text", "binary", "date", "time", "timestamp", "timestamptz",
    "uuid", "json", "bit", "list", "geometry", "other",
]  # fmt: skip


@dataclass(frozen=True)
class Column:
    """One column of a relation, with the type its cells will have in a part.

    `select` is the SQL that asks for it (quoted, without alias); `wire` the Arrow type in which the driver
    delivers that expression, when it is not `arrow`. `policy` is what happens to a value `arrow` cannot hold.
    """

    name: str
    native: str  # as the engine's catalog spells it: numeric(12,2)
    arrow: pa.DataType
    select: str
    fidelity: Fidelity = "exact"
    logical: str = ""  # json, uuid, enum, interval …; '' for plain
    nullable: bool = True
    policy: SpecialValue = "fail"
    comment: str = ""
    facts: tuple[tuple[str, str], ...] = ()  # engine-private plain facts the decoder needs, e.g. (("kind", "numeric"),)

    @property
    def field(self) -> pa.Field:
        """Describe the column to Arrow and Parquet readers."""
        metadata = {"rivet.native_type": self.native, "rivet.fidelity": self.fidelity}
        if self.logical:
            metadata["rivet.logical_type"] = self.logical
        return pa.field(self.name, self.arrow, nullable=self.nullable, metadata=metadata)

    def fact(self, name: str) -> str:
        """Look up one engine-private fact; '' when the engine did not note it."""
        return dict(self.facts).get(name, "")


UUID = pa.uuid()
JSON = pa.json_(pa.string())
INSTANT = pa.timestamp("us", "UTC")
NAIVE = pa.timestamp("us")

# `types.md`, section 5. decimal(p,s) is the one word with parameters.
WORDS: Mapping[str, pa.DataType] = {
    "bool": pa.bool_(), "int2": pa.int16(), "int4": pa.int32(), "int8": pa.int64(), "float4": pa.float32(),
    "float8": pa.float64(), "date": pa.date32(), "timestamp": NAIVE, "timestamp_ns": pa.timestamp("ns"),
    "timestamp_tz": INSTANT, "timestamp_tz_ns": pa.timestamp("ns", "UTC"), "text": pa.string(),
    "binary": pa.binary(), "json": JSON, "uuid": UUID,
}  # fmt: skip

# Families a word can be read from; `text` takes every family.
ACCEPTS: Mapping[str, frozenset[str]] = {
    "bool": frozenset({"bool", "integer", "bit"}),
    "int2": frozenset({"integer", "numeric", "bit"}),
    "int4": frozenset({"integer", "numeric", "bit"}),
    "int8": frozenset({"integer", "numeric", "bit", "time"}),
    "float4": frozenset({"float", "integer", "numeric"}),
    "float8": frozenset({"float", "integer", "numeric"}),
    "decimal": frozenset({"numeric", "integer", "text"}),
    "date": frozenset({"date", "timestamp", "text"}),
    "timestamp": frozenset({"timestamp", "date", "text"}),
    "timestamp_ns": frozenset({"timestamp", "date", "text"}),
    "timestamp_tz": frozenset({"timestamptz", "timestamp", "text"}),
    "timestamp_tz_ns": frozenset({"timestamptz", "timestamp", "text"}),
    "binary": frozenset({"binary", "geometry", "text"}),
    "json": frozenset({"json", "text"}),
    "uuid": frozenset({"uuid", "text", "binary"}),
}

DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)")


@dataclass(frozen=True)
class Word:
    """One parsed override word: its stem (`decimal`, `timestamp_tz`, …) and the Arrow type it asks for."""

    stem: str
    arrow: pa.DataType

    def accepts(self, family: str) -> bool:
        """Say whether a column of this family can be read as this word."""
        return self.stem == "text" or family in ACCEPTS[self.stem]

    @property
    def logical(self) -> str:
        """Name the logical type that the field metadata carries."""
        return self.stem if self.stem in ("json", "uuid") else ""


def parse_word(text: str) -> Word:
    """Read an override word of `columns:`; `decimal(p,s)` holds 1 ≤ p ≤ 76 and 0 ≤ s ≤ p.

    Raises:
        ValueError: no such word, or precision and scale outside these limits; the message lists what exists.
    """
    if text in WORDS:
        return Word(text, WORDS[text])
    match = DECIMAL.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not a type; choose one of {', '.join(WORDS)}, decimal(p,s)")
    precision, scale = int(match[1]), int(match[2])
    if not (1 <= precision <= 76 and scale <= precision):
        raise ValueError(f"{text!r} is outside decimal(1,0) to decimal(76,76) with scale not above precision")
    return Word("decimal", decimal(precision, scale))


def decimal(precision: int, scale: int) -> pa.DataType:
    """Give the smallest Arrow decimal of 128 or 256 bits."""
    return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)


def is_portable(arrow: pa.DataType) -> bool:
    """Say whether every Parquet reader of `types.md`, section 2, opens a file with this type by default."""
    if isinstance(arrow, pa.UuidType) or pa.types.is_time(arrow) or pa.types.is_decimal256(arrow):
        return False
    if pa.types.is_list(arrow):
        return is_portable(arrow.value_type)
    return not (pa.types.is_timestamp(arrow) and arrow.unit == "ns")


@dataclass(frozen=True)
class Fact:
    """What one base type becomes. `sql` asks for it, `{}` being the quoted column."""

    family: Family
    arrow: pa.DataType
    sql: str = "{}"
    fidelity: Fidelity = "exact"
    logical: str = ""


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
    """Give money's decimal; `scale` was probed from the server, since lc_monetary decides it."""
    return Fact("numeric", decimal(19, scale), "{}::numeric", "compatible", "money")
