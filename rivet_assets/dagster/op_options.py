"""What every step of an export has besides its body: resources, pool, tags, and how backfills are cut.

Belongs here: Dagster's parameters of a step. Not here: the YAML block `op:` (`blocks/op.py`), pools (`pools.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dagster as dg

from rivet_assets.dagster.around import Around
from rivet_assets.dagster.executor import OURS
from rivet_assets.dagster.pools import priority_tags, source_pool
from rivet_assets.dagster.resources import RESOURCES, project_keys
from rivet_resources.dagster.resource import RUN

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_assets.config.load import RivetConfig


def step_options(export: Export, *, config: RivetConfig, around: Around | None = None) -> dict[str, Any]:
    """Return the parameters of the step of an export or a drain, without a pool."""
    return {
        "required_resource_keys": {RUN, *project_keys(config)} | (around.resource_keys if around else set()),
        "resource_defs": RESOURCES,
        "op_tags": {**priority_tags(export), **config.op.tags, OURS: "true"},
    }


def pool_of(export: Export, *, config: RivetConfig) -> str:
    """Name the pool of an export's step: that of `op:`, else its source's."""
    return config.op.pool or source_pool(config.source_of(export)[0])


def backfill_policy(config: RivetConfig) -> dg.BackfillPolicy:
    """Return how a backfill of windows is cut into runs; one run, unless `op:` says otherwise."""
    policy = config.op.backfill_policy
    if policy.type == "single_run":
        return dg.BackfillPolicy.single_run()
    return dg.BackfillPolicy.multi_run(policy.max_partitions_per_run)
