"""How the SQL Server tests read: a source on a URL, a relation, all rows by each of the two readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from rivet_resources.contracts.relation import Chunk, Relation
from rivet_resources.contracts.settings import Pace, Tuning, pace
from rivet_resources.contracts.source import ColumnRule, Page, TypeRules
from rivet_resources.engines.sqlserver.session import SqlServerSession, open_session
from rivet_resources.engines.sqlserver.source import SqlServer

READERS = ("cursor", "keyset")
# Driver → the keys of its source.
DRIVERS: Mapping[str, Mapping[str, Any]] = {
    "mssql-python": {},
    "freetds": {"driver": "odbc", "odbc_driver": "FreeTDS"},
}
chosen = "mssql-python"  # by the fixture `driver`
EAGER = pace(Tuning(profile="fast", retry_backoff_ms=1, max_retries=2, statement_timeout_s=30), None)


def rules(**settings: Any) -> TypeRules:
    """Put type rules together; `columns` maps names to words or rules."""
    columns: Mapping[str, Any] = settings.pop("columns", {})
    made = {name: rule if isinstance(rule, ColumnRule) else ColumnRule(type=rule) for name, rule in columns.items()}
    return TypeRules(columns=made, **settings)


def source(url: str, **keys: Any) -> SqlServer:
    """Make a source that reads by the chosen driver."""
    return SqlServer(url=url, **{**DRIVERS[chosen], **keys})


@contextmanager
def session(url: str, *, snapshot: bool = True) -> Iterator[SqlServerSession]:
    """Open a planning session on a URL."""
    opened = open_session(source(url).conn_params("test", EAGER), snapshot=snapshot)
    try:
        yield opened
    finally:
        opened.close()


def describe(url: str, table: str, **settings: Any) -> Relation:
    """Describe a table."""
    with session(url) as opened:
        return opened.describe(table=table, query=None, params={}, rules=rules(**settings))


def chunk_for(reader: str, relation: Relation, *, where: str = "") -> Chunk:
    """Make one chunk of a whole table, for the named reader."""
    return Chunk(index=0, reader=reader, relation=relation.sql, key=relation.key, where=where)  # type: ignore[arg-type]


def pages(
    url: str,
    relation: Relation,
    chunk: Chunk,
    *,
    speed: Pace = EAGER,
    wait: Callable[[int], None] = lambda rows: None,
) -> Iterator[Page]:
    """Read a chunk as a task does."""
    yield from source(url).pages(chunk, relation.columns, snapshot=None, application="test", pace=speed, wait=wait)


def read(url: str, table: str, *, reader: str = "keyset", speed: Pace = EAGER, **settings: Any) -> pa.Table:
    """Read a whole table in one chunk, in the order it comes."""
    relation = describe(url, table, **settings)
    schema = pa.schema([column.field for column in relation.columns])
    found = [page.table for page in pages(url, relation, chunk_for(reader, relation), speed=speed)]
    return pa.concat_tables([*found, schema.empty_table()])


def small_pages(rows: int) -> Pace:
    """Return a pace whose pages hold so many rows."""
    return pace(Tuning(profile="fast", retry_backoff_ms=1, max_retries=2, batch_size=rows), None)


def column(table: pa.Table, name: str = "v") -> Sequence[Any]:
    """Return one column's values."""
    values: Sequence[Any] = table.column(name).to_pylist()
    return values
