"""SQL Server's change capture as a change log: windows of log positions over the change tables of the drain.

Belongs here: the `Log` methods, which position is where, when the log is to be trusted. Not here: statements
(sql.py), tables and types (tables.py), rows (rows.py), prerequisites
(preflight.py).

A capture job copies the transaction log into change tables, and a clean-up empties these after some days. So two
silences must not be taken for "no changes": a job that does not run (the newest transaction is old, and nothing came
since our position) and a clean-up that was faster than we (the least position is looked up again behind every
query). Reading takes nothing away from the source: nothing is acknowledged, and any number of drains may read.

A window holds the tables one after the other, each in log order; `__pos` tells how their changes interleave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b

from rivet_resources import retry
from rivet_resources.contracts.change_log import Capture, Changes, Commit, Lag, Position, Survey, TableComments
from rivet_resources.contracts.evidence import Finding
from rivet_resources.contracts.settings import Pace
from rivet_resources.contracts.source import Session
from rivet_resources.engines.sqlserver import session as sqlserver_session
from rivet_resources.engines.sqlserver.connect import ConnectionParams
from rivet_resources.engines.sqlserver.log import preflight as sqlserver_preflight
from rivet_resources.engines.sqlserver.log import sql
from rivet_resources.engines.sqlserver.log.connection import Asking, OutOfRange, Rows
from rivet_resources.engines.sqlserver.log.rows import Decoder
from rivet_resources.engines.sqlserver.log.tables import (
    CapturedTable,
    ChangeTables,
    Instance,
    instances_of,
    read_survey,
    type_captured,
)
from rivet_resources.engines.sqlserver.sql import quote_text
from rivet_resources.engines.sqlserver.values import items
from rivet_resources.errors import LogBusy, LogSetup, PositionLost, SourceError, SourceLost, SourcePermission

# The job of an idle database writes a marker about every 5 minutes (`cdc.md`, 6.2).
STALLED_SECONDS = 600
# Only for a position this old is it worth a statement to ask how long the clean-up leaves changes.
OLD_SECONDS = 3600
START_JOB = "EXEC sys.sp_cdc_start_job @job_type = N'capture'"


@dataclass(frozen=True)
class SnapshotCopy:
    """A copy of the tables, read in a session of its own; replaying what it holds already changes nothing."""

    session: Session

    def seen(self) -> str:
        """Return '': changes from before the copy come again, and later ones of a key win."""
        return ""

    def repeats_until(self, end: str) -> None:
        """Return None: the agent may still have to capture what the copy has seen, so the end tells nothing."""
        return None


@dataclass
class SqlServerLog:
    """One drain's view of the change tables; see the protocol. Not shared between threads."""

    capture: Capture
    conn_params: ConnectionParams
    pace: Pace
    asking: Asking = field(init=False)
    _beside: Asking = field(init=False)  # for what is asked while rows of a window stream in
    _look: ChangeTables | None = None
    _owns: bool = False

    def __post_init__(self) -> None:
        self.asking = Asking(self.conn_params, self.pace)
        self._beside = Asking(self.conn_params, self.pace)

    def close(self) -> None:
        """End the connections; safe to call twice."""
        self._beside.close()
        self.asking.close()

    # --- looking ---------------------------------------------------------------------------------

    def preflight(self) -> tuple[Finding, ...]:
        """Judge every prerequisite; nothing is changed."""
        return tuple(sqlserver_preflight.findings(self.capture, self.asking))

    def survey(self) -> Survey:
        """Look at the log with one statement: its end, its least positions, who the database is.

        Raises:
            LogSetup: capture is not enabled, a table is not captured, or the capture job has never run.
            SourcePermission, SourceLost, SourceError
        """
        look = self._look = read_survey(self.asking.ask(sql.SURVEY, doing="looking at the change tables"))
        instances = instances_of(self.capture, look.instances)
        if look.high is None:
            raise LogSetup(
                f"Capture is enabled and nothing was captured yet: the capture job has not run. Start SQL Server "
                f"Agent and the job ({START_JOB}), wait for its first scan, then run again."
            )
        if not look.guid:
            raise SourcePermission(
                f"User {self.conn_params.user} may not see this database in sys.database_recovery_status, so nothing "
                f"tells it from a restored copy. Let a sysadmin run: GRANT VIEW ANY DATABASE TO "
                f"{self.conn_params.user};"
            )
        return Survey(
            identity=f"database_guid:{look.guid}",
            target=sql.position_at(look.high),
            facts={
                "newest_seconds": look.age_seconds,
                **{f"least {instance.name}": sql.position_at(instance.low).text for instance in instances},
            },
        )

    def begin(self, *, again: bool = False) -> Position:
        """Return the newest position of the log: what commits later has a greater one.

        Just after a table was captured, its least position may lie beyond the newest; then right before that one.
        A dead `begin` left nothing at the source, so `again` changes nothing.

        Raises:
            LogBusy: another drain of this export runs.
            LogSetup
        """
        self._own()
        target = self.survey().target
        # Right before the greatest least, so that every table's first change lies behind it.
        least = max(instance.low for instance in self._instances()) - 1
        return sql.position_at(max(sql.lsn_of(target), least))

    def absent(self, table: str) -> frozenset[str]:
        """Name no column: every one is in the log; see the protocol."""
        return frozenset()

    def comments(self, table: str) -> TableComments:
        """Read a table's comments; see the protocol."""
        number = self._instances()[self.capture.tables.index(table)].number
        rows = self._beside.ask(sql.COMMENTS.format(number=number), doing=f"reading the comments of {table}")
        return TableComments("all", {str(name): str(text) for name, text in rows})

    def refuse_lost(self, at: Position, survey: Survey) -> tuple[()]:
        """Refuse a position that the clean-up has passed, and a log that does not move any more.

        Raises:
            PositionLost
            LogSetup: nothing came since our position, and the capture job does not run.
        """
        # An LSN is a number, so the one after it is the first that we have not read (sys.fn_cdc_increment_lsn).
        self._refuse_gone(sql.lsn_of(at) + 1, self._instances())
        age = survey.facts.get("newest_seconds")
        if survey.target.key <= at.key and age is not None and age > STALLED_SECONDS:
            raise LogSetup(
                f"The capture job is not running: the newest transaction in the log is {age // 60} minutes old, and "
                f"even an idle database writes a marker every 5. So nothing can be said of changes since. Start SQL "
                f"Server Agent and the job ({START_JOB}), then run again."
            )
        return ()

    @contextmanager
    def handover(self) -> Iterator[SnapshotCopy]:
        """Open a session that copies the tables, at one instant where the database allows SNAPSHOT isolation."""
        session = retry.call(
            lambda: sqlserver_session.open_session(self.conn_params, snapshot=True), pace=self.pace, on=SourceLost
        )
        try:
            yield SnapshotCopy(session)
        finally:
            session.close()

    # --- reading ---------------------------------------------------------------------------------

    def read(
        self,
        after: Position,
        upto: Position,
        *,
        most: int,
        seen: str = "",
        before_asking: Callable[[], None] = lambda: None,
    ) -> Iterator[Changes | Commit]:
        """Read one window, table after table; see the protocol.

        Raises:
            PositionLost: the clean-up passed our position, before or while we read.
            LogBusy, LogRefused, SourceLost, SourceError, ValueDoesNotFit
        """
        low, high = sql.lsn_of(after) + 1, sql.lsn_of(upto)
        # The function refuses such a range (313), as one that it does not have.
        if low > high:
            yield Commit(upto)
            return
        self._own()
        try:
            yield from self._window(low, high, most=most)
        except OutOfRange as error:
            # Not what the number says (313): the clean-up may have passed us, which the least positions tell.
            self._refuse_gone(low, self._least())
            raise error.error from None

    def _window(self, low: int, high: int, *, most: int) -> Iterator[Changes | Commit]:
        instances = self._instances()
        names = [instance.name for instance in instances]
        batch = self.asking.ask_all(sql.window(names, low, high, most=most), doing="counting the changes of a window")
        counted, least = batch[0], batch[-1]
        self._refuse_gone(low, self._with_least(least))
        is_whole = sum(int(row[1]) for row in counted) < most
        # The last LSN of the first `most` changes: a commit, read whole even where it holds more than that.
        end = high if is_whole else max(int(row[2], 16) for row in counted)
        # A cut window's last commit may hold changes of tables that were not counted any more.
        places = sorted(int(row[0]) for row in counted) if is_whole else range(len(names))
        decoders = []
        for table in [self._tables()[place] for place in places] if counted else []:
            decoder = self._decoder(table)
            decoders.append(decoder)
            statement = sql.rows(table.instance.name, items(table.columns), low, end)
            stream = self.asking.stream(
                statement, doing=f"reading changes of {table.table}", memory_bytes=self.capture.memory_bytes
            )
            yield from decoder.changes(stream)
        # Again behind the rows: the clean-up may have run while they were read, and an answer would only be shorter.
        if decoders:
            self._refuse_gone(low, self._least())
        commits = set().union(*(decoder.commits for decoder in decoders))
        newest = max((decoder.newest for decoder in decoders if decoder.newest is not None), default=None)
        yield Commit(sql.position_at(end), newest, len(commits))

    def _decoder(self, table: CapturedTable) -> Decoder:
        assert self._look is not None  # `_instances` has looked
        offset, driver = self._look.offset_minutes, self.conn_params.driver
        return Decoder(table, offset_minutes=offset, before=self.capture.before, driver=driver)

    def acknowledge(self, position: Position) -> None:
        """Do nothing: the clean-up asks nobody."""

    # --- lag -------------------------------------------------------------------------------------

    def lag(self, at: Position | None) -> Lag:
        """Count the transactions of captured tables, ours or not, since a position, and how old they are.

        `budget` is known for positions older than an hour, as the share of the clean-up's retention; of these it is
        not said that nothing is unread.
        """
        if at is None:
            return Lag()
        row = self.asking.ask(sql.LAG.format(at=sql.literal(sql.lsn_of(at))), doing="measuring the lag")[0]
        transactions, oldest, age, newest = (None if cell is None else int(cell) for cell in row)
        # A young position needs no statement for the clean-up's retention.
        is_old = age is None or age > OLD_SECONDS
        kept = self._retention_seconds() if is_old else 0
        # Nobody may rest on "none" at an old position: the clean-up passes it, changes or not, so it must move on.
        unread = transactions if transactions or not is_old else None
        return Lag(
            unread_changes=unread,
            seconds=None if unread is None else float(max(oldest or 0, 0)),
            budget=(1.0 if age is None else min(age / kept, 1.0)) if kept else None,
            facts={
                key: value
                for key, value in (
                    ("position_seconds", age), ("newest_seconds", newest), ("retention_seconds", kept or None)
                )
                if value is not None
            },
        )  # fmt: skip

    def _retention_seconds(self) -> int:
        """Ask how long the clean-up leaves changes; its default where we may not see the job."""
        try:
            rows = self.asking.ask(sql.RETENTION, doing="asking for the clean-up job")
        except SourceError as error:
            # A line that broke says nothing of what this user may see.
            if error.retry:
                raise
            rows = []
        return 60 * (int(rows[0][0]) if rows and rows[0][0] else sql.DEFAULT_RETENTION_MINUTES)

    # --- what is known of the tables -------------------------------------------------------------

    def _instances(self) -> tuple[Instance, ...]:
        if self._look is None:
            self.survey()
        assert self._look is not None
        return instances_of(self.capture, self._look.instances)

    def _tables(self) -> tuple[CapturedTable, ...]:
        """Type the tables' columns, anew for each window: what the log has now."""
        instances = self._instances()
        numbers = ", ".join(str(instance.number) for instance in instances)
        rows = self.asking.ask(sql.COLUMNS.format(objects=numbers), doing="reading the captured columns")
        return type_captured(self.capture, instances, rows)

    def _least(self) -> tuple[Instance, ...]:
        """Ask again for the least positions."""
        names = [instance.name for instance in self._instances()]
        return self._with_least(self.asking.ask(sql.lows(names), doing="looking what the clean-up left"))

    def _with_least(self, rows: Rows) -> tuple[Instance, ...]:
        least = {row[0]: int(row[1], 16) if row[1] else 0 for row in rows}
        return tuple(Instance(i.name, i.schema, i.table, i.number, least.get(i.name, 0)) for i in self._instances())

    def _refuse_gone(self, low: int, instances: Sequence[Instance]) -> None:
        """Refuse when the log no longer begins at or before `low`.

        Raises:
            PositionLost: the clean-up has passed it, or the instance is gone.
        """
        for instance in instances:
            if instance.low and low >= instance.low:
                continue
            left = f"begins at {sql.literal(instance.low)}" if instance.low else "is gone"
            raise PositionLost(
                f"The changes of {instance.label} right after {sql.literal(low - 1)} are gone: capture instance "
                f"{instance.name} {left}. The clean-up was faster than the drain, or the table was captured later "
                f"or anew. Run `mode: full` or `initial: snapshot` again after `rivet state reset`, which deletes "
                f"the checkpoint; then drain more often, or raise the retention with EXEC sys.sp_cdc_change_job "
                f"@job_type = N'cleanup', @retention = <minutes>."
            )

    def _own(self) -> None:
        """Take the drain's lock, which ends with the connection; a server that has none to give is no hindrance.

        Raises:
            LogBusy: another drain of this export holds it.
        """
        if self._owns:
            return
        ours = "\0".join((self.capture.deployment, self.capture.export))
        name = quote_text(f"rivet:cdc:{blake2b(ours.encode(), digest_size=16).hexdigest()}")
        try:
            answer = self.asking.ask(sql.LOCK.format(name=name), doing="taking the drain's lock")
        except SourceError as error:
            if error.retry:
                raise
            # A server without application locks, or a user who may not take them: reading takes nothing away, so it
            # goes on.
            answer = []
        # sp_getapplock: -1 is a timeout, which is 0 here; 0 and 1 say granted.
        if answer and answer[0][0] == -1:
            raise LogBusy(
                f"Another drain of {self.capture.export} is reading from this database; it was left alone. Wait for "
                f"it to end, or end its session."
            )
        self._owns = True
