"""Groups that were read and wait to be decoded together, column by column: there may be a hundred thousand.

Belongs here: `PendingEvents`. Not here: when it is decoded (window.py).

Lists of numbers and plain tuples instead of an object for each group: the garbage collector looks at every object that
is kept, and took a third of the time of one-row transactions (measured 2026-11).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from rivet_resources.engines.mysql.binlog.buffer import EVENT_COST
from rivet_resources.engines.mysql.binlog.position import BinlogPosition
from rivet_resources.engines.mysql.binlog.rows import RowsEvent
from rivet_resources.engines.mysql.binlog.tables import Schema
from rivet_resources.engines.mysql.binlog.transactions import EventGroup


@dataclass
class PendingEvents:
    """Groups in the order of the log; `events` by table, each with the index of its group."""

    ends: list[tuple[str, int]] = field(default_factory=list)  # file, offset
    committed: list[int] = field(default_factory=list)
    gtids: list[tuple[object, int] | None] = field(default_factory=list)
    truncated: dict[int, Schema] = field(default_factory=dict)  # index of the group → the table it empties
    events: dict[int, tuple[Schema, list[RowsEvent]]] = field(default_factory=dict)
    size: int = 0
    count: int = 0  # of events
    _schema: Schema | None = None  # of the last event, and the list it stands in
    _events: list[RowsEvent] = field(default_factory=list)

    def add(self, group: EventGroup) -> None:
        """Take one group in, whose rows are in memory."""
        index = len(self.ends)
        self.ends.append((group.file, group.offset))
        self.committed.append(group.committed_us)
        self.gtids.append(group.gtid)
        if group.truncated is not None:
            self.truncated[index] = group.truncated
        rows = group.rows
        if rows is None:
            return
        self.size += rows.size
        self.count += len(rows.events)
        for schema, data, start, op, ordinal in rows.events:
            # Events of one table follow one another, so the table is looked up once for each run of them.
            if schema is not self._schema:
                self._schema, self._events = schema, self.events.setdefault(id(schema), (schema, []))[1]
            self._events.append((data, start, op, index, ordinal))

    def keys(self) -> list[str]:
        """Write the groups' positions as texts that sort."""
        # A file's number is written once, not for each of a hundred thousand groups.
        fronts = {file: BinlogPosition(file, 0).key[:8] for file in {file for file, _ in self.ends}}
        return [f"{fronts[file]}{offset:016x}" for file, offset in self.ends]

    def until(self, upto: BinlogPosition) -> int:
        """Count the groups to the first one that ends at or behind a place."""
        return min(len(self.ends), 1 + bisect_left(self.ends, upto.order, key=lambda end: BinlogPosition(*end).order))

    def behind(self, taken: int) -> PendingEvents:
        """Return what comes behind so many groups."""
        rest = PendingEvents(self.ends[taken:], self.committed[taken:], self.gtids[taken:])
        rest.truncated = {index - taken: schema for index, schema in self.truncated.items() if index >= taken}
        for number, (schema, events) in self.events.items():
            # Events stand in the order of their groups, so the first to keep is found by halving.
            first = first_behind(events, taken)
            if first == len(events):
                continue
            rest.events[number] = (schema, [(data, at, op, i - taken, n) for data, at, op, i, n in events[first:]])
            rest.size += sum(len(event[0]) + EVENT_COST for event in events[first:])
            rest.count += len(events) - first
        return rest


def first_behind(events: Sequence[RowsEvent], taken: int) -> int:
    """Count the events of the first so many groups."""
    return bisect_left(events, taken, key=lambda event: event[3])
