"""A clock that a test winds: pauses between tries pass at once, and are counted.

Belongs here: standing in for the clock of `retry.py`, by which everything is tried again. Not here: deadlines of lines
that are silent, which only real seconds end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest import mock

from rivet_resources import retry


@dataclass
class FakeClock:
    """What Rivet slept by, in seconds, pause by pause."""

    pauses: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        """Let a pause pass at once."""
        self.pauses.append(seconds)


@contextmanager
def fake_clock() -> Iterator[FakeClock]:
    """Let no try wait for the next, in the block."""
    clock = FakeClock()
    with mock.patch.object(retry, "time", clock):
        yield clock
