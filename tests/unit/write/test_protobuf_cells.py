"""Messages of Protobuf, byte for byte what Google's own library makes of the same rows, by the registered schema."""

from __future__ import annotations

import json
import math
import uuid
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rivet_resources.errors import UnsupportedColumn, ValueDoesNotFit
from rivet_resources.schema_registry.languages import protobuf
from rivet_resources.write.formats.protobuf_cells import check_columns, render_rows
from tests.protobuf_classes import message_class

pytest.importorskip("proto_schema_parser")
AT, BEFORE_1970 = datetime(2026, 1, 31, 12, 30, 15, 123456, UTC), datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)
NUMBERS = st.none() | st.integers(-(2**63), 2**63 - 1)
MEMBERS = pa.struct([pa.field("street", pa.string()), pa.field("floor", pa.int16())])
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "ok": (pa.bool_(), [True, False]),
    "i8": (pa.int8(), [0, -128, 127]),
    "i16": (pa.int16(), [-32768, 300]),
    "i32": (pa.int32(), [-(2**31), 2**31 - 1]),
    "i64": (pa.int64(), [-(2**63), 2**63 - 1, 0]),
    "u32": (pa.uint32(), [2**32 - 1]),
    "u64": (pa.uint64(), [2**64 - 1]),
    "f32": (pa.float32(), [1.5, -0.0, math.inf]),
    "f64": (pa.float64(), [0.1, -math.inf, 0.0]),
    "text": (pa.string(), ["", "größer", "x" * 300]),
    "large": (pa.large_string(), ["y", ""]),
    "bytes": (pa.binary(), [b"", b"\x00\xff"]),
    "fixed": (pa.binary(3), [b"abc"]),
    "price": (pa.decimal128(12, 2), [Decimal("-1.50"), Decimal("0.00")]),
    "day": (pa.date32(), [date(2026, 1, 31), date(1, 1, 1)]),
    "clock": (pa.time64("us"), [time(23, 59, 59, 5)]),
    "naive": (pa.timestamp("us"), [datetime(2026, 1, 31, 1, 2, 3, 7)]),
    "instant": (pa.timestamp("us", "UTC"), [AT, BEFORE_1970, datetime(1970, 1, 1, tzinfo=UTC)]),
    "milli": (pa.timestamp("ms", "UTC"), [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)]),
    "id": (pa.uuid(), [uuid.UUID(int=7).bytes]),
    "doc": (pa.json_(), ['{"a": 1}']),
    "place": (MEMBERS, [{"street": "Elm", "floor": -3}, {"street": None, "floor": None}, {"street": "", "floor": 0}]),
}  # fmt: skip


def said(value: Any, kind: pa.DataType) -> Any:
    """Return what Google's library is given for a cell."""
    if isinstance(value, date | time | Decimal | datetime):
        return value.isoformat() if not isinstance(value, Decimal) else str(value)
    if kind == pa.uuid():
        return str(uuid.UUID(bytes=value) if isinstance(value, bytes) else value)
    return value


def serialized(message: Any, row: dict[str, Any], schema: pa.Schema) -> bytes:
    """Serialize a row as Google's library does; NULL is not set."""
    for field in schema:
        value = row[field.name]
        if value is None:
            continue
        if pa.types.is_struct(field.type):
            inner = getattr(message, field.name)
            inner.SetInParent()
            for name, member in value.items():
                if member is not None:
                    setattr(inner, name, member)
        elif pa.types.is_timestamp(field.type) and field.type.tz:
            inner = getattr(message, field.name)
            inner.SetInParent()
            inner.FromDatetime(value)
        else:
            setattr(message, field.name, said(value, field.type))
    return message.SerializeToString(deterministic=True)


def rendered(table: pa.Table, before: tuple[str, ...] = ()) -> tuple[str, list[bytes]]:
    """Return the schema that is registered for a table's columns, and its rows as messages."""
    text = protobuf.derive(table.schema, name="orders", rule="backward", before=before)
    (batch,) = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]
    return text, render_rows(batch, b"", protobuf.numbers_of(text)).to_pylist()


@pytest.mark.parametrize("name", COLUMNS)
def test_each_type_is_spelled_as_googles_library_does(name: str) -> None:
    """Every edge of a type, and NULL between; decimals, days and times are the texts of CSV."""
    kind, values = COLUMNS[name]
    table = pa.table({name: pa.array([*values, None, values[0]], kind)})
    text, found = rendered(table)
    made = message_class(text)

    assert [serialized(made(), row, table.schema) for row in table.to_pylist()] == found


def test_rows_of_all_types_at_once_and_behind_a_head() -> None:
    """Fields stand in the order of their numbers, whatever the order of columns."""
    names = list(COLUMNS)
    row = {name: values[0] for name, (_, values) in COLUMNS.items()}
    schema = pa.schema([pa.field(name, COLUMNS[name][0]) for name in names])
    table = pa.Table.from_pylist([row, dict.fromkeys(names), row], schema)
    text, found = rendered(table)
    made = message_class(text)

    assert [serialized(made(), each, schema) for each in table.to_pylist()] == found
    assert b"" == found[1]

    turned = table.select(names[::-1])
    (batch,) = turned.combine_chunks().to_batches()
    assert [b"\0\0\0\0\7\0" + each for each in found] == render_rows(
        batch, b"\0\0\0\0\7\0", protobuf.numbers_of(text)
    ).to_pylist()


def test_column_keeps_its_number_when_another_goes_and_comes() -> None:
    """What the version before calls field 2 is field 2 for ever."""
    first, _ = rendered(pa.table({"a": [1], "b": ["x"], "c": [2.5]}))
    second, found = rendered(pa.table({"d": [7], "b": ["x"]}), before=(first,))

    assert {"d": (4, None), "b": (2, None)} == protobuf.numbers_of(second)
    message = message_class(second).FromString(found[0])
    assert (7, "x") == (message.d, message.b)


def test_instant_outside_of_a_timestamp_is_refused() -> None:
    """Protobuf's own rule: years 1 to 9999."""
    table = pa.table({"at": pa.array([253_402_300_800], pa.timestamp("s", "UTC"))})

    with pytest.raises(ValueDoesNotFit, match="outside the years 1 to 9999"):
        rendered(table)


@pytest.mark.parametrize("kind", [pa.timestamp("ns"), pa.time64("ns")])
def test_times_without_a_text_are_refused_before_a_row_is_read(kind: pa.DataType) -> None:
    """An instant with nanoseconds is none of them: a Timestamp has these."""
    with pytest.raises(UnsupportedColumn, match="with microseconds"):
        check_columns(pa.schema([("at", kind)]))
    check_columns(pa.schema([("at", pa.timestamp("ns", "UTC"))]))


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(NUMBERS, st.none() | st.text(), st.none() | st.floats())))
def test_any_rows_come_back_by_googles_library(rows: list[tuple[Any, Any, Any]]) -> None:
    """Numbers, texts and floats of any value."""
    names = ("number", "text", "float")
    schema = pa.schema([("number", pa.int64()), ("text", pa.string()), ("float", pa.float64())])
    table = pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows], schema)
    text, found = rendered(table)
    made = message_class(text)

    for row, content in zip(rows, found, strict=True):
        message = made.FromString(content)
        back = tuple(getattr(message, name) if message.HasField(name) else None for name in names)
        assert json.dumps(row) == json.dumps(back)
