"""The log of published files: which run wrote which part, when, with how many rows and bytes.

Belongs here: the table `file_manifest`. Not here: which files are current; only the manifests say that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from sqlalchemy import BigInteger, Column, ColumnElement, Connection, Table, Text, delete, func, select

from rivet_resources.state.database import METADATA, Instant, now

file_manifest = Table(
    "file_manifest",
    METADATA,
    Column("export_name", Text, primary_key=True),
    Column("window_key", Text, nullable=False),
    Column("run_id", Text, primary_key=True),
    Column("file_name", Text, primary_key=True),
    Column("row_count", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("format", Text, nullable=False),
    Column("compression", Text, nullable=False),
    Column("content_md5", Text, nullable=False),
    Column("created_at", Instant, nullable=False),
)


class Published(Protocol):
    """What the log asks of a part: `extract.Part` has it, and so has a part of a manifest."""

    @property
    def path(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...


@dataclass(frozen=True)
class CommitOrigin:
    """What all files of one commit share; `created_at` None: now."""

    export: str
    window: str
    run_id: str
    format: str
    compression: str
    created_at: datetime | None = None


@dataclass(frozen=True)
class FileRecord:
    """One published file; `file_name` is relative to the export's folder."""

    export: str
    window: str
    run_id: str
    file_name: str
    row_count: int
    bytes: int
    format: str
    compression: str
    content_md5: str
    created_at: datetime


def record(connection: Connection, parts: Iterable[Published], *, origin: CommitOrigin) -> None:
    """Log the files of one commit, over what the same run logged of this window before: publishing twice logs once."""
    same = (
        file_manifest.c.export_name == origin.export,
        file_manifest.c.run_id == origin.run_id,
        file_manifest.c.window_key == origin.window,
    )
    # Delete and insert, not upsert: a second publish of the run may have other parts, and the first ones' rows must go.
    connection.execute(delete(file_manifest).where(*same))
    # Of a rebuild the commit's own time; else the store's, since machines of several runs have clocks of their own.
    at = origin.created_at or now(connection)
    rows = [_row(part, origin, at) for part in parts]
    # An empty list would insert one row of defaults.
    if rows:
        connection.execute(file_manifest.insert(), rows)


def latest(connection: Connection, chosen: ColumnElement[bool], last: int) -> list[FileRecord]:
    """Return the newest `last` files of the rows that are chosen, newest first."""
    query = (
        select(file_manifest).order_by(file_manifest.c.created_at.desc(), file_manifest.c.file_name.desc()).limit(last)
    )
    return [_record(row._mapping) for row in connection.execute(query.where(chosen))]


def count(connection: Connection, export: str) -> int:
    """Count the files ever logged for an export."""
    query = select(func.count()).select_from(file_manifest).where(file_manifest.c.export_name == export)
    return int(connection.execute(query).scalar_one())


def is_known(connection: Connection, export: str, run_id: str, window: str) -> bool:
    """Return whether files of this commit are logged."""
    same = (
        file_manifest.c.export_name == export,
        file_manifest.c.run_id == run_id,
        file_manifest.c.window_key == window,
    )
    return connection.execute(select(func.count()).select_from(file_manifest).where(*same)).scalar_one() > 0


def forget(connection: Connection, export: str) -> None:
    """Drop an export's log."""
    connection.execute(delete(file_manifest).where(file_manifest.c.export_name == export))


def _row(part: Published, origin: CommitOrigin, at: datetime) -> dict[str, object]:
    return {
        "export_name": origin.export,
        "window_key": origin.window,
        "run_id": origin.run_id,
        "file_name": part.path,
        "row_count": part.rows,
        "bytes": part.size_bytes,
        "format": origin.format,
        "compression": origin.compression,
        # A staged part calls it `md5`, a manifest's part `content_md5` (`contract.md`, 12.1).
        "content_md5": str(getattr(part, "md5", "") or getattr(part, "content_md5", "")),
        "created_at": at,
    }


def _record(row) -> FileRecord:  # type: ignore[no-untyped-def]  # a row mapping of file_manifest
    values = dict(row)
    return FileRecord(export=values.pop("export_name"), window=values.pop("window_key"), **values)
