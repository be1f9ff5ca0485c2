"""Cells that steps make: casts, texts, times, nested columns, buckets."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest
import xxhash
from pydantic import ValidationError

from rivet_resources.contracts.transform import RowRefused
from tests.transforming import cells, shaped, steps

D = Decimal
UTC = pa.timestamp("us", "UTC")
NAIVE = pa.timestamp("us")

# Cells, type word, cells of that type.
CASTS = [
    (pa.array([42, None]), "text", ["42", None]),
    (pa.array([True, False]), "string", ["true", "false"]),
    (pa.array(["42", "-7", "+5"]), "integer", [42, -7, 5]),
    (pa.array(["yes", "1", "true", "TRUE", "no", "0"]), "boolean", [True, True, True, True, False, False]),
    (pa.array([1, 0, -3]), "bool", [True, False, True]),
    (pa.array([1.0, -3.0]), "int2", [1, -3]),
    (pa.array(["1.5", "-1e3"]), "float8", [1.5, -1000.0]),
    (pa.array([True, False]), "int4", [1, 0]),
    (pa.array([D("42.00")], pa.decimal128(9, 2)), "int8", [42]),
    (pa.array([D("1.50")], pa.decimal128(9, 2)), "decimal(20,4)", [D("1.5000")]),
    (pa.array([2**64 - 1], pa.uint64()), "decimal(20,0)", [D(2**64 - 1)]),
    (pa.array([0.1, 1e-7]), "decimal(9,7)", [D("0.1000000"), D("0.0000001")]),
    (pa.array(["12.5"]), "decimal(9,2)", [D("12.50")]),
    (pa.array([D("0.00000001")], pa.decimal128(20, 8)), "text", ["0.00000001"]),
    (pa.array([D(10) ** 50], pa.decimal256(60, 2)), "text", ["1" + "0" * 50 + ".00"]),
    (pa.array([1e300, float("nan")]), "text", ["1" + "0" * 300, "NaN"]),
    (pa.array([dt.date(2024, 1, 15)]), "timestamp", [dt.datetime(2024, 1, 15)]),
    (pa.array([dt.datetime(2024, 1, 15)], NAIVE), "date", [dt.date(2024, 1, 15)]),
    (pa.array(["2024-01-15"]), "date", [dt.date(2024, 1, 15)]),
    (pa.array(["2024-01-15T12:00:00+02:00"]), "timestamp_tz", [dt.datetime(2024, 1, 15, 10, tzinfo=dt.UTC)]),
    (pa.array([-1], UTC), "text", ["1969-12-31T23:59:59.999999Z"]),
    (pa.array([1], pa.timestamp("ns")), "text", ["1970-01-01T00:00:00.000000001"]),
    (pa.array([[1, None]]), "text", ["[1,null]"]),
    (pa.array([{"b": "ž", "a": D("1.50")}]), "text", ['{"a":"1.50","b":"ž"}']),
    (pa.array(['{"a": 1}', "[]", None]), "json", ['{"a": 1}', "[]", None]),
    (pa.array(["00112233-4455-6677-8899-aabbccddeeff"]), "uuid", ["00112233-4455-6677-8899-aabbccddeeff"]),
    (pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16)], pa.binary(16))), "text",
     ["00000000-0000-0000-0000-000000000000"]),
    (pa.array([b"abc"]), "text", ["abc"]),
    (pa.array(["ž"]), "binary", ["ž".encode()]),
]  # fmt: skip


@pytest.mark.parametrize(("array", "word", "expected"), CASTS, ids=[f"{a.type}-{w}" for a, w, _ in CASTS])
def test_cast_keeps_the_value(array, word, expected):
    """A cell of another type is the same value, NULL is NULL; in slices too."""
    table = pa.table({"v": pa.concat_arrays([array, array])}).slice(len(array))

    found = cells(shaped(table, {"type": "cast", "columns": {"v": word}}), "v")

    assert expected == [str(cell) if word == "uuid" else cell for cell in found]


# Cells of which only the first can become the type.
LOSSES = [
    (pa.array([1, 2**40]), "int4"),
    (pa.array([1.0, 1.5]), "int8"),
    (pa.array([1.0, float("nan")]), "int8"),
    (pa.array(["1", "0x10"]), "int8"),
    (pa.array(["1", " 2"]), "int8"),
    (pa.array(["1", "1.0"]), "int8"),
    (pa.array(["yes", "maybe"]), "bool"),
    (pa.array([1, 2**53 + 1]), "float8"),
    (pa.array([1.0, 1e300]), "float4"),
    (pa.array(["1", "one"]), "float8"),
    (pa.array([D("1.50"), D("1.55")], pa.decimal128(9, 2)), "decimal(9,1)"),
    (pa.array([1, 1000]), "decimal(3,1)"),
    (pa.array([0.1, 0.123]), "decimal(9,2)"),
    (pa.array([D("1.00"), D("1.01")], pa.decimal128(9, 2)), "int8"),
    (pa.array([0, 1], NAIVE), "date"),
    (pa.array(["2024-01-15", "2024-02-30"]), "date"),
    (pa.array(["2024-01-15 00:00:00", "2024-01-15T00:00:00Z"]), "timestamp"),
    (pa.array(["2024-01-15T00:00:00Z", "2024-01-15T00:00:00"]), "timestamp_tz"),
    (pa.array([1000, 1], pa.timestamp("ns")), "timestamp"),
    (pa.array([0, 2**62], NAIVE), "timestamp_ns"),
    (pa.array(["{}", "{"]), "json"),
    (pa.array(["00112233-4455-6677-8899-aabbccddeeff", "x"]), "uuid"),
    (pa.array([b"a", b"\xff"]), "text"),
]


@pytest.mark.parametrize(("array", "word"), LOSSES, ids=[f"{a.type}-{w}-{n}" for n, (a, w) in enumerate(LOSSES)])
def test_cast_that_loses_is_one_clear_error(array, word):
    """A cell that would lose something stops the page; the error counts and shows none."""
    with pytest.raises(RowRefused) as caught:
        shaped(pa.table({"v": array}), {"type": "cast", "columns": {"v": word}})

    assert "step 1 (cast): column 'v': 1 of 2 cells in a page" in str(caught.value)
    assert (None, None) == (caught.value.__cause__, caught.value.__context__)


@pytest.mark.parametrize(("array", "word"), LOSSES, ids=[f"{a.type}-{w}-{n}" for n, (a, w) in enumerate(LOSSES)])
def test_cast_that_loses_gives_null_where_the_user_chose_so(array, word):
    """`on_error: null` keeps what can be kept."""
    found = cells(shaped(pa.table({"v": array}), {"type": "cast", "columns": {"v": word}, "on_error": None}), "v")

    assert [False, True] == [cell is None for cell in found]


@pytest.mark.parametrize(
    ("array", "word", "expected"),
    [
        (pa.array([1.9, -1.9]), "int8", [1, -1]),
        (pa.array([D("1.99"), D("-1.99")], pa.decimal128(9, 2)), "int8", [1, -1]),
        (pa.array(["1.99", "-1.99", "7"]), "int8", [1, -1, 7]),
        (pa.array([D("1.99"), D("-1.99")], pa.decimal128(9, 2)), "decimal(9,1)", [D("1.9"), D("-1.9")]),
    ],
)
def test_fractions_are_cut_toward_zero_where_the_user_chose_so(array, word, expected):
    """`truncate: true` cuts, never rounds."""
    block = {"type": "cast", "columns": {"v": word}, "truncate": True}

    assert expected == cells(shaped(pa.table({"v": array}), block), "v")


def test_unknown_type_word_is_refused_by_the_configuration():
    """The message lists the words."""
    with pytest.raises(ValidationError, match="int8"):
        steps({"type": "cast", "columns": {"v": "varchar"}})


# Step on columns a, b, p; the column to look at; its cells.
TEXTS = pa.table(
    {"a": ["Alice", None, "Ž "], "b": ["Smith", "alice123", None], "p": ["+1-555-123-4567", "555-123-4567", None]}
)
TEXT_STEPS = [
    ({"type": "concat", "columns": ["a", "b"], "separator": " ", "into": "c"}, "c", ["Alice Smith", "alice123", "Ž "]),
    ({"type": "concat", "columns": ["a", "' '", "b"], "into": "c"}, "c", ["Alice Smith", " alice123", "Ž  "]),
    ({"type": "concat", "columns": ["a", "b"], "separator": "-", "into": "c", "nulls": None}, "c",
     ["Alice-Smith", None, None]),
    ({"type": "concat", "columns": ["a", "b"], "into": "a"}, "a", ["AliceSmith", "alice123", "Ž "]),
    ({"type": "coalesce", "columns": ["a", "b"]}, "a", ["Alice", "alice123", "Ž "]),
    ({"type": "coalesce", "columns": ["a", "b"], "into": "c"}, "c", ["Alice", "alice123", "Ž "]),
    ({"type": "substring", "columns": ["p"], "start": 3, "length": 3}, "p", ["555", "-12", None]),
    ({"type": "substring", "columns": ["p"], "start": -4}, "p", ["4567", "4567", None]),
    ({"type": "substring", "columns": ["p"], "start": -4, "length": 2}, "p", ["45", "45", None]),
    ({"type": "replace", "columns": ["p"], "find": "-"}, "p", ["+15551234567", "5551234567", None]),
    ({"type": "replace", "columns": ["p"], "find": "([0-9])-", "with": r"\1.", "regex": True}, "p",
     ["+1.555.123.4567", "555.123.4567", None]),
    ({"type": "lower", "columns": ["a"]}, "a", ["alice", None, "ž "]),
    ({"type": "upper", "columns": ["*"]}, "b", ["SMITH", "ALICE123", None]),
    ({"type": "trim", "columns": ["a"]}, "a", ["Alice", None, "Ž"]),
    ({"type": "trim", "columns": ["p"], "characters": "+17", "side": "left"}, "p",
     ["-555-123-4567", "555-123-4567", None]),
    ({"type": "split", "column": "p", "separator": "-", "into": ["x", "y"]}, "y", ["555-123-4567", "123-4567", None]),
    ({"type": "split", "column": "b", "separator": "m", "into": ["x", "y"]}, "y", ["ith", None, None]),
    ({"type": "set_null", "columns": ["b"], "equals": "Smith"}, "b", [None, "alice123", None]),
    ({"type": "set_null", "columns": ["p"], "regex": "^555"}, "p", ["+1-555-123-4567", None, None]),
    ({"type": "set_null", "columns": ["p"], "always": True}, "p", [None, None, None]),
]  # fmt: skip


@pytest.mark.parametrize(("block", "column", "expected"), TEXT_STEPS, ids=[str(block) for block, _, _ in TEXT_STEPS])
@pytest.mark.parametrize("offset", [0, 3])
def test_text_steps_give_the_cells_of_the_contract(block, column, expected, offset):
    """Each step, on a page and on one that begins in the middle of its buffers."""
    table = pa.concat_tables([TEXTS, TEXTS]).combine_chunks().slice(offset, 3)

    assert expected == cells(shaped(table, block), column)


@pytest.mark.parametrize(
    ("plain", "test"),
    [("", {"if_empty": True}), ("N/A", {"equals": "N/A"}), ("000-000-0000", {"regex": "^0+-0+-0+$"})],
)
def test_cells_that_mean_nothing_become_null(plain, test):
    """Empty, equal, or by pattern; others stay."""
    result = shaped(pa.table({"v": [plain, "x"]}), {"type": "set_null", "columns": ["v"], **test})

    assert [None, "x"] == cells(result, "v")


NOON = dt.datetime(2024, 1, 15, 12, tzinfo=dt.UTC)
TIMES = [
    (pa.array([1_705_320_000_000]), {}, [NOON]),
    (pa.array([1_705_320_000]), {}, [NOON]),
    (pa.array([1_705_320_000_000]), {"to": "iso8601"}, ["2024-01-15T12:00:00.000000Z"]),
    (pa.array([1_705_320_000_000]), {"to": "date"}, [dt.date(2024, 1, 15)]),
    (pa.array([1_705_320_000_000]), {"to": "time"}, ["12:00:00.000000"]),
    (pa.array([1_705_320_000_000]), {"from": "epoch_us"}, [dt.datetime(1970, 1, 20, 17, 42, tzinfo=dt.UTC)]),
    (pa.array(["1705320000"]), {"from": "epoch_s"}, [NOON]),
    (pa.array(["2024-01-15T13:00:00+01:00", "2024-01-15T12:00:00Z", "2024-01-15 12:00:00", None]), {},
     [NOON, NOON, NOON, None]),
    (pa.array([dt.datetime(2024, 1, 15, 12)], NAIVE), {"to": "epoch_ms"}, [1_705_320_000_000]),
    (pa.array([-1], UTC), {"to": "epoch_s"}, [-1]),
    (pa.array([-1], UTC), {"to": "date"}, [dt.date(1969, 12, 31)]),
    (pa.array([NOON], UTC), {"to": "epoch_us"}, [1_705_320_000_000_000]),
]  # fmt: skip


@pytest.mark.parametrize(("array", "options", "expected"), TIMES)
def test_times_are_read_and_written_as_the_contract_says(array, options, expected):
    """RFC 3339, date and time in UTC, seconds and milliseconds, and back."""
    result = shaped(pa.table({"v": array}), {"type": "timestamp", "columns": ["v"], **options})

    assert expected == cells(result, "v")


ZONES = [
    (pa.array(["2024-01-15T15:00:00Z"]), {"to": "America/New_York"}, ["2024-01-15T10:00:00.000000-05:00"]),
    (pa.array([dt.datetime(2024, 1, 15, 12, 30)], NAIVE), {"to": "UTC", "format": "%Y-%m-%d %H:%M"},
     ["2024-01-15 12:30"]),
    (pa.array([1, None], UTC), {"to": "UTC", "format": "%H:%M:%S"}, ["00:00:00", None]),
    (pa.array([1], UTC), {"to": "UTC", "format": "%H:%M:%S.%f"}, ["00:00:00.000001"]),
    (pa.array(["2024-01-15 23:30:00"]), {"from": "America/New_York", "to": "Europe/Prague", "as": "date"},
     [dt.date(2024, 1, 16)]),
    (pa.array(["2024-07-15T12:00:00Z"]), {"to": "Europe/Prague", "as": "timestamp"}, [dt.datetime(2024, 7, 15, 14)]),
]  # fmt: skip


@pytest.mark.parametrize(("array", "options", "expected"), ZONES)
def test_instants_are_shown_by_the_clock_of_a_zone(array, options, expected):
    """Winter and summer time, offset, format, day."""
    result = shaped(pa.table({"v": array}), {"type": "timezone", "columns": ["v"], **options})

    assert expected == cells(result, "v")


def test_time_the_zone_skips_is_refused():
    """02:30 does not exist in Prague on the last Sunday of March."""
    table = pa.table({"v": ["2024-03-31 02:30:00", "2024-03-31 12:00:00"]})

    with pytest.raises(RowRefused, match="1 of 2 cells"):
        shaped(table, {"type": "timezone", "columns": ["v"], "from": "Europe/Prague", "to": "UTC"})


def test_unknown_zone_is_refused_by_the_configuration():
    """Zones are IANA names."""
    with pytest.raises(ValidationError, match="Mars/Base"):
        steps({"type": "timezone", "columns": ["v"], "to": "Mars/Base"})


USER = pa.array(
    [{"address": {"city": "NYC", "zip": None}, "tags": ["a"]}, None, {"address": None, "tags": []}],
    pa.struct([("address", pa.struct([("city", pa.string()), ("zip", pa.int32())])), ("tags", pa.list_(pa.string()))]),
)


def test_structs_become_columns_in_their_place():
    """Every level, with the delimiter; lists stay, a missing level is NULL."""
    result = shaped(pa.table({"user": USER, "id": [1, 2, 3]}), {"type": "flatten", "delimiter": "_"})

    expected = {
        "user_address_city": ["NYC", None, None], "user_address_zip": [None, None, None],
        "user_tags": [["a"], None, []], "id": [1, 2, 3],
    }  # fmt: skip
    assert expected == result.to_pydict()


def test_deeper_levels_stay_structs():
    """max_depth 1 keeps `level1.level2` an object."""
    result = shaped(pa.table({"user": USER}), {"type": "flatten", "max_depth": 1})

    assert ["user.address", "user.tags"] == result.column_names
    assert {"city": "NYC", "zip": None} == cells(result, "user.address")[0]


def test_declared_paths_of_json_become_typed_columns():
    """Types are declared, never found in rows; a path that is not there is NULL."""
    table = pa.table({"j": ['{"user":{"address":{"city":"NYC"}},"n":7,"a b":"q\\"x"}', '{"n":null}', None]})

    result = shaped(
        table,
        {"type": "flatten", "columns": ["j"],
         "paths": {"user.address.city": "text", "n": "int8", "user.address": "json", "a b": "text"}},
    )  # fmt: skip

    expected = {
        "j.user.address.city": ["NYC", None, None], "j.n": [7, None, None],
        "j.user.address": ['{"city":"NYC"}', None, None], "j.a b": ['q"x', None, None],
    }  # fmt: skip
    assert expected == result.to_pydict()


def test_buckets_are_those_of_the_documented_recipe():
    """XXH3-64 of the canonical texts joined by U+001F, NULL as U+0000, modulo the number of buckets."""
    table = pa.table({"a": ["x", None, "ž"] * 700, "n": [1, 2, None] * 700})

    result = shaped(table, {"type": "hash_bucket", "columns": ["a", "n"], "buckets": 16})

    texts = ["x\x1f1", "\x00\x1f2", "ž\x1f\x00"]
    assert [xxhash.xxh3_64_intdigest(text.encode()) % 16 for text in texts] * 700 == cells(result, "bucket")
    assert pa.int32() == result.schema.field("bucket").type


def test_added_columns_are_typed_by_their_values():
    """Text, numbers, truth, days and instants."""
    values = {
        "t": "EU",
        "i": 1,
        "f": 1.5,
        "b": True,
        "d": dt.date(2024, 1, 15),
        "z": NOON,
        "n": dt.datetime(2024, 1, 1),
    }

    result = shaped(pa.table({"id": [1, 2]}), {"type": "add", "columns": values})

    assert {name: [value] * 2 for name, value in values.items()} == result.drop_columns("id").to_pydict()
    types = [pa.string(), pa.int64(), pa.float64(), pa.bool_(), pa.date32(), UTC, NAIVE]
    assert types == result.drop_columns("id").schema.types
