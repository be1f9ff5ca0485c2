"""The groups of a binary log: every transaction or lone statement from its first event to its commit.

Belongs here: what begins and ends a group, its rows events of our tables, places and GTIDs, what is refused. Not here:
the bytes (dump.py), decoding (tables.py), where windows are cut (window.py).

Nothing of a group is given before its commit was read: until then nobody knows its position, or whether it was
undone. A group larger than memory waits in a temporary file.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from rivet_resources.engines.mysql.binlog import events as ev
from rivet_resources.engines.mysql.binlog.buffer import Buffer
from rivet_resources.engines.mysql.binlog.compression import inflate, unpack_events
from rivet_resources.engines.mysql.binlog.errors import RESNAPSHOT
from rivet_resources.engines.mysql.binlog.events import UPDATE, Query
from rivet_resources.engines.mysql.binlog.position import BinlogPosition
from rivet_resources.engines.mysql.binlog.tables import Schema, TableMaps
from rivet_resources.errors import LogRefused, PositionLost

# Events that hold nothing for us: stop, format, heartbeats, GTID lists, annotations, checkpoints, what statements use.
HARMLESS = frozenset({0, 3, 5, 13, 14, 15, 27, 28, 29, 35, 36, 37, 41, 160, 161, 163})
FIRST_EVENTS = frozenset({ev.FORMAT, 35, 161, 163})  # of a file: its format, the GTIDs before it, a checkpoint
HALF = 1 << 31  # a position that falls by more has wrapped
IGNORABLE = 0x80  # a flag of newer events: who does not know them may go on
SAVEPOINT = re.compile(r"(?is)(SAVEPOINT|ROLLBACK\s+(?:WORK\s+)?TO(?:\s+SAVEPOINT)?)\s+(\S+)")
GTIDS = frozenset({ev.GTID, ev.ANONYMOUS_GTID, ev.GTID_TAGGED, ev.MARIADB_GTID})
WHOLE_TRANSACTIONS = "Remove that setting, and take a new snapshot: run `mode: full`, or reset the checkpoint with "
WHOLE_TRANSACTIONS += "`initial: snapshot`."
NO_CASCADES = (
    "Rows that a foreign key deletes or changes are not in the binary log. Let triggers or the application do it; or "
    "take what is published as it is, with `cdc: {accept_untold: [cascades]}`."
)


@dataclass(slots=True)
class EventGroup:
    """One finished group: where it ends, when it was committed, its rows of our tables; `gtid` is (source, number)."""

    file: str
    offset: int
    committed_us: int
    rows: Buffer | None
    gtid: tuple[object, int] | None
    truncated: Schema | None = None

    @property
    def end(self) -> BinlogPosition:
        """Name the place behind it."""
        return BinlogPosition(self.file, self.offset)


class Groups:
    """Reads events, gives groups. One per open dump."""

    def __init__(
        self,
        events: Iterator[bytes],
        tables: TableMaps,
        *,
        start: BinlogPosition,
        births: dict[str, int],
        memory_bytes: int,
    ) -> None:
        self._reached = (start.file, start.offset)
        self.births = dict(births)  # of files, seconds since 1970: what tells a file from another of its name
        self.is_complete = False
        self._events = events
        self._tables = tables
        self._memory = memory_bytes
        self._file, self._offset = start.file, start.offset
        self._maps: dict[bytes, Schema | None] = {}
        self._known: dict[bytes, Schema | None] = {}
        self._heads: dict[tuple[Schema, int], bytes] = {}  # what stands before rows that were found to be whole
        self._forget()

    def _forget(self) -> None:
        """Begin a group."""
        self._rows: Buffer | None = None
        self._ordinal = 0
        self._gtid: tuple[object, int] | None = None
        self._committed_us = 0
        self._is_open = False  # between BEGIN and its end
        self._savepoints: dict[str, int] | None = None

    def each(self) -> Iterator[EventGroup]:
        """Yield group after group until the end packet; then `is_complete`.

        Raises:
            LogRefused: an event that cannot be read without losing rows.
            pymysql.err.MySQLError, SourceLost
        """
        try:
            yield from self._groups(self._events)
        except ev.MALFORMED:
            # An event shorter than its kind is, or compressed transactions without end in each other.
            raise ev.malformed_bytes(f"The event behind {self.place}") from None
        self.is_complete = True

    def _groups(self, events: Iterator[bytes]) -> Iterator[EventGroup]:
        """Read events. This loop runs some five times for a transaction of one row, hence the local names."""
        rows, gtids, table_map, xid = ev.ROWS, GTIDS, ev.TABLE_MAP, ev.XID
        head = struct.Struct("<B8xI").unpack_from  # type and place behind the event
        low = self._offset & 0xFFFFFFFF
        for data in events:
            kind, end = head(data, 5)
            if end > low:
                self._offset += end - low
                low = end
            elif end and low - end >= HALF and kind not in FIRST_EVENTS:
                # Positions have 32 bits and wrap in files above 4 GiB.
                self._offset += (1 << 32) - low + end
                low = end
            # else it has none, or it is of the beginning of the file, sent again where a dump begins by GTID
            if kind in rows:
                self._take(data, kind)
            elif kind == table_map:
                self._map(data)
            elif kind == xid:
                yield self._finish(data)
            elif kind in gtids:
                self._begin(data, kind)
            elif kind == ev.QUERY or kind == ev.QUERY_COMPRESSED:
                if ev.is_begin(data):
                    self._is_open = True
                elif (found := self._query(data)) is not None:
                    yield found
            elif kind == ev.ROTATE:
                self._rotate(data)
                low = self._offset & 0xFFFFFFFF
            # Its events have the place of the whole as theirs.
            elif kind == ev.PAYLOAD:
                yield from self._groups(self._unpack(data))
            elif (found := self._other(data, kind)) is not None:
                yield found

    @property
    def place(self) -> BinlogPosition:
        """Name the end of the event read last."""
        return BinlogPosition(self._file, self._offset)

    @property
    def reached(self) -> BinlogPosition:
        """Name the place behind all that was read outside groups."""
        return BinlogPosition(*self._reached)

    # --- positions -------------------------------------------------------------------------------

    def _rotate(self, data: bytes) -> None:
        """Go on in another file: table ids begin anew. The one that begins a dump names the file we are in."""
        file, offset = ev.rotation(data)
        if file != self._file:
            self._file, self._offset = file, offset
            self._reached = (file, offset)
        # Numbers of tables are of one file, and mean other tables in the next.
        self._maps.clear()

    def _finish(self, data: bytes) -> EventGroup:
        """End the group with this event."""
        rows, file, offset = self._rows, self._file, self._offset
        micros = self._committed_us or int.from_bytes(data[1:5], "little") * 1_000_000
        group = EventGroup(file, offset, micros, rows if rows is not None and len(rows) else None, self._gtid)
        self._reached = (file, offset)
        self._forget()
        return group

    def _begin(self, data: bytes, kind: int) -> None:
        # A group without an end, as of a server that died in it.
        if self._ordinal or self._is_open:
            self._forget()
        if kind == ev.MARIADB_GTID:
            self._gtid, is_statement = ev.mariadb_gtid(data)
            self._committed_us = 0
            self._is_open = not is_statement
        elif kind == ev.GTID_TAGGED:
            # A form of set we do not write: from here on none is recorded.
            self._gtid, self._committed_us = (None, 0), 0
        else:
            self._gtid, self._committed_us = ev.mysql_gtid(data)

    def _born(self, seconds: int) -> None:
        """Compare when the file was begun with what we knew: after RESET another file has the same name.

        Raises:
            PositionLost
        """
        known = self.births.setdefault(self._file, seconds)
        if known != seconds:
            raise PositionLost(
                f"The server's {self._file} is not the file of that name that we read before: it was begun at another "
                f"time. The log was reset, or the server was installed anew. {RESNAPSHOT}"
            )

    # --- rows ------------------------------------------------------------------------------------

    def _map(self, data: bytes) -> None:
        # The table's number in this file (6 bytes) and flags (2), which may differ in maps that mean the same.
        number, body = data[20:26], data[28:]
        try:
            # Ten thousand transactions carry the same map.
            self._maps[number] = self._known[body]
        except KeyError:
            # A bound for a server with very many tables; what is forgotten is only parsed again.
            if len(self._known) > 10_000:
                self._known.clear()
            self._maps[number] = self._known[body] = self._tables.schema_of(data, self.place)

    def _take(self, data: bytes, kind: int) -> None:
        """Note one rows event; those of other tables are only counted."""
        # Of every table: `__seq` counts events of the log, and a filter that changes between two reads must not
        # number the same change differently (`cdc.md`, section 3).
        self._ordinal += 1
        number = data[20:26]
        schema = self._maps.get(number)
        if schema is None:
            # 0xFFFFFF is no table's number: such an event only ends a statement.
            if number not in self._maps and number != b"\xff\xff\xff\0\0\0":
                raise self._refusal(kind, "rows of a table that the log has not described", "Run again.")
            return
        op = ev.ROWS[kind]
        head = self._heads.get((schema, kind))
        # All but the first of a table begin alike.
        is_known = head is not None and data.startswith(head, 28)
        at = 28 + len(head or b"") if is_known else self._check_columns(data, schema, kind, op)
        if kind in ev.COMPRESSED_ROWS:
            # Opened only for a table that is ours, and before it is kept, so that what waits is counted at its full
            # size.
            data = data[:at] + self._inflate(data[at:], kind)
        if self._rows is None:
            self._rows = Buffer(self._memory)
        self._rows.add(schema, data, at, op, self._ordinal)

    def _check_columns(self, data: bytes, schema: Schema, kind: int, op: int) -> int:
        """Refuse rows without all columns; the place where the first row begins."""
        at = ev.HEADER + 8
        if kind in ev.WITH_EXTRA:
            # The length counts its own two bytes.
            at += data[at] | data[at + 1] << 8
        columns, at = ev.read_packed(data, at)
        if columns != len(schema.layout.fields):
            raise ev.malformed_bytes(f"The rows event that ends at {self.place}")
        width, full = (columns + 7) // 8, (1 << columns) - 1
        # One bitmap of the columns that are there, for an update one of the row before as well.
        for _ in range(2 if op == UPDATE else 1):
            if int.from_bytes(data[at : at + width], "little") & full != full:
                raise self._refusal(
                    kind,
                    f"rows of {schema.table} without all columns (a session's binlog_row_image is not FULL)",
                    f"Missing columns look like NULL. {WHOLE_TRANSACTIONS}",
                )
            at += width
        self._heads[schema, kind] = data[ev.HEADER + 8 : at]
        return at

    def _inflate(self, data: bytes, kind: int) -> bytes:
        try:
            return inflate(data)
        except Exception as error:
            raise self._refusal(kind, f"compressed rows that cannot be opened ({error})", "Run again.") from None

    def _unpack(self, data: bytes) -> Iterator[bytes]:
        """Open one of MySQL's compressed transactions."""
        try:
            yield from unpack_events(data)
        except (ValueError, OSError) as error:
            raise self._refusal(
                ev.PAYLOAD, f"a compressed transaction that cannot be opened ({error})", "Run again."
            ) from None

    # --- statements ------------------------------------------------------------------------------

    def _query(self, data: bytes) -> EventGroup | None:
        """Judge one statement: a bracket of a group, a change that is not in rows, or DDL."""
        query = ev.query(data)
        word = query.word
        if word == "BEGIN" or query.bare.upper().startswith("XA START"):
            self._is_open = True
        elif word in ("SAVEPOINT", "ROLLBACK") and (match := SAVEPOINT.match(query.bare)):
            self._savepoint(match[1], match[2])
        elif word == "COMMIT":
            return self._finish(data)
        elif word == "ROLLBACK":
            return self._undone(data)
        elif word in ev.CHANGING:
            raise self._refusal(
                data[5],
                f"a change logged as a statement, {word}",
                "Its rows are not in the log: a session's binlog_format is not ROW, or the table is on a server that "
                f"replicates in statements. {WHOLE_TRANSACTIONS}",
            )
        elif word != "XA":
            return self._ddl(data, query)
        elif not self._is_open or query.bare.upper().startswith(("XA COMMIT", "XA ROLLBACK")):
            # The second half of an XA transaction is a group of its own.
            return self._finish(data)
        return None

    def _ddl(self, data: bytes, query: Query) -> EventGroup | None:
        """Note what a statement does to our tables. Inside a group it ends nothing: CREATE TABLE … SELECT."""
        truncated = None
        if table := self._tables.gone_with_database(query):
            raise self._refusal(
                data[5], f"a statement that drops the database of {table}",
                "Its rows are gone, and the log does not show them go. Reset the checkpoint with `initial: snapshot`, "
                "and begin anew once the table is there again.",
            )  # fmt: skip
        if table := self._tables.cascades_by(query):
            raise self._refusal(
                data[5], f"a foreign key of {table} with ON DELETE or ON UPDATE that changes its rows", NO_CASCADES
            )
        if table := self._tables.filled_by(query):
            raise self._refusal(
                data[5], f"a CREATE TABLE of {table} with a query, logged as a statement",
                f"Its rows are not in the log: a session's binlog_format is not ROW. {WHOLE_TRANSACTIONS}",
            )  # fmt: skip
        if query.word == "DROP" and self._tables.drops_several(query):
            raise self._refusal(
                data[5], "a DROP of several tables, a captured one among them",
                "Take the dropped ones out of the export, reset its checkpoint, and begin anew.",
            )  # fmt: skip
        if query.word in ("TRUNCATE", "DROP", "CREATE"):
            truncated = self._tables.truncated(query)
        elif query.word == "ALTER" and (what := self._tables.rows_moved_by(query)):
            raise self._refusal(
                data[5], f"ALTER TABLE … {what}", "It takes rows away, or brings some, that the log does not show. "
                "Take a new snapshot: run `mode: full`, or reset the checkpoint with `initial: snapshot`.",
            )  # fmt: skip
        elif query.word in ("ALTER", "RENAME") and (table := self._tables.renamed_by(query)):
            raise self._refusal(
                data[5], f"a {query.word} that renames {table}, or another table to its name",
                "Rows written under another name are not in its changes, and those of the table that took the name "
                "were never copied. Name the table as it is called now, and take a new snapshot: reset the checkpoint "
                "with `initial: snapshot`.",
            )  # fmt: skip
        elif query.word == "ALTER" and (what := self._tables.untold_by(query, self.place)):
            raise self._refusal(
                data[5], f"an ALTER TABLE that {what}",
                "Rows that were not written since would be wrong, and the log does not tell. Take a new snapshot: "
                "reset the checkpoint with `initial: snapshot`; or take what is published as it is, with "
                "`cdc: {accept_untold: [columns]}`.",
            )  # fmt: skip
        if self._is_open and truncated is not None:
            raise self._refusal(
                data[5], f"a {query.word} of {truncated.table} inside a transaction, as CREATE OR REPLACE … SELECT",
                "Reset the checkpoint with `initial: snapshot`, and begin anew.",
            )  # fmt: skip
        if self._is_open:
            return None
        group = self._finish(data)
        group.truncated = truncated
        return group

    def _savepoint(self, words: str, name: str) -> None:
        self._savepoints = self._savepoints or {}
        if words.upper() == "SAVEPOINT":
            # Set before the first row of ours: undoing to it undoes all of them.
            self._savepoints[name] = self._rows.mark() if self._rows is not None else 0
        elif self._rows is not None:
            self._rows.rewind(self._savepoints.get(name, 0))

    def _undone(self, data: bytes) -> EventGroup:
        """End a group that was rolled back; rows of tables without transactions stay as they are."""
        rows, kept = self._rows, None
        for event in rows.each() if rows is not None else ():
            if not event[0].is_transactional:
                kept = kept if kept is not None else Buffer(self._memory)
                kept.add(*event)
        self._rows = kept
        return self._finish(data)

    # --- all other events ------------------------------------------------------------------------

    def _other(self, data: bytes, kind: int) -> EventGroup | None:
        if kind == ev.XA_PREPARE:
            return self._end_prepared(data)
        if kind == ev.FORMAT:
            self._born(int.from_bytes(data[1:5], "little"))
        if kind == ev.PARTIAL_UPDATE:
            self._ordinal += 1
            schema = self._maps.get(data[ev.HEADER : ev.HEADER + 6])
            if schema is not None:
                why = f"PARTIAL_UPDATE_ROWS of {schema.table}: binlog_row_value_options=PARTIAL_JSON"
                raise self._refusal(kind, why, f"It holds differences, not values. {WHOLE_TRANSACTIONS}")
            return None
        if kind in ev.REFUSED:
            raise self._refusal(kind, ev.REFUSED[kind], WHOLE_TRANSACTIONS)
        if kind not in HARMLESS and not data[18] & IGNORABLE:
            raise self._refusal(kind, "an event that this Rivet does not know", "Ask for a Rivet that does.")
        # Between groups only: `reached` says that nothing of ours lies before it and was not given out.
        if not self._is_open and self._gtid is None:
            self._reached = (self._file, self._offset)
        return None

    def _end_prepared(self, data: bytes) -> EventGroup:
        """End the first half of an XA transaction, or all of one that was committed in one phase."""
        # The first byte says whether the transaction is committed in one phase; without rows of ours it does not
        # matter.
        if not data[ev.HEADER] and self._rows is not None:
            tables = ", ".join(sorted({schema.table for schema, *_ in self._rows.each()}))
            raise self._refusal(
                ev.XA_PREPARE,
                f"an XA transaction on {tables}, prepared and not yet committed",
                "Whether its rows count is only known at XA COMMIT, maybe days later. Let the application use "
                "XA COMMIT … ONE PHASE or plain transactions on captured tables, and take a new snapshot.",
            )
        return self._finish(data)

    def _refusal(self, kind: int, what: str, then: str) -> LogRefused:
        return LogRefused(f"The event of type {kind} that ends at {self.place} of the binary log is {what}. {then}")
