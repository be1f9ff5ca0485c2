"""What a MySQL table or query is made of, from the catalog: columns with their types, keys, sizes.

Belongs here: catalog statements and `Relation`. Not here: the type facts (types.py) and how one column is read
(columns.py). Types never come from samples: a table's are the catalog's, a query's its described result.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from rivet_resources.contracts.relation import Relation
from rivet_resources.contracts.source import TypeRules
from rivet_resources.contracts.types import Column
from rivet_resources.engines.mysql import sql
from rivet_resources.engines.mysql.columns import (
    BINARY_CHARSET,
    Described,
    base_of,
    column_of,
    is_key,
    read_definition,
    unknown_zone,
    zones,
)
from rivet_resources.engines.mysql.connect import Row
from rivet_resources.engines.mysql.errors import unknown_table
from rivet_resources.engines.mysql.wire.packets import Definition
from rivet_resources.engines.shared.names import split_name
from rivet_resources.errors import ConfigError, RivetError, SourceError, SourcePermission, UnknownColumn, UnknownTable


class Catalog(Protocol):
    """What this module needs from a session: run a statement, describe one without running it."""

    database: str
    user: str

    def ask(self, statement: str, *, doing: str) -> list[Row]: ...

    def prepare(self, statement: str, *, doing: str) -> tuple[Definition, ...]: ...

    def prepare_unconverted(self, statement: str, *, doing: str) -> tuple[Definition, ...]: ...


# --- tables --------------------------------------------------------------------------------------

FIND = """
SELECT table_schema, table_name, table_type, engine, table_rows, data_length FROM information_schema.tables
WHERE table_schema = {schema} AND table_name = {name}"""

NAMES = """
SELECT table_schema, table_name FROM information_schema.tables
WHERE table_schema = {schema} OR LOWER(table_name) = LOWER({name}) ORDER BY 1, 2 LIMIT 10000"""

COLUMNS = """
SELECT column_name, data_type, column_type, is_nullable, column_comment, numeric_precision, numeric_scale,
       character_set_name
FROM information_schema.columns WHERE table_schema = {schema} AND table_name = {name} ORDER BY ordinal_position"""

# MariaDB's JSON is LONGTEXT with this CHECK, which the word JSON in a column's definition adds.
CHECKS = """
SELECT check_clause FROM information_schema.check_constraints
WHERE constraint_schema = {schema} AND table_name = {name}"""
JSON_CHECK = re.compile(r"json_valid\(`((?:[^`]|``)+)`\)", re.IGNORECASE)

# Whole parts only: a prefix or an expression neither proves a column unique nor orders it.
INDEXES = """
SELECT index_name, non_unique, column_name, nullable, sub_part, index_type, collation
FROM information_schema.statistics WHERE table_schema = {schema} AND table_name = {name}
ORDER BY index_name = 'PRIMARY' DESC, index_name, seq_in_index"""

# InnoDB's own estimate of a small or young table may be far off; so many rows are counted instead.
COUNTED_ROWS = 20_000
# Storage engines whose reads obey a snapshot.
TRANSACTIONAL = frozenset({"InnoDB", "RocksDB", "ROCKSDB", "TokuDB", "ndbcluster"})


@dataclass(frozen=True)
class _Table:
    """One row of FIND."""

    schema: str
    name: str
    kind: str  # BASE TABLE, VIEW, SYSTEM VIEW, SYSTEM VERSIONED, SEQUENCE
    engine: str
    rows: int | None
    size: int | None

    @property
    def label(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def sql(self) -> str:
        return f"{sql.quote(self.schema)}.{sql.quote(self.name)}"

    def fill(self, statement: str) -> str:
        """Put schema and name into a catalog statement."""
        return statement.format(schema=sql.quote_text(self.schema), name=sql.quote_text(self.name))


@dataclass(frozen=True)
class CatalogRows:
    """A relation, and what its storage engine cannot promise; '' when it obeys snapshots."""

    relation: Relation
    weakness: str = ""


def describe_table(catalog: Catalog, name: str, rules: TypeRules) -> CatalogRows:
    """Look one table or view up. Invisible columns are exported when `columns:` lists them.

    Raises:
        UnknownTable, SourcePermission, UnknownColumn, UnsupportedColumn, SourceError
    """
    table = _find(catalog, name)
    described = _columns_of(catalog, table, rules)
    # From one list, so that the key and the pages mean the same columns.
    columns = _decide_types(catalog, described, rules, relation=table.label)
    key, indexed = _indexes(catalog, table, columns)
    is_stored = table.kind in ("BASE TABLE", "SYSTEM VERSIONED")
    relation = Relation(
        name=table.label,
        sql=table.sql,
        columns=columns,
        is_table=True,
        key=key,
        indexed=indexed,
        rows_estimate=_rows(catalog, table) if is_stored else None,
        bytes_estimate=table.size if is_stored else None,
        comments="all" if is_stored else "own",
    )
    # A view has no engine of its own, so nothing is known against it.
    is_weak = table.kind == "BASE TABLE" and table.engine not in TRANSACTIONAL
    return CatalogRows(relation, table.engine if is_weak else "")


def _find(catalog: Catalog, name: str) -> _Table:
    schema, bare = split_name(name)
    schema = schema or catalog.database
    if not schema:
        raise ConfigError(
            f"Table {name} names no database, and neither does the source. Write database.table, or set `database`."
        )
    wanted = _Table(schema, bare, "", "", None, None)
    rows = catalog.ask(wanted.fill(FIND), doing=f"looking up table {name}")
    if not rows:
        raise _not_found(catalog, wanted, name)
    found_schema, found_name, kind, engine, count, size = rows[0]
    table = _Table(found_schema or schema, found_name or bare, kind or "", engine or "", _number(count), _number(size))
    if table.kind == "SEQUENCE":
        raise SourceError(f"{table.label} is a sequence, which has no rows to export. Fix `table` of the export.")
    return table


def _number(text: str | None) -> int | None:
    return int(text) if text is not None else None


def _not_found(catalog: Catalog, wanted: _Table, name: str) -> RivetError:
    """Return why the catalog shows no such table: it is not there, or this user may not see it."""
    # The catalog shows nobody a table that he has no right on; asking for it tells the two cases apart.
    try:
        catalog.prepare(f"SELECT 1 FROM {wanted.sql}", doing=f"looking up table {name}")
    except SourcePermission:
        return _denial(catalog, wanted)
    except SourceError:
        pass
    # Names that differ in case only come first: on a server that compares names exactly they are the usual mistake.
    rows = catalog.ask(wanted.fill(NAMES), doing=f"looking up table {name}")
    labels = {f"{row[0]}.{row[1]}": str(row[1]) for row in rows}
    same = [label for label, bare in labels.items() if bare.lower() == wanted.name.lower()]
    here = [bare for label, bare in labels.items() if label == f"{wanted.schema}.{bare}"]
    like = [f"{wanted.schema}.{bare}" for bare in difflib.get_close_matches(wanted.name, here, n=3)]
    return unknown_table(name, near=list(dict.fromkeys([*same, *like]))[:3])


def _denial(catalog: Catalog, table: _Table) -> SourcePermission:
    return SourcePermission(
        f"User {catalog.user} may not read {table.label}. "
        f"Let an administrator run: GRANT SELECT ON {table.sql} TO {catalog.user}."
    )


def _columns_of(catalog: Catalog, table: _Table, rules: TypeRules) -> list[Described]:
    """Read the columns that `SELECT *` gives, and the invisible ones that the user lists."""
    doing = f"reading the columns of {table.label}"
    try:
        # Described by LIMIT 0: the server expands the star and reads no row.
        shown = [d.name for d in catalog.prepare(f"SELECT * FROM {table.sql}", doing=doing)]
    except SourcePermission:
        raise _denial(catalog, table) from None
    rows = catalog.ask(table.fill(COLUMNS), doing=doing)
    # Only a longtext can be MariaDB's JSON, and only then is it worth one more statement.
    json_columns = _json_columns(catalog, table) if any(row[1] == "longtext" for row in rows) else frozenset()
    made = [_describe(row, json_columns) for row in rows]
    listed = {key.rpartition(".")[2] for key in rules.columns}
    return [described for described in made if described.name in shown or described.name in listed]


def _describe(row: Row, json_columns: frozenset[str]) -> Described:
    name, data_type, column_type, nullable, comment, precision, scale, charset = (cell or "" for cell in row)
    return Described(
        name=name,
        base=base_of(data_type, column_type),
        native=column_type,
        not_null=nullable == "NO",
        comment=comment,
        precision=int(precision or 0),
        scale=int(scale or 0),
        charset=charset,
        is_json=data_type == "longtext" and name in json_columns,
    )


def _json_columns(catalog: Catalog, table: _Table) -> frozenset[str]:
    try:
        rows = catalog.ask(table.fill(CHECKS), doing=f"reading the checks of {table.label}")
    except UnknownTable:
        return frozenset()
    except SourceError:
        # MySQL's view has no `table_name`, and there JSON is a type of its own.
        return frozenset()
    # The whole clause and not part of it: `json_valid(a) OR b` does not say that every value is JSON.
    found = (JSON_CHECK.fullmatch((row[0] or "").strip()) for row in rows)
    return frozenset(match[1].replace("``", "`") for match in found if match)


def _rows(catalog: Catalog, table: _Table) -> int:
    """Estimate rows: counted where there are few, else the engine's own word."""
    some = f"SELECT 1 FROM {table.sql} LIMIT {COUNTED_ROWS}"
    counted = catalog.ask(f"SELECT COUNT(*) FROM ({some}) AS _rivet_some", doing=f"sizing {table.label}")[0][0]
    # COUNT(*) over a limited subquery stops at the limit; over the table it would walk an index to its end.
    return int(counted or 0) if int(counted or 0) < COUNTED_ROWS else max(COUNTED_ROWS, table.rows or 0)


# --- keys ----------------------------------------------------------------------------------------


@dataclass
class Index:
    """One index, its parts in order."""

    is_unique: bool
    parts: list[str | None]  # None: a prefix or an expression
    nullable: bool = False
    directions: tuple[str, ...] = ()
    method: str = ""

    @property
    def is_walkable(self) -> bool:
        """Return whether an ascending or descending walk follows it: all parts run in one direction."""
        return self.method == "BTREE" and len(set(self.directions)) == 1


def _indexes(catalog: Catalog, table: _Table, columns: Sequence[Column]) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the key (primary, else the shortest unique one without NULLs) and the columns that lead an index."""
    rows = catalog.ask(table.fill(INDEXES), doing=f"reading the indexes of {table.label}")
    indexes = [index for index in read_indexes(rows).values() if index.is_walkable]
    key = key_of(indexes, {column.name for column in columns if is_key(column)})
    return key, frozenset(index.parts[0] for index in indexes if index.parts[0])


def key_of(indexes: Sequence[Index], usable: Collection[str]) -> tuple[str, ...]:
    """Choose among walkable indexes, primary first: the first, else the shortest, that is unique and never NULL."""
    keys = [
        tuple(part for part in index.parts if part)
        for index in indexes
        # A NULL stands nowhere in a key's order, and a prefix does not tell two values apart.
        if index.is_unique and not index.nullable and all(part in usable for part in index.parts)
    ]
    # First comes the primary key, where there is one, by which InnoDB stores the rows: walking another index reads
    # them from all over the table.
    primary_first = sorted(keys[1:], key=len)
    return next(iter([*keys[:1], *primary_first]), ())


def read_indexes(rows: Sequence[Row]) -> dict[str, Index]:
    """Join the rows of INDEXES of one table, by the index's name."""
    found: dict[str, Index] = {}
    for name, non_unique, column, nullable, sub_part, method, direction in rows:
        index = found.setdefault(name or "", Index(is_unique=non_unique == "0", parts=[], method=method or ""))
        index.parts.append(column if sub_part is None else None)
        index.nullable = index.nullable or nullable == "YES"
        index.directions = (*index.directions, direction or "")
    return found


# --- queries -------------------------------------------------------------------------------------

DUPLICATE = re.compile(r"Duplicate column name '([^']+)'")


def describe_query(catalog: Catalog, query: str, params: Mapping[str, str], rules: TypeRules) -> CatalogRows:
    """Describe what a query would return, without running it.

    Raises:
        ConfigError: empty, returns two columns of one name, names an unknown parameter.
        SourceError: the server cannot parse it.
    """
    derived = sql.derived(sql.render_parameters(sql.strip_query(query), params))
    # A query is wrapped and described as the page's statement will wrap it, so its names and types are those of the
    # pages.
    results = _describe_query(catalog, derived)
    charsets = _charsets(catalog, results)
    described = [replace(read_definition(each), charset=charsets.get(each.charset, "")) for each in results]
    columns = _decide_types(catalog, described, rules, relation="query")
    return CatalogRows(Relation(name="query", sql=derived, columns=columns, is_table=False))


def _describe_query(catalog: Catalog, derived: str) -> tuple[Definition, ...]:
    try:
        return catalog.prepare_unconverted(f"SELECT * FROM {derived}", doing="describing the query")
    except SourceError as error:
        # A derived table may not have two columns of one name, which a bare query may.
        twice = DUPLICATE.search(str(error))
        if twice is None:
            raise
    raise ConfigError(
        f"The query returns {twice[1]!r} more than once, in upper or lower case; "
        "give each column a name of its own with AS."
    )


COLLATIONS = "SELECT id, character_set_name FROM information_schema.collations WHERE id IN ({ids})"


def _charsets(catalog: Catalog, results: Sequence[Definition]) -> dict[int, str]:
    """Return the character sets of a query's texts, by collation."""
    ids = sorted({str(result.charset) for result in results if result.charset != BINARY_CHARSET})
    if not ids:
        return {}
    rows = catalog.ask(COLLATIONS.format(ids=", ".join(ids)), doing="describing the query")
    return {int(number): name or "" for number, name in rows if number}


# --- types ---------------------------------------------------------------------------------------


def _decide_types(
    catalog: Catalog, described: Sequence[Described], rules: TypeRules, *, relation: str
) -> tuple[Column, ...]:
    """Decide every column's type.

    Raises:
        UnknownColumn: `columns:` names one that is not there.
        ConfigError: the server does not know a zone that a column is to be read in.
        SourceError: the server has no columns to show.
    """
    names = [column.name for column in described]
    if not names:
        raise SourceError(f"{relation} has no columns, so there is nothing to export. Fix `table` of the export.")
    for key in rules.columns:
        _check_rule(key, names, relation)
    # Asked of the server: an unknown zone makes CONVERT_TZ give NULL, and every time of the column would be lost.
    for column, zone in zones(names, rules, relation).items():
        asked = f"SELECT CONVERT_TZ('2000-01-01 00:00:00', {sql.quote_text(zone)}, '+00:00')"
        if catalog.ask(asked, doing=f"looking up time zone {zone}")[0][0] is None:
            raise unknown_zone(column, zone)
    return tuple(column_of(one, rules=rules, relation=relation) for one in described)


def _check_rule(key: str, names: Sequence[str], relation: str) -> None:
    """Refuse an entry of `columns:` that means no column: neither a name nor table.column, exact case."""
    table, _, name = key.rpartition(".")
    if key in names or (name in names and table in (relation, relation.rpartition(".")[2])):
        return
    raise UnknownColumn(key, relation=relation, known=names, key="columns")
