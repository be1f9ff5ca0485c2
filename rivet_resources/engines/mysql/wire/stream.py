"""The rows of one statement of MySQL: all of them, or in bites of whole rows while the server holds it open.

Belongs here: sending a reader's statement and letting go of it, cutting an answer that must not be in memory whole,
reading one to its end unused. Not here: the bytes of a whole answer (packets.py), how a statement is sent
(prepared.py).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from rivet_resources.engines.mysql.wire.headers import CONTINUED, END, ERROR, HEADER, SHORTEST_LONG_VALUE
from rivet_resources.engines.mysql.wire.packets import PacketRows, RawRows, join_packets
from rivet_resources.engines.mysql.wire.prepared import Sent, let_go, send
from rivet_resources.engines.shared.paging import TooLarge

BLOCK_BYTES = 1 << 20


def stream(connection: Any, statement: str, *, target_bytes: int) -> Iterator[RawRows]:
    """Send one statement and read its answer in bites of about `target_bytes`; at least one bite, maybe empty.

    The server waits while we do not read. The connection takes the next statement only when all bites were read;
    otherwise close it.

    Raises:
        pymysql.err.MySQLError: as `mysql_packets.query`, at any bite.
    """
    sent = send(connection, statement)
    answer, is_first = _Answer(connection, sent), True
    # Only the rows of one bite are in memory: the server waits with the rest while the throttle sleeps.
    while not answer.is_complete:
        answer.receive()
        # Whole packets count: a single row may be larger than a bite, and is then given alone.
        if not answer.is_complete and answer.walked < target_bytes:
            continue
        packets = answer.whole_rows()
        if packets or (answer.is_complete and is_first):
            yield answer.cut(packets)
            is_first = False
    answer.finish()
    let_go(connection, sent)


def read_whole(connection: Any, statement: str, *, limit_bytes: int | None) -> RawRows:
    """Send one statement and read its answer whole; after anything this raises, close the connection.

    Raises:
        pymysql.err.MySQLError: as `mysql_packets.query`.
        TooLarge: the answer is not whole after `limit_bytes`.
    """
    sent = send(connection, statement)
    rows = PacketRows(connection, limit_bytes, is_binary=sent.is_binary).read(sent.columns)
    let_go(connection, sent)
    return rows


def read_or_drop(connection: Any, statement: str, *, limit_bytes: int) -> RawRows | None:
    """Read an answer whole; one that passes the limit is read to its end unused, so that the connection lives on.

    Raises:
        pymysql.err.MySQLError: as `mysql_packets.query`.
    """
    sent = send(connection, statement)
    rows = PacketRows(connection, limit_bytes, is_binary=sent.is_binary)
    try:
        found = rows.read(sent.columns)
    except TooLarge:
        # What was read already is part of the answer, so the reading goes on from it.
        _drop(_Answer(connection, sent, rows.buffer[: rows.filled].tobytes()))
        found = None
    let_go(connection, sent)
    return found


def _drop(answer: _Answer) -> None:
    """Read an answer to its end and throw it away: the connection may hold a snapshot, and closing would lose that."""
    while not answer.is_complete:
        answer.cut(answer.whole_rows())
        answer.receive()
    answer.cut(answer.whole_rows())
    answer.finish()


class _Answer:
    """The bytes behind the column definitions that were not cut off yet."""

    def __init__(self, connection: Any, sent: Sent, received: bytes = b"") -> None:
        self.connection = connection
        self.sent = sent
        self.buffer = bytearray(received)
        self.headers: list[int] = []  # where each whole packet begins
        self.walked = 0  # where the first unfinished packet begins
        self.is_complete = False
        self._walk()

    def receive(self) -> None:
        """Take what has arrived, at least one byte."""
        try:
            block = self.connection._rfile.read1(BLOCK_BYTES)
        except OSError as error:
            raise self._lost(f" ({error})") from None
        if not block:
            raise self._lost("")
        self.buffer += block
        self._walk()

    def _walk(self) -> None:
        """Note the packets that are whole by now, and whether the last of them ends the answer."""
        unpack, last, start = struct.Struct("<I").unpack_from, len(self.buffer) - HEADER, self.walked
        while start <= last:
            behind = start + HEADER + (unpack(self.buffer, start)[0] & CONTINUED)
            if behind > len(self.buffer):
                break
            self.headers.append(start)
            start = behind
        self.walked = start
        # The server says nothing after the last packet, so only one that ends the bytes can be it.
        self.is_complete = start == len(self.buffer) and bool(self.headers) and self._is_last(len(self.headers) - 1)

    def _is_last(self, packet: int) -> bool:
        # The rest of a long row, which may begin with any byte.
        if packet and self._size(packet - 1) == CONTINUED:
            return False
        size, first = self._size(packet), self.headers[packet] + HEADER
        if not size:
            return False
        return self.buffer[first] == ERROR or (self.buffer[first] == END and size < SHORTEST_LONG_VALUE)

    def _size(self, packet: int) -> int:
        start = self.headers[packet]
        return int.from_bytes(self.buffer[start : start + 3], "little")

    def whole_rows(self) -> int:
        """Count the packets up to the last one that ends a row: a row of 16 MB goes on in the next packet."""
        if self.is_complete:
            return len(self.headers) - 1
        return next((n for n in range(len(self.headers), 0, -1) if self._size(n - 1) != CONTINUED), 0)

    def cut(self, packets: int) -> RawRows:
        """Cut the first packets off and give their rows."""
        end = self.headers[packets] if packets < len(self.headers) else self.walked
        headers = np.array(self.headers[:packets], np.int64)
        # A copy, which `join_packets` may write to.
        bite = np.frombuffer(self.buffer[:end], np.uint8)
        self._check_sequence(bite[headers + 3])
        self.buffer = self.buffer[end:]
        self.headers = [start - end for start in self.headers[packets:]]
        self.walked -= end
        return join_packets(self.sent.columns, bite, headers, is_binary=self.sent.is_binary)

    def finish(self) -> None:
        """Read the last packet: raise what the server says, refuse a second result."""
        payload = bytes(self.buffer[HEADER:])
        self._check_sequence(np.frombuffer(self.buffer[3:4], np.uint8))
        PacketRows(self.connection, None).finish(payload)

    def _check_sequence(self, found: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        """Compare every packet's number with its place, as PyMySQL does packet by packet."""
        from pymysql import err  # driver

        first = self.connection._next_seq_id
        expected = (np.arange(first, first + len(found)) & 0xFF).astype(np.uint8)
        if not np.array_equal(found, expected):
            self.connection._force_close()
            raise err.InternalError("Packet sequence number wrong")
        self.connection._next_seq_id = (first + len(found)) & 0xFF

    def _lost(self, why: str) -> Exception:
        from pymysql import err  # driver
        from pymysql.constants import CR  # driver

        self.connection._force_close()
        lost: Exception = err.OperationalError(CR.CR_SERVER_LOST, f"Lost connection to MySQL server during query{why}")
        return lost
