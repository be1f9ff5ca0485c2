"""Two sides of a window, row by row: what the source has now, and what the committed parts have.

Belongs here: rows as key and hash, on disk; and their comparison, by DuckDB, which goes to disk where memory ends. Not
here: when rows are compared, and who is told (`rivet_assets/prove/reconcile.py`).

Each row is reduced to the text of its key and the hash of all its cells, so a side costs some tens of bytes a row.
Without a key only hashes are compared, each as often as it comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rivet_resources.commit.manifest import Manifest, schema_of
from rivet_resources.commit.manifest_entries import ManifestPart
from rivet_resources.contracts.destination import Root
from rivet_resources.contracts.extract import Extract
from rivet_resources.contracts.format import FileFormat
from rivet_resources.contracts.transform import run_clock_columns
from rivet_resources.destinations.local import Local
from rivet_resources.errors import DestinationError, DestinationUnreachable, PartCorrupt
from rivet_resources.prove.reread import StandInFormat
from rivet_resources.read.connections import Permits
from rivet_resources.read.stage import Exporter
from rivet_resources.scratch import temporary
from rivet_resources.shape.rowhash.cells import can_spell
from rivet_resources.shape.rowhash.hash import row_hashes
from rivet_resources.write.checksums.sums import UNSUMMED

MOST_EXAMPLES = 20
HASH = "h"
META = UNSUMMED | {"_rivet_row_hash"}
# What the comparison may hold before it goes to disk, of its own default of 80 % of the machine.
MEMORY = "512MB"


# Keys are shown to the person who asked for rows and to nobody else: they are never logged, stored or sent.
@dataclass(frozen=True)
class Example:
    """The key of one row that differs, column by column; shown only to whoever asked for rows."""

    kind: Literal["missing", "extra", "different"]
    key: tuple[str, ...]


@dataclass(frozen=True)
class RowDifferences:
    """How the parts differ from the source. missing: only the source has it; extra: only the parts do."""

    missing: int
    extra: int
    different: int
    examples: tuple[Example, ...] = ()
    note: str = ""  # why there are no examples, or which columns were left out
    is_unreadable: bool = False  # the parts could not be read; `note` says why

    @property
    def is_any(self) -> bool:
        """Return whether anything differs."""
        return bool(self.missing or self.extra or self.different or self.is_unreadable)


def add_up(found: Sequence[RowDifferences]) -> RowDifferences:
    """Add up the differences of several chunks, with the first examples of all."""
    return RowDifferences(
        sum(each.missing for each in found),
        sum(each.extra for each in found),
        sum(each.different for each in found),
        tuple(example for each in found for example in each.examples)[:MOST_EXAMPLES],
        next((each.note for each in found if each.note), ""),
        any(each.is_unreadable for each in found),
    )


@dataclass(frozen=True)
class Reduced:
    """Which columns of shaped rows make the key, () for none, and which the hash."""

    key: tuple[str, ...]
    covered: tuple[str, ...]

    @property
    def schema(self) -> pa.Schema:
        """Return the schema of reduced rows."""
        # The text of the key and the hash of all cells, so a side costs some tens of bytes a row, however wide the
        # table is.
        return pa.schema([*((f"k{i}", pa.string()) for i in range(len(self.key))), (HASH, pa.int64())])

    def reduce(self, table: pa.Table) -> pa.Table:
        """Reduce rows to key and hash."""
        keys = [texts(table.column(name)) for name in self.key]
        return pa.Table.from_arrays([*keys, row_hashes(table, self.covered)], schema=self.schema)


def comparable(shaped: pa.Schema, committed: pa.Schema) -> tuple[str, ...]:
    """Name the columns that both sides have and that can be hashed, in the order of now."""
    # Columns that hold the run's own time differ in every row of two readings, and say nothing of the source.
    own = META | run_clock_columns(shaped) | run_clock_columns(committed)
    return tuple(
        field.name
        for field in shaped
        if field.name in committed.names and field.name not in own and can_spell(field.type)
    )


def texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Spell the cells of a key."""
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([piece.storage for piece in column.chunks], column.type.storage_type)
    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.chunked_array([[None if cell is None else cell.hex() for cell in column.to_pylist()]], pa.string())
    return pc.cast(column, pa.string())


# --- the comparison ------------------------------------------------------------------------------


def compare_rows(
    extract: Extract, manifest: Manifest, parts: Sequence[ManifestPart], *, root: Root, exporter: Exporter,
    permits: Permits | None, key: tuple[str, ...], shaped: pa.Schema,
) -> RowDifferences:  # fmt: skip
    """Read the rows of `extract` from the source and those of `parts`, and count what differs.

    Args:
        key: columns of the shaped rows that tell them apart; () compares whole rows, each as often as it comes.
        shaped: the schema that the rows of `extract` get.

    Raises:
        PartCorrupt: a part is gone or cannot be read.
        RivetError: as `Exporter.stage`.
    """
    reduced = Reduced(key, comparable(shaped, schema_of(manifest)))
    with temporary("rows") as folder:
        source = _source_side(extract, reduced, folder, exporter=exporter, permits=permits)
        committed = _committed_side(manifest, parts, reduced, shaped, folder, root=root)
        own = META | run_clock_columns(shaped) | run_clock_columns(schema_of(manifest))
        left_out = sorted({*shaped.names, *schema_of(manifest).names} - own - set(reduced.covered))
        note = f"not compared: {', '.join(left_out)}" if left_out else ""
        return replace(_join_sides(source, committed, len(key), folder), note=note)


def _source_side(
    extract: Extract, reduced: Reduced, folder: Path, *, exporter: Exporter, permits: Permits | None
) -> list[str]:
    """Read the source into files of reduced rows, as an export to this folder would."""
    here = Local(type="local", path=str(folder / "source"))
    # Without a fingerprint no chunk of a dead run is taken for read: its rows would not be in this folder.
    plain = replace(extract, unique_columns=(), max_file_bytes=None, fingerprint="", skip_empty=False)
    # What is compared was exported.
    form = ReducedRows(cast(FileFormat, extract.format), reduced)
    exporter.stage(replace(plain, destination=here, format=form), permits=permits)
    return [str(path) for path in (folder / "source").rglob("*.keys")]


def _committed_side(
    manifest: Manifest, parts: Sequence[ManifestPart], reduced: Reduced, shaped: pa.Schema, folder: Path, *, root: Root
) -> list[str]:
    """Read parts into one file of reduced rows.

    Raises:
        PartCorrupt
    """
    path = folder / "parts.keys"
    keeps_types = manifest.file_format.keeps_types
    with pq.ParquetWriter(path, reduced.schema) as writer:
        for part in parts:
            for table in part_tables(root, part.path, manifest):
                writer.write_table(reduced.reduce(as_now(table, shaped) if keeps_types else table))
    return [str(path)]


def part_tables(root: Root, path: str, manifest: Manifest) -> Iterator[pa.Table]:
    """Yield the rows of one part.

    Raises:
        PartCorrupt: it is gone, or is no file of its format.
    """
    try:
        with root.open(path) as file:
            yield from manifest.file_format().tables(file, schema_of(manifest))
    except DestinationUnreachable:
        raise
    except (DestinationError, OSError, pa.ArrowException, ValueError) as error:
        # Their texts may show a cell.
        raise PartCorrupt(
            f"Part {path} of window {manifest.window} cannot be read ({type(error).__name__}). `rivet validate` tells "
            f"what is wrong with it; `rivet repair --execute` reads its rows again."
        ) from error


def as_now(table: pa.Table, shaped: pa.Schema) -> pa.Table:
    """Cast a Parquet part's rows to the types that rows have now, where they had others."""
    for place, name in enumerate(table.column_names):
        kind = shaped.field(name).type if name in shaped.names else table.schema.field(place).type
        if table.column(place).type != kind and not isinstance(kind, pa.BaseExtensionType):
            table = table.set_column(place, name, pc.cast(table.column(place), kind))
    return table


def _join_sides(source: Sequence[str], committed: Sequence[str], keys: int, folder: Path) -> RowDifferences:
    """Count, and pick the first keys of what differs."""
    names = [f"k{i}" for i in range(keys)] or [HASH]
    listed = ", ".join(names)
    # Two NULLs are one key here, where plain equality would report such a row as missing and as extra.
    same = " AND ".join(f"a.{name} IS NOT DISTINCT FROM b.{name}" for name in names)
    with closing(_connect(folder)) as duckdb:
        for side, files in (("source", source), ("parts", committed)):
            rows = f"read_parquet({files!r})" if files else "(SELECT * FROM parts WHERE false)"
            # Without rows the source has no file; the columns are then those of the other side, which always has one.
            if side == "source" and not files:
                rows = f"(SELECT * FROM read_parquet({list(committed)!r}) WHERE false)"
            duckdb.execute(
                # Rows that share a key are compared by the sum of their hashes, which 64 bits would not hold.
                f"CREATE TABLE {side} AS SELECT {listed}, count(*) AS n, sum(h::HUGEINT) AS s FROM {rows} GROUP BY ALL"
                if keys
                else f"CREATE TABLE {side} AS SELECT h, count(*) AS n, 0::HUGEINT AS s FROM {rows} GROUP BY h"
            )
        picked = ", ".join(f"coalesce(a.{name}, b.{name}) AS {name}" for name in names)
        duckdb.execute(
            f"CREATE TABLE found AS SELECT {picked}, coalesce(a.n, 0) AS here, coalesce(b.n, 0) AS there "
            f"FROM source a FULL JOIN parts b ON {same} WHERE a.n IS DISTINCT FROM b.n OR a.s IS DISTINCT FROM b.s"
        )
        counts = duckdb.execute(
            "SELECT coalesce(sum(greatest(here - there, 0)), 0), coalesce(sum(greatest(there - here, 0)), 0), "
            "coalesce(sum(here) FILTER (here = there), 0) FROM found"
        ).fetchone()
        kind = "CASE WHEN here > there THEN 'missing' WHEN here < there THEN 'extra' ELSE 'different' END"
        shown = (
            duckdb.execute(f"SELECT {kind}, {listed} FROM found ORDER BY 1, {listed} LIMIT {MOST_EXAMPLES}").fetchall()
            if keys
            else []
        )
    missing, extra, different = map(int, counts)
    examples = tuple(Example(row[0], tuple("NULL" if cell is None else str(cell) for cell in row[1:])) for row in shown)
    return RowDifferences(missing, extra, different, examples)


def _connect(folder: Path) -> Any:
    import duckdb  # start

    offline = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
    # Where no order has to be kept, DuckDB holds less of a large table in memory.
    bounds = {"memory_limit": MEMORY, "threads": "2", "preserve_insertion_order": "false"}
    return duckdb.connect(":memory:", config={"temp_directory": str(folder), **bounds, **offline})


# --- the source's side as a format ---------------------------------------------------------------


@dataclass(frozen=True)
class ReducedRows(StandInFormat):
    """A format whose files hold keys and hashes; rows are first what a reader of the export's format would get."""

    of: FileFormat
    reduced: Reduced

    @property
    def extension(self) -> str:
        """Name files."""
        return "keys"

    @property
    def codec(self) -> str:
        """Name the compression."""
        return "snappy"

    def writer(
        self, path: Path, schema: pa.Schema, *, key: tuple[str, ...] = (), limit_bytes: int | None = None
    ) -> _Reducing:
        """Open a file of keys and hashes."""
        return _Reducing(path, schema, self)

    def rows(self, path: Path, schema: pa.Schema) -> int:
        """Count its rows."""
        return int(pq.read_metadata(path).num_rows)


class _Reducing:
    """Writes keys and hashes."""

    def __init__(self, path: Path, schema: pa.Schema, form: ReducedRows) -> None:
        self.bytes_written = 0
        self._path, self._schema, self._form = path, schema, form
        self._writer = pq.ParquetWriter(path, form.reduced.schema)

    def write(self, table: pa.Table) -> None:
        """Reduce a page."""
        with self._read_back(table) as pages:
            for page in pages:
                self._writer.write_table(self._form.reduced.reduce(page))

    def close(self) -> None:
        """Finish the file."""
        self._writer.close()

    @contextmanager
    def _read_back(self, table: pa.Table) -> Iterator[Iterable[pa.Table]]:
        """Yield a page as a reader of its parts will see it: CSV cannot tell an empty text from NULL, and so on."""
        if self._form.of.keeps_types:
            yield [table]
            return
        # Through a file of the export's own format, so that both sides have lost the same: without it every such cell
        # would differ.
        file = self._path.with_suffix(".page")
        writer = self._form.of.writer(file, self._schema)
        writer.write(table)
        writer.close()
        with open(file, "rb") as content:
            yield self._form.of.tables(content, self._schema)
        file.unlink()
