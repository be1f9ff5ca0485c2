"""Servers that stop, stores that vanish and disks that fill up during drains.

Belongs here: faults of machines that a drain fails by. Not here: what it bears (`test_drain_strains.py`), deaths of a
drain at a known step (`test_drain_deaths.py`), faults of a log that others cause (`test_drain_faults.py`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rivet_resources.drain import window_size
from rivet_resources.errors import DestinationUnreachable, DiskFull, SourceLost, SourceUnreachable
from tests import room
from tests.faults.shop import Shop, begun, mysql_shop, postgres_shop
from tests.servers import mysql as servers_mysql
from tests.servers.binlog import BinlogServer, serving
from tests.servers.logical import OwnServer
from tests.servers.postgres import free_port

pytestmark = [pytest.mark.faults, pytest.mark.matrix]


@pytest.fixture
def shop(fresh_database: str, tmp_path: Path) -> Iterator[Shop]:
    """A shop on PostgreSQL that was drained, and written to since."""
    with postgres_shop(fresh_database, tmp_path) as made:
        yield begun(made)


# --- servers that stop ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own_postgres(server_folder: Path) -> Iterator[OwnServer]:
    """A PostgreSQL that tests may end; nothing it said was written is lost then."""
    server = OwnServer(server_folder / "outages")
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def own_mariadb() -> Iterator[BinlogServer]:
    """A MariaDB that tests may end."""
    try:
        with (
            tempfile.TemporaryDirectory(prefix="rivet-log-", dir=room.chosen()) as folder,
            serving(
                "mariadb", Path(folder) / "mariadb", "--sync-binlog=1", "--innodb-flush-log-at-trx-commit=1"
            ) as running,
        ):
            yield running
    except servers_mysql.NoServer as reason:
        pytest.skip(str(reason))


def drained_through(shop: Shop, place: str, end: Callable[[], object], start: Callable[[], object]) -> None:
    """End the server when a step begins; the drain fails, and what it showed stays true when the server is back."""
    shop.configure(export=", tuning: {max_retries: 0}")
    account = shop.account()
    with pytest.raises(SourceLost) as failure:
        shop.at(place, end)
    assert failure.value.retry
    with pytest.raises(SourceUnreachable):
        shop.drain()
    start()
    assert (shop.account() or "") <= (shop.stored() or "")
    assert place == "source" or account == shop.account()
    shop.write()
    shop.drain()
    shop.must_hold()


@pytest.mark.parametrize("place", ["read", "source"])
@pytest.mark.parametrize("how", ["fast", "immediate", "kill"])
def test_postgres_that_ends_in_mid_drain(own_postgres: OwnServer, tmp_path: Path, how: str, place: str) -> None:
    """Stopped or killed before the read and before the acknowledgement."""

    def end() -> None:
        if how == "fast":
            own_postgres.stop()
        else:
            own_postgres.kill(signal.SIGKILL if how == "kill" else signal.SIGQUIT)

    with postgres_shop(own_postgres.url, tmp_path) as shop:
        try:
            drained_through(begun(shop), place, end, own_postgres.start)
        finally:
            shop.run("DROP TABLE orders")


def test_postgres_killed_amid_an_answer(
    own_postgres: OwnServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of the window are written already, and more of it is still at the server."""
    from rivet_resources.engines.postgres.log import log as postgres

    monkeypatch.setattr(postgres, "SMALL_BYTES", 0)
    monkeypatch.setattr(window_size, "MOST_CHANGES", 1000)
    with postgres_shop(own_postgres.url, tmp_path, rollover=2000) as shop:
        try:
            begun(shop)
            for first in range(1000, 61_000, 5000):
                shop.run(f"INSERT INTO orders SELECT n, n FROM generate_series({first}, {first + 4999}) n")
            before = len(shop.seen())
            with pytest.raises(SourceLost):
                shop.at("acknowledged", lambda: own_postgres.kill())
            assert len(shop.seen()) > before
            own_postgres.start()
            monkeypatch.setattr(window_size, "MOST_CHANGES", 50_000)
            shop.drain()
            shop.must_hold()
        finally:
            shop.run("DROP TABLE orders")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("place", ["read", "part"])
def test_mariadb_that_ends_in_mid_drain(own_mariadb: BinlogServer, tmp_path: Path, how: int, place: str) -> None:
    """Stopped or killed: what the dump gave before is one whole window or none, and the next drain is complete."""
    own_mariadb.run("DROP DATABASE IF EXISTS app", "CREATE DATABASE app")
    shop = begun(mysql_shop(f"{own_mariadb.url}app", tmp_path))
    drained_through(shop, place, lambda: own_mariadb.stop(how), lambda: own_mariadb.start(*own_mariadb.options))


# --- stores and disks ----------------------------------------------------------------------------


class Store:
    """An S3 over HTTP that can be switched off and on; its objects stay."""

    def __init__(self) -> None:
        self.port = free_port()
        self.on()

    def on(self) -> None:
        from moto.server import ThreadedMotoServer

        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=self.port, verbose=False)
        self._server.start()

    def off(self) -> None:
        self._server.stop()


@pytest.mark.parametrize("place", ["part", "parts", "manifest", "success"])
def test_store_that_vanishes_in_mid_drain(shop: Shop, place: str) -> None:
    """Before the manifest nothing is shown; behind it the window is there: either way nothing is acknowledged."""
    import boto3

    store = Store()
    try:
        endpoint = f"http://127.0.0.1:{store.port}"
        bucket = f"lake-{os.getpid()}-{store.port}"
        boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1").create_bucket(Bucket=bucket)
        shop.configure(
            destination=f"{{type: s3, bucket: {bucket}, endpoint: '{endpoint}', region: us-east-1}}",
            export=", tuning: {max_retries: 0}",
        )
        shop.give_up()
        shop.run("SELECT pg_drop_replication_slot('{slot}')")
        begun(shop)
        account, stored, seen = shop.account(), shop.stored(), shop.seen()
        with pytest.raises(DestinationUnreachable) as failure:
            shop.at(place, store.off)
        assert failure.value.retry
        store.on()
        assert (account, stored) == (shop.account(), shop.stored())
        assert place == "success" or seen == shop.seen()
        shop.write()
        shop.drain()
        shop.must_hold()
    finally:
        store.off()


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """Mount a file system of this size."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("full", ["destination", "scratch"])
def test_full_disk_for_parts(shop: Shop, tmp_path: Path, full: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lake's disk or the one where parts are written: nothing is shown or acknowledged, and nothing is left."""
    shop.rollover = 100_000
    with small_disk(tmp_path / "small", "600k") as small:
        if full == "scratch":
            shop.configure()
            monkeypatch.setattr(tempfile, "tempdir", str(small))
        else:
            shop.configure(destination=f"{{type: local, path: '{small}/lake'}}")
            shop.give_up()
            shop.run("SELECT pg_drop_replication_slot('{slot}')")
            shop.drain()
        ballast = small / "ballast"
        shop.run("INSERT INTO orders SELECT n, n * 7919 FROM generate_series(1000, 9000) n")
        with shop.refused(DiskFull, "No space", "ree"):
            shop.at("read", lambda: fill(ballast))
        left = [path for path in small.rglob("*.parquet*") if full == "scratch" or "_staged" in path.parts]
        assert [] == left
        ballast.unlink()
        shop.drain()
        shop.must_hold()


def fill(file: Path) -> None:
    """Take all room that there is."""
    room = os.statvfs(file.parent)
    file.write_bytes(b"\0" * room.f_bavail * room.f_frsize)


def test_full_disk_for_the_checkpoint(shop: Shop, tmp_path: Path) -> None:
    """The window is shown and neither stored nor acknowledged; with room again it is shown once."""
    with small_disk(tmp_path / "small", "64k") as small:
        shop.configure(cdc=f", checkpoint: '{small}/orders.ckpt'")
        shop.run("SELECT pg_drop_replication_slot('{slot}')")
        shop.give_up()
        begun(shop)
        account, stored = shop.account(), shop.stored()
        ballast = small / "ballast"
        (small / "orders.ckpt.prev").unlink()  # replaced first, it would make room for the record
        with pytest.raises(DiskFull, match=r"orders\.ckpt cannot be written.*Free some space") as failure:
            shop.at("checkpoint", lambda: fill(ballast))
        assert failure.value.retry
        assert (account, stored) == (shop.account(), shop.stored())
        with shop.refused(DiskFull, "Free some space"):
            shop.drain()
        ballast.unlink()
        shop.write()
        shop.drain()
        shop.must_hold()
