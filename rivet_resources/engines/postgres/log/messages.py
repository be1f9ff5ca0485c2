"""pgoutput's messages by vectors: thousands of rows are walked together, one numpy step per column.

Belongs here: framing, and where each cell of each row stands in the bytes. Not here: what a cell means
(texts.py), which rows are wanted (window.py). Source: PostgreSQL documentation, "Logical
Replication Message Formats", protocol version 1.

Messages: B begin, C commit, R relation, Y type, I insert, U update, D delete, T truncate, M message, O origin.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rivet_resources.engines.postgres.log.lsn import Mask, Numbers
from rivet_resources.errors import LogRefused

Bytes = npt.NDArray[np.uint8]

BEGIN, COMMIT, RELATION, INSERT, UPDATE, DELETE, TRUNCATE = (ord(c) for c in "BCRIUDT")
NULL, UNCHANGED, TEXT = (ord(c) for c in "nut")
KEY, WHOLE = ord("K"), ord("O")  # what stands before a change: its identity's columns, or the whole row


def malformed_bytes(what: str) -> LogRefused:
    """Return the refusal of bytes that are not what the protocol says."""
    return LogRefused(
        f"{what} of PostgreSQL's log is not as the protocol has it, so nothing behind it can be read. Is a proxy "
        f"between? Run again, and report it if it stays; nothing behind the last saved position was acknowledged."
    )


@dataclass(frozen=True)
class Attribute:
    """One column as the log describes it."""

    name: str
    oid: int
    modifier: int
    is_identity: bool


@dataclass(frozen=True)
class RelationMessage:
    """A table as it was when the change was made; identity is pg_class.relreplident: d, n, f, i."""

    oid: int
    schema: str
    name: str
    identity: str
    attributes: tuple[Attribute, ...]

    @property
    def label(self) -> str:
        return f"{self.schema}.{self.name}"


def parse_relation(message: bytes) -> RelationMessage:
    """Read an R message. An empty schema is pg_catalog's spelling.

    Raises:
        LogRefused: it is cut, or not text.
    """
    try:
        return _relation(message)
    except (IndexError, ValueError, struct.error):
        raise malformed_bytes("A relation message") from None


def _relation(message: bytes) -> RelationMessage:
    # R: kind, oid (4), schema\0, name\0, identity (1), number of columns
    # (2); each column: flags (1), name\0, type (4), modifier (4).
    oid = int.from_bytes(message[1:5], "big")
    schema, name, rest = message[5:].split(b"\0", 2)
    count, at, attributes = int.from_bytes(rest[1:3], "big"), 3, []
    for _ in range(count):
        end = rest.index(0, at + 1)
        type_oid, modifier = struct.unpack(">Ii", rest[end + 1 : end + 9])
        attributes.append(Attribute(rest[at + 1 : end].decode(), type_oid, modifier, bool(rest[at] & 1)))
        at = end + 9
    return RelationMessage(oid, schema.decode() or "pg_catalog", name.decode(), chr(rest[0]), tuple(attributes))


def parse_truncate(message: bytes) -> tuple[int, ...]:
    """Read a T message: the oids of the tables that were emptied together.

    Raises:
        LogRefused: it is cut.
    """
    count = int.from_bytes(message[1:5], "big")
    if len(message) < 6 + 4 * count:
        raise malformed_bytes("A truncate message")
    # T: kind, number of tables (4), options (1: CASCADE, RESTART IDENTITY), oids (4 each).
    return struct.unpack(f">{count}I", message[6 : 6 + 4 * count])


@dataclass(frozen=True)
class Messages:
    """The messages of one batch: one buffer, where each begins, and its kind."""

    buffer: Bytes
    starts: Numbers
    ends: Numbers
    kinds: Bytes
    keep: Any = field(repr=False, default=None)  # the Arrow array that owns the bytes

    def __len__(self) -> int:
        return len(self.starts)

    def raw(self, index: int) -> bytes:
        return self.buffer[self.starts[index] : self.ends[index]].tobytes()

    def number(self, at: Numbers, size: int) -> Numbers:
        """Read big-endian numbers that begin at these places."""
        return read_numbers(self.buffer, at, size)


def read_numbers(buffer: Bytes, at: Numbers, size: int) -> Numbers:
    """Read unsigned big-endian numbers of 2, 4 or 8 bytes from anywhere in the buffer, in one gather."""
    if not len(at):
        return np.zeros(0, np.int64)
    # A view with a number beginning at every single byte: indexing it reads from places that are not aligned.
    unaligned = np.ndarray((max(len(buffer) - size + 1, 0),), dtype=f">u{size}", buffer=buffer, strides=(1,))
    return unaligned[at].astype(np.int64)


def split(array: pa.Array) -> Messages:
    """Take an Arrow column of messages apart without copying it.

    Raises:
        LogRefused: a message is empty.
    """
    width = np.int64 if pa.types.is_large_binary(array.type) else np.int32
    _, offsets, data = array.buffers()
    if len(array) == 0 or data is None:
        nothing = np.zeros(0, np.int64)
        return Messages(np.zeros(0, np.uint8), nothing, nothing, np.zeros(0, np.uint8))
    places = np.frombuffer(offsets, width)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    buffer = np.frombuffer(data, np.uint8)
    # A message has its kind at least, and none begins before the one that it follows.
    if (places[1:] <= places[:-1]).any():
        raise malformed_bytes("A message")
    return Messages(buffer, places[:-1], places[1:], buffer[places[:-1]], array)


# --- rows ----------------------------------------------------------------------------------------


@dataclass
class TupleCells:
    """One column of many rows: kind of each cell, and where its text stands."""

    kinds: Bytes
    starts: Numbers
    lengths: Numbers

    def at(self, rows: Any) -> TupleCells:
        """Take some of the rows."""
        return TupleCells(self.kinds[rows], self.starts[rows], self.lengths[rows])

    def fill(self, rows: Mask, other: TupleCells) -> None:
        """Put other cells where `rows` says, one for each of them."""
        self.kinds[rows], self.starts[rows], self.lengths[rows] = other.kinds, other.starts, other.lengths


def walk(buffer: Bytes, at: Numbers, columns: int) -> tuple[list[TupleCells], Numbers]:
    """Walk tuples that begin at `at`, all rows one column at a time; gives their cells and where each tuple ends.

    Lengths have no sign, so places only grow: where the last cell lies in the buffer, all do.

    Raises:
        LogRefused: a cell's length leads out of the buffer.
    """
    try:
        cells, place = _walk_cells(buffer, at, columns)
    except IndexError:
        raise malformed_bytes("A row") from None
    if len(place) and int(place.max()) > len(buffer):
        raise malformed_bytes("A row")
    return cells, place


def _walk_cells(buffer: Bytes, at: Numbers, columns: int) -> tuple[list[TupleCells], Numbers]:
    # A tuple begins with its number of columns (2 bytes); each
    # cell is a kind, and only kind `t` has a length (4) and bytes.
    place, cells = at + 2, list[TupleCells]()
    last = max(len(buffer) - 4, 0)
    for _ in range(columns):
        kinds = buffer[place]
        is_sent = kinds == TEXT
        # No NULL and nothing unchanged: every cell has a length, as in most columns.
        if is_sent.all():
            lengths = read_numbers(buffer, place + 1, 4)
            cells.append(TupleCells(kinds, place + 5, lengths))
            place = place + 5 + lengths
            continue
        # A NULL may be the last byte of the buffer: the length that it does not have must not be read behind the end.
        lengths = np.where(is_sent, read_numbers(buffer, np.minimum(place + 1, last), 4), 0)
        cells.append(TupleCells(kinds, place + 5, lengths))
        place = place + 1 + np.where(is_sent, lengths + 4, 0)
    return cells, place


def gather(buffer: Bytes, cells: TupleCells) -> pa.Array:
    """Copy scattered texts into one string column; rows must stand in the order of the buffer."""
    count = len(cells.kinds)
    is_text = cells.kinds == TEXT
    if not count or not is_text.any():
        return pa.nulls(count, pa.string())
    starts, lengths = cells.starts, cells.lengths
    if not is_text.all():
        rows = np.nonzero(is_text)[0]
        starts, lengths = starts[rows], lengths[rows]
    # The bytes between two cells are given offsets of their own, so that Arrow's take copies every second piece: no
    # index per byte, no Python object per value. Offsets are as Arrow's own of what came: below 2 GiB.
    offsets = np.empty(2 * len(starts) + 1, np.int32)
    offsets[0:-1:2], offsets[1::2] = starts, starts + lengths
    offsets[-1] = offsets[-2]
    pieces = pa.Array.from_buffers(pa.string(), 2 * len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(buffer)])
    every_second = np.arange(0, 2 * len(starts), 2)
    if is_text.all():
        return pieces.take(pa.array(every_second))
    index = np.zeros(count, np.int64)
    index[is_text] = every_second
    return pieces.take(pa.array(index, mask=~is_text))
