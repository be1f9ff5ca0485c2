"""What the formats of plain text share: a writer of rendered batches, and the refusal of columns without a text form.

Belongs here: bytes on their way to the disk. Not here: how a cell is spelled (`shape/cell_text.py`, `ndjson_cells.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from rivet_resources.errors import UnsupportedColumn
from rivet_resources.write.formats.text_codec import Compressor, TextCodec

# Rows rendered at once: small enough for the cache, and no joined column can pass the 2 GB of Arrow text.
SLICE_ROWS = 16_384
SLICE_BYTES = 16 * 1024 * 1024
BLOCK = 1024 * 1024  # of a file read back

Render = Callable[[pa.RecordBatch], bytes | memoryview]


class TextWriter:
    """Writes one file; every page is on its way to the disk when `write` returns."""

    def __init__(
        self,
        path: Path,
        render: Render,
        *,
        head: bytes = b"",
        codec: TextCodec | None = None,
        limit_bytes: int | None = None,
    ) -> None:
        self.bytes_written = 0
        self.head = head
        self._render = render
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115  pages are large; a buffer would only copy them
        self._compressor = Compressor(self._file, codec, limit_bytes=limit_bytes) if codec else None
        self._put(head)

    def write(self, table: pa.Table) -> None:
        """Append rows.

        Raises:
            ValueDoesNotFit: a cell has no spelling in this format.
        """
        wide = max(1, table.nbytes // max(1, table.num_rows))
        rows = max(1, min(SLICE_ROWS, SLICE_BYTES // wide))
        for batch in table.to_batches(max_chunksize=rows):
            self._put(self._render(batch))

    def append(self, lines: bytes) -> None:
        """Append rows that are spelled already."""
        self._put(lines)

    def close(self) -> None:
        """Wait until the disk has all of it."""
        if self._compressor is not None:
            self._compressor.finish()
        os.fsync(self._file.fileno())
        self._file.close()

    def _put(self, content: bytes | memoryview) -> None:
        """Write all of `content`: a raw file may take less than it is given."""
        if self._compressor is not None:
            self.bytes_written = self._compressor.write(content)
            return
        rest = memoryview(content)
        self.bytes_written += len(rest)
        while rest:
            rest = rest[self._file.write(rest) :]


def refuse_unspelled(schema: pa.Schema, can_render: Callable[[pa.Field], bool], *, export: str, form: str) -> None:
    """Refuse columns that a text format cannot spell.

    Raises:
        UnsupportedColumn: naming every such column and the override that helps.
    """
    refused = [field for field in schema if not can_render(field)]
    if refused:
        named = ", ".join(f"{field.name!r} ({field.type})" for field in refused)
        override = ", ".join(f"{field.name}: text" for field in refused)
        raise UnsupportedColumn(
            f"Export {export}: {form} cannot hold {named}. Write them as text with `columns: {{{override}}}`, "
            f"leave them out of the query, or choose `format: parquet`."
        )
