"""Cutting the values of a key into disjoint ranges: arithmetic only, on canonical texts."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, localcontext
from itertools import pairwise

import pyarrow as pa

from rivet_resources.canonical import canonical, day_number, day_text
from rivet_resources.contracts.types import UUID, Column
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

    Days are of any year that the column can hold; one whose end no engine but a few could write ends with `high`.

    Raises:
        SourceError: the column is neither date nor timestamp, or its days are too far apart.
    """
    if not (pa.types.is_date(column.arrow) or pa.types.is_timestamp(column.arrow)):
        raise SourceError(
            f"chunk_by_days cuts dates and timestamps, and {column.name} is {column.native}. "
            f"Name another `chunk_column`, or use `chunk_count`."
        )
    first, last = day_number(low), day_number(high)
    if (last - first) // days >= MOST_RUNS_OF_DAYS:
        raise SourceError(
            f"chunk_by_days: {days} would cut {column.name} into {(last - first) // days + 1} chunks, since its least "
            f"and greatest days lie far apart; at most {MOST_RUNS_OF_DAYS} are allowed. Is one of them a stand-in such "
            f"as 9999-12-31? Set a larger `chunk_by_days`, name another `chunk_column`, or use `chunk_by_key`."
        )
    starts = range(first, last + 1, days)
    *before, (start, _) = pairs = [(start, start + days) for start in starts]
    ranges = [Range(_midnight(start, column), _midnight(end, column), high_inclusive=False) for start, end in before]
    if pairs[-1][1] > LAST_DAY:
        return (*ranges, Range(_midnight(start, column), high))
    return (*ranges, Range(_midnight(start, column), _midnight(start + days, column), high_inclusive=False))


def middle(piece: Range, column: Column) -> str | None:
    """Return a value between the ends of a range, so that `<= it` and `> it` part it; None where there is none.

    Any value parts a range exactly, since the server alone compares; one in the middle parts the work as well. Texts
    have no middle that every collation would agree on.
    """
    if piece.low == piece.high:
        return None
    try:
        found = _middle(piece.low, piece.high, column.arrow)
    except (ValueError, OverflowError, ArithmeticError):  # an infinite bound, a year beyond Python's
        return None
    return None if found == piece.high else found


def _middle(low: str, high: str, arrow: pa.DataType) -> str | None:
    if pa.types.is_integer(arrow):
        return str((int(low) + int(high)) // 2)
    if pa.types.is_decimal(arrow):
        return _middle_decimal(Decimal(low), Decimal(high), arrow.scale)
    if pa.types.is_date(arrow):
        day, era = day_text((day_number(low) + day_number(high)) // 2)
        return day + era
    if pa.types.is_timestamp(arrow):
        first, last = (datetime.fromisoformat(text).replace(tzinfo=None) for text in (low, high))
        found = first + (last - first) // 2
        return canonical(found if arrow.tz is None else found.replace(tzinfo=UTC))
    if arrow == UUID:
        return str(uuid.UUID(int=(uuid.UUID(low).int + uuid.UUID(high).int) // 2))
    return None


def _middle_decimal(low: Decimal, high: Decimal, scale: int) -> str | None:
    with localcontext() as context:
        context.prec = 100  # of the widest decimal, and the digit of the half
        found = ((low + high) / 2).quantize(Decimal(1).scaleb(-scale), rounding="ROUND_FLOOR")
    return canonical(found) if found.is_finite() else None


# Each is a statement and a task, also where it is empty: 270 years of days.
MOST_RUNS_OF_DAYS = 100_000
LAST_DAY = day_number("9999-12-31")  # that every engine can write


def _midnight(day: int, column: Column) -> str:
    text, era = day_text(day)
    if pa.types.is_date(column.arrow):
        return text + era
    zone = "Z" if column.arrow.tz is not None else ""
    return f"{text}T00:00:00.000000{zone}{era}"
