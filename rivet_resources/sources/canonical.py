"""Canonical texts of values: how cursors, bounds and keys are written between runs, the same for every engine."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def canonical(value: Any) -> str:
    """Render one value: plain decimals, ISO dates, six fraction digits, `Z` for instants, `\\x` hex for binary.

    Takes an Arrow scalar or what Python makes of one; times beyond Python's years are rendered by Arrow.
    """
    if isinstance(value, pa.Scalar):
        if pa.types.is_timestamp(value.type):
            naive = str(pc.strftime(value, format="%Y-%m-%dT%H:%M:%S"))
            return naive + ("Z" if value.type.tz else "")
        value = value.as_py()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, datetime):
        naive_time = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
        return naive_time.isoformat(timespec="microseconds") + ("Z" if value.tzinfo else "")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    return str(value)
