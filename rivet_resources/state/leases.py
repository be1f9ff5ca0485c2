"""Who is working on a window right now: one row per export and window, renewed while its process lives.

Belongs here: the table `export_lease`, taking, renewing and giving back. Not here: the last word; two winners of one
window are impossible even if a lease fails, because the manifest swap is fenced (`commit/publish.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Column, Connection, Double, Integer, Table, Text, delete, select, update

from rivet_resources.errors import StateError, WindowBusy, WindowTaken
from rivet_resources.state.database import METADATA, PATIENCE_SECONDS, Database, Instant, insert, now
from rivet_resources.state.process import Process, is_alive, is_here, this_process
from rivet_resources.state.scopes import name_in

# As long as a process waits for a store that is away: what cannot renew its lease ends by itself when that has expired.
# Six beats fit in, so one that is late takes nothing away.
TTL = timedelta(seconds=PATIENCE_SECONDS)
BEAT_SECONDS = 10

export_lease = Table(
    "export_lease",
    METADATA,
    Column("export_name", Text, primary_key=True),
    Column("window_key", Text, primary_key=True),
    Column("run_id", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("process_start", Double, nullable=False),
    Column("process_space", Text),
    Column("acquired_at", Instant, nullable=False),
    Column("expires_at", Instant, nullable=False),
)


@dataclass(frozen=True)
class Holder:
    """One row: which run of which process works on a window, and until when it is believed to."""

    export: str
    window: str
    run_id: str
    process: Process
    acquired_at: datetime
    expires_at: datetime

    @property
    def name(self) -> str:
        """Name it for people."""
        return f"run {self.run_id} (process {self.process.pid} on {self.process.host})"

    def holds(self, at: datetime) -> bool:
        """Return whether the lease still counts: not expired, and not of a process that we see to be dead."""
        # Expired counts even where the process still lives: it may hang, and nobody shall wait for it for ever.
        if self.expires_at <= at:
            return False
        return is_alive(self.process) if is_here(self.process) else True


@dataclass(frozen=True)
class Lease:
    """A window held by a run."""

    database: Database
    export: str
    window: str
    run_id: str

    def check(self) -> None:
        """Prove that the window is still ours, and keep it for another `TTL`.

        Raises:
            WindowTaken: another run took it over, since this one gave no sign of life for too long.
        """
        # Renewed and not only read, so that what follows has a whole `TTL`, also where the last beats failed.
        is_ours, taker = self.database.patiently(self._renew)
        if is_ours:
            return
        by = taker.name if taker else "another run, which has ended"
        raise WindowTaken(
            f"Window {self.window} of export {name_in(self.export)} was taken from run {self.run_id} by {by}, after no "
            f"sign of life for {TTL.seconds} s. This run publishes nothing; run again if the other one did not finish."
        )

    def _renew(self) -> tuple[bool, Holder | None]:
        with self.database.write() as connection:
            if renew(connection, self.export, self.window, self.run_id):
                return True, None
            return False, holder(connection, self.export, self.window)


@contextmanager
def hold(database: Database, export: str, window: str, run_id: str) -> Iterator[Lease]:
    """Hold a window until the block ends; a daemon thread gives the sign of life.

    Raises:
        WindowBusy: a living run holds it; the message names it.
    """
    is_again = False

    def take() -> None:
        nonlocal is_again
        with database.write() as connection:
            # Taken, it may be, by our own try: the line broke before the server's word came.
            if not (is_again and renew(connection, export, window, run_id)):
                is_again = True
                acquire(connection, export, window, run_id)

    def give_back() -> None:
        with database.write() as connection:
            release(connection, export, window, run_id)

    database.patiently(take)
    ended = threading.Event()
    about = (database, export, window, run_id, ended)
    # A daemon thread, so that a process that ends by an exception elsewhere is not kept alive by its sign of life.
    beat = threading.Thread(target=_beat, args=about, daemon=True, name=f"lease-{run_id}")
    beat.start()
    try:
        yield Lease(database, export, window, run_id)
    finally:
        ended.set()
        # Not longer: the thread may be waiting for a store that is away.
        beat.join(timeout=BEAT_SECONDS)
        # Not given back, it expires; the block's end counts.
        with suppress(StateError):
            database.patiently(give_back)


def acquire(connection: Connection, export: str, window: str, run_id: str) -> None:
    """Write our row, over one that no longer counts.

    Raises:
        WindowBusy: the row of a living run stands there.
    """
    # The store's clock and not this machine's: expiry is compared by other hosts.
    me, at = this_process(), now(connection)
    values = {
        "run_id": run_id,
        "host": me.host,
        "pid": me.pid,
        "process_start": me.start,
        "process_space": me.space,
        "acquired_at": at,
        "expires_at": at + TTL,
    }
    # Insert first, then look: a look that finds nothing says nothing about the instant after it.
    first = insert(connection, export_lease).values(export_name=export, window_key=window, **values)
    # SQLAlchemy keeps the row count of an INSERT only when asked.
    if connection.execute(first.on_conflict_do_nothing(), execution_options={"preserve_rowcount": True}).rowcount == 1:
        return
    held = holder(connection, export, window)
    # Two runs that find the same dead row take it one after the other: `holder` has locked it until our commit.
    if held is not None and held.holds(at):
        raise WindowBusy(
            f"Window {window} of export {name_in(export)} is held by {held.name} since "
            f"{held.acquired_at:%Y-%m-%d %H:%M:%S} UTC. Wait for it, or end that process: the window is then free "
            f"at once on the same host, and after {TTL.seconds} s elsewhere."
        )
    if connection.execute(update(export_lease).where(_key(export, window)).values(**values)).rowcount == 0:
        acquire(connection, export, window, run_id)  # given back between our two statements


def renew(connection: Connection, export: str, window: str, run_id: str) -> bool:
    """Push the expiry out; False when the row is no longer ours."""
    # By run id: after a takeover the row is another run's, and must not be kept alive by us.
    change = update(export_lease).where(_key(export, window), export_lease.c.run_id == run_id)
    return connection.execute(change.values(expires_at=now(connection) + TTL)).rowcount == 1


def release(connection: Connection, export: str, window: str, run_id: str) -> None:
    """Release the window, if it is ours."""
    connection.execute(delete(export_lease).where(_key(export, window), export_lease.c.run_id == run_id))


def holder(connection: Connection, export: str, window: str) -> Holder | None:
    """Read who stands in the row, whether or not it still counts; on a server the row is locked until the commit."""
    row = connection.execute(select(export_lease).where(_key(export, window)).with_for_update()).one_or_none()
    return None if row is None else _holder(row)


def holders(connection: Connection, export: str | None = None) -> list[Holder]:
    """List the leases that still count, by export and window."""
    query = select(export_lease).order_by(export_lease.c.export_name, export_lease.c.window_key)
    if export is not None:
        query = query.where(export_lease.c.export_name == export)
    at = now(connection)
    return [found for found in map(_holder, connection.execute(query)) if found.holds(at)]


def _beat(database: Database, export: str, window: str, run_id: str, ended: threading.Event) -> None:
    ours = True
    while ours and not ended.wait(BEAT_SECONDS):
        # A store that is away for a moment: try again.
        with suppress(StateError), database.write() as connection:
            # Once it is another's it stays so; the run finds out by `check`, before it publishes.
            ours = renew(connection, export, window, run_id)


def _key(export: str, window: str):  # type: ignore[no-untyped-def]  # a SQLAlchemy boolean clause
    return (export_lease.c.export_name == export) & (export_lease.c.window_key == window)


def _holder(row) -> Holder:  # type: ignore[no-untyped-def]  # a row of export_lease
    process = Process(row.host, row.pid, row.process_start, row.process_space)
    return Holder(row.export_name, row.window_key, row.run_id, process, row.acquired_at, row.expires_at)
