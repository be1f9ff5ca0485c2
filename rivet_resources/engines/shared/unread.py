"""How old changes are that nobody has read yet, as far as it is known without reading them.

Belongs here: that one reckoning, for logs whose positions have no times. Not here: how much is unread (the engines'
own lags), thresholds, which are the checks' business.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rivet_resources.contracts.change_log import Position, Survey


@dataclass(frozen=True)
class DatedSurvey:
    """A survey and when it was asked for, by this machine's monotonic clock."""

    survey: Survey
    asked_at: float


def seconds_unread(unread: int | None, at: Position | None, seen: DatedSurvey | None) -> float | None:
    """Return how old the oldest unread commit is at most; 0 when nothing is unread, None when it cannot be told.

    A position that has reached a survey's end holds all that was committed before that survey, so that what is unread
    is younger. Of a position before it nothing is known: the age of the last commit that *was* read is none of these,
    and grows without end on a table that nobody changes.
    """
    if unread == 0:
        return 0.0
    if at is None or seen is None or at.key < seen.survey.target.key:
        return None
    return max(0.0, time.monotonic() - seen.asked_at)
