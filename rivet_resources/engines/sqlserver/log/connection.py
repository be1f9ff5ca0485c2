"""The one connection of a change log at SQL Server, and what its faults mean there.

Belongs here: asking, batches with two answers, streams of rows, faults in the words of change capture. Not here:
statements (sql.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from rivet_resources import retry
from rivet_resources.contracts.settings import Pace
from rivet_resources.engines.sqlserver import driver
from rivet_resources.engines.sqlserver.connect import ConnectionParams, connect
from rivet_resources.engines.sqlserver.errors import PERMISSION, UNKNOWN_TABLE, clean, fault, number_of
from rivet_resources.errors import LogSetup, RivetError, SourceLost, SourcePermission

Rows = list[tuple[Any, ...]]

FIRST_ROWS, BATCH_ROWS = 500, 10_000  # of the first batch, whose rows tell how large the others may be, and at most
# What the functions answer when an LSN is outside what they have.
OUT_OF_RANGE = frozenset({313, 22829})


class OutOfRange(Exception):
    """The log's function does not have the LSNs asked for; what is missing must be looked up."""

    def __init__(self, error: RivetError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass
class Asking:
    """One connection for one thread, opened when first needed. Nothing is asked again: the drain itself is."""

    conn_params: ConnectionParams
    pace: Pace
    _connection: Any = field(default=None, repr=False)

    def open(self) -> None:
        """Connect unless that was done.

        Raises:
            SourceUnreachable, SourceAuth, SourceLost, SourceError
        """
        if self._connection is None:
            self._connection = retry.call(lambda: connect(self.conn_params), pace=self.pace, on=SourceLost)

    def ask(self, statement: str, *, doing: str) -> Rows:
        """Run one statement, or a batch whose first answer is wanted.

        Raises:
            OutOfRange, LogSetup, SourcePermission, SourceLost, SourceError
        """
        return self.ask_all(statement, doing=doing)[0]

    def ask_all(self, batch: str, *, doing: str) -> list[Rows]:
        """Run a batch and give each answer that has rows or could have; see `ask`."""
        self.open()
        cursor = None
        try:
            cursor = driver.execute(self._connection, batch, timeout=self.conn_params.statement_timeout_s)
            # A batch begins with DECLAREs and EXECs, whose answers can have no rows; the first one that could is
            # wanted.
            return [rows for rows in _answers(cursor) if rows is not None] or [[]]
        except driver.DriverRefused as error:
            raise self._fault(error, doing) from None
        finally:
            driver.close(cursor)

    def stream(self, statement: str, *, doing: str, memory_bytes: int) -> Iterator[pa.RecordBatch]:
        """Run one statement and take its rows in batches of about a quarter of `memory_bytes`; see `ask`."""
        self.open()
        cursor = None
        try:
            cursor = driver.execute(self._connection, statement, timeout=self.conn_params.statement_timeout_s)
            rows = min(FIRST_ROWS, BATCH_ROWS)
            while True:
                batch = driver.batch_of(cursor, rows)
                yield batch
                if batch.num_rows < rows:
                    return
                # A quarter, as a batch is there several times while it is decoded.
                rows = max(1, min(BATCH_ROWS, memory_bytes // 4 * rows // max(batch.nbytes, 1)))
        except driver.DriverRefused as error:
            raise self._fault(error, doing) from None
        finally:
            driver.close(cursor)

    def close(self) -> None:
        """End the connection, and with it the lock it may hold; safe to call twice."""
        connection, self._connection = self._connection, None
        driver.close(connection)

    def _fault(self, error: driver.DriverRefused, doing: str) -> Exception:
        number = number_of(error)
        found = fault(error, doing=doing, user=self.conn_params.user, secrets=self.conn_params.secrets)
        said = f"While {doing}: SQL Server said: {clean(error, secrets=self.conn_params.secrets)} ({number})."
        if number in OUT_OF_RANGE:
            return OutOfRange(found)
        if number in UNKNOWN_TABLE:
            return LogSetup(
                f"{said} Change capture is not enabled, or the capture instance is gone. Let a "
                f"sysadmin run: EXEC sys.sp_cdc_enable_db; then for each table EXEC sys.sp_cdc_enable_table …; "
                f"`rivet doctor` writes them out."
            )
        if number in PERMISSION:
            return SourcePermission(
                f"{said} Let the owner run: GRANT SELECT ON SCHEMA::cdc TO {self.conn_params.user}; "
                f"GRANT SELECT ON <the captured tables> TO {self.conn_params.user}; ALTER ROLE <role of the capture "
                f"instance> ADD MEMBER {self.conn_params.user}; `rivet doctor` names them."
            )
        return found


def _answers(cursor: driver.OpenStatement) -> Iterator[Rows | None]:
    """Take each answer of a batch; None of one that can have no rows, such as a DECLARE's."""
    while True:
        yield driver.rows_of(cursor) if cursor.has_rows else None
        if not driver.has_next(cursor):
            return
