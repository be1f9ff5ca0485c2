"""CSV: the YAML block, what it refuses, its part writer, and the count of records read back.

Belongs here: the file. Not here: how a cell is spelled (`csv_render.py`). Byte rules: `contract.md`, 8.3.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
import pyarrow as pa

from rivet_resources.errors import PartCorrupt, UnsupportedColumn
from rivet_resources.formats.csv_render import can_render, header, render
from rivet_resources.settings import Settings

# Rows rendered at once: small enough for the cache, and no joined column can pass the 2 GB of Arrow text.
SLICE_ROWS = 16_384
SLICE_BYTES = 16 * 1024 * 1024
BLOCK = 1024 * 1024


class Csv(Settings):
    """CSV files: UTF-8, comma, LF, header always, no compression, no options."""

    type: Literal["csv"] = "csv"

    @property
    def extension(self) -> str:
        """Name files, without the dot."""
        return "csv"

    @property
    def codec(self) -> str:
        """Name the compression that is really applied: none (`contract.md`, 1.5)."""
        return "none"

    def check_schema(self, schema: pa.Schema, *, export: str) -> tuple[str, ...]:
        """Refuse columns that have no place in one line of text, before a row is read; no warnings.

        Raises:
            UnsupportedColumn: naming every such column and the override that helps.
        """
        refused = [field for field in schema if not can_render(field)]
        if refused:
            named = ", ".join(f"{field.name!r} ({field.type})" for field in refused)
            override = ", ".join(f"{field.name}: text" for field in refused)
            raise UnsupportedColumn(
                f"Export {export}: CSV cannot hold {named}. Write them as text with `columns: {{{override}}}`, "
                f"leave them out of the query, or choose `format: parquet`."
            )
        return ()

    def writer(
        self, path: Path, schema: pa.Schema, *, key: tuple[str, ...] = (), limit_bytes: int | None = None
    ) -> CsvWriter:
        """Open a new local file; neither the order of rows nor a limit changes how they are written."""
        return CsvWriter(path, schema)

    def rows(self, path: Path, schema: pa.Schema) -> int:
        """Read a finished file back and count its records, not its lines; the header is not one.

        Raises:
            PartCorrupt: the header is not that of `schema`, or the last record does not end.
        """
        expected = header(schema)
        with open(path, "rb") as file:
            if file.read(len(expected)) != expected:
                raise PartCorrupt(
                    f"Part {path.name} does not begin with the header of its {len(schema)} columns. Run again."
                )
            return _records(file, name=path.name)


class CsvWriter:
    """Writes one CSV file; every page is on its way to the disk when `write` returns."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.bytes_written = 0
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115  pages are large; a buffer would only copy them
        self._put(header(schema))

    def write(self, table: pa.Table) -> None:
        """Append rows."""
        wide = max(1, table.nbytes // max(1, table.num_rows))
        rows = max(1, min(SLICE_ROWS, SLICE_BYTES // wide))
        for batch in table.to_batches(max_chunksize=rows):
            self._put(render(batch))

    def close(self) -> None:
        """Wait until the disk has all of it."""
        os.fsync(self._file.fileno())
        self._file.close()

    def _put(self, content: bytes | memoryview) -> None:
        """Write all of `content`: a raw file may take less than it is given."""
        rest = memoryview(content)
        self.bytes_written += len(rest)
        while rest:
            rest = rest[self._file.write(rest) :]


def _records(file: BinaryIO, *, name: str) -> int:
    """Count line feeds outside quotes from here to the end.

    A line feed is inside a cell exactly when an odd number of quotes stands before it, doubled ones included.
    """
    records, quotes, last = 0, 0, b"\n"
    while block := file.read(BLOCK):
        last = block[-1:]
        if quotes % 2 == 0 and b'"' not in block:
            records += block.count(b"\n")
            continue
        text = np.frombuffer(block, np.uint8)
        marks = np.flatnonzero(text == ord('"'))
        before = np.searchsorted(marks, np.flatnonzero(text == ord("\n")))
        records += int(((before + quotes) % 2 == 0).sum())
        quotes += len(marks)
    if quotes % 2 or last != b"\n":
        raise PartCorrupt(f"Part {name} ends inside a record. Run again to write it anew.")
    return records
