"""One window after the other: groups gathered, decoded together, cut at the transaction that reaches the limit.

Belongs here: batches of bounded size, where a window ends, what is kept for the next one. Not here: events
(mysql_groups.py), opening a dump (mysql.py).

How many rows an event holds is only known once it is decoded, so a few transactions more than asked may be read; they
wait, undecoded, for the next window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np

from rivet_resources.changes.mysql_buffer import Buffer
from rivet_resources.changes.mysql_groups import Group, Groups
from rivet_resources.changes.mysql_gtid import GtidSet
from rivet_resources.changes.mysql_place import Place
from rivet_resources.changes.mysql_rows import RowsEvent
from rivet_resources.changes.mysql_tables import Schema, Stamped, Tables
from rivet_resources.changes.protocol import Changes

# Decoding takes some eight times its input: pieces so small keep it well below `Capture.memory_bytes` in all.
PIECES, LARGEST_PIECE = 4, 16 << 20
FIRST_GUESS = 48  # bytes of a row in the log, until some were decoded
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class Tally:
    """What a window has so far."""

    most: int
    changes: int = 0
    transactions: int = 0
    committed_us: int | None = None
    is_full: bool = False

    @property
    def committed_at(self) -> datetime | None:
        """Give the commit time of the last transaction that held a change of ours."""
        return None if self.committed_us is None else EPOCH + timedelta(microseconds=self.committed_us)


@dataclass
class Windows:
    """The stream of one dump, cut into windows. `at` is behind the last group that was given out whole."""

    groups: Groups
    tables: Tables
    at: Place
    memory_bytes: int
    gtids: GtidSet | None
    _waiting: deque[Group] = field(default_factory=deque)
    _pending: list[Group] = field(default_factory=list)
    _size: int = 0
    _events: int = 0
    _row_bytes: float = FIRST_GUESS
    _stream: Iterator[Group] | None = None

    @property
    def piece(self) -> int:
        """Say how many bytes of events are decoded at a time."""
        return max(1, min(LARGEST_PIECE, self.memory_bytes // PIECES))

    def until(self, upto: Place, tally: Tally) -> Iterator[Changes]:
        """Give changes until the limit is reached, or a group ends at or behind `upto`, or the log ends."""
        begun, last, piece = self.at.order, upto.order, self.piece
        for group in self._next():
            if group.end.order <= begun:
                continue
            self._pending.append(group)
            if group.rows is not None and group.rows.is_spooled:
                yield from self._large(tally)
            elif group.truncated is not None:
                yield from self._flushed(tally)
            elif group.rows is not None:
                self._size += group.rows.size
                self._events += len(group.rows)
                if self._size >= piece or self._looks_full(tally):
                    yield from self._flushed(tally)
            elif len(self._pending) == 1:
                self._pass(self._pending.pop(), tally)
            if tally.is_full:
                return
            if group.end.order >= last:
                break
        yield from self._flushed(tally)

    def _next(self) -> Iterator[Group]:
        """Give the groups left over from the last window, then those of the log."""
        self._stream = self._stream or self.groups.each()
        while self._waiting:
            yield self._waiting.popleft()
        yield from _unclosed(self._stream)

    def _looks_full(self, tally: Tally) -> bool:
        return max(self._events, self._size / self._row_bytes) >= tally.most - tally.changes

    def _pass(self, group: Group, tally: Tally) -> None:
        """Count a group as given out."""
        self.at = group.end
        if group.gtid is not None and self.gtids is not None:
            source, number = group.gtid
            if source is None:
                self.gtids = None
            else:
                self.gtids.add(source, number)
        if group.has_changes:
            tally.transactions += 1
            tally.committed_us = group.committed_us

    # --- decoding --------------------------------------------------------------------------------

    def _flushed(self, tally: Tally) -> Iterator[Changes]:
        """Decode what is pending, up to the transaction that fills the window; the rest waits."""
        groups, self._pending, size = self._pending, [], self._size
        self._size = self._events = 0
        stamped = Stamped([group.end.key for group in groups], [group.committed_us for group in groups])
        events: dict[int, list[RowsEvent]] = {}
        schemas: dict[int, Schema] = {}
        for index, group in enumerate(groups):
            for schema, event in group.rows.each() if group.rows is not None else ():
                schemas[id(schema)] = schema
                events.setdefault(id(schema), []).append(RowsEvent(event[0], event[1], event[2], index, event[4]))
        decoded = [self.tables.decoded(schemas[number], some, stamped) for number, some in events.items()]
        counts = np.zeros(len(groups), np.int64)
        for _, transactions in decoded:
            counts += np.bincount(transactions, minlength=len(groups))
        total = int(counts.sum())
        if total:
            self._row_bytes = max(1.0, size / total)
        counts += np.array([group.truncated is not None for group in groups], np.int64)
        taken = _taken(counts, tally)
        for changes, transactions in decoded:
            yield from _cut(changes, int(np.searchsorted(transactions, taken)))
        for group in groups[:taken]:
            if group.truncated is not None:
                yield self.tables.truncation(group.truncated, group.end.key, group.committed_us)
            self._pass(group, tally)
        self._waiting.extendleft(reversed(groups[taken:]))

    def _large(self, tally: Tally) -> Iterator[Changes]:
        """Decode a transaction that is larger than memory, piece by piece; it comes last in what is pending."""
        group = self._pending.pop()
        yield from self._flushed(tally)
        if tally.is_full:
            self._waiting.append(group)
            return
        assert group.rows is not None
        stamped = Stamped([group.end.key], [group.committed_us])
        for piece in _pieces(group.rows, self.piece):
            for schema, events in piece:
                changes, _ = self.tables.decoded(schema, events, stamped)
                tally.changes += changes.data.num_rows
                yield changes
        self._pass(group, tally)
        tally.is_full = tally.changes >= tally.most


def _unclosed(stream: Iterator[Group]) -> Iterator[Group]:
    """Iterate without closing: the next window goes on with the same stream."""
    yield from iter(lambda: next(stream, None), None)


def _taken(counts: np.ndarray, tally: Tally) -> int:
    """Say how many groups belong to the window, and note whether they fill it."""
    sums = tally.changes + np.cumsum(counts)
    full = np.nonzero(sums >= tally.most)[0]
    taken = int(full[0]) + 1 if len(full) else len(counts)
    if taken:
        tally.changes = int(sums[taken - 1])
    tally.is_full = bool(len(full))
    return taken


def _cut(changes: Changes, rows: int) -> Iterator[Changes]:
    if rows == changes.data.num_rows:
        yield changes
    elif rows:
        yield Changes(changes.table, changes.columns, changes.data.slice(0, rows), changes.special)


def _pieces(rows: Buffer, piece: int) -> Iterator[Sequence[tuple[Schema, list[RowsEvent]]]]:
    """Cut a large transaction's events into pieces, each by table."""
    held: dict[int, tuple[Schema, list[RowsEvent]]] = {}
    size = 0
    for schema, event in rows.each():
        held.setdefault(id(schema), (schema, []))[1].append(event)
        size += len(event.data)
        if size >= piece:
            yield list(held.values())
            held, size = {}, 0
    yield list(held.values())
