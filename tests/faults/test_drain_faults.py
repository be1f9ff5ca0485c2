"""What others do to a source's log between and during drains, seen from outside: manifests, checkpoint, slot.

Belongs here: slots, publications, rights, second readers. Not here: binary logs (`test_drain_binlogs.py`), servers
that stop and disks that fill up (`test_drain_outages.py`), columns (`test_drain_schemas.py`), checkpoints
(`test_drain_checkpoints.py`).

Each fault ends in a correct drain or in a refusal that says what to do; refused, a drain publishes, stores and
acknowledges nothing; and after the advice was followed the next drain is the table.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from rivet_resources.errors import (
    CheckpointUnusable,
    LogBusy,
    LogSetup,
    PositionLost,
    RivetError,
    SourcePermission,
    WindowBusy,
)
from tests.faults.shop import CREATE, Shop, begin_anew, begun, postgres_shop, until, user_of
from tests.servers.logical import OwnServer

pytestmark = [pytest.mark.faults, pytest.mark.matrix]

DROP_SLOT = "SELECT pg_drop_replication_slot('{slot}')"
MAKE_SLOT = "SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')"
ADVANCE = "SELECT pg_replication_slot_advance('{slot}', pg_current_wal_flush_lsn())"
ANEW = ("mode: full", "initial: snapshot", "checkpoint")


@pytest.fixture
def shop(fresh_database: str, tmp_path: Path) -> Iterator[Shop]:
    """A shop on PostgreSQL that was drained, and written to since."""
    with postgres_shop(fresh_database, tmp_path) as made:
        yield begun(made)


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


def test_postgres_installed_anew_under_the_same_name_is_refused(server_folder: Path, tmp_path: Path) -> None:
    """Another server at the same address, with a table, a publication and a slot of the same names."""
    server = OwnServer(server_folder / f"anew-{tmp_path.name}", {"fsync": "off"})
    data, kept = server.folder / "pgdata", server.folder / "kept"
    url = server.start()
    try:
        with postgres_shop(url, tmp_path) as shop:
            begun(shop)
            server.stop()
            data.rename(kept)
            assert url == server.start()
            shop.run(CREATE, "CREATE PUBLICATION {slot} FOR TABLE orders", MAKE_SLOT)
            shop.write()
            with pytest.raises(CheckpointUnusable, match="restored or replaced") as failure:
                shop.drain()
            assert "rivet state reset" in str(failure.value)
            server.stop()
            shutil.rmtree(data)
            kept.rename(data)
            server.start()
            shop.drain()  # the old one is back, and nothing was forgotten
            shop.must_hold()
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
    shop.must_hold()
    assert shop.seen() == copied.seen()
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


def test_publication_narrowed_later_is_refused_also_when_widened_again(shop: Shop) -> None:
    """What it left out is lost for ever: nothing is acknowledged, and both refusals say how to begin anew."""
    shop.run("ALTER PUBLICATION {slot} SET (publish = 'insert')")
    shop.write()
    for _ in range(2):
        with shop.refused(LogSetup, "leaves out update, delete, truncate", "ALTER PUBLICATION", "state reset"):
            shop.drain()
    shop.run("ALTER PUBLICATION {slot} SET (publish = 'insert, update, delete, truncate')")
    with shop.refused(PositionLost, "was altered", *ANEW):
        shop.drain()
    begin_anew(shop, DROP_SLOT)


def test_generated_columns_are_no_drift(shop: Shop) -> None:
    """The first copy leaves out what no change carries, so `fail` has nothing to refuse."""
    shop.run("ALTER TABLE orders ADD COLUMN twice bigint GENERATED ALWAYS AS (total * 2) STORED")
    shop.run(DROP_SLOT)
    shop.give_up()
    shop.configure(export=", on_schema_drift: fail")
    done = shop.drain()
    assert [finding.name for finding in done.findings if "generated" in finding.name] == ["generated public.orders"]
    assert all("twice" not in part.column_names for part in shop.parts())
    shop.write()
    shop.drain()
    shop.must_hold()


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


# --- waiting -------------------------------------------------------------------------------------


def not_active(shop: Shop) -> bool:
    """Return whether nobody reads the slot."""
    with psycopg.connect(shop.url) as connection:
        asked = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
        return connection.execute(asked, [slot_of(shop)]).fetchone() == (False,)
