"""Dagster's pools and priorities: how many steps may use one thing at once, and which of those that wait is first.

Belongs here: giving back what ended runs left taken, the priority of a wave. Not here: the lock that the source itself
gives, which holds for runs that Dagster does not see.

Decision: a drain has no pool. Its lease and the source's own lock let one through, and end with the process that held
them; a slot of a pool does not: Dagster keeps it for a run that was killed until somebody frees it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg
from dagster._core.storage.dagster_run import FINISHED_STATUSES  # not exported; a list of what is

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rivet_assets.blocks.export import Export

PRIORITY = "dagster/priority"
USUAL_WAVE = 3  # of priority 0, which steps without a word have


def priority_tags(export: Export) -> dict[str, str]:
    """Return the tags that put a step of an earlier wave before the others of its run; {} where no wave is written."""
    return {} if export.wave is None else {PRIORITY: str(USUAL_WAVE - export.wave)}


def source_pool(source_name: str) -> str:
    """Name the pool that caps how many exports read one database at once, in an instance that gives it a number."""
    return f"source:{source_name}"


def free_ended(instance: dg.DagsterInstance, pools: Iterable[str]) -> list[str]:
    """Free the slots of pools that runs took and did not give back when they ended, as killed ones do.

    An instance whose storage has no pools (one in memory) is left alone.

    Returns:
        the ids of those runs.
    """
    # Dagster does so itself only where `run_monitoring` is on and has `free_slots_after_run_end_seconds`.
    storage = instance.event_log_storage
    if not storage.supports_global_concurrency_limits:
        return []
    known = storage.get_concurrency_keys()
    infos = storage.get_concurrency_infos([pool for pool in dict.fromkeys(pools) if pool in known]).values()
    holders = {
        run_id
        for info in infos
        for run_id in (*(slot.run_id for slot in info.claimed_slots), *(step.run_id for step in info.pending_steps))
    }
    if not holders:
        return []
    runs = instance.get_runs(dg.RunsFilter(run_ids=list(holders)))
    alive = {run.run_id for run in runs if run.status not in FINISHED_STATUSES}
    ended = sorted(holders - alive)
    for run_id in ended:
        storage.free_concurrency_slots_for_run(run_id)
    return ended
