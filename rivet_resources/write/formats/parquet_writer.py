"""The writing of one Parquet file: when a row group is full, and how each column is encoded.

Belongs here: the buffer of pages, the choice of encodings, the options given to pyarrow. Not here: YAML
(`parquet.py`). `created_by` is pyarrow's own constant: it offers no way to set one, and equal rows give equal
bytes as long as pyarrow's version is the same.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

Encoding = Literal["plain", "delta", "byte_stream_split", "dictionary"]

# Of each column, and of all together: with a thousand columns 20,000 rows each took half a second.
SAMPLE_ROWS, SAMPLE_CELLS = 20_000, 4_000_000
SAMPLE_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class GroupSize:
    """When a row group is full, in Arrow bytes and rows; None: no such bound.

    It closes at `target_bytes`; rows so narrow that `min_rows` fit below `max_bytes` go on to that many. It closes at
    `max_bytes` or `max_rows` anyway. `exact_rows` cuts pages and leaves only `max_bytes` beside it.
    """

    target_bytes: int | None = None
    min_rows: int = 0
    max_bytes: int | None = None
    max_rows: int | None = None
    exact_rows: int | None = None

    # Pages are not cut, so it may exceed a bound by one page.
    def is_full(self, rows: int, size: int) -> bool:
        """Return whether a group of so many rows and Arrow bytes is to be written."""
        if self.max_bytes is not None and size >= self.max_bytes:
            return True
        if self.max_rows is not None and rows >= self.max_rows:
            return True
        if self.target_bytes is None or size < self.target_bytes:
            return False
        return rows >= self.min_rows or (self.max_bytes is not None and size * self.min_rows > self.max_bytes * rows)


@dataclass(frozen=True)
class Layout:
    """All that shapes a file besides its rows."""

    compression: str
    level: int | None
    groups: GroupSize
    wanted: Mapping[str, str] = field(default_factory=dict)  # column → the user's word
    ordered: tuple[str, ...] = ()  # columns that ascend as rows arrive
    limit_bytes: int | None = None  # the part is about to be closed at this size


class RowGroupWriter:
    """Collects pages until a row group is full, then encodes it; the first one decides the encodings.

    `bytes_written` counts finished row groups.
    """

    def __init__(self, path: Path, schema: pa.Schema, *, layout: Layout) -> None:
        self.bytes_written = 0
        self._path, self._schema, self._layout = path, schema, layout
        self._sink = pa.OSFile(str(path), "wb")
        self._encoder: pq.ParquetWriter | None = None
        self._pages: list[pa.Table] = []
        self._rows = 0
        self._size = 0
        self._encoded_size = 0  # Arrow bytes of the finished row groups

    def write(self, table: pa.Table) -> None:
        """Append rows; they reach the file when their row group is full."""
        self._pages.append(table)
        self._rows += table.num_rows
        self._size += table.nbytes
        exact = self._layout.groups.exact_rows
        while exact is not None and self._rows >= exact:
            self._flush(exact)
        # Where a limit is given, a group is closed early as soon as the file is expected to reach it, so the count is
        # true when it matters.
        if self._rows and (self._layout.groups.is_full(self._rows, self._size) or self._limit_is_near()):
            self._flush(self._rows)

    def close(self) -> None:
        """Write what is left and the footer, and wait until the disk has it."""
        self._flush(self._rows)
        assert self._encoder is not None
        self._encoder.close()
        self._sink.close()
        descriptor = os.open(self._path, os.O_RDONLY)
        try:
            # Before the part is read back and staged: invariant I2, a file is durable before any record mentions it.
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _limit_is_near(self) -> bool:
        """Guess from the finished groups (before them: from the Arrow bytes) whether the limit would be passed."""
        if self._layout.limit_bytes is None:
            return False
        # Nobody knows what a group will be compressed to; the groups before it are the best guess.
        shrunk = self.bytes_written / self._encoded_size if self._encoded_size else 1.0
        return self.bytes_written + self._size * shrunk >= self._layout.limit_bytes

    def _flush(self, rows: int) -> None:
        """Encode the first `rows` of the buffer as one row group."""
        table = pa.concat_tables(self._pages) if self._pages else self._schema.empty_table()
        group, rest = table.slice(0, rows), table.slice(rows)
        self._pages = [rest] if rest.num_rows else []
        self._rows, self._size = rest.num_rows, rest.nbytes if rest.num_rows else 0
        if self._encoder is None:
            self._encoder = self._open(group)
        if group.num_rows:
            # One group per call; left to itself pyarrow cuts at a million rows.
            self._encoder.write_table(group, row_group_size=group.num_rows)
            self._encoded_size += group.nbytes
            # True only between row groups: what waits in memory has no size on disk yet.
            self.bytes_written = self._sink.tell()

    def _open(self, first: pa.Table) -> pq.ParquetWriter:
        """Start the file with the encodings that the first row group asks for."""
        dictionary, encodings = encodings_of(first, wanted=self._layout.wanted, ordered=self._layout.ordered)
        return pq.ParquetWriter(
            self._sink,
            self._schema,
            compression=self._layout.compression,
            compression_level=self._layout.level,
            use_dictionary=dictionary,
            column_encoding=encodings or None,
            use_compliant_nested_type=False,  # keep list children called `item`
            write_page_index=True,
            write_page_checksum=True,
            # What Spark writes too; half the time of fixed-length bytes.
            store_decimal_as_integer=True,
        )


def encodings_of(
    first: pa.Table, *, wanted: Mapping[str, str], ordered: tuple[str, ...]
) -> tuple[list[str], dict[str, str]]:
    """Choose encodings by what the first row group shows and what the user said; the user's word wins.

    More than half of the values distinct: no dictionary, and then delta for integers and times that ascend,
    byte stream split for floats. Otherwise a dictionary. A float of few values keeps its dictionary.

    Returns:
        Leaf paths that get a dictionary, and the encoding of the columns that have another one than plain.
    """
    dictionary: list[str] = []
    encodings: dict[str, str] = {}
    rows = min(SAMPLE_ROWS, SAMPLE_CELLS // max(1, first.num_columns))
    for index, column in enumerate(first.schema):
        asked = wanted.get(column.name)
        sample = None if asked in Encoding.__args__ else _sample(first.column(index), rows)  # type: ignore[attr-defined]
        word = asked if sample is None else _choose(sample, first.num_rows, is_ordered=column.name in ordered)
        if word == "dictionary" and asked != "no dictionary":
            dictionary += list(_leaves(column))
        elif word in ("delta", "byte_stream_split"):
            encodings[column.name] = str((DELTA if word == "delta" else SPLIT).of(column.type))
    return dictionary, encodings


@dataclass(frozen=True)
class _Kinds:
    """Which Parquet encoding a family of Arrow types takes."""

    table: tuple[tuple[Any, str], ...]

    def of(self, arrow: pa.DataType) -> str | None:
        """Name the encoding for a type; None when there is none."""
        return next((name for test, name in self.table if test(arrow)), None)


# Source: Parquet format, "Encodings.md": DELTA_BINARY_PACKED for INT32 and INT64, DELTA_BYTE_ARRAY for BYTE_ARRAY.
DELTA = _Kinds((
    (pa.types.is_integer, "DELTA_BINARY_PACKED"),
    (pa.types.is_temporal, "DELTA_BINARY_PACKED"),
    (pa.types.is_string, "DELTA_BYTE_ARRAY"),
    (pa.types.is_binary, "DELTA_BYTE_ARRAY"),
))  # fmt: skip
SPLIT = _Kinds((
    (pa.types.is_float32, "BYTE_STREAM_SPLIT"),
    (pa.types.is_float64, "BYTE_STREAM_SPLIT"),
    (pa.types.is_integer, "BYTE_STREAM_SPLIT"),
    (pa.types.is_temporal, "BYTE_STREAM_SPLIT"),
))  # fmt: skip


def _choose(sample: pa.ChunkedArray, rows: int, *, is_ordered: bool) -> Encoding:
    """Choose for one column from an even sample of its first row group of `rows` rows."""
    arrow = sample.type
    counts = pa.types.is_integer(arrow) or pa.types.is_temporal(arrow)
    if pa.types.is_nested(arrow) or pa.types.is_boolean(arrow) or pa.types.is_null(arrow):
        return "dictionary"
    # The key by which a chunk is read ascends for certain: nothing need be looked at.
    if counts and is_ordered:
        return "delta"
    if not _mostly_distinct(sample, rows):
        return "dictionary"
    if counts and _ascends(sample):
        return "delta"
    # Distinct values make a dictionary that is as large as the column, beside the indexes into it.
    return "byte_stream_split" if pa.types.is_floating(arrow) and arrow != pa.float16() else "plain"


def _sample(column: pa.ChunkedArray, at_most: int) -> pa.ChunkedArray:
    """Take cells at even distances, at most so many and about `SAMPLE_BYTES`."""
    rows = len(column)
    wide = max(1, column.nbytes // max(rows, 1))
    # Even distances, not the first rows: those of one day, or one customer, repeat more or less than the rest.
    step = max(1, math.ceil(rows / max(1, min(at_most, SAMPLE_BYTES // wide))))
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], type=column.type.storage_type)
    if step == 1:
        return column
    # Chunk by chunk, since `take` on a chunked column of texts first joins all of it.
    return pa.chunked_array(
        [chunk.take(pa.array(np.arange(0, len(chunk), step))) for chunk in column.chunks], type=column.type
    )


def _mostly_distinct(sample: pa.ChunkedArray, rows: int) -> bool:
    """Return whether more than half of the `rows` would be distinct, judged from the sample.

    A sample of n repeats less than the whole: rows drawn from U values show U(1 - e^(-n/U)) different ones.
    """
    # Half of `rows` distinct means U = 0.6275 rows, which gives what the sample must show.
    seen = len(sample) - sample.null_count
    if seen == 0:
        return False
    values = 0.6275 * rows * seen / len(sample)
    return bool(pc.count_distinct(sample, mode="only_valid").as_py() > values * (1 - math.exp(-seen / values)))


def _ascends(sample: pa.ChunkedArray) -> bool:
    """Return whether the cells of the sample never go down."""
    width = pa.int64() if sample.type.bit_width == 64 else pa.int32()
    cells = sample.drop_null()
    numbers = cells.to_numpy() if pa.types.is_integer(cells.type) else cells.cast(width).to_numpy()
    return bool((numbers[1:] >= numbers[:-1]).all())


def _leaves(column: pa.Field, prefix: str = "") -> Iterator[str]:
    """Name the Parquet leaves below a column, as `column_encoding` and `use_dictionary` want them."""
    path = f"{prefix}{column.name}"
    if pa.types.is_struct(column.type):
        for child in column.type:
            yield from _leaves(child, f"{path}.")
    elif pa.types.is_map(column.type):
        yield from _leaves(column.type.key_field, f"{path}.key_value.")
        yield from _leaves(column.type.item_field, f"{path}.key_value.")
    elif pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        yield from _leaves(column.type.value_field, f"{path}.list.")
    else:
        yield path
