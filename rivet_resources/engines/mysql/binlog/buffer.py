"""The rows events of one transaction until its commit is read: in memory, or in a temporary file.

Belongs here: adding, undoing to a savepoint, giving back in order. Not here: what an event means (transactions.py).
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator
from typing import IO

from rivet_resources.engines.mysql.binlog.tables import Schema

EVENT_COST = 200  # bytes that an event costs in memory besides its own
SPOOLED = struct.Struct("<IIBQI")  # of one event in the temporary file: schema, start, op, ordinal, length

# Schema, bytes, where the rows begin in them, operation, ordinal. A plain tuple: there is one for every rows event.
Held = tuple[Schema, bytes, int, int, int]


class Buffer:
    """The rows events of one group, in memory or, where they are too many, in a temporary file that has no name."""

    __slots__ = ("_limit", "_marks", "_memory", "_schemas", "_spool", "_spooled", "events", "size")

    def __init__(self, memory_bytes: int) -> None:
        self.size = 0
        self.events: list[Held] = []
        self._memory = memory_bytes
        self._limit = memory_bytes  # of `size`, at which what is held goes to the file
        self._spool: IO[bytes] | None = None
        self._spooled = 0
        self._schemas: dict[int, Schema] | None = None
        self._marks: dict[int, int] | None = None  # count of events → place in the file

    def __len__(self) -> int:
        return self._spooled + len(self.events)

    def add(self, schema: Schema, data: bytes, start: int, op: int, ordinal: int) -> None:
        """Take one event in."""
        self.events.append((schema, data, start, op, ordinal))
        self.size += len(data) + EVENT_COST
        if self.size > self._limit:
            self._spill()

    def mark(self) -> int:
        """Remember this place for `rewind`."""
        if self._marks is None:
            self._marks = {}
        # The place in the file becomes known when the event of this number is written there, if ever.
        self._marks[len(self)] = -1
        return len(self)

    def rewind(self, count: int) -> None:
        """Forget all events behind a mark."""
        # What is undone has not left memory yet, as nearly always.
        if count >= self._spooled:
            del self.events[count - self._spooled :]
            return
        assert self._spool is not None
        self.events.clear()
        # A file is cut where the first undone event was written; before event 0 that is its beginning, which has no
        # mark.
        self._spool.seek(self._marks[count] if count and self._marks else 0)
        self._spool.truncate()
        self._spooled = count

    def _spill(self) -> None:
        if self._spool is None:
            # It has no name, so it is gone with the process, however that ends.
            self._spool = tempfile.TemporaryFile(prefix="rivet-binlog-")  # noqa: SIM115 - lives as long as the group
        schemas = self._schemas = self._schemas or {}
        marks = self._marks or {}
        for schema, data, start, op, ordinal in self.events:
            if self._spooled in marks:
                marks[self._spooled] = self._spool.tell()
            schemas[id(schema)] = schema
            number = list(schemas).index(id(schema))
            self._spool.write(SPOOLED.pack(number, start, op, ordinal, len(data)))
            self._spool.write(data)
            self._spooled += 1
        self.events.clear()
        # `size` counts what lies in the file as well, so the limit moves on by the memory that is free again.
        self._limit = self.size + self._memory

    def each(self) -> Iterator[Held]:
        """Yield the events in order, once."""
        if self._spool is not None:
            # What is still in memory comes last. Written behind the rest, one loop gives everything in the order of
            # the log.
            self._spill()
            schemas = list((self._schemas or {}).values())
            self._spool.seek(0)
            for _ in range(self._spooled):
                number, start, op, ordinal, size = SPOOLED.unpack(self._spool.read(SPOOLED.size))
                yield schemas[number], self._spool.read(size), start, op, ordinal
            self._spool.close()
        yield from self.events
