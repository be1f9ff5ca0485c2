"""Of which database and destination the state of each export is: one row per export, written when a run has ended.

Belongs here: the table `export_provenance`. Not here: what follows from a difference (`rivet_assets/run/admission.py`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Column, Connection, Table, Text, select

from rivet_resources.contracts.provenance import Provenance, difference, provenance_of
from rivet_resources.state.database import METADATA, Instant, now, upsert

MOST_ACCEPTED = 20

export_provenance = Table(
    "export_provenance",
    METADATA,
    Column("export_name", Text, primary_key=True),
    Column("provenance", Text),
    Column("destination", Text, nullable=False),
    Column("accepted", Text, nullable=False),
    Column("updated_at", Instant, nullable=False),
)


@dataclass(frozen=True)
class KnownProvenance:
    """What an export's state is of; `provenance` None: not known, or given up by a reset.

    `accepted` are what it was of before, and what a user took over: manifests of these may be replaced.
    """

    provenance: Provenance | None = None
    destination: str = ""
    accepted: tuple[Provenance, ...] = ()


def read(connection: Connection, export: str) -> KnownProvenance:
    """Read what is remembered; an empty memory when there is none."""
    query = select(export_provenance).where(export_provenance.c.export_name == export)
    row = connection.execute(query).one_or_none()
    if row is None:
        return KnownProvenance()
    held = None if row.provenance is None else provenance_of(row.provenance)
    return KnownProvenance(held, row.destination, tuple(map(provenance_of, json.loads(row.accepted))))


def remember(
    connection: Connection, export: str, found: Provenance, destination: str, accepted: Sequence[Provenance] = ()
) -> None:
    """Keep what the export's state is of from now on, with what else was accepted by name; '' keeps the place."""
    known = read(connection, export)
    if known.provenance is not None and not difference(known.provenance, found):
        found = found.joined_with(known.provenance)
    _write(connection, export, KnownProvenance(found, destination or known.destination, (*known.accepted, *accepted)))


def give_up(connection: Connection, export: str) -> None:
    """Forget what the state is of; what that was stays accepted, so that the next run may replace its own windows."""
    known = read(connection, export)
    if known.provenance is not None:
        _write(connection, export, KnownProvenance(None, "", (*known.accepted, known.provenance)))


def _write(connection: Connection, export: str, memory: KnownProvenance) -> None:
    accepted = list(dict.fromkeys(each.text for each in memory.accepted))[-MOST_ACCEPTED:]
    row = {
        "export_name": export,
        "provenance": None if memory.provenance is None else memory.provenance.text,
        "destination": memory.destination,
        "accepted": json.dumps(accepted),
        "updated_at": now(connection),
    }
    upsert(connection, export_provenance, row)
