"""A mirror whose rows move once, from part to part: keys and places decide, and Spark only brings those together.

Belongs here: the job, and reading and writing the rows that live. Not here: which do (`buckets.py`), changes that say
`as before` (`frames.py` fills them from other rows), which windows are applied (`reading.py`).
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources.commit.manifest import Manifest, schema_of
from rivet_resources.commit.manifest_entries import ManifestPart
from rivet_resources.contracts.destination import Root
from rivet_resources.contracts.extract import Extract, Piece
from rivet_resources.contracts.relation import Chunk
from rivet_resources.contracts.source import Page
from rivet_resources.contracts.types import Column
from rivet_resources.read.executor import ROWS, ROWS_DDL, rebuild
from rivet_resources.spark.cluster import with_variables
from rivet_resources.spark.runtime import SparkRuntime
from rivet_resources.tables.buckets import (
    BUCKETS_DDL,
    KEPT,
    KEPT_DDL,
    KEYS_ROWS,
    REFUSED,
    Numbers,
    RowAddress,
    SurvivingRows,
    as_type,
    batches_of,
    decide,
    kept_rows,
    spread_keys,
)
from rivet_resources.tables.pieces import (
    MOST_KEYS,
    MOST_PIECES,
    PIECE_BYTES,
    Cutting,
    Edge,
    Group,
    Rewriting,
    Span,
    groups_of,
    rewriting,
    sortable,
)
from rivet_resources.tables.reading import BATCH_ROWS, EnvelopeSurvey, PendingWindows
from rivet_resources.tables.shared_keys import KeyJudge
from rivet_resources.tables.writing import SPREAD_BYTES, Derived, told

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BUCKET_ROWS = 1_000_000  # keys and places that a task holds, about 100 MB


def suits(derived: Derived, table: pa.Schema) -> bool:
    """Return whether equal keys are equal cells in Arrow; floats have two zeros, and lists are not encoded."""
    kinds = [table.field(name).type for name in derived.key]
    return not any(pa.types.is_floating(kind) or pa.types.is_nested(kind) for kind in kinds)


@dataclass(frozen=True)
class MirrorLayout:
    """What the next version is made of, and which task writes what; `kept` pieces stay where they are."""

    base: tuple[RowAddress, ...]
    changes: tuple[RowAddress, ...]
    chunks: int
    bounds: tuple[Edge, ...] = ()
    kept: tuple[Piece, ...] = ()

    @property
    def rows(self) -> int:
        """Return how many rows are looked at."""
        return sum(each.rows for each in (*self.base, *self.changes))


def lay_out(
    derived: Derived, todo: PendingWindows, seen: EnvelopeSurvey, schema: pa.Schema, *, parallelism: int
) -> MirrorLayout:
    """Decide what is written again: the pieces that changes touch, or everything where nobody can tell.

    Args:
        schema: of the parts to be written.
    """
    changes = [(derived.changes, part) for window in todo.changes for part in window.parts] if seen.rows else []
    key = schema.field(derived.key[0])
    pieces = _known_pieces(derived, todo, seen, schema)
    # Only where something may be kept: reading all keys of the changes first costs a pass over them.
    keys = changed_keys(changes, key) if pieces else None
    if pieces and keys is not None and todo.base is not None:
        return _touched(derived.root, todo.base, rewriting(pieces, keys, sizes_of(todo.base)), changes)
    if seen.truncates:
        # A truncate: nothing of the version before lives, so none of its parts need be read.
        base = []
    elif todo.base is not None:
        base = [(derived.root, part) for part in todo.base.parts]
    else:
        base = [(derived.changes, part) for window in todo.copy for part in window.parts]
    return _whole(base, changes, key, parallelism=parallelism)


def _known_pieces(derived: Derived, todo: PendingWindows, seen: EnvelopeSurvey, schema: pa.Schema) -> tuple[Piece, ...]:
    """Return the pieces of the version before, where they may be kept as they are; else ()."""
    base = todo.base
    # Values are unique or not over all rows, and hashes of kept ones were not kept.
    if base is None or base.applied is None or seen.truncates or derived.unique_columns:
        return ()
    # Metadata too: a part that is kept carries the column's native type and fidelity of when it was written.
    return base.applied.pieces if schema_of(base).equals(schema, check_metadata=True) else ()


def _touched(
    root: Root, base: Manifest, chosen: Rewriting, changes: Sequence[tuple[Root, ManifestPart]]
) -> MirrorLayout:
    """Lay out a version that keeps what no change touches."""
    chunk_of = {path: number for number, piece in enumerate(chosen.touched) for path in piece.paths}
    parts = tuple(
        RowAddress(root, part.path, part.rows, chunk_of[part.path]) for part in base.parts if part.path in chunk_of
    )
    routed = tuple(RowAddress(place, part.path, part.rows, -1) for place, part in changes)
    return MirrorLayout(parts, routed if chosen.chunks else (), chosen.chunks, chosen.bounds, chosen.kept)


def _whole(
    base: Sequence[tuple[Root, ManifestPart]],
    changes: Sequence[tuple[Root, ManifestPart]],
    key: pa.Field,
    *,
    parallelism: int,
) -> MirrorLayout:
    """Lay out a version that is written whole, in pieces of about equal size that follow the order of the base."""
    size = sum(part.size_bytes for _, part in (*base, *changes))
    wanted = max(PIECE_BYTES, size // MOST_PIECES)
    cutting = Cutting(max(1, min(wanted, max(SPREAD_BYTES, size // parallelism))))
    dealt = [
        RowAddress(root, part.path, part.rows, *cutting.deal(groups))
        for (root, part), groups in zip(base, groups_of(base, key), strict=True)
    ]
    bounds = tuple(bound for bound in cutting.bounds if bound is not None)
    # Only where every piece knows its least key and they ascend: else the same key could go to two pieces, and a later
    # change of it would be looked for in one.
    is_routed = bool(bounds) and len(bounds) == len(cutting.bounds) and list(bounds) == sorted(bounds)
    others = [
        RowAddress(
            root, part.path, part.rows, -1 if is_routed else cutting.deal([Group(part.rows, part.size_bytes, None)])[0]
        )
        for root, part in changes
    ]
    return MirrorLayout(tuple(dealt), tuple(others), max(1, len(cutting.bounds)), bounds if is_routed else ())


# Three steps, each in tasks of Spark's: the keys of every part, spread over buckets by hash; in each bucket the last
# change of each key, and the base rows that no change touched; the rows told to live, read from their parts and staged.
# 2 M changes onto 1.5 M rows cost 19 CPU s, 10 in a warm JVM; as rows of Spark's, 58 and 30 (2026-11-21, measured).
def mirror_job(
    derived: Derived,
    todo: PendingWindows,
    seen: EnvelopeSurvey,
    table: pa.Schema,
    *,
    layout: MirrorLayout,
    runtime: SparkRuntime,
) -> Callable[[Extract], DataFrame]:
    """Return the job that stages the next version of a mirror, for changes that carry all their columns."""

    def job(extract: Extract) -> DataFrame:
        session = runtime.task_session()
        places = (*layout.base, *layout.changes)
        choice = SurvivingRows(
            places=places,
            base_parts=len(layout.base),
            key=pa.schema([table.field(name) for name in derived.key]),
            newest=todo.newest,
            cut=seen.truncates[-1] if seen.truncates else None,
            buckets=max(runtime.parallelism if layout.rows > BATCH_ROWS else 1, -(-layout.rows // BUCKET_ROWS)),
            bounds=layout.bounds,
            judge=judge_of(derived, todo),
        )
        # Nothing touches the base, as after a truncate with nothing behind it or a first copy alone: no key need be
        # read, but to see that no two rows of a copy share one.
        looks = layout.changes or (places and choice.judge is not None and todo.base is None)
        kept = _survivors(session, choice) if looks else _everything(session, places)
        bare = partial(_write, pickle.dumps(extract), runtime.task_attempts, places, derived.key[0])
        write = with_variables(session, bare, extract, places)
        return kept.repartitionById(len(extract.chunks), "chunk").mapInArrow(write, ROWS_DDL)

    return job


def judge_of(derived: Derived, todo: PendingWindows, **more: Any) -> KeyJudge | None:
    """Return who looks for keys that two rows have; None where the source keeps them unique, and always did."""
    if not (derived.judges_key or todo.is_rekeyed):
        return None
    # What is beyond `newest` is beyond all that the base holds; before it, the copy may hold what the log tells again.
    return KeyJudge(derived.export, derived.key, todo.repeats_until, **more)


def refuse_shared_keys(
    derived: Derived,
    todo: PendingWindows,
    seen: EnvelopeSurvey,
    table: pa.Schema,
    *,
    runtime: SparkRuntime,
    is_of_versions: bool = False,
) -> None:
    """Look for keys that two rows have where the rows go through Spark, whose plans would merge them.

    Args:
        is_of_versions: the base is a history, with closed versions.

    Raises:
        KeyShared
    """
    judge = judge_of(derived, todo, truncates=seen.truncates, is_of_versions=is_of_versions and todo.base is not None)
    if judge is None:
        return
    base = [(derived.root, part) for part in todo.base.parts] if todo.base is not None else []
    base += [(derived.changes, part) for window in todo.copy for part in window.parts]
    changes = [(derived.changes, part) for window in todo.changes for part in window.parts] if seen.rows else []
    if not changes and todo.base is not None:
        return
    places = tuple(RowAddress(root, part.path, part.rows, 0) for root, part in (*base, *changes))
    rows = sum(each.rows for each in places)
    choice = SurvivingRows(
        places=places,
        base_parts=len(base),
        key=pa.schema([table.field(name) for name in derived.key]),
        newest=todo.newest,
        cut=None,
        buckets=max(runtime.parallelism if rows > BATCH_ROWS else 1, -(-rows // BUCKET_ROWS)),
        judge=judge,
    )
    if not places:
        return
    found = _survivors(runtime.task_session(), choice).where(f"part = {REFUSED}").limit(1).collect()
    if found:
        raise rebuild(json.loads(bytes(found[0]["rows"])))


def changed_keys(changes: Sequence[tuple[Root, ManifestPart]], key: pa.Field) -> list[Edge] | None:
    """Read which values of the first key column changes have, ascending; None: too many, a NULL, or none to sort."""
    import pyarrow.parquet as pq  # start

    found: set[Edge] = set()
    if sum(part.rows for _, part in changes) > MOST_KEYS or sortable(pa.nulls(0, key.type)) is None:
        return None
    for root, part in changes:
        with root.open(part.path) as file:
            parquet = pq.ParquetFile(file)
            for batch in parquet.iter_batches(KEYS_ROWS, columns=["__op", key.name], use_threads=False):
                rows = batch.filter(pc.not_equal(batch.column("__op"), "truncate"))
                cells = sortable(as_type(rows.column(key.name), key.type)) if key.name in rows.schema.names else None
                # A NULL has no place between keys, so nobody can say which piece it touches: all is written.
                if cells is None or cells.null_count:
                    return None
                found.update(pc.unique(cells).to_pylist())
    return sorted(found)


def sizes_of(base: Manifest) -> dict[str, int]:
    """Return the bytes of each part."""
    return {part.path: part.size_bytes for part in base.parts}


def _everything(session: SparkSession, places: Sequence[RowAddress]) -> DataFrame:
    """Return a frame in which every row of the base lives."""
    parts = session.range(0, len(places), 1, max(1, len(places)))
    return parts.mapInArrow(partial(_all_rows, places=places), KEPT_DDL)


def _all_rows(batches: Iterator[pa.RecordBatch], *, places: Sequence[RowAddress]) -> Iterator[pa.RecordBatch]:
    """Run in an executor: name all rows of the parts whose numbers arrive; NULL for those of an uncut one."""
    for numbers in batches:
        for number in numbers.column(0).to_pylist():
            place = places[number]
            if not place.cuts:
                whole = [[place.chunk], [number], [None]]
                yield pa.RecordBatch.from_arrays(list(map(pa.array, whole, KEPT.types)), schema=KEPT)
                continue
            for step, (start, end) in enumerate(pairwise((0, *place.cuts, place.rows))):
                yield kept_rows(place.chunk + step, number, np.arange(start, end))


def _survivors(session: SparkSession, choice: SurvivingRows) -> DataFrame:
    """Return which rows live, part by part; a part comes as many times as there are buckets."""
    parts = session.range(0, len(choice.places), 1, len(choice.places))
    keys = parts.mapInArrow(with_variables(session, partial(spread_keys, choice=choice), choice.places), BUCKETS_DDL)
    met = keys.repartitionById(choice.buckets, "bucket")
    return met.mapInArrow(partial(decide, choice=choice), KEPT_DDL)


# --- the rows ------------------------------------------------------------------------------------


@dataclass
class Living:
    """The living rows of a chunk's parts as a source of pages; `rows` in order, None: all of them."""

    parts: Sequence[tuple[RowAddress, Numbers | None]]
    key: str  # its first column
    span: Span = field(default_factory=Span)  # of the rows that passed
    type: str = "spark"
    tuning: None = None

    def pages(self, chunk: Chunk, columns: tuple[Column, ...], **_: Any) -> Generator[Page]:
        """Yield them with the columns and types that the table has now."""
        names = [column.name for column in columns]
        for place, rows in self.parts:
            for first, batch in batches_of(place, names, batch_rows=BATCH_ROWS, rows=rows):
                if rows is not None:
                    start, end = np.searchsorted(rows, [first, first + batch.num_rows])
                    if end - start < batch.num_rows:
                        batch = batch.take(pa.array(rows[start:end] - np.uint32(first)))
                if batch.num_rows:
                    cells = _fit(batch, columns)
                    self.span.add(cells[names.index(self.key)])
                    yield Page(pa.Table.from_arrays(cells, names=names), {}, statement_ms=0.0)


def _fit(batch: pa.RecordBatch, columns: Sequence[Column]) -> list[pa.Array]:
    present = {name: place for place, name in enumerate(batch.schema.names)}
    return [
        as_type(batch.column(present[column.name]), column.arrow)
        if column.name in present
        else pa.nulls(batch.num_rows, column.arrow)
        for column in columns
    ]


def _write(
    packed: bytes, attempts: int, places: Sequence[RowAddress], key: str, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run in an executor: write and stage the rows of one chunk that are told to live."""
    rows: dict[int, list[Numbers] | None] = {}
    for batch in batches:
        for number, living in zip(batch.column("part").to_pylist(), batch.column("rows"), strict=True):
            if number == REFUSED:
                told_fault = {"done": False, "body": living.as_py().decode()}
                yield pa.RecordBatch.from_pylist([told_fault], schema=ROWS)
                return
            if not living.is_valid:
                rows[number] = None
            elif (known := rows.setdefault(number, [])) is not None:
                known.append(np.frombuffer(living.as_buffer(), np.uint32))
    # Every bucket told some rows of the part, and batches look for theirs among them in order.
    parts = [(places[n], None if each is None else np.sort(np.concatenate(each))) for n, each in sorted(rows.items())]
    yield told(packed, attempts, Living(parts, key))
