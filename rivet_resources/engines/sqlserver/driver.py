"""Microsoft's driver for SQL Server, as far as we use it: connect, run a statement, take its rows as Arrow batches.

Belongs here: everything that touches `mssql_python`. Not here: what is asked, and what a fault means
(errors.py).

The driver comes whole from PyPI (`mssql-python` with `mssql-python-odbc`) and loads its own library by path: no
unixODBC and no odbcinst.ini. It wants the Kerberos and libltdl libraries of the system (Debian: libgssapi-krb5-2,
libltdl7), which most images have. Its exceptions carry no error number, so the diagnostic records are read in
the moment between the fault and the driver's own clean-up (checked with 1.16.0, 2026-11-21; rejected: arrow-odbc,
which needs the system's unixODBC).
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa

from rivet_resources import extras
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

NATIVE = re.compile(r"\[(\w{5})\] \((-?\d+)\)")
TIMEOUT_STATES = frozenset({"HYT00"})
LOST = 10054
CLOSE_SECONDS = 10
BROKEN_STATES = frozenset({"08S01", "08003", "08007", "08001"})

# The driver hides its sockets; see `deadlines.py`.
_lines: WeakKeyDictionary[Any, list[socket.socket]] = WeakKeyDictionary()


class DriverRefused(Exception):
    """The driver or the server refused; `number` is the server's, −2 for the client's timeout, 10054 for a dead line.

    0 when nobody told.
    """

    def __init__(self, text: str, *, number: int = 0) -> None:
        super().__init__(text)
        self.number = number


def load() -> Any:
    """Import the driver with its pool switched off: a pooled connection would keep a session's settings.

    Raises:
        ExtraMissing: the driver is not installed.
        LibraryMissing: names the missing library.
    """
    extras.SQLSERVER.require()
    try:
        import mssql_python  # driver
    except (ImportError, OSError) as error:
        raise extras.LibraryMissing(
            f"SQL Server's driver cannot be loaded: {error}. It needs two libraries of the system, on Debian "
            f"`{extras.SQLSERVER.libraries}`."
        ) from None
    mssql_python.pooling(enabled=False)
    return mssql_python


def connect(text: str, *, port: int, seconds: int) -> Any:
    """Open one autocommit connection from a connection string, which holds the password.

    Raises:
        Refused, LibraryMissing
    """
    driver = load()
    with opened_lines({port}) as found:

        def end() -> None:
            lines = found()
            hang_up(lines)
            forget(lines)

        connection = _connect(driver, text, seconds, end)
        _lines[connection] = found()
        for line in _lines[connection]:
            keep_alive(line)
    return connection


def _connect(driver: Any, text: str, seconds: int, end: Callable[[], None]) -> Any:
    try:
        with deadline(seconds + LEAST_MARGIN_SECONDS, end):
            return driver.connect(text, autocommit=True, timeout=seconds)
    except Silent as error:
        # A server that is silent is, for whoever asks again, a line that is lost.
        raise DriverRefused(str(error), number=LOST) from None
    except driver.Error as error:
        raise DriverRefused(str(error)) from None
    except (RuntimeError, ImportError, OSError) as error:
        # The same exceptions mean a missing library of the system, for which there is a remedy, and a line that
        # broke.
        if "librar" in str(error).lower() or "load" in str(error).lower():
            raise extras.LibraryMissing(f"SQL Server's driver cannot be loaded: {error}.") from None
        raise DriverRefused(str(error)) from None


def execute(connection: Any, statement: str, *, timeout: int) -> Any:
    """Run one statement without parameters; gives the cursor, whose rows nobody has fetched.

    Raises:
        Refused
    """
    connection.timeout = timeout
    cursor = connection.cursor()
    records: list[tuple[str, str]] = []
    reset = cursor._reset_cursor

    def remember() -> None:
        if cursor.hstmt is not None:
            # Now or never: freeing the statement's handle frees its diagnostic records.
            records.extend(_records(cursor.hstmt))
        reset()

    # The driver calls it after a fault, and then the numbers are gone.
    cursor._reset_cursor = remember
    try:
        with _within_time(connection):
            # The driver frees the handle ahead of each statement else, and this cursor has just begun.
            cursor.execute(statement, reset_cursor=False)
        return cursor
    except Exception as error:
        raise _refusal(error, records) from None
    finally:
        del cursor._reset_cursor


def batches(cursor: Any, rows: int) -> Iterator[pa.RecordBatch]:
    """Take the rows of a statement, so many at a time; always at least one batch, for its schema.

    Raises:
        Refused: the line broke or the server gave up in mid-stream.
    """
    while True:
        batch = batch_of(cursor, rows)
        yield batch
        if batch.num_rows < rows:
            return


def batch_of(cursor: Any, rows: int) -> pa.RecordBatch:
    """Take the next batch; one of fewer rows is the last.

    Raises:
        Refused
    """
    try:
        with _within_time(cursor.connection):
            return cursor.arrow_batch(rows)
    except Exception as error:
        raise _refusal(error, _records(cursor.hstmt)) from None


def rows_of(cursor: Any) -> list[tuple[Any, ...]]:
    """Take all rows as tuples of Python values; [] of a statement without rows."""
    if not cursor.description:
        return []
    return [tuple(row.values()) for batch in batches(cursor, 10_000) for row in batch.to_pylist()]


def has_next(cursor: Any) -> bool:
    """Go on to the next answer of a batch, if there is one.

    Raises:
        Refused
    """
    try:
        with _within_time(cursor.connection):
            return bool(cursor.nextset())
    except Exception as error:
        raise _refusal(error, _records(cursor.hstmt)) from None


def close(thing: Any) -> None:
    """Close a cursor or connection; a broken one cannot be closed in good order, and nobody needs it any more."""
    if thing is None:
        return
    lines = _lines.get(getattr(thing, "connection", thing), [])
    try:
        with deadline(CLOSE_SECONDS, partial(hang_up, lines)):
            thing.close()
    except Exception:
        return
    finally:
        if not hasattr(thing, "connection"):
            # Of a connection only: its cursors end long before its sockets do.
            forget(_lines.pop(thing, []))


def _within_time(connection: Any) -> AbstractContextManager[None]:
    """End what waits in the block when it takes longer than the driver's own timeout and a margin.

    The driver asks the server to stop when the timeout is over, and then waits for its answer without end.
    """
    return deadline(patience_seconds(connection.timeout), partial(hang_up, _lines.get(connection, [])))


def _records(statement_handle: Any) -> list[tuple[str, str]]:
    from mssql_python import ddbc_bindings  # driver

    try:
        return list(vars(ddbc_bindings)["DDBCSQLGetAllDiagRecords"](statement_handle))
    except Exception:
        # The numbers are a refinement: texts decide without them.
        return []


def _refusal(error: Exception, records: list[tuple[str, str]]) -> DriverRefused:
    """Return the first record that names an error of the server, else what its SQLSTATE means."""
    if isinstance(error, Silent):
        return DriverRefused(str(error), number=LOST)
    found = [(match[1], int(match[2]), text) for head, text in records if (match := NATIVE.match(head))]
    # Records of 01xxx are messages, and 5701, 5703 say which database and language are now in use.
    for state, number, text in found:
        if number > 0 and not state.startswith("01"):
            return DriverRefused(text, number=LOST if state in BROKEN_STATES and number < 50 else number)
    for state, _, text in found:
        if state in TIMEOUT_STATES:
            return DriverRefused(text, number=-2)
        if state in BROKEN_STATES:
            return DriverRefused(text, number=LOST)
    return DriverRefused(str(error))
