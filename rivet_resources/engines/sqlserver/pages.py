"""Pages of SQL Server: by key, each its own statement; or bites of one stream where there is no key.

Belongs here: the two ways to page. Not here: sizes and the walk along a key (shared/paging.py), the connection and its
faults (reader.py), SQL text (sql.py).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping

from rivet_resources.contracts.evidence import Effort
from rivet_resources.contracts.relation import Chunk
from rivet_resources.contracts.settings import Pace
from rivet_resources.contracts.source import Page, Wait
from rivet_resources.contracts.types import Column
from rivet_resources.engines.shared import paging
from rivet_resources.engines.shared.key_walk import keyset
from rivet_resources.engines.sqlserver import sql
from rivet_resources.engines.sqlserver.connect import ConnectionParams
from rivet_resources.engines.sqlserver.reader import Reader


def read(
    chunk: Chunk, columns: tuple[Column, ...], *, conn_params: ConnectionParams, pace: Pace, wait: Wait
) -> Generator[Page, None, Effort]:
    """Read a chunk page by page; see `Source.pages`."""
    reader = Reader(conn_params=conn_params, chunk=chunk, columns=columns, pace=pace, wait=wait)
    return paging.read_pages(reader, WAYS[chunk.reader](reader))


def _keyset(reader: Reader) -> Generator[Page]:
    """Pages are `TOP (n) … key > last ORDER BY key`; each stands alone, so any can be asked again."""
    return keyset(reader, sql)


def _cursor(reader: Reader) -> Generator[Page]:
    """Pages are bites of one stream, which dies with its connection: then the chunk starts over (SourceLost)."""
    chunk = reader.chunk
    # Without a key pieces would lose or repeat rows, so it is one statement.
    reader.begin(sql.select(reader.items, relation=chunk.relation, where=[chunk.where], order_by=chunk.order_by))
    yield from paging.fetches(reader, reader.bite)


WAYS: Mapping[str, Callable[[Reader], Generator[Page]]] = {"keyset": _keyset, "cursor": _cursor}
