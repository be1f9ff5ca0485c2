"""One window after the other: groups gathered, decoded together, cut at the transaction that reaches the limit.

Belongs here: batches of bounded size, where a window ends, what is kept for the next one. Not here: events
(transactions.py), groups that wait (pending.py), opening a dump (log.py).

How many rows an event holds is only known once it is decoded, so a few transactions more than asked may be read; they
wait, undecoded, for the next window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import numpy as np

from rivet_resources.contracts.change_log import Changes
from rivet_resources.engines.mysql.binlog.buffer import Buffer
from rivet_resources.engines.mysql.binlog.gtid import GtidSet, runs
from rivet_resources.engines.mysql.binlog.pending import PendingEvents, first_behind
from rivet_resources.engines.mysql.binlog.position import BinlogPosition
from rivet_resources.engines.mysql.binlog.rows import RowsEvent
from rivet_resources.engines.mysql.binlog.tables import Schema, Stamped, TableMaps
from rivet_resources.engines.mysql.binlog.transactions import EventGroup, Groups

# Decoding takes several times its input. Small pieces keep it well below `Capture.memory_bytes` in all, and give the
# thread that writes something to do early; 2, 8 and 16 MB were 10 to 30 % slower end to end (measured 2026-11).
PIECES, LARGEST_PIECE = 4, 4 << 20
MOST_GROUPS = 100_000  # that wait to be decoded, most of them without a row of ours
FIRST_GUESS = 48  # bytes of a row in the log, until some were decoded
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class WindowTally:
    """What a window has so far."""

    most: int
    changes: int = 0
    transactions: int = 0
    committed_us: int | None = None
    is_full: bool = False

    @property
    def committed_at(self) -> datetime | None:
        """Return the commit time of the last transaction that held a change of ours."""
        return None if self.committed_us is None else EPOCH + timedelta(microseconds=self.committed_us)


@dataclass
class Windows:
    """The stream of one dump, cut into windows. `at` is behind the last group that was given out whole."""

    groups: Groups
    tables: TableMaps
    at: BinlogPosition
    memory_bytes: int
    gtids: GtidSet | None
    _pending: PendingEvents = field(default_factory=PendingEvents)
    _large: EventGroup | None = None  # behind what is pending
    _row_bytes: float = FIRST_GUESS
    _stream: Iterator[EventGroup] | None = None

    @property
    def piece(self) -> int:
        """Return how many bytes of events are decoded at a time."""
        return max(1, min(LARGEST_PIECE, self.memory_bytes // PIECES))

    def until(self, upto: BinlogPosition, tally: WindowTally) -> Iterator[Changes]:
        """Yield changes until the limit is reached, or a group ends at or behind `upto`, or the log ends."""
        begun, last = self.at.order, upto.order
        yield from self._rest(upto, tally)
        if tally.is_full or self.at.order >= last:
            return
        self._stream = self._stream or self.groups.each()
        file, number = "", 0
        most_bytes, most_events = self._room(tally)
        for group in self._stream:
            if group.file != file:
                file, number = group.file, group.end.number
            here = (number, group.offset)
            # Ends at or before our place: the window before gave it out.
            if here <= begun:
                continue
            rows = group.rows
            # As is all that went to a file.
            if rows is not None and rows.size >= PIECES * self.piece:
                self._large = group
                # First everything that stands before it in the log: changes are yielded in the order of their
                # commits.
                yield from self._rest(upto, tally)
                most_bytes, most_events = self._room(tally)
            # Nothing of ours in it and nothing waiting before it: the position moves on without a batch. On
            # a busy server whose tables of ours are quiet nearly every group is so.
            elif rows is None and group.truncated is None and not self._pending.ends:
                self._pass_groups([group.gtid], group.end)
            else:
                pending = self._pending
                pending.add(group)
                is_much = pending.size >= most_bytes or pending.count >= most_events
                # A truncate ends what may be decoded together: it has to stand behind the rows before it, and
                # before those after it.
                if is_much or group.truncated is not None or len(pending.ends) >= MOST_GROUPS:
                    yield from self._flush(upto, tally)
                    most_bytes, most_events = self._room(tally)
            if tally.is_full:
                return
            if here >= last:
                break
        yield from self._flush(upto, tally)

    def _room(self, tally: WindowTally) -> tuple[float, int]:
        """Return at how many bytes, or events, what is pending may fill the window, or a piece."""
        changes = tally.most - tally.changes
        return min(self.piece, changes * self._row_bytes), changes

    def _pass_groups(self, gtids: Sequence[tuple[object, int] | None], end: BinlogPosition) -> None:
        """Count groups as given out."""
        self.at = end
        known = self.gtids
        for source, first, last in runs(gtids) if known is not None else ():
            # Of a form that we do not write; from here on no set is recorded.
            if known is None or source is None:
                self.gtids = None
                return
            known.add(source, first, last)

    # --- decoding --------------------------------------------------------------------------------

    def _rest(self, upto: BinlogPosition, tally: WindowTally) -> Iterator[Changes]:
        """Yield what waits, a large transaction last."""
        yield from self._flush(upto, tally)
        if self._large is not None and not tally.is_full and self.at.order < upto.order:
            group, self._large = self._large, None
            yield from self._in_pieces(group, tally)

    def _flush(self, upto: BinlogPosition, tally: WindowTally) -> Iterator[Changes]:
        """Decode what is pending, up to the transaction that fills the window or ends at `upto`; the rest waits."""
        pending, self._pending = self._pending, PendingEvents()
        count = len(pending.ends)
        if not count:
            return
        stamped = Stamped(pending.keys(), pending.committed)
        decoded = [self.tables.decoded(schema, events, stamped) for schema, events in pending.events.values()]
        counts = np.zeros(count, np.int64)
        for _, transactions in decoded:
            counts += np.bincount(transactions, minlength=count)
        total = int(counts.sum())
        if total:
            # What a row came to in bytes lately tells how many events the next piece may take; how many rows an
            # event has shows only when it is decoded.
            self._row_bytes = max(1.0, pending.size / total)
        # A truncate is a change, too, and counts for the limit.
        counts[list(pending.truncated)] += 1
        taken = _take_groups(counts[: pending.until(upto)], tally)
        for (schema, events), (changes, transactions) in zip(pending.events.values(), decoded, strict=True):
            rows = int(np.searchsorted(transactions, taken))
            # Cells of the next window must not be counted here.
            if rows < len(transactions) and changes.special:
                changes, _ = self.tables.decoded(schema, events[: first_behind(events, taken)], stamped)
            if rows:
                yield replace(changes, data=changes.data.slice(0, rows))
        for index, schema in pending.truncated.items():
            if index < taken:
                yield self.tables.truncation(schema, BinlogPosition(*pending.ends[index]).key, pending.committed[index])
        if changed := np.flatnonzero(counts[:taken]).tolist():
            tally.transactions += len(changed)
            tally.committed_us = pending.committed[changed[-1]]
        self._pass_groups(pending.gtids[:taken], BinlogPosition(*pending.ends[taken - 1]))
        # Undecoded, since it is decoded with what the next window adds to it.
        self._pending = pending.behind(taken)

    def _in_pieces(self, group: EventGroup, tally: WindowTally) -> Iterator[Changes]:
        """Decode a large transaction piece by piece."""
        assert group.rows is not None
        stamped = Stamped([group.end.key], [group.committed_us])
        for piece in _pieces(group.rows, self.piece):
            for schema, events in piece:
                changes, _ = self.tables.decoded(schema, events, stamped)
                # The limit is not looked at between pieces: a checkpoint stands only at a commit, so a transaction
                # is never parted.
                tally.changes += changes.data.num_rows
                yield changes
        self._pass_groups([group.gtid], group.end)
        tally.transactions += 1
        tally.committed_us = group.committed_us
        tally.is_full = tally.changes >= tally.most


def _take_groups(counts: np.ndarray, tally: WindowTally) -> int:
    """Return how many groups belong to the window, and note whether they fill it."""
    sums = tally.changes + np.cumsum(counts)
    full = np.nonzero(sums >= tally.most)[0]
    # The group that passes the limit belongs to the window, or one that is larger than the limit would never be
    # read.
    taken = int(full[0]) + 1 if len(full) else len(counts)
    tally.changes = int(sums[taken - 1])
    tally.is_full = bool(len(full))
    return taken


def _pieces(rows: Buffer, piece: int) -> Iterator[Sequence[tuple[Schema, list[RowsEvent]]]]:
    """Cut a large transaction's events into pieces, each by table."""
    held: dict[int, tuple[Schema, list[RowsEvent]]] = {}
    size = 0
    for schema, data, start, op, ordinal in rows.each():
        held.setdefault(id(schema), (schema, []))[1].append((data, start, op, 0, ordinal))
        size += len(data)
        if size >= piece:
            yield list(held.values())
            held, size = {}, 0
    yield list(held.values())
