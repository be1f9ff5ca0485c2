"""One reader's connection to SQLite: a statement asked, read whole or by fetches, asked again, or given up.

Belongs here: the transaction a task reads in, retry of a page, the check of cells, faults. Not here: which statements
(pages.py), what a cell becomes (values.py).
"""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa

from rivet_resources import retry
from rivet_resources.contracts.evidence import Effort
from rivet_resources.contracts.relation import Chunk
from rivet_resources.contracts.settings import Pace
from rivet_resources.contracts.source import Page, Wait
from rivet_resources.contracts.types import Column
from rivet_resources.engines.shared.cells import Cells
from rivet_resources.engines.shared.effort import Spent
from rivet_resources.engines.shared.paging import check_cells, relation_name
from rivet_resources.engines.sqlite.connect import ConnectionParams
from rivet_resources.engines.sqlite.errors import change_of_relation, fault
from rivet_resources.engines.sqlite.values import READERS, batch
from rivet_resources.errors import RivetError, SourceLost, StatementTimeout

T = TypeVar("T")

# Rows at once, and their cells: 20,000 rows of ten columns cost half as much CPU again, and 1,000 rows of 1,000 columns
# a quarter more than 250 (measured: the processor's caches).
BITE_ROWS, BITE_CELLS = 1000, 250_000
# Pages whose text has more stay in their bites: Arrow's offsets end at 2 GB.
JOINED_BYTES = 256 << 20


@dataclass
class Reader:
    """One connection that reads one chunk, opened when first needed. Not shared between threads."""

    conn_params: ConnectionParams
    chunk: Chunk
    columns: tuple[Column, ...]
    pace: Pace
    wait: Wait
    items: list[str] = field(init=False)
    _connection: sqlite3.Connection | None = None
    _retries: int = 0
    _has_given: bool = False
    _spent: Spent = field(default_factory=Spent)
    _cells: Cells = field(init=False)

    def __post_init__(self) -> None:
        self.items = [column.select for column in self.columns]
        self._cells = Cells(self.columns, chunk=self.chunk.index, readers=READERS, strict=frozenset(self.chunk.key))

    @property
    def name(self) -> str:
        """Return what people call the relation."""
        return relation_name(self.chunk, self.columns)

    def ask(self, statement: str, *, what: str, can_shrink: bool) -> Page | None:
        """Read one statement whole; None when it ran into the timeout and a smaller one may not."""
        try:
            batches, seconds = self._retry(lambda: self._whole(statement, what))
        except StatementTimeout:
            if not can_shrink:
                raise
            return None
        return self._page(batches, seconds)

    def stream(self, statement: str) -> sqlite3.Cursor:
        """Open a statement whose rows are fetched page by page."""
        return self._retry(lambda: self._run(statement, "the first rows"))

    def fetch(self, cursor: sqlite3.Cursor, count: int) -> Page:
        """Read the next rows of an open statement; its clock counts each fetch by itself."""
        # The throttle's pauses between two fetches do not count against the limit.
        started = self.conn_params.begin_statement()
        batches, ended = self._bites(cursor, count, "the next rows")
        return self._page(batches, ended - started)

    def close(self) -> None:
        """End the transaction and the connection; safe to call twice."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._spent.ended()
            connection.close()

    def effort(self) -> Effort:
        """Return what the reading cost; SQLite counts no rows."""
        return self._spent.effort()

    def _retry(self, call: Callable[[], T]) -> T:
        """Ask again after a fault that may pass; never in a transaction that has given rows: it would be another."""
        self._retries = 0

        def again(error: RivetError) -> None:
            self._retries += 1
            self.close()

        # Another connection would see another instant, and rows were given of this one.
        if self.chunk.one_instant and self._has_given:
            return call()
        return retry.call(call, pace=self.pace, on=SourceLost, on_retry=again)

    def _whole(self, statement: str, what: str) -> tuple[list[pa.RecordBatch], float]:
        started = time.monotonic()
        batches, ended = self._bites(self._run(statement, what), None, what)
        return batches, ended - started

    def _bites(self, cursor: sqlite3.Cursor, count: int | None, what: str) -> tuple[list[pa.RecordBatch], float]:
        """Fetch `count` rows, or all, as batches small enough that Python's objects of one die young.

        Returns:
            (batches, when the last row had come: what is made of it then holds the database up no longer)
        """
        bite = min(BITE_ROWS, max(1, BITE_CELLS // len(self.columns)))
        batches: list[pa.RecordBatch] = []
        ended = time.monotonic()
        left = count if count is not None else sys.maxsize
        while left:
            wanted = min(left, bite)
            try:
                rows = cursor.fetchmany(wanted)
            except sqlite3.Error as error:
                raise self._fault(error, what) from None
            ended = time.monotonic()
            batches.append(batch(self.columns, rows))
            if len(rows) < wanted:
                break
            left -= wanted
        return batches, ended

    def _run(self, statement: str, what: str) -> sqlite3.Cursor:
        if self._connection is None:
            self._connection = self.conn_params.connect()
            self._spent.connected(in_transaction=self.chunk.one_instant)
            # A deferred transaction: the instant is that of its first SELECT, and no lock is taken before.
            # Set on each connection: the file is open read-only, and this keeps temporary objects out as well.
            begin = "PRAGMA query_only = 1", *(["BEGIN"] if self.chunk.one_instant else [])
        else:
            begin = ()
        self.conn_params.begin_statement()
        try:
            for first in begin:
                self._connection.execute(first)
            return self._connection.execute(statement)
        except sqlite3.Error as error:
            raise self._fault(error, what) from None

    def _fault(self, error: sqlite3.Error, what: str) -> RivetError:
        found = fault(error, doing=f"reading {what} of {self.name}", path=str(self.conn_params.path))
        return change_of_relation(found, error, relation=self.name)

    def _page(self, batches: list[pa.RecordBatch], seconds: float) -> Page:
        self._has_given = True
        self._spent.statement(seconds * 1000)
        table, special = self._cells.decode(_joined(batches))
        check_cells(table, self.pace.max_value_mb, relation=self.name)
        return Page(
            table=table,
            special=special,
            statement_ms=seconds * 1000,
            retries=self._retries,
            refused=self._cells.refused,
        )


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Join what was fetched: decoding costs something for each column of each batch, joining a fifth of that."""
    if len(batches) == 1:
        return batches
    texts = [i for i, kind in enumerate(batches[0].schema.types) if pa.types.is_binary(kind)]
    if sum(batch.column(i).nbytes for batch in batches for i in texts) > JOINED_BYTES:
        return batches
    return [pa.concat_batches(batches)]
