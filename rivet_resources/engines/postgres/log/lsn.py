"""Places in PostgreSQL's log, and what an instant has seen of it: texts, numbers, and nothing that connects.

Belongs here: LSNs as numbers, `Position` and back, the snapshot that a handover leaves behind. Not here: SQL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import numpy.typing as npt

from rivet_resources.contracts.change_log import Position
from rivet_resources.errors import CheckpointUnusable

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

EPOCH_2000 = datetime(2000, 1, 1, tzinfo=UTC)
MICROS_1970_TO_2000 = 946_684_800_000_000
XIDS = 1 << 32


def lsn_number(text: str) -> int:
    """Read `16/B374D848` as the number it stands for.

    Raises:
        CheckpointUnusable: it is no such text.
    """
    high, slash, low = text.partition("/")
    try:
        if not slash:
            raise ValueError
        return (int(high, 16) << 32) | int(low, 16)
    except ValueError:
        raise CheckpointUnusable(
            f"{text!r} is no PostgreSQL log position; those look like 16/B374D848. "
            "Restore the checkpoint, or take a new snapshot."
        ) from None


def lsn_text(number: int) -> str:
    """Write a position as PostgreSQL does."""
    return f"{number >> 32:X}/{number & 0xFFFFFFFF:X}"


def position(number: int, more: Mapping[str, str] | None = None) -> Position:
    """Make the position at which a drain may stop from the `end_lsn` of a commit, or a flushed end of the log."""
    # Keys are compared as texts: with leading zeros they sort as the numbers do.
    return Position(key=f"{number:016x}", text=lsn_text(number), type="PostgresLsn", more=dict(more or {}))


def moment(micros: int) -> datetime:
    """Turn microseconds since 2000, as the log states commit times, into an aware UTC time."""
    return EPOCH_2000 + timedelta(microseconds=micros)


@dataclass(frozen=True)
class SnapshotVisibility:
    """What a snapshot has seen: transactions whose rows a copy holds already. The empty text has seen nothing."""

    xmin: int
    xmax: int
    running: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> SnapshotVisibility:
        """Read what `pg_current_snapshot()` gave: `xmin:xmax:xip,…`.

        Raises:
            CheckpointUnusable: it is no such text.
        """
        if not text:
            return cls(0, 0, ())
        try:
            low, high, running = text.split(":")
            return cls(int(low), int(high), tuple(int(xid) for xid in running.split(",") if xid))
        except ValueError:
            raise CheckpointUnusable(
                f"{text!r} is no snapshot of PostgreSQL; those look like 10:20:10,14. "
                "Reset the checkpoint of this export and take a new snapshot."
            ) from None

    def holds(self, xids: Numbers) -> Mask:
        """Return which transactions, numbered with 32 bits as the log does, the snapshot has seen."""
        if not self.xmax:
            return np.zeros(len(xids), bool)
        # The log leaves the epoch out. Of all numbers that end in these 32 bits the one nearest to xmax is meant, since
        # no two live transactions are further apart than half of them.
        apart = (xids - self.xmax + XIDS // 2) % XIDS - XIDS // 2
        whole = self.xmax + apart
        running = np.isin(whole, np.array(self.running, np.int64))
        # `pg_current_snapshot()`: below xmin all have ended, from xmax on none had begun; of those between, all but the
        # listed ones (`cdc.md`, section 8).
        visible: Mask = (whole < self.xmin) | ((whole < self.xmax) & ~running)
        return visible
