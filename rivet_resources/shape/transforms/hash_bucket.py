"""A stable bucket number per row (`type: hash_bucket`)."""

from __future__ import annotations

from typing import Literal

import pyarrow as pa
from pydantic import Field

from rivet_resources.contracts.settings import Settings
from rivet_resources.contracts.transform import StepPlan
from rivet_resources.shape.transforms.conditions import When
from rivet_resources.shape.transforms.fields import check_new, derived, present, with_columns, with_fields
from rivet_resources.shape.transforms.hashing import buckets


class HashBucket(Settings):
    """A new int32 column, 0 to `buckets` - 1: XXH3-64 of the columns' canonical text, modulo `buckets`."""

    type: Literal["hash_bucket"]
    columns: tuple[str, ...] = Field(min_length=1, description="columns that decide the bucket, in this order")
    buckets: int = Field(ge=1, le=1_000_000, description="how many buckets there are")
    into: str = Field("bucket", description="name of the new column")
    when: When = None

    def plan(self, schema: pa.Schema) -> StepPlan:
        """Append the column.

        Raises:
            TransformError: a column is missing, or `into` exists.
        """
        names = present(schema, self.columns, ignore_missing=False)
        check_new(schema, [self.into], do="choose another `into`.")
        by = f"hash_bucket({', '.join(names)})"
        field = derived(self.into, pa.int32(), by, nullable=False)
        return with_fields(schema, [field], {self.into: frozenset(names)})

    def apply(self, table: pa.Table) -> pa.Table:
        """Append the numbers to a page."""
        columns = [table.column(name) for name in self.columns]
        return with_columns(table, {self.into: buckets(columns, self.buckets)})
