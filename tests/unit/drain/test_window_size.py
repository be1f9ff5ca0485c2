"""How many changes a window may have, by what the one before came to."""

from __future__ import annotations

import pytest

from rivet_resources.drain.window_size import FEWEST_CHANGES, MOST_CHANGES, WindowSize


def test_ordinary_changes_are_read_half_a_million_at_a_time() -> None:
    """Before anything is known, and after windows of small rows."""
    size = WindowSize()
    assert size.changes == MOST_CHANGES

    size.learn(MOST_CHANGES, 200 * MOST_CHANGES)
    size.learn_seconds(MOST_CHANGES, 2.0)

    assert size.changes == MOST_CHANGES


def test_large_changes_make_windows_of_fewer() -> None:
    """Half a gigabyte of documents of a megabyte is no reason to go below what a commit is worth."""
    size = WindowSize()
    size.learn(100, 100 * 10_000)
    assert size.changes == (512 << 20) // 10_000

    size.learn(100, 100 << 20)

    assert size.changes == FEWEST_CHANGES


@pytest.mark.parametrize(("changes", "expected"), [(50_000, 100_000), (10, MOST_CHANGES), (0, MOST_CHANGES)])
def test_windows_take_about_as_long_as_they_may(changes: int, expected: int) -> None:
    """Ten seconds, at five for 50,000; what is mostly its commit, or nothing at all, says nothing."""
    size = WindowSize(seconds=10.0)
    size.learn(changes, changes * 100)
    size.learn_seconds(changes, 5.0)

    assert size.changes == expected
