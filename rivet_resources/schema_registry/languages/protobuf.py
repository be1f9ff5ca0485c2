"""Protobuf as a language of registered schemas: a message per row, its fields' numbers kept from version to version.

Belongs here: types, numbers and rules. Source: Protocol Buffers documentation, "Language Guide (proto 3)", "Updating A
Message Type". Texts are read by `proto-schema-parser`, the extra `protobuf`.

A column that went leaves its number and name reserved.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from rivet_resources.contracts.schema_registry import Compatibility
from rivet_resources.errors import UnsupportedColumn
from rivet_resources.extras import PROTOBUF
from rivet_resources.schema_registry.errors import SchemaUnreadable
from rivet_resources.write.formats.avro_schema import is_json, is_name, is_uuid, plain_type

FOLLOWS_VERSIONS, FOLLOWS_RULE = True, False
TIMESTAMP = "google.protobuf.Timestamp"
FIRST_OF_PROTOBUF, LAST_OF_PROTOBUF, LAST = 19_000, 19_999, 536_870_911  # numbers that it keeps, and its last one
# What a reader's type takes besides itself, with every value the same: written → read.
TAKES: Mapping[str, frozenset[str]] = {
    "bool": frozenset({"int32", "int64", "uint32", "uint64"}),
    "int32": frozenset({"int64"}),
    "uint32": frozenset({"uint64", "int64"}),
    "sint32": frozenset({"sint64"}),
    "string": frozenset({"bytes"}),
}
SCALARS = frozenset({
    "double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32",
    "sfixed64", "bool", "string", "bytes",
})  # fmt: skip


@dataclass(frozen=True)
class ProtoField:
    """One field of a message. `message`, `symbols`: what its type is, where it is defined in the same text."""

    name: str
    number: int
    type: str
    label: str  # optional, repeated, map or ''
    message: ProtoMessage | None = None
    symbols: Mapping[str, int] | None = None


@dataclass(frozen=True)
class ProtoMessage:
    """One message: fields by number, and what it reserves."""

    name: str
    fields: Mapping[int, ProtoField] = field(default_factory=dict)
    reserved: frozenset[tuple[int, int]] = frozenset()  # first and last number
    reserved_names: frozenset[str] = frozenset()


EMPTY = ProtoMessage("")


def derive(schema: pa.Schema, *, name: str, rule: Compatibility, before: Sequence[str]) -> str:
    """Return a message with these columns, its numbers those of the version before."""
    package, _, last = name.rpartition(".")
    message = _message_name(last)
    body = list(_message(list(schema), message, _parsed(before[-1]) if before else EMPTY, path=(), indent=""))
    lines = ['syntax = "proto3";']
    lines += [f"package {package};"] if package else []
    lines += ['import "google/protobuf/timestamp.proto";'] if any(TIMESTAMP in line for line in body) else []
    return "\n".join([*lines, "", *body, ""])


def misread(reader: str, writer: str) -> list[str]:
    """Return what a reader does not understand, or understands otherwise, of messages of a writer."""
    return list(_misread(_parsed(reader), _parsed(writer), "", frozenset()))


def canonical(text: str) -> str:
    """Return the message without comments, options and the order of its lines."""
    return json.dumps(_plain(_parsed(text), frozenset()), sort_keys=True, separators=(",", ":"))


def name_of(text: str) -> str:
    """Return the name of the first message."""
    return _parsed(text).name


def numbers_of(text: str) -> dict[str, tuple[int, Any]]:
    """Return the number of each field of the first message, with the same of a message inside: {name: (number, …)}."""
    return _numbers(_parsed(text))


def _numbers(message: ProtoMessage) -> dict[str, tuple[int, Any]]:
    return {
        each.name: (each.number, _numbers(each.message) if each.message is not None else None)
        for each in message.fields.values()
    }


# --- the message of columns ----------------------------------------------------------------------


def _message_name(text: str) -> str:
    name = "".join(sign if sign.isascii() and sign.isalnum() else "_" for sign in text)
    return f"_{name}" if name[:1].isdigit() else name


def _message(
    columns: list[pa.Field], name: str, old: ProtoMessage, *, path: tuple[str, ...], indent: str
) -> Iterator[str]:
    """Yield the lines of a message: what it reserves, messages inside, fields."""
    names = [each.name for each in columns]
    known = {each.name: each for each in old.fields.values()}
    # What went stays reserved, number and name: given to another column, old messages would show its values as theirs.
    gone = [each for each in old.fields.values() if each.name not in names]
    reserved = sorted({*old.reserved, *((each.number, each.number) for each in gone)})
    # Behind the highest that ever was in use, and never into a hole: messages of an older version may have that number.
    taken = max([0, *old.fields, *(last for _, last in reserved)])
    inner = f"{indent}  "
    yield f"{indent}message {name} {{"
    if reserved:
        yield f"{inner}reserved {', '.join(str(a) if a == b else f'{a} to {b}' for a, b in reserved)};"
    if words := sorted({*old.reserved_names, *(each.name for each in gone)} - set(names)):
        yield f"{inner}reserved {', '.join(json.dumps(word) for word in words)};"
    for column in columns:
        place = (*path, column.name)
        if column.name in known:
            number = known[column.name].number
        else:
            number = taken = _next(taken, place)
        kind = plain_type(column.type)
        if pa.types.is_struct(kind):
            of = f"{column.name}_row"
            if of in names:
                raise _unsupported(place, kind, f"whose message would be called {of}, as another column is")
            before = known[column.name].message if column.name in known else None
            yield from _message(list(kind), of, before or EMPTY, path=place, indent=inner)
        else:
            of = _leaf(kind, place)
        # Every field is `optional`, so that a reader tells NULL, and a column that came later, from 0 and ''.
        yield f"{inner}optional {of} {column.name} = {number};"
    yield f"{indent}}}"


def _next(taken: int, path: tuple[str, ...]) -> int:
    # Source: "Language Guide (proto 3)", "Assigning Field Numbers": 19,000 to 19,999 are the implementation's.
    number = LAST_OF_PROTOBUF + 1 if FIRST_OF_PROTOBUF <= taken + 1 <= LAST_OF_PROTOBUF else taken + 1
    if number > LAST:
        raise UnsupportedColumn(
            f"Column {'.'.join(path)} would be field {number}, and Protobuf ends at {LAST}. Begin a new subject."
        )
    return number


def _leaf(kind: pa.DataType, path: tuple[str, ...]) -> str:
    """Return the type of a cell that has none inside.

    Raises:
        UnsupportedColumn
    """
    if not is_name(path[-1]):
        raise _unsupported(path, kind, "and its name is none in Protobuf: letters, digits and '_'")
    if pa.types.is_boolean(kind):
        return "bool"
    if pa.types.is_integer(kind):
        return f"{'int' if pa.types.is_signed_integer(kind) else 'uint'}{64 if kind.bit_width == 64 else 32}"
    if pa.types.is_floating(kind):
        return "double" if kind == pa.float64() else "float"
    if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return "bytes"
    if pa.types.is_timestamp(kind) and kind.tz:
        return TIMESTAMP
    is_text = is_uuid(kind) or is_json(kind) or pa.types.is_string(kind) or pa.types.is_decimal(kind)
    if is_text or pa.types.is_date(kind) or pa.types.is_time(kind) or pa.types.is_timestamp(kind):
        # As CSV writes them: Protobuf has no type of its own that holds all of them.
        return "string"
    why = "and repeated fields know no NULL" if pa.types.is_nested(kind) else "which Protobuf has no type for"
    raise _unsupported(path, kind, why)


def _unsupported(path: tuple[str, ...], kind: pa.DataType, why: str) -> UnsupportedColumn:
    return UnsupportedColumn(
        f"Column {'.'.join(path)} is {kind}, {why}. Register its schema with `format: avro`, or change the column by "
        f"`transforms:`."
    )


# --- the rules -----------------------------------------------------------------------------------

Seen = frozenset[tuple[str, str]]


def _misread(reader: ProtoMessage, writer: ProtoMessage, path: str, seen: Seen) -> Iterator[str]:
    if (reader.name, writer.name) in seen:  # a message inside itself
        return
    seen |= {(reader.name, writer.name)}
    for number, written in sorted(writer.fields.items()):
        read = reader.fields.get(number)
        place = f"{path}.{written.name}".lstrip(".")
        if read is None:
            # Readers pass over fields that they do not know.
            continue
        if read.name != written.name:
            yield f"field {number} is {place}, and the reader calls it {read.name}"
        elif read.label == "" and written.label == "optional" and read.message is None:
            yield f"{place} may be absent, which the reader takes for its zero"
        elif {read.label, written.label} & {"repeated", "map"} and read.label != written.label:
            yield f"{place} is {written.label or 'single'}, and the reader takes {read.label or 'single'}"
        else:
            yield from _misread_type(read, written, place, seen)
    for number, read in sorted(reader.fields.items()):
        if number not in writer.fields and read.label == "" and read.message is None:
            yield f"{f'{path}.{read.name}'.lstrip('.')} is missing, and the reader takes its zero"


def _misread_type(read: ProtoField, written: ProtoField, place: str, seen: Seen) -> Iterator[str]:
    # The rules are stricter than Protobuf's wire format in what would change a value in silence: a number that gets
    # another name, a narrower type, and absent fields that read as 0.
    if read.message is not None and written.message is not None:
        yield from _misread(read.message, written.message, place, seen)
    elif read.symbols is not None and written.symbols is not None:
        # Name and number together: a reader knows the number alone, and another name for it would be another value.
        if lost := sorted(set(written.symbols.items()) - set(read.symbols.items())):
            yield f"{place} may be {', '.join(name for name, _ in lost)}, which the reader does not know"
    elif (read.message is None) != (written.message is None) or not _takes(read.type, written.type):
        yield f"{place} is {written.type}, which {read.type} does not take"


def _takes(read: str, written: str) -> bool:
    return read == written or read in TAKES.get(written, ())


# --- reading texts -------------------------------------------------------------------------------


def _parsed(text: str) -> ProtoMessage:
    """Read the first message of a text.

    Raises:
        SchemaUnreadable: it has none, or what is not known here.
        ExtraMissing
    """
    PROTOBUF.require()
    from antlr4.error.ErrorListener import ErrorListener  # driver
    from proto_schema_parser import ast  # driver
    from proto_schema_parser.parser import Parser  # driver

    class Strict(ErrorListener):  # type: ignore[misc]  # the parser's own prints, and goes on
        def syntaxError(self, *_: Any) -> None:
            raise ValueError("syntax")

    def strictly(each: Any) -> None:
        each.removeErrorListeners()
        each.addErrorListener(Strict())

    try:
        file = Parser(setup_lexer=strictly, setup_parser=strictly).parse(text)
    except (ValueError, RecursionError, AttributeError, TypeError) as error:
        raise _unreadable("is none") from error
    messages = [each for each in file.file_elements if isinstance(each, ast.Message)]
    if not messages or file.syntax != "proto3":
        raise _unreadable("has no message, or is not proto3")
    return _Texts(ast, {each.name: each for each in file.file_elements if hasattr(each, "elements")}).message(
        messages[0], (), ()
    )


Scopes = tuple[Mapping[str, Any], ...]  # what is defined in each message around, the innermost first


@dataclass(frozen=True)
class _Texts:
    """Turns what was parsed into messages; types are looked for from the inside to the outside."""

    ast: Any
    outside: Mapping[str, Any]

    def message(self, found: Any, scopes: Scopes, open_: tuple[str, ...]) -> ProtoMessage:
        ast, fields = self.ast, dict[int, ProtoField]()
        inside = {each.name: each for each in found.elements if isinstance(each, ast.Message | ast.Enum)}
        scopes, open_ = (inside, *scopes), (*open_, found.name)
        numbers, names = set[tuple[int, int]](), set[str]()
        for each in found.elements:
            if isinstance(each, ast.Field):
                label = each.cardinality.value.lower() if each.cardinality else ""
                fields[each.number] = self._field(each.name, each.number, each.type, label, scopes, open_)
            elif isinstance(each, ast.MapField):
                kind = f"map<{each.key_type},{each.value_type}>"
                fields[each.number] = ProtoField(each.name, each.number, kind, "map")
            elif isinstance(each, ast.Reserved):
                numbers |= {_range(text) for text in each.ranges}
                names |= {str(name).strip("\"'") for name in each.names}
            elif not isinstance(each, ast.Message | ast.Enum | ast.Comment | ast.Option):
                raise _unreadable(f"has {type(each).__name__.lower()} in message {found.name}")
        return ProtoMessage(found.name, fields, frozenset(numbers), frozenset(names))

    def _field(
        self,
        name: str,
        number: int,
        kind: str,
        label: str,
        scopes: Scopes,
        open_: tuple[str, ...],
    ) -> ProtoField:
        found = next((scope[kind] for scope in (*scopes, self.outside) if kind in scope), None)
        if kind in SCALARS or kind.lstrip(".") == TIMESTAMP:
            return ProtoField(name, number, kind.lstrip("."), label)
        if found is None:
            raise _unreadable(f"has field {name} of type {kind}, which is not in the same text")
        if isinstance(found, self.ast.Enum):
            values = {each.name: each.number for each in found.elements if isinstance(each, self.ast.EnumValue)}
            return ProtoField(name, number, kind, label, symbols=values)
        # A message that holds itself is named and not opened again, or this would never end.
        inner = ProtoMessage(kind) if kind in open_ else self.message(found, scopes, open_)
        return ProtoField(name, number, kind, label, inner)


def _range(text: str) -> tuple[int, int]:
    first, _, last = str(text).partition(" to ")
    return int(first), LAST if last.strip() == "max" else int(last or first)


def _unreadable(what: str) -> SchemaUnreadable:
    return SchemaUnreadable(
        f"A Protobuf schema {what}. Rivet knows proto3 messages with scalar, enum, message and map fields, all in one "
        f"text. Look at the subject with `rivet schema show`, or name another one."
    )


def _plain(message: ProtoMessage, seen: frozenset[str]) -> dict[str, Any]:
    inside = seen | {message.name}
    return {
        "name": message.name,
        "fields": {
            number: [
                each.name, each.type, each.label,
                _plain(each.message, inside) if each.message and each.message.name not in inside else None,
                dict(each.symbols) if each.symbols is not None else None,
            ]
            for number, each in sorted(message.fields.items())
        },
        "reserved": [*map(list, sorted(message.reserved)), *sorted(message.reserved_names)],
    }  # fmt: skip
