"""The files of one chunk: their names, their splitting by size, their proof, and their way to the destination.

Belongs here: everything between a page and a staged part. Not here: the bytes of a format (`write/formats/`), and when
a part becomes visible (`commit/publish.py`).
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import xxhash

from rivet_resources.contracts.addressing import stem_of
from rivet_resources.contracts.destination import Root
from rivet_resources.contracts.extract import Extract
from rivet_resources.contracts.format import PartWriter
from rivet_resources.contracts.parts import Part
from rivet_resources.contracts.relation import Chunk
from rivet_resources.errors import PartCorrupt
from rivet_resources.write.file_checksums import FollowedFile

RUN_ID = re.compile(r"_(\d{8})T(\d{6})\.(\d{3})_([0-9a-f]{6})$")


class PartFiles:
    """Writes the pages of one chunk into as many parts as the size limit asks for.

    A part is closed, read back and staged before the next one is opened, but for the first: whether its name ends
    in `_part0` is only known when a second one appears.
    """

    def __init__(
        self,
        extract: Extract,
        chunk: Chunk,
        *,
        schema: pa.Schema,
        root: Root,
        folder: Path,
        label: str,
        partition: str = "",
    ) -> None:
        self.staged: list[Part] = []
        self._extract, self._chunk, self._schema = extract, chunk, schema
        self._root, self._folder, self._label, self._partition = root, folder, label, partition
        self._writer: PartWriter | None = None
        self._behind: FollowedFile | None = None
        self._rows = 0
        self._number = 0
        self._first: tuple[Path, Part] | None = None

    def write(self, table: pa.Table) -> None:
        """Append a page; a page without rows opens no part."""
        if table.num_rows == 0:
            return
        if self._writer is None or self._behind is None:
            self._writer, self._behind = self._open(), FollowedFile(self._local())
        self._writer.write(table)
        # The checksums follow the writer, while the bytes are still in the page cache: a finished part need not be read
        # again.
        self._behind.advance(self._writer.bytes_written)
        self._rows += table.num_rows
        limit = self._extract.max_file_bytes
        # Behind the page, not inside: a page is one statement, and cutting it would give two parts a share of one
        # retry.
        if limit is not None and self._writer.bytes_written >= limit:
            self._close()

    def finish(self) -> tuple[Part, ...]:
        """Close and stage what is left; all parts in order, none when there was no row."""
        if self._writer is not None:
            self._close()
        if self._first is not None:
            self._stage(*self._first)
            self._first = None
        return tuple(self.staged)

    def _local(self) -> Path:
        """Return where the part being written lies."""
        return self._folder / f"chunk{self._chunk.index}-{self._label}-{self._number}.{self._extract.format.extension}"

    def _open(self) -> PartWriter:
        """Start a part; before a second one the first is staged under its numbered name."""
        if self._first is not None:
            file, part = self._first
            self._first = None
            # Only now is it known that there are several, and `_part0` is what the contract calls the first of them.
            self._stage(file, replace(part, path=self._path(0)))
        return self._extract.format.writer(
            self._local(), self._schema, key=self._chunk.key, limit_bytes=self._extract.max_file_bytes
        )

    def _close(self) -> None:
        """Finish the part being written, prove it, and stage it unless it is the first."""
        assert self._writer is not None
        assert self._behind is not None
        self._writer.close()
        file = self._local()
        part = self._prove(file, self._behind)
        self._writer, self._behind, self._rows = None, None, 0
        self._number += 1
        # It waits here on disk until a second part, or the end, decides its name.
        if self._number == 1:
            self._first = (file, part)
        else:
            self._stage(file, part)

    def _prove(self, file: Path, behind: FollowedFile) -> Part:
        """Read a finished file back: its rows, columns, size and checksums (`contract.md`, 10.1, 10.3)."""
        # Counted by a reader, not by us: what is compared is what a consumer will find in the file.
        found = self._extract.format.rows(file, self._schema)
        if found != self._rows:
            raise PartCorrupt(
                f"Export {self._extract.export}: part {file.name} holds {found} rows, {self._rows} were written. "
                f"Check the disk below {self._folder.parent}, then run again."
            )
        size, fingerprint, md5 = behind.finish()
        number = self._number if self._number else None
        return Part(
            self._path(number), self._rows, size, fingerprint, md5, chunk=self._chunk.index, partition=self._partition
        )

    def _path(self, number: int | None) -> str:
        return part_path(self._extract, self._chunk, number=number, partition=self._partition)

    def _stage(self, file: Path, part: Part) -> None:
        """Hand a part to the destination; the local file is not needed afterwards."""
        plain = self._root.stage(file, run_id=self._extract.run_id, path=part.path, md5=part.md5)
        self.staged.append(replace(part, staged=plain))
        file.unlink(missing_ok=True)


def part_path(extract: Extract, chunk: Chunk, *, number: int | None, partition: str = "") -> str:
    """Name a part below the export's folder (`contract.md`, 8.1).

    `{folder}/{partition}/{export}_{YYYYMMDD_HHMMSS_mmm}_{nonce}[_chunk{i}][_part{N}].{ext}`: time and nonce are of
    the run id, the chunk is named when there are several, the part when its chunk was split.
    """
    day, time_, millis, nonce = _run_stamp(extract.run_id)
    name = f"{extract.part_prefix or stem_of(extract.export)}_{day}_{time_}_{millis}_{nonce}"
    if extract.has_several_chunks:
        name += f"_chunk{chunk.index}"
    if number is not None:
        name += f"_part{number}"
    return "/".join(filter(None, (extract.window.folder, partition, f"{name}.{extract.format.extension}")))


def _run_stamp(run_id: str) -> tuple[str, str, str, str]:
    """Take time and nonce from a run id; one of another shape gives a nonce of its own and no time."""
    match = RUN_ID.search(run_id)
    if match:
        return match[1], match[2], match[3], match[4]
    return "00000000", "000000", "000", xxhash.xxh3_64_hexdigest(run_id.encode())[-6:]
