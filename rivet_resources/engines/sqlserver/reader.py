"""One reader's connection to SQL Server: a statement asked, read whole, asked again, or given up.

Belongs here: the transaction a task reads in, retry of a page, faults in mid-stream. Not here: which statements
(pages.py), what a cell becomes (values.py).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from rivet_resources import retry
from rivet_resources.contracts.evidence import Effort
from rivet_resources.contracts.relation import Chunk
from rivet_resources.contracts.settings import Pace
from rivet_resources.contracts.source import Page, Wait
from rivet_resources.contracts.types import Column
from rivet_resources.engines.shared.cells import Cells
from rivet_resources.engines.shared.effort import Spent
from rivet_resources.engines.shared.paging import ABORT_BYTES, TooLarge, check_cells, relation_name
from rivet_resources.engines.sqlserver import driver, errors
from rivet_resources.engines.sqlserver.connect import ConnectionParams, connect, run
from rivet_resources.engines.sqlserver.values import arrange, items, readers, wire_order
from rivet_resources.errors import RivetError, SourceError, SourceLost, StatementTimeout

# Rows of one Arrow batch; the driver binds so many at once, or fetches them singly behind a `(max)` column.
BATCH_ROWS = 5_000
ONE_INSTANT = "SET TRANSACTION ISOLATION LEVEL SNAPSHOT; BEGIN TRANSACTION"


@dataclass
class Reader:
    """One connection, opened when first needed. Not shared between threads."""

    conn_params: ConnectionParams
    chunk: Chunk
    columns: tuple[Column, ...]
    pace: Pace
    wait: Wait
    items: list[str] = field(init=False)
    _connection: Any = None
    _cursor: Any = None
    _retries: int = 0
    _has_timed_out: bool = False
    _has_begun: bool = False
    _spent: Spent = field(default_factory=Spent)
    _cells: Cells = field(init=False)

    def __post_init__(self) -> None:
        reads, strict = readers(self.conn_params.driver), frozenset(self.chunk.key)
        self._cells = Cells(self.columns, chunk=self.chunk.index, readers=reads, strict=strict)
        self.items = items(self.columns)
        self._order = wire_order(self.columns)

    def ask(self, statement: str, *, what: str, can_shrink: bool) -> Page | None:
        """Read one page, again on a fresh connection when the fault may pass; None when a smaller one must do.

        Inside one instant nothing is asked again once it has begun: a fresh connection would see another one. A
        timeout asks for a smaller page once in a chunk: the same statement would run into it again.
        """
        self._retries = 0
        doing = f"reading {what} of {self.name}"
        limit = ABORT_BYTES if can_shrink else None
        try:
            # A fresh connection would be in another transaction, so at another instant.
            if self.chunk.one_instant and self._has_begun:
                batches, seconds = self._whole(statement, doing=doing, limit=limit)
            else:
                batches, seconds = retry.call(
                    lambda: self._whole(statement, doing=doing, limit=limit),
                    pace=self.pace,
                    on=SourceLost,
                    on_retry=self._again,
                )
        except (TooLarge, StatementTimeout) as error:
            if isinstance(error, StatementTimeout):
                if self._has_timed_out or not can_shrink:
                    raise
                self._has_timed_out = True
            # The connection stays: its cursor is closed, which ended the statement.
            if self.chunk.one_instant:
                self._keep_instant()
            return None
        self._has_begun = True
        return self._page(batches, seconds)

    def _keep_instant(self) -> None:
        """See that the transaction outlived a statement that was ended; a trigger or a proxy may have ended both.

        Raises:
            SourceLost: it is gone, and pages were read in it.
        """
        # The statement that took too long was one that pins the session.
        if self._connection is None:
            return
        try:
            standing = driver.execute(
                self._connection, "SELECT @@TRANCOUNT", timeout=self.conn_params.statement_timeout_s
            )
            ((count,),) = driver.rows_of(standing)
        except driver.DriverRefused as error:
            raise self._fault(error, f"going on to read {self.name}") from None
        if count:
            return
        self.close()
        if self._has_begun:
            raise SourceLost(
                f"While reading {self.name}: the transaction that held one instant is gone with a statement that was "
                f"given up, so the chunk starts over."
            )

    def begin(self, statement: str) -> None:
        """Run the one statement whose rows `bite` takes; asked again while no row has been seen.

        Raises:
            SourceLost, StatementTimeout, SourceError
        """

        def start() -> None:
            self._open()
            self._cursor = self._execute(statement, doing=f"opening the stream of {self.name}")

        # Only the start is tried again: rows of a stream that were handed on cannot be taken back.
        retry.call(start, pace=self.pace, on=SourceLost, on_retry=lambda error: self.close())

    def bite(self, rows: int) -> Page:
        """Take the next rows of the stream; fewer than asked are the last. A fault ends it: nothing is asked again."""
        started = time.perf_counter()
        try:
            batch = driver.batch_of(self._cursor, rows)
        except driver.DriverRefused as error:
            raise self._fault(error, f"reading the stream of {self.name}") from None
        return self._page([arrange(batch, self._order)], time.perf_counter() - started)

    def close(self) -> None:
        """Close the connection, which ends what runs on it; safe to call twice."""
        cursor, self._cursor = self._cursor, None
        connection, self._connection = self._connection, None
        self._spent.ended()
        for thing in (cursor, connection):
            if thing is not None:
                driver.close(thing)

    def effort(self) -> Effort:
        """Return what the reading cost; SQL Server counts pages of a session, not rows."""
        return self._spent.effort()

    @property
    def name(self) -> str:
        """Return what people call the relation."""
        return relation_name(self.chunk, self.columns)

    def _again(self, error: RivetError) -> None:
        self._retries += 1
        self.close()

    def _page(self, batches: list[pa.RecordBatch], seconds: float) -> Page:
        table, special = self._cells.decode(batches)
        check_cells(table, self.pace.max_value_mb, relation=self.name)
        self._spent.statement(seconds * 1000)
        return Page(
            table=table,
            special=special,
            statement_ms=seconds * 1000,
            retries=self._retries,
            refused=self._cells.refused,
        )

    def _whole(self, statement: str, *, doing: str, limit: int | None) -> tuple[list[pa.RecordBatch], float]:
        """Run one statement and read all of its batches; gives them and its seconds."""
        self._open()
        started = time.perf_counter()
        cursor = self._execute(statement, doing=doing)
        try:
            found, size = [], 0
            for batch in driver.batches(cursor, BATCH_ROWS):
                # Batch by batch, so that a page that is far too large is noticed before all of it is here.
                found.append(arrange(batch, self._order))
                size += batch.nbytes
                if limit is not None and size > limit:
                    # Closing the cursor, below, ends the statement; the rows that are on their way go with it.
                    raise TooLarge
            return found, time.perf_counter() - started
        except driver.DriverRefused as error:
            raise self._fault(error, doing) from None
        finally:
            driver.close(cursor)

    def _execute(self, statement: str, *, doing: str) -> Any:
        try:
            return driver.execute(self._connection, statement, timeout=self.conn_params.statement_timeout_s)
        except driver.DriverRefused as error:
            raise self._fault(error, doing) from None

    def _fault(self, error: driver.DriverRefused, doing: str) -> RivetError:
        found = errors.fault(error, doing=doing, user=self.conn_params.user, secrets=self.conn_params.secrets)
        return errors.change_of_relation(found, error, relation=self.name)

    def _open(self) -> None:
        """Connect if need be, and begin the transaction of one instant.

        Raises:
            SourceLost, SourceAuth, SourceError
        """
        if self._connection is not None:
            return
        self._connection = connect(self.conn_params)
        self._spent.connected(in_transaction=self.chunk.one_instant)
        # A page along a key stands alone, and needs no transaction that keeps row versions in tempdb.
        if not self.chunk.one_instant:
            return
        try:
            run(self._connection, ONE_INSTANT, timeout=self.conn_params.statement_timeout_s)
        except driver.DriverRefused as error:
            self.close()
            if errors.number_of(error) in errors.SNAPSHOT_REFUSED:
                raise SourceError(
                    f"{self.name} was to be read at one instant, and the database no longer allows SNAPSHOT "
                    f"isolation. Run again: the plan will say what it can do."
                ) from None
            raise self._fault(error, f"beginning to read {self.name}") from None
