"""Chunks as a source reads them: ranges of a key as predicates, their halves, the key that pages go along.

Belongs here: rendering. Not here: which ranges there are (`chunked.py`), their arithmetic (`key_ranges.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from rivet_assets.modes.by_value import WindowRows
from rivet_assets.modes.key_ranges import Range, middle
from rivet_assets.modes.protocol import Planning
from rivet_resources.contracts.aligning import Aligns
from rivet_resources.contracts.relation import Chunk, KeyRange, Relation
from rivet_resources.contracts.source import Source
from rivet_resources.contracts.types import Column
from rivet_resources.errors import SourceError


def key_ranges(planning: Planning, column: Column, ranges: Sequence[Range]) -> list[KeyRange]:
    """Return what chunks cover: from the least to the greatest value that there was when it was asked for.

    Where the rows will be of a later instant (`contracts/aligning.py`), the first and the last are open to their side:
    a key may have come meanwhile.
    """
    found = [KeyRange(column.name, each.low, each.high, each.low_inclusive, each.high_inclusive) for each in ranges]
    if found and isinstance(planning.source, Aligns) and planning.source.is_aligned:
        found[0] = replace(found[0], low=None)
        found[-1] = replace(found[-1], high=None)
    return found


def within_window(chunk: Chunk, rows: WindowRows) -> Chunk:
    """Narrow a chunk to the rows of its window; its range alone does not say then which rows it has."""
    if not rows.where:
        return chunk
    return replace(chunk, where=" AND ".join(filter(None, (rows.where, chunk.where))), range=None)


def within(keys: KeyRange, column: Column, source: Source) -> str:
    """Render a range as a predicate, its bounds as typed literals; '' for all keys.

    Raises:
        SourceError: a bound is not a value of the column's type.
    """
    quoted, ends = source.quote(column.name), []
    if keys.low is not None:
        ends.append(f"{quoted} {'>=' if keys.low_inclusive else '>'} {source.literal(keys.low, column)}")
    if keys.high is not None:
        ends.append(f"{quoted} {'<=' if keys.high_inclusive else '<'} {source.literal(keys.high, column)}")
    return " AND ".join(ends)


def halves(piece: Range, column: Column, source: Source) -> tuple[str, ...]:
    """Return the predicates that part a range in its middle; () where it has none."""
    found = middle(piece, column)
    if found is None:
        return ()
    try:
        name, bound = source.quote(column.name), source.literal(found, column)
    except SourceError:  # `columns:` gives cells another type than the server compares
        return ()
    return f"{name} <= {bound}", f"{name} > {bound}"


def page_key(relation: Relation, column: Column) -> tuple[str, ...]:
    """Page along the chunk's column, then the key, so that ties are told apart."""
    return (column.name, *(name for name in relation.key if name != column.name))


def is_whole(column: Column) -> bool:
    """Return whether the column holds whole numbers, so that ranges of equal width exist."""
    return bool(pa.types.is_integer(column.arrow))
