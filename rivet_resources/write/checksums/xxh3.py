"""XXH3-64 of the cells of an array, seed 0, default secret.

Belongs here: which way each cell is hashed. Not here: the program for short ones (`program.py`), which bytes a cell has
(`cells.py`), sums (`sums.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from rivet_resources.write.checksums.cells import raw
from rivet_resources.write.checksums.program import (
    BLOCK,
    MASK,
    SHORT,
    VALUES_BYTES,
    Bits,
    Bytes,
    Hashes,
    Places,
    Program,
    borrowed,
)

Block = tuple[Hashes, int]  # hashes, good until the next block is asked for, and their sum modulo 2^64
# So many bytes objects at once are made where the last ones lay.
EACH_BLOCK = 2_048


def even_hashes(values: Bytes, width: int) -> Hashes:
    """Hash cells of one width, one behind the other."""
    return _joined(_even_blocks(values, width, None))


def cell_hashes(cells: pa.Array) -> Hashes:
    """Hash binary cells in their order; whatever lies under NULL is hashed as well."""
    return _joined(_ragged_blocks(cells, None))


def array_sum(column: pa.Array, width: int | None) -> int:
    """Sum the hashes of the cells that are not NULL, modulo 2^64.

    Args:
        width: bytes of each cell; None for binary cells.
    """
    bits = _bits_of(column) if column.null_count else None
    blocks = _ragged_blocks(column, bits) if width is None else _even_blocks(raw(column, width), width, bits)
    return sum(total for _, total in blocks) & MASK


def _bits_of(column: pa.Array) -> Bytes:
    """Return a bit for each cell, 0 where it is NULL, the first one the lowest of its byte."""
    valid = column.is_valid()
    if not valid.offset:
        return np.frombuffer(valid.buffers()[1], np.uint8)
    return np.packbits(valid.to_numpy(zero_copy_only=False), bitorder="little")


def _joined(blocks: Iterator[Block]) -> Hashes:
    return np.concatenate([np.empty(0, np.uint64), *(each.copy() for each, _ in blocks)])


def _cut(bits: Bits, lo: int, count: int) -> Bits:
    """Take the bits of some cells; `lo` is at the begin of a byte."""
    return None if bits is None else bits[lo // 8 : -(-(lo + count) // 8)]


def _even_blocks(values: Bytes, width: int, bits: Bits) -> Iterator[Block]:
    count = len(values) // width
    with borrowed(count) as program:
        if program is None or width > SHORT:
            cells = pa.Array.from_buffers(pa.binary(width), count, [None, pa.py_buffer(values)])
            yield _by_calls(cells, bits)
            return
        step = min(BLOCK, VALUES_BYTES // width // 8 * 8)
        for lo in range(0, count, step):
            some = values[lo * width : (lo + step) * width]
            found = program.even(some, width, _cut(bits, lo, min(step, count - lo)))
            yield found.each, found.total


def _ragged_blocks(cells: pa.Array, bits: Bits) -> Iterator[Block]:
    with borrowed(len(cells)) as program:
        if program is None:
            yield _by_calls(cells, bits)
            return
        values, offsets = _lay_out(cells)
        for lo in range(0, len(cells), BLOCK):
            some = cells.slice(lo, BLOCK)
            yield from _hash_block(program, some, values, offsets[lo : lo + BLOCK + 1], _cut(bits, lo, len(some)))


def _hash_block(program: Program, cells: pa.Array, values: Bytes, offsets: Places, bits: Bits) -> Iterator[Block]:
    """Hash a block: short cells by the program, longer ones each by a call."""
    size = int(offsets[-1] - offsets[0])
    if size > SHORT * len(cells):
        # Mostly long ones: the program would be given bytes for nothing.
        yield _by_calls(cells, bits)
    elif size > VALUES_BYTES:
        half = len(cells) // 16 * 8
        for lo, hi in ((0, half), (half, len(cells))):
            yield from _hash_block(program, cells[lo:hi], values, offsets[lo : hi + 1], _cut(bits, lo, hi - lo))
    else:
        found = program.ragged(values, offsets, bits)
        total = found.total
        if found.longer:
            is_longer = np.diff(offsets) > SHORT
            rows = np.flatnonzero(is_longer if bits is None else is_longer & _spread(bits, len(cells)))
            found.each[rows], more = _by_calls(_bare(cells).take(pa.array(rows)), None)
            total += more
        yield found.each, total


def _spread(bits: Bytes, count: int) -> npt.NDArray[np.bool_]:
    return np.unpackbits(bits, count=count, bitorder="little").view(np.bool_)


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


def _by_calls(cells: pa.Array, bits: Bits) -> Block:
    """Call xxhash for every cell."""
    bare = _bare(cells) if cells.null_count else cells
    digests = b"".join(
        b"".join(map(xxhash.xxh3_64_digest, bare.slice(lo, EACH_BLOCK).to_numpy(zero_copy_only=False)))
        for lo in range(0, len(bare), EACH_BLOCK)
    )
    # A digest is written with the high bits first.
    found = np.frombuffer(digests, ">u8").astype(np.uint64)
    if bits is not None:
        found *= _spread(bits, len(cells))
    return found, int(found.sum())
