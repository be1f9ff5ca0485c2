"""Cells on their way into Spark and back: what Spark has no type for travels as text, bytes or wider numbers.

Belongs here: the pair `to_spark` and `from_spark`, each other's inverse for every type of the contract (`types.md`),
and the type that stands for one (`spark_type`).
Not here: files and frames.
"""

from __future__ import annotations

import uuid
from datetime import time
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def spark_type(kind: pa.DataType) -> pa.DataType:
    """Return the type under which Spark can hold a cell: text where it has none (types.md, section 2)."""
    if isinstance(kind, pa.BaseExtensionType):
        return pa.string()
    if pa.types.is_time(kind) or pa.types.is_duration(kind) or pa.types.is_decimal256(kind):
        return pa.string()
    # Spark's timestamps have microseconds; a cast would cut digits off, which `types.md` rules out.
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.string()
    if pa.types.is_unsigned_integer(kind):
        # Spark has signed numbers only; 64 unsigned bits have up to 20 digits.
        return {8: pa.int16(), 16: pa.int32(), 32: pa.int64(), 64: pa.decimal128(20, 0)}[kind.bit_width]
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_dictionary(kind):
        return spark_type(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(spark_type(kind.value_type))
    return kind


def to_spark(cells: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return cells as Spark can hold cells of the Arrow type `kind`; they may be of an older, narrower type.

    Raises:
        pa.ArrowInvalid, pa.ArrowNotImplementedError: a cell of the older type has no place in `kind`.
    """
    # First into the newest window's type, then into Spark's: what an older type means is told by the first step alone.
    if cells.type != kind and pa.types.is_list(cells.type) == pa.types.is_list(kind):
        cells = _cast_altered(cells, kind)
    wanted = spark_type(kind)
    if cells.type == wanted:
        return cells
    if pa.types.is_list(cells.type) and pa.types.is_list(wanted):
        return _list_like(cells, to_spark(cells.flatten(), kind.value_type), wanted)
    if _is_uuid(cells.type):
        return pa.array([None if cell is None else str(cell) for cell in map(_uuid, cells.to_pylist())], wanted)
    return cells.cast(wanted)


def from_spark(cells: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return cells that `to_spark` made back as the Arrow type `kind`.

    Raises:
        pa.ArrowInvalid: a text that is not one of `kind`.
    """
    if cells.type == kind:
        return cells
    if pa.types.is_list(kind):
        return _list_like(cells, from_spark(cells.flatten(), kind.value_type), kind)
    if _is_uuid(kind):
        stored = [None if cell is None else uuid.UUID(cell).bytes for cell in cells.to_pylist()]
        return pa.ExtensionArray.from_storage(kind, pa.array(stored, kind.storage_type))
    if pa.types.is_time(kind):
        return pa.array([None if cell is None else time.fromisoformat(cell) for cell in cells.to_pylist()], kind)
    return cells.cast(kind)


def _cast_altered(cells: pa.Array, kind: pa.DataType) -> pa.Array:
    """Bring cells of an altered column into its newer type, where Arrow knows the way."""
    if isinstance(kind, pa.BaseExtensionType) or isinstance(cells.type, pa.BaseExtensionType):
        return to_spark(cells, cells.type) if spark_type(cells.type) == spark_type(kind) else cells.cast(kind)
    return cells if pa.types.is_list(kind) else cells.cast(kind)


def _list_like(lists: pa.Array, items: pa.Array, kind: pa.DataType) -> pa.Array:
    """Build lists of the same lengths around other items; NULL lists stay NULL."""
    # `flatten` gave nothing of a NULL list, whatever lies under it: its length is 0 here.
    ends = pc.cumulative_sum(pc.fill_null(pc.list_value_length(lists), 0))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends.cast(pa.int32())])
    return pa.ListArray.from_arrays(offsets, items, type=kind, mask=lists.is_null())


def _is_uuid(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "arrow.uuid"


def _uuid(cell: Any) -> uuid.UUID | None:
    return cell if cell is None or isinstance(cell, uuid.UUID) else uuid.UUID(bytes=cell)
