"""What others do to a source's log between and during drains, seen from outside: manifests, checkpoint, slot.

Belongs here: slots, publications, binary logs, rights, second readers. Not here: servers that stop and machines that
fill up (`test_drain_outages.py`), columns (`test_drain_schemas.py`), checkpoints (`test_drain_checkpoints.py`).

Each fault ends in a correct drain or in a refusal that says what to do; refused, a drain publishes, stores and
acknowledges nothing; and after the advice was followed the next drain is the table.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import psycopg
import pymysql
import pytest

from rivet_resources.errors import (
    CheckpointUnusable,
    LogBusy,
    LogSetup,
    PositionLost,
    RivetError,
    SourceLost,
    SourcePermission,
    WindowBusy,
)
from tests import servers_mysql
from tests.faults.shop import CREATE, Shop, mysql_shop, postgres_shop, user_of
from tests.servers_binlog import BinlogServer, initialise, serving
from tests.servers_logical import OwnServer

pytestmark = pytest.mark.faults

DROP_SLOT = "SELECT pg_drop_replication_slot('{slot}')"
MAKE_SLOT = "SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')"
ADVANCE = "SELECT pg_replication_slot_advance('{slot}', pg_current_wal_flush_lsn())"
ANEW = ("mode: full", "initial: snapshot", "checkpoint")


@pytest.fixture
def shop(fresh_database: str, tmp_path: Path) -> Iterator[Shop]:
    """A shop on PostgreSQL that was drained, and written to since."""
    with postgres_shop(fresh_database, tmp_path) as made:
        yield begun(made)


def begun(shop: Shop) -> Shop:
    """Drain the first rows, then write more."""
    shop.write()
    shop.drain()
    shop.write()
    return shop


def begin_anew(shop: Shop, *statements: str) -> None:
    """Do what the messages advise, and go on; the new copy replaces all that was published."""
    shop.run(*statements)
    shop.give_up()
    shop.drain()
    shop.must_hold()
    shop.write()
    shop.drain()
    shop.must_hold()


def slot_of(shop: Shop) -> str:
    """Name its slot."""
    return shop.settings.partition("slot: ")[2]


# --- the slot ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statements", "word"),
    [
        ((DROP_SLOT,), "no slot"),
        ((DROP_SLOT, MAKE_SLOT), "made it anew"),
        ((ADVANCE,), "someone else read from it"),
        (("SELECT count(*) FROM pg_logical_slot_get_binary_changes('{slot}', NULL, NULL, 'proto_version', '1', "
          "'publication_names', '{slot}')",), "someone else read from it"),
    ],
    ids=["dropped", "re-created", "advanced", "consumed"],
)  # fmt: skip
def test_slot_that_lost_changes_is_refused_until_begun_anew(shop: Shop, statements: tuple[str, ...], word: str) -> None:
    """Dropped, made anew, advanced or read by somebody else: refused again and again, never read on."""
    shop.run(*statements)
    for _ in range(2):
        with shop.refused(PositionLost, word, "pg_drop_replication_slot", *ANEW):
            shop.drain()
    begin_anew(shop, *(() if statements == (DROP_SLOT,) else (DROP_SLOT,)))


def test_slot_dropped_in_mid_drain_keeps_what_was_committed(shop: Shop) -> None:
    """Before the acknowledgement: the window stays published, once, and the next drain refuses."""
    with pytest.raises(PositionLost, match="no slot"):
        shop.at("source", lambda: shop.run(DROP_SLOT))
    shop.must_hold()
    with shop.refused(PositionLost, *ANEW):
        shop.drain()
    begin_anew(shop)


def test_slot_advanced_in_mid_drain_loses_nothing_that_is_shown(shop: Shop) -> None:
    """Somebody advances behind our back while we commit: ours is whole, and what they took is refused."""
    shop.at("source", lambda: shop.run(ADVANCE))
    shop.must_hold()
    shop.write()
    shop.run(ADVANCE)
    with shop.refused(PositionLost, "someone else", *ANEW):
        shop.drain()


def test_invalidated_slot_is_refused(server_folder: Path, tmp_path: Path) -> None:
    """The server gave the slot up to save its disk."""
    small = {"max_slot_wal_keep_size": "1MB", "max_wal_size": "32MB", "min_wal_size": "32MB", "fsync": "off"}
    server = OwnServer(server_folder / f"invalidated-{tmp_path.name}", small)
    try:
        with postgres_shop(server.start(), tmp_path) as shop:
            begun(shop)
            for _ in range(8):
                shop.run("SELECT pg_switch_wal()")
                shop.write()
                shop.run("CHECKPOINT")
            with shop.refused(PositionLost, "invalidated", *ANEW):
                shop.drain()
            begin_anew(shop, DROP_SLOT)
    finally:
        server.stop()


# --- second readers ------------------------------------------------------------------------------


def test_slot_with_another_reader_is_busy_and_left_alone(shop: Shop) -> None:
    """A reader of the streaming protocol keeps the slot; when it ends, ours goes on."""
    slot = slot_of(shop)
    with closing(psycopg.connect(shop.url, autocommit=True, replication="database")) as reader:
        reader.pgconn.exec_(
            f"START_REPLICATION SLOT {slot} LOGICAL 0/0 (proto_version '1', publication_names '{slot}')".encode()
        )
        with shop.refused(LogBusy, slot, "another process", "slot of its own"):
            shop.drain()
        active = psycopg.connect(shop.url).execute(
            "SELECT active FROM pg_replication_slots WHERE slot_name = %s", [slot]
        )
        assert active.fetchone() == (True,)
        active.connection.close()
    until(lambda: not_active(shop))
    shop.drain()
    shop.must_hold()


@pytest.mark.parametrize("place", ["read", "part", "manifest", "source"])
def test_second_drain_of_an_export_is_refused_and_the_first_unharmed(shop: Shop, place: str) -> None:
    """Whatever the first one is at, the second one ends at its lease."""

    def second() -> None:
        with shop.refused(WindowBusy, "orders"):
            shop.drain()

    shop.at(place, second)
    shop.must_hold()


def test_slot_shared_by_strangers_is_refused_before_and_after(shop: Shop, tmp_path: Path) -> None:
    """Two deployments that know nothing of each other: a new one may not begin; a copy of ours makes one lose."""
    stranger = replace(shop, folder=tmp_path / "stranger")
    with pytest.raises(LogSetup, match="is there already") as failure:
        stranger.drain()
    assert "another `cdc.slot`" in str(failure.value)

    twin = tmp_path / "twin"
    shutil.copytree(shop.folder, twin, ignore=shutil.ignore_patterns("twin", "stranger"))
    copied = replace(shop, folder=twin)
    shop.at("read", lambda: None)
    shop.must_hold()
    with copied.refused(PositionLost, "someone else", *ANEW):
        copied.drain()
    shop.write()
    shop.drain()
    shop.must_hold()


def test_twins_that_drain_one_slot_at_once_never_lose_in_silence(shop: Shop, tmp_path: Path) -> None:
    """The twin reads and acknowledges while ours is between two steps; each shows all or is refused."""
    twin = tmp_path / "twin"
    shutil.copytree(shop.folder, twin, ignore=shutil.ignore_patterns("twin"))
    copied = replace(shop, folder=twin)

    shop.at("part", copied.drain)
    assert shop.seen() == copied.seen()
    shop.must_hold()
    shop.write()
    copied.drain()
    copied.must_hold()
    with shop.refused(PositionLost, "someone else", *ANEW):
        shop.drain()


# --- publication and rights ----------------------------------------------------------------------


def test_dropped_publication_is_refused_also_when_made_anew(shop: Shop) -> None:
    """What was written meanwhile can never be read; both refusals say how to begin anew."""
    shop.run("DROP PUBLICATION {slot}")
    with shop.refused(LogSetup, "no publication", "drop the slot", "reset the checkpoint"):
        shop.drain()
    shop.write()
    shop.run("CREATE PUBLICATION {slot} FOR TABLE orders WITH (publish_via_partition_root)")
    with shop.refused(PositionLost, "dropped publication", *ANEW):
        shop.drain()
    begin_anew(shop, DROP_SLOT)


def test_publication_dropped_in_mid_drain_leaves_whole_windows(shop: Shop) -> None:
    """What was read is the table; the next drain refuses."""
    with suppress(RivetError):
        shop.at("part", lambda: shop.run("DROP PUBLICATION {slot}"))
    shop.write()
    with shop.refused(LogSetup, "no publication"):
        shop.drain()
    begin_anew(shop, DROP_SLOT)


def test_revoked_rights_stop_a_drain_and_come_back(shop: Shop) -> None:
    """REPLICATION is asked for by name; reading needs no SELECT, so its loss changes nothing."""
    role = f"low_{slot_of(shop)}"
    shop.run(f"CREATE ROLE {role} LOGIN REPLICATION", f"GRANT SELECT ON orders TO {role}")
    try:
        shop.configure(url=user_of(shop.url, role))
        shop.run(f"ALTER ROLE {role} NOREPLICATION")
        with shop.refused(SourcePermission, f'ALTER ROLE "{role}" REPLICATION'):
            shop.drain()
        shop.run(f"ALTER ROLE {role} REPLICATION", f"REVOKE SELECT ON orders FROM {role}")
        shop.drain()
        shop.must_hold()
        shop.write()
        with pytest.raises(SourcePermission, match="REPLICATION"):
            shop.at("source", lambda: shop.run(f"ALTER ROLE {role} NOREPLICATION"))
        shop.must_hold()
        shop.run(f"ALTER ROLE {role} REPLICATION")
        shop.drain()
        shop.must_hold()
    finally:
        shop.run(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


# --- binary logs ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own_mariadb() -> Iterator[BinlogServer]:
    """A MariaDB of this module's own, whose log may be reset."""
    try:
        with (
            tempfile.TemporaryDirectory(prefix="rivet-log-", dir="/var/tmp") as folder,
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
    place = f"{file}:{int(offset) + 7}"
    store.save(replace(stored, position=place, sort_key=f"{stored.sort_key[:-16]}{int(offset) + 7:016x}",
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


# --- waiting -------------------------------------------------------------------------------------


def not_active(shop: Shop) -> bool:
    """Say whether nobody reads the slot."""
    with psycopg.connect(shop.url) as connection:
        asked = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
        return connection.execute(asked, [slot_of(shop)]).fetchone() == (False,)


def until(is_so: Callable[[], bool]) -> None:
    """Ask until it is so."""
    import time

    for _ in range(400):
        if is_so():
            return
        time.sleep(0.02)
    raise AssertionError("it never came")
