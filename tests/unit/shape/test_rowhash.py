"""The row hash: published vectors, and a recipe of one row at a time that knows nothing of columns."""

from __future__ import annotations

import random
import struct
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
import xxhash

from rivet_resources.errors import UnknownColumn, UnsupportedColumn
from rivet_resources.shape.rowhash.hash import check_columns, row_hashes

TEXTS = pa.list_(pa.string())
UTC_MICROS = pa.timestamp("us", "UTC")
MICROS = pa.timestamp("us")
UUID_BYTES = UUID("550e8400-e29b-41d4-a716-446655440000").bytes

# contract.md, section 9: published by the original, then those derived from its recipe.
VECTORS: list[tuple[list[tuple[Any, pa.DataType]], int]] = [
    ([(["a, b"], TEXTS)], -3174247791433624734),
    ([(["a", "b"], TEXTS)], -8270860736070407760),
    ([([], TEXTS)], 4938194412766331533),
    ([([None], TEXTS)], -644691579053858169),
    ([([""], TEXTS)], 8073291495565291491),
    ([(1, pa.int64()), ("a\x1f", pa.string()), ("b", pa.string())], 5573073147941335567),
    ([("a\x1f", pa.string()), ("b", pa.string())], -8946974302051805527),
    ([(2, pa.int64()), ("a", pa.string()), ("\x1fb", pa.string())], 3968853221329030294),
    ([("a", pa.string()), ("\x1fb", pa.string())], 532340242897393958),
    ([(3, pa.int64()), (None, pa.string()), ("x", pa.string())], -1239523857563633130),
    ([(None, pa.string()), ("x", pa.string())], -8965907269380961494),
    ([(4, pa.int64()), ("", pa.string()), ("x", pa.string())], -5949643219585999386),
    ([("", pa.string()), ("x", pa.string())], -2203659999822460341),
    ([(None, pa.int64())], -4302098779834749733),
    ([(42, pa.int64())], -2718469710984209407),
    ([(True, pa.bool_())], 4495481867240095306),
    ([(1.0, pa.float64())], 5090890015590986521),
    ([(Decimal("12.50"), pa.decimal128(12, 2))], -5199371975884029688),
    ([(datetime(2024, 1, 15, 10, 30, tzinfo=UTC), UTC_MICROS)], -5947014776379091143),
    ([(datetime(2024, 1, 15, 10, 30, 0, 123456), MICROS)], 5138355678985207006),
    ([(bytes.fromhex("DEADBEEF"), pa.binary())], 2407199985908058653),
    ([(UUID_BYTES, pa.uuid())], -6948905687868149738),
    ([(UUID_BYTES, pa.binary(16))], -6948905687868149738),
    (
        [
            (7, pa.int64()),
            ("héllo", pa.string()),
            (Decimal("12.50"), pa.decimal128(12, 2)),
            (True, pa.bool_()),
            (datetime(2026, 1, 15, 12, tzinfo=UTC), UTC_MICROS),
            (None, pa.string()),
            (["x", None], TEXTS),
        ],
        8575046116816505957,
    ),
]

# A cell, its type, and the display text that the frame holds.
SPELLED: list[tuple[Any, pa.DataType, str]] = [
    (-128, pa.int8(), "-128"),
    (65535, pa.uint16(), "65535"),
    (2**64 - 1, pa.uint64(), "18446744073709551615"),
    (-(2**63), pa.int64(), "-9223372036854775808"),
    (10**16, pa.int64(), "10000000000000000"),
    (10**16 - 1, pa.int64(), "9999999999999999"),
    (0, pa.int32(), "0"),
    (-1, pa.int32(), "-1"),
    (False, pa.bool_(), "false"),
    (-0.0, pa.float64(), "-0.0"),
    (1e100, pa.float64(), "1e100"),
    (1.5e300, pa.float64(), "1.5e300"),
    (1e15, pa.float64(), "1000000000000000.0"),
    (1e16, pa.float64(), "1e16"),
    (123456789012345.6, pa.float64(), "123456789012345.6"),
    (12345678901.0, pa.float64(), "12345678901.0"),
    (1e-5, pa.float64(), "0.00001"),
    (1.5e-6, pa.float64(), "1.5e-6"),
    (5e-324, pa.float64(), "5e-324"),
    (0.1, pa.float64(), "0.1"),
    (-2.5, pa.float64(), "-2.5"),
    (float("nan"), pa.float64(), "NaN"),
    (float("inf"), pa.float64(), "inf"),
    (float("-inf"), pa.float64(), "-inf"),
    (0.1, pa.float32(), "0.1"),
    (16777216.0, pa.float32(), "16777216.0"),
    (1e12, pa.float32(), "1000000000000.0"),
    (1e13, pa.float32(), "1e13"),
    (1.5e-6, pa.float32(), "0.0000015"),
    (1.5e-7, pa.float32(), "1.5e-7"),
    (1.5, pa.float16(), "1.5"),
    (2.0, pa.float16(), "2.0"),
    ("", pa.string(), ""),
    ("ünï", pa.large_string(), "ünï"),
    ("a long text that no view keeps inline", pa.string_view(), "a long text that no view keeps inline"),
    (b"", pa.binary(), ""),
    (b"\x00\xff", pa.large_binary(), "00ff"),
    (b"\x00\xff" * 9, pa.binary_view(), "00ff" * 9),
    (Decimal("-0.05"), pa.decimal128(12, 2), "-0.05"),
    (Decimal("0"), pa.decimal128(12, 2), "0.00"),
    (Decimal("9999999999.99"), pa.decimal128(12, 2), "9999999999.99"),
    (Decimal("-7"), pa.decimal128(9, 0), "-7"),
    (Decimal("0.000000001"), pa.decimal128(18, 9), "0.000000001"),
    (Decimal("0E-10"), pa.decimal128(20, 10), "0.0000000000"),
    (Decimal("99999999999999999999999999999999999.999"), pa.decimal128(38, 3), "9" * 35 + ".999"),
    (Decimal("1200"), pa.decimal128(5, -2), "1200"),
    (Decimal("-0.0000000001"), pa.decimal256(60, 10), "-0.0000000001"),
    (Decimal("1.5"), pa.decimal256(60, 10), "1.5000000000"),
    (Decimal("1.50"), pa.decimal32(5, 2), "1.50"),
    (Decimal("1.50"), pa.decimal64(12, 2), "1.50"),
    (date(2026, 1, 15), pa.date32(), "2026-01-15"),
    (date(2026, 1, 15), pa.date64(), "2026-01-15"),
    (date(1, 1, 1), pa.date32(), "0001-01-01"),
    (date(987, 6, 5), pa.date32(), "0987-06-05"),
    (-719_529, pa.date32(), "-0001-12-31"),
    (2_932_897, pa.date32(), "+10000-01-01"),
    (time(1, 2, 3), pa.time32("s"), "01:02:03"),
    (time(1, 2, 3, 40_000), pa.time32("ms"), "01:02:03.040"),
    (time(1, 2, 3, 40_000), pa.time64("us"), "01:02:03.040"),
    (time(1, 2, 3, 4), pa.time64("us"), "01:02:03.000004"),
    (1, pa.time64("ns"), "00:00:00.000000001"),
    (86_400_000_000, pa.time64("us"), "24:00:00"),
    (datetime(1, 1, 1), MICROS, "0001-01-01T00:00:00"),
    (datetime(9999, 12, 31, 23, 59, 59, 999999), MICROS, "9999-12-31T23:59:59.999999"),
    (2_932_897 * 86_400_000_000 + 1, UTC_MICROS, "+10000-01-01T00:00:00.000001Z"),
    (datetime(1969, 12, 31, 23, 59, 59, 500_000, tzinfo=UTC), UTC_MICROS, "1969-12-31T23:59:59.500Z"),
    (datetime(2024, 1, 15, 10, 30), pa.timestamp("s"), "2024-01-15T10:30:00"),
    (1_500, pa.timestamp("ms", "UTC"), "1970-01-01T00:00:01.500Z"),
    (1_000_000_001, pa.timestamp("ns"), "1970-01-01T00:00:01.000000001"),
    (1_001_000, pa.timestamp("ns"), "1970-01-01T00:00:00.001001"),
    ('{"a": 1}', pa.json_(), '{"a": 1}'),
]


def frame(text: str | None) -> bytes:
    """Frame one scalar cell."""
    if text is None:
        return b"\0"
    spelled = text.encode()
    return b"\1" + struct.pack("<I", len(spelled)) + spelled


def digest(framed: bytes) -> int:
    """Return the low 64 bits of XXH3-128, signed."""
    low = xxhash.xxh3_128_intdigest(framed) & (2**64 - 1)
    return low - 2**64 if low >= 2**63 else low


def array(cells: list[Any], arrow: pa.DataType) -> pa.Array:
    """Build a column, of an extension type too, and of numbers for what Python cannot hold."""
    if isinstance(arrow, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(arrow, pa.array(cells, arrow.storage_type))
    if cells and isinstance(next((cell for cell in cells if cell is not None), None), int) and is_clock(arrow):
        return pa.array(cells, pa.int32() if arrow.bit_width == 32 else pa.int64()).cast(arrow)
    return pa.array(cells, arrow)


def is_clock(arrow: pa.DataType) -> bool:
    """Return whether a number is a date or a time."""
    return bool(pa.types.is_temporal(arrow))


def hashes(*columns: pa.Array | pa.ChunkedArray) -> list[int]:
    """Hash all columns of a table."""
    table = pa.table({f"c{index}": column for index, column in enumerate(columns)})
    found: list[int] = row_hashes(table, table.column_names).to_pylist()
    return found


@pytest.mark.parametrize(("cells", "expected"), VECTORS)
def test_the_vectors_of_the_contract_come_out(cells: list[tuple[Any, pa.DataType]], expected: int) -> None:
    """Every published and derived vector of contract.md, 9 is reproduced."""
    actual = hashes(*(array([cell], arrow) for cell, arrow in cells))

    assert [expected] == actual


@pytest.mark.parametrize(("cell", "arrow", "text"), SPELLED, ids=lambda value: str(value)[:40])
def test_a_cell_is_hashed_by_its_display_text(cell: Any, arrow: pa.DataType, text: str) -> None:
    """One cell of every type is framed with exactly the text the contract names, alone and between NULLs."""
    alone, between = array([cell], arrow), array([None, cell, None], arrow)

    assert [digest(frame(text))] == hashes(alone)
    assert [digest(frame(None)), digest(frame(text)), digest(frame(None))] == hashes(between)


@pytest.mark.parametrize("arrow", [pa.float32(), pa.float64()])
def test_floats_of_every_size_come_back_from_their_text(arrow: pa.DataType) -> None:
    """At every power of ten, digits are the fewest that come back, with a point or an exponent where ryu puts it."""
    low, high = (-5, 13) if arrow == pa.float32() else (-4, 16)
    figures = [mantissa * 10.0**power for power in range(-37, 38) for mantissa in (1.0, 1.5, 9.9999, -1.2345678)]
    column = pa.array(figures, pa.float64()).cast(arrow)

    expected = [digest(frame(ryu(text, low, high))) for text in column.cast(pa.string()).to_pylist()]

    assert expected == hashes(column)


def ryu(shortest: str, low: int, high: int) -> str:
    """Spell a float of any text as ryu does."""
    sign, digits, exponent = Decimal(shortest).normalize().as_tuple()
    figures, minus = "".join(map(str, digits)), "-" * sign
    point = len(figures) + int(exponent)
    if not low <= point <= high:
        return f"{minus}{figures[0]}{'.' + figures[1:] if figures[1:] else ''}e{point - 1}"
    plain = format(abs(Decimal(shortest).normalize()), "f")
    return f"{minus}{plain}" if "." in plain else f"{minus}{plain}.0"


@pytest.mark.parametrize("step", [1, 63, 64, 65])
def test_texts_of_every_length_are_hashed_whole(step: int) -> None:
    """Whatever the length of a text and of its neighbours, no byte is lost and none is left over."""
    texts = ["".join(chr(97 + (at * 7 + size) % 26) for at in range(size)) for size in range(0, 1300, step)]
    column = pa.array([*texts, None, "x" * 100_000, ""], pa.string())

    expected = [digest(frame(text) + frame("7") + frame(text)) for text in column.to_pylist()]

    assert expected == hashes(column, pa.array([7] * len(column)), column)


def test_nested_cells_are_framed_by_the_same_rules() -> None:
    """Lists of structs, structs of lists and maps nest their frames; NULL inside is one byte, wherever it is."""
    kind = pa.struct([("a", pa.int32()), ("b", TEXTS)])
    structs = pa.array([{"a": 1, "b": ["x", None]}, None, {"a": None, "b": None}], kind)
    lists = pa.array([[{"a": 1, "b": []}, None], None, []], pa.list_(kind))
    maps = pa.array([[("k", 1), ("l", None)], None, []], pa.map_(pa.string(), pa.int64()))
    fixed = pa.array([[1, None], None, [3, 4]], pa.list_(pa.int8(), 2))
    null, two = b"\0", b"\1\2\0\0\0"

    assert [
        digest(b"\1" + frame("1") + two + frame("x") + null),
        digest(null),
        digest(b"\1" + null + null),
    ] == hashes(structs)
    assert [
        digest(two + b"\1" + frame("1") + b"\1\0\0\0\0" + null),
        digest(null),
        digest(b"\1\0\0\0\0"),
    ] == hashes(lists)
    assert [
        digest(two + b"\1" + frame("k") + frame("1") + b"\1" + frame("l") + null),
        digest(null),
        digest(b"\1\0\0\0\0"),
    ] == hashes(maps)
    assert [digest(two + frame("1") + null), digest(null), digest(two + frame("3") + frame("4"))] == hashes(fixed)
    for column in (structs, lists, maps, fixed):
        assert hashes(column)[1:] == hashes(column.slice(1))


def test_a_dictionary_is_hashed_as_its_values() -> None:
    """How a column is encoded makes no difference."""
    column = pa.array(["a", None, "b", "a"])

    assert hashes(column) == hashes(column.dictionary_encode())


def test_a_column_of_nothing_but_null_is_one_byte_a_row() -> None:
    """A column of Arrow's null type has a NULL in each row."""
    assert [digest(b"\0" + frame("1"))] * 2 == hashes(pa.nulls(2), pa.array([1, 1]))


def test_no_rows_have_no_hashes() -> None:
    """An empty table gives an empty int64 column, for every type."""
    kinds = {str(arrow): arrow for _, arrow, _ in SPELLED} | {"list": TEXTS, "map": pa.map_(pa.int8(), pa.int8())}
    table = pa.table({name: array([], arrow) for name, arrow in kinds.items()})

    actual = row_hashes(table, table.column_names)

    assert pa.array([], pa.int64()) == actual


def test_the_order_of_columns_matters_and_uncovered_ones_do_not() -> None:
    """The hash is of the listed columns in the listed order."""
    table = pa.table({"a": [1], "b": ["x"], "c": [2.5]})

    assert [digest(frame("x") + frame("1"))] == row_hashes(table, ["b", "a"]).to_pylist()


def test_a_column_that_is_not_there_is_named() -> None:
    """A list that names a missing column is refused before any row is hashed."""
    with pytest.raises(UnknownColumn, match=r"has no column 'b'; it has a. Fix `meta_columns.row_hash`"):
        check_columns(pa.schema([("a", pa.int64())]), ["a", "b"])


@pytest.mark.parametrize(
    "arrow",
    [
        pa.dense_union([pa.field("x", pa.int64())]),
        pa.run_end_encoded(pa.int32(), pa.string()),
        pa.list_view(pa.string()),
        pa.large_list_view(pa.string()),
        pa.duration("us"),
        pa.list_(pa.duration("s")),
        pa.struct([("x", pa.list_view(pa.int8()))]),
        pa.month_day_nano_interval(),
    ],
    ids=str,
)
def test_a_type_without_a_text_is_refused_in_words(arrow: pa.DataType) -> None:
    """Unions, run-end encoded and view lists, durations and intervals are refused, inside others too."""
    with pytest.raises(UnsupportedColumn, match=r"Column 'a' .* has no place in the row hash"):
        check_columns(pa.schema([("a", arrow)]), ["a"])


def random_table(rows: int, seed: int) -> tuple[pa.Table, list[bytes]]:
    """Make rows of all common types, and the bytes that the recipe makes of each."""
    chance = random.Random(seed)
    columns: dict[str, tuple[pa.DataType, list[Any], list[str | None]]] = {}
    for name, arrow, make, spell in RANDOM:
        cells = [None if chance.random() < 0.2 and name != "full" else make(chance) for _ in range(rows)]
        columns[name] = (arrow, cells, [None if cell is None else spell(cell) for cell in cells])
    table = pa.table({name: pa.array(cells, arrow) for name, (arrow, cells, _) in columns.items()})
    texts = zip(*(spelled for _, _, spelled in columns.values()), strict=True)
    return table, [b"".join(map(frame, row)) for row in texts]


def stamp(moment: datetime) -> str:
    """Spell a moment, digits in groups of three."""
    text = moment.replace(tzinfo=None).isoformat(timespec="microseconds")
    return text[:-7] if moment.microsecond == 0 else text[:-3] if moment.microsecond % 1000 == 0 else text


def moment(chance: random.Random) -> datetime:
    """Make a moment of any year, with none, three or six digits."""
    base = datetime(1, 1, 1) + timedelta(seconds=chance.randrange(315_000_000_000))
    return base + timedelta(microseconds=chance.choice([0, 500_000, chance.randrange(10**6)]))


# Name, type, how a cell is made, how it is spelled.
RANDOM: list[tuple[str, pa.DataType, Any, Any]] = [
    ("full", pa.int64(), lambda chance: chance.randrange(10**6), str),
    ("big", pa.int64(), lambda chance: chance.randrange(-(2**63), 2**63) >> chance.randrange(64), str),
    ("unsigned", pa.uint64(), lambda chance: chance.randrange(2**64) >> chance.randrange(64), str),
    ("small", pa.int16(), lambda chance: chance.randrange(-(2**15), 2**15), str),
    ("money", pa.decimal128(12, 2), lambda chance: Decimal(chance.randrange(-(10**12) + 1, 10**12)).scaleb(-2), str),
    (
        "fine",
        pa.decimal128(30, 12),
        lambda chance: Decimal(chance.randrange(-(10**20), 10**20)).scaleb(-12),
        lambda cell: format(cell, "f"),
    ),
    ("weight", pa.float64(), lambda chance: chance.choice([1, 0.5, 1e9]) * chance.randrange(10**7) / 7, repr),
    ("flag", pa.bool_(), lambda chance: chance.random() < 0.5, lambda cell: str(cell).lower()),
    ("day", pa.date32(), lambda chance: moment(chance).date(), date.isoformat),
    (
        "clock",
        pa.time64("us"),
        lambda chance: moment(chance).time(),
        lambda cell: stamp(datetime.combine(date(2000, 1, 1), cell))[11:],
    ),
    ("naive", MICROS, moment, stamp),
    (
        "instant",
        UTC_MICROS,
        lambda chance: moment(chance).replace(tzinfo=UTC),
        lambda cell: stamp(cell) + "Z",
    ),
    ("text", pa.string(), lambda chance: "é" * chance.choice([0, 1, 7, 40, 300]), str),
    ("bytes", pa.binary(), lambda chance: chance.randbytes(chance.choice([0, 1, 20, 90])), bytes.hex),
]


@pytest.mark.parametrize("seed", range(5))
def test_random_rows_hash_as_the_recipe_of_one_row_says(seed: int) -> None:
    """For random rows of all common types, hashing columns equals framing each row alone."""
    table, framed = random_table(3_000, seed)

    assert [digest(row) for row in framed] == row_hashes(table, table.column_names).to_pylist()


def test_slices_and_chunks_make_no_difference() -> None:
    """A table cut anywhere, and glued together again, has the hashes of the whole."""
    table, _ = random_table(20_000, 11)
    whole = row_hashes(table, table.column_names)
    glued = pa.concat_tables([table.slice(0, 1), table.slice(1, 12_344), table.slice(12_345)])

    assert whole.slice(4_097, 5_000) == row_hashes(table.slice(4_097, 5_000), table.column_names)
    assert whole == row_hashes(glued, table.column_names)


def test_rows_without_covered_columns_hash_as_no_bytes() -> None:
    """An empty list of columns, which no config lets through, still gives one hash a row."""
    assert [digest(b"")] * 2 == row_hashes(pa.table({"a": [1, 2]}), []).to_pylist()
