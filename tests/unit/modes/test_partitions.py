"""Partition keys and the windows they name."""

from datetime import UTC, datetime

import pytest

from rivet_assets.modes.full import Full
from rivet_assets.modes.partitions import due_keys, folder_of, partitions_of, window_of
from rivet_assets.modes.time_window import TimeWindow
from rivet_resources.errors import ConfigError

COMMON = {"name": "orders", "table": "orders", "format": "csv", "destination": {"type": "local", "path": "/tmp/lake"}}


def windows(**keys) -> TimeWindow:
    """Build an export of windows."""
    return TimeWindow(**COMMON, mode="time_window", time_column="at", **keys)


def at(*parts: int) -> datetime:
    """Build an instant in UTC."""
    return datetime(*parts, tzinfo=UTC)


def test_only_windows_of_time_have_partitions():
    """Other modes have one window at a time."""
    assert partitions_of(Full(**COMMON)) is None


NEW_YORK = "America/New_York"
CASES = [
    ("day", "UTC", "2026-01-31", at(2026, 1, 31), at(2026, 2, 1), "dt=2026-01-31"),
    ("day", NEW_YORK, "2026-01-31", at(2026, 1, 31, 5), at(2026, 2, 1, 5), "dt=2026-01-31"),
    ("day", NEW_YORK, "2026-03-08", at(2026, 3, 8, 5), at(2026, 3, 9, 4), "dt=2026-03-08"),  # 23 hours
    ("hour", "UTC", "2026-01-31-05:00", at(2026, 1, 31, 5), at(2026, 1, 31, 6), "dt=2026-01-31T05"),
    ("week", "UTC", "2026-01-05", at(2026, 1, 5), at(2026, 1, 12), "dt=2026-01-05"),
    ("month", "UTC", "2026-01-01", at(2026, 1, 1), at(2026, 2, 1), "dt=2026-01-01"),
]


@pytest.mark.parametrize(("granularity", "zone", "key", "start", "end", "folder"), CASES)
def test_key_names_a_half_open_window_in_utc(granularity, zone, key, start, end, folder):
    """Bounds are aware UTC instants, wherever the day begins."""
    window = window_of(windows(granularity=granularity, timezone=zone, start="2026-01-01"), key)

    assert (key, start, end, folder) == (window.key, window.start, window.end, window.folder)


def test_first_window_holds_the_start():
    """Weeks begin on Monday and months on the first, so no row after `start` is left out."""
    week = partitions_of(windows(granularity="week", start="2026-01-01"))
    month = partitions_of(windows(granularity="month", start="2026-01-15"))

    assert ["2025-12-29", "2026-01-01"] == [week.get_first_partition_key(), month.get_first_partition_key()]


def test_end_is_exclusive():
    """The day `end` is not exported any more."""
    keys = partitions_of(windows(start="2026-01-01", end="2026-01-03")).get_partition_keys()

    assert ["2026-01-01", "2026-01-02"] == keys


@pytest.mark.parametrize("key", ["2025-12-31", "2026-01-03", "nonsense", "2026-01-01-00:00"])
def test_unknown_key_is_refused_with_those_there_are(key):
    """The message names the first and the last key."""
    with pytest.raises(ConfigError, match="2026-01-01 to 2026-01-02"):
        window_of(windows(start="2026-01-01", end="2026-01-03"), key)


def test_hour_that_comes_twice_has_two_folders():
    """Where clocks go back, the offset keeps the two hours apart."""
    assert folder_of("2026-10-25-02:00+0100") == "dt=2026-10-25T02+0100"
    assert folder_of("2026-10-25-02:00+0200") == "dt=2026-10-25T02+0200"


NOW = at(2026, 3, 10, 12, 30)


def test_without_a_key_the_latest_ended_window_is_due():
    """The day that is still open is not taken."""
    assert due_keys(windows(start="2026-01-01"), at=NOW) == ["2026-03-09"]


def test_days_window_takes_the_last_days_and_the_open_one():
    """As in the original, `days_window: 2` without `start` reads from midnight two days ago up to now."""
    assert due_keys(windows(days_window=2), at=NOW) == ["2026-03-08", "2026-03-09", "2026-03-10"]


def test_days_window_with_a_start_leaves_the_open_window_alone():
    """`start` asks for final windows only."""
    assert due_keys(windows(days_window=2, start="2026-01-01"), at=NOW) == ["2026-03-08", "2026-03-09"]
