"""Tables as the log describes them: which are ours, and what their columns become in a part.

Belongs here: from an R message to Columns, the same ones a batch read of such a table has; which relation is which
configured table, also after a rename. Not here: messages, cells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from rivet_resources.contracts.change_log import TableComments
from rivet_resources.contracts.source import TypeRules
from rivet_resources.contracts.types import Column
from rivet_resources.engines.postgres import catalog as postgres_catalog
from rivet_resources.engines.postgres.catalog import Catalog
from rivet_resources.engines.postgres.columns import Described
from rivet_resources.engines.postgres.log.messages import RelationMessage
from rivet_resources.engines.postgres.log.texts import Ask, Convert, arrival
from rivet_resources.engines.postgres.sql import quote
from rivet_resources.engines.shared.names import split_name
from rivet_resources.errors import LogRefused

TEXT_OID = 25

COMMENTS = """
SELECT attname::text, col_description(attrelid, attnum)
FROM pg_attribute WHERE attrelid = %s::int8::oid AND attnum > 0 AND NOT attisdropped"""

# Comments of now, with whether the table is a part of another one, which then has them (`catalog.FIND`).
COMMENTS_NOW = """
SELECT c.relkind IN ('r', 'p') AND NOT EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = c.oid), a.attname::text,
       coalesce(col_description(a.attrelid, a.attnum), '')
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.oid = %s::int8::oid AND a.attnum > 0 AND NOT a.attisdropped"""

KNOWN_TYPES = "SELECT oid::int8 FROM pg_type WHERE oid = ANY (%s::int8[]::oid[])"

# Which constraints and indexes keep columns of a key unique, whether at every moment, and whether NULLs too: these are
# as many as one likes.
UNIQUE_WITHIN = """
SELECT c.relname::text, i.indimmediate,
       NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
                   AND NOT a.attnotnull)
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE i.indrelid = %s::int8::oid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL
  AND NOT EXISTS (SELECT FROM unnest(i.indkey) WITH ORDINALITY AS k (attnum, n)
                  LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
                  WHERE k.n <= i.indnkeyatts AND NOT coalesce(a.attname::text = ANY (%s::text[]), false))
ORDER BY c.relname"""
IMMEDIATE_KEY = "make the constraint NOT DEFERRABLE, or name another `key:`"
UNIQUE_KEY = "name the columns of a unique constraint that is not DEFERRABLE, such as the primary key, in `key:`"
KEYS_READ = "reading the unique constraints"


@dataclass(frozen=True)
class CapturedRelation:
    """One table of ours in one of its schemas: how its cells are read."""

    table: str  # as configured
    relation: RelationMessage
    columns: tuple[Column, ...]
    converts: tuple[Convert, ...]
    key: tuple[int, ...]  # ordinals of the columns that identify a row
    schema: pa.Schema = field(repr=False)


@dataclass
class RelationCache:
    """Knows the configured tables; looks a relation's types up once for each of its schemas.

    A change belongs to a configured table if the relation had that name when the change was made. It still does
    after a rename, while no other relation has taken the name: then the oid tells. `oids` are what the
    catalog says now, `remembered` what an earlier window noted.
    """

    configured: tuple[str, ...]
    rules: TypeRules
    catalog: Catalog
    ask: Ask
    oids: Mapping[str, int] = field(default_factory=dict)
    schemas: Mapping[str, str] = field(default_factory=dict)
    remembered: dict[str, int] = field(default_factory=dict)
    is_keyed: bool = False  # somebody goes by the key of each change
    key: tuple[str, ...] = ()  # by these columns, as configured; (): by the key of each table
    columns: Mapping[str, set[str]] = field(default_factory=dict)  # as the catalog has them now, and had them
    strange: dict[str, set[str]] = field(default_factory=dict)  # what the log has besides; a read begins with none
    _known: dict[RelationMessage, CapturedRelation | None] = field(default_factory=dict)

    def found(self, oids: Mapping[str, int], schemas: Mapping[str, str]) -> None:
        """Take what the catalog says now; what was concluded from another answer is concluded anew."""
        if (oids, schemas) != (self.oids, self.schemas):
            # A rename may have made another relation ours, or one of ours another's.
            self.oids, self.schemas = oids, schemas
            self._known.clear()

    def expect(self, columns: Mapping[str, set[str]]) -> None:
        """Begin a read: any other column of these tables is strange."""
        self.columns, self.strange = columns, {}

    def captured(self, relation: RelationMessage) -> CapturedRelation | None:
        """Return how to read a relation's rows; None when it is not one of ours."""
        # Relation messages are values: however many peeks show an unchanged table, the catalog is asked once.
        if relation not in self._known:
            table = self.table_of(relation)
            self._known[relation] = self._describe(table, relation) if table is not None else None
        found = self._known[relation]
        expected = self.columns.get(found.table) if found is not None else None
        if found is not None and expected is not None:
            self.strange.setdefault(found.table, set()).update({column.name for column in found.columns} - expected)
        return found

    def comments(self, table: str) -> TableComments:
        """Read the comments of a configured table's columns as they are now."""
        rows = self.catalog.ask(COMMENTS_NOW, (self.notes().get(table, 0),), doing=f"reading the comments of {table}")
        texts = {str(name): str(text) for _, name, text in rows}
        return TableComments("all" if rows and rows[0][0] else "own", texts)

    def notes(self) -> dict[str, int]:
        """Return which relations the tables are, for the next window to remember."""
        return {**self.remembered, **self.oids}

    def table_of(self, relation: RelationMessage) -> str | None:
        """Name the configured table a relation is, None when it is none."""
        for table in self.configured:
            schema, name = split_name(table)
            is_there = self.oids.get(table, 0)
            # A bare name means the schema it was found in; `public` once the table is gone.
            if (relation.schema, relation.name) == (schema or self.schemas.get(table, "public"), name):
                self.remembered[table] = relation.oid
                return table
            # Renamed, and nobody took the name: it is still the table that was meant.
            if relation.oid == is_there or (not is_there and relation.oid == self.remembered.get(table)):
                return table
        return None

    def _describe(self, table: str, relation: RelationMessage) -> CapturedRelation:
        oids = [attribute.oid for attribute in relation.attributes]
        known = {row[0] for row in self.catalog.ask(KNOWN_TYPES, (oids,), doing=f"reading the types of {table}")}
        comments: dict[str, str | None] = dict(
            self.catalog.ask(COMMENTS, (relation.oid,), doing=f"reading the columns of {table}")
        )
        described = [
            Described(
                name=attribute.name,
                # A type that was dropped since: its texts are still what the log holds.
                oid=attribute.oid if attribute.oid in known else TEXT_OID,
                modifier=attribute.modifier if attribute.oid in known else -1,
                comment=comments.get(attribute.name) or "",
            )
            for attribute in relation.attributes
        ]
        made = postgres_catalog.type_columns(
            self.catalog, described, self._rules(relation), relation=relation.label, is_table=True
        )
        # Deletes may bring the key alone, and a truncate brings nothing: no column of a change rules NULL out.
        columns = tuple(replace(column, nullable=True) for column in made)
        return CapturedRelation(
            table=table,
            relation=relation,
            columns=columns,
            converts=tuple(arrival(column, self.ask) for column in columns),
            key=self._key(relation, table),
            schema=pa.schema([column.field for column in columns]),
        )

    def _rules(self, relation: RelationMessage) -> TypeRules:
        """Leave out what `columns:` says of other tables, or of columns this schema does not have."""
        names = [attribute.name for attribute in relation.attributes]
        mine = {
            key: rule
            for key, rule in self.rules.columns.items()
            if postgres_catalog.rule_column(key, names, relation.label) is not None
        }
        return replace(self.rules, columns=mine)

    def _key(self, relation: RelationMessage, table: str) -> tuple[int, ...]:
        """Return the ordinals of the key: the identity's, or where that is the whole row, those that rows are told by.

        Raises:
            LogRefused: a delete or a changed key would not say which row it means to those who go by the key.
        """
        ordinals = {attribute.name: i for i, attribute in enumerate(relation.attributes)}
        is_whole = relation.identity == "f"
        names = self.key or (
            postgres_catalog.indexes(self.catalog, relation.oid)[0] if self.is_keyed or is_whole else ()
        )
        if is_whole:
            if self.is_keyed and (constraint := deferrable_key(self.catalog, relation.oid, self.key)):
                raise LogRefused(
                    f"{exchangeable(relation.label, self.key, constraint)}. Please {IMMEDIATE_KEY}; then "
                    f"`rivet state reset`, and begin with a new copy."
                )
            return tuple(ordinals[name] for name in names if name in ordinals)
        identity = [attribute.name for attribute in relation.attributes if attribute.is_identity]
        # Names that are no columns of the table are those that a step gives.
        if lacking := [name for name in names if name in ordinals and name not in identity]:
            raise LogRefused(
                f"{unidentified(relation.label, lacking, identity)}. Run ALTER TABLE {quote(relation.schema)}."
                f"{quote(relation.name)} REPLICA IDENTITY FULL; then `rivet state reset`, and begin with a new copy, "
                f"since changes of before lack what is needed."
            )
        return tuple(ordinals[name] for name in identity)


def deferrable_key(catalog: Catalog, oid: int, key: Sequence[str]) -> str | None:
    """Name the constraint that alone keeps `key` unique, and only at the end of a statement or transaction."""
    if not key:  # the table's own key never is such a one
        return None
    rows = catalog.ask(UNIQUE_WITHIN, (oid, list(key)), doing=KEYS_READ)
    return None if not rows or any(is_immediate for _, is_immediate, _ in rows) else str(rows[0][0])


def exchangeable(label: str, key: Sequence[str], constraint: str) -> str:
    """Return why rows of a table cannot be followed by a key that two of them may have for a while."""
    return (
        f"Rows of {label} are told apart by {', '.join(key)} here (`key`), which {constraint} keeps unique: it is "
        f"DEFERRABLE, so one statement may give a row the key that another one still has, and the log does not tell "
        f"which of the two is then deleted, or gets another key: rows would be lost"
    )


def unidentified(label: str, lacking: Sequence[str], identity: Sequence[str]) -> str:
    """Return why the log does not tell the rows of a table apart as the export does."""
    return (
        f"Rows of {label} are told apart by {', '.join(lacking)} here (`key`, or the table's key), and its log names "
        f"one that is deleted, or gets another key, by {', '.join(identity) or 'nothing'} alone: it would stay"
    )
