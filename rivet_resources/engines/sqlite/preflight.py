"""How a SQLite file looks to exports: its library, its journal, who may read it.

Belongs here: asking and judging. There is no server: no connections, no line, no rights beyond the file's.
"""

from __future__ import annotations

import os
import sqlite3
from typing import TYPE_CHECKING

from rivet_resources.contracts.evidence import Finding

if TYPE_CHECKING:
    from rivet_resources.engines.sqlite.session import SqliteSession


def examine(session: SqliteSession) -> tuple[Finding, ...]:
    """Judge the file; nothing of it is read but its header."""
    return (
        Finding("version", "ok", f"SQLite {sqlite3.sqlite_version}, in this process"),
        _journal(session),
        _sidecars(session),
    )


def _journal(session: SqliteSession) -> Finding:
    if session.journal == "wal":
        return Finding("journal_mode", "ok", "wal: writers and readers do not wait for each other")
    text = f"{session.journal}: while a page is read, writers wait, and while one writes, we do"
    return Finding("journal_mode", "ok", f"{text} (`PRAGMA journal_mode = WAL` would end that)")


def _sidecars(session: SqliteSession) -> Finding:
    """A reader of a WAL file writes its shared index beside it, so the folder's rights matter."""
    folder = session.line.path.resolve().parent
    if session.journal == "wal" and not os.access(folder, os.W_OK):
        text = f"{folder} is read-only for this process, and a WAL file is read by way of a file beside it"
        return Finding("folder", "warn", text, f"chmod u+w '{folder}'")
    return Finding("folder", "ok", f"{folder} may be read")
