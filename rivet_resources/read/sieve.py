"""Rows at the two ends of an incremental window: found in its pages, told apart, sifted, remembered.

Belongs here: the identity of a row, and what happens to a page before anything else looks at it. Not here: what is
remembered and where (`contracts/rows/boundary.py`), which rows are asked for (`rivet_assets/modes/incremental.py`).

A page is sifted as the source typed it, before transforms, measures and rules: a row that was exported already counts
nowhere. An identity is 128 bits of BLAKE2b over the row's key and its cursor, or over all its cells where the relation
has no key; such rows may be equal, so each is left out as often as it is remembered, and no more.
Where only the server can compare (texts by a collation, bytes, values that Arrow cannot hold) a chunk says that all its
rows stand at one end. Everywhere else cells are compared: one vectorised `=` per page and end, and hashing only for
the few rows that it finds.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from rivet_resources.canonical import canonical
from rivet_resources.contracts.rows.boundary import DIGITS, MOST_REMEMBERED, BoundaryEnds, Edge, End, Sift
from rivet_resources.contracts.types import Column
from rivet_resources.shape.rowhash.cells import can_spell
from rivet_resources.shape.rowhash.hash import RENDER, row_bytes

Rows = npt.NDArray[np.int64]


@dataclass
class Sieve:
    """Sifts the pages of one chunk, in their order."""

    ends: BoundaryEnds
    columns: tuple[Column, ...]  # of the pages
    edge: End | None = None  # the end at which all rows of the chunk stand
    _found: dict[End, Edge] = field(init=False, default_factory=lambda: {"low": Edge(), "high": Edge()})
    _sifts: dict[End, _Sifting] = field(init=False)
    _identity: list[int] = field(init=False)
    _cursor: list[int] = field(init=False)
    _values: dict[End, pa.Scalar] = field(init=False)  # cells of the rows at each end; none where chunks say

    def __post_init__(self) -> None:
        places = {column.name: place for place, column in enumerate(self.columns)}
        self._identity = [places[name] for name in self.ends.identity]
        self._cursor = [places[name] for name in self.ends.cursor]
        self._values = self._cells_at_ends()
        sifts: dict[End, Sift | None] = {"low": self.ends.low_sift, "high": self.ends.high_sift}
        # A counter and not a set: without a key two equal rows are two rows, and each is left out as often as it
        # was exported.
        self._sifts = {end: _Sifting(Counter(split(sift.ids)), sift.only) for end, sift in sifts.items() if sift}

    def sift(self, table: pa.Table) -> pa.Table:
        """Leave out the rows of a page that are not the window's own, and remember those at its ends that are."""
        dropped: list[Rows] = []
        # Before the filter: both ends are looked for in the page as it came, so their row numbers stay valid.
        for end, at in self._at_ends(table):
            own = self._own(table, end, at)
            if len(own) < len(at):
                # Places within one page are unique and sorted, which `assume_unique` relies on.
                dropped.append(np.setdiff1d(at, own, assume_unique=True))
        if not dropped:
            return table
        kept = np.ones(table.num_rows, np.bool_)
        kept[np.concatenate(dropped)] = False
        return table.filter(pa.array(kept))

    @property
    def low_edge(self) -> Edge:
        """Return the rows so far that have the cursor value the window starts at."""
        return self._found["low"]

    @property
    def high_edge(self) -> Edge:
        """Return the rows so far that have the cursor value the window ends at."""
        return self._found["high"]

    def _cells_at_ends(self) -> dict[End, pa.Scalar]:
        ends = self.ends
        if not self._cursor:
            return {}
        texts: dict[End, str | None] = {
            "low": ends.low if ends.reads_low else None,
            # At one value both ends are one, and each row shall be found once.
            "high": ends.high if ends.high != ends.low else None,
        }
        arrow = self.columns[self._cursor[0]].arrow
        read = {end: cell_of(text, arrow) for end, text in texts.items() if text is not None}
        return {end: cell for end, cell in read.items() if cell is not None}

    def _at_ends(self, table: pa.Table) -> Iterator[tuple[End, Rows]]:
        """Find the rows at each end."""
        # The server compared already: its order of texts (a collation) or of bytes is not Arrow's, so no cell is
        # looked at.
        if self.edge is not None:
            yield self.edge, np.arange(table.num_rows)
            return
        if not self._values or not table.num_rows:
            return
        columns = [table.column(place) for place in self._cursor]
        # A cursor of several columns is the first that is not NULL, as the statement orders by `COALESCE` too.
        cells = columns[0] if len(columns) == 1 else pc.coalesce(*columns)
        for end, value in self._values.items():
            if len(at := pc.indices_nonzero(pc.equal(cells, value))):
                yield end, at.to_numpy().astype(np.int64)

    def _own(self, table: pa.Table, end: End, at: Rows) -> Rows:
        """Pick the rows that are the window's own, and remember them."""
        before, sifting = self._found[end], self._sifts.get(end)
        # Too many to remember, so hashing them is not worth it: their number is kept alone.
        if sifting is None and (before.ids is None or before.rows + len(at) > MOST_REMEMBERED):
            self._found[end] = before + Edge(len(at), None)
            return at
        # Of the rows at the ends only. Hashing all rows would cost more than reading them, and two ends are few
        # rows.
        ids = identities(table.take(pa.array(at)), self._identity)
        if sifting is not None:
            kept = [place for place, each in enumerate(ids) if sifting.is_own(each)]
            at, ids = at[kept], [ids[place] for place in kept]
        # Above the limit only the number is kept: the next window then knows that it cannot tell rows apart,
        # instead of trusting half a list.
        self._found[end] = before + Edge(len(ids), "".join(ids) if len(ids) <= MOST_REMEMBERED else None)
        return at


@dataclass
class _Sifting:
    """Rows that are left out, or alone kept, each as often as it was listed."""

    left: Counter[str]
    only: bool

    def is_own(self, row: str) -> bool:
        """Judge one row, and cross it off the list."""
        is_listed = self.left[row] > 0
        if is_listed:
            self.left[row] -= 1
        return is_listed is self.only


def split(ids: str) -> list[str]:
    """Return the identities that stand one after another."""
    return [ids[place : place + DIGITS] for place in range(0, len(ids), DIGITS)]


def identities(table: pa.Table, places: Sequence[int]) -> list[str]:
    """Return what tells rows apart by the cells of some columns: 32 hexadecimal digits each, in their order."""
    cells = pa.Table.from_arrays([table.column(place) for place in places], names=[str(place) for place in places])
    # 128 bits: among any number of rows that a window has, two different ones do not meet by chance.
    return [hashlib.blake2b(row, digest_size=DIGITS // 2).hexdigest() for row in row_bytes(cells)]


def scheme_of(columns: Sequence[Column], *, is_key: bool) -> str:
    """Name the way in which rows are told apart: identities of two schemes cannot be compared. '' where none works."""
    if not all(can_spell(column.arrow) for column in columns):
        return ""
    # Types and policies are part of the name: the same row spelled by other types has another identity, and
    # comparing the two would export it twice.
    spelled = "".join(f"{column.name}\t{column.arrow}\t{_policy(column)}\t{column.facts}\n" for column in columns)
    return f"{'key' if is_key else 'row'}-blake2b-{RENDER}-{xxhash.xxh3_64_hexdigest(spelled.encode())}"


def _policy(column: Column) -> str:
    """Name the policy that decides a cell: where the row goes, none does, and its place may be changed at any time."""
    # `row` puts refused rows aside after sifting; it changes no cell that stays, so identities of before remain
    # valid.
    return "fail" if column.policy == "row" else column.policy


def cell_of(text: str, arrow: pa.DataType) -> pa.Scalar | None:
    """Read a canonical text as the cell it was made of; None where a cell of this type may not decide.

    Equal values of the server must be equal cells: true of numbers, days and times whose cell has the very text.
    """
    try:
        value = pa.scalar(_value(text, arrow), arrow)
        # Numbers are compared as numbers, however many zeros their text ends in.
        # The text must come back from the cell: a day that Arrow reads in another spelling may equal cells that the
        # server tells apart.
        is_exact = pa.types.is_floating(arrow) or pa.types.is_decimal(arrow) or canonical(value) == text
    except (ValueError, OverflowError, InvalidOperation, TypeError, pa.ArrowException):
        return None
    return value if is_exact else None


def _value(text: str, arrow: pa.DataType) -> object:
    """Read a canonical text.

    Raises:
        ValueError, InvalidOperation: it is none of this type.
        TypeError: nothing of this type is compared here.
    """
    if pa.types.is_integer(arrow):
        return int(text)
    if pa.types.is_decimal(arrow):
        return Decimal(text)
    if pa.types.is_floating(arrow):
        return float(text)
    if pa.types.is_timestamp(arrow):
        return datetime.fromisoformat(text)
    if pa.types.is_date32(arrow):
        return date.fromisoformat(text)
    if pa.types.is_time(arrow):
        return time.fromisoformat(text)
    raise TypeError(str(arrow))
