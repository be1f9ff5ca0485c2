"""What columns are like, counted while their rows pass: NULLs, distinct values, least, largest, mean, histogram.

Belongs here: counting a chunk's pages, joining chunks. Not here: which columns (`rivet_assets/blocks/profile.py`),
pictures (`rivet_assets/run/judge/profile_text.py`).

Distinct values are counted exactly up to KEPT; beyond, they are estimated from the KEPT smallest of their 64-bit
hashes, with a standard error of 1.6 %. Source: Bar-Yossef et al., "Counting Distinct Elements in a Data Stream", 2002.

No sample is taken, and no range known before.
"""

from __future__ import annotations

import base64
import json
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources.canonical import canonical
from rivet_resources.contracts.destination import Root
from rivet_resources.contracts.rows.profile import Bar, ColumnProfile, ProfileColumns, WindowProfile
from rivet_resources.errors import PartCorrupt
from rivet_resources.shape.transforms.fields import storage, whole
from rivet_resources.write.checksums.cells import as_binary, is_known, raw, width_of
from rivet_resources.write.checksums.cells import plain as plain_cells
from rivet_resources.write.checksums.xxh3 import cell_hashes, even_hashes

# Smallest hashes of a column; so many distinct values are counted exactly.
KEPT = 4096
WAITING_ROWS, WAITING_BYTES = 65_536, 8 << 20  # pages wait until a column is worth numpy's calls
LONGEST = 60  # characters of a text that is shown

Hashes = npt.NDArray[np.uint64]
Low = int | float | str | None  # times as their number of units, decimals as texts


@dataclass
class Histogram:
    """Bars of the width 2^`exponent`: {number of the bar: rows}."""

    most: int
    exponent: int | None = None  # None before the first value
    bars: Counter[int] = field(default_factory=Counter)

    def add(self, values: npt.NDArray[Any]) -> None:
        """Count whole or finite numbers."""
        if not len(values):
            return
        low, high = values.min().item(), values.max().item()
        self._widen(low, high)
        assert self.exponent is not None
        first = number_of(low, self.exponent)
        if values.dtype == np.int64:
            # A shift by 64 bits or more is undefined; one by 63 leaves what it would: 0, or -1 of negative numbers.
            places = (values >> min(self.exponent, 63)) - first
        else:
            # `ldexp`, which shifts the exponent and rounds nothing; a division by a power of two may underflow.
            numbers = np.floor(np.ldexp(values, -self.exponent))
            # Too small to be told from 0 at this width.
            numbers[(numbers == 0) & (values < 0)] = -1
            places = (numbers - first).astype(np.int64)
        counts = np.bincount(places)
        self.bars.update({first + place: int(count) for place, count in enumerate(counts.tolist()) if count})

    def join(self, other: Histogram) -> None:
        """Add the bars of another one of the same column."""
        if other.exponent is None:
            return
        self.exponent = other.exponent if self.exponent is None else self.exponent
        if other.exponent > self.exponent:
            self._coarsen(other.exponent)
        for number, rows in other.bars.items():
            self.bars[number >> (self.exponent - other.exponent)] += rows
        while max(self.bars) - min(self.bars) >= self.most:
            self._coarsen(self.exponent + 1)

    def _widen(self, low: float, high: float) -> None:
        """Make bars wide enough for few of them to reach from the least to the largest value."""
        if self.exponent is None:
            self.exponent = finest(low, high)
        exponent = max(self.exponent, finest(low, high))
        # Bars are as wide as a power of two and begin at a multiple of it, so narrower ones of another chunk fit into
        # wider ones exactly: neighbours are added until there are few enough.
        known = [min(self.bars), max(self.bars)] if self.bars else []
        while True:
            ends = [number >> (exponent - self.exponent) for number in known]
            ends += [number_of(low, exponent), number_of(high, exponent)]
            if max(ends) - min(ends) < self.most:
                break
            exponent += 1
        self._coarsen(exponent)

    def _coarsen(self, exponent: int) -> None:
        assert self.exponent is not None
        joined = Counter[int]()
        for number, rows in self.bars.items():
            joined[number >> (exponent - self.exponent)] += rows
        self.bars, self.exponent = joined, exponent


def finest(low: float, high: float) -> int:
    """Return the exponent of the narrowest bars that are tried: 0 of whole numbers, else thousands of bars, or more."""
    if isinstance(low, int):
        return 0
    largest, size = max(abs(low), abs(high)), high - low
    # No narrower than the last bit of the largest number, so that the number of a bar is a float's whole number.
    last_bit = math.frexp(largest)[1] - 53 if largest else -1000
    if not size:
        return last_bit
    return max(last_bit, math.frexp(size if math.isfinite(size) else largest)[1] - 12)


def number_of(value: float, exponent: int) -> int:
    """Return in which bar of the width 2^exponent a number stands."""
    if isinstance(value, int):
        return value >> exponent
    return math.floor(math.ldexp(value, -exponent)) or -(value < 0)


class ColumnTally:
    """Counts the cells of one column."""

    def __init__(self, arrow: pa.DataType, *, bars: int, is_masked: bool) -> None:
        self._kind = "masked" if is_masked else kind_of(arrow)
        self._has_hashes = is_known(arrow)
        self.nulls = self.not_finite = self.count = 0
        self.total = 0.0
        self.hashes: Hashes = np.empty(0, np.uint64)
        self.has_more = False  # distinct values than are kept
        self.low: Low = None
        self.high: Low = None
        self.histogram = Histogram(bars)

    def add(self, column: pa.ChunkedArray) -> None:
        """Count some cells."""
        self.nulls += column.null_count
        cells = whole(column)
        cells = cells.cast(cells.type.value_type) if pa.types.is_dictionary(cells.type) else cells
        cells = cells.drop_null() if column.null_count else cells
        if not len(cells):
            return
        if self._has_hashes:
            self._keep(_hashes(plain_cells(cells)))
        if self._kind == "text":
            self._bound(*(pc.min_max(cells)[end].as_py() for end in ("min", "max")))
        elif self._kind == "decimal":
            self._bound(*(canonical(pc.min_max(cells)[end]) for end in ("min", "max")))
            # Unsafe: a decimal of 38 digits is rounded here, which moves a bar's edge and no bound: these are exact
            # texts.
            self._count(cells.cast(pa.float64(), safe=False).to_numpy())
        elif self._kind in ("whole", "time"):
            numbers = _whole_numbers(cells)
            self._bound(numbers.min().item(), numbers.max().item())
            self._count(numbers)
        elif self._kind == "float":
            self._floats(cells.cast(pa.float64()).to_numpy())

    def _floats(self, values: npt.NDArray[np.float64]) -> None:
        finite = values[np.isfinite(values)]
        # NaN and the infinities have no bar, and would make every mean and bound one of themselves.
        self.not_finite += len(values) - len(finite)
        if len(finite):
            self._bound(finite.min().item(), finite.max().item())
            self._count(finite)

    def _count(self, values: npt.NDArray[Any]) -> None:
        self.count += len(values)
        if self._kind != "time":
            # As floats: a sum of 64-bit integers may pass 64 bits.
            self.total += float(values.sum(dtype=np.float64))
        self.histogram.add(values)

    def _bound(self, low: Low, high: Low) -> None:
        self.low = low if self.low is None else min(self.low, low, key=self._order)
        self.high = high if self.high is None else max(self.high, high, key=self._order)

    def _order(self, value: Any) -> Any:
        return Decimal(value) if self._kind == "decimal" else value

    def _keep(self, hashes: Hashes) -> None:
        """Keep the smallest hashes that were seen."""
        # Larger hashes than the largest kept one can never be among the smallest again.
        if len(self.hashes) == KEPT:
            hashes = hashes[hashes <= self.hashes[-1]]
        merged = np.unique(np.concatenate((self.hashes, hashes)))
        self.has_more = self.has_more or len(merged) > KEPT
        self.hashes = merged[:KEPT]

    # All counts of chunks add up to exactly what one pass over all rows would give, so they are the same however a
    # window is cut.
    def join(self, plain: dict[str, Any]) -> None:
        """Add what another tally of the column has counted."""
        self.nulls += plain["nulls"]
        self.not_finite += plain["not_finite"]
        self.count += plain["count"]
        self.total += plain["total"]
        self.has_more = self.has_more or plain["has_more"]
        self._keep(np.frombuffer(base64.b64decode(plain["hashes"]), "<u8"))
        if plain["low"] is not None:
            self._bound(plain["low"], plain["high"])
        bars = Counter({int(number): rows for number, rows in plain["bars"].items()})
        self.histogram.join(Histogram(self.histogram.most, plain["exponent"], bars))

    @property
    def plain(self) -> dict[str, Any]:
        """Return everything as JSON has it."""
        return {
            "nulls": self.nulls, "not_finite": self.not_finite, "count": self.count, "total": self.total,
            "has_more": self.has_more, "hashes": base64.b64encode(self.hashes.astype("<u8").tobytes()).decode(),
            "low": self.low, "high": self.high, "exponent": self.histogram.exponent, "bars": self.histogram.bars,
        }  # fmt: skip

    def result(self, name: str, arrow: pa.DataType, rows: int) -> ColumnProfile:
        """Return what the column is like; all of its cells, of so many rows, were counted."""
        shown = self.low is not None
        return ColumnProfile(
            name=name,
            type=str(arrow),
            nulls=self.nulls,
            distinct=min(self._distinct, rows - self.nulls),
            distinct_is_exact=not self.has_more,
            is_masked=self._kind == "masked",
            min=_spell(self.low, arrow) if shown else None,
            max=_spell(self.high, arrow) if shown else None,
            mean=self.total / self.count if self.count and self._kind != "time" else None,
            not_finite=self.not_finite,
            histogram=self._bars(arrow),
        )

    @property
    def _distinct(self) -> int:
        """Return the number of distinct values, by the share of all hashes that the kept ones fill."""
        if not self.has_more:
            return len(self.hashes)
        # Hashes spread evenly, so the k smallest of n reach up to about k/n of all.
        return round((KEPT - 1) / ((int(self.hashes[-1]) + 1) / 2**64))

    def _bars(self, arrow: pa.DataType) -> tuple[Bar, ...]:
        bars, exponent = self.histogram.bars, self.histogram.exponent
        if not bars or exponent is None:
            return ()
        ends = [_edge(number, exponent, arrow, self._kind) for number in range(min(bars), max(bars) + 2)]
        return tuple(
            Bar(low, high, bars[number])
            for number, low, high in zip(range(min(bars), max(bars) + 1), ends, ends[1:], strict=False)
        )


class ProfileTally:
    """Counts the pages of one chunk for a profile."""

    def __init__(self, schema: pa.Schema, asked: ProfileColumns) -> None:
        self._names = list(asked.names)
        self._columns = _tallies(schema, asked)
        self._waiting: list[pa.Table] = []
        self._rows = self._bytes = 0

    def add(self, table: pa.Table, *, size_bytes: int) -> None:
        """Count one page, as it will be written."""
        if not table.num_rows:
            return
        self._waiting.append(table.select(self._names))
        self._rows += table.num_rows
        self._bytes += size_bytes
        if self._rows >= WAITING_ROWS or self._bytes >= WAITING_BYTES:
            self._flush()

    @property
    def content(self) -> bytes:
        """Return all that was counted, as a file holds it."""
        self._flush()
        return json.dumps({name: column.plain for name, column in self._columns.items()}).encode()

    def _flush(self) -> None:
        if self._waiting:
            table = pa.concat_tables(self._waiting)
            for name, tally in self._columns.items():
                tally.add(table.column(name))
        self._waiting, self._rows, self._bytes = [], 0, 0


def joined_profile(
    root: Root, files: Iterable[str], *, rows: int, schema: pa.Schema, asked: ProfileColumns
) -> WindowProfile:
    """Join what the chunks of a window counted; one file at a time is in memory.

    Raises:
        PartCorrupt: a file is missing or damaged.
    """
    columns = _tallies(schema, asked)
    for path in files:
        found = root.read(path)
        try:
            counted = json.loads(found[0]) if found else {}
            for name, column in columns.items():
                column.join(counted[name])
        except (ValueError, LookupError, TypeError) as error:
            told = f"{type(error).__name__}"
            raise PartCorrupt(f"{root.uri}/{path} with the profile of a chunk is gone or damaged ({told}).") from None
    order = [name for name in schema.names if name in columns]
    return WindowProfile(rows, tuple(columns[name].result(name, schema.field(name).type, rows) for name in order))


def _tallies(schema: pa.Schema, asked: ProfileColumns) -> dict[str, ColumnTally]:
    return {
        name: ColumnTally(schema.field(name).type, bars=asked.bars, is_masked=name in asked.masked)
        for name in asked.names
    }


def kind_of(arrow: pa.DataType) -> str:
    """Return how values of a type are compared: text, whole, float, decimal, time; other: not at all."""
    if isinstance(arrow, pa.BaseExtensionType):
        return "other"
    arrow = arrow.value_type if pa.types.is_dictionary(arrow) else arrow
    if pa.types.is_string(arrow) or pa.types.is_large_string(arrow):
        return "text"
    if pa.types.is_decimal(arrow) or pa.types.is_uint64(arrow):
        return "decimal"  # numbers that a float does not hold exactly
    if pa.types.is_boolean(arrow) or pa.types.is_integer(arrow):
        return "whole"
    if pa.types.is_floating(arrow):
        return "float"
    return "time" if pa.types.is_temporal(arrow) and not pa.types.is_interval(arrow) else "other"


def _hashes(cells: pa.Array) -> Hashes:
    """Hash cells without NULLs: equal values have equal hashes, -0.0 and 0.0 too."""
    if pa.types.is_floating(cells.type):
        numbers = cells.cast(pa.float64()).to_numpy() + 0.0
        # All NaNs as one: their bits differ by how they came about, and a reader counts one distinct value.
        cells = pa.array(np.where(np.isnan(numbers), np.nan, numbers), from_pandas=False)
    width = width_of(cells.type)
    if width in (4, 8, 16):
        return even_hashes(raw(cells, width), width)
    # Few distinct texts, flags and small numbers are many rows: each is hashed once.
    return cell_hashes(as_binary(cells if pa.types.is_nested(cells.type) else pc.unique(cells)))


def _whole_numbers(cells: pa.Array) -> npt.NDArray[np.int64]:
    if pa.types.is_boolean(cells.type):
        cells = cells.cast(pa.uint8())
    if pa.types.is_temporal(cells.type):
        cells = cells.view(pa.int64() if cells.type.bit_width == 64 else pa.int32())
    numbers: npt.NDArray[np.int64] = cells.to_numpy().astype(np.int64)
    return numbers


def _spell(value: Low, arrow: pa.DataType) -> str:
    """Spell a value of a column, or an end of its histogram."""
    arrow = storage(arrow.value_type if pa.types.is_dictionary(arrow) else arrow)
    if isinstance(value, str):
        return value if len(value) <= LONGEST else value[: LONGEST - 1] + "…"
    if pa.types.is_boolean(arrow):
        return "true" if value else "false"
    if pa.types.is_temporal(arrow) and isinstance(value, int):
        number = pa.scalar(value, pa.int64() if arrow.bit_width == 64 else pa.int32())
        try:
            return canonical(pa.array([number]).view(arrow)[0])
        except (ValueError, OverflowError):  # an end of a bar beyond what the type holds
            return str(value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _edge(number: int, exponent: int, arrow: pa.DataType, kind: str) -> str:
    """Spell where a bar begins."""
    if kind in ("whole", "time"):
        try:
            return str(number << exponent) if pa.types.is_boolean(arrow) else _spell(number << exponent, arrow)
        except (OverflowError, pa.ArrowException):
            return str(number << exponent)
    return f"{math.ldexp(number, exponent):.6g}"
