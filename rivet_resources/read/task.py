"""The whole life of a task: one chunk, from its pages to its staged parts (`architecture.md`, "A task, in order").

Belongs here: the order in which a chunk is read, shaped, counted, written, verified and staged, and what is undone
when that fails. Not here: SQL (`engines/`), what rows become on the way (`shape/shape.py`), bytes of a format
(`write/formats/`), where parts go (`destinations/`), and Spark (`stage.py`): the same function runs in an executor and
in a plain process.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from rivet_resources.contracts.destination import Root
from rivet_resources.contracts.evidence import Effort
from rivet_resources.contracts.extract import Extract
from rivet_resources.contracts.parts import ChunkResult, Measures, Part
from rivet_resources.contracts.relation import Chunk
from rivet_resources.contracts.rows.row_errors import RefusedCells, RefusedRows
from rivet_resources.contracts.source import Page
from rivet_resources.errors import RivetError, SourceLost, StatementTimeout
from rivet_resources.read.meter import Meter, meter_of
from rivet_resources.read.rows_so_far import RowsSoFar
from rivet_resources.read.sieve import Sieve
from rivet_resources.read.throttle import MemoryGate, Throttle
from rivet_resources.read.write_behind import write_behind
from rivet_resources.retry import delays
from rivet_resources.scratch import enough_room, private_folder
from rivet_resources.shape.shape import Shaping
from rivet_resources.write.dead_letters import DeadLetters
from rivet_resources.write.measures import Tally
from rivet_resources.write.parts import PartFiles
from rivet_resources.write.row_folders import FolderFiles
from rivet_resources.write.row_rules import RowsAside

log = logging.getLogger(__name__)


def run_chunk(extract: Extract, chunk: Chunk, *, attempt: int, scratch: Path) -> ChunkResult:
    """Read one chunk and stage its parts; on any fault nothing of it is left.

    A chunk whose connection died for good is read again from its start, as often as `pace.max_retries` says: a
    cursor cannot go on, and a page alone was already asked again by the source. One whose statement ran into the
    timeout is read again once, in halves where it has any: the same statement would run into it again.

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
    pieces: tuple[Chunk, ...] = (chunk,)
    while True:
        try:
            # The label keeps the files of two attempts apart: one that Spark took for dead may still write when the
            # next one begins.
            return _Reading(extract, chunk, f"{attempt}.{reread}", scratch, pieces).run(rereads=reread)
        except SourceLost as error:
            pause = next(pauses, None)
            if pause is None:
                raise
            reread += 1
            log.warning("Export %s, chunk %d is read again from its start: %s", extract.export, chunk.index, error)
            time.sleep(pause + error.extra_seconds)
        except StatementTimeout as error:
            # The same statement would run into the same limit, and each try costs the source all of it: hence
            # smaller pieces, once.
            if len(pieces) > 1:
                raise StatementTimeout(f"{error} Chunk {chunk.index} was read in halves already.") from None
            if not chunk.halves:
                raise
            reread, pieces = reread + 1, halved(chunk)
            log.warning("Export %s, chunk %d is read again in halves: %s", extract.export, chunk.index, error)


def halved(chunk: Chunk) -> tuple[Chunk, ...]:
    """Return the two pieces that a chunk falls into: each of its rows is in one of them."""
    # In parentheses: a user's `where` with an OR would otherwise swallow the range.
    wheres = (f"({chunk.where}) AND {half}" if chunk.where else half for half in chunk.halves)
    return tuple(replace(chunk, where=where, halves=()) for where in wheres)


@dataclass
class _Reading:
    """One attempt at one chunk."""

    extract: Extract
    chunk: Chunk
    label: str
    scratch: Path
    pieces: tuple[Chunk, ...]  # one after another: the chunk, or its halves
    shaping: Shaping = field(init=False)
    schema: pa.Schema = field(init=False)
    root: Root = field(init=False)
    sieve: Sieve | None = field(init=False, default=None)
    efforts: list[Effort] = field(default_factory=list)

    def __post_init__(self) -> None:
        # The rule that puts rows aside judges them by their values as parts will have them, so it looks at the
        # shaped schema.
        aside = self.extract.row_rules.aside
        self.shaping = Shaping(self.extract, self.chunk.index)
        self.schema = self.shaping.schema
        if aside:
            self.shaping.breaches = RowsAside(self.schema, aside).breaches
        self.root = self.extract.destination.root(self.extract.export)
        if self.extract.cursor is not None and (ends := self.extract.cursor.ends) is not None and ends.scheme:
            self.sieve = Sieve(ends, self.extract.relation.columns, self.chunk.edge)

    def run(self, *, rereads: int) -> ChunkResult:
        """Read, count, write, verify, stage; or leave nothing."""
        throttle = Throttle(self.extract.pace, scratch=self.scratch)
        with self._folder() as folder:
            tally = Tally(
                self.schema,
                unique_columns=self.extract.unique_columns,
                row_rules=self.extract.row_rules,
                profile=self.extract.profile,
                scratch=folder,
            )
            parts = self._parts(folder)
            letters = DeadLetters(self.extract, self.chunk, root=self.root, folder=folder, label=self.label)
            so_far = RowsSoFar(folder)

            def keep(page: Page) -> None:
                shaped, refused = self._shape(page)
                tally.add(shaped, refused)
                parts.write(shaped.table)
                letters.add(refused)
                so_far.add(shaped.table.num_rows)

            try:
                # Reading stays in this thread, where signals and Spark's cancelling arrive; all the rest goes on
                # behind it.
                with write_behind(keep) as hand_over, meter_of(self.extract) as meter:
                    for page in self._pages(throttle, meter):
                        hand_over(page)
                # Only after the block: leaving it waits for the pages that are still being written.
                staged, dead = parts.finish(), letters.finish()
                unique, profile = self._stage_sidecars(tally), self._stage_profile(tally)
            except BaseException:
                # Also for an interrupt. Files without a result are known to nobody but the sweep.
                self._discard([*parts.staged, *letters.staged])
                raise
            measures = tally.result(
                unique=unique, profile=profile, retries=rereads, throttled_seconds=throttle.waited_seconds
            )
            measures = self._with_ends(self._with_effort(measures, throttle))
            clock = "" if self.extract.clock is None else self.extract.clock.isoformat()
            return ChunkResult(self.chunk.index, staged, measures, dead_letters=dead, clock=clock)

    def _parts(self, folder: Path) -> PartFiles | FolderFiles:
        """Return what writes the chunk's files: of one folder, or of several by a column's time."""
        folders = self.extract.row_folders

        def make(partition: str, place: int) -> PartFiles:
            label = f"{self.label}-{place}" if partition else self.label
            return PartFiles(
                self.extract, self.chunk, schema=self.schema, root=self.root, folder=folder, label=label,
                partition=partition,
            )  # fmt: skip

        return make("", 0) if folders is None else FolderFiles(folders, schema=self.schema, scratch=folder, make=make)

    def _shape(self, page: Page) -> tuple[Page, list[RefusedRows]]:
        """Return a page's rows as parts will hold them, less those that an earlier window has; and those refused."""
        # Sifted before shaping: identities are of the source's cells, which transforms and masks would change.
        rows, cells = self._sift(page)
        shaped, refused = self.shaping.shape(rows, cells)
        return replace(page, table=shaped, rows_read=rows.num_rows), refused

    def _sift(self, page: Page) -> tuple[pa.Table, Sequence[RefusedCells]]:
        """Leave out the rows that an earlier window has; cells that were refused stay with their rows."""
        if self.sieve is None:
            return page.table, page.refused
        if not page.refused:
            return self.sieve.sift(page.table), ()
        places = pa.array(range(page.table.num_rows), pa.int64())
        # The row's number travels as one more column: the sieve knows its own columns by their places, and which
        # rows are left says where refused cells went.
        rows = self.sieve.sift(page.table.append_column("", places))
        left = rows.column(rows.num_columns - 1).to_numpy()
        return rows.remove_column(rows.num_columns - 1), [replace(each, rows=each.rows[left]) for each in page.refused]

    def _pages(self, throttle: Throttle, meter: Meter | None) -> Iterator[Page]:
        """Read the chunk page by page, as many rows as are wanted, waiting for memory in between."""
        if self.chunk.is_empty:
            return
        gate = MemoryGate(self.extract.pace)
        if meter is not None:
            throttle.limited(meter.begin())
        left = self.extract.most_rows
        # Where reading ends early, this closes the source's generator, and with it the connection.
        with closing(self._pages_of_all(throttle)) as open_pages:
            for page in open_pages:
                throttle.saw(page.table.num_rows, page.statement_ms)
                if meter is not None:
                    # After the page is read, before it is handed on: the size of a page is not known earlier.
                    throttle.limited(meter.count(page))
                found = page if left is None else page.first(left)
                yield found
                # Ended here and not by one more page, which the source would read for nothing.
                if left is not None and (left := left - found.table.num_rows) == 0:
                    return
                # Between two statements: a wait inside one would count against the statement's timeout.
                gate.wait()

    def _pages_of_all(self, throttle: Throttle) -> Generator[Page]:
        """Pass pages on, and keep what each piece says in the end of its cost; sources that do not know say None."""
        pace = self.extract.pace
        if self.extract.most_rows is not None:
            # Reading may end at any page, and one read ahead would be read for nothing.
            pace = pace.model_copy(update={"reads_ahead": False})
        for piece in self.pieces:
            pages = self.extract.source.pages(
                piece,
                self.extract.relation.columns,
                snapshot=self.extract.snapshot,
                application=f"rivet:{self.extract.export}",
                pace=pace,
                wait=throttle.wait,
            )
            if (effort := (yield from pages)) is not None:
                self.efforts.append(effort)

    def _with_effort(self, measures: Measures, throttle: Throttle) -> Measures:
        """Add what the reading cost the server to what was counted here."""
        effort = sum(self.efforts, Effort(connections=0))
        return replace(
            measures,
            governed_seconds=throttle.governed_seconds,
            rows_scanned=effort.rows_scanned,
            temp_bytes=effort.temp_bytes,
            longest_transaction_ms=effort.longest_transaction_ms,
            connections=effort.connections,
        )

    def _with_ends(self, measures: Measures) -> Measures:
        """Add the rows at the ends of an incremental window."""
        if self.sieve is None:
            return measures
        low, high = self.sieve.low_edge, self.sieve.high_edge
        return replace(measures, low_rows=low.rows, low_ids=low.ids, high_rows=high.rows, high_ids=high.ids)

    def _stage_sidecars(self, tally: Tally) -> dict[str, list[str]]:
        """Put the hash files of the unique columns where the driver finds them: {column: [path, …]}."""
        staged: dict[str, list[str]] = {}
        for place, (name, files) in enumerate(tally.sidecars().items()):
            # By number where it is a column: a column's name may hold what a path cannot.
            index = self.schema.get_field_index(name) if name in self.schema.names else f"together{place}"
            stem = f"_staged/{self.extract.run_id}/unique/{index}-chunk{self.chunk.index}-{self.label}"
            staged[name] = []
            for number, file in enumerate(files):
                self.root.put(f"{stem}-{number}.u128", file.read_bytes())
                staged[name].append(f"{stem}-{number}.u128")
        return staged

    def _stage_profile(self, tally: Tally) -> tuple[str, ...]:
        """Put what was counted for a profile where the driver finds it; () where nobody asked."""
        content = tally.profile
        if content is None:
            return ()
        path = f"_staged/{self.extract.run_id}/profile/chunk{self.chunk.index}-{self.label}.json"
        self.root.put(path, content)
        return (path,)

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        """Make a private scratch folder; remove it, and give memory back, whatever happens."""
        folder = self.scratch / f"{self.extract.run_id}-chunk{self.chunk.index}-{self.label}"
        try:
            with enough_room(self.scratch):
                private_folder(self.scratch)
                private_folder(folder)
                yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            # Arrow keeps freed memory for itself. A worker lives on, and what it keeps counts against its next
            # task.
            pa.default_memory_pool().release_unused()

    def _discard(self, parts: list[Part]) -> None:
        """Remove what was staged; a fault here must not hide the first one, and a sweep finds the rest."""
        try:
            self.root.discard(parts)
        except RivetError as error:
            log.warning("Staged parts of chunk %d could not be removed now: %s", self.chunk.index, error)
