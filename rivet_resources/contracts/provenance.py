"""Of which database rows are, as state and manifests remember it, and whether two such memories are of one.

Belongs here: the value, and the rule. Not here: asking a database (`Session.identity`), keeping it
(`state/provenances.py`, `commit/manifest_entries.py`), refusing (`rivet_assets/run/admission.py`).

Names in a YAML file say what somebody means; two files may mean different things by one name, and one address may
lead to another database tomorrow. So what is remembered is what the server says of itself, where it does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from rivet_resources.registry import ENGINES

# Kinds of server identities that no two installations share. Where both sides tell one of these, the name of the
# source is not looked at: a source that was renamed in the YAML still is the same database.
UNMISTAKABLE = frozenset({"system_identifier", "server_uuid", "broker_guid", "database_guid"})
MOST_SERVERS = 32  # that one memory keeps: an installation that fails over now and then has a few


@dataclass(frozen=True)
class DatabaseIdentity:
    """Who a database says it is.

    `servers` are `kind:value` texts; several of one kind are all names of one installation, such as a MySQL server
    and those it replicates from. () where the server tells nothing that would last.
    """

    servers: tuple[str, ...]
    database: str  # '' where there is none


@dataclass(frozen=True)
class Provenance:
    """Of which database, and which table of it, rows are; '' and () where it is not known."""

    engine: str
    source_name: str = ""
    servers: tuple[str, ...] = ()
    database: str = ""
    relation: str = ""  # schema.table; '' for a query

    def __str__(self) -> str:
        """Name it for people: table public.orders, database shop, system_identifier:7…, source shop."""
        facts = [
            f"table {self.relation}" if self.relation else "a query",
            f"database {self.database}" if self.database else "",
            self.servers[0] if self.servers else "",
            f"source {self.source_name}" if self.source_name else "",
        ]
        return f"{self.engine} ({', '.join(filter(None, facts))})"

    @property
    def text(self) -> str:
        """Serialise it."""
        return json.dumps(asdict(self), sort_keys=True)

    def joined_with(self, earlier: Provenance) -> Provenance:
        """Keep the names that the same installation had before: the next run may meet one of these."""
        return replace(self, servers=tuple(dict.fromkeys((*self.servers, *earlier.servers)))[:MOST_SERVERS])


def provenance_of(text: str) -> Provenance:
    """Read what `Provenance.text` wrote; keys of a newer writer are passed over."""
    known: dict[str, Any] = {name: value for name, value in json.loads(text).items() if name in _FIELDS}
    return Provenance(**{**known, "servers": tuple(known.get("servers", ()))})


_FIELDS = frozenset(Provenance.__dataclass_fields__)


def difference(one: Provenance, other: Provenance) -> str:
    """Say in a few words what tells two memories apart; '' when they may be of one. What is unknown tells nothing.

    A server is another one when a kind of identity that both tell has no value in common. The source's name counts
    where nothing better tells: for queries, which have no table, and where servers have no unmistakable identity.
    """
    if not ENGINES.is_same(one.engine, other.engine):
        return "the engine"
    kinds = {kind for kind in _kinds(one) if kind in _kinds(other)}
    if any(not _of_kind(one, kind) & _of_kind(other, kind) for kind in kinds):
        return "the server"
    is_table = bool(one.relation and other.relation)
    has_schema = is_table and one.engine in ENGINES and ENGINES[one.engine].facts.schema_is_database
    if one.database and other.database and one.database != other.database and not has_schema:
        return "the database"
    if is_table and one.relation != other.relation:
        return "the table"
    is_certain = is_table and bool(kinds & UNMISTAKABLE)
    if one.source_name and other.source_name and one.source_name != other.source_name and not is_certain:
        return "the source"
    return ""


def is_any(found: Provenance, known: Iterable[Provenance]) -> bool:
    """Return whether a memory may be of one of these."""
    return any(not difference(each, found) for each in known)


def _kinds(known: Provenance) -> frozenset[str]:
    return frozenset(server.partition(":")[0] for server in known.servers)


def _of_kind(known: Provenance, kind: str) -> frozenset[str]:
    return frozenset(server for server in known.servers if server.partition(":")[0] == kind)
