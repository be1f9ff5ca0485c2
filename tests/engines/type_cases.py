"""The shapes of the type contract's rows (types.md, sections 6 to 9): one module of them per engine beside this one.

Belongs here: what a row says, and the arithmetic that its expected cells need. Not here: the rows, the tests.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

MICRO = 1_000_000
DAY = 86_400
STRING = pa.string()


class Cell(NamedTuple):
    """A literal, and the cell it becomes under `parquet: {types: native}` and no policy."""

    ddl: str
    literal: str
    arrow: pa.DataType
    cell: Any  # times as numbers of the type's unit


class Special(NamedTuple):
    """A literal that its type's Arrow form cannot hold."""

    ddl: str
    literal: str
    kind: str
    text: str | None  # the cell under `text`; None: there is no such form
    null: Any = None  # the cell under `null`: a list loses its item only


class Override(NamedTuple):
    """A literal under an entry of `columns:`, and the cell it becomes."""

    ddl: str
    rule: Any  # a word, or the long form
    literal: str
    arrow: pa.DataType
    cell: Any


class Misfit(NamedTuple):
    """A literal that an override's type cannot hold."""

    ddl: str
    rule: Any
    literal: str
    kind: str


@dataclass(frozen=True)
class TypeCases:
    """All rows of one engine."""

    cells: tuple[Cell, ...]
    specials: tuple[Special, ...] = ()
    overrides: tuple[Override, ...] = ()
    misfits: tuple[Misfit, ...] = ()
    before: tuple[str, ...] = ()  # statements that make the types
    permissive: tuple[str, ...] = ()  # statements that let the session store what is special


def day(year: int, month: int, date: int) -> int:
    """Count days since the epoch in the proleptic Gregorian calendar, for any year."""
    year, month = (year - 1, month + 12) if month < 3 else (year, month)
    return 365 * year + year // 4 - year // 100 + year // 400 + (153 * (month - 3) + 2) // 5 + date - 1 - 719468


def moment(year: int, month: int, date: int, seconds: int = 0, micros: int = 0) -> int:
    """Count microseconds since the epoch."""
    return (day(year, month, date) * DAY + seconds) * MICRO + micros


def single(number: float) -> float:
    """Round to float32."""
    rounded: float = struct.unpack("f", struct.pack("f", number))[0]
    return rounded


def plain(cell: pa.Scalar) -> Any:
    """Make a cell comparable: times as numbers, since Python's end at the year 9999."""
    if not cell.is_valid:
        return None
    if pa.types.is_temporal(cell.type):
        return cell.value
    if pa.types.is_list(cell.type):
        return [plain(item) for item in cell.values]
    return cell.as_py()
