"""PostgreSQL as a source: its YAML block, from it the parameters of a connection, and the Source methods
(`type: postgres`).

Belongs here: connection parameters and pinned settings, quoting and literals. Not here: the keys of the block
(shared/server.py), connecting, the catalog, planning, pages, cells and faults, which are beside this file.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Literal

from rivet_resources.contracts.change_log import Capture, Log
from rivet_resources.contracts.dialect import Dialect
from rivet_resources.contracts.engine_facts import EngineFacts
from rivet_resources.contracts.evidence import Effort, Gauge
from rivet_resources.contracts.mode_facts import ModeFacts
from rivet_resources.contracts.relation import Chunk
from rivet_resources.contracts.settings import Pace
from rivet_resources.contracts.source import Page, Session, Wait
from rivet_resources.contracts.types import Column
from rivet_resources.engines.postgres import (
    gauge as postgres_gauge,
)
from rivet_resources.engines.postgres import (
    pages as postgres_pages,
)
from rivet_resources.engines.postgres import (
    session as postgres_session,
)
from rivet_resources.engines.postgres import (
    sql as postgres_sql,
)
from rivet_resources.engines.postgres.connect import DEFAULT_PORT, ConnectionParams
from rivet_resources.engines.postgres.facts import FACTS
from rivet_resources.engines.shared.names import split_name
from rivet_resources.engines.shared.planning import planning
from rivet_resources.engines.shared.server import Server, check_scheme, require_protected, system_authorities
from rivet_resources.errors import ConfigError
from rivet_resources.extras import POSTGRES
from rivet_resources.psycopg_lines import LIVELINESS

EXAMPLE = "postgresql://user:password@host:5432/database"

# Pinned so that no server's or user's setting changes a cell (`types.md`, section 3; `engine.md`, section 2).
PINNED: Mapping[str, str] = {
    "default_transaction_read_only": "on",
    "standard_conforming_strings": "on",
    "TimeZone": "UTC",
    "DateStyle": "ISO",
    "IntervalStyle": "iso_8601",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "xmloption": "content",
    # Set, never disabled; above the longest pause of a throttle between two pages, and of a planner waiting for tasks.
    "idle_in_transaction_session_timeout": "86400000",
}


class Postgres(Server):
    """Where a PostgreSQL database is and how hard it may be driven."""

    type: Literal["postgres"] = "postgres"
    facts: ClassVar[EngineFacts] = FACTS

    # --- what a Source does ----------------------------------------------------------------------

    def session(self, *, application: str, pace: Pace, snapshot: bool = True) -> AbstractContextManager[Session]:
        """Connect for planning; see the protocol. The connection and its snapshot end with the block."""
        conn_params = self.conn_params(application, pace)
        return planning(lambda: postgres_session.open_session(conn_params, snapshot=snapshot), pace=pace)

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
        return postgres_pages.read(chunk, columns, conn_params=conn_params, snapshot=snapshot, pace=pace, wait=wait)

    def gauge(self, *, application: str, pace: Pace) -> AbstractContextManager[Gauge]:
        """Connect for looking at the server while it is read; see the protocol."""
        return postgres_gauge.open_gauge(self.conn_params(application, pace))

    def open_log(self, capture: Capture, *, application: str, pace: Pace) -> AbstractContextManager[Log]:
        """Open the change log behind a logical slot; its connections end with the block."""
        from rivet_resources.engines.postgres.log import log as changes  # start

        return changes.open_log(capture, conn_params=self.conn_params(application, pace), pace=pace)

    def refuses(self, mode: ModeFacts, relation: Literal["table", "query"]) -> str:
        """Return why this engine cannot do a mode; it can do all of them."""
        return ""

    def quote(self, name: str) -> str:
        """Quote one identifier, inner quotes doubled."""
        return postgres_sql.quote(name)

    def literal(self, text: str, column: Column) -> str:
        """Render a canonical text as a typed literal of this column's type; see the protocol."""
        return postgres_sql.literal(text, column)

    def no_bound(self, column: Column, *, is_paged: bool) -> str:
        """Return why the values of a column cannot be bounds; see the protocol."""
        return postgres_sql.no_bound(column, is_paged=is_paged)

    def dialect(self, columns: Sequence[Column]) -> Dialect:
        """Return how statements that order and compare these columns are spelled."""
        return postgres_sql

    def lineage_name(self, table: str) -> tuple[str, str]:
        """Split a table as configured into (schema, name); `public` where none is written."""
        schema, name = split_name(table)
        return schema or "public", name

    # --- connecting ------------------------------------------------------------------------------

    def conn_params(self, application: str, pace: Pace) -> ConnectionParams:
        """Resolve secrets and write down one connection; the transport gate stands here, before any socket.

        Raises:
            ExtraMissing: the driver is not installed.
            ConfigError: a variable or file is missing, the URL cannot be read, or the line would be unprotected.
        """
        POSTGRES.require()
        parameters = self._parameters()
        password = parameters.get("password", "")
        # The server cuts longer names itself, and tells its log of each.
        pinned = {"application_name": application[:63], "client_encoding": "UTF8"}
        parameters |= pinned | self._transport(parameters)
        # In this order: keepalives that the URL names are the user's choice.
        parameters = {**LIVELINESS, **parameters}
        host = parameters.get("host") or parameters.get("hostaddr") or os.environ.get("PGHOST", "unix socket")
        limits = {
            "statement_timeout": str(pace.statement_timeout_s * 1000),
            "lock_timeout": str(pace.lock_timeout_s * 1000),
        }
        return ConnectionParams(
            parameters=parameters,
            settings={**PINNED, **limits},
            where=f"{host}:{parameters.get('port', DEFAULT_PORT)}",
            user=parameters.get("user", ""),
            secrets=tuple(word for word in {password, *self.secret_texts()} if word),
            is_capped=self.max_connections is not None,
        )

    def _parameters(self) -> dict[str, str]:
        """Return libpq's parameters from the URL or the fields."""
        url = self.url_text()
        if url is None:
            fields = {
                "host": self.host, "port": self.port, "user": self.user, "dbname": self.database,
                "password": self.password_text(),
            }  # fmt: skip
            return {name: str(value) for name, value in fields.items() if value is not None}
        from psycopg import ProgrammingError  # driver
        from psycopg.conninfo import conninfo_to_dict  # driver

        check_scheme(url, key=self.url_key(), schemes=("postgresql", "postgres"), example=EXAMPLE)
        try:
            found: dict[str, Any] = conninfo_to_dict(url)
        except ProgrammingError:
            # Its text shows the URL.
            raise ConfigError(
                f"The source's URL cannot be read; write {EXAMPLE}, "
                "with special characters of the password percent-encoded."
            ) from None
        return {name: str(value) for name, value in found.items() if value is not None}

    def _transport(self, parameters: Mapping[str, str]) -> dict[str, str]:
        """Return the TLS parameters.

        Raises:
            ConfigError: no `tls:` block, and the host is not this machine.
        """
        require_protected(self.tls, _hosts(parameters))
        # Only loopback and sockets come here without a block; libpq's own default stays.
        if self.tls is None:
            return {}
        if not self.tls.mode.startswith("verify"):
            return {"sslmode": self.tls.mode}
        authorities = str(self.tls.ca_file) if self.tls.ca_file else system_authorities()
        return {"sslmode": self.tls.mode, "sslrootcert": authorities}


def _hosts(parameters: Mapping[str, str]) -> list[str]:
    """List every host libpq may try; a service file may name any host, so the service stands for one."""
    service = parameters.get("service") or os.environ.get("PGSERVICE")
    if service:
        return [f"service {service}"]
    hosts = ",".join(
        parameters.get(name) or os.environ.get(variable, "")
        for name, variable in (("host", "PGHOST"), ("hostaddr", "PGHOSTADDR"))
    )
    return hosts.split(",")
