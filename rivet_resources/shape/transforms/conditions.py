"""Keys that many steps have: `when:`, only the rows for which an SQL boolean is true are changed; and `on_error:`.

Belongs here: the keys; the plan of `when`, its choice of rows, and putting changed rows back into their places. Not
here: steps, and finding the rows that one refuses (`separate.py`).
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from rivet_resources.contracts.rows.row_errors import ROW_POLICIES, RowPolicy
from rivet_resources.contracts.transform import RowRefused, StepPlan, Transform, TransformError
from rivet_resources.shape.transforms import sql
from rivet_resources.shape.transforms.fields import whole

When = Annotated[
    str | None, Field(description="SQL boolean; only rows where it is true are changed, the others pass as they are")
]

OnError = Annotated[
    RowPolicy | None,
    Field(
        description="of rows that this step refuses: stop, skip or dead_letter; default: `on_error` of the export",
        exclude_if=lambda given: given is None,  # a key that came later leaves the fingerprints of before as they are
    ),
]


def policy_of(step: Transform, otherwise: RowPolicy) -> RowPolicy:
    """Return what becomes of the rows that a step refuses: its own word, or the export's."""
    own = getattr(step, "on_error", None)
    return own if own in ROW_POLICIES else otherwise


def when_of(step: Transform) -> str | None:
    """Return a step's condition; steps that change the set of rows or columns have none."""
    return getattr(step, "when", None)


def check_boolean(text: str, schema: pa.Schema, *, key: str) -> None:
    """Refuse an expression that is not a truth value.

    Raises:
        TransformError
    """
    [arrow] = sql.result_types([text], schema)
    if not pa.types.is_boolean(arrow):
        raise TransformError(f"`{key}` gives {arrow}; write an SQL expression that is true or false.")


def conditional(planned: StepPlan, schema: pa.Schema, when: str) -> StepPlan:
    """Widen a plan for rows that keep what they had: old cells stay, new columns are NULL there.

    Raises:
        TransformError: a column would hold two types, or the condition is no boolean.
    """
    check_boolean(when, schema, key="when")
    fields, origins = [], dict(planned.origins)
    for field in planned.schema:
        before = schema.field(field.name) if field.name in schema.names else None
        if field.name in planned.changed and before is not None:
            if before.type != field.type:
                raise TransformError(
                    f"with `when`, column {field.name!r} would be {field.type} in some rows and {before.type} in "
                    f"others; cast it first, or write the step without `when`."
                )
            origins[field.name] |= {field.name}
            field = field.with_nullable(field.nullable or before.nullable)
        elif before is None:
            field = field.with_nullable(True)
        fields.append(field)
    return StepPlan(pa.schema(fields, metadata=planned.schema.metadata), origins, planned.changed, planned.masked)


def chosen(when: str, table: pa.Table) -> pa.BooleanArray:
    """Return for each row whether the condition is true; NULL is not."""
    [truth] = sql.evaluate([when], table, [pa.bool_()])
    return pc.fill_null(truth, False) if truth.null_count else truth


def apply_where(step: Transform, table: pa.Table, planned: StepPlan) -> pa.Table:
    """Apply a step to the rows its condition chooses; a cell it could not take in another row does no harm."""
    when = when_of(step)
    assert when is not None
    truth = chosen(when, table)
    count = truth.true_count
    if count == table.num_rows:
        return step.apply(table)
    needed = {name for out in planned.changed for name in planned.origins[out]} | (
        planned.changed & set(table.column_names)
    )
    part = table.select([name for name in table.column_names if name in needed]).filter(truth)
    shaped = _apply_to_part(step, part, truth) if count else None
    columns = []
    for field in planned.schema:
        before = table.column(field.name) if field.name in table.column_names else None
        if field.name not in planned.changed and before is not None:
            columns.append(before)
        else:
            old = whole(before) if before is not None else pa.nulls(table.num_rows, field.type)
            columns.append(old if shaped is None else _scatter(old, whole(shaped.column(field.name)), truth))
    return pa.table(columns, names=planned.schema.names)


def _apply_to_part(step: Transform, part: pa.Table, truth: pa.BooleanArray) -> pa.Table:
    """Apply a step to the chosen rows; a refusal marks them among all.

    Raises:
        RowRefused
    """
    try:
        return step.apply(part)
    except RowRefused as error:
        if error.rows is not None and len(error.rows) == part.num_rows:
            among_all = truth.to_numpy(zero_copy_only=False).copy()
            among_all[among_all] = error.rows
            error.rows = among_all
        raise


def _scatter(before: pa.Array, after: pa.Array, truth: pa.BooleanArray) -> pa.Array:
    """Put the cells of `after`, in order, where `truth` is; works for every Arrow type."""
    # By places: Arrow's `replace_with_mask` knows no lists.
    mask = truth.to_numpy(zero_copy_only=False)
    places = np.arange(len(before))
    places[mask] = len(before) + np.arange(len(after))
    return pa.concat_arrays([before, after]).take(pa.array(places))
