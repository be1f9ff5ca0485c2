"""Avro files: each type as other readers see it and as it comes back, what is refused, damage, equal bytes."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rivet_resources.contracts.format import FormatKeys
from rivet_resources.errors import ExtraMissing, PartCorrupt, UnsupportedColumn, ValueDoesNotFit
from rivet_resources.write.formats.avro import Avro

CODECS = ["none", "gzip", "snappy", "zstd"]
UUIDS = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0123456789abcdef", None], pa.binary(16)))
JSONS = pa.ExtensionArray.from_storage(pa.json_(pa.string()), pa.array(['{"a": [1, 2.50]}', None]))
BIG = Decimal("9" * 74) / 100

# column → cells, its Avro type behind `null`, and the first cell as fastavro reads it by the logical type
CASES: dict[str, tuple[pa.Array, Any, Any]] = {
    "bool": (pa.array([True, None]), "boolean", True),
    "i8": (pa.array([-128, None], pa.int8()), "int", -128),
    "u16": (pa.array([65535, None], pa.uint16()), "int", 65535),
    "i32": (pa.array([-(2**31), None], pa.int32()), "int", -(2**31)),
    "u32": (pa.array([2**32 - 1, None], pa.uint32()), "long", 2**32 - 1),
    "i64": (pa.array([-(2**63), None]), "long", -(2**63)),
    "u64": (pa.array([2**64 - 1, None], pa.uint64()), "decimal", Decimal(2**64 - 1)),
    "half": (pa.array([1.5, None], pa.float16()), "float", 1.5),
    "real": (pa.array([float("-inf"), None], pa.float32()), "float", float("-inf")),
    "double": (pa.array([5e-324, None]), "double", 5e-324),
    "text": (pa.array(["ü\0\n" * 50, None]), "string", "ü\0\n" * 50),
    "bytes": (pa.array([b"\0\xff", None]), "bytes", b"\0\xff"),
    "fixed": (pa.array([b"abc", None], pa.binary(3)), "fixed", b"abc"),
    "uuid": (UUIDS, "uuid", "30313233-3435-3637-3839-616263646566"),
    "json": (JSONS, "string", '{"a": [1, 2.50]}'),
    "money": (pa.array([Decimal("-12.34"), None], pa.decimal128(9, 2)), "decimal", Decimal("-12.34")),
    "most": (pa.array([Decimal("9" * 38), None], pa.decimal128(38, 0)), "decimal", Decimal("9" * 38)),
    "day": (pa.array([date(1, 1, 1), None]), "date", date(1, 1, 1)),
    "second": (pa.array([86_399, None], pa.time32("s")), "time-millis", "23:59:59"),
    "clock": (pa.array([86_399_999_999, None], pa.time64("us")), "time-micros", "23:59:59.999999"),
    "seconds": (pa.array([-1, None], pa.timestamp("s")), "local-timestamp-millis", datetime(1969, 12, 31, 23, 59, 59)),
    "naive": (pa.array([1, None], pa.timestamp("us")), "local-timestamp-micros", datetime(1970, 1, 1, 0, 0, 0, 1)),
    "instant": (
        pa.array([1, None], pa.timestamp("us", "UTC")),
        "timestamp-micros",
        datetime(1970, 1, 1, 0, 0, 0, 1, UTC),
    ),
    "nanos": (pa.array([-7, None], pa.timestamp("ns")), "local-timestamp-nanos", -7),
    "texts": (pa.array([["a", None], None], pa.list_(pa.string())), "array", ["a", None]),
    "large": (pa.array([["a"], None], pa.large_list(pa.large_string())), "array", ["a"]),
    "map": (pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())), "map", {"k": 1}),
    "row": (pa.array([{"n": 1, "t": ["x"]}, None]), "record", {"n": 1, "t": ["x"]}),
    "nothing": (pa.nulls(2), "null", None),
}


def write(path: Path, table: pa.Table, form: Avro | None = None, **options: Any) -> Path:
    """Write a table as one part."""
    writer = (form or Avro()).writer(path, table.schema, **options)
    writer.write(table)
    writer.close()
    return path


def read(path: Path, form: Avro | None = None) -> pa.Table:
    """Read a part back as proofs do."""
    return pa.concat_tables((form or Avro()).batches(path, pa.schema([])))


def read_by_fastavro(path: Path) -> list[dict[str, Any]]:
    """Read a part by another implementation, which decodes the logical types."""
    with open(path, "rb") as file:
        return list(fastavro.reader(file))  # type: ignore[arg-type]


@pytest.mark.parametrize(("cells", "type_", "first"), CASES.values(), ids=CASES)
def test_cell_is_the_same_to_us_and_to_another_reader(tmp_path: Path, cells: pa.Array, type_: str, first: Any) -> None:
    """Every type has its Avro type, another reader's value, and comes back as it was, NULL included."""
    table = pa.table({"x": cells})
    Avro().check_schema(table.schema, export="orders")
    path = write(tmp_path / "x", table, Avro(compression="none"))

    rows = read_by_fastavro(path)

    found = rows[0]["x"]
    assert first == (str(found) if isinstance(first, str) else found)
    assert rows[1]["x"] is None
    assert read(path).equals(table)
    kind = json.loads(path.read_bytes().split(b"avro.schema")[1].split(b"avro.codec")[0][2:-1].strip(b"\x14"))
    written = kind["fields"][0]["type"]
    named = written if isinstance(written, str) else written[1]
    assert type_ == (named if isinstance(named, str) else named.get("logicalType", named["type"]))


def test_values_that_no_python_type_holds_come_back(tmp_path: Path) -> None:
    """Years before 1 and beyond 9999, decimals of 76 digits, a NaN with its bits."""
    odd = pa.Array.from_buffers(pa.float64(), 1, [None, pa.py_buffer(bytes.fromhex("010000000000f07f"))])
    table = pa.table({
        "day": pa.array([-800_000], pa.int32()).view(pa.date32()),
        "far": pa.array([2**62], pa.int64()).view(pa.timestamp("us")),
        "wide": pa.array([-BIG], pa.decimal256(76, 2)),
        "nan": odd,
    })  # fmt: skip

    found = read(write(tmp_path / "x", table))

    assert [each.chunk(0).buffers()[1].to_pybytes()[:8] for each in table.columns] == [
        each.chunk(0).buffers()[1].to_pybytes()[:8] for each in found.columns
    ]
    assert table.schema == found.schema


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_is_read_back(tmp_path: Path, codec: Any) -> None:
    """Blocks are packed as the file says; rows and their count come back."""
    table = pa.table({"id": pa.array(range(50_000)), "note": pa.array([f"note {n % 90}" for n in range(50_000)])})
    form = Avro(compression=codec)

    path = write(tmp_path / "x", table, form)

    assert 50_000 == form.rows(path, table.schema)
    assert read(path).combine_chunks().equals(table)


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_another_reader_takes_all_blocks(tmp_path: Path, codec: Any) -> None:
    """What fastavro reads without further packages equals the table."""
    table = pa.table({"id": pa.array(range(70_000)), "day": pa.array([None, date(2026, 1, 31)] * 35_000)})

    assert table.to_pylist() == read_by_fastavro(write(tmp_path / "x", table, Avro(compression=codec)))


def test_columns_without_null_are_no_unions(tmp_path: Path) -> None:
    """NOT NULL stays, inside rows and lists too, where a whole row may still be NULL."""
    inner = pa.struct([pa.field("n", pa.int64(), nullable=False), pa.field("t", pa.string(), nullable=False)])
    kind = pa.list_(pa.field("item", inner))
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("rows", kind), pa.field("row", inner)])
    cells = [[{"n": 1, "t": "a"}, None, {"n": 3, "t": "c"}], None, []]
    table = pa.table({"id": [1, 2, 3], "rows": cells, "row": [None, {"n": 300, "t": "z"}, None]}, schema=schema)

    path = write(tmp_path / "x", table, Avro(compression="none"))

    assert table.to_pylist() == read_by_fastavro(path) == read(path).to_pylist()


def test_null_where_none_was_declared_stops_the_part(tmp_path: Path) -> None:
    """A row is never written without a cell that has no spelling."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])

    with pytest.raises(ValueDoesNotFit, match="Column id is declared without NULL and holds 1"):
        write(tmp_path / "x", pa.table({"id": pa.array([1, None])}, schema=schema))


def test_properties_of_columns_are_in_the_schema(tmp_path: Path) -> None:
    """The native type of a column stands on its field."""
    schema = pa.schema([pa.field("id", pa.int64(), metadata={"rivet.native_type": "bigint"})])

    with open(write(tmp_path / "x", pa.table({"id": [1]}, schema=schema)), "rb") as file:
        described = fastavro.block_reader(file).writer_schema  # type: ignore[arg-type]

    assert "bigint" == described["fields"][0]["rivet.native_type"]  # type: ignore[index,call-overload]


def test_slices_and_pages_do_not_change_rows(tmp_path: Path) -> None:
    """Pages that begin inside an array, of all types, are written as what they show."""
    table = pa.table({name: pa.concat_arrays([cells] * 3) for name, (cells, _, _) in CASES.items()})
    writer = Avro().writer(tmp_path / "x", table.schema)
    for start in range(6):
        writer.write(table.slice(start, 1))
    writer.close()

    assert read(tmp_path / "x").to_pylist() == table.to_pylist()


def test_equal_rows_make_equal_files(tmp_path: Path) -> None:
    """No marker is random: a chunk that is written again equals itself."""
    table = pa.table({"id": range(40_000), "note": [str(n) for n in range(40_000)]})

    assert write(tmp_path / "a", table).read_bytes() == write(tmp_path / "b", table).read_bytes()


def test_file_without_rows_is_whole(tmp_path: Path) -> None:
    """A header alone is a file of no rows."""
    schema = pa.schema([("id", pa.int64())])
    path = write(tmp_path / "x", schema.empty_table())

    assert (0, []) == (Avro().rows(path, schema), read_by_fastavro(path))


def test_bytes_written_are_true_at_the_limit(tmp_path: Path) -> None:
    """A part is closed in time: near its limit nothing is held back."""
    table = pa.table({"id": range(2_000)})
    writer = Avro(compression="none").writer(tmp_path / "x", table.schema, limit_bytes=4_000)
    while writer.bytes_written < 4_000:
        writer.write(table.slice(0, 100))
    writer.close()

    assert 4_000 <= (tmp_path / "x").stat().st_size < 5_000


@pytest.mark.parametrize(
    ("field", "told"),
    [
        (pa.field("x", pa.duration("us")), "columns: {x: text}"),
        (pa.field("x", pa.month_day_nano_interval()), "columns: {x: text}"),
        (pa.field("x", pa.time64("ns")), "columns: {x: text}"),
        (pa.field("x", pa.decimal128(5, -2)), "columns: {x: text}"),
        (pa.field("x", pa.map_(pa.int64(), pa.string())), "columns: {x: text}"),
        (pa.field("order id", pa.int64()), "cannot name 'order id'"),
        (pa.field("größe", pa.int64()), "cannot name 'größe'"),
        (pa.field("x", pa.struct([("a b", pa.int64())])), "columns: {x: text}"),
    ],
    ids=lambda each: str(getattr(each, "type", "")),
)
def test_what_avro_cannot_hold_is_refused_by_name(field: pa.Field, told: str) -> None:
    """The message names the column and what helps, before a row is read."""
    with pytest.raises(UnsupportedColumn) as refused:
        Avro().check_schema(pa.schema([field]), export="orders")

    assert told in str(refused.value)


@pytest.mark.parametrize("codec", CODECS)
def test_damage_is_seen_and_no_cell_is_shown(tmp_path: Path, codec: Any) -> None:
    """A file that is cut anywhere, or is of other columns, is no part; texts show no cell."""
    table = pa.table({"id": range(100), "secret": ["4111-1111"] * 100})
    form = Avro(compression=codec)
    whole = write(tmp_path / "x", table, form).read_bytes()
    for size in (0, 3, 40, len(whole) - 20, len(whole) - 1):
        (tmp_path / "x").write_bytes(whole[:size])
        with pytest.raises(PartCorrupt) as corrupt:
            form.rows(tmp_path / "x", table.schema)
        assert "4111" not in str(corrupt.value)
    (tmp_path / "x").write_bytes(whole)
    with pytest.raises(PartCorrupt, match="has not the 1 columns"):
        form.rows(tmp_path / "x", pa.schema([("id", pa.int64())]))


@pytest.mark.parametrize("precision", range(1, 77))
def test_every_number_of_digits_has_room_for_its_sign(tmp_path: Path, precision: int) -> None:
    """The largest and smallest of each precision are the same to us and to another reader."""
    kind = pa.decimal128(precision, 0) if precision <= 38 else pa.decimal256(precision, 0)
    most, least = Decimal("9" * precision), Decimal("-" + "9" * precision)  # a minus would round
    table = pa.table({"x": pa.array([most, least, Decimal(0), None], kind)})

    path = write(tmp_path / "x", table, Avro(compression="none"))

    assert [most, least, 0, None] == [row["x"] for row in read_by_fastavro(path)]
    assert read(path).equals(table)


def test_marker_that_differs_is_seen(tmp_path: Path) -> None:
    """A block that does not end where it says is damage."""
    table = pa.table({"id": range(100)})
    path = write(tmp_path / "x", table, Avro(compression="none"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)

    with pytest.raises(PartCorrupt, match="a block does not end where it says"):
        Avro().rows(path, table.schema)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 10_000), byte=st.integers(0, 255))
@example(place=607, byte=47)  # a name in the schema that is no UTF-8
def test_hostile_bytes_are_refused_or_read(tmp_path: Path, place: int, byte: int) -> None:
    """Whatever one byte says, readers answer with rows or with Arrow's error, never with another one."""
    table = pa.table({"id": [1, 2], "note": ["a", None], "n": [[1], None], "d": pa.array([1, 2], pa.decimal128(9, 2))})
    content = bytearray(write(tmp_path / "x", table, Avro(compression="none")).read_bytes())
    content[place % len(content)] = byte
    (tmp_path / "x").write_bytes(content)

    try:
        read(tmp_path / "x")
    except pa.ArrowException:
        return


def test_reading_without_the_extra_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing and counting need no package; reading rows says which to install."""
    table = pa.table({"id": [1]})
    monkeypatch.setitem(__import__("sys").modules, "fastavro", None)
    path = write(tmp_path / "x", table)

    assert 1 == Avro().rows(path, table.schema)
    with pytest.raises(ExtraMissing, match=r'pip install "rivet\[avro\]"'):
        read(path)


@pytest.mark.parametrize(
    ("keys", "codec"),
    [
        ({}, "zstd(3)"),
        ({"compression": "gzip"}, "deflate(6)"),
        ({"compression": "gzip", "compression_level": 10}, "deflate(9)"),
        ({"compression_profile": "fast"}, "snappy"),
        ({"compression": "none"}, "none"),
    ],
)
def test_codec_is_told_as_it_is(keys: dict[str, Any], codec: str) -> None:
    """Manifests name the codec by Avro's word."""
    assert codec == Avro.from_keys(FormatKeys(**keys)).codec
