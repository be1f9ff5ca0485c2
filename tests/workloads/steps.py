"""What a workload is made of: a table, an export, and steps, all decided by its seed.

Belongs here: the values. Not here: choosing them (`plan.py`), doing them (`run.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tests.workloads.values import Row

Mode = Literal["full", "chunked", "time_window", "by id", "by time", "by batch", "poll", "cdc"]
Key = tuple[object, ...]


class Next:
    """A cursor value above all that were given out."""


class Last:
    """The cursor value that was given out last."""


NEXT, LAST = Next(), Last()


@dataclass(frozen=True)
class Column:
    """A column by its word; the key's columns and some cursors are never NULL."""

    name: str
    word: str
    nullable: bool = True


@dataclass(frozen=True)
class Insert:
    """Rows that come in one transaction."""

    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Update:
    """Cells that change, by key; a statement for each."""

    changes: tuple[tuple[Key, Row], ...]


@dataclass(frozen=True)
class Delete:
    """Rows that go, by key; a statement for each."""

    keys: tuple[Key, ...]


@dataclass(frozen=True)
class Late:
    """A writer that began before a run and commits after it, or so many milliseconds after its start."""

    rows: tuple[Row, ...]
    others: tuple[Row, ...]  # committed by somebody else in between
    during_ms: int | None


@dataclass(frozen=True)
class Ddl:
    """A change of the table's columns: `column` is the new one, or what stands for the old `name` from now on."""

    kind: Literal["add", "add default", "drop", "rename", "widen"]
    name: str
    column: Column | None = None
    default: object = None


@dataclass(frozen=True)
class Maintain:
    """The n-th of the engine's statements that keep house."""

    number: int


@dataclass(frozen=True)
class Run:
    """A run; of a mode with windows, of one of them or (None) of all."""

    window: int | None = None


@dataclass(frozen=True)
class Killed:
    """A run that ends at a place of `dying.py` or `drain_run.py`, or by SIGKILL after so many milliseconds."""

    place: str
    nth: int = 1
    after_ms: int = 0


@dataclass(frozen=True)
class Twice:
    """Two runs at once."""


@dataclass(frozen=True)
class Validate:
    """A run, and then a look at what is published."""

    depth: str


Step = Insert | Update | Delete | Late | Ddl | Maintain | Run | Killed | Twice | Validate


@dataclass(frozen=True)
class Workload:
    """One seed's: everything that happens, but for the moments of the clock."""

    engine: str
    seed: int
    mode: Mode
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    cursor: str  # '' where the mode has none
    rows: tuple[Row, ...]
    steps: tuple[Step, ...]
    block: Mapping[str, object]  # of the export, without table and columns
    is_clock_real: bool = False  # new cursor values are the time of now
    windows: tuple[str, ...] = ()
    mark: str = ""  # poll: the column that marks a row as deleted
    options: Mapping[str, object] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name it as its test."""
        return f"{self.engine}-{self.seed}"

    @property
    def is_csv(self) -> bool:
        """Return whether cells are published as text."""
        return self.block["format"] == "csv"
