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
from typing import TYPE_CHECKING

import pyarrow as pa

from rivet_resources.commit.manifest import Manifest, schema_of
from rivet_resources.contracts.destination import Root
from rivet_resources.registry import FORMATS
from rivet_resources.spark.cells import spark_type, to_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH_ROWS = 20_000


def read_parts(spark: SparkSession, root: Root, manifests: Sequence[Manifest]) -> DataFrame:
    """Return the rows of these windows; columns by name, in the order of the newest manifest.

    Columns that older windows lack are NULL there. No parts: an empty frame with the schema.
    """
    from pyspark.sql.pandas.types import from_arrow_schema  # Spark

    schema = union_schema(manifests)
    readable = pa.schema([pa.field(field.name, spark_type(field.type), True) for field in schema])
    wanted = from_arrow_schema(readable, prefer_timestamp_ntz=True)
    parts = [(part.path, manifest.format) for manifest in manifests for part in manifest.parts]
    if not parts:
        return spark.createDataFrame([], wanted)
    if _is_native(manifests, readable) and None not in (files := [root.local_path(path) for path, _ in parts]):
        return spark.read.schema(wanted).parquet(*map(str, files))
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
    """Return whether Spark itself reads such parts as they are: Parquet, one schema, no type of our own."""
    if not all(FORMATS[manifest.format].is_parquet for manifest in manifests):
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
                for table in FORMATS[form]().tables(file, schema):
                    yield from fit(table, schema).to_batches(max_chunksize=BATCH_ROWS)


def fit(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Bring a part's rows to the columns and types that Spark gets; a column the part lacks is NULL."""
    columns = []
    for field in schema:
        kind = spark_type(field.type)
        place = table.schema.get_field_index(field.name)
        columns.append(pa.nulls(table.num_rows, kind) if place < 0 else _cast(table.column(place), kind))
    return pa.table(columns, schema=pa.schema([pa.field(f.name, spark_type(f.type)) for f in schema]))


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return cells as Spark holds them; a part may have them in an older type."""
    if column.type == kind:
        return column
    chunks = [to_spark(chunk, chunk.type) for chunk in column.chunks]
    return pa.chunked_array([chunk if chunk.type == kind else chunk.cast(kind) for chunk in chunks], kind)
