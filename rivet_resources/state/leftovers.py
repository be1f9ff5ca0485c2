"""Whether runs that died may have left something at an export's destination, so that looking for it is due.

Belongs here: the table `export_leftovers`. Not here: the look itself (`commit/publish.py`), which lists every object
and reads every manifest, and so would cost each run as much as the export's whole past.

Two numbers per export: how many runs did not end well, and how many of these had ended when a look last removed all
they left. A run that fails counts itself; one that was killed is counted by the next run of its export.
"""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import BigInteger, Column, Connection, Table, Text, delete, select, update

from rivet_resources.state.database import METADATA, Instant, insert, now

# And when somebody last looked at what is staged, which costs little and is done once a day.
LOOKS_APART = timedelta(days=1)

export_leftovers = Table(
    "export_leftovers",
    METADATA,
    Column("export_name", Text, primary_key=True),
    Column("failures", BigInteger, nullable=False),
    Column("swept", BigInteger, nullable=False),
    Column("place", Text, nullable=False),
    Column("looked_at", Instant),  # when somebody last looked at what is staged
)


def note_failure(connection: Connection, export: str) -> None:
    """Count a run that did not end well."""
    row = insert(connection, export_leftovers).values(export_name=export, failures=1, swept=0, place="")
    more = {"failures": export_leftovers.c.failures + 1}
    connection.execute(row.on_conflict_do_update(index_elements=["export_name"], set_=more))


def failures(connection: Connection, export: str) -> int:
    """Return how many runs did not end well, as far as this store knows."""
    query = select(export_leftovers.c.failures).where(export_leftovers.c.export_name == export)
    return connection.execute(query).scalar_one_or_none() or 0


def is_due(connection: Connection, export: str, place: str) -> bool:
    """Return whether a run did not end well since the last look at a place, or none was ever taken there."""
    query = select(export_leftovers).where(export_leftovers.c.export_name == export)
    row = connection.execute(query).one_or_none()
    # A place nobody ever looked at may hold what another store's runs, or an older Rivet, left.
    return row is None or row.place != place or row.failures > row.swept


def is_look_due(connection: Connection, export: str) -> bool:
    """Return whether nobody looked at what is staged for a day."""
    query = select(export_leftovers.c.looked_at).where(export_leftovers.c.export_name == export)
    looked_at = connection.execute(query).scalar_one_or_none()
    return looked_at is None or now(connection) - looked_at > LOOKS_APART


def note_look(connection: Connection, export: str) -> None:
    """Note that somebody looks at what is staged."""
    ours = export_leftovers.c.export_name == export
    connection.execute(update(export_leftovers).where(ours).values(looked_at=now(connection)))


def note_sweep(connection: Connection, export: str, place: str, *, failures: int) -> None:
    """Note that a place holds nothing of the runs that had failed, as they were counted when the look began."""
    # The number from before the look: a run that failed during it is not among what was swept.
    seen = {"swept": failures, "place": place, "looked_at": now(connection)}
    row = insert(connection, export_leftovers).values(export_name=export, failures=failures, **seen)
    connection.execute(row.on_conflict_do_update(index_elements=["export_name"], set_=seen))


def forget(connection: Connection, export: str) -> None:
    """Forget that anybody looked: the next run does."""
    connection.execute(delete(export_leftovers).where(export_leftovers.c.export_name == export))
