"""Steps for the tests of transforms: read from YAML's values, planned and applied as an export does."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pydantic import TypeAdapter

from rivet_resources.contracts.transform import Transform
from rivet_resources.shape.transforms import pipeline
from rivet_resources.shape.transforms.union import Step

READ: TypeAdapter[Any] = TypeAdapter(Step)


def steps(*blocks: dict[str, Any]) -> tuple[Transform, ...]:
    """Read YAML blocks as the configuration does."""
    return tuple(READ.validate_python(block) for block in blocks)


def shaped(table: pa.Table, *blocks: dict[str, Any]) -> pa.Table:
    """Plan and apply steps; the result is valid and has exactly the planned schema."""
    plan = pipeline.plan(steps(*blocks), table.schema)
    result = plan.apply(table)
    result.validate(full=True)
    assert plan.schema.equals(result.schema, check_metadata=True)
    return result


def cells(table: pa.Table, column: str) -> list[Any]:
    """Give the cells of one column."""
    return table.column(column).to_pylist()
