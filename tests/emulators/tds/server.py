"""SQL Server for tests: an emulator on this machine, or the real one that RIVET_TEST_SQLSERVER_URL names.

Belongs here: serving, databases, statements, faults. Not here: how the emulator works (protocol.py).
A test that asks for faults runs on the emulator only; everything else runs on both.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from rivet_resources.engines.sqlserver import driver
from rivet_resources.engines.sqlserver.drivers import odbc
from rivet_resources.engines.sqlserver.drivers.strings import escape

REAL = "RIVET_TEST_SQLSERVER_URL"
PASSWORD = "Emulated-1"
_numbers = itertools.count(1)


def is_emulated() -> bool:
    """Return whether the tests run on the emulator."""
    return not os.environ.get(REAL)


def missing() -> str:
    """Return which library the driver lacks, '' when it loads."""
    try:
        driver.load()
        from mssql_python import ddbc_bindings  # noqa: F401, the import is the proof
    except Exception as error:
        return f"SQL Server's driver does not load: {error}"
    return ""


@contextmanager
def serve() -> Iterator[str]:
    """Serve an emulated SQL Server in a process of its own, or give the real one; its URL, database `app`."""
    if not is_emulated():
        yield os.environ[REAL]
        return
    with emulate() as url:
        yield url


@contextmanager
def emulate(*certificate: str, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """Serve the emulator; with the files of a certificate and its key it protects its lines.

    Args:
        environment: more variables, such as those that lead to a keytab.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.emulators.tds.protocol", *certificate],
        cwd=Path(__file__).parents[3],
        env={**os.environ, **(environment or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        port = int(process.stdout.readline())
        yield f"mssql://sa:{PASSWORD}@127.0.0.1:{port}/app"
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(timeout=20)


# --- the second driver ---------------------------------------------------------------------------


def missing_odbc() -> str:
    """Return what `driver: odbc` with FreeTDS lacks, '' when it is there."""
    try:
        names = odbc.installed()
    except Exception as error:
        return f"pyodbc does not load: {error}"
    return "" if "FreeTDS" in names else "no ODBC driver FreeTDS: apt-get install unixodbc tdsodbc"


# --- statements ----------------------------------------------------------------------------------


@contextmanager
def connect(url: str) -> Iterator[Callable[[str], list[tuple[Any, ...]]]]:
    """Connect through Microsoft's driver; gives what runs one statement, committed by itself, and its rows."""
    parts = urlsplit(url)
    text = {
        "Server": f"tcp:{parts.hostname},{parts.port or 1433}",
        "Database": parts.path.removeprefix("/"),
        "UID": unquote(parts.username or ""),
        "PWD": unquote(parts.password or ""),
        "Encrypt": "no",
        "TrustServerCertificate": "yes",
    }
    connection = driver.connect(
        ";".join(f"{key}={escape(value)}" for key, value in text.items()), port=parts.port or 1433, seconds=15
    )

    def execute(statement: str) -> list[tuple[Any, ...]]:
        cursor = driver.execute(connection, statement, timeout=60)
        try:
            return driver.rows_of(cursor)
        finally:
            driver.close(cursor)

    try:
        yield execute
    finally:
        driver.close(connection)


def execute(url: str, *statements: str) -> None:
    """Run statements in order, each committed by itself."""
    with connect(url) as run:
        for statement in statements:
            run(statement)


@dataclass(frozen=True)
class Open:
    """A transaction that stays open until it is told to commit."""

    execute: Callable[[str], None]
    commit: Callable[[], None]


@contextmanager
def writer(url: str) -> Iterator[Open]:
    """Hold a transaction open; it is rolled back unless it was committed."""
    with connect(url) as run:
        run("BEGIN TRANSACTION")
        yield Open(lambda statement: run(statement) and None, lambda: run("COMMIT TRANSACTION") and None)
        run("IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION")


# --- databases -----------------------------------------------------------------------------------


def create_database(url: str, *, snapshot: bool = True) -> str:
    """Make an empty database beside the one in `url`; its URL."""
    name = f"test_{os.getpid()}_{next(_numbers)}"
    state = "ON" if snapshot else "OFF"
    execute(url, f"CREATE DATABASE [{name}]", f"ALTER DATABASE [{name}] SET ALLOW_SNAPSHOT_ISOLATION {state}")
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def drop_database(server_url: str, url: str) -> None:
    """Remove a database, ending whoever is still connected."""
    name = urlsplit(url).path.removeprefix("/")
    ending = [] if is_emulated() else [f"ALTER DATABASE [{name}] SET SINGLE_USER WITH ROLLBACK IMMEDIATE"]
    execute(server_url, *ending, f"DROP DATABASE IF EXISTS [{name}]")


def as_reader(url: str) -> str:
    """Return the URL of the emulator's login `reader`, who may neither see open transactions nor read secrets."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"reader:Reading-1@{parts.hostname}:{parts.port}"))


# --- faults, on the emulator ---------------------------------------------------------------------


def fault(url: str, *, match: str, **demand: Any) -> None:
    """Make the next statement that matches fail.

    Args:
        match: a regular expression; a log-in reads as `LOGIN user`.
        demand: number and text of an error, cut_after_rows, delay_seconds; skip so many first, strike so many times.
    """
    _tell(url, {"fault": {"match": match, **demand}})


def forget(url: str) -> None:
    """Forget the faults that wait, and the statements seen."""
    _tell(url, {"forget": True})


def seen(url: str) -> list[str]:
    """Return the batches that clients have sent."""
    return list(_tell(url, {"seen": True})["seen"])


def set_capture(url: str, **switches: Any) -> None:
    """Set switches of a database's change capture; `Capturing` in cdc.py has them."""
    _tell(url, {"cdc": {"database": urlsplit(url).path.removeprefix("/"), "set": switches}})


def _tell(url: str, command: dict[str, Any]) -> dict[str, Any]:
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname or "", parts.port or 0)) as line:
        line.sendall(json.dumps(command).encode() + b"\n")
        answer: dict[str, Any] = json.loads(line.makefile().readline())
        return answer
