"""Ranges of a key as chunks, for engines that read along one. Pure.

Belongs here: predicates from rendered bounds, and the name of a range across runs. Not here: finding bounds, and
whether to cut at all (`*_session.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from rivet_resources.contracts.relation import Chunk, Relation
from rivet_resources.engines.shared.statements import conjunction


def identity(relation: Relation, where: str) -> str:
    """Name a key-range chunk across runs."""
    return hashlib.sha256(f"{len(relation.sql)}:{relation.sql}{where}".encode()).hexdigest()[:16]


def half_open(name: str, bounds: Sequence[str], *, where: str) -> tuple[str, ...]:
    """Write predicates (low, high] between ascending rendered bounds, the first open below, the last above."""
    return tuple(
        conjunction([where, f"{name} > {low}" if low else "", f"{name} <= {high}" if high else ""])
        for low, high in zip([None, *bounds], [*bounds, None], strict=True)
    )


def key_chunks(relation: Relation, ranges: Sequence[str]) -> tuple[Chunk, ...]:
    """Give one chunk per predicate, whose pages walk the relation's key."""
    return tuple(
        Chunk(
            index=i,
            reader="keyset",
            relation=relation.sql,
            where=part,
            key=relation.key,
            identity=identity(relation, part),
        )
        for i, part in enumerate(ranges)
    )
