"""The answer to one statement of MySQL and MariaDB, as the bytes the server sent: nothing of it is decoded here.

Belongs here: reading through a connected PyMySQL connection, the end of rows, errors in mid-answer. Not here: how a
statement is sent (prepared.py), the walk over packet headers (headers.py), cells (rows.py, binary.py), session and
transaction (mysql/session.py), classes of faults (mysql/errors.py).

PyMySQL reads a packet at a time and makes a Python object per cell, 9 times the work of reading blocks and cutting them
(`engine.md`, section 3). It asks the server for neither compression nor CLIENT_DEPRECATE_EOF, so rows end with EOF.
Source of the packet rules: MySQL internals manual, "Text Resultset", "EOF_Packet", "Sending more than 16Mb".
"""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from rivet_resources.engines.mysql.wire.headers import CONTINUED, ERROR, HEADER, may_be_complete, walk
from rivet_resources.engines.shared.paging import TooLarge

LONGEST_ERROR = 1024  # a message has at most 512 bytes (MYSQL_ERRMSG_SIZE)
SMALL_BLOCK, LARGE_BLOCK = 1 << 20, 1 << 23
# A table has at most 4096, and the count of a prepared statement's columns has two bytes.
MOST_COLUMNS = 0xFFFF
# What reading broken bytes ends in, in PyMySQL as here: it checks lengths by `assert` and by luck.
MALFORMED = (IndexError, struct.error, AssertionError, ValueError, TypeError)
MORE_RESULTS = 0x0008  # SERVER_MORE_RESULTS_EXISTS


Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]


@dataclass(frozen=True)
class Definition:
    """One column of a result, as the server describes it."""

    name: str
    type_code: int  # pymysql.constants.FIELD_TYPE
    charset: int  # collation id; 63 is binary
    flags: int  # pymysql.constants.FLAG
    length: int
    scale: int


@dataclass(frozen=True)
class RawRows:
    """The rows of one answer: row i is `buffer[starts[i]:ends[i]]`."""

    columns: tuple[Definition, ...]
    buffer: Bytes
    starts: Places
    ends: Places
    is_binary: bool = False  # rows of a prepared statement (binary.py), not texts (rows.py)

    @property
    def nbytes(self) -> int:
        """Size of the answer on the wire, packet headers included."""
        return len(self.buffer)


def query(connection: Any, sql: str, *, limit_bytes: int | None = None) -> RawRows:
    """Send one statement of ours about the source and read its whole answer, as texts.

    After it returns, the connection takes the next statement. After anything it raises, close the connection: rows may
    still be on their way.

    Args:
        connection: a connected pymysql.connections.Connection.
        limit_bytes: when so much was read and more is to come, reading stops; None for no limit.

    Raises:
        pymysql.err.MySQLError: what the server says, before or after any number of rows; the line broke; the statement
            returns no rows, or several results.
        TooLarge: the answer is not whole after `limit_bytes`.
    """
    from pymysql.constants import COMMAND  # driver

    connection._execute_command(COMMAND.COM_QUERY, sql)
    columns = definitions(connection)
    return PacketRows(connection, limit_bytes).read(columns)


def definitions(connection: Any) -> tuple[Definition, ...]:
    """Read the column definitions, with their EOF.

    Raises:
        pymysql.err.MySQLError: what the server says, or that it does not keep to the protocol.
    """
    from pymysql import err  # driver
    from pymysql.protocol import FieldDescriptorPacket  # driver

    first = connection._read_packet()
    # LOAD DATA LOCAL makes the server ask for a file of this machine; nothing here answers that.
    if first.is_ok_packet() or first.is_load_local_packet():
        raise err.ProgrammingError("the statement returns no rows")
    try:
        count = first.read_length_encoded_integer()
        # A broken line may claim billions, and the list of them would fill the memory.
        if count is None or count > MOST_COLUMNS:
            raise err.InternalError(f"the answer has {count} columns; a result has at most {MOST_COLUMNS}")
        fields = [connection._read_packet(FieldDescriptorPacket) for _ in range(count)]
    except MALFORMED:
        raise err.InternalError("a column definition is not as the protocol has it") from None
    if not connection._read_packet().is_eof_packet():
        raise err.InternalError("no EOF packet behind the column definitions")
    return tuple(
        Definition(
            name=field.name,
            type_code=field.type_code,
            charset=field.charsetnr,
            flags=field.flags,
            length=field.length,
            scale=field.scale,
        )
        for field in fields
    )


class PacketRows:
    """The bytes behind the column definitions, up to the packet that ends them.

    What does not fit the memory of the last page lies in blocks until all has come.
    """

    def __init__(self, connection: Any, limit_bytes: int | None, *, is_binary: bool = False) -> None:
        self.connection = connection
        self.limit_bytes = limit_bytes
        self.is_binary = is_binary
        self.filled = 0
        self._full: list[Bytes] = []
        self._block = _spare(connection)
        self._used = 0  # of the block

    def read(self, columns: tuple[Definition, ...]) -> RawRows:
        """Read until the last packet; give what stands before it."""
        while True:
            self._receive()
            # Looking at the end first: walking all packets after each read would be quadratic in the page.
            if may_be_complete(self._tail(LONGEST_ERROR)):
                headers = walk(self.buffer)
                if headers is not None:
                    break
            # Only after the look at the end: an answer that is complete is never thrown away for its size.
            if self.limit_bytes is not None and self.filled > self.limit_bytes:
                raise TooLarge
        last = int(headers[-1])
        self.finish(self.buffer[last + HEADER :].tobytes())
        self._check_sequence(headers)
        _keep_spare(self.connection, self._block)
        return join_packets(columns, self.buffer[:last], headers[:-1], is_binary=self.is_binary)

    @property
    def buffer(self) -> Bytes:
        """What has come so far, in one piece from now on."""
        if self._full:
            # A quarter more than there is, so that what still comes is mostly read into the same memory.
            whole = np.empty(self.filled + self.filled // 4, np.uint8)
            np.concatenate([*self._full, self._block[: self._used]], out=whole[: self.filled])
            self._full, self._block, self._used = [], whole, self.filled
        return self._block[: self._used]

    def _receive(self) -> None:
        """Take what has arrived, at least one byte.

        First what PyMySQL's own stream has buffered, if any; from then on its buffer is empty and stays so.
        """
        if self._used == len(self._block):
            if self._used:
                self._full.append(self._block)
            self._block, self._used = np.empty(min(max(SMALL_BLOCK, self.filled), LARGE_BLOCK), np.uint8), 0
        view = self._block.data[self._used :]
        try:
            if self.filled:
                # Straight into the page's memory; the stream in between would copy each byte once more.
                count = self.connection._sock.recv_into(view)
            else:
                begun = self.connection._rfile.read1(len(view))
                count = len(begun)
                view[:count] = begun
        except OSError as error:
            raise self._lost(f" ({error})") from None
        if not count:
            raise self._lost("")
        self._used += count
        self.filled += count

    def _tail(self, size: int) -> bytes:
        """Return the last bytes, at most `size`."""
        tail = bytes(self._block.data[max(0, self._used - size) : self._used])
        if len(tail) < size and self._full:
            tail = self._full[-1][len(tail) - size :].tobytes() + tail
        return tail

    def _lost(self, why: str) -> Exception:
        from pymysql import err  # driver
        from pymysql.constants import CR  # driver

        self.connection._force_close()
        lost: Exception = err.OperationalError(CR.CR_SERVER_LOST, f"Lost connection to MySQL server during query{why}")
        return lost

    def _check_sequence(self, headers: Places) -> None:
        """Compare every packet's number with its place, as PyMySQL does packet by packet."""
        from pymysql import err  # driver

        first = self.connection._next_seq_id
        # Numbers of packets are one byte and wrap.
        expected = (np.arange(first, first + len(headers)) & 0xFF).astype(np.uint8)
        if not np.array_equal(self.buffer[headers + 3], expected):
            self.connection._force_close()
            raise err.InternalError("Packet sequence number wrong")
        self.connection._next_seq_id = (first + len(headers)) & 0xFF

    def finish(self, last: bytes) -> None:
        """Read the last packet: raise what the server says, refuse a second result."""
        from pymysql import err  # driver

        if last[0] == ERROR:
            err.raise_mysql_exception(last)
        try:
            (status,) = struct.unpack_from("<H", last, 3)
        except struct.error:
            raise err.InternalError("the packet that ends the answer is too short") from None
        self.connection.server_status = status
        # A procedure gives several: rows of the second result would be taken for the next answer.
        if status & MORE_RESULTS:
            raise err.InternalError("the statement returns several results")


# Pages' memory per connection, for its next pages: the kernel takes as long to map fresh memory as we to decode it.
# Two, since one page is read while the last one is decoded (mysql/ahead.py).
SPARE: WeakKeyDictionary[Any, list[Bytes]] = WeakKeyDictionary()
SPARE_BYTES, MOST_SPARE = 32 << 20, 2


def _spare(connection: Any) -> Bytes:
    """Return memory to read into: that of an earlier page, unless anything still refers to its rows."""
    blocks = SPARE.get(connection, [])
    for place in range(len(blocks)):
        # The one reference is the list's own. Any other one is an array that Arrow made of the page, whose bytes must
        # stay.
        if sys.getrefcount(blocks[place]) == _free_references():
            return blocks.pop(place)
    return np.empty(SMALL_BLOCK, np.uint8)


def _keep_spare(connection: Any, block: Bytes) -> None:
    # A page of one huge value must not keep its memory for the rest of the run.
    if len(block) <= SPARE_BYTES:
        blocks = SPARE.setdefault(connection, [])
        blocks.append(block)
        del blocks[:-MOST_SPARE]


@cache
def _free_references() -> int:
    """Count who refers to memory that only such a list has: Pythons differ in which references they count."""
    blocks = [np.empty(1, np.uint8)]
    return sys.getrefcount(blocks[0])


# --- packets -------------------------------------------------------------------------------------


def join_packets(
    columns: tuple[Definition, ...], buffer: Bytes, headers: Places, *, is_binary: bool = False
) -> RawRows:
    """Make rows of packets: a packet of 16 MB goes on in the next, whose header is cut out, in place."""
    # An answer without rows has no header left.
    behind = np.append(headers[1:], len(buffer))[: len(headers)]
    starts = headers + HEADER
    goes_on = behind - starts == CONTINUED
    if not goes_on.any():
        return RawRows(columns, buffer, starts, behind, is_binary)
    view, removed = buffer.data, 0
    is_first = np.ones(len(headers), bool)
    is_first[1:] = ~goes_on[:-1]
    for index in np.flatnonzero(~is_first):
        # Everything up to the next cut moves left by the headers removed so far.
        removed += HEADER
        later = np.flatnonzero(~is_first[index + 1 :])
        end = int(headers[index + 1 + later[0]]) if len(later) else len(buffer)
        begin = int(starts[index])
        view[begin - removed : end - removed] = view[begin:end]
    cuts = np.cumsum(~is_first) * HEADER
    first = np.flatnonzero(is_first)
    last = np.append(first[1:], len(headers)) - 1
    joined = buffer[: len(buffer) - removed]
    return RawRows(columns, joined, starts[first] - cuts[first], behind[last] - cuts[last], is_binary)
