"""When a source may be read: windows over midnight, on days, in zones whose clocks move; months and budgets."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from rivet_resources.contracts.read_limits import (
    Budget,
    RateLimit,
    ReadWindow,
    is_open,
    month_end,
    month_of,
    next_opening,
)

NIGHT = ReadWindow(start="22:00", end="06:00", timezone="Europe/Berlin")


def at(text: str) -> datetime:
    """Read an instant in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("instant", "expected"),
    [
        ("2026-01-31T20:59:59", False),
        ("2026-01-31T21:00", True),  # 22:00 in Berlin
        ("2026-01-31T23:30", True),
        ("2026-02-01T04:59:59", True),
        ("2026-02-01T05:00", False),  # 06:00: the end is not in it
        ("2026-07-01T20:00", True),  # summer: 22:00
        ("2026-07-02T04:00", False),
    ],
)
def test_window_over_midnight_is_open_in_its_own_zone(instant: str, expected: bool) -> None:
    """From its start until before its end, of the night that began the day before too."""
    assert expected == is_open([NIGHT], at(instant))


def test_window_is_of_the_day_on_which_it_starts() -> None:
    """Friday's night ends on Saturday; Saturday has none."""
    friday = NIGHT.model_copy(update={"days": ("fri",)})

    assert is_open([friday], at("2026-01-31T03:00"))  # Saturday, 04:00
    assert not is_open([friday], at("2026-01-31T22:00"))
    assert at("2026-02-06T21:00") == next_opening([friday], at("2026-01-31T22:00"))


@pytest.mark.parametrize(
    ("day", "hours"),
    [("2026-03-28", 7), ("2026-10-24", 9), ("2026-01-31", 8)],
)
def test_night_has_the_hours_that_clocks_leave_it(day: str, hours: int) -> None:
    """Clocks of Berlin go forward on 2026-03-29 and back on 2026-10-25."""
    start, end = list(NIGHT.spans(at(f"{day}T12:00")))[1]

    assert hours * 3600 == (end - start).total_seconds()


def test_window_that_a_clock_leaves_out_opens_on_the_next_day() -> None:
    """From 02:00 to 03:00 there is nothing on the day when clocks go forward; a start in it is counted on."""
    window = ReadWindow(start="02:30", end="03:10", timezone="Europe/Berlin")

    assert at("2026-03-30T00:30") == next_opening([window], at("2026-03-29T00:00"))


def test_time_that_comes_twice_is_the_first() -> None:
    """A window within the hour that is repeated opens once."""
    window = ReadWindow(start="02:10", end="02:50", timezone="Europe/Berlin")

    assert is_open([window], at("2026-10-25T00:20"))
    assert not is_open([window], at("2026-10-25T01:20"))


def test_whole_day_is_never_closed() -> None:
    """`24:00` is the next midnight, so that one day's window meets the next one's."""
    whole = ReadWindow(start="00:00", end="24:00")

    assert is_open([whole], at("2026-01-31T23:59:59.999999"))
    assert is_open([whole], at("2026-02-01T00:00"))


def test_any_of_several_windows_will_do() -> None:
    """And the next opening is the nearest of them."""
    noon = ReadWindow(start="12:00", end="13:00")

    assert is_open([NIGHT, noon], at("2026-01-31T12:30"))
    assert at("2026-01-31T12:00") == next_opening([NIGHT, noon], at("2026-01-31T09:00"))
    assert at("2026-01-31T12:30") == next_opening([noon], at("2026-01-31T12:30"))
    assert is_open([], at("2026-01-31T09:00"))


@pytest.mark.parametrize(
    "block",
    [
        {"start": "6:00", "end": "22:00"},
        {"start": 1320, "end": "06:00"},
        {"start": "22:00", "end": "25:00"},
        {"start": "22:60", "end": "06:00"},
        {"start": "22:00", "end": "22:00"},
        {"start": "24:00", "end": "06:00"},
        {"start": "22:00", "end": "06:00", "days": []},
        {"start": "22:00", "end": "06:00", "timezone": "Mars/Base"},
    ],
)
def test_window_that_is_none_is_refused(block: dict[str, object]) -> None:
    """Times without quotes are numbers in YAML; equal ends are no time."""
    with pytest.raises(ValidationError):
        ReadWindow.model_validate(block)


@pytest.mark.parametrize("block", [{}, {"rows_per_second": 0}, {"bytes_per_second": 0}, {"rows_per_second": -1}])
def test_rate_of_nothing_is_refused(block: dict[str, int]) -> None:
    """A rate of 0 would wait for ever."""
    with pytest.raises(ValidationError):
        RateLimit.model_validate(block)


def test_months_are_of_utc_and_end_in_december_too() -> None:
    """One calendar for all readers of one store."""
    assert "2026-12" == month_of(at("2026-12-31T23:59"))
    assert at("2027-01-01T00:00") == month_end(at("2026-12-31T23:59"))
    assert at("2026-02-01T00:00") == month_end(at("2026-01-31T12:00"))


def test_budget_is_reached_by_whichever_number_is_reached_first() -> None:
    """Rows or bytes."""
    budget = Budget(rows_per_month=100, bytes_per_month=1000)

    assert 0.5 == budget.share(50, 100)
    assert 1.0 == budget.share(50, 1000)
    assert "50 of 100 rows and 800 of 1,000 bytes (80%)" == budget.text(50, 800)
