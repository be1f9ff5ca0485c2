"""How a MySQL or MariaDB server feels while it is read: one short statement on a connection of its own.

Belongs here: what is asked, what a missing privilege leaves out. Not here: what follows from it (`read/governor.py`).

Nothing here is raised by reading: statements of ours are taken out of `Threads_running` by the comment they begin
with, which our own user may always see, and waits for the log are the writers'.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rivet_resources.contracts.evidence import Gauge, Pressure
from rivet_resources.engines.mysql.connect import ConnectionParams, connect, rows_of
from rivet_resources.engines.mysql.errors import fault
from rivet_resources.engines.shared.gauge import LOOK_SECONDS, pressure_of
from rivet_resources.errors import SourceLost

if TYPE_CHECKING:
    from pymysql.connections import Connection

LIMITS = {
    "lock_wait_timeout": str(LOOK_SECONDS),
    "innodb_lock_wait_timeout": str(LOOK_SECONDS),
    "max_execution_time": str(LOOK_SECONDS * 1000),  # MySQL, ms
    "max_statement_time": str(LOOK_SECONDS),  # MariaDB, s
}
# Source: MySQL 8.0 Reference Manual, 5.1.10, "Server Status Variables"; MariaDB names them alike.
PRESSURE: Mapping[str, str] = {
    "Threads_running": "active",
    "Innodb_row_lock_current_waits": "lock_waits",
    "Innodb_log_waits": "log_waits",
    "Threads_connected": "connections",
}
COUNTERS = (
    "Created_tmp_disk_tables", "Innodb_buffer_pool_reads", "Innodb_buffer_pool_wait_free", "Innodb_deadlocks",
    "Innodb_row_lock_waits",
)  # fmt: skip
# This statement, and those of our readers that run now. What sleeps between two pages is not running.
OURS = "(SELECT COUNT(*) FROM {processes} WHERE COMMAND <> 'Sleep' AND INFO LIKE '/* rivet:%')"
WAYS = (  # the first that the server answers to this user
    f"SELECT VARIABLE_NAME, VARIABLE_VALUE, {OURS.format(processes='performance_schema.processlist')} "
    "FROM performance_schema.global_status WHERE VARIABLE_NAME IN ({names})",  # MySQL from 8.0.22
    f"SELECT VARIABLE_NAME, VARIABLE_VALUE, {OURS.format(processes='information_schema.PROCESSLIST')} "
    "FROM performance_schema.global_status WHERE VARIABLE_NAME IN ({names})",
    f"SELECT VARIABLE_NAME, VARIABLE_VALUE, {OURS.format(processes='information_schema.PROCESSLIST')} "
    "FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME IN ({names})",  # MariaDB
)
# Asked only of a server that is a replica, and only where the user may; Seconds_Behind is NULL while it does not apply.
REPLICA = ("SHOW REPLICA STATUS", "SHOW SLAVE STATUS")
BEHIND = ("seconds_behind_source", "seconds_behind_master")


class MySqlGauge:
    """One connection; see the protocol. Not shared between threads."""

    def __init__(self, conn_params: ConnectionParams, connection: Connection[Any]) -> None:
        self._conn_params = conn_params
        self._connection = connection
        names = ", ".join(f"'{name}'" for name in PRESSURE)
        # Found once, at the start: a look must be one statement.
        self._statement = next((way.format(names=names) for way in WAYS if self._rows(way.format(names=names))), "")
        self._replica = next((way for way in REPLICA if self._rows(way)), "")
        limit = self._rows("SELECT @@GLOBAL.max_connections")
        self._limit = limit[0][0] if limit else None

    def look(self) -> Pressure:
        """Look once; see the protocol. On a replica a second statement follows, outside of the latency."""
        started = time.monotonic()
        # A server that tells nothing still shows how long a short statement takes.
        rows = self._ask(self._statement or "SELECT 'nothing', '0', '0'")
        latency = (time.monotonic() - started) * 1000
        return pressure_of(latency, {**digest(rows), "connections_limit": self._limit, "lag_seconds": self._lag()})

    def counters(self) -> Mapping[str, float]:
        """Read counters of the whole server; see the protocol."""
        names = ", ".join(f"'{name}'" for name in COUNTERS)
        rows = self._ask(f"SHOW GLOBAL STATUS WHERE Variable_name IN ({names})")
        return {str(name).lower(): float(value) for name, value in rows}

    def _lag(self) -> str | None:
        import pymysql  # driver

        if not self._replica:
            return None
        from pymysql.cursors import DictCursor  # driver

        try:
            with self._connection.cursor(DictCursor) as cursor:
                cursor.execute(self._conn_params.comment + self._replica)
                row = {name.lower(): value for name, value in (cursor.fetchone() or {}).items()}
        except (pymysql.MySQLError, OSError) as error:
            raise fault(error, doing="looking at the replica", secrets=self._conn_params.secrets) from None
        behind = next((row[name] for name in BEHIND if row.get(name) is not None), None)
        return behind.decode() if isinstance(behind, bytes) else behind

    def _rows(self, statement: str) -> list[Any]:
        """Ask what may be refused: [] then."""
        import pymysql  # driver

        try:
            return rows_of(self._connection, self._conn_params.comment + statement)
        except (pymysql.MySQLError, OSError) as error:
            found = fault(error, doing="opening the gauge", secrets=self._conn_params.secrets)
            # Only a lost line is a fault here: a statement that is refused is a word this server, or this user,
            # does not have.
            if isinstance(found, SourceLost):
                raise found from None
            return []

    def _ask(self, statement: str) -> list[Any]:
        import pymysql  # driver

        try:
            return rows_of(self._connection, self._conn_params.comment + statement)
        except (pymysql.MySQLError, OSError) as error:
            raise fault(error, doing="looking at the server", secrets=self._conn_params.secrets) from None


def digest(rows: list[Any]) -> dict[str, int]:
    """Turn (name, value, how many of ours run) into the numbers of a look."""
    names = {name.lower(): ours for name, ours in PRESSURE.items()}
    found = {names[str(name).lower()]: int(value) for name, value, _ in rows if str(name).lower() in names}
    # Ours are taken out of what runs, this very look among them.
    if "active" in found:
        found["active"] = max(0, found["active"] - int(rows[0][2] or 0))
    return found


@contextmanager
def open_gauge(conn_params: ConnectionParams) -> Iterator[Gauge]:
    """Connect for looking; the connection ends with the block.

    Raises:
        SourceUnreachable, SourceAuth, SourceLost, SourceError
    """
    own = replace(conn_params, settings={**conn_params.settings, **LIMITS}, patience_seconds=LOOK_SECONDS + 1)
    connection = connect(own)
    try:
        yield MySqlGauge(own, connection)
    finally:
        if connection.open:
            connection.close()
