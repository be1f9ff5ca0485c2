"""What every source offers: settings that connect, a session that plans, a reader that yields pages.

Structural, so an engine is one file and one line in the union of `rivet_assets/config/load.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Literal, Protocol

import pyarrow as pa
from pydantic import Field

from rivet_resources.contracts.dialect import Dialect
from rivet_resources.contracts.engine_facts import EngineFacts
from rivet_resources.contracts.evidence import Effort, Explained, Finding, Gauge, TableFacts
from rivet_resources.contracts.mode_facts import ModeFacts
from rivet_resources.contracts.provenance import DatabaseIdentity
from rivet_resources.contracts.relation import Chunk, Consistency, Relation
from rivet_resources.contracts.rows.row_errors import RefusedCells
from rivet_resources.contracts.settings import Pace, Settings, Tuning
from rivet_resources.contracts.types import Column, SpecialValue


class ColumnRule(Settings):
    """One entry of `columns:`, the user's word on a column's type and on values that do not fit."""

    type: str | None = Field(
        None,
        description="bool, int2/4/8, float4/8, decimal(p,s), date, timestamp, timestamp_tz, text, binary, json or uuid",
    )
    on_special_value: SpecialValue | None = Field(
        None, description="what happens to a value its type cannot hold: NaN, infinity, …"
    )
    on_unsupported: Literal["text", "fail"] | None = Field(None, description="for a type that has only a text form")
    timezone: str | None = Field(None, description="zone of naive times that become instants; IANA name")
    encoding: Literal["plain", "delta", "byte_stream_split", "dictionary"] | None = Field(
        None, description="as in `parquet.columns`"
    )


@dataclass(frozen=True)
class TypeRules:
    """All that the user says about types of one export."""

    columns: Mapping[str, ColumnRule]  # by column or table.column, exact case
    on_special_value: SpecialValue = "fail"
    refuses_rows: bool = False  # `on_error`: what would fail takes its row out of the export instead
    on_unsupported: Literal["text", "fail"] = "text"
    typing: Literal["portable", "native"] = "portable"  # `types.md`, section 2


@dataclass(frozen=True)
class Bounds:
    """Smallest and largest value of a column as canonical texts, both None when there is no non-NULL row."""

    low: str | None
    high: str | None
    nulls: int  # rows whose value is NULL; counted only as far as the engine must to know 0 or more


@dataclass(frozen=True)
class Horizon:
    """How far an incremental read may go without skipping a late commit; canonical text, None: nothing there.

    `note` says in one sentence what held it back, '' when it is simply the newest row. `doubt` says why open
    transactions could not be seen, so that a late commit may be missed all the same; '' when none can.
    """

    high: str | None
    note: str = ""
    doubt: str = ""
    held_seconds: float = 0.0  # age of the oldest transaction that holds it back


class Session(Protocol):
    """One driver-side connection that plans a window, and holds its snapshot until the last page is read."""

    @property
    def consistency(self) -> Consistency:
        """Return of how many instants the rows are; asked after `chunks`, which may decide it."""

    @property
    def snapshot(self) -> str | None:
        """Name the instant that tasks can import; None when the server cannot give one."""

    @property
    def note(self) -> str:
        """Return why consistency is less than `snapshot`; '' otherwise."""

    def identity(self) -> DatabaseIdentity:
        """Return which database this is, in words that outlive restarts and addresses; needs no right of its own.

        Where the server tells less, or this user may not ask, the answer holds less: see provenance.py.

        Raises:
            SourceLost, SourceError
        """

    def describe(
        self, *, table: str | None, query: str | None, params: Mapping[str, str], rules: TypeRules
    ) -> Relation:
        """Look a table or query up in the catalog; no row is read.

        Raises:
            UnknownTable, UnknownColumn, UnsupportedColumn, SourcePermission, SourceError
        """

    def chunks(
        self, relation: Relation, *, where: str = "", order_by: tuple[str, ...] = (), pieces: int = 1
    ) -> tuple[Chunk, ...]:
        """Cut the rows of `relation` that satisfy `where` in the way that is kindest to this engine.

        Under a snapshot, and where no usable index serves `order_by`'s first column or `where` is empty,
        blocks; otherwise one cursor, ordered. Without a snapshot, key ranges. At least one chunk.
        """

    def bounds(self, relation: Relation, expression: str, *, where: str = "") -> Bounds:
        """Read MIN, MAX and whether NULLs exist for a column name (quoted here) or a parenthesised expression."""

    def count(self, relation: Relation, *, where: str = "") -> int:
        """Count rows, under the snapshot."""

    def horizon(
        self, relation: Relation, expression: str, column: Column, *, after: str | None, lag_seconds: float = 0.0
    ) -> Horizon:
        """Find MAX(expression) that no open transaction can still get below; freeze it before any row is read."""

    def quantiles(self, relation: Relation, column: Column, pieces: int) -> tuple[str, ...]:
        """Return at most `pieces - 1` inner bounds, ascending, from statistics or a sample; () if unknown."""

    def keyset_bounds(self, relation: Relation, key: tuple[str, ...], pieces: int) -> tuple[str, ...]:
        """Return inner bounds of exactly equal pieces of a one-column key by an index walk; () for composite keys."""

    def now(self) -> datetime:
        """Return the database's clock, aware UTC."""

    def explain(self, chunk: Chunk, columns: tuple[Column, ...], *, pace: Pace) -> Explained:
        """Ask the planner how it would run the first page of `chunk`, the very statement a task sends; no row is read.

        Raises:
            SourcePermission, SourceError
        """

    def examine(self, *, tables: Sequence[str] = (), connections: int = 0) -> tuple[Finding, ...]:
        """Judge the server as exports need it: pooler, replica, clock, connections, TLS, rights; nothing is changed.

        Args:
            tables: as configured; whether the user may read them is judged, with one script for what it may not.
            connections: that the widest export reads over, of its tasks only; 0: nobody asks.
        """

    def tables(self, pattern: str = "") -> tuple[TableFacts, ...]:
        """List what this user may read, from the catalog and its statistics, sorted by schema and name.

        Args:
            pattern: `name`, `schema.name` or a glob of either; '' for all but the server's own.
        """

    def close(self) -> None:
        """End the snapshot and the connection; safe to call twice."""


@dataclass(frozen=True)
class Page:
    """One statement's rows, whole, typed as `Column.arrow` says, checked; `special` counts what a policy replaced."""

    table: pa.Table
    special: Mapping[str, Mapping[str, int]]  # column → kind → cells replaced
    statement_ms: float
    retries: int = 0
    rows_read: int | None = None  # before transforms; None: as many as the table has
    refused: tuple[RefusedCells, ...] = ()  # NULL in the table; the policy of their columns sets such rows aside

    @cached_property
    def nbytes(self) -> int:
        """Return the bytes of its rows in Arrow; counted once, since that looks at every column."""
        return int(self.table.nbytes)

    def take(self, places: pa.Array) -> Page:
        """Return a page of the rows at these places alone, with what was refused in them."""
        cells = tuple(replace(each, rows=each.rows[places.to_numpy()]) for each in self.refused)
        return replace(self, table=self.table.take(places), refused=cells)

    def first(self, rows: int) -> Page:
        """Return a page of its first rows alone."""
        cells = tuple(replace(each, rows=each.rows[:rows]) for each in self.refused)
        return replace(self, table=self.table.slice(0, rows), refused=cells)


# Told the rows of the page just read, sleeps the throttle's pause. Gives the share, above 0 and at most 1, of its usual
# size that the next page may have; None: all of it.
Wait = Callable[[int], float | None]


class Source(Protocol):
    """The YAML block of a source, and what it can do. Frozen; secrets are resolved at connect.

    What `ENGINES` of the registry holds.
    """

    @property
    def type(self) -> str:
        """Name the engine, as in YAML."""

    @property
    def facts(self) -> EngineFacts:
        """Return what is known of its engine without asking one."""

    @property
    def tuning(self) -> Tuning | None:
        """Return the source's own tuning block."""

    def at(self, variable: str) -> Source:
        """Return the same source at the address that an environment variable holds, which is read at connect.

        Raises:
            ConfigError: it has no address.
        """

    def session(self, *, application: str, pace: Pace, snapshot: bool = True) -> AbstractContextManager[Session]:
        """Connect for planning; with `snapshot`, hold one exported instant if the server can give it.

        Raises:
            SourceUnreachable, SourceAuth, SourceError, ConfigError
        """

    def pages(
        self,
        chunk: Chunk,
        columns: tuple[Column, ...],
        *,
        snapshot: str | None,
        application: str,
        pace: Pace,
        wait: Wait,
    ) -> Generator[Page, None, Effort | None]:
        """Read a chunk page by page, on a connection of its own; failed pages are asked again here, by error class.

        A page is complete before it is yielded. `wait` is called between statements, never inside one.
        Closing the iterator early cancels the statement. What it returns in the end is what the reading cost the
        server, None where the engine does not tell.

        Raises:
            SourceLost: retries are used up, or the chunk's cursor died (the chunk may be read again from its start).
            ValueDoesNotFit, StatementTimeout, SnapshotLost, SourceChanged, SourceError
        """

    def gauge(self, *, application: str, pace: Pace) -> AbstractContextManager[Gauge]:
        """Connect for looking at the source while it is read; the connection ends with the block.

        Raises:
            SourceUnreachable, SourceAuth, SourceError, ConfigError
        """

    def refuses(self, mode: ModeFacts, relation: Literal["table", "query"]) -> str:
        """Return why, in one sentence, this engine cannot do a mode, '' when it can; asked when the file is read."""

    def quote(self, name: str) -> str:
        """Quote one identifier; never executed as SQL."""

    def literal(self, text: str, column: Column) -> str:
        """Render a canonical text as a typed SQL literal of this column's type; round trip is exact."""

    def no_bound(self, column: Column, *, is_paged: bool) -> str:
        """Return why, in one sentence, the values of a column cannot be bounds of cursor or chunk; '' when they can.

        They can when the server reads `literal(canonical text)` back as the very value, and orders as it compares.

        Args:
            is_paged: bounds are taken from the cells of pages too, as `columns:` makes them.
        """

    def dialect(self, columns: Sequence[Column]) -> Dialect:
        """Return how it spells statements that order and compare these columns.

        Raises:
            ConfigError: it takes no statements.
        """

    def lineage_name(self, table: str) -> tuple[str, str]:
        """Split a table as configured into (schema, name), the engine's default schema filled in."""
