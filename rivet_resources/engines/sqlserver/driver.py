"""SQL Server's driver, whichever was chosen: connect, run a statement, take its rows as Arrow batches, end every wait.

Belongs here: what both drivers need alike: the client's own ends of waits, one number for one fault. Not here: the
libraries (drivers/), what is asked, and what a number means (errors.py).
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from rivet_resources.deadlines import (
    LEAST_MARGIN_SECONDS,
    Silent,
    deadline,
    forget,
    hang_up,
    keep_alive,
    opened_lines,
    patience_seconds,
)
from rivet_resources.engines.sqlserver.drivers import mssql_python, odbc
from rivet_resources.engines.sqlserver.drivers.contract import TIMEOUT_STATES, Driver, DriverFailed

# By the word of the YAML key `driver`.
DRIVERS: Mapping[str, Driver] = {"mssql-python": mssql_python, "odbc": odbc}

TIMED_OUT = -2
LOST = 10054
NO_ANSWER = 10060
# Below it, a broken line's number is the operating system's: 104 is a line that was reset, on Linux.
SERVERS_OWN = 1000
CLOSE_SECONDS = 10
BROKEN_STATES = frozenset({"08S01", "08003", "08007", "08001"})


class DriverRefused(Exception):
    """The driver or the server refused; `number` is the server's, −2 for the client's timeout, 10054 for a dead line.

    0 when nobody told.
    """

    def __init__(self, text: str, *, number: int = 0) -> None:
        super().__init__(text)
        self.number = number


@dataclass(eq=False)
class Connection:
    """One connection. Drivers hide their sockets, so copies are kept here; see `deadlines.py`."""

    driver: Driver
    own: Any  # the driver's
    lines: list[socket.socket] = field(repr=False)
    limit_seconds: int = 0  # of the statement that runs

    @property
    def version(self) -> str:
        """Return the driver's name and version, for people."""
        return self.driver.version(self.own)


@dataclass(eq=False)
class OpenStatement:
    """One batch that runs, with the answers it has."""

    connection: Connection
    own: Any

    @property
    def has_rows(self) -> bool:
        """Return whether the present answer could have rows."""
        return self.connection.driver.has_rows(self.own)


def load() -> Any:
    """Load the wheel; see drivers/mssql_python.py."""
    return mssql_python.load()


def load_odbc() -> Any:
    """Load pyodbc; see drivers/odbc.py."""
    return odbc.load()


def connect(text: str, *, driver: str = "mssql-python", port: int, seconds: int) -> Connection:
    """Open one autocommit connection from a connection string, which holds the password.

    Args:
        driver: a word of `DRIVERS`.

    Raises:
        Refused, ExtraMissing, LibraryMissing
    """
    chosen = DRIVERS[driver]
    chosen.load()
    with opened_lines({port}) as found:

        def end() -> None:
            lines = found()
            hang_up(lines)
            forget(lines)

        connection = Connection(chosen, _open(chosen, text, seconds, end), found())
        for line in connection.lines:
            keep_alive(line)
    return connection


def _open(driver: Driver, text: str, seconds: int, end: Callable[[], None]) -> Any:
    try:
        with deadline(seconds + LEAST_MARGIN_SECONDS, end):
            return driver.connect(text, seconds=seconds)
    except Silent as error:
        # A server that is silent is, for whoever asks again, a line that is lost.
        raise DriverRefused(str(error), number=LOST) from None
    except DriverFailed as error:
        refused = refusal(error)
        # Nothing was asked yet that could have run into a limit of statements.
        if refused.number == TIMED_OUT:
            refused.number = NO_ANSWER
        raise refused from None


def execute(connection: Connection, statement: str, *, timeout: int) -> OpenStatement:
    """Run one statement without parameters; gives the cursor, whose rows nobody has fetched.

    Raises:
        Refused
    """
    connection.limit_seconds = timeout
    with _within_time(connection):
        return OpenStatement(connection, connection.driver.execute(connection.own, statement, timeout=timeout))


def batches(cursor: OpenStatement, rows: int) -> Iterator[pa.RecordBatch]:
    """Take the rows of a statement, so many at a time; always at least one batch, for its schema.

    Raises:
        Refused: the line broke or the server gave up in mid-stream.
    """
    while True:
        batch = batch_of(cursor, rows)
        yield batch
        if batch.num_rows < rows:
            return


def batch_of(cursor: OpenStatement, rows: int) -> pa.RecordBatch:
    """Take the next batch; one of fewer rows is the last.

    Raises:
        Refused
    """
    with _within_time(cursor.connection):
        return cursor.connection.driver.batch(cursor.own, rows)


def rows_of(cursor: OpenStatement) -> list[tuple[Any, ...]]:
    """Take all rows as tuples of Python values; [] of a statement without rows."""
    if not cursor.has_rows:
        return []
    found = batches(cursor, 10_000)
    # By columns and not as dicts of rows: two columns may have one name, or none.
    return [row for batch in found for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)]


def has_next(cursor: OpenStatement) -> bool:
    """Go on to the next answer of a batch, if there is one.

    Raises:
        Refused
    """
    with _within_time(cursor.connection):
        return cursor.connection.driver.has_next(cursor.own)


def close(thing: Connection | OpenStatement | None) -> None:
    """Close a cursor or connection; a broken one cannot be closed in good order, and nobody needs it any more."""
    if thing is None:
        return
    connection = thing.connection if isinstance(thing, OpenStatement) else thing
    try:
        with deadline(CLOSE_SECONDS, partial(hang_up, connection.lines)):
            thing.own.close()
    except Exception:
        return
    finally:
        if thing is connection:
            # Of a connection only: its cursors end long before its sockets do.
            forget(connection.lines)
            connection.lines = []


@contextmanager
def _within_time(connection: Connection) -> Iterator[None]:
    """End what waits in the block when it takes longer than the driver's own timeout and a margin.

    The driver asks the server to stop when the timeout is over, and then waits for its answer without end.

    Raises:
        Refused: the block's fault, by its number.
    """
    try:
        with deadline(patience_seconds(connection.limit_seconds), partial(hang_up, connection.lines)):
            yield
    except Silent as error:
        raise DriverRefused(str(error), number=LOST) from None
    except DriverFailed as error:
        raise refusal(error) from None


def refusal(error: DriverFailed) -> DriverRefused:
    """Return the first record that names an error of the server, else what its SQLSTATE means."""
    # Records of 01xxx are messages, and 5701, 5703 say which database and language are now in use.
    for record in error.records:
        if record.number > 0 and not record.state.startswith("01"):
            is_lost = record.state in BROKEN_STATES and record.number < SERVERS_OWN
            return DriverRefused(record.text, number=LOST if is_lost else record.number)
    for record in error.records:
        if record.state in TIMEOUT_STATES:
            return DriverRefused(record.text, number=TIMED_OUT)
        if record.state in BROKEN_STATES:
            return DriverRefused(record.text, number=LOST)
    return DriverRefused(str(error))
