"""A committed window of `mode: incremental` read again: the same rows, where windows share a cursor value.

Belongs here: which rows at the two ends of a window are its own, and how many of the source's it has to answer for.
Not here: the window (`incremental.py`), the next window (`incremental_boundary.py`), comparing and repairing.

Each row of the source belongs to one window. At the value where a window starts only the rows that its manifest names
are its own: the others are of the window that ended there. At the value where it ends all are its own but those that
later windows name; and at the end of the chain, only those it names, since the next run takes the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rivet_assets.modes.incremental_boundary import CursorColumns, identity_of, is_comparable
from rivet_assets.modes.protocol import Planning
from rivet_resources.commit.chain import edge_of, resolve_cursor
from rivet_resources.commit.manifest import Manifest
from rivet_resources.commit.manifest_entries import ManifestCursor
from rivet_resources.contracts.rows.boundary import MOST_REMEMBERED, Boundary, BoundaryEnds, Edge, Sift
from rivet_resources.errors import EndsUnknown


@dataclass(frozen=True)
class Shared:
    """The rows of a window's two ends: its own, and those of later windows that start where it ends."""

    low: Edge
    high: Edge
    later: Edge
    is_end: bool  # the chain ends where the window does: rows may still come to its value
    is_told: bool  # the manifest says which rows of its highest value it has


def find_shared(manifest: Manifest, cursor: ManifestCursor, windows: Mapping[str, Manifest]) -> Shared:
    """Find what a window shares with others.

    Args:
        windows: the current ones of the export.

    Raises:
        ManifestUnreadable: they form no chain.
    """
    low = edge_of(cursor.low_edge)
    if cursor.high is None or cursor.high == cursor.low:
        return Shared(low, Edge(), Edge(), is_end=False, is_told=False)
    starts = [each.cursor for each in windows.values() if each.cursor and each.cursor.low == cursor.high]
    later = sum((edge_of(each.low_edge) for each in starts), Edge())
    is_end = cursor.high == resolve_cursor(windows)
    return Shared(low, edge_of(cursor.high_edge), later, is_end=is_end, is_told=cursor.high_edge is not None)


def newer_rows(planning: Planning, cursor: CursorColumns, high: str | None, shared: Shared) -> int:
    """Count the rows that came to the last value since, and that the next run takes."""
    if high is None or not (shared.is_end and shared.is_told):
        return 0
    there = f"{cursor.expression} = {planning.source.literal(high, cursor.columns[0])}"
    return max(0, planning.session.count(planning.relation, where=there) - shared.high.rows - shared.later.rows)


def ends_again(
    planning: Planning, cursor: CursorColumns, committed: ManifestCursor, shared: Shared, *, is_public: bool
) -> BoundaryEnds:
    """Return how the rows of a committed window are told from those of others.

    Raises:
        EndsUnknown: its manifest, or a later one, does not say so.
    """
    identity, scheme = identity_of(planning.relation, cursor) if committed.scheme else ((), "")
    low_sift = Sift(_ids(shared.low, committed, scheme), only=True) if shared.low.rows else None
    return BoundaryEnds(
        scheme=scheme,
        identity=identity,
        low=committed.low,
        high=committed.high,
        reads_low=low_sift is not None,
        cursor=cursor.names if scheme and is_comparable(cursor.columns, committed.low, committed.high) else (),
        low_sift=low_sift,
        high_sift=_high_sift(planning, cursor, committed, shared, scheme),
        is_public=is_public,
        before=Boundary(committed.visit),
    )


def _high_sift(
    planning: Planning, cursor: CursorColumns, committed: ManifestCursor, shared: Shared, scheme: str
) -> Sift | None:
    """Return which rows of the highest value are the window's own; None for all.

    Raises:
        EndsUnknown
    """
    same = bool(scheme) and committed.scheme == scheme
    if shared.is_end and shared.is_told and shared.high.ids is not None and same:
        return Sift(shared.high.ids, only=True)
    if shared.later.rows:
        return Sift(_ids(shared.later, committed, scheme))
    # Beyond what is remembered the next run reads nothing of this value again, so all of it may be read here.
    if same and shared.high.rows <= MOST_REMEMBERED and newer_rows(planning, cursor, committed.high, shared):
        raise _unknown(committed)
    return None


def _ids(edge: Edge, committed: ManifestCursor, scheme: str) -> str:
    """Return the rows that a manifest names.

    Raises:
        EndsUnknown: it does not, or in a way that does not fit the relation any more.
    """
    if edge.ids is None or not scheme or committed.scheme != scheme:
        raise _unknown(committed)
    return edge.ids


def _unknown(committed: ManifestCursor) -> EndsUnknown:
    return EndsUnknown(
        f"Several windows have rows of one value of {committed.column}, and the manifests do not say which (those of "
        f"exports with transforms name no rows, and columns may have changed since). Compare counts; after "
        f"`rivet state reset` the next run exports all rows again."
    )
