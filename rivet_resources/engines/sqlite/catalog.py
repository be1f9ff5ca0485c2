"""What a SQLite table, view or query is made of: columns with their declared types, the key, sizes.

Belongs here: catalog statements and `Relation`. Not here: the type facts (types.py) and how one column is read
(columns.py). Types never come from samples; only the spelling of times does (times.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rivet_resources.contracts.relation import Relation
from rivet_resources.contracts.source import TypeRules
from rivet_resources.contracts.types import Column
from rivet_resources.engines.shared.names import split_name
from rivet_resources.engines.sqlite import sql
from rivet_resources.engines.sqlite import times as sqlite_times
from rivet_resources.engines.sqlite.columns import Declared, column_of
from rivet_resources.engines.sqlite.errors import unknown_table
from rivet_resources.errors import ConfigError, SourceError, UnknownColumn

Rows = list[tuple[Any, ...]]

# Names of tables compare without case in SQLite. Shadow tables belong to virtual ones and are read like any other.
FIND = "SELECT name, type, wr FROM pragma_table_list WHERE schema = 'main' AND lower(name) = lower(?)"
KNOWN = """SELECT name FROM pragma_table_list
WHERE schema = 'main' AND type IN ('table', 'view', 'virtual') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'
ORDER BY name LIMIT 10"""
# hidden: 1 is a virtual table's own column, 2 and 3 are generated ones, which `SELECT *` shows too.
COLUMNS = 'SELECT name, type, "notnull", pk FROM pragma_table_xinfo(?) WHERE hidden <> 1 ORDER BY cid'
# Whole unique indexes, shortest first; an index on an expression has a NULL name.
INDEXES = """SELECT l.name, l."unique" AND NOT l.partial, x.name, x.coll, l.partial
FROM pragma_index_list(?) AS l JOIN pragma_index_xinfo(l.name) AS x
WHERE x.key ORDER BY l.origin <> 'pk', l.seq, x.seqno"""
ROWID = ("rowid", "_rowid_", "oid")


class Catalog(Protocol):
    """What this module needs from a session."""

    def ask(self, statement: str, values: Sequence[Any] = (), *, doing: str) -> Rows:
        """Run a statement and give its rows."""

    def as_view(self, query: str, *, doing: str) -> str:
        """Keep a query under a name that the catalog describes, without running it."""


@dataclass(frozen=True)
class Keys:
    """What tells a table's rows apart, and what can be searched for."""

    key: tuple[str, ...]
    indexed: frozenset[str]
    rowid: str  # a name that means the row's number here; '' when there is none


def describe_table(catalog: Catalog, name: str, rules: TypeRules) -> tuple[Relation, Keys]:
    """Look one table, view or virtual table up.

    Raises:
        UnknownTable, UnknownColumn, UnsupportedColumn, ConfigError
    """
    schema, bare = split_name(name)
    # Other schemas are those of ATTACH, and no connection of ours attaches anything.
    found = catalog.ask(FIND, (bare,), doing=f"looking up table {name}") if schema in (None, "main") else []
    if not found:
        known = [row[0] for row in catalog.ask(KNOWN, doing="listing the tables")]
        raise unknown_table(name, known=known)
    exact, kind, is_without_rowid = found[0]
    rows = catalog.ask(COLUMNS, (exact,), doing=f"reading the columns of {exact}")
    keys = keys_of(catalog, exact, rows, has_rowid=kind == "table" and not is_without_rowid)
    columns = _decide_types(catalog, rows, rules, relation=exact, quoted=sql.quote(exact), key=keys.key)
    return Relation(
        name=exact,
        sql=sql.quote(exact),
        columns=columns,
        is_table=True,
        key=keys.key,
        indexed=keys.indexed,
        rows_estimate=rows_estimate(catalog, exact, keys.rowid),
    ), keys


def describe_query(catalog: Catalog, query: str, params: Mapping[str, str], rules: TypeRules) -> tuple[Relation, Keys]:
    """Describe what a query would return, without running it.

    Raises:
        ConfigError: empty, returns two columns of one name, names an unknown parameter.
        SourceError: SQLite cannot parse it.
    """
    written = sql.render_parameters(sql.strip_query(query), params)
    view = catalog.as_view(written, doing="describing the query")
    rows = catalog.ask(COLUMNS, (view,), doing="describing the query")
    names = [row[0] for row in rows]
    # This is how SQLite tells two columns of one name apart.
    for name in names:
        base = re.sub(r":\d+$", "", name)
        if base != name and base.lower() in [other.lower() for other in names]:
            raise ConfigError(f"The query returns two columns called {base}. Rename one with AS.")
    derived = sql.derived(written)
    columns = _decide_types(catalog, rows, rules, relation="query", quoted=derived, key=())
    return Relation(name="query", sql=derived, columns=columns, is_table=False), Keys((), frozenset(), "")


def _decide_types(
    catalog: Catalog, rows: Rows, rules: TypeRules, *, relation: str, quoted: str, key: tuple[str, ...]
) -> tuple[Column, ...]:
    """Decide every column."""
    names = [row[0] for row in rows]
    for rule in rules.columns:
        table, _, name = rule.rpartition(".")
        # A rule that means no column is an error: the column it was meant for would be exported with another type.
        if rule not in names and not (name in names and table in (relation, f"main.{relation}")):
            raise UnknownColumn(rule, relation=relation, known=names, key="columns")

    def probe(name: str) -> str:
        found = catalog.ask(sqlite_times.look(quoted, sql.quote(name)), doing=f"looking at the times of {name}")
        return sqlite_times.spelling([tuple(row) for row in found])

    return tuple(
        column_of(
            # NULLs of a key were ruled out by `keys_of`, whatever the declaration says.
            Declared(name=name, native=native, not_null=bool(not_null) or name in key),
            rules=rules,
            relation=relation,
            probe=probe,
        )
        for name, native, not_null, _ in rows
    )


def keys_of(catalog: Catalog, table: str, rows: Rows, *, has_rowid: bool) -> Keys:
    """Find the key: the primary one, else a unique index without NULLs and compared byte by byte.

    Of a table with row numbers only INTEGER PRIMARY KEY rules NULLs out by itself, through an old fault of SQLite that
    it keeps (sqlite.org/lang_createtable.html, 3.5). An index of another collation cannot serve ours, so paging by it
    would sort the table for each page.
    """
    names = {row[0] for row in rows}
    never_null = {row[0] for row in rows if row[2]}
    primary = tuple(row[0] for row in sorted((row for row in rows if row[3]), key=lambda row: row[3]))
    is_alias = has_rowid and len(primary) == 1 and any(row[1].upper() == "INTEGER" and row[3] for row in rows)
    if is_alias or not has_rowid:
        never_null |= set(primary)
    lower = {name.lower() for name in names}
    # A column that is called rowid hides the row's number under that name, not under the other two.
    rowid = next((name for name in ROWID if name not in lower), "") if has_rowid else ""
    indexes = indexes_of(catalog, table)
    # A unique index of another collation takes two texts for one that bytes tell apart, and would skip rows.
    usable = [i.parts for i in indexes if i.is_unique and all(coll == "BINARY" for _, coll in i.parts)]
    keys = [tuple(name for name, _ in parts) for parts in usable]
    key = primary if is_alias else next((found for found in keys if set(found) <= never_null), ())
    # `& names` drops expressions, whose part has no name.
    leading = {i.parts[0][0] for i in indexes if i.parts[0][1] == "BINARY"} & names
    return Keys(key, frozenset(leading | (set(primary) if is_alias else set())), rowid)


@dataclass(frozen=True)
class Index:
    """One index: its parts as (column, collation), '' for an expression."""

    name: str
    is_unique: bool  # for the whole table
    is_partial: bool
    parts: list[tuple[str, str]]

    @property
    def is_plain(self) -> bool:
        """Return whether it holds every row, by columns compared byte by byte."""
        return not self.is_partial and all(name and collation == "BINARY" for name, collation in self.parts)


def indexes_of(catalog: Catalog, table: str) -> list[Index]:
    """Read the indexes of a table, the primary key's first."""
    found: dict[str, Index] = {}
    for row in catalog.ask(INDEXES, (table,), doing=f"reading the indexes of {table}"):
        name, is_unique, column, collation, is_partial = row
        index = found.setdefault(name, Index(name, bool(is_unique), bool(is_partial), []))
        index.parts.append((column or "", str(collation).upper()))
    return list(found.values())


def rows_estimate(catalog: Catalog, table: str, rowid: str) -> int | None:
    """Return about how many rows there are: from ANALYZE, else at most as many as the greatest row number."""
    try:
        stat = catalog.ask("SELECT stat FROM sqlite_stat1 WHERE tbl = ? LIMIT 1", (table,), doing="reading statistics")
    except SourceError:
        # Nobody has run ANALYZE.
        stat = []
    if stat and stat[0][0]:
        return int(str(stat[0][0]).split()[0])
    # A view has neither statistics nor row numbers, and counting it would run it.
    if not rowid:
        return None
    largest = catalog.ask(f"SELECT max({rowid}) FROM {sql.quote(table)}", doing="reading the greatest row number")
    return max(0, int(largest[0][0] or 0))
