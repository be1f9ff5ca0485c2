"""Cells of a part, read back with the types they had when their checksums were made.

Belongs here: which columns a format gives back exactly, and reading them in batches. Not here: comparing
(`part.py`), reading for Spark (`commit/reader.py`, `formats/ndjson_read.py`).

Parquet gives back everything. A text format gives back what is spelled in one way only: its other columns are told as
not compared, which is no flaw. In CSV an empty text and NULL look alike; how many NULLs there were is in the manifest.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from rivet_resources.write.formats import ndjson_read

BATCH_BYTES = 16 << 20
BATCH_ROWS = (256, 65_536)


def exact_columns(schema: pa.Schema, form: str) -> frozenset[str]:
    """Name the columns whose cells come back bit by bit."""
    if form == "parquet":
        return frozenset(schema.names)
    return frozenset(field.name for field in schema if _is_exact(field.type, form))


def _is_exact(kind: pa.DataType, form: str) -> bool:
    """Say whether a text format gives a type back."""
    if isinstance(kind, pa.BaseExtensionType) or pa.types.is_dictionary(kind):
        return False
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return form == "ndjson" and _is_exact(kind.value_type, form)
    return (
        pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_float32(kind)
        or pa.types.is_float64(kind)
        or pa.types.is_decimal128(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or (pa.types.is_timestamp(kind) and kind.unit == "us")
        or (form == "ndjson" and pa.types.is_binary(kind))
    )


def batches(file: Path, form: str, schema: pa.Schema) -> Iterator[pa.Table]:
    """Give a part's rows, in tables of some MB; in text formats, columns that are not exact are missing or text.

    Raises:
        pyarrow.ArrowException: the reader does not take a spelling.
    """
    if form == "parquet":
        yield from _parquet(file)
    elif form == "csv":
        yield from _csv(file, schema)
    else:
        exact = exact_columns(schema, form)
        with file.open("rb") as stream:
            yield from ndjson_read.tables(stream, pa.schema([field for field in schema if field.name in exact]))


def _parquet(file: Path) -> Iterator[pa.Table]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as part:
        footer = part.metadata
        size = sum(footer.row_group(group).total_byte_size for group in range(footer.num_row_groups))
        fewest, most = BATCH_ROWS
        rows = max(fewest, min(most, BATCH_BYTES // max(1, size // max(1, footer.num_rows))))
        for batch in part.iter_batches(batch_size=rows, use_threads=False):
            yield pa.Table.from_batches([batch])


def _csv(file: Path, schema: pa.Schema) -> Iterator[pa.Table]:
    import pyarrow.csv as csv

    exact = exact_columns(schema, "csv")
    options = csv.ConvertOptions(
        column_types={field.name: field.type if field.name in exact else pa.string() for field in schema},
        null_values=[""],
        strings_can_be_null=False,
        true_values=["true"],
        false_values=["false"],
    )
    parse = csv.ParseOptions(newlines_in_values=True)
    for batch in csv.open_csv(file, convert_options=options, parse_options=parse):
        yield pa.Table.from_batches([batch])
