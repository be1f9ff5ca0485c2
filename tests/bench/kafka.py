"""`python -m tests.bench.kafka [--rows 1000000]`: an export to Kafka beside the client's own producer.

Belongs here: rows a second of an export of narrow rows from SQLite, of its transaction alone, and of confluent-kafka's
producer with the same messages from memory, in a transaction with the same settings. Rounds take turns, and the best of
each counts. Not here: whether messages are right (`tests/engines/test_kafka.py`). The broker shares the machine.
"""

from __future__ import annotations

import argparse
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa

from rivet_resources.contracts.messages import MessageBatch
from rivet_resources.write.formats.staged_messages import StagedMessages
from rivet_resources.write.messages.encode import RowEncoding, spelling
from tests.bench.measuring import table
from tests.faults.topic_run import export_once
from tests.servers.kafka import Broker, broker


def main() -> None:
    """Print rows a second, and each beside the producer alone."""
    args = _arguments()
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as place, broker(Path(place) / "broker") as one:
        folder = Path(place)
        _shop(folder, args.rows)
        for number in range(args.rounds):
            for name, seconds in {**_export(one, folder, number), **_producer(one, folder, args.rows)}.items():
                best[name] = min(best.get(name, float("inf")), seconds)
    yardstick = best["producer alone, messages in memory"]
    lines = [(name, round(args.rows / seconds), yardstick / seconds) for name, seconds in best.items()]
    print(table((f"{args.rows} rows of five columns", "rows/s", "of the producer"), lines))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the table")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, of which the best counts")
    return parser.parse_args()


def _rows(count: int) -> list[tuple[int, int, float, int, str]]:
    return [(n, n * 7919 % 1000, n * 7919 % 100_000 / 7, 1_767_225_600 + n, f"note {n % 97}") for n in range(count)]


def _shop(folder: Path, rows: int) -> None:
    with closing(sqlite3.connect(folder / "shop.db")) as shop, shop:
        shop.execute(
            "CREATE TABLE orders (id integer PRIMARY KEY, customer integer NOT NULL, amount real NOT NULL, "
            "at integer NOT NULL, note text NOT NULL)"
        )
        shop.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", _rows(rows))


def _export(one: Broker, folder: Path, number: int) -> dict[str, float]:
    """Export the table into a topic of its own: seconds of the whole, and of its transaction."""
    topic, home = one.topic(partitions=6), folder / f"run{number}"
    home.mkdir()
    config = home / "rivet.yaml"
    config.write_text(
        f"source: {{type: sqlite, path: {folder}/shop.db}}\nspark: inline\nschema_registry: {{embedded: true}}\n"
        f"exports:\n  - {{name: orders, table: orders, format: avro, schema_registry: avro,\n"
        f"     destination: {{type: kafka, bootstrap_servers: '{one.servers}', topic: {topic}}}}}\n"
    )
    at: dict[str, float] = {}
    began = time.monotonic()
    export_once(config, step=lambda name: at.setdefault(name, time.monotonic()) and None)
    ended = time.monotonic()
    return {"export from SQLite": ended - began, "its transaction: encode and produce": at["success"] - at["manifest"]}


def _producer(one: Broker, folder: Path, rows: int) -> dict[str, float]:
    """Produce the same messages from memory, in a transaction."""
    from confluent_kafka import Producer

    messages = [
        (each.keys.to_pylist(), each.values.to_pylist(), list(each.common))
        for each in _messages(folder, rows)
        if each.keys is not None
    ]
    topic = one.topic(partitions=6)
    settings: dict[str, Any] = {
        "bootstrap.servers": one.servers, "transactional.id": "bench", "linger.ms": 20, "batch.size": 1_000_000,
        "queue.buffering.max.messages": 500_000, "queue.buffering.max.kbytes": 262_144,
        "delivery.report.only.error": True, "partitioner": "murmur2_random", "log_level": 0,
    }  # fmt: skip
    producer = Producer(settings)
    producer.init_transactions(60)
    began = time.monotonic()
    producer.begin_transaction()
    for keys, values, headers in messages:
        for key, value in zip(keys, values, strict=True):
            while True:
                try:
                    producer.produce(topic, value, key, headers=headers)
                    break
                except BufferError:
                    producer.poll(0.05)
        producer.poll(0)
    producer.flush()
    producer.commit_transaction()
    return {"producer alone, messages in memory": time.monotonic() - began}


def _messages(folder: Path, rows: int) -> list[MessageBatch]:
    columns = list(zip(*_rows(rows), strict=True))
    found = pa.table([pa.array(column) for column in columns], names=["id", "customer", "amount", "at", "note"])
    path = folder / "rows.arrow"
    writer = StagedMessages(type="avro").writer(path, found.schema)
    for batch in found.to_batches(max_chunksize=10_000):
        writer.write(pa.Table.from_batches([batch]))
    writer.close()
    encoding = RowEncoding("avro", ("id",), "orders_20260131T120000.123_abc123", "all", spelling("avro", None))
    return list(encoding.messages(path, found.schema))


if __name__ == "__main__":
    main()
