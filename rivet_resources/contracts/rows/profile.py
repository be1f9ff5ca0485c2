"""What `profile:` asks for, and what is told of a column: plain, frozen values.

Belongs here: shapes, pickled with the Extract or written into a manifest. Not here: counting (`write/profile.py`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ProfileColumns:
    """Which columns are profiled; of those that are masked, or made of masked ones, no value is kept."""

    shown: tuple[str, ...]
    masked: tuple[str, ...] = ()
    bars: int = 20  # most bars of a histogram

    @property
    def names(self) -> tuple[str, ...]:
        """Name all columns."""
        return (*self.shown, *self.masked)


@dataclass(frozen=True)
class Bar:
    """One bar of a histogram: so many rows from `low`, inclusive, to `high`, exclusive; texts of the column's type."""

    low: str
    high: str
    rows: int


@dataclass(frozen=True)
class ColumnProfile:
    """What one column of a window is like. None: it has no such thing, or does not show it."""

    name: str
    type: str
    nulls: int
    distinct: int
    distinct_is_exact: bool
    is_masked: bool = False
    min: str | None = None
    max: str | None = None
    mean: float | None = None
    not_finite: int = 0  # NaN and infinities, which are in none of min, max, mean and histogram
    histogram: tuple[Bar, ...] = ()


@dataclass(frozen=True)
class WindowProfile:
    """The columns of one window."""

    rows: int
    columns: tuple[ColumnProfile, ...]
