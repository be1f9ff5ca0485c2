"""The `after=` windows of an export as one chain: each starts where another one ended.

Belongs here: where the chain ends, and what is remembered there. Not here: reading manifests (`manifest.py`), which
ones a new one replaces (`supersede.py`).

A place in the chain is a cursor value and a visit: `after=10` starts at 10 for the first time, `after+1=10` after one
window that found nothing but rows of the value 10 itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from rivet_resources.commit.manifest import Manifest
from rivet_resources.commit.manifest_entries import ManifestCursor, ManifestEdge
from rivet_resources.contracts.rows.boundary import Boundary, Edge
from rivet_resources.errors import ManifestUnreadable

Place = tuple[str | None, int]  # a cursor value, None for the beginning; and a visit


def starts_at(cursor: ManifestCursor) -> Place:
    """Return the place where a window starts."""
    return cursor.low, cursor.visit


def ends_at(cursor: ManifestCursor) -> Place:
    """Return the place where a window ends; its own start, where it found nothing."""
    return starts_at(cursor) if cursor.high is None else (cursor.high, cursor.high_visit)


def resolve_cursor(manifests: Mapping[str, Manifest]) -> str | None:
    """Find how far an export has committed: the end of the chain; None when nothing was found yet.

    A chain whose beginning was removed from the destination starts at the one place where no window ends.

    Raises:
        ManifestUnreadable: the windows form more than one chain, or a circle.
    """
    return _end(manifests)[0]


def resolve_boundary(manifests: Mapping[str, Manifest]) -> Boundary:
    """Find what the windows remember of the rows that have the value of `resolve_cursor`.

    Raises:
        ManifestUnreadable: as `resolve_cursor`.
    """
    value, visit = _end(manifests)
    return Boundary(visit) if value is None else sum_boundary(value, visit, manifests)


def sum_boundary(value: str, visit: int, manifests: Mapping[str, Manifest]) -> Boundary:
    """Add up the rows of one cursor value over the windows that end or start there, before the given visit."""
    cursors = [each.cursor for each in manifests.values() if each.cursor is not None]
    # A window that began at the value as well is counted among `began`, or its rows would be added twice.
    ended = [each for each in cursors if each.high == value != each.low and each.high_edge]
    began = [each for each in cursors if each.low == value and each.visit < visit]
    schemes = {each.scheme for each in (*ended, *began)}
    # The window that ended there is gone, or says nothing of its rows.
    if len(ended) != 1 or len(schemes) != 1:
        return Boundary(visit)
    edges = [*(edge_of(each.high_edge) for each in ended), *(edge_of(each.low_edge) for each in began)]
    return Boundary(visit, schemes.pop(), sum(edges, Edge()))


def edge_of(edge: ManifestEdge | None) -> Edge:
    """Return the rows that a manifest has at one end."""
    return Edge() if edge is None else Edge(edge.rows, edge.ids)


def _end(manifests: Mapping[str, Manifest]) -> Place:
    cursors = [each.cursor for each in manifests.values() if each.cursor is not None]
    # By place and not by value alone: windows that found only rows of their own start value would all begin at one key,
    # and hide each other here.
    # Values are never compared: their order is the database's business.
    links = {starts_at(cursor): ends_at(cursor) for cursor in cursors}
    # A window that found nothing ends where it starts, and does not make its own start an inner one.
    reached = {end for start, end in links.items() if end != start}
    # Not necessarily the beginning: `keep` may have dropped the first windows of a chain.
    starts = [start for start in links if start not in reached]
    # None is a circle, several are a gap. Taking the longest would skip rows, or export some twice, and nobody would
    # know.
    if cursors and len(starts) != 1:
        raise ManifestUnreadable(
            f"The after= windows of export {next(iter(manifests.values())).export_name} form {len(starts)} chains, not "
            f"one, so its cursor cannot be told. Restore the missing manifests, or empty the folder and start again."
        )
    place: Place = starts[0] if starts else (None, 0)
    for _ in links:  # no chain is longer
        place = links.get(place, place)
    return place
