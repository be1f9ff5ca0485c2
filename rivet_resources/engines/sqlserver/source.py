"""SQL Server and Azure SQL as a source: its YAML block, how to connect, and the Source methods (`type: sqlserver`).

Belongs here: settings, the transport gate, the connection string, quoting and literals. Not here: the catalog,
planning, pages, cells and faults, which are beside this file.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

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
from rivet_resources.engines.sqlserver.connect import ConnectionParams
from rivet_resources.engines.sqlserver.drivers import freetds_reason, odbc, strings
from rivet_resources.engines.sqlserver.drivers.odbc_drivers import OdbcDriver, named, newest
from rivet_resources.engines.sqlserver.facts import FACTS
from rivet_resources.errors import ConfigError, ExtraMissing
from rivet_resources.extras import SQLSERVER, SQLSERVER_ODBC, Extra, LibraryMissing

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

    driver: Literal["mssql-python", "odbc"] = Field(
        default="mssql-python",
        description="odbc: pyodbc with an ODBC driver of this machine, for Kerberos and a `ca_file`",
    )
    odbc_driver: str | None = Field(
        default=None,
        description="its name for the driver manager, or FreeTDS; default: Microsoft's newest that is installed",
    )
    auth: Literal["password", "kerberos"] = Field(
        default="password", description="kerberos: the ticket of this process signs in; needs driver: odbc"
    )

    @property
    def extra(self) -> Extra:
        """Return what brings the chosen driver."""
        return SQLSERVER_ODBC if self.driver == "odbc" else SQLSERVER

    @property
    def needed_fields(self) -> tuple[str, ...]:
        """Return the fields that go together; a ticket has its own user."""
        return ("host", "database") if self.auth == "kerberos" else super().needed_fields

    @model_validator(mode="after")
    def _keys_of_the_driver(self) -> Self:
        """Refuse keys that the chosen driver, or the way to sign in, has no use for.

        Raises:
            ValueError
        """
        for key, is_set in (("odbc_driver", self.odbc_driver is not None), ("auth", self.auth == "kerberos")):
            if is_set and self.driver != "odbc":
                raise ValueError(f"sets {key} without driver: odbc; add that key, or remove {key}")
        if self.odbc_driver is not None:
            named(self.odbc_driver)
        signs_in = [name for name in ("user", "password", "password_env") if getattr(self, name) is not None]
        if self.auth == "kerberos" and signs_in:
            raise ValueError(f"sets {', '.join(signs_in)} beside auth: kerberos, whose ticket has a user; keep one")
        return self

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
        self.extra.require()
        found = address(self, schemes=SCHEMES, default_port=DEFAULT_PORT, example=EXAMPLE)
        require_protected(self.tls, [found.host])
        if self.auth == "kerberos" and (found.user or found.password):
            raise ConfigError(
                f"`{self.url_key()}` of the source holds a user or password beside `auth: kerberos`, whose ticket "
                f"has a user. Keep one."
            )
        is_read_only = self._is_read_only(found)
        chosen = self._odbc_driver() if self.driver == "odbc" else None
        line = strings.WantedLine(
            found, self.tls, is_read_only, is_kerberos=self.auth == "kerberos", odbc_driver=chosen
        )
        tells_no_reason = chosen is not None and chosen.kind == "freetds"
        return ConnectionParams(
            text=self._text(line),
            master_text=self._text(replace(line, address=replace(found, database="master"))),
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
            driver=self.driver,
            auth=self.auth,
            reason=partial(freetds_reason.reason, line) if tells_no_reason else None,
        )

    def _is_read_only(self, found: Address) -> bool:
        """Return whether a secondary may answer; the URL may say it in the driver's own words."""
        asked = {key.lower(): value.lower() for key, value in found.options.items()}
        return self.application_intent == "read_only" or asked.get("applicationintent") == "readonly"

    def _text(self, line: strings.WantedLine) -> str:
        """Return the connection string for the chosen driver.

        Raises:
            ConfigError: it cannot check a certificate in the way asked for.
        """
        if line.odbc_driver is None:
            return strings.spell(strings.mssql_python(line))
        if line.odbc_driver.kind == "freetds":
            return strings.spell_freetds(strings.freetds(line, line.odbc_driver))
        return strings.spell(strings.microsoft(line, line.odbc_driver))

    def _odbc_driver(self) -> OdbcDriver:
        """Return the ODBC driver of the block, or Microsoft's newest of this machine.

        Raises:
            ExtraMissing
        """
        if self.odbc_driver is not None:
            return named(self.odbc_driver)
        try:
            found = odbc.installed()
        except LibraryMissing as error:
            raise ExtraMissing(str(error)) from None
        chosen = newest(found)
        if chosen is None:
            raise ExtraMissing(
                f"`driver: odbc` finds no 'ODBC Driver … for SQL Server' on this machine, which has: "
                f"{', '.join(found) or 'none'}. Install Microsoft's package msodbcsql18, or FreeTDS "
                f"(`{SQLSERVER_ODBC.libraries}`) and add `odbc_driver: FreeTDS` to the source."
            )
        return chosen
