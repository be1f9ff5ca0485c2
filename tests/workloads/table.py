"""The table as it must be: what a workload committed, kept in Python.

Belongs here: rows, columns, and the SQL that makes them so. Not here: what is published of them (`judge.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from tests.workloads.engines import ENGINES, Able
from tests.workloads.steps import LAST, NEXT, Column, Ddl, Delete, Key, Update, Workload
from tests.workloads.values import Cells, Row, cells

EPOCH = datetime(2024, 1, 1, tzinfo=UTC)


@dataclass
class Table:
    """Rows by a number of ours, columns by name, and the cursor values given out."""

    workload: Workload
    rows: dict[int, Row] = field(default_factory=dict)
    columns: dict[str, Column] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)  # of every column there ever was
    unstable: frozenset[str] = frozenset()  # columns that are dropped, renamed or added at some time
    is_altered: bool = False  # by now
    places: dict[Key, int] = field(default_factory=dict)
    made: int = 0
    tick: int = 0
    newest: object = None
    changes: list[tuple[str, Key, Row]] = field(default_factory=list)  # committed, not yet taken by a judge

    def __post_init__(self) -> None:
        self.columns = {column.name: column for column in self.workload.columns}
        self.words = {column.name: column.word for column in self.workload.columns}
        altered = [step for step in self.workload.steps if isinstance(step, Ddl) and step.kind != "widen"]
        self.unstable = frozenset(
            name for step in altered for name in (step.name, step.column and step.column.name) if name
        )

    @property
    def able(self) -> Able:
        """Return the engine."""
        return ENGINES[self.workload.engine]

    def state(self) -> Counter[Cells]:
        """Return all rows, as they are compared."""
        return Counter(cells(row, is_csv=self.workload.is_csv) for row in self.rows.values())

    # --- cursors ---------------------------------------------------------------------------------

    def resolved(self, row: Row) -> Row:
        """Put values where a row has words for one of the cursor's."""
        return {name: self._value(name, value) for name, value in row.items()}

    def _value(self, name: str, value: object) -> object:
        if value is LAST and self.newest is not None:
            return self.newest
        if value is not NEXT and value is not LAST:
            return value
        word = self.columns[name].word
        self.tick += 1
        made: object = self.tick
        if word in ("moment", "instant"):
            made = datetime.now(UTC) if self.workload.is_clock_real else EPOCH + timedelta(seconds=self.tick * 0.7)
            if word == "moment":
                made = made.replace(tzinfo=None)
            if self.newest is not None and made <= self.newest:  # type: ignore[operator]
                made = self.newest + timedelta(microseconds=1)  # type: ignore[operator]
        self.newest = made
        return made

    # --- statements ------------------------------------------------------------------------------

    def create(self) -> list[str]:
        """Return the statements that make the table and its index."""
        lines = [self._declared(column) for column in self.columns.values()]
        if self.workload.key:
            lines.append(f"PRIMARY KEY ({', '.join(self.workload.key)})")
        made = [f"CREATE TABLE t ({', '.join(lines)})"]
        if self.workload.cursor and (self.workload.cursor,) != self.workload.key:
            made.append(f"CREATE INDEX t_cursor ON t ({self.workload.cursor})")
        return made

    def _declared(self, column: Column) -> str:
        # MariaDB's first TIMESTAMP is NOT NULL with a default unless it says otherwise.
        null = " NULL" if column.nullable else " NOT NULL"
        return f"{column.name} {self.able.type_of(column.word).removesuffix(' NULL')}{null}"

    def inserting(self, rows: list[Row]) -> Iterator[str]:
        """Yield the statements that insert rows."""
        literal = self.able.lab.literal
        most = 50 if self.able.name == "sqlserver" else 500
        for first in range(0, len(rows), most):
            piece = rows[first : first + most]
            values = ", ".join(f"({', '.join(literal(row[name]) for name in self.columns)})" for row in piece)
            yield f"INSERT INTO t ({', '.join(self.columns)}) VALUES {values}"

    def _where(self, key: Key) -> str:
        pairs = zip(self.workload.key, key, strict=True)
        return " AND ".join(f"{name} = {self.able.lab.literal(value)}" for name, value in pairs)

    # --- what was committed ----------------------------------------------------------------------

    def key_of(self, row: Mapping[str, object]) -> Key:
        """Return a row's key; () where the table has none."""
        return tuple(row[name] for name in self.workload.key)

    def completed(self, row: Row) -> Row:
        """Return a planned row all its columns: those that came since are NULL."""
        return {name: row.get(name) for name in self.columns}

    def insert(self, rows: list[Row]) -> None:
        """Take rows in."""
        for row in rows:
            self.made += 1
            self.rows[self.made] = dict(row)
            if self.workload.key:
                self.places[self.key_of(row)] = self.made
            self.changes.append(("insert", self.key_of(row), dict(row)))

    def update(self, step: Update) -> Iterator[str]:
        """Take changes in, one after another, and give their statements; what would change nothing is left out."""
        for key, asked in step.changes:
            if key not in self.places:
                continue
            place = self.places[key]
            row = self.rows[place]
            changed = {name: value for name, value in self.resolved(asked).items() if name in self.columns}
            new = row | changed
            if cells(new) == cells(row):
                continue
            self.rows[place] = new
            if self.key_of(new) == key:
                self.changes.append(("update", key, new))
            else:
                self.places[self.key_of(new)] = self.places.pop(key)
                self.changes += [("delete", key, row), ("insert", self.key_of(new), new)]
            sets = ", ".join(f"{name} = {self.able.lab.literal(value)}" for name, value in changed.items())
            yield f"UPDATE t SET {sets} WHERE {self._where(key)}"

    def delete(self, step: Delete) -> Iterator[str]:
        """Take rows away, and give the statements."""
        for key in step.keys:
            if key in self.places:
                row = self.rows.pop(self.places.pop(key))
                self.changes.append(("delete", key, row))
                yield f"DELETE FROM t WHERE {self._where(key)}"

    def alter(self, step: Ddl) -> str:
        """Take a change of columns in, and give its statement."""
        able, new = self.able, step.column
        self.is_altered = True
        if step.kind == "drop":
            del self.columns[step.name]
            for row in self.rows.values():
                del row[step.name]
            return f"ALTER TABLE t DROP COLUMN {step.name}"
        assert new is not None
        self.words[new.name] = new.word
        if step.kind in ("add", "add default"):
            self.columns[new.name] = new
            for row in self.rows.values():
                row[new.name] = step.default
            sql = able.add.format(name=new.name, type=able.type_of(new.word))
            return f"{sql} DEFAULT {able.lab.literal(step.default)}" if step.kind == "add default" else sql
        self.columns = {(new.name if name == step.name else name): each for name, each in self.columns.items()}
        self.columns[new.name] = new
        if step.kind == "rename":
            for row in self.rows.values():
                row[new.name] = row.pop(step.name)
            return f"ALTER TABLE t RENAME COLUMN {step.name} TO {new.name}"
        wide = able.wide_note if new.word == "note" and able.wide_note else able.type_of(new.word)
        null = "" if able.name == "postgres" else " NULL" if new.nullable else " NOT NULL"
        return able.widen.format(name=new.name, type=wide) + null
