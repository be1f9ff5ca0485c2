"""Pages of made-up rows: which numbers a chunk means, made page by page, no faster than the source allows.

Belongs here: from a chunk to pages, reading back what an instant's name says. Not here: how one row is made
(rows.py), columns (session.py).
"""

from __future__ import annotations

import re
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rivet_resources.contracts.evidence import Effort
from rivet_resources.contracts.relation import Chunk
from rivet_resources.contracts.settings import Pace
from rivet_resources.contracts.source import Page, Wait
from rivet_resources.contracts.types import JSON, Column
from rivet_resources.engines.datagen import sql
from rivet_resources.engines.datagen.rate import TokenBucket
from rivet_resources.engines.datagen.rows import Recipe, numbers, rows
from rivet_resources.engines.shared.cells import Cells, Read, overriding, storage
from rivet_resources.engines.shared.overrides import render
from rivet_resources.engines.shared.paging import rows_limit
from rivet_resources.errors import SourceError

if TYPE_CHECKING:
    from rivet_resources.engines.datagen.source import Datagen

SNAPSHOT = re.compile(r"seed=(-?\d+) clock=(\S+)")


# --- what an instant and a chunk say -------------------------------------------------------------


def snapshot_name(seed: int, clock: datetime) -> str:
    """Name the one instant all rows are of: everything a task needs beside the settings."""
    return f"seed={seed} clock={clock.astimezone(UTC).isoformat(timespec='microseconds').replace('+00:00', 'Z')}"


def recipe_of(source: Datagen, snapshot: str | None) -> Recipe:
    """Join the settings with the instant's seed and clock.

    Raises:
        SourceError: the name is not one of ours.
    """
    found = SNAPSHOT.fullmatch(snapshot or "")
    if found is None:
        raise SourceError("Made-up rows need the name of their instant, which planning gives. Run the export again.")
    return Recipe(
        pattern=source.pattern,
        seed=int(found[1]),
        clock=datetime.fromisoformat(found[2]),
        has_sequence=source.include_sequence,
        has_timestamp=source.include_timestamp,
        custom=tuple(source.custom_fields.items()),
    )


def wanted(chunk: Chunk, names: tuple[str, ...], end: int | None) -> tuple[sql.Numbers, str]:
    """Give the numbers a chunk means, and the predicate that is still to be evaluated on them.

    Raises:
        SourceError: there is no end.
    """
    within = sql.numbers_of(chunk.where, names)
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
        if where:
            table = sql.kept(self.duckdb, table, where)
        return Page(table=table, special=special, statement_ms=(time.perf_counter() - began) * 1000)

    def pages(self, wanted: sql.Numbers, *, where: str, size: int) -> Iterator[tuple[int, Page]]:
        """Make a range of rows page by page, each with the number of rows made for it."""
        end = wanted.high if wanted.high is not None else wanted.low
        for start in range(wanted.low, end, size):
            count = min(size, end - start)
            yield count, self.page(range(start, start + count), where)

    @property
    def duckdb(self) -> Any:
        """Give the connection that evaluates SQL, opened when first needed."""
        if self._duckdb is None:
            self._duckdb = sql.connect()
        return self._duckdb


def read(
    source: Datagen, chunk: Chunk, columns: tuple[Column, ...], *, snapshot: str | None, pace: Pace, wait: Wait
) -> Generator[Page, None, Effort]:
    """Read a chunk page by page; see `Source.pages`. A page waits for all its rows before it is shown."""
    recipe = recipe_of(source, snapshot)
    within, where = wanted(chunk, numbers(recipe), source.max_events or None)
    maker = Maker(recipe, columns, chunk=chunk.index, strict=frozenset(chunk.key))
    rate = source.events_per_second / chunk.abreast
    bucket = TokenBucket(rate)
    size = rows_limit(pace, columns) or pace.batch_size
    if rate:  # about a second's worth, so that a slow stream still moves
        size = max(1, min(size, int(rate)))
    for made, page in maker.pages(within, where=where, size=size):
        bucket.acquire(made)
        if page.table.num_rows:
            yield page
            wait(page.table.num_rows)
    return Effort(connections=0)
