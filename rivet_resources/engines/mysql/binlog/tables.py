"""What the tables of a drain are made of, as the log describes them, and their events as typed changes.

Belongs here: which tables are ours, columns from a table map and the catalog, decoding a batch. Not here: table maps
(events.py), rows (rows.py), cells (values.py).

The log's own description decides what is in an event. The catalog adds what a log does not say (tinyint(1), JSON by
CHECK, UUID, comments), column by column and only where both mean the same type: it is of now, the event of then.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from rivet_resources.contracts.change_log import BEFORE, ENVELOPE, Capture, Changes, change_schema
from rivet_resources.contracts.evidence import Finding
from rivet_resources.contracts.types import Column
from rivet_resources.engines.mysql import catalog as mysql_catalog
from rivet_resources.engines.mysql import sql
from rivet_resources.engines.mysql.binlog import events as ev
from rivet_resources.engines.mysql.binlog.alter.redefine import Shape
from rivet_resources.engines.mysql.binlog.alter.shapes import Redefined, Shapes, is_strict
from rivet_resources.engines.mysql.binlog.columns import base_native, collations, fits
from rivet_resources.engines.mysql.binlog.ddl import Altered, has_cascades, has_query, parse_alter
from rivet_resources.engines.mysql.binlog.events import Field, Query, TableMap, malformed_bytes
from rivet_resources.engines.mysql.binlog.position import BinlogPosition
from rivet_resources.engines.mysql.binlog.row_layout import RowCells, RowLayout
from rivet_resources.engines.mysql.binlog.rows import RowsEvent, rows_of
from rivet_resources.engines.mysql.binlog.values import decode
from rivet_resources.engines.mysql.binlog.vector import Vector
from rivet_resources.engines.mysql.catalog import Catalog
from rivet_resources.engines.mysql.columns import Described, column_of
from rivet_resources.engines.shared.cells import Special
from rivet_resources.engines.shared.columns import rule_of
from rivet_resources.engines.shared.names import split_name
from rivet_resources.errors import LogRefused, UnknownTable

OPS = pa.array(ev.OPS)
NAME = r"(?:`(?:[^`]|``)+`|\"(?:[^\"]|\"\")+\"|[^\s`\"(.;]+)"
TRUNCATE = re.compile(rf"(?is)TRUNCATE\s+(?:TABLE\s+)?({NAME}(?:\s*\.\s*{NAME})?)")
# ONLINE, IGNORE and IF EXISTS are MariaDB's words.
ALTER = re.compile(
    rf"(?is)ALTER\s+(?:ONLINE\s+)?(?:IGNORE\s+)?TABLE\s+(?:IF\s+EXISTS\s+)?({NAME}(?:\s*\.\s*{NAME})?)(.*)"
)
DROP = re.compile(rf"(?is)DROP\s+TABLES?\s+(?:IF\s+EXISTS\s+)?({NAME}(?:\s*\.\s*{NAME})?)(\s*,)?")
RENAME = re.compile(r"(?is)RENAME\s+TABLES?\s+(?:IF\s+EXISTS\s+)?(.*)")
RENAMED = re.compile(
    rf"(?is)({NAME}(?:\s*\.\s*{NAME})?)\s+(?:(?:NO)?WAIT\s+(?:\d+\s+)?)?TO\s+({NAME}(?:\s*\.\s*{NAME})?)"
)
# Not RENAME COLUMN, INDEX, KEY or CONSTRAINT: these leave the table where it is.
RENAMING = re.compile(
    rf"(?is)\bRENAME\s+(?!(?:COLUMN|INDEX|KEY|CONSTRAINT)\s)(?:TO\s+|AS\s+|=\s*)?({NAME}(?:\s*\.\s*{NAME})?)\s*(?:,|$)"
)
MOVING = re.compile(
    r"(?is)\b((?:TRUNCATE|DROP|EXCHANGE|CONVERT|DISCARD|IMPORT)\s+(?:PARTITION|TABLESPACE)|CONVERT\s+TABLE)\b"
)
# The other table of such a statement. CONVERT is MariaDB's word.
MOVED = re.compile(
    rf"(?is)\b(EXCHANGE\s+PARTITION\b.*?\bWITH\s+TABLE|CONVERT\s+PARTITION\b.*?\bTO\s+TABLE|CONVERT\s+TABLE)"
    rf"\s+({NAME}(?:\s*\.\s*{NAME})?)"
)
IGNORING = re.compile(r"(?is)ALTER\s+(?:ONLINE\s+)?IGNORE\s")
CREATE = re.compile(
    rf"(?is)CREATE\s+(OR\s+REPLACE\s+)?TABLE\s+(?:IF\s+NOT\s+EXISTS\s+)?({NAME}(?:\s*\.\s*{NAME})?)(.*)"
)
DROP_DATABASE = re.compile(
    rf"(?is)(?:DROP\s+(?:DATABASE|SCHEMA)\s+(?:IF\s+EXISTS\s+)?|CREATE\s+OR\s+REPLACE\s+(?:DATABASE|SCHEMA)\s+)({NAME})"
)
STAMPS = "SELECT CAST(@@global.explicit_defaults_for_timestamp AS CHAR)"
ALL_NAMES = """
SELECT column_name FROM information_schema.columns WHERE table_schema = {schema} AND table_name = {name}"""
VERSIONED = "SELECT table_type FROM information_schema.tables WHERE table_schema = {schema} AND table_name = {name}"


@dataclass(frozen=True, eq=False)
class Schema:
    """One table as it is in a stretch of the log."""

    table: str  # as configured
    columns: tuple[Column, ...]
    places: tuple[int, ...]  # of the columns, in the log's own order
    fields: tuple[Field, ...]  # all of the log's
    charsets: tuple[str, ...]  # of the fields; '' for bytes
    key: tuple[int, ...]
    layout: RowLayout
    is_transactional: bool
    arrow: pa.Schema  # of `Changes.data`, BEFORE aside


def _shapes_of(schema: Schema) -> dict[str, Shape]:
    """Return how a table's columns are spelled; labels as the log has them, the catalog's are of now."""
    found = {}
    for column, place in zip(schema.columns, schema.places, strict=True):
        field, charset = schema.fields[place], schema.charsets[place]
        native = base_native(field, charset)[1] if field.labels else column.native
        found[field.name] = Shape(native, charset, field.nullable)
    return found


@dataclass
class Stamped:
    """The transactions of a batch: position and time of each, by index."""

    positions: list[str]
    times_us: list[int]


class TableMaps:
    """The tables of one drain, by their names in the log."""

    def __init__(self, capture: Capture, *, database: str, is_mariadb: bool, folds_names: bool, hides_cascades: bool,
                 session: Callable[[], Catalog]) -> None:  # fmt: skip
        self._capture = capture
        self._is_mariadb = is_mariadb
        self._folds = folds_names
        self._hides_cascades = hides_cascades
        self._session = session
        self._collations: Mapping[int, str] | None = None
        self._last: dict[str, Schema] = {}
        # Columns by table, and where they were dropped; None: before this dump.
        self.dropped: dict[str, dict[str, BinlogPosition | None]] = {}
        self.shapes = Shapes(is_mariadb=is_mariadb)
        self._doubts: list[tuple[BinlogPosition, Finding]] = []
        self._wanted: dict[tuple[str, str], str] = {}
        for table in capture.tables:
            schema, name = split_name(table)
            self._wanted[self._fold(schema or database, name)] = table

    def _fold(self, schema: str, name: str) -> tuple[str, str]:
        return (schema.lower(), name.lower()) if self._folds else (schema, name)

    # --- schemas ---------------------------------------------------------------------------------

    def schema_of(self, data: bytes, place: BinlogPosition) -> Schema | None:
        """Read a table map; None for a table that is not ours.

        Raises:
            LogRefused: the map lacks names, or has a type without a layout we know.
        """
        schema, name, _ = ev.table_name(data)
        table = self._wanted.get(self._fold(schema, name))
        # Before anything else of the map is read: tables of others may have types that nobody here knows.
        if table is None:
            return None
        described = ev.table_map(data, is_mariadb=self._is_mariadb)
        if not described.has_names:
            raise LogRefused(
                f"The event of type {ev.TABLE_MAP} that ends at {place} of the binary log describes {schema}.{name} "
                f"without names of columns. Run SET GLOBAL binlog_row_metadata = FULL, and take a new snapshot: names "
                f"from the catalog would be a guess."
            )
        found = self._make_schema(table, described)
        self._last[table] = found
        self.shapes.note(table, _shapes_of(found), place)
        return found

    def _make_schema(self, table: str, described: TableMap) -> Schema:
        """Decide the columns, from the log and from the catalog where both agree."""
        fields = described.fields
        charsets = tuple(self._charset(field) for field in fields)
        label = f"{described.schema}.{described.table}"
        catalog, hidden, key, is_weak = self._catalog(described)
        columns, places = [], []
        for i, (field, charset) in enumerate(zip(fields, charsets, strict=True)):
            # A hidden column is exported only where the user names it.
            listed = any(each.rpartition(".")[2] == field.name for each in self._capture.rules.columns)
            if (field.name in hidden or not field.visible) and not listed:
                continue
            columns.append(self._column(field, charset, catalog.get(field.name), label))
            places.append(i)
        names = {field.name: i for i, field in enumerate(fields)}
        by_catalog = tuple(names[name] for name in key) if all(name in names for name in key) else ()
        return Schema(
            table=table,
            columns=tuple(columns),
            places=tuple(places),
            fields=fields,
            charsets=charsets,
            # The log knows primary keys only; a unique key that stands in for one is the catalog's to tell. Those who
            # go by other columns need the old row gone when these change, too; rows are whole in this log.
            key=tuple(
                dict.fromkeys((*(described.key or by_catalog), *(names[n] for n in self._capture.key if n in names)))
            ),
            layout=RowLayout(fields),
            is_transactional=not is_weak,
            arrow=change_schema(pa.schema([column.field for column in columns])),
        )

    def _charset(self, field: Field) -> str:
        if not field.collation or field.collation == ev.BINARY_COLLATION:
            return ""
        if self._collations is None:
            self._collations = collations(self._session())
        try:
            return self._collations[field.collation]
        except KeyError:
            raise LogRefused(
                f"Column {field.name} has collation {field.collation}, which the server does not list, so its text "
                f"cannot be read. Run SHOW COLLATION there; the column may be of a collation of its own."
            ) from None

    def _catalog(self, described: TableMap) -> tuple[dict[str, Column], set[str], tuple[str, ...], bool]:
        """Ask the catalog: columns by name, hidden ones, the key, whether the table knows no transactions."""
        session = self._session()
        name = f"{sql.quote(described.schema)}.{sql.quote(described.table)}"
        try:
            found = mysql_catalog.describe_table(session, name, self._capture.rules)
        except UnknownTable:
            # Dropped or renamed since; the log's own description is enough then.
            return {}, set(), (), False
        words = {"schema": sql.quote_text(described.schema), "name": sql.quote_text(described.table)}
        doing = f"reading the columns of {described.schema}.{described.table}"
        kinds = session.ask(VERSIONED.format(**words), doing=doing)
        if any(row[0] == "SYSTEM VERSIONED" for row in kinds):
            raise LogRefused(
                f"{described.schema}.{described.table} is system-versioned: its log holds old versions of rows as if "
                f"they were new ones. Export it with `mode: full` or `incremental`, or drop its versioning."
            )
        rows = session.ask(ALL_NAMES.format(**words), doing=doing)
        columns = {column.name: column for column in found.relation.columns}
        # What the catalog lists and `describe_table` leaves out.
        hidden = {str(row[0]) for row in rows} - set(columns)
        return columns, hidden, found.relation.key, bool(found.weakness)

    def _column(self, field: Field, charset: str, known: Column | None, label: str) -> Column:
        """Take the catalog's column where it means what the log says, else make one from the log."""
        # The catalog is of now and the event of then: a column of another type is described by the log alone.
        if known is None or not fits(known, field, charset):
            base, native, precision, scale = base_native(field, charset)
            made = Described(field.name, base, native, not_null=not field.nullable, precision=precision, scale=scale,
                             charset=charset)  # fmt: skip
            known = column_of(made, rules=self._capture.rules, relation=label)
        if known.fact("flag_kind") == "zone_range":
            zone = rule_of(field.name, self._capture.rules, label).timezone or ""
            known = replace(known, facts=(*known.facts, ("zone", zone)))
        return replace(known, nullable=True) if field.nullable else known

    # --- statements ------------------------------------------------------------------------------

    def _ours(self, name: str, database: str) -> str | None:
        schema, bare = split_name(re.sub(r"\s*\.\s*", ".", name))
        return self._wanted.get(self._fold(schema or database, bare))

    def truncated(self, query: Query) -> Schema | None:
        """Return the table of ours that a TRUNCATE or DROP empties; its columns as they were last, or are now."""
        # A DROP of temporary tables is written apart, and one of several tables is refused (`drops_several`).
        match = TRUNCATE.match(query.bare) or DROP.match(query.bare)
        table = self._ours(match[1], query.database) if match else self._replaced_table(query)
        if table is None:
            return None
        if table not in self._last:
            # Its columns are as they are now; a truncate has no values, so only their number and types matter.
            self._last[table] = self._from_catalog(table, query.database)
        return self._last[table]

    def _replaced_table(self, query: Query) -> str | None:
        """Name the table of ours that CREATE OR REPLACE makes anew, as a DROP before it would."""
        match = CREATE.match(query.bare)
        return self._ours(match[2], query.database) if match and match[1] else None

    def gone_with_database(self, query: Query) -> str:
        """Name a table of ours whose database a statement drops; '' for none."""
        match = DROP_DATABASE.match(query.bare)
        schema = split_name(match[1])[1] if match else None
        folded = schema.lower() if schema and self._folds else schema
        return next((table for (database, _), table in self._wanted.items() if database == folded), "")

    def filled_by(self, query: Query) -> str:
        """Name the table of ours that a CREATE TABLE fills by a query, logged as a statement; '' for none."""
        # In ROW format the log has the table without the query, and the rows behind it.
        match = CREATE.match(query.bare)
        table = self._ours(match[2], query.database) if match else None
        return table if match is not None and table is not None and has_query(match[3]) else ""

    def cascades_by(self, query: Query) -> str:
        """Name the table of ours that a statement gives a foreign key which changes its rows by itself; '' for none."""
        if "cascades" in self._capture.accepts or not self._hides_cascades:
            return ""
        match = ALTER.match(query.bare) or CREATE.match(query.bare)
        # The two patterns have the name at different places.
        name = match[1] if match and match.re is ALTER else match[2] if match else ""
        table = self._ours(name, query.database) if name else None
        return table if table is not None and has_cascades(query.bare) else ""

    def dropped_until(self, place: BinlogPosition) -> dict[str, list[str]]:
        """Return the columns that were dropped up to a place, by table; a dump reads further than is given out."""
        known = {
            table: sorted(name for name, at in names.items() if at is None or at.order <= place.order)
            for table, names in self.dropped.items()
        }
        return {table: names for table, names in known.items() if names}

    def untold_by(self, query: Query, place: BinlogPosition) -> str:
        """Return what an ALTER TABLE of ours does to columns of old rows without a word in the log; '' for nothing.

        Args:
            place: behind the statement.
        """
        match = ALTER.match(query.bare)
        table = self._ours(match[1], query.database) if match else None
        if match is None or table is None:
            return ""
        found = parse_alter(match[2])
        redefined = self._redefined(table, found, query, place)
        gone = self.dropped.setdefault(table, {})
        for name in found.dropped:
            # Its first drop counts: a column of that name which is added anywhere behind it is another one.
            gone.setdefault(name, place)
        again = [name for name in found.added if name in gone]
        # Noted before: what was dropped counts for later drains, which may accept less.
        if "columns" in self._capture.accepts:
            return ""
        if IGNORING.match(query.bare):
            return f"may drop rows of {table} (IGNORE)"
        if found.renamed:
            return f"renames column {found.renamed[0][0]} of {table} to {found.renamed[0][1]}"
        if found.filled or (found.stamped and not self._stamps_are_explicit()):
            name = (found.filled or found.stamped)[0]
            return f"adds column {name} to {table} with a value for the rows that are there"
        if again:
            return f"adds column {again[0]} to {table}, which had another one of that name"
        return redefined

    def _redefined(self, table: str, found: Altered, query: Query, place: BinlogPosition) -> str:
        """Return what new definitions do to old values; '' for nothing, and where it can only be told as a doubt."""
        effects = self.shapes.effects(table, found.retyped, place=place)
        if not effects:
            return ""
        strict = is_strict(query.sql_mode, is_transactional=self._is_transactional(table))
        # NULLs become the time of now where a TIMESTAMP says nothing of them, and a setting of the server rules them
        # out.
        stamps = [
            each for (_, said), each in zip(found.retyped, effects, strict=False)
            if each.name and each.old is not None and each.old.nullable and said.native.startswith("timestamp")
            and said.allows_null and not said.says_null
        ]  # fmt: skip
        if stamps and not self._stamps_are_explicit():
            return f"makes NULLs of column {stamps[0].name} of {table} the time of now"
        doubtful = [each for each in effects if each.is_doubtful(query.sql_mode, strict=strict)]
        self._doubt(table, doubtful, place)
        return next((harm for each in effects if (harm := each.harm(table, strict=strict))), "")

    def _is_transactional(self, table: str) -> bool:
        """Return whether the server undoes a statement on a table that fails half-way."""
        if table in self._last:
            return self._last[table].is_transactional
        try:
            return not mysql_catalog.describe_table(self._session(), table, self._capture.rules).weakness
        except UnknownTable:
            return True

    def _doubt(self, table: str, columns: Sequence[Redefined], place: BinlogPosition) -> None:
        """Note that old rows of some columns may have other values now: what they were is not known any more."""
        if columns and "columns" not in self._capture.accepts:
            names = [each.name for each in columns if each.name]
            what = f"column {', '.join(names)}" if names else "a character set"
            self._doubts.append((place, Finding(
                f"table {table}", "warn",
                f"an ALTER TABLE, logged before {place}, defines {what} of {table} anew; whether it changed values of "
                "rows that were there (rounded, cut, another label, the next number for a zero) is not in the log",
                "if it did, begin anew: rivet state reset -e NAME",
            )))  # fmt: skip

    def doubts_until(self, place: BinlogPosition) -> tuple[Finding, ...]:
        """Take what statements up to a place may have done unsaid; a dump reads further than is given out."""
        told = tuple(finding for at, finding in self._doubts if at.order <= place.order)
        self._doubts = [each for each in self._doubts if each[0].order > place.order]
        return told

    def _stamps_are_explicit(self) -> bool:
        """Return whether a TIMESTAMP without a word on NULL may be NULL; else it gets the time of now."""
        rows = self._session().ask(STAMPS, doing="reading explicit_defaults_for_timestamp")
        return str(rows[0][0]).upper() in ("1", "ON")

    def drops_several(self, query: Query) -> bool:
        """Return whether a DROP TABLE names several tables, and one of ours."""
        match = DROP.match(query.bare)
        if match is None or not match[2]:
            return False
        # The server writes the statement as it was given, so all names stand in it.
        named = re.findall(rf"(?is){NAME}(?:\s*\.\s*{NAME})?", query.bare[match.start(1) :])
        return any(self._ours(name, query.database) is not None for name in named if name != ",")

    def _from_catalog(self, table: str, database: str) -> Schema:
        """Describe a table of which the log has shown no row yet."""
        try:
            relation = mysql_catalog.describe_table(self._session(), table, self._capture.rules).relation
        except UnknownTable:
            columns: tuple[Column, ...] = ()
        else:
            columns = relation.columns
        arrow = change_schema(pa.schema([column.field for column in columns]))
        return Schema(table, columns, (), (), (), (), RowLayout(()), True, arrow)

    def rows_moved_by(self, query: Query) -> str:
        """Return which words of an ALTER TABLE of ours move rows without logging them; '' for none."""
        match = ALTER.match(query.bare)
        if match is None:
            return ""
        # Of another table, too, where it gives its rows to ours or takes them.
        moving = MOVING.search(match[2]) if self._ours(match[1], query.database) is not None else None
        other = MOVED.search(match[2])
        if moving is None and other is not None and self._ours(other[2], query.database) is not None:
            moving = other
        if moving is None or ("TABLESPACE" not in moving[1].upper() and "partitions" in self._capture.accepts):
            return ""
        return " ".join(moving[1].upper().split()[:2])

    def renamed_by(self, query: Query) -> str:
        """Name the table of ours that a statement moves away from its name, or puts another one under; '' for none."""
        # Rows written under another name are not ours, and those of a table that takes our name were never copied.
        names: list[str] = []
        if match := RENAME.match(query.bare):
            names = [name for pair in RENAMED.findall(match[1]) for name in pair]
        elif (match := ALTER.match(query.bare)) and (renaming := RENAMING.search(match[2])):
            names = [match[1], renaming[1]]
        return next((table for name in names if (table := self._ours(name, query.database)) is not None), "")

    # --- decoding --------------------------------------------------------------------------------

    def decoded(self, schema: Schema, events: Sequence[RowsEvent], stamped: Stamped) -> tuple[Changes, np.ndarray]:
        """Type some events of one table, which are in log order; beside them the transaction of each row.

        Raises:
            LogRefused: a row is not as the table map says.
        """
        try:
            return self._decoded(schema, events, stamped)
        except (IndexError, OverflowError, UnicodeDecodeError, struct.error):
            raise malformed_bytes(f"A row of {schema.table}") from None

    def _decoded(self, schema: Schema, events: Sequence[RowsEvent], stamped: Stamped) -> tuple[Changes, np.ndarray]:
        rows = rows_of(events, schema.layout, key=schema.key, keeps_before=self._capture.before)
        special: Special = {}
        arrays = self._cells(schema, rows.buffer, rows.cells, special)
        # Each transaction's position is made once, and given to its rows by index: there may be thousands of rows.
        positions = pa.array(stamped.positions, pa.string()).take(pa.array(rows.transaction))
        times = pa.array(stamped.times_us, pa.int64()).take(pa.array(rows.transaction)).cast(ENVELOPE[3].type)
        head = [OPS.take(pa.array(rows.op)), positions, pa.array(rows.seq), times]
        arrays = [*head, pa.nulls(len(rows.op), ENVELOPE[4].type), *arrays]
        table = pa.Table.from_arrays(arrays, schema=schema.arrow)
        if self._capture.before:
            table = table.append_column(*self._before(schema, rows.buffer, rows.before, rows.has_before))
        return Changes(schema.table, schema.columns, table, special), rows.transaction

    def _cells(self, schema: Schema, buffer: np.ndarray, cells: Sequence[RowCells], special: Special) -> list[pa.Array]:
        return [
            decode(Vector(buffer, cells[place], schema.fields[place], schema.charsets[place]), column, special)
            for column, place in zip(schema.columns, schema.places, strict=True)
        ]

    def _before(
        self, schema: Schema, buffer: np.ndarray, cells: Sequence[RowCells], has: np.ndarray
    ) -> tuple[pa.Field, pa.Array]:
        """Put the rows before into one struct, NULL where there was none."""
        fields = [column.field.with_nullable(True) for column in schema.columns]
        arrays = self._cells(schema, buffer, cells, {})
        struct = pa.StructArray.from_arrays(arrays, fields=fields, mask=pa.array(~has))
        return pa.field(BEFORE, pa.struct(fields)), struct

    def truncation(self, schema: Schema, position: str, time_us: int) -> Changes:
        """Return the one row that says: everything of this table before here is gone."""
        # It is a group of its own: event 1, row 0.
        head = [pa.array(["truncate"]), pa.array([position]), pa.array([1 << 32 | 1], pa.int64())]
        head += [pa.array([time_us], pa.int64()).cast(ENVELOPE[3].type), pa.nulls(1, ENVELOPE[4].type)]
        cells = [pa.nulls(1, column.arrow) for column in schema.columns]
        table = pa.Table.from_arrays([*head, *cells], schema=schema.arrow)
        if self._capture.before:
            struct = pa.struct([column.field.with_nullable(True) for column in schema.columns])
            table = table.append_column(pa.field(BEFORE, struct), pa.nulls(1, struct))
        return Changes(schema.table, schema.columns, table)
