"""All steps of an export in their order: one plan before any row is read, one walk per page.

Belongs here: composition, lineage through the steps, and the number of the step in every message. Not here: steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from rivet_resources.contracts.transform import RowRefused, StepPlan, Transform, TransformError
from rivet_resources.shape.transforms.conditions import apply_where, conditional, when_of
from rivet_resources.shape.transforms.fields import check_unique, itself


@dataclass(frozen=True)
class Stage:
    """One step with its place and its plan."""

    number: int  # from 1, as people count; 0: masks by tag
    step: Transform
    planned: StepPlan

    @property
    def drops_rows(self) -> bool:
        """Return whether fewer rows may leave it than came."""
        return bool(getattr(self.step, "drops_rows", False))

    def apply(self, table: pa.Table) -> pa.Table:
        """Shape a page and check it against the plan: Arrow would cast a difference away in silence."""
        refused = None
        try:
            shaped = (
                self.step.apply(table) if when_of(self.step) is None else apply_where(self.step, table, self.planned)
            )
        except RowRefused as error:
            refused = RowRefused(f"transforms, step {self.number} ({self.step.type}): {error}").blame(
                error.rows, column=error.column, why=error.why, step=self.number, is_of_rows=error.is_of_rows
            )
        except (pa.ArrowException, ValueError, OverflowError) as error:  # its text may show a cell
            refused = RowRefused(
                f"transforms, step {self.number} ({self.step.type}): a page of {table.num_rows} rows holds a value "
                f"this step cannot take ({type(error).__name__}). Exclude it by a filter, or clean the source."
            ).blame(
                None,
                why=f"holds a value that this step cannot take ({type(error).__name__})",
                step=self.number,
                is_of_rows=not isinstance(error, MemoryError),
            )
        if refused is not None:
            raise refused
        schema = self.planned.schema
        if shaped.schema.names != schema.names or shaped.schema.types != schema.types:
            raise TransformError(
                f"transforms, step {self.number} ({self.step.type}) made {shaped.schema.types}, planned was "
                f"{schema.types}. This is a fault of Rivet, please report it."
            )
        return pa.Table.from_arrays(shaped.columns, schema=schema)


@dataclass(frozen=True)
class TransformPlan:
    """What all steps together make of a schema.

    `origins`: output column → source columns it is made of, () for constants. `masked`: source columns some step
    masks. `leaks`: output columns that still show the plain value of a masked source column, because they were made
    from it before the mask, or because the mask has a `when`; {} is what people want.
    """

    schema: pa.Schema
    origins: Mapping[str, frozenset[str]]
    masked: frozenset[str]
    leaks: Mapping[str, frozenset[str]]
    stages: tuple[Stage, ...]

    def place_of(self, number: int) -> int:
        """Return where a step stands among `stages`, by its number as people count."""
        return number - self.stages[0].number

    def apply(self, table: pa.Table) -> pa.Table:
        """Shape one page with every step.

        Raises:
            RowRefused: values cannot be transformed; names step, column and count, never a value.
        """
        for stage in self.stages:
            table = stage.apply(table)
        return table


def plan(steps: Sequence[Transform], schema: pa.Schema) -> TransformPlan:
    """Compose the plans of all steps; costs milliseconds per SQL expression, so make it once per chunk.

    Raises:
        TransformError: a step does not fit the columns it gets; names the step.
    """
    origins, seen, masked = itself(schema), itself(schema), frozenset[str]()
    stages = []
    # Masks by tag come first, and are none of the steps that people count.
    for number, step in enumerate(steps, 0 if steps and steps[0].type == "mask_tags" else 1):
        planned = _plan_step(number, step, schema)
        masked |= _union(origins, planned.masked)
        # With a `when` some rows keep the plain value, so nothing is hidden.
        hidden = planned.masked if when_of(step) is None else frozenset[str]()
        seen = {name: _union(seen, sources - hidden) for name, sources in planned.origins.items()}
        origins = {name: _union(origins, sources) for name, sources in planned.origins.items()}
        schema = planned.schema
        stages.append(Stage(number, step, planned))
    leaks = {name: shown & masked for name, shown in seen.items() if shown & masked}
    return TransformPlan(schema, origins, masked, leaks, tuple(stages))


def apply(steps: Sequence[Transform], table: pa.Table) -> pa.Table:
    """Plan and shape one page; for many pages of one schema keep the plan and use `Plan.apply`."""
    return plan(steps, table.schema).apply(table)


def _plan_step(number: int, step: Transform, schema: pa.Schema) -> StepPlan:
    """Plan one step; its faults name it."""
    refused, when = None, when_of(step)
    try:
        check_unique(schema)
        planned = step.plan(schema)
        planned = planned if when is None else conditional(planned, schema, when)
        if not planned.schema.names:
            raise TransformError("no column is left; keep at least one.")
    except TransformError as error:
        refused = TransformError(f"transforms, step {number} ({step.type}): {error}")
    if refused is not None:
        raise refused
    return planned


def _union(origins: Mapping[str, frozenset[str]], names: frozenset[str]) -> frozenset[str]:
    """Return all source columns of some columns of the step before."""
    return frozenset().union(*(origins[name] for name in names))
