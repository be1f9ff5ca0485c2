"""Pages of made-up rows: which numbers a chunk means, made page by page, no faster than the source allows.

Belongs here: from a chunk to pages. Not here: how one row is made (rows.py), columns (session.py).
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from rivet_resources.contracts.evidence import Effort
from rivet_resources.contracts.relation import Chunk
from rivet_resources.contracts.settings import Pace
from rivet_resources.contracts.source import Page, Wait
from rivet_resources.contracts.types import JSON, Column
from rivet_resources.engines.datagen import sql
from rivet_resources.engines.datagen.rate import TokenBucket
from rivet_resources.engines.datagen.rows import Recipe, numbers, rows
from rivet_resources.engines.datagen.stream import Stream
from rivet_resources.engines.shared.cells import Cells, Read, overriding, storage
from rivet_resources.engines.shared.overrides import render
from rivet_resources.engines.shared.paging import rows_limit
from rivet_resources.errors import SourceError

# --- what a chunk says ---------------------------------------------------------------------------


def parse_numbers(chunk: Chunk, names: tuple[str, ...], end: int | None) -> tuple[sql.Numbers, str]:
    """Return the numbers a chunk means, and the predicate that is still to be evaluated on them.

    Raises:
        SourceError: there is no end.
    """
    within = sql.numbers_of(chunk.where, names)
    # A predicate that is no range of numbers is evaluated on the rows; those of all numbers have to be made for it.
    numbers_, rest = (within, "") if within is not None else (sql.Numbers(), chunk.where)
    if chunk.reader == "blocks":
        numbers_ = numbers_.narrowed(*chunk.blocks)
    numbers_ = numbers_.narrowed(0, end)
    if numbers_.high is None:
        raise SourceError("The stream of made-up rows is endless, so this chunk has no end. Set `max_events`.")
    return numbers_, rest


# --- cells ---------------------------------------------------------------------------------------


def _plain(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    return array


def _text(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    return array if pa.types.is_string(array.type) else render(array)


def _json(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    return pa.ExtensionArray.from_storage(JSON, storage(array))


READERS: Mapping[str, Read] = {
    "plain": _plain,
    "decimal": _plain,
    "text": _text,
    "json": _json,
    "override": overriding({}),
}


# --- pages ---------------------------------------------------------------------------------------


@dataclass
class Maker:
    """Makes typed pages of some columns. Not shared between threads."""

    recipe: Recipe
    columns: tuple[Column, ...]
    chunk: int = 0
    strict: frozenset[str] = frozenset()
    _cells: Cells = field(init=False)
    _duckdb: Any = None

    def __post_init__(self) -> None:
        self._cells = Cells(self.columns, chunk=self.chunk, readers=READERS, strict=self.strict)

    def page(self, wanted: range, where: str = "") -> Page:
        """Make the rows of these numbers, and keep those that satisfy `where`."""
        began = time.perf_counter()
        made = rows(self.recipe, wanted).select([column.name for column in self.columns])
        table, special = self._cells.decode([made])
        page = Page(table=table, special=special, statement_ms=0.0, refused=self._cells.refused)
        # DuckDB is opened only where a predicate says more than a range.
        if where and table.num_rows:
            page = page.take(sql.places_of(self.duckdb, table, where))
        return replace(page, statement_ms=(time.perf_counter() - began) * 1000)

    def pages(self, wanted: sql.Numbers, *, where: str, size: int) -> Iterator[tuple[int, Page]]:
        """Make a range of rows page by page, each with the number of rows made for it."""
        end = wanted.high if wanted.high is not None else wanted.low
        for start in range(wanted.low, end, size):
            count = min(size, end - start)
            yield count, self.page(range(start, start + count), where)

    @property
    def duckdb(self) -> Any:
        """Return the connection that evaluates SQL, opened when first needed."""
        if self._duckdb is None:
            self._duckdb = sql.connect()
        return self._duckdb


def read(
    stream: Stream, chunk: Chunk, columns: tuple[Column, ...], *, snapshot: str | None, pace: Pace, wait: Wait
) -> Generator[Page, None, Effort]:
    """Read a chunk page by page; see `Source.pages`. A page waits for all its rows before it is shown."""
    recipe = stream.recipe_at(snapshot)
    within, where = parse_numbers(chunk, numbers(recipe), stream.max_events or None)
    maker = Maker(recipe, columns, chunk=chunk.index, strict=frozenset(chunk.key))
    # Chunks that are read side by side share the source's rate.
    rate = stream.events_per_second / chunk.abreast
    bucket = TokenBucket(rate)
    size = rows_limit(pace, columns) or pace.batch_size
    # About a second's worth, so that a slow stream still moves.
    if rate:
        size = max(1, min(size, int(rate)))
    for made, page in maker.pages(within, where=where, size=size):
        bucket.acquire(made)
        if page.table.num_rows:
            yield page
            wait(page.table.num_rows)
    return Effort(connections=0)
