"""Columns computed by SQL (`type: compute`)."""

from __future__ import annotations

from typing import Literal

import pyarrow as pa
from pydantic import Field

from rivet_resources.contracts.settings import Settings
from rivet_resources.contracts.transform import StepPlan
from rivet_resources.shape.transforms import sql
from rivet_resources.shape.transforms.conditions import OnError, When
from rivet_resources.shape.transforms.fields import derived, storage, with_columns, with_fields


class Compute(Settings):
    """New or replaced columns, each an SQL expression over the row as it was before this step."""

    type: Literal["compute", "compute_field"]
    columns: dict[str, str] = Field(
        min_length=1, description='column: SQL expression in DuckDB\'s dialect, such as {total: "price * quantity"}'
    )
    when: When = None
    on_error: OnError = None

    def plan(self, schema: pa.Schema) -> StepPlan:
        """Ask DuckDB for the types.

        Raises:
            TransformError: an expression is refused, reads a missing column, or does not fit the types.
        """
        types = sql.result_types(list(self.columns.values()), schema)
        fields = [derived(name, arrow, "compute") for name, arrow in zip(self.columns, types, strict=True)]
        origins = {name: frozenset(sql.used(text, schema)) for name, text in self.columns.items()}
        return with_fields(schema, fields, origins)

    def apply(self, table: pa.Table) -> pa.Table:
        """Compute the columns of a page.

        Raises:
            RowRefused: an expression fails on some row.
        """
        texts = list(self.columns.values())
        types = _types(tuple(texts), table.schema)
        return with_columns(table, dict(zip(self.columns, sql.evaluate(texts, table, types), strict=True)))


# Types by expressions and the columns they use: a chunk has many pages, and asking costs a millisecond.
_KNOWN: dict[tuple[object, ...], list[pa.DataType]] = {}


def _types(texts: tuple[str, ...], schema: pa.Schema) -> list[pa.DataType]:
    """Return the types the plan gave, asked once per process and set of column types."""
    names = [name for text in texts for name in sql.used(text, schema)]
    key = (texts, tuple((name, str(storage(schema.field(name).type))) for name in names))
    if key not in _KNOWN:
        if len(_KNOWN) > 256:
            _KNOWN.clear()
        _KNOWN[key] = sql.result_types(list(texts), schema)
    return _KNOWN[key]
