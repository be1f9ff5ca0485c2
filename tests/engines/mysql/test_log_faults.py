"""What may happen to a binary log and to its line: on servers of the tests' own, purged, reset, restarted."""

from __future__ import annotations

import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pymysql
import pytest

from rivet_resources.conformance.lines import Lines, hang_up, listening
from rivet_resources.contracts.change_log import Position
from rivet_resources.engines.mysql.binlog.position import BinlogPosition, place_of
from rivet_resources.errors import LogBusy, LogRefused, PositionLost, SourceAuth, SourceLost, SourcePermission
from tests import room
from tests.engines.mysql.changes import log, run, window
from tests.servers import mysql as servers_mysql
from tests.servers.binlog import BinlogServer, serving
from tests.servers.mysql import connection

pytestmark = pytest.mark.matrix

T = "CREATE OR REPLACE TABLE t (id int PRIMARY KEY, v varchar(400), n int)"


@pytest.fixture(scope="module", params=["mariadb", "mysql"])
def server(request: pytest.FixtureRequest) -> Iterator[BinlogServer]:
    """A server of this module's own."""
    if request.param == "mysql":
        request.getfixturevalue("mysql_url")  # unpacks it
    try:
        with (
            tempfile.TemporaryDirectory(prefix="rivet-log-", dir=room.chosen()) as folder,
            serving(request.param, Path(folder) / request.param) as running,
        ):
            running.run("CREATE DATABASE app")
            yield running
    except servers_mysql.NoServer as reason:
        pytest.skip(str(reason))


@pytest.fixture
def url(server: BinlogServer) -> str:
    """Its database with an empty table `t`, and its usual settings."""
    found = f"{server.url}app"
    run(found, "DROP TABLE IF EXISTS t", T.replace("OR REPLACE ", ""))
    return found


def ids(found: Any) -> list[int]:
    return [row["id"] for row in found.rows()]


# --- the log itself ------------------------------------------------------------------------------

RESET = {"mariadb": "RESET MASTER", "mysql": "RESET BINARY LOGS AND GTIDS"}


def test_purged_file_is_a_lost_position(server: BinlogServer, url: str) -> None:
    """The list of files tells before the server is asked, and the server's own words mean the same."""
    with log(url, "t") as opened:
        start = opened.begin()
        run(url, "INSERT INTO t VALUES (1, '', 1)", "FLUSH BINARY LOGS")
        last = place_of(opened.survey().target).file
        while place_of(start).file in opened.survey().facts["files"]:  # until the dump that `begin` made has ended
            run(url, f"PURGE BINARY LOGS TO '{last}'")

        with pytest.raises(PositionLost, match="is not on the server any more"):
            opened.refuse_lost(start, opened.survey())
        with pytest.raises(PositionLost, match="was purged, or the log was reset"):
            window(opened, start)


def test_log_that_was_reset_is_never_read_on(server: BinlogServer, url: str) -> None:
    """A file of the same name, grown beyond our offset, is told by its birth."""
    run(url, RESET[server.product])
    with log(url, "t") as opened:
        start = opened.begin()
        earlier = place_of(start).position({**start.more, "born": str(int(start.more["born"]) - 5)})
        run(url, RESET[server.product], *(f"INSERT INTO t VALUES ({i}, REPEAT('x', 300), 1)" for i in range(9)))
        survey = opened.survey()
        opened.refuse_lost(earlier, survey)

        with pytest.raises(PositionLost, match="begun at another time"):
            window(opened, earlier)


def test_position_behind_the_files_end_is_lost(server: BinlogServer, url: str) -> None:
    """A restored server has the file, shorter."""
    with log(url, "t") as opened:
        end = place_of(opened.begin())
        run(url, "FLUSH BINARY LOGS")
        beyond = BinlogPosition(end.file, end.offset + 100_000).position({})

        with pytest.raises(PositionLost, match="restored from a copy"):
            window(opened, beyond)


@pytest.mark.parametrize("checksum", ["NONE", "CRC32"])
def test_log_is_read_with_and_without_checksums(server: BinlogServer, url: str, checksum: str) -> None:
    """Also over a change of the setting, which begins a new file."""
    other = {"NONE": "CRC32", "CRC32": "NONE"}[checksum]
    try:
        run(url, f"SET GLOBAL binlog_checksum = {checksum}")
        with log(url, "t") as opened:
            start = opened.begin()
            run(url, "INSERT INTO t VALUES (1, 'a', 1)", f"SET GLOBAL binlog_checksum = {other}")
            run(url, "INSERT INTO t VALUES (2, 'b', 2)")
            found = window(opened, start)
    finally:
        run(url, "SET GLOBAL binlog_checksum = CRC32")

    assert [1, 2] == ids(found)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_restarted_server_is_read_on(server: BinlogServer, url: str, how: int) -> None:
    """Stopped in order or at once: the drain fails, the next one goes on where the last commit was."""
    with log(url, "t") as opened:
        start = opened.begin()
        run(url, "INSERT INTO t VALUES (1, '', 1)", "INSERT INTO t VALUES (2, '', 1)")
        target = opened.survey().target
        *_, commit = opened.read(start, target, most=1)
        server.restart(*server.options, how=how)
        with pytest.raises(SourceLost):
            opened.survey()
    run(url, "INSERT INTO t VALUES (3, '', 1)")
    with log(url, "t") as again:
        again.refuse_lost(commit.position, again.survey())
        assert [2, 3] == ids(window(again, commit.position))


# --- compressed, on MariaDB ----------------------------------------------------------------------


def test_compressed_rows_and_statements_of_mariadb_are_opened(server: BinlogServer, url: str) -> None:
    """log_bin_compress: types 165 to 171, among plain ones."""
    if server.product != "mariadb":
        pytest.skip("log_bin_compress is MariaDB's")
    try:
        with log(url, "t") as opened:
            start = opened.begin()
            run(url, "SET GLOBAL log_bin_compress = ON", "SET GLOBAL log_bin_compress_min_len = 10")
            run(url, "INSERT INTO t VALUES (1, REPEAT('x', 400), 1), (2, REPEAT('y', 400), 2)",
                "UPDATE t SET n = 3 WHERE id = 1", "UPDATE t SET id = 4 WHERE id = 1", "DELETE FROM t WHERE id = 2",
                f"ALTER TABLE t COMMENT = '{'long ' * 50}'")  # fmt: skip
            seen = [(row["__op"], row["id"], row["v"], row["n"]) for row in window(opened, start).rows()]
    finally:
        run(url, "SET GLOBAL log_bin_compress = OFF")

    x, y = "x" * 400, "y" * 400
    assert [("insert", 1, x, 1), ("insert", 2, y, 2), ("update", 1, x, 3), ("delete", 1, x, 3), ("insert", 4, x, 3),
            ("delete", 2, y, 2)] == seen  # fmt: skip


def test_table_map_without_names_is_refused(server: BinlogServer, url: str) -> None:
    """binlog_row_metadata is a server's setting: MINIMAL stops the drain and says what to run; others may have it."""
    run(url, "CREATE TABLE IF NOT EXISTS other (id int)")
    try:
        with log(url, "t") as opened:
            start = opened.begin()
            run(url, "SET GLOBAL binlog_row_metadata = MINIMAL")
            run(url, "INSERT INTO other VALUES (1)")
            assert [] == ids(window(opened, start))
            run(url, "INSERT INTO t VALUES (1, '', 1)")
            with pytest.raises(LogRefused, match=r"type 19 .*SET GLOBAL binlog_row_metadata = FULL"):
                window(opened, start)
            (finding,) = [each for each in opened.preflight() if each.name == "binlog_row_metadata"]
            assert ("fail", "SET GLOBAL binlog_row_metadata = FULL") == (finding.status, finding.fix)
    finally:
        run(url, "SET GLOBAL binlog_row_metadata = FULL")


# --- GTIDs ---------------------------------------------------------------------------------------


def test_position_above_four_gib_is_resumed_by_gtid(server: BinlogServer, url: str) -> None:
    """Where offsets end, the recorded set says what we have; the rows are those behind it."""
    with log(url, "t") as opened:
        start = opened.begin()
        run(url, "INSERT INTO t VALUES (1, '', 1)")
        found = window(opened, start)
        run(url, "INSERT INTO t VALUES (2, '', 1)", "INSERT INTO t VALUES (3, '', 1)")
        assert found.position.more["gtid"] != start.more["gtid"]
        target = opened.survey().target
        opened._end_dump()
        place = place_of(found.position)
        import rivet_resources.engines.mysql.binlog.log as module

        limit, module.FARTHEST = module.FARTHEST, 0
        try:
            rest = window(opened, place.position(found.position.more), upto=target)
        finally:
            module.FARTHEST = limit

    assert [2, 3] == ids(rest)
    assert target.text == rest.position.text


def test_recorded_gtids_are_the_servers(server: BinlogServer, url: str) -> None:
    """After any window the set is what the server says it has written."""
    with log(url, "t") as opened:
        start = opened.begin()
        run(url, "INSERT INTO t VALUES (1, '', 1)", "CREATE TABLE IF NOT EXISTS other (id int)",
            "INSERT INTO other VALUES (1)", "INSERT INTO t VALUES (2, '', 1)")  # fmt: skip
        found = window(opened, start, most=1)
        name = "gtid_binlog_pos" if server.product == "mariadb" else "gtid_executed"
        ((said,),) = opened.ask(f"SELECT @@global.{name}")

    assert str(said).replace("\n", "") == found.position.more["gtid"]


# --- the line ------------------------------------------------------------------------------------


@contextmanager
def proxied(url: str, *, cut_after: int, when: Callable[[], bool]) -> Iterator[str]:
    """Pass bytes on to the server, and drop the line once so many came back after `when`; the URL in front."""
    at = urlsplit(url)

    def serve(lines: Lines, near: socket.socket) -> None:
        far = lines.connect(str(at.hostname), int(at.port or 3306))
        lines.start(pump, near, far, None)
        pump(far, near, cut_after)

    def pump(source: socket.socket, sink: socket.socket, limit: int | None) -> None:
        passed = 0
        try:
            while data := source.recv(4096):
                if limit is not None and when():
                    data = data[: max(0, limit - passed)]
                    passed += len(data)
                sink.sendall(data)
                if limit is not None and passed >= limit and when():
                    return
        finally:
            hang_up(source)
            hang_up(sink)

    with listening(serve) as port:
        yield at._replace(netloc=f"{at.username}:{at.password}@127.0.0.1:{port}").geturl()


@pytest.mark.parametrize("after", [0, 100, 5_000, 50_000])
def test_line_that_closes_without_the_end_packet_is_lost(server: BinlogServer, url: str, after: int) -> None:
    """However much came before: an error, no commit, and the next drain is complete."""
    with log(url, "t") as opened:
        start = opened.begin()
        for i in range(100):
            run(url, f"INSERT INTO t VALUES ({i}, REPEAT('x', 400), 1), ({i + 1000}, REPEAT('y', 400), 2)")
        target = opened.survey().target
    cutting: list[bool] = []
    with proxied(url, cut_after=after, when=lambda: bool(cutting)) as broken, log(broken, "t") as opened:
        opened.survey()
        cutting.append(True)
        with pytest.raises(SourceLost):
            window(opened, start, upto=target)
    with log(url, "t") as opened:
        assert 200 == len(ids(window(opened, start, upto=target)))


def test_killed_dump_is_lost_and_the_next_one_complete(server: BinlogServer, url: str) -> None:
    """KILL of the dump's connection between two windows: an error, or a new dump; never a gap."""
    with log(url, "t") as opened:
        start = opened.begin()
        for first in range(0, 4000, 200):
            run(
                url,
                "INSERT INTO t VALUES " + ",".join(f"({i}, REPEAT('x', 400), 1)" for i in range(first, first + 200)),
            )
        target = opened.survey().target
        *changes, commit = opened.read(start, target, most=1)
        number = opened._dump.thread_id()
        with suppress(pymysql.err.OperationalError):  # it had sent all, and was gone
            run(url, f"KILL {number}")
        seen = [row["id"] for each in changes for row in each.data.to_pylist()]
        position: Position = commit.position
        for _ in range(3):
            try:
                rest = window(opened, position, upto=target)
            except SourceLost:
                continue
            break

    assert list(range(4000)) == seen + ids(rest)


# --- rights --------------------------------------------------------------------------------------

BARE = "CREATE USER bare@'%' IDENTIFIED BY 'bare'"


def test_each_missing_right_is_named_with_its_grant(server: BinlogServer, url: str) -> None:
    """No right, one right, both; revoked in between; a wrong password."""
    at = urlsplit(url)
    bare = at._replace(netloc=f"bare:bare@{at.hostname}:{at.port}").geturl()
    run(url, "DROP USER IF EXISTS bare@'%'", BARE, "GRANT SELECT ON app.* TO bare@'%'")
    with log(bare, "t") as opened:
        lacking = {each.name: each.fix for each in opened.preflight() if each.status == "fail"}
        assert {"REPLICATION SLAVE", "REPLICATION CLIENT"} <= set(lacking)
        assert "GRANT REPLICATION SLAVE ON *.* TO 'bare'@'%'" == lacking["REPLICATION SLAVE"]
        with pytest.raises(SourcePermission, match="GRANT REPLICATION SLAVE, REPLICATION CLIENT"):
            opened.survey()
    run(url, "GRANT REPLICATION CLIENT ON *.* TO bare@'%'")
    with log(bare, "t") as opened:
        opened.survey()
        with pytest.raises(SourcePermission, match="GRANT REPLICATION SLAVE"):
            opened.begin()
    run(url, "GRANT REPLICATION SLAVE ON *.* TO bare@'%'")
    with log(bare, "t") as opened:
        start = opened.begin()
        run(url, "INSERT INTO t VALUES (1, '', 1)")
        assert [1] == ids(window(opened, start))
        assert [] == [each for each in opened.preflight() if each.status == "fail"]
    run(url, "REVOKE REPLICATION SLAVE ON *.* FROM bare@'%'")
    with log(bare, "t") as opened, pytest.raises(SourcePermission):
        window(opened, start)
    wrong = at._replace(netloc=f"bare:nonsense@{at.hostname}:{at.port}").geturl()
    with log(wrong, "t") as opened, pytest.raises(SourceAuth):
        opened.survey()


def test_same_server_id_is_never_read_twice(server: BinlogServer, url: str) -> None:
    """Two deployments given one id: the lock refuses the second, and the first reads on."""
    with log(url, "t", server_id=77, deployment="a") as first:
        start = first.begin()
        first.survey()
        with log(url, "t", server_id=77, deployment="b") as second, pytest.raises(LogBusy, match="77"):
            second.survey()
        run(url, "INSERT INTO t VALUES (5, '', 1)")
        assert [5] == ids(window(first, start))


# --- a transaction larger than memory ------------------------------------------------------------


def test_large_transaction_comes_in_pieces_of_one_position(server: BinlogServer, url: str) -> None:
    """Rows wait on disk until their commit; pieces are small, one commit ends them, savepoints still count."""
    with log(url, "t", memory_bytes=1 << 20) as opened:
        start = opened.begin()
        with connection(url, autocommit=False) as writer, writer.cursor() as cursor:
            for first in range(0, 20_000, 1000):
                cursor.execute(f"SAVEPOINT s{first}")
                rows = ",".join(f"({i}, REPEAT('x', 300), 1)" for i in range(first, first + 1000))
                cursor.execute(f"INSERT INTO t VALUES {rows}")
                if first == 15_000:
                    cursor.execute("ROLLBACK TO s15000")
            writer.commit()
        found = window(opened, start, most=10)

    assert [i for i in range(20_000) if not 15_000 <= i < 16_000] == ids(found)
    assert 1 == len({row["__pos"] for row in found.rows()})
    assert len(found.changes) > 10
    assert 1 == len(found.commits)
    assert max(each.data.nbytes for each in found.changes) < 2 << 20


# --- a second opinion ----------------------------------------------------------------------------


def test_rows_are_those_of_another_decoder(server: BinlogServer, url: str) -> None:
    """python-mysql-replication reads the same log to the same operations and cells."""
    from pymysqlreplication import BinLogStreamReader
    from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

    run(url, "DROP TABLE IF EXISTS w", "CREATE TABLE w (id int PRIMARY KEY, a bigint unsigned, b decimal(20,5), "
        "c varchar(300), d datetime(6), e double, f date, g mediumint, h varbinary(9))")  # fmt: skip
    with log(url, "w", before=True) as opened:
        start = opened.begin()
        for i in range(50):
            run(url, f"INSERT INTO w VALUES ({i}, {i * 368934881474191032}, -{i}.12345, REPEAT('é', {i}), "
                f"'2026-01-02 03:04:05.{i:06d}', {i} / 7, '2026-02-{i % 28 + 1:02d}', {i} - 8388608, x'00{i:02d}')",
                f"UPDATE w SET b = b * 2, c = NULL WHERE id % 3 = {i % 3}",
                f"DELETE FROM w WHERE id = {i} - 7")  # fmt: skip
        ours = [
            (row["__op"], {name: cell for name, cell in row.items() if not name.startswith("__")})
            for row in window(opened, start).rows()
        ]
    at, place = urlsplit(url), place_of(start)
    settings = {"host": at.hostname, "port": at.port, "user": at.username, "passwd": at.password}
    stream = BinLogStreamReader(connection_settings=settings, server_id=4242, log_file=place.file, log_pos=place.offset,
                                only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent], only_tables=["w"],
                                resume_stream=True, is_mariadb=False)  # fmt: skip
    theirs = []
    for event in stream:
        for row in event.rows:
            kind = {"Write": "insert", "Updat": "update", "Delet": "delete"}[type(event).__name__[:5]]
            theirs.append((kind, row["after_values"] if kind == "update" else row["values"]))
    stream.close()

    assert len(ours) > 100
    assert theirs == ours
