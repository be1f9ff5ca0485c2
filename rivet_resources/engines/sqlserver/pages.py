"""Pages of SQL Server: by key, each its own statement; or bites of one stream where there is no key.

Belongs here: the two ways to page. Not here: sizes and the walk along a key (shared/paging.py), the connection and its
faults (reader.py), SQL text (sql.py).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace

from rivet_resources.contracts.evidence import Effort
from rivet_resources.contracts.relation import Chunk
from rivet_resources.contracts.settings import Pace
from rivet_resources.contracts.source import Page, Wait
from rivet_resources.contracts.types import Column
from rivet_resources.engines.shared.paging import FIRST_ROWS, Size, keyset, rows_limit
from rivet_resources.engines.sqlserver import sql
from rivet_resources.engines.sqlserver.connect import ConnectionParams
from rivet_resources.engines.sqlserver.reader import Reader


def read(
    chunk: Chunk, columns: tuple[Column, ...], *, line: ConnectionParams, pace: Pace, wait: Wait
) -> Generator[Page, None, Effort]:
    """Read a chunk page by page; see `Source.pages`. Pages without rows are not shown, but their time is."""
    reader = Reader(line=line, chunk=chunk, columns=columns, pace=pace, wait=wait)
    longest = 0.0
    try:
        for page in WAYS[chunk.reader](reader):
            longest = max(longest, page.statement_ms)
            if page.table.num_rows:
                yield replace(page, statement_ms=longest)
                longest = 0.0
        return reader.effort()
    finally:
        reader.close()


def _keyset(reader: Reader) -> Iterator[Page]:
    """Pages are `TOP (n) … key > last ORDER BY key`; each stands alone, so any can be asked again."""
    return keyset(reader, sql)


def _cursor(reader: Reader) -> Iterator[Page]:
    """Pages are bites of one stream, which dies with its connection: then the chunk starts over (SourceLost)."""
    chunk, pace = reader.chunk, reader.pace
    rows = rows_limit(pace, reader.columns) or pace.batch_size
    size = Size(now=min(FIRST_ROWS, rows), most=rows, rows=None, pace=pace)
    reader.begin(sql.select(reader.items, relation=chunk.relation, where=[chunk.where], order_by=chunk.order_by))
    while True:
        page = reader.bite(size.now)
        yield page
        if page.table.num_rows < size.now:
            return
        size = size.after(size.now, page, share=reader.wait(page.table.num_rows))


WAYS: Mapping[str, Callable[[Reader], Iterator[Page]]] = {"keyset": _keyset, "cursor": _cursor}
