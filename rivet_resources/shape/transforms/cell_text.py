"""The canonical text of any cell, a column at a time: what masks, casts to text and bucket numbers see.

Belongs here: the rules of `contract.md`, 8.3, without CSV's quotes, and for the types CSV refuses. Not here: the
renderers themselves (`shape/cell_text.py`).
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources.canonical import canonical
from rivet_resources.shape import cell_text as csv_render
from rivet_resources.shape.transforms.fields import is_text, plain


def spell(column: pa.ChunkedArray) -> pa.Array:
    """Return the text of every cell, NULL for NULL; text is itself, a list or struct is compact JSON."""
    array = plain(column)
    if is_text(array.type):
        return array.cast(pa.string())
    is_uuid = isinstance(column.type, pa.UuidType)
    render = csv_render.renderer(array.type, is_uuid=is_uuid)
    if render is not None:
        return render(array)
    if pa.types.is_timestamp(array.type):  # nanoseconds
        return pc.strftime(array, format="%Y-%m-%dT%H:%M:%S" + ("Z" if array.type.tz else ""))
    if pa.types.is_decimal(array.type):
        return pa.array([None if cell is None else f"{cell:f}" for cell in array.to_pylist()], pa.string())
    if pa.types.is_nested(array.type):
        return pa.array([None if cell is None else json_text(cell) for cell in array.to_pylist()], pa.string())
    if pa.types.is_fixed_size_binary(array.type):
        return csv_render.hex_text(array)
    return array.cast(pa.string())


def json_text(value: Any) -> str:
    """Write a value as JSON: UTF-8 unescaped, sorted keys, compact; what JSON does not know is its canonical text."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=_other)


def _other(value: Any) -> str:
    return f"{value:f}" if isinstance(value, Decimal) else canonical(value)
