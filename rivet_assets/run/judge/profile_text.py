"""A window's profile as people look at it: a row per column, a small picture of each histogram.

Belongs here: words and bars. Not here: counting (`rivet_resources/write/profile.py`), pages of Dagster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rivet_resources.contracts.rows.profile import Bar, ColumnProfile, WindowProfile

HEADINGS = ("column", "type", "nulls", "distinct", "min", "max", "mean", "histogram")
BARS = "▁▂▃▄▅▆▇█"
HIDDEN = "masked"


def profile_rows(profile: WindowProfile) -> Iterator[tuple[str, ...]]:
    """Yield a row of texts for each column, as HEADINGS name them."""
    for column in profile.columns:
        yield (
            column.name,
            column.type,
            _nulls(column.nulls, profile.rows),
            f"{'' if column.distinct_is_exact else '≈ '}{column.distinct:,}",
            _value(column, column.min),
            _value(column, column.max),
            "" if column.mean is None else f"{column.mean:,.6g}",
            _picture(column),
        )


def bars(histogram: Sequence[Bar]) -> str:
    """Draw a histogram, one letter a bar; a bar without rows is a blank."""
    most = max((bar.rows for bar in histogram), default=0)
    return "".join(BARS[-(-bar.rows * len(BARS) // most) - 1] if bar.rows else " " for bar in histogram)


def _picture(column: ColumnProfile) -> str:
    more = f" {column.not_finite:,} not finite" if column.not_finite else ""
    return f"{bars(column.histogram)}{more}"


def _nulls(nulls: int, rows: int) -> str:
    return f"{nulls:,} ({nulls / rows:.1%})" if nulls else "0"


def _value(column: ColumnProfile, value: str | None) -> str:
    if column.is_masked:
        return HIDDEN
    return "" if value is None else value
