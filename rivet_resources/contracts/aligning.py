"""One instant for several connections, where a server cannot share a snapshot: all begin while nobody may commit.

Belongs here: what a stage asks of such a source. Not here: how the connections meet (`engines/mysql/aligned.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from rivet_resources.contracts.settings import Pace


@dataclass(frozen=True)
class Meeting:
    """Which connections are to begin at one instant; plain data."""

    name: str
    tasks: int
    relation: str  # stands after FROM; '' where only the whole server can be locked

    def place(self, number: int) -> str:
        """Name the instant of one task, as `Extract.snapshot` carries it to the task."""
        return f"{self.name}.{self.tasks}.{number}"


@runtime_checkable
class Aligns(Protocol):
    """A source whose tasks can begin at one instant; each then reads all of its chunks over one connection."""

    @property
    def is_aligned(self) -> bool:
        """Return whether they are to."""

    def align(self, meeting: Meeting, *, application: str, pace: Pace, ended: threading.Event) -> Callable[[], float]:
        """Open a meeting that tasks may come to from now on; what it returns brings it about, and must be called.

        That waits for the tasks, holds commits back while they begin, lets go, and returns for how many seconds commits
        were held back. It raises SourcePermission where the user may not lock, SourceLost where the lock was not to be
        had, or tasks did not begin in time.

        Args:
            ended: set when nobody waits any more.

        Raises:
            SourceUnreachable, SourceAuth, SourceError, ConfigError
        """

    def leave(self, snapshot: str) -> None:
        """End the connection that a task of this process reads over; safe to call twice."""
