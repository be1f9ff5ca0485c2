"""XXH3-64 of the cells of an array, seed 0, default secret.

Belongs here: which way each cell is hashed. Not here: the program for short ones (`program.py`), which bytes a cell has
(`cells.py`), sums (`sums.py`).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import xxhash

from rivet_resources.write.checksums.program import (
    BLOCK,
    SHORT,
    VALUES_BYTES,
    Bytes,
    Hashes,
    Places,
    Program,
    borrowed,
    is_running,
)

# So many bytes objects at once are made where the last ones lay.
EACH_BLOCK = 2_048
# For fewer cells at once than this starting the program costs more than it saves.
WORTH_STARTING = 8_192


def even_hashes(values: Bytes, width: int) -> Hashes:
    """Hash cells of one width, one behind the other."""
    count = len(values) // width
    found = np.empty(count, np.uint64)
    if width > SHORT or not _is_worth(count):
        found[:] = _each(_evenly(values, width))
        return found
    with borrowed() as program:
        if program is None:
            found[:] = _each(_evenly(values, width))
            return found
        step = min(BLOCK, VALUES_BYTES // width)
        for lo in range(0, count, step):
            found[lo : lo + step] = program.even(values[lo * width : (lo + step) * width], width)
    return found


def cell_hashes(cells: pa.Array) -> Hashes:
    """Hash binary cells in their order; whatever lies under NULL is hashed as well."""
    found = np.empty(len(cells), np.uint64)
    if not _is_worth(len(cells)):
        found[:] = _each(cells)
        return found
    with borrowed() as program:
        if program is None:
            found[:] = _each(cells)
            return found
        values, offsets = _lay_out(cells)
        for lo in range(0, len(cells), BLOCK):
            hi = min(lo + BLOCK, len(cells))
            _hash_block(program, cells.slice(lo, hi - lo), values, offsets[lo : hi + 1], found[lo:hi])
    return found


def _is_worth(cells: int) -> bool:
    return is_running() or cells >= WORTH_STARTING


def _evenly(values: Bytes, width: int) -> pa.Array:
    """Look at cells of one width as an array."""
    return pa.Array.from_buffers(pa.binary(width), len(values) // width, [None, pa.py_buffer(values)])


def _lay_out(cells: pa.Array) -> tuple[Bytes, Places]:
    """Look at the bytes of an array, and at where each cell begins and the last one ends."""
    wide = pa.types.is_large_binary(cells.type) or pa.types.is_large_string(cells.type)
    _, offsets, values = cells.buffers()
    kind = np.dtype("<i8" if wide else "<i4")
    return np.frombuffer(values or b"", np.uint8), np.frombuffer(
        offsets, kind, len(cells) + 1, cells.offset * kind.itemsize
    )


def _hash_block(program: Program, cells: pa.Array, values: Bytes, offsets: Places, into: Hashes) -> None:
    """Hash a block: short cells by the program, longer ones each by a call."""
    if offsets[-1] - offsets[0] > VALUES_BYTES:
        if len(cells) > 1:
            half = len(cells) // 2
            _hash_block(program, cells[:half], values, offsets[: half + 1], into[:half])
            _hash_block(program, cells[half:], values, offsets[half:], into[half:])
        else:
            into[:] = _each(cells)
        return
    into[:], longer = program.ragged(values, offsets)
    if longer:
        rows = np.flatnonzero(np.diff(offsets) > SHORT)
        into[rows] = _each(_bare(cells).take(pa.array(rows)))


def _bare(cells: pa.Array) -> pa.Array:
    """Return the same cells without the mark of NULLs."""
    return pa.Array.from_buffers(cells.type, len(cells), [None, *cells.buffers()[1:]], 0, cells.offset)


def _each(cells: pa.Array) -> Hashes:
    """Call xxhash for every cell."""
    bare = _bare(cells) if cells.null_count else cells
    digests = b"".join(
        b"".join(map(xxhash.xxh3_64_digest, bare.slice(lo, EACH_BLOCK).to_numpy(zero_copy_only=False)))
        for lo in range(0, len(bare), EACH_BLOCK)
    )
    # A digest is written with the high bits first.
    return np.frombuffer(digests, ">u8").astype(np.uint64)
