"""How many changes the next window of a drain may have, so that windows stay near a size and a duration.

Belongs here: learning from the windows of this run. Not here: ending a window, which only a log can, after a whole
transaction (`Log.read`).

A log is asked for so many changes, since a server counts changes and neither bytes nor seconds. What one costs differs
by tables and hours, and is told by the window before. A window is all or nothing in scratch room and in what a death
repeats: 500,000 changes of 200 bytes are 100 MB, of documents half a terabyte.
"""

from __future__ import annotations

from dataclasses import dataclass

# A PostgreSQL peek pays for itself from here on (`cdc.md`, 4.3).
MOST_CHANGES = 500_000
FEWEST_CHANGES = 1_000  # a window of fewer costs more than what is in it
FIRST_BYTES = 1_000  # of a change, as long as nobody knows
WINDOW_BYTES = 512 << 20
# Windows at a time: one is read while the one before is published, and a death repeats both.
UNDER_WAY = 2


@dataclass
class WindowSize:
    """What windows aim at, and how many changes that is by now.

    Args:
        size_bytes: of the changes of a window, in memory.
        seconds: from its first change until it is committed; None: as long as it takes.
    """

    size_bytes: int = WINDOW_BYTES
    seconds: float | None = None
    each_bytes: float = FIRST_BYTES
    each_seconds: float = 0.0

    @property
    def changes(self) -> int:
        """Return how many changes the next window may have; a transaction that is longer is never parted."""
        most = min(MOST_CHANGES, self.size_bytes / self.each_bytes)
        # The first window has no duration yet, and is bounded by bytes alone.
        if self.seconds is not None and self.each_seconds > 0:
            most = min(most, self.seconds / self.each_seconds)
        return max(min(FEWEST_CHANGES, MOST_CHANGES), int(most))

    def learn(self, changes: int, size_bytes: int) -> None:
        """Take how large a window was that is read; one without changes says nothing."""
        # The last window alone, no mean: an hour of documents after an hour of counters would fill scratch before a
        # mean noticed.
        if changes:
            self.each_bytes = max(1.0, size_bytes / changes)

    def learn_seconds(self, changes: int, seconds: float) -> None:
        """Take how long a window took that is published."""
        # Most of a small window is its commit, which a larger one pays once too.
        if changes and changes >= FEWEST_CHANGES:
            self.each_seconds = seconds / changes
