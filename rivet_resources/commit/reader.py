"""Committed parts as a Spark DataFrame: exactly the parts that manifests list, with the schema they keep.

Belongs here: reading for assets downstream. Not here: which manifests (`dagster/io_manager.py`). No folder is ever
listed.

Two ways. Local Parquet that Spark understands is read by Spark. Everything else (object stores, CSV, NDJSON, types
that Spark refuses) is read by pyarrow in the executors, one part per task, through the destination's own client: that
needs no Hadoop connector, and works on a cluster and under Spark Connect alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rivet_resources.commit.manifest import Manifest, schema_of
from rivet_resources.contracts.destination import Root
from rivet_resources.destinations.local import LocalRoot
from rivet_resources.spark.cells import held, spark_type
from rivet_resources.write.formats import ndjson_read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH_ROWS = 20_000


def read_parts(spark: SparkSession, root: Root, manifests: Sequence[Manifest]) -> DataFrame:
    """Give the rows of these windows; columns by name, in the order of the newest manifest.

    Columns that older windows lack are NULL there. No parts: an empty frame with the schema.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = union_schema(manifests)
    readable = pa.schema([pa.field(field.name, spark_type(field.type), True) for field in schema])
    wanted = from_arrow_schema(readable, prefer_timestamp_ntz=True)
    parts = [(part.path, manifest.format) for manifest in manifests for part in manifest.parts]
    if not parts:
        return spark.createDataFrame([], wanted)
    if isinstance(root, LocalRoot) and _is_native(manifests, readable):
        return spark.read.schema(wanted).parquet(*(str(root.local_path(path)) for path, _ in parts))
    rows = spark.range(0, len(parts), 1, len(parts))
    return rows.mapInArrow(partial(_read, root=root, parts=parts, schema=schema), wanted)


def union_schema(manifests: Sequence[Manifest]) -> pa.Schema:
    """Join the schemas of windows by name; the newest one decides order and types, and older columns follow."""
    fields: dict[str, pa.Field] = {}
    for manifest in sorted(manifests, key=lambda each: each.finished_at, reverse=True):
        for field in schema_of(manifest):
            fields.setdefault(field.name, field)
    return pa.schema(list(fields.values()))


def _is_native(manifests: Sequence[Manifest], readable: pa.Schema) -> bool:
    """Say whether Spark itself reads these local parts as they are: Parquet, one schema, no type of our own."""
    if any(manifest.format != "parquet" for manifest in manifests):
        return False
    kinds = [[(field.name, field.type) for field in schema_of(manifest)] for manifest in manifests]
    return all(each == [(field.name, field.type) for field in readable] for each in kinds)


def _read(
    batches: Iterator[pa.RecordBatch], *, root: Root, parts: Sequence[tuple[str, str]], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Run in an executor: give the rows of the parts whose numbers arrive, as Spark can hold them."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            path, form = parts[number]
            with root.open(path) as file:
                for table in tables(file, form, schema):
                    yield from fit(table, schema).to_batches(max_chunksize=BATCH_ROWS)


def tables(file: Any, form: str, schema: pa.Schema) -> Iterator[pa.Table]:
    """Give the rows of one part, some at a time, with the columns it has; text formats get their types of `schema`."""
    if form == "csv":
        import pyarrow.csv as csv

        options = csv.ConvertOptions(
            column_types={field.name: _csv_type(field.type) for field in schema},
            null_values=[""],  # an empty text looks the same, a known limit of the format (contract.md, 8.3)
            strings_can_be_null=True,
            true_values=["true"],
            false_values=["false"],
        )
        for batch in csv.open_csv(
            file, convert_options=options, parse_options=csv.ParseOptions(newlines_in_values=True)
        ):
            yield _unhexed(pa.Table.from_batches([batch]), schema)
        return
    if form == "ndjson":
        yield from ndjson_read.tables(file, schema)
        return
    import pyarrow.parquet as pq

    for batch in pq.ParquetFile(file).iter_batches(batch_size=BATCH_ROWS):
        yield pa.Table.from_batches([batch])


def _unhexed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Turn the hexadecimal text of binary columns back into bytes."""
    for place, name in enumerate(table.column_names):
        kind = spark_type(schema.field(name).type)
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            cells = [None if cell is None else bytes.fromhex(cell) for cell in table.column(place).to_pylist()]
            table = table.set_column(place, name, pa.array(cells, kind))
    return table


def _csv_type(kind: pa.DataType) -> pa.DataType:
    """Give the type that pyarrow's CSV reader can parse; nested ones, bytes and our own stay the text they are."""
    plain = (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date(kind)
        or pa.types.is_decimal128(kind)
        or pa.types.is_timestamp(kind)
    )
    return kind if plain else pa.string()


def fit(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Give a part's rows the columns and types that Spark gets; a column the part lacks is NULL."""
    columns = []
    for field in schema:
        kind = spark_type(field.type)
        place = table.schema.get_field_index(field.name)
        columns.append(pa.nulls(table.num_rows, kind) if place < 0 else _cast(table.column(place), kind))
    return pa.table(columns, schema=pa.schema([pa.field(f.name, spark_type(f.type)) for f in schema]))


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Give cells as Spark holds them; a part may have them in an older type."""
    if column.type == kind:
        return column
    chunks = [held(chunk, chunk.type) for chunk in column.chunks]
    return pa.chunked_array([chunk if chunk.type == kind else chunk.cast(kind) for chunk in chunks], kind)
