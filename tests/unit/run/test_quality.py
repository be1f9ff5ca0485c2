"""Quality rules over the measures of a staged window."""

import pytest

from rivet_assets.blocks.export import Quality
from rivet_assets.run.drift import Drift
from rivet_assets.run.judge.quality import audit, blocks, refusal, rules_of, schema_drift, special_values
from rivet_resources.contracts.parts import Measures


def judged(quality: dict, measures: Measures, duplicates: dict | None = None) -> dict[str, bool]:
    """Audit a block; {check: passed}."""
    verdicts = audit(rules_of(Quality(**quality)), measures, duplicates or {})
    return {verdict.check: verdict.passed for verdict in verdicts}


CASES = [
    ({"row_count_min": 10}, Measures(rows=10), {"row_count_min": True}),
    ({"row_count_min": 10}, Measures(rows=9), {"row_count_min": False}),
    ({"row_count_max": 10}, Measures(rows=10), {"row_count_max": True}),
    ({"row_count_max": 10}, Measures(rows=11), {"row_count_max": False}),
    ({"null_ratio_max": {"a": 0.5}}, Measures(rows=4, nulls={"a": 2}), {"null_ratio_max__a": True}),
    ({"null_ratio_max": {"a": 0.5}}, Measures(rows=4, nulls={"a": 3}), {"null_ratio_max__a": False}),
    ({"null_ratio_max": {"a": 0}}, Measures(rows=4), {"null_ratio_max__a": True}),
    ({"null_ratio_max": {"a": 0}}, Measures(rows=0), {"null_ratio_max__a": True}),
]


@pytest.mark.parametrize(("quality", "measures", "expected"), CASES)
def test_bounds_are_inclusive_and_no_rows_have_no_nulls(quality, measures, expected):
    """A rule fails only beyond its threshold; an empty window has no ratio to exceed."""
    assert expected == judged(quality, measures)


def test_unique_fails_with_the_first_repeated_value():
    """Every column is judged on its own."""
    passed = judged({"unique_columns": ["id", "code"]}, Measures(rows=5), {"id": 0, "code": 1})

    assert passed == {"unique__id": True, "unique__code": False}


def test_no_quality_block_has_no_rules():
    """An export without `quality:` is gated by nothing."""
    assert rules_of(None) == ()


def test_checks_of_odd_column_names_stay_apart_and_valid():
    """Names of checks have letters, digits and underscores only; two columns never share one."""
    names = [rule.name for rule in rules_of(Quality(unique_columns=["Order Id", "Order-Id", "order_id"]))]

    assert len(set(names)) == 3
    assert all(name.replace("_", "").isalnum() for name in names)


def test_only_failed_rules_block():
    """Warnings never stop a window."""
    measures = Measures(rows=3, special_values={"born": {"infinity": 2}})
    warnings = (special_values(measures), schema_drift(Drift(added=("x",)), accepted=False, rows=3))

    assert [verdict.passed for verdict in warnings] == [False, False]
    assert not blocks(warnings)
    assert blocks(audit(rules_of(Quality(row_count_min=4)), measures, {}))


def test_special_values_are_told_by_column_and_kind():
    """The text names columns and kinds with counts, and no value."""
    verdict = special_values(Measures(rows=9, special_values={"born": {"infinity": 2, "bc": 1}}))

    assert (verdict.observed, verdict.text) == (3, "born: 1 × bc, 2 × infinity")


def test_refusal_tells_what_was_seen_and_what_stayed():
    """The message names export, window, rule and figures."""
    text = refusal("orders", "2026-01-31", audit(rules_of(Quality(row_count_min=4)), Measures(rows=3), {}))

    assert "Export orders, window 2026-01-31" in text
    assert "row_count_min: 3 rows, at least 4 wanted" in text
    assert "Nothing of it was published" in text


def test_counts_are_told_to_their_last_digit():
    """Beyond six digits `:g` rounds, and writes 1e+06 where somebody wrote 1000000."""
    rules = rules_of(Quality(row_count_min=1_234_567, row_count_max=1_000_000))

    low, high = audit(rules, Measures(rows=1_100_000), {})

    assert "1100000 rows, at least 1234567 wanted" == low.text
    assert "1100000 rows, at most 1000000 wanted" == high.text
    assert ["At least 1234567 rows.", "At most 1000000 rows."] == [rule.description for rule in rules]
