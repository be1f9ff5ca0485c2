"""Whether a reader with one Avro schema understands what was written with another.

Belongs here: the rules, over schemas as JSON says them, and fingerprints. Not here: the schema of an export
(`write/formats/avro_schema.py`). Source: Apache Avro 1.12.0 specification, "Schema Resolution", "Parsing Canonical
Form".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rivet_resources.contracts.schema_registry import Compatibility

Misread = Callable[[Any, Any], list[str]]  # (reader, writer) → what the reader does not understand

# What a reader's type takes besides itself: written → read.
PROMOTIONS: Mapping[str, frozenset[str]] = {
    "int": frozenset({"long", "float", "double"}),
    "long": frozenset({"float", "double"}),
    "float": frozenset({"double"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}
LOGICAL = ("logicalType", "precision", "scale")
# In this order, and nothing else, a schema tells readers how bytes are read.
CANONICAL = ("name", "type", "fields", "symbols", "items", "values", "size")


def breaks(
    new: Any, olds: Sequence[Any], *, compatibility: Compatibility, misread_by: Misread | None = None
) -> list[str]:
    """Return what of a new schema breaks the rule towards older ones, the newest of them last; [] when nothing does.

    Args:
        misread_by: the rules of another language than Avro.
    """
    if compatibility == "none":
        return []
    unread = misread_by or misread
    direction, _, reach = compatibility.partition("_")
    found = []
    for old in olds if reach else olds[-1:]:
        if direction in ("backward", "full"):
            found += [f"readers of the new schema cannot read old rows: {each}" for each in unread(new, old)]
        if direction in ("forward", "full"):
            found += [f"readers of the old schema cannot read new rows: {each}" for each in unread(old, new)]
    return list(dict.fromkeys(found))


def misread(reader: Any, writer: Any) -> list[str]:
    """Return what a reader does not understand of rows of a writer, a line each."""
    named = ({}, {})  # type: tuple[dict[str, Any], dict[str, Any]]
    _collect(reader, named[0], "")
    _collect(writer, named[1], "")
    return list(_misread(reader, writer, "", named, set()))


def fingerprints(schema: Any) -> dict[str, str]:
    """Return the MD5 and SHA-256 of the canonical form: equal for schemas that are read alike."""
    content = canonical(schema).encode()
    return {
        "md5": hashlib.md5(content, usedforsecurity=False).hexdigest(),
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def canonical(schema: Any) -> str:
    """Return the parsing canonical form."""
    return json.dumps(_canonical(schema, ""), separators=(",", ":"), ensure_ascii=False)


def _canonical(schema: Any, namespace: str) -> Any:
    if isinstance(schema, list):
        return [_canonical(each, namespace) for each in schema]
    if isinstance(schema, str):
        return schema if _is_primitive(schema) else _full_name(schema, namespace)
    if _is_primitive(schema["type"]):
        return schema["type"]
    name = _name_of(schema, namespace)
    inside = name.rpartition(".")[0] if name else namespace
    made: dict[str, Any] = {}
    for key in CANONICAL:
        if key == "name" and name:
            made[key] = name
        elif key == "fields" and key in schema:
            made[key] = [{"name": each["name"], "type": _canonical(each["type"], inside)} for each in schema[key]]
        elif key in ("items", "values") and key in schema:
            made[key] = _canonical(schema[key], inside)
        elif key in schema and key != "name":
            made[key] = schema[key]
    return made


PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})


def _is_primitive(kind: Any) -> bool:
    return isinstance(kind, str) and kind in PRIMITIVES


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _name_of(schema: Mapping[str, Any], namespace: str) -> str:
    """Return the full name of a record, an enum or a fixed; '' for what has none."""
    if "name" not in schema:
        return ""
    return _full_name(schema["name"], schema.get("namespace", namespace))


def _collect(schema: Any, found: dict[str, Any], namespace: str) -> None:
    """Note every named type below a schema."""
    if isinstance(schema, list):
        for each in schema:
            _collect(each, found, namespace)
    if not isinstance(schema, dict):
        return
    if name := _name_of(schema, namespace):
        found[name] = schema
        # Inside its own namespace a type may be named without it (specification, "Names").
        found.setdefault(schema["name"].rpartition(".")[2], schema)
        namespace = name.rpartition(".")[0]
    for each in [schema.get("items"), schema.get("values"), *(f["type"] for f in schema.get("fields", ()))]:
        _collect(each, found, namespace)


Named = tuple[dict[str, Any], dict[str, Any]]


def _misread(reader: Any, writer: Any, path: str, named: Named, seen: set[tuple[int, int]]) -> Iterator[str]:
    reader, writer = _resolved(reader, named[0]), _resolved(writer, named[1])
    if (id(reader), id(writer)) in seen and isinstance(reader, dict):  # a record inside itself
        return
    seen = seen | {(id(reader), id(writer))}
    if isinstance(writer, list):
        # Every branch that may have been written must be read, and by the reader one that takes it is enough.
        for branch in writer:
            yield from _misread(reader, branch, path, named, seen)
        return
    if isinstance(reader, list):
        if not any(not list(_misread(branch, writer, path, named, seen)) for branch in reader):
            yield f"{path or 'the schema'} may be {_spell(writer)}, which {_spell(reader)} does not take"
        return
    read, written = _kind(reader), _kind(writer)
    # Stricter than the specification: a reader of another unit or scale would take a number for another one without an
    # error.
    if not _takes(read, written) or _logical(reader) != _logical(writer):
        yield f"{path or 'the schema'} is {_spell(writer)}, which {_spell(reader)} does not take"
        return
    if read == "record":
        yield from _misread_record(reader, writer, path, named, seen)
    elif read in ("array", "map"):
        key = "items" if read == "array" else "values"
        yield from _misread(reader[key], writer[key], f"{path}[]", named, seen)
    elif read == "fixed" and reader["size"] != writer["size"]:
        yield f"{path} has {writer['size']} bytes, and not {reader['size']}"
    elif read == "enum" and "default" not in reader and (lost := set(writer["symbols"]) - set(reader["symbols"])):
        yield f"{path} may be {', '.join(sorted(lost))}, which is no symbol of the reader's"


def _misread_record(
    reader: Mapping[str, Any], writer: Mapping[str, Any], path: str, named: Named, seen: set[tuple[int, int]]
) -> Iterator[str]:
    written = {field["name"]: field for field in writer["fields"]}
    for field in reader["fields"]:
        place = f"{path}.{field['name']}".lstrip(".")
        # By name, then by the reader's aliases, never by place. Source: specification, "Schema Resolution", records.
        same = next((written[name] for name in (field["name"], *field.get("aliases", ())) if name in written), None)
        if same is not None:
            yield from _misread(field["type"], same["type"], place, named, seen)
        # What only the writer has is passed over by readers, so it breaks nothing.
        elif "default" not in field:
            yield f"{place} is missing, and has no default"


def _resolved(schema: Any, named: Mapping[str, Any]) -> Any:
    return named.get(schema, schema) if isinstance(schema, str) and not _is_primitive(schema) else schema


def _kind(schema: Any) -> str:
    return str(schema["type"]) if isinstance(schema, dict) else str(schema)


def _takes(read: str, written: str) -> bool:
    return read == written or read in PROMOTIONS.get(written, ())


def _logical(schema: Any) -> tuple[Any, ...]:
    """Return what gives a type its meaning; a decimal without a scale has scale 0."""
    if not isinstance(schema, dict) or "logicalType" not in schema:
        return ()
    return (schema["logicalType"], schema.get("precision"), schema.get("scale", 0))


def _spell(schema: Any) -> str:
    """Write a type in short."""
    if isinstance(schema, list):
        return " or ".join(map(_spell, schema))
    if logical := _logical(schema):
        return f"{logical[0]}({logical[1]},{logical[2]})" if logical[0] == "decimal" else str(logical[0])
    return _kind(schema)
