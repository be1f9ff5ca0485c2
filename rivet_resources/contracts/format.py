"""What every format offers: settings, a check of the schema before a row is read, a part writer, readers back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol, Self

import pyarrow as pa


@dataclass(frozen=True)
class FormatKeys:
    """The keys of an export that say how its parts are written; each format takes those that concern it."""

    compression: str = "zstd"
    compression_level: int | None = None
    compression_profile: str | None = None
    text_compression: Any = None  # of formats of plain text; `compression` is Parquet's, and every export's default
    parquet: Any = None  # the block of that name
    encodings: Mapping[str, str] = field(default_factory=dict)  # column → encoding, from `columns:`


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
    """How parts are written: the YAML of a format as a frozen value."""

    @property
    def type(self) -> str:
        """Name the format, as in YAML."""

    @property
    def holds_lists(self) -> bool:
        """Return whether a cell can be a list or a row."""

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


class FileFormat(Format, Protocol):
    """A format that an export can name: its parts can be read again. What `FORMATS` of the registry holds."""

    @classmethod
    def from_keys(cls, keys: FormatKeys) -> Self:
        """Return the settings that an export's keys amount to."""

    @property
    def has_codecs(self) -> bool:
        """Return whether `compression`, which is set by default, compresses parts."""

    @property
    def keeps_types(self) -> bool:
        """Return whether every cell comes back with its type; text formats keep what is spelled in one way only."""

    @property
    def tells_null(self) -> bool:
        """Return whether NULL and an empty text look different."""

    @property
    def is_one_line_a_row(self) -> bool:
        """Return whether each row is a line that means something by itself, as a stream of changes needs."""

    @property
    def is_parquet(self) -> bool:
        """Return whether parts are Parquet files, which Spark and DuckDB read as they are, column by column."""

    def tables(self, file: BinaryIO, schema: pa.Schema) -> Iterator[pa.Table]:
        """Yield the rows of a part for readers, some at a time, with the columns it has; types as far as it keeps them.

        Args:
            schema: of the window; text formats take their types from it.
        """

    def exact_columns(self, schema: pa.Schema) -> frozenset[str]:
        """Return the columns whose cells `batches` gives back bit by bit."""

    def batches(self, path: Path, schema: pa.Schema) -> Iterator[pa.Table]:
        """Yield the rows of a finished local file for proofs; columns that are not exact may be missing, or text.

        Raises:
            pyarrow.ArrowException: the reader does not take a spelling.
        """
