"""What the tests of types share: the rows of every engine, the tables made of them, and how two readers compare."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from rivet_resources.contracts.settings import Tuning, pace
from tests.engines.mysql.type_cases import MARIADB, MYSQL
from tests.engines.postgres.type_cases import POSTGRES
from tests.engines.sqlite.type_cases import SQLITE
from tests.engines.sqlserver.type_cases import SQLSERVER
from tests.engines.type_cases import TypeCases
from tests.lab import Lab

CASES: Mapping[str, TypeCases] = {
    "postgres": POSTGRES,
    "mariadb": MARIADB,
    "mysql": MYSQL,
    "sqlserver": SQLSERVER,
    "sqlserver-odbc": SQLSERVER,
    "sqlite": SQLITE,
}
EAGER = pace(Tuning(profile="fast", retry_backoff_ms=1, max_retries=2), None)
MODES = {
    "full": "mode: full",
    "keyset": "mode: chunked, chunk_by_key: id",
    "incremental": "mode: incremental, cursor_column: id",
    "time_window": "mode: time_window, time_column: at, start: 2026-01-01, end: 2026-01-02",
}
AT = datetime(2026, 1, 1, 12, tzinfo=UTC)


def columns_of(literals: Sequence[Any]) -> dict[str, Any]:
    """Name cases as columns."""
    return {f"c{index}": case for index, case in enumerate(literals)}


def fill(lab: Lab, table: str, columns: Mapping[str, Any], *, ids: Sequence[int] = (1,)) -> None:
    """Make a table of `id`, `at` and a column per case, with a row of all literals for each id."""
    lab.create(table, {"id": "whole", "at": "instant"}, ddl={name: case.ddl for name, case in columns.items()})
    values = ", ".join(case.literal for case in columns.values())
    rows = [f"INSERT INTO {table} VALUES ({number}, {lab.literal(AT)}, {values})" for number in ids]
    lab.sql(*CASES[lab.engine.name].permissive, *rows)


def block(table: str, mode: str, **keys: Any) -> str:
    """Write an export of a table, named like it unless `name` is among the keys."""
    keys = {"name": table} | keys
    return f"{{table: {table}, {MODES[mode]}, {', '.join(f'{key}: {value}' for key, value in keys.items())}}}"


def export(lab: Lab, table: str, mode: str, **keys: Any) -> None:
    """Export the table in this mode, and insist on success."""
    partitions = ("2026-01-01",) if mode == "time_window" else ()
    outcome = lab.export(block(table, mode, **keys), partitions=partitions)
    assert outcome.success, outcome.message


def read(lab: Lab, table: str, **keys: Any) -> tuple[pa.Table, dict[str, dict[str, int]]]:
    """Read a table through the source itself, without files; its rows, and what policies replaced."""
    config = lab.config(block(table, "full", **keys))
    _, source = config.source_of(config.exports[0])
    with source.session(application="rivet:test", pace=EAGER) as session:
        rules = config.exports[0].type_rules()
        relation = session.describe(table=table, query=None, params={}, rules=rules)
        read = [
            page
            for chunk in session.chunks(relation)
            for page in source.pages(
                chunk,
                relation.columns,
                snapshot=session.snapshot,
                application="rivet:test",
                pace=EAGER,
                wait=lambda rows: None,
            )
        ]
    special: dict[str, dict[str, int]] = {}
    for page in read:
        for column, kinds in page.special.items():
            for kind, count in kinds.items():
                mine = special.setdefault(column, {})
                mine[kind] = mine.get(kind, 0) + count
    return pa.concat_tables([page.table for page in read]), special


def spell(cell: Any) -> str | None:
    """Write a cell so that equal cells of any reader are equal texts."""
    if cell is None:
        return None
    if isinstance(cell, float):
        return "NaN" if math.isnan(cell) else repr(cell)
    if isinstance(cell, bytes | bytearray | memoryview):
        return bytes(cell).hex()
    if isinstance(cell, list):
        return f"[{', '.join(str(spell(each)) for each in cell)}]"
    return str(cell)


def spelled(table: pa.Table) -> dict[str, list[str | None]]:
    """Return the columns of a table as texts, times as their numbers."""
    return {name: [spell(cell) for cell in numbers(table.column(name)).to_pylist()] for name in table.column_names}


def numbers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Turn times into numbers: a reader's Python may end at the year 9999."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64())
    return column.cast(pa.int32()) if pa.types.is_date32(column.type) else column
