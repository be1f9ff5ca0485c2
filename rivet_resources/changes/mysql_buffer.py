"""The rows events of one transaction until its commit is read: in memory, or in a temporary file.

Belongs here: adding, undoing to a savepoint, giving back in order. Not here: what an event means (mysql_groups.py).
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator
from typing import IO

from rivet_resources.changes.mysql_rows import RowsEvent
from rivet_resources.changes.mysql_tables import Schema

EVENT_COST = 200  # bytes that an event costs in memory besides its own
SPOOLED = struct.Struct("<IIBQI")  # of one event in the temporary file: schema, start, op, ordinal, length


class Buffer:
    """The rows events of one group, in memory or, where they are too many, in a temporary file that has no name."""

    __slots__ = ("_held", "_marks", "_memory", "_schemas", "_spool", "_spooled", "events", "size")

    def __init__(self, memory_bytes: int) -> None:
        self.size = 0
        self.events: list[tuple[Schema, RowsEvent]] = []
        self._memory = memory_bytes
        self._held = 0
        self._spool: IO[bytes] | None = None
        self._schemas: dict[int, Schema] = {}
        self._spooled = 0
        self._marks: dict[int, int] = {}  # count of events → place in the file

    def __len__(self) -> int:
        return self._spooled + len(self.events)

    @property
    def is_spooled(self) -> bool:
        """Say whether it was too large for memory."""
        return self._spool is not None

    def add(self, schema: Schema, event: RowsEvent) -> None:
        """Take one event in."""
        self.events.append((schema, event))
        cost = len(event.data) + EVENT_COST
        self.size += cost
        self._held += cost
        if self._held > self._memory:
            self._spill()

    def mark(self) -> int:
        """Remember this place for `rewind`."""
        self._marks[len(self)] = -1
        return len(self)

    def rewind(self, count: int) -> None:
        """Forget all events behind a mark."""
        if count >= self._spooled:
            del self.events[count - self._spooled :]
            return
        assert self._spool is not None
        self.events.clear()
        self._spool.seek(self._marks[count] if count else 0)
        self._spool.truncate()
        self._spooled = count

    def _spill(self) -> None:
        if self._spool is None:
            self._spool = tempfile.TemporaryFile(prefix="rivet-binlog-")  # noqa: SIM115 - lives as long as the group
        for schema, event in self.events:
            if self._spooled in self._marks:
                self._marks[self._spooled] = self._spool.tell()
            self._schemas[id(schema)] = schema
            numbers = list(self._schemas).index(id(schema))
            head = SPOOLED.pack(numbers, event.start, event.op, event.ordinal, len(event.data))
            self._spool.write(head + event.data)
            self._spooled += 1
        self.events.clear()
        self._held = 0

    def each(self) -> Iterator[tuple[Schema, RowsEvent]]:
        """Give the events in order, once."""
        if self._spool is not None:
            self._spill()
            schemas = list(self._schemas.values())
            self._spool.seek(0)
            for _ in range(self._spooled):
                number, start, op, ordinal, size = SPOOLED.unpack(self._spool.read(SPOOLED.size))
                yield schemas[number], RowsEvent(self._spool.read(size), start, op, 0, ordinal)
            self._spool.close()
        yield from self.events
