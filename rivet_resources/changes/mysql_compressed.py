"""What the servers compress in a binary log: MariaDB's rows and statements (zlib), MySQL's transactions (zstd).

Belongs here: opening them. Not here: what is inside (mysql_events.py, mysql_groups.py).

Source: MySQL 9 source, libs/mysql/binlog/event/codecs; MariaDB 10.11 source, sql/log_event.cc, `binlog_buf_uncompress`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO
from zlib import decompress

import pyarrow as pa

PAYLOAD_START = 20  # behind the packet's first byte and the event's header
EVENT_HEADER = 19
SIZE, METHOD, WHOLE_SIZE = 1, 2, 3  # fields of a payload's head; 0 ends it
ZSTD, PLAIN = 0, 255


def inflated(data: bytes) -> bytes:
    """Undo MariaDB's log_bin_compress: a byte that says how many bytes hold the length, the length, zlib's own."""
    if data[0] & 0xF0 != 0x80:
        raise ValueError(f"compressed by a way {data[0] >> 4} that is not zlib's")
    return decompress(memoryview(data)[1 + (data[0] & 7) :])


def unpacked(data: bytes) -> Iterator[bytes]:
    """Give the events of a TRANSACTION_PAYLOAD, each with the place of the whole as its own; they have no checksums.

    Raises:
        ValueError: a method that is not zstd, or fewer bytes than promised.
        OSError: the bytes are not what the method makes.
    """
    fields, at = _head(data)
    method = fields.get(METHOD, ZSTD)
    if method not in (ZSTD, PLAIN):
        raise ValueError(f"by method {method}; only zstd, 0, is known")
    raw: IO[bytes] = pa.BufferReader(memoryview(data)[at:])
    stream = raw if method == PLAIN else pa.CompressedInputStream(raw, "zstd")
    place, read = data[14:18], 0
    while len(head := _exactly(stream, EVENT_HEADER)) == EVENT_HEADER:
        length = int.from_bytes(head[9:13], "little")
        read += length
        yield b"\0" + head[:13] + place + head[17:] + _exactly(stream, length - EVENT_HEADER)
    if read != fields.get(WHOLE_SIZE, read):
        raise ValueError("shorter than it says")


def _head(data: bytes) -> tuple[dict[int, int], int]:
    """Read the fields (type, length, value) before the payload, and the place behind them."""
    fields, at = {}, PAYLOAD_START
    while data[at]:
        kind = data[at]
        length, at = packed(data, at + 1)
        fields[kind], _ = packed(data, at)
        at += length
    return fields, at + 1


def packed(data: bytes, at: int) -> tuple[int, int]:
    """Read a length-coded number; it and the place behind it."""
    first = data[at]
    if first < 251:
        return first, at + 1
    size = {252: 2, 253: 3, 254: 8}[first]
    return int.from_bytes(data[at + 1 : at + 1 + size], "little"), at + 1 + size


def _exactly(stream: IO[bytes], size: int) -> bytes:
    """Read so many bytes, fewer only at the end."""
    found = stream.read(size)
    while len(found) < size and (more := stream.read(size - len(found))):
        found += more
    return found
