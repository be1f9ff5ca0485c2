"""Changes out of the rows of a SQL Server change table: which rows are one change, their numbers, what they lack.

Belongs here: pairing the halves of updates, `__seq`, key changes, cells that the log left out. Not here: statements
(sql.py), how one cell is read (sqlserver/values.py).

`__seq` is 2 × the change's place in its commit + 1. A place counts the rows of this one capture instance in the
order (seqval, operation), both halves of an update: a dense rank of these, as long as no two rows share them. So it
depends on the instance and on nothing else: neither on which tables a drain captures, nor on where a window or a
batch is cut, nor on whether images before are wanted. Two tables may have the same (`__pos`, `__seq`). Rows that do
share (seqval, operation), which one statement on many rows may write, are put in the order of their cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources.contracts.change_log import BEFORE, ENVELOPE, TS, Changes
from rivet_resources.contracts.types import Column
from rivet_resources.engines.shared.cells import Cells, storage
from rivet_resources.engines.sqlserver.log.sql import ENVELOPE_ITEMS, LSN_BYTES, position_at
from rivet_resources.engines.sqlserver.log.tables import CapturedTable
from rivet_resources.engines.sqlserver.values import arrange, readers, wire_order
from rivet_resources.errors import LogRefused

Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]

DELETE, INSERT, UPDATE_BEFORE, UPDATE_AFTER = 1, 2, 3, 4
WORDS = pa.array(["", "delete", "insert", "", "update"])
HEAD = len(ENVELOPE_ITEMS)
MARKS = 2 * LSN_BYTES  # bytes of (start_lsn, seqval)
# Never written into the change table by deletes and before an update (Microsoft, "cdc.<capture_instance>_CT",
# "Large object data types"); other large ones are missing before an update that leaves them alone.
NEVER_BEFORE = frozenset({"text", "ntext", "image"})


@dataclass
class Decoder:
    """Turns the batches of one table's window into changes, in order. Not shared between threads."""

    table: CapturedTable
    offset_minutes: int
    before: bool = False
    driver: str = "mssql-python"
    commits: set[bytes] = field(default_factory=set)
    newest: Any = None  # commit time of the last change
    _held: pa.RecordBatch | None = None  # the rows of the last seqval: more of them may follow
    _commit: bytes = b""
    _place: int = 0

    def __post_init__(self) -> None:
        self._order = wire_order(self.table.columns)
        self._cells = Cells(self.table.columns, chunk=0, readers=readers(self.driver))
        self._long = [c for c in self.table.columns if c.fact("long")]
        self._watched = [*self.table.key, *(c.name for c in self._long)]  # columns whose bits of the mask we need

    def changes(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Changes]:
        """Decode all batches of a window.

        Raises:
            LogRefused: an update without its other half, or halves that cannot be told apart.
            ValueDoesNotFit: by the policy of the column.
        """
        # One batch behind: whether the last change of a batch is whole shows only when the next one is there.
        waiting = next(batches, None)
        for following in batches:
            if waiting is not None and following.num_rows:
                rows = _join(self._held, waiting)
                end = _last_group(_marks(rows))
                # A batch may end between the two halves of an update.
                self._held = rows.slice(end)
                yield from self._decoded(rows.slice(0, end))
                waiting = following
        if waiting is not None:
            rows, self._held = _join(self._held, waiting), None
            yield from self._decoded(rows)

    # --- one run of whole changes ----------------------------------------------------------------

    def _decoded(self, rows: pa.RecordBatch) -> Iterator[Changes]:
        if not rows.num_rows:
            return
        rows = self._order_ties(rows)
        marks, operations = _marks(rows), rows.column(2).to_numpy(zero_copy_only=False).astype(np.int64)
        self._refuse_halves(marks, operations)
        places = self._number_rows(marks, operations)
        touched = self._touched_by_column(rows)
        wanted = (operations != UPDATE_BEFORE) | self._wants_before(operations, touched)
        picked = np.flatnonzero(wanted)
        items = rows.select(range(HEAD, rows.num_columns)).take(pa.array(picked))
        table, special = self._cells.decode([arrange(items, self._order)])
        part = _Part(
            table=table.combine_chunks(),
            marks=marks[picked],
            operations=operations[picked],
            sequence=2 * places[picked] + 1,
            times=_utc(rows.column(4).take(pa.array(picked)), self.offset_minutes),
            touched={name: bits[picked] for name, bits in touched.items()},
        )
        data = part.changes(self.table, self._long, before=self.before)
        self.newest = pc.max(data.column("__ts")).as_py() or self.newest
        yield Changes(self.table.table, self.table.columns, data, special)

    def _order_ties(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Put rows that share (seqval, operation) into one order, whatever order the server gave them."""
        marks = _marks(rows)
        operations = rows.column(2).to_numpy(zero_copy_only=False)
        same = np.all(marks[1:] == marks[:-1], axis=1)
        if not np.any(same & (operations[1:] == operations[:-1])):
            return rows
        starts = np.flatnonzero(np.concatenate([[True], ~same]))
        ends = [*starts[1:].tolist(), rows.num_rows]
        order: list[int] = []
        for start, end in zip(starts.tolist(), ends, strict=True):
            # An update's two halves, or a delete and an insert, have their order by what they are.
            is_clear = end - start < 2 or (end - start == 2 and operations[start] != operations[start + 1])
            order += range(start, end) if is_clear else self._told_apart(rows, operations, range(start, end))
        return rows.take(pa.array(order))

    def _told_apart(self, rows: pa.RecordBatch, operations: npt.NDArray[Any], group: range) -> list[int]:
        """Order the rows of one seqval, each update's halves side by side."""
        names = self.table.key or tuple(c.name for c in self.table.columns)
        cells = arrange(rows.select(range(HEAD, rows.num_columns)), self._order)
        places = [i for i, c in enumerate(self.table.columns) if c.name in names]
        by = {row: [str(cells.column(place)[row].as_py()) for place in places] for row in group}
        of = {op: sorted((r for r in group if operations[r] == op), key=by.__getitem__) for op in (1, 2, 3, 4)}
        halves = list(zip(of[UPDATE_BEFORE], of[UPDATE_AFTER], strict=False))
        # Without a key nothing tells which half belongs to which; that does not matter where images before are not
        # wanted.
        is_clear = all(by[a] == by[b] for a, b in halves) if self.table.key else not self.before
        if len(of[UPDATE_BEFORE]) != len(of[UPDATE_AFTER]) or (len(halves) > 1 and not is_clear):
            raise self._refusal(rows, group.start, "several updates of one sequence value whose halves do not match")
        return [*of[DELETE], *of[INSERT], *(row for pair in halves for row in pair)]

    def _refuse_halves(self, marks: npt.NDArray[np.uint8], operations: Numbers) -> None:
        """Refuse an update without its row before: nothing would tell whether its key changed."""
        pairs = (operations[:-1] == UPDATE_BEFORE) & (operations[1:] == UPDATE_AFTER)
        pairs &= np.all(marks[1:] == marks[:-1], axis=1)
        is_paired = np.zeros(len(operations), dtype=bool)
        is_paired[:-1] |= pairs
        is_paired[1:] |= pairs
        lone = np.flatnonzero(~is_paired & (operations >= UPDATE_BEFORE))
        if len(lone):
            raise self._refused_at(marks[int(lone[0])], "half of an update")

    def _refusal(self, rows: pa.RecordBatch, row: int, what: str) -> LogRefused:
        return self._refused_at(_marks(rows)[row], what)

    def _refused_at(self, mark: npt.NDArray[np.uint8], what: str) -> LogRefused:
        lsn = position_at(int.from_bytes(mark[:LSN_BYTES].tobytes(), "big")).text
        return LogRefused(
            f"Capture instance {self.table.instance.name} holds {what} at {lsn}; reading on could lose a change. "
            f"Nothing behind it was acknowledged. Take a new snapshot of {self.table.table}: "
            f"`rivet state reset`, then `initial: snapshot`."
        )

    def _number_rows(self, marks: npt.NDArray[np.uint8], operations: Numbers) -> Numbers:
        """Return each row's place in its commit, and remember where the last one stands."""
        lsns = marks[:, :LSN_BYTES]
        weights = np.ones(len(operations), dtype=np.int64)
        # So that a place does not depend on reading these rows.
        weights[operations == UPDATE_BEFORE] = 0
        weights[operations == UPDATE_AFTER] = 2
        counted = np.cumsum(weights)
        begins = np.ones(len(operations), dtype=bool)
        begins[1:] = np.any(lsns[1:] != lsns[:-1], axis=1)
        # Each commit counts from its own first row.
        base = np.where(begins, counted - weights, 0)
        if lsns[0].tobytes() == self._commit:
            # The commit goes on from the batch before: its places go on as well.
            base[0] = -self._place
            begins[0] = True
        starts = np.maximum.accumulate(np.where(begins, np.arange(len(begins)), 0))
        places: Numbers = counted - base[starts]
        self.commits.update(lsn.tobytes() for lsn in lsns[begins])
        self._commit, self._place = lsns[-1].tobytes(), int(places[-1])
        return places

    # --- the update mask -------------------------------------------------------------------------

    def _touched_by_column(self, rows: pa.RecordBatch) -> dict[str, Flags]:
        """Return, by column of interest, in which rows the update set it; no mask sets all."""
        if not self._watched:
            return {}
        width = (max(self.table.ordinals.values()) + 7) // 8
        masks = [
            b"\xff" * width if mask is None else mask.rjust(width, b"\0")[-width:]
            for mask in rows.column(3).to_pylist()
        ]
        bits = np.frombuffer(b"".join(masks), dtype=np.uint8).reshape(-1, width)
        found = {}
        for name in self._watched:
            # The last byte has the first eight columns.
            byte, bit = divmod(self.table.ordinals[name] - 1, 8)
            found[name] = (bits[:, width - 1 - byte] >> bit & 1).astype(bool)
        return found

    def _wants_before(self, operations: Numbers, touched: dict[str, Flags]) -> Flags:
        """Return which rows before an update are needed: all, or those of updates that may have changed the key."""
        is_before: Flags = operations == UPDATE_BEFORE
        if self.before:
            return is_before
        may_move = np.zeros(len(operations), dtype=bool)
        for name in self.table.key:
            may_move |= touched[name]
        return is_before & may_move


@dataclass
class _Part:
    """Typed rows, halves of updates side by side where the half before was kept."""

    table: pa.Table
    marks: npt.NDArray[np.uint8]
    operations: Numbers
    sequence: Numbers
    times: pa.Array
    touched: dict[str, Flags]

    def changes(self, captured: CapturedTable, long: Sequence[Column], *, before: bool) -> pa.Table:
        """Put the envelope before the rows; a changed key is a delete and an insert."""
        halves = np.flatnonzero(self.operations == UPDATE_BEFORE)
        moved = halves[self._has_moved_key(captured.key, halves)]
        # A copy: which rows are halves is still asked of the numbers as they came.
        words = self.operations.copy()
        words[moved], words[moved + 1] = DELETE, INSERT
        # The even number before a change's own is kept free for this half.
        self.sequence[moved] = self.sequence[moved + 1] - 1
        shown = np.flatnonzero(words != UPDATE_BEFORE)
        pick = pa.array(shown)
        envelope = [
            WORDS.take(pa.array(words[shown])),
            _hex(self.marks[shown, :LSN_BYTES]),
            pa.array(self.sequence[shown]),
            self.times.take(pick),
            self._name_unchanged(long).take(pick),
        ]
        data = self.table.take(pick)
        table = pa.Table.from_arrays([*envelope, *data.columns], schema=pa.schema([*ENVELOPE, *data.schema]))
        if not before:
            return table
        images = self._images(words, long)[shown]
        is_known = words[shown] != INSERT
        # Row 0 stands in where there is no image; the mask hides it.
        rows = self._fill_unchanged(long).take(pa.array(np.where(is_known, images, 0)))
        struct = pa.StructArray.from_arrays(
            [_one(column) for column in rows.columns], fields=list(rows.schema), mask=pa.array(~is_known)
        )
        return table.append_column(pa.field(BEFORE, struct.type), struct)

    def _has_moved_key(self, key: Sequence[str], halves: Numbers) -> Flags:
        """Return which updates changed their key."""
        found = np.zeros(len(halves), dtype=bool)
        for name in key if len(halves) else ():
            cells = storage(_one(self.table.column(name)))
            old, new = cells.take(pa.array(halves)), cells.take(pa.array(halves + 1))
            found |= pc.fill_null(pc.not_equal(old, new), False).to_numpy(zero_copy_only=False)
            found |= pc.not_equal(old.is_null(), new.is_null()).to_numpy(zero_copy_only=False)
        return found

    def _name_unchanged(self, long: Sequence[Column]) -> pa.Array:
        """Name, row by row, the columns whose cell is NULL because the log left it out."""
        missing = {c.name: found for c in long if (found := self._missing(c)).any()}
        if not missing:
            return pa.nulls(len(self.operations), ENVELOPE[4].type)
        lists = [[name for name, rows in missing.items() if rows[i]] or None for i in range(len(self.operations))]
        return pa.array(lists, ENVELOPE[4].type)

    def _missing(self, column: Column) -> Flags:
        is_null = _one(self.table.column(column.name)).is_null().to_numpy(zero_copy_only=False)
        is_half = self.operations >= UPDATE_BEFORE
        left_out = is_half & ~self.touched[column.name]
        if column.fact("base") in NEVER_BEFORE:
            left_out |= (self.operations == DELETE) | (self.operations == UPDATE_BEFORE)
        missing: Flags = is_null & left_out
        return missing

    # --- images before ---------------------------------------------------------------------------

    def _images(self, words: Numbers, long: Sequence[Column]) -> Numbers:
        """Return, for each row, the row that holds what was before: an update's other half, a delete's own."""
        own = np.arange(len(words))
        return np.where(words == UPDATE_AFTER, own - 1, own)

    def _fill_unchanged(self, long: Sequence[Column]) -> pa.Table:
        """Take what an update left alone from the row after it, where the row before lacks it."""
        table = self.table
        for column in long:
            # The log leaves a large value out of the row before when the update left it alone: it is then what it
            # is now.
            gaps = (self.operations == UPDATE_BEFORE) & ~self.touched[column.name]
            if gaps.any():
                source = np.arange(len(gaps)) + gaps
                place = table.schema.get_field_index(column.name)
                table = table.set_column(place, table.field(place), table.column(place).take(pa.array(source)))
        return table


# --- arrays --------------------------------------------------------------------------------------


def _join(held: pa.RecordBatch | None, batch: pa.RecordBatch) -> pa.RecordBatch:
    if held is None or not held.num_rows:
        return batch
    return pa.Table.from_batches([held, batch]).combine_chunks().to_batches()[0]


def _marks(rows: pa.RecordBatch) -> npt.NDArray[np.uint8]:
    """Return (start_lsn, seqval) of each row as bytes, which compare as the server compares them."""
    # As bytes: ten of them are compared like one big-endian number.
    both = [np.frombuffer(b"".join(rows.column(i).to_pylist()), dtype=np.uint8).reshape(-1, LSN_BYTES) for i in (0, 1)]
    return np.concatenate(both, axis=1)


def _last_group(marks: npt.NDArray[np.uint8]) -> int:
    """Find where the rows of the last (start_lsn, seqval) begin."""
    differs = np.flatnonzero(np.any(marks[1:] != marks[:-1], axis=1))
    return int(differs[-1]) + 1 if len(differs) else 0


def _hex(lsns: npt.NDArray[np.uint8]) -> pa.Array:
    """Write LSNs as 20 hexadecimal digits."""
    digits = np.stack([lsns >> 4, lsns & 15], axis=2).reshape(len(lsns), 2 * LSN_BYTES)
    texts = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)[digits]
    offsets = np.arange(len(lsns) + 1, dtype=np.int32) * 2 * LSN_BYTES
    return pa.StringArray.from_buffers(len(lsns), pa.py_buffer(offsets.tobytes()), pa.py_buffer(texts.tobytes()))


def _utc(times: pa.Array, offset_minutes: int) -> pa.Array:
    """Take the server's local times to UTC."""
    offset = pa.scalar(offset_minutes * 60_000_000, pa.duration("us"))
    return pc.subtract(times.cast(pa.timestamp("us")), offset).cast(TS.type)


def _one(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
