"""How a SQLite file looks to exports: its library, its journal, who may read it.

Belongs here: asking and judging. There is no server: no connections, no line, no rights beyond the file's.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from rivet_resources.contracts.evidence import Finding


def examine(file: Path, *, journal: str) -> tuple[Finding, ...]:
    """Judge the file by its journal mode and the rights of its folder."""
    return (
        Finding("version", "ok", f"SQLite {sqlite3.sqlite_version}, in this process"),
        _journal(journal),
        _sidecars(file, journal),
    )


def _journal(journal: str) -> Finding:
    if journal == "wal":
        return Finding("journal_mode", "ok", "wal: writers and readers do not wait for each other")
    text = f"{journal}: while a page is read, writers wait, and while one writes, we do"
    return Finding("journal_mode", "ok", f"{text} (`PRAGMA journal_mode = WAL` would end that)")


def _sidecars(file: Path, journal: str) -> Finding:
    """A reader of a WAL file writes its shared index beside it, so the folder's rights matter."""
    folder = file.resolve().parent
    if journal == "wal" and not os.access(folder, os.W_OK):
        text = f"{folder} is read-only for this process, and a WAL file is read by way of a file beside it"
        return Finding("folder", "warn", text, f"chmod u+w '{folder}'")
    return Finding("folder", "ok", f"{folder} may be read")
