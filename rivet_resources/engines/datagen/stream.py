"""The one stream that a source of made-up rows has: how its rows are made, how many, how fast, under which name.

Belongs here: the value that planning, pages and the change log take, and the names of its instants. Not here: the YAML
block (source.py), how one row is made (rows.py).
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rivet_resources.engines.datagen.rows import Recipe
from rivet_resources.errors import SourceError

SNAPSHOT = re.compile(r"seed=(-?\d+) clock=(\S+)")


@dataclass(frozen=True)
class Stream:
    """What the settings say; `seed` and `clock` are drawn for each run where they are None."""

    pattern: str
    name: str
    namespace: str | None
    events_per_second: int  # 0: as fast as it goes
    max_events: int  # rows in all; 0: endless
    has_sequence: bool
    has_timestamp: bool
    custom: tuple[tuple[str, Any], ...]  # (name, JSON value), constant in every row
    seed: int | None
    clock: datetime | None
    makes_changes: bool

    @property
    def relation(self) -> str:
        """Name the stream for people."""
        # A name may hold line ends, and this one goes into messages.
        plain = re.sub(r"\s+", " ", self.name)
        return f"{self.namespace}.{plain}" if self.namespace else plain

    def instant(self) -> str:
        """Return the name of an instant of its rows, seed and clock drawn now where none is set."""
        # 63 bits, so that it stays positive wherever a signed 64-bit number keeps it.
        seed = random.SystemRandom().getrandbits(63) if self.seed is None else self.seed
        return snapshot_name(seed, self.clock or datetime.now(UTC))

    def note(self, snapshot: str) -> str:
        """Return what would make these rows again, where it is not written in the settings."""
        missing = [key for key in ("seed", "clock") if getattr(self, key) is None]
        if not missing:
            return ""
        return f"rows are of {snapshot}; write {' and '.join(missing)} into the source to make the same ones again"

    def recipe(self, *, seed: int, clock: datetime) -> Recipe:
        """Join the settings with a seed and a clock."""
        return Recipe(
            pattern=self.pattern,
            seed=seed,
            clock=clock,
            has_sequence=self.has_sequence,
            has_timestamp=self.has_timestamp,
            custom=self.custom,
        )

    def recipe_at(self, snapshot: str | None) -> Recipe:
        """Join the settings with an instant's seed and clock.

        Raises:
            SourceError: the name is not one of ours.
        """
        found = SNAPSHOT.fullmatch(snapshot or "")
        if found is None:
            raise SourceError(
                "Made-up rows need the name of their instant, which planning gives. Run the export again."
            )
        return self.recipe(seed=int(found[1]), clock=datetime.fromisoformat(found[2]))


def snapshot_name(seed: int, clock: datetime) -> str:
    """Name the one instant all rows are of: everything a task needs beside the settings."""
    return f"seed={seed} clock={clock.astimezone(UTC).isoformat(timespec='microseconds').replace('+00:00', 'Z')}"
