"""A change export without a database: a table that lives through random transactions, and its log in committed windows.

Belongs here: the simulated source, which is also the oracle, and publishing its log. Not here: what must follow from
it (`unit/test_apply*.py`, `engines/test_apply*.py`).

Positions are the worst that logs give: a window ends at the very position at which the next transaction commits, as
PostgreSQL's end of a commit may be the next commit, and the first copy stands at the position of the first transaction.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from rivet_resources.commit.manifest import Manifest
from rivet_resources.commit.publish import publish
from rivet_resources.contracts.change_log import change_schema
from rivet_resources.contracts.destination import Destination, Root
from rivet_resources.contracts.extract import CursorMove, Window
from rivet_resources.contracts.relation import Relation
from rivet_resources.contracts.settings import Spark
from rivet_resources.read.stage import Exporter
from rivet_resources.shape.change_envelope import as_inserts
from rivet_resources.spark.runtime import SparkRuntime
from rivet_resources.state.store import State
from rivet_resources.tables.writing import Derived
from rivet_resources.write.formats.parquet import Parquet
from tests.fakes import FolderDestination, TableSource, columns_of, extract_of

KEY = ("id", "area")
TABLE = pa.schema([("id", pa.int64()), ("area", pa.string()), ("note", pa.string()), ("paid", pa.decimal128(12, 2))])
BEGAN = datetime(2026, 1, 31, 12, tzinfo=UTC)

Row = dict[str, Any]
Change = dict[str, Any]
Keyed = dict[tuple[Any, ...], Row]


def position(number: int) -> str:
    """Spell a position as the logs do."""
    return f"{number:016x}"


def instant(number: int) -> datetime:
    """Return when a transaction committed."""
    return BEGAN + timedelta(seconds=number)


@dataclass(frozen=True)
class Transaction:
    """What one commit wrote into the log, and the whole table after it."""

    number: int
    changes: tuple[Change, ...]
    after: Keyed
    wiped: bool


@dataclass
class Shop:
    """A small table that random transactions change; few keys, so that they meet often."""

    random: random.Random
    ids: tuple[int | None, ...] = (1, 2, 3, None)
    begin: int = 1  # number of the first transaction
    truncates: float = 0.04  # share of changes
    carries_all: bool = False  # whether the log has all columns of every change
    rows: Keyed = field(default_factory=dict)
    log: list[Transaction] = field(default_factory=list)
    copied: Keyed = field(default_factory=dict)

    @classmethod
    def lived(cls, seed: int, *, copied: int = 5, transactions: int = 12, **more: Any) -> Shop:
        """Fill a table, copy it, and let it live."""
        shop = cls(random.Random(seed), **more)
        while len(shop.rows) < copied:
            row = shop._row(shop._key())
            shop.rows[_key_of(row)] = row
        shop.copied = dict(shop.rows)
        for _ in range(transactions):
            shop.transact()
        return shop

    def transact(self) -> None:
        """Commit a transaction of a few changes."""
        number, made, wiped = self.begin + len(self.log), [], False
        for ordinal in range(self.random.randint(1, 5)):
            for op, half, row, unchanged in self._change():
                wiped = wiped or op == "truncate"
                made.append(_change(op, number, 2 * ordinal + 1 - half, row, unchanged))
        self.log.append(Transaction(number, tuple(made), dict(self.rows), wiped))

    def _change(self) -> Iterable[tuple[str, int, Row, list[str] | None]]:
        """Change the table once; give what the log says of it: operation, whether a delete half, row, not carried."""
        free, present = self._key(), list(self.rows)
        draw = self.random.random()
        if draw < self.truncates:
            self.rows.clear()
            return [("truncate", 0, {}, None)]
        if not present or (draw < 0.35 and free not in self.rows):
            self.rows[free] = self._row(free)
            return [("insert", 0, self.rows[free], None)]
        key = self.random.choice(present)
        row = self.rows[key]
        if draw < 0.55:
            del self.rows[key]
            return [("delete", 0, dict(zip(KEY, key, strict=True)), None)]
        changed = {**row, "paid": self.random.choice([None, 1, 2])}
        if draw < 0.75 and free not in self.rows:
            del self.rows[key]
            changed |= dict(zip(KEY, free, strict=True))
            self.rows[free] = changed
            halves = [("delete", 1, dict(zip(KEY, key, strict=True)), None)]
            return [*halves, self._update(changed)]  # type: ignore[list-item]
        if self.random.random() < 0.4:
            changed["note"] = self._note()
            self.rows[key] = changed
            return [("update", 0, changed, None)]
        self.rows[key] = changed
        return [self._update(changed)]

    def _update(self, row: Row) -> tuple[str, int, Row, list[str] | None]:
        """Return an update that left `note` alone; half the time the log does not carry it."""
        if self.random.random() < 0.5 or self.carries_all:
            return ("update", 0, row, None)
        return ("update", 0, {**row, "note": None}, ["note"])

    def _key(self) -> tuple[Any, ...]:
        return self.random.choice(self.ids), self.random.choice(["n", "s", None])

    def _note(self) -> str | None:
        return self.random.choice([None, "", "a", "b", "é" * 3])

    def _row(self, key: tuple[Any, ...]) -> Row:
        return {**dict(zip(KEY, key, strict=True)), "note": self._note(), "paid": self.random.choice([None, 1, 2])}

    # --- the oracle ------------------------------------------------------------------------------

    def states(self) -> set[tuple[Any, ...]]:
        """Return the rows of the table now."""
        return {tuple(row.values()) for row in self.rows.values()}

    def versions(self) -> set[tuple[Any, ...]]:
        """Return every version: from, from position, to, to position, whether current, operation, row."""
        done: set[tuple[Any, ...]] = set()
        begun: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        values = {key: tuple(row.values()) for key, row in self.copied.items()}
        for key in values:
            begun[key] = (None, position(self.begin), "insert")
        for one in self.log:
            at, pos = instant(one.number), position(one.number)
            after = {key: tuple(row.values()) for key, row in one.after.items()}
            for key in set(values) | set(after):
                if values.get(key) == after.get(key) and not one.wiped:
                    continue
                if key in values:
                    since, since_pos, op = begun.pop(key)
                    done.add((since, since_pos, at, pos, False, op, *values[key]))
                if key in after:
                    begun[key] = (at, pos, _last_op(one, key))
            values = after
        for key, (since, since_pos, op) in begun.items():
            done.add((since, since_pos, None, None, True, op, *values[key]))
        return done


def _key_of(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in KEY)


def _change(op: str, number: int, seq: int, row: Row, unchanged: list[str] | None) -> Change:
    cells = {name: row.get(name) for name in TABLE.names}
    envelope = {"__op": op, "__pos": position(number), "__seq": seq, "__ts": instant(number), "__unchanged": unchanged}
    return {**envelope, **cells}


def _last_op(one: Transaction, key: tuple[Any, ...]) -> str:
    return str(
        [change for change in one.changes if _key_of(change) == key and change["__op"] != "truncate"][-1]["__op"]
    )


# --- publishing ----------------------------------------------------------------------------------


@dataclass
class Lake:
    """A change export at a destination, and what is derived from it."""

    destination: Destination
    state: State
    export: str = "orders"
    reached: str | None = None

    @classmethod
    def at(cls, folder: Path, state: State) -> Lake:
        """Use a plain folder."""
        return cls(FolderDestination(folder), state)  # type: ignore[arg-type]

    @property
    def changes(self) -> Root:
        """Address the change export."""
        return self.destination.root(self.export)

    def copy(self, rows: pa.Table | Iterable[Row], *, at: str = position(1)) -> Manifest:
        """Publish a first copy, which replaces everything."""
        self.reached = None
        table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(rows), TABLE)
        return self.window(as_inserts(table, at), high=at)

    def drain(self, changes: Sequence[Change], *, high: str, schema: pa.Schema = TABLE, pieces: int = 1) -> Manifest:
        """Publish a window of changes."""
        return self.window(pa.Table.from_pylist(list(changes), change_schema(schema)), high=high, pieces=pieces)

    def window(self, table: pa.Table, *, high: str, pieces: int = 1) -> Manifest:
        """Publish a window that goes on where the last one ended."""
        low = self.reached
        moved = CursorMove(low, high, "__pos", repeats_until="" if low is None else None)
        extract = extract_of(
            table, Path("/unused"), pieces=pieces, export=self.export, mode="cdc", destination=self.destination,
            window=Window(f"after={low or 'start'}"), cursor=moved, run_id=run_id(self.export),
            source=TableSource(table), consistency="log",
            relation=Relation("main.orders", '"main"."orders"', columns_of(table), is_table=True),
        )  # fmt: skip
        staged = Exporter(SparkRuntime(Spark(engine="inline")), self.state).stage(extract)
        if low is None:  # a new copy begins a new chain
            self.state.reset_cursor(self.export)
        manifest = publish(staged, root=self.changes, state=self.state)
        assert manifest is not None
        self.reached = high
        return manifest

    def derived(self, name: str, *, key: tuple[str, ...] = KEY, **more: Any) -> Derived:
        """Describe a table made from the changes, for one run."""
        export = f"{self.export}_{name}"
        plan = Derived(export, self.changes, key, self.destination, Parquet(), run_id(export))
        return replace(plan, **more)

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        """Read what a reader of a derived table sees."""
        import pyarrow.parquet as pq

        from rivet_resources.commit.manifest import current_manifests

        root = self.destination.root(f"{self.export}_{name}")
        (manifest,) = current_manifests(root).values()
        tables = [pq.read_table(root.open(part.path)) for part in manifest.parts]
        return [tuple(row.values()) for table in tables for row in table.to_pylist()]


def run_id(export: str) -> str:
    """Make the id of a run that begins now."""
    return f"{export}_{datetime.now(UTC):%Y%m%dT%H%M%S}.000_{secrets.token_hex(3)}"
