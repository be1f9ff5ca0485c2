"""What a SQLite fault means to us: which class, whether to ask again, and words that are safe to show.

Belongs here: the table of result codes, and the cleaning of messages. Not here: asking again (retry.py,
reader.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rivet_resources.engines.shared import faults
from rivet_resources.errors import (
    RivetError,
    SourceError,
    SourceLost,
    SourceMissing,
    SourcePermission,
    UnknownTable,
)

# Primary result codes that may pass: BUSY, LOCKED, IOERR (a network drive that hiccups), PROTOCOL.
# Source: sqlite.org/rescode.html.
PASSING = frozenset({5, 6, 10, 15})
PERMISSION, READ_ONLY, INTERRUPTED, CORRUPT, CANNOT_OPEN, SCHEMA, AUTHORISATION, NOT_A_DATABASE = (
    3, 8, 9, 11, 14, 17, 23, 26,
)  # fmt: skip
CHANGED = ("no such table", "no such column", "database schema has changed")


def code_of(error: BaseException) -> int:
    """Return the primary result code; 0 when the driver gives none."""
    # Extended codes, such as IOERR_READ, have the primary one in their low byte.
    return int(getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def clean(text: object) -> str:
    """Make a message safe to show: no quoted value of a statement, no control bytes, one line."""
    words = re.sub(r"(near|token:) [\"']+'.*", r"\1 …", str(text), flags=re.DOTALL)
    words = re.sub(r"with text '.*", "…", words, flags=re.DOTALL)
    return faults.one_line(words)


def fault(error: BaseException, *, doing: str, path: str) -> RivetError:
    """Turn a driver's error into ours. `doing` says what was asked, in words: `reading the next rows of orders`.

    SourceLost when the same may succeed later; everything unknown is permanent.
    """
    code, said = code_of(error), f"SQLite said: {clean(error)}"
    if code in PASSING:
        return SourceLost(f"While {doing}: {said}. Another program holds {path}; it may be free later, run again.")
    # The only one who interrupts is our own deadline (connect.py).
    if code == INTERRUPTED:
        return faults.timed_out(doing, owner="table")
    if code in (CORRUPT, NOT_A_DATABASE):
        return SourceError(
            f"While {doing}: {path} is not a SQLite database, is encrypted, or is damaged ({clean(error)}). "
            f"Check the path, and run PRAGMA integrity_check on it."
        )
    if code in (PERMISSION, READ_ONLY, CANNOT_OPEN, AUTHORISATION):
        return SourcePermission(
            f"While {doing}: {said}. This user needs to read {path}, and for a database in WAL mode to write its "
            f"-wal and -shm files beside it."
        )
    return faults.for_good(doing, said)


def change_of_relation(error: RivetError, cause: BaseException, *, relation: str) -> RivetError:
    """Return that the relation changed under the reader, when the message means that; else the error itself."""
    if code_of(cause) != SCHEMA and not any(piece in str(cause) for piece in CHANGED):
        return error
    return faults.relation_changed(relation)


def missing(path: str, *, why: str) -> SourceMissing:
    """Return the error that there is no such file; Rivet never creates one."""
    return SourceMissing(f"SQLite file {path} {why}. Fix `path` of the source; Rivet never creates a database.")


def unknown_table(name: str, *, known: Sequence[str]) -> UnknownTable:
    """Return the error that a table is not there, and which are."""
    has = f"It has {', '.join(known)}." if known else "It has none."
    return UnknownTable(f"The source has no table or view {name}. Fix `table` of the export. {has}")
