"""Rows that stay and rows that go: fields, NULLs, SQL."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest
from pydantic import ValidationError

from rivet_resources.contracts.transform import RowRefused, TransformError
from tests.transforming import cells, shaped, steps

TABLE = pa.table(
    {
        "id": [1, 2, 3, 4],
        "status": ["active", "closed", None, "Active"],
        "email": ["alice@example.com", "alice@test.com", None, "x@example.com.au"],
        "price": pa.array([Decimal("1.50"), Decimal("2.00"), None, Decimal("-3.25")], pa.decimal128(10, 2)),
        "born": pa.array([dt.date(2024, 1, 15), dt.date(1969, 7, 20), None, dt.date(2000, 1, 1)]),
        "seen": pa.array([0, 10**15, None, -1], pa.timestamp("us", "UTC")),
        "ok": [True, False, None, True],
        "ratio": [1.0, float("nan"), None, 2.5],
    }
)

# Filter without its type, ids that stay. NULL: `=`, `in`, `matches`, `<` false; `!=`, `not_in` true.
FILTERS = [
    ({"field": "status", "value": "active"}, [1]),
    ({"field": "status", "op": "==", "value": "active"}, [1]),
    ({"field": "status", "op": "!=", "value": "active"}, [2, 3, 4]),
    ({"field": "status", "op": "<>", "value": "active"}, [2, 3, 4]),
    ({"field": "status", "op": "in", "value": ["active", "closed"]}, [1, 2]),
    ({"field": "status", "op": "not_in", "value": ["active", "closed"]}, [3, 4]),
    ({"field": "status", "op": "in", "value": []}, []),
    ({"field": "status", "op": "is_null"}, [3]),
    ({"field": "status", "op": "is_null", "drop": True}, [1, 2, 4]),
    ({"field": "status", "op": "is_not_null"}, [1, 2, 4]),
    ({"field": "email", "op": "matches", "value": r".*@example\.com$"}, [1]),
    ({"field": "email", "op": "matches", "value": "example"}, [1, 4]),
    ({"field": "email", "op": "matches", "value": "example", "drop": True}, [2, 3]),
    ({"field": "id", "op": "matches", "value": "^[12]$"}, [1, 2]),
    ({"field": "id", "op": ">=", "value": "3"}, [3, 4]),
    ({"field": "id", "op": "in", "value": ["1", 4]}, [1, 4]),
    ({"field": "price", "value": 1.5}, [1]),
    ({"field": "price", "op": "<", "value": "0"}, [4]),
    ({"field": "price", "op": "<=", "value": 2}, [1, 2, 4]),
    ({"field": "born", "op": ">", "value": dt.date(2000, 1, 1)}, [1]),
    ({"field": "born", "op": "<", "value": "2000-01-01"}, [2]),
    ({"field": "seen", "value": "1970-01-01T00:00:00Z"}, [1]),
    ({"field": "seen", "op": "<", "value": dt.datetime(1970, 1, 1, tzinfo=dt.UTC)}, [4]),
    ({"field": "ok", "value": True}, [1, 4]),
    ({"field": "ok", "value": "yes"}, [1, 4]),
    ({"field": "ok", "op": "!=", "value": True}, [2, 3]),
    ({"field": "ratio", "value": 1}, [1]),
    ({"field": "ratio", "op": "!=", "value": 1}, [2, 3, 4]),
    ({"all": [{"field": "ok", "value": True}, {"field": "id", "op": ">", "value": 1}]}, [4]),
    ({"any": [{"field": "ok", "value": False}, {"field": "status", "op": "is_null"}]}, [2, 3]),
    ({"any": [{"field": "ok", "value": False}, {"field": "status", "op": "is_null"}], "drop": True}, [1, 4]),
    ({"where": "status = 'active' OR price < 0"}, [1, 4]),
    ({"where": "price > 1"}, [1, 2]),
    ({"where": "price > 1", "drop": True}, [3, 4]),
    ({"where": "STATUS IS NULL"}, [3]),
    ({"where": "1 = 1"}, [1, 2, 3, 4]),
    ({"where": "seen < TIMESTAMPTZ '1970-01-01 00:00:00+00'"}, [4]),
    ({"field": "gone", "op": "!=", "value": "x", "ignore_missing": True}, [1, 2, 3, 4]),
    ({"field": "gone", "value": "x", "ignore_missing": True}, []),
    ({"field": "gone", "op": "is_null", "ignore_missing": True}, [1, 2, 3, 4]),
]


@pytest.mark.parametrize(("block", "ids"), FILTERS)
def test_filter_keeps_the_rows_of_the_contract(block, ids):
    """Every operator, NULLs included, keeps exactly the rows of connectors.md, section 4."""
    assert ids == cells(shaped(TABLE, {"type": "filter", **block}), "id")


@pytest.mark.parametrize(("block", "ids"), FILTERS)
def test_filter_of_chunks_with_offsets_keeps_the_same_rows(block, ids):
    """Pages may come as several chunks that begin in the middle of their buffers."""
    padded = pa.concat_tables([TABLE.slice(3), TABLE, TABLE.slice(0, 1)]).combine_chunks()
    table = pa.concat_tables([padded.slice(1, 2), padded.slice(3, 0), padded.slice(3, 2)])

    assert ids == cells(shaped(table, {"type": "filter", **block}), "id")


def test_dropped_row_reaches_no_later_step():
    """A row that would fail a cast is no failure once a filter has dropped it."""
    result = shaped(
        pa.table({"v": ["1", "x", "3"]}),
        {"type": "filter", "field": "v", "op": "matches", "value": "^[0-9]+$"},
        {"type": "cast", "columns": {"v": "int4"}},
    )

    assert [1, 3] == cells(result, "v")


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"field": "statsu", "value": "x"}, ["'statsu'", "did you mean 'status'"]),
        ({"field": "id", "value": "x1"}, ["'id' is int64", "'x1'"]),
        ({"field": "id", "value": 1.5}, ["'id' is int64"]),
        ({"field": "price", "value": 1.555}, ["decimal128(10, 2)"]),
        ({"field": "born", "value": "yesterday"}, ["date32"]),
        ({"field": "seen", "value": "2024-01-01 00:00:00"}, ["timestamp[us, tz=utc]"]),
        ({"field": "id", "op": "in", "value": [1, "x1"]}, ["'x1'"]),
        ({"field": "status", "op": "matches", "value": "("}, ["regular expression"]),
        ({"where": "status"}, ["`where` gives string"]),
        ({"where": "nothing = 1"}, ["no column 'nothing'"]),
    ],
)
def test_filter_that_cannot_work_is_refused_before_any_row(block, words):
    """A missing field, an impossible cast and a bad pattern are faults of the plan, and name the step."""
    with pytest.raises(TransformError) as caught:
        shaped(TABLE.slice(0, 0), {"type": "filter", **block})

    assert [] == [word for word in ["step 1 (filter)", *words] if word not in str(caught.value).lower()]


@pytest.mark.parametrize(
    "block",
    [
        {},
        {"field": "id"},
        {"field": "id", "value": 1, "where": "true"},
        {"field": "id", "op": "is_null", "value": 1},
        {"field": "id", "op": "in", "value": 1},
        {"field": "id", "op": "=", "value": [1]},
        {"field": "id", "op": "matches", "value": 1},
        {"field": "id", "op": "~", "value": "x"},
        {"where": "true", "when": "true"},
    ],
)
def test_filter_of_no_form_or_two_is_refused_by_the_configuration(block):
    """Exactly one form, with the value its operator takes."""
    with pytest.raises(ValidationError):
        steps({"type": "filter", **block})


def test_failing_where_says_how_many_rows_fail():
    """An SQL filter that fails on rows is one clear error with a count."""
    with pytest.raises(RowRefused, match=r"step 1 \(filter\).*cannot be converted in 3 of 4 rows"):
        shaped(TABLE, {"type": "filter", "where": "split_part(email, '.', 2)::INT = 1"})
