"""Whatever step a run to a topic is killed at, readers of committed messages see each row, and each change, once."""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import delete

from rivet_assets.config.load import load_config
from rivet_assets.run.admit.scope import state_of
from rivet_resources.destinations.kafka_client import MessageTooLarge
from rivet_resources.errors import CheckpointUnusable, RivetError
from rivet_resources.state.leases import export_lease
from tests import processes
from tests.faults.shop import Shop, postgres_shop
from tests.faults.topic_run import export_once
from tests.servers.kafka import Broker

pytestmark = [pytest.mark.faults, pytest.mark.xdist_group("kafka")]
# Before the transaction, in it with some messages sent, before its commit, and behind it.
STEPS = ("parts", "manifest", "produce", "commit", "success", "cursor", "metrics")
DRAIN_STEPS = ("read", "staged", *STEPS[:5], "checkpoint", "source", "acknowledged")
FIRST_STEPS = ("begin", "begun", "copy", *STEPS[:5], "checkpoint")
# One of each kind runs every day: a window that is not committed, and one that is and nobody knows.
DAILY = {("incremental", "produce"), ("full", "success"), ("drain", "checkpoint"), ("several", "produce")}


def cases(mode: str, steps: tuple[str, ...]) -> list[object]:
    """Return a mode's steps, most of them sampled."""
    return [step if (mode, step) in DAILY else pytest.param(step, marks=pytest.mark.matrix) for step in steps]


def killed(config: Path, step: str, nth: int = 1) -> None:
    """Run in a process of its own, which must die at this step."""
    ended = processes.run("tests.faults.topic_run", str(config), step, str(nth), "")
    assert ended.returncode == -9, ended.stdout + ended.stderr


def shop_config(folder: Path, broker: Broker, topic: str, *, mode: str) -> Path:
    """Write a config that exports a table of numbers to a topic, with a broker that ends transactions late."""
    config = folder / "rivet.yaml"
    config.write_text(
        f"source: {{type: sqlite, path: {folder}/shop.db}}\nspark: inline\nexports:\n"
        f"  - {{name: orders, table: orders, format: ndjson, mode: {mode},\n"
        f"     destination: {{type: kafka, bootstrap_servers: '{broker.servers}', topic: {topic}}}}}\n"
    )
    return config


def insert(folder: Path, low: int, high: int) -> None:
    """Add rows with the ids of [low, high)."""
    with closing(sqlite3.connect(folder / "shop.db")) as shop, shop:
        shop.execute("CREATE TABLE IF NOT EXISTS orders (id integer PRIMARY KEY, total integer NOT NULL)")
        shop.executemany("INSERT INTO orders VALUES (?, ?)", ((number, number * 10) for number in range(low, high)))


def ids(broker: Broker, topic: str) -> list[int]:
    """Return the ids that a reader of committed messages finds, sorted."""
    return sorted(broker.read(topic, decode=lambda message: json.loads(message.value())["id"]))


@pytest.mark.parametrize("step", cases("full", STEPS))
def test_full_export_after_a_death_at_any_step(kafka: Broker, tmp_path: Path, step: str) -> None:
    """The next run produces what is not there, and finishes what is, without producing it again."""
    topic = kafka.topic()
    insert(tmp_path, 1, 301)
    config = shop_config(tmp_path, kafka, topic, mode="full")

    killed(config, step)
    between = ids(kafka, topic)
    export_once(config)

    assert between in ([], list(range(1, 301)))
    assert (between != []) == (step in STEPS[4:])
    assert list(range(1, 301)) == ids(kafka, topic)


@pytest.mark.parametrize("step", cases("incremental", STEPS))
def test_incremental_export_after_a_death_at_any_step(kafka: Broker, tmp_path: Path, step: str) -> None:
    """The next run goes on behind what is in the topic, wherever the store says the cursor stands."""
    topic = kafka.topic()
    insert(tmp_path, 1, 101)
    config = shop_config(tmp_path, kafka, topic, mode="incremental, cursor_column: id")
    export_once(config)
    insert(tmp_path, 101, 201)

    killed(config, step)
    insert(tmp_path, 201, 301)
    again = [export_once(config), export_once(config)]

    assert list(range(1, 301)) == ids(kafka, topic)
    assert again == [100 if step in STEPS[4:] else 200, 0]


# --- drains --------------------------------------------------------------------------------------


@pytest.fixture
def shop(kafka: Broker, fresh_database: str, tmp_path: Path) -> Iterator[tuple[Shop, str]]:
    """A captured table, and the topic that its changes go to."""
    topic = kafka.topic()
    with postgres_shop(fresh_database, tmp_path) as made:
        made.config.write_text(
            f"source: {{type: postgres, url: '{made.url}'}}\nspark: inline\nexports:\n"
            f"  - {{name: orders, table: orders, mode: cdc, format: ndjson, cdc: {{initial: snapshot, rollover: 4}},\n"
            f"     destination: {{type: kafka, bootstrap_servers: '{kafka.servers}', topic: {topic}}}}}\n"
        )
        made.write()
        yield made, topic


def must_hold(kafka: Broker, shop: Shop, topic: str) -> None:
    """Replay the topic as a reader does, a partition at a time: it is the table, and no change came twice."""
    state: dict[int, int] = {}
    places = []
    for message in kafka.read(topic):
        headers = dict(message.headers())
        places.append((headers["__pos"], headers["__seq"], message.key()))
        key = json.loads(message.key())["id"]
        if message.value() is None:
            assert headers["__op"] == b"delete"
            state.pop(key, None)
        else:
            row = json.loads(message.value())
            state[key] = row["total"]
    assert len(set(places)) == len(places)
    assert shop.rows() == state


@pytest.mark.parametrize("step", cases("drain", DRAIN_STEPS))
def test_drain_after_a_death_at_any_step(kafka: Broker, shop: tuple[Shop, str], step: str) -> None:
    """Changes that are in the topic are left out when the log is read again from the checkpoint."""
    made, topic = shop
    export_once(made.config)
    made.write()

    killed(made.config, step)
    made.write()
    export_once(made.config)
    must_hold(kafka, made, topic)
    made.write()
    export_once(made.config)

    must_hold(kafka, made, topic)
    assert export_once(made.config) == 0


@pytest.mark.parametrize("step", cases("first drain", FIRST_STEPS))
def test_first_drain_after_a_death_at_any_step(kafka: Broker, shop: tuple[Shop, str], step: str) -> None:
    """A copy that is in the topic is not made again, and what it holds of the log is still left out."""
    made, topic = shop

    killed(made.config, step)
    made.write()
    export_once(made.config)

    must_hold(kafka, made, topic)


# --- first copies of several tables --------------------------------------------------------------


@pytest.fixture
def pair(kafka: Broker, fresh_database: str, tmp_path: Path) -> Iterator[tuple[Shop, str]]:
    """Three captured tables, of which one is empty, in one drain; and what their topics' names begin with."""
    prefix = f"many.{secrets.token_hex(4)}"
    for table in ("orders", "lines", "gifts"):
        kafka.topic(f"{prefix}.{table}")
    with postgres_shop(fresh_database, tmp_path) as made:
        made.run(
            "CREATE TABLE lines (id bigint PRIMARY KEY, total bigint)",
            "CREATE TABLE gifts (id bigint PRIMARY KEY, total bigint)",
        )
        made.config.write_text(
            f"source: {{type: postgres, url: '{made.url}'}}\nspark: inline\nexports:\n"
            f"  - {{name: shop, tables: [orders, lines, gifts], mode: cdc, format: ndjson,\n"
            f"     cdc: {{initial: snapshot, rollover: 4{made.settings}}},\n"
            f"     destination: {{type: kafka, bootstrap_servers: '{kafka.servers}', topic: '{prefix}.{{table}}'}}}}\n"
        )
        write_both(made)
        yield made, prefix


def write_both(shop: Shop) -> None:
    """Write orders, each with its line in the same transaction, and change both."""
    first = shop.written
    shop.written += 10
    values = ", ".join(f"({number}, {number})" for number in range(first, first + 10))
    shop.run(
        f"WITH o AS (INSERT INTO orders VALUES {values} RETURNING *) INSERT INTO lines SELECT * FROM o",
        f"WITH o AS (UPDATE orders SET total = total + 1000 WHERE id >= {first + 5} RETURNING *) "
        "UPDATE lines SET total = o.total FROM o WHERE o.id = lines.id",
        f"WITH o AS (DELETE FROM orders WHERE id = {first + 2} RETURNING *) "
        "DELETE FROM lines USING o WHERE o.id = lines.id",
    )


def rows_in(kafka: Broker, topic: str) -> dict[int, int]:
    """Replay a topic as a reader of committed messages does; no change may come twice."""
    state: dict[int, int] = {}
    places = []
    for message in kafka.read(topic):
        headers = dict(message.headers())
        places.append((headers["__pos"], headers["__seq"], message.key()))
        key = json.loads(message.key())["id"]
        if message.value() is None:
            state.pop(key, None)
        else:
            state[key] = json.loads(message.value())["total"]
    assert len(set(places)) == len(places)
    return state


# Steps of a first drain, and which one of that name: `copy` is told once for each table, and so is `produce` of those
# that have rows.
PLACES = [("begun", 1), ("copy", 1), ("copy", 2), ("copy", 3), ("parts", 1), ("manifest", 1), ("produce", 1),
          ("produce", 2), ("commit", 1), ("success", 1), ("metrics", 1), ("checkpoint", 1)]  # fmt: skip


@pytest.mark.parametrize(
    ("step", "nth"),
    [place if place == ("produce", 2) else pytest.param(*place, marks=pytest.mark.matrix) for place in PLACES],
)
def test_first_copies_of_several_tables_after_a_death_at_any_step(
    kafka: Broker, pair: tuple[Shop, str], step: str, nth: int
) -> None:
    """Readers see all copies or none, of one snapshot; behind them each change comes once, wherever a run died."""
    made, prefix = pair

    killed(made.config, step, nth)
    between = [rows_in(kafka, f"{prefix}.{table}") for table in ("orders", "lines")]
    write_both(made)
    export_once(made.config)
    copied = [rows_in(kafka, f"{prefix}.{table}") for table in ("orders", "lines")]
    write_both(made)
    export_once(made.config)

    is_there = step in ("success", "metrics", "checkpoint")
    assert (between[0] == between[1], bool(between[0])) == (True, is_there)
    assert copied[0] == copied[1]
    assert [made.rows()] * 2 == [rows_in(kafka, f"{prefix}.{table}") for table in ("orders", "lines")]
    assert {} == rows_in(kafka, f"{prefix}.gifts")


@pytest.mark.matrix
def test_table_that_cannot_be_produced_leaves_nothing_of_the_others(kafka: Broker, pair: tuple[Shop, str]) -> None:
    """A message of the second table is too large; once it is not, all copies are there."""
    made, prefix = pair
    set_largest(kafka, f"{prefix}.lines", 520)

    with pytest.raises(MessageTooLarge, match=r"lines: a row of export shop/lines is a message of"):
        export_once(made.config)
    between = rows_in(kafka, f"{prefix}.orders")
    set_largest(kafka, f"{prefix}.lines", 100_000)
    export_once(made.config)

    assert {} == between
    assert [made.rows()] * 2 == [rows_in(kafka, f"{prefix}.{table}") for table in ("orders", "lines")]


def set_largest(kafka: Broker, topic: str, size: int) -> None:
    """Set how large a message of a topic may be."""
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    entry = ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = kafka.admin()
    for answer in admin.incremental_alter_configs([resource]).values():
        answer.result(30)


@pytest.mark.matrix
def test_run_that_hangs_before_its_commit_is_fenced_by_the_next(kafka: Broker, pair: tuple[Shop, str]) -> None:
    """Of all tables nothing of the first run is visible, also of those whose windows have other ids."""
    made, prefix = pair
    ran = []

    def overtaken(name: str) -> None:
        if name == "commit" and not ran:
            ran.append(True)
            # As if this run had stood still for longer than its lease lasts.
            with closing(state_of(load_config(made.config))) as state, state._database.write() as connection:
                connection.execute(delete(export_lease))
            export_once(made.config)
            write_both(made)

    with pytest.raises(RivetError):
        export_once(made.config, step=overtaken)
    export_once(made.config)

    assert [made.rows()] * 2 == [rows_in(kafka, f"{prefix}.{table}") for table in ("orders", "lines")]


@pytest.mark.matrix
def test_what_an_earlier_run_has_open_for_any_of_the_tables_is_ended(kafka: Broker, pair: tuple[Shop, str]) -> None:
    """Windows of each table have an id of their own, and the transaction of all copies is that of the first."""
    from confluent_kafka import KafkaException, Producer

    made, prefix = pair
    topic = f"{prefix}.lines"
    late = Producer({"bootstrap.servers": kafka.servers, "transactional.id": f"rivet.{topic}.shop/lines"})
    late.init_transactions(30)
    late.begin_transaction()
    late.produce(topic, b"late")
    late.flush()

    export_once(made.config)

    with pytest.raises(KafkaException):
        late.commit_transaction(30)
    assert [made.rows()] * 2 == [rows_in(kafka, f"{prefix}.{table}") for table in ("orders", "lines")]


@pytest.mark.matrix
def test_table_that_joins_behind_copies_that_are_produced_is_refused(kafka: Broker, pair: tuple[Shop, str]) -> None:
    """Nothing has its rows of that snapshot; without it the drain goes on."""
    made, prefix = pair
    made.run("CREATE PUBLICATION {slot} FOR TABLE orders, lines, gifts")
    whole = made.config.read_text()
    made.config.write_text(whole.replace("[orders, lines, gifts]", "[orders, lines]"))
    killed(made.config, "success")
    made.config.write_text(whole)

    with pytest.raises(CheckpointUnusable, match="gifts joined since a run died"):
        export_once(made.config)
    made.config.write_text(whole.replace("[orders, lines, gifts]", "[orders, lines]"))
    write_both(made)
    export_once(made.config)

    assert [made.rows()] * 2 == [rows_in(kafka, f"{prefix}.{table}") for table in ("orders", "lines")]


@pytest.mark.matrix
def test_copy_of_another_run_than_the_noted_one_is_refused(kafka: Broker, pair: tuple[Shop, str]) -> None:
    """Which changes it holds is not known."""
    made, _ = pair
    killed(made.config, "success")
    store, key = made.checkpoints()
    stored, generation = store.take(key)
    store.save(replace(stored, run_id="shop_20260101T000000.000_000000", generation=generation))

    with pytest.raises(CheckpointUnusable, match="Two runs worked at once"):
        export_once(made.config)
