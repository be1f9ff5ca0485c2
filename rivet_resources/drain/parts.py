"""The files of one window of a log: changes of several tables, shaped, counted, written, staged.

Belongs here: transforms on both images, closing parts by rows, bytes and schema, the Staged of each table. Not here:
the order of effects (`drain.py`), the bytes of a format (`write/formats/`), a part's proof (`write/parts.py`).

Writing has a thread of its own: encoding releases the interpreter, so the log is decoded meanwhile.
"""

from __future__ import annotations

import base64
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources import scratch
from rivet_resources.contracts.change_log import BEFORE, ENVELOPE, POS, SEQ, Changes, change_schema
from rivet_resources.contracts.destination import Root
from rivet_resources.contracts.extract import Extract
from rivet_resources.contracts.parts import Measures, Part
from rivet_resources.contracts.relation import Chunk
from rivet_resources.contracts.source import Page
from rivet_resources.contracts.transform import Transform
from rivet_resources.contracts.types import Column
from rivet_resources.errors import RivetError
from rivet_resources.scratch import enough_room
from rivet_resources.shape.change_envelope import flat
from rivet_resources.shape.shape import EXPORTED_AT, refuse_twice
from rivet_resources.shape.transforms.mask_tags import NO_TAGS, TaggedMasks, masks_by_tag
from rivet_resources.shape.transforms.pipeline import TransformPlan, plan
from rivet_resources.write.measures import Tally
from rivet_resources.write.parts import PartFiles

Batch = tuple[Changes, tuple[Transform, ...]]
# The decoder may be so far ahead, and memory is bounded by it: with one batch, decoding would wait for each write.
WAITING = 2  # batches between the decoder and the writer; each is about `Capture.memory_bytes`


@dataclass
class ChangeShaping:
    """Brings the changes of one table into the schema of its parts; remembers the plan of the last columns."""

    steps: tuple[Transform, ...]
    exported_at: datetime | None
    _columns: tuple[Column, ...] | None = None
    _plan: TransformPlan | None = None

    def take(self, steps: tuple[Transform, ...]) -> None:
        """Go on with these steps: those by tag change with the comments of a table."""
        if steps != self.steps:
            self.steps, self._plan = steps, None

    def shape(self, changes: Changes) -> pa.Table:
        """Shape one batch; both images go through the steps, so that a mask hides the row before as well.

        Raises:
            TransformError: a step does not fit the columns the log has now.
            RowRefused: cells cannot be transformed.
        """
        names = [column.name for column in changes.columns]
        rows = self._apply_steps(changes.data.select(range(len(ENVELOPE), len(ENVELOPE) + len(names))), changes.columns)
        columns = [*changes.data.columns[: len(ENVELOPE)], *rows.columns]
        fields = [*rows.schema]
        if BEFORE in changes.data.schema.names:
            before = self._before(changes.data.column(BEFORE), changes.columns)
            columns.append(before)
            fields.append(pa.field(BEFORE, before.type))
        if self.exported_at is not None:
            instant = pa.scalar(self.exported_at, EXPORTED_AT.type)
            # One instant for all rows of a window, whichever batch they came in.
            columns.append(pa.chunked_array([pa.repeat(instant, rows.num_rows)]))
            fields.append(EXPORTED_AT)
        schema = change_schema(pa.schema(fields))
        refuse_twice(schema.names, where=f"Table {changes.table}")
        return pa.Table.from_arrays(columns, schema=schema)

    def _apply_steps(self, rows: pa.Table, columns: tuple[Column, ...]) -> pa.Table:
        schema = pa.schema([column.field.with_nullable(True) for column in columns])
        # Changes carry keys alone in deletes and NULL for unchanged values, so NOT NULL of the catalog holds for no
        # image.
        rows = pa.Table.from_arrays(rows.columns, schema=schema)
        if not self.steps:
            return rows
        # Planned per list of columns and not per batch: an ALTER in mid-log brings other columns, and a plan of the
        # old ones would put cells under wrong names.
        if self._plan is None or self._columns != columns:
            self._plan, self._columns = plan(self.steps, schema), columns
        return self._plan.apply(rows)

    def _before(self, image: pa.ChunkedArray, columns: tuple[Column, ...]) -> pa.ChunkedArray:
        """Send the row before through the same steps; a change without one keeps none."""
        if not self.steps:
            return image
        whole = image.combine_chunks()
        parts = whole.flatten() if not isinstance(whole, pa.ChunkedArray) else whole.chunk(0).flatten()
        shaped = self._apply_steps(pa.Table.from_arrays(parts, names=[column.name for column in columns]), columns)
        arrays = [column.combine_chunks() for column in shaped.columns]
        arrays = [each.chunk(0) if isinstance(each, pa.ChunkedArray) else each for each in arrays]
        # The mask of the image is kept: a change without a row before would otherwise get one of NULLs, which means
        # something else.
        struct = pa.StructArray.from_arrays(arrays, fields=list(shaped.schema), mask=whole.is_null())
        return pa.chunked_array([struct])


@dataclass
class _Order:
    """Watches that changes of a table arrive in the order of their log."""

    last: tuple[str, int] | None = None

    def disorder(self, data: pa.Table) -> int:
        """Count rows whose (__pos, __seq) is not above that of the row before."""
        pos, seq = (data.column(name).combine_chunks() for name in (POS.name, SEQ.name))
        low, high = (slice(None, -1), slice(1, None))
        # As text: positions are hexadecimal of fixed width, so the order of letters is the order of the log.
        same, later = pc.equal(pos[high], pos[low]), pc.greater(pos[high], pos[low])
        fine = pc.or_(later, pc.and_(same, pc.greater(seq[high], seq[low])))
        count = len(fine) - (pc.sum(fine).as_py() or 0)
        first, end = (pos[0].as_py(), seq[0].as_py()), (pos[-1].as_py(), seq[-1].as_py())
        # Between batches too: the last row of the one before is remembered.
        count += self.last is not None and first <= self.last
        self.last = end
        return int(count)


@dataclass
class _TableParts:
    """What one table has in the window so far; used by the writing thread only."""

    number: int  # among the tables; keeps local files apart
    extract: Extract
    shaping: ChangeShaping
    root: Root
    order: _Order = field(default_factory=lambda: _Order())
    columns: tuple[Column, ...] = ()
    schema: pa.Schema | None = None
    writer: PartFiles | None = None
    tally: Tally | None = None
    parts: list[tuple[Part, pa.Schema]] = field(default_factory=list)
    measures: Measures = field(default_factory=Measures)
    tagged: TaggedMasks = NO_TAGS  # columns that some batch of the window had masked, masks of the last one

    def write(self, table: pa.Table, special: Mapping[str, Mapping[str, int]], *, prefix: str, folder: Path) -> None:
        if self.writer is None:
            # At the first batch of a part: a type that the format cannot hold stops the window before a file
            # exists.
            self.extract.format.check_schema(table.schema, export=self.extract.export)
            self.schema = table.schema
            extract = replace(self.extract, part_prefix=prefix)
            label = f"{prefix}-{self.number}"
            chunk = Chunk(index=0, reader="cursor", relation="")
            self.writer = PartFiles(extract, chunk, schema=table.schema, root=self.root, folder=folder, label=label)
            self.tally = Tally(table.schema, scratch=folder)
        assert self.tally is not None
        self.tally.add(Page(table, special, statement_ms=0.0))
        self.writer.write(table)

    def close(self) -> None:
        """Finish the part that is open, prove it and stage it."""
        if self.writer is None or self.tally is None or self.schema is None:
            return
        self.parts += [(part, self.schema) for part in self.writer.finish()]
        self.measures += self.tally.result()
        # The next batch opens a new part, with the schema that then holds.
        self.writer = self.tally = None


@dataclass(frozen=True)
class TableWindow:
    """One table's share of a window, staged: its parts, the newest schema they have, what was counted."""

    parts: tuple[Part, ...]
    schema: pa.Schema
    columns: tuple[Column, ...]
    measures: Measures
    tagged: TaggedMasks = NO_TAGS  # columns that any of the parts has masked, masks of the newest schema


class WindowParts:
    """Writes the changes of one window; `close` gives what is staged, leaving the block with an error leaves nothing.

    Args:
        tables: table as configured → the extract its parts are named by, and its root.
        start: the position the window starts from; parts are named by it.
        shape: a last change of form, told the table's name.
        after: by table, changes up to this `__pos` are published already where nothing can be replaced, and left out.
    """

    def __init__(
        self,
        tables: Mapping[str, tuple[Extract, Root]],
        *,
        start: str,
        rows: int,
        size_bytes: int,
        scratch: Path,
        shape: Callable[[pa.Table, str], pa.Table] | None = None,
        after: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.changes = 0
        self.size_bytes = 0  # of changes as they came, in memory
        self.disorder = 0  # rows that do not stand above the row before in their table; 0 is what must be
        self._tables = {
            name: _TableParts(number, extract, ChangeShaping(extract.transforms, extract.meta.exported_at), root)
            for number, (name, (extract, root)) in enumerate(tables.items())
        }
        self._shape, self._after = shape, after
        self._start, self._rows, self._bytes, self._scratch = start, rows, size_bytes, scratch
        self._part, self._in_part, self._bytes_in_part = 0, 0, 0
        # Bounded: when the writer cannot follow, the decoder waits in `_put`, and the server is not asked for more.
        self._queue: queue.Queue[Batch | None] = queue.Queue(WAITING)
        self._fault: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()  # Python 3.11 takes a thread whose `join` was interrupted for ended

    def add(self, changes: Changes, steps: tuple[Transform, ...]) -> None:
        """Take one batch, and the steps that its rows go through.

        Raises:
            RivetError: what writing an earlier batch said.
        """
        if changes.data.num_rows == 0:
            return
        if self._thread is None:
            # A daemon: an interpreter that must end is not held up by a write to a destination that hangs.
            self._thread = threading.Thread(target=self._work, name="rivet-change-parts", daemon=True)
            self._thread.start()
        self.changes += changes.data.num_rows
        self.size_bytes += changes.data.nbytes
        self._put((changes, steps))

    def close(self) -> dict[str, TableWindow]:
        """Finish all parts: {table as configured: what it has}; tables without a change are not there.

        Raises:
            RivetError: what writing said.
        """
        if self._thread is not None:
            self._put(None)
            # Not `join`: an interrupt during it would make the thread look ended, and its parts would be discarded
            # while it writes.
            self._ended.wait()
        self._raise()
        return {name: _window(table) for name, table in self._tables.items() if table.parts}

    def abandon(self) -> None:
        """End the thread and remove what was staged; a fault here must not hide the first one."""
        thread, self._thread = self._thread, None
        if thread is not None and not self._ended.is_set():
            # What still waits in the queue is passed over.
            self._fault = self._fault or RuntimeError("abandoned")
            # The queue may be full, and the thread in the middle of a write: the word to end is offered until it is
            # taken or no longer needed.
            while not self._ended.wait(0.1):
                with suppress(queue.Full):
                    self._queue.put(None, timeout=0.1)
        # The thread has ended by now, or never began, so the lists do not change any more: of closed parts, and of
        # those that the open writer staged.
        for table in self._tables.values():
            staged = [part for part, _ in table.parts] + (table.writer.staged if table.writer else [])
            with suppress(RivetError):
                table.root.discard(staged)

    # --- the writing thread ----------------------------------------------------------------------

    def _work(self) -> None:
        """Write until told to end; after a fault go on taking batches, so that nobody waits for us."""
        try:
            self._work_through()
        finally:
            self._ended.set()

    def _work_through(self) -> None:
        while True:
            batch = self._queue.get()
            try:
                if batch is None:
                    if self._fault is None:
                        self._roll()
                    return
                if self._fault is None:
                    self._write(*batch)
            except BaseException as error:
                # Told by the thread that reads the log, at its next batch.
                self._fault = error
                if batch is None:
                    return

    def _write(self, changes: Changes, steps: tuple[Transform, ...]) -> None:
        """Write a batch in pieces, so that a part ends where its limit is."""
        table = self._tables[changes.table]
        # Left out before anything is counted: these rows are in the topic, from the run that died before its
        # checkpoint.
        if after := self._after.get(changes.table):
            changes = replace(changes, data=changes.data.filter(pc.greater(changes.data.column(POS.name), after)))
            if changes.data.num_rows == 0:
                return
        # Judged on the rows as the log gave them, before anything of ours touches them.
        self.disorder += table.order.disorder(changes.data)
        table.shaping.take(steps)
        table.tagged = masks_by_tag(steps).after(table.tagged)
        shaped = table.shaping.shape(changes)
        if self._shape is not None:
            shaped = self._shape(shaped, changes.table)
        shaped = flat(shaped, table.extract.format)
        table.columns = changes.columns
        # All tables roll together, so that parts of one number hold the same stretch of the log.
        if table.writer is not None and table.schema != shaped.schema:
            self._roll()
        done = 0
        while done < shaped.num_rows:
            # Cut at the limit and not after the batch: a batch of a large transaction may be many parts long.
            piece = shaped.slice(done, self._rows - self._in_part)
            # Counted of the whole batch, so they are told with its first piece and no other.
            special = changes.special if done == 0 else {}
            table.write(piece, special, prefix=f"cdc-{self._start}-{self._part:06d}", folder=self._scratch)
            done += piece.num_rows
            self._in_part += piece.num_rows
            self._bytes_in_part += piece.nbytes
            if self._in_part >= self._rows or self._bytes_in_part >= self._bytes:
                self._roll()

    def _roll(self) -> None:
        """Close the open part of every table."""
        for table in self._tables.values():
            table.close()
        self._part += 1
        self._in_part = self._bytes_in_part = 0

    # --- the reading thread ----------------------------------------------------------------------

    def _put(self, batch: Batch | None) -> None:
        # A second at a time, so that a writer that died is noticed: a put without a limit would wait for it for
        # ever.
        while True:
            self._raise()
            try:
                return self._queue.put(batch, timeout=1)
            except queue.Full:
                if self._thread is None or not self._thread.is_alive():
                    self._raise()
                    raise RuntimeError("the writer of change parts ended without a word") from None

    def _raise(self) -> None:
        if self._fault is not None:
            raise self._fault


def _window(table: _TableParts) -> TableWindow:
    """Join one table's parts; those of an older schema carry it themselves."""
    newest = table.parts[-1][1]
    parts = tuple(
        # The manifest has one schema, the newest; a part that was closed before an ALTER brings its own.
        part if schema == newest else replace(part, schema=base64.b64encode(schema.serialize().to_pybytes()).decode())
        for part, schema in table.parts
    )
    return TableWindow(parts, newest, table.columns, table.measures, table.tagged)


@contextmanager
def scratch_of(run_id: str, base: Path) -> Iterator[Path]:
    """Make a private folder for the parts being written, and remove it whatever happens.

    Raises:
        DiskFull: there is no room left in it.
        DestinationError: it cannot be made.
    """
    try:
        with enough_room(base), scratch.held(base / f"{scratch.PREFIX}{run_id}-drain") as folder:
            yield folder
    finally:
        # Windows follow one another in one process, and freed pages of this one would count against the next.
        pa.default_memory_pool().release_unused()
