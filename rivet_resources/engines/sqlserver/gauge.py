"""How a SQL Server feels while it is read: one short statement on a connection of its own.

Belongs here: what is asked, what a missing privilege leaves out. Not here: what follows from it (`read/governor.py`).

Nothing here is raised by reading: sessions of ours are left out by the CONTEXT_INFO they all set, and waits for the
flush of the log are the writers'. Written from the documentation of the views and tried on an emulator; no real server
was at hand.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from rivet_resources.contracts.evidence import Gauge, Pressure
from rivet_resources.engines.shared.gauge import LOOK_SECONDS, answerable, pressure_of, selected
from rivet_resources.engines.sqlserver import driver
from rivet_resources.engines.sqlserver.connect import ConnectionParams, connect
from rivet_resources.engines.sqlserver.errors import fault

OTHERS = (
    "s.is_user_process = 1 AND s.session_id <> @@SPID "
    "AND (s.context_info IS NULL OR SUBSTRING(s.context_info, 1, 6) <> 0x72697665743A)"  # rivet:
)
# Without the permission the views show the own session only, which would look like peace. An unknown one gives NULL.
MAY_SEE = (
    "(HAS_PERMS_BY_NAME(NULL, NULL, 'VIEW SERVER STATE') = 1 "
    "OR HAS_PERMS_BY_NAME(NULL, NULL, 'VIEW SERVER PERFORMANCE STATE') = 1 "
    "OR HAS_PERMS_BY_NAME(DB_NAME(), 'DATABASE', 'VIEW DATABASE STATE') = 1)"
)
REQUESTS = "sys.dm_exec_requests AS r JOIN sys.dm_exec_sessions AS s ON s.session_id = r.session_id"
# Source: Microsoft Learn, "System Dynamic Management Views". Each part is tried by itself when the gauge opens.
PARTS: Mapping[str, str] = {
    "active": f"CASE WHEN {MAY_SEE} THEN (SELECT COUNT(*) FROM {REQUESTS} "
    f"WHERE {OTHERS} AND r.status IN ('running', 'runnable')) END",
    "lock_waits": f"CASE WHEN {MAY_SEE} THEN (SELECT COUNT(*) FROM {REQUESTS} "
    f"WHERE {OTHERS} AND r.wait_type LIKE 'LCK%') END",
    "connections": f"CASE WHEN {MAY_SEE} THEN "
    "(SELECT COUNT(*) FROM sys.dm_exec_sessions AS s WHERE s.is_user_process = 1) END",
    "connections_limit": f"CASE WHEN {MAY_SEE} THEN @@MAX_CONNECTIONS END",
    # No `log_waits`: "Log Flush Waits/sec" counts the commits that wait for the log, which ordinary ones all do.
    # Source: Microsoft Learn, "SQL Server, Databases object".
    "lag_seconds": "(SELECT MAX(secondary_lag_seconds) FROM sys.dm_hadr_database_replica_states)",
}
# Cumulative since the start, whatever their names say. Source: Microsoft Learn, sys.dm_os_performance_counters,
# cntr_type 272696576.
COUNTERS: Mapping[str, str] = {
    "number of deadlocks/sec": "deadlocks",
    "page reads/sec": "page_reads",
    "worktables created/sec": "worktables_created",
}
COUNTED = (
    "SELECT LOWER(RTRIM(counter_name)) AS name, SUM(cntr_value) AS value FROM sys.dm_os_performance_counters "
    f"WHERE LOWER(RTRIM(counter_name)) IN ({', '.join(repr(name) for name in COUNTERS)}) "
    "AND instance_name IN ('', '_Total') GROUP BY LOWER(RTRIM(counter_name))"
)


class SqlServerGauge:
    """One connection; see the protocol. Not shared between threads."""

    def __init__(self, conn_params: ConnectionParams, connection: Any) -> None:
        self._conn_params = conn_params
        self._connection = connection
        self._parts = answerable(PARTS, self._works)

    def look(self) -> Pressure:
        """Look once; see the protocol."""
        started = time.monotonic()
        rows = self._ask(selected(self._parts))
        return pressure_of((time.monotonic() - started) * 1000, dict(zip(self._parts, rows[0], strict=False)))

    def counters(self) -> Mapping[str, float]:
        """Read counters of the whole server; {} where they may not be read."""
        try:
            return digest(self._rows(COUNTED))
        except driver.DriverRefused:
            # Counters are for the record only; pressure is told without them.
            return {}

    def _works(self, parts: Mapping[str, str]) -> bool:
        try:
            self._rows(selected(parts))
            return True
        except driver.DriverRefused:
            return False

    def _ask(self, statement: str) -> list[tuple[Any, ...]]:
        try:
            return self._rows(statement)
        except driver.DriverRefused as error:
            raise fault(
                error, doing="looking at the server", user=self._conn_params.user, secrets=self._conn_params.secrets
            ) from None

    def _rows(self, statement: str) -> list[tuple[Any, ...]]:
        cursor = driver.execute(self._connection, statement, timeout=LOOK_SECONDS)
        try:
            return driver.rows_of(cursor)
        finally:
            driver.close(cursor)


def digest(rows: list[tuple[Any, ...]]) -> dict[str, float]:
    """Turn (counter name, value) into our names."""
    return {COUNTERS[str(name)]: float(value) for name, value in rows if str(name) in COUNTERS and value is not None}


@contextmanager
def open_gauge(conn_params: ConnectionParams) -> Iterator[Gauge]:
    """Connect for looking; the connection ends with the block.

    Raises:
        SourceUnreachable, SourceAuth, SourceLost, SourceError
    """
    own = replace(conn_params, statement_timeout_s=LOOK_SECONDS, lock_timeout_s=LOOK_SECONDS)
    connection = connect(own)
    try:
        yield SqlServerGauge(own, connection)
    finally:
        driver.close(connection)
