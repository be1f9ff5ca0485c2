"""The journal of runs: what happened, in order, for `rivet journal` and for whoever asks why a run was slow.

Belongs here: the table `run_journal`. Not here: when something is worth an entry (`rivet_assets/run/attempt.py`,
`read/governor.py`). No entry holds a row value or a secret; losing them costs history, never a row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, Integer, Table, Text, func, insert, select

from rivet_resources.state.database import METADATA, Instant, now

run_journal = Table(
    "run_journal",
    METADATA,
    Column("run_id", Text, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("export_name", Text, nullable=False),
    Column("at", Instant, nullable=False),
    Column("event", Text, nullable=False),
    Column("detail", Text, nullable=False),
)


@dataclass(frozen=True)
class JournalEntry:
    """One event of a run; `event` is a name of `contract.md` 12.3, such as RetryAttempted; `number` counts from 1."""

    run_id: str
    number: int
    export: str
    at: datetime
    event: str
    detail: Mapping[str, Any]


def write(connection: Connection, run_id: str, export: str, event: str, detail: Mapping[str, Any]) -> None:
    """Add one event to a run, stamped by the store's clock."""
    write_all(connection, run_id, export, [(now(connection), event, detail)])


def write_all(
    connection: Connection, run_id: str, export: str, events: Sequence[tuple[datetime, str, Mapping[str, Any]]]
) -> None:
    """Add events to a run, in their order, each with its own instant."""
    newest = select(func.coalesce(func.max(run_journal.c.number), 0)).where(run_journal.c.run_id == run_id)
    # One run is one process, whose writers take turns, so nobody else takes this number.
    first = connection.execute(newest).scalar_one() + 1
    rows = [
        {
            "run_id": run_id,
            "number": number,
            "export_name": export,
            "at": at,
            "event": event,
            "detail": json.dumps(dict(detail), default=str),
        }
        for number, (at, event, detail) in enumerate(events, first)
    ]
    if rows:
        connection.execute(insert(run_journal), rows)


def entries(
    connection: Connection, chosen: ColumnElement[bool], run_id: str | None = None, last: int = 200
) -> list[JournalEntry]:
    """Return the newest events of the rows that are chosen, and of one run if asked for, oldest first."""
    query = select(run_journal).where(chosen).order_by(run_journal.c.at.desc(), run_journal.c.number.desc()).limit(last)
    if run_id is not None:
        query = query.where(run_journal.c.run_id == run_id)
    rows = list(connection.execute(query))[::-1]
    return [
        JournalEntry(row.run_id, row.number, row.export_name, row.at, row.event, json.loads(row.detail)) for row in rows
    ]
