"""A seed becomes a workload: table, export, steps. Pure: equal seeds give equal workloads.

Belongs here: every choice, within what the README promises of the mode. Not here: what an engine can (`engines.py`),
doing it (`run.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

from tests.workloads.engines import ENGINES, Able
from tests.workloads.steps import (
    LAST,
    NEXT,
    Column,
    Ddl,
    Delete,
    Insert,
    Key,
    Killed,
    Late,
    Maintain,
    Mode,
    Run,
    Step,
    Twice,
    Update,
    Validate,
    Workload,
)
from tests.workloads.values import KEY_WORDS, Row, cell, key_cell

PLACES = ("page", "part", "parts", "manifest", "success", "cursor", "acknowledge", "metrics")
# Of a drain's first run, and of a later one that finds changes.
FIRST_PLACES = ("begin", "begun", "copy", "parts", "manifest", "success", "metrics", "checkpoint")
LATER_PLACES = (
    "read", "part", "staged", "parts", "manifest", "success", "metrics", "checkpoint", "source", "acknowledged",
)  # fmt: skip
WORDS = ("whole", "number", "ratio", "amount", "note", "payload", "flag", "day", "moment", "instant")
SIZES = {0: 1, 1: 1, 5: 3, 30: 6, 120: 5, 500: 2, 2000: 1}  # rows there already → how often
KINDS = {"insert": 5, "run": 4, "killed": 4, "twice": 1, "validate": 1, "maintain": 1, "late": 2, "ddl": 2, "update": 3,
         "delete": 2}  # fmt: skip
RELEASED = frozenset({"full", "chunked", "time_window", "cdc"})  # modes in which a deleted row's key may come again
FIRST_DAYS = (date(2025, 3, 1), date(2025, 3, 29), date(2024, 2, 28))  # the second: clocks change in Europe


def plan(engine: str, seed: int) -> Workload:
    """Return the workload of a seed on an engine."""
    return _Planner(ENGINES[engine], seed).workload()


class _Planner:
    """Chooses, and keeps what rows and columns there are by then."""

    def __init__(self, engine: Able, seed: int) -> None:
        self.able, self.seed, self.rng = engine, seed, Random(f"{engine.name} {seed}")
        self.mode: Mode = self.rng.choice(engine.modes)
        self.taken = 0  # keys given out
        self.added = 0  # columns named
        self.live: list[Key] = []
        self.released: list[Key] = []
        self.previous: Row = {}
        self.has_run = False  # to a good end, since the last DDL
        self.has_begun = False  # a run has come to a good end at all

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    # --- the table -------------------------------------------------------------------------------

    def workload(self) -> Workload:
        """Choose everything, in the order in which it happens."""
        rng = self.rng
        self.key = self._key()
        self.values = [self._column(nullable=self.chance(0.8)) for _ in range(rng.randint(2, 5))]
        self.cursor, self.extra = self._cursor()
        self.is_clock_real = self.mode in ("by time", "poll") and self.chance(self.able.real_clocks)
        self.zone, self.first_day, self.days = "UTC", FIRST_DAYS[0], rng.randint(1, 3)
        if self.mode == "time_window":
            self.first_day = rng.choice(FIRST_DAYS)
            self.zone = rng.choice(("UTC", "UTC", "Europe/Prague", "America/New_York"))
        columns = (*self.key, *self.extra, *self.values)
        count = min(rng.choices(list(SIZES), list(SIZES.values()))[0], self.able.most_rows)
        rows = tuple(self._row(is_first=True) for _ in range(count))
        self.live = [self._key_of(row) for row in rows]
        block = self._block(count)
        steps = tuple(self._steps())
        return Workload(
            engine=self.able.name, seed=self.seed, mode=self.mode, columns=columns,
            key=tuple(column.name for column in self.key) if self.has_key else (), cursor=self.cursor, rows=rows,
            steps=steps, block=block, is_clock_real=self.is_clock_real,
            windows=tuple((self.first_day + timedelta(days=n)).isoformat() for n in range(self.days))
            if self.mode == "time_window" else (),
            mark=self.mark, options={"zone": self.zone},
        )  # fmt: skip

    def _key(self) -> tuple[Column, ...]:
        """Choose the key; where there is none, its column is only a number of the row."""
        self.has_key = self.mode in ("by id", "poll", "cdc") or self.chance(0.85)
        if self.mode == "by id" or not self.has_key:
            return (Column("id", self.rng.choice(("whole", "number")), nullable=False),)
        if self.chance(0.15):
            return (Column("tenant", "number", nullable=False), Column("id", "label", nullable=False))
        return (Column("id", self.rng.choice(KEY_WORDS), nullable=False),)

    def _cursor(self) -> tuple[str, tuple[Column, ...]]:
        """Choose the column that the mode goes by, and further ones it needs."""
        self.mark = ""
        stamp = self.rng.choice(("moment", "instant"))
        match self.mode:
            case "by id":
                return "id", ()
            case "by time":
                return "at", (Column("at", stamp, nullable=self.chance(0.3)),)
            case "by batch":
                return "batch", (Column("batch", self.rng.choice(("whole", "number")), nullable=self.chance(0.3)),)
            case "time_window":
                return "at", (Column("at", self.rng.choice((stamp, stamp, "day", "whole")), nullable=self.chance(0.5)),)
            case "poll":
                self.detection = self.rng.choice(("disabled", "soft_delete", "full_diff"))
                self.mark = "gone" if self.detection == "soft_delete" else ""
                marks = (Column("gone", stamp),) if self.mark else ()
                return "at", (Column("at", stamp, nullable=False), *marks)
        return "", ()

    def _column(self, *, nullable: bool = True) -> Column:
        self.added += 1
        return Column(f"c{self.added}", self.rng.choice(WORDS), nullable)

    # --- rows ------------------------------------------------------------------------------------

    def _row(self, *, is_first: bool = False) -> Row:
        """Make a new row; where nothing tells rows apart, sometimes one that is there already, but for its cursor."""
        if not self.has_key and self.previous and not is_first and self.chance(0.3):
            return self.previous | {column.name: self._marker(column, is_first=False) for column in self.extra}
        row = self._new_key() | {column.name: self._marker(column, is_first=is_first) for column in self.extra}
        self.previous = row | {c.name: cell(self.rng, c.word, nullable=c.nullable) for c in self.values}
        return self.previous

    def _new_key(self) -> Row:
        names = [column.name for column in self.key]
        if self.released and self.mode in RELEASED and self.chance(0.3):
            again = self.released.pop(self.rng.randrange(len(self.released)))
            return dict(zip(names, again, strict=True))
        self.taken += 1
        number = self.taken
        if len(self.key) == 2:
            return {"tenant": number % 3, "id": key_cell("label", number)}
        word = self.key[0].word
        if word == "whole" and self.mode in ("full", "poll", "cdc") and number in (7, 8):
            return {"id": (2**63 - 1, -(2**63))[number - 7]}
        return {"id": key_cell(word, number)}

    def _marker(self, column: Column, *, is_first: bool) -> object:
        """Make the cell of a column that the mode goes by."""
        if self.mode == "time_window":
            return self._moment(column)
        if column.name == self.mark:
            return NEXT if self.chance(0.1) else None
        if is_first and column.nullable and self.chance(0.1):
            return None
        return LAST if self.chance(self._ties) else NEXT

    @property
    def _ties(self) -> float:
        """Say how many rows come with a value that there is already; a poll promises nothing of these."""
        return {"by batch": 0.8, "by time": 0.3}.get(self.mode, 0.0)

    def _moment(self, column: Column) -> object:
        """Make a time in, before or after the windows; often one of their edges."""
        if column.nullable and self.chance(0.1):
            return None
        midnight = datetime.combine(self.first_day + timedelta(days=self.rng.randint(-1, self.days + 1)), time())
        off = self.rng.choice((0, -1, 1, self.rng.randrange(86_400 * 10**6)))
        local = midnight + timedelta(microseconds=off)
        if column.word == "day":
            return local.date()
        if column.word == "moment":
            return local
        instant = midnight.replace(tzinfo=ZoneInfo(self.zone)).astimezone(ZoneInfo("UTC")) + timedelta(microseconds=off)
        return instant if column.word == "instant" else int(instant.timestamp())

    def _key_of(self, row: Row) -> Key:
        return tuple(row[column.name] for column in self.key)

    # --- the export ------------------------------------------------------------------------------

    def _block(self, count: int) -> dict[str, Any]:
        rng = self.rng
        modes = {"by id": "incremental", "by time": "incremental", "by batch": "incremental"}
        block: dict[str, Any] = {
            "name": "t", "mode": modes.get(self.mode, self.mode),
            "format": "csv" if self.mode not in ("poll", "cdc") and self.chance(0.2) else "parquet",
            "tuning": {"batch_size": max(rng.choice((2, 7, 50, 1000)), count // 40)},
        }  # fmt: skip
        if block["format"] == "parquet" and self.chance(0.5):
            block["compression"] = rng.choice(("snappy", "gzip", "lz4", "none"))
        if self.chance(0.2):
            block["max_file_size"] = rng.choice(("2KB", "20KB"))
        if self.chance(0.3) and self.mode != "cdc":
            block["parallel"] = rng.choice((2, 3))
        if self.mode not in ("poll", "cdc") and self.chance(0.1):
            block["meta_columns"] = {"exported_at": True, "row_hash": True}
        if self.mode != "cdc" and self.chance(0.15):
            block["on_schema_drift"] = "fail"
        return block | self._keys_of_mode(count)

    def _keys_of_mode(self, count: int) -> dict[str, Any]:
        rng = self.rng
        match self.mode:
            case "by id" | "by time" | "by batch":
                return {"cursor_column": self.cursor}
            case "chunked":
                return self._cutting(count)
            case "time_window":
                last = self.first_day + timedelta(days=self.days)
                unix = {"time_column_type": "unix"} if self.extra[0].word == "whole" else {}
                return {"time_column": "at", "start": self.first_day, "end": last, "timezone": self.zone, **unix}
            case "poll":
                detection: dict[str, Any] = {"type": self.detection}
                if self.mark:
                    detection["column"] = self.mark
                if self.detection == "full_diff":
                    detection["max_delete_ratio"] = 1.0
                return {"updated_at_column": "at", "delete_detection": detection,
                        "poll_batch_size": max(rng.choice((1, 5, 100)), count // 20)}  # fmt: skip
            case "cdc":
                return {"cdc": {"initial": "snapshot", "rollover": rng.choice((1, 4, 1000))}}
        return {}

    def _cutting(self, count: int) -> dict[str, Any]:
        """Choose how a table is cut; ranges of equal width for keys that lie close together."""
        rng, word = self.rng, self.key[0].word
        size = max(rng.choice((10, 25, 100)), count // 15)
        ways: list[dict[str, Any]] = []
        if self.has_key:
            ways = [{}, {"chunk_dense": True, "chunk_size": size}, {"chunk_by_key": self.key[0].name}]
        if word in ("whole", "number"):
            column = {} if self.has_key else {"chunk_column": "id"}
            ways += [{"chunk_size": size} | column, {"chunk_count": rng.randint(1, 7)} | column]
        if word == "day":
            ways.append({"chunk_column": "id", "chunk_by_days": 3 * size})
        resumes = {"chunk_checkpoint": True} if self.chance(0.4) else {}
        return rng.choice(ways) | resumes

    # --- steps -----------------------------------------------------------------------------------

    def _steps(self) -> Iterator[Step]:
        for number in range(self.rng.randint(4, 10)):
            kind = self.rng.choices(list(KINDS), list(KINDS.values()))[0]
            if kind == "killed" and self.mode == "cdc":  # a drain without changes passes few places
                yield self._insert()
            step = self._step(kind, is_first=number == 0)
            self.has_begun |= isinstance(step, Run | Validate | Twice | Late)
            self.has_run = isinstance(step, Run | Validate) or (self.has_run and not isinstance(step, Ddl))
            yield step

    def _step(self, kind: str, *, is_first: bool) -> Step:
        match kind:
            case "run" if not is_first:
                window = self.rng.randrange(self.days) if self.mode == "time_window" and self.chance(0.3) else None
                return Run(window)
            case "killed":
                return self._killed()
            case "twice":
                return Twice()
            case "validate":
                return Validate(self.rng.choice(("light", "sample", "full")))
            case "maintain":
                return Maintain(self.rng.randrange(4))
            case "late" if self._may_be_late():
                return self._late()
            case "ddl":
                return self._ddl() or self._insert()
            case "update" if self.live and self.has_key:
                return self._update()
            case "delete" if self.live and self.has_key:
                return self._delete()
        return self._insert()

    def _killed(self) -> Killed:
        if self.chance(0.3):
            return Killed("ms", after_ms=self.rng.randrange(20, 900))
        if self.mode == "cdc":
            place = self.rng.choice(LATER_PLACES if self.has_begun else FIRST_PLACES)
            return Killed(place, nth=self.rng.choice((1, 1, 2)) if place == "part" else 1)
        return Killed(self.rng.choice(PLACES))

    def _insert(self) -> Insert:
        return Insert(self._new_rows(self.rng.choice((1, 2, 5, 12, 40))))

    def _new_rows(self, count: int) -> tuple[Row, ...]:
        rows = tuple(self._row() for _ in range(count))
        self.live += [self._key_of(row) for row in rows]
        return rows

    def _may_be_late(self) -> bool:
        """Say whether a late commit is one that the mode promises to see."""
        if self.mode == "cdc":  # a slot is made once every open transaction has ended
            return self.has_run
        return self.mode not in ("by time", "poll") or self.is_clock_real

    def _late(self) -> Late:
        rows = self._new_rows(self.rng.randint(1, 6))
        others = self._new_rows(self.rng.randint(0, 6)) if self.able.has_two_writers else ()
        return Late(rows, others, self.rng.randrange(0, 900) if self.chance(0.5) else None)

    def _update(self) -> Update:
        keys = self.rng.sample(self.live, min(len(self.live), self.rng.choice((1, 3, 10))))
        changes = []
        for key in keys:
            columns = self.rng.sample(self.values, min(len(self.values), self.rng.randint(1, 2)))
            changed: Row = {c.name: cell(self.rng, c.word, nullable=c.nullable) for c in columns}
            if self.mode in ("by time", "by batch", "poll"):
                changed[self.cursor] = NEXT
            if self.mode == "time_window" and self.chance(0.3):
                changed["at"] = self._moment(self.extra[0])
            if self.mode == "cdc" and len(self.key) == 1 and self.chance(0.15):
                changed |= self._new_key()
                self.live[self.live.index(key)] = self._key_of(changed)
                self.released.append(key)
            if changed:
                changes.append((key, changed))
        return Update(tuple(changes))

    def _delete(self) -> Step:
        keys = self.rng.sample(self.live, min(len(self.live), self.rng.choice((1, 2, 10))))
        if self.mark:  # it is marked, once
            self.live = [key for key in self.live if key not in keys]
            stamp: Row = {"gone": NEXT}
            return Update(tuple((key, stamp) for key in keys))
        if self.mode == "poll" and self.detection == "disabled":
            return self._insert()
        self.live = [key for key in self.live if key not in keys]
        self.released += keys
        return Delete(tuple(keys))

    def _ddl(self) -> Ddl | None:
        """Choose a change of columns; None where the mode promises nothing of any."""
        kinds = self.able.ddl
        if self.mode == "cdc":
            kinds = tuple(kind for kind in kinds if self.able.follows_ddl)
        if not self.has_key and self.cursor:
            kinds = ()
        if not kinds:
            return None
        kind, self.previous = self.rng.choice(kinds), {}
        if kind in ("add", "add default"):
            column = self._column()
            self.values.append(column)
            value = cell(self.rng, column.word, nullable=False) if kind == "add default" else None
            return Ddl(kind, column.name, column, value)
        fit = [column for column in self.values if kind != "widen" or column.word in ("number", "note")]
        if not fit:
            return None
        old = self.rng.choice(fit)
        place = self.values.index(old)
        if kind == "drop":
            del self.values[place]
            return Ddl(kind, old.name)
        if kind == "rename":
            self.added += 1
            new = replace(old, name=f"c{self.added}")
        else:
            new = replace(old, word="whole" if old.word == "number" else "note")
        self.values[place] = new
        return Ddl(kind, old.name, new)
