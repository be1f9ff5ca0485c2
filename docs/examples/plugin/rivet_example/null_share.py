"""`measure: {type: null_share, column: email}`: which part of a window's rows has no value, from 0 to 1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from rivet_resources.contracts.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds


class NullShare(Settings):
    """The contract says between which numbers it must be."""

    type: Literal["null_share"] = "null_share"
    column: str

    def refuses(self, schema: pa.Schema) -> str:
        """Return why it cannot measure such columns; '' when it can."""
        return "" if self.column in schema.names else f"there is no column {self.column}"

    def measure(self, rows: ds.Dataset) -> float | None:
        """Return the share; None of a window without rows. Batches, so that memory stays flat."""
        nulls = counted = 0
        for batch in rows.to_batches(columns=[self.column]):
            nulls += batch.column(0).null_count
            counted += batch.num_rows
        return nulls / counted if counted else None
