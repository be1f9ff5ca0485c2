"""Rows that break a contract's rules, counted page by page."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rivet_resources.contracts.parts import Measures
from rivet_resources.contracts.rows.row_rules import RowRule, RowRules
from rivet_resources.contracts.source import Page
from rivet_resources.contracts.transform import RowRefused, TransformError
from rivet_resources.contracts.types import UUID
from rivet_resources.write.measures import Tally
from rivet_resources.write.row_rules import RowRuleCount, RowsAside

ONE = "7f9c24e8-3b12-4fef-91e0-5a6c2d1b0001"


def broken(kind: Any, value: Any, column: pa.Array) -> int:
    """Count what breaks one rule in a column that comes in two pages."""
    table = pa.table({"x": column})
    count = RowRuleCount(table.schema, RowRules((RowRule("rule", kind, value, "x"),)))
    count.add(table.slice(0, 1))
    count.add(table.slice(1))
    return count.broken["rule"]


CASES = [
    ("accepted_values", ("new", "paid"), pa.array(["new", "old", None, "paid", ""]), 2),
    ("accepted_values", (1, 2), pa.array([1, 2, 3, None]), 1),
    ("accepted_values", ("1.50", 2), pa.array([Decimal("1.50"), Decimal("2.00"), Decimal("2.10")]), 1),
    ("accepted_values", (True,), pa.array([True, False, None]), 1),
    ("accepted_values", ("2026-01-31",), pa.array([date(2026, 1, 31), date(2026, 2, 1)]), 1),
    ("accepted_values", (ONE,), pa.array([bytes(16), None], UUID), 1),
    ("accepted_values", ("a",), pa.array(["a", "b", "a"]).dictionary_encode(), 1),
    ("min", 2, pa.array([1, 2, 3, None]), 1),
    ("min", 0.5, pa.array([0.4, 0.5, float("nan"), None]), 1),
    ("min", "2026-01-02", pa.array([datetime(2026, 1, 1, 23), datetime(2026, 1, 2)]), 1),
    ("max", 2, pa.array([1, 2, 3, None]), 1),
    ("max", Decimal("9.99"), pa.array([Decimal("9.99"), Decimal("10.00")]), 1),
    ("max", "m", pa.array(["a", "m", "z"]), 1),
    ("max", 5, pa.array([None, None], pa.int64()), 0),
    ("matches", "^[a-z]+$", pa.array(["abc", "ab1", None, ""]), 2),
    ("matches", "1", pa.array([10, 2, None]), 1),
]


@pytest.mark.parametrize(("kind", "value", "column", "expected"), CASES)
def test_cells_that_break_a_rule_are_counted_and_null_breaks_none(kind, value, column, expected):
    """Bounds are inclusive; values are read as the column's own type."""
    assert expected == broken(kind, value, column)


@pytest.mark.parametrize(
    ("kind", "value", "column", "told"),
    [
        ("accepted_values", ("new",), pa.array([1]), "no whole number"),
        ("accepted_values", (1,), pa.array([datetime(2026, 1, 1)]), "cannot be compared"),
        ("min", "x", pa.array([1.5]), "no number"),
        ("max", 1, pa.array([[1]]), "wants numbers"),
    ],
)
def test_value_of_another_type_than_the_column_is_refused_before_a_row_is_read(kind, value, column, told):
    """The message has the rule, the column and its type."""
    with pytest.raises(TransformError, match=told):
        broken(kind, value, column)


def test_rule_on_a_column_that_is_not_there_is_refused():
    """Whoever compiles rules asks for columns that are there."""
    with pytest.raises(TransformError, match="'y'"):
        RowRuleCount(pa.schema([("x", pa.int64())]), RowRules((RowRule("rule", "min", 1, "y"),)))


def test_rules_over_several_columns_count_rows_that_are_false():
    """A row for which the expression is NULL passes, as SQL's CHECK has it."""
    table = pa.table({"price": [2, 2, None], "quantity": [3, 3, 3], "total": [6, 7, 1]})
    rules = RowRules((RowRule("adds_up", "rows", "price * quantity = total"), RowRule("big", "rows", "total > 6")))
    count = RowRuleCount(table.schema, rules)

    count.add(table)

    assert {"adds_up": 1, "big": 2} == count.broken


def test_rule_that_is_no_truth_value_or_reads_no_column_is_refused():
    """Known from the schema alone."""
    for text in ("total + 1", "nothing > 1", "total >"):
        with pytest.raises(TransformError):
            RowRuleCount(pa.schema([("total", pa.int64())]), RowRules((RowRule("rule", "rows", text),)))


def test_rule_that_fails_on_a_row_shows_no_value():
    """A division by text and the like stop the window, and name the expression alone."""
    table = pa.table({"x": ["hunter2"]})
    count = RowRuleCount(table.schema, RowRules((RowRule("rule", "rows", "x::INT > 1"),)))

    with pytest.raises(RowRefused) as caught:
        count.add(table)

    assert "hunter2" not in str(caught.value)


NEWEST = [
    (pa.array([datetime(2026, 1, 2, tzinfo=UTC), None], pa.timestamp("us", "UTC")), datetime(2026, 1, 2, tzinfo=UTC)),
    (pa.array([datetime(2026, 1, 2)], pa.timestamp("ns")), datetime(2026, 1, 2, tzinfo=UTC)),
    (pa.array([date(2026, 1, 2), date(2025, 1, 1)]), datetime(2026, 1, 2, tzinfo=UTC)),
]


@pytest.mark.parametrize(("column", "expected"), NEWEST)
def test_newest_time_is_kept_as_microseconds(column, expected):
    """A time without zone is read as UTC, a day as its midnight."""
    table = pa.table({"at": column})
    count = RowRuleCount(table.schema, RowRules(newest=("at",)))

    count.add(table)

    assert {"at": int(expected.timestamp()) * 1_000_000} == count.newest


def test_chunks_add_up_to_the_window():
    """Counts are summed, of times the newest stays, and chunks without rows change nothing."""
    one, other = (
        Measures(rows=1, broken={"a": 1}, newest={"at": 5}),
        Measures(rows=2, broken={"a": 2}, newest={"at": 3}),
    )

    joined = one + Measures() + other

    assert ({"a": 3}, {"at": 5}) == (joined.broken, joined.newest)


def test_key_of_several_columns_repeats_where_all_of_them_do(tmp_path: Path):
    """Rows with a NULL in the key do not count: `required` tells of them."""
    table = pa.table({"id": [1, 1, 1, None, None], "line": ["a", "b", "a", "a", "a"]})
    tally = Tally(table.schema, row_rules=RowRules(key=("id", "line")), scratch=tmp_path)

    tally.add(Page(table, {}, 0.0))

    [file] = tally.sidecars()["id, line"]
    assert [1, 2] == list(memoryview(file.read_bytes()[:16]).cast("Q"))  # duplicates, distinct


def test_export_without_a_contract_counts_nothing_more(tmp_path: Path):
    """The measures of before stay as they are."""
    table = pa.table({"id": [1]})
    tally = Tally(table.schema, scratch=tmp_path)

    tally.add(Page(table, {}, 0.0))

    assert ({}, {}) == (tally.result().broken, tally.result().newest)


BAD = pa.table(
    {
        "a": pa.array([1, None, 5, -3, 9]),
        "s": pa.array(["x", "y", None, "z", "x"]),
        "w": pa.array(["x", "y", None, "z", "x"]).dictionary_encode(),
        "f": pa.array([1.0, math.nan, None, 7.5, -1.0]),
        "u": pa.array([bytes(16), None, bytes(16), bytes(15) + b"1", bytes(16)], pa.uuid()),
    }
)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (RowRule("c", "required", None, "a"), [1]),
        (RowRule("c", "min", 0, "a"), [3]),
        (RowRule("c", "max", 5, "a"), [4]),
        (RowRule("c", "accepted_values", (1, 5), "a"), [3, 4]),
        (RowRule("c", "accepted_values", ("x", "y"), "s"), [3]),
        (RowRule("c", "accepted_values", ("x", "y"), "w"), [3]),
        (RowRule("c", "matches", "[xy]", "s"), [3]),
        (RowRule("c", "matches", "0$", "u"), [3]),
        (RowRule("c", "max", 2, "f"), [3]),
        (RowRule("rows__c", "rows", "a > 0 and s <> 'x'"), [0, 3, 4]),
    ],
)
def test_rows_that_are_set_aside_are_those_that_are_counted(rule, expected):
    """NULL breaks no rule but `required`; a row for which an expression is NULL stays."""
    [found] = RowsAside(BAD.schema, [rule]).breaches(BAD)

    counted = RowRuleCount(BAD.schema, RowRules((rule,)))
    counted.add(BAD)
    assert expected == np.flatnonzero(found.rows).tolist()
    assert len(expected) == counted.broken[rule.check]


def test_row_is_set_aside_for_the_first_rule_that_it_breaks():
    """So that dead letters add up to rows; rows and pages that keep every rule cost counts only."""
    rules = [RowRule("one", "min", 2, "a"), RowRule("two", "accepted_values", ("y",), "s")]

    found = RowsAside(BAD.schema, rules).breaches(BAD)

    assert {"one": [0, 3], "two": [4]} == {each.check: np.flatnonzero(each.rows).tolist() for each in found}
    assert (
        [] == RowsAside(BAD.schema, rules).breaches(BAD.slice(1, 1)) == RowsAside(BAD.schema, rules).breaches(BAD[:0])
    )
