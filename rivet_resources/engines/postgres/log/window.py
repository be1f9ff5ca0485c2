"""One window of pgoutput: from batches of messages to typed changes, in whole transactions, in bounded memory.

Belongs here: which transactions and rows are wanted, what a change is (key changes, unchanged TOAST, truncates),
the envelope. Not here: how the messages are asked for (peek.py).

What `__seq` counts (`cdc.md`, section 3): every insert, update, delete and truncate that the publication sends for
the transaction, whether or not the export captures its table, whether or not it is filtered here. Membership of
the publication is read from the catalog as it was at the change, so a table added to it later, or one captured
by a changed configuration, numbers nothing anew; only another publication would.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rivet_resources.contracts.change_log import BEFORE, ENVELOPE, OP, POS, SEQ, TS, UNCHANGED, Changes
from rivet_resources.engines.postgres.log import messages
from rivet_resources.engines.postgres.log import rows as postgres_rows
from rivet_resources.engines.postgres.log.lsn import MICROS_1970_TO_2000, Mask, Numbers, SnapshotVisibility, lsn_text
from rivet_resources.engines.postgres.log.messages import Bytes, Messages, RelationMessage, TupleCells
from rivet_resources.engines.postgres.log.relations import CapturedRelation, RelationCache
from rivet_resources.engines.postgres.log.rows import LogRows
from rivet_resources.engines.postgres.log.texts import shapes
from rivet_resources.engines.postgres.values import READ
from rivet_resources.engines.shared import cells as batch_cells
from rivet_resources.engines.shared.cells import Special, flagged
from rivet_resources.errors import LogRefused, ValueDoesNotFit

OPS = pa.array(["insert", "update", "delete", "truncate"])
INSERT, UPDATE, DELETE, TRUNCATE = range(4)


@dataclass
class Transaction:
    """The transaction that stands open at the end of a batch."""

    commit: int = 0
    time: int = 0
    changes: int = 0  # of the log, so far
    is_wanted: bool = False
    is_open: bool = False


@dataclass
class TransactionBatch:
    """Decodes one peek. Fed with batches in slot order; knows afterwards where the window ended.

    `after`: transactions that ended at or before it are dropped; `seen`: so are those a copy holds already.
    """

    tables: RelationCache
    seen: SnapshotVisibility
    before: bool
    after: int
    most: int
    kept: int = 0  # changes of ours
    transactions: int = 0  # that held some
    messages: int = 0  # of this peek
    end: int = 0  # end_lsn of the last whole transaction
    committed: int | None = None  # microseconds since 2000, of the last transaction that held changes of ours
    is_full: bool = False  # `most` was reached; nothing behind `end` was given
    open: Transaction = field(default_factory=Transaction)
    relations: dict[int, RelationMessage] = field(default_factory=dict)
    truncated: set[str] = field(default_factory=set)  # tables, as configured
    rest: pa.Array | None = None  # of the batch in which the window became full, for the next window
    _cut: int = 0
    _last_counted: int = 0

    def again(self, after: int) -> None:
        """Begin another peek, which sends everything from the slot's place again."""
        self.after, self.messages, self.open = after, 0, Transaction()
        self.relations.clear()

    def decode(self, array: pa.Array) -> Iterator[Changes]:
        """Yield the changes of one batch; nothing behind the transaction with which the window is full.

        Raises:
            LogRefused: a message is not as the protocol has it.
        """
        try:
            yield from self._decoded(array)
        except (IndexError, UnicodeDecodeError):
            raise messages.malformed_bytes("A message") from None

    def _decoded(self, array: pa.Array) -> Iterator[Changes]:
        batch = messages.split(array)
        self.messages += len(batch)
        for first, last in self._runs(batch):
            # What comes behind the full window waits in `rest`, undecoded: relations behind it are not looked at
            # yet.
            if self.is_full:
                return
            part = Messages(
                batch.buffer, batch.starts[first:last], batch.ends[first:last], batch.kinds[first:last], batch.keep
            )
            yield from self._run(part)
            if self.is_full:
                self.rest = array.slice(first + self._cut)

    def _runs(self, batch: Messages) -> Iterator[tuple[int, int]]:
        """Cut before a relation that changed and around truncates, so that in a run each table has one schema."""
        first, known = 0, dict(self.relations)
        for i in np.nonzero((batch.kinds == messages.RELATION) | (batch.kinds == messages.TRUNCATE))[0].tolist():
            if batch.kinds[i] == messages.TRUNCATE:
                # A truncate stands alone in its run, since it has no row and its place among the rows counts.
                yield from ((a, b) for a, b in ((first, i), (i, i + 1)) if b > a)
                first = i + 1
                continue
            relation = messages.parse_relation(batch.raw(i))
            if known.get(relation.oid, relation) != relation:
                yield first, i
                first = i
            known[relation.oid] = relation
        if first < len(batch):
            yield first, len(batch)

    def _run(self, batch: Messages) -> Iterator[Changes]:
        for i in np.nonzero(batch.kinds == messages.RELATION)[0].tolist():
            relation = messages.parse_relation(batch.raw(i))
            self.relations[relation.oid] = relation
        stamps = _Stamps.of(batch, self)
        if len(batch) == 1 and batch.kinds[0] == messages.TRUNCATE:
            yield from self._truncates(batch, stamps)
            return
        is_row = _is_row(batch.kinds)
        rows = np.nonzero(is_row)[0]
        owners = batch.number(batch.starts[rows] + 1, 4)
        ours = {oid: found for oid in np.unique(owners).tolist() if (found := self._captured_relation(oid)) is not None}
        is_kept = np.zeros(len(batch), bool)
        # Owners are tables, and each row belongs to a transaction; wanted must be both.
        is_kept[rows] = np.isin(owners, np.array(list(ours), np.int64)) & stamps.wanted[stamps.owner[rows]]
        upto = self._close(batch, stamps, is_kept)
        within = is_kept[rows] & (rows < upto)
        for oid, captured in ours.items():
            mine = rows[within & (owners == oid)]
            if len(mine):
                yield self._table(batch, stamps, captured, mine)

    def _captured_relation(self, oid: int) -> CapturedRelation | None:
        relation = self.relations.get(oid)
        if relation is None:
            raise LogRefused(
                f"The log of PostgreSQL has a change of relation {oid} and does not say what that is, behind "
                f"{lsn_text(self.end)}. Report this; nothing behind that place was acknowledged."
            )
        return self.tables.captured(relation)

    def _close(self, batch: Messages, stamps: _Stamps, is_kept: Mask) -> int:
        """Account for the commits of a run; gives the number of messages that belong to the window."""
        commits = np.nonzero(batch.kinds == messages.COMMIT)[0]
        counted = np.cumsum(is_kept)
        enough = commits[self.kept + counted[commits] >= self.most] if len(commits) else commits
        upto = len(batch)
        if len(enough):
            upto, self.is_full = int(enough[0]) + 1, True
            self._cut = upto
            commits = commits[commits < upto]
        if len(commits):
            # Transactions that are sent again end before `after`; the window's end never goes back to them.
            # C: kind, flags (1), commit LSN (8), end LSN (8), time (8). The end is what may be
            # acknowledged: advanced to the commit LSN only, the slot sends the transaction again.
            self.end = max(self.end, int(batch.number(batch.starts[commits[-1:]] + 10, 8)[0]))
        if upto and len(counted):
            self.kept += int(counted[upto - 1])
        holders = np.unique(stamps.owner[:upto][is_kept[:upto]])
        if len(holders):
            distinct = np.unique(stamps.commits[holders])
            self.transactions += len(distinct) - int(distinct[0] == self._last_counted)
            self._last_counted = int(distinct[-1])
            self.committed = int(stamps.times[holders[-1]])
        return upto

    # --- truncates -------------------------------------------------------------------------------

    def _truncates(self, batch: Messages, stamps: _Stamps) -> Iterator[Changes]:
        oids = messages.parse_truncate(batch.raw(0))
        found = [captured for oid in oids if (captured := self._captured_relation(oid)) is not None]
        if not found or not stamps.wanted[stamps.owner[0]]:
            return
        # Counted as one change, whichever number of tables it names.
        self._close(batch, stamps, np.array([True]))
        self.truncated |= {one.table for one in found}
        for captured in {one.table: one for one in found}.values():
            columns = [pa.nulls(1, column.arrow) for column in captured.columns]
            if self.before:
                columns.append(pa.nulls(1, postgres_rows.row_type(captured)))
            yield self._changes(captured, stamps.envelope(np.array([0]), np.array([TRUNCATE]), 1), columns, {})

    # --- rows of one table -----------------------------------------------------------------------

    def _table(self, batch: Messages, stamps: _Stamps, captured: CapturedRelation, rows: Numbers) -> Changes:
        """Type the rows of one table; a change of the key becomes two, in their order."""
        found = LogRows.of(batch, captured, rows)
        moved = found.moved
        codes = np.select([found.kinds == messages.INSERT, found.kinds == messages.UPDATE], [INSERT, UPDATE], DELETE)
        codes[moved] = INSERT
        special: Special = {}
        columns = self._cells(batch.buffer, captured, found.now, special)
        before = self._cells(batch.buffer, captured, found.old, special) if self._wants(found) else []
        envelope = stamps.envelope(rows, codes, 1, unchanged=postgres_rows.name_unchanged(captured, found))
        if self.before:
            columns.append(postgres_rows.before(captured, before, found, is_given=found.has_old & ~moved))
        if moved.any():
            gone = found.at(moved)
            halves = self._cells(batch.buffer, captured, gone.old, special)
            if self.before:
                halves.append(
                    postgres_rows.before(captured, halves[: len(captured.columns)], gone, is_given=gone.has_old)
                )
            first = stamps.envelope(rows[moved], np.full(len(gone.kinds), DELETE), 0)
            # Row i stands at 2i + 1, and the delete half of its changed key at 2i, just before.
            order = np.argsort(np.concatenate([2 * np.nonzero(moved)[0], 2 * np.arange(len(rows)) + 1]), kind="stable")
            envelope = [postgres_rows.join_in_order(a, b, order) for a, b in zip(first, envelope, strict=True)]
            columns = [postgres_rows.join_in_order(a, b, order) for a, b in zip(halves, columns, strict=True)]
        return self._changes(captured, envelope, columns, special)

    def _wants(self, found: LogRows) -> bool:
        return self.before and bool(found.has_old.any())

    def _cells(
        self, buffer: Bytes, captured: CapturedRelation, cells: list[TupleCells], special: Special
    ) -> list[pa.Array]:
        """Type cells as the batch read does: the driver's arrays from texts, then the batch's own readers."""
        if not captured.columns:
            return []
        texts = [messages.gather(buffer, one) for one in cells]
        arrays = [convert(text) for convert, text in zip(captured.converts, texts, strict=True)]
        place = {column.name: i for i, column in enumerate(captured.columns)}
        flags = [shapes(texts[place[column.name]]) for column in flagged(captured.columns)]
        batch = pa.RecordBatch.from_arrays(arrays + flags, [str(i) for i in range(len(arrays) + len(flags))])
        # A cell of the key always fails: with a NULL in its place the change would belong to no row.
        strict = frozenset(captured.columns[i].name for i in captured.key)
        try:
            made, counts = batch_cells.Cells(captured.columns, chunk=0, readers=READ, strict=strict).decode([batch])
        except ValueDoesNotFit as error:
            where = f"in the log behind {lsn_text(max(self.end, self.after))}"
            raise ValueDoesNotFit(str(error).replace("in chunk 0", where)) from None
        for column, kinds in counts.items():
            mine = special.setdefault(column, {})
            for kind, count in kinds.items():
                mine[kind] = mine.get(kind, 0) + count
        return [column.combine_chunks() if column.num_chunks != 1 else column.chunk(0) for column in made.columns]

    def _changes(
        self, captured: CapturedRelation, envelope: list[pa.Array], columns: list[pa.Array], special: Special
    ) -> Changes:
        fields = [*ENVELOPE, *captured.schema]
        if self.before:
            fields.append(pa.field(BEFORE, postgres_rows.row_type(captured)))
        data = pa.Table.from_arrays([*envelope, *columns], schema=pa.schema(fields))
        return Changes(table=captured.table, columns=captured.columns, data=data, special=special)


# --- the envelope --------------------------------------------------------------------------------


def _is_row(kinds: Bytes) -> Mask:
    mask: Mask = (kinds == messages.INSERT) | (kinds == messages.UPDATE) | (kinds == messages.DELETE)
    return mask


@dataclass
class _Stamps:
    """To which transaction each message of a run belongs, and what number its change has."""

    owner: Numbers  # message → index into the next three; 0 is the transaction left open before
    commits: Numbers
    times: Numbers
    wanted: Mask
    ordinals: Numbers  # message → 0-based number of the change within its transaction

    @classmethod
    def of(cls, batch: Messages, window: TransactionBatch) -> _Stamps:
        """Number a run, and leave in the window what the next one must know."""
        state = window.open
        is_change = _is_row(batch.kinds) | (batch.kinds == messages.TRUNCATE)
        changes = np.cumsum(is_change)
        begins = np.nonzero(batch.kinds == messages.BEGIN)[0]
        at = batch.starts[begins]
        # B: kind, LSN of the commit (8), time (8), xid (4).
        commits = np.concatenate([[state.commit], batch.number(at + 1, 8)])
        times = np.concatenate([[state.time], batch.number(at + 9, 8)])
        # The slot may stand behind what is committed here (an advance survives from the server's next checkpoint on).
        fresh = batch.number(at + 1, 8) >= window.after
        wanted = np.concatenate([[state.is_wanted], fresh & ~window.seen.holds(batch.number(at + 17, 4))]).astype(bool)
        # The transaction left open counts on from where the batch before ended.
        base = np.concatenate([[-state.changes], changes[begins]]).astype(np.int64)
        owner = np.searchsorted(np.concatenate([[-1], begins]), np.arange(len(batch)), "right") - 1
        ends = np.nonzero(batch.kinds == messages.COMMIT)[0]
        # The last BEGIN without a COMMIT behind it; a batch with neither goes on with what was open before.
        last_begin = int(begins[-1]) if len(begins) else -1
        is_open = last_begin > int(ends[-1]) if len(ends) else bool(len(begins)) or state.is_open
        window.open = Transaction(
            commit=int(commits[-1]),
            time=int(times[-1]),
            changes=int(changes[-1] - base[-1]),
            is_wanted=bool(wanted[-1]),
            is_open=is_open,
        )
        return cls(owner, commits, times, wanted, changes - base[owner] - 1)

    def envelope(
        self, rows: Numbers, codes: npt.NDArray[np.int_], half: int, *, unchanged: pa.Array | None = None
    ) -> list[pa.Array]:
        """Return the columns every change begins with; `half` 0 is the delete that a change of the key begins with."""
        owner = self.owner[rows]
        return [
            OPS.take(pa.array(codes, pa.int8())).cast(OP.type),
            hexadecimal(self.commits[owner]).cast(POS.type),
            # Odd numbers are changes; the even one before is left for the delete of a
            # changed key, whether there is one or not, so that a second read numbers alike.
            pa.array(2 * self.ordinals[rows] + half, SEQ.type),
            pa.array(self.times[owner] + MICROS_1970_TO_2000).view(TS.type),
            pa.nulls(len(rows), UNCHANGED.type) if unchanged is None else unchanged,
        ]


def hexadecimal(numbers: Numbers) -> pa.Array:
    """Write numbers as 16 lower-case hexadecimal digits; equal neighbours are written once."""
    distinct, index = np.unique(numbers, return_inverse=True)
    return pa.array([f"{number:016x}" for number in distinct.tolist()], pa.string()).take(pa.array(index))
