"""Fewer columns (`type: drop`, `type: keep`)."""

from __future__ import annotations

from typing import Any, Literal

import pyarrow as pa
from pydantic import Field, model_validator

from rivet_resources.contracts.settings import Settings
from rivet_resources.contracts.transform import StepPlan
from rivet_resources.shape.transforms.fields import matching


class Drop(Settings):
    """The named columns are absent from schema and files."""

    type: Literal["drop", "remove_field"]
    columns: tuple[str, ...] = Field(min_length=1, description="names or globs; or one name as `field`")
    ignore_missing: bool = Field(False, description="pass over names that do not exist")

    @model_validator(mode="before")
    @classmethod
    def _one_field(cls, given: Any) -> Any:
        if isinstance(given, dict) and "field" in given:
            given = dict(given)
            given["columns"] = [*given.get("columns", []), given.pop("field")]
        return given

    def plan(self, schema: pa.Schema) -> StepPlan:
        """Leave the columns out.

        Raises:
            TransformError: a name does not exist.
        """
        gone = set(matching(schema, self.columns, ignore_missing=self.ignore_missing))
        return _only(schema, [name for name in schema.names if name not in gone])

    def apply(self, table: pa.Table) -> pa.Table:
        """Return the other columns."""
        gone = set(matching(table.schema, self.columns, ignore_missing=True))
        return table.select([name for name in table.column_names if name not in gone])


class Keep(Settings):
    """Only the named columns remain, in the order they had."""

    type: Literal["keep"]
    columns: tuple[str, ...] = Field(min_length=1, description="names or globs")
    ignore_missing: bool = Field(False, description="pass over names that do not exist")

    def plan(self, schema: pa.Schema) -> StepPlan:
        """Leave all others out.

        Raises:
            TransformError: a name does not exist.
        """
        return _only(schema, matching(schema, self.columns, ignore_missing=self.ignore_missing))

    def apply(self, table: pa.Table) -> pa.Table:
        """Return the named columns."""
        return table.select(list(matching(table.schema, self.columns, ignore_missing=True)))


def _only(schema: pa.Schema, names: list[str] | tuple[str, ...]) -> StepPlan:
    """Plan a selection."""
    kept = pa.schema([schema.field(name) for name in names], metadata=schema.metadata)
    return StepPlan(kept, {name: frozenset({name}) for name in names}, frozenset())
