"""One reader's connection to PostgreSQL through ADBC: a statement asked, read whole, asked again, or given up.

Belongs here: the transaction a task reads in, retry of a page, the check of cells, faults in mid-stream. Not here:
which statements (pages.py), what a cell becomes (values.py).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from rivet_resources import retry
from rivet_resources.contracts.evidence import Effort
from rivet_resources.contracts.relation import Chunk
from rivet_resources.contracts.settings import Pace
from rivet_resources.contracts.source import Page, Wait
from rivet_resources.contracts.types import Column
from rivet_resources.deadlines import cancel_within, interruptible
from rivet_resources.engines.postgres import errors
from rivet_resources.engines.postgres.connect import Arrow, ConnectionParams, open_arrow, pin
from rivet_resources.engines.postgres.sql import quote_text
from rivet_resources.engines.postgres.values import READ, items
from rivet_resources.engines.shared.cells import Cells
from rivet_resources.engines.shared.effort import Spent
from rivet_resources.engines.shared.page_size import MIB
from rivet_resources.engines.shared.paging import ABORT_BYTES, TooLarge, check_cells, relation_name
from rivet_resources.errors import RivetError, SnapshotLost, SourceLost, StatementTimeout

CANCEL_SECONDS = 10
# ADBC's own batches; it bounds its buffers.
HINT_BYTES = 8 * MIB
COPY = {"adbc.postgresql.batch_size_hint_bytes": str(HINT_BYTES)}
# COPY takes a query; neither FETCH nor BEGIN or SET is one.
PLAIN = {"adbc.postgresql.use_copy": "false", **COPY}
# A task that is killed says no good-bye, and a server at work looks at its client only when it sends: a query that
# sorts for an hour would go on for nobody. From version 14 on it can look now and then, first on Linux alone.
# Source: PostgreSQL documentation, 20.3.2, "TCP Settings".
NOTICE_MS = 5_000
NOTICING = (
    f"(SELECT set_config(name, '{NOTICE_MS}', true) FROM pg_settings "
    "WHERE name = 'client_connection_check_interval' AND version() LIKE '%linux%')"
)
# Rows that the open transaction went through, of all its tables but the catalog's. Source: PostgreSQL documentation,
# 28.2, "Viewing Statistics": the xact views count the current transaction; anybody may read them.
SCANNED = "SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)::bigint FROM pg_stat_xact_user_tables"


@dataclass
class Reader:
    """One ADBC connection in one transaction, opened when first needed. Not shared between threads."""

    conn_params: ConnectionParams
    snapshot: str | None
    chunk: Chunk
    columns: tuple[Column, ...]
    pace: Pace
    wait: Wait
    _connection: Arrow | None = None
    _retries: int = 0
    _has_timed_out: bool = False
    _spent: Spent = field(default_factory=Spent)
    _cells: Cells = field(init=False)

    def __post_init__(self) -> None:
        self._cells = Cells(self.columns, chunk=self.chunk.index, readers=READ, strict=frozenset(self.chunk.key))
        self.items = items(self.columns)

    def ask(self, statement: str, *, what: str, can_shrink: bool) -> Page | None:
        """Read one page, again on a fresh connection when the fault may pass; None when a smaller one must do.

        A timeout asks for a smaller page once in a chunk: the same statement would run into it again.
        """
        self._retries = 0
        doing = f"reading {what} of {self.name}"
        try:
            batches, seconds = retry.call(
                lambda: self._whole(statement, COPY, doing=doing, limit=ABORT_BYTES if can_shrink else None),
                pace=self.pace,
                on=SourceLost,
                on_retry=self._again,
            )
        except (TooLarge, StatementTimeout) as error:
            # In either case the statement still runs, or its transaction is over: the next try begins on a new
            # connection.
            self.close()
            if isinstance(error, StatementTimeout):
                if self._has_timed_out or not can_shrink:
                    raise
                self._has_timed_out = True
            return None
        return self._page(batches, seconds)

    def fetch(self, statement: str) -> Page:
        """Read one page of the open cursor; a fault ends the cursor, so nothing is asked again."""
        batches, seconds = self._whole(statement, PLAIN, doing=f"reading the cursor of {self.name}", limit=None)
        return self._page(batches, seconds)

    def run(self, statement: str, *, doing: str) -> None:
        """Run a statement that returns no rows."""
        self._whole(statement, PLAIN, doing=f"{doing} of {self.name}", limit=None)

    def close(self) -> None:
        """Close the connection, cancelling what runs on it; safe to call twice."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._spent.ended()
            connection.close()

    def effort(self) -> Effort:
        """Return what the reading cost, asked in its own transaction, at its end; no fault is worth the chunk."""
        scanned = None
        if self._connection is not None:
            with suppress(Exception):
                (batch,) = _statement(self._connection, self._scanned, PLAIN, None)
                scanned = batch.column(0)[0].as_py()
        return self._spent.effort(rows_scanned=scanned)

    @property
    def _scanned(self) -> str:
        """Ask for one table where that is all there is (a leaf), since the view looks at every table otherwise."""
        if self.chunk.reader != "blocks":
            return SCANNED
        return f"{SCANNED} WHERE relid = to_regclass({quote_text(self.chunk.relation)})"

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
        return Page(
            table=table,
            special=special,
            statement_ms=seconds * 1000,
            retries=self._retries,
            refused=self._cells.refused,
        )

    def _whole(
        self, statement: str, options: Mapping[str, str], *, doing: str, limit: int | None
    ) -> tuple[list[pa.RecordBatch], float]:
        """Run one statement and read all of its batches; gives them and its seconds."""
        connection = self._connection or self._open()
        started = time.perf_counter()
        try:
            batches = _statement(connection, statement, options, limit)
        except (TooLarge, RivetError):
            # Ours already: read too much, or no answer in time.
            raise
        except Exception as error:
            raise self._fault(error, doing, time.perf_counter() - started) from None
        return batches, time.perf_counter() - started

    def _fault(self, error: Exception, doing: str, seconds: float) -> RivetError:
        """Classify; where neither SQLSTATE nor text tells, ask whether the server still answers us."""
        found = errors.fault(error, doing=doing, user=self.conn_params.user, secrets=self.conn_params.secrets)
        found = errors.change_of_relation(found, error, relation=self.name)
        if errors.sqlstate_of(error) or isinstance(found, SourceLost):
            return found
        if self._connection is not None and _is_alive(self._connection):
            return found
        return SourceLost(
            f"While {doing}: the line to PostgreSQL at {self.conn_params.where} broke after {seconds:.1f} s. Run again."
        )

    def _open(self) -> Arrow:
        """Connect, begin, pin and import the snapshot.

        Raises:
            SnapshotLost: its exporter is gone; going on would mix two instants.
            SourceLost, SourceAuth, SourceError
        """
        connection = self._connection = _connect(self.conn_params)
        self._spent.connected(in_transaction=True)
        # An imported snapshot needs REPEATABLE READ. Pages by key without one see an
        # instant each, and hold none back from the server's clean-up between two of them.
        level = "REPEATABLE READ" if self.snapshot or self.chunk.reader == "cursor" else "READ COMMITTED"
        try:
            _statement(connection, f"BEGIN ISOLATION LEVEL {level} READ ONLY", PLAIN, None)
            # Before the settings: the server refuses a snapshot once the transaction has run a query.
            if self.snapshot:
                self._import(connection)
            _statement(connection, f"{pin(self.conn_params.settings)}, {NOTICING}", PLAIN, None)
            return connection
        except RivetError:
            self.close()
            raise
        except Exception as error:
            self.close()
            raise errors.fault(
                error, doing=f"beginning to read {self.name}", secrets=self.conn_params.secrets
            ) from None

    def _import(self, connection: Arrow) -> None:
        try:
            _statement(connection, f"SET TRANSACTION SNAPSHOT '{self.snapshot}'", PLAIN, None)
        except Exception as error:
            # 22023 or 42704, by version: there is no such snapshot. 55000: its exporter is gone.
            if errors.sqlstate_of(error) in ("22023", "42704", "55000"):
                raise SnapshotLost(
                    f"The shared snapshot ended before {self.name} was read to its end; going on would mix two "
                    f"instants. "
                    f"Nothing is published; run again."
                ) from None
            raise


def _connect(conn_params: ConnectionParams) -> Arrow:
    try:
        return open_arrow(conn_params, patience_seconds=conn_params.patience_seconds)
    except Exception as error:
        raise errors.connect_fault(error, where=conn_params.where, secrets=conn_params.secrets) from None


def _is_alive(connection: Arrow) -> bool:
    """Return whether this very connection still answers: then the fault was the statement's own."""
    try:
        # ROLLBACK and not SELECT 1: it works in a transaction that a fault has ended, too.
        _statement(connection, "ROLLBACK", PLAIN, None)
        return True
    except Exception:
        return False


def _statement(
    connection: Arrow, statement: str, options: Mapping[str, str], limit: int | None
) -> list[pa.RecordBatch]:
    """Run one statement and read its answer whole.

    Raises:
        Silent, TooLarge
        Exception: whatever ADBC raises.
    """
    with connection.bounded(), connection.raw.cursor() as cursor:
        cursor.adbc_statement.set_options(**options)
        return interruptible(partial(_answer, cursor, statement, limit), cursor.adbc_cancel)


def _answer(cursor: Any, statement: str, limit: int | None) -> list[pa.RecordBatch]:
    cursor.execute(statement)
    batches, size = [], 0
    for batch in cursor.fetch_record_batch():
        batches.append(batch)
        size += batch.nbytes
        if limit is not None and size > limit:
            # The server would send the rest of the page; the cancel itself may hang on a broken line, so it has a
            # limit of its own.
            cancel_within(CANCEL_SECONDS, cursor.adbc_cancel)
            raise TooLarge
    return batches
