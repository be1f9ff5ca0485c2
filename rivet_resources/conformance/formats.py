"""What every format promises; each check takes rows that the format can hold, and a folder for files.

The rows have at least two columns, a NULL, and a few hundred rows, so that a writer flushes more than once.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from rivet_resources.conformance.promises import PromiseBroken, hold
from rivet_resources.contracts.format import FileFormat
from rivet_resources.errors import PartCorrupt


def _write(form: FileFormat, path: Path, rows: pa.Table, *, pages: int = 3) -> int:
    """Write rows in some pages; the bytes that the writer counted."""
    writer = form.writer(path, rows.schema)
    step = -(-rows.num_rows // pages) or 1
    for start in range(0, rows.num_rows, step):
        writer.write(rows.slice(start, step))
    writer.close()
    return writer.bytes_written


def rows_are_counted(form: FileFormat, rows: pa.Table, folder: Path) -> None:
    """A finished file tells how many rows it has, also one without any."""
    for name, each in (("full", rows), ("empty", rows.slice(0, 0))):
        _write(form, folder / name, each)
        hold(form.rows(folder / name, rows.schema) == each.num_rows, "`rows` counts the rows of a finished file")


def cells_come_back(form: FileFormat, rows: pa.Table, folder: Path) -> None:
    """Columns that are called exact come back bit by bit, in order; readers get all columns."""
    _write(form, folder / "part", rows)
    exact = form.exact_columns(rows.schema)
    hold(exact <= set(rows.column_names), "`exact_columns` names columns of the schema")
    found = pa.concat_tables(list(form.batches(folder / "part", rows.schema)), promote_options="default")
    for name in exact:
        read_back = found.column(name).cast(rows.schema.field(name).type)
        hold(
            _cells(form, read_back) == _cells(form, rows.column(name)),
            "`batches` returns the cells of exact columns as they were written",
        )
    with (folder / "part").open("rb") as file:
        read = pa.concat_tables(list(form.tables(file, rows.schema)), promote_options="default")
    hold((read.num_rows, read.column_names) == (rows.num_rows, rows.column_names), "`tables` returns rows and columns")


def _cells(form: FileFormat, column: pa.ChunkedArray) -> list[object]:
    """Return cells to compare; NULL as an empty text where a format cannot tell them apart, and says so."""
    return [cell if form.tells_null or cell is not None else "" for cell in column.to_pylist()]


def pages_do_not_show(form: FileFormat, rows: pa.Table, folder: Path) -> None:
    """How rows are cut into pages changes no cell: pages are sized by memory and time."""
    for pages in (1, 7):
        _write(form, folder / str(pages), rows, pages=pages)
    once, often = (
        pa.concat_tables(list(form.batches(folder / str(pages), rows.schema)), promote_options="default")
        for pages in (1, 7)
    )
    hold(once.equals(often), "a file reads alike, whatever pages its rows came in")


def bytes_are_told(form: FileFormat, rows: pa.Table, folder: Path) -> None:
    """A writer says how much it wrote: a part is split by that."""
    told = _write(form, folder / "part", rows)
    size = (folder / "part").stat().st_size
    hold(0 < told <= size, "`bytes_written` grows with the file, and is never more than it has")


def torn_files_are_found(form: FileFormat, rows: pa.Table, folder: Path) -> None:
    """Half a file is not taken for a file."""
    path = folder / "part"
    _write(form, path, rows)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    try:
        counted = form.rows(path, rows.schema)
    except PartCorrupt:
        return
    if counted == rows.num_rows:
        raise PromiseBroken("a file that is cut off raises PartCorrupt, or has fewer rows")


def formats_travel(form: FileFormat, rows: pa.Table, folder: Path) -> None:
    """A format is plain data: workers get it by pickle."""
    hold(pickle.loads(pickle.dumps(form)) == form, "a format comes out of a pickle as it went in")


FORMAT_PROMISES: tuple[Callable[[FileFormat, pa.Table, Path], None], ...] = (
    rows_are_counted,
    cells_come_back,
    pages_do_not_show,
    bytes_are_told,
    torn_files_are_found,
    formats_travel,
)
