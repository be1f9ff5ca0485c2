"""How far each export has committed: one row per export, moved by compare-and-set.

Belongs here: the table `export_state`. Not here: comparing cursor values; only the source can, and the mode decides.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Column, Connection, Integer, Table, Text, delete, select, update

from rivet_resources.contracts.rows.boundary import Boundary, Edge
from rivet_resources.errors import StateError
from rivet_resources.state.database import METADATA, Instant, insert, now, upsert
from rivet_resources.state.scopes import name_in

export_state = Table(
    "export_state",
    METADATA,
    Column("export_name", Text, primary_key=True),
    Column("last_cursor_value", Text),
    Column("updated_at", Instant, nullable=False),
    # Windows that started at this very value and found only its rows: they are part of what is compared and set.
    Column("cursor_visit", Integer, nullable=False, server_default="0"),
    Column("boundary", Text),  # JSON; NULL: nothing is known of the rows that have this value
)


@dataclass(frozen=True)
class Cursor:
    """A committed cursor as canonical text; `value` None: it was reset, the next run starts from the beginning."""

    value: str | None
    boundary: Boundary = field(default_factory=Boundary)
    updated_at: datetime | None = None


def read(connection: Connection, export: str) -> Cursor | None:
    """Read an export's cursor; None: it never had one."""
    query = select(export_state).where(export_state.c.export_name == export)
    row = connection.execute(query).one_or_none()
    return None if row is None else Cursor(row.last_cursor_value, _boundary(row), row.updated_at)


def below(connection: Connection, export: str, head: str) -> list[str]:
    """Name what has a cursor under an export's key and a slash, and begins with `head` there; sorted."""
    column = export_state.c.export_name
    query = select(column).where(column.startswith(f"{export}/{head}", autoescape=True)).order_by(column)
    return [name_in(key) for key in connection.execute(query).scalars()]


def advance(
    connection: Connection,
    export: str,
    value: str,
    *,
    expected: str | None,
    visit: int = 0,
    boundary: Boundary | None = None,
) -> None:
    """Set the cursor to `value` if it still is `expected`, at that visit; nothing to do when it already is `value`.

    Raises:
        StateError: it is something else: another run moved it since this one was planned.
    """
    at, to = now(connection), Cursor(value, boundary or Boundary())
    first = insert(connection, export_state).values(export_name=export, last_cursor_value=None, updated_at=at)
    # An export that never committed has no row, and an UPDATE alone could not tell that from a cursor that moved.
    connection.execute(first.on_conflict_do_nothing())
    stored = export_state.c.last_cursor_value
    # The visit is compared, too: windows that found only rows of their start value leave the value as it was.
    unmoved = (stored.is_(None) if expected is None else stored == expected) & (export_state.c.cursor_visit == visit)
    change = update(export_state).where(export_state.c.export_name == export, unmoved)
    if connection.execute(change.values(**_values(to), updated_at=at)).rowcount == 1:
        return
    # Nothing changed: either the cursor is there already (this commit is repeated), or another run moved it.
    held = read(connection, export)
    if held is None or (held.value, held.boundary.visit) != (value, to.boundary.visit):
        raise StateError(
            f"The cursor of export {name_in(export)} was moved by another run since this one was planned; it stays as "
            f"that run left it. Nothing is lost: run again to go on from there, and see `rivet state show`."
        )


def reset(connection: Connection, export: str) -> None:
    """Forget the value but keep the row: `reset` differs from `never ran`."""
    _put(connection, export, Cursor(None))


def restore(connection: Connection, export: str, value: str | None, boundary: Boundary) -> None:
    """Write what the manifests say, without comparing; None: they have no cursor, so there is no row."""
    connection.execute(delete(export_state).where(export_state.c.export_name == export))
    if value is not None:
        _put(connection, export, Cursor(value, boundary))


def _put(connection: Connection, export: str, to: Cursor) -> None:
    upsert(connection, export_state, {"export_name": export, **_values(to), "updated_at": now(connection)})


def _values(to: Cursor) -> dict[str, Any]:
    known = to.value is not None and to.boundary.scheme
    remembered = json.dumps({"scheme": to.boundary.scheme, **asdict(to.boundary.edge)}) if known else None
    return {"last_cursor_value": to.value, "cursor_visit": to.boundary.visit, "boundary": remembered}


def _boundary(row: Any) -> Boundary:
    """Read what is remembered; what another version of Rivet wrote is nothing."""
    try:
        plain = json.loads(row.boundary or "{}")
        return Boundary(row.cursor_visit, str(plain["scheme"]), Edge(int(plain["rows"]), plain["ids"]))
    except (KeyError, TypeError, ValueError):
        return Boundary(row.cursor_visit)
