"""Avro as a language of registered schemas.

Belongs here: the schema that is registered. Not here: the types (`write/formats/avro_schema.py`), the rules
(`schema_registry/languages/avro_compatibility.py`).

What files keep beside the types (`rivet.native_type` and its like) is left out: a text that grew from varchar(20) to
varchar(30) is the same Avro, and no new version.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from rivet_resources.contracts.schema_registry import Compatibility
from rivet_resources.schema_registry.errors import SchemaUnreadable
from rivet_resources.schema_registry.languages import avro_compatibility as rules
from rivet_resources.write.formats.avro import Avro
from rivet_resources.write.formats.avro_schema import avro_schema, is_name

FOLLOWS_VERSIONS, FOLLOWS_RULE = False, False
NOT_AVRO = (KeyError, TypeError, AttributeError, RecursionError)


def derive(schema: pa.Schema, *, name: str, rule: Compatibility, before: Sequence[str]) -> str:
    """Return the schema of a record with these columns; a dotted name has a namespace before its last dot."""
    Avro().check_schema(schema, export=name)
    namespace, _, last = name.rpartition(".")
    record = avro_schema(pa.schema([_bare(field) for field in schema]), name=record_name(last))
    if namespace:
        record["namespace"] = ".".join(map(record_name, namespace.split(".")))
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"))


def misread(reader: str, writer: str) -> list[str]:
    """Return what a reader does not understand of rows of a writer, by Avro's schema resolution."""
    one, other = _parsed(reader), _parsed(writer)
    try:
        return rules.misread(one, other)
    except NOT_AVRO as error:
        raise _unreadable() from error


def canonical(text: str) -> str:
    """Return Avro's parsing canonical form."""
    try:
        return rules.canonical(_parsed(text))
    except NOT_AVRO as error:
        raise _unreadable() from error


def name_of(text: str) -> str:
    """Return the record's name without its namespace: by Avro, that is what must agree."""
    parsed = _parsed(text)
    name = parsed.get("name") if isinstance(parsed, dict) else None
    return name.rpartition(".")[2] if isinstance(name, str) else ""


def record_name(export: str) -> str:
    """Return the name of an export as Avro takes it: other signs become _."""
    name = "".join(sign if sign.isascii() and sign.isalnum() else "_" for sign in export)
    return f"_{name}" if name[:1].isdigit() else name


def _bare(field: pa.Field) -> pa.Field:
    """Return a field without what Rivet notes beside its type, members of structs included."""
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_bare(child) for child in kind])
    elif pa.types.is_list(kind):
        kind = pa.list_(_bare(kind.value_field))
    return pa.field(field.name, kind, field.nullable)


def _parsed(text: str) -> Any:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _unreadable() from error
    try:
        is_avro = _is_schema(found, set())
    except NOT_AVRO as error:
        raise _unreadable() from error
    if not is_avro:
        raise _unreadable()
    return found


def _is_schema(schema: Any, names: set[str]) -> bool:
    """Return whether it is a schema, as far as readers depend on it; `names` are the types defined so far."""
    if isinstance(schema, list):
        # By Avro, a union has branches, and none of them is a union itself.
        return bool(schema) and all(not isinstance(each, list) and _is_schema(each, names) for each in schema)
    if isinstance(schema, str):
        return schema in rules.PRIMITIVES or schema.rpartition(".")[2] in names
    kind = schema["type"]
    if kind in ("record", "error", "enum", "fixed"):
        # Before its fields are looked at: one of them may be of this very type, as in a list of nodes.
        names.add(_checked_name(schema["name"]).rpartition(".")[2])
    if kind in ("record", "error"):
        fields = schema["fields"]
        is_once = len({_checked_name(each["name"]) for each in fields}) == len(fields)
        return is_once and all(_is_schema(each["type"], names) for each in fields)
    if kind == "enum":
        return bool(schema["symbols"]) and all(isinstance(each, str) for each in schema["symbols"])
    if kind == "fixed":
        # `true` is an int to Python, and no size.
        return type(schema["size"]) is int and schema["size"] >= 0
    if kind in ("array", "map"):
        return _is_schema(schema["items" if kind == "array" else "values"], names)
    return _is_schema(kind, names)


def _checked_name(name: Any) -> str:
    if not isinstance(name, str) or not all(map(is_name, name.split("."))):
        raise TypeError("a name")
    return name


def _unreadable() -> SchemaUnreadable:
    return SchemaUnreadable("A text is no Avro schema. Look at the subject's versions with `rivet schema show`.")
