"""The life of a planning session: opened again while the fault may pass, closed with its block. For every engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rivet_resources import retry
from rivet_resources.contracts.settings import Pace
from rivet_resources.contracts.source import Session
from rivet_resources.errors import SourceLost

S = TypeVar("S", bound=Session)


@contextmanager
def planning(connect: Callable[[], S], *, pace: Pace) -> Iterator[S]:
    """Yield a session; its connection, and the snapshot it may hold, end with the block."""
    # Only while it opens. A session that broke later held the snapshot of the plan, and a new one would see another
    # instant.
    session = retry.call(connect, pace=pace, on=SourceLost)
    try:
        yield session
    finally:
        session.close()
