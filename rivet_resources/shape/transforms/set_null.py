"""Cells that mean nothing, as NULL (`type: set_null`)."""

from __future__ import annotations

from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from rivet_resources.contracts.settings import Settings
from rivet_resources.contracts.transform import StepPlan
from rivet_resources.shape.transforms.conditions import When
from rivet_resources.shape.transforms.fields import matching, whole, with_columns, with_fields
from rivet_resources.shape.transforms.filter import Condition, Op, Operand


class SetNull(Settings):
    """Cells become NULL: all, the empty texts, those equal to a value, or those a pattern is found in."""

    type: Literal["set_null"]
    columns: tuple[str, ...] = Field(min_length=1, description="names or globs")
    always: bool = Field(False, description="every cell")
    if_empty: bool = Field(False, description="cells that are the empty text")
    equals: Operand | None = Field(None, description="cells equal to this value, cast to the column's type")
    regex: str | None = Field(None, description="cells in which this pattern is found (RE2, unanchored)")
    ignore_missing: bool = Field(False, description="pass over names that do not exist")
    when: When = None

    @model_validator(mode="after")
    def _one_test(self) -> SetNull:
        given = self.always + self.if_empty + (self.equals is not None) + (self.regex is not None)
        if given != 1:
            raise ValueError("write exactly one of always, if_empty, equals, regex")
        return self

    def plan(self, schema: pa.Schema) -> StepPlan:
        """Make the columns nullable; their types stay.

        Raises:
            TransformError: a column is missing, or the value or pattern does not fit its type.
        """
        names = matching(schema, self.columns, ignore_missing=self.ignore_missing)
        for name in names:
            condition = self._condition(name)
            if condition is not None:
                condition.check(schema, ignore_missing=False)
        return with_fields(schema, [schema.field(name).with_nullable(True) for name in names], {})

    def _condition(self, name: str) -> Condition | None:
        """Return which cells go; None: all of them."""
        if self.always:
            return None
        op: Op = "matches" if self.regex is not None else "="
        value = self.regex if self.regex is not None else "" if self.if_empty else self.equals
        return Condition(field=name, op=op, value=value)

    def apply(self, table: pa.Table) -> pa.Table:
        """Set cells of a page to NULL."""
        columns = {}
        for name in matching(table.schema, self.columns, ignore_missing=True):
            column, condition = table.column(name), self._condition(name)
            if condition is None:
                columns[name] = pa.nulls(len(column), column.type)
                continue
            gone = condition.holds(table)
            if pc.any(gone, min_count=0).as_py():
                columns[name] = _set_null(whole(column), gone)
        return with_columns(table, columns)


def _set_null(array: pa.Array, gone: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the cells that are not gone."""
    truth = gone.combine_chunks() if isinstance(gone, pa.ChunkedArray) else gone
    # pyarrow 26 has no `if_else` for extension types.
    if isinstance(array, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(array.type, _set_null(array.storage, truth))
    return pc.if_else(truth, pa.scalar(None, array.type), array)
