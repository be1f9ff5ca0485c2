"""Cutting a PostgreSQL table into chunks by blocks. Pure.

Belongs here: arithmetic of `engine.md`, section 5. Not here: which way to cut (session.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from rivet_resources.contracts.relation import Chunk, Leaf

# 256 MB of heap, the upper end of a chunk.
LARGEST_CHUNK_BLOCKS = 32_768
MOST_CHUNKS = 10_000


def block_chunks(leaves: Sequence[Leaf], *, where: str, pieces: int) -> tuple[Chunk, ...]:
    """Cut leaves into ranges of blocks of about equal size, at least one range for each leaf that has blocks.

    About `pieces` chunks, more where a chunk would pass 256 MB and `pieces` asks for several.
    """
    total = sum(leaf.blocks for leaf in leaves)
    size = max(1, -(-total // max(pieces, 1)))
    if pieces > 1:
        size = max(min(size, LARGEST_CHUNK_BLOCKS), -(-total // MOST_CHUNKS))
    ranges = [
        (leaf, low, min(low + even, leaf.blocks))
        for leaf in leaves
        if leaf.blocks
        # Equal ranges in each leaf, not a short one at its end.
        for even in [-(-leaf.blocks // max(1, round(leaf.blocks / size)))]
        for low in range(0, leaf.blocks, even)
    ]
    if not ranges:
        # An empty table has one chunk all the same: a window without any would be one that was never read.
        ranges = [(leaves[0], 0, 0)]
    return tuple(
        Chunk(index=i, reader="blocks", relation=leaf.sql, where=where, blocks=(low, high))
        for i, (leaf, low, high) in enumerate(ranges)
    )
