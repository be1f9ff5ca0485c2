"""Committed parts as a Spark DataFrame: exactly the parts that manifests list, with the schema they keep.

Belongs here: reading for assets downstream. Not here: which manifests (`dagster/io_manager.py`). No folder is ever
listed.

Two ways. Local Parquet that Spark understands is read by Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from rivet_resources.commit.manifest import Manifest, schema_of
from rivet_resources.contracts.destination import Root
from rivet_resources.registry import FORMATS
from rivet_resources.spark.cells import spark_type, to_spark
from rivet_resources.spark.cluster import with_variables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH_ROWS = 20_000


def read_parts(spark: SparkSession, root: Root, manifests: Sequence[Manifest]) -> DataFrame:
    """Return the rows of these windows; columns by name, in the order of the newest manifest.

    Columns that older windows lack are NULL there. No parts: an empty frame with the schema.
    """
    from pyspark.sql.pandas.types import from_arrow_schema  # Spark

    schema = union_schema(manifests)
    # All nullable: a column that older windows lack is NULL there, whatever the newest one says.
    readable = pa.schema([pa.field(field.name, spark_type(field.type), True) for field in schema])
    # NTZ, or Spark would take a timestamp without zone for one of the session's zone and shift nothing but its meaning.
    wanted = from_arrow_schema(readable, prefer_timestamp_ntz=True)
    parts = [(part.path, manifest.format) for manifest in manifests for part in manifest.parts]
    if not parts:
        return spark.createDataFrame([], wanted)
    if is_uniform_parquet(manifests, readable) and None not in (files := [root.local_path(path) for path, _ in parts]):
        return spark.read.schema(wanted).parquet(*map(str, files))
    # A partition per part: each is read by one task, wherever it runs.
    # Everything else (object stores, CSV, NDJSON, types that Spark refuses) is read by pyarrow in the executors, one
    # part per task, through the destination's own client: that needs no Hadoop connector, and works on a cluster and
    # under Spark Connect alike.
    rows = spark.range(0, len(parts), 1, len(parts))
    read = with_variables(spark, partial(_read, root=root, parts=parts, schema=schema), root)
    return rows.mapInArrow(read, wanted)


def union_schema(manifests: Sequence[Manifest]) -> pa.Schema:
    """Join the schemas of windows by name; the newest one decides order and types, and older columns follow."""
    fields: dict[str, pa.Field] = {}
    for manifest in sorted(manifests, key=lambda each: each.finished_at, reverse=True):
        # `setdefault`: the newest comes first, so an older window adds only columns that are gone since.
        for field in schema_of(manifest):
            fields.setdefault(field.name, field)
    return pa.schema(list(fields.values()))


def is_uniform_parquet(manifests: Sequence[Manifest], schema: pa.Schema) -> bool:
    """Return whether all parts are Parquet of exactly these columns and types, so that others read them as they are."""
    if not all(manifest.file_format.is_parquet for manifest in manifests):
        return False
    # Compared as lists: Spark reads Parquet by name, but a cast between windows is ours to make, not its.
    kinds = [[(field.name, field.type) for field in schema_of(manifest)] for manifest in manifests]
    return all(each == [(field.name, field.type) for field in schema] for each in kinds)


def _read(
    batches: Iterator[pa.RecordBatch], *, root: Root, parts: Sequence[tuple[str, str]], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Run in an executor: give the rows of the parts whose numbers arrive, as Spark can hold them."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            # The description travels with the function; Spark carries whole numbers only, so no path and no row is in
            # the JVM.
            path, form = parts[number]
            with root.open(path) as file:
                for table in FORMATS[form]().tables(file, schema):
                    yield from fit(table, schema).to_batches(max_chunksize=BATCH_ROWS)


def fit(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Bring a part's rows to the columns and types that Spark gets; a column the part lacks is NULL."""
    return fit_as(table, schema, type_of=spark_type, cells=_cast)


# Returns cells in a type: given the cells, the type that they were committed with by the newest window, and that type.
CellsAs = Callable[[pa.Array, pa.DataType, pa.DataType], pa.Array]


def fit_as(
    table: pa.Table, schema: pa.Schema, *, type_of: Callable[[pa.DataType], pa.DataType], cells: CellsAs
) -> pa.Table:
    """Bring a part's rows to the columns of `schema`, in the types that a reader has for them; what lacks is NULL."""
    wanted = pa.schema([pa.field(field.name, type_of(field.type)) for field in schema])
    columns = []
    for field, target in zip(schema, wanted, strict=True):
        place = table.schema.get_field_index(field.name)
        if place < 0:
            columns.append(pa.nulls(table.num_rows, target.type))
        elif table.schema.field(place).type == target.type:
            columns.append(table.column(place))
        else:
            chunks = [cells(chunk, field.type, target.type) for chunk in table.column(place).chunks]
            columns.append(pa.chunked_array(chunks, target.type))
    return pa.table(columns, schema=wanted)


def _cast(cells: pa.Array, committed: pa.DataType, kind: pa.DataType) -> pa.Array:
    """Return cells as Spark holds them; a part may have them in an older type than `committed`."""
    found = to_spark(cells, cells.type)
    # A safe cast: what does not fit the newest window's type raises, and is not cut off.
    return found if found.type == kind else found.cast(kind)
