"""Rows that will be messages, staged as Arrow files: every cell keeps its type until the window is produced.

Belongs here: the staged file, and what each encoding refuses before a row is read. Not here: the bytes of messages
(`write/messages/`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, ClassVar, Self

import pyarrow as pa

from rivet_resources.contracts.format import FormatKeys
from rivet_resources.contracts.messages import Encoding, value_schema
from rivet_resources.contracts.settings import Settings
from rivet_resources.errors import PartCorrupt, UnknownColumn
from rivet_resources.write.formats import protobuf_cells
from rivet_resources.write.formats.avro import Avro
from rivet_resources.write.formats.ndjson import Ndjson


# They are encoded when they are produced, not when they are staged: only then is the schema's id known, since a window
# that a quality rule stops registers nothing (decided 2026-11; staging encoded bytes would save no time, as encoding
# costs a sixth of producing).
class StagedMessages(Settings):
    """Arrow files of rows on their way to a topic; `type` is how messages are encoded."""

    type: Encoding
    key: tuple[str, ...] = ()
    has_codecs: ClassVar[bool] = False
    keeps_types: ClassVar[bool] = True
    holds_lists: ClassVar[bool] = True
    tells_null: ClassVar[bool] = True
    is_parquet: ClassVar[bool] = False
    is_one_line_a_row: ClassVar[bool] = False

    @classmethod
    def from_keys(cls, keys: FormatKeys) -> Self:
        """Return JSON messages: the other keys of an export are about files."""
        return cls(type="ndjson")

    @property
    def extension(self) -> str:
        """Name files, without the dot."""
        return "arrow"

    @property
    def codec(self) -> str:
        """Name the compression of manifests; that of messages is the producer's, and its readers never ask."""
        return "none"

    def check_schema(self, schema: pa.Schema, *, export: str) -> tuple[str, ...]:
        """Refuse columns that messages cannot hold, and keys that are no columns, before a row is read.

        Raises:
            UnsupportedColumn, UnknownColumn
        """
        values = value_schema(schema)
        for name in self.key:
            if name not in values.names:
                raise UnknownColumn(
                    name, relation=f"The rows of export {export}", known=values.names, key="destination.key"
                )
        # Keys are JSON whatever the values are: with a schema's id in them, each new version would move every key to
        # another partition.
        keys = pa.schema([values.field(name) for name in self.key])
        Ndjson().check_schema(keys, export=export)
        if self.type == "avro":
            Avro().check_schema(values, export=export)
        elif self.type == "ndjson":
            Ndjson().check_schema(values, export=export)
        else:
            protobuf_cells.check_columns(values)
        return ()

    def writer(
        self, path: Path, schema: pa.Schema, *, key: tuple[str, ...] = (), limit_bytes: int | None = None
    ) -> _Writer:
        """Open a new local file; the order of rows is kept."""
        return _Writer(path, schema)

    def rows(self, path: Path, schema: pa.Schema) -> int:
        """Read a finished file back and count its rows.

        Raises:
            PartCorrupt
        """
        try:
            with pa.OSFile(str(path)) as file, pa.ipc.open_file(file) as reader:
                if reader.schema.names != schema.names or reader.schema.types != schema.types:
                    raise PartCorrupt(f"Part {path.name} has not the {len(schema)} columns it was written with.")
                return sum(reader.get_batch(number).num_rows for number in range(reader.num_record_batches))
        except (pa.ArrowException, OSError) as error:
            raise PartCorrupt(
                f"Part {path.name} cannot be read back ({error}). Check the disk, then run again."
            ) from error

    def tables(self, file: BinaryIO, schema: pa.Schema) -> Iterator[pa.Table]:
        """Yield the rows of a staged file."""
        with pa.ipc.open_file(file) as reader:
            for number in range(reader.num_record_batches):
                yield pa.Table.from_batches([reader.get_batch(number)])

    def exact_columns(self, schema: pa.Schema) -> frozenset[str]:
        """Return all columns: Arrow keeps them as they are."""
        return frozenset(schema.names)

    def batches(self, path: Path, schema: pa.Schema) -> Iterator[pa.Table]:
        """Yield the rows of a finished local file."""
        with open(path, "rb") as file:
            yield from self.tables(file, schema)


class ProtobufMessages(StagedMessages):
    """`format: protobuf`, which is of messages only: there are no files of it."""

    type: Encoding = "protobuf"

    @classmethod
    def from_keys(cls, keys: FormatKeys) -> Self:
        """Return messages: the keys of an export are about files."""
        return cls()


class _Writer:
    """Writes one Arrow file."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._file = open(path, "wb")  # noqa: SIM115  closed by `close`
        # These files live for minutes: the quickest codec is the cheapest.
        self._closed_at = 0
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        self._writer = pa.ipc.new_file(self._file, schema, options=options)

    @property
    def bytes_written(self) -> int:
        """Return the bytes so far; of a closed file, all."""
        return self._closed_at if self._file.closed else self._file.tell()

    def write(self, table: pa.Table) -> None:
        """Append rows."""
        self._writer.write_table(table)

    def close(self) -> None:
        """Write the footer, and wait until the disk has all."""
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._closed_at = self._file.tell()
        self._file.close()
