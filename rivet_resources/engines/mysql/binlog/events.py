"""The events of a binary log, taken apart: headers, table maps with their metadata, statements, GTIDs.

Belongs here: bytes to plain values, and the names of event types. Not here: rows (rows.py), what an event means
for a transaction (window.py). Offsets count the packet's first byte, which is in front of every event.

Source: MySQL internals manual, "Binlog Event"; MySQL 9 source, libs/mysql/binlog/event; MariaDB 10.11, sql/log_event.h.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from rivet_resources.engines.mysql.binlog.compression import inflate
from rivet_resources.engines.mysql.binlog.compression import read_packed as read_packed
from rivet_resources.errors import LogRefused

# An event's header, by offset: 1 timestamp (4 bytes), 5 type (1), 6 server
# (4), 10 length (4), 14 place behind it in the file (4), 18 flags (2).
HEADER = 20  # the packet's first byte and the event's own 19

QUERY, STOP, ROTATE, FORMAT, XID, TABLE_MAP, INCIDENT, HEARTBEAT = 2, 3, 4, 15, 16, 19, 26, 27
GTID, ANONYMOUS_GTID, XA_PREPARE, PAYLOAD, HEARTBEAT_2, GTID_TAGGED = 33, 34, 38, 40, 41, 42
MARIADB_GTID, QUERY_COMPRESSED = 162, 165

INSERT, UPDATE, DELETE = 0, 1, 2
OPS = ("insert", "update", "delete", "truncate")
ROWS = {23: INSERT, 24: UPDATE, 25: DELETE, 30: INSERT, 31: UPDATE, 32: DELETE,
        166: INSERT, 167: UPDATE, 168: DELETE, 169: INSERT, 170: UPDATE, 171: DELETE}  # fmt: skip
WITH_EXTRA = frozenset({30, 31, 32, 169, 170, 171})  # version 2: further facts, of a length that is written
COMPRESSED_ROWS = frozenset(range(166, 172))

# What would lose rows is refused where it is met: a session may override the server's settings.
REFUSED = {
    17: "BEGIN_LOAD_QUERY: LOAD DATA logged as a statement, with the session's binlog_format=STATEMENT or MIXED",
    18: "EXECUTE_LOAD_QUERY: LOAD DATA logged as a statement, with the session's binlog_format=STATEMENT or MIXED",
    20: "PRE_GA_WRITE_ROWS of MySQL 5.1", 21: "PRE_GA_UPDATE_ROWS of MySQL 5.1", 22: "PRE_GA_DELETE_ROWS of MySQL 5.1",
    26: "INCIDENT: the server itself says that events are missing here",
    164: "START_ENCRYPTION: the log arrives encrypted, which a server never sends; is a proxy between?",
}  # fmt: skip
PARTIAL_UPDATE = 39


MOST_COLUMNS = 4096  # of a table. Source: MySQL 9 manual, "Limits on Table Column Count and Row Size"
# What reading bytes of another format ends in.
MALFORMED = (IndexError, KeyError, ValueError, TypeError, StopIteration, OverflowError, RecursionError, struct.error)


def malformed_bytes(what: str) -> LogRefused:
    """Return the refusal of bytes that are not as the servers document them."""
    return LogRefused(
        f"{what} of the binary log is not in the format that MySQL and MariaDB document, so nothing behind it can be "
        f"read. The log or the line is damaged: run again, and if it stays, let the server's owner check the log with "
        f"mysqlbinlog --verify-binlog-checksum."
    )


# --- table maps ----------------------------------------------------------------------------------

TINY, SHORT, LONG, FLOAT, DOUBLE, LONGLONG, INT24, DATE, YEAR = 1, 2, 3, 4, 5, 8, 9, 10, 13
TIMESTAMP, TIME, DATETIME = 7, 11, 12  # as MySQL 5.5 stored them
VARCHAR, BIT, TIMESTAMP2, DATETIME2, TIME2 = 15, 16, 17, 18, 19
BLOB_COMPRESSED, VARCHAR_COMPRESSED = 140, 141  # MariaDB
VECTOR, JSON, DECIMAL, ENUM, SET, BLOB, VAR_STRING, STRING, GEOMETRY = 242, 245, 246, 247, 248, 252, 253, 254, 255
TWO_BYTES = frozenset({VARCHAR, BIT, DECIMAL, ENUM, SET, VAR_STRING, STRING, VARCHAR_COMPRESSED})
ONE_BYTE = frozenset({FLOAT, DOUBLE, TIMESTAMP2, DATETIME2, TIME2, VECTOR, JSON, BLOB, GEOMETRY, BLOB_COMPRESSED})
# Seen on MariaDB 10.11 and MySQL 9.7: YEAR has a sign's bit, VECTOR a character set's place, and so has MariaDB's
# GEOMETRY.
SIGNED = frozenset({TINY, SHORT, INT24, LONG, LONGLONG, DECIMAL, FLOAT, DOUBLE, YEAR})
CHARACTERS = frozenset({VARCHAR, VAR_STRING, STRING, BLOB, VECTOR, VARCHAR_COMPRESSED, BLOB_COMPRESSED})
BINARY_COLLATION = 63


@dataclass(frozen=True)
class Field:
    """One column as a table map describes it; ENUM and SET have their own type here, not STRING's."""

    name: str
    type: int
    meta: tuple[int, ...]
    nullable: bool
    unsigned: bool = False
    collation: int = 0  # 0: has none
    labels: tuple[bytes, ...] = ()  # of ENUM and SET, in their character set
    shape: int = 0  # of GEOMETRY: 1 is a point
    visible: bool = True

    @property
    def length(self) -> int:
        """Return the longest length in bytes of a CHAR, VARCHAR, BINARY or VARBINARY."""
        if self.type in (VARCHAR, VARCHAR_COMPRESSED):
            return self.meta[0] | self.meta[1] << 8
        # A CHAR above 255 bytes hides two more bits of its length, inverted, in the byte that names the type.
        return self.meta[1] | ((self.meta[0] & 0x30) ^ 0x30) << 4


@dataclass(frozen=True)
class TableMap:
    """One table as the log describes it; `key` are the places of its primary key's columns, () when it has none."""

    schema: str
    table: str
    fields: tuple[Field, ...]
    key: tuple[int, ...]
    has_names: bool


def _numbers(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        number, at = read_packed(data, at)
        found.append(number)
    return found


def _texts(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        size, at = read_packed(data, at)
        found.append(data[at : at + size])
        at += size
    return found


def table_name(data: bytes) -> tuple[str, str, int]:
    """Return schema and table of a table map, and the place behind them.

    Raises:
        LogRefused: they are cut, or not UTF-8.
    """
    # Behind the table's number (6) and flags (2): length, schema, a zero byte, length, table, a zero byte.
    at = HEADER + 8
    try:
        size = data[at]
        schema = data[at + 1 : at + 1 + size].decode()
        at += size + 2
        size = data[at]
        return schema, data[at + 1 : at + 1 + size].decode(), at + size + 2
    except (IndexError, UnicodeDecodeError):
        raise malformed_bytes("A table map") from None


def table_map(data: bytes, *, is_mariadb: bool) -> TableMap:
    """Take a table map apart; names, signs, character sets, labels and key need binlog_row_metadata=FULL.

    Raises:
        LogRefused: it is not a table map, or one whose rows could not be read.
    """
    try:
        return _table_map(data, is_mariadb=is_mariadb)
    except MALFORMED:
        raise malformed_bytes("A table map") from None


def _table_map(data: bytes, *, is_mariadb: bool) -> TableMap:
    schema, table, at = table_name(data)
    count, at = read_packed(data, at)
    types = list(data[at : at + count])
    # A row of no column would be read for ever.
    if not 0 < len(types) == count <= MOST_COLUMNS:
        raise malformed_bytes("A table map")
    size, at = read_packed(data, at + count)
    meta = _meta(data[at : at + size], types)
    at += size
    nulls = int.from_bytes(data[at : at + (count + 7) // 8], "little")
    # Fields: 1 signs, 2 and 3 character sets, 4 names, 5 labels of SETs, 6 of ENUMs, 7 shapes, 8 key,
    # 9 key with lengths of prefixes, 10 and 11 character sets of ENUMs and SETs, 12 what is visible.
    given = _optional(data, at + (count + 7) // 8)
    for i, (kind, known) in enumerate(zip(types, meta, strict=True)):
        # The type list says STRING for these; the first byte of their metadata says what they are.
        if kind == STRING and known[0] in (ENUM, SET):
            types[i] = known[0]
    names = [name.decode() for name in _texts(given.get(4, b""))]
    signs = _signs(given.get(1, b""), types)
    is_text = [i for i, kind in enumerate(types) if kind in CHARACTERS or (is_mariadb and kind == GEOMETRY)]
    collations = _collations(given, 2, is_text) | _collations(given, 10, _places(types, ENUM, SET))
    labels = _labels(given.get(5, b""), _places(types, SET)) | _labels(given.get(6, b""), _places(types, ENUM))
    shapes = dict(zip(_places(types, GEOMETRY), _numbers(given.get(7, b"")), strict=False))
    shown = given.get(12)
    fields = tuple(
        Field(
            # Without names nothing can be matched; `TableMaps.schema_of` refuses the map where the table is ours.
            name=names[i] if names else f"@{i + 1}",
            type=kind,
            meta=meta[i],
            nullable=bool(nulls >> i & 1),
            unsigned=signs.get(i, False),
            collation=collations.get(i, 0),
            labels=labels.get(i, ()),
            shape=shapes.get(i, 0),
            visible=shown is None or bool(shown[i // 8] >> (7 - i % 8) & 1),
        )
        for i, kind in enumerate(types)
    )
    # A key with prefixes lists place and length by turns.
    key = tuple(_numbers(given.get(8, b""))) or tuple(_numbers(given.get(9, b""))[::2])
    return TableMap(schema, table, fields, key, has_names=bool(names))


def _places(types: list[int], *kinds: int) -> list[int]:
    return [i for i, kind in enumerate(types) if kind in kinds]


def _meta(raw: bytes, types: list[int]) -> list[tuple[int, ...]]:
    found, at = [], 0
    for kind in types:
        width = 2 if kind in TWO_BYTES else 1 if kind in ONE_BYTE else 0
        found.append(tuple(raw[at : at + width]))
        at += width
    return found


def _optional(data: bytes, at: int) -> dict[int, bytes]:
    """Cut the optional fields: type, length, value."""
    found = {}
    while at < len(data):
        kind = data[at]
        size, at = read_packed(data, at + 1)
        found[kind] = data[at : at + size]
        at += size
    return found


def _signs(bits: bytes, types: list[int]) -> dict[int, bool]:
    """Read one bit per number, the first column in the top bit."""
    places = [i for i, kind in enumerate(types) if kind in SIGNED]
    return {i: bool(bits[n // 8] >> (7 - n % 8) & 1) for n, i in enumerate(places) if n // 8 < len(bits)}


def _collations(given: dict[int, bytes], kind: int, places: list[int]) -> dict[int, int]:
    """Read character sets: one for all but the listed columns (`kind`), or one for each (`kind` + 1)."""
    if kind in given:
        common, *pairs = _numbers(given[kind])
        listed = dict(zip(pairs[::2], pairs[1::2], strict=True))
        return {i: listed.get(n, common) for n, i in enumerate(places)}
    return dict(zip(places, _numbers(given.get(kind + 1, b"")), strict=False))


def _labels(raw: bytes, places: list[int]) -> dict[int, tuple[bytes, ...]]:
    found, at, columns = {}, 0, iter(places)
    while at < len(raw):
        count, at = read_packed(raw, at)
        labels = []
        for _ in range(count):
            size, at = read_packed(raw, at)
            labels.append(raw[at : at + size])
            at += size
        found[next(columns)] = tuple(labels)
    return found


# --- statements ----------------------------------------------------------------------------------

# Before a statement's first word: comments and brackets. `/*!40000 DROP …*/` runs, so its inside counts.
LEADING = re.compile(r"(?:\s+|/\*(?!M?!).*?\*/|/\*M?!\d*|--[ \t][^\n]*\n|#[^\n]*\n|\()*", re.DOTALL)
WORD = re.compile(r"[A-Za-z_]+")
# Statements that change rows, or may through what they call; with ROW format none of them is in a log.
CHANGING = frozenset(
    {"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "WITH", "SELECT", "DO", "CALL", "MERGE", "EXECUTE", "TABLE",
     "VALUES"}
)  # fmt: skip


@dataclass(frozen=True)
class Query:
    """One statement of the log, and the database it ran in."""

    database: str
    text: str
    sql_mode: int = 0  # of the session that ran it, as bits

    @property
    def bare(self) -> str:
        """Return the statement without what stands before its first word."""
        match = LEADING.match(self.text)
        return self.text[match.end() if match else 0 :]

    @property
    def word(self) -> str:
        """Name the statement by its first word, upper case."""
        match = WORD.match(self.bare)
        return match[0].upper() if match else ""


def is_begin(data: bytes) -> bool:
    """Return whether a QUERY event is BEGIN and nothing else, as nearly all of MySQL's are."""
    # Thread (4), seconds (4), length of the database (1, at 28), error (2), length of the status (2, at
    # 31), status, database, a zero byte, text. Lengths are compared, as a longer text may end so, too.
    return data.endswith(b"\0BEGIN") and len(data) > 38 and len(data) == 39 + data[28] + (data[31] | data[32] << 8)


def query(data: bytes) -> Query:
    """Take a QUERY event apart, MariaDB's compressed one too.

    Raises:
        LogRefused: it is cut, cannot be opened, or names a database that is not UTF-8.
    """
    status = HEADER + 13
    try:
        database = status + int.from_bytes(data[status - 2 : status], "little")
        size = data[HEADER + 8]
        text = data[database + size + 1 :]
        if data[5] == QUERY_COMPRESSED:
            text = inflate(text)
        name = data[database : database + size].decode()
        return Query(name, text.decode("utf-8", "replace"), _sql_mode(data[status:database]))
    except (IndexError, ValueError):
        raise malformed_bytes("A statement") from None


def _sql_mode(status: bytes) -> int:
    """Read the bits of `sql_mode` out of a statement's status; 0 where it does not say them.

    Source: MySQL sources, libs/mysql/binlog/event/statement_events.h, Q_FLAGS2_CODE and Q_SQL_MODE_CODE.
    """
    # Codes are written in ascending order, so these two come first: 0 with four bytes, 1 with eight.
    at = 5 if status[:1] == b"\0" else 0
    return int.from_bytes(status[at + 1 : at + 9], "little") if status[at : at + 1] == b"\1" else 0


# --- transactions --------------------------------------------------------------------------------

STANDALONE, PREPARED_XA, COMPLETED_XA = 1, 64, 128  # flags of MariaDB's GTID event


# What a transaction is called: (source, number). The source is a UUID's bytes; (domain, server) on MariaDB. Nothing
# that the garbage collector would follow: see `Pending`.
Gtid = tuple[object, int]
# Flags, UUID, number, the logical clock, and the commit's µs in seven bytes and a byte that is not theirs.
GTID_OF_MYSQL = struct.Struct("<B16sQ17xQ")
RELAYED, LOW_55 = HEADER + 25 + 17 + 7, (1 << 55) - 1
SHORTEST_GTID = HEADER + struct.calcsize("<B16sQ")
GTID_OF_MARIADB = struct.Struct("<I10xQIB")  # from the server in the header on


def mysql_gtid(data: bytes) -> tuple[Gtid | None, int]:
    """Read MySQL's GTID event: its name, None for an anonymous one, and µs of the first commit, 0 where not said.

    Raises:
        LogRefused: it is cut.
    """
    committed = 0
    if len(data) >= HEADER + GTID_OF_MYSQL.size:
        _, source, number, immediate = GTID_OF_MYSQL.unpack_from(data, HEADER)
        committed = immediate & LOW_55
        # Relayed: this server's own commit, then the first one's.
        if immediate >> 55 & 1:
            committed = int.from_bytes(data[RELAYED : RELAYED + 7], "little") & LOW_55
    elif len(data) < SHORTEST_GTID:
        raise malformed_bytes("A GTID")
    # MySQL 5.7 says no times.
    else:
        _, source, number = struct.unpack_from("<B16sQ", data, HEADER)
    return (source, number) if data[5] == GTID else None, committed


def mariadb_gtid(data: bytes) -> tuple[Gtid, bool]:
    """Read MariaDB's GTID event, whose server is the header's; and whether one statement follows, and no COMMIT.

    Raises:
        LogRefused: it is cut.
    """
    try:
        server, number, domain, flags = GTID_OF_MARIADB.unpack_from(data, 6)
    except struct.error:
        raise malformed_bytes("A GTID") from None
    return ((domain, server), number), flags & STANDALONE != 0


def rotation(data: bytes) -> tuple[str, int]:
    """Return the file and the place a ROTATE event leads to.

    Raises:
        LogRefused: it is cut, or the name is not UTF-8.
    """
    try:
        name = data[HEADER + 8 :].decode()
    except UnicodeDecodeError:
        raise malformed_bytes("The end of a file") from None
    if not name:
        raise malformed_bytes("The end of a file")
    return name, int.from_bytes(data[HEADER : HEADER + 8], "little")
