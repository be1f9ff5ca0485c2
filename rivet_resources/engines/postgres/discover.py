"""What a PostgreSQL user may read, table by table, from the catalog and its statistics.

Belongs here: a few statements over whole schemas, and `TableFacts`. Not here: one table for an export
(catalog.py, whose keys and usable indexes these are), and what to make of it (`rivet_assets/scaffold/propose.py`).

Members of extensions and the server's own schemas are left out; a partitioned table is one table, of all its leaves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from rivet_resources.contracts.evidence import ColumnFacts, IndexFacts, Kind, TableFacts
from rivet_resources.contracts.types import Family
from rivet_resources.engines.postgres.catalog import Catalog, Index, all_indexes, key_of
from rivet_resources.engines.postgres.types import POSTGRES, POSTGRES_TEXT
from rivet_resources.engines.shared.names import is_meant

KINDS: Mapping[str, Kind] = {"r": "table", "p": "partitioned", "v": "view", "m": "materialized_view", "f": "foreign"}

TABLES = """
SELECT c.oid::int8, n.nspname, c.relname, c.relkind::text, c.relispopulated, c.reltuples::float8,
       coalesce(obj_description(c.oid, 'pg_class'), ''),
       CASE WHEN c.relkind = 'p' THEN pg_get_partkeydef(c.oid) ELSE '' END,
       coalesce((SELECT min(p.relname) FROM pg_inherits i JOIN pg_class p ON p.oid = i.inhparent
                 WHERE i.inhrelid = c.oid), '')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'm', 'v', 'f') AND NOT c.relispartition AND c.relpersistence <> 't'
  AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
  AND has_schema_privilege(n.oid, 'USAGE') AND has_any_column_privilege(c.oid, 'SELECT')
  AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid
                  AND d.deptype = 'e')
ORDER BY 2, 3"""

# As the planner does: rows per page when last counted, times the pages of today. Counters are since their last reset.
SIZES = """
WITH RECURSIVE tree (root, oid) AS (
    SELECT r, r FROM unnest(%s::oid[]) AS r
    UNION SELECT tree.root, i.inhrelid FROM tree JOIN pg_inherits i ON i.inhparent = tree.oid
), leaves AS (
    SELECT tree.root, c.oid, c.reltuples, c.relpages,
           pg_relation_size(c.oid) / current_setting('block_size')::int AS pages, pg_table_size(c.oid) AS bytes
    FROM tree JOIN pg_class c ON c.oid = tree.oid WHERE c.relkind IN ('r', 'm')
)
SELECT l.root::int8,
       CASE WHEN bool_and(l.pages = 0 OR l.relpages > 0 AND l.reltuples >= 0) THEN
         sum(coalesce(l.reltuples / nullif(l.relpages, 0) * l.pages, 0))::float8 END,
       sum(l.bytes)::int8, sum(s.n_tup_ins)::int8, sum(s.n_tup_upd)::int8, sum(s.n_tup_del)::int8
FROM leaves l LEFT JOIN pg_stat_all_tables s ON s.relid = l.oid GROUP BY l.root"""

COLUMNS = """
SELECT a.attrelid::int8, a.attname, format_type(a.atttypid, a.atttypmod), b.typname, b.typtype::text,
       b.typelem <> 0 AND b.typlen = -1, a.attnotnull, a.attidentity::text,
       coalesce(pg_get_expr(d.adbin, d.adrelid), ''), has_column_privilege(a.attrelid, a.attnum, 'SELECT')
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
JOIN pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = ANY (%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attrelid, a.attnum"""

# Of a tree, the statistics over all of it come last, and win.
STATISTICS = """
SELECT c.oid::int8, s.attname, s.n_distinct::float8, s.null_frac::float8, s.avg_width, s.correlation::float8
FROM pg_stats s JOIN pg_namespace n ON n.nspname = s.schemaname
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = s.tablename
WHERE c.oid = ANY (%s::oid[]) ORDER BY s.inherited"""

# Row triggers before an UPDATE (bits 1, 2 and 16 of tgtype), in force; what they set is read from their function.
TRIGGERS = """
SELECT t.tgrelid::int8, t.tgname, p.prosrc, replace(encode(t.tgargs, 'escape'), '\\000', ' ')
FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
WHERE t.tgrelid = ANY (%s::oid[]) AND NOT t.tgisinternal AND t.tgenabled <> 'D' AND t.tgtype & 19 = 19"""
ASSIGNED = re.compile(r'\bnew\.(?:"((?:[^"]|"")+)"|(\w+))\s*:?=', re.IGNORECASE)

# The lowest bound of ranges, as the catalog spells it: FOR VALUES FROM ('2026-01-01') TO ('2026-02-01').
# COLLATE "C": the texts differ in their dates alone, which sort by bytes; other collations pass over punctuation.
BOUNDS = """
SELECT i.inhparent::int8, min(pg_get_expr(c.relpartbound, c.oid) COLLATE "C")
FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = ANY (%s::oid[]) AND c.relispartition AND pg_get_expr(c.relpartbound, c.oid) <> 'DEFAULT'
GROUP BY i.inhparent"""
RANGE_KEY = re.compile(r'RANGE \((?:"((?:[^"]|"")+)"|(\w+))\)')
LOWEST = re.compile(r"FOR VALUES FROM \('([^']+)'\)")


def tables(catalog: Catalog, pattern: str) -> tuple[TableFacts, ...]:
    """List tables, views, materialised views, partitioned and foreign tables that the user may read, sorted.

    Raises:
        SourceError
    """
    found = [row for row in catalog.ask(TABLES, doing="listing the tables") if is_meant(pattern, row[1], row[2])]
    oids = [row[0] for row in found]
    if not oids:
        return ()
    stored = [row[0] for row in found if row[3] in ("r", "p", "m")]
    sizes = {row[0]: row[1:] for row in catalog.ask(SIZES, (stored,), doing="reading the sizes of tables")}
    bounds = dict(_ask(catalog, BOUNDS, [row[0] for row in found if row[3] == "p"]))
    columns = _columns(catalog, oids)
    indexes: dict[int, list[Index]] = {}
    for index in all_indexes(catalog, stored):
        indexes.setdefault(index.table, []).append(index)
    return tuple(
        _facts(row, columns.get(row[0], ()), indexes.get(row[0], ()), sizes.get(row[0]), bounds.get(row[0], ""))
        for row in found
    )


def _ask(catalog: Catalog, statement: str, oids: list[int]) -> list[tuple[int, str]]:
    return cast(list[tuple[int, str]], catalog.ask(statement, (oids,), doing="reading partitions")) if oids else []


Read = tuple[ColumnFacts, bool]  # with whether the user may read it


def _columns(catalog: Catalog, oids: list[int]) -> dict[int, list[Read]]:
    """Describe the columns of many tables at once."""
    statistics = {
        (row[0], row[1]): row[2:] for row in catalog.ask(STATISTICS, (oids,), doing="reading the statistics of columns")
    }
    triggers: dict[int, list[tuple[str, frozenset[str]]]] = {}
    for oid, name, source, arguments in catalog.ask(TRIGGERS, (oids,), doing="reading the triggers"):
        triggers.setdefault(oid, []).append((name, _assigned_columns(source, arguments or "")))
    found: dict[int, list[Read]] = {}
    for row in catalog.ask(COLUMNS, (oids,), doing="reading the columns"):
        setting = [name for name, columns in triggers.get(row[0], ()) if row[1] in columns]
        column = _column(row, statistics.get((row[0], row[1])), setting)
        found.setdefault(row[0], []).append((column, bool(row[9])))
    return found


def _assigned_columns(source: str, arguments: str) -> frozenset[str]:
    """Name the columns that a trigger sets: NEW.x := … in its function, or its arguments, as moddatetime takes them."""
    named = (match[1].replace('""', '"') if match[1] else match[2] for match in ASSIGNED.finditer(source))
    return frozenset([*named, *arguments.split()])


def _column(row: tuple[Any, ...], statistics: tuple[Any, ...] | None, triggers: Sequence[str]) -> ColumnFacts:
    _, name, native, base, kind, is_array, not_null, identity, default, _ = row
    distinct, nulls, width, correlation = statistics or (None, None, None, None)
    notes = ["identity"] if identity else [f"default {default}"] if default else []
    notes += [f"set on update by trigger {trigger}" for trigger in triggers]
    return ColumnFacts(
        name=name,
        native=native,
        nullable=not not_null,
        distinct=distinct,
        null_share=nulls,
        average_bytes=None if width is None else float(width),
        note="; ".join(notes),
        family=_family(base, kind, bool(is_array)),
        correlation=correlation,
    )


def _family(base: str, kind: str, is_array: bool) -> Family:
    # int2vector and oidvector have items and no fixed length either, but are no arrays to anyone.
    if is_array and base.startswith("_"):
        return "list"
    if base in ("numeric", "money"):
        return "numeric"
    return "text" if kind == "e" else POSTGRES.get(base, POSTGRES_TEXT).family


def _facts(
    row: tuple[Any, ...], columns: Sequence[Read], indexes: Sequence[Index], sizes: Sequence[Any] | None, bound: str
) -> TableFacts:
    _, schema, name, kind, is_populated, tuples, comment, partition, parent = row
    estimate, size, *changes = sizes or (None, None, None, None, None)
    if kind == "f" and tuples >= 0:
        estimate = tuples
    return TableFacts(
        schema=schema,
        name=name,
        kind=KINDS[kind],
        columns=tuple(_with_count(column, estimate) for column, is_readable in columns if is_readable),
        indexes=tuple(
            IndexFacts(index.name, index.columns, is_unique=index.is_unique, is_primary=index.is_primary)
            for index in indexes
            if index.columns
        ),
        key=key_of(indexes),
        rows_estimate=None if estimate is None else int(estimate),
        bytes_estimate=size,
        comment=comment,
        facts=_own(partition, bound, parent, changes, hidden=[c.name for c, ok in columns if not ok], kind=kind)
        | ({} if is_populated or kind != "m" else {"unreadable": "it was never refreshed"}),
    )


def _with_count(column: ColumnFacts, rows: float | None) -> ColumnFacts:
    """Turn n_distinct's share of all rows, a negative number, into a count."""
    if column.distinct is None or column.distinct >= 0:
        return column
    distinct = None if rows is None else -column.distinct * rows
    return ColumnFacts(**{**vars(column), "distinct": distinct})


def _own(
    partition: str, bound: str, parent: str, changes: Sequence[int | None], *, hidden: Sequence[str], kind: str
) -> dict[str, str]:
    """Return what only this engine knows, under the names that `TableFacts.facts` has in every engine."""
    key, lowest = RANGE_KEY.fullmatch(partition or ""), LOWEST.match(bound)
    names = ("inserts", "updates", "deletes")
    counted = {name: str(n) for name, n in zip(names, changes, strict=True) if n is not None}
    facts = {
        "partitioned_by": (key[1] or key[2]).replace('""', '"') if key else "",
        "partitions_from": lowest[1] if key and lowest else "",
        "inherits": parent,
        "hidden": ", ".join(hidden),
    }
    return {name: text for name, text in facts.items() if text} | (counted if kind in ("r", "p") else {})
