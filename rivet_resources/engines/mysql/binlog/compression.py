"""What the servers compress in a binary log: MariaDB's rows and statements (zlib), MySQL's transactions (zstd).

Belongs here: opening them. Not here: what is inside (events.py, transactions.py).

Source: MySQL 9 source, libs/mysql/binlog/event/codecs; MariaDB 10.11 source, sql/log_event.cc, `binlog_buf_uncompress`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import IO

import pyarrow as pa

PAYLOAD_START = 20  # behind the packet's first byte and the event's header
EVENT_HEADER = 19
SIZE, METHOD, WHOLE_SIZE = 1, 2, 3  # fields of a payload's head; 0 ends it
ZSTD, PLAIN = 0, 255
# No event is larger: the servers' max_allowed_packet. More is a bomb, a few bytes that would fill the memory.
LARGEST_EVENT = 1 << 30


def inflate(data: bytes) -> bytes:
    """Undo MariaDB's log_bin_compress: a byte that says how many bytes hold the length, the length, zlib's own.

    Raises:
        ValueError: another way, or not as many bytes as promised.
    """
    # The top bit says compressed, the next three how (0: zlib), the last three how many bytes hold the length.
    if not data or data[0] & 0xF0 != 0x80:
        raise ValueError("compressed by a way that is not zlib's")
    start = 1 + (data[0] & 7)
    return decompress(data[start:], size=int.from_bytes(data[1:start], "big"))


def decompress(data: bytes, *, size: int | None, wbits: int = zlib.MAX_WBITS) -> bytes:
    """Return what zlib packed; it makes no more memory than `size`, or the largest event, needs.

    Raises:
        ValueError: the bytes are not zlib's, or not of that size when open.
    """
    most = LARGEST_EVENT if size is None else min(size, LARGEST_EVENT)
    opener = zlib.decompressobj(wbits)
    try:
        # One byte more than allowed is enough to see that there is more, and all that a bomb gets.
        found = opener.decompress(data, most + 1)
    except zlib.error as error:
        raise ValueError("not what zlib packs") from error
    if len(found) > most or not opener.eof or (size is not None and len(found) != size):
        raise ValueError("not as long as it says")
    return found


def unpack_events(data: bytes) -> Iterator[bytes]:
    """Yield the events of a TRANSACTION_PAYLOAD, each with the place of the whole as its own; they have no checksums.

    Raises:
        ValueError: a method that is not zstd, or fewer or more bytes than promised.
        OSError: the bytes are not what the method makes.
    """
    try:
        fields, at = _head(data)
    except (IndexError, KeyError):
        raise ValueError("cut, or not a transaction") from None
    method = fields.get(METHOD, ZSTD)
    if method not in (ZSTD, PLAIN):
        raise ValueError(f"by method {method}; only zstd, 0, is known")
    # A stream and not the whole: a payload may open to a transaction that is larger than memory.
    raw: IO[bytes] = pa.BufferReader(memoryview(data)[at:])
    stream = raw if method == PLAIN else pa.CompressedInputStream(raw, "zstd")
    place, read = data[14:18], 0
    whole = fields.get(WHOLE_SIZE)
    while len(head := _exactly(stream, EVENT_HEADER)) == EVENT_HEADER:
        length = int.from_bytes(head[9:13], "little")
        read += length
        if not EVENT_HEADER <= length <= LARGEST_EVENT or (whole is not None and read > whole):
            raise ValueError("not as long as it says")
        # Bytes 13 to 16 of a header are the place behind the event, which inside a payload is none of the file.
        yield b"\0" + head[:13] + place + head[17:] + _exactly(stream, length - EVENT_HEADER)
    if whole is not None and read != whole:
        raise ValueError("shorter than it says")


def _head(data: bytes) -> tuple[dict[int, int], int]:
    """Read the fields (type, length, value) before the payload, and the place behind them."""
    fields, at = {}, PAYLOAD_START
    while data[at]:
        kind = data[at]
        length, at = read_packed(data, at + 1)
        fields[kind], _ = read_packed(data, at)
        at += length
    return fields, at + 1


def read_packed(data: bytes, at: int) -> tuple[int, int]:
    """Read a length-coded number; it and the place behind it.

    Raises:
        IndexError, KeyError: the bytes end before it, or it is none.
    """
    first = data[at]
    if first < 251:
        return first, at + 1
    # 251 and 255 stand for no number: they raise, and the caller refuses the event.
    size = {252: 2, 253: 3, 254: 8}[first]
    return int.from_bytes(data[at + 1 : at + 1 + size], "little"), at + 1 + size


def _exactly(stream: IO[bytes], size: int) -> bytes:
    """Read so many bytes, fewer only at the end."""
    found = stream.read(size)
    # A decompressing stream may give fewer bytes than were asked for, in the middle too.
    while len(found) < size and (more := stream.read(size - len(found))):
        found += more
    return found
