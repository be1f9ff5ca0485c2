"""What every step of `transforms:` promises; each check takes a page that the step can shape, of at least two rows."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pyarrow as pa

from rivet_resources.conformance.promises import hold
from rivet_resources.contracts.transform import Transform


def plans_are_kept(step: Transform, page: pa.Table) -> None:
    """The planned names and types come out, also of a page without rows."""
    planned = step.plan(page.schema).schema
    for each in (page, page.slice(0, 0)):
        hold(step.apply(each).schema.equals(planned), "`apply` returns the columns that `plan` told, in order")


def pages_are_independent(step: Transform, page: pa.Table) -> None:
    """How rows are cut into pages changes nothing: pages are sized by memory and time."""
    cut = page.num_rows // 2
    pieces = pa.concat_tables([step.apply(page.slice(0, cut)), step.apply(page.slice(cut))])
    hold(pieces.equals(step.apply(page)), "rows are shaped alike, whatever page they come in")


def lineage_names_columns(step: Transform, page: pa.Table) -> None:
    """Every output column has its origins, and these are columns of the input."""
    plan = step.plan(page.schema)
    hold(set(plan.origins) == set(plan.schema.names), "`origins` has exactly the output columns")
    told = plan.masked.union(*plan.origins.values())
    hold(told <= set(page.schema.names), "`origins` and `masked` name input columns")
    hold(plan.changed <= set(plan.schema.names), "`changed` names output columns")


def steps_travel(step: Transform, page: pa.Table) -> None:
    """A step is plain data: workers get it by pickle, and do the same with it."""
    copy = pickle.loads(pickle.dumps(step))
    hold(copy == step and copy.apply(page).equals(step.apply(page)), "a step comes out of a pickle as it went in")


STEP_PROMISES: tuple[Callable[[Transform, pa.Table], None], ...] = (
    plans_are_kept,
    pages_are_independent,
    lineage_names_columns,
    steps_travel,
)
