"""Profiles: the same counts however rows are cut, exact where they say so."""

from __future__ import annotations

import math
import random
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivet_assets.run.judge.profile_text import bars
from rivet_resources.contracts.rows.profile import Bar, ColumnProfile, ProfileColumns
from rivet_resources.errors import PartCorrupt
from rivet_resources.write import profile as module
from rivet_resources.write.profile import Histogram, ProfileTally, joined_profile, number_of


def profiled(table: pa.Table, cuts: tuple[int, ...] = (), *, masked: tuple[str, ...] = (), most: int = 20) -> Any:
    """Profile a table in chunks that end at some rows: {column: what it is like}."""
    shown = tuple(name for name in table.column_names if name not in masked)
    asked = ProfileColumns(shown, masked, most)
    files = {}
    for low, high in pairwise((0, *cuts, table.num_rows)):
        tally = ProfileTally(table.schema, asked)
        tally.add(table.slice(low, high - low), size_bytes=1)
        files[f"{low}"] = tally.content
    root = SimpleNamespace(uri="lake", read=lambda path: (files[path], ""))
    found = joined_profile(root, files, rows=table.num_rows, schema=table.schema, asked=asked)  # type: ignore[arg-type]
    return {column.name: column for column in found.columns}


ROWS = 3000
DICE = random.Random(7)
CELLS: dict[str, pa.Array] = {
    "whole": pa.array([DICE.randrange(-5000, 90_000) for _ in range(ROWS)]),
    "large": pa.array([2**63 - 1 - n % 7 for n in range(ROWS)]),
    "unsigned": pa.array([2**64 - 1 - n % 7 for n in range(ROWS)], pa.uint64()),
    "float": pa.array([DICE.gauss(1e6, 0.001) for _ in range(ROWS)]),
    "tiny": pa.array([5e-324, 1e308, -1e308, 0.0, -0.0] * (ROWS // 5)),
    "odd": pa.array([math.nan, math.inf, 1.5, None] * (ROWS // 4)),
    "half": pa.array([0.5, 2.0] * (ROWS // 2), pa.float16()),
    "decimal": pa.array([Decimal(n) / 100 for n in range(ROWS)], pa.decimal128(20, 2)),
    "text": pa.array([f"n{n % 40}" for n in range(ROWS)]),
    "words": pa.array([f"n{n % 3}" for n in range(ROWS)]).dictionary_encode(),
    "flag": pa.array([n % 3 == 0 for n in range(ROWS)]),
    "day": pa.array([date(2026, 1, 1) + timedelta(n % 90) for n in range(ROWS)]),
    "at": pa.array([datetime(2026, 1, 1) + timedelta(minutes=n) for n in range(ROWS)], pa.timestamp("us", "UTC")),
    "clock": pa.array([time(n % 24, 30) for n in range(ROWS)], pa.time64("us")),
    "list": pa.array([[n % 5] for n in range(ROWS)]),
    "binary": pa.array([bytes([n % 9]) for n in range(ROWS)]),
    "uuid": pa.array([bytes(15) + bytes([n % 9]) for n in range(ROWS)], pa.uuid()),
    "nothing": pa.nulls(ROWS, pa.int32()),
}


@pytest.mark.parametrize("name", CELLS)
def test_profile_does_not_depend_on_how_rows_are_cut(name):
    """Chunks of one row, of none, of most: joined they are what one pass counts."""
    table = pa.table({name: CELLS[name]})

    whole, cut = profiled(table)[name], profiled(table, (0, 1, 2, 700, 700, 2999))[name]

    same = {field: getattr(whole, field) for field in whole.__dataclass_fields__ if field != "mean"}
    assert same == {field: getattr(cut, field) for field in same}
    assert whole.mean == cut.mean or math.isclose(whole.mean, cut.mean, rel_tol=1e-12)
    assert sum(bar.rows for bar in whole.histogram) in (0, ROWS - whole.nulls - whole.not_finite)
    assert len(whole.histogram) <= 20


def test_profile_says_what_columns_are_like():
    """Least and largest in the spelling of the type, NULLs, distinct values, means of numbers only."""
    found = profiled(pa.table(CELLS))

    def told(name: str) -> tuple[Any, ...]:
        column: ColumnProfile = found[name]
        return column.nulls, column.distinct, column.distinct_is_exact, column.min, column.max, column.mean

    assert (0, 7, True, str(2**64 - 7), str(2**64 - 1)) == told("unsigned")[:5]
    assert (750, 3, True, "1.5", "1.5", 1.5) == told("odd")
    assert 1500 == found["odd"].not_finite
    assert (0, 4, True, "-1e+308", "1e+308") == told("tiny")[:5]
    assert (0, 3000, True, "0.00", "29.99") == told("decimal")[:5]
    assert (0, 40, True, "n0", "n9", None) == told("text")
    assert (0, 3, True, "n0", "n2", None) == told("words")
    assert (0, 2, True, "false", "true", 1 / 3) == told("flag")
    assert (0, 90, True, "2026-01-01", "2026-03-31", None) == told("day")
    assert ("2026-01-01T00:00:00.000000Z", None) == (told("at")[3], told("at")[5])
    assert (0, 5, True, None, None, None) == told("list")
    assert (0, 9, True, None, None, None) == told("uuid")
    assert (ROWS, 0, True, None, None, None) == told("nothing")


def test_many_distinct_values_are_estimated_within_a_few_percent():
    """Beyond what is kept it says so; never more than there are rows with a value."""
    numbers = pa.table({"n": pa.array(range(300_000)), "few": pa.array([n % module.KEPT for n in range(300_000)])})

    found = profiled(numbers, (1, 100_000))

    assert not found["n"].distinct_is_exact
    assert 0.05 > abs(found["n"].distinct / 300_000 - 1)
    assert (module.KEPT, True) == (found["few"].distinct, found["few"].distinct_is_exact)


def test_masked_column_shows_no_value():
    """Only how many NULLs and distinct cells it has; nor is a value in the file on the way."""
    table = pa.table({"email": ["one@x", "two@x", None]})
    tally = ProfileTally(table.schema, ProfileColumns((), ("email",)))
    tally.add(table, size_bytes=1)

    column = profiled(table, masked=("email",))["email"]

    assert (True, 1, 2, None, None, ()) == (
        column.is_masked, column.nulls, column.distinct, column.min, column.max, column.histogram
    )  # fmt: skip
    assert b"@x" not in tally.content


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53).map(float), min_size=1))
def test_each_value_stands_in_its_bar(values):
    """Whatever their sizes; few bars, neighbours apart by one width."""
    import numpy as np

    histogram = Histogram(10)
    for value in values:
        histogram.add(np.array([value]))

    assert len(values) == sum(histogram.bars.values())
    assert max(histogram.bars) - min(histogram.bars) < 10
    assert {number_of(value, histogram.exponent) for value in values} == set(histogram.bars)


def test_damaged_file_of_a_chunk_is_refused():
    """A profile of some of the rows would be wrong in silence."""
    schema = pa.schema([("a", pa.int64())])
    root = SimpleNamespace(uri="lake", read=lambda path: (b"{}", "") if path == "cut" else None)

    for path in ("cut", "gone"):
        with pytest.raises(PartCorrupt, match=path):
            joined_profile(root, [path], rows=1, schema=schema, asked=ProfileColumns(("a",)))  # type: ignore[arg-type]


def test_bars_are_as_high_as_their_rows():
    """One row is seen beside a million; none is a blank."""
    assert "█▁ ▄" == bars([Bar("", "", 1_000_000), Bar("", "", 1), Bar("", "", 0), Bar("", "", 500_000)])
    assert "" == bars([])
