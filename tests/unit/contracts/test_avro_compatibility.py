"""Which changes of an Avro schema break readers, by the specification and by fastavro as a second opinion."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest

from rivet_resources.schema_registry.languages.avro_compatibility import breaks, canonical, fingerprints, misread
from tests.avro_cases import CASES, ID, MISTAKEN, NOTE, field, record


@pytest.mark.parametrize(("reader", "writer", "is_read"), CASES.values(), ids=CASES)
def test_verdict_is_that_of_the_specification(reader: Any, writer: Any, is_read: bool) -> None:
    """Defaults, promotions, unions, lists, names and symbols."""
    assert is_read == (not misread(reader, writer))


@pytest.mark.parametrize(("reader", "writer"), MISTAKEN.values(), ids=MISTAKEN)
def test_number_of_another_unit_is_not_the_same(reader: Any, writer: Any) -> None:
    """A reader would take microseconds for milliseconds without an error."""
    assert misread(reader, writer)


@pytest.mark.parametrize(("reader", "writer"), [case[:2] for case in CASES.values() if case[2]])
def test_fastavro_reads_what_is_told_to_be_read(reader: Any, writer: Any) -> None:
    """A row of the writer's schema comes through another implementation's resolution."""
    content = io.BytesIO()
    fastavro.schemaless_writer(content, fastavro.parse_schema(writer), _row(writer))
    content.seek(0)

    fastavro.schemaless_reader(content, fastavro.parse_schema(writer), fastavro.parse_schema(reader))


def _row(schema: Any) -> Any:
    if isinstance(schema, list):
        return _row(schema[-1]) if schema[-1] != "row" else None
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "record":
        return {each["name"]: _row(each["type"]) for each in schema["fields"]}
    if kind == "enum":
        return schema["symbols"][0]
    if kind == "fixed":
        return bytes(schema["size"])
    return {"array": [1], "map": {"k": 1}, "string": "x", "null": None, "float": 1.5}.get(kind, 1)


OLD, WIDER, STRICT = record(ID), record(ID, NOTE), record(ID, field("note", "string"))
RULES = [
    ("none", STRICT, [OLD], True),
    ("backward", WIDER, [OLD], True),
    ("backward", STRICT, [OLD], False),
    ("backward", STRICT, [OLD, STRICT], True),  # the newest alone
    ("backward_transitive", STRICT, [OLD, STRICT], False),
    ("forward", STRICT, [OLD], True),
    ("forward", OLD, [STRICT], False),
    ("forward_transitive", OLD, [STRICT, OLD], False),
    ("full", WIDER, [OLD], True),
    ("full", STRICT, [OLD], False),
    ("full", OLD, [STRICT], False),
    ("full_transitive", WIDER, [OLD, WIDER], True),
    ("backward", STRICT, [], True),
]


@pytest.mark.parametrize(("rule", "new", "olds", "holds"), RULES)
def test_each_word_asks_its_direction_and_reach(rule: Any, new: Any, olds: list[Any], holds: bool) -> None:
    """Backward is the new reader, forward the old one; transitive means all versions and not the newest."""
    assert holds == (not breaks(new, olds, compatibility=rule))


def test_what_breaks_is_told_by_column() -> None:
    """The line names the column and whose readers break."""
    assert ["readers of the new schema cannot read old rows: note is missing, and has no default"] == breaks(
        STRICT, [OLD], compatibility="full"
    )


def test_fingerprints_are_those_of_the_canonical_form() -> None:
    """Order of keys, notes and defaults do not count; fastavro comes to the same."""
    one = record(ID, NOTE, namespace="shop", doc="orders")
    other = dict(reversed(list(one.items()))) | {"doc": "other"}

    assert fingerprints(one) == fingerprints(other)
    for name in ("md5", "sha256"):
        word = {"md5": "MD5", "sha256": "SHA-256"}[name]
        assert fastavro.schema.fingerprint(canonical(one), word) == fingerprints(one)[name]
    for reader, _, _ in CASES.values():
        assert fastavro.schema.to_parsing_canonical_form(json.loads(json.dumps(reader))) == canonical(reader)
