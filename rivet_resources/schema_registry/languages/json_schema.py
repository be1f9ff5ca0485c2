"""JSON Schema as a language of registered schemas: of rows as Rivet's NDJSON has them.

Belongs here: types and rules. Source: JSON Schema draft-07; the words that both schemas use must be those of `KNOWN`,
any other one is refused by name, since what it allows is not known here.

A reader understands a writer when every document of the writer's is one of the reader's. Rivet writes what the rule
needs; under `full` no column may come or go.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from rivet_resources.contracts.schema_registry import Compatibility
from rivet_resources.errors import UnsupportedColumn
from rivet_resources.schema_registry.errors import SchemaUnreadable
from rivet_resources.write.formats.avro_schema import is_json, is_uuid, plain_type

FOLLOWS_VERSIONS, FOLLOWS_RULE = False, True
# The newest that all registries compare: Apicurio 3.3.3 answers HTTP 500 to a second version of a later one.
DIALECT = "http://json-schema.org/draft-07/schema#"
NOTES = frozenset({
    "$schema", "$id", "$comment", "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly",
})  # fmt: skip
KNOWN = NOTES | {
    "type", "properties", "required", "additionalProperties", "items", "format", "contentEncoding", "enum", "const",
}  # fmt: skip
TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})

Schema = Mapping[str, Any]


def derive(schema: pa.Schema, *, name: str, rule: Compatibility, before: Sequence[str]) -> str:
    """Return the schema of one line of NDJSON."""
    row = {"$schema": DIALECT, "title": name, **_object(list(schema), is_open=rule.startswith("forward"), path=())}
    return json.dumps(row, ensure_ascii=False, separators=(",", ":"))


def misread(reader: str, writer: str) -> list[str]:
    """Return where a document of the writer's may be none of the reader's."""
    return list(_misread(_parsed(reader), _parsed(writer), ""))


def canonical(text: str) -> str:
    """Return the schema without notes for people, its keys in order."""
    return json.dumps(_without_notes(_parsed(text)), sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def name_of(text: str) -> str:
    """Return the title."""
    title = _parsed(text).get("title")
    return title if isinstance(title, str) else ""


# --- the schema of columns -----------------------------------------------------------------------


def _object(fields: list[pa.Field], *, is_open: bool, path: tuple[str, ...]) -> dict[str, Any]:
    """Describe members; those that may be NULL need not be there, so that rows of before they came are read."""
    members = {each.name: _nullable(each, is_open=is_open, path=(*path, each.name)) for each in fields}
    required = [each.name for each in fields if not each.nullable]
    closed = {} if is_open else {"additionalProperties": False}
    return {"type": "object", "properties": members, **({"required": required} if required else {}), **closed}


def _nullable(field: pa.Field, *, is_open: bool, path: tuple[str, ...]) -> dict[str, Any]:
    kind = _type(field.type, is_open=is_open, path=path)
    # Without a type it may be anything, NULL too.
    if not field.nullable or "type" not in kind:
        return kind
    types = kind["type"] if isinstance(kind["type"], list) else [kind["type"]]
    return {**kind, "type": list(dict.fromkeys(["null", *types]))}


def _type(kind: pa.DataType, *, is_open: bool, path: tuple[str, ...]) -> dict[str, Any]:
    kind = plain_type(kind)
    if pa.types.is_struct(kind):
        return _object(list(kind), is_open=is_open, path=path)
    if pa.types.is_list(kind):
        return {"type": "array", "items": _nullable(kind.value_field, is_open=is_open, path=(*path, "[]"))}
    found = _leaf(kind)
    if found is None:
        raise UnsupportedColumn(
            f"Column {'.'.join(path)} is {kind}, which JSON has no form for. Give it another type under `columns:`, "
            f"or register its schema with `format: avro`."
        )
    return found


def _leaf(kind: pa.DataType) -> dict[str, Any] | None:
    """Return what a cell that has none inside is in NDJSON (docs/formats/ndjson.md); None where it is nothing."""
    if is_uuid(kind):
        return {"type": "string", "format": "uuid"}
    if is_json(kind):
        return {}
    if pa.types.is_boolean(kind):
        return {"type": "boolean"}
    if pa.types.is_integer(kind):
        return {"type": "integer"}
    if pa.types.is_decimal(kind):
        return {"type": "number"}
    if pa.types.is_floating(kind):
        return {"type": ["number", "string"]}  # NaN and the infinities are texts
    if pa.types.is_date(kind):
        return {"type": "string", "format": "date"}
    if pa.types.is_timestamp(kind) and kind.tz:
        return {"type": "string", "format": "date-time"}
    if pa.types.is_null(kind):
        return {"type": "null"}
    is_hex = pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind)
    is_text = pa.types.is_string(kind) or pa.types.is_time(kind) or pa.types.is_timestamp(kind)  # without a zone
    return {"type": "string", "contentEncoding": "base16"} if is_hex else {"type": "string"} if is_text else None


# --- the rules -----------------------------------------------------------------------------------


def _misread(reader: Schema, writer: Schema, path: str) -> Iterator[str]:
    place = path or "a row"
    read, written = _types(reader, place), _types(writer, place)
    lost = sorted(each for each in written if each not in read and not (each == "integer" and "number" in read))
    if lost:
        yield f"{place} may be {' or '.join(lost)}, and the reader takes {' or '.join(sorted(read)) or 'nothing'}"
        return
    for word in ("format", "contentEncoding"):
        if word in reader and reader[word] != writer.get(word) and "string" in written:
            yield f"{place} has {word} {writer.get(word, 'none')}, and the reader takes {reader[word]}"
    yield from _values(reader, writer, place)
    if "object" in written:
        yield from _members(reader, writer, path)
    if "array" in written and "items" in reader:
        yield from _misread(_inner(reader["items"], place), _inner(writer.get("items", {}), place), f"{path}[]")


def _values(reader: Schema, writer: Schema, place: str) -> Iterator[str]:
    """Hold the values that are listed against each other."""
    allowed = _listed(reader)
    if allowed is None:
        return
    told = _listed(writer)
    if told is None or any(each not in allowed for each in told):
        yield f"{place} may be a value that the reader does not list"


def _members(reader: Schema, writer: Schema, path: str) -> Iterator[str]:
    # A schema that allows further members (an *open* one) lets readers of before take new columns, and a *closed* one
    # lets the new reader take old rows: a column may come under `backward` only where schemas are closed, and under
    # `forward` only where they are open.
    read, written = reader.get("properties", {}), writer.get("properties", {})
    is_open, takes_more = (each.get("additionalProperties", True) for each in (writer, reader))
    for name, schema in read.items():
        place = f"{path}.{name}".lstrip(".")
        if name in written:
            yield from _misread(_inner(schema, place), _inner(written[name], place), place)
        elif is_open and _inner(schema, place).keys() - NOTES:
            yield f"{place} is new, and rows of before may have had anything of that name: their schema is open"
    for name in sorted(set(reader.get("required", ())) - set(writer.get("required", ()))):
        yield f"{f'{path}.{name}'.lstrip('.')} is missing in some rows, and the reader needs it"
    if not takes_more:
        for name in sorted(written.keys() - read.keys()):
            yield f"{f'{path}.{name}'.lstrip('.')} is not known to the reader, whose schema is closed"
        if is_open:
            yield f"{path or 'a row'} may have further members, and the reader's schema is closed"


def _listed(schema: Schema) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    return list(schema["enum"]) if "enum" in schema else None


def _types(schema: Schema, place: str) -> frozenset[str]:
    told = schema.get("type", sorted(TYPES))
    found = frozenset([told] if isinstance(told, str) else told)
    if not found <= TYPES:
        raise SchemaUnreadable(f"A JSON schema says type {told!r} of {place}, which is none. Correct that version.")
    # Every whole number is a number.
    return found - {"integer"} if "number" in found else found


def _inner(schema: Any, place: str) -> Schema:
    """Return the schema of a member or an item.

    Raises:
        SchemaUnreadable: it is none, or says what is not known here.
    """
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise SchemaUnreadable(f"A JSON schema has {schema!r} for {place}, whose meaning is not known to Rivet.")
    _refuse_unknown(schema, place)
    return schema


def _refuse_unknown(schema: Schema, place: str) -> None:
    unknown = sorted(schema.keys() - KNOWN)
    if unknown:
        raise SchemaUnreadable(
            f"A JSON schema says {', '.join(unknown)} of {place}; Rivet knows {', '.join(sorted(KNOWN - NOTES))}, and "
            f"cannot tell whether others break readers. Register that schema without it, or set compatibility: none."
        )
    if not isinstance(schema.get("additionalProperties", True), bool):
        raise SchemaUnreadable(
            f"A JSON schema has a schema for additionalProperties of {place}; Rivet knows true and false there. "
            f"Register that schema without it, or set compatibility: none."
        )


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("properties", {}), dict):
        raise SchemaUnreadable("A text is no JSON schema of rows. Look at the subject with `rivet schema show`.")
    _refuse_unknown(found, "a row")
    return found


def _without_notes(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_notes(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: schema[key] for key in schema.keys() - NOTES}
    inside = {
        "properties": {name: _without_notes(each) for name, each in kept.get("properties", {}).items()},
        "items": _without_notes(kept.get("items")),
    }
    return {key: inside.get(key, value) for key, value in kept.items()}
