"""Cells of SQLite: from Python's values to what `Column.arrow` says, with every cell of another storage class found.

Belongs here: which values a column takes, and the readers of what was taken. Not here: which type a column has
(types.py, columns.py).

A cell's class is the value's Python type: the connection gives text as bytearray and blobs as bytes, so the two are
told apart, no text is decoded by the driver, and bytes that are not UTF-8 are found here, by name and count.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources.contracts.types import JSON, Column
from rivet_resources.engines.shared.cells import Read, fitted, nulls, overriding

Cell = int | float | bytearray | bytes | None
Values = Sequence[Any]
# Integers up to here are exact as doubles.
EXACT = 2**53
NOTHING = type(None)


def batch(columns: Sequence[Column], rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    """Put rows on the wire: one array a column, then one flag a column, true where the cell was not taken."""
    # One column after the other, so that its cells are still in the processor's caches when they are taken.
    cells: Iterable[Values] = zip(*rows, strict=True) if rows else [()] * len(columns)
    none_refused = pa.repeat(False, len(rows))
    arrays, flags = [], []
    for column, values in zip(columns, cells, strict=True):
        array, flag = take_cells(column.fact("wire"), values)
        arrays.append(array)
        flags.append(none_refused if flag is None else flag)
    names = [str(i) for i in range(2 * len(columns))]
    return pa.RecordBatch.from_arrays([*arrays, *flags], names=names)


def take_cells(wire: str, values: Values) -> tuple[pa.Array, pa.Array | None]:
    """Take the cells whose class the wire carries; the others are NULL and flagged, None where there is none."""
    allowed, arrow, convert = WIRES[wire]
    if wire == "whole" and (whole := _whole_numbers(values)) is not None:
        return whole, None
    kinds = set(map(type, values))
    kinds.discard(NOTHING)
    if wire == "any":
        # What an untyped column holds is what its first cell is; blobs have no text, so they decide nothing.
        first = next((type(v) for v in values if v is not None and type(v) is not bytes), NOTHING)
        allowed = frozenset({first})
    # The usual page: all cells of the right class, and nothing to look at one by one.
    if kinds <= allowed and not (wire == "real" and int in kinds):
        refused = None
    else:
        kept = [v is None or (type(v) in allowed and _is_exact(wire, v)) for v in values]
        refused = pa.array([not keep for keep in kept], pa.bool_())
        values = [v if keep else None for v, keep in zip(values, kept, strict=True)]
    # Text goes as it is. Only where there is something else is each cell looked at.
    if convert is not None and kinds - {bytearray}:
        values = [None if v is None else convert(v) for v in values]
    return pa.array(values, arrow), refused


def _whole_numbers(values: Values) -> pa.Array | None:
    """Take cells that are integers, all of them; None where one is not."""
    # One pass in C that looks at each class as it takes the number: half of what set(map(type)) and Arrow cost.
    try:
        numbers = array("q", values)
    except TypeError:
        return None
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


def _is_exact(wire: str, value: Any) -> bool:
    return wire != "real" or isinstance(value, float) or -EXACT <= value <= EXACT


def as_text(value: Any) -> Any:
    """Write a number so that nothing is lost: digits, without an exponent; text as it is."""
    if isinstance(value, bytearray):
        return value
    if isinstance(value, int):
        return str(value).encode()
    written = repr(value)
    # repr is the shortest text that reads back as this very double, but has an exponent where it is large or small.
    if "e" in written:
        written = f"{Decimal(written):f}"
    return {"inf": "Infinity", "-inf": "-Infinity"}.get(written, written).encode()


def as_stamp(value: Any) -> Any:
    """Write seconds since 1970 as an ISO instant; text as it is; a number beyond the year 9999 refuses later."""
    if isinstance(value, bytearray):
        return value
    try:
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%dT%H:%M:%SZ").encode()
    except (OverflowError, ValueError, OSError):
        return str(value).encode()


Convert = Callable[[Any], Any]
LOOSE = frozenset({int, float, bytearray})
# Wire → the Python types taken, the Arrow type they go as, how those that are not text become so.
WIRES: Mapping[str, tuple[frozenset[type], pa.DataType, Convert | None]] = {
    "whole": (frozenset({int}), pa.int64(), None),
    "real": (frozenset({float, int}), pa.float64(), None),
    "text": (frozenset({bytearray}), pa.binary(), None),
    "bytes": (frozenset({bytes}), pa.binary(), None),
    "loose": (LOOSE, pa.binary(), as_text),
    "stamp": (frozenset({bytearray, int}), pa.binary(), as_stamp),
    "any": (LOOSE, pa.binary(), as_text),
}


# --- one reader per kind of column ---------------------------------------------------------------


def _plain(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    return array


def _text(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    """Decode text; bytes that are not UTF-8 never pass."""
    return fitted(array, lambda part: part.cast(pa.string()), "invalid_bytes", counts, nulls(column))


def _json(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    return pa.ExtensionArray.from_storage(JSON, _text(array, column, counts))


def _bool(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    def truth(part: pa.Array) -> pa.Array:
        if len(part) and pc.any(pc.or_(pc.less(part, 0), pc.greater(part, 1))).as_py():
            raise ValueError
        return pc.equal(part, 1)

    return fitted(array, truth, "not_bool", counts, nulls(column))


def _read_in_zone(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    """Read naive times in the user's zone; those with an offset of their own, and unix seconds, stay as they are."""
    texts = _text(array, column, counts)
    naive = pc.invert(pc.match_substring_regex(texts, r"(Z|[+-]\d\d:?\d\d)$"))
    zone = column.fact("zone")

    def instant(part: pa.Array) -> pa.Array:
        times = part.cast(pa.timestamp("us"))
        instants = pc.assume_timezone(times, zone, ambiguous="latest", nonexistent="latest")
        return pc.strftime(instants.cast(pa.timestamp("us", "UTC")), format="%Y-%m-%dT%H:%M:%SZ")

    own = pc.if_else(naive, pa.scalar(None, pa.string()), texts)
    read = fitted(pc.if_else(naive, texts, pa.scalar(None, pa.string())), instant, "unparsable", counts, nulls(column))
    return pc.coalesce(own, read)


BASE: Mapping[str, Read] = {"plain": _plain, "text": _text, "json": _json, "bool": _bool, "zoned": _read_in_zone}
READERS: Mapping[str, Read] = {**BASE, "override": overriding(BASE)}
