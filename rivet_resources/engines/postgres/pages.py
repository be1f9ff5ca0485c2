"""Pages of PostgreSQL: one statement, read whole through ADBC before a row of it is used.

Belongs here: the three ways to page (blocks, cursor, keyset). Not here: sizes and the walk along a key
(shared/paging.py), the connection and its faults (reader.py), cells (values.py), SQL text (sql.py).

The throttle sleeps between statements, because the server's timeout counts our pauses too (`engine.md`, trap 6).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import replace

from rivet_resources import retry
from rivet_resources.contracts.evidence import Effort
from rivet_resources.contracts.relation import Chunk
from rivet_resources.contracts.settings import Pace
from rivet_resources.contracts.source import Page, Wait
from rivet_resources.contracts.types import Column
from rivet_resources.engines.postgres import sql
from rivet_resources.engines.postgres.connect import ConnectionParams
from rivet_resources.engines.postgres.reader import Reader
from rivet_resources.engines.shared import paging
from rivet_resources.engines.shared.key_walk import keyset
from rivet_resources.engines.shared.page_size import Size, measured
from rivet_resources.errors import SourceLost

# A page starts small, since nobody knows how much is in TOAST.
FIRST_BLOCKS, MOST_BLOCKS = 8, 65_536
# Of a heap page of 8 KB.
MOST_ROWS_PER_BLOCK = 291


def read(
    chunk: Chunk,
    columns: tuple[Column, ...],
    *,
    conn_params: ConnectionParams,
    snapshot: str | None,
    pace: Pace,
    wait: Wait,
) -> Generator[Page, None, Effort]:
    """Read a chunk page by page; see `Source.pages`."""
    reader = Reader(conn_params=conn_params, snapshot=snapshot, chunk=chunk, columns=columns, pace=pace, wait=wait)
    return paging.read_pages(reader, WAYS[chunk.reader](reader))


# --- three readers -------------------------------------------------------------------------------


def _blocks(reader: Reader) -> Generator[Page]:
    """Pages are ranges of heap blocks, all under one snapshot: an UPDATE would move rows between pages."""
    chunk, pace = reader.chunk, reader.pace
    size = Size(now=FIRST_BLOCKS, most=MOST_BLOCKS, rows=paging.rows_limit(pace, reader.columns), pace=pace)
    if size.rows is not None:
        # With a limit of rows the first page must keep it as well, however full the blocks are.
        size = replace(size, now=max(1, min(FIRST_BLOCKS, size.rows // MOST_ROWS_PER_BLOCK)))
    low, end = chunk.blocks
    while low < end:
        high = min(low + size.now, end)
        page = reader.ask(_block_range(reader, low, high), what=f"blocks {low} to {high}", can_shrink=high - low > 1)
        if page is None:
            size = replace(size, now=max(1, (high - low) // 4))
            continue
        asked, low = high - low, high
        yield page
        # Behind the last page nobody waits for one.
        share = reader.wait(page.table.num_rows) if low < end else None
        size = size.after(asked, measured(page), share=share)


def _block_range(reader: Reader, low: int, high: int) -> str:
    where = [f"ctid >= '({low},0)' AND ctid < '({high},0)'", reader.chunk.where]
    return sql.select(reader.items, relation=reader.chunk.relation, where=where)


def _cursor(reader: Reader) -> Generator[Page]:
    """Pages are FETCHes of one cursor, which dies with its connection: then the chunk starts over (SourceLost)."""
    chunk, pace = reader.chunk, reader.pace
    query = sql.select(reader.items, relation=chunk.relation, where=[chunk.where], order_by=chunk.order_by)
    retry.call(
        lambda: reader.run(f"DECLARE rivet NO SCROLL CURSOR FOR {query}", doing="opening the cursor"),
        pace=pace,
        on=SourceLost,
        on_retry=lambda error: reader.close(),
    )
    yield from paging.fetches(reader, lambda rows: reader.fetch(f"FETCH {rows} FROM rivet"))


def _keyset(reader: Reader) -> Generator[Page]:
    """Pages are `key > last ORDER BY key LIMIT n`."""
    return keyset(reader, sql)


WAYS: Mapping[str, Callable[[Reader], Generator[Page]]] = {"blocks": _blocks, "cursor": _cursor, "keyset": _keyset}
