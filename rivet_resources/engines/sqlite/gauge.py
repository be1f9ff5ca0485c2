"""How a SQLite file feels while it is read: how long one short statement takes.

Belongs here: the gauge of a file. It has no sessions, no replica and no counters; readers and writers of other
processes show only in how long a statement takes.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from rivet_resources.contracts.evidence import Gauge, Pressure
from rivet_resources.engines.sqlite.connect import ConnectionParams
from rivet_resources.engines.sqlite.errors import fault

LOOK_SECONDS = 2


class SqliteGauge:
    """One connection that asks how many tables there are; see the protocol."""

    def __init__(self, conn_params: ConnectionParams, connection: sqlite3.Connection) -> None:
        self._conn_params = conn_params
        self._connection = connection

    def look(self) -> Pressure:
        """Take the time of one statement that reads the file."""
        started = self._conn_params.begin_statement()
        try:
            # It reads the first page of the file, so it waits for whoever holds the file, as a page does.
            self._connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
        except sqlite3.Error as error:
            raise fault(error, doing="looking at the file", path=str(self._conn_params.path)) from None
        return Pressure(latency_ms=(time.monotonic() - started) * 1000)

    def counters(self) -> Mapping[str, float]:
        """Return no counter: SQLite keeps none."""
        return {}


@contextmanager
def open_gauge(conn_params: ConnectionParams) -> Iterator[Gauge]:
    """Open the file for looking; the connection ends with the block.

    Raises:
        SourceMissing: there is no such file.
    """
    pace = conn_params.pace.model_copy(update={"statement_timeout_s": LOOK_SECONDS, "lock_timeout_s": LOOK_SECONDS})
    own = replace(conn_params, pace=pace)
    connection = own.connect()
    try:
        yield SqliteGauge(own, connection)
    finally:
        connection.close()
