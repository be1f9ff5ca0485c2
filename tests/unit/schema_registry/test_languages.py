"""What a change of a table breaks, in each language; texts that are no schemas; numbers of Protobuf's fields."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from rivet_resources.errors import UnsupportedColumn
from rivet_resources.schema_registry.errors import SchemaUnreadable
from rivet_resources.schema_registry.languages import avro, json_schema, protobuf
from rivet_resources.schema_registry.languages.language import breaks, fingerprints, is_same, language
from tests.schema_cases import BASE, CHANGES, LANGUAGES, Language


def texts(form: Language, change: str, rule: Any) -> tuple[str, str]:
    """Return the schemas of before and after a change."""
    spoken = language(form)
    old = spoken.derive(BASE, name="orders", rule=rule, before=())
    return old, spoken.derive(CHANGES[change].after, name="orders", rule=rule, before=[old])


@pytest.mark.parametrize("rule", ["backward", "forward"])
@pytest.mark.parametrize("form", LANGUAGES)
@pytest.mark.parametrize("change", CHANGES)
def test_change_breaks_who_the_table_says(form: Language, change: str, rule: Any) -> None:
    """No more, no less; `full` breaks where either does, and `none` never."""
    old, new = texts(form, change, rule)

    assert (form in getattr(CHANGES[change], rule)) == bool(breaks(form, new, [old], rule=rule))
    assert [] == breaks(form, new, [old], rule="none")


def test_only_a_transitive_rule_looks_back_further_than_one_version() -> None:
    """A column that went two versions ago and comes back as another type is seen by `backward_transitive` alone."""
    first, _ = texts("avro", "nothing", "backward")
    middle = avro.derive(BASE.remove(2), name="orders", rule="backward", before=())
    last = avro.derive(BASE.set(2, pa.field("total", pa.string())), name="orders", rule="backward", before=())

    assert [] == breaks("avro", last, [first, middle], rule="backward")
    assert [] != breaks("avro", last, [first, middle], rule="backward_transitive")


@pytest.mark.parametrize("form", LANGUAGES)
def test_fingerprints_are_those_of_the_meaning(form: Language) -> None:
    """Blanks and the order of keys change nothing; a column does."""
    old, new = texts(form, "a column that may be NULL comes", "backward")
    spaced = old.replace("{", "{ ") if form == "protobuf" else json.dumps(json.loads(old), indent=3)

    assert fingerprints(form, old) == fingerprints(form, spaced) != fingerprints(form, new)
    assert is_same(form, old, spaced)
    assert not is_same(form, old, new)


@pytest.mark.parametrize("form", LANGUAGES)
@pytest.mark.parametrize(
    "text", ["", "{", "[1]", "[]", "7", '{"a": 1}', "message {{", '"' * 9, "[" * 100_000, "\x00", "null", '"nothing"']
)
def test_text_that_is_no_schema_is_refused(form: Language, text: str) -> None:
    """With an error of ours, whatever it is; JSON Schema takes every object whose words it knows."""
    with pytest.raises(SchemaUnreadable):
        language(form).misread(text, text)


@pytest.mark.parametrize(
    "text",
    [
        '{"type": "record", "name": "a"}',
        '{"type": "record", "name": "a", "fields": [{"name": "x y", "type": "int"}]}',
        '{"type": "record", "name": "a", "fields": [{"name": "x", "type": "number"}]}',
        '{"type": "record", "name": "a", "fields": [{"name": "x", "type": "int"}, {"name": "x", "type": "int"}]}',
        '{"type": "fixed", "name": "a", "size": "4"}',
        '{"type": "enum", "name": "a", "symbols": []}',
        '{"type": "array"}',
        '["int", ["null", "long"]]',
    ],
)
def test_avro_that_no_reader_would_take_is_refused(text: str) -> None:
    """Else it would be kept, and stand in the way of every schema after it."""
    with pytest.raises(SchemaUnreadable):
        avro.canonical(text)


# --- JSON ----------------------------------------------------------------------------------------

WORDS: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {  # reader, writer, does the reader understand
    "whole numbers are numbers": ({"type": "number"}, {"type": "integer"}, True),
    "numbers are not whole": ({"type": "integer"}, {"type": "number"}, False),
    "a list of types": ({"type": ["null", "string"]}, {"type": "string"}, True),
    "anything": ({}, {"type": ["object", "array"]}, True),
    "not anything": ({"type": "string"}, {}, False),
    "format": ({"type": "string", "format": "date"}, {"type": "string"}, False),
    "format more exact": ({"type": "string"}, {"type": "string", "format": "date"}, True),
    "enum grows": ({"enum": ["a", "b"]}, {"enum": ["a"]}, True),
    "enum shrinks": ({"enum": ["a"]}, {"enum": ["a", "b"]}, False),
    "const": ({"const": 1}, {"enum": [1]}, True),
    "items": ({"type": "array", "items": {"type": "integer"}}, {"type": "array", "items": {"type": "number"}}, False),
    "any items": ({"type": "array", "items": {"type": "integer"}}, {"type": "array"}, False),
}


@pytest.mark.parametrize("case", WORDS)
def test_words_of_json_schema(case: str) -> None:
    """Each of those that Rivet knows, inside a row."""
    reader, writer, understands = WORDS[case]
    rows = [json.dumps({"properties": {"x": each}, "additionalProperties": False}) for each in (reader, writer)]

    assert understands == (json_schema.misread(*rows) == [])


@pytest.mark.parametrize("word", ["$ref", "anyOf", "pattern", "minimum", "patternProperties", "if"])
def test_word_of_json_schema_that_is_not_known_is_refused_by_name(word: str) -> None:
    """Nobody can say whether it breaks readers."""
    text = json.dumps({"properties": {"x": {word: 1}}})

    with pytest.raises(SchemaUnreadable, match=word.replace("$", r"\$")):
        json_schema.misread(text, text)


# --- Protobuf ------------------------------------------------------------------------------------


def numbers(text: str) -> dict[str, int]:
    """Return the fields of the message with their numbers."""
    return {each.name: number for number, each in protobuf._parsed(text).fields.items()}


def test_number_of_a_field_is_never_another_ones() -> None:
    """A column that goes and comes back has a new number; the others keep theirs, whatever their order."""
    first = protobuf.derive(BASE, name="orders", rule="backward", before=())
    second = protobuf.derive(BASE.remove(1), name="orders", rule="backward", before=[first])
    turned = pa.schema([*list(BASE)[::-1], pa.field("nick", pa.string())])
    third = protobuf.derive(turned, name="orders", rule="backward", before=[second])

    without_last = BASE.remove(3).append(pa.field("nick", pa.string()))
    other = protobuf.derive(without_last, name="orders", rule="backward", before=[first])

    assert {"id": 1, "status": 2, "total": 3, "at": 4} == numbers(first)
    assert {"id": 1, "status": 2, "total": 3, "nick": 5} == numbers(other)
    assert {"id": 1, "total": 3, "at": 4} == numbers(second)
    assert {"id": 1, "status": 5, "total": 3, "at": 4, "nick": 6} == numbers(third)


def test_numbers_that_protobuf_keeps_are_left_out() -> None:
    """19000 to 19999 belong to its implementation."""
    old = 'syntax = "proto3"; message orders { optional int64 id = 18999; }'

    assert 20_000 == numbers(protobuf.derive(BASE, name="orders", rule="none", before=[old]))["status"]


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.map_(pa.string(), pa.int64()), pa.null()])
def test_column_that_protobuf_cannot_hold_with_its_null_is_refused_by_name(kind: pa.DataType) -> None:
    """Repeated fields know no NULL."""
    with pytest.raises(UnsupportedColumn, match="tags"):
        protobuf.derive(pa.schema([pa.field("tags", kind)]), name="orders", rule="none", before=())


FIELDS = {  # reader, writer, does the reader understand
    "another name": ("optional int64 a = 1;", "optional int64 b = 1;", False),
    "narrower": ("optional int32 a = 1;", "optional int64 a = 1;", False),
    "wider": ("optional int64 a = 1;", "optional int32 a = 1;", True),
    "sign": ("optional uint64 a = 1;", "optional int32 a = 1;", False),
    "zigzag": ("optional int64 a = 1;", "optional sint64 a = 1;", False),
    "text as bytes": ("optional bytes a = 1;", "optional string a = 1;", True),
    "bytes as text": ("optional string a = 1;", "optional bytes a = 1;", False),
    "absent becomes zero": ("int64 a = 1;", "optional int64 a = 1;", False),
    "missing becomes zero": ("int64 a = 1;", "", False),
    "missing": ("optional int64 a = 1;", "", True),
    "unknown": ("", "optional int64 a = 1;", True),
    "repeated": ("optional int64 a = 1;", "repeated int64 a = 1;", False),
    "enum grows": ("enum E { A = 0; } E a = 1;", "enum E { A = 0; B = 1; } E a = 1;", False),
    "message inside": ("message M { int32 x = 1; } M a = 1;", "message M { string x = 1; } M a = 1;", False),
    "message inside itself": ("orders a = 1;", "orders a = 1;", True),
}


@pytest.mark.parametrize("case", FIELDS)
def test_fields_of_protobuf(case: str) -> None:
    """Whatever would change a value without an error is a break."""
    *bodies, understands = FIELDS[case]
    texts = [f'syntax = "proto3"; message orders {{ {body} }}' for body in bodies]

    assert understands == (protobuf.misread(*texts) == [])
