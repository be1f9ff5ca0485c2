"""Which columns an export had: the baseline of the drift gate, and its history.

Belongs here: the table `export_schema`. Not here: what a difference means (`run/drift.py` decides).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Column, Connection, Integer, Table, Text, delete, select

from rivet_resources.state.database import METADATA, Instant, insert, now

export_schema = Table(
    "export_schema",
    METADATA,
    Column("export_name", Text, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("columns", Text, nullable=False),
    Column("recorded_at", Instant, nullable=False),
)

Columns = list[tuple[str, str]]  # (name, Arrow type as text), in the order of the parts


@dataclass(frozen=True)
class SchemaRecord:
    """One version of an export's columns, 1 being the first."""

    export: str
    version: int
    columns: tuple[tuple[str, str], ...]
    recorded_at: datetime


def latest(connection: Connection, export: str) -> Columns | None:
    """Return the columns of the last committed run; None before the first."""
    versions = history(connection, export)
    return list(versions[-1].columns) if versions else None


def history(connection: Connection, export: str) -> list[SchemaRecord]:
    """Return all versions, oldest first."""
    query = select(export_schema).where(export_schema.c.export_name == export).order_by(export_schema.c.version)
    return [_record(row) for row in connection.execute(query)]


def save(connection: Connection, export: str, columns: Iterable[tuple[str, str]]) -> bool:
    """Store a new version if the columns, regardless of order, differ from the last; True if there was a last one."""
    new = [(str(name), str(kind)) for name, kind in columns]
    versions = history(connection, export)
    # Columns are matched by name everywhere, so another order is no change.
    if versions and sorted(versions[-1].columns) == sorted(new):
        return False
    values = {"export_name": export, "version": len(versions) + 1, "columns": json.dumps(new)}
    # Two windows that commit the first schema at once write the same; the second one may be ignored.
    first = insert(connection, export_schema).values(**values, recorded_at=now(connection))
    connection.execute(first.on_conflict_do_nothing())
    return bool(versions)


def forget(connection: Connection, export: str) -> None:
    """Drop the baseline and its history; the next run stores its own silently."""
    connection.execute(delete(export_schema).where(export_schema.c.export_name == export))


def _record(row) -> SchemaRecord:  # type: ignore[no-untyped-def]  # a row of export_schema
    columns = tuple((name, kind) for name, kind in json.loads(row.columns))
    return SchemaRecord(row.export_name, row.version, columns, row.recorded_at)
