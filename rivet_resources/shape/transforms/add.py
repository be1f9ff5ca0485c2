"""Constant columns (`type: add`)."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any, Literal

import pyarrow as pa
from pydantic import Field, model_validator

from rivet_resources.contracts.settings import Settings
from rivet_resources.contracts.transform import StepPlan
from rivet_resources.contracts.types import INSTANT, NAIVE
from rivet_resources.shape.transforms.conditions import When
from rivet_resources.shape.transforms.fields import check_new, derived, with_columns, with_fields

Constant = bool | int | float | str | datetime | date


class Add(Settings):
    """New columns that hold one value in every row."""

    type: Literal["add", "add_field", "insert_field"]
    columns: dict[str, Constant] = Field(
        min_length=1, description="new column: value; or `field` and `value`, or `static_fields`"
    )
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

    def plan(self, schema: pa.Schema) -> StepPlan:
        """Append the columns, typed by their values: text, bool, int64, double, date32, timestamp.

        Raises:
            TransformError: a column exists already.
        """
        check_new(schema, self.columns, do="choose another name, or use `compute` to replace its cells.")
        fields = [derived(name, constant(value).type, "add", nullable=False) for name, value in self.columns.items()]
        return with_fields(schema, fields, dict.fromkeys(self.columns, frozenset()))

    def apply(self, table: pa.Table) -> pa.Table:
        """Append the columns to a page."""
        return with_columns(
            table, {name: pa.repeat(constant(value), table.num_rows) for name, value in self.columns.items()}
        )


def constant(value: Constant) -> pa.Scalar:
    """Type a YAML value: integers are 64 bits, times microseconds, an offset makes an instant."""
    if isinstance(value, datetime):
        return pa.scalar(value, INSTANT if value.tzinfo else NAIVE)
    if isinstance(value, int) and not isinstance(value, bool):
        return pa.scalar(value, pa.int64())
    return pa.scalar(value)
