"""Writers that never wait, transactions larger than memory, kills at any moment, clocks that jump, during drains.

Belongs here: what a drain must bear without failing. Not here: servers, stores and disks (`test_drain_outages.py`).
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from rivet_resources.errors import RivetError
from tests import processes
from tests.faults.shop import Shop, begun, mysql_shop, postgres_shop

pytestmark = [pytest.mark.faults, pytest.mark.matrix]


@pytest.fixture
def shop(fresh_database: str, tmp_path: Path) -> Iterator[Shop]:
    """A shop on PostgreSQL that was drained, and written to since."""
    with postgres_shop(fresh_database, tmp_path) as made:
        yield begun(made)


# --- writers -------------------------------------------------------------------------------------


class Writer:
    """Commits without waiting for the disk until told to end, on three connections."""

    def __init__(self, url: str) -> None:
        self._url, self._ended = url, threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(10_000 * n,)) for n in range(1, 4)]

    def _write(self, first: int) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute("SET synchronous_commit = off")
            number = first
            while not self._ended.is_set() and number < first + 9_000:
                connection.execute("INSERT INTO orders VALUES (%s, 1), (%s, 2)", [number, number + 1], prepare=True)
                connection.execute("UPDATE orders SET total = total + 10 WHERE id = %s", [max(first, number - 4)])
                connection.execute("DELETE FROM orders WHERE id = %s", [number - 5 if number % 3 == 0 else -1])
                number += 2

    def __enter__(self) -> Writer:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()


def test_writers_that_do_not_wait_for_the_disk_lose_nothing(shop: Shop) -> None:
    """Five drains under three writers with synchronous_commit=off; in the end the manifests are the table."""
    shop.rollover = 500
    shop.configure()
    with Writer(shop.url):
        changes = sum(shop.drain().changes for _ in range(5))
    assert changes > 0
    shop.run("CHECKPOINT")  # the rest is on the server's disk now, which a log is read from
    shop.drain()
    shop.must_hold()


def test_killed_at_any_moment_under_a_writer(shop: Shop) -> None:
    """Ten drains, each killed by the system at a moment of its own; the one after is the table, nothing twice."""
    shop.rollover = 200
    shop.configure()
    dice = random.Random(4)
    died = 0
    with Writer(shop.url):
        for _ in range(10):
            with processes.Process(*shop.command()) as process:
                process.stdout.readline()  # the imports are done
                time.sleep(dice.uniform(0.05, 0.5))
                process.kill()
                died += process.wait() == -signal.SIGKILL
            until_free(shop)
    assert died > 0
    shop.drain()
    shop.drain()
    shop.must_hold()


def until_free(shop: Shop) -> None:
    """Wait until the server has seen that the reader is gone."""
    slot = shop.settings.partition("slot: ")[2]
    with psycopg.connect(shop.url, autocommit=True) as connection:
        for _ in range(400):
            asked = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
            if connection.execute(asked, [slot]).fetchone() == (False,):
                return
            time.sleep(0.02)
    raise AssertionError("the slot stays active")


@pytest.mark.parametrize("engine", ["postgres", "mariadb"])
def test_large_transaction_takes_little_memory(request: pytest.FixtureRequest, tmp_path: Path, engine: str) -> None:
    """200,000 rows in one transaction, in a process that may buffer 8 MB of changes."""
    settings = ", rollover_memory_mb: 8"
    if engine == "postgres":
        url = request.getfixturevalue("fresh_database")
        with postgres_shop(url, tmp_path, settings=settings, rollover=100_000) as shop:
            large(shop, "INSERT INTO orders SELECT n, n FROM generate_series(1000, 200999) n")
    else:
        shop = mysql_shop(request.getfixturevalue("fresh_mariadb"), tmp_path, settings=settings, rollover=100_000)
        large(shop, "INSERT INTO orders (id, total) SELECT seq, seq FROM seq_1000_to_200999")


def large(shop: Shop, statement: str) -> None:
    """Drain a large transaction in a process of its own, and hold its memory against an idle one's."""
    shop.run("ALTER TABLE orders ADD COLUMN note varchar(200) DEFAULT 'a note as long as notes tend to be, or nearly'")
    shop.write()
    shop.drain()
    idle = peak_mb(shop)
    shop.run(statement)
    peak = peak_mb(shop)
    shop.must_hold()
    assert len(shop.parts()) > 2
    assert peak < 400, (idle, peak)


PEAK = """
import sys
from pathlib import Path
from tests.faults.drain_run import drained
drained(Path(sys.argv[1]))
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def peak_mb(shop: Shop) -> float:
    """Drain in a process of its own; the most memory it had. (`ru_maxrss` would begin with that of its parent.)"""
    command = [sys.executable, "-c", PEAK, str(shop.config)]
    process = subprocess.run(command, cwd=processes.ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    return int(process.stdout.split()[-1]) / 1024


# --- clocks --------------------------------------------------------------------------------------


class _Shifted(type(datetime)):  # type: ignore[misc]
    """Takes every datetime for one of its own, as the class it stands in for does."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, datetime)


def set_clock(monkeypatch: pytest.MonkeyPatch, shift: timedelta) -> None:
    """Let all of Rivet read a clock that is wrong by so much."""
    real = time.time

    class Clock(datetime, metaclass=_Shifted):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + shift

    for name, module in list(sys.modules.items()):
        if name.startswith(("rivet_resources", "rivet_assets")) and getattr(module, "datetime", None) is datetime:
            monkeypatch.setattr(module, "datetime", Clock)
    monkeypatch.setattr(time, "time", lambda: real() + shift.total_seconds())


@pytest.mark.parametrize("engine", ["postgres", "mariadb"])
def test_clock_that_jumps_orders_nothing(request: pytest.FixtureRequest, tmp_path: Path, engine: str) -> None:
    """A day ahead, an hour back, and back to now, with a death in between: order is the log's alone."""
    if engine == "postgres":
        with postgres_shop(request.getfixturevalue("fresh_database"), tmp_path) as shop:
            jumping(shop)
    else:
        jumping(mysql_shop(request.getfixturevalue("fresh_mariadb"), tmp_path))


def jumping(shop: Shop) -> None:
    begun(shop)
    for shift in (timedelta(days=1), timedelta(hours=-1), timedelta(days=-400), timedelta()):
        with pytest.MonkeyPatch.context() as patch:
            set_clock(patch, shift)
            shop.drain()
            shop.must_hold()
            shop.write()
            with pytest.raises(Stopped):
                shop.at("success", stop)
            shop.write()
    shop.drain()
    shop.must_hold()
    positions = [change[:2] for change in shop.seen() if change[1]]
    assert sorted(positions) == positions


def test_clock_that_jumps_in_mid_drain(shop: Shop) -> None:
    """The lease is ours by name, not by time: a jump of a day takes it from nobody who is working."""
    with pytest.MonkeyPatch.context() as patch:
        shop.at("part", lambda: set_clock(patch, timedelta(days=1)))
        shop.must_hold()
    shop.write()
    with pytest.MonkeyPatch.context() as patch:
        shop.at("manifest", lambda: set_clock(patch, timedelta(hours=-1)))
        shop.must_hold()


class Stopped(RivetError):
    """Ends a drain at a step."""


def stop() -> None:
    raise Stopped("here")
