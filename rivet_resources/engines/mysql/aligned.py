"""Several connections at one instant (`consistency: aligned`): they meet at the server itself.

Belongs here: the meeting, and the connections that tasks keep from chunk to chunk. Not here: reading (`reader.py`).

MySQL shares no snapshot, so each task begins its own transaction while a short lock holds commits back, as mydumper
does. The tasks may be processes on other hosts, so they tell each other by named locks of the server, which vanish with
their connections, whoever dies:

    leader   holds `open`, waits for every task's `r<n>`
    task     takes `r<n>`, waits for `go`
    leader   LOCK TABLES … READ (of a query: FLUSH TABLES WITH READ LOCK), then takes `go`
    task     START TRANSACTION WITH CONSISTENT SNAPSHOT, takes `s<n>`
    leader   has seen every `s<n>`: UNLOCK TABLES, and `open` ends with its connection

Only the three steps in the middle hold anybody up: two polls and one statement per task. A task that comes when `open`
is gone has missed the instant. Source: MySQL 8.0 Reference Manual, 12.14 "Locking Functions", 13.3.1, 13.3.6.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from rivet_resources.contracts.aligning import Meeting
from rivet_resources.engines.mysql import errors
from rivet_resources.engines.mysql.connect import ConnectionParams, connect, rows_of
from rivet_resources.errors import RivetError, SnapshotLost, SourceLost, SourcePermission

# A statement that waits for the lock holds up everybody behind it, so it waits for a short time, a few times.
LOCK_SECONDS, LOCK_TRIES, PAUSE_SECONDS = 3, 4, 2.0
# For Spark to begin all tasks; nothing is locked meanwhile.
READY_SECONDS = 300
# For the tasks to begin their transactions, under the lock.
BEGIN_SECONDS = 10
POLL_SECONDS = 0.02
LOCK_WAIT_TIMEOUT = 1205  # ER_LOCK_WAIT_TIMEOUT
# ER_DBACCESS_DENIED_ERROR: LOCK TABLES is a right on databases.
FORBIDDEN = errors.PERMISSION | {1044}
# Both servers take these; the isolation level was pinned. Only InnoDB and its kin give a snapshot.
ONE_INSTANT = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"

# Place → the connection of a task in this process, and when its transaction began.
_held: dict[str, tuple[Any, float]] = {}


def open_meeting(conn_params: ConnectionParams, meeting: Meeting, *, ended: threading.Event) -> Callable[[], float]:
    """Open a meeting; see `Aligns.align`."""
    leader = _Leader(conn_params, meeting, ended)

    def lead() -> float:
        try:
            return leader.run()
        except RivetError:
            raise
        except Exception as error:
            raise errors.fault(error, doing="aligning snapshots", secrets=conn_params.secrets) from None
        finally:
            leader.close()

    return lead


class _Leader:
    """The connection that locks."""

    def __init__(self, conn_params: ConnectionParams, meeting: Meeting, ended: threading.Event) -> None:
        self.conn_params, self.meeting, self.ended = conn_params, meeting, ended
        self.connection = connect(conn_params)
        # Before any task is started: one that does not find `open` takes the meeting for over.
        self._ask(f"SELECT GET_LOCK('{_lock(meeting.name, 'open')}', 0)")

    def close(self) -> None:
        """End the connection, and every lock with it."""
        self.connection._force_close()

    def run(self) -> float:
        """Wait, lock, wait, unlock; the seconds between the last two."""
        tasks = range(self.meeting.tasks)
        self._await([f"r{number}" for number in tasks], READY_SECONDS, "began")
        if self.ended.is_set():
            return 0.0
        # A meeting of one has nobody to agree with, so no writer is held back.
        if self.meeting.tasks > 1:
            self._lock_out_writers()
        began = time.monotonic()
        self._ask(f"SELECT GET_LOCK('{_lock(self.meeting.name, 'go')}', 0)")
        self._await([f"s{number}" for number in tasks], BEGIN_SECONDS, "took their snapshot")
        if self.meeting.tasks == 1:
            return 0.0
        # As soon as the last task has begun. An error before this line ends the connection, and the locks with it.
        self._ask("UNLOCK TABLES")
        return time.monotonic() - began

    def _lock_out_writers(self) -> None:
        """Wait until no transaction has written what is read, and keep new ones from it.

        Raises:
            SourcePermission, SourceLost
        """
        import pymysql  # driver

        # Of a query nobody knows which tables it reads, so the whole server is locked.
        one = self.meeting.relation
        # The shortest patience: a lock that waits stands in the queue before all statements that come after it.
        self._ask(f"SET SESSION lock_wait_timeout = {LOCK_SECONDS}")
        statement = f"LOCK TABLES {one} READ" if one else "FLUSH TABLES WITH READ LOCK"
        for _ in range(LOCK_TRIES):
            try:
                self._ask(statement)
                return
            except pymysql.MySQLError as error:
                if errors.code_of(error) in FORBIDDEN:
                    raise self._forbidden(one) from None
                if errors.code_of(error) != LOCK_WAIT_TIMEOUT:
                    raise
            # Between two tries the queue behind us runs empty.
            if self.ended.wait(PAUSE_SECONDS):
                return
        raise SourceLost(
            f"The lock for aligned snapshots of {one or 'the server'} was not to be had in {LOCK_TRIES} tries of "
            f"{LOCK_SECONDS} s: a transaction or a long statement uses what is read. Run again when it has ended, or "
            f"set `consistency: per_query` at the source."
        )

    def _forbidden(self, one: str) -> SourcePermission:
        user = self.conn_params.address.user
        right = "LOCK TABLES, SELECT ON <database>.*" if one else "RELOAD ON *.*"
        return SourcePermission(
            f"{user} may not take the lock for aligned snapshots of {one or 'a query, which locks the whole server'}. "
            f"Let an administrator run: GRANT {right} TO {user}; or set `consistency: per_query` at the source."
        )

    def _await(self, names: list[str], seconds: float, what: str) -> None:
        """Poll until all of these locks are held, or nobody waits any more.

        Raises:
            SourceLost: they are not in time.
        """
        # One statement for all locks, since each poll is one more round trip under the lock.
        asked = ", ".join(f"IS_USED_LOCK('{_lock(self.meeting.name, name)}') IS NOT NULL" for name in names)
        deadline = time.monotonic() + seconds
        while not self.ended.is_set():
            (row,) = self._ask(f"SELECT {asked}")
            there = sum(cell == "1" for cell in row)
            if there == len(names):
                return
            if time.monotonic() > deadline:
                raise SourceLost(
                    f"{there} of {len(names)} tasks {what} within {seconds} s, so there is no instant that all of them "
                    f"see. Lower `parallel`, and see that no proxy spreads connections over several servers."
                )
            time.sleep(POLL_SECONDS)

    def _ask(self, statement: str) -> Any:
        return rows_of(self.connection, self.conn_params.comment + statement)


def held(conn_params: ConnectionParams, place: str, *, on_join: Callable[[], None] = lambda: None) -> Any:
    """Return the connection of a task, in a transaction at the instant of its meeting; joins it the first time.

    Raises:
        SnapshotLost: the instant has gone by.
        SourceLost, SourceAuth, SourceError
    """
    # One connection per task and not per chunk: the instant is lost with the transaction.
    if place not in _held:
        connection = connect(conn_params)
        try:
            _join(connection, conn_params, place)
        except BaseException:
            # Half joined is not joined: without its connection the task's lock is gone, and the leader sees that it
            # is.
            connection._force_close()
            raise
        on_join()
        _held[place] = (connection, time.monotonic())
    return _held[place][0]


def is_held(place: str) -> bool:
    """Return whether a task of this process reads at the instant of a meeting."""
    return place in _held


def held_ms(place: str) -> float:
    """Return for how long a task has been in its transaction; 0 where it has none."""
    return (time.monotonic() - _held[place][1]) * 1000 if place in _held else 0.0


def drop(place: str) -> None:
    """End the connection of a task; the instant is lost with it, and safe to call twice."""
    connection, _ = _held.pop(place, (None, 0.0))
    if connection is not None:
        connection._force_close()


def lost(why: object) -> SnapshotLost:
    """Return that a task can no longer read at the instant of the others."""
    return SnapshotLost(
        f"{why} The instant that all tasks had begun at is gone for this one; going on would mix two. Nothing is "
        f"published; run again."
    )


def _join(connection: Any, conn_params: ConnectionParams, place: str) -> None:
    name, _, number = place.split(".")

    def ask(statement: str) -> Any:
        return rows_of(connection, conn_params.comment + statement)

    # Asked in one statement: between two, the leader could have gone.
    open_, go = (f"IS_USED_LOCK('{_lock(name, word)}')" for word in ("open", "go"))
    ask(f"SELECT GET_LOCK('{_lock(name, f'r{number}')}', 0)")
    while True:
        (is_open, is_on) = ask(f"SELECT {open_}, {go}")[0]
        if is_open is None:
            raise lost("A task came when the meeting for aligned snapshots had ended.")
        if is_on is not None:
            break
        time.sleep(POLL_SECONDS)
    ask(ONE_INSTANT)
    # Only now is the snapshot taken; the leader may let go as soon as it sees this lock.
    ask(f"SELECT GET_LOCK('{_lock(name, f's{number}')}', 0)")


def _lock(name: str, word: str) -> str:
    return f"rivet.{name}.{word}"
