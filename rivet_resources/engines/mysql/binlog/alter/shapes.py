"""What the columns of a drain's tables are along its log, and what an ALTER TABLE makes of their old values.

Belongs here: `Shapes`, how they travel with a position, what is refused and what is only told. Not here: types
(redefine.py), statements (ddl.py), whose table it is (tables.py).

The type before a statement is in the log only where a row was written before it, and the catalog is of now: what was
known goes with the position, from drain to drain (decided 2026-11; 50 columns take some 300 bytes).
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rivet_resources.engines.mysql import sql
from rivet_resources.engines.mysql.binlog.alter.redefine import Effect, Shape, effect_of
from rivet_resources.engines.mysql.binlog.ddl import EVERY_TEXT, Definition
from rivet_resources.engines.mysql.binlog.position import BinlogPosition
from rivet_resources.engines.mysql.catalog import Catalog
from rivet_resources.engines.shared.names import split_name

# Bits of `sql_mode` as the log has it. Source: MySQL sources, sql/system_variables.h.
COUNTS_NO_ZERO, STRICT_TRANSACTIONS, STRICT_ALL = 1 << 19, 1 << 21, 1 << 22
NOW = """
SELECT table_schema, table_name, column_name, column_type, character_set_name, is_nullable
FROM information_schema.columns WHERE {places}"""

TableShapes = Mapping[str, Shape]


@dataclass(frozen=True)
class Redefined:
    """What a statement makes of a column; `old` is None where nobody knows it, `name` '' for all texts of a table."""

    name: str
    old: Shape | None
    new: Shape
    effect: Effect
    is_counted: bool = False

    def harm(self, table: str, *, strict: bool) -> str:
        """Return what a statement does that changes old values; '' for one that does not, or where nobody knows."""
        checked = "makes {new} of column {name} of {table}, which was {old}, under an sql_mode that is not strict"
        changed = "makes {new} of column {name} of {table}, which was {old}, so that the server writes old values anew"
        is_harmful = self.effect is Effect.CHANGED or (self.effect is Effect.CHECKED and not strict)
        words = {"name": self.name, "table": table, "new": spell(self.new), "old": spell(self.old)}
        return (changed if self.effect is Effect.CHANGED else checked).format(**words) if is_harmful else ""

    def is_doubtful(self, sql_mode: int, *, strict: bool) -> bool:
        """Return whether it may have changed old values."""
        # A zero becomes the next number unless the session says that it is none; whether there was one, nobody knows.
        gets_numbers = self.is_counted and not sql_mode & COUNTS_NO_ZERO
        is_unknown = self.effect is Effect.UNKNOWN or (self.effect is Effect.CHECKED_LETTERS and not strict)
        return gets_numbers or is_unknown


def spell(shape: Shape | None) -> str:
    """Write a type for people."""
    if shape is None:
        return "of a type that is not known"
    charset = f" {shape.charset}" if shape.charset not in ("", "?") else ""
    return f"{shape.native}{charset}{'' if shape.nullable else ' NOT NULL'}"


class Shapes:
    """The columns of each table, by where in the log they were so."""

    def __init__(self, *, is_mariadb: bool, text: str = "") -> None:
        """Begin with what a position carries."""
        self._is_mariadb = is_mariadb
        # By place, ascending; None: before this dump. A dump reads further than is given out.
        self._known: dict[str, list[tuple[BinlogPosition | None, TableShapes]]] = {
            table: [(None, shapes)] for table, shapes in _decoded(text).items()
        }

    def note(self, table: str, shapes: TableShapes, place: BinlogPosition | None) -> None:
        """Take what a table's columns are from a place on."""
        known = self._known.setdefault(table, [])
        if not known or known[-1][1] != shapes:
            known.append((place, shapes))

    def of(self, table: str) -> TableShapes:
        """Return what is known of a table's columns where the log is read."""
        known = self._known.get(table)
        return known[-1][1] if known else {}

    def until(self, place: BinlogPosition) -> str:
        """Write what the columns were at a place, to travel with it; what was before is forgotten."""
        found = {}
        for table, known in self._known.items():
            passed = [each for each in known if each[0] is None or each[0].order <= place.order]
            if passed:
                found[table] = passed[-1][1]
                self._known[table] = known[len(passed) - 1 :]
        return _encoded(found)

    def effects(
        self, table: str, redefined: Sequence[tuple[str, Definition]], *, place: BinlogPosition
    ) -> list[Redefined]:
        """Return what each new definition does to a column's values. From here on, the new ones are what is known."""
        known, found = dict(self.of(table)), []
        for name, definition in redefined:
            texts = [each for each, shape in known.items() if shape.charset]
            if name == EVERY_TEXT and not known:
                found.append(Redefined("", None, Shape("", definition.charset), Effect.UNKNOWN))
            for each in texts if name == EVERY_TEXT else [name]:
                old = known.get(each)
                new = known[each] = _become(old, definition)
                effect = self._effect(old, new, definition)
                found.append(Redefined(each, old, new, effect, definition.is_counted))
        if redefined and known:
            self.note(table, known, place)
        return found

    def _effect(self, old: Shape | None, new: Shape, definition: Definition) -> Effect:
        if definition.is_made:
            return Effect.CHANGED
        if old is None:
            return Effect.UNKNOWN
        found = effect_of(old, new, is_mariadb=self._is_mariadb)
        # NULLs become numbers.
        if definition.is_counted and old.nullable:
            return Effect.CHANGED
        # That of the table is not in the statement, and mostly it is the column's.
        if found is Effect.CHECKED and new.charset == "?":
            same = effect_of(old, replace(new, charset=old.charset), is_mariadb=self._is_mariadb)
            return Effect.CHECKED_LETTERS if same is Effect.SAME else found
        return found


def _become(old: Shape | None, definition: Definition) -> Shape:
    # A character set alone: the types stay, or are those with more room.
    if not definition.native and old is not None:
        native = old.native if definition.charset != "binary" else f"{old.native} byte"
        return replace(old, native=native, charset=definition.charset)
    return Shape(definition.native, definition.charset, definition.allows_null)


def is_strict(sql_mode: int, *, is_transactional: bool) -> bool:
    """Return whether a statement that made values fit ended in an error."""
    return bool(sql_mode & (STRICT_ALL | (STRICT_TRANSACTIONS if is_transactional else 0)))


def shapes_now(catalog: Catalog, tables: Sequence[str]) -> dict[str, TableShapes]:
    """Read the columns of tables, as configured, as they are now."""
    wanted = {(schema or catalog.database, name): table for table in tables for schema, name in [split_name(table)]}
    # Servers that fold names tell them in lower case.
    folded = {(schema.lower(), name.lower()): table for (schema, name), table in wanted.items()}
    places = " OR ".join(
        f"(table_schema = {sql.quote_text(schema)} AND table_name = {sql.quote_text(name)})" for schema, name in wanted
    )
    found: dict[str, dict[str, Shape]] = {}
    for schema, name, column, native, charset, nullable in catalog.ask(
        NOW.format(places=places), doing="reading types"
    ):
        place = str(schema), str(name)
        table = wanted.get(place) or folded.get(place)
        if table is not None:
            found.setdefault(table, {})[str(column)] = Shape(str(native), charset or "", nullable == "YES")
    return dict(found)


def _encoded(shapes: Mapping[str, TableShapes]) -> str:
    if not shapes:
        return ""
    plain = {
        table: {name: [shape.native, shape.charset, int(shape.nullable)] for name, shape in columns.items()}
        for table, columns in shapes.items()
    }
    return base64.b64encode(zlib.compress(json.dumps(plain, sort_keys=True).encode())).decode()


def _decoded(text: str) -> dict[str, dict[str, Shape]]:
    if not text:
        return {}
    plain = json.loads(zlib.decompress(base64.b64decode(text)))
    return {
        table: {name: Shape(native, charset, bool(nullable)) for name, (native, charset, nullable) in columns.items()}
        for table, columns in plain.items()
    }
