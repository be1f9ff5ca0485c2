"""What others do to a binary log between and during drains, seen from outside: manifests and checkpoint.

Belongs here: logs purged and reset, servers replaced, lines cut, rights, server ids. Not here: slots
(`test_drain_faults.py`), servers that stop (`test_drain_outages.py`).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pymysql
import pytest

from rivet_resources.errors import CheckpointUnusable, LogBusy, PositionLost, SourceLost, SourcePermission
from tests import room
from tests.faults.shop import CREATE, Shop, begin_anew, begun, mysql_shop, until, user_of
from tests.servers import mysql as servers_mysql
from tests.servers.binlog import BinlogServer, initialise, serving

pytestmark = [pytest.mark.faults, pytest.mark.matrix]


@pytest.fixture(scope="module")
def own_mariadb() -> Iterator[BinlogServer]:
    """A MariaDB of this module's own, whose log may be reset."""
    try:
        with (
            tempfile.TemporaryDirectory(prefix="rivet-log-", dir=room.chosen()) as folder,
            serving("mariadb", Path(folder) / "mariadb") as running,
        ):
            yield running
    except servers_mysql.NoServer as reason:
        pytest.skip(str(reason))


@pytest.fixture
def maria(own_mariadb: BinlogServer, tmp_path: Path) -> Shop:
    """A shop on that server that was drained, and written to since."""
    own_mariadb.run("DROP DATABASE IF EXISTS app", "CREATE DATABASE app")
    return begun(mysql_shop(f"{own_mariadb.url}app", tmp_path))


def purge(shop: Shop) -> None:
    """Let the server forget all but its newest file; a dump that just ended holds its file for a moment."""
    stored = shop.checkpoints()[0].load(shop.checkpoints()[1])
    assert stored is not None
    ours = stored.position.partition(":")[0]
    with servers_mysql.connection(shop.url) as opened, opened.cursor() as cursor:
        cursor.execute("FLUSH BINARY LOGS")

        def is_gone() -> bool:
            cursor.execute("SHOW BINARY LOGS")
            files = [row[0] for row in cursor.fetchall()]
            cursor.execute(f"PURGE BINARY LOGS TO '{files[-1]}'")
            return ours not in files

        until(is_gone)


@pytest.mark.parametrize("how", ["purged", "reset", "reset and grown"])
def test_binary_log_that_is_gone_is_refused_until_begun_anew(maria: Shop, how: str) -> None:
    """Also where files of the same names have come up behind our position."""
    if how == "purged":
        purge(maria)
    else:
        maria.run("RESET MASTER")
    if how == "reset and grown":
        maria.run(*["FLUSH BINARY LOGS"] * 3)
        for _ in range(12):
            maria.write()
    for _ in range(2):
        with maria.refused(PositionLost, "initial: snapshot", "mode: full"):
            maria.drain()
    begin_anew(maria)


def test_server_installed_anew_under_the_same_name_is_refused(own_mariadb: BinlogServer, maria: Shop) -> None:
    """Another server with the same address, the same table, and a log of the same name and more."""
    own_mariadb.stop()
    kept = own_mariadb.folder / "kept"
    (own_mariadb.folder / "data").rename(kept)
    try:
        initialise("mariadb", own_mariadb.folder)
        own_mariadb.start()
        own_mariadb.run("CREATE DATABASE app")
        maria.run(CREATE)
        for _ in range(20):
            maria.write()
        with maria.refused(PositionLost, "initial: snapshot", "mode: full"):
            maria.drain()
    finally:
        own_mariadb.stop()
        shutil.rmtree(own_mariadb.folder / "data")
        kept.rename(own_mariadb.folder / "data")
        own_mariadb.start()
    maria.drain()  # the old one is back, and nothing was forgotten
    maria.must_hold()


def test_position_inside_an_event_is_refused(maria: Shop) -> None:
    """A checkpoint that was edited, with a sum that fits."""
    store, key = maria.checkpoints()
    stored, generation = store.take(key)
    assert stored is not None
    file, _, offset = stored.position.partition(":")
    place = f"{file}:{int(offset) + 11}"
    store.save(replace(stored, position=place, sort_key=f"{stored.sort_key[:-16]}{int(offset) + 11:016x}",
                       generation=generation))  # fmt: skip
    with maria.refused(CheckpointUnusable, "inside an event", "new snapshot"):
        maria.drain()
    begin_anew(maria)


def test_dump_that_is_killed_in_mid_drain_takes_nothing_along(maria: Shop) -> None:
    """The line closes without the end packet: nothing is concluded, and the next drain is complete."""
    wide = "INSERT INTO orders (id, total) SELECT seq, seq FROM seq_{}_to_{}"
    for first in range(1000, 41_000, 4000):
        maria.run(wide.format(first, first + 3999))

    def cut() -> None:
        with servers_mysql.connection(maria.url) as opened, opened.cursor() as cursor:
            cursor.execute("SELECT id FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'")
            for (number,) in cursor.fetchall():
                with suppress(pymysql.err.OperationalError):  # it is through
                    cursor.execute(f"KILL {number}")

    maria.rollover = 2000
    maria.configure(cdc=", rollover_memory_mb: 1")
    with suppress(SourceLost):
        maria.at("part", cut)
    maria.drain()
    maria.must_hold()


def test_revoked_grants_are_named(own_mariadb: BinlogServer, maria: Shop) -> None:
    """Each loss names its GRANT; with the rights back the next drain is complete."""
    grant = "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO bare@'%'"
    maria.run("DROP USER IF EXISTS bare@'%'", "CREATE USER bare@'%' IDENTIFIED BY 'hushed-word'",
              "GRANT SELECT ON app.* TO bare@'%'", grant)  # fmt: skip
    maria.configure(url=user_of(maria.url, "bare", "hushed-word"))
    maria.give_up()  # another address is another source
    maria.drain()
    maria.write()
    for lost in ("REPLICATION SLAVE", "REPLICATION CLIENT"):
        maria.run(f"REVOKE {lost} ON *.* FROM bare@'%'")
        with maria.refused(SourcePermission, "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO bare") as failure:
            maria.drain()
        assert "hushed-word" not in str(failure.value)
        maria.run(grant)
    maria.drain()
    maria.must_hold()


def test_server_id_of_two_deployments_is_busy_for_the_second(maria: Shop, tmp_path: Path) -> None:
    """The first one is in mid-drain and unharmed; alone, the second one drains as well."""
    maria.configure(cdc=", server_id: 4711")
    other = replace(maria, folder=tmp_path / "other", settings=", server_id: 4711")

    def second() -> None:
        with pytest.raises(LogBusy, match="4711"):
            other.drain()

    maria.at("part", second)
    maria.must_hold()
    other.drain()
    other.must_hold()
