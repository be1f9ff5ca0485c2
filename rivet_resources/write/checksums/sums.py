"""Value checksums: one number per column that says whether parts hold the cells that were read (`contract.md`, 10.2).

Belongs here: the sums over a table's columns. Not here: a cell's bytes (`cells.py`), the hash
(`xxh3.py`), who compares them (`prove/validate.py`, `rivet_assets/prove/reconcile.py`).

XXH3-64 of each cell that is not NULL, added modulo 2^64: rows may come in any order and any number of pages, and sums
of disjoint rows add up. The sum of a column is about the column alone: two rows that swap their cells in it change
nothing. That is seen by the fingerprint of the part and by the row hash; hashing a key with every cell (`keyed_sum`)
sees it too, and was rejected for exports on 2026-11-21: the bytes of every cell are then laid out anew behind a key,
which costs 90 to 140 ns a cell instead of 8 to 90 (tests/bench/checksums.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources.contracts.transform import run_clock_columns
from rivet_resources.write.checksums.cells import as_binary, is_known, plain, raw, width_of
from rivet_resources.write.checksums.xxh3 import Hashes, cell_hashes, number_hashes, pair_hashes, small_table

ALGORITHM = "xxh3-64-sum-v2"  # the id of these sums in a manifest's `checksum_render`
WHOLE = 1 << 64
# Differs from run to run while the rows do not, so it would only hide that two windows are equal.
UNSUMMED = frozenset({"_rivet_exported_at"})

WAITING_ROWS, WAITING_BYTES = 65_536, 8 << 20
# Below it numpy's calls cost more than copying cells together.
SMALL_CHUNK = 16_384
SAMPLE_CELLS = 256
SAMPLE_STEP = 8
FEW = 0.5  # of a sample may be distinct, for counting equal cells first to cost less than hashing each


def column_sums(table: pa.Table, *, leave_out: Collection[str] = ()) -> dict[str, int]:
    """Sum the cells of each column: {name: sum modulo 2^64}.

    Pages, slices and chunks make no difference, nor does how a type is encoded (views, dictionaries). Columns
    named in `leave_out`, unions, and names that stand twice are not in the result.
    """
    standing = Counter(table.column_names)
    return {
        field.name: column_sum(column)
        for field, column in zip(table.schema, table.columns, strict=True)
        if field.name not in leave_out and standing[field.name] == 1 and is_known(field.type)
    }


class RunningSums:
    """The sums over pages that come one by one."""

    def __init__(self) -> None:
        self._sums: dict[str, int] = {}
        self._waiting: list[pa.Table] = []
        self._rows = self._bytes = 0

    def add(self, page: pa.Table, *, size_bytes: int) -> None:
        """Count a page in; all have one schema."""
        if not page.num_rows:
            return
        # Arrow tables are never changed in place, so keeping one costs no copy, only that it is let go of later.
        # Pages wait until they are worth it, since small ones cost several times as much alone; they share their memory
        # with whoever writes them.
        self._waiting.append(page)
        self._rows += page.num_rows
        self._bytes += size_bytes
        if self._rows >= WAITING_ROWS or self._bytes >= WAITING_BYTES:
            self._flush()

    def result(self) -> dict[str, int]:
        """Return the sums so far, but for the column that differs in every run; {} before the first row."""
        if self._waiting:
            self._flush()
        return dict(self._sums)

    def _flush(self) -> None:
        rows = pa.concat_tables(self._waiting)
        found = column_sums(rows, leave_out=UNSUMMED | run_clock_columns(rows.schema))
        # Python's integers do not wrap by themselves, numpy's sums of uint64 do.
        # Added and not combined by exclusive or, which would let equal pairs cancel.
        self._sums = {name: (self._sums.get(name, 0) + each) % WHOLE for name, each in found.items()}
        self._waiting, self._rows, self._bytes = [], 0, 0


def column_sum(column: pa.ChunkedArray) -> int:
    """Sum the cells of one column; 0 where there is none that is not NULL."""
    if column.num_chunks > 1 and len(column) < SMALL_CHUNK * column.num_chunks:
        whole = column.combine_chunks()
        column = whole if isinstance(whole, pa.ChunkedArray) else pa.chunked_array([whole])
    return sum(map(_array_sum, column.chunks)) % WHOLE


def keyed_sum(key: pa.ChunkedArray, column: pa.ChunkedArray) -> int:
    """Sum the hashes of key and cell joined, so that swapping the cells of two rows shows.

    The original's form with a `checksum_key_column`; a NULL key has no bytes. Exports are summed without a key.
    """
    joined = pa.table([key, column], names=["key", "cell"])
    joined = joined.filter(joined.column("cell").is_valid())
    keys, cells = (_whole(each) for each in joined.columns)
    filled = pc.if_else(keys.is_valid(), _spread_cells(keys), pa.scalar(b"", pa.large_binary()))
    both = pc.binary_join_element_wise(filled, _spread_cells(cells), pa.scalar(b"", pa.large_binary()))
    return int(cell_hashes(both).sum())


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    one = column.combine_chunks()
    return pa.concat_arrays(one.chunks) if isinstance(one, pa.ChunkedArray) else one


def _spread_cells(column: pa.Array) -> pa.Array:
    """Return the cells' bytes, with NULL where a cell is NULL."""
    present = as_binary(plain(column.drop_null())).cast(pa.large_binary())
    places = np.cumsum(column.is_valid().to_numpy(zero_copy_only=False)) - 1
    return present.take(pa.array(places, mask=column.is_null().to_numpy(zero_copy_only=False)))


def _array_sum(column: pa.Array) -> int:
    """Sum one array by the cheapest way its type has."""
    if isinstance(column, pa.DictionaryArray):
        return _counted_sum(column)
    column = plain(column)
    if len(column) == column.null_count:
        return 0
    if pa.types.is_boolean(column.type):
        # Two hashes, each as often as it stands there.
        true = int(column.true_count)
        false = len(column) - int(column.null_count) - true
        return int(small_table(1)[1]) * true + int(small_table(1)[0]) * false
    width = width_of(column.type)
    if width in (1, 2):
        return _small_sum(column.drop_null(), width)
    if width in (4, 8, 16):
        return _present_sum(_fixed_hashes(column, width), column)
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return _binary_sum(column)
    return _binary_sum(as_binary(column.drop_null() if column.null_count else column))


def _small_sum(column: pa.Array, width: int) -> int:
    """Sum cells of one or two bytes by counting each."""
    counts = np.bincount(raw(column, width).view(f"<u{width}"), minlength=1 << 8 * width).astype(np.uint64)
    return int((small_table(width) * counts).sum())


def _fixed_hashes(column: pa.Array, width: int) -> Hashes:
    """Hash cells of four, eight or sixteen bytes, whatever stands where a cell is NULL."""
    cells = raw(column, width)
    return pair_hashes(cells.view("<u8").reshape(-1, 2)) if width == 16 else number_hashes(cells.view(f"<u{width}"))


def _binary_sum(column: pa.Array) -> int:
    """Sum binary cells; where few are distinct, equal ones are counted first."""
    if _repeats(column):
        found = pc.value_counts(column)
        found = found.filter(found.field("values").is_valid())
        return _weigh(cell_hashes(found.field("values")), found.field("counts"))
    if not column.null_count:
        return int(cell_hashes(column).sum())
    # The same bytes without the mark of NULLs: whatever is under them is hashed, and left out of the sum below.
    bare = pa.Array.from_buffers(column.type, len(column), [None, *column.buffers()[1:]], 0, column.offset)
    return _present_sum(cell_hashes(bare), column)


def _present_sum(hashes: Hashes, column: pa.Array) -> int:
    """Add the hashes of the cells that are not NULL: cheaper than leaving those out of the column before."""
    if column.null_count:
        hashes = hashes * column.is_valid().to_numpy(zero_copy_only=False)
    return int(hashes.sum())


def _repeats(column: pa.Array) -> bool:
    """Return, by a sample, whether many cells are equal; wrong only costs time."""
    size = min(SAMPLE_CELLS, len(column) // SAMPLE_STEP)
    if size < SAMPLE_STEP:
        return False
    sample = column.take(pa.array(np.linspace(0, len(column) - 1, size).astype(np.int64)))
    return bool(pc.count_distinct(sample).as_py() <= FEW * (size - sample.null_count))


def _counted_sum(column: pa.DictionaryArray) -> int:
    """Sum a dictionary array by its values and how often each is meant; a value may be NULL itself."""
    counts = np.bincount(column.indices.drop_null().cast(pa.int64()).to_numpy(), minlength=len(column.dictionary))
    present = column.dictionary.is_valid()
    values = as_binary(plain(column.dictionary.filter(present)))
    return _weigh(cell_hashes(values), pa.array(counts).filter(present))


def _weigh(hashes: Hashes, counts: pa.Array) -> int:
    """Add each hash as often as its cell stands there."""
    return int((hashes * counts.to_numpy().astype(np.uint64)).sum())
