"""`{type: initials, column: name}`: a text becomes the first letters of its words."""

from __future__ import annotations

from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources.contracts.settings import Settings
from rivet_resources.contracts.transform import StepPlan, TransformError


class Initials(Settings):
    """Ada King Lovelace becomes AKL."""

    type: Literal["initials"] = "initials"
    column: str

    def plan(self, schema: pa.Schema) -> StepPlan:
        """Return the schema as it was, and that this column's cells are others; nothing is read yet.

        Raises:
            TransformError: there is no such column of text.
        """
        if self.column not in schema.names or not pa.types.is_string(schema.field(self.column).type):
            raise TransformError(f"column {self.column!r} is no text; there are {', '.join(schema.names)}.")
        origins = {name: frozenset({name}) for name in schema.names}
        return StepPlan(schema, origins, changed=frozenset({self.column}), masked=frozenset({self.column}))

    def apply(self, table: pa.Table) -> pa.Table:
        """Shape one page, a column at a time; NULL stays NULL."""
        place = table.column_names.index(self.column)
        shortened = pc.replace_substring_regex(table.column(place), r"(\w)\w*\s*", r"\1")
        return table.set_column(place, table.schema.field(place), shortened)
