"""How far each export has committed: one row per export, moved by compare-and-set.

Belongs here: the table `export_state`. Not here: comparing cursor values; only the source can, and the mode decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Column, Connection, Table, Text, delete, select, update

from rivet_resources.errors import StateError
from rivet_resources.state.database import METADATA, Instant, insert, now, upsert
from rivet_resources.state.scopes import name_in

export_state = Table(
    "export_state",
    METADATA,
    Column("export_name", Text, primary_key=True),
    Column("last_cursor_value", Text),
    Column("updated_at", Instant, nullable=False),
)


@dataclass(frozen=True)
class Cursor:
    """A committed cursor as canonical text; `value` None: it was reset, the next run starts from the beginning."""

    value: str | None
    updated_at: datetime


def read(connection: Connection, export: str) -> Cursor | None:
    """Read an export's cursor; None: it never had one."""
    query = select(export_state).where(export_state.c.export_name == export)
    row = connection.execute(query).one_or_none()
    return None if row is None else Cursor(row.last_cursor_value, row.updated_at)


def advance(connection: Connection, export: str, value: str, *, expected: str | None) -> None:
    """Set the cursor to `value` if it still is `expected`; nothing to do when it already is `value`.

    Raises:
        StateError: it is something else: another run moved it since this one was planned.
    """
    at = now(connection)
    first = insert(connection, export_state).values(export_name=export, last_cursor_value=None, updated_at=at)
    connection.execute(first.on_conflict_do_nothing())
    stored = export_state.c.last_cursor_value
    unmoved = stored.is_(None) if expected is None else stored == expected
    change = update(export_state).where(export_state.c.export_name == export, unmoved)
    if connection.execute(change.values(last_cursor_value=value, updated_at=at)).rowcount == 1:
        return
    held = read(connection, export)
    if held is None or held.value != value:
        raise StateError(
            f"The cursor of export {name_in(export)} was moved by another run since this one was planned; it stays as "
            f"that run left it. Nothing is lost: run again to go on from there, and see `rivet state show`."
        )


def reset(connection: Connection, export: str) -> None:
    """Forget the value but keep the row: `reset` differs from `never ran`."""
    _put(connection, export, None)


def restore(connection: Connection, export: str, value: str | None) -> None:
    """Write what the manifests say, without comparing; None: they have no cursor, so there is no row."""
    connection.execute(delete(export_state).where(export_state.c.export_name == export))
    if value is not None:
        _put(connection, export, value)


def _put(connection: Connection, export: str, value: str | None) -> None:
    row = {"export_name": export, "last_cursor_value": value, "updated_at": now(connection)}
    upsert(connection, export_state, row)
