"""What a SQL Server table or query is made of, from the catalog: columns with their types, keys, sizes.

Belongs here: catalog statements and `Relation`. Not here: the type facts (types.py) and how one column is
read (columns.py). Types never come from samples, and there is no `SELECT *`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rivet_resources.contracts.relation import Relation
from rivet_resources.contracts.source import TypeRules
from rivet_resources.contracts.types import Column
from rivet_resources.engines.shared.names import split_name
from rivet_resources.engines.sqlserver import sql
from rivet_resources.engines.sqlserver.columns import Described, column_of
from rivet_resources.engines.sqlserver.errors import unknown_table
from rivet_resources.engines.sqlserver.sql import render_parameters, strip_query
from rivet_resources.errors import ConfigError, SourceError, SourcePermission, UnknownColumn

Rows = list[tuple[Any, ...]]


class Catalog(Protocol):
    """What this module needs from a session: run a statement."""

    user: str

    def ask(self, statement: str, *, doing: str) -> Rows: ...


# --- tables --------------------------------------------------------------------------------------

# Unqualified names mean the user's default schema, then dbo, as the server itself resolves them.
FIND = """
SELECT TOP (1) o.object_id, s.name AS schema_name, o.name AS object_name,
       HAS_PERMS_BY_NAME(QUOTENAME(s.name) + N'.' + QUOTENAME(o.name), N'OBJECT', N'SELECT') AS may_read
FROM sys.objects AS o JOIN sys.schemas AS s ON s.schema_id = o.schema_id
WHERE o.name = {name} AND o.type IN ('U', 'V') AND s.name IN ({schemas})
ORDER BY CASE WHEN s.name = N'dbo' THEN 1 ELSE 0 END"""

NEAR = """
SELECT TOP (3) s.name AS schema_name, o.name AS object_name
FROM sys.objects AS o JOIN sys.schemas AS s ON s.schema_id = o.schema_id
WHERE LOWER(o.name) = LOWER({name}) AND o.type IN ('U', 'V') ORDER BY s.name, o.name"""

# An alias type has its base under the same system_type_id; a CLR type is its own base.
COLUMNS = """
SELECT c.name, COALESCE(b.name, t.name) AS base, c.max_length, c.precision, c.scale, c.is_nullable,
       COALESCE(c.collation_name, N'') AS collation,
       COALESCE(CONVERT(nvarchar(4000), e.value), N'') AS comment
FROM sys.columns AS c
JOIN sys.types AS t ON t.user_type_id = c.user_type_id
LEFT JOIN sys.types AS b ON b.user_type_id = c.system_type_id
LEFT JOIN sys.extended_properties AS e
  ON e.class = 1 AND e.major_id = c.object_id AND e.minor_id = c.column_id AND e.name = N'MS_Description'
WHERE c.object_id = {object} ORDER BY c.column_id"""

# Columns of usable indexes in key order: no filtered, disabled, hypothetical ones; rowstore only (types 1 and 2).
INDEXES = """
SELECT i.object_id, i.index_id, i.is_primary_key, i.is_unique, ic.key_ordinal, c.name, c.is_nullable,
       i.name AS index_name
FROM sys.indexes AS i
JOIN sys.index_columns AS ic ON ic.object_id = i.object_id AND ic.index_id = i.index_id
JOIN sys.columns AS c ON c.object_id = ic.object_id AND c.column_id = ic.column_id
WHERE {which} AND i.type IN (1, 2) AND i.has_filter = 0 AND i.is_disabled = 0
  AND i.is_hypothetical = 0 AND ic.is_included_column = 0 AND ic.key_ordinal > 0
ORDER BY i.object_id, i.index_id, ic.key_ordinal"""

# Heap (0) or clustered index (1): each row once. The other indexes hold it again.
ROWS = """
SELECT SUM(p.row_count) AS row_count, SUM(p.used_page_count) * 8192 AS used_bytes
FROM sys.dm_db_partition_stats AS p WHERE p.object_id = {object} AND p.index_id IN (0, 1)"""


def describe_table(catalog: Catalog, name: str, rules: TypeRules, *, schema: str) -> Relation:
    """Look one table or view up; `schema` is the login's default one.

    Raises:
        UnknownTable, SourcePermission, UnknownColumn, UnsupportedColumn, SourceError
    """
    number, found_schema, found_name = _find(catalog, name, schema)
    label = f"{found_schema}.{found_name}"
    described = _columns_of(catalog, number, label)
    columns = _decide_types(described, rules, relation=label)
    key, indexed = _indexes(catalog, number)
    rows, size = _estimate(catalog, number, label)
    return Relation(
        name=label,
        sql=f"{sql.quote(found_schema)}.{sql.quote(found_name)}",
        columns=columns,
        is_table=True,
        key=key,
        indexed=indexed,
        rows_estimate=rows,
        bytes_estimate=size,
    )


def _find(catalog: Catalog, name: str, default_schema: str) -> tuple[int, str, str]:
    schema, bare = split_name(name)
    # As the server resolves a bare name: the login's own schema, then dbo.
    schemas = [schema] if schema is not None else list(dict.fromkeys((default_schema, "dbo")))
    names = {"name": sql.quote_text(bare), "schemas": ", ".join(map(sql.quote_text, schemas))}
    found = catalog.ask(FIND.format(**names), doing=f"looking up table {name}")
    if not found:
        near = catalog.ask(NEAR.format(**names), doing=f"looking up table {name}")
        raise unknown_table(name, near=[f"{row[0]}.{row[1]}" for row in near])
    number, found_schema, found_name, may_read = found[0]
    if not may_read:
        raise SourcePermission(
            f"User {catalog.user} may not read {found_schema}.{found_name}. Let its owner run: "
            f"GRANT SELECT ON {sql.quote(found_schema)}.{sql.quote(found_name)} TO {sql.quote(catalog.user)}."
        )
    return int(number), str(found_schema), str(found_name)


def _columns_of(catalog: Catalog, number: int, label: str) -> list[Described]:
    rows = catalog.ask(COLUMNS.format(object=number), doing=f"reading the columns of {label}")
    if not rows:
        raise SourceError(f"Table {label} shows no columns to this user. Fix `table`, or grant SELECT on it.")
    return [
        Described(
            name=row[0], base=row[1], length=row[2], precision=row[3], scale=row[4], not_null=not row[5],
            collation=row[6], comment=row[7],
        )
        for row in rows
    ]  # fmt: skip


@dataclass(frozen=True)
class Index:
    """One usable index, its columns in key order."""

    name: str
    is_primary: bool
    is_unique: bool
    has_null: bool
    columns: tuple[str, ...]


def _indexes(catalog: Catalog, number: int) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the key (primary, else the shortest unique one without NULLs) and the columns that lead an index."""
    found = indexes_of(catalog, f"i.object_id = {number}").get(number, [])
    return key_of(found), frozenset(index.columns[0] for index in found)


def indexes_of(catalog: Catalog, which: str) -> dict[int, list[Index]]:
    """Read the usable indexes of tables, by object_id; `which` is a condition on `i.object_id`."""
    found: dict[int, dict[int, list[tuple[Any, ...]]]] = {}
    for row in catalog.ask(INDEXES.format(which=which), doing="reading the indexes"):
        found.setdefault(int(row[0]), {}).setdefault(int(row[1]), []).append(row)
    return {number: [_index(rows) for rows in indexes.values()] for number, indexes in found.items()}


def _index(rows: Sequence[tuple[Any, ...]]) -> Index:
    return Index(
        name=str(rows[0][7] or ""),
        is_primary=bool(rows[0][2]),
        is_unique=bool(rows[0][3]),
        has_null=any(row[6] for row in rows),
        columns=tuple(str(row[5]) for row in rows),
    )


def key_of(indexes: Sequence[Index]) -> tuple[str, ...]:
    """Choose the key: primary, else the shortest unique one without NULLs."""
    # A unique index holds one NULL here, and `key > NULL` finds nothing behind it.
    keys = [index for index in indexes if index.is_unique and not index.has_null]
    best = min(keys, key=lambda index: (not index.is_primary, len(index.columns)), default=None)
    return best.columns if best else ()


def _estimate(catalog: Catalog, number: int, label: str) -> tuple[int | None, int | None]:
    """Return rows and bytes by the partition statistics; None of a view, or where the user may not see them."""
    try:
        rows = catalog.ask(ROWS.format(object=number), doing=f"reading the size of {label}")
    except SourcePermission:
        # This needs VIEW DATABASE STATE, which a reader may well not have.
        return None, None
    count, size = rows[0] if rows else (None, None)
    return (None if count is None else int(count)), (None if size is None else int(size))


# --- queries -------------------------------------------------------------------------------------

DESCRIBE = """
SELECT r.name, TYPE_NAME(r.system_type_id) AS base, r.user_type_name, r.max_length, r.precision, r.scale,
       r.is_nullable, COALESCE(r.collation_name, N'') AS collation, r.error_number, r.error_message
FROM sys.dm_exec_describe_first_result_set({query}, NULL, 0) AS r
WHERE COALESCE(r.is_hidden, 0) = 0 ORDER BY r.column_ordinal"""


def describe_query(catalog: Catalog, query: str, params: Mapping[str, str], rules: TypeRules) -> Relation:
    """Describe what a query would return, without running it.

    Raises:
        ConfigError: empty, returns two columns of one name or one without, an unknown parameter.
        SourceError: the server cannot parse it.
    """
    # The line end closes a comment that the query may end with.
    derived = f"({render_parameters(strip_query(query), params)}\n) AS [_rivet_q]"
    statement = sql.quote_text(f"SELECT * FROM {derived}")
    rows = catalog.ask(DESCRIBE.format(query=statement), doing="describing the query")
    failed = next((row for row in rows if row[8] is not None), None)
    if failed is not None:
        # The server describes nothing it cannot parse, and says why in a row; running it says it as an error.
        catalog.ask(f"SELECT TOP (0) * FROM {derived}", doing="describing the query")
        raise SourceError(f"While describing the query: SQL Server said: {failed[9]} ({failed[8]}). Fix the query.")
    names = [row[0] or "" for row in rows]
    twice = [name for name, count in Counter(names).items() if count > 1 or not name]
    if twice:
        raise ConfigError(
            f"The query returns {' and '.join(map(repr, twice))} more than once, or without a name; "
            "give each column a name of its own with AS."
        )
    described = [
        Described(
            name=row[0], base=_base(row[1], row[2]), length=row[3], precision=row[4], scale=row[5], collation=row[7]
        )
        for row in rows
    ]
    return Relation(
        name="query", sql=derived, columns=_decide_types(described, rules, relation="query"), is_table=False
    )


def _base(system: str | None, user: str | None) -> str:
    """Return the base type; CLR types have only a user type."""
    return str(system or user or "")


# --- types ---------------------------------------------------------------------------------------


def _decide_types(described: Sequence[Described], rules: TypeRules, *, relation: str) -> tuple[Column, ...]:
    """Decide every column's type.

    Raises:
        UnknownColumn: `columns:` names one that is not there.
        SourceError: two names differ only in case, which Spark cannot tell apart.
    """
    names = [column.name for column in described]
    lower = Counter(name.lower() for name in names)
    same = [name for name in names if lower[name.lower()] > 1]
    if same:
        raise SourceError(
            f"{relation} has columns {' and '.join(map(repr, same))}, which differ only in case; Spark and many "
            f"readers cannot tell them apart. Export a query that renames one with AS."
        )
    for key in rules.columns:
        if _rule_column(key, names, relation) is None:
            raise UnknownColumn(key, relation=relation, known=names, key="columns")
    return tuple(column_of(column, rules=rules, relation=relation) for column in described)


def _rule_column(key: str, names: Sequence[str], relation: str) -> str | None:
    """Find the column that a key of `columns:` means: its name, or table.column, exact case."""
    if key in names:
        return key
    table, _, name = key.rpartition(".")
    return name if name in names and table in (relation, relation.rpartition(".")[2]) else None
