"""`python -m tests.bench.drain_overlap [--rows 400000] [--delay 50]`: windows published while the next ones are read.

Belongs here: one drain of several windows to a store that answers each request late, by turns as it is and with each
window published before the next one is read, as drains were up to 2026-11. Not here: what a log costs by itself
(`cdc_mysql.py`). The ratio is of one run on one machine; publishing takes the delay times the requests in a row.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from rivet_resources.contracts.change_log import Capture
from rivet_resources.contracts.source import TypeRules
from rivet_resources.destinations.s3 import S3
from rivet_resources.drain import window_size
from rivet_resources.drain.publish_behind import PublishBehind
from rivet_resources.engines.mysql.binlog.position import BinlogPosition
from rivet_resources.engines.mysql.source import MySql
from tests.bench.cdc_mysql import end_of, write
from tests.bench.draining import EAGER, drained
from tests.bench.measuring import table
from tests.fence import Fence
from tests.servers.binlog import serving
from tests.servers.postgres import moto_s3

HEADER = ("publishing", "seconds", "of the slower", "seconds of each", "read", "publish")


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--window", type=int, default=50_000, help="changes of a window")
    parser.add_argument("--delay", type=float, default=50.0, help="milliseconds that each request takes longer")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    window_size.MOST_CHANGES = given.window
    with (
        tempfile.TemporaryDirectory(prefix="rivet-bench-", dir="/var/tmp") as folder,
        serving("mariadb", Path(folder) / "mariadb") as server,
        moto_s3() as store,
        late(store.endpoint, given.delay / 1000) as endpoint,
    ):
        server.run("CREATE DATABASE bench")
        start = end_of(server)
        write(server, given.rows, 100)
        source = MySql(url=f"{server.url}bench")
        capture = Capture("bench", ("orders",), TypeRules({}), deployment="bench", max_events=given.rows)
        with source.open_log(capture, application="bench", pace=EAGER) as log:
            identity = log.survey().identity

        def run(name: str) -> dict[str, float]:
            place = S3(bucket=store.bucket, prefix=name, endpoint=endpoint)
            at = BinlogPosition(*start).position({})
            done, figures = drained(source, capture, at, identity=identity, destination=place)
            assert abs(done.changes - given.rows) <= 1, done.changes
            return {**done.seconds, "seconds": figures["seconds"]}

        compare(run, given.rounds)


def compare(run: Callable[[str], dict[str, float]], rounds: int) -> None:
    """Drain by turns in both ways, and print the medians."""
    figures: dict[str, list[dict[str, float]]] = {"by turns": [], "behind": []}
    for number in range(rounds):
        with taking_turns():
            figures["by turns"].append(run(f"turns-{number}"))
        figures["behind"].append(run(f"behind-{number}"))
    middle = {way: statistics.median(each["seconds"] for each in told) for way, told in figures.items()}
    lines = [
        (
            way,
            f"{middle[way]:.2f}",
            f"{middle[way] / max(middle.values()):.2f}",
            ", ".join(f"{each['seconds']:.2f}" for each in told),
            f"{statistics.median(each['read'] for each in told):.2f}",
            f"{statistics.median(each['publish'] for each in told):.2f}",
        )
        for way, told in figures.items()
    ]
    print(table(HEADER, lines))


@contextmanager
def taking_turns() -> Iterator[None]:
    """Let each publication end before the next window is read."""
    begin = PublishBehind.begin

    def in_turn(self: PublishBehind[Any], publish: Callable[[], Any]) -> None:
        begin(self, publish)
        assert self._under_way is not None
        wait([self._under_way])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PublishBehind, "begin", in_turn)
        yield


@contextmanager
def late(endpoint: str, seconds: float) -> Iterator[str]:
    """Serve a proxy before a store whose answers come later by so much; its endpoint."""

    class Late(Fence):
        upstream = urlsplit(endpoint).netloc
        lock = threading.Lock()

        def forward(self) -> None:
            """Wait outside of the lock: requests that are under way together are late together."""
            time.sleep(seconds)
            super().forward()

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_PATCH = forward

    server = ThreadingHTTPServer(("127.0.0.1", 0), Late)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


if __name__ == "__main__":
    main()
