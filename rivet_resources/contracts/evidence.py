"""What a source tells about itself: how it would run a statement, how it feels, what its tables are like.

Belongs here: the values, plain and frozen. Not here: asking (`explain.py`, `gauge.py`, `discover.py` of each
engine), and judging (`rivet_assets/preflight/verdict.py`, `read/governor.py`, `rivet_assets/scaffold/propose.py`).

No value holds a cell of a table, but for the smallest and largest of a key or cursor, which stand in manifests too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from rivet_resources.contracts.parts import known_sum
from rivet_resources.contracts.types import Family


@dataclass(frozen=True)
class Finding:
    """One prerequisite, judged; `fix` is what to run or set, ready to paste."""

    name: str  # wal_level, pooler, replica_identity public.orders, …
    status: Literal["ok", "warn", "fail"]
    text: str
    fix: str = ""


# index: the rows come along an index; blocks: only the heap blocks of the chunk; scan: the whole table is gone through;
# other: generated rows, a function, another server.
Scan = Literal["index", "blocks", "scan", "other"]


@dataclass(frozen=True)
class Explained:
    """How the server means to run the first page of a chunk. None: its planner does not say."""

    statement: str  # the very SQL that a task will send
    scan: Scan
    index: str = ""  # name of the index that serves it
    rows: int | None = None  # rows the planner expects the whole chunk to go through
    sorts: bool = False  # all rows of the chunk are sorted before the first comes back
    text: str = ""  # the planner's own words, for people


@dataclass(frozen=True)
class Pressure:
    """One look at a source under load, our own sessions left out. None: it cannot be read here.

    `log_waits` is a counter that only grows (requested checkpoints, waits for the log) and that reading cannot raise.
    """

    latency_ms: float  # of the look itself: one short statement, answered
    active: int | None = None  # sessions at work
    lock_waits: int | None = None  # sessions that wait for a lock
    lag_seconds: float | None = None  # of the slowest replica, or of this one behind its primary
    log_waits: int | None = None
    connections: int | None = None  # of everybody, ours too
    connections_limit: int | None = None
    waiting_for_us: int | None = None  # of the lock waits, those for a lock of ours: DDL on the table that is read


@dataclass(frozen=True)
class Effort:
    """What one reader's connection cost the server, as the server counts it. None: it does not say."""

    rows_scanned: int | None = None
    temp_bytes: int | None = None
    longest_transaction_ms: float = 0.0
    connections: int = 1

    def __add__(self, other: Effort) -> Effort:
        """Join what two readers cost, one after the other."""
        return Effort(
            rows_scanned=known_sum(self.rows_scanned, other.rows_scanned),
            temp_bytes=known_sum(self.temp_bytes, other.temp_bytes),
            longest_transaction_ms=max(self.longest_transaction_ms, other.longest_transaction_ms),
            connections=self.connections + other.connections,
        )


class Gauge(Protocol):
    """A connection of its own that looks at the source while others read it; for one thread."""

    def look(self) -> Pressure:
        """Look once, by one short statement under a timeout of 2 s.

        Raises:
            SourceError: the source does not answer, or refuses; the governor goes on without.
        """

    def counters(self) -> Mapping[str, float]:
        """Read counters of the whole server whose growth over a run is told with it: temp_bytes, deadlocks, …"""


@dataclass(frozen=True)
class ColumnFacts:
    """One column as the catalog has it. `distinct` and `null_share` are estimates; None: no statistics."""

    name: str
    native: str
    nullable: bool
    distinct: float | None = None
    null_share: float | None = None
    average_bytes: float | None = None
    note: str = ""  # identity, auto_increment, default now(), on update, …
    family: Family = "other"  # what it becomes, in the words of the type contract
    correlation: float | None = None  # of its values with their order on disk: near 1 where rows are only appended


@dataclass(frozen=True)
class IndexFacts:
    """One usable index: complete, valid, of columns only, in order."""

    name: str
    columns: tuple[str, ...]
    is_unique: bool = False
    is_primary: bool = False


Kind = Literal["table", "partitioned", "view", "materialized_view", "foreign"]


@dataclass(frozen=True)
class TableFacts:
    """One table, view or materialised view that the user may read; estimates only, no row was read."""

    schema: str
    name: str
    kind: Kind
    columns: tuple[ColumnFacts, ...]
    indexes: tuple[IndexFacts, ...] = ()
    key: tuple[str, ...] = ()  # primary key, else a NOT NULL unique key
    rows_estimate: int | None = None
    bytes_estimate: int | None = None
    comment: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)  # the engine's own
