"""One reader's connection to MySQL: a statement asked, read whole, asked again, or given up.

Belongs here: the transaction a task reads in, retry of a page, the check of cells, faults. Not here: which statements
(pages.py), bytes of the answer (wire/packets.py, wire/stream.py), what a cell becomes (values.py).
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources import retry
from rivet_resources.contracts.evidence import Effort
from rivet_resources.contracts.relation import Chunk
from rivet_resources.contracts.settings import Pace
from rivet_resources.contracts.source import Page, Wait
from rivet_resources.contracts.types import Column
from rivet_resources.engines.mysql import aligned, errors
from rivet_resources.engines.mysql.connect import ConnectionParams, connect, rows_of
from rivet_resources.engines.mysql.values import READ
from rivet_resources.engines.mysql.wire import binary, rows
from rivet_resources.engines.mysql.wire.packets import RawRows
from rivet_resources.engines.mysql.wire.stream import read_or_drop, read_whole, stream
from rivet_resources.engines.shared.cells import Cells, flagged
from rivet_resources.engines.shared.effort import Spent
from rivet_resources.engines.shared.key_walk import last_key
from rivet_resources.engines.shared.paging import ABORT_BYTES, TooLarge, check_cells, relation_name
from rivet_resources.errors import RivetError, SourceLost, StatementTimeout

# Rows and index entries that this session went through. Source: MySQL 8.0 Reference Manual, 5.1.10, "Server Status
# Variables"; anybody may show them. Showing them counts too, on servers that answer from a table of their own.
SCANNED = "SHOW SESSION STATUS LIKE 'Handler\\_read\\_%'"


def items(columns: tuple[Column, ...]) -> list[str]:
    """Write the SELECT list: the columns, then the hidden flags."""
    return [column.select for column in columns] + [column.fact("flag") for column in flagged(columns)]


class RawPage(NamedTuple):
    """The bytes of one page, what they took, and how often they were asked for again."""

    raw: RawRows
    seconds: float
    retries: int

    @property
    def statement_ms(self) -> float:
        """Return what the statement took."""
        return self.seconds * 1000


class CalledOff(Exception):
    """Nobody waits for this answer any more."""


@dataclass
class Reader:
    """One connection, opened when first needed; in one transaction when the chunk is of one instant.

    Not shared between threads. In a transaction a page is not asked again once an earlier one was handed out: a new
    connection would be another instant.
    """

    conn_params: ConnectionParams
    chunk: Chunk
    columns: tuple[Column, ...]
    pace: Pace
    wait: Wait
    place: str | None = None  # of a meeting (aligned.py), whose instant all chunks of a task are read at
    _connection: Any = None
    _retries: int = 0
    _has_timed_out: bool = False
    _has_given: bool = False  # a page of this instant was handed out
    _is_in_answer: bool = False
    _is_called_off: bool = False
    _spent: Spent = field(default_factory=Spent)
    _scanned_before: tuple[int, int] = (0, 0)  # at the connection's start, and what one look adds
    _cells: Cells = field(init=False)
    _key_cells: Cells = field(init=False)

    def __post_init__(self) -> None:
        self._cells = Cells(self.columns, chunk=self.chunk.index, readers=READ, strict=frozenset(self.chunk.key))
        self.items = items(self.columns)
        key = tuple(self.columns[self._place(name)] for name in self.chunk.key)
        self._key_cells = Cells(key, chunk=self.chunk.index, readers=READ, strict=frozenset(self.chunk.key))

    def _place(self, name: str) -> int:
        """Return the place of a column; of a keyless chunk nobody asks."""
        return next(place for place, column in enumerate(self.columns) if column.name == name)

    def ask(self, statement: str, *, what: str, can_shrink: bool) -> Page | None:
        """Read one page; as `receive`, decoded."""
        answer = self.receive(statement, what=what, can_shrink=can_shrink)
        return None if answer is None else self.page(answer)

    def receive(self, statement: str, *, what: str, can_shrink: bool) -> RawPage | None:
        """Read one page's bytes, again on a fresh connection when the fault may pass; None: a smaller one must do.

        A timeout asks for a smaller page once in a chunk: the same statement would run into it again.
        """
        self._retries = 0
        doing = f"reading {what} of {self.name}"
        limit = ABORT_BYTES if can_shrink else None
        try:
            raw, seconds = self._retry(lambda: self._whole(statement, doing=doing, limit=limit))
        except StatementTimeout:
            # Once in a chunk: where a quarter of the rows is too slow as well, the statement itself is.
            if self._has_timed_out or not can_shrink:
                raise
            self._has_timed_out = True
            self._after_refusal()
            return None
        return None if raw is None else RawPage(raw, seconds, self._retries)

    def last_key(self, answer: RawPage) -> list[str] | None:
        """Return the key of the last row in canonical form, decoding no other one; None where only the page tells."""
        raw = answer.raw
        if not len(raw.starts) or any(column.fact("flag") for column in self.columns):
            return None
        batch = _batch(replace(raw, starts=raw.starts[-1:], ends=raw.ends[-1:]))
        try:
            table, _ = self._key_cells.decode([batch.select([self._place(name) for name in self.chunk.key])])
        except RivetError:
            # A key that does not fit: the page as a whole says of how many rows.
            return None
        return last_key(table, self._key_cells.columns)

    def call_off(self) -> None:
        """End what another thread receives; the reader is of no use afterwards but for closing it."""
        self._is_called_off = True
        connection = self._connection
        if connection is not None and connection._sock is not None:
            # Not closed: a thread that waits for bytes of a closed socket waits for ever.
            with suppress(OSError):
                connection._sock.shutdown(socket.SHUT_RDWR)

    def begins_ahead(self) -> None:
        """Take the page that was received last for handed out: from now on another instant would be another one."""
        self._has_given = True

    def bites(self, statement: str, *, target_bytes: int) -> Iterator[Page]:
        """Read one long answer in pages of about `target_bytes`; each is whole rows, and the statement goes on behind.

        A fault ends the answer, so nothing is asked again once a page was handed out.
        """
        self._retries = 0
        doing = f"reading {self.name} by one statement"
        started = time.perf_counter()
        answer = self._retry(lambda: self._begin(statement, doing=doing, target_bytes=target_bytes))
        self._is_in_answer = True
        while (raw := self._next(answer, doing=doing)) is not None:
            seconds = time.perf_counter() - started
            yield self.page(RawPage(raw, seconds, self._retries))
            started = time.perf_counter()
        self._is_in_answer = False

    def close(self) -> None:
        """Close the connection, ending what runs on it; safe to call twice. One of a meeting waits for its next."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        self._spent.ended()
        if self.place is None:
            # PyMySQL's `close` would first send a farewell, behind the statement that still runs.
            connection._force_close()
            return
        if self._is_in_answer:
            aligned.drop(self.place)

    def effort(self) -> Effort:
        """Return what the reading cost, asked of the reader's own session; no fault is worth the chunk."""
        scanned = None
        if self._connection is not None:
            with suppress(Exception):
                before, of_a_look = self._scanned_before
                # Looking at the counters adds to them; what one look adds was measured at the connection's start.
                scanned = max(0, _rows_scanned(self._connection) - before - of_a_look)
        if self.place is not None:
            self._spent.statement(aligned.held_ms(self.place))
        return self._spent.effort(rows_scanned=scanned)

    @property
    def name(self) -> str:
        """Return what people call the relation."""
        return relation_name(self.chunk, self.columns)

    # --- asking again ----------------------------------------------------------------------------

    def _retry(self, fn: Any) -> Any:
        """Call, again by the class of the fault, unless that would mix two instants.

        Raises:
            SourceLost: the chunk must start over.
        """
        if self.place is not None:
            return retry.call(partial(self._at_place, fn), pace=self.pace, on=SourceLost, on_retry=self._again)
        # Before the first page nothing was read yet, so another connection, and another instant, is as good.
        if self.chunk.one_instant and self._has_given:
            try:
                return fn()
            except SourceLost as error:
                self.close()
                raise SourceLost(
                    f"{error} The transaction that held one instant is gone, so the chunk starts over.",
                    extra_seconds=error.extra_seconds,
                ) from None
        return retry.call(fn, pace=self.pace, on=SourceLost, on_retry=self._again)

    def _at_place(self, fn: Any) -> Any:
        """Call; whoever loses the line of a meeting has missed its instant.

        Raises:
            SnapshotLost
        """
        assert self.place is not None
        try:
            return fn()
        except SourceLost as error:
            # It was not there yet, so no instant is lost.
            if not aligned.is_held(self.place):
                raise
            aligned.drop(self.place)
            raise aligned.lost(error) from None

    @property
    def _is_in_transaction(self) -> bool:
        return self.chunk.one_instant or self.place is not None

    def _again(self, error: RivetError) -> None:
        self._retries += 1
        # Without it the next try would be answered by what the broken one still sends.
        self.close()

    def _after_refusal(self) -> None:
        """Go on behind a timeout: the server's transaction outlives one, a connection without one is not worth it."""
        if not self._is_in_transaction:
            self.close()

    # --- one statement ---------------------------------------------------------------------------

    def _whole(self, statement: str, *, doing: str, limit: int | None) -> tuple[RawRows | None, float]:
        """Run one statement and read its answer whole; no rows when it passes the limit."""
        connection = self._open()
        started = time.perf_counter()
        commented = self.conn_params.comment + statement
        try:
            # Outside of a transaction a connection costs less than the rest of an answer that is too large; inside,
            # closing it would lose the instant.
            if limit is None or not self._is_in_transaction:
                return read_whole(connection, commented, limit_bytes=limit), time.perf_counter() - started
            return read_or_drop(connection, commented, limit_bytes=limit), time.perf_counter() - started
        except TooLarge:
            self.close()
            return None, time.perf_counter() - started
        except Exception as error:
            if self._is_called_off:
                raise CalledOff from None
            raise self._fault(error, doing, time.perf_counter() - started) from None

    def _begin(self, statement: str, *, doing: str, target_bytes: int) -> Iterator[RawRows]:
        """Send a long statement, and wait for its first bite, so that a refusal can be asked again."""
        connection = self._open()
        try:
            answer = stream(connection, self.conn_params.comment + statement, target_bytes=target_bytes)
            # The first bite is waited for here, where the statement may still be asked again; later pages were
            # handed out already.
            return chain([next(answer)], answer)
        except Exception as error:
            raise self._fault(error, doing, 0.0) from None

    def _next(self, answer: Iterator[RawRows], *, doing: str) -> RawRows | None:
        try:
            return next(answer, None)
        except Exception as error:
            raise self._fault(error, doing, 0.0) from None

    def page(self, answer: RawPage) -> Page:
        """Make a page of its bytes."""
        table, special = self._cells.decode([_with_flags(_batch(answer.raw), len(self.columns))])
        check_cells(table, self.pace.max_value_mb, relation=self.name)
        self._has_given = True
        self._spent.statement(answer.statement_ms)
        return Page(
            table=table,
            special=special,
            statement_ms=answer.statement_ms,
            retries=answer.retries,
            refused=self._cells.refused,
        )

    def _fault(self, error: Exception, doing: str, seconds: float) -> RivetError:
        """Classify; where the code does not tell, ask whether the server still answers us."""
        found = errors.fault(error, doing=doing, user=self.conn_params.address.user, secrets=self.conn_params.secrets)
        found = errors.change_of_relation(found, error, relation=self.name)
        # A cancelled statement may also be a dying server's: whether the line still lives tells the two apart.
        is_told = errors.code_of(error) not in (0, errors.CANCELLED)
        if is_told or isinstance(found, SourceLost) or self._is_alive():
            return found
        return SourceLost(
            f"While {doing}: the line to MySQL at {self.conn_params.where} broke after {seconds:.1f} s. Run again."
        )

    def _is_alive(self) -> bool:
        """Return whether this very connection still answers: then the fault was the statement's own."""
        try:
            rows_of(self._connection, "SELECT 1")
            return True
        except Exception:
            return False

    def _open(self) -> Any:
        """Connect, and begin when the chunk is of one instant.

        Raises:
            SourceLost, SourceAuth, SourceError
            CalledOff
        """
        if self._is_called_off:
            raise CalledOff
        if self._connection is None and self.place is not None:
            joined = partial(self._spent.connected, in_transaction=True)
            self._connection = aligned.held(self.conn_params, self.place, on_join=joined)
            with suppress(Exception):
                # Twice: their difference is what one look adds to the counters.
                first, second = _rows_scanned(self._connection), _rows_scanned(self._connection)
                self._scanned_before = (second, second - first)
        if self._connection is None:
            connection = connect(self.conn_params)
            try:
                if self.chunk.one_instant:
                    rows_of(connection, aligned.ONE_INSTANT)
            except Exception as error:
                connection._force_close()
                raise errors.fault(
                    error, doing=f"beginning to read {self.name}", secrets=self.conn_params.secrets
                ) from None
            self._spent.connected(in_transaction=self.chunk.one_instant)
            with suppress(Exception):
                first, second = _rows_scanned(connection), _rows_scanned(connection)
                self._scanned_before = (second, second - first)
            if self._is_called_off:  # meanwhile, and nobody waits for it
                connection._force_close()
                raise CalledOff
            self._connection = connection
        return self._connection


def _rows_scanned(connection: Any) -> int:
    """Add up the session's counters of rows read."""
    return sum(int(value or 0) for _, value in rows_of(connection, SCANNED))


def _batch(raw: RawRows) -> pa.RecordBatch:
    """Decode rows of either protocol."""
    return (binary if raw.is_binary else rows).batch(raw)


def _with_flags(batch: pa.RecordBatch, columns: int) -> pa.RecordBatch:
    """Turn the hidden flags behind the columns from 0 and 1 into truth."""
    if batch.num_columns == columns:
        return batch
    arrays = [array if i < columns else pc.equal(array.cast(pa.int64()), 1) for i, array in enumerate(batch.columns)]
    return pa.RecordBatch.from_arrays(arrays, names=[str(i) for i in range(len(arrays))])
