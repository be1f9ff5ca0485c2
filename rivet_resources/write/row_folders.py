"""The parts of one chunk whose rows lie in folders by a column's day, month or year.

Belongs here: sorting pages into folders within bounded memory. Not here: the files of one folder (`parts.py`), names
(`contracts/rows/row_folders.py`).

Decision: rows are kept by folder, in memory and then in scratch, and written when all have come.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc as ipc

from rivet_resources.contracts.parts import Part
from rivet_resources.contracts.rows.row_folders import RowFolders
from rivet_resources.errors import SourceError
from rivet_resources.write.parts import PartFiles

HELD_BYTES = 64 * 1024 * 1024  # of Arrow, before rows go to scratch
MOST_FOLDERS = 10_000  # of one chunk; each is a file at least

MakeFiles = Callable[[str, int], PartFiles]  # of a folder, and its place among those of the chunk


class FolderFiles:
    """Writes the pages of one chunk into parts by folder; `PartFiles` for rows that lie in several."""

    def __init__(self, folders: RowFolders, *, schema: pa.Schema, scratch: Path, make: MakeFiles) -> None:
        self.staged: list[Part] = []
        self._folders, self._schema, self._scratch, self._make = folders, schema, scratch, make
        # One writer for each folder would hold a row group for each; closing the oldest would make a file per page and
        # day of a table without order.
        self._held: dict[int | None, list[pa.Table]] = {}
        self._size = 0
        self._spilled: dict[int | None, list[tuple[int, int]]] = {}  # folder → (file, batch)
        self._files: list[Path] = []

    def write(self, table: pa.Table) -> None:
        """Sort a page into its folders.

        Raises:
            SourceError: there are more folders than anybody would want.
        """
        if table.num_rows == 0:
            return
        numbers = self._folders.numbers(table.column(self._folders.column)).combine_chunks()
        for number in numbers.unique().to_pylist():
            # NULL equals nothing, not even NULL.
            is_here = numbers.is_null() if number is None else pc.equal(numbers, number)
            rows = table.filter(is_here)
            self._held.setdefault(number, []).append(rows)
            self._size += rows.nbytes
        if len(self._held.keys() | self._spilled.keys()) > MOST_FOLDERS:
            raise SourceError(
                f"Rows of one chunk have more than {MOST_FOLDERS} folders by {self._folders.granularity} of "
                f"{self._folders.column}. Set `partition_granularity: month` or `year`, or cut the export into more "
                f"chunks."
            )
        if self._size >= HELD_BYTES:
            self._spill()

    def finish(self) -> tuple[Part, ...]:
        """Write and stage the parts of each folder, in the order of their times, NULL last."""
        # Mapped, not read: a folder's batches lie anywhere in these files, and only they are paged in.
        readers = [ipc.open_file(pa.memory_map(str(path))) for path in self._files]
        wanted = sorted(self._held.keys() | self._spilled.keys(), key=lambda number: (number is None, number or 0))
        for place, number in enumerate(wanted):
            files = self._make(self._folders.name(number), place)
            try:
                for file, batch in self._spilled.get(number, ()):
                    files.write(pa.Table.from_batches([readers[file].get_batch(batch)], schema=self._schema))
                for table in self._held.pop(number, ()):
                    files.write(table)
                files.finish()
            finally:
                self.staged.extend(files.staged)
        return tuple(self.staged)

    def _spill(self) -> None:
        """Move what is held into one file of scratch, a batch for each folder."""
        path = self._scratch / f"folders{len(self._files)}.arrow"
        options = ipc.IpcWriteOptions(compression="lz4")
        with ipc.new_file(str(path), self._schema, options=options) as sink:
            for place, (number, tables) in enumerate(self._held.items()):
                (batch,) = pa.concat_tables(tables).combine_chunks().to_batches()
                sink.write_batch(batch)
                self._spilled.setdefault(number, []).append((len(self._files), place))
        self._files.append(path)
        self._held, self._size = {}, 0
