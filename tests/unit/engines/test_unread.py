"""How old unread changes are said to be, where positions have no times."""

from __future__ import annotations

import time

import pytest

from rivet_resources.contracts.change_log import Position, Survey
from rivet_resources.engines.shared.unread import DatedSurvey, seconds_unread

TARGET = Position(key="05", text="5", type="Lsn")


def seen(ago: float) -> DatedSurvey:
    return DatedSurvey(Survey("server", TARGET, TARGET, {}), time.monotonic() - ago)


@pytest.mark.parametrize(
    ("unread", "key", "expected"),
    [(0, "05", 0.0), (0, None, 0.0), (7, "04", None), (7, None, None), (None, "04", None)],
)
def test_none_unread_is_no_lag_and_what_nobody_knows_is_not_said(unread, key, expected):
    """A flat zero would quiet an alarm; the age of the last commit that was read would raise one for nothing."""
    at = None if key is None else Position(key=key, text=key, type="Lsn")

    assert expected == seconds_unread(unread, at, seen(60))


def test_what_is_unread_is_younger_than_the_survey_whose_end_was_reached():
    """Everything committed before that survey was read, so the oldest unread commit came after it."""
    found = seconds_unread(7, Position(key="05", text="5", type="Lsn"), seen(60))

    assert found == pytest.approx(60, abs=30)


def test_without_a_survey_nothing_is_known():
    """A look that asked nobody for the log's end says no age."""
    assert seconds_unread(7, TARGET, None) is None
