"""`python -m tests.bench.cdc_mysql [--rows 1000000] [--small 100000]`: draining binary logs of MariaDB and MySQL.

Belongs here: the three workloads (transactions of 100 rows, of one row, one of a million), our drain to zstd Parquet,
python-mysql-replication on the same log. Not here: the servers (`servers/binlog.py`). Each reader runs in a process of
its own, so that its peak of memory is its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rivet_resources.contracts.change_log import Capture
from rivet_resources.contracts.source import TypeRules
from rivet_resources.engines.mysql.binlog.position import BinlogPosition
from rivet_resources.engines.mysql.source import MySql
from tests.bench.draining import EAGER, drained, peak_mb
from tests.servers.binlog import BinlogServer, serving
from tests.servers.mysql import connection, shared_mysql

TABLE = """CREATE TABLE orders (id bigint PRIMARY KEY, customer int NOT NULL, status varchar(20) NOT NULL,
amount decimal(12,2) NOT NULL, ratio double, note varchar(100), day date, created datetime(6) NOT NULL,
flag tinyint NOT NULL, big bigint)"""
ROW = "({0},{0} % 5000,'status-{1}',{0} * 1.25,{0} / 7,'note about order number {0}','2026-01-02',"
ROW += "'2026-01-02 03:04:05.678901',{1},{0} * 1000003)"


def main() -> None:
    """Fill two servers, drain each workload with each reader, print one line per run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--small", type=int, default=100_000)
    parser.add_argument("--rival-rows", type=int, default=100_000)
    parser.add_argument("--reader", choices=["rivet", "rival"])
    parser.add_argument("--job", help="for the child process")
    given = parser.parse_args()
    if given.job:
        job = json.loads(given.job)
        print(json.dumps(read_rivet(job) if given.reader == "rivet" else read_rival(job)))
        return
    shared_mysql()
    for product in ("mariadb", "mysql"):
        with (
            tempfile.TemporaryDirectory(prefix="rivet-bench-", dir="/var/tmp") as folder,
            serving(product, Path(folder) / product) as server,
        ):
            compare(server, given)


def compare(server: BinlogServer, given: argparse.Namespace) -> None:
    """Run every workload on one server."""
    server.run("CREATE DATABASE bench")
    workloads = {
        "transactions of 100 rows": (given.rows, 100),
        "one-row transactions": (given.small, 1),
        "one transaction": (given.rows, given.rows),
    }
    for name, (rows, each) in workloads.items():
        start = end_of(server)
        write(server, rows, each)
        job = {"url": server.url, "start": start, "product": server.product, "rows": rows}
        ours = child("rivet", job)
        report(server.product, name, "rivet", ours, rows)
        if each < given.rows:
            rival = child("rival", {**job, "rows": min(rows, given.rival_rows)})
            report(server.product, name, "python-mysql-replication", rival, min(rows, given.rival_rows))
            speed = (rows / ours["seconds"]) / (min(rows, given.rival_rows) / rival["seconds"])
            print(f"{server.product:8} {name:26} × {speed:.1f}", flush=True)


def end_of(server: BinlogServer) -> tuple[str, int]:
    """Name the log's end."""
    with connection(server.url) as opened, opened.cursor() as cursor:
        cursor.execute("SHOW BINARY LOGS")
        last = cursor.fetchall()[-1]
        return str(last[0]), int(last[1])


def write(server: BinlogServer, rows: int, each: int) -> None:
    """Insert rows in transactions of so many; a large one is copied inside the server."""
    with connection(server.url, autocommit=False) as opened, opened.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS bench.orders")
        cursor.execute(TABLE.replace("orders", "bench.orders", 1))
        if each == rows:
            write_large(cursor, rows)
        for first in range(0, rows if each < rows else 0, each):
            values = ",".join(ROW.format(i, i % 9) for i in range(first, first + each))
            cursor.execute(f"INSERT INTO bench.orders VALUES {values}")
            opened.commit()
        opened.commit()


def write_large(cursor: Any, rows: int) -> None:
    """Insert all in one transaction, ten thousand a statement."""
    for first in range(0, rows, 10_000):
        values = ",".join(ROW.format(i, i % 9) for i in range(first, first + 10_000))
        cursor.execute(f"INSERT INTO bench.orders VALUES {values}")


def child(reader: str, job: dict[str, Any]) -> dict[str, float]:
    """Run one reader in a process of its own."""
    command = [sys.executable, "-m", "tests.bench.cdc_mysql", "--reader", reader, "--job", json.dumps(job)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def report(product: str, workload: str, reader: str, figures: dict[str, float], rows: int) -> None:
    """Print one run."""
    print(
        f"{product:8} {workload:26} {reader:26} {rows / figures['seconds']:>10,.0f} rows/s  "
        f"wall {figures['seconds']:.2f} s  "
        f"CPU {figures['cpu']:.2f} s  peak {figures['peak_mb']:.0f} MB",
        flush=True,
    )


def measured(started: float, cpu: float) -> dict[str, float]:
    """Return what a run cost."""
    return {"seconds": time.perf_counter() - started, "cpu": time.process_time() - cpu, "peak_mb": peak_mb()}


def read_rivet(job: dict[str, Any]) -> dict[str, float]:
    """Drain as a run does: zstd Parquet, synced, manifests, a checkpoint; the changes are counted and compared."""
    source = MySql(url=f"{job['url']}bench")
    start = BinlogPosition(*job["start"]).position({})
    count = job["rows"]
    capture = Capture("bench", ("orders",), TypeRules({}), deployment="bench", max_events=count)
    with source.open_log(capture, application="bench", pace=EAGER) as log:
        identity = log.survey().identity
    done, figures = drained(source, capture, start, identity=identity)
    assert abs(done.changes - count) <= 1, done.changes  # the DROP before the workload is a truncate
    return figures


def read_rival(job: dict[str, Any]) -> dict[str, float]:
    """Read so many rows with python-mysql-replication, and do nothing with them."""
    from urllib.parse import urlsplit

    from pymysqlreplication import BinLogStreamReader
    from pymysqlreplication.row_event import WriteRowsEvent

    at, (file, offset) = urlsplit(job["url"]), job["start"]
    settings = {"host": at.hostname, "port": at.port, "user": at.username, "passwd": at.password}
    stream = BinLogStreamReader(connection_settings=settings, server_id=999, log_file=file, log_pos=offset,
                                only_events=[WriteRowsEvent], resume_stream=True)  # fmt: skip
    started, cpu, rows = time.perf_counter(), time.process_time(), 0
    for event in stream:
        rows += len(event.rows)
        if rows >= job["rows"]:
            break
    figures = measured(started, cpu)
    stream.close()
    return figures


if __name__ == "__main__":
    main()
