"""The planning session on made-up rows: a virtual table of `max_events` rows, of one instant by nature.

Belongs here: columns, keys, bounds and chunks of that table. Not here: rows (rows.py), the settings (source.py,
stream.py). Ranges of numbers are arithmetic; anything else is found by making the rows and looking, so a bound costs
what an export without a file would.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources.canonical import canonical
from rivet_resources.contracts.evidence import Explained, Finding, TableFacts
from rivet_resources.contracts.provenance import DatabaseIdentity
from rivet_resources.contracts.relation import Chunk, Consistency, Relation
from rivet_resources.contracts.settings import Pace
from rivet_resources.contracts.source import Bounds, Horizon, TypeRules
from rivet_resources.contracts.types import Column, Fact
from rivet_resources.engines.datagen import discover as datagen_tables
from rivet_resources.engines.datagen import explain as datagen_explain
from rivet_resources.engines.datagen import sql
from rivet_resources.engines.datagen.pages import Maker
from rivet_resources.engines.datagen.rows import NATIVE, PATTERNS, Recipe, fields, numbers
from rivet_resources.engines.datagen.stream import Stream
from rivet_resources.engines.shared.columns import ColumnBuilder, Spelling
from rivet_resources.engines.shared.names import require_expression, split_name
from rivet_resources.errors import ConfigError, SourceError, UnknownColumn, UnknownTable

# Of an endless stream (`connectors.md`, 5, `max_events`).
SECONDS_PER_RUN, ROWS_PER_RUN = 60, 1_000_000
# Rows made at once while looking for a bound.
LOOKED_AT = 50_000
SAMPLE = 20_000

SPELLING = Spelling(
    quote=sql.quote,
    quote_text=sql.quote_text,
    as_text=lambda made: "{}",
    zoned="{}",
    reads={"json": "json"},
    text_read="text",
    special=frozenset(),
    textable=frozenset(),
)


class DatagenSession:
    """One plan over made-up rows; see the protocol. Holds nothing open."""

    def __init__(self, stream: Stream, *, snapshot: str, note: str) -> None:
        self.stream = stream
        self.recipe: Recipe = stream.recipe_at(snapshot)
        self.consistency: Consistency = "snapshot"
        self.snapshot: str | None = snapshot
        self.note = note

    def close(self) -> None:
        """End nothing; safe to call twice."""

    def identity(self) -> DatabaseIdentity:
        """Return an empty identity: equal seeds make equal rows anywhere."""
        return DatabaseIdentity((), "")

    def examine(self, *, tables: Sequence[str] = (), connections: int = 0) -> tuple[Finding, ...]:
        """Judge nothing but the recipe: rows are made in this process."""
        return (Finding("version", "ok", "rows are made up here: no server, no line, no rights"),)

    def tables(self, pattern: str = "") -> tuple[TableFacts, ...]:
        """List the one stream; see the protocol."""
        whole = self.describe(table=sql.quote(self.stream.name), query=None, params={}, rules=TypeRules(columns={}))
        return datagen_tables.tables(self.stream, whole, pattern)

    def now(self) -> datetime:
        """Return the clock of the rows, aware UTC."""
        return self.recipe.clock.astimezone(UTC)

    # --- describing ------------------------------------------------------------------------------

    def describe(
        self, *, table: str | None, query: str | None, params: Mapping[str, str], rules: TypeRules
    ) -> Relation:
        """Describe the stream, which goes by its own name or the pattern's.

        Raises:
            ConfigError: a query. UnknownTable: another name.
        """
        if table is None:
            raise ConfigError("A datagen source has one table, no queries; write `table:` instead of `query:`.")
        self._check_name(table)
        columns = describe_columns(self.recipe, rules, relation=self.stream.relation)
        key = self._key()
        return Relation(
            name=self.stream.relation,
            # The identity of the rows stands in the relation, and so in the plan's fingerprint.
            sql=f"{sql.quote(self.stream.relation)} FOR {self._identity()}",
            columns=columns,
            is_table=True,
            key=key,
            indexed=frozenset(numbers(self.recipe)),
            rows_estimate=self.stream.max_events or None,
        )

    def _check_name(self, table: str) -> None:
        schema, name = split_name(table)
        if name in (self.stream.name, self.stream.pattern) and schema in (None, self.stream.namespace):
            return
        raise UnknownTable(
            f"The source has no table {table}; it makes up one stream, {self.stream.relation}. "
            f"Fix `table` of the export, or `stream_name` of the source."
        )

    def _key(self) -> tuple[str, ...]:
        """Return the column that tells rows apart: the number, else the pattern's identity where none repeats."""
        pattern = PATTERNS[self.recipe.pattern]
        if counted := numbers(self.recipe):
            return counted[:1]
        # A custom field under the identity's name has one value in all rows.
        replaced = pattern.identity in dict(self.recipe.custom)
        return (pattern.identity,) if pattern.is_unique and not replaced else ()

    def _identity(self) -> str:
        """Name the very rows, so that chunks of a dead run count only if a new run would make the same."""
        recipe = self.recipe
        custom = json.dumps([recipe.pattern, recipe.has_sequence, recipe.has_timestamp, recipe.custom])
        return f"{self.snapshot} recipe={hashlib.sha256(custom.encode()).hexdigest()[:16]}"

    # --- counting and bounds ---------------------------------------------------------------------

    def count(self, relation: Relation, *, where: str = "") -> int:
        """Count rows, by arithmetic where `where` is a range of numbers."""
        within = sql.numbers_of(where, numbers(self.recipe))
        if within is not None:
            low, high = self._span(within)
            return high - low
        return sum(page.num_rows for page in self._look(relation, where))

    def bounds(self, relation: Relation, expression: str, *, where: str = "") -> Bounds:
        """Read MIN, MAX and the number of NULLs; see the protocol."""
        names = numbers(self.recipe)
        within = sql.numbers_of(where, names)
        # A column that `columns:` turned into another type is found by its cells, and not by arithmetic.
        if expression in names and within is not None and _is_whole(relation, expression):
            low, high = self._span(within)
            return Bounds(str(low), str(high - 1), 0) if low < high else Bounds(None, None, 0)
        values = [self._values(relation, page, expression) for page in self._look(relation, where)]
        ends = [pc.min_max(array) for array in values if array.null_count < len(array)]
        nulls = sum(array.null_count for array in values)
        if not ends:
            return Bounds(None, None, nulls)
        low, high = (pick([end[name] for end in ends]) for name, pick in (("min", _least), ("max", _greatest)))
        return Bounds(canonical(low), canonical(high), nulls)

    def _values(self, relation: Relation, page: pa.Table, expression: str) -> pa.Array:
        """Evaluate a column or an expression in parentheses on a page.

        Raises:
            UnknownColumn: a bare name that is no column.
        """
        column = relation.column(expression)
        if column is not None:
            array = page.column(expression).combine_chunks()
            return array.storage if isinstance(array, pa.ExtensionArray) else array
        require_expression(expression, relation)
        return sql.ask(self._connection(), page, f"SELECT {expression} AS v FROM page").column(0).combine_chunks()

    def _connection(self) -> Any:
        return sql.connect()

    def _look(self, relation: Relation, where: str) -> Iterator[pa.Table]:
        """Make all rows that satisfy `where`, typed."""
        within = sql.numbers_of(where, numbers(self.recipe))
        low, high = self._span(within or sql.Numbers())
        maker = Maker(self.recipe, relation.columns)
        rest = "" if within is not None else where
        for _, page in maker.pages(sql.Numbers(low, high), where=rest, size=LOOKED_AT):
            yield page.table

    def _span(self, within: sql.Numbers) -> tuple[int, int]:
        """Return a range that ends.

        Raises:
            SourceError: it does not.
        """
        within = within.narrowed(0, self.stream.max_events or None)
        if within.high is None:
            raise SourceError(
                f"{self.stream.relation} is endless, since `max_events` is 0: it has no last row to count to. Set "
                f"`max_events`, or use `mode: incremental` with `cursor_column: {_first(numbers(self.recipe))}`."
            )
        return within.low, within.high

    # --- how far ---------------------------------------------------------------------------------

    def horizon(
        self, relation: Relation, expression: str, column: Column, *, after: str | None, lag_seconds: float = 0.0
    ) -> Horizon:
        """Find the greatest value above `after`; an endless stream ends where a minute's worth of rows does."""
        if not self.stream.max_events and expression in numbers(self.recipe):
            return self._next_stretch(after)
        quoted = sql.quote(expression) if relation.column(expression) is not None else expression
        terms = [f"{quoted} > {sql.literal(after, column)}"] if after is not None else []
        note = ""
        if lag_seconds and pa.types.is_timestamp(column.arrow):
            # Without a server there is no clock but that of the rows.
            cap = pa.scalar(self.now() - timedelta(seconds=lag_seconds), column.arrow)
            terms.append(f"{quoted} <= {sql.literal(canonical(cap), column)}")
            note = f"stayed {lag_seconds:.15g} s behind (cursor_lag)"
        high = self.bounds(relation, expression, where=" AND ".join(terms)).high
        return Horizon(high if high is not None else after, note)

    def _next_stretch(self, after: str | None) -> Horizon:
        rate = self.stream.events_per_second
        count = rate * SECONDS_PER_RUN if rate else ROWS_PER_RUN
        high = (-1 if after is None else int(after)) + count
        return Horizon(str(high), f"the stream is endless; this run made {count} rows, the next one continues")

    # --- explaining ------------------------------------------------------------------------------

    def explain(self, chunk: Chunk, columns: tuple[Column, ...], *, pace: Pace) -> Explained:
        """Ask the planner about the first page of a chunk; see the protocol."""
        return datagen_explain.explain(self.recipe, chunk, end=self.stream.max_events or None)

    # --- cutting ---------------------------------------------------------------------------------

    def quantiles(self, relation: Relation, column: Column, pieces: int) -> tuple[str, ...]:
        """Return inner bounds: exact for numbers, else from a sample spread evenly over all rows."""
        if pieces < 2:
            return ()
        low, high = self._span(sql.Numbers())
        if column.name in numbers(self.recipe) and _is_whole(relation, column.name):
            # Bounds are inclusive: the last number of a piece, not the first of the next.
            edges = [low + (high - low) * i // pieces - 1 for i in range(1, pieces)]
            return tuple(str(edge) for edge in dict.fromkeys(edges) if low <= edge < high - 1)
        # Spread over all rows: values that grow with the number would otherwise all be of the beginning.
        return self._cut(relation, column, pieces, step=max(1, (high - low) // SAMPLE))

    def keyset_bounds(self, relation: Relation, key: tuple[str, ...], pieces: int) -> tuple[str, ...]:
        """Return inner bounds of equal pieces of a one-column key; () for composite keys."""
        column = relation.column(key[0]) if len(key) == 1 else None
        if column is None or pieces < 2:
            return ()
        if column.name in numbers(self.recipe):
            return self.quantiles(relation, column, pieces)
        return self._cut(relation, column, pieces, step=1)

    def _cut(self, relation: Relation, column: Column, pieces: int, *, step: int) -> tuple[str, ...]:
        """Sort every `step`-th value and take the ones at equal distances, the last left out."""
        # Extension types have no order in Arrow.
        if isinstance(column.arrow, pa.BaseExtensionType):
            return ()
        low, high = self._span(sql.Numbers())
        maker, stride = Maker(self.recipe, (column,)), step * LOOKED_AT
        spans = (range(start, min(start + stride, high), step) for start in range(low, high, stride))
        found = [maker.page(span).table.column(0) for span in spans]
        values = pa.chunked_array([chunk for array in found for chunk in array.chunks], column.arrow)
        ordered = values.drop_null().sort()
        places = [len(ordered) * i // pieces - 1 for i in range(1, pieces)] if len(ordered) else []
        bounds = dict.fromkeys(canonical(ordered[place]) for place in places if place >= 0)
        # The greatest value bounds nothing: a piece behind it would be empty.
        last = canonical(ordered[-1]) if len(ordered) else None
        return tuple(bound for bound in bounds if bound != last)

    def chunks(
        self, relation: Relation, *, where: str = "", order_by: tuple[str, ...] = (), pieces: int = 1
    ) -> tuple[Chunk, ...]:
        """Cut by ranges of numbers, which are free; a predicate that says more is evaluated on the rows of each."""
        within = sql.numbers_of(where, numbers(self.recipe))
        low, high = self._span(within or sql.Numbers())
        # No more pieces than rows, and one at least.
        pieces = max(1, min(pieces, high - low))
        edges = [low + (high - low) * i // pieces for i in range(pieces + 1)]
        return tuple(
            Chunk(
                index=i,
                reader="blocks",
                relation=relation.sql,
                abreast=pieces,
                where="" if within is not None else where,
                blocks=(edges[i], edges[i + 1]),
                identity=f"n[{edges[i]},{edges[i + 1]}){'' if within is not None else where}",
            )
            for i in range(pieces)
        )


def describe_columns(
    recipe: Recipe, rules: TypeRules, *, relation: str, more: Mapping[str, Fact] | None = None
) -> tuple[Column, ...]:
    """Type the stream's columns, as `columns:` says where it says something.

    Args:
        more: columns behind the recipe's own.

    Raises:
        UnknownColumn: a rule names a column that is not there. ConfigError: a type a column cannot be read as.
    """
    made = {**fields(recipe), **(more or {})}
    bare = relation.rpartition(".")[2]
    for key in rules.columns:
        table, _, name = key.rpartition(".")
        if key not in made and not (name in made and table in (relation, bare)):
            raise UnknownColumn(key, relation=relation, known=list(made), key="columns")
    nullable = {name for name, value in recipe.custom if value is None}
    return tuple(
        ColumnBuilder(
            name=name,
            native=NATIVE[fact],
            base=NATIVE[fact],
            sql_type=NATIVE[fact],
            not_null=name not in nullable,
            comment="",
            relation=relation,
            fact=fact,
            rules=rules,
            spelling=SPELLING,
        ).decided()
        for name, fact in made.items()
    )


def _is_whole(relation: Relation, name: str) -> bool:
    column = relation.column(name)
    return column is not None and bool(pa.types.is_integer(column.arrow))


def _first(names: tuple[str, ...]) -> str:
    return names[0] if names else "_sequence (include_sequence: true)"


def _least(cells: list[pa.Scalar]) -> pa.Scalar:
    return pc.min(pa.array(cells, cells[0].type))


def _greatest(cells: list[pa.Scalar]) -> pa.Scalar:
    return pc.max(pa.array(cells, cells[0].type))
