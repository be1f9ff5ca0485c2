"""What a PostgreSQL table or query is made of, from the catalog: columns with their types, keys, leaves, sizes.

Belongs here: catalog statements and `Relation`. Not here: the type facts (contracts/types.py) and how one column is
read (columns.py). Types never come from samples, and there is no `SELECT *` (`engine.md`, section 2, trap 2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rivet_resources.contracts.relation import Leaf, Relation
from rivet_resources.contracts.source import TypeRules
from rivet_resources.contracts.types import Column
from rivet_resources.engines.postgres import sql
from rivet_resources.engines.postgres.columns import Described, TypeEntry, column_of
from rivet_resources.engines.postgres.errors import unknown_table
from rivet_resources.engines.shared.names import split_name
from rivet_resources.errors import ConfigError, SourceError, SourcePermission, UnknownColumn

Rows = list[tuple[Any, ...]]


class Catalog(Protocol):
    """What this module needs from a session: run a statement in its transaction, describe one without running it."""

    server_version: int
    user: str

    def ask(self, statement: str, values: Sequence[Any] = (), *, doing: str) -> Rows: ...

    def prepare(self, statement: str, *, doing: str) -> list[tuple[str, int, int]]: ...

    def find_policed(self, statement: str, *, doing: str) -> str | None: ...


# --- tables --------------------------------------------------------------------------------------

# Unqualified names follow the search path, as psql would.
FIND = """
SELECT c.oid, n.nspname, c.relname, c.relkind::text, coalesce(a.amname, 'heap'), c.reltuples::float8, c.relhassubclass,
       has_any_column_privilege(c.oid, 'SELECT'), pg_table_size(c.oid),
       c.relkind IN ('r', 'p') AND NOT EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = c.oid),
       row_security_active(c.oid)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_am a ON a.oid = c.relam
WHERE c.relname = %s AND c.relkind IN ('r', 'p', 'm', 'v', 'f')
  AND CASE WHEN %s::text IS NULL THEN n.nspname = ANY (current_schemas(true)) ELSE n.nspname = %s END
ORDER BY array_position(current_schemas(true), n.nspname) LIMIT 1"""

NEAR = """
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE lower(c.relname) = lower(%s) AND c.relkind IN ('r', 'p', 'm', 'v', 'f') ORDER BY 1 LIMIT 3"""

COLUMNS = """
SELECT attname, atttypid::int8, atttypmod, attnotnull, coalesce(col_description(attrelid, attnum), ''),
       has_column_privilege(attrelid, attnum, 'SELECT')
FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum"""

# Columns in key order, for keys and for leading columns alike; NULLs are ruled out by attnotnull. An index of another
# collation than its column's is unique in another sense than the one we compare by: equal keys would be skipped.
INDEXES = """
SELECT i.indrelid::int8, c.relname, i.indisprimary, i.indisunique AND i.indimmediate,
       array_agg(a.attname ORDER BY k.n) FILTER (WHERE k.n <= i.indnkeyatts)::text[],
       bool_and(coalesce(a.attnotnull AND i.indcollation[k.n - 1] IN (0, a.attcollation), false))
         FILTER (WHERE k.n <= i.indnkeyatts)
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam
     CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS k (attnum, n)
     LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = ANY (%s::oid[]) AND i.indisvalid AND i.indpred IS NULL AND m.amname = 'btree'
GROUP BY i.indexrelid, c.relname, i.indrelid, i.indisprimary, i.indisunique, i.indimmediate
ORDER BY i.indisprimary DESC, 4 DESC, count(*), i.indexrelid"""

# Read after the snapshot was taken: every row it shows lies below these sizes.
# UNION and not UNION ALL: a table that inherits from two members of the tree is one leaf, or its rows come twice.
LEAVES = """
WITH RECURSIVE tree (oid) AS (
    SELECT %s::oid UNION SELECT i.inhrelid FROM pg_inherits i JOIN tree ON i.inhparent = tree.oid
)
SELECT n.nspname, c.relname, c.relkind::text, coalesce(a.amname, 'heap'), c.relhassubclass,
       CASE WHEN c.relkind IN ('r', 'm') THEN pg_relation_size(c.oid) / current_setting('block_size')::int ELSE 0 END,
       CASE WHEN c.relkind IN ('r', 'm') THEN pg_table_size(c.oid) ELSE 0 END, c.reltuples::float8,
       CASE WHEN c.oid = %s::oid THEN NOT row_security_active(c.oid)
       ELSE has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
            AND NOT row_security_active(c.oid) END
FROM tree JOIN pg_class c ON c.oid = tree.oid JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_am a ON a.oid = c.relam ORDER BY 1, 2"""


@dataclass(frozen=True)
class _Table:
    """One row of FIND."""

    oid: int
    schema: str
    name: str
    kind: str
    method: str
    rows: float
    has_children: bool
    is_readable: bool
    size: int
    is_root: bool  # a table that is no part of another one
    is_filtered: bool  # policies of row security decide which of its rows this user sees

    @property
    def label(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def sql(self) -> str:
        return f"{sql.quote(self.schema)}.{sql.quote(self.name)}"


def describe_table(catalog: Catalog, name: str, rules: TypeRules) -> Relation:
    """Look one table, view, materialised view, partitioned or foreign table up.

    Raises:
        UnknownTable, SourcePermission, UnknownColumn, UnsupportedColumn, SourceError
    """
    table = _find(catalog, name)
    described = _columns_of(catalog, table)
    columns = type_columns(catalog, described, rules, relation=table.label, is_table=True)
    key, indexed = indexes(catalog, table.oid)
    leaves, rows, size = _leaves(catalog, table)
    return Relation(
        name=table.label,
        sql=table.sql,
        columns=columns,
        is_table=True,
        key=key,
        indexed=indexed,
        leaves=leaves,
        rows_estimate=rows,
        bytes_estimate=size,
        comments="all" if table.is_root else "own",
        caution=_hidden_rows(table.label, catalog.user) if table.is_filtered else _hidden_below(catalog, table),
    )


def _hidden_rows(label: str, user: str, *, through: str = "") -> str:
    return (
        f"row-level security decides which rows of {label} user {user} sees{through}, and only these are exported; "
        f"where all are wanted, let an administrator run: ALTER ROLE {sql.quote(user)} BYPASSRLS"
    )


def _hidden_below(catalog: Catalog, table: _Table) -> str:
    """Return that policies hide rows of what a view reads; '' where they do not."""
    if table.kind != "v":
        return ""
    hiding = catalog.find_policed(f"SELECT * FROM {table.sql}", doing=f"looking for policies below {table.label}")
    return _hidden_by_view(hiding, table.label, catalog.user) if hiding else ""


def _hidden_by_view(hiding: str, label: str, user: str) -> str:
    return f"{_hidden_rows(hiding, user, through=f' through view {label}')}, or the same of the view's owner"


def _find(catalog: Catalog, name: str) -> _Table:
    schema, bare = split_name(name)
    found = catalog.ask(FIND, (bare, schema, schema), doing=f"looking up table {name}")
    if not found:
        near = [row[0] for row in catalog.ask(NEAR, (bare,), doing=f"looking up table {name}")]
        raise unknown_table(name, near=near)
    table = _Table(*found[0])
    if not table.is_readable:
        raise SourcePermission(
            f"User {catalog.user} may not read {table.label}. "
            f"Let its owner run: GRANT SELECT ON {table.sql} TO {sql.quote(catalog.user)}."
        )
    return table


def _columns_of(catalog: Catalog, table: _Table) -> list[Described]:
    rows = catalog.ask(COLUMNS, (table.oid,), doing=f"reading the columns of {table.label}")
    if not rows:
        raise SourceError(
            f"Table {table.label} has no columns, so there is nothing to export. Fix `table` of the export."
        )
    hidden = [row[0] for row in rows if not row[5]]
    if hidden:
        raise SourcePermission(
            f"User {catalog.user} may not read {', '.join(hidden)} of {table.label}. Use a query without, or let "
            f"its owner "
            f"run: GRANT SELECT ({', '.join(map(sql.quote, hidden))}) ON {table.sql} TO {sql.quote(catalog.user)}."
        )
    return [Described(name=row[0], oid=row[1], modifier=row[2], not_null=row[3], comment=row[4]) for row in rows]


@dataclass(frozen=True)
class Index:
    """One row of INDEXES; a None in `names` is an expression."""

    table: int
    name: str
    is_primary: bool
    is_unique: bool
    names: tuple[str | None, ...]
    is_never_null: bool

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns, in order; () where one part is an expression."""
        plain = tuple(name for name in self.names if name is not None)
        return plain if len(plain) == len(self.names) else ()


def all_indexes(catalog: Catalog, oids: Sequence[int]) -> list[Index]:
    """Read the usable indexes of tables: primary keys first, then unique ones, then the shortest."""
    rows = catalog.ask(INDEXES, (list(oids),), doing="reading the indexes")
    return [Index(row[0], row[1], row[2], row[3], tuple(row[4] or ()), row[5]) for row in rows]


def key_of(indexes: Sequence[Index]) -> tuple[str, ...]:
    """Choose the key among one table's indexes: primary, else the shortest unique one without NULLs."""
    return next((index.columns for index in indexes if index.columns and index.is_unique and index.is_never_null), ())


def indexes(catalog: Catalog, oid: int) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the key (primary, else the shortest unique one without NULLs) and the columns that lead an index."""
    found = all_indexes(catalog, (oid,))
    return key_of(found), frozenset(index.names[0] for index in found if index.names and index.names[0] is not None)


def _leaves(catalog: Catalog, table: _Table) -> tuple[tuple[Leaf, ...], int | None, int | None]:
    """Return the tables that can be read by blocks, all or none, with estimates of rows and bytes.

    None below PostgreSQL 14, where a ctid range scans the whole table.
    """
    if table.kind not in ("r", "p", "m"):
        # From PostgreSQL 14 on, reltuples is -1 until the table was analysed: not known is not empty.
        return (), (int(table.rows) if table.rows >= 0 else None), None
    rows = catalog.ask(LEAVES, (table.oid, table.oid), doing=f"reading the partitions of {table.label}")
    stored = [row for row in rows if row[2] != "p"]
    estimate = int(sum(max(row[7], 0) for row in stored)) if all(row[7] >= 0 for row in stored) else None
    size = sum(row[6] for row in stored)
    # All or none: a foreign partition, or one of another access method, has no blocks that could be asked for.
    is_by_blocks = all(row[2] in ("r", "m") and row[3] == "heap" for row in stored)
    # Rights and policies of the table hold for who reads it by its own name, those of a part for who reads that alone.
    is_by_blocks &= len(rows) == 1 or all(row[8] for row in rows)
    if not is_by_blocks or not stored or catalog.server_version < 140000:
        return (), estimate, size
    leaves = tuple(
        # A table with children is a leaf beside them; without ONLY it would bring their rows once more.
        Leaf(sql=("ONLY " if row[4] else "") + f"{sql.quote(row[0])}.{sql.quote(row[1])}", blocks=int(row[5]))
        for row in stored
    )
    return leaves, estimate, size


# --- queries -------------------------------------------------------------------------------------


def describe_query(catalog: Catalog, query: str, params: Mapping[str, str], rules: TypeRules) -> Relation:
    """Describe what a query would return, without running it.

    Raises:
        ConfigError: empty, returns two columns of one name, names an unknown parameter.
        SourceError: the server cannot parse it.
    """
    derived = sql.derived(sql.render_parameters(sql.strip_query(query), params))
    results = catalog.prepare(f"SELECT * FROM {derived}", doing="describing the query")
    twice = [name for name, count in Counter(name for name, _, _ in results).items() if count > 1]
    if twice:
        raise ConfigError(
            f"The query returns {' and '.join(map(repr, twice))} more than once; "
            "give each column a name of its own with AS."
        )
    if not results:
        raise ConfigError("The query returns no columns; select at least one.")
    described = [Described(name=name, oid=oid, modifier=modifier) for name, oid, modifier in results]
    columns = type_columns(catalog, described, rules, relation="query", is_table=False)
    hiding = catalog.find_policed(f"SELECT * FROM {derived}", doing="looking for policies below the query")
    caution = _hidden_rows(hiding, catalog.user, through=" in the query") if hiding else ""
    return Relation(name="query", sql=derived, columns=columns, is_table=False, caution=caution)


# --- types ---------------------------------------------------------------------------------------

# An array is what its item's type calls its array: point, name and int2vector have items as well, and are none.
TYPES = """
SELECT t.oid::int8, t.typname, t.typtype::text, t.typelem::int8, t.typbasetype::int8, t.typtypmod,
       format_type(t.oid, NULL), coalesce(e.typarray = t.oid, false)
FROM pg_type t LEFT JOIN pg_type e ON e.oid = t.typelem WHERE t.oid = ANY (%s::oid[])"""


def type_columns(
    catalog: Catalog, described: Sequence[Described], rules: TypeRules, *, relation: str, is_table: bool
) -> tuple[Column, ...]:
    """Decide every column's type.

    Raises:
        UnknownColumn: `columns:` names one that is not there.
        SourceError: two names differ only in case, which Spark cannot tell apart.
    """
    names = [column.name for column in described]
    _check_case(names, relation)
    for key in rules.columns:
        _check_rule(key, names, relation)
    types = _types(catalog, {column.oid for column in described})
    scale = _money_scale(catalog) if any(_base(types, c.oid).name == "money" for c in described) else 0
    labels = _labels(catalog, described)
    # A server in SQL_ASCII converts nothing, whatever client_encoding says: its texts may be no UTF-8.
    encoding = catalog.ask("SELECT current_setting('server_encoding')", doing="reading the encoding")[0][0]
    return tuple(
        column_of(
            column,
            types=types,
            rules=rules,
            native=label,
            relation=relation,
            money_scale=scale,
            is_unchecked=encoding == "SQL_ASCII",
        )
        for column, label in zip(described, labels, strict=True)
    )


def _labels(catalog: Catalog, described: Sequence[Described]) -> list[str]:
    """Spell each column's type as the catalog does: numeric(12,2)."""
    rows = catalog.ask(
        "SELECT format_type(oid::oid, modifier) FROM unnest(%s::int8[], %s::int4[]) WITH ORDINALITY AS d (oid, "
        "modifier, n) "
        "ORDER BY n",
        ([column.oid for column in described], [column.modifier for column in described]),
        doing="reading the types",
    )
    return [str(row[0]) for row in rows]


def _types(catalog: Catalog, oids: set[int]) -> dict[int, TypeEntry]:
    """Read types with all that they are made of: bases of domains, items of arrays."""
    known: dict[int, TypeEntry] = {}
    # As long as new ones turn up: an array of a domain over an array is three steps.
    while wanted := sorted(oids - known.keys()):
        for row in catalog.ask(TYPES, (wanted,), doing="reading the types"):
            known[row[0]] = entry = TypeEntry(*row)
            oids = oids | {oid for oid in (entry.base, entry.item) if oid}
    return known


def _base(types: Mapping[int, TypeEntry], oid: int) -> TypeEntry:
    entry = types[oid]
    return _base(types, entry.base) if entry.base else entry


def _money_scale(catalog: Catalog) -> int:
    """Probe how many digits lc_monetary gives money."""
    return int(catalog.ask("SELECT scale(1::money::numeric)", doing="probing money")[0][0])


def _check_case(names: Sequence[str], relation: str) -> None:
    lower = Counter(name.lower() for name in names)
    same = [name for name in names if lower[name.lower()] > 1]
    if same:
        raise SourceError(
            f"{relation} has columns {' and '.join(map(repr, same))}, which differ only in case; Spark and many "
            f"readers "
            f"cannot tell them apart. Export a query that renames one with AS."
        )


def _check_rule(key: str, names: Sequence[str], relation: str) -> None:
    if rule_column(key, names, relation) is None:
        raise UnknownColumn(key, relation=relation, known=names, key="columns")


def rule_column(key: str, names: Sequence[str], relation: str) -> str | None:
    """Find the column that a key of `columns:` means: its name, or table.column, exact case."""
    if key in names:
        return key
    table, _, name = key.rpartition(".")
    return name if name in names and table in (relation, relation.rpartition(".")[2]) else None
