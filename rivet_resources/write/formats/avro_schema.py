"""Which Avro type each Arrow type is, with its logical type; and what Avro has no place for.

Belongs here: schemas. Not here: bytes (`avro_cells.py`), files (`avro.py`). Source: Apache Avro 1.12.0 specification,
"Complex Types", "Names", "Logical Types".

Nullable columns are unions of null and their type. Named types are named by their column, in the namespace of what is
around it, so that none can stand twice. Decimals are bytes, not fixed: every reader takes those.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa

RECORD = "row"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# `uint64` is a decimal(20,0), as Spark reads it.
UINT64_DIGITS = 20

# Unit of time → logical type, of times of day and of timestamps; Avro has no seconds: they become milliseconds.
TIMES = {"s": "time-millis", "ms": "time-millis", "us": "time-micros"}
STAMPS = {"s": "timestamp-millis", "ms": "timestamp-millis", "us": "timestamp-micros", "ns": "timestamp-nanos"}


def avro_schema(schema: pa.Schema, *, name: str = RECORD) -> dict[str, Any]:
    """Return the schema of a record with these columns; `refused` must have found none of them."""
    return _record(list(schema), name=name, namespace="")


def avro_json(schema: pa.Schema) -> bytes:
    """Return the schema as files keep it."""
    return json.dumps(avro_schema(schema), ensure_ascii=False, separators=(",", ":")).encode()


def is_name(text: str) -> bool:
    """Return whether Avro takes it as the name of a column."""
    return NAME.fullmatch(text) is not None


def is_held(kind: pa.DataType) -> bool:
    """Return whether Avro holds every value of the type and says what it is."""
    kind = plain_type(kind)
    if isinstance(kind, pa.BaseExtensionType):
        return is_uuid(kind) or is_json(kind)
    if pa.types.is_struct(kind):
        return all(is_name(child.name) and is_held(child.type) for child in kind) and _are_unique(kind)
    if pa.types.is_map(kind):
        return pa.types.is_string(plain_type(kind.key_type)) and is_held(kind.item_type)
    if pa.types.is_list(kind):
        return is_held(kind.value_type)
    if pa.types.is_decimal(kind):
        return bool(kind.scale >= 0)
    if pa.types.is_time(kind):
        return kind.unit in TIMES
    return bool(
        pa.types.is_null(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_date(kind)
        or pa.types.is_timestamp(kind)
    )


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type whose cells are the same and that this room knows: the twins of text, bytes and lists."""
    if isinstance(kind, pa.BaseExtensionType):
        return kind
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field)
    return kind


def decimal_width(precision: int) -> int:
    """Return how many bytes hold every number of so many digits, with its sign."""
    most: int = 10**precision
    # One bit for the sign, rounded up to bytes.
    return (most.bit_length() + 8) // 8


def is_uuid(kind: pa.DataType) -> bool:
    """Return whether cells are uuids."""
    return isinstance(kind, pa.UuidType)


def is_json(kind: pa.DataType) -> bool:
    """Return whether cells are JSON."""
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "arrow.json"


def _are_unique(kind: pa.StructType) -> bool:
    names = [child.name for child in kind]
    return len(names) == len(set(names))


def _record(fields: list[pa.Field], *, name: str, namespace: str) -> dict[str, Any]:
    inside = f"{namespace}.{name}".lstrip(".")
    record = {"type": "record", "name": name, "fields": [_field(field, namespace=inside) for field in fields]}
    return {**record, "namespace": namespace} if namespace else record


def _field(field: pa.Field, *, namespace: str) -> dict[str, Any]:
    described = {"name": field.name, "type": _nullable(field, field.name, namespace=namespace)}
    if field.nullable:
        # A reader whose schema has this column reads older files,
        # which lack it; null must be the first branch for that.
        described["default"] = None
    return described | {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}


def _nullable(field: pa.Field, name: str, *, namespace: str) -> Any:
    kind = _type(field.type, name, namespace=namespace)
    return ["null", kind] if field.nullable and kind != "null" else kind


def _type(kind: pa.DataType, name: str, *, namespace: str) -> Any:
    kind = plain_type(kind)
    if pa.types.is_struct(kind):
        return _record(list(kind), name=name, namespace=namespace)
    inside = f"{namespace}.{name}"
    if pa.types.is_map(kind):
        return {"type": "map", "values": _nullable(kind.item_field, "value", namespace=inside)}
    if pa.types.is_list(kind):
        return {"type": "array", "items": _nullable(kind.value_field, "item", namespace=inside)}
    if pa.types.is_fixed_size_binary(kind):
        return {"type": "fixed", "name": name, "namespace": namespace, "size": kind.byte_width}
    return _leaf(kind)


def _leaf(kind: pa.DataType) -> Any:
    """Return the type of a cell that has none inside."""
    if is_uuid(kind):
        return {"type": "string", "logicalType": "uuid"}
    if is_json(kind) or pa.types.is_string(kind):
        return "string"
    if kind == pa.uint64():
        return _decimal(UINT64_DIGITS, 0)
    if pa.types.is_decimal(kind):
        return _decimal(kind.precision, kind.scale)
    if pa.types.is_date(kind):
        return {"type": "int", "logicalType": "date"}
    if pa.types.is_time(kind):
        return {"type": "int" if TIMES[kind.unit] == "time-millis" else "long", "logicalType": TIMES[kind.unit]}
    if pa.types.is_timestamp(kind):
        return {"type": "long", "logicalType": f"{'' if kind.tz else 'local-'}{STAMPS[kind.unit]}"}
    if pa.types.is_integer(kind):
        return "int" if kind.bit_width < 32 or kind == pa.int32() else "long"
    if pa.types.is_floating(kind):
        # float16 has no type of its own, and is exact as a float.
        return "double" if kind == pa.float64() else "float"
    return {pa.null(): "null", pa.bool_(): "boolean", pa.binary(): "bytes"}[kind]


def _decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
