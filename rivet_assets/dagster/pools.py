"""Dagster's pools and priorities: how many steps may use one thing at once, and which of those that wait is first.

Belongs here: the names of pools, keeping a drain's pool at one, the priority of a wave. Not here: the lock that the
source itself gives, which holds for runs that Dagster does not see.

Fact (dagster 1.13.27, `instance_concurrency_context.py`): a pool without a number is no limit, unless the instance
sets `concurrency: {pools: {default_limit: …}}`. So the sensor writes the number itself, where nobody else did.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

from rivet_assets.dagster.lineage import key_part

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_assets.modes.cdc import Cdc

PRIORITY = "dagster/priority"
USUAL_WAVE = 3  # of priority 0, which steps without a word have


def priority_tags(export: Export) -> dict[str, str]:
    """Return the tags that put a step of an earlier wave before the others of its run; {} where no wave is written."""
    return {} if export.wave is None else {PRIORITY: str(USUAL_WAVE - export.wave)}


def drain_pool(source_name: str, export: Cdc) -> str:
    """Name the pool of a drain: `drain:<source>:<slot>` on PostgreSQL, else `drain:<source>:<export>`.

    Exports that share a slot share its pool.
    """
    held = export.cdc.slot if "slot" in export.cdc.model_fields_set else export.name
    return f"drain:{source_name}:{key_part(held)}"


def limit_to_one(instance: dg.DagsterInstance, pool: str) -> bool:
    """Let one step at a time into a pool whose number nobody set; True when this call set it.

    A number that a person set stays. An instance whose storage has no pools (one in memory) is left alone.
    """
    storage = instance.event_log_storage
    if not storage.supports_global_concurrency_limits:
        return False
    known = {limit.name: limit for limit in storage.get_pool_limits()}
    limit = known.get(pool)
    if limit is not None and (not limit.from_default or limit.limit == 1):
        return False
    storage.set_concurrency_slots(pool, 1)
    return True
