"""Avro files of Rivet as rows again, with the types that the writer was given.

Belongs here: the way back of `avro_writer.py` and `avro_cells.py`. Not here: which parts (`commit/reader.py`).
"""

from __future__ import annotations

import base64
import io
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from rivet_resources.extras import AVRO
from rivet_resources.write.formats.avro_schema import (
    UINT64_DIGITS,
    avro_schema,
    decimal_width,
    is_json,
    is_uuid,
    plain_type,
)
from rivet_resources.write.formats.avro_writer import ARROW_SCHEMA, CODECS, MAGIC, unpack, varint

MOST_HEADER = 16 * 1024 * 1024
# Arrow's, of joined rows; packed and plain.
MOST_BLOCK = 2**31 - 1
SYNC_BYTES = 16


@dataclass(frozen=True)
class Header:
    """What a file says of itself."""

    schema: pa.Schema
    codec: str
    sync: bytes


def header(file: BinaryIO) -> Header:
    """Read the beginning of a file.

    Raises:
        pyarrow.ArrowInvalid: it is no Avro file, or none that Rivet wrote.
    """
    # Each length is checked before it is used: a damaged file must end in an error of ours, not in a request for
    # terabytes.
    if file.read(len(MAGIC)) != MAGIC:
        raise pa.ArrowInvalid("it does not begin as one")
    held: dict[bytes, bytes] = {}
    # Blocks of a map end with an empty one. A negative count, with a size behind it, Rivet's writer never has.
    while count := _number(file):
        for _ in range(count):
            name = _exactly(file, _number(file), MOST_HEADER)
            held[name] = _exactly(file, _number(file), MOST_HEADER)
    sync = _exactly(file, SYNC_BYTES, SYNC_BYTES)
    codec = held.get(b"avro.codec", b"null").decode(errors="replace")
    if ARROW_SCHEMA.encode() not in held or codec not in CODECS.values():
        raise pa.ArrowInvalid("it is not one that Rivet wrote")
    try:
        schema = pa.ipc.read_schema(pa.BufferReader(base64.b64decode(held[ARROW_SCHEMA.encode()], validate=True)))
        # A name that is no UTF-8 is met by who asks for it, and nobody later expects that.
        _read_names(schema)
    except (ValueError, OSError) as error:
        raise pa.ArrowInvalid("its schema does not unpack") from error
    return Header(schema, codec, sync)


def _read_names(fields: Iterable[pa.Field]) -> None:
    """Read every name, also of nested fields.

    Raises:
        ValueError: one is no UTF-8.
    """
    for each in fields:
        str(each.name)
        _read_names(each.type.field(place) for place in range(each.type.num_fields))


def blocks(file: BinaryIO, head: Header) -> Iterator[tuple[int, bytes]]:
    """Yield each block behind the header: how many rows, and their bytes.

    Raises:
        pyarrow.ArrowInvalid: a block is damaged, or the file is cut.
    """
    while first := file.read(1):
        count = _number(file, first)
        packed = _exactly(file, _number(file), MOST_BLOCK)
        # The marker is all that says a block ended where its length claims.
        if _exactly(file, SYNC_BYTES, SYNC_BYTES) != head.sync:
            raise pa.ArrowInvalid("a block does not end where it says")
        try:
            yield count, unpack(packed, head.codec, MOST_BLOCK)
        except (ValueError, OSError, zlib.error) as error:
            raise pa.ArrowInvalid("a block does not unpack") from error


def tables(file: BinaryIO) -> Iterator[pa.Table]:
    """Yield the rows of an open file, a block at a time.

    Raises:
        pyarrow.ArrowInvalid: the file is damaged.
        ExtraMissing: the extra `avro` is not installed.
    """
    AVRO.require()
    head = header(file)
    raw = _raw_record(head.schema)
    begin = _plain_header(raw)
    for count, content in blocks(file, head):
        # A file of one plain block: so the codec and the limits are ours, and fastavro decodes rows only.
        rows = _decode(begin + varint(count) + varint(len(content)) + content + bytes(SYNC_BYTES), count)
        columns = [_array([row[field.name] for row in rows], field.type) for field in head.schema]
        if columns:
            yield pa.table(columns, schema=head.schema)
        else:
            yield pa.table({"": pa.nulls(count)}).select([])


def _decode(content: bytes, count: int) -> list[Any]:
    import fastavro  # driver

    try:
        # `fastavro` takes the blocks apart, by a schema without logical types: its dates would end at the year 9999,
        # its decimals at the precision of Python's context.
        rows = list(fastavro.reader(io.BytesIO(content)))
    except Exception as error:
        # It raises whatever a byte leads it to; its texts may show a cell.
        raise pa.ArrowInvalid(f"a block holds no rows of its schema ({type(error).__name__})") from None
    if len(rows) != count:
        raise pa.ArrowInvalid("a block holds another number of rows than it says")
    return rows


def _plain_header(record: Any) -> bytes:
    """Return the header of an uncompressed file with a schema and a marker of zeros."""
    schema = json.dumps(record).encode()
    name = b"avro.schema"
    return MAGIC + varint(1) + varint(len(name)) + name + varint(len(schema)) + schema + b"\0" + bytes(SYNC_BYTES)


def _number(file: BinaryIO, first: bytes = b"") -> int:
    """Read a varint that is not negative."""
    zigzag = shift = 0
    while shift < 64:
        byte = first or file.read(1)
        first = b""
        if not byte:
            raise pa.ArrowInvalid("it is cut short")
        zigzag |= (byte[0] & 127) << shift
        shift += 7
        if byte[0] < 128:
            # Odd is negative in zigzag, and no length is.
            if zigzag & 1:
                break
            return zigzag >> 1
    raise pa.ArrowInvalid("a length in it is none")


def _exactly(file: BinaryIO, size: int, most: int) -> bytes:
    if size > most:
        raise pa.ArrowInvalid("a length in it is too large")
    content = file.read(size)
    if len(content) != size:
        raise pa.ArrowInvalid("it is cut short")
    return content


def _raw_record(schema: pa.Schema) -> Any:
    """Return the schema of the file without logical types, and with floats as the bytes they are."""
    return _raw(avro_schema(schema))


def _raw(described: Any) -> Any:
    # Named types must differ within an Avro schema; the file's own names say nothing that the rows need, since fields
    # are found by theirs.
    names = iter(range(1_000_000_000))

    def walk(kind: Any) -> Any:
        if isinstance(kind, list):
            return [walk(each) for each in kind]
        # A float of 32 bits that passes through one of Python's may come back with other bits of its NaN.
        if kind in ("float", "double"):
            return {"type": "fixed", "name": f"f{next(names)}", "size": 4 if kind == "float" else 8}
        if not isinstance(kind, dict):
            return kind
        inner = kind["type"]
        if inner == "record":
            fields = [{"name": each["name"], "type": walk(each["type"])} for each in kind["fields"]]
            return {"type": "record", "name": f"r{next(names)}", "fields": fields}
        if inner == "array":
            return {"type": "array", "items": walk(kind["items"])}
        if inner == "map":
            return {"type": "map", "values": walk(kind["values"])}
        if inner == "fixed":
            return {"type": "fixed", "name": f"f{next(names)}", "size": kind["size"]}
        return inner

    return walk(described)


def _array(cells: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Build a column of what `fastavro` decoded."""
    if pa.types.is_dictionary(kind):
        return _array(cells, kind.value_type).cast(kind)
    plain = plain_type(kind)
    if plain != kind:
        return _array(cells, plain).cast(kind)
    if is_uuid(kind):
        found = [None if cell is None else bytes.fromhex(cell.replace("-", "")) for cell in cells]
        return pa.ExtensionArray.from_storage(kind, pa.array(found, pa.binary(16)))
    if is_json(kind):
        return pa.ExtensionArray.from_storage(kind, pa.array(cells, pa.string()).cast(kind.storage_type))
    if pa.types.is_nested(kind):
        return _nested(cells, kind)
    if kind == pa.uint64() or pa.types.is_decimal(kind):
        return _decimals(cells, kind)
    if pa.types.is_floating(kind):
        return _floats(cells, kind)
    if pa.types.is_temporal(kind):
        return _times(cells, kind)
    return pa.array(cells, kind)


def _nested(cells: Sequence[Any], kind: pa.DataType) -> pa.Array:
    absent = pa.array([cell is None for cell in cells], pa.bool_())
    if pa.types.is_struct(kind):
        children = [_array([None if c is None else c[child.name] for c in cells], child.type) for child in kind]
        if not children:
            return pa.array(cells, kind)
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=absent)
    ends = np.zeros(len(cells) + 1, np.int32)
    np.cumsum([len(cell or ()) for cell in cells], out=ends[1:])
    if pa.types.is_map(kind):
        names = pa.array([name for cell in cells for name in cell or ()], kind.key_type)
        values = _array([each for cell in cells for each in (cell or {}).values()], kind.item_type)
        # Maps know NULL by their offsets; there is one more of these than cells.
        starts = pa.array(ends, mask=np.append([cell is None for cell in cells], False).astype(bool))
        return pa.MapArray.from_arrays(starts, names, values, type=kind)
    values = _array([each for cell in cells for each in cell or ()], kind.value_type)
    return pa.ListArray.from_arrays(pa.array(ends), values, type=kind, mask=absent)


def _times(cells: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Build a column of days or ticks, in the unit that the file has."""
    if pa.types.is_date(kind):
        return pa.array(cells, pa.int32()).view(pa.date32()).cast(kind)
    if kind.unit == "s":
        wire = pa.time32("ms") if pa.types.is_time(kind) else pa.timestamp("ms", kind.tz)
        return _times(cells, wire).cast(kind)
    ticks = pa.int32() if kind.bit_width == 32 else pa.int64()
    return pa.array(cells, ticks).view(kind)


def _floats(cells: Sequence[Any], kind: pa.DataType) -> pa.Array:
    width = 8 if kind == pa.float64() else 4
    wire = pa.float64() if width == 8 else pa.float32()
    found = _of_width(cells, width, lambda content: content, wire)
    return found.cast(kind)


def _decimals(cells: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Build decimals of their two's complement; the sign fills what Arrow has more."""
    if kind == pa.uint64():
        # Avro's decimals begin with their highest byte, Arrow's numbers with their lowest.
        return _of_width(cells, decimal_width(UINT64_DIGITS), lambda content: content[:, ::-1][:, :8], kind)
    wide = kind if pa.types.is_decimal256(kind) else pa.decimal128(kind.precision, kind.scale)
    size = wide.bit_width // 8

    def widen(content: Any) -> Any:
        # Two's complement: what is wider repeats the sign.
        sign = np.where(content[:, :1] & 128, 255, 0).astype(np.uint8)
        fill = np.repeat(sign, size - content.shape[1], axis=1)
        return np.concatenate([content[:, ::-1], fill], axis=1)

    return _of_width(cells, decimal_width(kind.precision), widen, wide).cast(kind)


def _of_width(cells: Sequence[Any], width: int, shape: Callable[[Any], Any], kind: pa.DataType) -> pa.Array:
    """Build a column of cells that all have `width` bytes."""
    zeros = bytes(width)
    if any(cell is not None and len(cell) != width for cell in cells):
        raise pa.ArrowInvalid("a number in it has another width than Rivet writes")
    # Cells of one width come as bytes, so that no bit of them changes.
    content = np.frombuffer(b"".join(zeros if cell is None else cell for cell in cells), np.uint8)
    matrix = np.ascontiguousarray(shape(content.reshape(len(cells), width)))
    valid = pa.array([cell is not None for cell in cells], pa.bool_()).buffers()[1] if len(cells) else None
    return pa.Array.from_buffers(kind, len(cells), [valid, pa.py_buffer(matrix.tobytes())])
