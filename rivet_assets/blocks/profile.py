"""`profile:` of an export: which columns are described with each window.

Belongs here: the keys, which columns show values. Not here: counting (`rivet_resources/write/profile.py`), pictures
(`run/judge/profile_text.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from rivet_assets.blocks.export_values import ColumnsOnce
from rivet_resources.contracts.rows.profile import ProfileColumns
from rivet_resources.contracts.settings import Settings
from rivet_resources.errors import UnknownColumn
from rivet_resources.shape.transforms.pipeline import TransformPlan


class Profile(Settings):
    """What is counted of each column while rows are written: NULLs, distinct, least, largest, mean, histogram."""

    columns: ColumnsOnce = Field((), description="only these, as they are written; default: all")
    histogram: int = Field(20, ge=2, le=100, description="most bars of a histogram")

    def of(self, plan: TransformPlan) -> ProfileColumns:
        """Return what is counted; columns that are masked, or made of masked ones, show no value.

        Raises:
            UnknownColumn: a column is not among those that are written.
        """
        names = self.columns or tuple(plan.schema.names)
        for name in names:
            if name not in plan.schema.names:
                raise UnknownColumn(name, relation="The export", known=plan.schema.names, key="profile.columns")
        masked = tuple(name for name in names if plan.origins[name] & plan.masked)
        return ProfileColumns(tuple(name for name in names if name not in masked), masked, self.histogram)


def profile_alone(value: object) -> object:
    """Read `profile: true` as a block without keys, and `false` as none."""
    if isinstance(value, bool):
        return {} if value else None
    return dict(value) if isinstance(value, Mapping) else value
