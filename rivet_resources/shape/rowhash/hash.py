"""Hash the rows of a table, for the column `_rivet_row_hash` (`contract.md`, 9).

Belongs here: which rows are hashed together, and the hash: the low 64 bits of XXH3-128 over the row's bytes, signed.
Not here: what those bytes are (`frames.py`, `cells.py`). The recipe is published and never changes;
two rows have one hash exactly when every covered cell has the same text, NULL being no text, wherever they are read.
Rejected: the hashes of engines (polars, DuckDB, Spark), which promise nothing from version to version, and Spark's
skips NULLs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rivet_resources.errors import UnknownColumn, UnsupportedColumn
from rivet_resources.shape.rowhash.cells import can_spell, column_cells
from rivet_resources.shape.rowhash.frames import HashRows, rows

RENDER = "xxh3-128-i64-arrow-display-us-v2"  # the id of these bytes in the manifest's evidence
# So few rows at once that they stay in the processor's cache, so many that numpy's calls do not count.
# Measured with tests/bench/rowhash.py: a quarter as many cost a fifth more, twice as many a tenth.
CHUNK_ROWS = 16_384
HASH_ROWS = 2_048
CHUNK_BYTES = 4 << 20
# Places in an Arrow view are signed and have 32 bits (Columnar Format, "Variable-size Binary View Layout").
VIEW_LIMIT = 2**31 - 1
INLINE = 12  # Arrow keeps so short a cell in the view itself


def row_hashes(table: pa.Table, columns: Sequence[str]) -> pa.Array:
    """Hash the cells of `columns`, in this order: one int64 a row, none NULL.

    Chunks and slices of the table make no difference.

    Raises:
        UnknownColumn, UnsupportedColumn: as `check_columns`.
    """
    check_columns(table.schema, columns)
    hashes = np.empty(table.num_rows, np.int64)
    done = 0
    for found in _frame_rows(table.select(list(columns))):
        count = len(found.starts)
        hashes[done : done + count] = _hashed(found)
        done += count
    return pa.array(hashes)


def row_bytes(table: pa.Table) -> Iterator[bytes | memoryview]:
    """Yield the bytes of each row that its hash would cover, of all columns; each is good until the next is taken."""
    for found in _frame_rows(table):
        for lo in range(0, len(found.starts), HASH_ROWS):
            yield from _cut(found, lo, lo + HASH_ROWS)


def _frame_rows(covered: pa.Table) -> Iterator[HashRows]:
    """Frame the rows of a table, some thousands at a time, in a buffer that the next ones take."""
    buffer = None
    step = _chunk_rows(covered)
    for batch in covered.combine_chunks().to_batches():
        cuts = list(map(column_cells, batch.columns))
        for lo in range(0, batch.num_rows, step):
            hi = min(lo + step, batch.num_rows)
            found = rows([cut(lo, hi) for cut in cuts], hi - lo, into=buffer)
            yield found
            # The last rows are hashed before the next ones are framed, so one buffer serves all; a new one each time
            # would cost the system's clearing of its pages.
            buffer = found.values


def check_columns(schema: pa.Schema, columns: Sequence[str]) -> None:
    """Report whether rows of this schema can be hashed, before any is read.

    Raises:
        UnknownColumn: a name is not one column of the schema.
        UnsupportedColumn: a column's type has no display text.
    """
    for name in columns:
        if len(schema.get_all_field_indices(name)) != 1:
            raise UnknownColumn(name, relation="The export", known=schema.names, key="meta_columns.row_hash")
        arrow = schema.field(name).type
        if not can_spell(arrow):
            raise UnsupportedColumn(
                f"Column {name!r} is of type {arrow}, which has no place in the row hash: unions, run-end encoded and "
                f"view lists, durations and intervals have no text to hash. Name the columns to cover in "
                f"`meta_columns.row_hash`, or give this one another type under `columns:`."
            )


def _chunk_rows(table: pa.Table) -> int:
    each: int = table.nbytes // max(1, table.num_rows) + 1
    return max(1, min(CHUNK_ROWS, CHUNK_BYTES // each))


def _hashed(found: HashRows) -> npt.NDArray[np.int64]:
    """Return the low 64 bits of XXH3-128 of each row."""
    import xxhash  # start

    digests = b"".join(
        b"".join(map(xxhash.xxh3_128_digest, _cut(found, lo, lo + HASH_ROWS)))
        for lo in range(0, len(found.starts), HASH_ROWS)
    )
    # A digest is written with the high bits first.
    return np.frombuffer(digests, ">i8")[1::2].astype(np.int64)


def _cut(found: HashRows, lo: int, hi: int) -> Iterable[bytes | memoryview]:
    """Cut rows out of the buffer: as an Arrow view array, whose cells numpy takes in a third of the time of slices."""
    starts, lengths = found.starts[lo:hi], found.lengths[lo:hi]
    # Offsets of a view have 32 bits.
    if len(found.values) > VIEW_LIMIT:
        whole = memoryview(found.values)  # type: ignore[arg-type]
        return [whole[start : start + size] for start, size in zip(starts, lengths, strict=True)]
    # Length, first bytes (never asked for), buffer, start.
    views = np.zeros((len(starts), 4), np.int32)
    views[:, 0], views[:, 3] = lengths, starts
    for row in np.flatnonzero(lengths <= INLINE).tolist():
        start, size = int(starts[row]), int(lengths[row])
        views[row, 1:] = np.frombuffer(found.values[start : start + size].tobytes().ljust(INLINE, b"\0"), np.int32)
    buffers = [None, pa.py_buffer(views), pa.py_buffer(found.values)]
    cut: Iterable[bytes] = pa.Array.from_buffers(pa.binary_view(), len(views), buffers).to_numpy(zero_copy_only=False)
    return cut
