"""Pages of SQLite: some rows of a statement, read whole before one of them is used.

Belongs here: the two ways to page (cursor, keyset). Not here: sizes and paging itself (shared/paging.py), the
connection and its faults (reader.py), cells (values.py), SQL text (sql.py).

A cursor costs SQLite nothing between two fetches but its read transaction, which is the one instant a chunk is of; so
it is the way of every chunk but those that a key must page.
"""

from __future__ import annotations

from collections.abc import Generator

from rivet_resources.contracts.evidence import Effort
from rivet_resources.contracts.relation import Chunk
from rivet_resources.contracts.settings import Pace
from rivet_resources.contracts.source import Page, Wait
from rivet_resources.contracts.types import Column
from rivet_resources.engines.shared import paging
from rivet_resources.engines.shared.key_walk import keyset
from rivet_resources.engines.sqlite import sql
from rivet_resources.engines.sqlite.connect import ConnectionParams
from rivet_resources.engines.sqlite.reader import Reader

# Nobody knows how wide the rows are; pages grow eightfold at most.
FIRST_ROWS = 32
# The read transaction lasts as long whether its rows come by many fetches or few, and each page costs something for
# each column.
LONGEST_SECONDS = 1.0


def read(
    chunk: Chunk, columns: tuple[Column, ...], *, conn_params: ConnectionParams, pace: Pace, wait: Wait
) -> Generator[Page, None, Effort]:
    """Read a chunk page by page; see `Source.pages`."""
    reader = Reader(conn_params=conn_params, chunk=chunk, columns=columns, pace=pace, wait=wait)
    return paging.read_pages(reader, ways(reader))


def ways(reader: Reader) -> Generator[Page]:
    """Page a chunk in the way that it asks for."""
    return keyset(reader, sql.CollatedDialect(reader.columns)) if reader.chunk.reader == "keyset" else _cursor(reader)


def _cursor(reader: Reader) -> Generator[Page]:
    """Pages are fetches of one open statement."""
    chunk = reader.chunk
    cursor = reader.stream(
        sql.select(reader.items, relation=chunk.relation, where=[chunk.where], order_by=chunk.order_by)
    )
    yield from paging.fetches(
        reader, lambda rows: reader.fetch(cursor, rows), first=FIRST_ROWS, longest_seconds=LONGEST_SECONDS
    )
