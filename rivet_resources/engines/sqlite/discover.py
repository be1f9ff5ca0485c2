"""What tables and views a SQLite file holds, with the statistics that ANALYZE left.

Belongs here: the list of tables and their `TableFacts`. Not here: one table for an export (catalog.py, whose
keys and indexes these are), and what to make of it (`rivet_assets/scaffold/propose.py`).

Some statements a table: there is no server between, so a thousand tables take a fraction of a second, and a view that
refers to a table that is gone spoils no other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rivet_resources.contracts.evidence import ColumnFacts, IndexFacts, TableFacts
from rivet_resources.engines.shared.names import is_meant
from rivet_resources.engines.sqlite.catalog import COLUMNS, Catalog, Index, Rows, indexes_of, keys_of, rows_estimate
from rivet_resources.engines.sqlite.types import SQLITE, kind_of
from rivet_resources.errors import SourceError

SCHEMA = "main"
# Shadow tables, which belong to virtual ones, are left out. sqlite_stat1 and its kin are the engine's own.
TABLES = """SELECT l.name, l.type, l.wr, coalesce(m.sql, '')
FROM pragma_table_list AS l LEFT JOIN sqlite_schema AS m ON m.name = l.name AND m.type IN ('table', 'view')
WHERE l.schema = 'main' AND l.type IN ('table', 'view', 'virtual') AND l.name NOT LIKE 'sqlite\\_%' ESCAPE '\\'
ORDER BY l.name"""
# Rows of the index, then rows per value of its first column, per pair, … Source: sqlite.org/fileformat2.html, 2.6.4.
STATISTICS = "SELECT idx, stat FROM sqlite_stat1 WHERE idx IS NOT NULL"


def tables(catalog: Catalog, pattern: str) -> tuple[TableFacts, ...]:
    """List tables and views, sorted.

    Raises:
        SourceError
    """
    statistics = _statistics(catalog)
    listed = catalog.ask(TABLES, doing="listing the tables")
    return tuple(_facts(catalog, row, statistics) for row in listed if is_meant(pattern, SCHEMA, row[0]))


def _statistics(catalog: Catalog) -> dict[str, list[str]]:
    """Read what ANALYZE left, by index; {} where nobody ran it."""
    try:
        rows = catalog.ask(STATISTICS, doing="reading statistics")
    except SourceError:
        return {}
    return {str(name): str(stat).split() for name, stat in rows}


def _facts(catalog: Catalog, row: tuple[Any, ...], statistics: Mapping[str, Sequence[str]]) -> TableFacts:
    name, kind, is_without_rowid, definition = row
    try:
        columns = catalog.ask(COLUMNS, (name,), doing=f"reading the columns of {name}")
    except SourceError:
        # A view whose tables are gone.
        reason = {"unreadable": "it refers to a table or column that is not there"}
        return TableFacts(schema=SCHEMA, name=name, kind="view", columns=(), facts=reason)
    keys = keys_of(catalog, name, columns, has_rowid=kind == "table" and not is_without_rowid)
    indexes = [index for index in indexes_of(catalog, name) if index.is_plain]
    facts = [_index(index, columns) for index in indexes]
    # INTEGER PRIMARY KEY is the row's number and has no index of its own; a search by it is the fastest there is.
    if len(keys.key) == 1 and keys.key[0] in keys.indexed and all(index.columns != keys.key for index in facts):
        facts.insert(0, IndexFacts("rowid", keys.key, is_unique=True, is_primary=True))
    distinct = _distinct(indexes, statistics)
    return TableFacts(
        schema=SCHEMA,
        name=name,
        kind="view" if kind == "view" else "table",
        columns=tuple(_column(column, keys.key, distinct, definition) for column in columns),
        indexes=tuple(facts),
        key=keys.key,
        rows_estimate=None if kind == "view" else rows_estimate(catalog, name, keys.rowid),
    )


def _index(index: Index, columns: Rows) -> IndexFacts:
    names = tuple(name for name, _ in index.parts)
    primary = tuple(row[0] for row in sorted((row for row in columns if row[3]), key=lambda row: row[3]))
    return IndexFacts(index.name, names, is_unique=index.is_unique, is_primary=names == primary)


def _distinct(indexes: Sequence[Index], statistics: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Estimate how many values the first column of each index has."""
    found = {}
    for index in indexes:
        words = statistics.get(index.name, ())
        # The first number is of rows, the second of rows for each value of the first column.
        if len(words) > 1 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
            found[index.parts[0][0]] = int(words[0]) / int(words[1])
    return found


def _column(row: tuple[Any, ...], key: tuple[str, ...], distinct: Mapping[str, float], definition: str) -> ColumnFacts:
    name, native, not_null, place = row
    is_counted = bool(place) and "AUTOINCREMENT" in definition.upper()
    return ColumnFacts(
        name=name,
        native=native,
        nullable=not (not_null or name in key),
        distinct=distinct.get(name),
        note="autoincrement" if is_counted else "",
        family=SQLITE[kind_of(native)].fact.family,
    )
