"""What a MySQL or MariaDB user may read, table by table, from the catalog and its statistics.

Belongs here: a few statements over whole databases, and `TableFacts`. Not here: one table for an export
(catalog.py, whose keys and usable indexes these are), and what to make of it (`rivet_assets/scaffold/propose.py`).

Of a source that names a database only that one is listed, unless the pattern names another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rivet_resources.contracts.evidence import ColumnFacts, IndexFacts, TableFacts
from rivet_resources.contracts.types import Family
from rivet_resources.engines.mysql import sql
from rivet_resources.engines.mysql.catalog import TRANSACTIONAL, Catalog, Index, key_of, read_indexes
from rivet_resources.engines.mysql.columns import KEYS, ONE_WAY_CHARSETS, base_of
from rivet_resources.engines.mysql.connect import Row
from rivet_resources.engines.mysql.types import MYSQL, MYSQL_TEXT
from rivet_resources.engines.shared.names import is_meant, schema_asked
from rivet_resources.errors import SourceError

SYSTEM = ("mysql", "information_schema", "performance_schema", "sys")
STORED = ("BASE TABLE", "SYSTEM VERSIONED")

TABLES = """
SELECT table_schema, table_name, table_type, engine, table_rows, data_length, table_comment
FROM information_schema.tables WHERE {where} AND table_type IN ('BASE TABLE', 'SYSTEM VERSIONED', 'VIEW')
ORDER BY table_schema, table_name"""

COLUMNS = """
SELECT table_schema, table_name, column_name, data_type, column_type, is_nullable, column_default, extra, privileges,
       character_set_name
FROM information_schema.columns WHERE {where} ORDER BY table_schema, table_name, ordinal_position"""

STATISTICS = """
SELECT table_schema, table_name, index_name, non_unique, column_name, nullable, sub_part, index_type, collation,
       cardinality
FROM information_schema.statistics WHERE {where}
ORDER BY table_schema, table_name, index_name = 'PRIMARY' DESC, index_name, seq_in_index"""

# Columns granted one by one. The server shows nobody a column he has no privilege on, so the others cannot be named.
GRANTS = """
SELECT table_schema, table_name, column_name FROM information_schema.column_privileges
WHERE {where} AND privilege_type = 'SELECT'
  AND grantee = CONCAT('''', REPLACE(CURRENT_USER(), '@', '''@'''), '''')"""
UNNAMED = "columns that were not granted"

# Since the server's start. Needs performance_schema, switched on and granted.
CHANGES = """
SELECT object_schema, object_name, count_insert, count_update, count_delete
FROM performance_schema.table_io_waits_summary_by_table WHERE object_schema IN ({schemas})"""

TableName = tuple[str, str]  # database and table


def tables(catalog: Catalog, pattern: str) -> tuple[TableFacts, ...]:
    """List tables and views that the user may read, sorted.

    Raises:
        SourceError
    """
    where = _scope(schema_asked(pattern) or catalog.database)
    listed = catalog.ask(TABLES.format(where=where), doing="listing the tables")
    found = [row for row in listed if is_meant(pattern, row[0] or "", row[1] or "")]
    if not found:
        return ()
    columns = _by_place(catalog.ask(COLUMNS.format(where=where), doing="reading the columns"))
    parts = _by_place(catalog.ask(STATISTICS.format(where=where), doing="reading the indexes"))
    changes = _changes(catalog, {row[0] or "" for row in found})
    granted = _by_place(catalog.ask(GRANTS.format(where=where), doing="reading the grants"))
    facts = []
    for row in found:
        place = (row[0] or "", row[1] or "")
        # Privileges are told column by column, so a table is listed with what may be read of it.
        read = [column for column in columns.get(place, ()) if "select" in (column[8] or "").lower()]
        # A broken view shows no column at all, and is listed with the reason.
        if read or _is_broken(row):
            one_by_one = {grant[2] for grant in granted.get(place, ())}
            # Every readable column was granted by itself: there may be more that nobody shows.
            hidden = UNNAMED if read and {column[2] for column in read} <= one_by_one else ""
            facts.append(_facts(row, read, parts.get(place, ()), changes.get(place, {}), hidden=hidden))
    return tuple(facts)


def _scope(schema: str | None) -> str:
    if schema:
        return f"table_schema = {sql.quote_text(schema)}"
    return f"table_schema NOT IN ({', '.join(map(sql.quote_text, SYSTEM))})"


def _by_place(rows: Sequence[Row]) -> dict[TableName, list[Row]]:
    found: dict[TableName, list[Row]] = {}
    for row in rows:
        found.setdefault((row[0] or "", row[1] or ""), []).append(row)
    return found


def _changes(catalog: Catalog, schemas: set[str]) -> dict[TableName, dict[str, str]]:
    """Count what was inserted, updated and deleted, where the server tells this user; {} where it does not."""
    # Counters are a hint for the mode that is proposed. Without them the proposal is only less sure.
    try:
        rows = catalog.ask(
            CHANGES.format(schemas=", ".join(map(sql.quote_text, sorted(schemas)))), doing="reading counters"
        )
    except SourceError:
        return {}
    names = ("inserts", "updates", "deletes")
    return {
        (row[0] or "", row[1] or ""): {name: text or "0" for name, text in zip(names, row[2:], strict=True)}
        for row in rows
    }


@dataclass(frozen=True)
class _Column:
    """One row of COLUMNS, read."""

    name: str
    base: str
    charset: str
    facts: ColumnFacts

    @property
    def is_key(self) -> bool:
        """Return whether pages can walk along it, as `mysql_columns.is_key` does of a column of an export."""
        return self.base in KEYS and self.charset not in ONE_WAY_CHARSETS


def _facts(
    row: Row, columns: Sequence[Row], parts: Sequence[Row], changes: Mapping[str, str], *, hidden: str
) -> TableFacts:
    schema, name, kind, engine, rows, size, comment = row
    # Invisible columns are no part of `SELECT *`, and of an export only where `columns:` lists them.
    read = [_column(column, parts) for column in columns if "INVISIBLE" not in (column[7] or "").upper()]
    indexes = {key: index for key, index in read_indexes([part[2:9] for part in parts]).items() if index.is_walkable}
    is_stored = kind in STORED
    is_weak = kind == "BASE TABLE" and engine not in TRANSACTIONAL
    own = {
        "engine": engine or "",
        "hidden": hidden,
        "unreadable": "it refers to a table or column that is not there" if _is_broken(row) else "",
        "no_snapshots": engine or "" if is_weak else "",
    }
    return TableFacts(
        schema=schema or "",
        name=name or "",
        kind="table" if is_stored else "view",
        columns=tuple(column.facts for column in read),
        indexes=tuple(_index(key, index) for key, index in indexes.items() if None not in index.parts),
        key=key_of(list(indexes.values()), {column.name for column in read if column.is_key}),
        rows_estimate=int(rows or 0) if is_stored else None,
        bytes_estimate=int(size or 0) if is_stored else None,
        comment=(comment or "") if is_stored else "",
        facts={key: text for key, text in own.items() if text} | dict(changes),
    )


def _is_broken(row: Row) -> bool:
    """Return whether a view cannot be read: the server says so in its comment."""
    return row[2] == "VIEW" and "references invalid" in (row[6] or "")


def _index(name: str, index: Index) -> IndexFacts:
    columns = tuple(part for part in index.parts if part)
    return IndexFacts(name, columns, is_unique=index.is_unique, is_primary=name == "PRIMARY")


def _column(row: Row, parts: Sequence[Row]) -> _Column:
    _, _, name, data_type, column_type, nullable, default, extra, _, charset = (cell or "" for cell in row)
    base = base_of(data_type, column_type)
    # The cardinality of a later part is that of all parts up to it.
    leading = [part for place, part in enumerate(parts) if part[4] == name and _leads(parts, place)]
    counted = [float(part[9]) for part in leading if part[9] is not None]
    said = extra.lower()
    notes = ["auto_increment"] if "auto_increment" in said else []
    notes += [f"default {default}"] if default and default.upper() != "NULL" else []
    notes += ["on update current_timestamp"] if "on update" in said else []
    facts = ColumnFacts(
        name=name,
        native=column_type,
        nullable=nullable != "NO",
        # Several indexes may begin with the column; estimates are rather too low, so the largest is the best.
        distinct=max(counted) if counted else None,
        note="; ".join(notes),
        family=_family(base),
    )
    return _Column(name, base, charset, facts)


def _leads(parts: Sequence[Row], place: int) -> bool:
    """Return whether a row of STATISTICS is the first part of its index, whose cardinality is the column's own."""
    return place == 0 or parts[place - 1][2] != parts[place][2]


def _family(base: str) -> Family:
    return "numeric" if base == "decimal" else MYSQL.get(base, MYSQL_TEXT).family
