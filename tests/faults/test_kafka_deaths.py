"""Whatever step a run to a topic is killed at, readers of committed messages see each row, and each change, once."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

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
DAILY = {("incremental", "produce"), ("full", "success"), ("drain", "checkpoint")}


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
