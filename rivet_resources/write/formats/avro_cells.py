"""Rows as Avro spells them, a column at a time.

Belongs here: bytes of cells, lists and records. Not here: blocks and files (`avro_writer.py`), which type a column is
(`avro_schema.py`). Source: Apache Avro 1.12.0 specification, "Binary Encoding".

Every column becomes a few arrays of bytes, and Arrow joins those row by row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources.errors import ValueDoesNotFit
from rivet_resources.shape.cell_text import renderer
from rivet_resources.write.formats.avro_schema import UINT64_DIGITS, decimal_width, is_json, is_uuid, plain_type
from rivet_resources.write.formats.varints import ragged, varints

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]
Present = npt.NDArray[np.bool_]
Pieces = list[pa.Array | pa.Scalar]

# The number of a branch of [null, type], as a varint.
NULL, PRESENT = 0, 2


def render(batch: pa.RecordBatch) -> memoryview:
    """Spell rows; the batch must be small enough for its bytes to stay below 2 GB.

    Raises:
        ValueDoesNotFit: a column that was declared without NULL holds one.
    """
    rows = render_rows(batch)
    if not len(rows):
        return memoryview(b"")
    offsets = np.frombuffer(rows.buffers()[1], np.int32)[rows.offset :]
    return memoryview(rows.buffers()[2] or b"")[offsets[0] : offsets[len(rows)]]


def render_rows(batch: pa.RecordBatch, head: bytes = b"") -> pa.BinaryArray:
    """Spell rows as records, each by itself, behind a head that is the same for all.

    Raises:
        ValueDoesNotFit: a column that was declared without NULL holds one.
    """
    pieces: Pieces = [pa.scalar(head, pa.binary())] if head else []
    for column, field in zip(batch.columns, batch.schema, strict=True):
        # Before the bytes: a column without NULL has no mark in the record, so there is no way to write one.
        if column.null_count and not field.nullable:
            raise ValueDoesNotFit(
                f"Column {field.name} is declared without NULL and holds {column.null_count}, so no record of Avro can "
                f"have them. Clean the source, or read the column by a query, which allows NULL."
            )
        pieces += _cells(column, field)
    if batch.num_rows == 0 or not pieces:
        return pa.array([b""] * (batch.num_rows if head else 0), pa.binary())
    if all(isinstance(each, pa.Scalar) for each in pieces):  # columns without a cell to spell
        pieces.append(pa.array([b""] * batch.num_rows, pa.binary()))
    return _join(pieces)


def _cells(column: pa.Array, field: pa.Field) -> Pieces:
    """Spell one column; the pieces of a NULL are its mark alone."""
    kind = plain_type(field.type)
    if pa.types.is_null(kind):
        return []
    if isinstance(kind, pa.BaseExtensionType):
        column, kind = _text_of(column, kind), pa.string()
    elif column.type != kind:
        column = column.cast(kind)
    present = column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else None
    if pa.types.is_struct(kind):
        return _structs(column, kind, present, is_nullable=field.nullable)
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        return _lists(column, kind, present, is_nullable=field.nullable)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        lengths = pc.binary_length(column).fill_null(0).to_numpy().astype(np.int64)
        return [*_heads(lengths, present, is_nullable=field.nullable), column.cast(pa.binary())]
    if _is_varint(kind):
        return _heads(_numbers(column, kind), present, is_nullable=field.nullable)
    return _fixed(_matrix(column, kind), present, is_nullable=field.nullable)


def _join(pieces: Sequence[pa.Array | pa.Scalar]) -> pa.BinaryArray:
    """Join the pieces of each row."""
    if len(pieces) == 1:
        return pieces[0]
    # `fastavro` takes Python rows: 1 M narrow rows cost it many times the CPU (docs/formats/avro.md has the figures).
    return pc.binary_join_element_wise(*pieces, b"", null_handling="replace", null_replacement="")


def _text_of(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the text of uuids and JSON."""
    if is_json(kind):
        return column.storage.cast(pa.string())
    assert is_uuid(kind), "refused by check_schema"
    spell = renderer(pa.binary(16), is_uuid=True)
    assert spell is not None
    return spell(column.storage).cast(pa.string())


def _is_varint(kind: pa.DataType) -> bool:
    return bool(kind != pa.uint64() and (pa.types.is_integer(kind) or pa.types.is_temporal(kind)))


def _numbers(column: pa.Array, kind: pa.DataType) -> Numbers:
    """Return integers, days and ticks in the unit of their logical type; 0 for NULL."""
    if pa.types.is_date64(kind):
        column = column.cast(pa.date32())
    elif (pa.types.is_time(kind) or pa.types.is_timestamp(kind)) and kind.unit == "s":
        column = column.cast(pa.time32("ms") if pa.types.is_time(kind) else pa.timestamp("ms", kind.tz))
    if pa.types.is_temporal(column.type):
        column = column.view(pa.int32() if column.type.bit_width == 32 else pa.int64())
    return np.asarray(column.fill_null(0).to_numpy()).astype(np.int64)


def _matrix(column: pa.Array, kind: pa.DataType) -> Bytes:
    """Return the bytes of cells that all have one width, as rows."""
    if pa.types.is_boolean(kind):
        bits: Bytes = column.fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint8)
        return bits.reshape(-1, 1)
    if pa.types.is_floating(kind):
        width = 8 if kind == pa.float64() else 4
        floats = column.cast(pa.float32()) if kind == pa.float16() else column
        return _raw(floats, width)
    if pa.types.is_fixed_size_binary(kind):
        return _raw(column, kind.byte_width)
    if kind == pa.uint64():
        # With room for a sign, which an Avro decimal has always.
        low, wide = _raw(column, 8), decimal_width(UINT64_DIGITS)
        return _counted(np.concatenate([np.zeros((len(low), wide - 8), np.uint8), low[:, ::-1]], axis=1))
    if not pa.types.is_decimal256(kind):
        column, kind = column.cast(pa.decimal128(kind.precision, kind.scale)), pa.decimal128(kind.precision, kind.scale)
    # Arrow has the low byte first, Avro the high one, and only as many as the precision needs.
    return _counted(_raw(column, kind.bit_width // 8)[:, : decimal_width(kind.precision)][:, ::-1])


def _raw(column: pa.Array, width: int) -> Bytes:
    """Return the memory of cells, as rows of bytes; what stands at NULL means nothing."""
    start = column.offset * width
    held = column.buffers()[1]
    content = np.frombuffer(held, np.uint8) if held is not None else np.zeros(0, np.uint8)
    return content[start : start + len(column) * width].reshape(len(column), width)


def _counted(matrix: Bytes) -> Bytes:
    """Put the number of bytes before each cell, which is small enough for a varint of one byte."""
    count = np.full((len(matrix), 1), matrix.shape[1] << 1, np.uint8)
    return np.concatenate([count, matrix], axis=1)


def _heads(numbers: Numbers, present: Present | None, *, is_nullable: bool) -> Pieces:
    """Spell integers as varints, behind the mark of NULL where the column may hold one."""
    # Zigzag: the sign goes into the lowest bit, so that small negative numbers are short as well.
    zigzag = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    matrix, lengths = varints(zigzag)
    return _marked(matrix, lengths, present, is_nullable=is_nullable)


def _fixed(matrix: Bytes, present: Present | None, *, is_nullable: bool) -> Pieces:
    lengths = np.full(len(matrix), matrix.shape[1], np.int64)
    return _marked(matrix, lengths, present, is_nullable=is_nullable)


def _marked(matrix: Bytes, lengths: Numbers, present: Present | None, *, is_nullable: bool) -> Pieces:
    """Return the first `lengths` bytes of each row, and before them the mark where a column is nullable."""
    if present is None:
        mark = [pa.scalar(bytes([PRESENT]), pa.binary())] if is_nullable else []  # at import it would load pandas
        return [*mark, ragged(matrix, lengths)]
    # Inside a struct that is NULL itself, which leaves them out.
    if not is_nullable:
        return [ragged(matrix, lengths)]
    marks = np.where(present, PRESENT, NULL).astype(np.uint8).reshape(-1, 1)
    return [ragged(np.concatenate([marks, matrix], axis=1), np.where(present, lengths + 1, 1))]


def _marks(rows: int, present: Present | None, *, is_nullable: bool) -> Pieces:
    """Return the marks alone."""
    return _marked(np.zeros((rows, 0), np.uint8), np.zeros(rows, np.int64), present, is_nullable=is_nullable)


def _structs(column: pa.StructArray, kind: pa.StructType, present: Present | None, *, is_nullable: bool) -> Pieces:
    """Spell records inside records; one that is NULL has no members."""
    pieces: Pieces = []
    for child, cells in zip(kind, column.flatten(), strict=True):
        pieces += _cells(cells, child)
    marks = _marks(len(column), present, is_nullable=is_nullable)
    if present is None or not pieces:
        return marks + pieces
    return [*marks, pc.if_else(pa.array(present), _join([*pieces, pa.array([b""] * len(column), pa.binary())]), None)]


def _lists(column: pa.Array, kind: pa.DataType, present: Present | None, *, is_nullable: bool) -> Pieces:
    """Spell lists and maps: their count, the items, and a zero behind them; of an empty one the zero alone."""
    if pa.types.is_map(kind):
        entry = pa.struct([kind.key_field, kind.item_field])
        kind = pa.list_(pa.field("entry", entry, nullable=False))
        column = column.cast(kind)
    counts = pc.list_value_length(column).fill_null(0).to_numpy().astype(np.int64)
    items = column.flatten()
    bounds = np.concatenate([[0], np.cumsum(counts)])
    pieces = _cells(items, kind.value_field)
    # An array even where all pieces are marks.
    joined = _join([*pieces, pa.array([b""] * len(items), pa.binary())])
    ends = np.frombuffer(joined.buffers()[1], np.int32)[joined.offset :][: len(items) + 1]
    ends = ends if len(ends) else np.zeros(1, np.int32)
    starts = pa.py_buffer(np.ascontiguousarray(ends[bounds]))
    content = pa.Array.from_buffers(pa.binary(), len(column), [None, starts, joined.buffers()[2]])
    # Items come in blocks, each with its count; a count of zero ends them, and is all of an empty list.
    closing = ragged(np.zeros((len(column), 1), np.uint8), (counts > 0).astype(np.int64))
    return [*_heads(counts, present, is_nullable=is_nullable), content, closing]
