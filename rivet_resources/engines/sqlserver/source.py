"""SQL Server and Azure SQL as a source: its YAML block, how to connect, and the Source methods (`type: sqlserver`).

Belongs here: settings, the transport gate, the connection string, quoting and literals. Not here: the catalog,
planning, pages, cells and faults, which are beside this file.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from rivet_resources.contracts.dialect import Dialect
from rivet_resources.contracts.engine_facts import EngineFacts
from rivet_resources.contracts.evidence import Effort, Gauge
from rivet_resources.contracts.mode_facts import ModeFacts
from rivet_resources.contracts.relation import Chunk
from rivet_resources.contracts.settings import Pace
from rivet_resources.contracts.source import Page, Session, Wait
from rivet_resources.contracts.types import Column
from rivet_resources.engines.shared.names import split_name
from rivet_resources.engines.shared.planning import planning
from rivet_resources.engines.shared.server import Address, Server, address, require_protected
from rivet_resources.engines.sqlserver import (
    gauge as sqlserver_gauge,
)
from rivet_resources.engines.sqlserver import (
    pages as sqlserver_pages,
)
from rivet_resources.engines.sqlserver import (
    session as sqlserver_session,
)
from rivet_resources.engines.sqlserver import (
    sql as sqlserver_sql,
)
from rivet_resources.engines.sqlserver.connect import ConnectionParams, escape
from rivet_resources.engines.sqlserver.facts import FACTS
from rivet_resources.errors import ConfigError
from rivet_resources.extras import SQLSERVER

if TYPE_CHECKING:
    from rivet_resources.contracts.change_log import Capture, Log

DEFAULT_PORT = 1433
SCHEMES = ("mssql", "sqlserver")
EXAMPLE = "mssql://user:password@host:1433/database"


class SqlServer(Server):
    """Where a SQL Server database is and how hard it may be driven."""

    type: Literal["sqlserver", "mssql"] = "sqlserver"
    facts: ClassVar[EngineFacts] = FACTS
    application_intent: Literal["read_write", "read_only"] = Field(
        default="read_write", description="read_only: a readable secondary of the availability group answers"
    )

    # --- what a Source does ----------------------------------------------------------------------

    def session(self, *, application: str, pace: Pace, snapshot: bool = True) -> AbstractContextManager[Session]:
        """Connect for planning; see the protocol. The connection ends with the block."""
        conn_params = self.conn_params(application, pace)
        return planning(lambda: sqlserver_session.open_session(conn_params, snapshot=snapshot), pace=pace)

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
        return sqlserver_pages.read(
            chunk, columns, conn_params=self.conn_params(application, pace), pace=pace, wait=wait
        )

    def gauge(self, *, application: str, pace: Pace) -> AbstractContextManager[Gauge]:
        """Connect for looking at the server while it is read; see the protocol."""
        return sqlserver_gauge.open_gauge(self.conn_params(application, pace))

    @contextmanager
    def open_log(self, capture: Capture, *, application: str, pace: Pace) -> Iterator[Log]:
        """Open the change tables for one drain; it connects when first asked, and its connection ends with the block.

        Raises:
            ConfigError: as `conn_params` does.
        """
        from rivet_resources.engines.sqlserver.log.log import SqlServerLog  # start

        log = SqlServerLog(capture, self.conn_params(application, pace), pace)
        try:
            yield log
        finally:
            log.close()

    def refuses(self, mode: ModeFacts, relation: Literal["table", "query"]) -> str:
        """Return why, in one sentence, this engine cannot do a mode; it does all of them."""
        return ""

    def quote(self, name: str) -> str:
        """Quote one identifier, closing brackets doubled."""
        return sqlserver_sql.quote(name)

    def literal(self, text: str, column: Column) -> str:
        """Render a canonical text as a typed literal of this column's type; see the protocol."""
        return sqlserver_sql.literal(text, column)

    def no_bound(self, column: Column, *, is_paged: bool) -> str:
        """Return why the values of a column cannot be bounds; see the protocol."""
        return ""

    def dialect(self, columns: Sequence[Column]) -> Dialect:
        """Return how statements that order and compare these columns are spelled."""
        return sqlserver_sql

    def lineage_name(self, table: str) -> tuple[str, str]:
        """Split a table as configured into (schema, name); `dbo` where none is written."""
        schema, name = split_name(table)
        return schema or "dbo", name

    # --- connecting ------------------------------------------------------------------------------

    def conn_params(self, application: str, pace: Pace) -> ConnectionParams:
        """Resolve secrets and write down one connection; the transport gate stands here, before any socket.

        Raises:
            ExtraMissing: the driver is not installed.
            ConfigError: a variable or file is missing, the URL cannot be read, or the line would be unprotected.
        """
        SQLSERVER.require()
        found = address(self, schemes=SCHEMES, default_port=DEFAULT_PORT, example=EXAMPLE)
        require_protected(self.tls, [found.host])
        is_read_only = self._is_read_only(found)
        parts = {
            # Of a bare name the driver may try shared memory and named pipes first, on Windows.
            "Server": f"tcp:{found.host},{found.port}",
            "Database": found.database,
            "UID": found.user,
            "PWD": found.password or "",
            **self._transport(),
            "ApplicationIntent": "ReadOnly" if is_read_only else "ReadWrite",
            # Retries are ours, and counted.
            "ConnectRetryCount": "0",
        }
        return ConnectionParams(
            text=";".join(f"{key}={escape(value)}" for key, value in parts.items() if value),
            where=found.where,
            port=found.port,
            user=found.user,
            application=application,
            statement_timeout_s=pace.statement_timeout_s,
            lock_timeout_s=pace.lock_timeout_s,
            is_read_only=is_read_only,
            secrets=self.secret_texts(),
            tls_mode=self.tls.mode if self.tls else "",
            database=found.database,
        )

    def _is_read_only(self, found: Address) -> bool:
        """Return whether a secondary may answer; the URL may say it in the driver's own words."""
        asked = {key.lower(): value.lower() for key, value in found.options.items()}
        return self.application_intent == "read_only" or asked.get("applicationintent") == "readonly"

    def _transport(self) -> dict[str, str]:
        """Return the TLS words of the connection string.

        Raises:
            ConfigError: the driver cannot check a certificate in the way asked for.
        """
        if self.tls is None or self.tls.mode == "disable":
            return {"Encrypt": "no"}
        if self.tls.mode == "require":
            return {"Encrypt": "yes", "TrustServerCertificate": "yes"}
        # The driver knows the system's authorities alone; a check that it cannot do must not look as if it was
        # done.
        if self.tls.mode == "verify-ca" or self.tls.ca_file is not None:
            raise ConfigError(
                "SQL Server's driver checks certificates against the system's authorities, host name included. Use "
                "`tls: {mode: verify-full}` without `ca_file`, and add the authority to the system's store."
            )
        return {"Encrypt": "yes", "TrustServerCertificate": "no"}
