"""How large the next page may be: adapting to bytes, to seconds, and to what of them no smaller page would save.

Belongs here: the size of pages, whatever they are counted in. Not here: paging (`paging.py`, `key_walk.py`), slowing
down for a source that suffers (`read/throttle.py`).
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field, replace

from rivet_resources.contracts.settings import Pace
from rivet_resources.contracts.source import Page

MIB = 1024 * 1024
# `engine.md`, section 2: 8-32 MiB of Arrow, a tenth of the timeout, and no statement of a quarter second.
SMALL_BYTES, TARGET_BYTES = 8 * MIB, 16 * MIB
LONGEST_SECONDS = 0.25
GROWTH = 8  # a page is at most so many times as large as the one before it
LONG_GROWTH = 2  # one behind a long statement: what is taken for its fixed part may be a mistake
REMEMBERED = 12  # pages


@dataclass(frozen=True)
class Measured:
    """What is known of a page that was read."""

    rows: int
    nbytes: int  # in Arrow
    statement_ms: float


def measured(page: Page) -> Measured:
    """Measure a page."""
    return Measured(page.table.num_rows, page.nbytes, page.statement_ms)


@dataclass(frozen=True)
class FixedCost:
    """What every statement of a chunk takes however little it asks for: the way there and back, parsing, planning.

    20 ms of way to the server made pages of 8 blocks before this was known, and 60 ms pages of one (2026-11): they
    shrank to save what no smaller page saves.
    """

    seen: tuple[tuple[int, float], ...] = ()  # the last pages: how much was asked for, and the milliseconds
    fixed_ms: float | None = None  # None: all were of one size, which tells nothing

    def after(self, asked: int, statement_ms: float) -> FixedCost:
        """Learn from one more statement."""
        seen = (*self.seen, (asked, statement_ms))[-REMEMBERED:]
        # Of each size the quickest: what a busy server or line adds to single statements is not of their making.
        least: dict[int, float] = {}
        for size, ms in seen:
            least[size] = min(ms, least.get(size, ms))
        # The median of all slopes, so that no single statement decides (Theil and Sen); sizes near each other tell more
        # of chance than of size.
        slopes = [
            (long - short) / (large - small)
            for small, short in least.items()
            for large, long in least.items()
            if large >= 2 * small
        ]
        if not slopes:
            return replace(self, seen=seen)
        slope = max(0.0, statistics.median(slopes))
        fixed = statistics.median(ms - slope * size for size, ms in least.items())
        return FixedCost(seen, max(0.0, min(fixed, *least.values())))


@dataclass(frozen=True)
class Size:
    """How much the next page asks for, in blocks or rows, and the limits it adapts within."""

    now: int
    most: int
    # In blocks how many rows come is not known beforehand, so the user's limit of rows is kept by adapting.
    rows: int | None  # at most so many rows where `now` counts blocks
    pace: Pace
    most_seconds: float = LONGEST_SECONDS
    cost: FixedCost = field(default_factory=FixedCost)

    @property
    def longest_seconds(self) -> float:
        limit = self.pace.statement_timeout_s
        # A tenth of the timeout, since the next page may be on a cold part of the table.
        return min(self.most_seconds, limit / 10) if limit else self.most_seconds

    @property
    def target_bytes(self) -> int:
        memory = self.pace.batch_size_memory_mb
        return min(TARGET_BYTES, memory * MIB) if memory else TARGET_BYTES

    def after(self, asked: int, page: Measured, *, share: float | None = None) -> Size:
        """Adapt to a page that asked for `asked`: towards the target of bytes, down when it took too long.

        Args:
            share: of every limit that holds now, because the source suffers (`read/throttle.py`); None: all.
        """
        cost = self.cost.after(asked, page.statement_ms)
        by_bytes, by_time = self.target_bytes / max(page.nbytes, 1), self._by_time(page.statement_ms, cost)
        factor = min(by_bytes, by_time)
        if share is not None and share < 1:
            return replace(self._lessen(asked, page, share, factor), cost=cost)
        if cost.fixed_ms is None and by_time < min(by_bytes, LONG_GROWTH):
            # Nobody knows yet what a smaller page would save; it is the one that can be tried at no risk.
            factor = min(by_time, 0.5) if asked > 1 else LONG_GROWTH
        if self.rows is not None:
            factor = min(factor, self.rows / max(page.rows, 1))
        # Near enough: sizes that change with every page would follow noise. For their seconds pages grow sooner: if the
        # fixed part is taken for too little, as by a first statement that took longer, only another size shows it.
        if 0.8 < factor < (2 if by_bytes < by_time else 1.25) and self.rows is None:
            return replace(self, cost=cost)
        wanted = int(asked * min(factor, GROWTH))
        return replace(self, now=max(1, min(wanted, self.most)), cost=cost)

    def _by_time(self, statement_ms: float, cost: FixedCost) -> float:
        """Return how many times as large a page may be for its seconds, less those that no smaller one would save."""
        longest = self.longest_seconds * 1000
        # Half of what is allowed, as the next page may be slower than this one.
        usual, fixed = longest / 2, cost.fixed_ms or 0.0
        # Not less than the fixed part: a far server would be asked half of the time or more for nothing.
        factor = min(max(usual, fixed), longest) / max(statement_ms - fixed, 0.01)
        return min(factor, LONG_GROWTH) if statement_ms > usual else factor

    def _lessen(self, asked: int, page: Measured, share: float, factor: float) -> Size:
        """Adapt to a share of the limits; a page of its usual size is cut at once, and nothing grows past the share."""
        factor = min(factor, self.rows / max(page.rows, 1) if self.rows is not None else GROWTH)
        # No tolerance here, unlike in `after`: what the governor asks for is meant for the very next page.
        wanted = int(asked * min(factor * share, GROWTH))
        return replace(self, now=max(1, min(wanted, int(self.most * share) or 1)))
