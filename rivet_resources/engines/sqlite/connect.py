"""One connection to a SQLite file: which file, how it is opened, and when its statements end.

Belongs here: `ConnectionParams`, opening, the deadline of a statement. Not here: the YAML block (source.py), what is
asked on it (session.py, pages.py).
"""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote as percent

from rivet_resources.contracts.settings import Pace
from rivet_resources.engines.sqlite.errors import fault, missing

# Of SQLite's machine between two looks at the clock; well under a millisecond.
STEPS = 20_000
FOREVER_SECONDS = 86_400.0


@dataclass
class ConnectionParams:
    """Which file to open, and the limits of one connection's statements."""

    path: Path
    pace: Pace
    deadline: float = float("inf")

    def connect(self, *, mode: str = "ro") -> sqlite3.Connection:
        """Open a connection that gives text as bytearray, and whose statements end at the deadline.

        Raises:
            SourceMissing: there is no such file.
        """
        # Asked here, for SQLite says the same of a file that is missing as of one that may not be opened.
        if not self.path.is_file():
            raise missing(str(self.path), why="is a folder" if self.path.is_dir() else "is not there")
        try:
            connection = sqlite3.connect(
                f"file:{percent(str(self.path))}?mode={mode}",
                uri=True,
                # Transactions are begun by us alone: the driver's own BEGIN would come before a statement that
                # changes something.
                isolation_level=None,
                check_same_thread=False,
                # 0 means no limit to a user, and not to wait at all to SQLite.
                timeout=float(self.pace.lock_timeout_s) or FOREVER_SECONDS,
            )
        except sqlite3.Error as error:
            raise fault(error, doing="opening the database", path=str(self.path)) from None
        # Decoded by the driver, one text that is not UTF-8 would end the whole page.
        connection.text_factory = bytearray
        connection.set_progress_handler(self._is_late, STEPS)
        return connection

    def begin_statement(self) -> float:
        """Start the clock of one statement, or of one fetch from it; return the start."""
        # The handler looks at this deadline: SQLite has no limit of its own for a statement.
        started = time.monotonic()
        limit = self.pace.statement_timeout_s
        self.deadline = started + limit if limit else float("inf")
        return started

    def _is_late(self) -> int:
        return int(time.monotonic() > self.deadline)
