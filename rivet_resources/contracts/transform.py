"""What every step offers: it says what it makes of a schema, then does it to a page.

Structural, so a step is one file and one line in `registry.py`. A step is its YAML block: frozen, plain data,
pickled by reference. Belongs here: the seam and its two errors. Not here: composition (`transforms/pipeline.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, runtime_checkable

import pyarrow as pa

from rivet_resources.contracts.rows.row_errors import Places
from rivet_resources.errors import RivetError


@dataclass(frozen=True)
class StepPlan:
    """What one step makes of a schema, known before any row is read.

    `origins`: output column → input columns it is made of. `changed`: output columns whose cells are not those of
    the input column of the same name. `masked`: input columns whose plain value this step destroys.
    """

    schema: pa.Schema
    origins: Mapping[str, frozenset[str]]
    changed: frozenset[str]
    masked: frozenset[str] = frozenset()


class Transform(Protocol):
    """One entry of `transforms:`."""

    @property
    def type(self) -> str:
        """Name the step, as in YAML."""

    def plan(self, schema: pa.Schema) -> StepPlan:
        """Derive the output schema.

        Raises:
            TransformError: a column is missing, collides, or has a type this step cannot take.
        """

    def apply(self, table: pa.Table) -> pa.Table:
        """Shape one page, whose schema was planned; the result has the planned names and types, in order.

        Raises:
            RowRefused: cells cannot be transformed.
        """


# Marks a field whose cells hold the run's own time: it differs from run to run while the rows do not.
RUN_CLOCK = b"rivet.run_clock"


@runtime_checkable
class ClockStep(Protocol):
    """A step that may write down the run's time."""

    @property
    def shows_clock(self) -> bool:
        """Return whether it does."""

    def at(self, clock: datetime) -> Transform:
        """Return the step with the time filled in."""


def shows_clock(steps: Sequence[Transform]) -> bool:
    """Return whether rows that these steps make hold the run's time."""
    return any(isinstance(step, ClockStep) and step.shows_clock for step in steps)


def at_clock(steps: Sequence[Transform], clock: datetime) -> tuple[Transform, ...]:
    """Return the steps with the run's time filled in."""
    return tuple(step.at(clock) if isinstance(step, ClockStep) and step.shows_clock else step for step in steps)


def run_clock_columns(schema: pa.Schema) -> frozenset[str]:
    """Name the columns that hold the run's time."""
    return frozenset(field.name for field in schema if RUN_CLOCK in (field.metadata or {}))


class TransformError(RivetError):
    """A step does not fit the columns it gets; known before any row is read."""

    code = "RIVET_TRANSFORM_REFUSED"


class RowRefused(RivetError):
    """Values of a page cannot be transformed; the message counts them and never shows one.

    `rows` marks the rows at fault among those the step got, None where they are not known; `why` is the reason for one
    of them. `is_of_rows` is False where the fault may be another's, such as a want of memory: then no row is to blame.
    `step` is the number of the step, 0 before the pipeline has told it.
    """

    code = "RIVET_TRANSFORM_ROW"
    exit_code = 3
    rows: Places | None = None
    column = ""
    why = ""
    step = 0
    is_of_rows = True

    def blame(
        self, rows: Places | None, *, column: str = "", why: str = "", step: int = 0, is_of_rows: bool = True
    ) -> RowRefused:
        """Return itself, with the rows at fault."""
        self.rows, self.column, self.why, self.step, self.is_of_rows = rows, column, why, step, is_of_rows
        return self
