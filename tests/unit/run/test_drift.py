"""What the schema gate lets through, and what it refuses."""

import pytest

from rivet_assets.run.drift import Drift, compare, judge, refuse_reordered
from rivet_resources.errors import DriftRefused

BASELINE = [("id", "int64"), ("name", "string"), ("total", "int32")]


def test_first_run_has_no_drift():
    """Without a baseline nothing is compared."""
    assert compare(None, BASELINE) == Drift()


def test_order_of_columns_is_no_drift():
    """Columns are compared by name."""
    assert compare(BASELINE, reversed(BASELINE)) == Drift()


def test_added_removed_and_retyped_columns_are_told_apart():
    """Each kind of change is named, the retyped column with both types."""
    drift = compare(BASELINE, [("id", "int64"), ("total", "int64"), ("nick", "string")])

    assert drift == Drift(added=("nick",), removed=("name",), retyped=(("total", "int32", "int64"),))
    assert str(drift) == "added nick; removed name; total int32 → int64"


ADDED = Drift(added=("nick",))
REMOVED = Drift(removed=("name",))
RETYPED = Drift(retyped=(("total", "int32", "int64"),))


@pytest.mark.parametrize(
    ("policy", "refused"),
    [
        ("continue", []),
        ("warn", []),
        ("evolve", [REMOVED, RETYPED]),
        ("fail", [ADDED, REMOVED, RETYPED]),
    ],
)
def test_each_policy_refuses_its_drifts(policy, refused):
    """`fail` refuses all, `evolve` all but added columns, the other two none."""
    met = []
    for drift in (Drift(), ADDED, REMOVED, RETYPED):
        try:
            judge(drift, policy, export="orders", relation="public.orders")
        except DriftRefused:
            met.append(drift)

    assert refused == met


def test_refusal_names_export_change_and_way_out():
    """The message says what changed, where, and what to do; its exit code is 4."""
    with pytest.raises(DriftRefused) as caught:
        judge(RETYPED, "fail", export="orders", relation="public.orders")

    message = str(caught.value)
    assert all(
        word in message for word in ("orders", "public.orders", "total int32 → int64", "on_schema_drift", "reset")
    )
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    ("before", "now", "is_refused"),
    [
        ("int64", "string", True),
        ("string", "int32", True),
        ("string", "binary", True),
        ("timestamp[us]", "string", True),
        ("timestamp[us]", "timestamp[us, tz=UTC]", True),
        ("int32", "int64", False),
        ("int64", "decimal128(20, 0)", False),
        ("float", "double", False),
        ("uint64", "int64", False),
    ],
)
def test_cursor_whose_values_have_another_order_now_is_refused(before, now, is_refused):
    """Under any policy: a cursor of 100 would pass over '99' and everything that comes behind it."""
    drift = compare([("id", before), ("note", before)], [("id", now), ("note", now)])

    refuse_reordered(drift, ("at", None), export="orders", relation="public.orders")
    if is_refused:
        with pytest.raises(DriftRefused, match=r"cursor column id.*rivet state reset -e orders"):
            refuse_reordered(drift, ("id", None), export="orders", relation="public.orders")
    else:
        refuse_reordered(drift, ("id", None), export="orders", relation="public.orders")
