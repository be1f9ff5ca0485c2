"""The size of pages: as large as bytes and seconds allow, whatever a statement costs before its first row."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from rivet_resources.contracts.settings import Tuning, pace
from rivet_resources.engines.shared.page_size import LONGEST_SECONDS, TARGET_BYTES, FixedCost, Measured, Size

FAST = pace(Tuning(profile="fast"), None)
BLOCK = 8_000  # bytes in Arrow of what one block holds
Cost = Callable[[int], float]  # asked → milliseconds


def sizes(cost: Cost, *, pages: int = 40, first: int = 8) -> list[tuple[int, float]]:
    """Page something: what each page asked for, and its milliseconds."""
    size = Size(now=first, most=65_536, rows=None, pace=FAST)
    told = []
    for _ in range(pages):
        asked = size.now
        ms = cost(asked)
        told.append((asked, ms))
        size = size.after(asked, Measured(rows=asked, nbytes=asked * BLOCK, statement_ms=ms))
    return told


@pytest.mark.parametrize("away_ms", [0, 20, 60, 150, 450, 1500])
def test_far_server_is_asked_for_pages_of_the_usual_size(away_ms: float) -> None:
    """The way there and back is not saved by smaller pages: they shrank to one block, or stayed at the first eight."""
    told = sizes(lambda asked: 1 + away_ms + 0.05 * asked)

    assert TARGET_BYTES / 2 < told[-1][0] * BLOCK <= TARGET_BYTES
    # What the size itself makes stays below what a statement may take.
    assert max(ms for _, ms in told) - away_ms < LONGEST_SECONDS * 1000


@pytest.mark.parametrize("away_ms", [0, 150])
@pytest.mark.parametrize("each_ms", [2, 20, 60])
def test_slow_rows_make_pages_small_wherever_the_server_is(away_ms: float, each_ms: float) -> None:
    """A statement's own time stays about its half second at most, and its usual one below a quarter."""
    told = sizes(lambda asked: 1 + away_ms + each_ms * asked)

    assert max(ms for _, ms in told[1:]) - away_ms <= 2 * LONGEST_SECONDS * 1000
    assert each_ms * told[-1][0] <= LONGEST_SECONDS * 1000


def test_first_statement_that_takes_longer_misleads_for_a_moment_only() -> None:
    """Its session was new (MariaDB 60 ms away): half of its rows took two thirds of its time, and pages stayed so."""
    times = iter([198.0])
    told = sizes(lambda asked: next(times, 129 + 0.002 * asked), first=500)

    assert told[-1][0] * BLOCK > TARGET_BYTES / 2


@pytest.mark.parametrize("seed", range(5))
def test_a_restless_line_does_not_keep_pages_small(seed: int) -> None:
    """Each statement takes up to half as long again by chance."""
    chance = random.Random(seed)
    told = sizes(lambda asked: (100 + 0.05 * asked) * (1 + chance.random() / 2))

    assert sum(asked for asked, _ in told[20:]) / 20 * BLOCK > TARGET_BYTES / 4


def test_part_of_a_table_that_is_slow_cuts_pages_at_once() -> None:
    """Blocks that nobody had read for a while: the page behind the first of them is short again."""
    seen = 0

    def cost(asked: int) -> float:
        nonlocal seen
        seen += 1
        return 1 + (0.05 if seen <= 15 else 5) * asked

    told = sizes(cost)

    assert told[15][1] > 5_000
    assert max(ms for _, ms in told[16:]) <= 2 * LONGEST_SECONDS * 1000


def test_pages_of_one_size_tell_nothing_of_the_fixed_part() -> None:
    """Nor do sizes near each other, which differ by chance."""
    cost = FixedCost()
    for asked, ms in ((100, 50.0), (100, 20.0), (150, 10.0)):
        cost = cost.after(asked, ms)

    assert cost.fixed_ms is None
    assert cost.after(1_000, 190.0).fixed_ms == pytest.approx(0, abs=10)


def test_share_is_of_what_the_seconds_allow() -> None:
    """A source that suffers is asked for a quarter, far or near."""
    size = Size(now=8, most=65_536, rows=None, pace=FAST)
    for _ in range(20):
        page = Measured(rows=size.now, nbytes=size.now * BLOCK, statement_ms=100 + 0.05 * size.now)
        size = size.after(size.now, page)
    lessened = size.after(size.now, Measured(size.now, size.now * BLOCK, 100 + 0.05 * size.now), share=0.25)

    assert size.now // 5 < lessened.now < size.now // 3
