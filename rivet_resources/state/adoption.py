"""Rows that an earlier Rivet kept under an export's bare name: which of them are whose, and taking them over.

Belongs here: the rule, and moving rows. Not here: finding the evidence at a destination
(`rivet_assets/run/admit/scope.py`).

Up to version 3 of the store two files that shared it and both had an export `orders` wrote into the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Table, or_, select, union, update

from rivet_resources.state import provenances
from rivet_resources.state.chunks import chunk_task
from rivet_resources.state.cursors import export_state
from rivet_resources.state.database import Database
from rivet_resources.state.files import file_manifest
from rivet_resources.state.journal import run_journal
from rivet_resources.state.patience import patient
from rivet_resources.state.provenances import KnownProvenance
from rivet_resources.state.runs import export_metrics
from rivet_resources.state.schemas import export_schema
from rivet_resources.state.scopes import SEPARATOR, Scope
from rivet_resources.state.verifications import verification

HISTORY = (export_metrics, file_manifest, run_journal, verification)  # each row is of a run
ALL = (*HISTORY, chunk_task, export_schema, export_state)


@dataclass(frozen=True)
class Evidence:
    """What an export's destination says of its past."""

    committed: frozenset[str] = frozenset()  # runs that its manifests name
    staged: frozenset[str] = frozenset()  # runs that have something staged there
    reached: frozenset[str] = frozenset()  # cursors at which its windows begin or end
    starts: frozenset[str] = frozenset()  # those at which a window begins and none of its others ends


@patient
class Adoptions:
    """The bare names of a scope's exports in one store."""

    def __init__(self, database: Database, scope: Scope) -> None:
        self._database = database
        self._scope = scope

    def waiting(self) -> set[str]:
        """Name the exports under whose bare names there are rows, and that have committed nothing under their keys."""
        with self._database.read() as connection:
            found = bare_names(connection, self._scope.sources)
            return {name for name in found if provenances.read(connection, self._scope.key(name)) == KnownProvenance()}

    def cursor(self, export: str) -> str | None:
        """Read the cursor that lies under an export's bare name."""
        if export not in self._scope.sources:
            return None
        with self._database.read() as connection:
            return bare_cursor(connection, export)

    def find_doubted(self, export: str, evidence: Evidence) -> set[str]:
        """Name cursors at which an export's windows begin, and which another export of its name may have reached."""
        with self._database.read() as connection:
            return find_doubted(connection, export, self._scope.key(export), evidence)

    def take(self, export: str, evidence: Evidence) -> bool:
        """Take over what is this export's own; True when the last commit known there is."""
        with self._database.write() as connection:
            return adopt(connection, export, self._scope.key(export), evidence)

    def take_all(self, export: str) -> None:
        """Take over all that lies under its bare name; a user said so."""
        if export in self._scope.sources:
            with self._database.write() as connection:
                adopt_all(connection, export, self._scope.key(export))


def bare_names(connection: Connection, names: Iterable[str]) -> set[str]:
    """Find those of these names under which rows of an earlier Rivet lie."""
    wanted = list(names)
    each = [select(table.c.export_name).where(table.c.export_name.in_(wanted)) for table in ALL]
    return set(connection.execute(union(*each)).scalars()) if wanted else set()


def bare_cursor(connection: Connection, name: str) -> str | None:
    """Read the cursor that an earlier Rivet kept under a bare name."""
    query = select(export_state.c.last_cursor_value).where(export_state.c.export_name == name)
    return connection.execute(query).scalar_one_or_none()


def adopt(connection: Connection, name: str, key: str, evidence: Evidence) -> bool:
    """Move what is this export's own from its bare name to its key; True when the last commit known there is its own.

    Its own are the rows of runs that its destination knows.
    """
    # The manifests at an export's own destination name its runs, so they tell what is its own.
    runs = _runs(connection, name)
    if not runs & (evidence.committed | evidence.staged):
        return False
    # When the newest commit is among them, nobody else wrote under this name since, and all rows are.
    newest = _newest_commit(connection, name)
    is_sole = newest is None or newest in evidence.committed
    for table in HISTORY:
        of_ours = [] if is_sole else [table.c.run_id.in_(evidence.committed | evidence.staged)]
        _move(connection, table, name, key, *of_ours)
    _move(connection, chunk_task, name, key, chunk_task.c.run_id.in_(evidence.staged))
    if is_sole:
        _move(connection, export_schema, name, key)
    # What the manifests do not tell stays where it is: a cursor that may be another's would skip rows, and one that is
    # missing is read from them anyway.
    # A cursor must be one that its windows reach, and these must begin where nobody else ended; a reset is of whoever
    # committed last.
    cursor, is_doubted = bare_cursor(connection, name), bool(find_doubted(connection, name, key, evidence))
    if not is_doubted and (is_sole if cursor is None else cursor in evidence.reached):
        _move(connection, export_state, name, key)
    return is_sole


def find_doubted(connection: Connection, name: str, key: str, evidence: Evidence) -> set[str]:
    """Find cursors at which this export's windows begin, and which a run came to that is not known to be its own."""
    table = export_metrics.c
    # A run that found nothing ended where it began; it came to no cursor.
    moved = or_(table.cursor_low.is_(None), table.cursor_low != table.cursor_high)
    namesake = or_(table.export_name == name, table.export_name.endswith(f"{SEPARATOR}{name}", autoescape=True))
    query = select(table.cursor_high).where(
        table.cursor_high.in_(evidence.starts),
        table.run_id.not_in(evidence.committed),
        table.export_name != key,
        namesake,
        moved,
    )
    return set(connection.execute(query).scalars()) if evidence.starts else set()


def adopt_all(connection: Connection, name: str, key: str) -> None:
    """Move every row of a bare name to this export's key: a user said that they are its own."""
    for table in ALL:
        _move(connection, table, name, key)


def _move(connection: Connection, table: Table, name: str, key: str, *where: Any) -> None:
    """Change the key of rows; tables that have rows of this key already are left: these are newer."""
    if (
        # Runs alone are told apart by their ids, so rows of both keys may stand together there.
        table is not export_metrics
        and connection.execute(select(table.c.export_name).where(table.c.export_name == key).limit(1)).first()
    ):
        return
    connection.execute(update(table).where(table.c.export_name == name, *where).values(export_name=key))


def _runs(connection: Connection, name: str) -> set[str]:
    tables = (export_metrics, file_manifest, chunk_task)
    found = union(*(select(table.c.run_id).where(table.c.export_name == name) for table in tables))
    return set(connection.execute(found).scalars())


def _newest_commit(connection: Connection, name: str) -> str | None:
    """Find the last run under a name that published files; None when none did."""
    made = (export_metrics.c.status == "success", export_metrics.c.files_produced > 0)
    query = select(export_metrics.c.run_id).where(export_metrics.c.export_name == name, *made)
    return connection.execute(query.order_by(export_metrics.c.finished_at.desc()).limit(1)).scalar_one_or_none()
