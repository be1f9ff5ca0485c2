"""The check `windows_complete`: whether a scheduled export has every window between its first and the last that is due.

Belongs here: which windows are missing, as a verdict. Not here: asking again for those that failed (`retry_sensor.py`).

One question to the instance, none to source or destination. Where `skip_empty` leaves a window unpublished, its
verdicts say that it was looked at.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import dagster as dg
from dagster._utils.schedules import schedule_execution_time_iterator  # not exported; what schedules tick by

from rivet_assets.dagster.checks.check_events import COLUMNS
from rivet_assets.dagster.checks.on_demand import JUDGED, OnDemand
from rivet_assets.modes.partitions import known_keys, partitions_of
from rivet_assets.run.judge.drain_verdicts import ChangeVerdict
from rivet_assets.run.judge.quality import SPECIAL_VALUES
from rivet_resources.contracts.rows.value_windows import BESIDE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rivet_assets.blocks.export import Export

WINDOWS_COMPLETE = "windows_complete"
GRACE_SECONDS = 3600.0  # after a tick of the schedule, for the run it asks for
MOST_NAMED = 10  # ranges in one sentence
FILL = "Materialize them from the asset's page: the partitions dialog selects what is missing, in one run"


def windows_check(export: Export, key: dg.AssetKey) -> Mapping[str, OnDemand]:
    """Return the check of an export that has windows and a schedule, by name; {} for any other."""
    if export.schedule is None or partitions_of(export) is None:
        return {}

    def judged(context: dg.AssetExecutionContext) -> ChangeVerdict:
        return windows_verdict(export, key, context.instance, now=time.time())

    return {WINDOWS_COMPLETE: OnDemand("Every window from the first published to the last due is there.", judged)}


def windows_verdict(export: Export, key: dg.AssetKey, instance: dg.DagsterInstance, *, now: float) -> ChangeVerdict:
    """Judge whether windows are missing between the first that is there and the last that the schedule asked for.

    Of windows of values all should be there, also those of passed times whose value came later.
    """
    # Decision: by the partitions that Dagster holds for materialized, since those are what people see grey and fill by
    # a backfill.
    partitions = partitions_of(export)
    assert partitions is not None
    assert export.schedule is not None
    there = _there(export, key, instance)
    zone = getattr(export, "timezone", "UTC")
    ticks = schedule_execution_time_iterator(now - GRACE_SECONDS, export.schedule, zone, ascending=False)
    last_tick = datetime.fromtimestamp(next(ticks).timestamp(), UTC)
    due = known_keys(export, instance, at=last_tick)
    first = next((number for number, each in enumerate(due) if each in there), len(due))
    if not export.has_days:  # no value comes before another
        first = 0
    # A day that was missed can never be filled.
    if export.first_snapshot is not None:
        first = max(0, len(due) - 1)
    # Of two dimensions all values of the first day count.
    while 0 < first < len(due) and export.has_two_dimensions and _day(due[first - 1]) == _day(due[first]):
        first -= 1
    missing = [each for each in due[first:] if each not in there]
    text = f"{len(due) - first - len(missing)} windows are there, none is missing"
    if missing:
        with dg.partition_loading_context(dynamic_partitions_store=instance):
            ranges = partitions.subset_with_partition_keys(missing).get_partition_key_ranges(partitions)
        named = [each.start if each.start == each.end else f"{each.start} to {each.end}" for each in ranges]
        more = f" and {len(named) - MOST_NAMED} ranges more" if len(named) > MOST_NAMED else ""
        text = f"Missing windows: {len(missing)}, {', '.join(named[:MOST_NAMED])}{more}. {FILL}"
    facts = {"missing": len(missing), "windows": len(due) - first}
    return ChangeVerdict(
        WINDOWS_COMPLETE, not missing, False, len(missing), 0, 0, text, facts, "fail" if missing else "ok"
    )


def _day(key: str) -> str:
    """Return the time of a partition of two dimensions."""
    return key.rpartition(BESIDE)[0]


def _there(export: Export, key: dg.AssetKey, instance: dg.DagsterInstance) -> set[str]:
    found = set(instance.get_materialized_partitions(key))
    if export.skip_empty:
        # By the name that the check has, and the one that it had before it told of drift, too.
        checks = [dg.AssetCheckKey(key, name) for name in (COLUMNS, SPECIAL_VALUES)]
        infos = instance.event_log_storage.get_asset_check_partition_info(checks)
        found |= {info.partition_key for info in infos if info.partition_key and info.latest_execution_status in JUDGED}
    return found
