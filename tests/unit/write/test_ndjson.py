"""NDJSON is valid JSON for every type, exact, and comes back through every reader."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.json as pj
import pytest

from rivet_resources.contracts.types import JSON
from rivet_resources.errors import PartCorrupt, UnsupportedColumn, ValueDoesNotFit
from rivet_resources.write.formats import ndjson_read
from rivet_resources.write.formats.ndjson import BLOCK, Ndjson
from tests.fakes import column

DAY_US = 86_400_000_000
UTC_US = pa.timestamp("us", "UTC")
UUID_BYTES = bytes.fromhex("550e8400e29b41d4a716446655440000")
UUID_FIELD = pa.field("x", pa.binary(16), metadata={"rivet.logical_type": "uuid"})
POINT = pa.struct([pa.field("a", pa.int64()), pa.field("b", pa.string()), pa.field("born", pa.date32())])

# (Arrow type, cell, what stands in the file)
SPELLINGS: list[tuple[pa.DataType, Any, str]] = [
    (pa.bool_(), True, "true"),
    (pa.bool_(), False, "false"),
    (pa.int8(), -128, "-128"),
    (pa.int64(), -9223372036854775808, "-9223372036854775808"),
    (pa.int64(), 2**53 + 1, "9007199254740993"),
    (pa.uint64(), 18446744073709551615, "18446744073709551615"),
    (pa.float64(), 0.1, "0.1"),
    (pa.float64(), 1.0, "1.0"),
    (pa.float64(), -0.0, "-0.0"),
    (pa.float64(), 1e-7, "1e-7"),
    (pa.float64(), 1e21, "1e+21"),
    (pa.float64(), 5e-324, "5e-324"),
    (pa.float64(), 1.7976931348623157e308, "1.7976931348623157e+308"),
    (pa.float64(), float("nan"), '"NaN"'),
    (pa.float64(), float("inf"), '"Infinity"'),
    (pa.float64(), float("-inf"), '"-Infinity"'),
    (pa.float32(), 3.3, "3.3"),
    (pa.float32(), 16777216.0, "16777216.0"),
    (pa.decimal128(12, 2), Decimal("12.50"), "12.50"),
    (pa.decimal128(12, 2), Decimal("-0.05"), "-0.05"),
    (pa.decimal128(38, 10), Decimal("-0.0000000001"), "-0.0000000001"),
    (pa.decimal128(38, 0), Decimal("9" * 38), "9" * 38),
    (pa.decimal256(60, 20), Decimal("1e-20"), "0.00000000000000000001"),
    (pa.decimal256(76, 0), Decimal("9" * 76), "9" * 76),
    (pa.date32(), 0, '"1970-01-01"'),
    (pa.date32(), -712863, '"0018-04-01"'),
    (pa.date32(), -735160, '"-0043-03-15"'),
    (pa.date32(), 2932897, '"+10000-01-01"'),
    (pa.timestamp("us"), -1, '"1969-12-31T23:59:59.999999"'),
    (pa.timestamp("ms"), 1, '"1970-01-01T00:00:00.001000"'),
    (UTC_US, 1705314600123456, '"2024-01-15T10:30:00.123456Z"'),
    (pa.timestamp("us", "Asia/Manila"), 1705314600000000, '"2024-01-15T10:30:00.000000Z"'),
    (UTC_US, 2932897 * DAY_US + 1, '"+10000-01-01T00:00:00.000001Z"'),
    (pa.timestamp("us"), -719529 * DAY_US - 1, '"-0001-12-30T23:59:59.999999"'),
    (pa.timestamp("ns"), 1705314600123456789, '"2024-01-15T10:30:00.123456789"'),
    (pa.timestamp("ns", "UTC"), -1, '"1969-12-31T23:59:59.999999999Z"'),
    (pa.time64("us"), 49890123456, '"13:51:30.123456"'),
    (pa.time64("us"), -3020398999999, '"-838:59:58.999999"'),
    (pa.time64("ns"), 1, '"00:00:00.000000001"'),
    (pa.binary(), b"\xde\xad\xbe\xef", '"deadbeef"'),
    (pa.binary(), b"", '""'),
    (pa.binary(4), b"\x00\x01\xfe\xff", '"0001feff"'),
    (pa.uuid(), UUID_BYTES, '"550e8400-e29b-41d4-a716-446655440000"'),
    (JSON, '{"a":  1.10, "b": [null, 12345678901234567890]}', '{"a":  1.10, "b": [null, 12345678901234567890]}'),
    (JSON, '"text"', '"text"'),
    (JSON, "-0", "-0"),
    (JSON, ' {"b":1} ', ' {"b":1} '),
    (JSON, '"null"', '"null"'),
    (JSON, "null", " null"),
    (JSON, " null ", "  null "),
    (pa.string(), "", '""'),
    (pa.string(), "null", '"null"'),
    (pa.string(), "ñ ✓ 🎉 \u2028 \x7f", '"ñ ✓ 🎉 \u2028 \x7f"'),
    (pa.string(), 'say "hi" \\ "\\n"', '"say \\"hi\\" \\\\ \\"\\\\n\\""'),
    (pa.string(), "a\tb\nc\rd\be\ff\x00g\x1f/", '"a\\tb\\nc\\rd\\be\\ff\\u0000g\\u001f/"'),
    (pa.large_string(), 'x"y', '"x\\"y"'),
    (pa.string_view(), 'x"y', '"x\\"y"'),
    (pa.dictionary(pa.int32(), pa.string()), 'x"y', '"x\\"y"'),
    (pa.null(), None, "null"),
    (pa.list_(pa.int64()), [1, None, -3], "[1,null,-3]"),
    (pa.list_(pa.string()), ['a"', None, "null", ""], '["a\\"",null,"null",""]'),
    (pa.list_(pa.float64()), [1.0, float("nan")], '[1.0,"NaN"]'),
    (pa.list_(pa.date32()), [0, None], '["1970-01-01",null]'),
    (pa.list_(pa.list_(pa.int8())), [[1], [], None], "[[1],[],null]"),
    (pa.list_(pa.string()), [], "[]"),
    (pa.large_list(pa.bool_()), [True], "[true]"),
    (POINT, {"a": 1, "b": None, "born": 0}, '{"a":1,"b":null,"born":"1970-01-01"}'),
    (POINT, {"a": None, "b": 'q"', "born": None}, '{"a":null,"b":"q\\"","born":null}'),
    (pa.struct([pa.field("j", JSON)]), {"j": "[1.10]"}, '{"j":[1.10]}'),
    (pa.struct([]), {}, "{}"),
]


def written(table: pa.Table, path: Path) -> bytes:
    """Write one file and give its bytes."""
    writer = Ndjson().writer(path, table.schema)
    writer.write(table)
    writer.close()
    assert writer.bytes_written == path.stat().st_size
    return path.read_bytes()


def read_back(path: Path, schema: pa.Schema) -> pa.Table:
    """Read a file as Rivet's own reader does."""
    with open(path, "rb") as file:
        return pa.concat_tables(list(ndjson_read.tables(file, schema)))


@pytest.mark.parametrize(("arrow", "cell", "spelled"), SPELLINGS, ids=[f"{a}={s[:24]!r}" for a, _, s in SPELLINGS])
def test_cell_is_spelled_the_same_wherever_it_stands(arrow: pa.DataType, cell: Any, spelled: str, tmp_path: Path):
    """Every type has one spelling, beside NULLs and beside other cells alike, in a slice too; each line is JSON."""
    ordinary = next(c for a, c, _ in SPELLINGS if a == arrow)
    table = pa.table({"id": [1, 2, 3], "x": column(arrow, [cell, None, cell])})
    mixed = pa.table({"x": column(arrow, [ordinary, None, cell]), "id": [1, 2, 3]}).slice(1)
    full = pa.table({"x": column(arrow, [cell, cell])})

    content = written(table, tmp_path / "a.ndjson").decode()
    beside = written(mixed, tmp_path / "b.ndjson").decode()
    alone = written(full, tmp_path / "c.ndjson").decode()

    assert f'{{"id":1,"x":{spelled}}}\n{{"id":2,"x":null}}\n{{"id":3,"x":{spelled}}}\n' == content
    assert f'{{"x":null,"id":2}}\n{{"x":{spelled},"id":3}}\n' == beside
    assert f'{{"x":{spelled}}}\n' * 2 == alone
    assert [1, 2, 3] == [json.loads(line)["id"] for line in content.split("\n")[:-1]]
    assert 3 == Ndjson().rows(tmp_path / "a.ndjson", table.schema)


@pytest.mark.parametrize(("arrow", "cell", "spelled"), SPELLINGS, ids=[f"{a}={s[:24]!r}" for a, _, s in SPELLINGS])
def test_cell_comes_back_as_it_was(arrow: pa.DataType, cell: Any, spelled: str, tmp_path: Path):
    """Rivet's reader gives the same cell; times, uuids, nanoseconds and JSON as the text that stands in the file."""
    table = pa.table({"x": column(arrow, [cell, None, cell]), "id": [1, 2, 3]})
    written(table, tmp_path / "a.ndjson")

    found = read_back(tmp_path / "a.ndjson", table.schema)["x"]

    expected = table["x"]
    if found.type == pa.string():
        text = cell if arrow == JSON else json.loads(spelled)
        assert [text, None, text] == found.to_pylist()
    elif pa.types.is_temporal(arrow):
        assert expected.combine_chunks().view(pa.int64() if arrow.bit_width == 64 else pa.int32()) == (
            found.combine_chunks().view(pa.int64() if arrow.bit_width == 64 else pa.int32())
        )
    elif arrow == pa.struct([pa.field("j", JSON)]):
        assert [{"j": "[1.10]"}, None, {"j": "[1.10]"}] == found.to_pylist()
    else:
        assert repr(expected.to_pylist()) == repr(found.to_pylist())


def everything() -> pa.Table:
    """All cells of the table above in one table: one column per cell."""
    return pa.table({f"c{i}": column(arrow, [cell, None]) for i, (arrow, cell, _) in enumerate(SPELLINGS)})


def test_python_reads_every_line_with_nothing_lost(tmp_path: Path):
    """The standard library's strict parser takes each line, and re-spelling its exact numbers gives ours."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    content = written(everything(), tmp_path / "a.ndjson").decode()
    first, second = (json.loads(line, parse_constant=refuse) for line in content.split("\n")[:-1])

    assert [json.loads(spelled) for _, _, spelled in SPELLINGS] == list(first.values())
    assert set(second.values()) == {None}


def test_duckdb_reads_every_line_with_its_types(tmp_path: Path):
    """DuckDB takes the file, and with types named gives the numbers and instants exactly."""
    written(everything(), tmp_path / "a.ndjson")
    found = duckdb.sql(
        f"FROM read_json('{tmp_path}/a.ndjson', format = 'newline_delimited', map_inference_threshold = -1)"
    )
    assert 2 == len(found.fetchall())

    schema = {"i": pa.int64(), "u": pa.uint64(), "d": pa.decimal128(38, 0), "f": pa.float64(), "t": UTC_US}
    cells = {"i": -(2**63), "u": 2**64 - 1, "d": Decimal("9" * 38), "f": float("nan"), "t": 1705314600123456}
    written(pa.table({name: column(schema[name], [cells[name]]) for name in schema}), tmp_path / "b.ndjson")
    words = "{i: 'BIGINT', u: 'UBIGINT', d: 'DECIMAL(38,0)', f: 'DOUBLE', t: 'TIMESTAMPTZ'}"
    found = duckdb.sql(
        f"SELECT i, u, d, isnan(f), epoch_us(t) FROM read_json('{tmp_path}/b.ndjson', columns = {words})"
    )

    assert [(-(2**63), 2**64 - 1, Decimal("9" * 38), True, 1705314600123456)] == found.fetchall()


def test_pyarrow_reads_every_line(tmp_path: Path):
    """pyarrow's own reader infers a schema from a file of ours, unless numbers stand beside "NaN" in one column."""
    table = everything()
    mixed = [f"c{i}" for i, (_, _, spelled) in enumerate(SPELLINGS) if spelled == '[1.0,"NaN"]']
    table = table.drop_columns(mixed)
    written(table, tmp_path / "a.ndjson")

    found = pj.read_json(tmp_path / "a.ndjson")

    assert 1 == len(mixed)
    assert 2 == found.num_rows
    assert table.column_names == found.column_names
    assert {None} == {found[name][1].as_py() for name in table.column_names}


def test_any_text_and_number_come_back_through_pythons_own_reader(tmp_path: Path):
    """What we write, another reader reads as the same cells: every control, quotes, several planes, any double."""
    draw = random.Random(7)
    letters = [chr(code) for code in range(0x20)] + ['"', "\\", "a", "/", "é", "\u2028", "𝄞", "\x7f"]
    cells = [
        None if draw.random() < 0.1 else "".join(draw.choices(letters, k=draw.randrange(6))) for _ in range(40_000)
    ]
    floats = [float.fromhex(f"0x1.{draw.getrandbits(52):013x}p{draw.randrange(-1022, 1024)}") for _ in cells]
    table = pa.table({"id": range(len(cells)), "body": cells, "f": floats, "tags": [[c, c] for c in cells]})

    content = written(table, tmp_path / "a.ndjson").decode()

    assert table.to_pylist() == [json.loads(line) for line in content.split("\n")[:-1]]
    assert len(cells) == Ndjson().rows(tmp_path / "a.ndjson", table.schema)
    assert table.to_pylist() == read_back(tmp_path / "a.ndjson", table.schema).to_pylist()


def test_rows_of_several_chunks_and_slices_keep_their_order(tmp_path: Path):
    """A table in chunks, lists and structs with offsets included, is written as if it were one."""
    rows = [
        {"id": i, "l": None if i % 5 == 0 else [str(i)] * (i % 3), "s": None if i % 7 == 0 else {"a": i}}
        for i in range(50_000)
    ]
    table = pa.Table.from_pylist(rows)
    parts = pa.concat_tables([table.slice(0, 3), table.slice(3, 40_000), table.slice(40_003)])

    written(parts, tmp_path / "a.ndjson")

    assert rows == [json.loads(line) for line in (tmp_path / "a.ndjson").read_text().split("\n")[:-1]]
    assert rows == read_back(tmp_path / "a.ndjson", table.schema).to_pylist()


def test_json_over_several_lines_is_written_on_one(tmp_path: Path):
    """Line feeds between tokens become blanks; what stands inside a text is escaped there already."""
    table = pa.table({"x": column(JSON, ['{\n "a": [1,\r\n2],\t"b": "x\\ny"}'])})

    assert b'{"x":{  "a": [1,  2],\t"b": "x\\ny"}}\n' == written(table, tmp_path / "a.ndjson")


def test_lone_surrogate_of_json_is_written_as_it_is(tmp_path: Path):
    """PostgreSQL's `json` may hold it; it is JSON, though many parsers refuse it."""
    table = pa.table({"x": column(JSON, ['"\\ud800"', "[1]"])})

    assert b'{"x":"\\ud800"}\n{"x":[1]}\n' == written(table, tmp_path / "a.ndjson")


@pytest.mark.parametrize(
    "text",
    ["", " ", "{", "[1,]", "NaN", "{a:1}", "1 2", "1,2", '1,"y":2', "1}{", '1}\n{"x":2', '1],"y":[2', "'a'", "01", "1.",
     "[1] // x", "[-Infinity]", '{"a": Inf}', '"a\tb"', "tru", "\ufeff1", "[" * 50_000],
)  # fmt: skip
def test_text_that_is_no_json_never_reaches_a_file(text: str, tmp_path: Path):
    """SQLite checks nothing: such a cell would break its line, or smuggle members into it."""
    table = pa.table({"x": column(JSON, ["[1]", text, None])})
    writer = Ndjson().writer(tmp_path / "a.ndjson", table.schema)

    with pytest.raises(ValueDoesNotFit, match=r"Column x is JSON and holds a text that is not.*`columns: \{x: text\}`"):
        writer.write(table)


def test_words_that_look_like_no_numbers_may_stand_in_texts_of_json(tmp_path: Path):
    """`NaN` is refused as a number only; members that stand twice are the source's business."""
    cells = ['{"a": "x, NaN ", "a": 1}', '"[Inf]"', '["Infinity"]']
    table = pa.table({"x": column(JSON, cells)})

    content = written(table, tmp_path / "a.ndjson").decode()

    assert [f'{{"x":{cell}}}' for cell in cells] == content.split("\n")[:-1]


def test_name_of_a_column_is_escaped(tmp_path: Path):
    """Any name is a member's name."""
    names = ['a"b', "back\\slash", "line\nfeed", "ñ", "", "a:b"]
    table = pa.table({name: [1] for name in names})

    content = written(table, tmp_path / "a.ndjson")

    assert names == list(json.loads(content))
    assert 1 == Ndjson().rows(tmp_path / "a.ndjson", table.schema)
    assert names == read_back(tmp_path / "a.ndjson", table.schema).column_names


def test_file_without_rows_is_empty(tmp_path: Path):
    """No line, no object; still a file that can be read back."""
    table = pa.table({"id": pa.array([], pa.int64())})

    assert b"" == written(table, tmp_path / "a.ndjson")
    assert 0 == Ndjson().rows(tmp_path / "a.ndjson", table.schema)


def test_sixteen_bytes_are_a_uuid_when_the_catalog_says_so(tmp_path: Path):
    """Fixed binary(16) with the logical type uuid is spelled with hyphens, and read as the same bytes."""
    table = pa.table([pa.array([UUID_BYTES], pa.binary(16))], schema=pa.schema([UUID_FIELD]))

    assert b'{"x":"550e8400-e29b-41d4-a716-446655440000"}\n' == written(table, tmp_path / "a.ndjson")
    assert [UUID_BYTES] == read_back(tmp_path / "a.ndjson", table.schema)["x"].to_pylist()


@pytest.mark.parametrize(
    "kind",
    [pa.map_(pa.string(), pa.string()), pa.duration("us"), pa.list_(pa.duration("s")), pa.month_day_nano_interval()],
)
def test_column_without_a_json_form_is_refused_before_a_row_is_read(kind: pa.DataType):
    """Maps and spans of time are refused, naming the override."""
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("odd", kind)])

    with pytest.raises(UnsupportedColumn, match=r"Export orders: .*`columns: \{odd: text\}`"):
        Ndjson().check_schema(schema, export="orders")


def test_two_columns_of_one_name_are_refused():
    """A reader would keep only one of them."""
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("a", pa.string())])

    with pytest.raises(UnsupportedColumn, match="two columns of one name: 'a'"):
        Ndjson().check_schema(schema, export="orders")


def test_every_type_that_is_spelled_is_accepted():
    """What the writer can, the check lets pass, without a warning."""
    assert () == Ndjson().check_schema(everything().schema, export="orders")


@pytest.mark.parametrize(
    "content",
    [
        b'{"id":1,"x":"a"}',
        b'{"id":1,"x":"a"}\n{"id":2,',
        b'{"id":1,"x":"a"}\n{"id":2,"x":"b"\n',
        b'{"id":1,"x":"a"}\n\n',
        b'{"id":1,"x":"a"}\nid,x\n',
        b"\n",
        b"[1]\n",
        b"id,x\n1,2\n",
        b'{"x":"a","id":1}\n',
        b'{"id":1}\n',
        b'{"id":1,"x":"a"}\n' * 100_000 + b'{"id"',
    ],
)
def test_file_that_is_cut_or_foreign_is_corrupt(content: bytes, tmp_path: Path):
    """Such a file is never counted."""
    (tmp_path / "a.ndjson").write_bytes(content)
    schema = pa.schema([("id", pa.int64()), ("x", pa.string())])

    with pytest.raises(PartCorrupt, match=r"Part a\.ndjson"):
        Ndjson().rows(tmp_path / "a.ndjson", schema)


@pytest.mark.parametrize("shift", range(-3, 4))
def test_lines_are_counted_across_the_blocks_of_reading(shift: int, tmp_path: Path):
    """Wherever the edge of a block falls, an object counts once."""
    filler = BLOCK - len('{"x":""}\n') + shift
    table = pa.table({"x": ["y" * filler, "", "z" * BLOCK, "", ""]})

    written(table, tmp_path / "a.ndjson")

    assert 5 == Ndjson().rows(tmp_path / "a.ndjson", table.schema)


def test_reader_cuts_blocks_at_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A line longer than a block is read whole."""
    table = pa.table({"id": range(500), "x": ["y" * (i % 50 * 10) for i in range(500)]})
    written(table, tmp_path / "a.ndjson")
    monkeypatch.setattr(ndjson_read, "BLOCK", 64)

    assert table.to_pylist() == read_back(tmp_path / "a.ndjson", table.schema).to_pylist()


def test_reader_gives_the_columns_that_a_part_has(tmp_path: Path):
    """A part of an older schema lacks columns, or has one that is no longer asked for."""
    table = pa.table({"gone": [1], "j": column(JSON, ["[1]"]), "id": [7]})
    written(table, tmp_path / "a.ndjson")

    found = read_back(tmp_path / "a.ndjson", pa.schema([("id", pa.int64()), ("later", pa.string()), ("j", JSON)]))

    assert {"j": ["[1]"], "id": [7]} == found.to_pydict()


def test_ndjson_claims_no_codec():
    """The manifest never names a compression that was not applied."""
    assert ("ndjson", "none", "ndjson") == (Ndjson().extension, Ndjson().codec, Ndjson().type)
