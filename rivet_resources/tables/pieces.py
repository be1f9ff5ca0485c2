"""Which pieces of a mirror changes touch: those are written again, the others are kept where they lie, by reference.

Belongs here: cutting a mirror into pieces, the key range of each, and which piece a changed key goes to. Not here: the
rows (`places.py`), which of them live (`buckets.py`), removing what is not named any more (`commit/publish.py`).

A piece is what one task wrote. Its range is that of the first column of the key. Keys without an order here (floats,
decimals, UUIDs) are of one piece's kind: all is rewritten.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources.commit.manifest import READ_THREADS
from rivet_resources.commit.manifest_entries import ManifestPart
from rivet_resources.contracts.destination import Root
from rivet_resources.contracts.extract import Piece
from rivet_resources.contracts.parts import ChunkResult, Measures, Part

MB = 1024 * 1024
PIECE_BYTES = 32 * MB  # what is written again for one changed row
MOST_PIECES = 1_000  # of a very large mirror: larger ones, so that its manifest stays small
# Changed keys that the driver holds; more touch every piece anyhow.
MOST_KEYS = 1_000_000
# Pieces times columns: beyond it the manifest would be larger than parts are.
MOST_SUMS = 100_000

Edge = int | str


@dataclass(frozen=True)
class Rewriting:
    """What the next version keeps of a mirror, and where the rows of the rest go.

    `touched` are written again, each by the task of its number; `tail` is one more task, for keys beyond all of them.
    `bounds` are the least keys of these tasks, in order.
    """

    kept: tuple[Piece, ...]
    touched: tuple[Piece, ...]
    bounds: tuple[Edge, ...]

    @property
    def chunks(self) -> int:
        """Return how many tasks write."""
        return len(self.bounds)


@dataclass
class Span:
    """The least and the greatest key of rows that pass; `is_known` until one has no order here."""

    low: Edge | None = None
    high: Edge | None = None
    is_known: bool = True

    def add(self, keys: pa.Array) -> None:
        """Widen it."""
        cells = sortable(keys)
        self.is_known = self.is_known and cells is not None
        found: dict[str, Any] = pc.min_max(cells).as_py() if cells is not None else {"min": None, "max": None}
        if found["min"] is not None:
            self.low = found["min"] if self.low is None or found["min"] < self.low else self.low
            self.high = found["max"] if self.high is None or found["max"] > self.high else self.high

    @property
    def told(self) -> list[Edge | None] | None:
        """Return it as a task's answer has it; None: not known."""
        return [self.low, self.high] if self.is_known else None


def sortable(cells: pa.Array) -> pa.Array | None:
    """Return cells as numbers or texts that sort as Python does; None for a type that has no such order."""
    if isinstance(cells, pa.ExtensionArray):
        cells = cells.storage
    kind = cells.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return cells
    if pa.types.is_integer(kind) and kind != pa.uint64():
        return cells.cast(pa.int64())
    if pa.types.is_date32(kind):
        return cells.cast(pa.int32()).cast(pa.int64())
    return cells.cast(pa.int64()) if pa.types.is_timestamp(kind) else None


# --- which are touched ---------------------------------------------------------------------------


def rewriting(pieces: Sequence[Piece], keys: Sequence[Any], sizes: dict[str, int]) -> Rewriting:
    """Choose what is written again for some changed keys, ascending.

    Args:
        sizes: bytes by path.
    """
    # Pieces without a range hold rows without a key value, which no changed key can touch.
    ordered: list[Any] = sorted((each for each in pieces if each.low is not None), key=lambda each: each.low)
    # A last piece that is still small takes the keys behind it; a full one leaves them to a new piece.
    # Pieces may overlap: then a change touches every piece that may hold its key, and its row goes to the last one that
    # begins before it, so that ranges stay narrow where keys grow.
    is_full = not ordered or sum(sizes[path] for path in ordered[-1].paths) >= PIECE_BYTES
    highest = max((each.high for each in ordered), default=None)
    inside = len(keys) if not is_full else bisect_right(keys, highest) if ordered else 0
    tail, keys = keys[inside:], keys[:inside]
    routed = [_is_any_between(keys, *ends) for ends in pairwise([None, *(each.low for each in ordered[1:]), None])]
    touched = [
        each for each, is_routed in zip(ordered, routed, strict=False) if is_routed or _is_any_within(keys, each)
    ]
    chosen = {id(each) for each in touched}
    return Rewriting(
        kept=tuple(each for each in pieces if id(each) not in chosen),
        touched=tuple(touched),
        bounds=(*(each.low for each in touched), *tail[:1]),
    )


def _is_any_between(keys: Sequence[Any], start: Edge | None, end: Edge | None) -> bool:
    """Return whether a key goes to the piece between two bounds; None: open."""
    first = 0 if start is None else bisect_left(keys, start)
    return first < len(keys) and (end is None or keys[first] < end)


def _is_any_within(keys: Sequence[Any], piece: Any) -> bool:
    """Return whether a piece may hold a key."""
    first = bisect_left(keys, piece.low)
    return first < len(keys) and bool(keys[first] <= piece.high)


# --- pieces as a version keeps them ---------------------------------------------------------------


def piece_of(result: ChunkResult, span: Sequence[Edge | None]) -> Piece:
    """Describe what a task wrote, for the versions that come."""
    measures = result.measures
    return Piece(
        paths=tuple(part.path for part in result.parts),
        low=span[0],
        high=span[1],
        rows=measures.rows,
        nulls={name: count for name, count in measures.nulls.items() if count},
        special_values=measures.special_values,
        checksums={name: str(found) for name, found in measures.checksums.items()},
    )


def measures_of(pieces: Sequence[Piece]) -> Measures:
    """Return what was counted of kept pieces when they were written."""
    return sum(
        (
            Measures(
                rows=each.rows,
                nulls=each.nulls,
                special_values=each.special_values,
                checksums={name: int(found) for name, found in each.checksums.items()},
            )
            for each in pieces
        ),
        Measures(),
    )


def standing_parts(pieces: Sequence[Piece], parts: Sequence[ManifestPart]) -> tuple[Part, ...]:
    """Return the parts of kept pieces as the version before lists them."""
    known = {part.path: part for part in parts}
    wanted = [known[path] for each in pieces for path in each.paths]
    return tuple(
        Part(
            each.path, each.rows, each.size_bytes, each.content_fingerprint, each.content_md5,
            {"sums": each.upload.model_dump()} if each.upload is not None else {},
        )
        for each in wanted
    )  # fmt: skip


# --- a version that is written whole -------------------------------------------------------------


@dataclass
class Cutting:
    """Row groups of base parts in order, dealt to tasks of about equal size."""

    target: int
    bounds: list[Edge | None] = field(default_factory=list)  # by task; None: not known
    filled: int = 0

    def deal(self, groups: Sequence[Group]) -> tuple[int, tuple[int, ...]]:
        """Deal a part; the number of its first task, and the rows at which the next ones begin."""
        first, cuts, row = None, [], 0
        for group in groups:
            if not self.bounds or self.filled >= self.target:
                if first is not None:
                    cuts.append(row)
                self.bounds.append(group.low)
                self.filled = 0
            first = len(self.bounds) - 1 if first is None else first
            self.filled += group.size_bytes
            row += group.rows
        return first or 0, tuple(cuts)


@dataclass(frozen=True)
class Group:
    """A row group: its share of the file, and the least value of a column; None: not known."""

    rows: int
    size_bytes: int
    low: Edge | None


def groups_of(parts: Sequence[tuple[Root, ManifestPart]], key: pa.Field) -> list[list[Group]]:
    """Read the footers of parts, some at a time."""
    with ThreadPoolExecutor(READ_THREADS) as pool:
        return list(pool.map(lambda each: _groups(each[0], each[1], key), parts))


def _groups(root: Root, part: ManifestPart, key: pa.Field) -> list[Group]:
    import pyarrow.parquet as pq  # start

    with root.open(part.path) as file:
        footer = pq.ParquetFile(file).metadata
    found = []
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        columns = {group.column(place).path_in_schema: place for place in range(footer.num_columns)}
        told = group.column(columns[key.name]).statistics if key.name in columns else None
        # The file's own size by rows: the footer tells sizes before compression, which say little of what will be
        # written.
        size = part.size_bytes * group.num_rows // max(1, part.rows)
        found.append(Group(group.num_rows, size, _least(told.min, key) if told and told.has_min_max else None))
    return found


def _least(cell: object, key: pa.Field) -> Edge | None:
    """Return a footer's least value as keys are compared; None where it has no order, or is of an older type."""
    try:
        cells = sortable(pa.array([cell], key.type))
    except (pa.ArrowException, TypeError, ValueError):
        return None
    low: Edge | None = None if cells is None else cells[0].as_py()
    return low
