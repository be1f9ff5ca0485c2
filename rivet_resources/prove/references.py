"""Values of a staged window that another export's published rows do not have, as a foreign key would be judged.

Belongs here: reading the key columns of published parts, comparing. Not here: hashing the window's own values, which
happened while its rows were written (`write/measures.py`), verdicts (`rivet_assets/run/judge/references.py`).

Values are compared by 128 bits each, as those of unique columns are, and sorted on disk: neither side is held in
memory, and none is ever shown. Of formats other than Parquet whole rows are read for the key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

import pyarrow as pa

from rivet_resources.commit.manifest import Manifest, current_manifests, schema_of
from rivet_resources.contracts.destination import Root
from rivet_resources.contracts.transform import TransformError
from rivet_resources.errors import RivetError, UnknownColumn
from rivet_resources.scratch import temporary
from rivet_resources.shape.transforms.fields import storage
from rivet_resources.write.measures import SortedRuns, count_missing

# A commit of the other export may take its older parts away while they are read.
ATTEMPTS = 3
BATCH_ROWS = 65_536


def check_types(
    schema: pa.Schema, columns: Sequence[str], manifests: Mapping[str, Manifest], key: Sequence[str]
) -> None:
    """See that values of these columns can be compared with those of published rows.

    Raises:
        UnknownColumn: a window has no such column.
        TransformError: the types of two columns have no equal cells.
    """
    for manifest in manifests.values():
        published = schema_of(manifest)
        for name, theirs in zip(columns, key, strict=True):
            if theirs not in published.names:
                raise UnknownColumn(
                    theirs, relation=manifest.export_name, known=published.names, key="contract.references"
                )
            one, other = schema.field(name).type, published.field(theirs).type
            if not are_comparable(one, other):
                raise TransformError(
                    f"contract.references: {name!r} is {one}, and {theirs!r} of export {manifest.export_name}, window "
                    f"{manifest.window}, is {other}; equal values could not be told. Cast one of them in `transforms:`."
                )


def are_comparable(one: pa.DataType, other: pa.DataType) -> bool:
    """Return whether equal values of two types are equal in their hashes."""
    one, other = _plain(one), _plain(other)
    whole = pa.types.is_integer(one) and pa.types.is_integer(other)
    # A hash holds the bits of a whole number: -1 and the largest of uint64 have the same.
    return bool(one == other or (whole and pa.types.is_uint64(one) == pa.types.is_uint64(other)))


def _plain(arrow: pa.DataType) -> pa.DataType:
    """Return a type as its cells are hashed."""
    arrow = storage(arrow.value_type if pa.types.is_dictionary(arrow) else arrow)
    if pa.types.is_large_string(arrow):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(arrow) else arrow


def missing_values(root: Root, files: Sequence[str], *, other: Root, key: tuple[str, ...]) -> int:
    """Count the distinct values in a window's sidecars that no published row of another export has.

    Raises:
        PartCorrupt, DestinationError, ManifestUnreadable: as files are read.
        TransformError: a text of the other export is no value of its column.
    """
    for attempt in range(ATTEMPTS):
        manifests = current_manifests(other)
        try:
            return _missing(root, files, other, manifests, key)
        except RivetError:
            if attempt + 1 == ATTEMPTS or _runs(current_manifests(other)) == _runs(manifests):
                raise
    raise AssertionError("the last attempt returns or raises")


def _runs(manifests: Mapping[str, Manifest]) -> set[str]:
    return {manifest.run_id for manifest in manifests.values()}


def _missing(
    root: Root, files: Sequence[str], other: Root, manifests: Mapping[str, Manifest], key: tuple[str, ...]
) -> int:
    with temporary("keys") as folder:
        known = []
        for number, manifest in enumerate(manifests.values()):
            schema = pa.schema([schema_of(manifest).field(name) for name in key])
            (folder / str(number)).mkdir()
            runs = SortedRuns(schema, key, folder / str(number))
            for table in _rows(other, manifest, schema):
                runs.add(table)
            known += runs.files()
        return count_missing(root, files, known)


def _rows(root: Root, manifest: Manifest, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the key columns of a window's parts, in the types that its manifest has."""
    form = manifest.file_format
    for part in manifest.parts:
        with closing(root.open(part.path)) as file:
            # A dot would name an inner field.
            if form.is_parquet and not any("." in name for name in schema.names):
                import pyarrow.parquet as pq  # start

                for batch in pq.ParquetFile(file).iter_batches(BATCH_ROWS, columns=schema.names, use_threads=False):
                    yield pa.Table.from_batches([batch]).select(schema.names)
            else:
                for table in form().tables(file, schema_of(manifest)):
                    yield _as_committed(table.select(schema.names), schema, manifest)


def _as_committed(table: pa.Table, schema: pa.Schema, manifest: Manifest) -> pa.Table:
    """Bring cells of a text format to the types they were written from."""
    if all(map(are_comparable, table.schema.types, schema.types)):
        return table
    fault = ""
    try:
        return table.cast(pa.schema([pa.field(field.name, storage(field.type)) for field in schema]))
    except pa.ArrowException as error:
        fault = type(error).__name__
    raise TransformError(
        f"contract.references: the {manifest.format} files of export {manifest.export_name} do not keep the type of "
        f"{', '.join(schema.names)} ({fault}). Write that export as Parquet."
    )
