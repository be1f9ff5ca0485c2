"""Avro: the YAML block, what it refuses, its part writer, and the count of rows read back.

Belongs here: the file. Not here: types (`avro_schema.py`), bytes (`avro_cells.py`, `avro_writer.py`), rows again
(`avro_read.py`). Every type comes back exactly, or its column is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, ClassVar, Literal, Self

import pyarrow as pa

from rivet_resources.contracts.format import FormatKeys
from rivet_resources.contracts.settings import Settings
from rivet_resources.errors import PartCorrupt, UnsupportedColumn
from rivet_resources.write.formats import avro_read
from rivet_resources.write.formats.avro_schema import is_held, is_name
from rivet_resources.write.formats.avro_writer import AvroWriter
from rivet_resources.write.formats.parquet import COMPRESSION_PROFILES, GZIP_HIGHEST, LEVELS, Codec


class Avro(Settings):
    """Avro object container files."""

    type: Literal["avro"] = "avro"
    compression: Codec = "zstd"
    compression_level: int | None = None
    has_codecs: ClassVar[bool] = True
    keeps_types: ClassVar[bool] = True
    holds_lists: ClassVar[bool] = True
    tells_null: ClassVar[bool] = True
    is_parquet: ClassVar[bool] = False
    is_one_line_a_row: ClassVar[bool] = False
    refused_codecs: ClassVar[frozenset[str]] = frozenset({"lz4"})  # the specification has no name for it
    is_always_native: ClassVar[bool] = True  # `parquet: {types: portable}` is for readers of Parquet

    @classmethod
    def from_keys(cls, keys: FormatKeys) -> Self:
        """Return the codec and level that an export's keys amount to; a profile decides both."""
        codec, level = keys.compression, keys.compression_level
        if keys.compression_profile is not None:
            codec, level = COMPRESSION_PROFILES[keys.compression_profile]
        return cls.model_validate({"compression": codec, "compression_level": level})

    @property
    def extension(self) -> str:
        """Name files, without the dot."""
        return "avro"

    @property
    def level(self) -> int | None:
        """Return the level that is really applied; None for codecs without levels."""
        if self.compression not in LEVELS:
            return None
        level = LEVELS[self.compression][2] if self.compression_level is None else self.compression_level
        return min(level, GZIP_HIGHEST) if self.compression == "gzip" else level

    @property
    def codec(self) -> str:
        """Name the compression that is really applied: `zstd(3)`, `deflate(6)`, `snappy`, `none`."""
        name = "deflate" if self.compression == "gzip" else self.compression
        return name if self.level is None else f"{name}({self.level})"

    def check_schema(self, schema: pa.Schema, *, export: str) -> tuple[str, ...]:
        """Refuse columns that Avro has no exact type or no name for, before a row is read; no warnings.

        Raises:
            UnsupportedColumn: naming every such column and what helps.
        """
        names = schema.names
        odd = sorted({name for name in names if not is_name(name) or names.count(name) > 1})
        if odd:
            raise UnsupportedColumn(
                f"Export {export}: Avro cannot name {', '.join(map(repr, odd))}: names are unique, of letters A to Z, "
                f"digits and _, and begin with no digit. Name them so in the query, or by a step `rename`."
            )
        # All of them in one message, so that nobody mends one column a run.
        refused = [field for field in schema if not is_held(field.type)]
        if refused:
            named = ", ".join(f"{field.name!r} ({field.type})" for field in refused)
            override = ", ".join(f"{field.name}: text" for field in refused)
            raise UnsupportedColumn(
                f"Export {export}: Avro cannot hold {named}. Write them as text with `columns: {{{override}}}`, leave "
                f"them out of the query, or choose `format: parquet`."
            )
        return ()

    def writer(
        self, path: Path, schema: pa.Schema, *, key: tuple[str, ...] = (), limit_bytes: int | None = None
    ) -> AvroWriter:
        """Open a new local file; the order of rows changes nothing."""
        return AvroWriter(path, schema, codec=self.compression, level=self.level, limit_bytes=limit_bytes)

    def rows(self, path: Path, schema: pa.Schema) -> int:
        """Read the header and the blocks of a finished file, and count their rows.

        Raises:
            PartCorrupt: the header is not that of `schema`, or a block does not unpack or end where it should.
        """
        try:
            with open(path, "rb") as file:
                head = avro_read.header(file)
                found = sum(count for count, _ in avro_read.blocks(file, head))
        except pa.ArrowInvalid as error:
            raise PartCorrupt(
                f"Part {path.name} is no whole Avro file: {error}. Run again to write it anew."
            ) from error
        if not head.schema.equals(schema):
            raise PartCorrupt(f"Part {path.name} has not the {len(schema)} columns that were planned. Run again.")
        return found

    def tables(self, file: BinaryIO, schema: pa.Schema) -> Iterator[pa.Table]:
        """Yield the rows of a part for readers, a block at a time."""
        return avro_read.tables(file)

    def exact_columns(self, schema: pa.Schema) -> frozenset[str]:
        """Return the columns whose cells come back bit by bit: all."""
        return frozenset(schema.names)

    def batches(self, path: Path, schema: pa.Schema) -> Iterator[pa.Table]:
        """Yield the rows of a finished file for proofs.

        Raises:
            pyarrow.ArrowInvalid: the file is damaged.
        """
        with open(path, "rb") as file:
            yield from avro_read.tables(file)
