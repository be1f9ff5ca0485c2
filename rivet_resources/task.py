"""The whole life of a task: one chunk, from its pages to its staged parts (`architecture.md`, "A task, in order").

Belongs here: the order in which a chunk is read, counted, written, verified and staged, and what is undone when that
fails. Not here: SQL (`sources/`), bytes of a format (`formats/`), where parts go (`destinations/`), and Spark
(`exporter.py`): the same function runs in an executor and in a plain process.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from rivet_resources.destinations.protocol import Root
from rivet_resources.errors import DestinationError, RivetError, SourceChanged, SourceLost
from rivet_resources.extract import Chunk, ChunkResult, Extract, Part
from rivet_resources.measures import Tally
from rivet_resources.parts import PartFiles, enough_room
from rivet_resources.retry import delays
from rivet_resources.sources.protocol import Page
from rivet_resources.throttle import MemoryGate, Throttle

log = logging.getLogger(__name__)

EXPORTED_AT = pa.field("_rivet_exported_at", pa.timestamp("us", "UTC"), nullable=False)


def schema_of(extract: Extract) -> pa.Schema:
    """Give the schema of every part: the relation's columns with their metadata, then Rivet's own."""
    fields = [column.field for column in extract.relation.columns]
    return pa.schema(fields if extract.meta.exported_at is None else [*fields, EXPORTED_AT])


def run_chunk(extract: Extract, chunk: Chunk, *, attempt: int, scratch: Path) -> ChunkResult:
    """Read one chunk and stage its parts; on any fault nothing of it is left.

    A chunk whose connection died for good is read again from its start, as often as `pace.max_retries` says: a
    cursor cannot go on, and a page alone was already asked again by the source.

    Args:
        attempt: Spark's count for this task; together with the re-reading it keeps two attempts' files apart.
        scratch: a folder on this machine; a private one is made in it, and removed.

    Raises:
        PartCorrupt: a part read back differs from what was written.
        DiskFull: `scratch` has no room.
        RivetError: what the source or the destination said.
    """
    pauses = delays(extract.pace)
    reread = 0
    while True:
        try:
            return _Reading(extract, chunk, f"{attempt}.{reread}", scratch).run(rereads=reread)
        except SourceLost as error:
            pause = next(pauses, None)
            if pause is None:
                raise
            reread += 1
            log.warning("Export %s, chunk %d is read again from its start: %s", extract.export, chunk.index, error)
            time.sleep(pause + error.extra_seconds)


def _make(folder: Path) -> None:
    """Make a scratch folder.

    Raises:
        DestinationError: the place cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (PermissionError, NotADirectoryError, FileExistsError) as error:
        raise DestinationError(
            f"Scratch folder {folder} cannot be made: {error.strerror}. Point TMPDIR at a folder that can be written."
        ) from error


@dataclass
class _Reading:
    """One attempt at one chunk."""

    extract: Extract
    chunk: Chunk
    label: str
    scratch: Path
    schema: pa.Schema = field(init=False)
    root: Root = field(init=False)

    def __post_init__(self) -> None:
        self.schema = schema_of(self.extract)
        self.root = self.extract.destination.root(self.extract.export)

    def run(self, *, rereads: int) -> ChunkResult:
        """Read, count, write, verify, stage; or leave nothing."""
        throttle = Throttle(self.extract.pace)
        with self._folder() as folder:
            tally = Tally(self.schema, unique_columns=self.extract.unique_columns, scratch=folder)
            parts = PartFiles(
                self.extract, self.chunk, schema=self.schema, root=self.root, folder=folder, label=self.label
            )
            try:
                for page in self._pages(throttle):
                    tally.add(page)
                    parts.write(page.table)
                staged = parts.finish()
                unique = self._stage_sidecars(tally)
            except BaseException:
                self._discard(parts.staged)
                raise
            measures = tally.result(unique=unique, retries=rereads, throttled_seconds=throttle.waited_seconds)
            return ChunkResult(chunk=self.chunk.index, parts=staged, measures=measures)

    def _pages(self, throttle: Throttle) -> Iterator[Page]:
        """Read the chunk page by page, typed as parts will be, waiting for memory in between."""
        gate = MemoryGate(self.extract.pace)
        pages = self.extract.source.pages(
            self.chunk,
            self.extract.relation.columns,
            snapshot=self.extract.snapshot,
            application=f"rivet:{self.extract.export}",
            pace=self.extract.pace,
            wait=throttle.wait,
        )
        with closing(pages) as open_pages:
            for page in open_pages:
                yield Page(self._with_meta(page.table), page.special, page.statement_ms, page.retries)
                gate.wait()

    def _with_meta(self, table: pa.Table) -> pa.Table:
        """Append Rivet's own columns, and give every column the field metadata it is written with."""
        columns = list(table.columns)
        self._check_types(table)
        if self.extract.meta.exported_at is not None:
            instant = pa.scalar(self.extract.meta.exported_at, EXPORTED_AT.type)
            columns.append(pa.chunked_array([pa.repeat(instant, table.num_rows)]))
        return pa.Table.from_arrays(columns, schema=self.schema)

    def _check_types(self, table: pa.Table) -> None:
        """Compare a page with the plan: Arrow would cast a difference away in silence.

        Raises:
            SourceChanged: a column has another type than was planned.
        """
        planned = self.extract.relation.columns
        found = dict(zip((column.name for column in planned), table.schema.types, strict=False))
        for column in planned:
            if found.get(column.name) != column.arrow or table.num_columns != len(planned):
                raise SourceChanged(
                    f"{self.extract.relation.name}.{column.name} arrived as {found.get(column.name)}, planned was "
                    f"{column.arrow}, in a page of {table.num_columns} columns. Was it altered meanwhile? Run again."
                )

    def _stage_sidecars(self, tally: Tally) -> dict[str, list[str]]:
        """Put the hash files of the unique columns where the driver finds them: {column: [path, …]}."""
        staged: dict[str, list[str]] = {}
        for name, files in tally.sidecars().items():
            index = self.schema.get_field_index(name)
            stem = f"_staged/{self.extract.run_id}/unique/{index}-chunk{self.chunk.index}-{self.label}"
            staged[name] = []
            for number, file in enumerate(files):
                self.root.put(f"{stem}-{number}.u128", file.read_bytes())
                staged[name].append(f"{stem}-{number}.u128")
        return staged

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        """Make a private scratch folder; remove it, and give memory back, whatever happens."""
        folder = self.scratch / f"{self.extract.run_id}-chunk{self.chunk.index}-{self.label}"
        try:
            with enough_room(self.scratch):
                _make(folder)
                yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            pa.default_memory_pool().release_unused()

    def _discard(self, parts: list[Part]) -> None:
        """Remove what was staged; a fault here must not hide the first one, and a sweep finds the rest."""
        try:
            self.root.discard(parts)
        except RivetError as error:
            log.warning("Staged parts of chunk %d could not be removed now: %s", self.chunk.index, error)
