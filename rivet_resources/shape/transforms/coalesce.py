"""The first value that is there (`type: coalesce`)."""

from __future__ import annotations

from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from rivet_resources.contracts.settings import Settings
from rivet_resources.contracts.transform import StepPlan, TransformError
from rivet_resources.shape.transforms.conditions import When
from rivet_resources.shape.transforms.fields import check_new, derived, plain, present, with_columns, with_fields


class Coalesce(Settings):
    """The first of several columns that is not NULL, as a new column or in place of one of them."""

    type: Literal["coalesce"]
    columns: tuple[str, ...] = Field(min_length=2, description="columns of one type, the first present cell wins")
    into: str | None = Field(None, description="a new column, or one of them; default: the first of them")
    when: When = None

    def plan(self, schema: pa.Schema) -> StepPlan:
        """Decide the type of the column: the one that all of them have.

        Raises:
            TransformError: a column is missing, types differ, or `into` is a column not in the list.
        """
        names = present(schema, self.columns, ignore_missing=False)
        fields = [schema.field(name) for name in names]
        for field in fields[1:]:
            if field.type != fields[0].type:
                raise TransformError(
                    f"{names[0]!r} is {fields[0].type} and {field.name!r} is {field.type}; cast one of them first."
                )
        into = self.into or names[0]
        if into not in names:
            check_new(schema, [into], do="choose another `into`, or one of the columns.")
        nullable = all(field.nullable for field in fields)
        made = derived(into, fields[0].type, f"coalesce({', '.join(names)})", nullable=nullable)
        return with_fields(schema, [made], {into: frozenset(names)})

    def apply(self, table: pa.Table) -> pa.Table:
        """Choose cells of a page."""
        arrow = table.column(self.columns[0]).type
        # By their storage: pyarrow 26 has no `coalesce` for extension types.
        cells = pc.coalesce(*(plain(table.column(name)) for name in self.columns))
        if isinstance(arrow, pa.BaseExtensionType):
            cells = pa.ExtensionArray.from_storage(arrow, cells)
        return with_columns(table, {self.into or self.columns[0]: cells})
