"""A session and a source that plan as the real ones do, and run nothing that could go through a table.

Belongs here: what stands in for counts, bounds and horizons while an export is only checked. Not here: planning
(`modes/`), which is the real one, and what is made of the plan (`check.py`, `verdict.py`).

Bounds are read where an index leads with the column; else they come from the planner's statistics or a sample of blocks
(some 20,000 rows); where there are none, from values made up to give a statement of the same shape, and `KeyEnds` says
so. Counts are the catalog's estimates. The horizon is the newest value: waiting for open transactions is for runs.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources.contracts.evidence import Explained, Finding, TableFacts
from rivet_resources.contracts.provenance import DatabaseIdentity
from rivet_resources.contracts.relation import Chunk, Consistency, Relation
from rivet_resources.contracts.settings import Pace
from rivet_resources.contracts.source import Bounds, Horizon, Page, Session, Source, TypeRules, Wait
from rivet_resources.contracts.types import Column
from rivet_resources.engines.shared.statements import conjunction

# Bounds asked for where only the two outer ones are wanted.
SAMPLED = 20
MOST_PIECES = 256  # that are cut here; more would only cost time, and the first is enough to explain


@dataclass(frozen=True)
class KeyEnds:
    """Smallest and largest value of the column that decides. `is_exact`: read at the two ends of its index."""

    low: str
    high: str
    is_exact: bool


class DrySession:
    """Plans by asking a real session only what costs it nothing; see `Session`. Not shared between threads."""

    def __init__(self, session: Session, source: Source) -> None:
        self.ends: KeyEnds | None = None  # of the column asked about last; None: unknown, or the table is empty
        self.is_empty = False  # an index was looked at, and there is no value
        self.pieces = 1  # the most that were wanted
        self._session = session
        self._source = source

    @property
    def consistency(self) -> Consistency:
        """Return of how many instants the rows would be."""
        return self._session.consistency

    @property
    def snapshot(self) -> str | None:
        """Name the instant that tasks would import."""
        return self._session.snapshot

    @property
    def note(self) -> str:
        """Return why consistency is less than `snapshot`."""
        return self._session.note

    def identity(self) -> DatabaseIdentity:
        """Return which database this is; the real answer."""
        return self._session.identity()

    def describe(
        self, *, table: str | None, query: str | None, params: Mapping[str, str], rules: TypeRules
    ) -> Relation:
        """Look a table or query up in the catalog; the real answer."""
        return self._session.describe(table=table, query=query, params=params, rules=rules)

    def explain(self, chunk: Chunk, columns: tuple[Column, ...], *, pace: Pace) -> Explained:
        """Ask the planner; the real answer."""
        return self._session.explain(chunk, columns, pace=pace)

    def now(self) -> datetime:
        """Return the database's clock; the real answer."""
        return self._session.now()

    def examine(self, *, tables: Sequence[str] = (), connections: int = 0) -> tuple[Finding, ...]:
        """Judge the server; the real answer."""
        return self._session.examine(tables=tables, connections=connections)

    def tables(self, pattern: str = "") -> tuple[TableFacts, ...]:
        """List tables; the real answer."""
        return self._session.tables(pattern)

    def close(self) -> None:
        """Leave the real session to its owner."""

    # --- estimates -------------------------------------------------------------------------------

    def count(self, relation: Relation, *, where: str = "") -> int:
        """Return the catalog's estimate; 0 for a part of the rows, which nobody knows without counting."""
        return 0 if where else relation.rows_estimate or 0

    def bounds(self, relation: Relation, expression: str, *, where: str = "") -> Bounds:
        """Return the ends of an indexed column; estimates of any other one, and no NULLs."""
        column = relation.column(expression)
        # MIN and MAX are read only where an index leads with the column: two look-ups.
        if not where and column is not None and column.name in relation.indexed:
            found = self._session.bounds(relation, expression)
            self.is_empty = found.low is None
            if found.low is not None and found.high is not None:
                self.ends = KeyEnds(found.low, found.high, is_exact=True)
            return found
        sampled = self._sample_ends(relation, column)
        if sampled is not None:
            self.ends = sampled
            return Bounds(sampled.low, sampled.high, 0)
        made = make_up_bounds(column, rows=relation.rows_estimate)
        return Bounds(*made, 0) if made else Bounds(None, None, 0)

    def _sample_ends(self, relation: Relation, column: Column | None) -> KeyEnds | None:
        """Take the outer ones of sampled bounds for the ends."""
        if column is None or not relation.is_table or not self._source.facts.samples_bounds:
            return None
        found = self._session.quantiles(relation, column, SAMPLED)
        return KeyEnds(found[0], found[-1], is_exact=False) if found else None

    def horizon(
        self, relation: Relation, expression: str, column: Column, *, after: str | None, lag_seconds: float = 0.0
    ) -> Horizon:
        """Return the newest value as far as it is known; nobody is waited for."""
        if self._source.facts.knows_its_end:
            return self._session.horizon(relation, expression, column, after=after, lag_seconds=lag_seconds)
        if relation.column(expression) is not None:
            high = self.bounds(relation, expression).high
            # Where nothing is new now, one value further: else the plan would have no statement that could be
            # explained.
            return Horizon(beyond(after, column) if high is None or high == after else high)
        made = make_up_bounds(column, rows=relation.rows_estimate)
        return Horizon(made[1] if made else after)

    def quantiles(self, relation: Relation, column: Column, pieces: int) -> tuple[str, ...]:
        """Return inner bounds from statistics, else even ones between the ends."""
        self.pieces = max(self.pieces, pieces)
        if self._source.facts.samples_bounds:
            return self._session.quantiles(relation, column, pieces)
        return self._even(relation, column, pieces)

    def keyset_bounds(self, relation: Relation, key: tuple[str, ...], pieces: int) -> tuple[str, ...]:
        """Return inner bounds as `quantiles` does; a run walks the key."""
        column = relation.column(key[0]) if len(key) == 1 else None
        return () if column is None or pieces < 2 else self.quantiles(relation, column, pieces)

    def _even(self, relation: Relation, column: Column, pieces: int) -> tuple[str, ...]:
        """Cut whole numbers evenly between their ends; () for anything else."""
        # MySQL and SQLite cut by walking the whole key, so their chunks are cut evenly between its ends instead.
        if pieces < 2 or not pa.types.is_integer(column.arrow):
            return ()
        ends = self.bounds(relation, column.name)
        if ends.low is None or ends.high is None:
            return ()
        low, high, pieces = int(ends.low), int(ends.high), min(pieces, MOST_PIECES)
        inner = (low + (high - low) * place // pieces for place in range(1, pieces))
        return tuple(dict.fromkeys(str(bound) for bound in inner if low < bound < high))

    # --- cutting ---------------------------------------------------------------------------------

    def chunks(
        self, relation: Relation, *, where: str = "", order_by: tuple[str, ...] = (), pieces: int = 1
    ) -> tuple[Chunk, ...]:
        """Cut as the real session does; evenly where that would walk the whole key."""
        self.pieces = max(self.pieces, pieces)
        if pieces == 1 or self._source.facts.samples_bounds:
            return self._session.chunks(relation, where=where, order_by=order_by, pieces=pieces)
        column = relation.column(relation.key[0]) if relation.key else None
        inner = self._even(relation, column, pieces) if column is not None else ()
        if column is None or not inner:
            return self._session.chunks(relation, where=where, order_by=order_by, pieces=1)
        quoted = self._source.quote(column.name)
        literals = [self._source.literal(bound, column) for bound in inner]
        edges = zip([None, *literals], [*literals, None], strict=True)
        parts = [[f"{quoted} > {low}"] * bool(low) + [f"{quoted} <= {high}"] * bool(high) for low, high in edges]
        made = [
            self._session.chunks(relation, where=conjunction([where, *part]), order_by=order_by, pieces=1)[0]
            for part in parts
        ]
        return tuple(replace(chunk, index=index, one_instant=False) for index, chunk in enumerate(made))


class DrySource:
    """A source whose settings are the real one's and whose pages are one row of made-up values."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def pages(
        self,
        chunk: Chunk,
        columns: tuple[Column, ...],
        *,
        snapshot: str | None,
        application: str,
        pace: Pace,
        wait: Wait,
    ) -> Generator[Page, None, None]:
        """Yield one page of one row, read from nowhere."""
        # A poll reads the place of its last row while it plans; here that row is made up, so that its statement has the
        # same shape.
        cells = [_cell(column) for column in columns]
        table = pa.table(cells, schema=pa.schema([(column.name, column.arrow) for column in columns]))
        yield Page(table=table, special={}, statement_ms=0.0)


def dry(session: Session, source: Source) -> tuple[DrySession, Source]:
    """Wrap both ends of planning."""
    return DrySession(session, source), cast(Source, DrySource(source))


# --- values made up ------------------------------------------------------------------------------


def make_up_bounds(column: Column | None, *, rows: int | None) -> tuple[str, str] | None:
    """Return two canonical texts of the column's type, the smaller first; None where no value is like any other."""
    if column is None:
        return None
    kind, now = column.arrow, datetime.now(UTC)
    if pa.types.is_timestamp(kind):
        zone = "Z" if kind.tz is not None else ""
        low, high = (f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond:06d}{zone}" for at in (now - timedelta(hours=1), now))
        return low, high
    if pa.types.is_date(kind):
        return (now - timedelta(days=1)).date().isoformat(), now.date().isoformat()
    if pa.types.is_integer(kind) or pa.types.is_decimal(kind) or pa.types.is_floating(kind):
        return "1", str(max(rows or 0, 2))
    if column.logical == "uuid" or isinstance(kind, pa.UuidType):
        return "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"
    return ("0", "z") if pa.types.is_string(kind) else None


def beyond(text: str | None, column: Column) -> str | None:
    """Return a value a later run may reach, where there is nothing new now: its statement is what is looked at."""
    if text is not None and pa.types.is_integer(column.arrow):
        return str(int(text) + 1)
    made = make_up_bounds(column, rows=None) if text is not None and pa.types.is_temporal(column.arrow) else None
    return made[1] if made else text


def _cell(column: Column) -> pa.Array:
    """Make one cell of the column's type."""
    kind, made = column.arrow, make_up_bounds(column, rows=None)
    if isinstance(kind, pa.UuidType):
        return pa.ExtensionArray.from_storage(kind, pa.array([bytes(16)], pa.binary(16)))
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        text = pa.array([made[1].removesuffix("Z") if made else None], pa.string())
        naive = text.cast(pa.timestamp(kind.unit) if pa.types.is_timestamp(kind) else kind)
        return naive.cast(kind) if kind == naive.type else pc.assume_timezone(naive, kind.tz)
    if pa.types.is_string(kind):
        return pa.array([made[1] if made else ""], kind)
    if pa.types.is_fixed_size_binary(kind):
        return pa.array([bytes(kind.byte_width)], kind)
    return pa.array([b"\0" if pa.types.is_binary(kind) else 1]).cast(kind)
