"""Rows that a step refuses are found, exactly they, whatever refused them; the others are shaped as without them."""

from __future__ import annotations

from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rivet_resources.contracts.rows.row_errors import RefusedCells, RefusedRows, RowPolicy
from rivet_resources.contracts.settings import Settings
from rivet_resources.contracts.source import Page
from rivet_resources.contracts.transform import RowRefused, StepPlan
from rivet_resources.shape.transforms import pipeline
from rivet_resources.shape.transforms.cast import type_of
from rivet_resources.shape.transforms.conditions import policy_of
from rivet_resources.shape.transforms.convert import convert
from rivet_resources.shape.transforms.fields import itself
from rivet_resources.shape.transforms.separate import separate, without_cells
from tests.transforming import cells, steps

PEOPLE = pa.table({
    "id": pa.array(range(8), pa.int64()),
    "age": ["1", "old", "3", None, "5", "6", "young", "8"],
    "at": ["2026-01-01T00:00:00Z"] * 5 + ["never"] + ["2026-01-01T00:00:00Z"] * 2,
    "doc": ['{"n": 1}'] * 2 + ["{"] + ['{"n": 1}'] * 4 + ['{"n": "x"}'],
})  # fmt: skip
CAST = {"type": "cast", "columns": {"age": "int4"}}


class Picky(Settings):
    """A step of a plugin: it refuses a page with an odd id above 4 in it, and does not say which row it is."""

    type: Literal["picky"] = "picky"
    fault: str = ""

    def plan(self, schema: pa.Schema) -> StepPlan:
        """Change nothing."""
        return StepPlan(schema, itself(schema), frozenset())

    def apply(self, table: pa.Table) -> pa.Table:
        """Refuse, or pass the page on."""
        if self.fault == "memory":
            raise pa.ArrowMemoryError("no room")
        if self.fault == "pages" and table.num_rows > 1:
            raise ValueError("only single rows are taken")
        if not self.fault and any(each % 2 and each > 4 for each in table.column("id").to_pylist()):
            raise ValueError("it is odd")
        return table


def split(*blocks: Any, policy: RowPolicy = "skip", table: pa.Table = PEOPLE) -> tuple[pa.Table, list[RefusedRows]]:
    chosen = [each if isinstance(each, Settings) else steps(each)[0] for each in blocks]
    plan = pipeline.plan(chosen, table.schema)
    shaped, refused, _ = separate(plan, table, [policy_of(each, policy) for each in chosen])
    return shaped, refused


def ids(refused: list[RefusedRows]) -> list[int]:
    return sorted(each for one in refused for each in one.rows.column("id").to_pylist())


BAD = {
    "cast": (CAST, [1, 6]),
    "times": ({"type": "timestamp", "columns": ["at"], "to": "epoch_s"}, [5]),
    "sql": ({"type": "compute", "columns": {"half": "CAST(age AS INTEGER) * 2"}}, [1, 6]),
    "flatten": ({"type": "flatten", "columns": ["doc"], "paths": {"n": "int8"}}, [2, 7]),
    "filter": ({"type": "filter", "where": "CAST(age AS INTEGER) > 0"}, [1, 6]),
    "plugin": (Picky(), [5, 7]),
    "when": ({**CAST, "columns": {"age": "text"}, "when": "CAST(age AS INTEGER) > 0"}, [1, 6]),
}


@pytest.mark.parametrize("word", BAD)
def test_rows_that_a_step_refuses_are_taken_out_and_no_other(word: str) -> None:
    """Each kind of step, those that say which rows they mean and those that do not."""
    step, bad = BAD[word]
    shaped, refused = split(step)

    assert bad == ids(refused)
    good = PEOPLE.filter(pa.array([each not in bad for each in range(8)]))
    alone, nothing = split(step, table=good)
    assert (alone.to_pylist(), []) == (shaped.to_pylist(), nothing)
    assert all(each.rows.schema == PEOPLE.schema for each in refused)


def test_rows_are_found_behind_filters_that_left_others_out() -> None:
    """Marks of a step are places among the rows that reached it, not among those of the page."""
    before = {"type": "filter", "field": "id", "op": ">", "value": 0}
    shaped, refused = split(before, {"type": "rename", "columns": {"at": "seen"}}, before, CAST)

    assert [1, 6] == ids(refused)
    assert [2, 3, 4, 5, 7] == cells(shaped, "id")


def test_row_with_several_faults_is_told_once_for_the_first() -> None:
    """A row is in one place: in the export, or in the quarantine with one reason."""
    table = PEOPLE.set_column(2, "at", pa.array(["never"] * 8))
    shaped, refused = split(CAST, {"type": "timestamp", "columns": ["at"], "to": "epoch_s"}, table=table)

    assert list(range(8)) == ids(refused)
    assert shaped.num_rows == 0
    assert {"step 1 (cast)": 2, "step 2 (timestamp)": 6} == {each.where: each.rows.num_rows for each in refused}


def test_reason_names_step_and_column_and_no_value() -> None:
    """It is counted, logged and put into manifests."""
    _, [refused] = split(CAST)

    assert refused.reason == "step 1 (cast), age: cannot become int32"


def test_word_of_a_step_stands_above_that_of_the_export() -> None:
    """Both ways: a strict step in a lenient export, and the other way round."""
    with pytest.raises(RowRefused, match=r"2 of 8 cells"):
        split({**CAST, "on_error": "stop"}, policy="dead_letter")
    _, [refused] = split({**CAST, "on_error": "dead_letter"}, policy="stop")
    assert refused.policy == "dead_letter"
    shaped, nothing = split({**CAST, "on_error": "null"}, policy="skip")
    assert (8, []) == (shaped.num_rows, nothing)


@pytest.mark.parametrize("fault", ["memory", "pages"])
def test_fault_that_is_of_no_row_takes_none(fault: str) -> None:
    """A want of memory, and a step that takes no whole page, stop the export: no row is to blame."""
    with pytest.raises(RowRefused):
        split(Picky(fault=fault))


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(st.sampled_from(["1", "-7", "x", "", None, "1.5"]), max_size=40), first=st.integers(0, 40))
def test_any_page_is_parted_into_rows_that_fit_and_rows_that_do_not(texts: list[str | None], first: int) -> None:
    """No row is lost, none is in both."""
    table = pa.table({"id": pa.array(range(len(texts)), pa.int64()), "age": pa.array(texts, pa.string())})
    shaped, refused = split({"type": "filter", "field": "id", "op": ">=", "value": first}, CAST, table=table)

    bad = [n for n, text in enumerate(texts) if n >= first and text is not None and not text.lstrip("-").isdigit()]
    assert bad == ids(refused)
    assert [n for n in range(first, len(texts)) if n not in bad] == cells(shaped, "id")


def test_row_with_two_cells_its_types_cannot_hold_is_taken_out_once() -> None:
    """The first of them is the reason."""
    marks = [pa.array([n in places for n in range(8)]).to_numpy(zero_copy_only=False) for places in ({1, 2}, {2, 3})]
    given = [RefusedCells("age", "holds NaN", marks[0]), RefusedCells("at", "holds NaN", marks[1])]
    left, refused = without_cells(PEOPLE, given, "skip")

    assert [0, 4, 5, 6, 7] == cells(left, "id")
    assert [("age", 2), ("at", 1)] == [(each.column, each.rows.num_rows) for each in refused]


FITS: dict[str, tuple[str, list[str | None]]] = {
    "int8": ("12", ["x", "", "99999999999999999999", "1.5", None]),
    "decimal(6,2)": ("1.25", ["x", "1.255", "99999.00", None]),
    "float8": ("1.5", ["one", "1e999x", None]),
    "bool": ("true", ["maybe", None]),
    "date": ("2026-01-31", ["2026-02-31", "never", "2026-1-1", None]),
    "timestamp": ("2026-01-31T00:00:00", ["2026-13-31T00:00:00", "soon", None]),
    "uuid": ("00000000-0000-0000-0000-00000000000a", ["00000000-0000-0000-0000-00000000000x", "", None]),
    "json": ("[1]", ["[1", None]),
}


@settings(max_examples=40, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("word", FITS)
def test_cells_that_refuse_are_those_that_refuse_alone(word: str, data: st.DataObject) -> None:
    """However many there are and wherever they stand: found together, or one by one, they are the same."""
    good, odd = FITS[word]
    texts = data.draw(st.lists(st.sampled_from([good] * 6 + odd), max_size=60))
    target = type_of(word)
    cells, bad = convert(pa.chunked_array([pa.array(texts, pa.string())]), target)
    alone = [convert(pa.chunked_array([pa.array([text], pa.string())]), target) for text in texts]

    assert [mask is not None for _, mask in alone] == ([False] * len(texts) if bad is None else bad.tolist())
    assert [one[0].as_py() for one, _ in alone] == cells.to_pylist()


def test_refused_cells_stay_with_their_rows_when_some_are_taken() -> None:
    """A predicate that is asked of rows already typed leaves some out; the marks go with the rows."""
    marks = RefusedCells("age", "holds NaN", pa.array([n in (1, 6) for n in range(8)]).to_numpy(zero_copy_only=False))
    page = Page(PEOPLE, {}, 0.0, refused=(marks,)).take(pa.array([0, 6, 7], pa.int64()))
    _, [refused] = without_cells(page.table, page.refused, "skip")

    assert [6] == refused.rows.column("id").to_pylist()
