"""A mirror whose rows move once, from part to part: keys and places decide, in Arrow, and Spark only brings them together.

Belongs here: which rows of which parts live, and writing those. Not here: changes that say `as before` (`frames.py`
fills them from other rows), which windows are applied (`reading.py`).

Three steps, each a task of Spark's: the keys of every part, spread over buckets by hash; in each bucket the last change
of each key, and the base rows no change touched; the rows told to live, read from their parts and staged. Rows as Spark
rows cost 54 CPU s for 2 M changes onto 1.5 M rows, half of it compiling (2026-11-21, measured); this way costs a sixth.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources.apply.cells import held, restored
from rivet_resources.apply.reading import BATCH_ROWS, Pending, Seen, Truncate
from rivet_resources.apply.writing import Derived, told
from rivet_resources.destinations.protocol import Root
from rivet_resources.executor import ROWS_DDL
from rivet_resources.extract import Chunk, Extract
from rivet_resources.manifest import Manifest
from rivet_resources.sources.protocol import Page
from rivet_resources.spark import SparkRuntime
from rivet_resources.types import Column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Numbers = np.ndarray[Any, np.dtype[Any]]

KEYS_ROWS = 200_000  # read at once where only keys are: large enough that a bucket's share of them is worth a message
BUCKET_ROWS = 1_000_000  # keys and places that a task holds, about 100 MB
BUCKETS_DDL = "bucket int, keys binary"
KEPT_DDL = "chunk int, part int, rows binary"
KEPT = pa.schema([("chunk", pa.int32()), ("part", pa.int32()), ("rows", pa.binary())])
MIX = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no bit is lost (Knuth, TAOCP 3, 6.4: multiplicative hashing)
WEIGHTS = np.cumprod(np.full(64, MIX))


@dataclass(frozen=True)
class Place:
    """A part, and the chunk of the new version that its living rows go to."""

    root: Root
    path: str
    chunk: int


@dataclass(frozen=True)
class Choice:
    """What decides about rows: base parts come first among the places, then those of changes."""

    places: tuple[Place, ...]
    base_parts: int
    key: pa.Schema
    newest: str  # the highest position that the base holds
    cut: Truncate | None  # nothing before it lives
    buckets: int


def suits(key: pa.Schema) -> bool:
    """Say whether equal keys are equal cells in Arrow; floats have two zeros, and lists are not encoded."""
    return not any(pa.types.is_floating(field.type) or pa.types.is_nested(field.type) for field in key)


def mirror_job(
    derived: Derived, todo: Pending, seen: Seen, table: pa.Schema, *, runtime: SparkRuntime
) -> Callable[[Extract], DataFrame]:
    """Give the job that stages the next version of a mirror, for changes that carry all their columns."""
    cut = seen.truncates[-1] if seen.truncates else None
    first = [(derived.root, todo.base)] if todo.base else [(derived.changes, window) for window in todo.copy]
    base = [] if cut else first
    changes = [(derived.changes, window) for window in todo.changes] if seen.rows else []

    def job(extract: Extract) -> DataFrame:
        session = runtime.task_session()
        places = _spread([*base, *changes], len(extract.chunks))
        rows = sum(window.row_count for _, window in (*base, *changes))
        choice = Choice(
            places, sum(len(window.parts) for _, window in base), pa.schema([table.field(name) for name in derived.key]),
            todo.newest, cut, max(runtime.parallelism if rows > BATCH_ROWS else 1, -(-rows // BUCKET_ROWS)),
        )  # fmt: skip
        kept = _survivors(session, choice) if changes else _everything(session, places)
        write = partial(_write, pickle.dumps(extract), runtime.task_attempts, places)
        return kept.repartitionById(len(extract.chunks), "chunk").mapInArrow(write, ROWS_DDL)

    return job


def _spread(windows: Sequence[tuple[Root, Manifest]], chunks: int) -> tuple[Place, ...]:
    """Give each chunk parts of about as many bytes: the largest first, each to the chunk that has least."""
    parts = [(root, part) for root, window in windows for part in window.parts]
    filled = [0] * chunks
    chosen = [0] * len(parts)
    for number in sorted(range(len(parts)), key=lambda each: -parts[each][1].size_bytes):
        chosen[number] = filled.index(min(filled))
        filled[chosen[number]] += parts[number][1].size_bytes
    return tuple(Place(root, part.path, chunk) for (root, part), chunk in zip(parts, chosen, strict=True))


def _everything(session: SparkSession, places: Sequence[Place]) -> DataFrame:
    """Tell that all rows live."""
    whole = [(place.chunk, number, None) for number, place in enumerate(places)]
    return session.createDataFrame(whole, KEPT_DDL)


def _survivors(session: SparkSession, choice: Choice) -> DataFrame:
    """Tell which rows live, part by part; a part comes as many times as there are buckets."""
    parts = session.range(0, len(choice.places), 1, len(choice.places))
    keys = parts.mapInArrow(partial(_keys, choice=choice), BUCKETS_DDL)
    met = keys.repartitionById(choice.buckets, "bucket")
    return met.mapInArrow(partial(_decide, choice=choice), KEPT_DDL)


# --- keys and places, in buckets -----------------------------------------------------------------


def _keys(batches: Iterator[pa.RecordBatch], *, choice: Choice) -> Iterator[pa.RecordBatch]:
    """Run in an executor: give keys and places of the parts whose numbers arrive, one message for each bucket."""
    for numbers in batches:
        for number in numbers.column(0).to_pylist():
            for rows in _located(number, choice):
                found = sorted(_by_bucket(rows, choice).items())
                messages = [_message(each) for _, each in found]
                yield pa.RecordBatch.from_arrays(
                    [pa.array([bucket for bucket, _ in found], pa.int32()), pa.array(messages, pa.binary())],
                    names=["bucket", "keys"],
                )


def _located(number: int, choice: Choice) -> Iterator[pa.RecordBatch]:
    """Read what decides about the rows of a part; rows of changes that were applied, or emptied away, are left out."""
    is_change = number >= choice.base_parts
    names = (*choice.key.names, *(("__op", "__pos", "__seq") if is_change else ()))
    for first, batch in _batches(choice.places[number], names, batch_rows=KEYS_ROWS):
        count = batch.num_rows
        cells = [_as_now(batch, field) for field in choice.key]
        places = [
            pa.array(np.full(count, number, np.int32)),
            pa.array(np.arange(first, first + count, dtype=np.uint32)),
        ]
        if is_change:
            order = [batch.column("__pos"), batch.column("__seq"), pc.equal(batch.column("__op"), "delete")]
        else:
            order = [pa.nulls(count, pa.string()), pa.nulls(count, pa.int64()), pa.nulls(count, pa.bool_())]
        located = pa.RecordBatch.from_arrays(
            [*places, *order, *cells],
            names=["part", "row", "pos", "seq", "gone", *(f"key{n}" for n in range(len(cells)))],
        )
        yield located.filter(_beyond(batch, choice)) if is_change else located


def _as_now(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    """Give a key column as its newest type stores it; NULL where the part has none."""
    if field.name not in batch.schema.names:
        return _stored(pa.nulls(batch.num_rows, field.type))
    return _stored(as_type(batch.column(field.name), field.type))


def as_type(cells: pa.Array, kind: pa.DataType) -> pa.Array:
    """Bring cells of an altered column into its newer type, by the way they would go through Spark."""
    return cells if cells.type == kind else restored(held(cells, kind), kind)


def _stored(cells: pa.Array) -> pa.Array:
    return cells.storage if isinstance(cells, pa.ExtensionArray) else cells


def _beyond(batch: pa.RecordBatch, choice: Choice) -> pa.Array:
    """Do what `frames.beyond` does."""
    pos = batch.column("__pos")
    wanted = pc.and_(pc.not_equal(batch.column("__op"), "truncate"), pc.greater(pos, choice.newest))
    if choice.cut is None:
        return wanted
    later = pc.and_(pc.equal(pos, choice.cut.pos), pc.greater(batch.column("__seq"), choice.cut.seq))
    return pc.and_(wanted, pc.or_(pc.greater(pos, choice.cut.pos), later))


def _by_bucket(rows: pa.RecordBatch, choice: Choice) -> dict[int, pa.RecordBatch]:
    """Split rows by what their keys hash to; equal keys meet."""
    if not rows.num_rows:
        return {}
    if choice.buckets == 1:
        return {0: rows}
    mixed = np.zeros(rows.num_rows, np.uint64)
    for number in range(len(choice.key)):
        mixed = (mixed ^ _numbers(rows.column(f"key{number}"))) * MIX
        mixed ^= mixed >> np.uint64(32)
    buckets = (mixed % np.uint64(choice.buckets)).astype(np.int64)
    order = np.argsort(buckets, kind="stable")
    sorted_rows, ends = rows.take(pa.array(order)), np.cumsum(np.bincount(buckets, minlength=choice.buckets))
    starts = np.concatenate([[0], ends[:-1]])
    shares = {n: sorted_rows.slice(starts[n], ends[n] - starts[n]) for n in range(choice.buckets)}
    return {bucket: share for bucket, share in shares.items() if share.num_rows}


def _numbers(cells: pa.Array) -> Numbers:
    """Give each cell a number, equal cells the same; only for spreading, so two cells may share one."""
    kind = cells.type
    if pa.types.is_boolean(kind):
        cells = cells.cast(pa.int8())
    elif pa.types.is_primitive(kind) and not pa.types.is_integer(kind):
        cells = cells.view({32: pa.int32(), 64: pa.int64()}[kind.bit_width])
    if pa.types.is_integer(cells.type):
        return np.asarray(cells.fill_null(0).to_numpy(zero_copy_only=False)).astype(np.uint64)
    texts = cells if pa.types.is_fixed_size_binary(kind) or pa.types.is_binary(kind) else cells.cast(pa.string())
    return _text_numbers(texts.cast(pa.large_binary()).fill_null(b""))


def _text_numbers(texts: pa.Array) -> Numbers:
    """Weigh each byte by its place in its text, and add them up."""
    _, offsets, content = texts.buffers()
    ends = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    letters = np.frombuffer(content, np.uint8)[ends[0] : ends[-1]] if content else np.zeros(0, np.uint8)
    lengths = np.diff(ends)
    inside = np.arange(len(letters)) - np.repeat(ends[:-1] - ends[0], lengths)
    summed = np.concatenate([[np.uint64(0)], np.cumsum((letters + np.uint64(1)) * WEIGHTS[inside % len(WEIGHTS)])])
    return summed[ends[1:] - ends[0]] - summed[ends[:-1] - ends[0]]


def _message(rows: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_batch(rows)
    return sink.getvalue().to_pybytes()


# --- the last change of each key -----------------------------------------------------------------


def _decide(batches: Iterator[pa.RecordBatch], *, choice: Choice) -> Iterator[pa.RecordBatch]:
    """Run in an executor: tell which rows of a bucket live, part by part."""
    messages: dict[int, list[pa.Table]] = {}
    for batch in batches:
        for bucket, keys in zip(batch.column(0).to_pylist(), batch.column(1), strict=True):
            messages.setdefault(bucket, []).append(pa.ipc.open_stream(keys.as_buffer()).read_all())
    for bucket in sorted(messages):
        rows = pa.concat_tables(messages.pop(bucket))
        for number, living in _living(rows, choice.base_parts):
            told_rows = [choice.places[number].chunk], [number], [living.tobytes()]
            yield pa.RecordBatch.from_arrays(
                [pa.array(*pair) for pair in zip(told_rows, KEPT.types, strict=True)], schema=KEPT
            )


def _living(rows: pa.Table, base_parts: int) -> Iterator[tuple[int, Numbers]]:
    """Give the living rows of each part: the last change of each key that is no delete, base rows of no changed key."""
    group, part, row = _groups(rows), rows["part"].to_numpy(), rows["row"].to_numpy()
    last = np.full(int(group.max()) + 1, -1)
    (changed,) = np.nonzero(part >= base_parts)
    changes = rows.take(pa.array(changed))
    ordered = np.lexsort((changes["seq"].to_numpy(), _ranks(changes["pos"])))
    last[group[changed[ordered]]] = ordered  # of equal indices numpy leaves behind the last value
    winners = last[last >= 0]
    winners = changed[winners[~changes["gone"].to_numpy()[winners]]]
    (untouched,) = np.nonzero((part < base_parts) & (last[group] < 0))
    kept = np.concatenate([untouched, winners])
    kept = kept[np.lexsort((row[kept], part[kept]))]
    numbers, starts = np.unique(part[kept], return_index=True)
    for number, living in zip(numbers.tolist(), np.split(row[kept], starts[1:]), strict=True):
        yield number, living


def _groups(rows: pa.Table) -> Numbers:
    """Number the keys; NULL equals NULL."""
    group: Numbers | None = None
    for name in rows.column_names[5:]:
        cells = rows[name].combine_chunks().dictionary_encode(null_encoding="encode")
        codes = cells.indices.to_numpy().astype(np.int64)
        pairs = codes if group is None else group * len(cells.dictionary) + codes
        group = codes if group is None else pa.array(pairs).dictionary_encode().indices.to_numpy().astype(np.int64)
    assert group is not None, "a key has a column"
    return group


def _ranks(texts: pa.ChunkedArray) -> Numbers:
    """Give each text its rank among all of them."""
    cells = texts.combine_chunks().dictionary_encode()
    ranks = np.empty(len(cells.dictionary), np.int64)
    ranks[pc.sort_indices(cells.dictionary).to_numpy()] = np.arange(len(ranks))
    return ranks[cells.indices.to_numpy()]


# --- the rows ------------------------------------------------------------------------------------


@dataclass
class Living:
    """The living rows of a chunk's parts as a source of pages; `rows` in order, None: all of them."""

    parts: Sequence[tuple[Place, Numbers | None]]
    type: str = "spark"
    tuning: None = None

    def pages(self, chunk: Chunk, columns: tuple[Column, ...], **_: Any) -> Generator[Page]:
        """Give them with the columns and types that the table has now."""
        names = [column.name for column in columns]
        for place, rows in self.parts:
            for first, batch in _batches(place, names, batch_rows=BATCH_ROWS, rows=rows):
                if rows is not None:
                    start, end = np.searchsorted(rows, [first, first + batch.num_rows])
                    if end - start < batch.num_rows:
                        batch = batch.take(pa.array(rows[start:end] - np.uint32(first)))
                if batch.num_rows:
                    yield Page(pa.Table.from_arrays(_fitted(batch, columns), names=names), {}, statement_ms=0.0)


def _fitted(batch: pa.RecordBatch, columns: Sequence[Column]) -> list[pa.Array]:
    present = {name: place for place, name in enumerate(batch.schema.names)}
    return [
        as_type(batch.column(present[column.name]), column.arrow)
        if column.name in present
        else pa.nulls(batch.num_rows, column.arrow)
        for column in columns
    ]


def _batches(
    place: Place, names: Sequence[str], *, batch_rows: int, rows: Numbers | None = None
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Read columns of a part, as far as it has them, with the number of each batch's first row.

    Row groups without any of `rows` are passed over.
    """
    import pyarrow.parquet as pq

    with place.root.open(place.path) as file:
        parquet = pq.ParquetFile(file)
        present = [name for name in parquet.schema_arrow.names if name in names]
        first = 0
        for group in range(parquet.num_row_groups):
            end = first + parquet.metadata.row_group(group).num_rows
            if rows is None or np.searchsorted(rows, first) < np.searchsorted(rows, end):
                for batch in parquet.iter_batches(batch_rows, row_groups=[group], columns=present, use_threads=False):
                    yield first, batch
                    first += batch.num_rows
            first = end


def _write(
    packed: bytes, attempts: int, places: Sequence[Place], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run in an executor: write and stage the rows of one chunk that are told to live."""
    rows: dict[int, list[Numbers] | None] = {}
    for batch in batches:
        for number, living in zip(batch.column("part").to_pylist(), batch.column("rows"), strict=True):
            if not living.is_valid:
                rows[number] = None
            elif (known := rows.setdefault(number, [])) is not None:
                known.append(np.frombuffer(living.as_buffer(), np.uint32))
    parts = [
        (places[n], None if found is None else np.sort(np.concatenate(found))) for n, found in sorted(rows.items())
    ]
    yield told(packed, attempts, Living(parts))
