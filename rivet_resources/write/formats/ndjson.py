"""NDJSON: one JSON object per line; the YAML block, what it refuses, its part writer, and the count of lines read back.

Belongs here: the file. Not here: how a cell is spelled (`ndjson_cells.py`), how lines become rows again
(`ndjson_read.py`).

UTF-8, LF, no blanks between tokens, members in source order, NULL as null. What is exact needs a reader that is:
int64, uint64 and decimals are JSON numbers with all their digits, and a reader that makes doubles of them, as
JavaScript and `jq` do, rounds beyond 15 to 17 digits; `columns: {amount: text}` writes such a column as text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO, ClassVar, Literal, Self

import pyarrow as pa

from rivet_resources.contracts.format import FormatKeys
from rivet_resources.contracts.settings import Settings
from rivet_resources.errors import PartCorrupt, UnsupportedColumn
from rivet_resources.write.formats import ndjson_read
from rivet_resources.write.formats.ndjson_cells import can_render, render
from rivet_resources.write.formats.text_codec import EXTENSIONS, NAMES, TextCodec, counted
from rivet_resources.write.formats.text_writer import BLOCK, TextWriter, refuse_unspelled


class Ndjson(Settings):
    """NDJSON files: UTF-8, one object per line."""

    type: Literal["ndjson"] = "ndjson"
    has_codecs: ClassVar[bool] = False
    keeps_types: ClassVar[bool] = False
    holds_lists: ClassVar[bool] = True
    tells_null: ClassVar[bool] = True
    is_parquet: ClassVar[bool] = False
    is_text: ClassVar[bool] = True
    is_one_line_a_row: ClassVar[bool] = True

    compression: TextCodec | None = None

    @classmethod
    def from_keys(cls, keys: FormatKeys) -> Self:
        """Return the one way there is, compressed only where `text_compression` says so."""
        return cls(compression=keys.text_compression)

    @property
    def extension(self) -> str:
        """Name files, without the dot."""
        return f"ndjson{EXTENSIONS[self.compression]}"

    @property
    def codec(self) -> str:
        """Name the compression that is really applied: none, unless `text_compression` names one."""
        return NAMES[self.compression]

    def check_schema(self, schema: pa.Schema, *, export: str) -> tuple[str, ...]:
        """Refuse columns that have no place in a JSON object, before a row is read; no warnings.

        Raises:
            UnsupportedColumn: naming every such column and the override that helps; or a name that stands twice.
        """
        refuse_unspelled(schema, can_render, export=export, form="NDJSON")
        # A second member of one name hides the first one from most readers, and nobody would be told.
        twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
        if twice:
            raise UnsupportedColumn(
                f"Export {export}: NDJSON cannot hold two columns of one name: {', '.join(map(repr, twice))}. "
                f"Name them apart in the query."
            )
        return ()

    def writer(
        self, path: Path, schema: pa.Schema, *, key: tuple[str, ...] = (), limit_bytes: int | None = None
    ) -> TextWriter:
        """Open a new local file; the order of rows changes nothing."""
        return TextWriter(path, render, codec=self.compression, limit_bytes=limit_bytes)

    def rows(self, path: Path, schema: pa.Schema) -> int:
        """Read a finished file back and count its objects.

        Raises:
            PartCorrupt: the first object has not the members of `schema`, a line is no object, or the last does not
                end.
        """
        with counted(path) as file:
            line = file.readline()
            try:
                first = json.loads(line or b"null")
            except ValueError:
                first = ()
            # An empty file has no first object, and is a part without rows all the same.
            if first is not None and (not isinstance(first, dict) or list(first) != schema.names):
                raise PartCorrupt(
                    f"Part {path.name} does not begin with an object of its {len(schema)} columns. Run again."
                )
            return _lines(file, name=path.name, begun=line)

    def tables(self, file: BinaryIO, schema: pa.Schema) -> Iterator[pa.Table]:
        """Yield the rows of a part for readers, some at a time."""
        return ndjson_read.tables(file, schema)

    def exact_columns(self, schema: pa.Schema) -> frozenset[str]:
        """Return the columns whose cells come back bit by bit."""
        return ndjson_read.exact_columns(schema)

    def batches(self, path: Path, schema: pa.Schema) -> Iterator[pa.Table]:
        """Yield the rows of a finished file for proofs.

        Raises:
            pyarrow.ArrowException: the reader does not take a spelling.
        """
        return ndjson_read.batches(path, schema)


def _lines(file: BinaryIO, *, name: str, begun: bytes) -> int:
    """Count the objects of the first line and the rest: no line feed stands inside one, so each of them ends one."""
    begins, ends, last = 0, 0, b"}\n"
    for block in chain([begun], iter(lambda: file.read(BLOCK), b"")):
        # Two bytes are kept from the block before, as the mark may lie across the border.
        begins += (last + block).count(b"}\n{")
        ends += block.count(b"\n")
        last = (last + block)[-2:]
    if last != b"}\n" or begins != ends:
        raise PartCorrupt(f"Part {name} ends inside an object, or has a line that is none. Run again to write it anew.")
    return ends
