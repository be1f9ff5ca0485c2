"""Which cells a text format gives back exactly: those whose type is spelled in one way only.

The others are named as not compared by proofs, which is no flaw of a part.
"""

from __future__ import annotations

import pyarrow as pa


def comes_back(kind: pa.DataType) -> bool:
    """Return whether every text format gives cells of this type back bit by bit."""
    if isinstance(kind, pa.BaseExtensionType) or pa.types.is_dictionary(kind):
        return False
    return bool(
        pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_float32(kind)
        or pa.types.is_float64(kind)
        or pa.types.is_decimal128(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or (pa.types.is_timestamp(kind) and kind.unit == "us")
    )
