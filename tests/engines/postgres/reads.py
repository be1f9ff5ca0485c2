"""How the PostgreSQL tests read: a source on a URL, a relation, all rows by each of the three readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
import pyarrow as pa

from rivet_resources.contracts.relation import Chunk, Relation
from rivet_resources.contracts.settings import Pace, Tuning, pace
from rivet_resources.contracts.source import ColumnRule, Page, TypeRules
from rivet_resources.engines.postgres.session import PostgresSession, block_chunks, open_session
from rivet_resources.engines.postgres.source import Postgres

READERS = ("blocks", "cursor", "keyset")
EAGER = pace(Tuning(profile="fast", retry_backoff_ms=1, max_retries=2), None)


def run(url: str, *statements: str) -> None:
    """Run statements, each committed on its own."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def rules(**settings: Any) -> TypeRules:
    """Put type rules together; `columns` maps names to words or rules."""
    columns: Mapping[str, Any] = settings.pop("columns", {})
    made = {name: rule if isinstance(rule, ColumnRule) else ColumnRule(type=rule) for name, rule in columns.items()}
    return TypeRules(columns=made, **settings)


@contextmanager
def session(url: str, **settings: Any) -> Iterator[PostgresSession]:
    """Open a planning session on a URL."""
    opened = open_session(Postgres(url=url).conn_params("rivet:test", EAGER), snapshot=True, **settings)
    try:
        yield opened
    finally:
        opened.close()


def chunk_for(reader: str, relation: Relation) -> Chunk:
    """Make one chunk of a whole table with a one-column key, for the named reader."""
    if reader == "blocks":
        return block_chunks(relation.leaves, where="", pieces=1)[0]
    order = ('"id"',) if reader == "cursor" else ()
    return Chunk(index=0, reader=reader, relation=relation.sql, key=relation.key, order_by=order)


def pages(
    url: str,
    relation: Relation,
    chunk: Chunk,
    *,
    snapshot: str | None,
    speed: Pace = EAGER,
    wait: Callable[[int], None] = lambda rows: None,
) -> Iterator[Page]:
    """Read a chunk as a task does."""
    yield from Postgres(url=url).pages(
        chunk, relation.columns, snapshot=snapshot, application="rivet:test", pace=speed, wait=wait
    )


def whole(relation: Relation, read: Iterator[Page]) -> pa.Table:
    """Put pages together, ordered by their first column."""
    schema = pa.schema([column.field for column in relation.columns])
    tables = [page.table for page in read]
    return pa.concat_tables([*tables, schema.empty_table()]).sort_by(schema.names[0])


def plain(cell: pa.Scalar) -> Any:
    """Make a cell comparable: times as numbers, since Python's end at the year 9999."""
    if not cell.is_valid:
        return None
    if pa.types.is_temporal(cell.type):
        return cell.value
    if pa.types.is_list(cell.type):
        return [plain(item) for item in cell.values]
    return cell.as_py()
