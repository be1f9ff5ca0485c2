"""PostgreSQL's change log: a logical slot with pgoutput, read by peeking, acknowledged by advancing (`cdc.md`, 4).

Belongs here: the Log's methods and their order. Not here: statements and what they mean (survey.py,
preflight.py), the peek (peek.py), decoding (window.py).

Decision (2026-11): pgoutput in its text form. Its binary form is no faster on the server (604k against 582k changes
a second) and would need a second reader for every type; the texts of a pinned session are the batch read's texts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

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
from rivet_resources.deadlines import patience_seconds
from rivet_resources.engines.postgres.connect import ConnectionParams, connect, pin
from rivet_resources.engines.postgres.errors import fault
from rivet_resources.engines.postgres.log import (
    create_slot as postgres_begin,
)
from rivet_resources.engines.postgres.log import (
    lag as postgres_lag,
)
from rivet_resources.engines.postgres.log import (
    layout as postgres_layout,
)
from rivet_resources.engines.postgres.log import (
    preflight as postgres_preflight,
)
from rivet_resources.engines.postgres.log import (
    survey as postgres_survey,
)
from rivet_resources.engines.postgres.log.errors import log_fault, position_lost, untold
from rivet_resources.engines.postgres.log.lsn import SnapshotVisibility, lsn_number, moment, position
from rivet_resources.engines.postgres.log.messages import RelationMessage
from rivet_resources.engines.postgres.log.peek import SMALL_BYTES, Peek, Wire, copy_messages
from rivet_resources.engines.postgres.log.relations import RelationCache
from rivet_resources.engines.postgres.log.survey import publication_of
from rivet_resources.engines.postgres.log.window import TransactionBatch
from rivet_resources.engines.postgres.session import PostgresSession, open_session
from rivet_resources.engines.shared.unread import DatedSurvey
from rivet_resources.errors import SourceError, SourceLost, StatementTimeout

Rows = list[tuple[Any, ...]]
# Asked for at once: more is more of the server's disk.
PEEK_WINDOWS = 2
# The server frees its log by files of this size, by default.
SEGMENT_BYTES = 16 << 20
# Messages that are no changes: begins, commits, relations of a small window.
SPARE = 64
# Going back is an error there (55000, `cannot advance replication
# slot`), and an acknowledgement that is told twice is none.
ADVANCE = """
SELECT CASE WHEN confirmed_flush_lsn < %s::pg_lsn THEN pg_replication_slot_advance(slot_name, %s::pg_lsn) END
FROM pg_replication_slots WHERE slot_name = %s"""


@dataclass(frozen=True)
class _Copy:
    """A handover; see the protocol."""

    session: PostgresSession

    def seen(self) -> str:
        """Return the snapshot's own account of transactions; '' where tasks could not share the snapshot."""
        if self.session.snapshot is None:
            return ""
        rows = self.session.ask("SELECT pg_current_snapshot()::text", doing="reading the snapshot")
        return str(rows[0][0])

    def repeats_until(self, end: str) -> str:
        """Return '': what the snapshot holds is left out of the log."""
        return end if self.session.snapshot is None else ""


@dataclass
class _Peeked:
    """An answer of the server that is being read, possibly by several windows."""

    arrays: Iterator[pa.Array]
    upto: int
    limit: int
    messages: int = 0
    end: int = 0  # where the window before ended
    rest: pa.Array | None = None
    relations: dict[int, RelationMessage] = field(default_factory=dict)

    def close(self) -> None:
        """Cancel the statement."""
        close = getattr(self.arrays, "close", None)
        if close is not None:
            close()


class PostgresLog:
    """One slot of one database; see the protocol. Not shared between threads."""

    def __init__(self, capture: Capture, *, conn_params: ConnectionParams, pace: Pace) -> None:
        self.capture, self.conn_params, self.pace = capture, conn_params, pace
        self.publication = publication_of(capture)
        self._connection = retry.call(lambda: connect(conn_params), pace=pace, on=SourceLost)
        self.user = conn_params.user or self._connection.info.user
        self.server_version = self._connection.info.server_version
        self._wire = Wire(conn_params)
        self._tables = RelationCache(
            capture.tables, capture.rules, catalog=self, ask=self._select, is_keyed=capture.is_keyed, key=capture.key
        )
        self._last: Survey | None = None
        self._seen: DatedSurvey | None = None
        self._peeked: _Peeked | None = None
        self._noted: dict[str, Any] = {}  # tables' layouts, as the checkpoint has them
        self._rewrites: dict[str, str] = {}  # tables that a truncate in the log alone explains, with what else it is
        self._truncates_due: set[str] = set()  # tables whose partitions are explained by a truncate in the log alone
        self._due: Position | None = None  # durable with us, and not yet told to the source
        self._kept: list[str] = []  # ends of the windows with changes of ours that the slot has not passed
        # Messages for one change; begins and commits weigh more where transactions are small.
        self._spread = 1.05

    @property
    def slot(self) -> str:
        """Name the slot."""
        return self.capture.slot

    # --- statements ------------------------------------------------------------------------------

    def ask(self, statement: str, values: Sequence[Any] = (), *, doing: str) -> Rows:
        """Run one statement by itself and give its rows; `%s` are bound only when `values` are given.

        Raises:
            SourceError and its kin, by SQLSTATE.
        """
        import psycopg  # driver

        try:
            # Without values nothing is bound, and a `%` in the statement is only that.
            cursor = self._connection.execute(statement.encode(), tuple(values) or None)
            return cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            raise log_fault(error, doing=doing, peek=self, conn_params=self.conn_params) from None

    @contextmanager
    def limited_to(self, seconds: float) -> Iterator[None]:
        """Wait for statements as long as this other limit of the server needs."""
        connection: Any = self._connection
        usual, connection.patience_seconds = connection.patience_seconds, patience_seconds(seconds)
        try:
            yield
        finally:
            connection.patience_seconds = usual

    def prepare(self, statement: str, *, doing: str) -> list[tuple[str, int, int]]:
        """Describe a statement; a log only knows tables, so nobody asks."""
        raise SourceError(f"While {doing}: a change log describes tables, never queries. Report this.")

    def find_policed(self, statement: str, *, doing: str) -> str | None:
        """Find no policy: a log has every row."""
        return None

    def _select(self, expression: str, texts: Sequence[str | None]) -> list[str | None]:
        """Run a column's own SELECT expression over texts, in a pinned transaction; the texts it gives, in order."""
        import psycopg  # driver

        # The expression is made by our own catalog code from quoted names and literals; `%` in them is doubled.
        # It reads `(<name> AT TIME ZONE <zone>)`, see columns.py; unnest() gives its texts under that very name.
        name, escaped = expression[1:].partition(" AT TIME ZONE ")[0], expression.replace("%", "%%")
        statement = (
            f"SELECT {escaped}::text FROM unnest(%s::text[]::timestamp[]) WITH ORDINALITY "
            f"AS t ({name.replace('%', '%%')}, rivet_n) ORDER BY rivet_n"
        )
        try:
            with self._connection.transaction():
                self._connection.execute(pin(self.conn_params.settings).encode())
                return [row[0] for row in self._connection.execute(statement.encode(), (list(texts),)).fetchall()]
        except psycopg.Error as error:
            raise fault(error, doing="reading times", user=self.user, secrets=self.conn_params.secrets) from None

    # --- looking ---------------------------------------------------------------------------------

    def preflight(self) -> tuple[Finding, ...]:
        """Judge every prerequisite; nothing is changed."""
        return postgres_preflight.findings(self, self.capture)

    def survey(self) -> Survey:
        """Look with one statement; see the protocol."""
        # Before the question: an age that is reckoned from here is rather too large than too small.
        asked_at = time.monotonic()
        self._last = postgres_survey.survey(self.ask, self.capture)
        self._seen = DatedSurvey(self._last, asked_at)
        self._tables.found(postgres_survey.oids(self._last.facts), postgres_survey.schemas(self._last.facts))
        return self._last

    def refuse_lost(self, at: Position, survey: Survey) -> tuple[Finding, ...]:
        """Refuse a position the slot no longer serves; see the protocol."""
        postgres_survey.refuse_lost(at, survey)
        return tuple(self._refuse_untold(at, survey))

    def _refuse_untold(self, at: Position, survey: Survey) -> list[Finding]:
        """Compare the tables' layouts with those of the checkpoint: what pgoutput does not tell.

        Returns:
            What may have changed rows, and cannot be known.

        Raises:
            PositionLost: rows have changed without a word in the log, and nobody accepts that.
        """
        self._noted = json.loads(at.more.get("layouts", "{}"))
        self._truncates_due, self._rewrites = set(), {}
        doubts: list[Finding] = []
        for table, now in postgres_survey.layouts(survey.facts).items():
            # A checkpoint of before layouts were noted.
            if table not in self._noted:
                continue
            name = postgres_survey.quote_table(table)
            found = postgres_layout.judge(table, name, self._noted[table], now, self.ask)
            for difference in found.differences:
                if difference.kind not in self.capture.accepts:
                    raise untold(difference.text, at=at.text, kind=difference.kind, slot=self.slot)
            if found.truncate_due and "partitions" not in self.capture.accepts:
                self._truncates_due.add(table)
            if found.rewrite and "columns" not in self.capture.accepts:
                self._rewrites[table] = found.rewrite
            doubts += found.doubts
        return doubts

    def absent(self, table: str) -> frozenset[str]:
        """Name the generated columns, which pgoutput sends from 18 on, if the publication says so; see the protocol."""
        if self._last is None:
            self.survey()
        facts = self._last.facts if self._last is not None else {}
        if (facts["publication"] or {}).get("pubgencols") == "s":
            return frozenset()
        return frozenset(postgres_survey.layouts(facts).get(table, {}).get("generated") or ())

    def comments(self, table: str) -> TableComments:
        """Read a table's comments; no right to its rows is needed, as reading a slot needs none; see the protocol."""
        if self._last is None:
            self.survey()
        return self._tables.comments(table)

    def lag(self, at: Position | None) -> Lag:
        """Measure with one statement how far a position is behind; see the protocol."""
        return postgres_lag.lag(self.ask, self.capture, at=at, seen=self._seen)

    # --- beginning -------------------------------------------------------------------------------

    def begin(self, *, again: bool = False) -> Position:
        """Make the publication, then the slot, or take over the slot of a dead `begin`; see the protocol."""
        found = self.survey()
        if again and found.facts["slot"]:
            begun = postgres_begin.take_over(self.capture, found)
        else:
            begun = postgres_begin.begin(self, self.capture, found)
        # The publication may be new, and the position notes it.
        self.survey()
        return replace(begun, more=self._notes())

    @contextmanager
    def handover(self) -> Iterator[Handover]:
        """Open the copy whose snapshot says what of the log it holds; the slot is older, so nothing is missed."""
        session = retry.call(lambda: open_session(self.conn_params, snapshot=True), pace=self.pace, on=SourceLost)
        try:
            yield _Copy(session)
        finally:
            session.close()

    # --- reading ---------------------------------------------------------------------------------

    def read(
        self,
        after: Position,
        upto: Position,
        *,
        most: int,
        seen: str = "",
        before_asking: Callable[[], None] = lambda: None,
    ) -> Iterator[Changes | Commit]:
        """Read one window; see the protocol.

        The server counts messages, not changes, and stops only behind a whole transaction: where it stopped too
        early it is asked again for more, from the slot's place, and what came already is left out.
        """
        if self._last is None:
            self.survey()
        begin, end = lsn_number(after.text), lsn_number(upto.text)
        self._remember(after)
        # Beside the catalog's columns: whatever else the log brings came and went since the checkpoint, and is
        # judged at the end.
        self._tables.expect(self._columns())
        window = TransactionBatch(
            self._tables, SnapshotVisibility.parse(seen), self.capture.before, after=begin, most=most, end=begin
        )
        peeked = self._taken_up(window, begin, end, most, before_asking)
        while True:
            yield from self._decode(window, peeked)
            if window.is_full:
                peeked.rest, peeked.relations, peeked.end = window.rest, window.relations, window.end
                self._peeked = peeked
                break
            # pgoutput sends whole transactions only (`streaming` is off): one that stays open was cut off on its way.
            if window.open.is_open:
                raise SourceLost(f"While reading slot {self.slot}: the answer ended inside a transaction. Run again.")
            # Fewer than it might have sent: the log was read up to the target.
            if peeked.messages < peeked.limit:
                break
            if window.kept:
                self._spread = max(1.05, 1.05 * peeked.messages / window.kept)
            missing = int((most - window.kept) * self._spread) + SPARE
            # Nothing of ours among them: four times as much, or the changes of other tables would take one look for
            # every few thousand.
            limit = peeked.messages + max(missing, 0 if window.kept else 3 * peeked.messages)
            # From the last whole transaction on: the peek sends everything from the slot's place again.
            window.again(window.end)
            peeked = self._ask(end, limit, before_asking)
        self._truncates_due -= window.truncated
        self._rewrites = {table: text for table, text in self._rewrites.items() if table not in window.truncated}
        # Only of a window that reached the target: in a full one the truncate that explains it may still come.
        for text in () if window.is_full else self._rewrites.values():
            raise untold(text, at=after.text, kind="columns", slot=self.slot)
        if not window.is_full and self._truncates_due:
            self._refuse_emptied(after)
        if strange := {table: columns for table, columns in self._tables.strange.items() if columns}:
            self._refuse_strange(strange, after)
        # Where nothing of ours came, the target all the same: a slot
        # that stays makes a busy server keep all of its log.
        at = position(window.end if window.is_full else max(window.end, end), self._notes())
        # Whether anything of ours came: `acknowledge` puts off a position behind which nothing did.
        if window.kept:
            self._kept.append(at.key)
        yield Commit(
            position=at,
            committed_at=moment(window.committed) if window.committed is not None else None,
            transactions=window.transactions,
        )

    def _taken_up(
        self, window: TransactionBatch, begin: int, end: int, most: int, before_asking: Callable[[], None]
    ) -> _Peeked:
        """Go on with the answer in which the window before ended, or ask for a new one."""
        # The server has laid a whole answer by before its first row, and lets go of the slot then: one peek serves
        # several windows, with acknowledgements between, and the log is decoded once for all of them.
        peeked, self._peeked = self._peeked, None
        if peeked is not None and (peeked.end, peeked.upto) == (begin, end):
            # Relation messages come once in a peek, and they were read by the window before.
            window.relations.update(peeked.relations)
            return peeked
        if peeked is not None:
            peeked.close()
        return self._ask(end, PEEK_WINDOWS * int(most * self._spread) + SPARE, before_asking)

    def _ask(self, end: int, limit: int, before_asking: Callable[[], None]) -> _Peeked:
        # Or the server decodes once more what is durable already, or is about to be: waiting for a window that is
        # being published costs us less than that costs the source.
        before_asking()
        self._advance()
        peek = Peek(self.slot, self.publication, end, limit, spelling(self.conn_params.settings))
        return _Peeked(self._messages(peek), upto=end, limit=limit)

    def _decode(self, window: TransactionBatch, peeked: _Peeked) -> Iterator[Changes]:
        """Decode until the window is full or the answer ends; left early, the answer is given up."""
        is_left = True
        try:
            if peeked.rest is not None:
                yield from window.decode(peeked.rest)
            while not window.is_full and (array := next(peeked.arrays, None)) is not None:
                peeked.messages += len(array)
                yield from window.decode(array)
            is_left = False
        finally:
            if is_left:
                peeked.close()

    def _messages(self, peek: Peek) -> Iterator[pa.Array]:
        """Choose the way to us: the open connection for a little log, one of its own for more."""
        # The server decodes from restart_lsn on, whatever it then sends.
        slot = self._last.facts["slot"] if self._last is not None else {}
        restart = slot.get("restart_lsn")
        if restart is not None and peek.upto - lsn_number(restart) < SMALL_BYTES:
            try:
                # Whole before the first is given on: decoding asks the catalog on this same connection.
                return iter(list(copy_messages(self._connection, peek, conn_params=self.conn_params)))
            except StatementTimeout:
                # The other connection has no such limit.
                pass
        return self._wire.batches(peek)

    def _refuse_emptied(self, after: Position) -> None:
        """Refuse partitions that were emptied all at once, and not by a truncate of their table.

        Raises:
            PositionLost
        """
        facts = self._last.facts if self._last is not None else {}
        table = min(self._truncates_due)
        leaves = list((postgres_survey.layouts(facts)[table]["leaves"] or {}).values())
        difference = postgres_layout.truncated_by_name(table, leaves)
        raise untold(difference.text, at=after.text, kind=difference.kind, slot=self.slot)

    def _refuse_strange(self, strange: Mapping[str, set[str]], after: Position) -> None:
        """Judge columns that neither the checkpoint nor the catalog knew when this look at the log began.

        Either the table was altered since, or the column came and went between: dropped, which is harmless, or
        renamed there and back, which leaves rows under a name that no other row has.

        Raises:
            PositionLost
        """
        self._refuse_untold(after, self.survey())
        layouts = postgres_survey.layouts(self._last.facts) if self._last is not None else {}
        for table, columns in strange.items():
            then, now = self._noted.get(table), layouts.get(table)
            if then is None or now is None or "columns" in self.capture.accepts:
                continue
            passing = columns - postgres_layout.names(now)
            if len(passing) > postgres_layout.count_dropped(then, now):
                text = f"column {min(passing)} of {table} is in the log, and is neither there now nor was dropped since"
                raise untold(f"{text}: it was renamed there and back", at=after.text, kind="columns", slot=self.slot)

    def _remember(self, after: Position) -> None:
        """Take up which relations the tables were, noted by the window before."""
        noted = json.loads(after.more.get("relations", "{}"))
        self._tables.remembered.update({table: int(oid) for table, oid in noted.items()})
        self._noted = json.loads(after.more.get("layouts", "{}"))

    def _columns(self) -> dict[str, set[str]]:
        """Name the columns that the log may have: those of the catalog, and those noted before."""
        now = postgres_survey.layouts(self._last.facts) if self._last is not None else {}
        layouts = {table: (known, now[table]) for table, known in self._noted.items() if table in now}
        return {table: set().union(*map(postgres_layout.names, both)) for table, both in layouts.items()}

    def _notes(self) -> dict[str, str]:
        """Note which relations the tables are, so that a rename is followed, and how they are published.

        A publication made anew lost what was written meanwhile: `refuse_lost` compares.
        """
        publishing = postgres_survey.publishing(self._last.facts) if self._last is not None else {}
        notes = {"relations": self._tables.notes(), "publishing": publishing, "layouts": self._layouts()}
        return {name: json.dumps(known, sort_keys=True) for name, known in notes.items() if known}

    def _layouts(self) -> dict[str, Any]:
        """Note the tables' layouts; the one before of a table that was dropped, or whose truncate is still to come."""
        now = postgres_survey.layouts(self._last.facts) if self._last is not None else {}
        due = {*self._truncates_due, *self._rewrites}
        kept = {table: known for table, known in self._noted.items() if table in due or table not in now}
        return {**{table: postgres_layout.note(layout) for table, layout in now.items()}, **kept}

    # --- acknowledging ---------------------------------------------------------------------------

    def acknowledge(self, position: Position) -> None:
        """Advance the slot; done already, or farther, is done.

        Put off while an answer is being read that goes on behind here: advancing costs the server 0.1 to 0.2 s, and
        our checkpoint is the truth. Where nothing came, it waits for a whole file of the log to become free.
        """
        self._due = position
        # While an answer is open the slot's place does not matter: the server decoded it before its first row.
        if self._peeked is None and (self._has_kept_until(position) or self._frees_a_file(position)):
            self._advance()

    def _has_kept_until(self, position: Position) -> bool:
        """Return whether changes of ours lie between the slot and here."""
        return any(end <= position.key for end in self._kept)

    def _frees_a_file(self, position: Position) -> bool:
        slot = self._last.facts["slot"] if self._last is not None else {}
        confirmed = slot.get("confirmed_flush_lsn")
        return confirmed is None or lsn_number(position.text) - lsn_number(str(confirmed)) >= SEGMENT_BYTES

    def _advance(self) -> None:
        if self._due is None:
            return
        text = self._due.text
        # No row came back: there is no slot of that name.
        if not self.ask(ADVANCE, (text, text, self.slot), doing="advancing the slot"):
            raise position_lost(f"The source has no slot {self.slot} any more.", slot=self.slot)
        # Later windows may be read already, and are acknowledged when they are published.
        self._kept = [end for end in self._kept if end > self._due.key]
        self._due = None

    def close(self) -> None:
        """Acknowledge what was put off, and end both connections; safe to call twice."""
        peeked, self._peeked = self._peeked, None
        if peeked is not None:
            peeked.close()
        if self._due is not None and self._has_kept_until(self._due) and not self._connection.closed:
            # The next run tells it again.
            with suppress(SourceError):
                self._advance()
        self._wire.close()
        self._connection.close()


def spelling(settings: Mapping[str, str]) -> dict[str, str]:
    """Leave the settings that decide how values are spelled; the limits are the connection's own."""
    return {name: value for name, value in settings.items() if not name.endswith("_timeout")}


@contextmanager
def open_log(capture: Capture, *, conn_params: ConnectionParams, pace: Pace) -> Iterator[PostgresLog]:
    """Open a slot's log; its connections end with the block."""
    log = PostgresLog(capture, conn_params=conn_params, pace=pace)
    try:
        yield log
    finally:
        log.close()
