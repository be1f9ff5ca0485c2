"""Pages of MySQL: one statement, read whole before a row of it is used; or one long statement, read in bites.

Belongs here: the two ways to page (keyset, cursor). Not here: the size of pages (shared/paging.py), the connection and
its faults (reader.py), cells (values.py), SQL text (sql.py).

Never OFFSET for rows, and never a buffered answer (`engine.md`, section 3).
"""

from __future__ import annotations

from collections.abc import Generator

from rivet_resources.contracts.evidence import Effort
from rivet_resources.contracts.relation import Chunk
from rivet_resources.contracts.settings import Pace
from rivet_resources.contracts.source import Page, Wait
from rivet_resources.contracts.types import Column
from rivet_resources.engines.mysql import ahead, sql
from rivet_resources.engines.mysql.connect import ConnectionParams
from rivet_resources.engines.mysql.reader import Reader
from rivet_resources.engines.shared import paging
from rivet_resources.engines.shared.page_size import SMALL_BYTES, Size


def read(
    chunk: Chunk,
    columns: tuple[Column, ...],
    *,
    conn_params: ConnectionParams,
    place: str | None,
    pace: Pace,
    wait: Wait,
) -> Generator[Page, None, Effort]:
    """Read a chunk page by page; see `Source.pages`.

    Args:
        place: of a meeting (aligned.py), where there is one.
    """
    reader = Reader(conn_params=conn_params, chunk=chunk, columns=columns, pace=pace, wait=wait, place=place)
    return paging.read_pages(reader, ways(reader))


def ways(reader: Reader) -> Generator[Page]:
    """Page a chunk in the way that it asks for."""
    return ahead.keyset(reader) if reader.chunk.reader == "keyset" else _cursor(reader)


def _cursor(reader: Reader) -> Generator[Page]:
    """Pages are bites of one answer, which dies with its connection: then the chunk starts over (SourceLost)."""
    chunk = reader.chunk
    # Without a unique key pieces would lose or repeat rows, so it is one statement, which the server holds open
    # while we write.
    statement = sql.select(reader.items, relation=chunk.relation, where=[chunk.where], order_by=chunk.order_by)
    size = Size(now=1, most=1, rows=None, pace=reader.pace)
    for page in reader.bites(statement, target_bytes=min(size.target_bytes, SMALL_BYTES)):
        yield page
        reader.wait(page.table.num_rows)
