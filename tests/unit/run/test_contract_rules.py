"""What a contract becomes: rules with their severities, and one verdict on the columns."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pydantic import ValidationError

from rivet_assets.blocks.contract import Contract, Volume
from rivet_assets.modes.full import Full
from rivet_assets.modes.time_window import TimeWindow
from rivet_assets.run.judge.contract_numbers import bounded_by_history, earlier_rows
from rivet_assets.run.judge.contract_rules import columns_verdict, contract_rules, describe_columns, is_same_native
from rivet_assets.run.judge.quality import Bounded, audit, blocks
from rivet_resources.contracts.parts import Measures
from rivet_resources.contracts.relation import Relation
from rivet_resources.contracts.types import Column
from rivet_resources.state.runs import RunRecord


def relation(**columns: str) -> Relation:
    """Return a relation of BIGINT columns but for those named with another type of the database."""
    made = [Column(name, native, pa.int64(), name) for name, native in columns.items()]
    return Relation(name="orders", sql="orders", is_table=True, columns=tuple(made))


def columns(contract: dict, **natives: str) -> tuple[bool, bool, str]:
    """Judge columns: (passed, keeps the window back, text)."""
    rows = relation(**(natives or {"id": "BIGINT", "total": "BIGINT"}))
    shaped = pa.schema([column.field for column in rows.columns if column.name != "dropped"])
    verdict = columns_verdict(Contract(**contract), shaped, rows)
    return verdict.passed, blocks([verdict]), verdict.text


def test_each_rule_is_a_check_of_its_own_with_its_severity():
    """A rule's severity is its own, else its contract's."""
    contract = Contract(
        severity="warn",
        columns={
            "id": {"key": True, "severity": "stop"},
            "status": {"accepted_values": ["a"], "min": "a", "max": "b", "matches": "a", "unique": True},
            "email": {"null_ratio_max": 0.5},
        },
        rows={"adds_up": "a = b", "big": {"check": "a > 1", "severity": "stop"}},
        row_count={"min": 1, "max": 9},
        freshness={"column": "at", "max_age": "26h"},
    )

    assert {
        "row_count_min": False, "row_count_max": False, "freshness__at": False, "required__id": True,
        "unique__id": True, "unique__status": False, "accepted_values__status": False, "min__status": False,
        "max__status": False, "matches__status": False, "null_ratio_max__email": False, "rows__adds_up": False,
        "rows__big": True,
    } == {rule.name: rule.blocking for rule in contract_rules(contract)}  # fmt: skip


def test_key_of_several_columns_is_one_check_and_each_of_them_required():
    """Together they hold nothing twice, alone they may."""
    contract = Contract(columns={"id": {"key": True}, "line": {"key": True}})

    assert ["unique__key", "required__id", "required__line"] == [rule.name for rule in contract_rules(contract)]
    assert () == contract.unique_columns


def test_verdicts_carry_what_was_seen_and_what_is_allowed():
    """Broken rows and ages are numbers with their thresholds; a window without rows breaks nothing."""
    contract = Contract(columns={"a": {"min": 1}}, freshness={"column": "at", "max_age": 60}, severity="warn")
    rules, at = contract_rules(contract), datetime(2026, 1, 1, 0, 2, tzinfo=UTC)
    newest = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
    measures = Measures(rows=9, nulls={"a": 0}, broken={"min__a": 4}, newest={"at": newest})

    age, low = audit(rules, measures, {}, at=at)

    assert (False, 120, 60) == (age.passed, age.observed, age.threshold)
    assert (False, 4, 0, 9) == (low.passed, low.observed, low.threshold, low.rows)
    assert not blocks([age, low])
    assert all(verdict.passed for verdict in audit(rules, Measures(), {}, at=at))


def test_rule_on_a_column_that_is_gone_fails_even_where_it_only_warns():
    """Nothing was judged, and that is no success."""
    rules = contract_rules(Contract(severity="warn", columns={"gone": {"required": True, "unique": True, "min": 1}}))

    assert {False} == {verdict.passed for verdict in audit(rules, Measures(rows=1, nulls={"id": 0}), {})}


COLUMNS = [
    ({"columns": {"id": {}, "total": {"type": "int8"}}}, True, ""),
    ({"columns": {"id": {"type": "int4"}}}, False, "id is int64, agreed is int4 (int32)"),
    ({"columns": {"id": {"logical_type": "number"}}}, True, ""),
    ({"columns": {"id": {"logical_type": "string"}}}, False, "id is int64, agreed is a type of kind string"),
    ({"columns": {"id": {"physical_type": "int8"}}}, True, ""),
    ({"columns": {"id": {"physical_type": "text"}}}, False, "id is BIGINT, agreed is text"),
    ({"columns": {"gone": {}}}, False, "gone is not there"),
    ({"columns": {"id": {}}, "additional_columns": "refuse"}, False, "total is not in the contract"),
]


@pytest.mark.parametrize(("contract", "passed", "text"), COLUMNS)
def test_columns_are_judged_by_name_and_type(contract, passed, text):
    """All breaches are one verdict, whose text names each."""
    assert (passed, not passed, text) == columns(contract)


def test_column_that_only_warns_keeps_nothing_back():
    """The severity of a column is that of its breach."""
    contract = {"columns": {"gone": {"severity": "warn"}}}

    assert (False, False, "gone is not there") == columns(contract)
    assert describe_columns(Contract(**contract))[1]


def test_column_that_a_transform_drops_is_said_to_be_dropped():
    """It is in the table, and not in the file."""
    assert "dropped is dropped or renamed" in columns({"columns": {"dropped": {}}}, id="INT", dropped="INT")[2]


def test_database_types_are_equal_whatever_their_spelling():
    """Without a length, any length; aliases of one type are one."""
    for agreed, native in (
        ("VARCHAR", "character varying(20)"), ("varchar( 20 )", "VARCHAR(20)"), ("decimal(12, 2)", "numeric(12,2)"),
        ("timestamptz", "timestamp with time zone"),
    ):  # fmt: skip
        assert is_same_native(agreed, native)
    assert not is_same_native("varchar(20)", "varchar(30)")
    assert not is_same_native("timestamp", "timestamp with time zone")


@pytest.mark.parametrize(
    "block",
    [
        {"columns": {"a": {"min": 2, "max": 1}}},
        {"columns": {"a": {"matches": "("}}},
        {"columns": {"a": {"type": "varchar"}}},
        {"columns": {"a": {"accepted_values": []}}},
        {"columns": {"a": {"required": True, "null_ratio_max": 0.1}}},
        {"row_count": {}},
        {"rows": {"a b": "x > 1"}},
        {"additional_columns": "refuse"},
        {"volume": {"history": 3, "at_least": 4}},
        {"sql": {"x": " "}},
    ],
)
def test_contract_that_cannot_be_kept_is_refused(block):
    """When the configuration is read, not at night."""
    with pytest.raises(ValidationError):
        Contract(**block)


# --- numbers of the whole window -----------------------------------------------------------------

USUAL = [100, 102, 98, 101, 99, 100]


@pytest.mark.parametrize(
    ("rows", "earlier", "passes"),
    [
        (100, USUAL, True),
        (60, USUAL, False),
        (140, USUAL, False),
        (109, [100] * 6, True),  # a table that never changed may, by a tenth
        (111, [100] * 6, False),
        (60, [100, 100, 100, 100, 100_000, 0], False),  # one odd run moves nothing
        (5, [0, 0], True),  # too few runs
        (1, [0] * 9, True),
        (2, [0] * 9, False),
    ],
)
def test_rows_are_held_against_the_middle_of_earlier_runs(rows, earlier, passes):
    """The median and how far runs scatter around it; single odd runs do not count."""
    assert passes == bounded_by_history(rows, earlier, Volume()).passes


def test_too_few_runs_pass_and_say_so():
    """A first run has nothing to be like."""
    assert "7; 2 earlier runs, 5 are needed to judge" == bounded_by_history(7, [1, 2], Volume()).text


COMMON = {"name": "o", "table": "o", "format": "parquet", "destination": {"type": "local", "path": "x"}}
AT = datetime(2026, 1, 1, tzinfo=UTC)


def test_only_runs_that_are_alike_count():
    """Of whole tables every success; of days the other days, each once, as it stands now."""
    runs = [
        RunRecord(f"r{n}", "o", window, AT, status=status, total_rows=rows)
        for n, (window, status, rows) in enumerate(
            [("2026-01-03", "success", 3), ("2026-01-02", "success", 2), ("2026-01-01", "failed", 9),
             ("2026-01-02", "success", 7), ("2026-01-01", "success", 1)]
        )
    ]  # fmt: skip
    days = TimeWindow(**COMMON, mode="time_window", time_column="at", start="2026-01-01")

    assert [2, 1] == earlier_rows(runs, days, "2026-01-03")
    assert [3, 2, 7, 1] == earlier_rows(runs, Full(**COMMON), "all")


def test_number_of_sql_must_be_nothing_unless_bounds_are_given():
    """The check has the number and the bound that it breaks."""
    contract = Contract(sql={"none": "select 1", "some": {"query": "select 1", "min": 1}}, severity="warn")
    rules = contract_rules(contract)
    numbers = {"sql__none": Bounded(3, 0, 0), "sql__some": Bounded(3, 1, None)}

    none, some = audit(rules, Measures(rows=9), {}, numbers=numbers)

    assert [(False, 3, 0), (True, 3, 1)] == [(each.passed, each.observed, each.threshold) for each in (none, some)]
    assert ("3, 0 wanted", "3, at least 1 wanted") == (none.text, some.text)
    assert ["select 1 is 0.", "select 1 is at least 1."] == [rule.description for rule in rules]
