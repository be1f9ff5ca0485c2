"""NDJSON: one JSON object per line; the YAML block, what it refuses, its part writer, and the count of lines read back.

Belongs here: the file. Not here: how a cell is spelled (`ndjson_render.py`), how lines become rows again
(`ndjson_read.py`).

UTF-8, LF, no blanks between tokens, members in source order, NULL as null. What is exact needs a reader that is:
int64, uint64 and decimals are JSON numbers with all their digits, and a reader that makes doubles of them, as
JavaScript and `jq` do, rounds beyond 15 to 17 digits; `columns: {amount: text}` writes such a column as text.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import BinaryIO, Literal

import pyarrow as pa

from rivet_resources.errors import PartCorrupt, UnsupportedColumn
from rivet_resources.formats.ndjson_render import can_render, render
from rivet_resources.settings import Settings

# Rows rendered at once: small enough for the cache, and no joined column can pass the 2 GB of Arrow text.
SLICE_ROWS = 16_384
SLICE_BYTES = 16 * 1024 * 1024
BLOCK = 1024 * 1024


class Ndjson(Settings):
    """NDJSON files: UTF-8, one object per line, no compression, no options."""

    type: Literal["ndjson"] = "ndjson"

    @property
    def extension(self) -> str:
        """Name files, without the dot."""
        return "ndjson"

    @property
    def codec(self) -> str:
        """Name the compression that is really applied: none."""
        return "none"

    def check_schema(self, schema: pa.Schema, *, export: str) -> tuple[str, ...]:
        """Refuse columns that have no place in a JSON object, before a row is read; no warnings.

        Raises:
            UnsupportedColumn: naming every such column and the override that helps; or a name that stands twice.
        """
        refused = [field for field in schema if not can_render(field)]
        if refused:
            named = ", ".join(f"{field.name!r} ({field.type})" for field in refused)
            override = ", ".join(f"{field.name}: text" for field in refused)
            raise UnsupportedColumn(
                f"Export {export}: NDJSON cannot hold {named}. Write them as text with `columns: {{{override}}}`, "
                f"leave them out of the query, or choose `format: parquet`."
            )
        twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
        if twice:
            raise UnsupportedColumn(
                f"Export {export}: NDJSON cannot hold two columns of one name: {', '.join(map(repr, twice))}. "
                f"Name them apart in the query."
            )
        return ()

    def writer(
        self, path: Path, schema: pa.Schema, *, key: tuple[str, ...] = (), limit_bytes: int | None = None
    ) -> NdjsonWriter:
        """Open a new local file; neither the order of rows nor a limit changes how they are written."""
        return NdjsonWriter(path)

    def rows(self, path: Path, schema: pa.Schema) -> int:
        """Read a finished file back and count its objects.

        Raises:
            PartCorrupt: the first object has not the members of `schema`, a line is no object, or the last does not
                end.
        """
        with open(path, "rb") as file:
            try:
                first = json.loads(file.readline() or b"null")
            except ValueError:
                first = ()
            if first is not None and (not isinstance(first, dict) or list(first) != schema.names):
                raise PartCorrupt(
                    f"Part {path.name} does not begin with an object of its {len(schema)} columns. Run again."
                )
            file.seek(0)
            return _lines(file, name=path.name)


class NdjsonWriter:
    """Writes one file; every page is on its way to the disk when `write` returns."""

    def __init__(self, path: Path) -> None:
        self.bytes_written = 0
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115  pages are large; a buffer would only copy them

    def write(self, table: pa.Table) -> None:
        """Append rows.

        Raises:
            ValueDoesNotFit: a column of JSON holds a text that is not.
        """
        wide = max(1, table.nbytes // max(1, table.num_rows))
        rows = max(1, min(SLICE_ROWS, SLICE_BYTES // wide))
        for batch in table.to_batches(max_chunksize=rows):
            self._put(render(batch))

    def close(self) -> None:
        """Wait until the disk has all of it."""
        os.fsync(self._file.fileno())
        self._file.close()

    def _put(self, content: memoryview) -> None:
        """Write all of `content`: a raw file may take less than it is given."""
        rest = content
        self.bytes_written += len(rest)
        while rest:
            rest = rest[self._file.write(rest) :]


def _lines(file: BinaryIO, *, name: str) -> int:
    """Count the objects from here to the end: no line feed stands inside one, so every one of them ends an object."""
    begins, ends, last = 0, 0, b"}\n"
    while block := file.read(BLOCK):
        begins += (last + block).count(b"}\n{")
        ends += block.count(b"\n")
        last = (last + block)[-2:]
    if last != b"}\n" or begins != ends:
        raise PartCorrupt(f"Part {name} ends inside an object, or has a line that is none. Run again to write it anew.")
    return ends
