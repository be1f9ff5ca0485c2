"""What the first page of made-up rows is: arithmetic, which no planner needs to think about.

Belongs here: the same answer as its siblings give. Not here: making rows (pages.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rivet_resources.contracts.evidence import Explained
from rivet_resources.contracts.relation import Chunk
from rivet_resources.contracts.settings import Pace
from rivet_resources.contracts.types import Column
from rivet_resources.engines.datagen.pages import wanted
from rivet_resources.engines.datagen.rows import numbers

if TYPE_CHECKING:
    from rivet_resources.engines.datagen.session import DatagenSession


def explain(session: DatagenSession, chunk: Chunk, columns: tuple[Column, ...], *, pace: Pace) -> Explained:
    """Say which numbers a chunk makes rows of; see the protocol."""
    within, rest = wanted(chunk, numbers(session.recipe), session.source.max_events or None)
    made = (within.high or 0) - within.low
    filtered = ", then filtered" if rest else ""
    return Explained(
        f"{chunk.relation} {chunk.identity}",
        "other",
        rows=made,
        text=f"{made} rows are made{filtered}; no server is asked",
    )
