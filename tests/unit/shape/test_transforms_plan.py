"""The plan of a chain of steps: types, lineage, names, and what is refused before any row is read."""

import pickle
from typing import get_args

import pyarrow as pa
import pytest
from pydantic import ValidationError

from rivet_resources.contracts.transform import RowRefused, TransformError
from rivet_resources.contracts.types import Column
from rivet_resources.registry import STEPS
from rivet_resources.shape.transforms import pipeline
from tests.transforming import cells, shaped, steps

UUIDS = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0123456789abcdef", None], pa.binary(16)))
TABLE = pa.table(
    {
        "id": [1, 2],
        "first": ["Ann", None],
        "last": ["Lee", "Ray"],
        "email": ["a@x", "b@y"],
        "amount": pa.array(["1.50", "2.00"]).cast(pa.decimal128(12, 2)),
        "wide": pa.array(["1", "2"]).cast(pa.decimal256(60, 0)),
        "uid": UUIDS,
        "nanos": pa.array([1_000, None], pa.timestamp("ns")),
    }
)

TRIM = {"type": "trim", "columns": ["email"]}
ADD = {"type": "add", "columns": {"x": 1}}

# One minimal block of every type word there is; a test below says the table is complete.
BLOCKS = {
    "filter": {"where": "id = 1"},
    "mask": {"fields": ["email"]},
    "field-mask": {"fields": ["email"]},
    "mask_field": {"fields": ["email"]},
    "rename": {"columns": {"email": "mail"}},
    "rename_field": {"from": "email", "to": "mail"},
    "drop": {"columns": ["email"]},
    "remove_field": {"field": "email"},
    "keep": {"columns": ["email"]},
    "cast": {"columns": {"id": "text"}},
    "add": {"columns": {"x": 1}},
    "add_field": {"field": "x", "value": 1},
    "insert_field": {"static_fields": {"x": 1}, "timestamp_field": "loaded_at", "date_field": "loaded_on"},
    "compute": {"columns": {"x": "id + 1"}},
    "compute_field": {"columns": {"x": "id + 1"}},
    "lower": {"columns": ["email"]},
    "upper": {"columns": ["email"]},
    "trim": {"columns": ["email"]},
    "replace": {"columns": ["email"], "find": "@", "with": " at "},
    "substring": {"columns": ["email"], "start": 1},
    "split": {"column": "email", "separator": "@", "into": ["user", "host"]},
    "concat": {"columns": ["first", "last"], "into": "name"},
    "coalesce": {"columns": ["first", "last"]},
    "set_null": {"columns": ["email"], "equals": "a@x"},
    "timestamp": {"columns": ["id"]},
    "timestamp_converter": {"columns": ["id"]},
    "timezone": {"columns": ["nanos"], "to": "Europe/Prague"},
    "timezone_converter": {"columns": ["nanos"], "to": "Europe/Prague"},
    "flatten": {"columns": ["email"], "paths": {"a": "text"}},
    "hash_bucket": {"columns": ["id"], "buckets": 4},
}


def test_every_type_word_is_tested():
    """The table above holds every step and alias of the union; `test_wasm.py` has the one that needs a file."""
    words = {word for step in STEPS.values() for word in get_args(step.model_fields["type"].annotation)}

    assert words == {*BLOCKS, "wasm"}


def test_every_key_is_described():
    """`rivet schema config` and docs/reference/yaml.md take the words from here."""
    bare = [
        f"{step.__name__}.{name}"
        for step in STEPS.values()
        for name, field in step.model_fields.items()
        if name != "type" and not field.description
    ]

    assert [] == bare


@pytest.mark.parametrize("word", BLOCKS)
def test_every_step_is_frozen_plain_data_that_survives_pickling(word):
    """A step travels to executors by reference to its class."""
    [step] = steps({"type": word, **BLOCKS[word]})

    assert step == pickle.loads(pickle.dumps(step))
    with pytest.raises(ValidationError):
        step.type = "other"


@pytest.mark.parametrize("word", BLOCKS)
def test_page_without_rows_has_the_planned_schema(word):
    """Types come from the plan, never from rows: an empty page, and one of no chunks, have the same."""
    block = {"type": word, **BLOCKS[word]}
    full = pipeline.plan(steps(block), TABLE.schema).schema

    assert full.equals(shaped(TABLE.slice(0, 0), block).schema, check_metadata=True)
    assert full.equals(shaped(TABLE.schema.empty_table(), block).schema, check_metadata=True)


@pytest.mark.parametrize("word", [word for word in BLOCKS if word not in ("filter", "flatten")])
def test_untouched_columns_stay_the_same_arrays(word):
    """Columns a step does not name are not copied, so decimals of 256 bits, uuids and nanoseconds are exact."""
    result = shaped(TABLE, {"type": word, **BLOCKS[word]})

    same = [name for name in ("amount", "wide", "uid") if name in result.column_names]
    for name in same:
        assert TABLE.column(name).chunk(0).buffers()[-1].address == result.column(name).chunk(0).buffers()[-1].address


def test_filter_by_sql_keeps_types_sql_does_not_have():
    """Only the columns an expression uses pass through DuckDB."""
    result = shaped(TABLE, {"type": "filter", "where": "id = 2"})

    assert TABLE.slice(1).equals(result)


# Block that names a column which does not exist, and how it names it.
MISSING = {
    "filter": {"field": "emial", "value": 1},
    "mask": {"fields": ["emial"]},
    "rename": {"columns": {"emial": "x"}},
    "drop": {"columns": ["emial"]},
    "keep": {"columns": ["emial"]},
    "cast": {"columns": {"emial": "text"}},
    "compute": {"columns": {"x": "emial || 'a'"}},
    "lower": {"columns": ["emial"]},
    "trim": {"columns": ["emial"]},
    "replace": {"columns": ["emial"], "find": "a"},
    "substring": {"columns": ["emial"]},
    "split": {"column": "emial", "separator": "a", "into": ["b"]},
    "concat": {"columns": ["emial"], "into": "x"},
    "coalesce": {"columns": ["emial", "last"]},
    "set_null": {"columns": ["emial"], "always": True},
    "timestamp": {"columns": ["emial"]},
    "timezone": {"columns": ["emial"], "to": "UTC"},
    "flatten": {"columns": ["emial"], "paths": {"a": "text"}},
    "hash_bucket": {"columns": ["emial"], "buckets": 2},
}


@pytest.mark.parametrize("word", MISSING)
def test_missing_column_is_refused_with_what_exists_and_what_is_near(word):
    """A transform naming a missing column is one clear error of the plan."""
    with pytest.raises(TransformError) as caught:
        pipeline.plan(steps(TRIM, {"type": word, **MISSING[word]}), TABLE.schema)

    message = str(caught.value)
    assert [] == [
        part for part in (f"step 2 ({word})", "'emial'", "id, first", "Did you mean 'email'?") if part not in message
    ]


def _can_ignore(word: str) -> bool:
    step = next(step for step in STEPS.values() if word in get_args(step.model_fields["type"].annotation))
    return "ignore_missing" in step.model_fields


@pytest.mark.parametrize("word", [word for word in MISSING if _can_ignore(word)])
def test_missing_column_is_passed_over_when_the_step_says_so(word):
    """`ignore_missing: true` makes the step do nothing for a column that is not there."""
    block = {"type": word, **MISSING[word], "ignore_missing": True}
    if word in ("keep",):
        block["columns"] = ["emial", *TABLE.column_names]

    assert TABLE.schema.names == shaped(TABLE, block).schema.names


def test_lineage_follows_renamed_masked_and_derived_columns():
    """Origins are source columns, through every step; constants have none."""
    plan = pipeline.plan(
        steps(
            {"type": "rename", "columns": {"email": "mail", "first": "last", "last": "first"}},
            {"type": "concat", "columns": ["first", "last"], "into": "name"},
            {"type": "compute", "columns": {"total": "amount * id", "id": "id + 1"}},
            {"type": "mask", "fields": ["mail"]},
            {"type": "add", "columns": {"region": "EU"}},
            {"type": "drop", "columns": ["wide", "uid", "nanos"]},
        ),
        TABLE.schema,
    )

    expected = {
        "id": {"id"}, "last": {"first"}, "first": {"last"}, "mail": {"email"}, "amount": {"amount"},
        "name": {"first", "last"}, "total": {"amount", "id"}, "region": set(),
    }  # fmt: skip
    assert expected == {name: set(sources) for name, sources in plan.origins.items()}
    assert {"email"} == plan.masked
    assert {} == plan.leaks


def test_copy_made_before_the_mask_is_called_a_leak():
    """A column made from the plain value shows it; made from the masked one it does not."""
    before = {"type": "concat", "columns": ["email", "last"], "into": "x"}
    mask = {"type": "mask", "fields": ["email"], "method": "redact"}

    assert {"x": {"email"}} == pipeline.plan(steps(before, mask), TABLE.schema).leaks
    assert {} == pipeline.plan(steps(mask, before), TABLE.schema).leaks
    assert {} == pipeline.plan(steps(before, mask, {"type": "drop", "columns": ["x"]}), TABLE.schema).leaks


def test_mask_with_a_condition_leaves_plain_cells_and_says_so():
    """Rows where `when` is not true keep the plain value."""
    plan = pipeline.plan(steps({"type": "mask", "fields": ["email"], "when": "id = 1"}), TABLE.schema)

    assert {"email": {"email"}} == plan.leaks


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"type": "rename", "columns": {"email": "last"}}, "two columns would be called 'last'"),
        ({"type": "rename", "columns": {"email": "x", "last": "x"}}, "two columns would be called 'x'"),
        ({"type": "add", "timestamp_field": "email"}, "'email' exists already"),
        ({"type": "add", "columns": {"email": 1}}, "'email' exists already"),
        ({"type": "concat", "columns": ["first", "last"], "into": "email"}, "'email' exists already"),
        ({"type": "split", "column": "email", "separator": "@", "into": ["last", "x"]}, "'last' exists already"),
        ({"type": "split", "column": "email", "separator": "@", "into": ["x", "x"]}, "twice"),
        ({"type": "hash_bucket", "columns": ["id"], "buckets": 2, "into": "id"}, "'id' exists already"),
        ({"type": "coalesce", "columns": ["first", "last"], "into": "id"}, "'id' exists already"),
        ({"type": "coalesce", "columns": ["first", "id"]}, "cast one of them"),
        ({"type": "drop", "columns": ["*"]}, "no column is left"),
        ({"type": "drop", "columns": ["x*"]}, "no column 'x*'"),
        ({"type": "lower", "columns": ["id"]}, "'id' is int64, not text"),
        ({"type": "cast", "columns": {"id": "date"}}, "column 'id': int64 cannot become date32"),
        ({"type": "cast", "columns": {"nanos": "timestamp_tz"}}, "`timezone` step"),
        ({"type": "timestamp", "columns": ["amount"]}, "'amount' is decimal128"),
        ({"type": "flatten"}, "no struct column"),
        ({"type": "flatten", "columns": ["email"]}, "declare its `paths`"),
        ({"type": "flatten", "columns": ["id"], "paths": {"a": "text"}}, "'id' is int64"),
        ({"type": "replace", "columns": ["email"], "find": "(", "regex": True}, "regular expression"),
        ({"type": "set_null", "columns": ["id"], "equals": "x"}, "'id' is int64"),
        ({"type": "compute", "columns": {"x": "wide + 1"}}, "cannot hold exactly"),
        ({"type": "compute", "columns": {"id": "id::TEXT"}, "when": "id = 1"}, "with `when`, column 'id'"),
        ({"type": "lower", "columns": ["email"], "when": "id"}, "`when` gives int64"),
        ({"type": "lower", "columns": ["email"], "when": "nope = 1"}, "no column 'nope'"),
    ],
)  # fmt: skip
def test_step_that_cannot_work_is_refused_before_any_row(block, words):
    """Collisions, wrong types and wrong conditions are faults of the plan, with number and type of the step."""
    with pytest.raises(TransformError) as caught:
        pipeline.plan(steps(block), TABLE.schema)

    assert words in str(caught.value)
    assert f"transforms, step 1 ({block['type']})" in str(caught.value)


@pytest.mark.parametrize("word", ["rename", "drop", "keep", "flatten", "filter"])
def test_structural_steps_take_no_condition(word):
    """A column is there for all rows or for none."""
    with pytest.raises(ValidationError):
        steps({"type": word, **BLOCKS[word], "when": "id = 1"})


def test_two_columns_of_one_name_are_refused():
    """No step could tell them apart."""
    schema = pa.schema([("a", pa.int32()), ("a", pa.int32())])

    with pytest.raises(TransformError, match="'a' exists twice"):
        pipeline.plan(steps({"type": "keep", "columns": ["a"]}), schema)


def test_field_metadata_of_untouched_and_renamed_columns_is_kept():
    """Readers and drift see the catalog's words for every cell that is still the catalog's."""
    field = Column("a", "varchar(20)", pa.string(), '"a"', nullable=False).field

    plan = pipeline.plan(
        steps({"type": "rename", "columns": {"a": "b"}}, {"type": "upper", "columns": ["b"]}), pa.schema([field])
    )

    assert field.with_name("b").equals(plan.schema.field("b"), check_metadata=True)


@pytest.mark.parametrize("rows", [[True, False], [True, True], [False, False], [None, None], [None, True]])
def test_condition_changes_only_rows_where_it_is_true(rows):
    """All, none, some; NULL is not true; types SQL does not have are put back exactly."""
    table = TABLE.append_column("flag", pa.array(rows, pa.bool_()))
    blocks = [
        {"type": "mask", "fields": ["email"], "method": "redact", "when": "flag"},
        {"type": "set_null", "columns": ["uid", "wide", "nanos", "first"], "always": True, "when": "flag"},
        {"type": "add", "columns": {"x": 7}, "when": "flag"},
    ]

    result = shaped(table, *blocks)

    for row, flag in enumerate(rows):
        assert ("[REDACTED]" if flag else cells(TABLE, "email")[row]) == cells(result, "email")[row]
        assert (7 if flag else None) == cells(result, "x")[row]
        for name in ("uid", "wide", "nanos", "first"):
            assert (None if flag else cells(TABLE, name)[row]) == cells(result, name)[row]


def test_condition_guards_cells_that_would_fail():
    """A step sees only the rows its condition chooses."""
    result = shaped(
        pa.table({"v": ["1", "x", "3"], "n": [1, 0, 3]}),
        {"type": "compute", "columns": {"w": "v::INT"}, "when": "n > 0"},
    )

    assert [1, None, 3] == cells(result, "w")


def test_expression_that_fails_on_a_late_row_is_one_clear_error():
    """Row 300,001 of a page fails: step, expression, kind and count, and no value."""
    cells_ = ["1"] * 300_000 + ["BAD"] + ["2"] * 10

    with pytest.raises(RowRefused) as caught:
        shaped(pa.table({"v": cells_}), ADD, {"type": "compute", "columns": {"n": "v::INTEGER"}})

    assert "step 2 (compute): `v::INTEGER` meets a value that cannot be converted in 1 of 300011 rows" in str(
        caught.value
    )
    assert "BAD" not in str(caught.value)
    assert 3 == caught.value.exit_code


def test_failure_no_one_foresaw_shows_no_value_either():
    """An error of Arrow's own is named by its class; its text, which may show a cell, is in no part of ours."""
    years_beyond_texts = pa.array([2**62], pa.timestamp("us", "UTC"))

    with pytest.raises(RowRefused, match=r"step 1 \(timezone\)") as caught:
        shaped(pa.table({"v": years_beyond_texts}), {"type": "timezone", "columns": ["v"], "to": "UTC"})

    assert (None, None) == (caught.value.__cause__, caught.value.__context__)
