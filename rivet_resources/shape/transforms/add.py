"""Columns that hold one value in every row (`type: add`): written in the step, or the run's own time.

The time of the run is the instant at which the run began that read the window (`Extract.clock`): one value for all
parts of a window, also where a run goes on with what a dead one had read, or repairs some chunks alone. It is no part
of what rows are: no checksum, no row hash by `true`, no comparison and no version of a history counts it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import Any, Literal

import pyarrow as pa
from pydantic import Field, model_validator

from rivet_resources.contracts.settings import Settings
from rivet_resources.contracts.transform import RUN_CLOCK, StepPlan
from rivet_resources.contracts.types import INSTANT, NAIVE
from rivet_resources.shape.transforms.conditions import When
from rivet_resources.shape.transforms.fields import check_new, derived, with_columns, with_fields

Constant = bool | int | float | str | datetime | date


class Add(Settings):
    """New columns that hold one value in every row: constants, or when the run began (UTC)."""

    type: Literal["add", "add_field", "insert_field"]
    columns: dict[str, Constant] = Field(
        default_factory=dict, description="new column: value; or `field` and `value`, or `static_fields`"
    )
    timestamp_field: str | None = Field(None, min_length=1, description="new column: the instant the run began")
    date_field: str | None = Field(None, min_length=1, description="new column: the day the run began, in UTC")
    when: When = None

    @model_validator(mode="before")
    @classmethod
    def _other_forms(cls, given: Any) -> Any:
        if isinstance(given, dict) and ("static_fields" in given or {"field", "value"} <= given.keys()):
            given = dict(given)
            columns = {**given.get("columns", {}), **given.pop("static_fields", {})}
            if "field" in given:
                columns[given.pop("field")] = given.pop("value")
            given["columns"] = columns
        return given

    @model_validator(mode="after")
    def _some_column(self) -> Add:
        if not (self.columns or self._of_clock):
            raise ValueError("adds no column; write columns, timestamp_field or date_field")
        twice = [name for name in self._of_clock if name in self.columns or self.timestamp_field == self.date_field]
        if twice:
            raise ValueError(f"adds column {twice[0]!r} twice; choose another name for one of them")
        return self

    @property
    def _of_clock(self) -> dict[str, pa.DataType]:
        """Return the columns that hold the run's time, with their types."""
        told = ((self.timestamp_field, INSTANT), (self.date_field, pa.date32()))
        return {name: arrow for name, arrow in told if name is not None}

    @property
    def shows_clock(self) -> bool:
        """Return whether a column holds the run's time."""
        return bool(self._of_clock)

    def at(self, clock: datetime) -> AddedAt:
        """Return the step with the run's time filled in."""
        return AddedAt(**{**dict(self), "clock": clock})

    def plan(self, schema: pa.Schema) -> StepPlan:
        """Append the columns, typed by their values: text, bool, int64, double, date32, timestamp.

        Raises:
            TransformError: a column exists already.
        """
        names = [*self.columns, *self._of_clock]
        check_new(schema, names, do="choose another name, or use `compute` to replace its cells.")
        fields = [derived(name, constant(value).type, "add", nullable=False) for name, value in self.columns.items()]
        for name, arrow in self._of_clock.items():
            field = derived(name, arrow, "add", nullable=False)
            fields.append(field.with_metadata({**(field.metadata or {}), RUN_CLOCK: b"began"}))
        return with_fields(schema, fields, dict.fromkeys(names, frozenset()))

    def apply(self, table: pa.Table) -> pa.Table:
        """Append the columns to a page; without a run, as in a test of the steps, its time is that of now."""
        return self.at(datetime.now(UTC)).apply(table) if self.shows_clock else self._append(table, {})

    def _append(self, table: pa.Table, of_clock: Mapping[str, pa.Scalar]) -> pa.Table:
        cells = {name: constant(value) for name, value in self.columns.items()} | dict(of_clock)
        return with_columns(table, {name: pa.repeat(value, table.num_rows) for name, value in cells.items()})


class AddedAt(Add):
    """The same, of a run."""

    clock: datetime

    def apply(self, table: pa.Table) -> pa.Table:
        """Append the columns to a page."""
        at = self.clock.astimezone(UTC)
        told = {INSTANT: at, pa.date32(): at.date()}
        return self._append(table, {name: pa.scalar(told[arrow], arrow) for name, arrow in self._of_clock.items()})


def constant(value: Constant) -> pa.Scalar:
    """Type a YAML value: integers are 64 bits, times microseconds, an offset makes an instant."""
    if isinstance(value, datetime):
        return pa.scalar(value, INSTANT if value.tzinfo else NAIVE)
    if isinstance(value, int) and not isinstance(value, bool):
        return pa.scalar(value, pa.int64())
    return pa.scalar(value)
