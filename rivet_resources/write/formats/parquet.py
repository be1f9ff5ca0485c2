"""Parquet: the YAML block, what it refuses, and how a finished file is read back.

Belongs here: codecs and levels, the `parquet:` keys, the check of a schema, the reading back of a footer.
Not here: row groups and encodings (`parquet_writer.py`), which Arrow type a column gets (`contracts/types.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, ClassVar, Literal, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, model_validator

from rivet_resources.contracts.format import FormatKeys
from rivet_resources.contracts.settings import Settings
from rivet_resources.errors import PartCorrupt, UnknownColumn, UnsupportedColumn
from rivet_resources.write.formats import parquet_read
from rivet_resources.write.formats.parquet_writer import DELTA, SPLIT, Encoding, GroupSize, Layout, RowGroupWriter

Codec = Literal["zstd", "snappy", "gzip", "lz4", "none"]

# codec → lowest, highest, default level (`contract.md`, 1.5). pyarrow's `lz4` writes LZ4_RAW.
LEVELS: dict[str, tuple[int, int, int]] = {"zstd": (1, 22, 3), "gzip": (0, 10, 6)}
# zlib stops there; 10 is accepted for old configs and lowered with a warning.
GZIP_HIGHEST = 9

# `compression_profile` → codec and level (`contract.md`, 1.5).
COMPRESSION_PROFILES: dict[str, tuple[Codec, int | None]] = {
    "none": ("none", None),
    "fast": ("snappy", None),
    "balanced": ("zstd", 3),
    "compact": ("zstd", 9),
}

MB = 1024 * 1024
# 64 MiB keeps a task under 400 MB; narrow rows may go on to 500 k rows, for small groups cost time and bytes
# (`engine.md`, section 6), but never over 96 MiB.
DEFAULT_GROUPS = GroupSize(target_bytes=64 * MB, min_rows=500_000, max_bytes=96 * MB, max_rows=1_048_576)


class ColumnEncoding(Settings):
    """How one column is stored; what is left out is decided by what the first row group shows."""

    encoding: Encoding | None = Field(None, description="plain, delta, byte_stream_split or dictionary")
    dictionary: bool | None = Field(None, description="false: never a dictionary for this column; true: always")

    @model_validator(mode="after")
    def _agree(self) -> ColumnEncoding:
        """Refuse a dictionary beside another encoding, and the word without the switch."""
        if None not in (self.encoding, self.dictionary) and self.dictionary != (self.encoding == "dictionary"):
            raise ValueError(
                f"sets encoding {self.encoding} and dictionary {str(self.dictionary).lower()}, which exclude "
                f"each other; keep one of them"
            )
        return self

    @property
    def word(self) -> Encoding | Literal["no dictionary"] | None:
        """Return in one word what was asked for; None when nothing was."""
        if self.encoding is not None or self.dictionary is None:
            return self.encoding
        return "dictionary" if self.dictionary else "no dictionary"


class ParquetOptions(Settings):
    """The `parquet:` block of an export."""

    types: Literal["portable", "native"] = Field(
        "portable",
        description="portable: uuid, time, nanoseconds, decimals over 38 digits as text, so every reader opens it",
    )
    row_group_strategy: Literal["auto", "fixed_memory", "fixed_rows"] | None = Field(
        None,
        description="left out: 64 to 96 MiB of Arrow, at most 1048576 rows; else as the two sizes below say",
    )
    row_group_rows: int | None = Field(None, ge=1, description="rows per group, with row_group_strategy fixed_rows")
    target_row_group_mb: int | None = Field(
        None, ge=1, description="Arrow MB per group (default 128), at least 1000 rows"
    )
    max_row_group_mb: int | None = Field(None, ge=1, description="Arrow MB that no group goes over, whatever its rows")
    columns: dict[str, ColumnEncoding] = Field(default_factory=dict, description="encoding per column")

    @model_validator(mode="after")
    def _strategy_has_its_size(self) -> ParquetOptions:
        """Refuse a size that the chosen strategy would not look at."""
        if (self.row_group_strategy == "fixed_rows") != (self.row_group_rows is not None):
            raise ValueError(
                "row_group_rows and row_group_strategy fixed_rows go together; give both, or leave both out"
            )
        if self.target_row_group_mb is not None and self.row_group_strategy not in ("auto", "fixed_memory"):
            raise ValueError("target_row_group_mb needs row_group_strategy auto or fixed_memory; add it")
        return self

    @property
    def groups(self) -> GroupSize:
        """Decide when a row group is full."""
        ceiling = self.max_row_group_mb * MB if self.max_row_group_mb else None
        if self.row_group_rows is not None:
            return GroupSize(exact_rows=self.row_group_rows, max_bytes=ceiling)
        if self.row_group_strategy is not None:
            target = (self.target_row_group_mb or 128) * MB
            return GroupSize(target_bytes=target, min_rows=1_000, max_bytes=ceiling or 2 * target)
        if ceiling is not None:
            return GroupSize(
                target_bytes=min(64 * MB, ceiling), min_rows=500_000, max_bytes=ceiling, max_rows=1_048_576
            )
        return DEFAULT_GROUPS


class Parquet(Settings):
    """Parquet files: one codec, statistics, page index and page checksums always."""

    type: Literal["parquet"] = "parquet"
    compression: Codec = "zstd"
    compression_level: int | None = None
    options: ParquetOptions = ParquetOptions()
    has_codecs: ClassVar[bool] = True
    keeps_types: ClassVar[bool] = True
    holds_lists: ClassVar[bool] = True
    tells_null: ClassVar[bool] = True
    is_parquet: ClassVar[bool] = True
    is_one_line_a_row: ClassVar[bool] = False

    @classmethod
    def from_keys(cls, keys: FormatKeys) -> Self:
        """Return the codec, level and encodings that an export's keys amount to; a profile decides the first two."""
        codec, level = keys.compression, keys.compression_level
        if keys.compression_profile is not None:
            codec, level = COMPRESSION_PROFILES[keys.compression_profile]
        options = keys.parquet or ParquetOptions()
        asked = {name: ColumnEncoding.model_validate({"encoding": each}) for name, each in keys.encodings.items()}
        options = options.model_copy(update={"columns": {**asked, **options.columns}})
        return cls.model_validate({"compression": codec, "compression_level": level, "options": options})

    @model_validator(mode="after")
    def _level_fits_codec(self) -> Parquet:
        """Refuse a level that the codec does not have."""
        if self.compression_level is None:
            return self
        if self.compression not in LEVELS:
            raise ValueError(
                f"compression_level {self.compression_level} has no meaning for {self.compression}; "
                f"only {' and '.join(LEVELS)} have levels. Remove the key, or choose one of them"
            )
        low, high, default = LEVELS[self.compression]
        if not low <= self.compression_level <= high:
            raise ValueError(
                f"compression_level {self.compression_level} is outside {low} to {high} of {self.compression}; "
                f"leave it out for {default}"
            )
        return self

    @property
    def extension(self) -> str:
        """Name files, without the dot."""
        return "parquet"

    @property
    def level(self) -> int | None:
        """Return the level that is really applied; None for codecs without levels."""
        if self.compression not in LEVELS:
            return None
        level = LEVELS[self.compression][2] if self.compression_level is None else self.compression_level
        return min(level, GZIP_HIGHEST) if self.compression == "gzip" else level

    @property
    def codec(self) -> str:
        """Name the compression that is really applied: `zstd(3)`, `snappy`, `none`."""
        return self.compression if self.level is None else f"{self.compression}({self.level})"

    def check_schema(self, schema: pa.Schema, *, export: str) -> tuple[str, ...]:
        """Refuse what Parquet cannot hold or an encoding cannot store; return warnings.

        Raises:
            UnsupportedColumn: naming the column and the override that helps.
            UnknownColumn: `parquet.columns` names a column that the export does not have.
        """
        warnings = []
        if self.compression == "gzip" and self.compression_level is not None and self.compression_level > GZIP_HIGHEST:
            warnings.append(f"Export {export}: gzip level {self.compression_level} is written as level {GZIP_HIGHEST}.")
        for field in schema:
            _refuse(field, export=export)
            readers = _who_refuses(field.type)
            if readers:
                warnings.append(
                    f"Export {export}: column {field.name!r} is written as {field.type}; {readers}. "
                    f"`parquet: {{types: portable}}` writes it as text."
                )
        self._check_encodings(schema, export=export)
        return tuple(warnings)

    def _check_encodings(self, schema: pa.Schema, *, export: str) -> None:
        """Refuse an encoding for an unknown column or for a type that it cannot store."""
        for name, column in self.options.columns.items():
            if name not in schema.names:
                raise UnknownColumn(name, relation=f"Export {export}", known=schema.names, key="parquet.columns")
            arrow = schema.field(name).type
            if column.encoding is not None and not _can_encode(column.encoding, arrow):
                raise UnsupportedColumn(
                    f"Export {export}: column {name!r} is {arrow}, which encoding {column.encoding} cannot store. "
                    f"Remove `parquet: {{columns: {{{name}: …}}}}`, or choose plain or dictionary."
                )

    def writer(
        self, path: Path, schema: pa.Schema, *, key: tuple[str, ...] = (), limit_bytes: int | None = None
    ) -> RowGroupWriter:
        """Open a new local file; row groups are also closed so that `limit_bytes` is not overshot by a whole group."""
        layout = Layout(
            compression=self.compression,
            level=self.level,
            groups=self.options.groups,
            wanted={name: column.word for name, column in self.options.columns.items() if column.word},
            # Only the first key column ascends by itself.
            ordered=key[:1],
            limit_bytes=limit_bytes,
        )
        return RowGroupWriter(path, schema, layout=layout)

    def rows(self, path: Path, schema: pa.Schema) -> int:
        """Read the footer of a finished file and count its records.

        Raises:
            PartCorrupt: the footer is unreadable, its groups disagree with it, or its schema is not `schema`.
        """
        try:
            with pq.ParquetFile(path) as file:
                footer, found = file.metadata, file.schema_arrow
                # The footer says the rows twice: in total, and by group. Both are written at different moments.
                in_groups = sum(footer.row_group(group).num_rows for group in range(footer.num_row_groups))
        except (OSError, pa.ArrowException) as error:
            raise PartCorrupt(
                f"Part {path.name} has no readable Parquet footer. Run again to write it anew."
            ) from error
        if in_groups != footer.num_rows:
            raise PartCorrupt(f"Part {path.name} says {footer.num_rows} rows, but its row groups hold {in_groups}.")
        if not found.equals(schema):
            raise PartCorrupt(
                f"Part {path.name} has the columns {_spell(found)}, not {_spell(schema)} as planned. Run again."
            )
        return int(footer.num_rows)

    def tables(self, file: BinaryIO, schema: pa.Schema) -> Iterator[pa.Table]:
        """Yield the rows of a part for readers, some at a time."""
        return parquet_read.tables(file)

    def exact_columns(self, schema: pa.Schema) -> frozenset[str]:
        """Return the columns whose cells come back bit by bit."""
        return frozenset(schema.names)

    def batches(self, path: Path, schema: pa.Schema) -> Iterator[pa.Table]:
        """Yield the rows of a finished file for proofs.

        Raises:
            pyarrow.ArrowException: the reader does not take a spelling.
        """
        return parquet_read.batches(path)


def _spell(schema: pa.Schema) -> str:
    """Write columns and types in one line."""
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _refuse(field: pa.Field, *, export: str) -> None:
    """Raise for a type that has no faithful Parquet form (`types.md`, section 2; `contract.md`, 8.2)."""
    arrow = field.type
    # DECIMAL's scale must be zero or positive (Parquet format, LogicalTypes).
    negative_scale = pa.types.is_decimal(arrow) and arrow.scale < 0
    if negative_scale or pa.types.is_duration(arrow) or pa.types.is_interval(arrow) or pa.types.is_union(arrow):
        raise UnsupportedColumn(
            f"Export {export}: column {field.name!r} is {arrow}, which Parquet readers would not read back as such. "
            f"Write it as text: `columns: {{{field.name}: text}}`."
        )


def _can_encode(encoding: Encoding, arrow: pa.DataType) -> bool:
    """Return whether the encoding can store the type; nested columns cannot choose."""
    if encoding == "delta":
        return DELTA.of(arrow) is not None
    if encoding == "byte_stream_split":
        return SPLIT.of(arrow) is not None
    return not pa.types.is_nested(arrow)


def _who_refuses(arrow: pa.DataType) -> str:
    """Name the readers that refuse or misread a type by default (`types.md`, section 2); '' when none does."""
    if pa.types.is_decimal256(arrow) and arrow.precision > 38:
        return "Spark refuses the file and DuckDB rounds the values"
    if pa.types.is_time(arrow) or arrow == pa.uuid() or (pa.types.is_timestamp(arrow) and arrow.unit == "ns"):
        return "Spark refuses the whole file by default"
    return ""
