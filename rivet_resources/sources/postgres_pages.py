"""Pages of PostgreSQL: one statement, read whole through ADBC before a row of it is used.

Belongs here: the three ways to page (blocks, cursor, keyset) and the size of pages. Not here: the connection and
its faults (postgres_reader.py), cells (postgres_values.py), SQL text (postgres_sql.py).

The throttle sleeps between statements, because the server's timeout counts our pauses too (`engine.md`, trap 6).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources import retry
from rivet_resources.errors import SourceLost
from rivet_resources.extract import Chunk
from rivet_resources.settings import Pace
from rivet_resources.sources import postgres_sql as sql
from rivet_resources.sources.postgres_reader import MIB, Reader
from rivet_resources.sources.protocol import Page, Wait
from rivet_resources.types import Column

if TYPE_CHECKING:
    from rivet_resources.sources.postgres import Line

# `engine.md`, section 2: 8-32 MiB of Arrow, a tenth of the timeout, and no statement of a quarter second.
SMALL_BYTES, TARGET_BYTES, LARGE_BYTES = 8 * MIB, 16 * MIB, 32 * MIB
LONGEST_SECONDS = 0.25
# A page starts small, since nobody knows how much is in TOAST; it grows eightfold at most.
FIRST_BLOCKS, MOST_BLOCKS, FIRST_ROWS, GROWTH = 8, 65_536, 500, 8
MOST_ROWS_PER_BLOCK = 291  # of a heap page of 8 KB


def read(
    chunk: Chunk, columns: tuple[Column, ...], *, line: Line, snapshot: str | None, pace: Pace, wait: Wait
) -> Generator[Page, None, None]:
    """Read a chunk page by page; see `Source.pages`. Pages without rows are not shown, but their time is."""
    reader = Reader(line=line, snapshot=snapshot, chunk=chunk, columns=columns, pace=pace, wait=wait)
    longest = 0.0
    try:
        for page in {"blocks": _blocks, "cursor": _cursor, "keyset": _keyset}[chunk.reader](reader):
            longest = max(longest, page.statement_ms)
            if page.table.num_rows:
                yield replace(page, statement_ms=longest)
                longest = 0.0
    finally:
        reader.close()


# --- three readers -------------------------------------------------------------------------------


def _blocks(reader: Reader) -> Iterator[Page]:
    """Pages are ranges of heap blocks, all under one snapshot: an UPDATE would move rows between pages."""
    chunk, pace = reader.chunk, reader.pace
    size = Size(now=FIRST_BLOCKS, most=MOST_BLOCKS, rows=rows_limit(pace, reader.columns), pace=pace)
    if size.rows is not None:
        size = replace(size, now=max(1, min(FIRST_BLOCKS, size.rows // MOST_ROWS_PER_BLOCK)))
    low, end = chunk.blocks
    while low < end:
        high = min(low + size.now, end)
        page = reader.ask(_block_range(reader, low, high), what=f"blocks {low} to {high}", can_shrink=high - low > 1)
        if page is None:
            size = replace(size, now=max(1, (high - low) // 4))
            continue
        size = size.after(high - low, page)
        low = high
        yield page
        if low < end:
            reader.wait(page.table.num_rows)


def _block_range(reader: Reader, low: int, high: int) -> str:
    where = [f"ctid >= '({low},0)' AND ctid < '({high},0)'", reader.chunk.where]
    return sql.select(reader.items, relation=reader.chunk.relation, where=where)


def _cursor(reader: Reader) -> Iterator[Page]:
    """Pages are FETCHes of one cursor, which dies with its connection: then the chunk starts over (SourceLost)."""
    chunk, pace = reader.chunk, reader.pace
    rows = rows_limit(pace, reader.columns) or pace.batch_size
    size = Size(now=min(FIRST_ROWS, rows), most=rows, rows=None, pace=pace)
    query = sql.select(reader.items, relation=chunk.relation, where=[chunk.where], order_by=chunk.order_by)
    retry.call(
        lambda: reader.run(f"DECLARE rivet NO SCROLL CURSOR FOR {query}", doing="opening the cursor"),
        pace=pace,
        on=SourceLost,
        on_retry=lambda error: reader.close(),
    )
    while True:
        page = reader.fetch(f"FETCH {size.now} FROM rivet")
        yield page
        if page.table.num_rows < size.now:
            return
        reader.wait(page.table.num_rows)
        size = size.after(size.now, page)


def _keyset(reader: Reader) -> Iterator[Page]:
    """Pages are `key > last ORDER BY key LIMIT n`; each stands alone, so any can be asked again."""
    chunk, pace = reader.chunk, reader.pace
    rows = rows_limit(pace, reader.columns) or pace.batch_size
    size = Size(now=min(FIRST_ROWS, rows), most=rows, rows=None, pace=pace)
    key = [sql.quote(name) for name in chunk.key]
    columns = [next(c for c in reader.columns if c.name == name) for name in chunk.key]
    after = ""
    while True:
        statement = sql.select(
            reader.items, relation=chunk.relation, where=[chunk.where, after], order_by=key, limit=size.now
        )
        page = reader.ask(statement, what="the next rows by key", can_shrink=size.now > 1)
        if page is None:
            size = replace(size, now=max(1, size.now // 4))
            continue
        yield page
        if page.table.num_rows < size.now:
            return
        last = [page.table.column(c.name)[-1] for c in columns]
        after = sql.after_key(key, [sql.literal(_canonical(cell), c) for cell, c in zip(last, columns, strict=True)])
        reader.wait(page.table.num_rows)
        size = size.after(size.now, page)


def _canonical(cell: pa.Scalar) -> str:
    """Render a key cell; times beyond Python's years by Arrow."""
    if pa.types.is_timestamp(cell.type):
        return str(pc.strftime(cell, format="%Y-%m-%dT%H:%M:%S")) + ("Z" if cell.type.tz else "")
    return sql.canonical(cell.as_py())


# --- the size of pages ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Size:
    """How much the next page asks for, in blocks or rows, and the limits it adapts within."""

    now: int
    most: int
    rows: int | None  # at most so many rows where `now` counts blocks
    pace: Pace

    @property
    def longest_seconds(self) -> float:
        limit = self.pace.statement_timeout_s
        return min(LONGEST_SECONDS, limit / 10) if limit else LONGEST_SECONDS

    @property
    def target_bytes(self) -> int:
        memory = self.pace.batch_size_memory_mb
        return min(TARGET_BYTES, memory * MIB) if memory else TARGET_BYTES

    def after(self, asked: int, page: Page) -> Size:
        """Adapt to a page that asked for `asked`: towards the target of bytes, down when it took too long."""
        factor = min(
            self.target_bytes / max(page.table.nbytes, 1),
            self.longest_seconds / 2 * 1000 / max(page.statement_ms, 0.01),
        )
        if self.rows is not None:
            factor = min(factor, self.rows / max(page.table.num_rows, 1))
        if 0.8 < factor < 2 and self.rows is None:
            return self
        wanted = int(asked * min(factor, GROWTH))
        return replace(self, now=max(1, min(wanted, self.most)))


# `contract.md`, 5.1: Arrow widths where fixed, decimal 16, text and binary 256, anything else 64, one for validity.
def rows_limit(pace: Pace, columns: tuple[Column, ...]) -> int | None:
    """Give the rows a page may hold by the user's own word, None when they gave none."""
    if pace.batch_size_is_explicit:
        return pace.batch_size
    if pace.batch_size_memory_mb is None:
        return None
    width = sum(_width(column.arrow) + 1 for column in columns)
    return max(1_000, min(500_000, pace.batch_size_memory_mb * MIB // width))


def _width(arrow: pa.DataType) -> int:
    if pa.types.is_decimal(arrow):
        return 16
    if pa.types.is_string(arrow) or pa.types.is_binary(arrow):
        return 256
    try:
        return max(1, int(arrow.bit_width) // 8)
    except ValueError:
        return 64
