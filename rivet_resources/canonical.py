"""Canonical texts of values: how cursors, bounds and keys are written between runs, the same for every engine."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def canonical(value: Any) -> str:
    """Render one value: plain decimals, ISO dates, six fraction digits, `Z` for instants, `\\x` hex for binary.

    Takes an Arrow scalar or what Python makes of one.
    """
    if isinstance(value, pa.Scalar):
        if pa.types.is_timestamp(value.type):
            return _instant(value)
        if pa.types.is_date32(value.type) and value.is_valid:
            day, era = day_text(value.value)
            return day + era
        # Only now: of a timestamp in nanoseconds or beyond year 9999 Python would raise or cut.
        value = value.as_py()
    # Before anything else: in Python True is a number.
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        # `str` would write 1E+3, which some databases take for a float.
        return f"{value:f}"
    if isinstance(value, datetime):
        naive_time = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
        return naive_time.isoformat(timespec="microseconds") + ("Z" if value.tzinfo else "")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    return str(value)


PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
# The Gregorian calendar repeats itself; Python's years 2000 to 2399 stand for every other turn of it.
TURN_DAYS, TURN_YEARS = 146_097, 400
EPOCH, TURN = date(1970, 1, 1), date(2000, 1, 1)


def _instant(value: pa.Scalar) -> str:
    """Render a timestamp; Arrow gives the clock only, since its years end at 32767."""
    if not value.is_valid:
        return str(None)
    unit = value.type.unit
    days, rest = divmod(value.value, PER_DAY[unit])
    day, era = day_text(days)
    clock = pc.strftime(pa.scalar(rest, pa.timestamp(unit)), format="T%H:%M:%S")
    return f"{day}{clock}{'Z' if value.type.tz else ''}{era}"


def day_number(text: str) -> int:
    """Read the day with which a canonical text of a day or a time begins, of any year, as days since 1970-01-01.

    Raises:
        ValueError: there is no such day.
    """
    found = re.match(r"(\d{4,})-(\d\d)-(\d\d)", text)
    if found is None:
        raise ValueError("no day")
    # Eras have no year 0: 1 BC is year 0 here, and 2 BC is -1.
    year = 1 - int(found[1]) if text.endswith("BC") else int(found[1])
    turns, rest = divmod(year - TURN.year, TURN_YEARS)
    return (date(TURN.year + rest, int(found[2]), int(found[3])) - EPOCH).days + turns * TURN_DAYS


def day_text(days: int) -> tuple[str, str]:
    """Render a day since 1970-01-01 of any year; the text without its era, and the era: ` BC` or none."""
    # Days and times beyond Python's years have more digits of the year, or ` BC` at the end, as PostgreSQL writes and
    # reads them.
    turns, rest = divmod(days - (TURN - EPOCH).days, TURN_DAYS)
    there = TURN + timedelta(days=rest)
    year = there.year + turns * TURN_YEARS
    if year > 0:
        return f"{year:04}-{there:%m-%d}", ""
    return f"{1 - year:04}-{there:%m-%d}", " BC"
