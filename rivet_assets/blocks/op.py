"""The YAML block `op:`: how Dagster runs the steps of a file's exports.

Belongs here: the keys. Not here: their use (`dagster/op_options.py`). Names are those of Dagster's own `op:` blocks;
`name` and `description` are missing, since a file has a step per export.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from rivet_resources.contracts.settings import Settings


class BackfillPolicy(Settings):
    """Into how many runs a backfill of windows is cut."""

    type: Literal["single_run", "multi_run"] = Field(
        "single_run", description="all windows in one run, or several runs"
    )
    max_partitions_per_run: int = Field(1, ge=1, description="windows per run, of multi_run")


class Op(Settings):
    """How the steps run."""

    pool: str | None = Field(
        None, pattern=r"^[A-Za-z0-9_.:/-]+$", description="Dagster's pool of each step; default: source:<name>"
    )
    tags: dict[str, Any] = Field(
        default_factory=dict, description="tags of each step, such as dagster-k8s/config, whose value is a block"
    )
    executor: Literal["in_process", "project"] = Field(
        "in_process", description="runs of exports alone: in one process, or as the project's own executor does"
    )
    backfill_policy: BackfillPolicy = Field(
        default_factory=BackfillPolicy, description="how backfills of exports with windows are cut"
    )
