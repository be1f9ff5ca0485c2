"""Rows stamped ahead of now, which an incremental read holds back until their moment has passed: how many, until when.

Belongs here: telling such a stamp from one of the last moment, and the note about it, for every engine. Not here: how
far a read may go (`engines/*/horizon.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol

from rivet_resources.contracts.relation import Relation
from rivet_resources.contracts.types import Column

# A stamp without a zone may be in any, and a day lasts 26 hours around the world; one with a zone is of a clock ahead.
SLACK, ZONED_SLACK = timedelta(hours=26), timedelta(minutes=1)


class Looking(Protocol):
    """What is needed of a session."""

    def now(self) -> datetime:
        """Return the database's clock, aware UTC."""

    def count(self, relation: Relation, *, where: str = "") -> int:
        """Count rows."""


def ahead(
    session: Looking,
    relation: Relation,
    spelled: str,
    column: Column,
    *,
    newest: str,
    literal: Callable[[str, Column], str],
) -> str:
    """Return how many rows are stamped ahead of now, and until when they wait; '' for none.

    Args:
        spelled: the cursor, as the engine compares it.
        newest: its greatest value, in its canonical form.
    """
    bound = _write_bound(newest, session.now())
    # Most tables have none: then no row is counted, which could be a scan.
    if not _is_above(newest, bound):
        return ""
    rows = session.count(relation, where=f"{spelled} > {literal(bound, column)}")
    return (
        f"{rows:,} {'row is' if rows == 1 else 'rows are'} stamped ahead of now and held back, the last until {newest}"
    )


def _write_bound(like: str, now: datetime) -> str:
    """Write the instant beyond which no clock of today is, in the form of another stamp."""
    if like.endswith("Z"):
        return f"{(now + ZONED_SLACK).astimezone(UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"
    naive = (now + SLACK).astimezone(UTC).replace(tzinfo=None)
    return naive.date().isoformat() if "T" not in like and ":" not in like else naive.isoformat(timespec="microseconds")


def _is_above(stamp: str, bound: str) -> bool:
    """Compare two stamps of one form; a year of more than four digits is above, one before Christ is not."""
    # As texts of one form, since a year beyond 9999 is none that Python's dates know.
    year = stamp.lstrip("+").partition("-")[0]
    if stamp.startswith("-") or not year.isdigit() or "BC" in stamp:
        return False
    return len(year) > 4 or stamp.replace(" ", "T") > bound
