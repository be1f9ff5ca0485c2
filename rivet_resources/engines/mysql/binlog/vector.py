"""One column of some rows, still as the log has it, and arrays made of its values.

Belongs here: `Vector`. Not here: what its bytes mean (values.py, times.py, texts.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rivet_resources.engines.mysql.binlog.events import Field
from rivet_resources.engines.mysql.binlog.row_layout import Bytes, Integers, RowCells, Truths


@dataclass(frozen=True)
class Vector:
    """One column of some rows, still as the log has it."""

    buffer: Bytes
    cells: RowCells
    field: Field
    charset: str  # of texts, as the server names it; '' for bytes

    def __len__(self) -> int:
        return len(self.cells.start)

    @property
    def at(self) -> Integers:
        """Where cells begin."""
        # A NULL has no bytes. It points at the first one of the buffer, which is there to be read, and is not used.
        return np.where(self.cells.null, 0, self.cells.start) if self.cells.null.any() else self.cells.start

    @property
    def rows(self) -> Truths | None:
        """Which cells are values; None for all."""
        return ~self.cells.null if self.cells.null.any() else None


def values(vector: Vector, values: NDArray[Any], arrow: pa.DataType) -> pa.Array:
    """Make an Arrow array of one value per cell."""
    null = vector.cells.null
    if not null.any():
        return pa.Array.from_buffers(arrow, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])
    valid = pa.py_buffer(np.packbits(~null, bitorder="little"))
    return pa.Array.from_buffers(arrow, len(values), [valid, pa.py_buffer(np.ascontiguousarray(values))])
