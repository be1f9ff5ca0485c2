"""Events of a binary log that no test server writes: refused ones, wrapped positions, damage, sets of GTIDs."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any
from uuid import UUID
from zlib import crc32

import pytest

from rivet_resources.contracts.change_log import Position
from rivet_resources.engines.mysql.binlog import dump as mysql_dump
from rivet_resources.engines.mysql.binlog.errors import log_fault
from rivet_resources.engines.mysql.binlog.events import Query
from rivet_resources.engines.mysql.binlog.gtid import MariaDbSet, MySqlSet, gtid_set
from rivet_resources.engines.mysql.binlog.json import double_text
from rivet_resources.engines.mysql.binlog.lag import lag
from rivet_resources.engines.mysql.binlog.log import derive_id
from rivet_resources.engines.mysql.binlog.position import BinlogPosition, place_of
from rivet_resources.engines.mysql.binlog.preflight import findings
from rivet_resources.engines.mysql.binlog.transactions import Groups
from rivet_resources.errors import CheckpointUnusable, LogRefused, PositionLost, RivetError, SourceLost

ONE = UUID("8564006a-e5b9-11f1-956f-02fc00000001")


def event(kind: int, end: int, body: bytes = b"", *, flags: int = 0, time: int = 1_700_000_000) -> bytes:
    """Write an event as a packet, without checksum."""
    return b"\0" + struct.pack("<IBIIIH", time, kind, 1, 19 + len(body), end, flags) + body


def query(text: str, end: int) -> bytes:
    """Write a QUERY event."""
    return event(2, end, struct.pack("<IIBHH", 1, 0, 3, 0, 0) + b"app\0" + text.encode())


def groups(*events: bytes, offset: int = 4) -> Groups:
    """Read events that hold no table."""
    tables: Any = None
    return Groups(iter(events), tables, start=BinlogPosition("binlog.000001", offset), births={}, memory_bytes=1 << 20)


def test_position_above_four_gib_goes_on_counting() -> None:
    """The log's positions have 32 bits and wrap; ours do not, and sort."""
    last = (1 << 32) - 100
    read = groups(event(16, 50, bytes(8)), event(16, 90, bytes(8)), offset=last)

    ends = [group.end for group in read.each()]
    assert [(1 << 32) + 50, (1 << 32) + 90] == [end.offset for end in ends]
    assert (
        BinlogPosition("binlog.000001", last).key < ends[0].key < ends[1].key < BinlogPosition("binlog.000002", 4).key
    )


@pytest.mark.parametrize(
    ("kind", "told"),
    [(17, "LOAD DATA"), (18, "LOAD DATA"), (20, "PRE_GA"), (26, "INCIDENT"), (164, "START_ENCRYPTION"), (99, "know")],
)
def test_event_that_would_lose_rows_is_refused_with_type_and_position(kind: int, told: str) -> None:
    """Even one that nobody knows yet; unless it says itself that it may be passed over."""
    with pytest.raises(LogRefused, match=rf"type {kind} that ends at binlog.000001:777 .*{told}"):
        list(groups(event(kind, 777)).each())


def test_unknown_event_that_may_be_ignored_is() -> None:
    """The server flags what a reader can do without."""
    assert [] == list(groups(event(99, 777, flags=0x80)).each())


STATEMENTS = (
    "INSERT INTO t VALUES (1)",
    " /* x */ update t set a = 1",
    "(SELECT f())",
    "-- x\nDELETE FROM t",
    "CALL p()",
    "WITH a AS (SELECT 1) DELETE FROM t",
    "LOAD DATA INFILE 'x' INTO TABLE t",
    "REPLACE t VALUES (1)",
)


@pytest.mark.parametrize("text", STATEMENTS)
def test_change_logged_as_a_statement_is_refused(text: str) -> None:
    """However it is written, and without its text in the message."""
    with pytest.raises(LogRefused, match="logged as a statement") as failure:
        list(groups(query(text, 300)).each())

    assert "binlog.000001:300" in str(failure.value)
    assert text not in str(failure.value)


def test_words_before_a_statement_do_not_hide_it() -> None:
    """Comments and brackets are passed over; a versioned comment's inside runs."""
    texts = {"/*!40000 DROP TABLE t */": "DROP", "# a\n# b\n  BEGIN": "BEGIN", "((SELECT 1))": "SELECT", "": ""}
    assert texts == {text: text and Query("app", text).word for text in texts} | {"": Query("app", "").word}


# --- the dump ------------------------------------------------------------------------------------


class Line:
    """A connection whose server says these bytes and then no more."""

    def __init__(self, said: bytes) -> None:
        self._rfile = self
        self._said = said

    def read1(self, size: int) -> bytes:
        found, self._said = self._said[:7], self._said[7:]
        return found

    def read(self, size: int) -> bytes:
        found, self._said = self._said[:size], self._said[size:]
        return found


def packet(data: bytes) -> bytes:
    return len(data).to_bytes(3, "little") + b"\0" + data


def checked(data: bytes) -> bytes:
    return data + crc32(data[1:]).to_bytes(4, "little")


def dumped(*packets: bytes) -> Iterator[bytes]:
    line: Any = Line(b"".join(map(packet, packets)))
    return mysql_dump.events(line, where="here")


END = b"\xfe\0\0\2\0"
FORMAT = event(15, 0, bytes(60) + b"\1") + bytes(4)


def test_log_ends_with_the_end_packet_and_with_nothing_else() -> None:
    """A line that closes before it has lost events, wherever it closed."""
    whole = [FORMAT, checked(event(16, 50, bytes(8)))]
    assert 2 == len(list(dumped(*whole, END)))

    with pytest.raises(SourceLost, match="closed before the end of the log"):
        list(dumped(*whole))


def test_wrong_checksum_is_refused() -> None:
    """One bit is enough."""
    data = bytearray(checked(event(16, 50, bytes(8))))
    data[22] ^= 1
    with pytest.raises(LogRefused, match=r"type 16 that ends at 50 .*wrong checksum"):
        list(dumped(FORMAT, bytes(data), END))


def test_event_of_16_mib_comes_in_several_packets() -> None:
    """The packet of the largest size goes on in the next one, which may be empty."""
    for size in ((1 << 24) - 1, (1 << 24) + 1000):
        data = checked(event(16, 50, bytes(size - 24)))
        assert size == len(data)
        parts = [data[: (1 << 24) - 1], data[(1 << 24) - 1 :]]

        line: Any = Line(b"".join(map(packet, [FORMAT, *parts, END])))
        line.read1 = line.read
        _, found = mysql_dump.events(line, where="here")
        assert data[:-4] == found


# --- positions, sets, ids ------------------------------------------------------------------------


def test_sets_grow_and_are_printed_as_the_servers_do() -> None:
    """Intervals join; what the text says is what is parsed."""
    found = MySqlSet.parse(f"{ONE}:1-3:7,\n{UUID(int=1)}:5")
    for first, last in ((4, 4), (8, 9), (5, 6), (2, 2)):
        found.add(ONE.bytes, first, last)
    assert f"{UUID(int=1)}:5,{ONE}:1-9" == str(found)
    assert 8 + 2 * (16 + 8 + 16) == len(found.packed())
    other = MariaDbSet.parse("1-2-3,0-1-270")
    other.add((0, 5), 271, 271)
    assert "0-5-271,1-2-3" == str(other)
    assert [None, None, None] == [
        gtid_set("", is_mariadb=False),
        gtid_set(f"{ONE}:tag:1-5", is_mariadb=False),
        gtid_set("0-1", is_mariadb=True),
    ]


def test_position_of_another_kind_is_refused() -> None:
    """A checkpoint of PostgreSQL, or a damaged one, is no place in a binary log."""
    for position in (Position("0", "0/16B3748", "PostgresLsn"), Position("0", "binlog:x", "MysqlBinlog")):
        with pytest.raises(CheckpointUnusable, match="file:offset"):
            place_of(position)


def test_derived_id_is_one_per_deployment_and_source() -> None:
    """Stable, 32 bits, and no small number that people give to replicas."""
    ids = {derive_id(deployment, where) for deployment in "ab" for where in ("h:1", "h:2")}
    assert 4 == len(ids)
    assert all(1 << 31 <= each < 1 << 32 for each in ids)
    assert derive_id("a", "h:1") == derive_id("a", "h:1")


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("Could not find first log file name in binary log index file", PositionLost),
        ("Client requested source to start replication from position > file size", PositionLost),
        ("Could not find GTID state requested by slave in any binlog files", PositionLost),
        ("log event entry exceeded max_allowed_packet; Increase max_allowed_packet on source", CheckpointUnusable),
        ("Something new", SourceLost),
    ],
)
def test_texts_of_1236_are_told_apart(said: str, kind: type[RivetError]) -> None:
    """One number, many causes: the text decides."""
    import pymysql

    found = log_fault(pymysql.err.OperationalError(1236, said), at="binlog.000001:4")
    assert kind is type(found)
    assert said in str(found)


# --- numbers, lag, preflight ---------------------------------------------------------------------


def test_doubles_are_spelled_as_the_servers_do() -> None:
    """Shortest digits, an exponent beyond 15 places, none with a plus."""
    texts = {
        0.0: "0", 1.0: "1", -0.1: "-0.1", 1e14: "100000000000000", 1e15: "1e15", 1.5e-20: "1.5e-20",
        1e-15: "0.000000000000001", 1.7976931348623157e308: "1.7976931348623157e308", 123456.789: "123456.789",
    }  # fmt: skip
    assert list(texts.values()) == [double_text(value) for value in texts]


def test_lag_counts_what_is_unread_and_what_of_the_retention_is_used() -> None:
    """A purged file is all of it; the newest file none."""
    files = [("binlog.000003", 1000), ("binlog.000004", 500)]
    settings = {"binlog_expire_logs_seconds": "1000"}
    at = BinlogPosition("binlog.000003", 400).position({"born": "500", "committed": "900000000"})

    found = lag(at, files, settings, now=1000.0)
    assert (1100, None, 0.5) == (found.unread_bytes, found.seconds, found.budget)
    assert 0.0 == lag(BinlogPosition("binlog.000004", 100).position({}), files, settings, now=1000.0).budget
    assert 1.0 == lag(BinlogPosition("binlog.000002", 100).position({}), files, settings, now=1000.0).budget


GOOD = {"log_bin": "ON", "binlog_format": "ROW", "binlog_row_image": "FULL", "binlog_row_metadata": "FULL",
        "binlog_row_value_options": "", "binlog_transaction_compression": "OFF", "server_id": "1",
        "binlog_expire_logs_seconds": "604800", "log_replica_updates": "ON", "version_comment": "MySQL"}  # fmt: skip
BAD = {"log_bin": "OFF", "binlog_format": "MIXED", "binlog_row_image": "MINIMAL", "binlog_row_metadata": "MINIMAL",
       "binlog_row_value_options": "PARTIAL_JSON", "server_id": "7", "binlog_expire_logs_seconds": "60",
       "log_replica_updates": "OFF", "version_comment": "(ProxySQL)", "proxy_version": "2.6"}  # fmt: skip


@pytest.mark.parametrize("setting", BAD)
def test_preflight_judges_each_setting_alone_and_names_its_fix(setting: str) -> None:
    """All good but one: exactly that one is found, with what to run."""
    shown = {**GOOD, setting: BAD[setting]}

    def ask(statement: str) -> list[tuple[str | None, ...]]:
        if statement.startswith("SHOW GLOBAL"):
            return list(shown.items())
        if statement == "SHOW REPLICA STATUS":
            return [("a replica",)]
        if statement == "SHOW GRANTS":
            return [("GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO `r`@`%`",)]
        return [("1",)]

    found = [each for each in findings(ask, user="r", server_id=7) if each.status != "ok"]
    assert 1 == len(found)
    assert found[0].fix
    assert found[0].status == ("warn" if setting == "binlog_expire_logs_seconds" else "fail")
