"""Arrow IPC as an untrusted module wrote it, as a schema or a batch that nothing can be broken with.

Belongs here: what is refused of such bytes. Not here: whether columns are those that were planned
(`transforms/wasm.py`).

Arrow checks the messages themselves, and with `validate(full=True)` every offset and text. What it does not bound is
packed content, which may unpack to any size; so batches must be plain: then a batch is never larger than the answer,
and an answer never larger than the module's memory. Source: Arrow Columnar Format 1.5, "Encapsulated message format",
`Message.fbs`; FlatBuffers internals ("Tables": a signed offset to a vtable of 16-bit offsets, 0 for a field left out).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa

CONTINUATION = b"\xff\xff\xff\xff"
SCHEMA, RECORD_BATCH = 1, 3  # MessageHeader; 2 are dictionaries
HEADER_TYPE, HEADER, BODY_LENGTH = 1, 2, 3  # fields of Message
COMPRESSION = 3  # field of RecordBatch
MOST_NAME = 255


class OutputRefused(Exception):
    """An answer is not what was asked for; the message says so without a value, and ends without a full stop."""


def schema_of(answer: bytes) -> pa.Schema:
    """Read an answer as a schema.

    Raises:
        OutputRefused
    """
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(answer))
        names = [name.encode() for name in schema.names]
    except (pa.ArrowException, UnicodeError, ValueError, OSError):
        raise OutputRefused("planned something that is no Arrow schema") from None
    # Names go into messages, file paths and SQL of readers; control characters in them could forge lines there.
    if any(not 0 < len(name) <= MOST_NAME or not name.isprintable() for name in map(bytes.decode, names)):
        raise OutputRefused(f"planned a column whose name is empty, not printable, or longer than {MOST_NAME} bytes")
    return schema


def batch_of(answer: bytes) -> pa.Table:
    """Read an answer as one batch: a stream of its schema and it.

    Raises:
        OutputRefused
    """
    try:
        kinds = list(_messages(answer))
    except (struct.error, IndexError):
        kinds = []
    # Before Arrow reads anything: a packed column of a few bytes may ask for gigabytes when it is opened.
    if kinds != [(SCHEMA, False), (RECORD_BATCH, False)]:
        raise OutputRefused("answered with something other than one plain batch: a schema, then unpacked columns")
    try:
        table = pa.ipc.open_stream(pa.py_buffer(answer)).read_all()
        # `full`: offsets of a list or a text may lead outside its buffer, and the plain check does not follow them.
        table.validate(full=True)
    except (pa.ArrowException, UnicodeError, ValueError, OSError):
        raise OutputRefused("answered with a batch that is damaged") from None
    return table


def _messages(stream: bytes) -> Iterator[tuple[int, bool]]:
    """Yield (kind, whether its content is packed) of each message.

    Raises:
        struct.error, IndexError: an offset leads out of the bytes.
    """
    at = 0
    while at < len(stream):
        if stream[at : at + 4] == CONTINUATION:
            at += 4
        (length,) = struct.unpack_from("<i", stream, at)
        at += 4
        if length == 0:  # the end of the stream
            return
        message = memoryview(stream)[at : at + length]
        root = _table(message, 0)
        kind = _scalar(message, root, HEADER_TYPE, "<B")
        body = _scalar(message, root, BODY_LENGTH, "<q")
        # A negative length would lead backwards, and this loop round and round.
        if length < 0 or body < 0:
            raise IndexError
        header = _table(message, root + _offset(message, root, HEADER))
        yield kind, kind == RECORD_BATCH and _offset(message, header, COMPRESSION) != 0
        at += length + body


def _table(message: memoryview, at: int) -> int:
    """Follow an unsigned offset to a table."""
    (offset,) = struct.unpack_from("<I", message, at)
    return at + int(offset)


def _offset(message: memoryview, table: int, field: int) -> int:
    """Return where a field lies from its table on; 0 where it was left out."""
    (back,) = struct.unpack_from("<i", message, table)
    vtable = table - back
    # Python would count from the end.
    if vtable < 0:
        raise IndexError
    (size,) = struct.unpack_from("<H", message, vtable)
    place = 4 + 2 * field
    return int(struct.unpack_from("<H", message, vtable + place)[0]) if place < size else 0


def _scalar(message: memoryview, table: int, field: int, form: str) -> int:
    """Read a number; 0 where it was left out."""
    offset = _offset(message, table, field)
    return int(struct.unpack_from(form, message, table + offset)[0]) if offset else 0
