"""What a SQL Server user may read, table by table, from the catalog and its statistics.

Belongs here: a few statements over the whole database, and `TableFacts`. Not here: one table for an export
(catalog.py, whose keys and usable indexes these are), and what to make of it (`rivet_assets/scaffold/propose.py`).

Change tables of capture (schema `cdc`) and what Microsoft ships are left out. Row counts need VIEW DATABASE STATE;
without it they are unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rivet_resources.contracts.evidence import ColumnFacts, IndexFacts, TableFacts
from rivet_resources.contracts.types import Family
from rivet_resources.engines.shared.names import is_meant
from rivet_resources.engines.sqlserver.catalog import Catalog, Index, Rows, indexes_of, key_of
from rivet_resources.engines.sqlserver.columns import Described
from rivet_resources.engines.sqlserver.types import SQLSERVER
from rivet_resources.errors import SourcePermission

# Their type needs arithmetic, so that `SQLSERVER` does not hold it.
DECIMALS = ("decimal", "numeric")

# sys.objects shows a user what some permission of his touches; SELECT on all columns is asked for here.
TABLES = """
SELECT o.object_id, s.name AS schema_name, o.name AS object_name, o.type
FROM sys.objects AS o JOIN sys.schemas AS s ON s.schema_id = o.schema_id
WHERE o.type IN ('U', 'V') AND s.name NOT IN (N'sys', N'cdc', N'INFORMATION_SCHEMA') AND o.is_ms_shipped = 0
  AND HAS_PERMS_BY_NAME(QUOTENAME(s.name) + N'.' + QUOTENAME(o.name), N'OBJECT', N'SELECT') = 1
ORDER BY s.name, o.name"""

# An alias type has its base under the same system_type_id; a CLR type is its own base.
COLUMNS = """
SELECT c.object_id, c.name, COALESCE(b.name, t.name) AS base, c.max_length, c.precision, c.scale, c.is_nullable,
       c.is_identity, COALESCE(d.definition, N'') AS definition
FROM sys.columns AS c
JOIN sys.types AS t ON t.user_type_id = c.user_type_id
LEFT JOIN sys.types AS b ON b.user_type_id = c.system_type_id
LEFT JOIN sys.default_constraints AS d ON d.parent_object_id = c.object_id AND d.parent_column_id = c.column_id
WHERE c.object_id IN ({objects}) ORDER BY c.object_id, c.column_id"""

# index_id is 0 of a heap and 1 of a clustered index: one of the two has each row once. A page has 8192 bytes.
ROWS = """
SELECT p.object_id, SUM(p.row_count) AS row_count, SUM(p.used_page_count) * 8192 AS used_bytes
FROM sys.dm_db_partition_stats AS p WHERE p.index_id IN (0, 1) GROUP BY p.object_id"""


def tables(catalog: Catalog, pattern: str) -> tuple[TableFacts, ...]:
    """List tables and views that the user may read, sorted.

    Raises:
        SourceError
    """
    # By the pattern here and not in SQL: it may be a glob, or quoted in any of three ways.
    found = [row for row in catalog.ask(TABLES, doing="listing the tables") if is_meant(pattern, row[1], row[2])]
    if not found:
        return ()
    objects = ", ".join(str(int(row[0])) for row in found)
    columns: dict[int, Rows] = {}
    for row in catalog.ask(COLUMNS.format(objects=objects), doing="reading the columns"):
        columns.setdefault(int(row[0]), []).append(row)
    indexes = indexes_of(catalog, f"i.object_id IN ({objects})")
    sizes = _sizes(catalog)
    return tuple(
        _facts(row, columns.get(int(row[0]), []), indexes.get(int(row[0]), ()), sizes.get(int(row[0]))) for row in found
    )


def _sizes(catalog: Catalog) -> dict[int, tuple[int, int]]:
    """Return rows and bytes of tables; {} where the user may not see them."""
    try:
        rows = catalog.ask(ROWS, doing="reading the sizes of tables")
    except SourcePermission:
        return {}
    return {int(number): (int(count or 0), int(size or 0)) for number, count, size in rows}


def _facts(row: tuple[Any, ...], columns: Rows, indexes: Sequence[Index], size: tuple[int, int] | None) -> TableFacts:
    is_view = str(row[3]).strip() == "V"
    strange = [str(column[1]) for column in columns if column[2] not in SQLSERVER and column[2] not in DECIMALS]
    rows, used = size if size is not None and not is_view else (None, None)
    return TableFacts(
        schema=str(row[1]),
        name=str(row[2]),
        kind="view" if is_view else "table",
        columns=tuple(_column(column) for column in columns),
        indexes=tuple(
            IndexFacts(index.name, index.columns, is_unique=index.is_unique, is_primary=index.is_primary)
            for index in indexes
        ),
        key=key_of(indexes),
        rows_estimate=rows,
        bytes_estimate=used,
        facts={"unsupported": ", ".join(strange)} if strange else {},
    )


def _column(row: tuple[Any, ...]) -> ColumnFacts:
    _, name, base, length, precision, scale, nullable, is_identity, default = row
    described = Described(name=name, base=base, length=length, precision=precision, scale=scale)
    notes = ["identity"] if is_identity else [f"default {default}"] if default else []
    notes += ["moves with every update"] if base == "timestamp" else []
    return ColumnFacts(
        name=str(name), native=described.native, nullable=bool(nullable), note="; ".join(notes), family=_family(base)
    )


def _family(base: str) -> Family:
    if base in DECIMALS:
        return "numeric"
    return SQLSERVER[base].family if base in SQLSERVER else "other"
