"""Of which database rows are, as state and manifests remember it.

Belongs here: the value. Not here: asking a database (`Session.identity`), keeping it and the rule that tells two apart
(`state/provenances.py`, `commit/manifest_entries.py`), refusing (`rivet_assets/run/admit/admission.py`).

Names in a YAML file say what somebody means; two files may mean different things by one name, and one address may
lead to another database tomorrow. So what is remembered is what the server says of itself, where it does.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

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
