"""How far an incremental read may go on MySQL without skipping a row that commits late.

A row is skipped when it is not visible in the snapshot we read, yet its cursor value is not above the `high` we
commit. Belongs here: finding a `high` for which that cannot happen. Not here: reading (pages.py).

Stamps (timestamp, datetime, date) that the database takes: NOW() is fixed when a statement starts. Before any snapshot
is taken we list, in this order, the clock, the running statements, and, once InnoDB's list is fresh, the open
transactions. A stamp that a later snapshot does not show was taken by a statement that began after the clock was read,
or was still running then, or belongs to a transaction in the list, whose first statement began with it. Hence
cap = least(clock, oldest running statement, oldest open transaction) - 2 s: stamps are cut to whole seconds, and so are
the server's own times. Listed the other way round, a statement that ended between the two lists would be in neither.

Everything else (integers, text, uuid, decimals) has no clock. `high` is frozen as MAX first; then every transaction
open at that moment is waited for, two seconds at most. What a later snapshot does not show began after the freeze, so
its values are above `high` as long as values are given out in order (AUTO_INCREMENT with interleaved masters, or values
made by an application, need `cursor_lag` on a stamp instead). If one does not end, nothing new is read this time.

Read-only transactions never hold anything back, ours among them; our statements begin with a comment that names us.
Source: MySQL 9 manual, "The INFORMATION_SCHEMA INNODB_TRX Table", "XA Transaction SQL Statements"; `connectors.md`, 11.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

from rivet_resources.contracts.relation import Relation
from rivet_resources.contracts.source import Horizon
from rivet_resources.contracts.types import Column
from rivet_resources.engines.mysql import sql
from rivet_resources.engines.mysql.catalog import Catalog
from rivet_resources.engines.shared.future_stamps import Looking, ahead
from rivet_resources.errors import SourceError, SourcePermission

MARGIN = timedelta(seconds=2)
BLIND_LAG = timedelta(seconds=60)  # for replicas, and users who may not see transactions
# InnoDB fills its list of transactions at most every 0.1 s and shows the old one in between.
FRESH_SECONDS = 0.12
SETTLE_SECONDS = 2.0
STAMPS = frozenset({"timestamp", "datetime", "date"})

# A replica's applier runs as `system user`; background threads do too, as daemons.
# `time` is in whole seconds, so a statement may have begun up
# to one earlier than it says: `- INTERVAL time + 1 SECOND`.
STATEMENTS = """
SELECT id, user, command, UTC_TIMESTAMP(6) - INTERVAL time + 1 SECOND, info LIKE '/* rivet:%'
FROM information_schema.processlist
WHERE id <> CONNECTION_ID() AND command NOT IN ('Sleep', 'Daemon', 'Binlog Dump', 'Binlog Dump GTID', 'Ping', 'Quit',
  'Statistics', 'Register Slave', 'Table Dump', 'Clone')"""

# trx_started is in the zone of the server's machine, whatever the session says. In the hour that a change of clocks
# repeats it means two instants: the earlier one is safe.
TRANSACTIONS = """
SELECT trx_id, trx_mysql_thread_id, trx_is_read_only,
       CASE WHEN CONVERT_TZ(began - INTERVAL 1 HOUR, '+00:00', 'SYSTEM') = trx_started
            THEN began - INTERVAL 1 HOUR ELSE began END
FROM (SELECT trx_id, trx_mysql_thread_id, trx_is_read_only, trx_started,
             CONVERT_TZ(trx_started, 'SYSTEM', '+00:00') AS began FROM information_schema.innodb_trx) AS _rivet_trx
WHERE trx_mysql_thread_id <> CONNECTION_ID()"""

NEEDS_PROCESS = "this user may not see other transactions (GRANT PROCESS ON *.* TO {user} would let it)"
IDLE_COMMANDS = frozenset({"Connect", "Connect Out"})


class HorizonSession(Catalog, Looking, Protocol):
    """What this module needs from a session."""

    def typed(self, relation: Relation, expression: str) -> tuple[str, str]: ...


@dataclass(frozen=True)
class _Other:
    """One open transaction, or running statement, of somebody else."""

    connection: int  # 0: a prepared XA transaction, which needs none
    since: datetime | None

    def __str__(self) -> str:
        who = f"connection {self.connection}" if self.connection else "a prepared XA transaction"
        return f"{who} (open since {self.since:%Y-%m-%d %H:%M:%S} UTC)" if self.since else who


@dataclass(frozen=True)
class _Activity:
    """What was open just before any snapshot."""

    asked_at: datetime
    others: tuple[_Other, ...]  # that may still write
    is_replica: bool

    @property
    def oldest(self) -> _Other | None:
        known = [other for other in self.others if other.since is not None]
        return min(known, key=lambda other: other.since or self.asked_at, default=None)


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

    Raises:
        SourceError: the greatest value is a zero date.
    """
    spelled, base = session.typed(relation, expression)
    if base in STAMPS:
        cap = _cap(session, timedelta(seconds=lag_seconds))
        return _stamp_horizon(session, relation, (spelled, base), column, after=after, cap=cap)
    return _settle_horizon(session, relation, (spelled, base), column, after=after)


# --- who may still write -------------------------------------------------------------------------


def _activity(session: HorizonSession) -> _Activity:
    """List running statements, then open transactions; the order is the point.

    Raises:
        SourcePermission: this user may not see others' transactions.
    """
    # In this order. The other way round, whoever ends between two of these looks would be in neither.
    asked_at = session.now()
    running = session.ask(STATEMENTS, doing="listing running statements")
    # Asked earlier, InnoDB might answer with a list that is older than the one of statements.
    time.sleep(FRESH_SECONDS)
    transactions = session.ask(TRANSACTIONS, doing="listing open transactions")
    readers = {row[1] for row in transactions if row[2] == "1"}
    # A transaction without a connection may be a prepared one, which can still commit; only then is it worth asking
    # for those.
    prepared = _has_prepared(session) if any(row[1] == "0" for row in transactions) else False
    others = [
        _Other(int(row[1] or 0), _instant(row[3]))
        for row in transactions
        if row[2] != "1" and (row[1] != "0" or prepared)
    ]
    others += [
        _Other(int(row[0] or 0), _instant(row[3]))
        for row in running
        if row[0] not in readers and row[4] != "1" and row[2] not in IDLE_COMMANDS
    ]
    return _Activity(asked_at, tuple(others), is_replica=any(row[1] == "system user" for row in running))


def _instant(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text).replace(tzinfo=UTC) if text else None


def _has_prepared(session: HorizonSession) -> bool:
    """Return whether prepared XA transactions exist; yes when this user may not know (XA_RECOVER_ADMIN)."""
    try:
        return bool(session.ask("XA RECOVER", doing="listing prepared transactions"))
    except SourceError:
        # Held back for a prepared transaction that may not exist: this side of a doubt loses no row.
        return True


# --- stamps --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Cap:
    """The instant below which every stamp is visible from now on, and who holds it back."""

    at: datetime
    note: str = ""
    doubt: str = ""
    held_seconds: float = 0.0


def _cap(session: HorizonSession, lag: timedelta) -> _Cap:
    """Find the cap; a lag asked for may lower it."""
    try:
        activity = _activity(session)
    except SourcePermission:
        return _behind(session.now(), lag, NEEDS_PROCESS.format(user=session.user))
    if activity.is_replica:
        return _behind(activity.asked_at, lag, "a replica does not show its primary's open transactions")
    cap, note = activity.asked_at, ""
    oldest = activity.oldest
    if oldest is not None and oldest.since is not None and oldest.since < cap:
        cap, note = oldest.since, f"held back by {oldest}"
    held = (activity.asked_at - cap).total_seconds()
    # A lag that was asked for holds only where it is lower than the cap; it never raises it.
    if lag and activity.asked_at - lag < cap - MARGIN:
        stayed = f"stayed {lag.total_seconds():.15g} s behind (cursor_lag)"
        return _Cap(activity.asked_at - lag, stayed, held_seconds=held)
    return _Cap(cap - MARGIN, note, held_seconds=held)


def _behind(now: datetime, lag: timedelta, why: str) -> _Cap:
    lag = max(lag, BLIND_LAG)
    return _Cap(now - lag, f"{why}; stayed {lag.total_seconds():.15g} s behind (cursor_lag)", doubt=why)


def _stamp_horizon(
    session: HorizonSession,
    relation: Relation,
    spelling: tuple[str, str],
    column: Column,
    *,
    after: str | None,
    cap: _Cap,
) -> Horizon:
    spelled, base = spelling
    limit = _cap_sql(cap.at, base)
    bounds = [f"{spelled} < {limit}"]
    if after is not None:
        bounds.append(f"{spelled} > {sql.literal(after, column)}")
    greatest = sql.canonical_sql(f"MAX({spelled})", base)
    below = sql.select([greatest], relation=relation.sql, where=bounds)
    newest = sql.select([greatest], relation=relation.sql)
    earlier = f"TIMESTAMPDIFF(HOUR, {limit}, {_cap_sql(cap.at, 'timestamp')})" if base == "datetime" else "0"
    # In one statement: `top` shows whether rows wait above the cap, and two statements would see two instants.
    rows = session.ask(f"SELECT ({below}), ({newest}), {earlier}", doing=f"finding the newest row of {relation.name}")
    high, top, hours = rows[0]
    check_real(high, base=base, relation=relation.name, expression=spelled)
    if top is None or top == (high or after):
        return Horizon(high or after, doubt=cap.doubt, held_seconds=cap.held_seconds)
    waits = f"{spelled} has no zone and may be in the server's: rows of its last {hours} hours wait for the next run"
    future = ahead(session, relation, spelled, column, newest=top, literal=sql.literal)
    note = "; ".join(filter(None, (cap.note, future)))
    note = note or (waits if hours != "0" else "rows of the last moment wait for the next run")
    return Horizon(high or after, note, doubt=cap.doubt, held_seconds=cap.held_seconds)


def _cap_sql(cap: datetime, base: str) -> str:
    """Render the cap for a column. Naive stamps may be UTC or the server's zone: the earlier one is safe for both."""
    instant = f"TIMESTAMP'{cap.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}'"
    if base == "timestamp":
        return instant
    # NULL when the server has no tables of zones.
    local = f"CONVERT_TZ({instant}, '+00:00', @@global.time_zone)"
    # No zone that the server takes is further behind UTC than -13:59.
    naive = f"LEAST({instant}, COALESCE({local}, {instant} - INTERVAL 14 HOUR))"
    # A date may still grow until its day is over.
    return naive if base == "datetime" else f"DATE({naive})"


# --- cursors without a clock ---------------------------------------------------------------------


def _settle_horizon(
    session: HorizonSession, relation: Relation, spelling: tuple[str, str], column: Column, *, after: str | None
) -> Horizon:
    spelled, base = spelling
    where = [f"{spelled} > {sql.literal(after, column)}"] if after is not None else []
    newest = sql.select([sql.canonical_sql(f"MAX({spelled})", base)], relation=relation.sql, where=where)
    # Frozen before anybody is waited for: what a later snapshot does not show began after it.
    high = session.ask(newest, doing=f"finding the newest row of {relation.name}")[0][0]
    if high is None:
        return Horizon(after)
    try:
        left, is_replica = _settle(session)
    except SourcePermission:
        return Horizon(high, f"{NEEDS_PROCESS.format(user=session.user)}: a late commit can be missed")
    if left:
        return Horizon(after, f"nothing new is read while {_names(left)} is open: older values may still be committed")
    return Horizon(
        high,
        "a replica does not show its primary's open transactions: a late commit can be missed" if is_replica else "",
    )


def _settle(session: HorizonSession) -> tuple[Mapping[_Other, None], bool]:
    """Wait for the transactions open now to end; give the ones that did not, and whether this is a replica."""
    time.sleep(FRESH_SECONDS)
    activity = _activity(session)
    left = {other: None for other in _open(activity)}
    deadline = time.monotonic() + SETTLE_SECONDS
    while left and time.monotonic() < deadline:
        still = set(_open(_activity(session)))
        # Of the first look only: who began later gives out values above `high`.
        left = {other: None for other in left if other in still}
    return left, activity.is_replica


def _open(activity: _Activity) -> tuple[_Other, ...]:
    return activity.others


def _names(others: Mapping[_Other, None]) -> str:
    return ", ".join(str(other) for other in list(others)[:3])


def check_real(text: str | None, *, base: str, relation: str, expression: str) -> None:
    """Refuse a bound that is a zero or partial date.

    Raises:
        SourceError
    """
    if text is not None and base in STAMPS and not sql.is_day(text[:10]):
        raise SourceError(
            f"{expression} of {relation} holds zero or partial dates, which cannot be a cursor or key. "
            f"Clean the source, or choose another column."
        )
