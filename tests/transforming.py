"""Steps for the tests of transforms: read from YAML's values, planned and applied as an export does."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from rivet_resources.contracts.transform import Transform
from rivet_resources.registry import STEPS
from rivet_resources.shape.transforms import pipeline


def steps(*blocks: dict[str, Any]) -> tuple[Transform, ...]:
    """Read YAML blocks as the configuration does."""
    return tuple(STEPS[block["type"]].model_validate(block) for block in blocks)


def shaped(table: pa.Table, *blocks: dict[str, Any]) -> pa.Table:
    """Plan and apply steps; the result is valid and has exactly the planned schema."""
    plan = pipeline.plan(steps(*blocks), table.schema)
    result = plan.apply(table)
    result.validate(full=True)
    assert plan.schema.equals(result.schema, check_metadata=True)
    return result


def cells(table: pa.Table, column: str) -> list[Any]:
    """Return the cells of one column."""
    return table.column(column).to_pylist()
