"""The bytes of a cell that its checksum is made of (`contract.md`, 10.2, form B).

Belongs here: what each Arrow type's cell is as bytes. Not here: the hash (`xxh3.py`), sums (`sums.py`).

Published by the original: numbers, dates, and times and timestamps in microseconds are little-endian; booleans one
byte; text and binary raw; a list is, per element, a tag, the length as u32, and the element's bytes. Ours, where the
original counts nothing: seconds and milliseconds count as their microseconds (a Parquet file keeps no seconds),
nanoseconds as their own number; small and unsigned integers have their own width; decimals of up to 64 bits count as
128 bits; extension types as what they are stored as; dictionaries as their values. Elements of any other type have
tag 8; a struct is its fields one after the other, each framed as an element; a map is a list of such pairs.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]

# Bytes before an element: its tag and its length.
HEAD = 5
NULL_TAG, OTHER_TAG = 0, 8
TAGS: Mapping[pa.DataType, int] = {
    pa.bool_(): 1, pa.int16(): 2, pa.int32(): 3, pa.int64(): 4, pa.float32(): 5, pa.float64(): 6,
    pa.string(): 7, pa.large_string(): 7, pa.string_view(): 7,
}  # fmt: skip
# What one of the unit is; finer units keep their number.
MICROSECONDS = {"s": 1_000_000, "ms": 1_000}


def plain(column: pa.Array) -> pa.Array:
    """Return the same cells as an array whose buffers are their bytes: booleans, numbers, binary; nested ones stay.

    NULL stays NULL.
    """
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return plain(column.storage)
    if pa.types.is_dictionary(kind):
        return plain(column.dictionary_decode())
    if pa.types.is_run_end_encoded(kind):
        return plain(pc.run_end_decode(column))
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        # Large offsets: a view's bytes may lie in several buffers and pass 2 GB together.
        return column.cast(pa.large_binary())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        # A view and no cast: text is checked UTF-8 already, and its bytes are what is hashed.
        return column.view(pa.binary() if pa.types.is_string(kind) else pa.large_binary())
    if pa.types.is_decimal32(kind) or pa.types.is_decimal64(kind):
        return column.cast(pa.decimal128(kind.precision, kind.scale))
    if (pa.types.is_timestamp(kind) or pa.types.is_time(kind)) and kind.unit in MICROSECONDS:
        numbers = column.view(pa.int32() if kind.bit_width == 32 else pa.int64()).cast(pa.int64())
        return pc.multiply(numbers, pa.scalar(MICROSECONDS[kind.unit], pa.int64()))
    if pa.types.is_map(kind):
        return column.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return column.cast(pa.large_list(kind.value_field))
    return column


def is_known(kind: pa.DataType) -> bool:
    """Return whether cells of a type have bytes here: all but unions."""
    if isinstance(kind, pa.BaseExtensionType):
        return is_known(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return is_known(kind.value_type)
    if pa.types.is_nested(kind):
        return not pa.types.is_union(kind) and all(is_known(child.type) for child in _children(kind))
    return True


def _children(kind: pa.DataType) -> list[pa.Field]:
    """List the fields of a nested type."""
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return list(kind) if pa.types.is_struct(kind) else [kind.value_field]


def width_of(kind: pa.DataType) -> int | None:
    """Return the bytes that every cell of a plain type has; None for booleans, texts and nested types."""
    if pa.types.is_boolean(kind) or pa.types.is_null(kind) or pa.types.is_nested(kind):
        return None
    if pa.types.is_fixed_size_binary(kind):
        return int(kind.byte_width)
    try:
        return int(kind.bit_width) // 8
    except ValueError:  # of varying length
        return None


def raw(column: pa.Array, width: int) -> Bytes:
    """Look at the bytes of a plain array of fixed width, as many as its cells have."""
    buffer = column.buffers()[1]
    if buffer is None or not width:
        return np.empty(0, np.uint8)
    return np.frombuffer(buffer, np.uint8, len(column) * width, column.offset * width)


def as_binary(column: pa.Array) -> pa.Array:
    """Return a plain array's cells as binary ones, none of them NULL: NULL is left out before."""
    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return column
    if pa.types.is_null(kind):
        return pa.array([], pa.binary())
    if pa.types.is_nested(kind):
        return _binary(*_lay_out_nested(column))
    if pa.types.is_boolean(kind):
        column = column.cast(pa.uint8())
    width = width_of(column.type)
    assert width is not None
    return _binary(raw(column, width), np.full(len(column), width, np.int64))


def _binary(values: Bytes, lengths: Places) -> pa.Array:
    """Make a binary array of cells that lie one behind the other."""
    offsets = _ends(lengths)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.large_binary(), len(lengths), buffers)


def _lay_out_nested(column: pa.Array) -> tuple[Bytes, Places]:
    """Lay out the cells of lists, maps and structs, none of them NULL: all bytes, and the length of each cell."""
    if pa.types.is_struct(column.type):
        return _side_by_side([_frame_elements(child) for child in column.flatten()], len(column))
    kind = column.type
    if pa.types.is_fixed_size_list(kind):
        counts = np.full(len(column), kind.list_size, np.int64)
    else:
        counts = pc.list_value_length(column).to_numpy().astype(np.int64)
    # `flatten` and not `values`: it leaves out what lies before a slice, and under NULLs.
    values, lengths = _frame_elements(column.flatten())
    behind = _ends(lengths)[_ends(counts)]
    return values, np.diff(behind)


def _frame_elements(elements: pa.Array) -> tuple[Bytes, Places]:
    """Frame each element: tag, length, bytes; all of them, and the length of each with its head."""
    present = elements.is_valid().to_numpy(zero_copy_only=False)
    tag = TAGS.get(elements.type, OTHER_TAG)
    cells = as_binary(plain(elements.drop_null() if elements.null_count else elements))
    places = cells.buffers()[1]
    if len(cells):
        kind = np.dtype("<i8" if pa.types.is_large_binary(cells.type) else "<i4")
        offsets = np.frombuffer(places, kind, len(cells) + 1, cells.offset * kind.itemsize).astype(np.int64)
        values = np.frombuffer(cells.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    else:
        offsets, values = np.zeros(1, np.int64), np.empty(0, np.uint8)
    sizes = np.zeros(len(elements), np.int64)
    sizes[present] = np.diff(offsets)
    # A packed dtype, five bytes: numpy puts no gap between the fields unless it is asked to.
    heads = np.empty(len(elements), np.dtype([("tag", "u1"), ("size", "<u4")]))
    heads["tag"], heads["size"] = np.where(present, tag, NULL_TAG), sizes
    head = (heads.view(np.uint8), np.full(len(elements), HEAD, np.int64))
    return _side_by_side([head, (values, sizes)], len(elements))


def _side_by_side(columns: list[tuple[Bytes, Places]], count: int) -> tuple[Bytes, Places]:
    """Join the cells of each row; every column's bytes lie one behind the other before, and so do the rows' after."""
    lengths = np.zeros(count, np.int64)
    for _, sizes in columns:
        lengths += sizes
    at = _ends(lengths)[:-1]
    values = np.empty(int(lengths.sum()), np.uint8)
    for cells, sizes in columns:
        values[np.arange(len(cells)) + np.repeat(at - _ends(sizes)[:-1], sizes)] = cells
        at = at + sizes
    return values, lengths


def _ends(lengths: Places) -> Places:
    """Return where cells begin that lie one behind the other, and where the last one ends."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
