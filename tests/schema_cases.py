"""Changes of a table, and what they break for readers, in each language of schemas.

Belongs here: the table, which our rules and another registry's are held against.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

Language = Literal["avro", "json", "protobuf"]
LANGUAGES: tuple[Language, ...] = ("avro", "json", "protobuf")

ID = pa.field("id", pa.int64(), nullable=False)
STATUS = pa.field("status", pa.string())
BASE = pa.schema([ID, STATUS, pa.field("total", pa.int32()), pa.field("at", pa.timestamp("us", "UTC"))])


@dataclass(frozen=True)
class Change:
    """One change of BASE, and the languages in which it breaks the rule."""

    after: pa.Schema
    backward: tuple[Language, ...] = ()
    forward: tuple[Language, ...] = ()


def _with(name: str, kind: pa.DataType, *, nullable: bool = True) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable) if each.name == name else each for each in BASE])


CHANGES: dict[str, Change] = {
    "nothing": Change(BASE),
    "a column that may be NULL comes": Change(BASE.append(pa.field("nick", pa.string()))),
    "a column without NULL comes": Change(
        BASE.append(pa.field("nick", pa.string(), nullable=False)), backward=("avro", "json")
    ),
    "a column that may be NULL goes": Change(BASE.remove(1), backward=("json",), forward=("json",)),
    "a column without NULL goes": Change(BASE.remove(0), backward=("json",), forward=("avro", "json")),
    "a number gets wider": Change(_with("total", pa.int64()), forward=("avro", "protobuf")),
    "a number becomes a text": Change(
        _with("total", pa.string()), backward=("avro", "json", "protobuf"), forward=("avro", "json", "protobuf")
    ),
    "NULL is no longer allowed": Change(_with("status", pa.string(), nullable=False), backward=("avro", "json")),
    "NULL is allowed now": Change(pa.schema([pa.field("id", pa.int64()), *list(BASE)[1:]]), forward=("avro", "json")),
}
