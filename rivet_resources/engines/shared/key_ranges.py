"""Ranges of a key as chunks, for engines that read along one. Pure.

Belongs here: predicates from rendered bounds, and the name of a range across runs. Not here: finding bounds, and
whether to cut at all (`engines/*/session.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Protocol

from rivet_resources.contracts.dialect import Dialect
from rivet_resources.contracts.relation import Chunk, Relation
from rivet_resources.contracts.types import Column
from rivet_resources.engines.shared.statements import conjunction


def identity(relation: Relation, where: str) -> str:
    """Name a key-range chunk across runs."""
    # The length in front keeps the two texts apart: no other pair makes the same one.
    return hashlib.sha256(f"{len(relation.sql)}:{relation.sql}{where}".encode()).hexdigest()[:16]


def half_open(name: str, bounds: Sequence[str], *, where: str) -> tuple[str, ...]:
    """Write predicates (low, high] between ascending rendered bounds, the first open below, the last above."""
    return tuple(
        # Half-open to the left, so each row is in one range and no bound is in two; open at both ends, since
        # statistics do not know rows that came later.
        conjunction([where, f"{name} > {low}" if low else "", f"{name} <= {high}" if high else ""])
        for low, high in zip([None, *bounds], [*bounds, None], strict=True)
    )


class Statistics(Protocol):
    """What is needed of a session."""

    def quantiles(self, relation: Relation, column: Column, pieces: int) -> tuple[str, ...]: ...


def key_chunks(
    session: Statistics, relation: Relation, dialect: Dialect, *, where: str, pieces: int
) -> tuple[Chunk, ...]:
    """Cut by ranges of the key, as the session's statistics have them; each chunk's pages walk the relation's key.

    A composite key is not cut: there is one chunk then.
    """
    # By the first column of the key, and only where it is the whole key: ranges of a prefix could not be named by
    # one bound.
    column = relation.column(relation.key[0])
    literals = []
    if len(relation.key) == 1 and column is not None:
        literals = [dialect.literal(bound, column) for bound in session.quantiles(relation, column, pieces)]
    ranges = half_open(dialect.quote(relation.key[0]), literals, where=where)
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
