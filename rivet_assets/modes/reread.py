"""Reading a committed window again: the same rows by the same predicate, found from its manifest.

Belongs here: what modes share of that. Not here: the predicate of one mode (its own file), comparing
(`rivet_assets/prove/reconcile.py`), publishing (`rivet_resources/prove/replace_chunks.py`).

A manifest may be edited, so nothing in it is ever executed: its bounds are canonical texts, which the source checks
and quotes anew, and its columns are looked up by name in the relation as it is now.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

from rivet_assets.modes.chunk_predicates import is_whole, page_key, within
from rivet_assets.modes.protocol import Planning, compose
from rivet_resources.commit.manifest import Manifest
from rivet_resources.commit.manifest_entries import ManifestChunk
from rivet_resources.contracts.extract import Extract, Window
from rivet_resources.contracts.relation import Chunk, KeyRange, Relation
from rivet_resources.contracts.types import Column
from rivet_resources.errors import BoundsUnusable, SourceError

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export


class Again(Protocol):
    """An export whose windows can be read again."""

    name: str
    mode: str

    def predicate(self, planning: Planning, manifest: Manifest) -> str:
        """Return in SQL which rows of the relation a committed window holds; '' for all."""

    def shares(self, planning: Planning, manifest: Manifest) -> tuple[int, int]:
        """Count what a committed window has beyond the rows of its predicate, or lacks; and what the next run takes."""

    def again(self, planning: Planning, manifest: Manifest) -> Extract:
        """Describe the rows of a committed window once more, under the same window key; no row moved."""


def key_range(chunk: ManifestChunk) -> KeyRange:
    """Return the key values of a chunk as its manifest has them."""
    return KeyRange(**chunk.range.model_dump())


def chunk_column(manifest: Manifest, relation: Relation) -> Column:
    """Find the column that a window was cut by.

    Raises:
        BoundsUnusable: the table has no such column, or the chunks name several.
    """
    names = {chunk.range.column for chunk in manifest.chunks}
    column = relation.column(next(iter(names))) if len(names) == 1 else None
    if column is None:
        raise BoundsUnusable(
            f"Window {manifest.window} of export {manifest.export_name} was cut by a column that {relation.name} does "
            f"not have. Was it renamed, or the manifest edited? `rivet repair --execute` reads the window again."
        )
    return column


def range_predicate(keys: KeyRange, column: Column, planning: Planning) -> str:
    """Render a range of a manifest.

    Raises:
        BoundsUnusable: a bound is no value of the column's type.
    """
    try:
        return within(keys, column, planning.source)
    except SourceError as error:
        raise BoundsUnusable(
            f"A bound of a chunk is no value of column {column.name} ({column.native}). Was the column altered, or the "
            f"manifest edited? `rivet repair --execute` reads the window again."
        ) from error


def chunks_again(planning: Planning, manifest: Manifest, numbers: Collection[int]) -> tuple[Chunk, ...]:
    """Return these chunks of a window as they were cut, to be read as the source is now.

    Raises:
        BoundsUnusable
    """
    relation = planning.relation
    column = chunk_column(manifest, relation)
    by_key = planning.session.snapshot is None and bool(relation.key)
    return tuple(
        Chunk(
            index=chunk.chunk,
            reader="keyset" if by_key else "cursor",
            relation=relation.sql,
            where=range_predicate(key_range(chunk), column, planning),
            key=page_key(relation, column),
            range=key_range(chunk),
        )
        for chunk in manifest.chunks
        if chunk.chunk in numbers
    )


def extract_chunks(export: Export, planning: Planning, manifest: Manifest, numbers: Collection[int]) -> Extract:
    """Describe these chunks of a window once more; no row moved.

    Raises:
        BoundsUnusable
    """
    column = chunk_column(manifest, planning.relation)
    chunks = chunks_again(planning, manifest, numbers)
    return compose(export, planning, window=Window(manifest.window), chunks=chunks, decisive=(column.name,))


def gaps(manifest: Manifest, column: Column) -> Iterator[KeyRange]:
    """Yield the key values between the chunks of a window; none, where its manifest is as Rivet wrote it."""
    for one, next_one in pairwise(map(key_range, manifest.chunks)):
        if not _meet(one, next_one, column):
            yield KeyRange(
                one.column, one.high, next_one.low, not one.high_inclusive, not next_one.low_inclusive
            )  # fmt: skip


def below(manifest: Manifest) -> KeyRange | None:
    """Return the key values under the first chunk; None when it is open to that side."""
    first = key_range(manifest.chunks[0])
    return None if first.low is None else KeyRange(first.column, None, first.low, True, not first.low_inclusive)


def above(manifest: Manifest) -> KeyRange | None:
    """Return the key values over the last chunk: rows that came after the plan was made."""
    last = key_range(manifest.chunks[-1])
    return None if last.high is None else KeyRange(last.column, last.high, None, not last.high_inclusive, True)


def _meet(one: KeyRange, other: KeyRange, column: Column) -> bool:
    """Return whether no value fits between two ranges: one bound of both, or neighbouring whole numbers."""
    if one.high is None or other.low is None:
        return one.high is None and other.low is None
    if one.high == other.low:
        return one.high_inclusive or other.low_inclusive
    both = one.high_inclusive and other.low_inclusive and is_whole(column)
    return both and one.high.lstrip("-").isdecimal() and other.low == str(int(one.high) + 1)
