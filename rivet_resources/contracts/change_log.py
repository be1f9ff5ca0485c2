"""What every change log offers: it says where it ends, reads windows of whole transactions, and is told what is safe.

Structural, so an engine is one file beside this one and one method of its source. Belongs here: the values that cross
between a log and the drain. Not here: the order of effects (`drain/drain.py`), where a position is kept (`state/`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol

import pyarrow as pa

from rivet_resources.contracts.evidence import Finding
from rivet_resources.contracts.relation import Comments
from rivet_resources.contracts.settings import Pace
from rivet_resources.contracts.source import Session, Source, TypeRules
from rivet_resources.contracts.types import Column

# What happens to rows without a word in the log: values of columns that were added or renamed, rows of partitions that
# come and go, rows that a foreign key cascades to.
Untold = Literal["columns", "partitions", "cascades"]
PositionType = Literal["PostgresLsn", "MysqlBinlog", "Gtid", "Custom"]

# What every row of changes begins with (`cdc.md`, section 3).
OP = pa.field("__op", pa.string(), nullable=False)  # insert, update, delete, truncate
POS = pa.field("__pos", pa.string(), nullable=False)  # of its commit, hexadecimal, sorts as text
# Sorts inside one __pos; not consecutive.
SEQ = pa.field("__seq", pa.int64(), nullable=False)
TS = pa.field("__ts", pa.timestamp("us", "UTC"))  # of its commit, as the source states it
# Columns the log did not carry: as before.
UNCHANGED = pa.field("__unchanged", pa.list_(pa.string()))
# Struct of the row before, last column, only with `cdc: {before: true}`.
BEFORE = "__before"
ENVELOPE = (OP, POS, SEQ, TS, UNCHANGED)


def change_schema(rows: pa.Schema) -> pa.Schema:
    """Return the schema of parts of changes: the envelope, then the row, whose cells a delete may lack."""
    return pa.schema([*ENVELOPE, *(field.with_nullable(True) for field in rows)])


@dataclass(frozen=True)
class Position:
    """A place in a log at which a drain may stop: always behind a commit.

    `key` sorts as text among positions of one source identity, and names windows and parts. `text` is what is
    stored and what the engine resumes from, of the form `type` says. `more`: further plain texts it needs.
    """

    key: str
    text: str
    type: PositionType
    more: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Capture:
    """What a drain asks of a log: its tables as configured, the user's words on types, the log's own settings."""

    export: str
    tables: tuple[str, ...]  # as configured: name or schema.name
    rules: TypeRules
    slot: str = "rivet_slot"  # PostgreSQL
    publication: str = ""  # PostgreSQL; '' is the slot's name
    server_id: int | None = None  # MySQL, MariaDB; None: derived from deployment and source
    capture_instances: tuple[str, ...] = ()  # SQL Server, one per table
    deployment: str = ""  # what tells this installation from another one: the state store's name
    before: bool = False  # also the row before, where the log has it
    memory_bytes: int = 64 << 20  # a yielded `Changes` should not be much larger
    max_events: int | None = None
    copies: bool = False  # a copy of the tables comes first
    accepts: frozenset[Untold] = frozenset()  # what the log does not tell, and the user takes as it is
    is_keyed: bool = False  # somebody goes by the key of each change: mirrors, histories, messages
    key: tuple[str, ...] = ()  # the columns by which they do, as configured; (): the key of each table
    is_applied: bool = False  # mirrors and histories do: two rows of one key would become one


@dataclass(frozen=True)
class Survey:
    """What one short look at the source tells: who it is, how far its log reaches, from where it still can be read."""

    identity: str  # system_identifier:7… ; server_uuid:… ; never equal for two installations
    target: Position  # the end of the log that is safe on the server's disk
    oldest: Position | None = None  # where the source would start reading for us; None: it does not say
    facts: Mapping[str, Any] = field(default_factory=dict)  # the engine's own, for `refuse_lost` and `lag`
    warnings: tuple[Finding, ...] = ()  # what a run should tell, and need not stop for


@dataclass(frozen=True)
class Changes:
    """Some changes of one table in log order, of one schema.

    `data` has the columns of ENVELOPE, then `columns`, typed as a batch read types them, then BEFORE if asked.
    """

    table: str  # as configured
    columns: tuple[Column, ...]
    data: pa.Table
    special: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # column → kind → cells replaced


@dataclass(frozen=True)
class Commit:
    """Everything yielded before is whole transactions, and the log has been read up to here."""

    position: Position
    committed_at: datetime | None = None  # of the last transaction that held one of our changes; aware UTC
    transactions: int = 0
    warnings: tuple[Finding, ...] = ()  # what was read and may matter, and stops nothing


@dataclass(frozen=True)
class Lag:
    """How far behind we are, and what that costs the source. None: this engine cannot tell."""

    unread_bytes: int | None = None
    unread_changes: int | None = None
    held_bytes: int | None = None  # log the source keeps because of us
    seconds: float | None = None  # how old the oldest commit not drained is, at most; 0 when there is none
    budget: float | None = None  # share of the source's retention that is used up, 0 to 1
    facts: Mapping[str, Any] = field(default_factory=dict)  # wal_status, oldest file, …; plain texts and numbers


@dataclass(frozen=True)
class TableComments:
    """What a catalog says of a table's columns as they are now, {column: comment}; nothing of those that are gone."""

    kind: Comments = "none"
    texts: Mapping[str, str] = field(default_factory=dict)


class Handover(Protocol):
    """A consistent copy in the making: the session whose instant it has, and what that instant has seen of the log."""

    @property
    def session(self) -> Session:
        """Plan the copy with this one; it holds the instant until the block ends."""

    def seen(self) -> str:
        """Return, once all rows are staged, what `Log.read` needs to drop changes the copy holds; '' for nothing."""

    def repeats_until(self, end: str) -> str | None:
        """Return up to which `__pos` the log may tell again what the copy holds; '': nowhere, None: nobody knows.

        Args:
            end: `Position.key` of the log's end, looked at once all rows were staged.
        """


class LogSource(Source, Protocol):
    """A source that has a log."""

    def open_log(self, capture: Capture, *, application: str, pace: Pace) -> AbstractContextManager[Log]:
        """Connect for reading changes; the connection ends with the block.

        Raises:
            SourceUnreachable, SourceAuth, SourceError, ConfigError
        """


class Log(Protocol):
    """One open change log: a driver-side connection, for one thread."""

    def preflight(self) -> tuple[Finding, ...]:
        """Judge every prerequisite (`cdc.md`, 4.1, 5.1, 5.5, 6.1); nothing is changed."""

    def survey(self) -> Survey:
        """Look at the source with one or two short statements.

        Raises:
            LogBusy: another reader holds the slot, the name or the server id.
            SourceError and its kin.
        """

    def begin(self, *, again: bool = False) -> Position:
        """Make what reading needs (publication, slot) and give the position from which no change will be missed.

        Args:
            again: an earlier `begin` of ours died before it could note its place; what it made is taken over.

        Raises:
            LogSetup: a prerequisite is missing, or what must be new is there already and in use.
        """

    def refuse_lost(self, at: Position, survey: Survey) -> tuple[Finding, ...]:
        """Refuse to go on from a position the source no longer has, or was moved past by somebody else.

        Returns:
            What happened since that may matter and stops nothing.

        Raises:
            PositionLost
        """

    def absent(self, table: str) -> frozenset[str]:
        """Name the columns of a table that no change of it will carry; a first copy leaves them out as well."""

    def comments(self, table: str) -> TableComments:
        """Read the comments of a table's columns as they are now; none of a table that is gone.

        May be asked while a window is read.
        """

    def handover(self) -> AbstractContextManager[Handover]:
        """Open a consistent copy of the tables that begins at or after `begin`'s position; see `cdc.md`, section 8."""

    def read(
        self,
        after: Position,
        upto: Position,
        *,
        most: int,
        seen: str = "",
        before_asking: Callable[[], None] = lambda: None,
    ) -> Iterator[Changes | Commit]:
        """Read one window: changes in log order, then one Commit, which comes last.

        Transactions that ended at or before `after` are left out whatever the source sends. The window ends with
        the first transaction after which `most` changes were read, or at `upto`; with nothing in between it
        is one Commit at `upto`. Called again with the Commit's position for the next window, while the window before
        is still being published: `acknowledge` may be told of it between two items, or in `before_asking`.

        Args:
            before_asking: called where the source is about to be asked anew and would send again what is not
                acknowledged; it waits until all windows before are. Logs that go on from any position need not call it.

        Raises:
            LogRefused: an event that cannot be read without losing data, with its type and place.
            SourceLost: the line broke, or closed without the protocol's end; nothing may be concluded from silence.
            ValueDoesNotFit: by the policy of the column.
        """

    def acknowledge(self, position: Position) -> None:
        """Acknowledge everything up to here, which is durable with us; where it keeps no account, do nothing."""

    def lag(self, at: Position | None) -> Lag:
        """Measure how far a committed position is behind; cheap enough for every half minute."""

    def close(self) -> None:
        """End connections; safe to call twice."""
