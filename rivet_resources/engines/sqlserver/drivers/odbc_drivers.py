"""The ODBC drivers of SQL Server that `driver: odbc` takes: their names, and the newest of a machine.

Belongs here: recognising one. Not here: its connection string (strings.py).

Others are refused by name: what they make of types, timeouts and certificates nobody here has looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

# Names in odbcinst.ini, or paths of the libraries. Source: Microsoft, "Installing the driver manager" and "Connection
# string keywords and data source names (DSNs)"; Debian, tdsodbc.
MICROSOFT = re.compile(r"(?i)ODBC Driver (\d+) for SQL Server|.*libmsodbcsql-(\d+)\.[\w.]*")
FREETDS = re.compile(r"(?i)FreeTDS|.*libtdsodbc\.so[\w.]*")


@dataclass(frozen=True)
class OdbcDriver:
    """One ODBC driver: its name for the driver manager, whose it is, and Microsoft's major version (0 of others)."""

    name: str
    kind: Literal["microsoft", "freetds"]
    major: int = 0


def named(name: str) -> OdbcDriver:
    """Return the driver of a name or path.

    Raises:
        ValueError: it is neither Microsoft's nor FreeTDS; the message says which names are taken.
    """
    if match := MICROSOFT.fullmatch(name):
        return OdbcDriver(name, "microsoft", int(match[1] or match[2]))
    if FREETDS.fullmatch(name):
        return OdbcDriver(name, "freetds")
    raise ValueError(
        f"'{name}' is no ODBC driver that Rivet knows; it takes 'ODBC Driver 18 for SQL Server' (or 17), FreeTDS, or "
        f"the path of either's library"
    )


def newest(installed: Iterable[str]) -> OdbcDriver | None:
    """Return Microsoft's newest driver among the installed ones; FreeTDS is taken where it was asked for only."""
    found = [named(name) for name in installed if MICROSOFT.fullmatch(name)]
    return max(found, key=lambda driver: driver.major, default=None)
