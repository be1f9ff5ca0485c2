"""Which rows of which parts live: the last change of each key, and base rows whose key no change has.

Belongs here: keys and places read from parts, brought together by hash, and the decision. Not here: the job around it
and the rows themselves (`places.py`).

Positions and keys are all that is looked at.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources.contracts.destination import Root
from rivet_resources.errors import KeyShared
from rivet_resources.read.executor import describe
from rivet_resources.spark.cells import from_spark, to_spark
from rivet_resources.tables.pieces import Edge, sortable
from rivet_resources.tables.reading import Truncate
from rivet_resources.tables.shared_keys import KeyJudge

Numbers = np.ndarray[Any, np.dtype[Any]]

BATCH_BYTES = 64 * 1024 * 1024  # of whole rows as the file counts them, when a batch is cut below its rows
# Read at once where only keys are: large enough that a bucket's share of them is worth a message.
KEYS_ROWS = 200_000
LOCATED = ("part", "row", "pos", "seq", "gone", "born")  # of each row; then its key
BUCKETS_DDL = "bucket int, keys binary"
KEPT_DDL = "chunk int, part int, rows binary"
KEPT = pa.schema([("chunk", pa.int32()), ("part", pa.int32()), ("rows", pa.binary())])
REFUSED = -1  # in the place of a part's number: `rows` is why there will be no version
# Odd, so that no bit is lost (Knuth, TAOCP 3, 6.4: multiplicative hashing).
MIX = np.uint64(0x9E3779B97F4A7C15)
WEIGHTS = np.cumprod(np.full(64, MIX))


@dataclass(frozen=True)
class RowAddress:
    """A part, and the chunk of the new version that its living rows go to.

    From each row of `cuts` on they go to the next one. `chunk` -1: each row goes where its key does.
    """

    root: Root
    path: str
    rows: int
    chunk: int
    cuts: tuple[int, ...] = ()


@dataclass(frozen=True)
class SurvivingRows:
    """What decides about rows: base parts come first among the places, then those of changes."""

    places: tuple[RowAddress, ...]
    base_parts: int
    key: pa.Schema
    newest: str  # the highest position that the base holds
    cut: Truncate | None  # nothing before it lives
    buckets: int
    bounds: tuple[Edge, ...] = ()  # least key of each chunk, ascending, where rows of changes go where their keys do
    judge: KeyJudge | None = None  # refuses keys that two rows have; None: the source keeps them unique


# --- keys and places, in buckets -----------------------------------------------------------------


def spread_keys(batches: Iterator[pa.RecordBatch], *, choice: SurvivingRows) -> Iterator[pa.RecordBatch]:
    """Run in an executor: give keys and places of the parts whose numbers arrive, one message for each bucket."""
    for numbers in batches:
        for number in numbers.column(0).to_pylist():
            for rows in _read_addresses(number, choice):
                found = sorted(_by_bucket(rows, choice).items())
                messages = [_message(each) for _, each in found]
                yield pa.RecordBatch.from_arrays(
                    [pa.array([bucket for bucket, _ in found], pa.int32()), pa.array(messages, pa.binary())],
                    names=["bucket", "keys"],
                )


def _read_addresses(number: int, choice: SurvivingRows) -> Iterator[pa.RecordBatch]:
    """Read what decides about the rows of a part; rows of changes that were applied, or emptied away, are left out."""
    is_change = number >= choice.base_parts
    flags = ("is_current",) if choice.judge is not None and choice.judge.is_of_versions else ()
    names = (*choice.key.names, *(("__op", "__pos", "__seq") if is_change else flags))
    for first, batch in batches_of(choice.places[number], names, batch_rows=KEYS_ROWS):
        count = batch.num_rows
        cells = [_as_now(batch, field) for field in choice.key]
        places = [np.full(count, number, np.int32), np.arange(first, first + count, dtype=np.uint32)]
        if is_change:
            kinds = [pc.equal(batch.column("__op"), word) for word in ("delete", "insert")]
            order = [batch.column("__pos"), batch.column("__seq"), *kinds]
        else:
            order = [pa.nulls(count, kind) for kind in (pa.string(), pa.int64(), pa.bool_(), pa.bool_())]
        labels = (*LOCATED, *(f"key{place}" for place in range(len(cells))))
        located = pa.RecordBatch.from_arrays([*map(pa.array, places), *order, *cells], names=labels)
        # Filtered here and not at the end: what was applied before would travel to its bucket only to lose there.
        if is_change:
            located = located.filter(_beyond(batch, choice))
        elif flags:
            located = located.filter(batch.column("is_current"))  # what a version was stands in nobody's way
        yield located


def _as_now(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    """Return a key column as its newest type stores it; NULL where the part has none."""
    if field.name not in batch.schema.names:
        return _to_storage(pa.nulls(batch.num_rows, field.type))
    return _to_storage(as_type(batch.column(field.name), field.type))


def as_type(cells: pa.Array, kind: pa.DataType) -> pa.Array:
    """Bring cells of an altered column into its newer type, by the way they would go through Spark."""
    return cells if cells.type == kind else from_spark(to_spark(cells, kind), kind)


def _to_storage(cells: pa.Array) -> pa.Array:
    cells = cells.storage if isinstance(cells, pa.ExtensionArray) else cells
    if pa.types.is_floating(cells.type):
        return pc.add(cells.cast(pa.float64()), 0.0)  # of its two zeros, one
    if pa.types.is_nested(cells.type):
        return pa.array([None if cell is None else repr(cell) for cell in cells.to_pylist()], pa.string())
    return cells


def _beyond(batch: pa.RecordBatch, choice: SurvivingRows) -> pa.Array:
    """Do what `frames.beyond` does."""
    pos = batch.column("__pos")
    wanted = pc.and_(pc.not_equal(batch.column("__op"), "truncate"), pc.greater(pos, choice.newest))
    if choice.cut is None:
        return wanted
    later = pc.and_(pc.equal(pos, choice.cut.pos), pc.greater(batch.column("__seq"), choice.cut.seq))
    return pc.and_(wanted, pc.or_(pc.greater(pos, choice.cut.pos), later))


def _by_bucket(rows: pa.RecordBatch, choice: SurvivingRows) -> dict[int, pa.RecordBatch]:
    """Split rows by what their keys hash to; equal keys meet."""
    if not rows.num_rows:
        return {}
    if choice.buckets == 1:
        return {0: rows}
    mixed = np.zeros(rows.num_rows, np.uint64)
    for number in range(len(choice.key)):
        mixed = (mixed ^ _numbers(rows.column(f"key{number}"))) * MIX
        # The low bits of a product know nothing of the high ones above them, and the remainder looks at the low ones.
        mixed ^= mixed >> np.uint64(32)
    buckets = (mixed % np.uint64(choice.buckets)).astype(np.int64)
    order = np.argsort(buckets, kind="stable")
    sorted_rows, ends = rows.take(pa.array(order)), np.cumsum(np.bincount(buckets, minlength=choice.buckets))
    starts = np.concatenate([[0], ends[:-1]])
    shares = {n: sorted_rows.slice(starts[n], ends[n] - starts[n]) for n in range(choice.buckets)}
    return {bucket: share for bucket, share in shares.items() if share.num_rows}


def _numbers(cells: pa.Array) -> Numbers:
    """Number the cells, equal ones alike; only for spreading, so two cells may share one."""
    kind = cells.type
    if pa.types.is_boolean(kind):
        cells = cells.cast(pa.int8())
    elif pa.types.is_primitive(kind) and not pa.types.is_integer(kind):
        # Bits as numbers, for dates and times: that is all spreading needs. Floats never come here (`places.suits`).
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
    # Sums wrap at 2**64, and so do their differences: each is right.
    numbers: Numbers = summed[ends[1:] - ends[0]] - summed[ends[:-1] - ends[0]]
    return numbers


def _message(rows: pa.RecordBatch) -> bytes:
    # A message is an Arrow stream, so that the JVM passes bytes on and makes no rows of them; what keys hash to only
    # spreads them, and whether two are equal is asked of Arrow.
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_batch(rows)
    content: bytes = sink.getvalue().to_pybytes()
    return content


# --- the last change of each key -----------------------------------------------------------------


def decide(batches: Iterator[pa.RecordBatch], *, choice: SurvivingRows) -> Iterator[pa.RecordBatch]:
    """Run in an executor: tell which rows of a bucket live, part by part."""
    messages: dict[int, list[pa.Table]] = {}
    for batch in batches:
        for bucket, keys in zip(batch.column(0).to_pylist(), batch.column(1), strict=True):
            messages.setdefault(bucket, []).append(pa.ipc.open_stream(keys.as_buffer()).read_all())
    for bucket in sorted(messages):
        rows = pa.concat_tables(messages.pop(bucket))
        try:
            for chunk, number, living in _living(rows, choice):
                yield kept_rows(chunk, number, living)
        except KeyShared as error:
            yield _refusal(error)
            return


def _refusal(error: KeyShared) -> pa.RecordBatch:
    """Return a refusal in the place of rows; whoever writes the first chunk passes it on."""
    text = json.dumps(describe(error)).encode()
    return pa.RecordBatch.from_arrays(list(map(pa.array, ([0], [REFUSED], [text]), KEPT.types)), schema=KEPT)


def kept_rows(chunk: int, number: int, rows: Numbers) -> pa.RecordBatch:
    """Write down that these rows of a part live, and where they go."""
    cells = [chunk], [number], [rows.astype(np.uint32).tobytes()]
    return pa.RecordBatch.from_arrays(list(map(pa.array, cells, KEPT.types)), schema=KEPT)


def _living(rows: pa.Table, choice: SurvivingRows) -> Iterator[tuple[int, int, Numbers]]:
    """Yield the living rows of each part: the last change of a key that is no delete, base rows of other keys.

    With each the chunk they go to, and the part's number.
    """
    base_parts = choice.base_parts
    group, part, row = _groups(rows), rows["part"].to_numpy(), rows["row"].to_numpy()
    last = np.full(int(group.max()) + 1, -1)
    (changed,) = np.nonzero(part >= base_parts)
    changes = rows.take(pa.array(changed))
    # By position, then by sequence: one position may have several changes of a key, as a transaction has on some
    # engines.
    ordered = np.lexsort((changes["seq"].to_numpy(), _ranks(changes["pos"])))
    if choice.judge is not None:
        choice.judge.refuse_shared(group[part < base_parts], group[changed[ordered]], changes.take(pa.array(ordered)))
    last[group[changed[ordered]]] = ordered  # of equal indices numpy leaves behind the last value
    winners = last[last >= 0]
    winners = changed[winners[~changes["gone"].to_numpy()[winners]]]
    (untouched,) = np.nonzero((part < base_parts) & (last[group] < 0))
    kept = np.concatenate([untouched, winners])
    if not len(kept):
        return
    # In file order: a part is read forward once, and its rows keep the neighbours they compress well with.
    kept = kept[np.lexsort((row[kept], part[kept]))]
    numbers, starts = np.unique(part[kept], return_index=True)
    for number, mine in zip(numbers.tolist(), np.split(kept, starts[1:]), strict=True):
        place = choice.places[number]
        chunks = _by_cuts(place, row[mine]) if place.chunk >= 0 else _by_keys(rows["key0"], mine, choice.bounds)
        for chunk in np.unique(chunks).tolist():
            yield chunk, number, row[mine][chunks == chunk]


def _by_cuts(place: RowAddress, rows: Numbers) -> Numbers:
    """Return the chunks that rows of a part go to by where they stand in it."""
    chunks: Numbers = place.chunk + np.searchsorted(np.array(place.cuts, np.int64), rows, side="right")
    return chunks


def _by_keys(keys: pa.ChunkedArray, rows: Numbers, bounds: tuple[Edge, ...]) -> Numbers:
    """Return the chunks that rows go to by their keys; those before the first bound, or without a key, to the first."""
    cells = sortable(keys.take(pa.array(rows)).combine_chunks())
    assert cells is not None, "rows go by keys only where these have an order"
    kind: Any = np.int64 if pa.types.is_integer(cells.type) else object
    filled = cells.fill_null(bounds[0]).to_numpy(zero_copy_only=False).astype(kind)
    chunks: Numbers = np.maximum(np.searchsorted(np.array(bounds, kind), filled, side="right") - 1, 0)
    return chunks


def _groups(rows: pa.Table) -> Numbers:
    """Number the keys; NULL equals NULL."""
    group: Numbers | None = None
    for name in rows.column_names[len(LOCATED) :]:
        cells = rows[name].combine_chunks().dictionary_encode(null_encoding="encode")
        codes = cells.indices.to_numpy().astype(np.int64)
        # Encoded anew after each column, so that the numbers stay below the count of rows and no product overflows.
        pairs = codes if group is None else group * len(cells.dictionary) + codes
        group = codes if group is None else pa.array(pairs).dictionary_encode().indices.to_numpy().astype(np.int64)
    assert group is not None, "a key has a column"
    return group


def _ranks(texts: pa.ChunkedArray) -> Numbers:
    """Return each text's rank among all of them."""
    cells = texts.combine_chunks().dictionary_encode()
    ranks = np.empty(len(cells.dictionary), np.int64)
    ranks[pc.sort_indices(cells.dictionary).to_numpy()] = np.arange(len(ranks))
    numbers: Numbers = ranks[cells.indices.to_numpy()]
    return numbers


def batches_of(
    place: RowAddress, names: Sequence[str], *, batch_rows: int, rows: Numbers | None = None
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Read columns of a part, as far as it has them, with the number of each batch's first row.

    Batches have `batch_rows` rows, fewer where rows are wide. Row groups without any of `rows` are passed over.
    """
    import pyarrow.parquet as pq  # start

    with place.root.open(place.path) as file:
        parquet = pq.ParquetFile(file)
        present = [name for name in parquet.schema_arrow.names if name in names]
        first = 0
        for group in range(parquet.num_row_groups):
            facts = parquet.metadata.row_group(group)
            end = first + facts.num_rows
            fitting = max(1, BATCH_BYTES * facts.num_rows // max(1, facts.total_byte_size))
            if rows is None or np.searchsorted(rows, first) < np.searchsorted(rows, end):
                size = min(batch_rows, fitting)
                for batch in parquet.iter_batches(size, row_groups=[group], columns=present, use_threads=False):
                    yield first, batch
                    first += batch.num_rows
            first = end
