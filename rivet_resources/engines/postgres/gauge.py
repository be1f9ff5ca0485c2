"""How a PostgreSQL server feels while it is read: one short statement on a connection of its own.

Belongs here: what is asked, what a missing privilege leaves out. Not here: what follows from it (`read/governor.py`).

Nothing here is raised by reading: sessions of ours are left out by their application_name, which our own user may
always see, and checkpoints are requested by writers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rivet_resources.contracts.evidence import Gauge, Pressure
from rivet_resources.engines.postgres.connect import ConnectionParams, connect, pin
from rivet_resources.engines.postgres.errors import fault
from rivet_resources.engines.shared.gauge import LOOK_SECONDS, answerable, pressure_of, selected

if TYPE_CHECKING:
    import psycopg

LIMITS = {"statement_timeout": str(LOOK_SECONDS * 1000), "lock_timeout": str(LOOK_SECONDS * 1000)}

OTHERS = "backend_type = 'client backend' AND pid <> pg_backend_pid() AND application_name NOT LIKE 'rivet:%'"
# Sessions of other users show neither state nor backend_type without pg_read_all_stats (in pg_monitor).
VISIBLE = "pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') OR bool_and(usename = current_user)"
SESSIONS = "FROM pg_stat_activity WHERE datid IS NOT NULL"
# Source: PostgreSQL documentation, 28.2, "The Cumulative Statistics System". Each part is tried by itself when the
# gauge opens, and left out where the server has no such view or forbids it (managed servers do).
PARTS: Mapping[str, str] = {
    # A session that waits for a lock is `active` too, and works no more than an idle one: it counts below.
    "active": f"""(SELECT CASE WHEN {VISIBLE} THEN count(*) FILTER (WHERE state = 'active'
        AND wait_event_type IS DISTINCT FROM 'Lock' AND {OTHERS}) END {SESSIONS})""",
    "lock_waits": f"""(SELECT CASE WHEN {VISIBLE} THEN count(*) FILTER (WHERE wait_event_type = 'Lock'
        AND {OTHERS}) END {SESSIONS})""",
    # Asked of the sessions that wait only, since it looks into the lock table.
    "waiting_for_us": f"""(SELECT CASE WHEN {VISIBLE} THEN count(*) FILTER (WHERE wait_event_type = 'Lock' AND EXISTS (
        SELECT FROM pg_stat_activity AS ours WHERE ours.application_name LIKE 'rivet:%'
        AND ours.pid = ANY (pg_blocking_pids(activity.pid)))) END
        FROM pg_stat_activity AS activity WHERE datid IS NOT NULL)""",
    "connections": f"(SELECT count(*) {SESSIONS})",
    "connections_limit": "current_setting('max_connections')::int",
    # On a standby that has replayed all it received, an idle primary is no lag.
    "lag_seconds": """(SELECT CASE WHEN NOT pg_is_in_recovery()
            THEN (SELECT max(extract(epoch FROM replay_lag)) FROM pg_stat_replication)
        WHEN pg_last_wal_receive_lsn() = pg_last_wal_replay_lsn() THEN 0
        ELSE extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp()) END)""",
}
# PostgreSQL 17 moved the counter to a view of its own.
REQUESTED_CHECKPOINTS = "(SELECT checkpoints_req FROM pg_stat_bgwriter)"
REQUESTED_CHECKPOINTS_17 = "(SELECT num_requested FROM pg_stat_checkpointer)"
COUNTERS = """SELECT temp_bytes, deadlocks, conflicts, blks_read AS blocks_read FROM pg_stat_database
    WHERE datname = current_database()"""


class PostgresGauge:
    """One autocommit connection; see the protocol. Not shared between threads."""

    def __init__(self, conn_params: ConnectionParams, connection: psycopg.Connection[Any]) -> None:
        self._conn_params = conn_params
        self._connection = connection
        self._pin = ""
        if self._row("SELECT setting FROM pg_settings WHERE name = 'statement_timeout'") != {
            "setting": LIMITS["statement_timeout"]
        }:
            # A pooler refused the options: then they are pinned within each transaction.
            self._pin = pin(LIMITS)
        checkpoints = REQUESTED_CHECKPOINTS_17 if connection.info.server_version >= 170000 else REQUESTED_CHECKPOINTS
        self._parts = answerable({**PARTS, "log_waits": checkpoints}, self._works)

    def look(self) -> Pressure:
        """Look once; see the protocol."""
        started = time.monotonic()
        found = self._ask(selected(self._parts))
        return pressure_of((time.monotonic() - started) * 1000, found)

    def counters(self) -> Mapping[str, float]:
        """Read counters of the database; see the protocol."""
        return {name: float(value) for name, value in self._ask(COUNTERS).items() if value is not None}

    def _works(self, parts: Mapping[str, str]) -> bool:
        import psycopg  # driver

        try:
            self._row(selected(parts))
            return True
        except psycopg.OperationalError:
            # Not refused: the line broke, or the time ran out.
            raise
        except psycopg.Error:
            return False

    def _ask(self, statement: str) -> dict[str, Any]:
        import psycopg  # driver

        try:
            return self._row(statement)
        except psycopg.Error as error:
            raise fault(error, doing="looking at the server", secrets=self._conn_params.secrets) from None

    def _row(self, statement: str) -> dict[str, Any]:
        from psycopg.rows import dict_row  # driver

        with self._connection.transaction() if self._pin else nullcontext():
            if self._pin:
                self._connection.execute(self._pin.encode())
            return self._connection.cursor(row_factory=dict_row).execute(statement.encode()).fetchone() or {}


@contextmanager
def open_gauge(conn_params: ConnectionParams) -> Iterator[Gauge]:
    """Connect for looking; the connection ends with the block.

    Raises:
        SourceUnreachable, SourceAuth, SourceLost, SourceError
    """
    import psycopg  # driver

    connection = connect(replace(conn_params, settings={**conn_params.settings, **LIMITS}))
    try:
        try:
            gauge = PostgresGauge(conn_params, connection)
        except psycopg.Error as error:
            raise fault(error, doing="opening the gauge", secrets=conn_params.secrets) from None
        yield gauge
    finally:
        connection.close()
