"""SQLite's declared types are promises; each cell is checked against its column's."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from rivet_resources.contracts.source import ColumnRule
from rivet_resources.contracts.types import INSTANT, JSON, NAIVE
from rivet_resources.engines.sqlite.types import kind_of
from rivet_resources.errors import ConfigError, ValueDoesNotFit
from tests.engines.sqlite.reads import READERS, describe, run, whole


def one(tmp_path: Path, declared: str, *literals: str, reader: str = "cursor", **settings: object) -> pa.ChunkedArray:
    """Read a column `c` of this declared type that holds these literals."""
    values = ", ".join(f"({i}, {literal})" for i, literal in enumerate(literals))
    path = run(
        tmp_path / "t.db", f"CREATE TABLE t (id INTEGER PRIMARY KEY, c {declared})", f"INSERT INTO t VALUES {values}"
    )
    return whole(path, reader, **settings).column("c")


FITS = [
    ("INTEGER", ("9223372036854775807", "-9223372036854775808", "NULL"), pa.int64(), [2**63 - 1, -(2**63), None]),
    ("TINYINT", ("255",), pa.int64(), [255]),
    ("BOOLEAN", ("0", "1", "NULL"), pa.bool_(), [False, True, None]),
    ("REAL", ("0.1", "1", "9e999", "-0.0"), pa.float64(), [0.1, 1.0, float("inf"), -0.0]),
    ("DOUBLE PRECISION", ("9007199254740992",), pa.float64(), [9007199254740992.0]),
    ("DECIMAL(12,2)", ("12.50", "'0.1'", "100", "1e21", "0.1 + 0.2"), pa.string(),
     ["12.5", "0.1", "100", "1000000000000000000000", "0.30000000000000004"]),
    ("TEXT", ("'ñ ✓ 🎉'", "''", "'NULL'", "NULL", "'a' || char(0) || 'b'"), pa.string(),
     ["ñ ✓ 🎉", "", "NULL", None, "a\0b"]),
    ("VARCHAR(3)", ("'longer'",), pa.string(), ["longer"]),
    ("JSON", ("'{\"a\":  1.10}'",), JSON, ['{"a":  1.10}']),
    ("BLOB", ("x'DEADBEEF'", "x''", "x'00'"), pa.binary(), [b"\xde\xad\xbe\xef", b"", b"\0"]),
    ("", ("'x'", "'y'"), pa.string(), ["x", "y"]),
    ("", ("1", "2"), pa.string(), ["1", "2"]),
    ("DATETIME", ("'2026-01-31 12:00:00'", "1700000000"), pa.string(), ["2026-01-31 12:00:00", "1700000000"]),
]  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(("declared", "literals", "arrow", "expected"), FITS)
def test_cell_of_its_declared_class_is_exact(declared, literals, arrow, expected, reader, tmp_path):
    """What SQLite stores arrives as the very same value, by either way of paging."""
    cells = one(tmp_path, declared, *literals, reader=reader)

    assert cells.type == arrow
    assert [cell.as_py() for cell in cells] == expected


OTHER = [
    ("INTEGER", "'abc'"), ("INTEGER", "1.5"), ("INTEGER", "x'00'"), ("REAL", "'abc'"), ("REAL", "x'00'"),
    ("TEXT", "x'00'"), ("BLOB", "'hunter'"), ("BLOB", "4711"), ("BOOLEAN", "'yes'"), ("DECIMAL(4,2)", "x'00'"),
]  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(("declared", "literal"), OTHER)
def test_cell_of_another_storage_class_fails_by_name_and_without_its_value(declared, literal, reader, tmp_path):
    """The message names table, column and kind, and what can be chosen; the cell itself is not shown."""
    with pytest.raises(ValueDoesNotFit) as caught:
        one(tmp_path, declared, "NULL", literal, reader=reader)

    assert "`t.c` is" in str(caught.value)
    assert "values of another storage class" in str(caught.value)
    assert literal.strip("'") not in str(caught.value)


def test_not_a_truth_value_fails(tmp_path):
    """A BOOLEAN column with 2 in it stops the window."""
    with pytest.raises(ValueDoesNotFit, match="numbers other than 0 and 1"):
        one(tmp_path, "BOOLEAN", "0", "2")


def test_untyped_column_of_several_classes_fails(tmp_path):
    """A column without a declared type is text while it holds one class."""
    with pytest.raises(ValueDoesNotFit, match="values of several types"):
        one(tmp_path, "", "1", "'1'")


def test_bytes_that_are_not_text_fail(tmp_path):
    """A text cell that is no UTF-8 is found, and not shown."""
    with pytest.raises(ValueDoesNotFit, match="bytes that are not text"):
        one(tmp_path, "TEXT", "'ok'", "CAST(x'fffe' AS TEXT)")


def test_policy_null_replaces_and_counts(tmp_path):
    """Under `on_special_value: null` cells that do not fit are NULL, and the column says so."""
    cells = one(tmp_path, "INTEGER NOT NULL", "1", "'abc'", on_special_value="null")

    assert cells.to_pylist() == [1, None]


def test_policy_text_takes_numbers_and_texts(tmp_path):
    """Under `text` the column becomes text from its first row."""
    cells = one(tmp_path, "INTEGER", "1", "'abc'", "0.5", on_special_value="text")

    assert cells.to_pylist() == ["1", "abc", "0.5"]


UUID = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
OVERRIDES = [
    ("INTEGER", "text", ("1", "'abc'"), pa.string(), ["1", "abc"]),
    ("INTEGER", "float8", ("1", "1.5"), pa.float64(), [1.0, 1.5]),
    ("INTEGER", "int4", ("2147483647",), pa.int32(), [2147483647]),
    ("INTEGER", "timestamp_tz", ("0", "1700000000"), INSTANT,
     [datetime(1970, 1, 1, tzinfo=UTC), datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)]),
    ("DECIMAL(12,2)", "decimal(12,2)", ("12.5", "'7.25'", "3"), pa.decimal128(12, 2),
     [Decimal("12.50"), Decimal("7.25"), Decimal("3.00")]),
    ("DECIMAL(12,2)", "float8", ("12.5", "3"), pa.float64(), [12.5, 3.0]),
    ("TEXT", "timestamp", ("'2026-01-31 10:00:00'", "'2026-01-31T10:00:00.5'"), NAIVE,
     [datetime(2026, 1, 31, 10), datetime(2026, 1, 31, 10, 0, 0, 500000)]),
    ("DATETIME", "timestamp_tz", ("'2026-01-31 10:00:00Z'", "'2026-01-31T12:00:00+02:00'", "1769853600"), INSTANT,
     [datetime(2026, 1, 31, 10, tzinfo=UTC)] * 3),
    ("DATE", "date", ("'2026-01-31'",), pa.date32(), [date(2026, 1, 31)]),
    ("DATETIME", "int8", ("1700000000",), pa.int64(), [1700000000]),
    ("", "int8", ("5",), pa.int64(), [5]),
    ("", "decimal(4,1)", ("5", "'2.5'"), pa.decimal128(4, 1), [Decimal("5.0"), Decimal("2.5")]),
    ("", "binary", ("x'00ff'",), pa.binary(), [b"\0\xff"]),
    ("TEXT", "uuid", ("'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'",), pa.string(), [UUID]),
    ("BLOB", "uuid", ("x'A0EEBC999C0B4EF8BB6D6BB9BD380A11'",), pa.string(), [UUID]),
    ("TEXT", "json", ("'[1]'",), JSON, ["[1]"]),
    ("TEXT", "decimal(4,2)", ("'1.25'",), pa.decimal128(4, 2), [Decimal("1.25")]),
]  # fmt: skip


@pytest.mark.parametrize(("declared", "word", "literals", "arrow", "expected"), OVERRIDES)
def test_override_decides_the_type(declared, word, literals, arrow, expected, tmp_path):
    """A word of `columns:` makes the column what it says, whatever was declared."""
    cells = one(tmp_path, declared, *literals, columns={"c": word})

    assert cells.type == arrow
    assert [cell.as_py() for cell in cells] == expected


UNFIT = [
    ("DECIMAL(12,2)", "decimal(12,2)", "1.005"),
    ("DECIMAL(12,2)", "decimal(12,2)", "'abc'"),
    ("TEXT", "timestamp", "'yesterday'"),
    ("TEXT", "json", "'{'"),
    ("INTEGER", "int2", "40000"),
    ("REAL", "float4", "'x'"),
]


@pytest.mark.parametrize(("declared", "word", "literal"), UNFIT)
def test_cell_that_the_override_cannot_hold_fails(declared, word, literal, tmp_path):
    """Nothing is rounded, cut or turned into NULL in silence."""
    with pytest.raises(ValueDoesNotFit):
        one(tmp_path, declared, literal, columns={"c": word})


def test_naive_times_become_instants_in_their_zone(tmp_path):
    """With `timezone` naive texts are local times, in summer and in winter."""
    rule = ColumnRule(type="timestamp_tz", timezone="Europe/Prague")
    cells = one(tmp_path, "DATETIME", "'2026-01-31 10:00:00'", "'2026-07-31 10:00:00'", columns={"c": rule})

    assert cells.to_pylist() == [datetime(2026, 1, 31, 9, tzinfo=UTC), datetime(2026, 7, 31, 8, tzinfo=UTC)]


def test_override_that_cannot_be_says_so(tmp_path):
    """A word that the declared type cannot become is a fault of the config."""
    with pytest.raises(ConfigError, match=r"columns\.c"):
        one(tmp_path, "REAL", "1.0", columns={"c": "date"})


KINDS = [
    ("INT", "whole"), ("BIGINT UNSIGNED", "whole"), ("CHARACTER(20)", "text"), ("CLOB", "text"), ("BLOB", "bytes"),
    ("FLOAT", "real"), ("DOUBLE", "real"), ("NUMERIC", "number"), ("DECIMAL(10,5)", "number"), ("boolean", "truth"),
    ("DATE", "time"), ("datetime(6)", "time"), ("json", "json"), ("", "any"), ("ANY", "any"), ("STRING", "number"),
    ("FLOATING POINT", "whole"),
]  # fmt: skip


@pytest.mark.parametrize(("declared", "kind"), KINDS)
def test_declared_type_has_the_affinity_of_sqlites_rules(declared, kind):
    """Declared types are read by SQLite's own five rules, in their order."""
    assert kind_of(declared) == kind


def test_generated_columns_are_read(tmp_path):
    """Generated columns are shown like any other."""
    path = run(
        tmp_path / "t.db",
        "CREATE TABLE t (id INTEGER PRIMARY KEY, twice INTEGER GENERATED ALWAYS AS (id * 2) VIRTUAL)",
        "INSERT INTO t (id) VALUES (21)",
    )

    assert whole(path).to_pylist() == [{"id": 21, "twice": 42}]


def test_not_null_is_proved_by_the_catalog_only(tmp_path):
    """INTEGER PRIMARY KEY and NOT NULL rule NULLs out; a primary key of text does not."""
    path = run(tmp_path / "t.db", "CREATE TABLE t (c TEXT PRIMARY KEY, n INT NOT NULL)")
    relation = describe(path)

    assert [column.nullable for column in relation.columns] == [True, False]
    assert relation.key == ()
