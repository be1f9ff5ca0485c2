"""Parquet as rows again: for readers of parts, and cell by cell for proofs.

Belongs here: the way back of `parquet_writer.py`. Not here: which parts (`commit/reader.py`), comparing
(`prove/part.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

READ_ROWS = 20_000
BATCH_BYTES = 16 << 20
BATCH_ROWS = (256, 65_536)


def tables(file: BinaryIO) -> Iterator[pa.Table]:
    """Yield the rows of a part, some at a time."""
    import pyarrow.parquet as pq  # start

    for batch in pq.ParquetFile(file).iter_batches(batch_size=READ_ROWS):
        yield pa.Table.from_batches([batch])


def batches(file: Path) -> Iterator[pa.Table]:
    """Yield the rows of a part in tables of some MB."""
    import pyarrow.parquet as pq  # start

    with pq.ParquetFile(file) as part:
        footer = part.metadata
        size = sum(footer.row_group(group).total_byte_size for group in range(footer.num_row_groups))
        fewest, most = BATCH_ROWS
        rows = max(fewest, min(most, BATCH_BYTES // max(1, size // max(1, footer.num_rows))))
        # One thread per task: the machine's cores belong to other tasks.
        for batch in part.iter_batches(batch_size=rows, use_threads=False):
            yield pa.Table.from_batches([batch])
