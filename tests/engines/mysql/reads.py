"""How the MySQL tests read: a source on a URL, a relation, all rows by each of the two readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from rivet_resources.contracts.relation import Chunk, Relation
from rivet_resources.contracts.settings import Pace, Tuning, pace
from rivet_resources.contracts.source import ColumnRule, Page, TypeRules
from rivet_resources.engines.mysql.session import MySqlSession, open_session
from rivet_resources.engines.mysql.source import MySql
from tests.servers.mysql import run

__all__ = ["EAGER", "SERVERS", "chunked", "describe", "pages", "rules", "run", "session", "table", "whole"]

EAGER = pace(Tuning(profile="fast", retry_backoff_ms=1, max_retries=2), None)
SERVERS = ("fresh_mariadb", "fresh_mysql")  # fixtures: the URL of an empty database of each server


def rules(**settings: Any) -> TypeRules:
    """Put type rules together; `columns` maps names to words or rules."""
    columns: Mapping[str, Any] = settings.pop("columns", {})
    made = {name: rule if isinstance(rule, ColumnRule) else ColumnRule(type=rule) for name, rule in columns.items()}
    return TypeRules(columns=made, **settings)


@contextmanager
def session(url: str, *, speed: Pace = EAGER) -> Iterator[MySqlSession]:
    """Open a planning session on a URL."""
    opened = open_session(MySql(url=url).conn_params("rivet:test", speed))
    try:
        yield opened
    finally:
        opened.close()


def describe(planning: MySqlSession, name: str = "t", **settings: Any) -> Relation:
    """Describe a table, by default with default rules."""
    return planning.describe(table=name, query=None, params={}, rules=rules(**settings))


def pages(
    url: str,
    relation: Relation,
    chunk: Chunk,
    *,
    speed: Pace = EAGER,
    wait: Callable[[int], None] = lambda rows: None,
) -> Iterator[Page]:
    """Read a chunk as a task does."""
    yield from MySql(url=url).pages(
        chunk, relation.columns, snapshot=None, application="rivet:test", pace=speed, wait=wait
    )


def chunked(url: str, name: str = "t", *, pieces: int = 1, speed: Pace = EAGER, **settings: Any) -> list[pa.Table]:
    """Read a table in so many pieces; one table of rows per chunk, in the order of reading."""
    with session(url) as planning:
        relation = describe(planning, name, **settings)
        chunks = planning.chunks(relation, pieces=pieces)
    return [whole(relation, pages(url, relation, chunk, speed=speed)) for chunk in chunks]


def table(url: str, name: str = "t", **settings: Any) -> pa.Table:
    """Read a whole table, in the order of its key."""
    return chunked(url, name, **settings)[0]


def whole(relation: Relation, read: Iterator[Page]) -> pa.Table:
    """Put pages together."""
    schema = pa.schema([column.field for column in relation.columns])
    return pa.concat_tables([*(page.table for page in read), schema.empty_table()])
