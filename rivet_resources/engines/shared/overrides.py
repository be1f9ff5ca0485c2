"""Casts that `columns:` asks for, from a family of types to an override word (`types.md`, section 5).

Belongs here: one cast per pair, which refuses the cells it cannot hold, and the text form for portable files. Not
here: policies and messages (cells.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from uuid import UUID as PythonUuid

import pyarrow as pa
import pyarrow.compute as pc

Cast = Callable[[pa.Array], pa.Array]


def conversion(source: str, stem: str, target: pa.DataType) -> tuple[Cast | None, str]:
    """Return the cast from a family to a word, and the kind of a cell that refuses it; None when nothing is to do."""
    if stem == "bool":
        return (None, "") if source == "bool" else (_to_bool, "not_bool")
    if stem in ("int2", "int4", "int8"):
        return (lambda a: _to_integer(a, source, target)), "out_of_range"
    if stem in ("float4", "float8"):
        # Unsafe by the user's own choice of word: floats are lossy, and Arrow refuses large integers otherwise.
        return (lambda a: a.cast(target, safe=False)), "unparsable"
    if stem == "decimal":
        # By its text, which has all digits: Arrow's own casts round floats, and ask integers for all their width.
        return (lambda a: a.cast(pa.string()).cast(target)), "digits"
    if stem == "date":
        return ((lambda a: a.cast(target)), "unparsable") if source == "text" else (_to_date, "not_midnight")
    if stem.startswith("timestamp"):
        return (lambda a: a.cast(target)), "unparsable" if source == "text" else "out_of_range"
    if stem == "json":
        return (_to_json if source == "text" else None), "unparsable"
    if stem == "uuid":
        return (None if source == "uuid" else _to_uuid), "unparsable"
    return (lambda a: a.cast(target)), "unparsable"


def _to_bool(array: pa.Array) -> pa.Array:
    """Turn 0 and 1, as numbers or bit texts, into truth; anything else refuses."""
    # By its number and not by Arrow's cast to bool, which takes every number but 0 for true.
    numbers = array.cast(pa.int64())
    if len(array) and pc.any(pc.or_(pc.less(numbers, 0), pc.greater(numbers, 1))).as_py():
        raise ValueError
    return pc.equal(numbers, 1)


def _to_date(array: pa.Array) -> pa.Array:
    """Turn midnights into dates; Arrow alone would cut the time off."""
    # There and back: Arrow's cast to a day cuts the time off and says nothing.
    dates = array.cast(pa.date32())
    if pc.any(pc.not_equal(dates.cast(array.type), array)).as_py():
        raise ValueError
    return dates


def _to_integer(array: pa.Array, source: str, target: pa.DataType) -> pa.Array:
    if source == "bit":
        # Arrow would read such a text as a decimal number.
        return pa.array([None if bits is None else int(bits, 2) for bits in array.to_pylist()], pa.int64()).cast(target)
    if source == "time":
        return array.view(pa.int64()).cast(target)
    if source == "numeric":
        # By its text and a decimal without a scale: a cast from decimal to integer would cut digits behind the point.
        return array.cast(pa.string()).cast(pa.decimal128(38, 0)).cast(target)
    return array.cast(target)


def _to_json(array: pa.Array) -> pa.Array:
    for text in array.to_pylist():
        if text is not None:
            json.loads(text)
    return array


def _to_uuid(array: pa.Array) -> pa.Array:
    def bits(value: str | bytes) -> bytes:
        return PythonUuid(bytes=value).bytes if isinstance(value, bytes) else PythonUuid(value).bytes

    return pa.array([None if value is None else bits(value) for value in array.to_pylist()], pa.binary(16))


def render(array: pa.Array) -> pa.Array:
    """Write types that many Parquet readers refuse as text: uuid canonical, times ISO, decimals with their scale."""
    if isinstance(array.type, pa.UuidType) or array.type == pa.binary(16):
        values = (array.storage if isinstance(array, pa.ExtensionArray) else array).to_pylist()
        return pa.array([None if value is None else str(PythonUuid(bytes=value)) for value in values], pa.string())
    if pa.types.is_timestamp(array.type):
        shape = "%Y-%m-%dT%H:%M:%S" + ("Z" if array.type.tz else "")
        return pc.strftime(array, format=shape)
    return array.cast(pa.string())
