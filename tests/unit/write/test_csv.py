"""CSV keeps the byte rules of `contract.md`, 8.3, and is read back by records."""

from __future__ import annotations

import csv
import random
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pytest

from rivet_resources.errors import PartCorrupt, UnsupportedColumn
from rivet_resources.write.formats.csv import Csv

DAY_US = 86_400_000_000
UTC_US = pa.timestamp("us", "UTC")
UUID_BYTES = bytes.fromhex("550e8400e29b41d4a716446655440000")

# (Arrow type, cell, what stands in the file)
SPELLINGS = [
    (pa.bool_(), True, "true"),
    (pa.bool_(), False, "false"),
    (pa.int64(), -9223372036854775808, "-9223372036854775808"),
    (pa.uint64(), 18446744073709551615, "18446744073709551615"),
    (pa.int16(), -1, "-1"),
    (pa.float64(), 0.1, "0.1"),
    (pa.float64(), 1.0, "1"),
    (pa.float64(), -0.0, "-0"),
    (pa.float64(), 1e-7, "0.0000001"),
    (pa.float64(), 1e21, "1000000000000000000000"),
    (pa.float64(), 1e100, "1" + "0" * 100),
    (pa.float64(), float("nan"), "NaN"),
    (pa.float64(), float("inf"), "inf"),
    (pa.float64(), float("-inf"), "-inf"),
    (pa.float32(), 3.3, "3.3"),
    (pa.float32(), 123.456, "123.456"),
    (pa.decimal128(12, 2), Decimal("12.50"), "12.50"),
    (pa.decimal128(12, 2), Decimal("-0.05"), "-0.05"),
    (pa.decimal128(38, 10), Decimal("0"), "0.0000000000"),
    (pa.decimal128(38, 10), Decimal("-0.0000000001"), "-0.0000000001"),
    (pa.decimal128(38, 0), Decimal("9" * 38), "9" * 38),
    (pa.date32(), 0, "1970-01-01"),
    (pa.date32(), -1, "1969-12-31"),
    (pa.date32(), -712863, "0018-04-01"),
    (pa.date32(), -719528, "0000-01-01"),
    (pa.date32(), -719529, "-0001-12-31"),
    (pa.date32(), -735160, "-0043-03-15"),
    (pa.date32(), 2932897, "+10000-01-01"),
    (pa.timestamp("us"), 0, "1970-01-01T00:00:00.000000"),
    (pa.timestamp("us"), -1, "1969-12-31T23:59:59.999999"),
    (pa.timestamp("ms"), 1, "1970-01-01T00:00:00.001000"),
    (pa.timestamp("us"), 1705314600123456, "2024-01-15T10:30:00.123456"),
    (UTC_US, 1705314600000000, "2024-01-15T10:30:00.000000Z"),
    (pa.timestamp("us", "Asia/Manila"), 1705314600000000, "2024-01-15T10:30:00.000000Z"),
    (UTC_US, 2932897 * DAY_US + 1, "+10000-01-01T00:00:00.000001Z"),
    (pa.timestamp("us"), -719529 * DAY_US - 1, "-0001-12-30T23:59:59.999999"),
    (pa.time64("us"), 49890123456, "13:51:30.123456"),
    (pa.time32("s"), 1, "00:00:01.000000"),
    (pa.time64("us"), 2756601000000, "765:43:21.000000"),
    (pa.time64("us"), -3020398999999, "-838:59:58.999999"),
    (pa.binary(), b"\xde\xad\xbe\xef", "deadbeef"),
    (pa.binary(), b"", ""),
    (pa.uuid(), UUID_BYTES, "550e8400-e29b-41d4-a716-446655440000"),
    (pa.json_(pa.string()), '{"a": 1}', '"{""a"": 1}"'),
    (pa.string(), "plain text; 'quoted' | ñ ✓ 🎉", "plain text; 'quoted' | ñ ✓ 🎉"),
    (pa.string(), "", ""),
    (pa.string(), "a,b", '"a,b"'),
    (pa.string(), 'say "hi"', '"say ""hi"""'),
    (pa.string(), "two\nlines", '"two\nlines"'),
    (pa.string(), "old\rmac", '"old\rmac"'),
    (pa.string(), "tab\there", "tab\there"),
    (pa.string(), "=1+1", "=1+1"),
    (pa.large_string(), "x,y", '"x,y"'),
]


def column(arrow: pa.DataType, cells: list[object]) -> pa.Array:
    """Build a column, from storage numbers where Python has no such value."""
    if pa.types.is_temporal(arrow):
        return pa.array(cells, pa.int64() if arrow.bit_width == 64 else pa.int32()).view(arrow)
    if isinstance(arrow, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(arrow, pa.array(cells, arrow.storage_type))
    return pa.array(cells, arrow)


def written(table: pa.Table, path: Path) -> bytes:
    """Write one file and give its bytes."""
    writer = Csv().writer(path, table.schema)
    writer.write(table)
    writer.close()
    assert writer.bytes_written == path.stat().st_size
    return path.read_bytes()


@pytest.mark.parametrize(("arrow", "cell", "spelled"), SPELLINGS, ids=[f"{a}={s[:24]!r}" for a, _, s in SPELLINGS])
def test_cell_is_spelled_as_the_contract_says(arrow: pa.DataType, cell: object, spelled: str, tmp_path: Path) -> None:
    """Every type has one spelling, beside NULLs and beside ordinary values alike."""
    ordinary = next(c for a, c, _ in SPELLINGS if a == arrow)
    table = pa.table({"id": [1, 2, 3], "x": column(arrow, [cell, None, cell])})
    mixed = pa.table({"x": column(arrow, [ordinary, None, cell]), "id": [1, 2, 3]}).slice(1)

    content = written(table, tmp_path / "a.csv").decode()
    beside = written(mixed, tmp_path / "b.csv").decode()

    assert f"id,x\n1,{spelled}\n2,\n3,{spelled}\n" == content
    assert f"x,id\n,2\n{spelled},3\n" == beside


def test_all_null_column_of_every_type_is_empty_fields(tmp_path: Path) -> None:
    """NULL is an empty unquoted field whatever the type, also when nothing else is in the column."""
    types = list(dict.fromkeys(arrow for arrow, _, _ in SPELLINGS))
    table = pa.table({f"c{i}": column(arrow, [None]) for i, arrow in enumerate(types)})

    content = written(table, tmp_path / "a.csv").decode()

    assert "," * (len(types) - 1) + "\n" == content.splitlines(keepends=True)[1]


def test_header_is_written_without_rows_and_quoted_like_text(tmp_path: Path) -> None:
    """A file without rows still names its columns, and a name with a comma or quote is quoted."""
    table = pa.table(
        {"a,b": pa.array([], pa.int64()), 'say "x"': pa.array([], pa.string()), "plain": pa.array([], pa.int8())}
    )

    assert b'"a,b","say ""x""",plain\n' == written(table, tmp_path / "a.csv")


REFUSED = {
    "tags": pa.list_(pa.string()),
    "point": pa.struct([pa.field("x", pa.int32())]),
    "big": pa.decimal256(60, 4),
    "at": pa.timestamp("ns"),
    "clock": pa.time64("ns"),
    "raw": pa.binary(8),
    "digest": pa.binary(16),
    "pairs": pa.map_(pa.string(), pa.string()),
    "span": pa.duration("us"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_column_without_a_csv_form_is_refused_before_a_row_is_read(name: str) -> None:
    """Lists, structs, 256-bit decimals, nanoseconds and fixed binaries are refused, naming the override."""
    schema = pa.schema([pa.field("id", pa.int64()), pa.field(name, REFUSED[name])])

    with pytest.raises(UnsupportedColumn) as refused:
        Csv().check_schema(schema, export="orders")

    assert f"columns: {{{name}: text}}" in str(refused.value)
    assert "Export orders" in str(refused.value)


def test_sixteen_bytes_are_a_uuid_when_the_catalog_says_so(tmp_path: Path) -> None:
    """Fixed binary(16) with the logical type uuid is spelled with hyphens."""
    field = pa.field("u", pa.binary(16), metadata={"rivet.logical_type": "uuid"})
    table = pa.table([pa.array([UUID_BYTES], pa.binary(16))], schema=pa.schema([field]))

    assert () == Csv().check_schema(table.schema, export="orders")
    assert b"u\n550e8400-e29b-41d4-a716-446655440000\n" == written(table, tmp_path / "a.csv")


def test_records_are_counted_not_lines(tmp_path: Path) -> None:
    """Line feeds inside cells do not count, also where a cell spans the blocks in which the file is read."""
    cells = ["a\nb", None, 'q"\n"q', "plain", "x" * 1_500_000 + "\n", "\n", '"', ""] * 3
    table = pa.table({"body": cells})

    written(table, tmp_path / "a.csv")

    assert len(cells) == Csv().rows(tmp_path / "a.csv", table.schema)


@pytest.mark.parametrize(
    "cells", [[None, "a", "", None], [None, None], [1, None, 2], [None, True], [None, b"", b"a"]], ids=repr
)
def test_row_of_one_empty_cell_is_a_record_to_every_reader(cells: list[object], tmp_path: Path) -> None:
    """A line with nothing on it is no row to most readers, so the only cell of a row is never written as nothing."""
    table = pa.table({"body": cells})

    content = written(table, tmp_path / "a.csv")

    with open(tmp_path / "a.csv", newline="", encoding="utf-8") as file:
        assert len(cells) == len([row for row in csv.reader(file) if row]) - 1
    assert len(cells) == pa.csv.read_csv(tmp_path / "a.csv").num_rows
    assert len(cells) == sum(each.num_rows for each in Csv().batches(tmp_path / "a.csv", table.schema))
    with open(tmp_path / "a.csv", "rb") as part:
        read = pa.concat_tables(Csv().tables(part, table.schema)).column("body").to_pylist()
    assert [cell or None for cell in cells] == [cell or None for cell in read]
    assert b"\n\n" not in content


def test_any_text_comes_back_through_pythons_own_reader(tmp_path: Path) -> None:
    """What we write, another reader reads as the same cells (NULL and '' both as '')."""
    draw = random.Random(7)
    cells = ["".join(draw.choices('ab,"\n\r é', k=draw.randrange(6))) for _ in range(40_000)]
    table = pa.table({"id": range(len(cells)), "body": cells, "last": cells[::-1]})

    written(table, tmp_path / "a.csv")

    with open(tmp_path / "a.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))[1:]
    assert [[str(i), a, b] for i, (a, b) in enumerate(zip(cells, cells[::-1], strict=True))] == rows
    assert len(cells) == Csv().rows(tmp_path / "a.csv", table.schema)


@pytest.mark.parametrize("content", [b"", b"id\n1\n", b"id,x\n1,2", b'id,x\n1,"2\n', b"idx,x\n1,2\n"])
def test_file_that_does_not_end_or_begin_as_written_is_corrupt(content: bytes, tmp_path: Path) -> None:
    """A cut or foreign file is never counted."""
    (tmp_path / "a.csv").write_bytes(content)
    schema = pa.schema([("id", pa.int64()), ("x", pa.string())])

    with pytest.raises(PartCorrupt):
        Csv().rows(tmp_path / "a.csv", schema)


def test_csv_claims_no_codec() -> None:
    """The manifest never names a compression that was not applied."""
    assert ("csv", "none") == (Csv().extension, Csv().codec)
