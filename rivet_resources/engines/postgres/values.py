"""Cells of PostgreSQL: what ADBC delivers, read as `Column.arrow` says.

Belongs here: sentinels of infinite times, NaN of numerics, arrays. Not here: policies and messages (shared/cells.py),
which type a column has (contracts/types.py, columns.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources.contracts.types import JSON, Column
from rivet_resources.engines.postgres.sql import quote
from rivet_resources.engines.shared.cells import (
    Read,
    checked_text,
    fitted,
    flagged,
    masked,
    nulls,
    overriding,
    storage,
)

# Binary COPY gives infinite times as numbers beyond anything PostgreSQL can store otherwise; adding the distance
# of the epochs wraps them round (`engine.md`, section 2, trap 4; checked on 15 and 18).
DATE_INFINITY, DATE_MINUS_INFINITY = -2147472692, -2147472691
STAMP_INFINITY, STAMP_MINUS_INFINITY = -9222425352054775809, -9222425352054775808
SMALLEST_DATE, SMALLEST_STAMP, DAY_MICROSECONDS = -2440589, -210866803200000000, 86_400_000_000


def items(columns: Sequence[Column]) -> list[str]:
    """Return the SELECT list: every column, then the hidden flags."""
    asked = [column.select for column in columns] + [column.fact("flag") for column in flagged(columns)]
    plain = {quote(column.name) for column in columns}
    # Expressions get an alias of ours: ORDER BY takes an output name before a column, and would sort `"n"::text`.
    return [item if item in plain else f"{item} AS _rivet_{i}" for i, item in enumerate(asked)]


# --- one reader per kind of column ---------------------------------------------------------------


def _plain(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    return array


def _json(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    return array if array.type == column.arrow else pa.ExtensionArray.from_storage(JSON, storage(array))


NUMERIC_KINDS = {"nan": "nan", "infinity": "inf", "minus_infinity": "-inf"}
TEXT_KINDS = {"nan": "NaN", "infinity": "Infinity", "minus_infinity": "-Infinity"}


def _numeric(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    return _decimals(storage(array), column.arrow, counts, nulls(column))


def _decimals(array: pa.Array, arrow: pa.DataType, counts: dict[str, int], replace: bool) -> pa.Array:
    try:
        return array.cast(arrow)
    except pa.ArrowInvalid:
        masks = {kind: pc.equal(array, spelled) for kind, spelled in NUMERIC_KINDS.items()}
        array = masked(array, masks, counts, replace)
        return fitted(array, lambda part: part.cast(arrow), "digits", counts, replace)


def _numeric_text(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    """Decimals too wide for portable files: digits as text, but what is no number is still special."""
    return masked(array, {kind: pc.equal(array, word) for kind, word in TEXT_KINDS.items()}, counts, nulls(column))


def _dates(array: pa.Array, counts: dict[str, int], replace: bool) -> pa.Array:
    days = array.view(pa.int32())
    # One comparison finds them all: both sentinels lie below every day that PostgreSQL can store.
    smallest = pc.min(days).as_py()
    if smallest is None or smallest >= SMALLEST_DATE:
        return array
    masks = {"infinity": pc.equal(days, DATE_INFINITY), "minus_infinity": pc.equal(days, DATE_MINUS_INFINITY)}
    return masked(array, masks, counts, replace)


def _stamps(array: pa.Array, counts: dict[str, int], replace: bool) -> pa.Array:
    micros = array.view(pa.int64())
    smallest = pc.min(micros).as_py()
    if smallest is None or smallest >= SMALLEST_STAMP:
        return array
    plus, minus = pc.equal(micros, STAMP_INFINITY), pc.equal(micros, STAMP_MINUS_INFINITY)
    # What is neither has wrapped round: an instant after 294247-01-10, where the microseconds of an int64 end
    # (`engine.md`, section 2, trap 4).
    beyond = pc.and_not(pc.less(micros, SMALLEST_STAMP), pc.or_(plus, minus))
    return masked(array, {"infinity": plus, "minus_infinity": minus, "beyond_range": beyond}, counts, replace)


def _date(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    return _dates(array, counts, nulls(column))


def _stamp(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    return _stamps(array, counts, nulls(column))


def _time(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    micros = array.view(pa.int64())
    largest = pc.max(micros).as_py()
    if largest is not None and largest >= DAY_MICROSECONDS:
        array = masked(array, {"time_24": pc.greater_equal(micros, DAY_MICROSECONDS)}, counts, nulls(column))
    return array.cast(column.arrow)  # text in portable files: HH:MM:SS.ffffff


def _list(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    """Type the items of one-dimensional arrays; other shapes were masked before."""
    if array.type == column.arrow and column.fact("items") == "plain":
        return array
    if array.offset:
        # pyarrow 26 makes no list array with NULLs of a slice's
        # offsets ("Null bitmap with offsets slice not supported").
        array = array.take(pa.array(range(len(array))))
    item, values = column.arrow.value_type, storage(array.values)
    if pa.types.is_decimal(item):
        values = _decimals(values, item, counts, nulls(column))
    elif pa.types.is_date(item):
        values = _dates(values, counts, nulls(column))
    elif pa.types.is_timestamp(item):
        values = _stamps(values, counts, nulls(column))
    return pa.ListArray.from_arrays(array.offsets, values, type=column.arrow, mask=array.is_null())


# --- overrides -----------------------------------------------------------------------------------


def _number(array: pa.Array, column: Column, counts: dict[str, int]) -> pa.Array:
    """Find the numerics that are no numbers; the rest is for the override to convert. Floats hold them all."""
    array = storage(array)
    if column.fact("target").startswith("float"):
        return array
    masks = {kind: pc.equal(array, word) for kind, word in NUMERIC_KINDS.items()}
    return masked(array, masks, counts, nulls(column))


READ: Mapping[str, Read] = {
    "plain": _plain,
    "text": checked_text,
    "json": _json,
    "decimal": _numeric,
    "decimal_text": _numeric_text,
    "date": _date,
    "stamp": _stamp,
    "time": _time,
    "list": _list,
    "override": overriding({"date": _date, "stamp": _stamp, "number": _number}),
}
