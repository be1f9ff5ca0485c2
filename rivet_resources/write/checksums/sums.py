"""Value checksums: one number per column that says whether parts hold the cells that were read (`contract.md`, 10.2).

Belongs here: the sums over a table's columns. Not here: a cell's bytes (`cells.py`), the hash
(`xxh3.py`), who compares them (`prove/validate.py`, `rivet_assets/prove/reconcile.py`).

XXH3-64 of each cell that is not NULL, added modulo 2^64: rows may come in any order and any number of pages, and sums
of disjoint rows add up. The sum of a column is about the column alone: two rows that swap their cells in it change
nothing. That is seen by the fingerprint of the part and by the row hash; hashing a key with every cell (`keyed_sum`)
sees it too, and was rejected for exports on 2026-11-21: the bytes of every cell are then laid out anew behind a key,
which costs several times as much (tests/bench/checksums.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from rivet_resources.contracts.transform import run_clock_columns
from rivet_resources.write.checksums.cells import as_binary, is_known, plain, width_of
from rivet_resources.write.checksums.program import Hashes
from rivet_resources.write.checksums.xxh3 import array_sum, cell_hashes

ALGORITHM = "xxh3-64-sum-v2"  # the id of these sums in a manifest's `checksum_render`
WHOLE = 1 << 64
# Differs from run to run while the rows do not, so it would only hide that two windows are equal.
UNSUMMED = frozenset({"_rivet_exported_at"})

WAITING_ROWS, WAITING_BYTES = 65_536, 8 << 20
# What each column is to bring, as far as it goes: a column costs 15 µs each time, as much as 2,000 short cells.
COLUMN_BYTES, MANY_COLUMNS_BYTES = 64 << 10, 32 << 20
# Below it numpy's calls cost more than copying cells together.
SMALL_CHUNK = 16_384
FALSE, TRUE = (xxhash.xxh3_64_intdigest(bytes([number])) for number in range(2))


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
        worth = max(WAITING_BYTES, min(MANY_COLUMNS_BYTES, COLUMN_BYTES * page.num_columns))
        if self._rows >= WAITING_ROWS or self._bytes >= worth:
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
        return TRUE * true + FALSE * false
    if width := width_of(column.type):
        return array_sum(column, width)
    if not pa.types.is_binary(column.type) and not pa.types.is_large_binary(column.type):
        column = as_binary(column.drop_null() if column.null_count else column)
    return array_sum(column, None)


def _counted_sum(column: pa.DictionaryArray) -> int:
    """Sum a dictionary array by its values and how often each is meant; a value may be NULL itself."""
    counts = np.bincount(column.indices.drop_null().cast(pa.int64()).to_numpy(), minlength=len(column.dictionary))
    present = column.dictionary.is_valid()
    values = as_binary(plain(column.dictionary.filter(present)))
    return _weigh(cell_hashes(values), pa.array(counts).filter(present))


def _weigh(hashes: Hashes, counts: pa.Array) -> int:
    """Add each hash as often as its cell stands there."""
    return int((hashes * counts.to_numpy().astype(np.uint64)).sum())
