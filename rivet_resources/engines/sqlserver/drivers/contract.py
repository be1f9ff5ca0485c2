"""What each driver of SQL Server offers to `driver.py`, and how it says what went wrong.

Belongs here: the protocol, diagnostic records. Not here: what a number means (errors.py), when a wait is too long
(driver.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

# The client's own limit is over. Source: ODBC, "Appendix A: ODBC Error Codes".
TIMEOUT_STATES = frozenset({"HYT00", "HYT01"})


@dataclass(frozen=True)
class Record:
    """One diagnostic record of ODBC: SQLSTATE, the server's number (0 or less: the client's own), text."""

    state: str
    number: int
    text: str


class DriverFailed(Exception):
    """A driver's call failed; `records` in the driver's order, () where it told none."""

    def __init__(self, text: str, records: Sequence[Record] = ()) -> None:
        super().__init__(text)
        self.records = tuple(records)


class Driver(Protocol):
    """One driver. Whatever a call raises is a `DriverFailed`; connections and cursors are the driver's own."""

    def load(self) -> Any:
        """Import it, its pool of connections switched off.

        Raises:
            ExtraMissing, LibraryMissing
        """

    def connect(self, text: str, *, seconds: int) -> Any:
        """Open one autocommit connection.

        Raises:
            LibraryMissing: what it needs of the system is not there.
        """

    def version(self, connection: Any) -> str:
        """Return its name and version, for people."""

    def execute(self, connection: Any, statement: str, *, timeout: int) -> Any:
        """Run a batch without parameters, in so many seconds (0: no limit); its cursor, whose rows nobody has taken."""

    def has_rows(self, cursor: Any) -> bool:
        """Return whether the present answer could have rows."""

    def batch(self, cursor: Any, rows: int) -> pa.RecordBatch:
        """Take the next rows; fewer than asked are the last."""

    def has_next(self, cursor: Any) -> bool:
        """Go on to the next answer of a batch, if there is one."""
