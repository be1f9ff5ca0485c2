"""The binary log of MySQL and MariaDB as a change log (`Log`): who the server is, how far its log goes, windows of it.

Belongs here: the connections, the lock that makes us the only reader, positions, handover. Not here: events
(transactions.py), batches (window.py), prerequisites (preflight.py), lag (lag.py).

One connection asks, and holds the lock; another one dumps, from window to window for as long as they follow each
other. Positions are file and offset, which mean something on one server only; the GTID set beside them is recorded so
that a human can follow a failover, and resumes us where offsets end, in files above 4 GiB.

A copy overlaps with the log (2026-11): chunks take instants of their own, so the copy begins behind `begin`'s position
and changes that it holds come again. They are whole rows, so the last one of a key is right whatever came twice. The
exact instant of MariaDB (binlog_snapshot_position) would hold for a copy in one chunk only, and was left out.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import pymysql

from rivet_resources import retry
from rivet_resources.contracts.change_log import (
    Capture,
    Changes,
    Commit,
    Handover,
    Lag,
    Position,
    Survey,
    TableComments,
)
from rivet_resources.contracts.evidence import Finding
from rivet_resources.contracts.settings import Pace
from rivet_resources.contracts.source import Session
from rivet_resources.engines.mysql import catalog as mysql_catalog
from rivet_resources.engines.mysql.binlog import (
    dump as mysql_dump,
)
from rivet_resources.engines.mysql.binlog import (
    lag as mysql_lag,
)
from rivet_resources.engines.mysql.binlog import (
    preflight as mysql_preflight,
)
from rivet_resources.engines.mysql.binlog import (
    survey as mysql_survey,
)
from rivet_resources.engines.mysql.binlog.alter.shapes import Shapes, shapes_now
from rivet_resources.engines.mysql.binlog.errors import RESNAPSHOT, log_fault
from rivet_resources.engines.mysql.binlog.gtid import gtid_set
from rivet_resources.engines.mysql.binlog.position import BinlogPosition, place_of
from rivet_resources.engines.mysql.binlog.tables import TableMaps
from rivet_resources.engines.mysql.binlog.transactions import Groups
from rivet_resources.engines.mysql.binlog.window import Windows, WindowTally
from rivet_resources.engines.mysql.connect import ConnectionParams, connect, rows_of
from rivet_resources.engines.mysql.session import MySqlSession
from rivet_resources.engines.shared.unread import DatedSurvey
from rivet_resources.errors import LogBusy, LogSetup, PositionLost, SourceLost, UnknownTable

# A server frees the lock of a closed connection a moment later.
LOCK_SECONDS = 2
# The offset has four bytes in the dump command.
FARTHEST = (1 << 32) - 1
# MySQL shows its log's end a moment before a dump may read it (sync_binlog); so long we ask again.
UNRELEASED_SECONDS, PAUSE_SECONDS = 10.0, 0.05


@dataclass(frozen=True)
class _Copy:
    """A copy in the making; what it has seen of the log comes again, harmlessly."""

    session: Session

    def seen(self) -> str:
        """Return '': overlapping changes are whole rows."""
        return ""

    def repeats_until(self, end: str) -> str:
        """Return the log's end: it is written before a row can be seen."""
        return end


class MySqlLog:
    """One open binary log; see `Log`. For one thread."""

    def __init__(
        self,
        conn_params: ConnectionParams,
        capture: Capture,
        *,
        pace: Pace,
        session: Callable[[], AbstractContextManager[Session]],
    ) -> None:
        self._conn_params = conn_params
        self._capture = capture
        self._pace = pace
        self._copying = session
        self._control: Any = None
        self._dump: Any = None
        self._windows: Windows | None = None
        self._at: Position | None = None  # where the open dump stands
        self._settings: dict[str, str] = {}
        self._files: list[tuple[str, int]] = []
        self._seen: DatedSurvey | None = None
        self.server_id = capture.server_id or derive_id(capture.deployment, conn_params.where)

    # --- looking ---------------------------------------------------------------------------------

    @property
    def is_mariadb(self) -> bool:
        """Return which of the two products answers, as its greeting told."""
        return "mariadb" in str(self._opened().server_version).lower()

    def _opened(self) -> Any:
        """Connect for questions, once."""
        if self._control is None:
            self._control = retry.call(lambda: connect(self._conn_params), pace=self._pace, on=SourceLost)
        return self._control

    def ask(self, statement: str, *, doing: str = "looking at the binary log") -> list[tuple[str | None, ...]]:
        """Run one small statement; its rows as texts."""
        try:
            return rows_of(self._opened(), self._conn_params.comment + statement)
        except (pymysql.MySQLError, OSError) as error:
            raise self._fault(error, doing) from None

    def _fault(self, error: BaseException, at: str) -> Exception:
        return log_fault(error, at=at, user=self._conn_params.address.user, secrets=self._conn_params.secrets)

    def preflight(self) -> tuple[Finding, ...]:
        """Judge every prerequisite; see the protocol."""
        return mysql_preflight.findings(
            self.ask,
            user=self._conn_params.address.user,
            server_id=self.server_id,
            capture=self._capture,
            database=self._conn_params.address.database,
        )

    def survey(self) -> Survey:
        """Take the lock, and look at who the server is and which files it has: two statements."""
        # Before the question: an age that is reckoned from here is rather too large than too small.
        asked_at = time.monotonic()
        self._look()
        self._list()
        first, last = self._files[0], self._files[-1]
        target = BinlogPosition(*last).position({})
        facts = {"files": dict(self._files), "settings": dict(self._settings)}
        # A file begins with four magic bytes; its first event stands behind them.
        survey = Survey(self.identity, target, BinlogPosition(first[0], 4).position({}), facts)
        self._seen = DatedSurvey(survey, asked_at)
        return survey

    @property
    def identity(self) -> str:
        """Name the server. MariaDB has no name of its own: each file's birth, kept with a position, tells copies."""
        if uuid := self._settings.get("server_uuid"):
            return f"server_uuid:{uuid}"
        return f"mariadb:server_id={self._settings.get('server_id')},domain={self._settings.get('gtid_domain_id')}"

    def _look(self) -> None:
        lock = f"'rivet:{self.server_id}'"
        told = mysql_survey.OF_MARIADB if self.is_mariadb else mysql_survey.OF_MYSQL
        # A lock that this session holds already is granted again at once, so each survey proves that it is still ours.
        rows = self.ask(f"SELECT 'lock', CAST(GET_LOCK({lock}, {LOCK_SECONDS}) AS CHAR) UNION ALL {told}")
        self._settings = {str(name): str(text) for name, text in rows}
        if self._settings.pop("lock") != "1":
            raise LogBusy(
                f"Another drain reads the binary log of MySQL at {self._conn_params.where} as server id "
                f"{self.server_id}. Let it finish; or give this export a `cdc.server_id` of its own if it is another "
                f"deployment's."
            )

    def _list(self) -> None:
        rows = self.ask("SHOW BINARY LOGS")
        if not rows:
            raise LogSetup("The server writes no binary log. Set log_bin, and restart it; see `rivet doctor`.")
        self._files = [(str(row[0]), int(row[1] or 0)) for row in rows]

    # --- positions -------------------------------------------------------------------------------

    def begin(self, *, again: bool = False) -> Position:
        """Return the position of now; a dead `begin` left nothing at the source, so `again` changes nothing."""
        if not self._settings:
            self._look()
        catalog = MySqlSession(self._conn_params, self._opened())
        before = shapes_now(catalog, self._capture.tables)
        place, gtids = self._now()
        position = place.position({"gtid": gtids, "identity": self.identity})
        windows = self._restart(position)
        try:
            # Asks for the file's birth, and proves that we may read.
            next(windows.groups.each(), None)
        except (pymysql.MySQLError, OSError) as error:
            self._end_dump()
            raise self._fault(error, str(place)) from None
        self._end_dump()
        after = shapes_now(catalog, self._capture.tables)
        for table, shapes in after.items():
            # Altered in between: nobody knows on which side of the place.
            if before.get(table) == shapes:
                windows.tables.shapes.note(table, shapes, None)
        return self._position(windows, place)

    def _now(self) -> tuple[BinlogPosition, str]:
        """Read the log's end and its GTIDs of one instant; MariaDB tells them apart, so until they agree."""
        place, gtids = self._status()
        # A busy server moves on between the two statements; twenty tries find a moment in which it did not.
        for _ in range(20):
            if not self.is_mariadb:
                break
            gtids = str(self.ask("SELECT @@global.gtid_binlog_pos")[0][0] or "")
            again, _ = self._status()
            if again == place:
                return place, gtids
            place = again
        # No set is better than one of another instant: with it a dump above 4 GiB would begin at the wrong
        # transaction.
        return place, "" if self.is_mariadb else gtids

    def _status(self) -> tuple[BinlogPosition, str]:
        """Ask for the log's end; the statement was renamed in MySQL 8.2, and the old name is gone since 8.4."""
        names = ("SHOW MASTER STATUS", "SHOW BINARY LOG STATUS")
        rows: list[tuple[str | None, ...]] = []
        # The name that newer servers know first, on MySQL; on MariaDB the one that all of them know.
        for name in names if self.is_mariadb else reversed(names):
            try:
                rows = rows_of(self._opened(), self._conn_params.comment + name)
                break
            except (pymysql.MySQLError, OSError) as error:
                # 1064 is a syntax error: the server does not know this name of the statement.
                if error.args[0] != 1064:
                    raise self._fault(error, "its end") from None
        if not rows:
            raise LogSetup("The server writes no binary log. Set log_bin, and restart it; see `rivet doctor`.")
        gtids = rows[0][4] if len(rows[0]) > 4 else ""
        return BinlogPosition(str(rows[0][0]), int(rows[0][1] or 0)), "".join(str(gtids or "").split())

    def absent(self, table: str) -> frozenset[str]:
        """Name no column: every one is in the log; see the protocol."""
        return frozenset()

    def comments(self, table: str) -> TableComments:
        """Read a table's comments; see the protocol."""
        session = MySqlSession(self._conn_params, self._opened())
        try:
            relation = mysql_catalog.describe_table(session, table, self._capture.rules).relation
        except UnknownTable:
            return TableComments()
        return TableComments(relation.comments, {column.name: column.comment for column in relation.columns})

    def refuse_lost(self, at: Position, survey: Survey) -> tuple[()]:
        """Refuse a position of another server, of a file that is gone, or behind a file's end; see the protocol."""
        mysql_survey.refuse_lost(at, survey)
        if at.more.get("cascades") != "judged" and "cascades" not in self._capture.accepts:
            # Begun by a Rivet that did not ask. Later foreign keys are in the log, as statements.
            found = mysql_preflight.cascading(self.ask, self._capture, database=self._conn_params.address.database)
            if failed := [finding for finding in found if finding.status == "fail"]:
                raise LogSetup(". ".join(f"{finding.text}. {finding.fix}" for finding in failed))
        return ()

    # --- reading ---------------------------------------------------------------------------------

    @contextmanager
    def handover(self) -> Iterator[Handover]:
        """Open a session for the copy; it begins behind `begin`'s position, and the log comes over it again."""
        with self._copying() as session:
            yield _Copy(session)

    def read(
        self,
        after: Position,
        upto: Position,
        *,
        most: int,
        seen: str = "",
        before_asking: Callable[[], None] = lambda: None,
    ) -> Iterator[Changes | Commit]:
        """Read one window; see the protocol."""
        if not self._settings:
            self._look()
        tally, target = WindowTally(most), place_of(upto)
        # Windows mostly follow one another, and the open dump goes on; after a failed window, or a reset, it begins
        # anew.
        if self._windows is None or self._at is None or self._at.key != after.key:
            self._windows = self._restart(after)
        # Until the window is whole: a window that is given up in the middle leaves the dump somewhere inside it.
        self._at = None
        windows, told = self._windows, tuple[Finding, ...]()
        started = time.monotonic()
        while True:
            try:
                yield from windows.until(target, tally)
            except (pymysql.MySQLError, OSError) as error:
                self._end_dump()
                raise self._fault(error, str(windows.at)) from None
            except BaseException:
                # Also GeneratorExit, when the drain leaves early: the server is in the middle of its answer.
                self._end_dump()
                raise
            if tally.is_full or windows.at.order >= target.order:
                break
            if self._is_drained(windows, target):
                # Up to the target there are only events that are never sent, so the window ends at the target
                # itself, and not for ever below it.
                windows.at = max(windows.at, target, key=lambda place: place.order)
                break
            if time.monotonic() - started > UNRELEASED_SECONDS:
                self._end_dump()
                raise SourceLost(
                    f"The server lists its binary log up to {target} and sends it up to {windows.at} only, for "
                    f"{UNRELEASED_SECONDS:.0f} s now. Nothing behind that is taken as read; run again."
                )
            time.sleep(PAUSE_SECONDS)
            # From the end of the last whole group, not from the window's start: what was yielded of it is not read
            # twice.
            told += windows.tables.doubts_until(windows.at)
            windows = self._windows = self._restart(self._position(windows, windows.at))
        at = self._position(windows, windows.at, committed_us=tally.committed_us, before=after)
        # The server has sent its end packet and answers nothing more on this connection.
        if windows.groups.is_complete:
            self._end_dump()
        self._at = at
        yield Commit(at, tally.committed_at, tally.transactions, (*told, *windows.tables.doubts_until(windows.at)))

    def _is_drained(self, windows: Windows, target: BinlogPosition) -> bool:
        """Return whether nothing of ours can be between what was sent and the target: only what is never sent."""
        reached = windows.groups.reached
        if reached.order >= target.order:
            return True
        if reached.file != target.file:
            return False
        statement = f"SHOW BINLOG EVENTS IN '{target.file}' FROM {reached.offset} LIMIT 20"
        rows = self.ask(statement) if reached.offset <= FARTHEST else []
        return mysql_survey.are_service(rows, reached.offset, target.offset)

    def _position(
        self,
        windows: Windows,
        place: BinlogPosition,
        *,
        committed_us: int | None = None,
        before: Position | None = None,
    ) -> Position:
        """Make a position of a place, with all that resuming, and a human, needs."""
        committed = (
            str(committed_us) if committed_us is not None else (before.more.get("committed", "") if before else "")
        )
        dropped = windows.tables.dropped_until(place)
        return place.position({
            "gtid": str(windows.gtids) if windows.gtids is not None else "",
            "identity": self.identity,
            "born": str(windows.groups.births.get(place.file, "")),
            "committed": committed,
            "cascades": "" if "cascades" in self._capture.accepts else "judged",
            "dropped": json.dumps(dropped, sort_keys=True) if dropped else "",
            "shapes": windows.tables.shapes.until(place),
        })  # fmt: skip

    # --- the dump --------------------------------------------------------------------------------

    def _restart(self, after: Position) -> Windows:
        """Begin a dump behind a position."""
        self._end_dump()
        place = place_of(after)
        gtids = gtid_set(after.more.get("gtid", ""), is_mariadb=self.is_mariadb)
        connection = retry.call(lambda: connect(self._conn_params), pace=self._pace, on=SourceLost)
        self._dump = connection
        try:
            # From the checkpoint's own file and offset wherever the command can name it: GTIDs may be switched off.
            if place.offset > FARTHEST:
                self._start_by_gtid(connection, place, after)
            else:
                mysql_dump.start_at(connection, place.file, place.offset, server_id=self.server_id)
        except (pymysql.MySQLError, OSError) as error:
            self._end_dump()
            raise self._fault(error, str(place)) from None
        tables = TableMaps(
            self._capture,
            database=self._conn_params.address.database,
            is_mariadb=self.is_mariadb,
            folds_names=self._settings.get("lower_case_table_names", "0") != "0",
            hides_cascades=mysql_preflight.hides_cascades(self.ask),
            session=lambda: MySqlSession(self._conn_params, self._opened()),
        )
        known: dict[str, list[str]] = json.loads(after.more.get("dropped", "{}"))
        # Columns that were dropped before this position: adding one of the same name again would show old values as
        # new.
        tables.dropped = {table: dict.fromkeys(names) for table, names in known.items()}
        tables.shapes = Shapes(is_mariadb=self.is_mariadb, text=after.more.get("shapes", ""))
        memory = self._capture.memory_bytes
        events = mysql_dump.events(connection, where=self._conn_params.where)
        births = {place.file: int(after.more["born"])} if "born" in after.more else {}
        groups = Groups(events, tables, start=place, births=births, memory_bytes=memory)
        return Windows(groups, tables, place, memory, gtids)

    def _start_by_gtid(self, connection: Any, place: BinlogPosition, after: Position) -> None:
        if "gtid" not in after.more:
            raise PositionLost(
                f"The stored position {place} lies above 4 GiB, where a dump can only begin by GTID, and the server "
                f"gave none. Switch GTIDs on, or lower max_binlog_size. {RESNAPSHOT}"
            )
        mysql_dump.start_after_gtids(
            connection, after.more["gtid"], server_id=self.server_id, is_mariadb=self.is_mariadb
        )

    def _end_dump(self) -> None:
        connection, self._dump, self._windows, self._at = self._dump, None, None, None
        if connection is not None:
            # No good-bye, as close() would send: the server is in the middle of its answer, and does not listen.
            connection._force_close()

    # --- the rest --------------------------------------------------------------------------------

    def acknowledge(self, position: Position) -> None:
        """Do nothing: the server keeps no account of readers."""

    def lag(self, at: Position | None) -> Lag:
        """Measure how far a position is behind the log's end; one or two statements."""
        if not self._settings:
            self._look()
        self._list()
        return mysql_lag.lag(at, self._files, self._settings, now=time.time(), seen=self._seen)

    def close(self) -> None:
        """End both connections; the lock goes with them."""
        self._end_dump()
        connection, self._control = self._control, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()


def derive_id(deployment: str, where: str) -> int:
    """Make a server id of 32 bits from deployment and source, never 0 or a small number that people give."""
    digest = hashlib.blake2b(f"{deployment}\0{where}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") | 0x80000000
