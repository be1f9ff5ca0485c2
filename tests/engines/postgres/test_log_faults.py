"""PostgreSQL's log when something is wrong: refused by name, nothing acknowledged, and the next run is complete."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from rivet_resources.contracts.change_log import Position
from rivet_resources.contracts.evidence import Finding
from rivet_resources.engines.postgres.log import create_slot as postgres_begin
from rivet_resources.engines.postgres.log.log import PostgresLog
from rivet_resources.engines.postgres.log.lsn import lsn_number, position
from rivet_resources.engines.postgres.log.peek import Peek, copy_messages
from rivet_resources.engines.postgres.source import Postgres
from rivet_resources.errors import (
    ConfigError,
    LogBusy,
    LogSetup,
    PositionLost,
    RivetError,
    SourceLost,
    SourcePermission,
)
from tests.engines.postgres.changes import capture, drain, log_of, run, transaction, window
from tests.engines.postgres.reads import EAGER
from tests.servers import logical as servers_logical

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text)"


@pytest.fixture
def fresh(postgres_url: str) -> Iterator[str]:
    """An empty database of the wheel's server, with one table."""
    with servers_logical.logical_database(postgres_url) as url:
        run(url, TABLE)
        yield url


@pytest.fixture(params=["embedded", "real"])
def database(request: pytest.FixtureRequest) -> Iterator[str]:
    """An empty database on either server, with one table."""
    server = request.getfixturevalue("postgres_url" if request.param == "embedded" else "real_postgres_url")
    with servers_logical.logical_database(server) as url:
        run(url, TABLE)
        yield url


@pytest.fixture
def own(server_folder: Path, request: pytest.FixtureRequest) -> Iterator[servers_logical.OwnServer]:
    """A server that the test may kill; settings by parameter."""
    server = servers_logical.OwnServer(
        server_folder / f"own-{abs(hash(request.node.name))}", getattr(request, "param", {})
    )
    server.start()
    yield server
    server.stop()


def ids(rows: list[dict[str, object]]) -> list[object]:
    """Return the keys."""
    return [row["id"] for row in rows]


def begun(url: str, slot: str, *statements: str) -> Position:
    """Begin, then run statements."""
    with log_of(url, capture("t", slot=slot)) as log:
        start = log.begin()
    run(url, *statements)
    return start


def refused(url: str, slot: str, at: Position) -> RivetError:
    """Return the refusal of a position."""
    with log_of(url, capture("t", slot=slot)) as log, pytest.raises(RivetError) as failure:
        log.refuse_lost(at, log.survey())
    return failure.value


# --- the slot ------------------------------------------------------------------------------------


def test_dropped_slot_is_a_lost_position(database: str) -> None:
    """Without the slot, changes are gone: the message says how to begin again."""
    at = begun(database, "rivet_gone", "SELECT pg_drop_replication_slot('rivet_gone')")

    failure = refused(database, "rivet_gone", at)

    assert isinstance(failure, PositionLost)
    assert "mode: full" in str(failure)
    with log_of(database, capture("t", slot="rivet_gone")) as log, pytest.raises(PositionLost):
        window(log, at)
    with log_of(database, capture("t", slot="rivet_gone")) as log, pytest.raises(PositionLost):
        log.acknowledge(at)


def test_slot_made_anew_or_consumed_is_a_lost_position(fresh: str) -> None:
    """A slot beyond our checkpoint was read, or made, by someone else."""
    at = begun(
        fresh,
        "rivet_anew",
        "INSERT INTO t VALUES (1)",
        "SELECT pg_drop_replication_slot('rivet_anew')",
        "SELECT pg_create_logical_replication_slot('rivet_anew', 'pgoutput')",
    )
    failures = [refused(fresh, "rivet_anew", at)]
    at = begun(
        fresh, "rivet_eaten", "INSERT INTO t VALUES (2)",
        "SELECT pg_logical_slot_get_binary_changes('rivet_eaten', NULL, NULL, 'proto_version', '1', "
        "'publication_names', 'rivet_eaten')",
    )  # fmt: skip
    failures.append(refused(fresh, "rivet_eaten", at))

    assert [PositionLost, PositionLost] == [type(failure) for failure in failures]
    assert all("someone else" in str(failure) for failure in failures)


@pytest.mark.parametrize(
    "own", [{"max_slot_wal_keep_size": "1MB", "max_wal_size": "32MB", "min_wal_size": "32MB"}], indirect=True
)
def test_invalidated_slot_is_a_lost_position(own: servers_logical.OwnServer) -> None:
    """A slot that the server gave up to save its disk is refused, in the survey and in the read."""
    run(own.url, TABLE)
    at = begun(own.url, "rivet_invalid", "INSERT INTO t VALUES (1)")
    for _ in range(8):
        run(own.url, "SELECT pg_switch_wal()", "INSERT INTO t SELECT max(id) + 1 FROM t", "CHECKPOINT")

    assert isinstance(refused(own.url, "rivet_invalid", at), PositionLost)
    with log_of(own.url, capture("t", slot="rivet_invalid")) as log, pytest.raises(PositionLost):
        window(log, at)


def test_second_reader_is_refused_and_the_first_unharmed(fresh: str) -> None:
    """While another reader has the slot, every use of it is refused as busy, and that reader stays."""
    at = begun(fresh, "rivet_busy", "INSERT INTO t VALUES (1)")
    with closing(psycopg.connect(fresh, autocommit=True, replication="database")) as reader:
        reader.pgconn.exec_(
            b"START_REPLICATION SLOT rivet_busy LOGICAL 0/0 (proto_version '1', publication_names 'rivet_busy')"
        )
        with log_of(fresh, capture("t", slot="rivet_busy")) as log:
            with pytest.raises(LogBusy, match="another process"):
                log.survey()
            far = position(lsn_number(at.text) + 8)
            with pytest.raises(LogBusy, match="is active for PID"):
                log.acknowledge(far)
            with pytest.raises(LogBusy, match="is active for PID"):
                list(
                    copy_messages(
                        log._connection, Peek("rivet_busy", "rivet_busy", 1 << 60, 10, {}), conn_params=log.conn_params
                    )
                )
        with psycopg.connect(fresh) as connection:
            active = connection.execute("SELECT active FROM pg_replication_slots WHERE slot_name = 'rivet_busy'")
            assert (True,) == active.fetchone()


def test_slot_of_another_database_or_plugin_is_refused(real_postgres_url: str) -> None:
    """A slot that could never be ours is a matter of setup."""
    both = servers_logical.logical_database(real_postgres_url), servers_logical.logical_database(real_postgres_url)
    with both[0] as fresh, both[1] as other:
        run(fresh, TABLE)
        at = begun(fresh, "rivet_mine")
        run(other, TABLE, "SELECT pg_create_logical_replication_slot('rivet_theirs', 'pgoutput')")
        run(fresh, "CREATE PUBLICATION rivet_theirs FOR TABLE t", "CREATE PUBLICATION rivet_plugin FOR TABLE t")
        run(fresh, "SELECT pg_create_logical_replication_slot('rivet_plugin', 'test_decoding')")
        theirs, plugin = refused(fresh, "rivet_theirs", at), refused(fresh, "rivet_plugin", at)
        with (
            log_of(fresh, capture("t", slot="rivet_theirs")) as log,
            pytest.raises(LogSetup, match=r"another `cdc\.slot`"),
        ):
            window(log, at)

    assert (LogSetup, LogSetup) == (type(theirs), type(plugin))
    assert "test_decoding" in str(plugin)


def test_log_that_ends_before_the_checkpoint_is_another_servers(fresh: str) -> None:
    """A checkpoint beyond the end of the log means that the source was restored."""
    at = begun(fresh, "rivet_restored")
    far = position(lsn_number(at.text) + (1 << 40))

    assert "restored from a backup" in str(refused(fresh, "rivet_restored", far))


# --- beginning -----------------------------------------------------------------------------------


def test_slot_without_a_checkpoint_is_refused_and_ours_is_kept(fresh: str) -> None:
    """Nobody knows what was read from a slot that is there already, unless an earlier begin of ours made it."""
    at = begun(fresh, "rivet_there", "INSERT INTO t VALUES (1)")
    with log_of(fresh, capture("t", slot="rivet_there")) as log:
        with pytest.raises(LogSetup, match="no checkpoint"):
            log.begin()

        kept = log.begin(again=True)

        assert at.key == kept.key
        assert [1] == ids(window(log, kept).rows())


def test_publication_is_made_for_the_listed_tables_only(fresh: str) -> None:
    """The publication that begin makes has our tables, by their root, and no others."""
    run(fresh, "CREATE TABLE u (id int PRIMARY KEY)")
    begun(fresh, "rivet_listed")

    with psycopg.connect(fresh) as connection:
        tables = connection.execute(
            "SELECT tablename FROM pg_publication_tables WHERE pubname = 'rivet_listed'"
        ).fetchall()
        how = connection.execute(
            "SELECT puballtables, pubviaroot FROM pg_publication WHERE pubname = 'rivet_listed'"
        ).fetchall()
    assert ([("t",)], [(False, True)]) == (tables, how)


def test_publication_that_lacks_a_table_is_refused_with_the_way_out(fresh: str) -> None:
    """Before the first run and in every later one; the message has the ALTER and speaks of a snapshot."""
    run(fresh, "CREATE TABLE u (id int PRIMARY KEY)", "CREATE PUBLICATION rivet_lacks FOR TABLE u")
    with log_of(fresh, capture("t", slot="rivet_lacks")) as log:
        with pytest.raises(LogSetup, match=r'ALTER PUBLICATION "rivet_lacks" ADD TABLE "t".*snapshot'):
            log.begin()
        run(fresh, "ALTER PUBLICATION rivet_lacks ADD TABLE t")
        at = log.begin()
        run(fresh, "ALTER PUBLICATION rivet_lacks DROP TABLE t")

        with pytest.raises(LogSetup, match='ADD TABLE "t"'):
            log.refuse_lost(at, log.survey())


def test_slot_that_waits_too_long_leaves_nothing_behind(fresh: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that stays open keeps a slot from being made; the message names it, and the next try succeeds."""
    monkeypatch.setattr(postgres_begin, "SLOT_SECONDS", 0.3)
    with psycopg.connect(fresh) as writer, log_of(fresh, capture("t", slot="rivet_waits")) as log:
        writer.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(LogSetup, match=f"PID .*{writer.info.backend_pid}"):
            log.begin()
        assert {} == log.survey().facts["slot"]
        writer.rollback()

        assert log.begin().type == "PostgresLsn"


def test_role_without_replication_is_told_the_statement(fresh: str) -> None:
    """Neither a slot nor a publication is made without the right, and each message has what to run."""
    url = as_role(fresh, "low_begin", "GRANT SELECT ON t TO low_begin")
    with log_of(url, capture("t", slot="rivet_low")) as log:
        with pytest.raises(SourcePermission, match="CREATE PUBLICATION"):
            log.begin()
        run(fresh, "CREATE PUBLICATION rivet_low FOR TABLE t")
        with pytest.raises(SourcePermission, match='ALTER ROLE "low_begin" REPLICATION'):
            log.begin()
        run(fresh, "ALTER ROLE low_begin REPLICATION")

        assert log.begin().key


def test_revoked_replication_stops_a_run(fresh: str) -> None:
    """A role that lost REPLICATION is told so, and the slot stays where it was."""
    url = as_role(fresh, "low_revoked", "GRANT SELECT ON t TO low_revoked", "ALTER ROLE low_revoked REPLICATION")
    run(fresh, "CREATE PUBLICATION rivet_revoked FOR TABLE t")
    with log_of(url, capture("t", slot="rivet_revoked")) as log:
        at = log.begin()
    run(fresh, "INSERT INTO t VALUES (1)", "ALTER ROLE low_revoked NOREPLICATION")

    with log_of(url, capture("t", slot="rivet_revoked")) as log, pytest.raises(SourcePermission, match="REPLICATION"):
        window(log, at)
    run(fresh, "ALTER ROLE low_revoked REPLICATION")
    with log_of(url, capture("t", slot="rivet_revoked")) as log:
        assert [1] == ids(window(log, at).rows())


def as_role(url: str, role: str, *statements: str) -> str:
    """Make a role without rights; the URL that logs it in."""
    with psycopg.connect(url, autocommit=True) as connection:
        if connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (role,)).fetchone() is None:
            connection.execute(f"CREATE ROLE {role} LOGIN".encode())
    run(url, *statements)
    return urlunsplit(urlsplit(url)._replace(netloc=f"{role}@"))


def test_far_host_without_tls_is_refused_before_any_connection() -> None:
    """The transport gate of batch reads stands before a log as well."""
    source = Postgres(url="postgresql://user@db.example.com/app")

    with (
        pytest.raises(ConfigError, match="no `tls:` block"),
        source.open_log(capture("t"), application="t", pace=EAGER),
    ):
        pass


def test_source_opens_its_log(fresh: str) -> None:
    """A source gives its log by the seam that every engine has."""
    with Postgres(url=fresh).open_log(capture("t", slot="rivet_seam"), application="rivet:t", pace=EAGER) as log:
        start = log.begin()
        run(fresh, "INSERT INTO t VALUES (1)")
        events = list(log.read(start, log.survey().target, most=10))
    log.close()

    assert ["Changes", "Commit"] == [type(event).__name__ for event in events]


# --- publication, statements, disk ---------------------------------------------------------------


def test_publication_dropped_under_the_slot_is_refused(database: str) -> None:
    """What was written without the publication is not in the log, also after it was made again."""
    at = begun(database, "rivet_pub", "DROP PUBLICATION rivet_pub", "INSERT INTO t VALUES (1)")
    gone = refused(database, "rivet_pub", at)
    run(database, "CREATE PUBLICATION rivet_pub FOR TABLE t WITH (publish_via_partition_root)")

    assert isinstance(gone, LogSetup)
    assert isinstance(refused(database, "rivet_pub", at), PositionLost)
    with log_of(database, capture("t", slot="rivet_pub")) as log:
        if log.server_version < 160000:  # later ones pass over it in silence
            with pytest.raises(LogSetup, match="never be read"):
                window(log, at)


def test_table_taken_out_of_the_publication_and_put_back_is_refused(database: str) -> None:
    """What changed between is not in the log, and nothing in the log would say so."""
    at = begun(
        database, "rivet_back", "ALTER PUBLICATION rivet_back DROP TABLE t", "INSERT INTO t VALUES (1)",
        "ALTER PUBLICATION rivet_back ADD TABLE t",
    )  # fmt: skip

    failure = refused(database, "rivet_back", at)

    assert isinstance(failure, PositionLost)
    assert "Table t was taken out" in str(failure)


@pytest.mark.parametrize("small", [0, 1 << 40])
def test_servers_disk_for_an_answer_is_a_matter_of_setup(
    fresh: str, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    """An answer beyond temp_file_limit names the limit, and nothing was acknowledged."""
    from rivet_resources.engines.postgres.log import log as postgres
    from rivet_resources.engines.postgres.log import peek as postgres_peek

    monkeypatch.setattr(postgres_peek, "WORK_MEMORY", "64kB")
    monkeypatch.setattr(postgres, "SMALL_BYTES", small)
    work = "INSERT INTO t SELECT g, repeat('x', 500) FROM generate_series(1, 20000) g"
    at = begun(fresh, "rivet_temp", work, f"ALTER DATABASE {urlsplit(fresh).path[1:]} SET temp_file_limit = '1MB'")

    with log_of(fresh, capture("t", slot="rivet_temp")) as log:
        with pytest.raises(LogSetup, match="temp_file_limit"):
            window(log, at)
        oldest = log.survey().oldest

    assert oldest is not None
    assert at.key == oldest.key


# --- crashes -------------------------------------------------------------------------------------


def test_server_killed_after_the_advance_sends_again_what_we_have(own: servers_logical.OwnServer) -> None:
    """The slot comes back at an older place; our position leaves out what came before, and nothing is missing."""
    run(own.url, TABLE, "CHECKPOINT")
    with log_of(own.url, capture("t", slot="rivet_killed")) as log:
        start = log.begin()
        run(own.url, "INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)")
        first = drain(log, start)
        moved = log.survey().oldest
    own.kill()
    url = own.start()
    with log_of(url, capture("t", slot="rivet_killed")) as log:
        found = log.survey()
        run(url, "INSERT INTO t VALUES (3)")
        log.refuse_lost(first.position, found)

        second = [drain(log, first.position, most=most, acknowledge=False) for most in (10**6,)]
        single = window(log, first.position, most=1)

    assert moved is not None
    assert found.oldest is not None
    assert found.oldest.key < first.position.key <= moved.key, "the kill came before the server's checkpoint"
    assert ([1, 2], [3], [3]) == (ids(first.rows()), ids(second[0].rows()), ids(single.rows()))


def test_line_that_breaks_while_reading_concludes_nothing(fresh: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader whose backend is ended is told so; nothing was acknowledged, and the next run is complete."""
    from rivet_resources.engines.postgres.log import log as postgres
    from rivet_resources.engines.postgres.log import peek as postgres_peek

    monkeypatch.setattr(postgres_peek, "BATCH_BYTES", 50_000)
    work = "INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(1, 60000) g"
    at = begun(fresh, "rivet_line", work)
    monkeypatch.setattr(postgres, "SMALL_BYTES", 0)
    with log_of(fresh, capture("t", slot="rivet_line")) as log:
        reading = log.read(at, log.survey().target, most=10**6)
        next(reading)
        run(fresh, "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE query LIKE 'COPY%peek%'")
        with pytest.raises(SourceLost):
            list(reading)
    with log_of(fresh, capture("t", slot="rivet_line")) as log:
        rows = window(log, at).rows()

    assert list(range(1, 60001)) == ids(rows)


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_server_that_goes_away_while_reading_is_lost_not_ended(
    own: servers_logical.OwnServer, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The end of the line is never taken for the end of the log."""
    from rivet_resources.engines.postgres.log import log as postgres
    from rivet_resources.engines.postgres.log import peek as postgres_peek

    monkeypatch.setattr(postgres_peek, "BATCH_BYTES", 50_000)
    monkeypatch.setattr(postgres, "SMALL_BYTES", 0)
    run(own.url, TABLE)
    at = begun(own.url, "rivet_away", "INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(1, 60000) g")
    with log_of(own.url, capture("t", slot="rivet_away")) as log:
        reading = log.read(at, log.survey().target, most=10**6)
        next(reading)
        getattr(own, how)()
        with pytest.raises(SourceLost):
            list(reading)
    url = own.start()
    with log_of(url, capture("t", slot="rivet_away")) as log:
        assert list(range(1, 60001)) == ids(window(log, at).rows())


def test_reader_that_stops_early_leaves_the_slot_free(fresh: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window that is not read to its end cancels its statement, and the next one reads it whole."""
    from rivet_resources.engines.postgres.log import log as postgres
    from rivet_resources.engines.postgres.log import peek as postgres_peek

    monkeypatch.setattr(postgres_peek, "BATCH_BYTES", 50_000)
    monkeypatch.setattr(postgres, "SMALL_BYTES", 0)
    at = begun(fresh, "rivet_early", "INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(1, 30000) g")
    with log_of(fresh, capture("t", slot="rivet_early")) as log:
        reading = log.read(at, log.survey().target, most=10**6)
        next(reading)
        reading.close()
        assert 30000 == len(window(log, at).rows())


# --- handover ------------------------------------------------------------------------------------


def test_copy_and_changes_after_it_contradict_nothing(database: str) -> None:
    """Under three writers, every change replayed on the copy fits it, and the end is the table."""
    run(database, "INSERT INTO t SELECT g, '0' FROM generate_series(1, 200) g")
    stop = threading.Event()

    def write(lane: int) -> None:
        with psycopg.connect(database, autocommit=True) as connection:
            number = 1000 * lane
            while not stop.is_set():
                number += 1
                with connection.transaction():
                    connection.execute("INSERT INTO t VALUES (%s, 'new')", (number * 10,))
                    connection.execute("UPDATE t SET v = v || '+' WHERE id = %s", (1 + (number * 7 + lane) % 200,))
                with connection.transaction():
                    connection.execute("DELETE FROM t WHERE id = %s", ((number - 3) * 10,))

    writers = [threading.Thread(target=write, args=(lane,)) for lane in (1000, 2000, 3000)]
    with log_of(database, capture("t", slot="rivet_hand")) as log:
        for writer in writers:
            writer.start()
        try:
            start = log.begin()
            with log.handover() as handover:
                seen, session = handover.seen(), handover.session
                mirror = dict(session.ask("SELECT id, v FROM t", doing="copying"))  # type: ignore[attr-defined]
            drained = drain(log, start, most=50, seen=seen)
        finally:
            stop.set()
            for writer in writers:
                writer.join()
        run(database, "SELECT pg_logical_emit_message(true, 'flush', '')")
        reached = drained.position if drained.commits else start  # the server may have flushed nothing yet
        drained.changes += drain(log, reached, seen=seen).changes

    contradictions = 0
    for row in drained.rows():
        key, is_known = row["id"], row["id"] in mirror
        contradictions += is_known if row["__op"] == "insert" else not is_known
        if row["__op"] == "delete":
            mirror.pop(key, None)
        else:
            mirror[key] = row["v"]
    with psycopg.connect(database) as connection:
        table = dict(connection.execute("SELECT id, v FROM t").fetchall())
    assert (0, table) == (contradictions, mirror)
    assert drained.changes


# --- looking -------------------------------------------------------------------------------------


def by_name(findings: tuple[Finding, ...]) -> dict[str, Finding]:
    """Return findings by name."""
    return {finding.name: finding for finding in findings}


def test_preflight_of_a_good_source_fails_nothing(database: str) -> None:
    """Before and after the first run a proper source is judged fit."""
    with log_of(database, capture("t", slot="rivet_fit")) as log:
        before = log.preflight()
        log.begin()
        after = log.preflight()

    assert ["wal_level", "max_replication_slots", "max_wal_senders", "role"] == [f.name for f in before[:4]]
    assert [] == [finding for finding in before + after if finding.status == "fail"]
    assert ("warn", "ok") == (by_name(before)["publication"].status, by_name(after)["publication"].status)


def test_preflight_names_every_fault_of_tables_and_roles(fresh: str) -> None:
    """Each missing grant, identity and column is a finding with the statement that mends it."""
    run(
        fresh,
        "CREATE TABLE nokey (v int)",
        "CREATE TABLE nothing (id int PRIMARY KEY)",
        "ALTER TABLE nothing REPLICA IDENTITY NOTHING",
        "CREATE UNLOGGED TABLE fleeting (id int PRIMARY KEY)",
        "CREATE TABLE whole (v int)",
        "ALTER TABLE whole REPLICA IDENTITY FULL",
        "CREATE PUBLICATION rivet_faults FOR TABLE t WITH (publish = 'insert')",
    )
    url = as_role(fresh, "low_preflight")
    tables = ("t", "nokey", "nothing", "fleeting", "whole", "absent")
    with log_of(url, capture(*tables, slot="rivet_faults", columns={"tpyo": "text"})) as log:
        found = by_name(log.preflight())

    failing = {name: finding.fix for name, finding in found.items() if finding.status == "fail"}
    assert 'ALTER ROLE "low_preflight" REPLICATION;' == failing.pop("role")
    assert 'ALTER TABLE "nokey" REPLICA IDENTITY FULL;' == failing.pop("replica_identity public.nokey")
    assert 'ALTER TABLE "nothing" REPLICA IDENTITY FULL;' == failing.pop("replica_identity public.nothing")
    assert 'GRANT SELECT ON "t" TO "low_preflight";' == failing.pop("select public.t")
    assert 'ALTER PUBLICATION "rivet_faults" ADD TABLE "nokey", "nothing", "fleeting", "whole";' == failing.pop(
        "publication"
    )
    assert "publish = 'insert, update, delete, truncate'" in failing.pop("publication publish")
    assert {"table fleeting", "table absent", "columns.tpyo"} < set(failing)
    assert "no primary key" in found["replica_identity public.whole"].text
    assert ("warn", "warn") == (found["pg_monitor"].status, found["max_slot_wal_keep_size"].status)


def test_server_that_is_not_logical_is_told_the_setting(own_replica: servers_logical.OwnServer) -> None:
    """Preflight names wal_level with the statement, and begin refuses by the same name."""
    run(own_replica.url, TABLE)
    with log_of(own_replica.url, capture("t", slot="rivet_level")) as log:
        finding = by_name(log.preflight())["wal_level"]
        with pytest.raises(LogSetup, match="wal_level"):
            log.begin()

    assert ("fail", True) == (finding.status, finding.fix.startswith("ALTER SYSTEM SET wal_level = 'logical'"))


@pytest.fixture
def own_replica(server_folder: Path) -> Iterator[servers_logical.OwnServer]:
    """A server whose log is not logical."""
    server = servers_logical.OwnServer(server_folder / "replica", {"wal_level": "replica"})
    server.start()
    yield server
    server.stop()


def test_lag_counts_bytes_until_the_end_and_none_at_it(database: str) -> None:
    """Unread and held bytes grow with the log and end with the drain; budget is None where nothing is bounded."""
    with log_of(database, capture("t", slot="rivet_lag")) as log:
        start = log.begin()
        run(database, "INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 1000) g")
        behind = log.lag(start)
        end = drain(log, start).position
        reached = log.lag(end)

    assert behind.unread_bytes is not None
    assert behind.unread_bytes > 100_000
    assert behind.held_bytes is not None
    assert behind.held_bytes >= behind.unread_bytes
    assert (None, "reserved") == (behind.budget, behind.facts["wal_status"])
    assert 0 < (behind.seconds or 0) < 600  # younger than the look at which `start` was the end
    assert reached.unread_bytes is not None
    assert reached.unread_bytes < 100_000


def test_idle_drain_is_one_statement_and_one_more(fresh: str) -> None:
    """A survey and, where the log moved, one peek on the same connection."""
    at = begun(fresh, "rivet_idle")
    run(fresh, "CREATE TABLE elsewhere (id int)")
    with log_of(fresh, capture("t", slot="rivet_idle")) as log:
        asked = counting(log)
        found = log.survey()
        events = list(log.read(at, found.target, most=100))

    assert (["Commit"], 2) == ([type(event).__name__ for event in events], len(asked))
    assert log._wire._connection is None


def counting(log: PostgresLog) -> list[bytes]:
    """Note every statement of a log's connection."""
    asked: list[bytes] = []
    connection = log._connection

    class Counted(psycopg.Cursor[object]):
        def execute(self, query: object, *args: object, **kwargs: object) -> Counted:  # type: ignore[override]
            asked.append(bytes(query) if isinstance(query, bytes) else str(query).encode())
            return super().execute(query, *args, **kwargs)  # type: ignore[arg-type, return-value]

        def copy(self, statement: object, *args: object, **kwargs: object):  # type: ignore[no-untyped-def, override]
            asked.append(bytes(statement))  # type: ignore[call-overload]
            return super().copy(statement, *args, **kwargs)  # type: ignore[arg-type]

    connection.cursor_factory = Counted
    return asked


def test_transactions_of_several_windows_come_once(fresh: str) -> None:
    """A position taken up again leaves out what lies before it, however far the slot stands behind."""
    at = begun(fresh, "rivet_behind", *(f"INSERT INTO t VALUES ({i})" for i in range(30)))
    with log_of(fresh, capture("t", slot="rivet_behind")) as log:
        whole = window(log, at)
        middle = window(log, at, most=10)

        rest = drain(log, middle.position, most=3, acknowledge=False)

    assert list(range(30)) == ids(whole.rows())
    assert list(range(10, 30)) == ids(rest.rows())


def test_transaction_of_another_table_fills_no_window(fresh: str) -> None:
    """Published tables that are not captured do not count, and a window of ours goes on behind them."""
    run(fresh, "CREATE TABLE u (id int PRIMARY KEY)", "CREATE PUBLICATION rivet_fills FOR TABLE t, u")
    at = begun(fresh, "rivet_fills")
    transaction(fresh, "INSERT INTO u SELECT generate_series(1, 5000)", "INSERT INTO t VALUES (1)")
    run(fresh, "INSERT INTO u SELECT generate_series(5001, 9000)", "INSERT INTO t VALUES (2)")
    with log_of(fresh, capture("t", slot="rivet_fills")) as log:
        drained = window(log, at, most=2)

    assert [(1, 10001), (2, 1)] == [(row["id"], row["__seq"]) for row in drained.rows()]


def test_partitioned_table_published_by_its_partitions_is_told_how_to_publish_it_whole(fresh: str) -> None:
    """It was added already, so adding it again would be refused."""
    run(
        fresh,
        "CREATE TABLE pt (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE pt_1 PARTITION OF pt FOR VALUES FROM (0) TO (10)",
        "CREATE PUBLICATION rivet_parts FOR TABLE pt",
    )
    with log_of(fresh, capture("pt", slot="rivet_parts")) as log:
        found = by_name(log.preflight())

    assert 'ALTER PUBLICATION "rivet_parts" SET (publish_via_partition_root = true);' == found["publication"].fix
