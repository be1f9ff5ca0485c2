"""The values that cross the seam: what to read (Extract), and what lies ready but unseen (Staged).

All frozen, all plain data: they are pickled by reference to this installed package, never as closures.
Belongs here: shapes and their small invariants. Not here: relations and chunks (relation.py), parts and what was
counted (parts.py), how any of them is made or used.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from rivet_resources.contracts.parts import ChunkResult, Measures, Part
from rivet_resources.contracts.provenance import Provenance
from rivet_resources.contracts.read_limits import Metering, RateLimit
from rivet_resources.contracts.relation import Chunk, Consistency, Relation
from rivet_resources.contracts.rows.boundary import BoundaryEnds
from rivet_resources.contracts.rows.profile import ProfileColumns, WindowProfile
from rivet_resources.contracts.rows.row_errors import RowPolicy
from rivet_resources.contracts.rows.row_folders import RowFolders
from rivet_resources.contracts.rows.row_rules import NO_ROW_RULES, RowRules
from rivet_resources.contracts.rows.value_windows import (
    SNAPSHOT_AND_VALUE,
    SNAPSHOT_WINDOW,
    TIME_AND_VALUE,
    VALUE_WINDOW,
    partition_of_window,
    value_part,
)
from rivet_resources.contracts.schema_registry import RegisteredSchema

if TYPE_CHECKING:
    from rivet_resources.contracts.destination import Destination
    from rivet_resources.contracts.format import Format
    from rivet_resources.contracts.rows.poll import PollShape
    from rivet_resources.contracts.settings import Pace
    from rivet_resources.contracts.source import Source
    from rivet_resources.contracts.transform import Transform

LONGEST_NAME = 180
AFTER = re.compile(r"after(\+[1-9]\d*)?=")


@dataclass(frozen=True)
class Window:
    """The identity of what one commit covers.

    `all`, a time, `region=eu`, both (`2026-01-31|region=eu`), `snapshot=2026-01-31` (of a value's rows
    `snapshot=2026-01-31|region=eu`), or `after=<cursor>` (`after+2=<cursor>`).

    `start` and `end` are aware UTC, end exclusive, and only windows of time have them.
    `folder` is where its parts lie below the export: '' or `dt=2026-01-31`. `excludes`: of the window of all other
    values, the partitions whose rows it leaves to them; None: not known yet, or no such window.
    """

    key: str
    start: datetime | None = None
    end: datetime | None = None
    folder: str = ""
    excludes: tuple[str, ...] | None = None

    @property
    def kind(self) -> Literal["all", "after", "time", "value", "snapshot"]:
        """Return which family it is of; windows of two families do not share an export's folder."""
        if self.key == "all":
            return "all"
        if AFTER.match(self.key):
            return "after"
        if SNAPSHOT_WINDOW.fullmatch(self.key) or SNAPSHOT_AND_VALUE.fullmatch(self.key):
            return "snapshot"
        if TIME_AND_VALUE.fullmatch(self.key):
            return "time"
        return "value" if VALUE_WINDOW.fullmatch(self.key) else "time"

    @property
    def value(self) -> str:
        """Name the partition of its value alone, `eu` of `2026-01-31|region=eu` too."""
        return partition_of_window(value_part(self.key))

    @property
    def partition(self) -> str:
        """Name Dagster's partition of it, where its export has partitions."""
        return partition_of_window(self.key)

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

        Not `%3A`: emulators and proxies of stores decode that once too often.
        """
        # A long text cursor is cut and ends in a digest of the whole, since file systems stop at 255 bytes.
        name = re.sub(r"[^A-Za-z0-9=.+-]", lambda m: "".join(f"~{b:02X}" for b in m[0].encode()), self.key)
        if len(name) > LONGEST_NAME:
            name = f"{name[:LONGEST_NAME]}~{hashlib.sha256(self.key.encode()).hexdigest()[:32]}"
        return f"{name}.json"


@dataclass(frozen=True)
class CursorMove:
    """Where an incremental window starts and how far it reaches; canonical texts, `low` None on the first run."""

    low: str | None
    high: str | None  # None: nothing was found, the cursor stays
    column: str
    note: str = ""  # why `high` is lower than the newest row, when it is
    ends: BoundaryEnds | None = None  # of mode incremental: how rows that share a value with an end are told apart
    # Of a first copy: up to this `__pos` the log may tell again what it holds; '': nowhere, None: nobody knows.
    repeats_until: str | None = None


@dataclass(frozen=True)
class MetaColumns:
    """Columns Rivet appends after the source's own."""

    exported_at: datetime | None = None  # one instant per window
    row_hash: tuple[str, ...] | None = None  # covered columns in order; None: no hash
    inserted_at: str | None = None  # rows become inserts of a change stream at this position; None: they stay rows


@dataclass(frozen=True)
class Piece:
    """What one task wrote of a mirror: parts that a later version keeps where they lie while no change is theirs.

    `low` and `high` are the least and the greatest of the first key column's values, as numbers or texts that sort as
    these do; None: every one is NULL. Sums are decimal texts, as elsewhere in manifests.
    """

    paths: tuple[str, ...]
    low: int | str | None
    high: int | str | None
    rows: int
    nulls: dict[str, int] = field(default_factory=dict)
    special_values: dict[str, dict[str, int]] = field(default_factory=dict)
    checksums: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class AppliedChanges:
    """How much of a change export a table made from it holds; kept in its manifest."""

    changes: str  # address of the change export
    origin: str  # run id of its first window: another one is another copy, and another beginning
    key: tuple[str, ...]
    high: str  # `Position.key` that the applied windows reach
    newest: str  # highest __pos among them; '' when there were only rows of the first copy
    pieces: tuple[Piece, ...] = ()  # of a mirror; (): its next version is written whole
    repeats_until: str | None = None  # of the first copy, see `CursorMove`


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
    most_rows: int | None = None  # of a sample: each chunk ends after so many rows of the source; None: all
    transforms: tuple[Transform, ...] = ()  # in order, on each page
    meta: MetaColumns = MetaColumns()
    unique_columns: tuple[str, ...] = ()  # measured exactly over the whole window
    row_rules: RowRules = NO_ROW_RULES  # of a contract, counted over the whole window
    profile: ProfileColumns | None = None  # columns that are described; None: none
    cursor: CursorMove | None = None
    clock: datetime | None = None  # when the run began, for columns that hold it; None: no column can
    fingerprint: str = ""  # of the plan; chunk progress of a dead run counts only if equal
    poll: PollShape | None = None  # rows become changes, told by their own stamps; None: they stay rows
    notes: tuple[str, ...] = ()  # what the plan wants people to know; shown as metadata
    part_prefix: str = ""  # changes: parts are named by where they start, `cdc-<position>`, not by the export
    applied: AppliedChanges | None = None  # tables made from changes; None: rows of a source
    keep: int | None = None  # of a snapshot: so many stay, this one among them; None: all
    message_key: tuple[str, ...] = ()  # of messages in a topic; (): they have none
    row_folders: RowFolders | None = None  # parts lie in folders by a column's time; None: all in the window's
    on_error: RowPolicy = "stop"  # of rows that cannot be exported; a step may have a word of its own
    provenance: Provenance | None = None  # whose rows they are; None: nobody asked the database
    rate_limit: RateLimit | None = None  # of the export itself
    registered: RegisteredSchema | None = None  # where its schema is registered; None: nowhere, or not yet
    metering: Metering | None = None  # how tasks keep to limits; None: nothing is counted
    block: str = ""  # what decides its rows, as one word; '' where nobody asks for it later
    of_chunks: int = 0  # of the whole window, where `chunks` are those of one job; 0: `chunks` are all

    @property
    def has_several_chunks(self) -> bool:
        """Return whether the window is read in more than one chunk."""
        return (self.of_chunks or len(self.chunks)) > 1

    def only(self, positions: Sequence[int]) -> Extract:
        """Return what one job needs: the chunks at some positions, without the thousand others."""
        return replace(self, chunks=tuple(self.chunks[each] for each in positions), of_chunks=len(self.chunks))

    @property
    def resumable(self) -> bool:
        """Return whether finished chunks of a dead run may be kept."""
        return bool(self.fingerprint) and all(chunk.identity for chunk in self.chunks)

    def with_metering(self, metering: Metering, *, pace: Pace) -> Extract:
        """Return the same, read under limits at this pace."""
        return replace(self, metering=metering, pace=pace)


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
    standing: tuple[Part, ...] = ()  # published by an earlier version, and part of this one too
    profile: WindowProfile | None = None  # of all chunks; None: nobody asked
    refusing: tuple[ChunkResult, ...] = ()  # the chunks with rows that could not be exported, in order

    @property
    def dead_letters(self) -> tuple[Part, ...]:
        """Return the files of the rows that were set aside."""
        return tuple(part for result in self.refusing for part in result.dead_letters)

    @property
    def files(self) -> tuple[Part, ...]:
        """Return all that is published with it: its parts, then its dead letters."""
        return (*self.parts, *self.dead_letters)

    @property
    def is_nothing(self) -> bool:
        """Return whether there is nothing to publish, and nothing to tell: no row, and `skip_empty`."""
        return self.extract.skip_empty and self.measures.rows == 0 and not self.measures.refused_rows

    @property
    def seconds_in_order(self) -> dict[str, float]:
        """Return how long each step took, planning first."""
        return {step: self.seconds[step] for step in sorted(self.seconds, key=lambda step: step != "plan")}

    @property
    def rows_read(self) -> int:
        """Return how many rows this run read itself, before filters."""
        return self.measures.rows_read - self.kept.rows_read
