"""How far an incremental read may go on SQLite without skipping a row that commits late.

Belongs here: finding a `high` below which nothing can appear any more. Not here: reading (pages.py).

SQLite has one writer at a time, so holding the write lock for a moment proves that nobody else writes: what is not
visible then begins later (`connectors.md`, 11, "cap SQLite"). Values that are given out in order, such as row numbers,
are above the greatest one seen. Stamps are not: another row may get the very same second. So stamps end below the start
of the current second (or day), by the earlier of UTC and this machine's own zone, since nothing says in which of the
two naive ones are. When somebody does write, nothing new is read this time. When this user may not write the file, the
lock cannot be had; then stamps stay a minute behind, and the run says what it cannot know.
"""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Protocol

import pyarrow as pa

from rivet_resources.contracts.relation import Relation
from rivet_resources.contracts.source import Horizon
from rivet_resources.contracts.types import Column
from rivet_resources.engines.shared.future_stamps import Looking, ahead
from rivet_resources.engines.sqlite import sql
from rivet_resources.engines.sqlite.connect import ConnectionParams
from rivet_resources.engines.sqlite.errors import PASSING, code_of, fault
from rivet_resources.errors import SourceError, SourcePermission

SETTLE_MILLISECONDS = 2_000
BLIND_LAG = timedelta(seconds=60)
STAMP = re.compile(r"\d{4}-\d\d-\d\d(?:([ T])\d\d:\d\d:\d\d(?:\.(\d{1,6}))?(Z|[+-]\d\d:?\d\d)?)?")
BLIND = "this user may not write the file, so open writers cannot be seen: a late commit can be missed"


class HorizonSession(Looking, Protocol):
    """What this module needs from a session."""

    @property
    def conn_params(self) -> ConnectionParams: ...

    def typed(self, relation: Relation, expression: str) -> tuple[str, Column | None]: ...

    def end(
        self, relation: Relation, spelled: str, column: Column | None, *, where: str, direction: str
    ) -> str | None: ...


@dataclass(frozen=True)
class _Lock:
    """The write lock, or what stands in for it."""

    connection: sqlite3.Connection | None
    is_busy: bool = False


def horizon(
    session: HorizonSession,
    relation: Relation,
    expression: str,
    column: Column,
    *,
    after: str | None,
    lag_seconds: float,
) -> Horizon:
    """Find the greatest value that nothing can appear below any more; `after` itself when nothing new is closed."""
    # Held until the bound is known: in between somebody else could begin to write, with a stamp of before it.
    lock = _take(session)
    try:
        if lock.is_busy:
            return Horizon(after, "nothing new is read while another program is writing to the database")
        lag = timedelta(seconds=lag_seconds)
        is_blind = lock.connection is None
        return _highest(session, relation, expression, column, after=after, lag=lag, is_blind=is_blind)
    finally:
        if lock.connection is not None:
            # It was never written in, so giving the lock back changes nothing; a fault here must not hide the
            # bound.
            with suppress(sqlite3.Error):
                lock.connection.execute("ROLLBACK")
            lock.connection.close()


def _take(session: HorizonSession) -> _Lock:
    """Take the write lock, which changes nothing, and wait two seconds at most for whoever holds it."""
    try:
        connection = session.conn_params.connect(mode="rw")
    except SourceError:
        # A file that cannot be opened for writing has no lock to be had; the run says what it cannot know.
        return _Lock(None)
    try:
        session.conn_params.begin_statement()
        connection.execute(f"PRAGMA busy_timeout = {SETTLE_MILLISECONDS}")
        # The write lock at once, not at the first write; nothing is written, and ROLLBACK gives it back.
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.Error as error:
        connection.close()
        if code_of(error) in PASSING:
            # The clock below is not read then: whoever writes now may already have taken its stamps.
            return _Lock(None, is_busy=True)
        refused = fault(error, doing="looking for open writers", path=str(session.conn_params.path))
        if isinstance(refused, SourcePermission):
            return _Lock(None)
        raise refused from None
    return _Lock(connection)


def _highest(
    session: HorizonSession,
    relation: Relation,
    expression: str,
    column: Column,
    *,
    after: str | None,
    lag: timedelta,
    is_blind: bool,
) -> Horizon:
    spelled, known = session.typed(relation, expression)
    # A fallback in a COALESCE is compared as its first column is.
    known = known or column
    where = [f"{spelled} > {sql.literal(after, column)}"] if after is not None else []
    doubt = BLIND if is_blind else ""
    notes = [doubt] if doubt else []
    newest = session.end(relation, spelled, known, where=" AND ".join(where), direction="DESC")
    stamps = _as_stamps(newest, column)
    if newest is None or stamps is None:
        return Horizon(newest if newest is not None else after, "; ".join(notes), doubt=doubt)
    if is_blind:
        lag = max(lag, BLIND_LAG)
    if lag:
        notes.append(f"stayed {lag.total_seconds():.15g} s behind")
    cap = _cap(newest, stamps, now=session.now() - lag)
    # Strictly below: rows of the current second may still be written with the very same stamp.
    high = session.end(relation, spelled, known, where=" AND ".join([*where, f"{spelled} < {cap}"]), direction="DESC")
    if high != newest:
        future = ahead(session, relation, spelled, stamps, newest=newest, literal=sql.literal)
        notes.append(future or ("" if lag else "rows of the current second, or later ones, wait for the next run"))
    return Horizon(high if high is not None else after, "; ".join(filter(None, notes)), doubt=doubt)


def _as_stamps(newest: str | None, column: Column) -> Column | None:
    """Return the column as one whose bounds are times: by its type, or because its greatest text is one; else None."""
    if newest is None:
        return None
    if column.fact("times"):
        return column
    match = STAMP.fullmatch(newest)
    if match is None or not pa.types.is_string(column.arrow):
        return None
    spelled = {
        "class": "text", "separator": match[1] or "", "digits": len(match[2] or ""), "suffix": match[3] or "",
    }  # fmt: skip
    return replace(column, facts=(*column.facts, ("times", json.dumps(spelled))))


def _cap(newest: str, stamps: Column, *, now: datetime) -> str:
    """Render the start of the current second, or day, as a literal of these stamps."""
    spelled = json.loads(stamps.fact("times"))
    is_absolute = isinstance(spelled, str) or spelled["class"] == "integer" or spelled["suffix"] or stamps.fact("zone")
    naive = now.astimezone(UTC).replace(tzinfo=None)
    if not is_absolute:
        # Naive times may be of this machine's zone or of UTC: the earlier one is safe for both.
        naive = min(naive, now.astimezone().replace(tzinfo=None))
    is_day = len(newest) == len("2026-01-31")
    floored = naive.replace(hour=0, minute=0, second=0, microsecond=0) if is_day else naive.replace(microsecond=0)
    return sql.literal(f"{floored.isoformat(timespec='microseconds')}{'Z' if is_absolute else ''}", stamps)
