"""One connection to SQL Server: its connection string, and the settings pinned on it before anything is read.

Belongs here: `ConnectionParams`, opening, pinning. Not here: the YAML block (source.py), the driver
(driver.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rivet_resources.engines.sqlserver import driver as sqlserver_driver
from rivet_resources.engines.sqlserver.errors import (
    CANNOT_OPEN,
    LOGIN_FAILED,
    SOCKET,
    closed_database,
    connect_fault,
    fault,
    missing_database,
    number_of,
)
from rivet_resources.engines.sqlserver.sql import quote_text
from rivet_resources.errors import RivetError, SourceError
from rivet_resources.extras import LibraryMissing

LOGIN_SECONDS = 15

# Pinned so that no server's or login's setting changes a cell or a plan (`engine.md`, section 4). The ANSI ones are
# what indexed views and computed columns ask for; a reader is always the one that a deadlock ends.
PINNED = (
    "SET DATEFORMAT ymd",
    "SET LANGUAGE us_english",
    # ON would end the transaction of one instant with a statement that is given up half read.
    # Source: Microsoft, "SET XACT_ABORT" and "Attention": a client's interrupt then rolls back.
    "SET XACT_ABORT OFF",
    "SET ANSI_NULLS ON",
    "SET ANSI_PADDING ON",
    "SET QUOTED_IDENTIFIER ON",
    "SET ARITHABORT ON",
    "SET TEXTSIZE 2147483647",
    # A login's own limits: of rows, and above of bytes of a text, would cut answers off in silence.
    "SET ROWCOUNT 0",
    "SET DEADLOCK_PRIORITY LOW",
)


# How a database stands, for who could not open it; everybody may ask, in `master`.
STANDING = """SELECT DB_ID({0}) AS number, HAS_DBACCESS({0}) AS may_enter,
       CONVERT(nvarchar(60), DATABASEPROPERTYEX({0}, N'Status')) AS status,
       CONVERT(nvarchar(60), DATABASEPROPERTYEX({0}, N'UserAccess')) AS access"""


@dataclass(frozen=True)
class ConnectionParams:
    """All that one connection needs. Holds secrets: never logged, never pickled, lives as long as its reader."""

    text: str = field(repr=False)  # the driver's connection string
    master_text: str = field(repr=False)  # the same for the database `master`
    where: str  # host:port, for messages
    port: int
    user: str  # '' for the owner of a Kerberos ticket
    application: str
    statement_timeout_s: int
    lock_timeout_s: int
    is_read_only: bool  # a readable secondary was asked for
    secrets: tuple[str, ...] = field(repr=False)
    tls_mode: str = ""  # of the `tls:` block, if there is one
    database: str = ""  # '' for the login's own
    driver: str = "mssql-python"  # a word of the YAML key, as is the next
    auth: str = "password"
    reason: Callable[[], str] | None = field(default=None, repr=False)  # asked where the driver tells no reason

    @property
    def settings(self) -> tuple[str, ...]:
        """Return the statements that pin a session; SQL Server's own statement timeout is the client's."""
        # 0 would mean not to wait at all; -1 waits without end.
        lock = self.lock_timeout_s * 1000 if self.lock_timeout_s else -1
        # CONTEXT_INFO holds 128 bytes.
        label = f"rivet:{self.application}".encode()[:128].hex()
        return (*PINNED, f"SET LOCK_TIMEOUT {lock}", f"SET CONTEXT_INFO 0x{label}")


def connect(conn_params: ConnectionParams) -> sqlserver_driver.Connection:
    """Open one autocommit connection with every setting pinned.

    Raises:
        SourceUnreachable, SourceMissing, SourceAuth, SourceLost, SourceError
    """
    try:
        connection = _open(conn_params, conn_params.text)
    except LibraryMissing as error:
        raise SourceError(str(error)) from None
    except sqlserver_driver.DriverRefused as error:
        raise _refusal(error, conn_params) from None
    try:
        run(connection, "; ".join(conn_params.settings), timeout=conn_params.statement_timeout_s)
    except sqlserver_driver.DriverRefused as error:
        # Pinned in part it must not be used: a setting that is missing may change cells.
        sqlserver_driver.close(connection)
        raise fault(error, doing=f"pinning the session at {conn_params.where}", secrets=conn_params.secrets) from None
    return connection


def _open(conn_params: ConnectionParams, text: str) -> sqlserver_driver.Connection:
    return sqlserver_driver.connect(text, driver=conn_params.driver, port=conn_params.port, seconds=LOGIN_SECONDS)


def _refusal(error: sqlserver_driver.DriverRefused, conn_params: ConnectionParams) -> RivetError:
    """Turn a refused connection into ours; where the database may be the matter, ask the server how it stands."""
    if conn_params.reason is not None and number_of(error) in SOCKET and (found := conn_params.reason()):
        error = sqlserver_driver.DriverRefused(found)
    refused = connect_fault(error, where=conn_params.where, auth=conn_params.auth, secrets=conn_params.secrets)
    if number_of(error) not in (CANNOT_OPEN, LOGIN_FAILED) or not conn_params.database:
        return refused
    # After a start a server takes log-ins before it has recovered its databases, and says the same of these as of one
    # that is not there at all: that it cannot be opened, and that the log-in failed, of which the driver tells the
    # latter alone. Whoever gets into `master` has the right password.
    try:
        number, may_enter, status, access = _standing(conn_params)
    except sqlserver_driver.DriverRefused:
        # The password is wrong; or it is a user of that database alone, as on Azure.
        return refused
    if number is None:
        return missing_database(conn_params.database, where=conn_params.where)
    if (may_enter, status, access) == (0, "ONLINE", "MULTI_USER"):
        return closed_database(conn_params.database, where=conn_params.where, user=conn_params.user or "of the ticket")
    passing = sqlserver_driver.DriverRefused(
        f'Cannot open database "{conn_params.database}", which is {status}, {access}', number=CANNOT_OPEN
    )
    return connect_fault(passing, where=conn_params.where, auth=conn_params.auth, secrets=conn_params.secrets)


def _standing(conn_params: ConnectionParams) -> tuple[Any, ...]:
    """Ask how the line's database stands.

    Raises:
        Refused
    """
    connection = _open(conn_params, conn_params.master_text)
    try:
        cursor = sqlserver_driver.execute(
            connection, STANDING.format(quote_text(conn_params.database)), timeout=LOGIN_SECONDS
        )
        return sqlserver_driver.rows_of(cursor)[0]
    finally:
        sqlserver_driver.close(connection)


def run(connection: sqlserver_driver.Connection, statement: str, *, timeout: int) -> None:
    """Run a batch whose rows, if any, nobody wants.

    Raises:
        Refused
    """
    cursor = sqlserver_driver.execute(connection, statement, timeout=timeout)
    try:
        # The fault of a later statement comes with its own answer.
        while sqlserver_driver.has_next(cursor):
            pass
    finally:
        sqlserver_driver.close(cursor)
