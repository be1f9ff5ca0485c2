"""Whole numbers in seven bits a byte, and rows of bytes cut to their lengths: what Avro's and Protobuf's cells share.

Source: Apache Avro specification, "Binary Encoding"; Protocol Buffers documentation, "Base 128 Varints".
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes = npt.NDArray[np.uint8]
Lengths = npt.NDArray[np.int64]


def varints(numbers: npt.NDArray[np.uint64]) -> tuple[Bytes, Lengths]:
    """Spell numbers without a sign, the lowest seven bits first: rows of bytes, and how many of each row count."""
    top = int(numbers.max(initial=0))
    # As many bytes as the largest needs; short ones are cut behind.
    width = max(1, -(-top.bit_length() // 7))
    lengths = np.ones(len(numbers), np.int64)
    matrix = np.empty((len(numbers), width), np.uint8)
    for place in range(width):
        rest = numbers >> np.uint64(7 * place)
        more = rest > 127
        matrix[:, place] = (rest & np.uint64(127)) | (more.astype(np.uint64) << np.uint64(7))
        if place + 1 < width:
            lengths += more
    return matrix, lengths


def ragged(matrix: Bytes, lengths: Lengths) -> pa.BinaryArray:
    """Cut each row of bytes to its length."""
    ends = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    if ends[-1] == matrix.size:
        content = np.ascontiguousarray(matrix).reshape(-1)
    else:
        content = matrix[np.arange(matrix.shape[1]) < lengths[:, None]]
    return pa.Array.from_buffers(pa.binary(), len(lengths), [None, pa.py_buffer(ends), pa.py_buffer(content)])
