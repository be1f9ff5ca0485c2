"""Committed parts as what an input is annotated with: pandas, Polars, Arrow, DuckDB or Spark.

Belongs here: which annotations are read, and how. Not here: which manifests an input means (`io_manager.py`), Spark's
reading (`commit/reader.py`). Nothing but Spark's own frame starts a JVM; a library is loaded when it is asked for.

Local Parquet of one schema is read lazily where the frame is lazy; anything else (CSV, NDJSON, object stores, columns
that changed) passes through an Arrow table in memory.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rivet_resources.commit.manifest import Manifest
from rivet_resources.commit.reader import fit_as, is_uniform_parquet, read_parts, union_schema
from rivet_resources.contracts.destination import Root
from rivet_resources.contracts.rows.value_windows import partition_of_window
from rivet_resources.errors import ConfigError
from rivet_resources.spark.cells import from_spark, to_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TypeOf = Callable[[pa.DataType], pa.DataType]


@dataclass(frozen=True)
class Parts:
    """The parts of some windows, and how to get a Spark session for those who want one."""

    root: Root
    manifests: Sequence[Manifest]
    session: Callable[[], SparkSession]

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of all windows by name, as the newest one has them."""
        return union_schema(self.manifests)

    def table(self, type_of: TypeOf) -> pa.Table:
        """Read all rows; a column that a window lacks is NULL there.

        Args:
            type_of: the type that a cell gets, of the one it was committed with.
        """
        schema = self.schema
        # `concat_tables` takes no empty list, and windows without rows have no part.
        tables = [fit_as(schema.empty_table(), schema, type_of=type_of, cells=_cells)]
        for manifest in self.manifests:
            for part in manifest.parts:
                with self.root.open(part.path) as file:
                    found = manifest.file_format().tables(file, schema)
                    tables.extend(fit_as(table, schema, type_of=type_of, cells=_cells) for table in found)
        return pa.concat_tables(tables)

    def files(self, type_of: TypeOf) -> list[str]:
        """Return the local Parquet files to read lazily; [] where rows must pass through memory."""
        schema = self.schema
        # A lazy reader opens the files by itself, so every cell must already have the type that the reader gives it.
        if any(type_of(field.type) != field.type for field in schema):
            return []
        if not is_uniform_parquet(self.manifests, schema):
            return []
        paths = [self.root.local_path(part.path) for each in self.manifests for part in each.parts]
        return [] if None in paths else [str(path) for path in paths]


def _cells(cells: pa.Array, committed: pa.DataType, target: pa.DataType) -> pa.Array:
    """Return cells as frames have them; text formats and older parts have some in other types."""
    return from_spark(to_spark(cells, committed) if cells.type == committed else cells, target)


def as_committed(kind: pa.DataType) -> pa.DataType:
    """Return the type itself."""
    return kind


def widely_known(kind: pa.DataType) -> pa.DataType:
    """Return text for what frames have no type for: UUID, JSON, decimals beyond 38 digits."""
    if pa.types.is_list(kind):
        return pa.list_(widely_known(kind.value_type))
    return pa.string() if isinstance(kind, pa.BaseExtensionType) or pa.types.is_decimal256(kind) else kind


# --- one reader per annotation -------------------------------------------------------------------


def _pandas(parts: Parts) -> Any:
    return to_pandas(parts.table(widely_known))


def to_pandas(rows: pa.Table) -> Any:
    """Return a pandas DataFrame whose integers stay integers.

    By default a NULL beside them makes floats of all of them, also inside of lists, and floats round beyond 2**53.
    """
    import pandas  # driver

    def type_of(kind: pa.DataType) -> Any:
        if pa.types.is_nested(kind):
            return pandas.ArrowDtype(kind)
        if not pa.types.is_integer(kind):
            return None
        sign = "Int" if pa.types.is_signed_integer(kind) else "UInt"
        return getattr(pandas, f"{sign}{kind.bit_width}Dtype")()

    return rows.to_pandas(types_mapper=type_of)


def _polars(parts: Parts) -> Any:
    import polars  # driver

    return polars.from_arrow(parts.table(widely_known))


def _polars_lazy(parts: Parts) -> Any:
    import polars  # driver

    files = parts.files(widely_known)
    return polars.scan_parquet(files) if files else _polars(parts).lazy()


def _arrow(parts: Parts) -> Any:
    return parts.table(as_committed)


def _dataset(parts: Parts) -> Any:
    import pyarrow.dataset as dataset  # start

    files = parts.files(as_committed)
    return dataset.dataset(files, format="parquet") if files else dataset.dataset(parts.table(as_committed))


def _duckdb(parts: Parts) -> Any:
    import duckdb  # driver
    import pyarrow.dataset as dataset  # start

    files = parts.files(widely_known)
    rows = dataset.dataset(files, format="parquet") if files else parts.table(widely_known)
    return duckdb.connect().from_arrow(rows)


def _spark(parts: Parts) -> Any:
    return read_parts(parts.session(), parts.root, parts.manifests)


# (package, class) → reader, by name, so that none of these packages needs to be there.
READERS: dict[tuple[str, str], Callable[[Parts], Any]] = {
    ("pandas", "DataFrame"): _pandas,
    ("polars", "DataFrame"): _polars,
    ("polars", "LazyFrame"): _polars_lazy,
    ("pyarrow", "Table"): _arrow,
    ("pyarrow", "Dataset"): _dataset,
    ("duckdb", "DuckDBPyRelation"): _duckdb,
    ("pyspark", "DataFrame"): _spark,
}
ALLOWED = ", ".join(f"{package}{'.dataset' if name == 'Dataset' else ''}.{name}" for package, name in READERS)


def read_as(annotation: Any, parts: Parts, *, asset: str) -> Any:
    """Return the rows as an input is annotated; without an annotation as a Spark DataFrame, as ever.

    `dict[str, X]` is a mapping of windows, by partition key, to X.

    Raises:
        ConfigError: an export cannot be read as that.
    """
    if typing.get_origin(annotation) is dict:
        of_key, of_frame = typing.get_args(annotation)
        reader = _reader(of_frame) if of_key is str else None
        if reader is not None:
            windows: dict[str, list[Manifest]] = {}
            for each in parts.manifests:
                windows.setdefault(partition_of_window(each.window), []).append(each)
            return {key: reader(Parts(parts.root, found, parts.session)) for key, found in windows.items()}
    elif (reader := _reader(annotation)) is not None:
        return reader(parts)
    raise ConfigError(
        f"The input that reads {asset} is annotated {getattr(annotation, '__qualname__', annotation)}, which an export "
        f"cannot be read as. Annotate it as one of {ALLOWED}, or as dict[str, one of these] for one each window."
    )


def _reader(annotation: Any) -> Callable[[Parts], Any] | None:
    if annotation is Any:
        return _spark
    # Of the path the package alone, without the underscore of a compiled one: libraries move their classes between
    # modules.
    package = str(getattr(annotation, "__module__", "")).partition(".")[0].removeprefix("_")
    return READERS.get((package, getattr(annotation, "__name__", "")))
