"""What the first page of made-up rows is: arithmetic, which no planner needs to think about.

Belongs here: the same answer as its siblings give. Not here: making rows (pages.py).
"""

from __future__ import annotations

from rivet_resources.contracts.evidence import Explained
from rivet_resources.contracts.relation import Chunk
from rivet_resources.engines.datagen.pages import parse_numbers
from rivet_resources.engines.datagen.rows import Recipe, numbers


def explain(recipe: Recipe, chunk: Chunk, *, end: int | None) -> Explained:
    """Return which numbers a chunk makes rows of; see the protocol.

    Args:
        end: of the stream; None when it has none.
    """
    # The arithmetic of the read itself, so that what is told is what would be made.
    within, rest = parse_numbers(chunk, numbers(recipe), end)
    made = (within.high or 0) - within.low
    filtered = ", then filtered" if rest else ""
    return Explained(
        f"{chunk.relation} {chunk.identity}",
        "other",
        rows=made,
        text=f"{made} rows are made{filtered}; no server is asked",
    )
