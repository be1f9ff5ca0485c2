"""Columns under other names (`type: rename`)."""

from __future__ import annotations

from typing import Any, Literal

import pyarrow as pa
from pydantic import Field, model_validator

from rivet_resources.contracts.settings import Settings
from rivet_resources.contracts.transform import StepPlan, TransformError
from rivet_resources.shape.transforms.fields import present


class Rename(Settings):
    """Old names become new ones, all at once, so two columns may swap; cells and places stay."""

    type: Literal["rename", "rename_field"]
    columns: dict[str, str] = Field(min_length=1, description="old name: new name; or one pair as `from` and `to`")
    ignore_missing: bool = Field(False, description="pass over names that do not exist")

    @model_validator(mode="before")
    @classmethod
    def _one_pair(cls, given: Any) -> Any:
        if isinstance(given, dict) and "from" in given and "to" in given:
            given = dict(given)
            given["columns"] = {**given.get("columns", {}), given.pop("from"): given.pop("to")}
        return given

    def plan(self, schema: pa.Schema) -> StepPlan:
        """Rename; a name that two columns would have is refused.

        Raises:
            TransformError
        """
        present(schema, list(self.columns), ignore_missing=self.ignore_missing)
        names = self._names(schema.names)
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise TransformError(f"two columns would be called {twice[0]!r}; rename or drop the other one first.")
        fields = [field.with_name(name) for field, name in zip(schema, names, strict=True)]
        origins = {new: frozenset({old}) for new, old in zip(names, schema.names, strict=True)}
        changed = frozenset(new for new, old in zip(names, schema.names, strict=True) if new != old)
        return StepPlan(pa.schema(fields, metadata=schema.metadata), origins, changed)

    def apply(self, table: pa.Table) -> pa.Table:
        """Return the same columns under their new names."""
        return table.rename_columns(self._names(table.column_names))

    def _names(self, names: list[str]) -> list[str]:
        return [self.columns.get(name, name) for name in names]
