"""Who did what: runs, approved plans, repairs, resets, dead letters read again or dropped.

Belongs here: the table `audit_log`, which is only ever added to. Not here: what a run did (`journal.py`), who somebody
is (`rivet_assets/run/actor.py`). No entry holds a row value or a secret. Whoever may write to the state store may write
here as well: it tells colleagues from one another, and is no proof against them.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, Table, Text, insert, select

from rivet_resources.contracts.audit import Action, AuditEntry
from rivet_resources.state.database import METADATA, Instant, now

audit_log = Table(
    "audit_log",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("at", Instant, nullable=False),
    Column("action", Text, nullable=False),
    Column("export_name", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("run_id", Text, nullable=False),
    Column("detail", Text, nullable=False),
)


def note(
    connection: Connection, action: Action, export: str, actor: str, run_id: str = "", detail: Mapping[str, Any] = {}
) -> None:
    """Add an action, stamped by the store's clock; it stays when the action fails, since it was tried."""
    row = {
        "id": uuid.uuid4().hex, "at": now(connection), "action": action, "export_name": export, "actor": actor,
        "run_id": run_id, "detail": json.dumps(dict(detail), default=str),
    }  # fmt: skip
    connection.execute(insert(audit_log), [row])


def entries(
    connection: Connection, chosen: ColumnElement[bool], action: Action | None = None, last: int = 200
) -> list[AuditEntry]:
    """Return the newest actions of the rows that are chosen, of one kind if asked for, oldest first."""
    query = select(audit_log).where(chosen).order_by(audit_log.c.at.desc(), audit_log.c.id).limit(last)
    if action is not None:
        query = query.where(audit_log.c.action == action)
    rows = list(connection.execute(query))[::-1]
    return [
        AuditEntry(row.at, row.action, row.export_name, row.actor, row.run_id, json.loads(row.detail)) for row in rows
    ]
