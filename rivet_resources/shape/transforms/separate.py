"""Rows that a step refuses, taken out of their page, so that the others can be shaped (`on_error`).

Belongs here: which rows of a page are at fault, whatever step refused them. Not here: steps, which say so themselves
where they know; what becomes of the rows (`read/task.py`).

A page without a fault costs nothing more: the steps are applied as ever, and only a refusal begins a search. Most steps
mark the rows; for the others, plugins among them, the page is halved until single rows refuse.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rivet_resources.contracts.rows.row_errors import Places, RefusedCells, RefusedRows, RowPolicy
from rivet_resources.contracts.transform import RowRefused
from rivet_resources.shape.transforms.pipeline import Stage, TransformPlan


def separate(
    plan: TransformPlan, table: pa.Table, policies: Sequence[RowPolicy]
) -> tuple[pa.Table, list[RefusedRows], pa.Table]:
    """Shape the rows of a page that can be shaped, and return the others, as they came, each for its first reason.

    Args:
        policies: what becomes of the rows that a step refuses, one per step.

    Returns:
        (the shaped rows, the refused ones, the rows as they came that were shaped)

    Raises:
        RowRefused: by a step whose policy is `stop`, or no row is to blame.
    """
    refused: list[RefusedRows] = []
    while True:
        try:
            return plan.apply(table), refused, table
        except RowRefused as error:
            # The first step that refuses is told; without its rows, a later one may refuse others.
            told, place = error, plan.place_of(error.step)
        policy = policies[place]
        bad = _rows_at_fault(plan, table, told) if policy != "stop" and told.is_of_rows else None
        if bad is None or not bad.any():
            raise told
        where = f"step {told.step} ({plan.stages[place].step.type})"
        refused.append(RefusedRows(table.filter(pa.array(bad)), where, told.column, told.why, policy))
        table = table.filter(pa.array(~bad))


def places_left(plan: TransformPlan, rows: pa.Table) -> npt.NDArray[np.int64]:
    """Return for each row that the steps leave which of the given ones it was; none of these is refused."""
    return _places_reached(plan.stages, rows)


def without_cells(
    table: pa.Table, cells: Sequence[RefusedCells], policy: RowPolicy
) -> tuple[pa.Table, list[RefusedRows]]:
    """Take the rows of cells that the source could not type out of a page, each for the first of them."""
    refused: list[RefusedRows] = []
    left = np.ones(table.num_rows, np.bool_)
    for each in cells:
        bad = each.rows & left
        if bad.any():
            refused.append(RefusedRows(table.filter(pa.array(bad)), "type", each.column, each.why, policy))
            left &= ~bad
    return (table.filter(pa.array(left)) if refused else table), refused


def _rows_at_fault(plan: TransformPlan, table: pa.Table, error: RowRefused) -> Places:
    """Mark the rows of a page that made a step refuse it."""
    bad = np.zeros(table.num_rows, np.bool_)
    if error.rows is not None:
        reached = _places_reached(plan.stages[: plan.place_of(error.step)], table)
        if len(reached) == len(error.rows):
            bad[reached[error.rows]] = True
            return bad
    _halve(plan, table, error.step, 0, bad)
    return bad


def _places_reached(before: Sequence[Stage], table: pa.Table) -> npt.NDArray[np.int64]:
    """Return the places of the rows that a step gets: filters before it have left some out."""
    places = np.arange(table.num_rows)
    if not any(stage.drops_rows for stage in before):
        return places
    for stage in before:
        if stage.drops_rows:  # asked of all its columns and one more, which tells who is left
            name = _free_name(table)
            left = stage.step.apply(table.append_column(name, pa.array(places)))
            places = left.column(name).to_numpy()
            table = left.drop_columns(name)
        else:
            table = stage.apply(table)
    return places


def _free_name(table: pa.Table) -> str:
    """Return a name that no column has."""
    return "_" * (1 + max(map(len, table.column_names)))


def _halve(plan: TransformPlan, table: pa.Table, number: int, start: int, bad: Places) -> None:
    """Mark the rows that a step refuses by themselves: few do, so few halves are tried."""
    if table.num_rows == 0 or not _is_refused(plan, table, number):
        return
    if table.num_rows == 1:
        bad[start] = True
        return
    half = table.num_rows // 2
    _halve(plan, table.slice(0, half), number, start, bad)
    _halve(plan, table.slice(half), number, start + half, bad)


def _is_refused(plan: TransformPlan, table: pa.Table, number: int) -> bool:
    """Return whether a step refuses some of the rows; what another one says of them is told in its turn.

    Raises:
        RowRefused: no row is to blame.
    """
    try:
        plan.apply(table)
    except RowRefused as error:
        if not error.is_of_rows:
            raise
        return error.step == number
    return False
