"""Microsoft's driver from PyPI (`driver: mssql-python`), as far as we use it.

Belongs here: everything that touches `mssql_python`. Not here: what is asked, and what a fault means (errors.py).

The driver comes whole (`mssql-python` with `mssql-python-odbc`) and loads its own library by path: no unixODBC and no
odbcinst.ini. It wants the Kerberos and libltdl libraries of the system (Debian: libgssapi-krb5-2, libltdl7), which
most images have. Its exceptions carry no error number, so the diagnostic records are read in the moment between the
fault and the driver's own clean-up (checked with 1.16.0, 2026-11-21; rejected: arrow-odbc, which needs the system's
unixODBC).
"""

from __future__ import annotations

import re
from importlib import metadata
from typing import Any

import pyarrow as pa

from rivet_resources import extras
from rivet_resources.engines.sqlserver.drivers.contract import DriverFailed, Record

NATIVE = re.compile(r"\[(\w{5})\] \((-?\d+)\)")


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


def connect(text: str, *, seconds: int) -> Any:
    """Open one autocommit connection; see the protocol."""
    driver = load()
    try:
        return driver.connect(text, autocommit=True, timeout=seconds)
    except driver.Error as error:
        raise DriverFailed(str(error)) from None
    except (RuntimeError, ImportError, OSError) as error:
        # The same exceptions mean a missing library of the system, for which there is a remedy, and a line that
        # broke.
        if "librar" in str(error).lower() or "load" in str(error).lower():
            raise extras.LibraryMissing(f"SQL Server's driver cannot be loaded: {error}.") from None
        raise DriverFailed(str(error)) from None


def version(connection: Any) -> str:
    """Return the wheel's version; the ODBC part in it is of the same release."""
    return f"mssql-python {metadata.version('mssql-python')}"


def execute(connection: Any, statement: str, *, timeout: int) -> Any:
    """Run one statement without parameters; see the protocol."""
    connection.timeout = timeout
    cursor = connection.cursor()
    records: list[Record] = []
    reset = cursor._reset_cursor

    def remember() -> None:
        if cursor.hstmt is not None:
            # Now or never: freeing the statement's handle frees its diagnostic records.
            records.extend(_records(cursor.hstmt))
        reset()

    # The driver calls it after a fault, and then the numbers are gone.
    cursor._reset_cursor = remember
    try:
        # The driver frees the handle ahead of each statement else, and this cursor has just begun.
        cursor.execute(statement, reset_cursor=False)
        return cursor
    except Exception as error:
        raise DriverFailed(str(error), records) from None
    finally:
        del cursor._reset_cursor


def has_rows(cursor: Any) -> bool:
    """Return whether the present answer could have rows."""
    return bool(cursor.description)


def batch(cursor: Any, rows: int) -> pa.RecordBatch:
    """Take the next rows as the driver's own Arrow batch."""
    try:
        return cursor.arrow_batch(rows)
    except Exception as error:
        raise DriverFailed(str(error), _records(cursor.hstmt)) from None


def has_next(cursor: Any) -> bool:
    """Go on to the next answer of a batch, if there is one."""
    try:
        return bool(cursor.nextset())
    except Exception as error:
        raise DriverFailed(str(error), _records(cursor.hstmt)) from None


def _records(statement_handle: Any) -> list[Record]:
    from mssql_python import ddbc_bindings  # driver

    try:
        found = list(vars(ddbc_bindings)["DDBCSQLGetAllDiagRecords"](statement_handle))
    except Exception:
        # The numbers are a refinement: texts decide without them.
        return []
    return [Record(match[1], int(match[2]), text) for head, text in found if (match := NATIVE.match(head))]
