"""Pairs of Avro schemas, and whether the first reads rows of the second; judged by us, by fastavro and by Java."""

from __future__ import annotations

from typing import Any


def record(*fields: Any, name: str = "row", **keys: Any) -> dict[str, Any]:
    """Return a record's schema."""
    return {"type": "record", "name": name, "fields": list(fields), **keys}


def field(name: str, kind: Any, **keys: Any) -> dict[str, Any]:
    """Return a field."""
    return {"name": name, "type": kind, **keys}


ID = field("id", "long")
NOTE = field("note", ["null", "string"], default=None)
INNER = record(field("n", "int"), name="inner")
NEXT = record(field("next", ["null", "row"], default=None))
FIXED = {"type": "fixed", "name": "f", "size": 4}
LETTERS = {"type": "enum", "name": "e", "symbols": ["A", "B"]}
FEWER = {"type": "enum", "name": "e", "symbols": ["A"]}
# reader, writer, whether every row of the writer is understood
CASES: dict[str, tuple[Any, Any, bool]] = {
    "same": (record(ID, NOTE), record(ID, NOTE), True),
    "added_with_default": (record(ID, NOTE), record(ID), True),
    "added_without_default": (record(ID, field("note", "string")), record(ID), False),
    "removed": (record(ID), record(ID, NOTE), True),
    "int_to_long": (record(ID), record(field("id", "int")), True),
    "long_to_int": (record(field("id", "int")), record(ID), False),
    "long_to_double": (record(field("id", "double")), record(ID), True),
    "float_to_long": (record(ID), record(field("id", "float")), False),
    "text_to_number": (record(ID), record(field("id", "string")), False),
    "nullable_now": (record(field("id", ["null", "long"])), record(ID), True),
    "nullable_and_wider": (record(field("id", ["null", "long"])), record(field("id", ["null", "int"])), True),
    "null_no_more": (record(ID), record(field("id", ["null", "long"])), False),
    "inner_grew": (
        record(field("r", record(field("n", "int"), field("m", "int"), name="inner"))),
        record(field("r", INNER)),
        False,
    ),
    "items": (
        record(field("l", {"type": "array", "items": "long"})),
        record(field("l", {"type": "array", "items": "int"})),
        True,
    ),
    "items_narrower": (
        record(field("l", {"type": "array", "items": "int"})),
        record(field("l", {"type": "array", "items": "long"})),
        False,
    ),
    "values": (
        record(field("m", {"type": "map", "values": "string"})),
        record(field("m", {"type": "map", "values": "long"})),
        False,
    ),
    "fixed_same": (record(field("f", FIXED)), record(field("f", FIXED)), True),
    "fixed_other_size": (record(field("f", FIXED)), record(field("f", {**FIXED, "size": 5})), False),
    "symbol_added": (record(field("e", LETTERS)), record(field("e", FEWER)), True),
    "symbol_removed": (record(field("e", FEWER)), record(field("e", LETTERS)), False),
    "inside_itself": (NEXT, NEXT, True),
}
# Stricter than the specification: the bytes are read, as another value.
MISTAKEN: dict[str, tuple[Any, Any]] = {
    "unit": (
        record(field("t", {"type": "long", "logicalType": "timestamp-millis"})),
        record(field("t", {"type": "long", "logicalType": "timestamp-micros"})),
    ),
    "scale": (
        record(field("d", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2})),
        record(field("d", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 4})),
    ),
    "day_as_number": (record(field("d", "int")), record(field("d", {"type": "int", "logicalType": "date"}))),
}
