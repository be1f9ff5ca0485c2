"""The values that cross the seam: what to read (Extract), and what lies ready but unseen (Staged).

All frozen, all plain data: they are pickled by reference to this installed package, never as closures.
Belongs here: shapes and their small invariants. Not here: how they are made or used.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from rivet_resources.contracts.boundary import Edge, End, Ends
from rivet_resources.contracts.provenance import Provenance
from rivet_resources.contracts.types import Column

if TYPE_CHECKING:
    from rivet_resources.contracts.destination import Destination
    from rivet_resources.contracts.format import Format
    from rivet_resources.contracts.poll import PollShape
    from rivet_resources.contracts.settings import Pace
    from rivet_resources.contracts.source import Source
    from rivet_resources.contracts.transform import Transform

Reader = Literal["blocks", "cursor", "keyset"]
# snapshot: one instant for all tasks; single: one stream in one transaction; per_query: each statement its own
# instant; resumed: chunks of a dead run, of an earlier instant, were kept.
# log: whole transactions, in the order of their commits.
Consistency = Literal["snapshot", "single", "per_query", "resumed", "log"]

LONGEST_NAME = 180
AFTER = re.compile(r"after(\+[1-9]\d*)?=")


@dataclass(frozen=True)
class Window:
    """The identity of what one commit covers: `all`, a partition key, or `after=<cursor>` (`after+2=<cursor>`).

    `start` and `end` are aware UTC, end exclusive, and only windows of time have them.
    `folder` is where its parts lie below the export: '' or `dt=2026-01-31`.
    """

    key: str
    start: datetime | None = None
    end: datetime | None = None
    folder: str = ""

    @property
    def kind(self) -> Literal["all", "after", "time"]:
        """Say which family it is of; windows of two families do not share an export's folder."""
        if self.key == "all":
            return "all"
        return "after" if AFTER.match(self.key) else "time"

    @classmethod
    def after(cls, cursor: str | None, visit: int = 0) -> Window:
        """Name a window by where it starts; a cursor that reads `start` is quoted: the word means the beginning.

        Args:
            visit: how many windows before this one started at the very same cursor value: `after+2=10` is the third.
        """
        if cursor is None:
            return cls("after=start")
        head = f"after+{visit}" if visit else "after"
        return cls(f'{head}="start"' if cursor == "start" else f"{head}={cursor}")

    @property
    def file_name(self) -> str:
        """Name its manifest: the key, all but letters, digits and `=.+-` as `~3A`, so that no two keys meet.

        Not `%3A`: emulators and proxies of stores decode that once too often. A long text cursor is cut and ends
        in a digest of the whole, since file systems stop at 255 bytes.
        """
        name = re.sub(r"[^A-Za-z0-9=.+-]", lambda m: "".join(f"~{b:02X}" for b in m[0].encode()), self.key)
        if len(name) > LONGEST_NAME:
            name = f"{name[:LONGEST_NAME]}~{hashlib.sha256(self.key.encode()).hexdigest()[:32]}"
        return f"{name}.json"


@dataclass(frozen=True)
class Leaf:
    """One physical table that can be read by block ranges."""

    sql: str  # quoted name, ready to stand after FROM
    blocks: int


@dataclass(frozen=True)
class Relation:
    """A table or query as its source describes it; columns in source order, with the types their cells will have."""

    name: str  # for people: public.orders, or `query of export x`
    sql: str  # ready to stand after FROM: a quoted table, or a parenthesised query with an alias
    columns: tuple[Column, ...]
    is_table: bool
    key: tuple[str, ...] = ()  # primary key, else a NOT NULL unique key; () when neither
    indexed: frozenset[str] = frozenset()  # leading columns of its usable indexes
    leaves: tuple[Leaf, ...] = ()  # () when it cannot be read by blocks
    rows_estimate: int | None = None
    bytes_estimate: int | None = None

    def column(self, name: str) -> Column | None:
        """Find a column by its exact name."""
        return next((column for column in self.columns if column.name == name), None)


@dataclass(frozen=True)
class KeyRange:
    """Values of one column from `low` to `high`, canonical texts; None: open to that side."""

    column: str
    low: str | None
    high: str | None
    low_inclusive: bool = True
    high_inclusive: bool = True


@dataclass(frozen=True)
class Chunk:
    """A piece of a window that one Spark task reads. Plain SQL pieces, values already rendered; no secret.

    blocks: pages are ranges of heap blocks of `relation`, from `blocks[0]` up to, excluding, `blocks[1]`.
    cursor: pages are FETCHes of one server-side cursor over the whole predicate.
    keyset: pages are `key > last … ORDER BY key LIMIT n`, each its own statement.
    `identity` names it across runs (only key ranges outlive a run); '' when it must not be resumed.
    """

    index: int
    reader: Reader
    relation: str  # stands after FROM
    where: str = ""  # predicate without WHERE; '' for all rows
    order_by: tuple[str, ...] = ()  # quoted expressions, ascending
    blocks: tuple[int, int] = (0, 0)
    key: tuple[str, ...] = ()  # keyset: column names, in order
    identity: str = ""
    abreast: int = 1  # so many chunks of the window may be read at once, this one among them
    one_instant: bool = False  # read in one transaction of its own, which sees one instant; a broken line starts over
    range: KeyRange | None = None  # what `where` says as data, where it says just that: such a chunk can be read again
    edge: End | None = None  # all its rows stand at this end of an incremental window, as the server compares


@dataclass(frozen=True)
class CursorMove:
    """Where an incremental window starts and how far it reaches; canonical texts, `low` None on the first run."""

    low: str | None
    high: str | None  # None: nothing was found, the cursor stays
    column: str
    note: str = ""  # why `high` is lower than the newest row, when it is
    ends: Ends | None = None  # of mode incremental: how rows that share a value with an end are told apart


@dataclass(frozen=True)
class MetaColumns:
    """Columns Rivet appends after the source's own."""

    exported_at: datetime | None = None  # one instant per window
    row_hash: tuple[str, ...] | None = None  # covered columns in order; None: no hash
    inserted_at: str | None = None  # rows become inserts of a change stream at this position; None: they stay rows


@dataclass(frozen=True)
class Applied:
    """How much of a change export a table made from it holds; kept in its manifest."""

    changes: str  # address of the change export
    origin: str  # run id of its first window: another one is another copy, and another beginning
    key: tuple[str, ...]
    high: str  # `Position.key` that the applied windows reach
    newest: str  # highest __pos among them; '' when there were only rows of the first copy


@dataclass(frozen=True)
class Extract:
    """All that a stage needs to know; nothing has changed in the world yet."""

    export: str
    mode: str
    window: Window
    run_id: str
    relation: Relation
    chunks: tuple[Chunk, ...]
    source: Source
    destination: Destination
    format: Format
    pace: Pace
    consistency: Consistency
    snapshot: str | None = None  # id that tasks import; None: each its own
    parallel: int | None = None  # at most so many chunks at once; None: as Spark allows
    max_file_bytes: int | None = None
    skip_empty: bool = False
    transforms: tuple[Transform, ...] = ()  # in order, on each page
    meta: MetaColumns = MetaColumns()
    unique_columns: tuple[str, ...] = ()  # measured exactly over the whole window
    cursor: CursorMove | None = None
    fingerprint: str = ""  # of the plan; chunk progress of a dead run counts only if equal
    poll: PollShape | None = None  # rows become changes, told by their own stamps; None: they stay rows
    notes: tuple[str, ...] = ()  # what the plan wants people to know; shown as metadata
    part_prefix: str = ""  # changes: parts are named by where they start, `cdc-<position>`, not by the export
    applied: Applied | None = None  # tables made from changes; None: rows of a source
    provenance: Provenance | None = None  # whose rows they are; None: nobody asked the database

    @property
    def resumable(self) -> bool:
        """Say whether finished chunks of a dead run may be kept."""
        return bool(self.fingerprint) and all(chunk.identity for chunk in self.chunks)


@dataclass(frozen=True)
class Part:
    """One finished file. `path` is relative to the export's folder; `staged` is where it lies until published.

    `staged` is the destination's own plain data (JSON-able): a path, or a multipart upload with its checksums.
    """

    path: str
    rows: int
    size_bytes: int
    fingerprint: str  # "xxh3:" + 16 hex over the file's bytes
    md5: str  # base64
    staged: dict[str, Any] = field(default_factory=dict)
    chunk: int = 0
    schema: str = ""  # base64 of its IPC-serialised schema, where that is not its window's


@dataclass(frozen=True)
class Measures:
    """What was counted while rows passed; adding two gives the measures of both together.

    `unique` lists sidecar files of cell hashes per `unique_columns` member: {column: [file, …]}.
    """

    rows: int = 0
    rows_read: int = 0  # before filters
    nulls: dict[str, int] = field(default_factory=dict)
    special_values: dict[str, dict[str, int]] = field(default_factory=dict)  # column → kind → replaced
    unique: dict[str, list[str]] = field(default_factory=dict)
    checksums: dict[str, int] = field(default_factory=dict)  # column → sum over its cells; absent: none
    pages: int = 0
    arrow_bytes: int = 0
    retries: int = 0
    longest_statement_ms: float = 0.0
    throttled_seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_mb: float = 0.0
    governed_seconds: float = 0.0  # paused because the source suffered, beyond the throttle
    # What the reading cost the server, as it counts; None: no reader could tell.
    rows_scanned: int | None = None
    temp_bytes: int | None = None
    longest_transaction_ms: float = 0.0
    connections: int = 0
    # Of an incremental window: the rows at its two ends that are its own, as in `Edge`.
    low_rows: int = 0
    low_ids: str | None = ""
    high_rows: int = 0
    high_ids: str | None = ""

    @property
    def low_edge(self) -> Edge:
        """Give the window's rows that have the cursor value it starts at."""
        return Edge(self.low_rows, self.low_ids)

    @property
    def high_edge(self) -> Edge:
        """Give the window's rows that have the cursor value it ends at."""
        return Edge(self.high_rows, self.high_ids)

    def __add__(self, other: Measures) -> Measures:
        """Join two disjoint sets of rows: counts add, peaks take the larger."""
        special = {column: dict(kinds) for column, kinds in self.special_values.items()}
        for column, kinds in other.special_values.items():
            mine = special.setdefault(column, {})
            for kind, count in kinds.items():
                mine[kind] = mine.get(kind, 0) + count
        low, high = self.low_edge + other.low_edge, self.high_edge + other.high_edge
        return Measures(
            rows=self.rows + other.rows,
            rows_read=self.rows_read + other.rows_read,
            nulls={c: self.nulls.get(c, 0) + other.nulls.get(c, 0) for c in {**self.nulls, **other.nulls}},
            special_values=special,
            unique={c: self.unique.get(c, []) + other.unique.get(c, []) for c in {**self.unique, **other.unique}},
            pages=self.pages + other.pages,
            arrow_bytes=self.arrow_bytes + other.arrow_bytes,
            retries=self.retries + other.retries,
            longest_statement_ms=max(self.longest_statement_ms, other.longest_statement_ms),
            throttled_seconds=self.throttled_seconds + other.throttled_seconds,
            cpu_seconds=self.cpu_seconds + other.cpu_seconds,
            peak_mb=max(self.peak_mb, other.peak_mb),
            governed_seconds=self.governed_seconds + other.governed_seconds,
            rows_scanned=_known_sum(self.rows_scanned, other.rows_scanned),
            temp_bytes=_known_sum(self.temp_bytes, other.temp_bytes),
            longest_transaction_ms=max(self.longest_transaction_ms, other.longest_transaction_ms),
            connections=self.connections + other.connections,
            checksums=_joined_sums(self, other),
            low_rows=low.rows,
            low_ids=low.ids,
            high_rows=high.rows,
            high_ids=high.ids,
        )


def _joined_sums(one: Measures, other: Measures) -> dict[str, int]:
    """Add the checksums of two sets of rows; {} where one has rows that were never summed (an older run's chunk)."""
    if any(each.rows and not each.checksums for each in (one, other)):
        return {}
    names = {**one.checksums, **other.checksums}
    return {name: (one.checksums.get(name, 0) + other.checksums.get(name, 0)) % 2**64 for name in names}


def _known_sum(one: int | None, other: int | None) -> int | None:
    """Add what is known; None when neither is."""
    known = [each for each in (one, other) if each is not None]
    return sum(known) if known else None


@dataclass(frozen=True)
class ChunkResult:
    """What one task returns: the parts it staged and what it measured. JSON-able by `dataclasses.asdict`."""

    chunk: int
    parts: tuple[Part, ...]
    measures: Measures


@dataclass(frozen=True)
class Staged:
    """A window complete but invisible: publish it, or discard it.

    `previous` is the version of the manifest it will replace, None when there is none: the fence of the swap.
    """

    extract: Extract
    parts: tuple[Part, ...]
    measures: Measures
    schema_ipc: bytes  # pyarrow schema of the parts, field metadata included, IPC-serialised
    previous: str | None
    started_at: datetime
    seconds: dict[str, float] = field(default_factory=dict)  # plan, read, …
    consistency: Consistency = "snapshot"
    chunk_measures: dict[int, Measures] = field(default_factory=dict)  # by `Chunk.index`; {} where nobody needs them
    harm: dict[str, float] = field(default_factory=dict)  # what the reading cost the source (read/source_cost.py)
    kept_chunks: int = 0  # read by a run that died, and used by this one
    kept: Measures = field(default_factory=Measures)  # of these chunks; part of `measures`

    @property
    def rows_read(self) -> int:
        """Tell how many rows this run read itself, before filters."""
        return self.measures.rows_read - self.kept.rows_read
