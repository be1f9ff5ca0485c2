"""Rows as messages of Protobuf, a column at a time.

Belongs here: bytes of fields. Not here: which type and number a column has (`schema_registry/languages/protobuf.py`),
the frame of Kafka messages (`write/messages/encode.py`). Source: Protocol Buffers documentation, "Encoding".

As Google's serializers do: fields in the order of their numbers, NULL is absent, and an empty message has no bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources.errors import UnsupportedColumn, ValueDoesNotFit
from rivet_resources.shape.cell_text import renderer
from rivet_resources.write.formats.avro_schema import is_json, is_uuid, plain_type
from rivet_resources.write.formats.varints import ragged, varints

# Field numbers by column; of a column that is a row itself also those of its members.
Numbers = Mapping[str, tuple[int, "Numbers | None"]]
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types
NANOS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}  # ticks of a second
FIRST_INSTANT, LAST_INSTANT = -62_135_596_800, 253_402_300_799  # of a Timestamp: years 1 to 9999, in seconds


def check_columns(schema: pa.Schema) -> None:
    """Refuse columns that have no text, before a row is read; what Protobuf has no type for, its language refuses.

    Raises:
        UnsupportedColumn
    """
    for field in schema:
        kind = plain_type(field.type)
        has_clock = pa.types.is_time(kind) or (pa.types.is_timestamp(kind) and not kind.tz)
        if has_clock and renderer(kind, is_uuid=False) is None:
            raise UnsupportedColumn(
                f"Column {field.name} is {kind}, and messages of Protobuf have such times as text, with microseconds. "
                f"Use `format: avro`, or round it: `columns: {{{field.name}: timestamp}}`."
            )


def render_rows(batch: pa.RecordBatch, head: bytes, numbers: Numbers) -> pa.BinaryArray:
    """Spell rows as messages, each by itself, behind a head that is the same for all.

    Raises:
        ValueDoesNotFit: an instant is outside the years 1 to 9999.
    """
    return _messages(batch.columns, list(batch.schema), numbers, rows=batch.num_rows, head=head)


def _messages(
    columns: list[pa.Array], fields: list[pa.Field], numbers: Numbers, *, rows: int, head: bytes
) -> pa.BinaryArray:
    # By number and not by place: equal rows then have equal bytes, whatever order the table's columns are in.
    order = sorted(range(len(fields)), key=lambda place: numbers[fields[place].name][0])
    pieces = [pa.array([head] * rows, pa.binary())] if head or not order else []
    for place in order:
        number, inside = numbers[fields[place].name]
        pieces += _field(columns[place], fields[place], number, inside)
    return pc.binary_join_element_wise(*pieces, b"", null_handling="replace", null_replacement="")


def _field(column: pa.Array, field: pa.Field, number: int, inside: Numbers | None) -> list[pa.Array]:
    """Spell one column: pieces that are joined row by row, NULL where there is no cell."""
    kind = plain_type(field.type)
    if pa.types.is_struct(kind):
        assert inside is not None, "a row has members, and they have numbers"
        rows = _messages(column.flatten(), list(kind), inside, rows=len(column), head=b"")
        return _sized(rows, number, column.is_valid())
    if pa.types.is_timestamp(kind) and kind.tz:
        return _sized(_instants(column, kind, field.name), number, column.is_valid())
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        # Negative numbers of any width are ten bytes: their 64 bits, as if they had no sign.
        bits = np.asarray(column.cast(pa.uint64() if kind == pa.uint64() else pa.int64()).fill_null(0)).view(np.uint64)
        return _masked([_tags(number, VARINT, len(column)), _varints(bits)], column.is_valid())
    if pa.types.is_floating(kind):
        is_wide = kind == pa.float64()
        tags = _tags(number, FIXED64 if is_wide else FIXED32, len(column))
        wide = column.cast(pa.float64() if is_wide else pa.float32()).fill_null(0)
        content = np.ascontiguousarray(np.asarray(wide)).view(np.uint8).reshape(len(column), 8 if is_wide else 4)
        return _masked([tags, ragged(content, np.full(len(column), content.shape[1], np.int64))], column.is_valid())
    return _sized(_text_of(column, field).cast(pa.binary()), number, column.is_valid())


def _text_of(column: pa.Array, field: pa.Field) -> pa.Array:
    """Return texts and bytes as they are, and as CSV writes it what Protobuf has no type for."""
    if is_json(field.type):
        return column.storage.cast(pa.string())
    if is_uuid(field.type):
        spell = renderer(pa.binary(16), is_uuid=True)
        assert spell is not None
        return spell(column.storage).cast(pa.string())
    kind = plain_type(field.type)
    column = column.cast(kind) if column.type != kind else column
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return column
    if pa.types.is_fixed_size_binary(kind):
        return column.cast(pa.binary())
    spell = renderer(kind, is_uuid=False)
    return column.cast(pa.string()) if spell is None else spell(column).cast(pa.string())


def _instants(column: pa.Array, kind: pa.TimestampType, name: str) -> pa.BinaryArray:
    """Spell instants as messages of seconds since 1970 and nanoseconds, which are never negative."""
    per_second = NANOS[kind.unit]
    ticks = np.asarray(column.view(pa.int64()).fill_null(0))
    # Floor and not toward zero: nanoseconds count forward also before 1970. Source: `timestamp.proto`, field `nanos`.
    seconds, rest = np.floor_divide(ticks, per_second), np.mod(ticks, per_second)
    if len(seconds) and (seconds.min() < FIRST_INSTANT or seconds.max() > LAST_INSTANT):
        raise ValueDoesNotFit(
            f"Column {name} holds an instant outside the years 1 to 9999, which a google.protobuf.Timestamp cannot. "
            f"Use `format: avro`, or set the column's `on_special` policy."
        )
    nanos = rest * (1_000_000_000 // per_second)
    rows = len(column)
    pieces = [
        # An instant is a `google.protobuf.Timestamp`, whose members have no presence of their own, so that zero is
        # absent too.
        *_masked([_tags(1, VARINT, rows), _varints(seconds.view(np.uint64))], pa.array(seconds != 0)),
        *_masked([_tags(2, VARINT, rows), _varints(nanos.view(np.uint64))], pa.array(nanos != 0)),
    ]
    return pc.binary_join_element_wise(*pieces, b"", null_handling="replace", null_replacement="")


def _sized(content: pa.Array, number: int, present: pa.BooleanArray) -> list[pa.Array]:
    """Put the field's tag and the number of bytes before each cell."""
    lengths = np.asarray(pc.binary_length(content).fill_null(0)).astype(np.uint64)
    return _masked([_tags(number, BYTES, len(content)), _varints(lengths), content], present)


def _masked(pieces: list[pa.Array], present: pa.Array) -> list[pa.Array]:
    """Leave out the pieces of cells that are not there."""
    if pc.all(present).as_py() is not False:
        return pieces
    return [pc.if_else(present, piece, pa.scalar(None, pa.binary())) for piece in pieces]


def _tags(number: int, wire: int, rows: int) -> pa.BinaryArray:
    (tag,) = _varints(np.array([number << 3 | wire], np.uint64)).to_pylist()
    return pa.array([tag] * rows, pa.binary())


def _varints(numbers: npt.NDArray[np.uint64]) -> pa.BinaryArray:
    return ragged(*varints(numbers))
