"""The type contract: what every source value becomes, in every mode. Facts are tables, one file per engine.

Belongs here: Column, the override words of `columns:`, the shape of a fact. Not here: the facts of one engine
(`postgres/types.py` and its siblings), how it reads its catalog (`engines/`). Nobody else decides what a type becomes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

Fidelity = Literal["exact", "compatible", "logical_string", "lossy"]
SpecialValue = Literal["fail", "null", "text"]
Policy = Literal[SpecialValue, "row"]  # `row`: the whole row is set aside or left out, as `on_error` says
Typing = Literal["portable", "native"]
# What a column is before anyone overrides it. `other` has a text form only.
Family = Literal[
    "bool", "integer", "float", "numeric", "text", "binary", "date", "time", "timestamp", "timestamptz",
    "uuid", "json", "bit", "list", "geometry", "other",
]  # fmt: skip


# A catalog's spelling of a type whose one number is a length: of characters, bytes or bits.
LENGTH = re.compile(
    r"(?:n?(?:var)?char|character(?: varying)?|bpchar|(?:var)?binary|bit(?: varying)?)\s*\((\d+)\)", re.IGNORECASE
)


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
    policy: Policy = "fail"
    comment: str = ""
    facts: tuple[tuple[str, str], ...] = ()  # engine-private plain facts the decoder needs, e.g. (("kind", "numeric"),)

    @property
    def field(self) -> pa.Field:
        """Describe the column to Arrow and Parquet readers."""
        metadata = {"rivet.native_type": self.native, "rivet.fidelity": self.fidelity}
        if length := LENGTH.match(self.native):
            metadata["rivet.max_length"] = length[1]
        if self.logical:
            metadata["rivet.logical_type"] = self.logical
        return pa.field(self.name, self.arrow, nullable=self.nullable, metadata=metadata)

    def fact(self, name: str) -> str:
        """Look up one engine-private fact; '' when the engine did not note it."""
        # A walk and no dict: a column has few facts, and this is asked for each column of each page.
        for key, value in self.facts:
            if key == name:
                return value
        return ""


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
class TypeWord:
    """One parsed override word: its stem (`decimal`, `timestamp_tz`, …) and the Arrow type it asks for."""

    stem: str
    arrow: pa.DataType

    def accepts(self, family: str) -> bool:
        """Return whether a column of this family can be read as this word."""
        return self.stem == "text" or family in ACCEPTS[self.stem]

    @property
    def logical(self) -> str:
        """Name the logical type that the field metadata carries."""
        return self.stem if self.stem in ("json", "uuid") else ""


def parse_word(text: str) -> TypeWord:
    """Read an override word of `columns:`; `decimal(p,s)` holds 1 ≤ p ≤ 76 and 0 ≤ s ≤ p.

    Raises:
        ValueError: no such word, or precision and scale outside these limits; the message lists what exists.
    """
    if text in WORDS:
        return TypeWord(text, WORDS[text])
    match = DECIMAL.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not a type; choose one of {', '.join(WORDS)}, decimal(p,s)")
    precision, scale = int(match[1]), int(match[2])
    if not (1 <= precision <= 76 and scale <= precision):
        raise ValueError(f"{text!r} is outside decimal(1,0) to decimal(76,76) with scale not above precision")
    return TypeWord("decimal", decimal(precision, scale))


def decimal(precision: int, scale: int) -> pa.DataType:
    """Return the smallest Arrow decimal of 128 or 256 bits."""
    return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)


# Every type a column can have before an override, by the name Arrow prints; decimals and lists aside.
NAMED: Mapping[str, pa.DataType] = {
    str(arrow): arrow
    for arrow in (
        pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint64(), pa.float32(), pa.float64(),
        pa.string(), pa.binary(), pa.binary(16), pa.date32(), pa.time64("us"), NAIVE, INSTANT, UUID, JSON,
    )
}  # fmt: skip
NAMED_DECIMAL = re.compile(r"decimal\d+\((\d+), (\d+)\)")


def arrow_named(text: str) -> pa.DataType:
    """Return the Arrow type that prints as `text`; facts of a column are texts."""
    match = NAMED_DECIMAL.fullmatch(text)
    return decimal(int(match[1]), int(match[2])) if match else NAMED[text]


def is_portable(arrow: pa.DataType) -> bool:
    """Return whether every Parquet reader of `types.md`, section 2, opens a file with this type by default."""
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
