"""Export a whole table or query each time (`mode: full`). The window is `all`, or a value; a new run replaces it.

Belongs here: the YAML keys of the mode and what it asks the source for. Not here: how the source
cuts a table into chunks (`rivet_resources/engines/`).
"""

from __future__ import annotations

from typing import ClassVar, Literal

from rivet_assets.blocks.export import Export
from rivet_assets.modes.by_value import predicate_of, window_rows
from rivet_assets.modes.protocol import Planning, compose
from rivet_resources.commit.manifest import Manifest
from rivet_resources.contracts.extract import Extract
from rivet_resources.contracts.mode_facts import ModeFacts


class Full(Export):
    """Every row, as of one instant."""

    answers: ClassVar[ModeFacts] = ModeFacts(
        name="full", cuts=True, more_because="rows came after the export too count", fewer_because="rows were deleted"
    )

    mode: Literal["full"] = "full"

    def extract(self, planning: Planning) -> Extract:
        """Describe all rows of the window, under one snapshot where the source can give it.

        Raises:
            UnknownColumn, SourceError: there is no such window (`by_value.py`).
        """
        rows = window_rows(self, planning)
        chunks = planning.session.chunks(
            planning.relation, where=rows.where, order_by=rows.order_by, pieces=self.parallel
        )
        return compose(self, planning, window=rows.window, chunks=chunks, decisive=rows.decisive)

    def predicate(self, planning: Planning, manifest: Manifest) -> str:
        """Return which rows the window holds: all, or those of its value."""
        return predicate_of(self, planning, manifest)

    def shares(self, planning: Planning, manifest: Manifest) -> tuple[int, int]:
        """Return (0, 0): the predicate finds the window's rows, no more and no less."""
        return 0, 0

    def again(self, planning: Planning, manifest: Manifest) -> Extract:
        """Describe all rows once more."""
        return self.extract(planning)
