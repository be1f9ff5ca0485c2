"""The facts of SQLite's declared types (`types.md`, section 9), where a declared type is a promise about cells.

A cell has one of five storage classes, whatever its column says. So each kind of column has, beside its Arrow type,
the classes it takes and how they are put on the wire; a cell of another class is a value that does not fit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from rivet_resources.contracts.types import JSON, Fact

Kind = Literal["whole", "truth", "real", "number", "text", "json", "bytes", "time", "any"]
# What of a column's cells is taken, and as what: `whole` integers; `real` reals and integers that are exact as reals;
# `text` text; `bytes` blobs; `loose` all but blobs, as text; `stamp` text, and integers as seconds since 1970; `any`
# whichever class comes first, as text.
Wire = Literal["whole", "real", "text", "bytes", "loose", "stamp", "any"]


@dataclass(frozen=True)
class Shape:
    """What a column is: its fact, and which cells are taken."""

    fact: Fact
    wire: Wire


WHOLE = Shape(Fact("integer", pa.int64()), "whole")
REAL = Shape(Fact("float", pa.float64()), "real")
TEXT = Shape(Fact("text", pa.string()), "text")
BYTES = Shape(Fact("binary", pa.binary()), "bytes")
NUMBER = Shape(Fact("numeric", pa.string(), fidelity="logical_string", logical="numeric"), "loose")

SQLITE: Mapping[Kind, Shape] = {
    "whole": WHOLE,
    "truth": Shape(Fact("bool", pa.bool_(), fidelity="compatible"), "whole"),
    "real": REAL,
    "number": NUMBER,
    "text": TEXT,
    "json": Shape(Fact("json", JSON, logical="json"), "text"),
    "bytes": BYTES,
    "time": Shape(Fact("text", pa.string(), fidelity="logical_string", logical="time"), "loose"),
    "any": Shape(Fact("text", pa.string(), fidelity="logical_string"), "any"),
}

# What an override reads a column as, where that differs from the kind's own shape. A column without a declared type,
# or of the times, is whatever the user says it is; whole numbers are also unix seconds.
OVERRIDDEN: Mapping[tuple[Kind, str], Shape] = {
    **{(kind, word): WHOLE for kind in ("any", "time") for word in ("bool", "int2", "int4", "int8")},
    **{(kind, word): REAL for kind in ("any", "time", "whole", "number") for word in ("float4", "float8")},
    **{("any", word): TEXT for word in ("date", "timestamp", "timestamp_ns", "json", "uuid")},
    **{("time", word): TEXT for word in ("date", "timestamp", "timestamp_ns")},
    **{
        (kind, word): Shape(Fact("text", pa.string()), "stamp")
        for kind in ("any", "time", "whole", "text")
        for word in ("timestamp_tz", "timestamp_tz_ns")
    },
    ("any", "decimal"): NUMBER,
    ("any", "binary"): BYTES,
    ("json", "json"): TEXT,
}
TIMES = frozenset({"date", "timestamp", "timestamp_ns", "timestamp_tz", "timestamp_tz_ns"})  # override words

# Declared types with a meaning of their own, first word, any case; all others go by affinity.
NAMED: Mapping[str, Kind] = {
    "BOOL": "truth", "BOOLEAN": "truth", "DATE": "time", "DATETIME": "time", "TIMESTAMP": "time", "TIME": "time",
    "JSON": "json", "ANY": "any",
}  # fmt: skip
# The rules of affinity, in their order. Source: sqlite.org/datatype3.html, section 3.1.
AFFINITIES: tuple[tuple[str, Kind], ...] = (
    ("INT", "whole"), ("CHAR", "text"), ("CLOB", "text"), ("TEXT", "text"), ("BLOB", "bytes"), ("REAL", "real"),
    ("FLOA", "real"), ("DOUB", "real"),
)  # fmt: skip


def kind_of(declared: str) -> Kind:
    """Read a declared type, such as VARCHAR(20) or ''; '' also means an expression of a view or a query."""
    if not declared.strip():
        return "any"
    words = declared.upper()
    first = re.match(r"\w*", words)
    if first is not None and first[0] in NAMED:
        return NAMED[first[0]]
    return next((kind for piece, kind in AFFINITIES if piece in words), "number")
