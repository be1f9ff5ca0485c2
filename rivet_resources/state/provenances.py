"""Of which database and destination the state of each export is: one row per export, written when a run has ended.

Belongs here: the table `export_provenance`, and the rule that tells two databases apart. Not here: what follows from a
difference (`rivet_assets/run/admit/admission.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import Column, Connection, Table, Text, select

from rivet_resources.contracts.provenance import Provenance, provenance_of
from rivet_resources.registry import ENGINES
from rivet_resources.state.database import METADATA, Instant, now, upsert

MOST_ACCEPTED = 20
# Kinds of server identities that no two installations share. Where both sides tell one of these, the name of the
# source is not looked at: a source that was renamed in the YAML still is the same database.
UNMISTAKABLE = frozenset({"system_identifier", "server_uuid", "broker_guid", "database_guid"})

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


def is_known(
    connection: Connection, export: str, found: Provenance, destination: str, accepted: Sequence[Provenance] = ()
) -> bool:
    """Return whether `remember` would change nothing."""
    known = read(connection, export)
    if known.provenance is None or difference(known.provenance, found):
        return False
    is_here = destination in ("", known.destination)
    return is_here and found.joined_with(known.provenance) == known.provenance and not accepted


def remember(
    connection: Connection, export: str, found: Provenance, destination: str, accepted: Sequence[Provenance] = ()
) -> None:
    """Keep what the export's state is of from now on, with what else was accepted by name; '' keeps the place."""
    known = read(connection, export)
    if known.provenance is not None and not difference(known.provenance, found):
        # Joined, since a run may learn less than an earlier one: a server that hides its identity today was told apart
        # before.
        found = found.joined_with(known.provenance)
    _write(connection, export, KnownProvenance(found, destination or known.destination, (*known.accepted, *accepted)))


def give_up(connection: Connection, export: str) -> None:
    """Forget what the state is of; what that was stays accepted, so that the next run may replace its own windows."""
    known = read(connection, export)
    if known.provenance is not None:
        _write(connection, export, KnownProvenance(None, "", (*known.accepted, known.provenance)))


def _write(connection: Connection, export: str, memory: KnownProvenance) -> None:
    # Each once, and the newest of them: the row must not grow with every database that an export ever met.
    accepted = list(dict.fromkeys(each.text for each in memory.accepted))[-MOST_ACCEPTED:]
    row = {
        "export_name": export,
        "provenance": None if memory.provenance is None else memory.provenance.text,
        "destination": memory.destination,
        "accepted": json.dumps(accepted),
        "updated_at": now(connection),
    }
    upsert(connection, export_provenance, row)


# --- whether two memories are of one database ------------------------------------------------------


def difference(one: Provenance, other: Provenance) -> str:
    """Return in a few words what tells two memories apart; '' when they may be of one. What is unknown tells nothing.

    A server is another one when a kind of identity that both tell has no value in common. The source's name counts
    where nothing better tells: for queries, which have no table, and where servers have no unmistakable identity.
    """
    if not ENGINES.is_same(one.engine, other.engine):
        return "the engine"
    # A kind that one side alone tells proves nothing: the user may not have been allowed to see it then.
    kinds = {kind for kind in _kinds(one) if kind in _kinds(other)}
    if any(not _of_kind(one, kind) & _of_kind(other, kind) for kind in kinds):
        return "the server"
    is_table = bool(one.relation and other.relation)
    # Where a schema is a database (MySQL), the relation names it, and the connection's own does not matter.
    has_schema = is_table and one.engine in ENGINES and ENGINES[one.engine].facts.schema_is_database
    if one.database and other.database and one.database != other.database and not has_schema:
        return "the database"
    if is_table and one.relation != other.relation:
        return "the table"
    is_certain = is_table and bool(kinds & UNMISTAKABLE)
    if one.source_name and other.source_name and one.source_name != other.source_name and not is_certain:
        return "the source"
    return ""


# A physical copy has the identity of its original, so that the two are taken for one.
def is_same(one: Provenance, other: Provenance) -> bool:
    """Return whether two memories are of one database for certain: what is not known proves nothing."""
    unmistakable = UNMISTAKABLE & _kinds(one) & _kinds(other)
    shared = any(_of_kind(one, kind) & _of_kind(other, kind) for kind in unmistakable)
    return shared and (one.engine, one.database, one.relation) == (other.engine, other.database, other.relation)


def is_any(found: Provenance, known: Iterable[Provenance]) -> bool:
    """Return whether a memory may be of one of these."""
    return any(not difference(each, found) for each in known)


def _kinds(known: Provenance) -> frozenset[str]:
    return frozenset(server.partition(":")[0] for server in known.servers)


def _of_kind(known: Provenance, kind: str) -> frozenset[str]:
    return frozenset(server for server in known.servers if server.partition(":")[0] == kind)
