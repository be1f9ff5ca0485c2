"""What a drain sensor remembers between ticks, as its cursor: what it asked for, and what it told.

Belongs here: the text of the cursor. Not here: what follows from it (`drain_sensor.py`). It is decoration: a cursor
that is lost, cut or of another version is an empty one.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace

FORGET_SECONDS = 30 * 86_400.0


@dataclass(frozen=True)
class DrainTick:
    """What is known of one export; times in unix seconds, 0: never."""

    place: str = ""  # where we stood and the log ended when a drain was last asked for
    asked_at: float = 0.0
    kind: str = ""  # what was last told, summed up
    told_at: float = 0.0
    reached: str = ""  # the committed position at the last look, as a sort key
    waiting_since: float = 0.0  # that changes wait behind it, and nobody drained them


@dataclass
class DrainCursor:
    """The memory of one sensor, by export."""

    exports: dict[str, DrainTick] = field(default_factory=dict)

    @classmethod
    def read(cls, cursor: str | None) -> DrainCursor:
        """Read a cursor; what cannot be read was never remembered."""
        try:
            entries = json.loads(cursor or "{}")
            return cls({str(name): DrainTick(**entry) for name, entry in entries.items()})
        except (ValueError, TypeError, AttributeError):
            return cls()

    def of(self, name: str) -> DrainTick:
        """Return what is known of an export."""
        return self.exports.get(name, DrainTick())

    def ask(self, name: str, place: str, *, at: float) -> None:
        """Note that a drain was asked for."""
        self.exports[name] = replace(self.of(name), place=place, asked_at=at)

    def tell(self, name: str, kind: str, *, at: float) -> None:
        """Note what was told."""
        self.exports[name] = replace(self.of(name), kind=kind, told_at=at)

    def wait(self, name: str, reached: str, *, since: float) -> None:
        """Note since when changes wait behind a position; 0: none do."""
        self.exports[name] = replace(self.of(name), reached=reached, waiting_since=since)

    def text(self, now: float) -> str:
        """Write the cursor; exports that nobody spoke of for a month are left out."""
        kept = {
            name: asdict(each)
            for name, each in self.exports.items()
            if now - max(each.asked_at, each.told_at, each.waiting_since) < FORGET_SECONDS
        }
        return json.dumps(kept, sort_keys=True)
