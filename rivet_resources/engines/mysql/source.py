"""MySQL and MariaDB as a source: its YAML block, from it the parameters of a connection, and the Source methods
(`type: mysql`, `mariadb`).

Belongs here: connection parameters and pinned settings, quoting and literals. Not here: the keys of the block
(shared/server.py), connecting, the catalog, planning, pages, cells and faults, which are beside this file.

Both words mean the same: which of the two the server is, and what its settings are called, is asked of the server.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from functools import partial
from typing import ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import Field

from rivet_resources.contracts.aligning import Meeting
from rivet_resources.contracts.change_log import Capture, Log
from rivet_resources.contracts.dialect import Dialect
from rivet_resources.contracts.engine_facts import EngineFacts
from rivet_resources.contracts.evidence import Effort, Gauge
from rivet_resources.contracts.mode_facts import ModeFacts
from rivet_resources.contracts.relation import Chunk
from rivet_resources.contracts.settings import Pace
from rivet_resources.contracts.source import Page, Session, Wait
from rivet_resources.contracts.types import Column
from rivet_resources.deadlines import patience_seconds
from rivet_resources.engines.mysql import (
    aligned as mysql_aligned,
)
from rivet_resources.engines.mysql import (
    columns as mysql_columns,
)
from rivet_resources.engines.mysql import (
    gauge as mysql_gauge,
)
from rivet_resources.engines.mysql import (
    pages as mysql_pages,
)
from rivet_resources.engines.mysql import (
    session as mysql_session,
)
from rivet_resources.engines.mysql import (
    sql as mysql_sql,
)
from rivet_resources.engines.mysql.connect import ConnectionParams
from rivet_resources.engines.mysql.facts import FACTS
from rivet_resources.engines.shared.names import split_name
from rivet_resources.engines.shared.planning import planning
from rivet_resources.engines.shared.server import (
    Address,
    Server,
    address,
    require_protected,
)
from rivet_resources.errors import ConfigError
from rivet_resources.extras import MYSQL

DEFAULT_PORT = 3306
EXAMPLE = "mysql://user:password@host:3306/database"
OPTIONS = ("unix_socket",)
# The largest `lock_wait_timeout` there is.
NO_LIMIT_S = 31_536_000
# Pinned so that no server's or user's setting changes a cell or a row (`engine.md`, section 3), as SHOW VARIABLES
# spells them. Those a server does not have are left out; what it has is read back.
PINNED: Mapping[str, str] = {
    "autocommit": "ON",
    "time_zone": "'+00:00'",
    "sql_mode": "''",
    "transaction_read_only": "ON",  # MySQL, MariaDB 11.1
    "tx_read_only": "ON",  # MariaDB before
    "transaction_isolation": "'REPEATABLE-READ'",
    "tx_isolation": "'REPEATABLE-READ'",
    # Else it cuts rows off in silence.
    "sql_select_limit": "18446744073709551615",
    # ON, `WHERE id IS NULL` finds the row that was inserted last.
    "sql_auto_is_null": "OFF",
    # OFF, max_join_size refuses what the planner takes for long.
    "sql_big_selects": "ON",
    # The longest key there is, in weights: a shorter one sorts long texts wrongly.
    "max_sort_length": "12288",
    "div_precision_increment": "4",
    "lc_time_names": "'en_US'",
    # MySQL 8 shows sizes and row counts up to a day old otherwise.
    "information_schema_stats_expiry": "0",
    # Above the longest pause of a throttle in mid-answer.
    "net_write_timeout": "7200",
    # Above the longest pause between two pages.
    "wait_timeout": "86400",
}


class MySql(Server):
    """Where a MySQL or MariaDB database is and how hard it may be driven."""

    type: Literal["mysql", "mariadb"] = "mysql"
    facts: ClassVar[EngineFacts] = FACTS
    consistency: Literal["per_query", "aligned"] = Field(
        "per_query",
        description="aligned: all tasks of a window begin at one instant, under a lock that holds writers back for a "
        "moment; needs LOCK TABLES, for queries RELOAD",
    )

    # --- what a Source does ----------------------------------------------------------------------

    def session(self, *, application: str, pace: Pace, snapshot: bool = True) -> AbstractContextManager[Session]:
        """Connect for planning; see the protocol. There is no instant to hold: chunks take their own."""
        conn_params = self.conn_params(application, pace)
        opened = partial(mysql_session.open_session, conn_params, is_aligned=self.is_aligned)
        return planning(opened, pace=pace)

    def pages(
        self,
        chunk: Chunk,
        columns: tuple[Column, ...],
        *,
        snapshot: str | None,
        application: str,
        pace: Pace,
        wait: Wait,
    ) -> Generator[Page, None, Effort]:
        """Read a chunk page by page, on a connection of its own; see the protocol."""
        conn_params = self.conn_params(application, pace)
        return mysql_pages.read(chunk, columns, conn_params=conn_params, place=snapshot, pace=pace, wait=wait)

    @property
    def is_aligned(self) -> bool:
        """Return whether tasks are to begin at one instant."""
        return self.consistency == "aligned"

    def align(self, meeting: Meeting, *, application: str, pace: Pace, ended: threading.Event) -> Callable[[], float]:
        """Open a meeting of tasks; see `contracts/aligning.py`."""
        return mysql_aligned.open_meeting(self.conn_params(application, pace), meeting, ended=ended)

    def leave(self, snapshot: str) -> None:
        """End the connection of a task of this process; see `contracts/aligning.py`."""
        mysql_aligned.drop(snapshot)

    def gauge(self, *, application: str, pace: Pace) -> AbstractContextManager[Gauge]:
        """Connect for looking at the server while it is read; see the protocol."""
        return mysql_gauge.open_gauge(self.conn_params(application, pace))

    def open_log(self, capture: Capture, *, application: str, pace: Pace) -> AbstractContextManager[Log]:
        """Open the binary log; see `contracts/change_log.py`."""
        conn_params = self.conn_params(application, pace)
        from rivet_resources.engines.mysql.binlog.log import MySqlLog  # which imports the driver

        return closing(
            MySqlLog(
                conn_params,
                capture,
                pace=pace,
                session=lambda: self.session(application=application, pace=pace),
            )
        )

    def refuses(self, mode: ModeFacts, relation: Literal["table", "query"]) -> str:
        """Refuse nothing: every mode reads tables here, and those that read queries, queries."""
        return ""

    def quote(self, name: str) -> str:
        """Quote one identifier, inner backticks doubled."""
        return mysql_sql.quote(name)

    def literal(self, text: str, column: Column) -> str:
        """Render a canonical text as a typed literal of this column's type; see the protocol."""
        return mysql_sql.literal(text, column)

    def no_bound(self, column: Column, *, is_paged: bool) -> str:
        """Return why the values of a column cannot be bounds; see the protocol."""
        return mysql_columns.no_bound(column, is_paged=is_paged)

    def dialect(self, columns: Sequence[Column]) -> Dialect:
        """Return how statements that order and compare these columns are spelled."""
        return mysql_sql

    def lineage_name(self, table: str) -> tuple[str, str]:
        """Split a table as configured into (database, name); the source's own database where none is written."""
        schema, name = split_name(table)
        return schema or self._own_database(), name

    def _own_database(self) -> str:
        """Name the database without connecting; the engine's name when its URL is not at hand."""
        try:
            url = self.url_text()
        except ConfigError:
            return self.type
        named = self.database if url is None else urlsplit(url).path.removeprefix("/")
        return named or self.type

    # --- connecting ------------------------------------------------------------------------------

    def conn_params(self, application: str, pace: Pace) -> ConnectionParams:
        """Resolve secrets and write down one connection; the transport gate stands here, before any socket.

        Raises:
            ExtraMissing: the driver is not installed.
            ConfigError: a variable or file is missing, the URL cannot be read, or the line would be unprotected.
        """
        MYSQL.require()
        at = address(self, schemes=("mysql", "mariadb"), default_port=DEFAULT_PORT, example=EXAMPLE)
        unknown = sorted(set(at.options) - set(OPTIONS))
        if unknown:
            raise ConfigError(
                f"The source's URL has the option {', '.join(unknown)}; only {', '.join(OPTIONS)} is known. "
                "TLS is set by the `tls:` block, limits by `tuning:`."
            )
        # A folder as host means a socket, as in libpq; PyMySQL has a parameter of its own for it.
        if at.host.startswith("/"):
            at = Address(at.host, at.port, at.user, at.password, at.database, {**at.options, "unix_socket": at.host})
        require_protected(self.tls, [] if "unix_socket" in at.options else [at.host])
        return ConnectionParams(
            address=at,
            tls=self.tls,
            settings={**PINNED, **_limits(pace)},
            application=application,
            patience_seconds=patience_seconds(pace.statement_timeout_s),
            secrets=self.secret_texts(),
            is_capped=self.max_connections is not None,
        )


def _limits(pace: Pace) -> dict[str, str]:
    """Return the session variables of the two timeouts; the two servers name and count the statement's differently."""
    lock = str(pace.lock_timeout_s or NO_LIMIT_S)
    return {
        "lock_wait_timeout": lock,
        "innodb_lock_wait_timeout": lock,
        "max_execution_time": str(pace.statement_timeout_s * 1000),  # MySQL, ms
        "max_statement_time": str(pace.statement_timeout_s),  # MariaDB, s
    }
