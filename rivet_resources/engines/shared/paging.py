"""Pages, whatever the engine: how large the next one may be.

Belongs here: the loop over a chunk's pages, paging by fetches, the largest cell. Not here: how sizes adapt
(`page_size.py`), paging along a key (`key_walk.py`), connections and their faults (`engines/*/reader.py`), SQL of one
engine (`engines/*/sql.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import replace
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources.contracts.evidence import Effort
from rivet_resources.contracts.relation import Chunk
from rivet_resources.contracts.settings import Pace
from rivet_resources.contracts.source import Page, Wait
from rivet_resources.contracts.types import Column
from rivet_resources.engines.shared.page_size import LONGEST_SECONDS, MIB, Size, measured
from rivet_resources.errors import ValueDoesNotFit

ABORT_BYTES = 96 * MIB  # a page this far off its target is asked again, smaller
FIRST_ROWS = 500  # a page starts small, since nobody knows how wide the rows are


class TooLarge(Exception):
    """A page passed its limit of bytes; its connection is in mid-statement."""


class PageReader(Protocol):
    """One task's connection, as far as paging needs it."""

    chunk: Chunk
    columns: tuple[Column, ...]
    items: list[str]  # the SELECT list
    pace: Pace

    @property
    def wait(self) -> Wait:
        """Sleep the throttle's pause; told the rows of the page just read."""

    def ask(self, statement: str, *, what: str, can_shrink: bool) -> Page | None:
        """Read one page whole; None when it must be asked again, smaller."""

    def effort(self) -> Effort:
        """Return what the reading cost the server."""

    def close(self) -> None:
        """Close the connection, ending what runs on it; safe to call twice."""


def relation_name(chunk: Chunk, columns: tuple[Column, ...]) -> str:
    """Return what people call the relation that a chunk is of."""
    return next((c.fact("relation") for c in columns if c.fact("relation")), chunk.relation)


def read_pages(reader: PageReader, pages: Generator[Page]) -> Generator[Page, None, Effort]:
    """Yield the pages that have rows, and close the reader at the end; see `Source.pages`.

    Pages without rows are not shown, but their time is: it goes to the next one that is.
    """
    longest = 0.0
    try:
        # Closed first: what is being asked ahead (mysql/ahead.py) ends before its connection does.
        with closing(pages):
            for page in pages:
                longest = max(longest, page.statement_ms)
                # An empty page in the middle is no end of a chunk, as a range of blocks may hold only dead rows.
                if page.table.num_rows:
                    yield page if longest == page.statement_ms else replace(page, statement_ms=longest)
                    longest = 0.0
        return reader.effort()
    finally:
        # By the reader in every case, also when the caller leaves the loop: the generator's end is where the
        # connection ends.
        reader.close()


def fetches(
    reader: PageReader,
    fetch: Callable[[int], Page],
    *,
    first: int | None = None,
    longest_seconds: float = LONGEST_SECONDS,
) -> Generator[Page]:
    """Page an open statement: fetch by fetch, each as large as the one before it allows.

    Args:
        first: rows of the first page; FIRST_ROWS where the engine has no better number.
        longest_seconds: of a fetch, where the source bears more than of others.
    """
    rows = rows_limit(reader.pace, reader.columns) or reader.pace.batch_size
    size = Size(
        now=min(first or FIRST_ROWS, rows), most=rows, rows=None, pace=reader.pace, most_seconds=longest_seconds
    )
    while True:
        page = fetch(size.now)
        yield page
        if page.table.num_rows < size.now:
            return
        size = size.after(size.now, measured(page), share=reader.wait(page.table.num_rows))


# --- limits by rows ------------------------------------------------------------------------------


# `contract.md`, 5.1: Arrow widths where fixed, decimal 16, text and binary 256, anything else 64, one for validity.
def rows_limit(pace: Pace, columns: tuple[Column, ...]) -> int | None:
    """Return the rows a page may hold by the user's own word, None when they gave none."""
    if pace.batch_size_is_explicit:
        return pace.batch_size
    if pace.batch_size_memory_mb is None:
        return None
    # Between these two: a few rows a page would be all round trips, and an estimate by type may be far too low.
    return max(1_000, min(500_000, pace.batch_size_memory_mb * MIB // row_width(columns)))


def row_width(columns: tuple[Column, ...]) -> int:
    """Estimate the bytes of one row in memory, from its types alone."""
    return sum(_width(column.arrow) + 1 for column in columns)


def _width(arrow: pa.DataType) -> int:
    if pa.types.is_decimal(arrow):
        return 16
    if pa.types.is_string(arrow) or pa.types.is_binary(arrow):
        return 256
    try:
        return max(1, int(arrow.bit_width) // 8)
    except ValueError:
        return 64


# --- the largest cell ----------------------------------------------------------------------------


class ValueTooLarge(ValueDoesNotFit):
    """One cell is larger than `max_value_mb`."""

    code = "RIVET_VALUE_TOO_LARGE"


def check_cells(table: pa.Table, max_value_mb: int, *, relation: str) -> None:
    """Refuse a cell above the limit; columns smaller than it as a whole are not looked at.

    Raises:
        ValueTooLarge
    """
    # Nearly always all buffers together are below the limit, and no column need be looked at.
    if not max_value_mb or table.get_total_buffer_size() <= max_value_mb * MIB:
        return
    for name, column in zip(table.column_names, table.columns, strict=True):
        # A column whose bytes together are below the limit has no cell above it, so the lengths of most pages are
        # never computed.
        if column.nbytes <= max_value_mb * MIB or not (
            pa.types.is_string(column.type) or pa.types.is_binary(column.type)
        ):
            continue
        largest = pc.max(pc.binary_length(column)).as_py() or 0
        if largest > max_value_mb * MIB:
            raise ValueTooLarge(
                f"`{relation}.{name}` holds a cell of {largest // MIB} MB; `tuning.max_value_mb` allows "
                f"{max_value_mb}. "
                f"Raise it, or leave the column out."
            )
