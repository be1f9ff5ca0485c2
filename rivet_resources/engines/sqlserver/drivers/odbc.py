"""`pyodbc` with an ODBC driver of this machine (`driver: odbc`), as far as we use it.

Belongs here: everything that touches `pyodbc`: records in its messages, rows as Arrow. Not here: which ODBC drivers
there are and what each one can (odbc_drivers.py, strings.py), what a fault means (errors.py).

Its rows come as Python objects, one SQLGetData a cell, so it is slower than the wheel. Times are cut to microseconds
by it as by the wheel, so the seventh digit is asked of the server (columns.py). Source: pyodbc 5, `getdata.cpp`,
`errors.cpp`; read and, with FreeTDS, run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time
from decimal import Decimal
from importlib import metadata
from typing import Any

import pyarrow as pa

from rivet_resources import extras
from rivet_resources.engines.sqlserver.drivers.contract import TIMEOUT_STATES, DriverFailed, Record

# How pyodbc writes the records of one fault into one text; the function's name ends the first.
RECORD = re.compile(r"\[(\w{5})\] (.*?) \((-?\d+)\)(?: \(SQL\w+\))?(?=; \[\w{5}\] |$)", re.DOTALL)
# FreeTDS numbers its own faults like DB-Library, and gives some of them the SQLSTATE of a message; the server's numbers
# of replication there no reader meets. Source: FreeTDS, `include/freetds/tds.h`, TDSE…: reading, writing, end of file,
# bad token, dead process.
FREETDS_OWN = range(20000, 21000)
FREETDS_LOST = frozenset({20004, 20006, 20017, 20020, 20047})
# The driver manager has no such driver, or cannot load it. Source: ODBC, "Appendix A: ODBC Error Codes"; unixODBC.
NOT_THERE = frozenset({"IM002", "IM003"})
CANNOT_LOAD = ("can't open lib", "cannot open lib")

PROBE_SECONDS = 5

# Python's type of a column, by which pyodbc describes it → Arrow's. Decimals need their digits: `_arrow_type`.
ARROW: Mapping[type, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.large_string(),
    bytes: pa.large_binary(),
    bytearray: pa.large_binary(),
    datetime: pa.timestamp("us"),
    date: pa.date32(),
    time: pa.time64("us"),
}


def load() -> Any:
    """Import pyodbc with its pool switched off: a pooled connection would keep a session's settings.

    Raises:
        ExtraMissing: it is not installed.
        LibraryMissing: unixODBC is not there.
    """
    extras.SQLSERVER_ODBC.require()
    try:
        import pyodbc  # driver
    except (ImportError, OSError) as error:
        raise extras.LibraryMissing(
            f"pyodbc cannot be loaded: {error}. It needs unixODBC, on Debian `{extras.SQLSERVER_ODBC.libraries}`."
        ) from None
    pyodbc.pooling = False
    # A uniqueidentifier comes as text, as from the wheel.
    pyodbc.native_uuid = False
    return pyodbc


def installed() -> tuple[str, ...]:
    """Return the names of the ODBC drivers of this machine, as its odbcinst.ini has them.

    Raises:
        ExtraMissing, LibraryMissing
    """
    return tuple(load().drivers())


def connect(text: str, *, seconds: int) -> Any:
    """Open one autocommit connection; see the protocol."""
    driver = load()
    try:
        connection = driver.connect(text, autocommit=True, timeout=seconds)
    except Exception as error:
        failed = _failed(error)
        if any(_is_missing(record) for record in failed.records):
            named = ", ".join(installed()) or "none"
            raise extras.LibraryMissing(
                f"The ODBC driver cannot be loaded; this machine has: {named}. Fix `odbc_driver` of the source, or "
                f"install the driver, on Debian FreeTDS by `{extras.SQLSERVER_ODBC.libraries}`."
            ) from None
        raise failed from None
    # Texts of one byte a letter too are asked for as UTF-16, whatever character set the driver takes for ours.
    connection.setdecoding(driver.SQL_CHAR, encoding="utf-16le", ctype=driver.SQL_WCHAR)
    connection.setdecoding(driver.SQL_WCHAR, encoding="utf-16le", ctype=driver.SQL_WCHAR)
    return connection


def _is_missing(record: Record) -> bool:
    return record.state in NOT_THERE or any(words in record.text.lower() for words in CANNOT_LOAD)


def version(connection: Any) -> str:
    """Return the ODBC driver's file with its version, and pyodbc's."""
    driver = load()
    name, number = (connection.getinfo(asked) for asked in (driver.SQL_DRIVER_NAME, driver.SQL_DRIVER_VER))
    return f"{name} {number}, by pyodbc {metadata.version('pyodbc')}"


def execute(connection: Any, statement: str, *, timeout: int) -> Any:
    """Run a batch without parameters; see the protocol."""
    cursor = None
    try:
        connection.timeout = timeout
        cursor = connection.cursor()
        # ODBC has escapes of its own in braces; T-SQL goes to the server as it is.
        cursor.noscan = True
        cursor.execute(statement)
        return cursor
    except Exception as error:
        raise _given_up(connection, cursor, error) from None


def has_rows(cursor: Any) -> bool:
    """Return whether the present answer could have rows."""
    return cursor.description is not None


def batch(cursor: Any, rows: int) -> pa.RecordBatch:
    """Take the next rows, typed by the answer's description and never by their values."""
    try:
        found = cursor.fetchmany(rows)
        types = [_arrow_type(column) for column in cursor.description]
        columns: Sequence[Sequence[Any]] = list(zip(*found, strict=True)) if found else [()] * len(types)
        arrays = [pa.array(cells, kind) for cells, kind in zip(columns, types, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, names=[str(column[0]) for column in cursor.description])
    except UnicodeDecodeError:
        # Without the error's own text, which shows bytes of the cell.
        raise DriverFailed(
            "a text holds half of a UTF-16 pair, which is no letter; export the column by CONVERT(varbinary(max), …) "
            "in a query"
        ) from None
    except pa.ArrowException as error:
        told = type(error).__name__  # its text shows the cell
        raise DriverFailed(f"a cell does not fit the type by which the driver describes its column ({told})") from None
    except Exception as error:
        raise _given_up(cursor.connection, cursor, error) from None


def _arrow_type(column: Sequence[Any]) -> pa.DataType:
    """Return Arrow's type of one column of a description: name, type, …, digits, digits behind the point, …."""
    _, kind, _, _, digits, scale, _ = column
    if kind is Decimal:
        return pa.decimal128(digits, scale)
    if kind not in ARROW:
        raise DriverFailed(f"the driver describes a column as {getattr(kind, '__name__', kind)}, which is not expected")
    return ARROW[kind]


def has_next(cursor: Any) -> bool:
    """Go on to the next answer of a batch, if there is one."""
    try:
        return bool(cursor.nextset())
    except Exception as error:
        raise _given_up(cursor.connection, cursor, error) from None


def _given_up(connection: Any, cursor: Any, error: Exception) -> DriverFailed:
    """Close the cursor of a statement that failed, and return its fault.

    FreeTDS tells that the time is over without waiting for the server's word that it stopped, so a server that fell
    silent looks like one that works too long; the first is asked something short, and answers nothing again.
    """
    failed = _failed(error)
    # What the server still sends is thrown away, else the connection stays busy.
    with suppress(Exception):
        if cursor is not None:
            cursor.close()
    if not any(record.state in TIMEOUT_STATES for record in failed.records):
        return failed
    try:
        connection.timeout = PROBE_SECONDS
        connection.cursor().execute("SELECT 1 AS n").fetchall()
    except Exception:
        text = "the server did not say that it stopped a statement whose time was over"
        return DriverFailed(text, [Record("08S01", 0, text)])
    return failed


def _failed(error: Exception) -> DriverFailed:
    """Return a fault with the records that pyodbc wrote into its text."""
    if isinstance(error, DriverFailed):
        return error
    text = str(error.args[-1]) if error.args else str(error)
    return DriverFailed(text, [_record(*found) for found in RECORD.findall(text)])


def _record(state: str, text: str, number: str) -> Record:
    """Return one record; a number of FreeTDS's own is none of the server's."""
    if "[FreeTDS]" not in text or int(number) not in FREETDS_OWN:
        return Record(state, int(number), text)
    return Record("08S01" if int(number) in FREETDS_LOST else state, 0, text)
