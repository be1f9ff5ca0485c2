"""How long committed windows stay, as `keep:` says it.

Belongs here: the value. Not here: which windows that are (`upkeep/retain.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True)
class Retention:
    """So many newest windows, or those younger than an age; one of the two."""

    count: int | None = None
    age: timedelta | None = None
