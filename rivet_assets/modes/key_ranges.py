"""Cutting the values of a key into disjoint ranges: arithmetic only, on canonical texts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from itertools import pairwise

import pyarrow as pa

from rivet_resources.contracts.types import Column
from rivet_resources.errors import SourceError


@dataclass(frozen=True)
class Range:
    """Values from `low` to `high`, both canonical texts of the column's type."""

    low: str
    high: str
    low_inclusive: bool = True
    high_inclusive: bool = True

    def __str__(self) -> str:
        """Write it as mathematics does: [1,100] or (a,b]."""
        return f"{'[' if self.low_inclusive else '('}{self.low},{self.high}{']' if self.high_inclusive else ')'}"


def equal_width(low: int, high: int, *, size: int) -> tuple[Range, ...]:
    """Cut [low, high] into ranges of `size` whole numbers, both ends inclusive, the last one cut to `high`.

    Python's integers have no edge, so bounds at the end of 64 bits are exact.
    """
    return tuple(Range(str(start), str(min(start + size - 1, high))) for start in range(low, high + 1, size))


def between_inner_bounds(low: str, inner: tuple[str, ...], high: str) -> tuple[Range, ...]:
    """Cut at ascending inner bounds: [low, b1], (b1, b2], … (bn, high]; bounds equal to an end add no empty range."""
    edges = [low, *(bound for bound in dict.fromkeys(inner) if bound not in (low, high)), high]
    if len(edges) == 2:
        return (Range(low, high),)
    return tuple(Range(start, end, low_inclusive=index == 0) for index, (start, end) in enumerate(pairwise(edges)))


def by_days(low: str, high: str, *, days: int, column: Column) -> tuple[Range, ...]:
    """Cut into half-open runs of `days` calendar days from the first day on; the last one holds `high`.

    Raises:
        SourceError: the column is neither date nor timestamp.
    """
    if not (pa.types.is_date(column.arrow) or pa.types.is_timestamp(column.arrow)):
        raise SourceError(
            f"chunk_by_days cuts dates and timestamps, and {column.name} is {column.native}. "
            f"Name another `chunk_column`, or use `chunk_count`."
        )
    first, last = date.fromisoformat(low[:10]), date.fromisoformat(high[:10])
    edges = [first + timedelta(days=n) for n in range(0, (last - first).days + days + 1, days)]
    return tuple(
        Range(_midnight(start, column), _midnight(end, column), high_inclusive=False)
        for start, end in pairwise(edges)
        if start <= last
    )


def _midnight(day: date, column: Column) -> str:
    if pa.types.is_date(column.arrow):
        return day.isoformat()
    zone = "Z" if column.arrow.tz is not None else ""
    return f"{datetime.combine(day, datetime.min.time()):%Y-%m-%dT%H:%M:%S}.000000{zone}"
