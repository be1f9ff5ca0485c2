"""How the SQLite tests read: a file made of statements, a relation, all rows by each way of paging."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from rivet_resources.contracts.relation import Chunk, Relation
from rivet_resources.contracts.settings import Pace, Tuning, pace
from rivet_resources.contracts.source import ColumnRule, TypeRules
from rivet_resources.engines.sqlite.session import SqliteSession
from rivet_resources.engines.sqlite.source import Sqlite

READERS = ("cursor", "keyset")
EAGER = pace(Tuning(profile="fast", retry_backoff_ms=1, max_retries=2, lock_timeout_s=1), None)


def run(path: Path, *statements: str) -> Path:
    """Run statements on a file, each committed on its own; the file is made when it is not there."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)
    return path


def rules(**settings: Any) -> TypeRules:
    """Put type rules together; `columns` maps names to words or rules."""
    columns = settings.pop("columns", {})
    made = {name: rule if isinstance(rule, ColumnRule) else ColumnRule(type=rule) for name, rule in columns.items()}
    return TypeRules(columns=made, **settings)


@contextmanager
def session(path: Path, speed: Pace = EAGER) -> Iterator[SqliteSession]:
    """Open a planning session on a file."""
    with Sqlite(path=path).session(application="rivet:test", pace=speed) as opened:
        assert isinstance(opened, SqliteSession)
        yield opened


def describe(path: Path, table: str = "t", **settings: Any) -> Relation:
    """Describe one table."""
    with session(path) as opened:
        return opened.describe(table=table, query=None, params={}, rules=rules(**settings))


def read(path: Path, relation: Relation, chunk: Chunk, *, speed: Pace = EAGER, **settings: Any) -> pa.Table:
    """Read a chunk as a task does."""
    wait = settings.get("wait", lambda rows: None)
    pages = Sqlite(path=path).pages(
        chunk, relation.columns, snapshot=None, application="rivet:test", pace=speed, wait=wait
    )
    schema = pa.schema([column.field for column in relation.columns])
    return pa.concat_tables([*(page.table for page in pages), schema.empty_table()])


def whole(path: Path, reader: str = "cursor", table: str = "t", **settings: Any) -> pa.Table:
    """Read a whole table by the named way."""
    relation = describe(path, table, **settings)
    key = relation.key if reader == "keyset" else ()
    return read(path, relation, Chunk(index=0, reader=reader, relation=relation.sql, key=key))
