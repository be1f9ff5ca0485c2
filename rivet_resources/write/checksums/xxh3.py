"""XXH3-64 of the cells of an array, seed 0, default secret.

Belongs here: which way each cell is hashed. Not here: the program for short ones (`program.py`), which bytes a cell has
(`cells.py`), sums (`sums.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import xxhash

from rivet_resources.write.checksums.cells import raw
from rivet_resources.write.checksums.program import (
    BLOCK,
    MASK,
    SHORT,
    VALUES_BYTES,
    Bytes,
    Hashes,
    Places,
    Program,
    borrowed,
)

Block = tuple[Hashes, int]  # hashes, good until the next block is asked for, and their sum modulo 2^64
# So many bytes objects at once are made where the last ones lay.
EACH_BLOCK = 2_048
# For fewer cells at once than this starting the program costs more than it saves.
WORTH_STARTING = 8_192


def even_hashes(values: Bytes, width: int) -> Hashes:
    """Hash cells of one width, one behind the other."""
    return _joined(each for each, _ in _even_blocks(values, width))


def cell_hashes(cells: pa.Array) -> Hashes:
    """Hash binary cells in their order; whatever lies under NULL is hashed as well."""
    return _joined(each for each, _ in _ragged_blocks(cells))


def array_sum(column: pa.Array, width: int | None) -> int:
    """Sum the hashes of the cells that are not NULL, modulo 2^64.

    Args:
        width: bytes of each cell; None for binary cells.
    """
    blocks = _ragged_blocks(column) if width is None else _even_blocks(raw(column, width), width)
    if not column.null_count:
        return sum(total for _, total in blocks) & MASK
    valid, total, at = column.is_valid().to_numpy(zero_copy_only=False), 0, 0
    for each, _ in blocks:
        # Cheaper than leaving NULLs out of the column before; in place, since nobody else looks at these hashes.
        each *= valid[at : at + len(each)]
        total += int(each.sum())
        at += len(each)
    return total & MASK


def _joined(blocks: Iterator[Hashes]) -> Hashes:
    return np.concatenate([np.empty(0, np.uint64), *(each.copy() for each in blocks)])


def _even_blocks(values: Bytes, width: int) -> Iterator[Block]:
    count = len(values) // width
    with borrowed(count, WORTH_STARTING) as program:
        if program is None or width > SHORT:
            cells = pa.Array.from_buffers(pa.binary(width), count, [None, pa.py_buffer(values)])
            yield _by_calls(cells)
            return
        step = min(BLOCK, VALUES_BYTES // width)
        for lo in range(0, count, step):
            found = program.even(values[lo * width : (lo + step) * width], width)
            yield found.each, found.total


def _ragged_blocks(cells: pa.Array) -> Iterator[Block]:
    with borrowed(len(cells), WORTH_STARTING) as program:
        if program is None:
            yield _by_calls(cells)
            return
        values, offsets = _lay_out(cells)
        for lo in range(0, len(cells), BLOCK):
            yield from _hash_block(program, cells.slice(lo, BLOCK), values, offsets[lo : lo + BLOCK + 1])


def _hash_block(program: Program, cells: pa.Array, values: Bytes, offsets: Places) -> Iterator[Block]:
    """Hash a block: short cells by the program, longer ones each by a call."""
    size = int(offsets[-1] - offsets[0])
    if size > SHORT * len(cells):
        # Mostly long ones: the program would be given bytes for nothing.
        yield _by_calls(cells)
    elif size > VALUES_BYTES:
        half = len(cells) // 2
        yield from _hash_block(program, cells[:half], values, offsets[: half + 1])
        yield from _hash_block(program, cells[half:], values, offsets[half:])
    else:
        found = program.ragged(values, offsets)
        if found.longer:
            rows = np.flatnonzero(np.diff(offsets) > SHORT)
            found.each[rows], total = _by_calls(_bare(cells).take(pa.array(rows)))
            yield found.each, (found.total + total) & MASK
        else:
            yield found.each, found.total


def _lay_out(cells: pa.Array) -> tuple[Bytes, Places]:
    """Look at the bytes of an array, and at where each cell begins and the last one ends."""
    wide = pa.types.is_large_binary(cells.type) or pa.types.is_large_string(cells.type)
    _, offsets, values = cells.buffers()
    kind = np.dtype("<i8" if wide else "<i4")
    return np.frombuffer(values or b"", np.uint8), np.frombuffer(
        offsets, kind, len(cells) + 1, cells.offset * kind.itemsize
    )


def _bare(cells: pa.Array) -> pa.Array:
    """Return the same cells without the mark of NULLs."""
    return pa.Array.from_buffers(cells.type, len(cells), [None, *cells.buffers()[1:]], 0, cells.offset)


def _by_calls(cells: pa.Array) -> Block:
    """Call xxhash for every cell."""
    bare = _bare(cells) if cells.null_count else cells
    digests = b"".join(
        b"".join(map(xxhash.xxh3_64_digest, bare.slice(lo, EACH_BLOCK).to_numpy(zero_copy_only=False)))
        for lo in range(0, len(bare), EACH_BLOCK)
    )
    # A digest is written with the high bits first.
    found = np.frombuffer(digests, ">u8").astype(np.uint64)
    return found, int(found.sum())
