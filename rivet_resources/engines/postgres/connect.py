"""Connections to PostgreSQL on which no wait is without end, whatever the server does: psycopg's and ADBC's.

Belongs here: `ConnectionParams`, opening, the deadline of each wait, the statement that pins settings. Not here: the
YAML block (source.py), snapshots (session.py, reader.py), what a fault means (errors.py).

libpq has no read timeout, and the server's statement timeout dies with the server. psycopg waits in Python and shows
its socket; ADBC waits in C, hides it, and asks for types while it connects, so its socket is found among the process's
own.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rivet_resources.deadlines import deadline, forget, hang_up, opened_lines, patience_seconds
from rivet_resources.engines.postgres import tls
from rivet_resources.engines.postgres.errors import connect_fault
from rivet_resources.engines.shared import kept_connections
from rivet_resources.psycopg_lines import CONNECT_SECONDS, watched

if TYPE_CHECKING:
    import psycopg

DEFAULT_PORT = 5432
APPLICATION = "application_name"
# What poolers say of options that they do not know.
STARTUP_REFUSED = "startup parameter"


@dataclass(frozen=True)
class ConnectionParams:
    """All that one connection needs. Holds secrets: never logged, never pickled, lives as long as its reader."""

    parameters: Mapping[str, str] = field(repr=False)  # libpq's, without `options`
    settings: Mapping[str, str]  # server settings of the session
    where: str  # host:port, for messages
    user: str
    secrets: tuple[str, ...] = field(repr=False)
    is_capped: bool = False  # by `max_connections`

    @property
    def key(self) -> str:
        """Return what sessions share that may use one connection after another."""
        unnamed = {name: value for name, value in self.parameters.items() if name != APPLICATION}
        return kept_connections.key_of("postgres", sorted(unnamed.items()), sorted(self.settings.items()))

    @property
    def limit_seconds(self) -> float:
        """Return the server's own limit of a statement; 0: none."""
        return int(self.settings["statement_timeout"]) / 1000

    @property
    def patience_seconds(self) -> float:
        """Return how long one statement is waited for: the server's own limit and a margin."""
        return patience_seconds(self.limit_seconds)

    def conninfo(self, *, options: bool = True) -> str:
        """Write the libpq connection string; without `options` for a pooler that refuses them."""
        from psycopg.conninfo import make_conninfo  # driver

        parameters = dict(self.parameters)
        if options:
            given = [parameters.get("options", "")]
            given += [f"-c {name}={_escape(value)}" for name, value in self.settings.items()]
            parameters["options"] = " ".join(word for word in given if word)
        else:
            # The user's own options go with ours: a pooler refuses the parameter, whatever stands in it.
            parameters.pop("options", None)
        return make_conninfo("", **parameters)


def _escape(value: str) -> str:
    """Escape a value inside `options`, where blanks and backslashes need a backslash."""
    return re.sub(r"([\\ ])", r"\\\1", value)


def connect(conn_params: ConnectionParams) -> psycopg.Connection[Any]:
    """Open one autocommit connection with every setting pinned; by SET where a pooler refuses startup options.

    Raises:
        SourceUnreachable, SourceAuth, SourceLost, SourceError
    """
    import psycopg  # driver

    try:
        return open_plain(conn_params)
    except psycopg.Error as error:
        told = tls.refusal(conn_params.parameters) if "certificate verify failed" in str(error) else ""
        # `from None`: the driver's own text may show the connection string, and a chained traceback would print it.
        raise connect_fault(error, where=conn_params.where, secrets=conn_params.secrets, refusal=told) from None


def borrow(conn_params: ConnectionParams) -> psycopg.Connection[Any]:
    """Return a connection that an earlier session of this command left behind, clean as a new one; else a new one.

    Raises:
        as `connect`
    """
    import psycopg  # driver

    name = "SELECT set_config('application_name', %s, false)"
    return kept_connections.borrow(
        conn_params,
        wake=lambda kept: kept.execute(name, [conn_params.parameters[APPLICATION]]),
        deaths=(psycopg.Error,),
        connect=lambda: connect(conn_params),
    )


def hand_back(connection: psycopg.Connection[Any], conn_params: ConnectionParams) -> None:
    """End a session; see `kept_connections.hand_back`."""
    kept_connections.hand_back(connection, conn_params, is_cleaned=_is_cleaned)


def _is_cleaned(connection: psycopg.Connection[Any]) -> bool:
    """Take a session's transaction, settings, locks and temporary tables away; False: it is not worth keeping."""
    import psycopg  # driver
    from psycopg.pq import TransactionStatus as Status  # driver

    if connection.is_shared_by_pooler:  # type: ignore[attr-defined]  # of `Watched`
        return False
    status = connection.info.transaction_status
    if connection.closed or status not in (Status.IDLE, Status.INTRANS, Status.INERROR):
        return False
    try:
        if status != Status.IDLE:
            connection.execute("ROLLBACK")
        # What the connection was opened with comes back by it: `options` are a session's defaults.
        connection.execute("DISCARD ALL")
    except psycopg.Error:
        return False
    return True


def pin(settings: Mapping[str, str]) -> str:
    """Write one SELECT that pins the settings until the end of the transaction; also for poolers."""
    return "SELECT " + ", ".join(f"set_config('{name}', '{value}', true)" for name, value in settings.items())


def open_plain(conn_params: ConnectionParams) -> psycopg.Connection[Any]:
    """Open one autocommit connection of psycopg, without startup options where a pooler refuses them.

    Raises:
        psycopg.Error
    """
    import psycopg  # driver

    def opened(conninfo: str) -> psycopg.Connection[Any]:
        # psycopg prepares a statement at its fifth use; behind a pooler the sixth may meet a backend that never saw it.
        return watched().connect(conninfo, autocommit=True, prepare_threshold=None)

    try:
        connection = opened(conn_params.conninfo())
    except psycopg.OperationalError as error:
        if STARTUP_REFUSED not in str(error):
            raise
        connection = opened(conn_params.conninfo(options=False))
        connection.is_shared_by_pooler = True  # type: ignore[attr-defined]  # of `Watched`
    connection.patience_seconds = conn_params.patience_seconds  # type: ignore[attr-defined]  # of `Watched`
    return connection


@dataclass
class Arrow:
    """An ADBC connection, with copies of its socket."""

    raw: Any
    patience_seconds: float
    is_at_work: Callable[[], bool] | None = None  # see `deadline`
    lines: list[socket.socket] = field(default_factory=list)

    def bounded(self) -> AbstractContextManager[None]:
        """End what waits in the block when it takes too long.

        Raises:
            Silent: in place of what the block raised then.
        """
        return deadline(self.patience_seconds, lambda: hang_up(self.lines), is_at_work=self.is_at_work)

    def close(self) -> None:
        """Close it, cancelling what runs on it; a broken line cannot be closed in good order, and nobody needs it."""
        lines, self.lines = self.lines, []
        try:
            # A good-bye waits for the server, which may be what is broken.
            with deadline(CONNECT_SECONDS, lambda: hang_up(lines)):
                self.raw.close()
        except Exception:
            return
        finally:
            forget(lines)


def open_arrow(
    conn_params: ConnectionParams, *, patience_seconds: float, is_at_work: Callable[[], bool] | None = None
) -> Arrow:
    """Open one autocommit connection of ADBC; see `open_plain`.

    Raises:
        Silent: the server took the connection and did not answer.
        Exception: whatever ADBC raises.
    """
    from adbc_driver_postgresql import dbapi  # driver

    # The sockets that appear while it connects are its own: ADBC does not show them.
    with opened_lines(ports(conn_params)) as found:

        def end() -> None:
            lines = found()
            hang_up(lines)
            forget(lines)

        with deadline(connect_seconds(conn_params), end):
            try:
                raw = dbapi.connect(conn_params.conninfo(), autocommit=True)
            except Exception as error:
                if STARTUP_REFUSED not in str(error):
                    raise
                raw = dbapi.connect(conn_params.conninfo(options=False), autocommit=True)
        return Arrow(raw, patience_seconds, is_at_work, found())


def ports(conn_params: ConnectionParams) -> set[int]:
    """List the ports that libpq may connect to."""
    given = conn_params.parameters.get("port") or os.environ.get("PGPORT") or ""
    return {int(word) for word in given.split(",") if word.isdecimal()} | {DEFAULT_PORT}


def connect_seconds(conn_params: ConnectionParams) -> float:
    """Return how long ADBC may take to connect: libpq ends each connection by itself, but not the questions on it."""
    # libpq tries one host after the other, each with this much time.
    hosts = (conn_params.parameters.get("host") or conn_params.parameters.get("hostaddr") or "").count(",") + 1
    each = conn_params.parameters.get("connect_timeout", "")
    return hosts * (int(each) if each.isdecimal() else CONNECT_SECONDS) + CONNECT_SECONDS
