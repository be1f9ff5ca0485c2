"""What was proved of published windows: the newest verdict of each kind per window.

Belongs here: the table `verification`. Not here: proving (`prove/validate.py`, `prove/reconcile.py`). A verdict is of
one commit: when the window's manifest is of another run, it says nothing any more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import Column, Connection, Table, Text, select

from rivet_resources.state.database import METADATA, Instant, now, upsert

Kind = Literal["validate", "reconcile"]

verification = Table(
    "verification",
    METADATA,
    Column("export_name", Text, primary_key=True),
    Column("window_key", Text, primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("run_id", Text, nullable=False),
    Column("verified_at", Instant, nullable=False),
    Column("verdict", Text, nullable=False),
    Column("detail", Text, nullable=False),
)


@dataclass(frozen=True)
class Verification:
    """One verdict on one commit of a window; `detail` are counts and codes, never values."""

    export: str
    window: str
    kind: Kind
    run_id: str  # whose commit it was
    verdict: Literal["match", "mismatch", "unknown"]
    detail: Mapping[str, Any] = field(default_factory=dict)
    verified_at: datetime | None = None  # None: now, by the store's clock


def save(connection: Connection, found: Verification) -> None:
    """Keep a verdict, over an earlier one of the same kind and window."""
    values = {
        "export_name": found.export,
        "window_key": found.window,
        "kind": found.kind,
        "run_id": found.run_id,
        "verified_at": found.verified_at or now(connection),
        "verdict": found.verdict,
        "detail": json.dumps(dict(found.detail), default=str),
    }
    upsert(connection, verification, values)


def of_export(connection: Connection, export: str, kind: Kind | None = None) -> list[Verification]:
    """Return the verdicts on an export's windows, by window."""
    query = select(verification).where(verification.c.export_name == export).order_by(verification.c.window_key)
    if kind is not None:
        query = query.where(verification.c.kind == kind)
    return [
        Verification(
            row.export_name, row.window_key, row.kind, row.run_id, row.verdict, json.loads(row.detail), row.verified_at
        )
        for row in connection.execute(query)
    ]
