"""How far an incremental read may go on SQL Server without skipping a row that commits late.

A row is skipped when it is not committed when we read, yet its cursor value is not above the `high` we commit.
Belongs here: finding a `high` for which that cannot happen. Not here: reading (pages.py).

Stamps (date and time types): every stamp a transaction takes lies at or after its start, so nothing can appear below
cap = least(now, start of the oldest open read-write transaction) − 2 s (`connectors.md`, section 11). The list is read
before any row: a transaction that is not in it has committed, and its rows are seen by every later statement. The list
needs VIEW SERVER STATE; without it, and on a read-only replica, which shows only its own transactions, we stay
`cursor_lag` behind, 60 s at least, and say so.

rowversion: MIN_ACTIVE_ROWVERSION() is the exact bound, for every user.

Everything else (integers, text, uuid, decimal) has no clock: `high` is frozen as the greatest value, then every
transaction open at that moment is waited for, two seconds at most. If one does not end, nothing new is read this time.

Our own sessions carry `rivet:` in CONTEXT_INFO (the driver allows no application name) and hold nothing back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Protocol

from rivet_resources.contracts.relation import Relation
from rivet_resources.contracts.source import Horizon
from rivet_resources.contracts.types import Column
from rivet_resources.engines.shared.future_stamps import Looking, ahead
from rivet_resources.engines.shared.settling import settle
from rivet_resources.engines.sqlserver import sql
from rivet_resources.engines.sqlserver.catalog import Catalog
from rivet_resources.errors import SourcePermission

MARGIN = timedelta(seconds=2)
LEAST_LAG = timedelta(seconds=60)
STAMPS = frozenset({"date", "datetime", "smalldatetime", "datetime2", "datetimeoffset"})
HIDDEN = "this login may not see open transactions (GRANT VIEW SERVER STATE would let it)"
REPLICA = "a read-only replica does not show the primary's open transactions"

# Transactions of type 1 are read-write; ages come from the server, whose clock is local time here.
# 0x72697665743A is `rivet:`.
OPEN = """
SELECT t.transaction_id, s.session_id,
       DATEDIFF(second, t.transaction_begin_time, GETDATE()) AS age_seconds
FROM sys.dm_tran_active_transactions AS t
JOIN sys.dm_tran_session_transactions AS x ON x.transaction_id = t.transaction_id
JOIN sys.dm_exec_sessions AS s ON s.session_id = x.session_id
WHERE t.transaction_type = 1 AND s.session_id <> @@SPID
  AND (s.context_info IS NULL OR CONVERT(binary(6), s.context_info) <> 0x72697665743A)
ORDER BY t.transaction_begin_time"""

CLOCKS = """
SELECT CONVERT(varchar(27), SYSUTCDATETIME(), 121) AS utc, CONVERT(varchar(27), SYSDATETIME(), 121) AS local_time"""


class HorizonSession(Catalog, Looking, Protocol):
    """What this module needs from a session."""

    is_replica: bool

    def spelled(self, relation: Relation, expression: str) -> str: ...

    def greatest(
        self, relation: Relation, spelled: str, column: Column, *, where: Sequence[str] = ()
    ) -> str | None: ...


@dataclass(frozen=True)
class Open:
    """One open read-write transaction of somebody else."""

    transaction: int
    session: int
    age: timedelta

    def __str__(self) -> str:
        return f"session {self.session} (open for {self.age.total_seconds():.0f} s)"


def horizon(
    session: HorizonSession,
    relation: Relation,
    expression: str,
    column: Column,
    *,
    after: str | None,
    lag_seconds: float,
) -> Horizon:
    """Find the greatest value below which nothing can appear any more; `after` itself when there is nothing new."""
    base = column.fact("base")
    if base == "timestamp":
        return _rowversion_horizon(session, relation, expression, column, after=after)
    if base in STAMPS:
        return _stamp_horizon(session, relation, expression, column, after=after, lag=timedelta(seconds=lag_seconds))
    return _settle_horizon(session, relation, expression, column, after=after)


# --- stamps --------------------------------------------------------------------------------------


def _stamp_horizon(
    session: HorizonSession, relation: Relation, expression: str, column: Column, *, after: str | None, lag: timedelta
) -> Horizon:
    # The list before any row is read: who is not in it has committed, and every later statement sees it.
    blind = _blind(session)
    oldest = None if blind else next(iter(open_transactions(session).values()), None)
    behind, note = _behind(blind, oldest, lag)
    utc, local = (
        datetime.fromisoformat(str(text)[:26]) - behind for text in session.ask(CLOCKS, doing="asking the clock")[0]
    )
    # Naive stamps may be the server's local time or UTC: the earlier is safe for both.
    cap = utc if column.fact("base") == "datetimeoffset" else min(utc, local)
    text = cap.isoformat(timespec="microseconds") + ("Z" if column.fact("base") == "datetimeoffset" else "")
    if column.fact("base") == "date":
        # A day may still grow until it is over.
        text = cap.date().isoformat()
    if column.fact("base") == "smalldatetime":
        # A stamp is rounded to the minute, so up to half a minute back.
        text = cap.replace(second=0, microsecond=0).isoformat(timespec="microseconds")
    spelled = session.spelled(relation, expression)
    below = f"{spelled} < {sql.literal(text, column)}"
    greater = [f"{spelled} > {sql.literal(after, column)}"] if after is not None else []
    high = session.greatest(relation, spelled, column, where=[below, *greater])
    newest = session.greatest(relation, spelled, column)
    waits = ""
    if newest is not None and newest != (high or after):
        future = ahead(session, relation, spelled, column, newest=newest, literal=sql.literal)
        waits = "; ".join(filter(None, (note, future))) or "rows of the last moment wait for the next run"
    return Horizon(
        high or after,
        waits,
        doubt=blind,
        held_seconds=oldest.age.total_seconds() if oldest is not None else 0.0,
    )


def _behind(blind: str, oldest: Open | None, lag: timedelta) -> tuple[timedelta, str]:
    """Return how far behind the clock nothing can appear, and who holds it back."""
    if blind:
        lag = max(lag, LEAST_LAG)
        return lag, f"{blind}; stayed {lag.total_seconds():.15g} s behind (cursor_lag)"
    # DATEDIFF counts seconds that began, so an age may be up to one too small.
    behind = (oldest.age + timedelta(seconds=1) if oldest is not None else timedelta()) + MARGIN
    if lag > behind:
        return lag, f"stayed {lag.total_seconds():.15g} s behind (cursor_lag)"
    return behind, f"held back by {oldest}" if oldest is not None else ""


def _blind(session: HorizonSession) -> str:
    """Return why open transactions cannot be seen; '' when they can."""
    if session.is_replica:
        return REPLICA
    try:
        open_transactions(session)
    except SourcePermission:
        return HIDDEN
    return ""


def open_transactions(session: HorizonSession) -> Mapping[int, Open]:
    """List others' open read-write transactions, the oldest first.

    Raises:
        SourcePermission: the login lacks VIEW SERVER STATE.
    """
    rows = session.ask(OPEN, doing="listing open transactions")
    return {row[0]: Open(row[0], row[1], timedelta(seconds=max(row[2], 0))) for row in rows}


# --- cursors without a clock ---------------------------------------------------------------------


def _rowversion_horizon(
    session: HorizonSession, relation: Relation, expression: str, column: Column, *, after: str | None
) -> Horizon:
    spelled = session.spelled(relation, expression)
    # Asked inside the statement that reads: a bound taken earlier is safe, one taken later would not be.
    where = [f"{spelled} < MIN_ACTIVE_ROWVERSION()"]
    if after is not None:
        where.append(f"{spelled} > {sql.literal(after, column)}")
    high = session.greatest(relation, spelled, column, where=where)
    newest = session.greatest(relation, spelled, column)
    is_held = newest is not None and newest != (high or after)
    return Horizon(high or after, "rows of open transactions wait for the next run" if is_held else "")


def _settle_horizon(
    session: HorizonSession, relation: Relation, expression: str, column: Column, *, after: str | None
) -> Horizon:
    spelled = session.spelled(relation, expression)
    where = [f"{spelled} > {sql.literal(after, column)}"] if after is not None else []
    # Frozen before anybody is waited for: who begins later gives out values above it.
    high = session.greatest(relation, spelled, column, where=where)
    if high is None:
        return Horizon(after)
    blind = _blind(session)
    if blind:
        return Horizon(high, f"{blind}: a late commit can be missed")
    left = settle(partial(open_transactions, session))
    if left:
        names = ", ".join(str(other) for other in list(left.values())[:3])
        return Horizon(after, f"nothing new is read while {names} is open: older values may still be committed")
    return Horizon(high)
