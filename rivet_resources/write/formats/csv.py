"""CSV: the YAML block, what it refuses, its part writer, and the count of records read back.

Belongs here: the file. Not here: how a cell is spelled (`shape/cell_text.py`). Byte rules: `contract.md`, 8.3.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa

from rivet_resources.contracts.format import FormatKeys
from rivet_resources.contracts.settings import Settings
from rivet_resources.errors import PartCorrupt
from rivet_resources.shape.cell_text import can_render, header, render
from rivet_resources.write.formats import csv_read
from rivet_resources.write.formats.text_codec import EXTENSIONS, NAMES, TextCodec, counted
from rivet_resources.write.formats.text_writer import BLOCK, TextWriter, refuse_unspelled


class Csv(Settings):
    """CSV files: UTF-8, comma, LF, header always."""

    type: Literal["csv"] = "csv"
    has_codecs: ClassVar[bool] = False
    keeps_types: ClassVar[bool] = False
    holds_lists: ClassVar[bool] = False
    tells_null: ClassVar[bool] = False
    is_parquet: ClassVar[bool] = False
    is_text: ClassVar[bool] = True
    is_one_line_a_row: ClassVar[bool] = False

    compression: TextCodec | None = None

    @classmethod
    def from_keys(cls, keys: FormatKeys) -> Self:
        """Return the one way there is, compressed only where `text_compression` says so."""
        return cls(compression=keys.text_compression)

    @property
    def extension(self) -> str:
        """Name files, without the dot."""
        return f"csv{EXTENSIONS[self.compression]}"

    @property
    def codec(self) -> str:
        """Name the compression that is really applied: none, unless `text_compression` names one."""
        return NAMES[self.compression]

    def check_schema(self, schema: pa.Schema, *, export: str) -> tuple[str, ...]:
        """Refuse columns that have no place in one line of text, before a row is read; no warnings.

        Raises:
            UnsupportedColumn: naming every such column and the override that helps.
        """
        refuse_unspelled(schema, can_render, export=export, form="CSV")
        return ()

    def writer(
        self, path: Path, schema: pa.Schema, *, key: tuple[str, ...] = (), limit_bytes: int | None = None
    ) -> TextWriter:
        """Open a new local file; the order of rows changes nothing."""
        return TextWriter(path, render, head=header(schema), codec=self.compression, limit_bytes=limit_bytes)

    def rows(self, path: Path, schema: pa.Schema) -> int:
        """Read a finished file back and count its records, not its lines; the header is not one.

        Raises:
            PartCorrupt: the header is not that of `schema`, or the last record does not end.
        """
        expected = header(schema)
        with counted(path) as file:
            if file.read(len(expected)) != expected:
                raise PartCorrupt(
                    f"Part {path.name} does not begin with the header of its {len(schema)} columns. Run again."
                )
            return _records(file, name=path.name)

    def tables(self, file: BinaryIO, schema: pa.Schema) -> Iterator[pa.Table]:
        """Yield the rows of a part for readers, some at a time."""
        return csv_read.tables(file, schema)

    def exact_columns(self, schema: pa.Schema) -> frozenset[str]:
        """Return the columns whose cells come back bit by bit."""
        return csv_read.exact_columns(schema)

    def batches(self, path: Path, schema: pa.Schema) -> Iterator[pa.Table]:
        """Yield the rows of a finished file for proofs.

        Raises:
            pyarrow.ArrowException: the reader does not take a spelling.
        """
        return csv_read.batches(path, schema)


def _records(file: BinaryIO, *, name: str) -> int:
    """Count line feeds outside quotes from here to the end.

    A line feed is inside a cell exactly when an odd number of quotes stands before it, doubled ones included.
    """
    records, quotes, last = 0, 0, b"\n"
    while block := file.read(BLOCK):
        last = block[-1:]
        # The usual block: no quotes, and none open from before.
        if quotes % 2 == 0 and b'"' not in block:
            records += block.count(b"\n")
            continue
        text = np.frombuffer(block, np.uint8)
        marks = np.flatnonzero(text == ord('"'))
        # For each line feed, how many quotes stand before it in this block.
        before = np.searchsorted(marks, np.flatnonzero(text == ord("\n")))
        records += int(((before + quotes) % 2 == 0).sum())
        quotes += len(marks)
    if quotes % 2 or last != b"\n":
        raise PartCorrupt(f"Part {name} ends inside a record. Run again to write it anew.")
    return records
