"""The quarantine of a chunk: rows that could not be exported, each with its reason, in files beside the parts.

Belongs here: what a dead letter is, and its files. Not here: which rows are at fault (`shape/`), when the files become
visible (`commit/publish.py`: with their window), reading them (`rivet_resources/prove/quarantine.py`).

A file is NDJSON below `_quarantine/`, whatever the format of the parts: a row that does not fit its types has no place
in a typed file, and people look at it with their eyes. Columns that the export drops or masks are not in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from rivet_resources.contracts.addressing import QUARANTINE
from rivet_resources.contracts.destination import Root
from rivet_resources.contracts.extract import Extract
from rivet_resources.contracts.format import FormatKeys
from rivet_resources.contracts.parts import Part
from rivet_resources.contracts.relation import Chunk
from rivet_resources.contracts.rows.row_errors import RefusedRows
from rivet_resources.shape.shape import planned
from rivet_resources.write.parts import PartFiles

LETTER = pa.schema(
    [
        pa.field("window", pa.string(), nullable=False),
        pa.field("run_id", pa.string(), nullable=False),
        pa.field("where", pa.string(), nullable=False),  # `type`, or `step 2 (cast)`
        pa.field("column", pa.string()),  # NULL where no single one is at fault
        pa.field("reason", pa.string(), nullable=False),
        pa.field("key", pa.json_()),  # NULL where the export hides it, or there is none
        pa.field("row", pa.json_(), nullable=False),  # as the source typed it, without what the export hides
    ]
)
FORMAT = "ndjson"
WAITING_ROWS, WAITING_BYTES = 2_000, 4 << 20


class DeadLetters:
    """Collects the dead letters of one chunk; without one it costs nothing and leaves no file."""

    def __init__(self, extract: Extract, chunk: Chunk, *, root: Root, folder: Path, label: str) -> None:
        self._extract, self._chunk = extract, chunk
        self._root, self._folder, self._label = root, folder, f"{label}-dead"
        self._files: PartFiles | None = None
        self._shown: tuple[str, ...] = ()
        self._waiting: dict[tuple[str, str, str], list[RefusedRows]] = {}  # by reason
        self._rows = self._bytes = 0

    @property
    def staged(self) -> list[Part]:
        """Return what was staged so far."""
        return self._files.staged if self._files else []

    def add(self, refused: Sequence[RefusedRows]) -> None:
        """Write down those rows whose policy asks for it."""
        for each in refused:
            if each.policy == "dead_letter":
                self._waiting.setdefault((each.where, each.column, each.why), []).append(each)
                self._rows += each.rows.num_rows
                self._bytes += each.rows.nbytes
        if self._rows >= WAITING_ROWS or self._bytes >= WAITING_BYTES:
            self._flush()

    def _flush(self) -> None:
        """Write what waits: a few rows of each page cost far more alone than together."""
        for alike in self._waiting.values():
            if self._files is None:
                self._files, self._shown = self._open(), shown_columns(self._extract)
            joined = replace(alike[0], rows=pa.concat_tables([each.rows for each in alike], promote_options="default"))
            self._files.write(letters(joined, self._extract, self._shown))
        self._waiting, self._rows, self._bytes = {}, 0, 0

    def finish(self) -> tuple[Part, ...]:
        """Close and stage what is left."""
        self._flush()
        return self._files.finish() if self._files else ()

    def _open(self) -> PartFiles:
        from rivet_resources.registry import FORMATS  # start

        window = self._extract.window
        extract = replace(
            self._extract,
            # Whatever the parts are, and uncompressed: people look at these files.
            format=FORMATS[FORMAT].from_keys(FormatKeys()),
            window=replace(window, folder="/".join(filter(None, (QUARANTINE, window.folder)))),
            max_file_bytes=None,
        )
        return PartFiles(extract, self._chunk, schema=LETTER, root=self._root, folder=self._folder, label=self._label)


def shown_columns(extract: Extract) -> tuple[str, ...]:
    """Name the source's columns that the export shows as they are: not those it drops, nor those it masks."""
    plan = planned(extract.relation, extract.transforms)
    kept = frozenset().union(*plan.origins.values()) - plan.masked
    return tuple(column.name for column in extract.relation.columns if column.name in kept)


def letters(refused: RefusedRows, extract: Extract, shown: Sequence[str]) -> pa.Table:
    """Return the dead letters of some rows, of schema `LETTER`."""
    count = refused.rows.num_rows
    key = extract.relation.key
    texts = {
        "window": extract.window.key,
        "run_id": extract.run_id,
        "where": refused.where,
        "column": refused.column or None,
        "reason": refused.why,
    }
    columns = [pa.array([text] * count, pa.string()) for text in texts.values()]
    has_key = bool(key) and set(key) <= set(shown)
    columns.append(as_objects(refused.rows.select(list(key))) if has_key else pa.nulls(count, pa.json_()))
    columns.append(as_objects(refused.rows.select(list(shown))))
    return pa.Table.from_arrays(columns, schema=LETTER)


def as_objects(rows: pa.Table) -> pa.Array:
    """Spell rows as JSON objects."""
    from rivet_resources.write.formats import ndjson_cells  # start

    if not rows.num_columns:
        lines = ["{}"] * rows.num_rows
    else:
        plain = pa.table([_plain(column) for column in rows.columns], names=rows.column_names)
        (batch,) = plain.combine_chunks().to_batches()
        lines = bytes(ndjson_cells.render(batch)).decode().split("\n")[:-1]
    return pa.ExtensionArray.from_storage(pa.json_(), pa.array(lines, pa.json_().storage_type))


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return cells that JSON can spell: a text that is to be JSON may be none, and some types have no form."""
    kind = column.type
    if isinstance(kind, pa.JsonType):
        return pa.chunked_array([chunk.storage for chunk in column.chunks], kind.storage_type)
    from rivet_resources.write.formats import ndjson_cells  # start

    if ndjson_cells.can_render(pa.field("cell", kind)):
        return column
    return pa.chunked_array([[None if cell is None else str(cell) for cell in column.to_pylist()]], pa.string())
