"""Ranges are disjoint, leave no gap, and hold both ends."""

import pyarrow as pa
import pytest

from rivet_assets.modes.key_ranges import Range, between_inner_bounds, by_days, equal_width, middle
from rivet_resources.contracts.types import Column
from rivet_resources.errors import SourceError

DAY = Column("born", "date", pa.date32(), '"born"')
INSTANT = Column("at", "timestamptz", pa.timestamp("us", "UTC"), '"at"')
COUNT = Column("n", "int4", pa.int32(), '"n"')


@pytest.mark.parametrize(
    ("low", "high", "size", "expected"),
    [
        (1, 10, 4, ["[1,4]", "[5,8]", "[9,10]"]),
        (1, 10, 10, ["[1,10]"]),
        (7, 7, 3, ["[7,7]"]),
        (-3, 2, 3, ["[-3,-1]", "[0,2]"]),
        (2**63 - 3, 2**63 - 1, 2, [f"[{2**63 - 3},{2**63 - 2}]", f"[{2**63 - 1},{2**63 - 1}]"]),
        (-(2**63), 2**63 - 1, 2**63, [f"[{-(2**63)},-1]", f"[0,{2**63 - 1}]"]),
    ],
)
def test_equal_widths_hold_every_whole_number_once(low: int, high: int, size: int, expected: list[str]) -> None:
    """Both ends are inclusive, the last range is cut to the maximum, and the edge of 64 bits is exact."""
    assert expected == [str(piece) for piece in equal_width(low, high, size=size)]


@pytest.mark.parametrize(
    ("low", "inner", "high", "expected"),
    [
        ("a", (), "z", ["[a,z]"]),
        ("a", ("g", "p"), "z", ["[a,g]", "(g,p]", "(p,z]"]),
        ("a", ("a", "g", "g", "z"), "z", ["[a,g]", "(g,z]"]),
        ("5", ("5",), "5", ["[5,5]"]),
    ],
)
def test_inner_bounds_make_ranges_without_overlap(
    low: str, inner: tuple[str, ...], high: str, expected: list[str]
) -> None:
    """A bound belongs to the range it ends; repeated bounds and bounds at an end add nothing."""
    assert expected == [str(piece) for piece in between_inner_bounds(low, inner, high)]


@pytest.mark.parametrize(
    ("low", "high", "days", "column", "expected"),
    [
        ("2026-01-30", "2026-02-01", 2, DAY, ["[2026-01-30,2026-02-01)", "[2026-02-01,2026-02-03)"]),
        ("2026-01-30", "2026-01-30", 7, DAY, ["[2026-01-30,2026-02-06)"]),
        (
            "2026-01-30T23:59:59.999999Z", "2026-01-31T00:00:00.000000Z", 1, INSTANT,
            ["[2026-01-30T00:00:00.000000Z,2026-01-31T00:00:00.000000Z)",
             "[2026-01-31T00:00:00.000000Z,2026-02-01T00:00:00.000000Z)"],
        ),
    ],
)  # fmt: skip
def test_day_ranges_are_half_open_and_cover_the_last_row(
    low: str, high: str, days: int, column: Column, expected: list[str]
) -> None:
    """A row at midnight belongs to the day that begins."""
    assert expected == [str(piece) for piece in by_days(low, high, days=days, column=column)]


def test_days_of_a_number_are_refused_with_what_to_do() -> None:
    """chunk_by_days on a column without time names the column, its type and the way out."""
    with pytest.raises(SourceError, match=r"n is int4.*chunk_count"):
        by_days("1", "9", days=1, column=COUNT)


def test_range_reads_as_mathematics_writes_it() -> None:
    """The text is part of a chunk's identity, so it is fixed."""
    assert str(Range("1", "2", low_inclusive=False)) == "(1,2]"


@pytest.mark.parametrize(
    ("arrow", "low", "high", "expected"),
    [
        (pa.int32(), "1", "10", "5"),
        (pa.int64(), "-3", "-2", "-3"),
        (pa.uint64(), "0", str(2**64 - 1), str(2**63 - 1)),
        (pa.int64(), "7", "7", None),
        (pa.decimal128(38, 2), "-0.01", "0.02", "0.00"),
        (pa.decimal256(76, 0), "0", "9" * 76, f"4{'9' * 75}"),
        (pa.date32(), "2026-01-01", "2026-01-31", "2026-01-16"),
        (pa.date32(), "0001-12-31 BC", "0001-01-01", "0001-12-31 BC"),
        (pa.timestamp("us"), "2026-01-01T00:00:00.000000", "2026-01-01T00:00:00.000003", "2026-01-01T00:00:00.000001"),
        (
            pa.timestamp("us", "UTC"), "2026-01-01T00:00:00.000000Z", "2026-01-03T00:00:00.000000Z",
            "2026-01-02T00:00:00.000000Z",
        ),
        (pa.timestamp("us"), "2026-01-01T00:00:00.000000", "12026-01-01T00:00:00.000000", None),
        (pa.uuid(), "00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000003",
         "00000000-0000-0000-0000-000000000002"),
        (pa.string(), "a", "z", None),
    ],
)  # fmt: skip
def test_a_range_has_a_middle_where_its_values_have_a_distance(
    arrow: pa.DataType, low: str, high: str, expected: str | None
) -> None:
    """The middle is a value of the type, never above it, and less than the high end; texts have none."""
    assert expected == middle(Range(low, high), Column("k", "k", arrow, '"k"'))
