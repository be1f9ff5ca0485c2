"""Exports and drains to a real Kafka: each mode once, read back as others would, re-runs, refusals, faults."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rivet_assets.cli.main import commands
from rivet_assets.config.load import load_config
from rivet_assets.prove.reconcile import reconcile_export
from rivet_assets.prove.validate import validate_export
from rivet_assets.run import schema_agreement
from rivet_assets.run.admit.scope import state_of
from rivet_resources.commit.rerun import WindowInTopic
from rivet_resources.destinations.kafka import Kafka
from rivet_resources.destinations.kafka_client import MessageTooLarge, TopicChanged, TopicMissing
from rivet_resources.destinations.probe import probe
from rivet_resources.errors import (
    ConfigError,
    DestinationAuth,
    DestinationError,
    DestinationUnreachable,
    RivetError,
    WindowTaken,
)
from rivet_resources.schema_registry.embedded import EmbeddedSchemaRegistry
from tests.faults.shop import postgres_shop
from tests.faults.topic_run import export_once
from tests.protobuf_classes import message_class
from tests.servers import kafka as servers_kafka
from tests.servers.kafka import Broker
from tests.servers.postgres import free_port
from tests.servers.registries import own_registry

pytestmark = pytest.mark.xdist_group("kafka")
DAYS = 3


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A folder with a database of ninety orders of three days."""
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database, database:
        database.execute(
            "CREATE TABLE orders (id integer PRIMARY KEY, region text NOT NULL, at timestamp NOT NULL, note text)"
        )
        database.executemany(
            "INSERT INTO orders VALUES (?, ?, ?, ?)",
            ((n, "eu" if n % 3 else "us", f"2026-01-{1 + n % DAYS:02d} 12:00:00", None) for n in range(1, 91)),
        )
    return tmp_path


def configure(folder: Path, broker: Broker, topic: str, keys: str = "format: ndjson", more: str = "") -> Path:
    """Write a config with one export of the orders; `keys` of the export, `more` of the destination."""
    config = folder / "rivet.yaml"
    config.write_text(
        f"source: {{type: sqlite, path: {folder}/shop.db}}\nspark: inline\nschema_registry: {{embedded: true}}\n"
        f"exports:\n  - {{name: orders, table: orders, {keys},\n"
        f"     destination: {{type: kafka, bootstrap_servers: '{broker.servers}', topic: {topic}{more}}}}}\n"
    )
    return config


def ids(broker: Broker, topic: str) -> list[int]:
    """Return the ids that a reader of committed messages finds, sorted."""
    return sorted(json.loads(value)["id"] for value in broker.read(topic, decode=lambda m: m.value()) if value)


ALL = list(range(1, 91))
MODES = {
    "full": ("mode: full", ("",)),
    "chunked": ("mode: chunked, chunk_column: id, chunk_size: 30", ("",)),
    "incremental": ("mode: incremental, cursor_column: id", ("", "")),
    "time_window": (
        "mode: time_window, time_column: at, columns: {at: timestamp}, start: 2026-01-01, end: 2026-01-04",
        tuple(f"2026-01-0{day}" for day in (1, 2, 3)),
    ),
    "poll": ("mode: poll, updated_at_column: at, columns: {at: timestamp}", ("", "")),
    "by value": ("mode: full, partition_by: {column: region, values: [eu, us]}", ("eu", "us")),
}


@pytest.mark.parametrize("mode", [pytest.param(mode, marks=pytest.mark.wide) for mode in MODES])
def test_each_mode_produces_each_row_once(kafka: Broker, shop: Path, mode: str) -> None:
    """Windows of every kind go into the topic, with the table's key, and are told as they are."""
    keys, partitions = MODES[mode]
    topic = kafka.topic()
    config = configure(shop, kafka, topic, f"format: ndjson, {keys}")

    for partition in partitions:
        export_once(config, partition=partition)

    assert ALL == ids(kafka, topic)
    keyed = kafka.read(topic, decode=lambda m: (m.key(), b'{"id":%d}' % json.loads(m.value())["id"]))
    assert all(key == expected for key, expected in keyed)
    loaded = load_config(config)
    with closing(state_of(loaded)) as state:
        (validated,) = validate_export(loaded.exports[0], state=state)
    assert ("match", 90) == (validated.verdict, sum(window.rows for window in validated.windows))


@pytest.mark.parametrize("mode", ["full", "time_window"])
def test_window_that_is_committed_is_not_produced_again(kafka: Broker, shop: Path, mode: str) -> None:
    """A re-run is refused before a row is read; a copy that is asked for names its run."""
    keys, partitions = MODES[mode]
    topic = kafka.topic()
    config = configure(shop, kafka, topic, f"format: ndjson, {keys}")
    for partition in partitions:
        export_once(config, partition=partition)

    with pytest.raises(WindowInTopic, match="on_rerun: append"):
        export_once(config, partition=partitions[0])
    assert ALL == ids(kafka, topic)
    configure(shop, kafka, topic, f"format: ndjson, {keys}", ", on_rerun: append")
    again = export_once(config, partition=partitions[0])

    runs = kafka.read(topic, decode=lambda m: dict(m.headers())["rivet.run"])
    assert 90 + again == len(runs)
    assert len(partitions) + 1 == len(set(runs))


@pytest.mark.rare
def test_incremental_export_goes_on_from_the_topic_where_its_store_is_lost(kafka: Broker, shop: Path) -> None:
    """The topic of windows is the truth, also after a reset of the state."""
    topic = kafka.topic()
    config = configure(shop, kafka, topic, f"format: ndjson, {MODES['incremental'][0]}")
    export_once(config)
    (shop / ".rivet_state.db").unlink()

    assert 0 == export_once(config)
    assert ALL == ids(kafka, topic)


Reader = Callable[[Any], "dict[str, Any] | None"]


def confluents_reader(form: str, client: Any, topic: str) -> Reader:
    """Return what reads a value by Confluent's deserializer of a form, and by the newest version of its subject."""
    from confluent_kafka.serialization import MessageField, SerializationContext

    place = SerializationContext(topic, MessageField.VALUE)
    if form == "avro":
        from confluent_kafka.schema_registry.avro import AvroDeserializer

        deserialize = AvroDeserializer(client)
        return lambda message: deserialize(message.value(), place)
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer

    made = message_class(client.get_latest_version(f"{topic}-value").schema.schema_str)
    parse = ProtobufDeserializer(made, {"use.deprecated.format": False})

    def read(message: Any) -> dict[str, Any] | None:
        found = parse(message.value(), place)
        if found is None:
            return None
        return {each.name: getattr(found, each.name) for each in made.DESCRIPTOR.fields if found.HasField(each.name)}

    return read


@pytest.mark.parametrize("form", ["avro", "protobuf"])
def test_readers_resolve_the_registered_schema(kafka: Broker, shop: Path, form: str) -> None:
    """Confluent's consumer and deserializer read rows by Rivet's own registry."""
    from confluent_kafka.schema_registry import SchemaRegistryClient

    topic = kafka.topic()
    config = configure(shop, kafka, topic, f"format: {form}, schema_registry: {form}")
    export_once(config)

    with closing(state_of(load_config(config))) as state, own_registry(EmbeddedSchemaRegistry(state)) as url:
        client = SchemaRegistryClient({"url": url})
        assert [f"{topic}-value"] == client.get_subjects()
        rows = kafka.read(topic, decode=confluents_reader(form, client, topic))

    assert ALL == sorted(row["id"] for row in rows)
    assert {"id", "region", "at", "note"} >= rows[0].keys()
    assert {"id", "region", "at"} <= rows[0].keys()


@pytest.mark.parametrize("form", ["avro", "protobuf"])
def test_changes_have_a_schema_and_tombstones(kafka: Broker, fresh_database: str, tmp_path: Path, form: str) -> None:
    """A drain registers its table's schema; deletes are keys without a value; a new column is a new version."""
    from confluent_kafka.schema_registry import SchemaRegistryClient

    topic = kafka.topic()
    with postgres_shop(fresh_database, tmp_path) as made:
        made.config.write_text(
            f"source: {{type: postgres, url: '{made.url}'}}\nspark: inline\nschema_registry: {{embedded: true}}\n"
            f"exports:\n  - {{name: orders, table: orders, mode: cdc, format: {form}, schema_registry: {form},\n"
            f"     destination: {{type: kafka, bootstrap_servers: '{kafka.servers}', topic: {topic}}}}}\n"
        )
        export_once(made.config)
        schema_agreement._numbers.clear()  # as another process would begin
        made.write()
        made.run("ALTER TABLE orders ADD COLUMN note text")
        made.write()
        export_once(made.config)
        with closing(state_of(load_config(made.config))) as state, own_registry(EmbeddedSchemaRegistry(state)) as url:
            client = SchemaRegistryClient({"url": url})
            read = confluents_reader(form, client, topic)
            found = kafka.read(topic)
            now = {}
            for message in found:
                key = json.loads(message.key())["id"]
                now[key] = read(message)
            versions = client.get_versions(f"{topic}-value")
        rows = made.rows()

    assert rows == {key: row["total"] for key, row in now.items() if row is not None}
    assert {b"insert", b"update", b"delete"} == {dict(message.headers())["__op"] for message in found}
    assert [1, 2] == versions


@pytest.mark.rare
def test_truncate_reaches_every_partition(kafka: Broker, fresh_database: str, tmp_path: Path) -> None:
    """Each reader of a partition hears of it, behind the changes before it, and counts agree."""
    topic = kafka.topic(partitions=3)
    with postgres_shop(fresh_database, tmp_path) as made:
        made.config.write_text(
            f"source: {{type: postgres, url: '{made.url}'}}\nspark: inline\nexports:\n"
            f"  - {{name: orders, table: orders, mode: cdc, format: ndjson,\n"
            f"     destination: {{type: kafka, bootstrap_servers: '{kafka.servers}', topic: {topic}}}}}\n"
        )
        export_once(made.config)
        made.write()
        made.run("TRUNCATE orders", "INSERT INTO orders VALUES (500, 1)")
        export_once(made.config)
    config = load_config(made.config)
    with closing(state_of(config)) as state:
        (validated,) = validate_export(config.exports[0], state=state)

    found = kafka.read(topic)
    emptied = [message for message in found if dict(message.headers())["__op"] == b"truncate"]
    assert [(0, None, None), (1, None, None), (2, None, None)] == [(m.partition(), m.key(), m.value()) for m in emptied]
    left = {}
    for message in found:
        if dict(message.headers())["__op"] == b"truncate":
            left = {key: partition for key, partition in left.items() if partition != message.partition()}
        elif message.value() is None:
            left.pop(message.key(), None)
        else:
            left[message.key()] = message.partition()
    assert [b'{"id":500}'] == list(left)
    assert "match" == validated.verdict


def test_tagged_columns_are_masked_in_keys_and_values(kafka: Broker, fresh_database: str, tmp_path: Path) -> None:
    """A hashed key still tells rows apart, in the copy, in changes and in tombstones; one that would not is refused."""
    topic = kafka.topic()
    with postgres_shop(fresh_database, tmp_path) as made:
        made.run("COMMENT ON COLUMN orders.id IS 'pii: id'", "COMMENT ON COLUMN orders.total IS 'pii'")
        block = (
            f"source: {{type: postgres, url: '{made.url}'}}\nspark: inline\nexports:\n"
            f"  - {{name: orders, table: orders, mode: cdc, format: ndjson,\n"
            f"     cdc: {{initial: snapshot{made.settings}}},\n"
            f"     mask_tags: {{'pii: id': {{method: METHOD}}, pii: {{method: redact}}}},\n"
            f"     destination: {{type: kafka, bootstrap_servers: '{kafka.servers}', topic: {topic}}}}}\n"
        )
        made.config.write_text(block.replace("METHOD", "redact"))
        with pytest.raises(ConfigError, match="key column 'id' is masked by a method that makes different keys equal"):
            export_once(made.config)
        made.config.write_text(block.replace("METHOD", "hash, key: k1, length: 12"))
        made.write()
        export_once(made.config)
        made.write()
        export_once(made.config)
        rows = made.rows()

    now, totals = {}, set()
    for message in kafka.read(topic):
        value = message.value()
        now[json.loads(message.key())["id"]] = value and json.loads(value)
        totals.add(value and json.loads(value)["total"])
    assert {12} == {len(key) for key in now}
    assert len(rows) == sum(value is not None for value in now.values())
    assert {None, "[REDACTED]"} == totals
    assert all(value["id"] == key for key, value in now.items() if value)


# --- refusals ------------------------------------------------------------------------------------


def test_topic_that_is_not_there_is_named(kafka: Broker, shop: Path) -> None:
    """Rivet creates no topic that holds rows."""
    with pytest.raises(TopicMissing, match=r"no topic nowhere.*kafka-topics"):
        export_once(configure(shop, kafka, "nowhere"))


@pytest.mark.rare
def test_topic_with_other_partitions_is_refused(kafka: Broker, shop: Path) -> None:
    """Keys would go elsewhere; whoever accepts that says how many there are."""
    from confluent_kafka.admin import NewPartitions

    topic = kafka.topic(partitions=2)
    mode = f"format: ndjson, {MODES['time_window'][0]}"
    config = configure(shop, kafka, topic, mode)
    export_once(config, partition="2026-01-01")
    admin = kafka.admin()
    for future in admin.create_partitions([NewPartitions(topic, 3)]).values():
        future.result(30)
    time.sleep(0.5)

    with pytest.raises(TopicChanged, match="partitions: 3"):
        export_once(config, partition="2026-01-02")
    export_once(configure(shop, kafka, topic, mode, ", partitions: 3"), partition="2026-01-02")

    assert 60 == len(ids(kafka, topic))


@pytest.mark.rare
def test_topic_made_anew_with_fewer_partitions_is_refused(kafka: Broker, shop: Path) -> None:
    """What counts as committed is not in it any more."""
    topic = kafka.topic(partitions=3)
    config = configure(shop, kafka, topic, f"format: ndjson, {MODES['time_window'][0]}")
    export_once(config, partition="2026-01-01")
    kafka.remove(topic)
    kafka.topic(topic, partitions=1)

    with pytest.raises(TopicChanged, match=r"made anew.*with 1 partitions and not 3"):
        export_once(config, partition="2026-01-02")

    assert [] == ids(kafka, topic)


def test_message_that_is_too_large_stops_the_window(kafka: Broker, shop: Path) -> None:
    """Nothing of the window is visible, and no cell is told."""
    with closing(sqlite3.connect(shop / "shop.db")) as database, database:
        database.execute("UPDATE orders SET note = ? WHERE id = 50", ("x" * 5000,))
    topic = kafka.topic(max_message_bytes="4000")

    with pytest.raises(MessageTooLarge, match=r"max\.message\.bytes") as refused:
        export_once(configure(shop, kafka, topic))

    assert "xxx" not in str(refused.value)
    assert [] == ids(kafka, topic)


def test_compacted_topic_takes_no_messages_without_a_key(kafka: Broker, shop: Path) -> None:
    """The broker's refusal says what helps."""
    topic = kafka.topic(cleanup_policy="compact")

    with pytest.raises(DestinationError, match="compacted topic takes none without a key"):
        export_once(configure(shop, kafka, topic, more=", key: []"))

    assert [] == ids(kafka, topic)


@pytest.mark.rare
def test_wrong_password_is_told_as_that(kafka: Broker, shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sign-in that is refused is no broker that is away; the right one passes."""
    topic = kafka.topic()
    config = configure(
        shop, kafka, topic, more=", mechanism: PLAIN, username: rivet, password_env: KAFKA_PASSWORD, timeout_s: 5"
    )
    config.write_text(config.read_text().replace(kafka.servers, f"127.0.0.1:{kafka.sasl_port}"))
    monkeypatch.setenv("KAFKA_PASSWORD", "guessed-wrongly")

    with pytest.raises(DestinationAuth, match="refused the sign-in") as refused:
        export_once(config)
    assert "guessed" not in str(refused.value)
    monkeypatch.setenv("KAFKA_PASSWORD", servers_kafka.PASSWORD)
    config.write_text(config.read_text().replace("timeout_s: 5", "timeout_s: 6"))

    assert 90 == export_once(config)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ("format: parquet", "parquet is of files"),
        ("format: avro", "schema_registry: avro"),
        ("format: protobuf", "schema_registry: protobuf"),
        ("format: avro, schema_registry: json", "is json, and messages are avro"),
        ("format: ndjson, max_file_size: 1MB", "a topic has none"),
        ("format: ndjson, on_error: dead_letter", "a topic keeps none"),
        ("format: ndjson, partition_by: at", "a topic has none"),
    ],
)
def test_what_means_nothing_in_a_topic_is_refused(tmp_path: Path, keys: str, told: str) -> None:
    """The configuration says so, before anybody is asked."""
    with pytest.raises(ConfigError, match=told):
        load_config(configure(tmp_path, Broker(tmp_path), "orders", keys))


@pytest.mark.parametrize(
    ("block", "told"),
    [
        ({"client_settings": {"enable.idempotence": "false"}}, "enable.idempotence"),
        ({"client_settings": {"acks": "1", "linger.ms": "5"}}, "sets acks under"),
        ({"bootstrap_servers": "kafka.example.com:9092", "tls": False}, "plain line to another machine"),
        ({"mechanism": "PLAIN", "username": "rivet"}, "half of a sign-in"),
        ({"topic": "a/b"}, "is no topic"),
        ({"certificate_file": "a.pem"}, "half of a client certificate"),
    ],
)
def test_settings_that_cannot_be_exact_are_refused(block: dict[str, Any], told: str) -> None:
    """Idempotence and acknowledgements are not the user's to switch off; lines to others are protected."""
    with pytest.raises(ValueError, match=told):
        Kafka(**{"bootstrap_servers": "127.0.0.1:9092", **block})


# --- faults --------------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Broker]:
    """A Kafka of one test."""
    if not servers_kafka.is_there():
        pytest.skip(f"no Kafka in {servers_kafka.KAFKA_FOLDER}: {servers_kafka.KAFKA_COMMAND}")
    with servers_kafka.broker(tmp_path / "broker") as one:
        yield one


@pytest.mark.rare
def test_broker_that_is_away_is_worth_another_try(shop: Path) -> None:
    """Exit code 2, by name."""
    away = Broker(shop, port=free_port())

    with pytest.raises(DestinationUnreachable, match="did not answer") as failure:
        export_once(configure(shop, away, "orders", more=", timeout_s: 5"))

    assert (2, True) == (failure.value.exit_code, failure.value.retry)


@pytest.mark.rare
def test_broker_that_dies_in_the_middle_costs_no_row(own: Broker, shop: Path) -> None:
    """The run ends with exit code 2, and the next one produces the window, once."""
    topic = own.topic()
    config = configure(shop, own, topic, more=", timeout_s: 5")

    with pytest.raises(DestinationUnreachable) as failure:
        export_once(config, step=lambda name: own.kill() if name == "produce" else None)
    own.start()
    export_once(config)

    assert 2 == failure.value.exit_code
    assert ALL == ids(own, topic)


@pytest.mark.parametrize(("place", "told"), [("manifest", "written by another run"), ("produce", "fenced this one")])
def test_run_that_is_overtaken_publishes_nothing(
    kafka: Broker, shop: Path, tmp_path: Path, place: str, told: str
) -> None:
    """Of two runs at once, with a store each, one commits and the other says why it did not."""
    topic = kafka.topic()
    config = configure(shop, kafka, topic)
    other = tmp_path / "other"
    other.mkdir()
    theirs = other / "rivet.yaml"
    theirs.write_text(config.read_text())
    ran = []

    def overtaken(name: str) -> None:
        if name == place and not ran:
            ran.append(export_once(theirs))

    with pytest.raises(WindowTaken, match=told):
        export_once(config, step=overtaken)

    assert [90] == ran
    assert ALL == ids(kafka, topic)


# --- proofs --------------------------------------------------------------------------------------


@pytest.mark.rare
def test_messages_that_are_gone_cannot_be_proved(kafka: Broker, shop: Path) -> None:
    """Retention and compaction are named; reconciling goes by what was committed."""
    from confluent_kafka import TopicPartition

    topic = kafka.topic(partitions=1)
    config = load_config(configure(shop, kafka, topic))
    export_once(shop / "rivet.yaml")
    admin = kafka.admin()
    for future in admin.delete_records([TopicPartition(topic, 0, 10)]).values():
        future.result(30)

    with closing(state_of(config)) as state:
        (validated,) = validate_export(config.exports[0], state=state)
        found = reconcile_export(config, config.exports[0], depth="counts", state=state, tell=lambda text: None)

    assert ("unknown", 1) == (validated.verdict, validated.exit_code)
    assert "retention" in validated.all_flaws[0].text
    assert ["match"] == [window.verdict for window in found.windows]


@pytest.mark.rare
def test_source_that_changed_is_found_and_no_repair_promised(kafka: Broker, shop: Path) -> None:
    """Columns that differ are named by their sums, whatever depth is asked for."""
    path = configure(shop, kafka, kafka.topic())
    export_once(path)
    with closing(sqlite3.connect(shop / "shop.db")) as database, database:
        database.execute("UPDATE orders SET region = 'mars' WHERE id = 7")
    config = load_config(path)

    with closing(state_of(config)) as state:
        found = reconcile_export(config, config.exports[0], depth="rows", state=state, tell=lambda text: None)

    (window,) = found.windows
    assert ("mismatch", ("region",)) == (window.verdict, window.columns)
    assert "on_rerun: append" in window.text
    assert "rivet repair" not in window.text


def test_doctor_looks_at_topic_and_transactions(kafka: Broker) -> None:
    """A probe under an id of its own fences nobody; a topic of windows that is not compacted is found."""
    topic = kafka.topic()
    root = Kafka(bootstrap_servers=kafka.servers, topic=topic).root("orders")

    before = {found.name: found.status for found in probe(root)}
    kafka.topic(f"{topic}_rivet_windows", partitions=1)
    after = {found.name: (found.status, found.fix) for found in probe(root)}

    assert {"topic": "ok", "transaction": "ok", "windows_topic": "ok"} == before
    assert "fail" == after["windows_topic"][0]
    assert "cleanup.policy=compact" in after["windows_topic"][1]


@pytest.mark.rare
def test_commands_know_topics(kafka: Broker, shop: Path) -> None:
    """Check, plan and doctor look at it; repair says why it cannot."""
    topic = kafka.topic()
    config = str(configure(shop, kafka, topic))
    export_once(Path(config))
    runner = CliRunner()

    found = {name: runner.invoke(commands, [name, "-c", config]) for name in ("check", "plan", "doctor")}
    repaired = runner.invoke(commands, ["repair", "-c", config, "-e", "orders"])

    assert {"check": 0, "plan": 0, "doctor": 0} == {name: each.exit_code for name, each in found.items()}
    assert topic in found["doctor"].output
    assert "in the topic" in found["plan"].output
    assert isinstance(repaired.exception, RivetError)
    assert "cannot be replaced" in str(repaired.exception)
