"""What every format offers: settings, a check of the schema before a row is read, a part writer, a reader back."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import pyarrow as pa


class PartWriter(Protocol):
    """Writes one file. `close` makes it whole; a writer that is not closed leaves a file nobody may use."""

    @property
    def bytes_written(self) -> int:
        """Count the bytes so far, as far as the encoder has flushed; enough to decide on a split."""

    def write(self, table: pa.Table) -> None:
        """Append rows; the table has the schema the writer was opened with."""

    def close(self) -> None:
        """Flush, write the footer, fsync."""


class Format(Protocol):
    """The YAML of a format as a frozen value."""

    @property
    def type(self) -> str:
        """Name the format, as in YAML."""

    @property
    def extension(self) -> str:
        """Name files, without the dot: `parquet`, `csv`."""

    @property
    def codec(self) -> str:
        """Name the compression that is really applied, for manifests: `zstd(3)`, `none`."""

    def check_schema(self, schema: pa.Schema, *, export: str) -> tuple[str, ...]:
        """Refuse what this format cannot hold, before reading; return warnings.

        Raises:
            UnsupportedColumn: naming the column and the override that helps.
        """

    def writer(
        self, path: Path, schema: pa.Schema, *, key: tuple[str, ...] = (), limit_bytes: int | None = None
    ) -> PartWriter:
        """Open a new local file.

        Args:
            key: the columns rows arrive ordered by, for encodings.
            limit_bytes: the size at which the caller will close it; `bytes_written` must be true by then.
        """

    def rows(self, path: Path, schema: pa.Schema) -> int:
        """Read a finished local file back and count its records.

        Raises:
            PartCorrupt: footer unreadable, or its schema is not `schema`.
        """
