"""Connections to PostgreSQL on which no wait is without end, whatever the server does: psycopg's and ADBC's.

Belongs here: opening them, and the deadline of each wait. Not here: parameters (source.py), pinned settings and
snapshots (session.py, reader.py), what a fault means (errors.py).

libpq has no read timeout, and the server's statement timeout dies with the server. psycopg waits in Python and shows
its socket; ADBC waits in C, hides it, and asks for types while it connects, so its socket is found among the process's
own.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rivet_resources.deadlines import (
    deadline,
    forget,
    hang_up,
    opened_lines,
)
from rivet_resources.psycopg_lines import CONNECT_SECONDS, watched

if TYPE_CHECKING:
    import psycopg

    from rivet_resources.engines.postgres.source import Line

DEFAULT_PORT = 5432
STARTUP_REFUSED = "startup parameter"  # what poolers say of options they do not know


def open_plain(line: Line) -> psycopg.Connection[Any]:
    """Open one autocommit connection of psycopg, without startup options where a pooler refuses them.

    Raises:
        psycopg.Error
    """
    import psycopg

    def opened(conninfo: str) -> psycopg.Connection[Any]:
        return watched().connect(conninfo, autocommit=True, prepare_threshold=None)

    try:
        connection = opened(line.conninfo())
    except psycopg.OperationalError as error:
        if STARTUP_REFUSED not in str(error):
            raise
        connection = opened(line.conninfo(options=False))
    connection.patience_seconds = line.patience_seconds  # type: ignore[attr-defined]  # of `Watched`
    return connection


@dataclass
class Arrow:
    """An ADBC connection, with copies of its socket."""

    raw: Any
    patience_seconds: float | None
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
            with deadline(CONNECT_SECONDS, lambda: hang_up(lines)):
                self.raw.close()
        except Exception:
            return
        finally:
            forget(lines)


def open_arrow(line: Line, *, patience_seconds: float | None, is_at_work: Callable[[], bool] | None = None) -> Arrow:
    """Open one autocommit connection of ADBC; see `open_plain`.

    Raises:
        Silent: the server took the connection and did not answer.
        Exception: whatever ADBC raises.
    """
    from adbc_driver_postgresql import dbapi

    with opened_lines(ports(line)) as found:

        def end() -> None:
            lines = found()
            hang_up(lines)
            forget(lines)

        with deadline(connect_seconds(line), end):
            try:
                raw = dbapi.connect(line.conninfo(), autocommit=True)
            except Exception as error:
                if STARTUP_REFUSED not in str(error):
                    raise
                raw = dbapi.connect(line.conninfo(options=False), autocommit=True)
        return Arrow(raw, patience_seconds, is_at_work, found())


def ports(line: Line) -> set[int]:
    """List the ports that libpq may connect to."""
    given = line.parameters.get("port") or os.environ.get("PGPORT") or ""
    return {int(word) for word in given.split(",") if word.isdecimal()} | {DEFAULT_PORT}


def connect_seconds(line: Line) -> float:
    """Return how long ADBC may take to connect: libpq ends each connection by itself, but not the questions on it."""
    hosts = (line.parameters.get("host") or line.parameters.get("hostaddr") or "").count(",") + 1
    each = line.parameters.get("connect_timeout", "")
    return hosts * (int(each) if each.isdecimal() else CONNECT_SECONDS) + CONNECT_SECONDS
