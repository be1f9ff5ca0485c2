"""Rows as messages: each type as Confluent's deserializers read it, keys, headers of changes, tombstones."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rivet_resources.contracts.change_log import change_schema
from rivet_resources.contracts.messages import MessageBatch, value_schema
from rivet_resources.contracts.schema_registry import RegisteredSchema
from rivet_resources.errors import PartCorrupt, UnknownColumn, UnsupportedColumn, ValueDoesNotFit
from rivet_resources.schema_registry.embedded import EmbeddedSchemaRegistry
from rivet_resources.schema_registry.languages import avro, json_schema
from rivet_resources.schema_registry.server import ServerSettings, registry_server
from rivet_resources.state.store import open_state
from rivet_resources.write.formats.staged_messages import StagedMessages
from rivet_resources.write.messages.encode import RowEncoding, spelling
from tests.unit.write.test_avro import CASES

NOT_IN_JSON = {"map", "nothing"}
AS_TEXT = {"second", "clock", "uuid"}  # CASES has the text, and readers give an object of Python


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EmbeddedSchemaRegistry, Any]]:
    """Rivet's own registry, and Confluent's client that asks it over HTTP."""
    from confluent_kafka.schema_registry import SchemaRegistryClient

    with closing(open_state(f"sqlite:///{tmp_path_factory.mktemp('registry')}/state.db")) as state:
        own = EmbeddedSchemaRegistry(state)
        server = registry_server(own, ServerSettings(port=0), tell=lambda line: None)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield own, SchemaRegistryClient({"url": f"http://localhost:{server.server_port}"})
        finally:
            server.shutdown()
            server.server_close()
            thread.join(5)


def staged(folder: Path, table: pa.Table) -> Path:
    """Write a table as a staged part."""
    path = folder / "part.arrow"
    writer = StagedMessages(type="ndjson").writer(path, table.schema)
    writer.write(table)
    writer.close()
    return path


def encoded(
    folder: Path, table: pa.Table, form: Any, *, id_: int | None = None, key: tuple[str, ...] = ()
) -> MessageBatch:
    """Encode a table as one batch of messages."""
    registered = None if id_ is None else RegisteredSchema("s", 1, id_, "avro", "", "")
    rows = RowEncoding(form, key, "run_1", "all", spelling(form, registered))
    (found,) = rows.messages(staged(folder, table), table.schema)
    return found


@pytest.mark.parametrize("name", CASES)
def test_confluents_deserializer_reads_every_type_of_avro(
    registry: tuple[EmbeddedSchemaRegistry, Any], tmp_path: Path, name: str
) -> None:
    """The value is the one that readers of Avro files see, and NULL is NULL."""
    from confluent_kafka.schema_registry.avro import AvroDeserializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    own, client = registry
    cells, _, first = CASES[name]
    table = pa.table({"c": cells, "id": pa.array([7, -8])})
    text = avro.derive(table.schema, name=f"row_{name}", rule="none", before=())
    number = own.register(name, "avro", text, owner="tests")

    values = encoded(tmp_path, table, "avro", id_=number).values.to_pylist()
    place = SerializationContext("t", MessageField.VALUE)
    rows = [AvroDeserializer(client)(value, place) for value in values]

    told = rows[0]["c"]
    assert [7, -8] == [row["id"] for row in rows]
    assert first == (str(told) if name in AS_TEXT else told)
    assert rows[1]["c"] is None


@pytest.mark.parametrize("name", [name for name in CASES if name not in NOT_IN_JSON])
def test_confluents_deserializer_reads_every_type_of_json(
    registry: tuple[EmbeddedSchemaRegistry, Any], tmp_path: Path, name: str
) -> None:
    """The value passes its registered schema, and is the line that NDJSON files have."""
    from confluent_kafka.schema_registry.json_schema import JSONDeserializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    own, client = registry
    table = pa.table({"c": CASES[name][0], "id": pa.array([7, -8])})
    text = json_schema.derive(table.schema, name=name, rule="none", before=())
    number = own.register(f"json_{name}", "json", text, owner="tests")

    values = encoded(tmp_path, table, "ndjson", id_=number).values.to_pylist()
    plain = encoded(tmp_path, table, "ndjson").values.to_pylist()
    place = SerializationContext("t", MessageField.VALUE)
    rows = [JSONDeserializer(None, schema_registry_client=client)(value, place) for value in values]

    assert [json.loads(value) for value in plain] == rows
    assert [value[5:] for value in values] == plain
    assert [7, -8] == [row["id"] for row in rows]


def changes(*ops: str) -> pa.Table:
    """Return changes of a table of (id, total)."""
    count = len(ops)
    schema = change_schema(pa.schema([pa.field("id", pa.int64()), pa.field("total", pa.int64())]))
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    ids = [None if op == "truncate" else number for number, op in enumerate(ops)]
    return pa.table(
        [
            list(ops), [f"{number:04x}" for number in range(count)], list(range(count)), [at] * count,
            [["total"] if op == "update" else None for op in ops], ids, [None] * count,
        ],
        schema=schema,
    )  # fmt: skip


def test_changes_have_their_place_in_headers_and_deletes_no_value(tmp_path: Path) -> None:
    """A message is the row after; what is known of the change stands in headers."""
    found = encoded(tmp_path, changes("insert", "update", "delete", "truncate"), "ndjson", key=("id",))

    assert [b'{"id":0,"total":null}', b'{"id":1,"total":null}', None, None] == found.values.to_pylist()
    assert found.keys is not None
    assert [b'{"id":0}', b'{"id":1}', b'{"id":2}', None] == found.keys.to_pylist()
    assert found.own is not None
    assert [
        ("rivet.run", b"run_1"),
        ("rivet.window", b"all"),
        ("__op", b"update"),
        ("__pos", b"0001"),
        ("__seq", b"1"),
        ("__ts", b"2026-01-31T12:00:00.000000Z"),
        ("__unchanged", b"total"),
    ] == found.own[1]
    assert [False, False, False, True] == found.is_everywhere
    assert "0003" == found.newest


def test_key_that_is_null_stops_the_window(tmp_path: Path) -> None:
    """Such a message would be of no row."""
    table = pa.table({"id": pa.array([1, None])})

    with pytest.raises(ValueDoesNotFit, match="Key column id holds NULL"):
        encoded(tmp_path, table, "ndjson", key=("id",))


@pytest.mark.parametrize(
    ("form", "key", "error"),
    [("avro", ("nr",), UnknownColumn), ("avro", (), UnsupportedColumn), ("ndjson", (), UnsupportedColumn)],
)
def test_what_messages_cannot_hold_is_refused_before_a_row_is_read(form: Any, key: tuple[str, ...], error: Any) -> None:
    """A key that is no column, and spans of time."""
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("span", pa.duration("us"))])

    with pytest.raises(error):
        StagedMessages(type=form, key=key).check_schema(schema, export="orders")


def test_damaged_staged_part_is_seen(tmp_path: Path) -> None:
    """A part that lost its end is not counted."""
    table = pa.table({"id": pa.array([1, 2])})
    path = staged(tmp_path, table)
    assert 2 == StagedMessages(type="avro").rows(path, table.schema)
    path.write_bytes(path.read_bytes()[:-20])

    with pytest.raises(PartCorrupt):
        StagedMessages(type="avro").rows(path, table.schema)


def test_envelope_is_no_part_of_the_value() -> None:
    """Columns of a change stand in headers."""
    assert ["id", "total"] == value_schema(changes("insert").schema).names
