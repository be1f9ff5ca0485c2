"""How far an incremental read may go on PostgreSQL without skipping a row that commits late.

A row is skipped when it is not visible in the snapshot we read, yet its cursor value is not above the `high` we
commit. Belongs here: finding a `high` for which that cannot happen. Not here: reading (pages.py).

Stamps (timestamp, timestamptz, date) that the database takes at or after its transaction's start. Call S the
instant of our snapshot and A an earlier instant at which we listed the open transactions. A transaction that S
does not show was either open at A, so that its start is in the list, or began after A. Hence every stamp that S does
not show is at or above cap = least(A, oldest start in the list). The order is the point: listed *after* S, a
transaction that committed between S and the list would be in neither. So `floor` runs before the transaction
begins that takes the snapshot. 250 ms are taken off for the moment between a start and its entry in the list.
A prepared transaction shows when it was prepared, not when it began: five minutes are assumed between the two.

Everything else (integers, text, uuid, numeric) has no clock. `high` is frozen as MAX first; then every transaction
open at that moment is waited for, two seconds at most; only then the snapshot is taken again. What it does not show
began after the freeze, so its values are above `high` as long as values are given out in order (a sequence with
CACHE above 1, or values made by an application, need `cursor_lag` on a stamp instead). If one does not end, nothing
new is read this time. The same wait serves stamps when the user may not see when others' transactions began.

Our own sessions (application_name rivet:…) are read-only and never hold anything back.
Measured on the prototype: 4 writers, transactions up to 1.5 s: rows missed 25 % without a cap, none below it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Protocol, Self

from rivet_resources.contracts.relation import Relation
from rivet_resources.contracts.source import Horizon
from rivet_resources.contracts.types import Column
from rivet_resources.engines.postgres import sql
from rivet_resources.engines.postgres.catalog import Catalog
from rivet_resources.engines.shared.future_stamps import Looking, ahead
from rivet_resources.engines.shared.settling import settle
from rivet_resources.errors import SourceError

MARGIN = timedelta(milliseconds=250)
PREPARED_MARGIN = timedelta(minutes=5)
STANDBY_LAG = timedelta(seconds=60)
STAMPS = frozenset({"timestamp", "timestamptz", "date"})
DIGITS = re.compile(r"\((\d)\)")  # of a second: timestamp(3) with time zone

# Who else may write in this database. Hidden rows have no backend_type: they must be noticed, not trusted.
OTHERS = """a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.application_name NOT LIKE 'rivet:%'
      AND coalesce(a.backend_type, '') NOT IN ('autovacuum worker', 'walsender', 'parallel worker')"""

FLOOR = f"""
SELECT pg_is_in_recovery(), statement_timestamp(), current_setting('log_timezone'),
       count(*) FILTER (WHERE a.backend_type IS NULL),
       min(a.xact_start), (array_agg(a.pid ORDER BY a.xact_start) FILTER (WHERE a.xact_start IS NOT NULL))[1],
       (SELECT min(prepared) FROM pg_prepared_xacts WHERE database = current_database())
FROM pg_stat_activity a WHERE {OTHERS}"""

# Every transaction, however little it has done, holds the lock on its own virtual id, and everyone may see it.
OPEN = f"""
SELECT l.virtualtransaction, a.pid, a.xact_start FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'virtualxid' AND l.mode = 'ExclusiveLock' AND l.granted AND {OTHERS}
UNION ALL
SELECT 'prepared ' || transaction::text, 0, prepared FROM pg_prepared_xacts WHERE database = current_database()"""


@dataclass(frozen=True)
class Floor:
    """What was open just before the snapshot; `cap` is None when it cannot be told."""

    asked_at: datetime
    cap: datetime | None
    zone: str  # the server's own, in which naive stamps may have been taken
    is_standby: bool = False
    note: str = ""  # who holds the cap below `asked_at`
    held_seconds: float = 0.0  # for how long


class HorizonSession(Catalog, Looking, Protocol):
    """What this module needs from a session."""

    @property
    def floor(self) -> Floor | None: ...

    def typed(self, relation: Relation, expression: str) -> tuple[str, str]: ...

    def restart(self) -> None: ...

    def beside(self) -> AbstractContextManager[Self]: ...


@dataclass(frozen=True)
class _Other:
    """One open transaction of somebody else."""

    pid: int
    since: datetime | None

    def __str__(self) -> str:
        who = f"pid {self.pid}" if self.pid else "a prepared transaction"
        return (
            f"{who} (open since {self.since:%Y-%m-%d %H:%M:%S} UTC)"
            if self.since
            else f"{who} (its start is not shown to this user)"
        )


def floor(session: HorizonSession) -> Floor:
    """List the open transactions; must run outside a transaction, before the snapshot is taken."""
    standby, now, zone, hidden, oldest, pid, prepared = session.ask(FLOOR, doing="listing open transactions")[0]
    # Of a standby the list is that of its own sessions; of hidden rows no start is known. Neither may be taken for
    # "nobody is open".
    if standby or hidden:
        return Floor(asked_at=now, cap=None, zone=zone, is_standby=standby)
    cap, note = now, ""
    if oldest is not None and oldest < now:
        cap, note = oldest, f"held back by {_Other(pid, oldest.astimezone(UTC))}"
    if prepared is not None and prepared - PREPARED_MARGIN < cap:
        cap, note = prepared - PREPARED_MARGIN, f"held back by {_Other(0, prepared.astimezone(UTC))}"
    return Floor(asked_at=now, cap=cap - MARGIN, zone=zone, note=note, held_seconds=(now - cap).total_seconds())


def horizon(
    session: HorizonSession,
    relation: Relation,
    expression: str,
    column: Column,
    *,
    after: str | None,
    lag_seconds: float,
) -> Horizon:
    """Find the greatest value below which nothing can appear any more; `after` itself when there is nothing new.

    May take the session's snapshot again: plan chunks after this call.

    Raises:
        SourceError: the greatest value is infinite.
    """
    if column.fact("base") in STAMPS:
        return _stamp_horizon(session, relation, expression, column, after=after, lag=timedelta(seconds=lag_seconds))
    return _settle_horizon(session, relation, expression, column, after=after)


# --- stamps --------------------------------------------------------------------------------------


def _stamp_horizon(
    session: HorizonSession, relation: Relation, expression: str, column: Column, *, after: str | None, lag: timedelta
) -> Horizon:
    cap, note = _cap(session, lag)
    floor = session.floor
    assert floor is not None, "a session lists open transactions when it begins"
    if cap is None:
        return Horizon(after, note)
    zone, cap = floor.zone, _floor(cap, relation, expression, column)
    spelled, base = session.typed(relation, expression)
    # Below, not up to: a transaction that starts at the cap may still take that very instant as its stamp.
    bounds = [f"{spelled} < {_cap_sql(cap, base, zone)}"]
    if after is not None:
        bounds.append(f"{spelled} > {sql.literal(after, column)}")
    greatest = sql.canonical_sql(f"max({spelled})", base)
    below = sql.select([greatest], relation=relation.sql, where=bounds)
    newest = sql.select([greatest], relation=relation.sql)
    rows = session.ask(f"SELECT ({below}), ({newest})", doing=f"finding the newest row of {relation.name}")
    high, top = rows[0]
    check_finite(top, relation=relation.name, expression=expression)
    waits = ""
    if top is not None and top != (high or after):
        future = ahead(session, relation, spelled, column, newest=top, literal=sql.literal)
        waits = "; ".join(filter(None, (note, future))) or "rows of the last moment wait for the next run"
    return Horizon(
        high or after,
        waits,
        doubt=_doubt(floor, lag),
        held_seconds=floor.held_seconds,
    )


def _floor(cap: datetime, relation: Relation, expression: str, column: Column) -> datetime:
    """Cut the cap to what the column can hold: a `timestamp(0)` rounds a stamp to below the instant it was taken at."""
    found = DIGITS.search(column.native)
    digits = int(found[1]) if found else 6
    # Of a fallback column nobody told.
    if relation.column(expression) is None:
        digits = 0
    step = 10 ** (6 - min(digits, 6))
    return cap.replace(microsecond=cap.microsecond // step * step)


def _doubt(floor: Floor, lag: timedelta) -> str:
    """Return why open transactions could not be seen; '' when they were, or were waited for."""
    if floor.is_standby:
        return STANDBY
    return HIDDEN if floor.cap is None and lag else ""


def _cap(session: HorizonSession, lag: timedelta) -> tuple[datetime | None, str]:
    """Return the instant below which every stamp is visible in the session's snapshot, and who holds it back."""
    known = session.floor
    assert known is not None, "a session lists open transactions when it begins"
    if known.is_standby:
        # Open transactions of the primary are not shown here, whatever was asked for: never less than this far
        # behind.
        lag = max(lag, STANDBY_LAG)
        behind = f"stayed {lag.total_seconds():.15g} s behind (cursor_lag)"
        note = f"{STANDBY}; {behind}"
        return known.asked_at - lag, note
    if lag and known.cap is None:
        return known.asked_at - lag, f"stayed cursor_lag behind; {HIDDEN}"
    if known.cap is None:
        return _settle_cap(session)
    if lag and known.asked_at - lag < known.cap:
        return known.asked_at - lag, f"stayed {lag.total_seconds():.15g} s behind (cursor_lag)"
    return known.cap, known.note


STANDBY = "a standby does not show the primary's open transactions"
HIDDEN = "this user may not see when other transactions began (GRANT pg_read_all_stats would let it)"


def _settle_cap(session: HorizonSession) -> tuple[datetime | None, str]:
    """Wait until whoever is open now has ended; what the new snapshot does not show began after that."""
    # The clock first, then the list: whoever begins between them is in neither, and starts above this instant.
    now = session.now()
    with session.beside() as beside:
        left = settle(partial(_open, beside))
    if left:
        return None, f"nothing new is read while {_names(left)} is open; {HIDDEN}"
    # The snapshot of before would not show what was waited for.
    session.restart()
    return now - MARGIN, f"waited for open transactions to end; {HIDDEN}"


def _cap_sql(cap: datetime, base: str, zone: str) -> str:
    """Render the cap for a column. Naive stamps may be UTC or the server's zone: the earlier one is safe for both."""
    instant = f"'{cap.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}+00'::timestamptz"
    if base == "timestamptz":
        return instant
    naive = f"least({instant} AT TIME ZONE 'UTC', {instant} AT TIME ZONE {sql.quote_text(zone)})"
    # A date may still grow until its day is over.
    return naive if base == "timestamp" else f"({naive})::date"


# --- cursors without a clock ---------------------------------------------------------------------


def _settle_horizon(
    session: HorizonSession, relation: Relation, expression: str, column: Column, *, after: str | None
) -> Horizon:
    spelled, base = session.typed(relation, expression)
    where = [f"{spelled} > {sql.literal(after, column)}"] if after is not None else []
    # ORDER BY and not max(): uuid has no max() before PostgreSQL 18, and both take the last index entry.
    newest = sql.select(
        # Not the column's own name: ORDER BY would take it.
        [f"{sql.canonical_sql(spelled, base)} AS _rivet_high"],
        relation=relation.sql,
        where=[*where, f"{spelled} IS NOT NULL"],
        order_by=[f"{spelled} DESC"],
        limit=1,
    )
    # On a connection of its own: this session's snapshot does not see what was committed since it began.
    with session.beside() as beside:
        rows = beside.ask(newest, doing=f"finding the newest row of {relation.name}")
        high = rows[0][0] if rows else None
        check_finite(high, relation=relation.name, expression=expression)
        left = settle(partial(_open, beside)) if high is not None else {}
    if high is None:
        return Horizon(after)
    if left:
        return Horizon(after, f"nothing new is read while {_names(left)} is open: older values may still be committed")
    session.restart()
    standby = session.floor is not None and session.floor.is_standby
    return Horizon(high, f"{STANDBY}: a late commit can be missed" if standby else "")


def _open(beside: HorizonSession) -> dict[str, _Other]:
    rows = beside.ask(OPEN, doing="listing open transactions")
    return {row[0]: _Other(row[1], row[2].astimezone(UTC) if row[2] else None) for row in rows}


def _names(others: Mapping[str, _Other]) -> str:
    return ", ".join(str(other) for other in list(others.values())[:3])


def check_finite(text: Any, *, relation: str, expression: str) -> None:
    """Refuse a bound that is no finite value.

    Raises:
        SourceError
    """
    if text in ("infinity", "-infinity", "Infinity", "-Infinity", "NaN"):
        raise SourceError(
            f"{expression} of {relation} holds {text}, which cannot be a cursor or key: nothing would ever come "
            f"after it. "
            f"Clean the source, or choose another column."
        )
