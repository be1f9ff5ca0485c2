"""Tags by which runs are found: of which exports, sources and modes a run is.

Belongs here: their names, and putting them on a run. Not here: `rivet/drain` and `rivet/started_by`, which say who
asked for a run (`drain_sensor.py`, `tell_success.py`).

Decision: the step tags its own run when it begins. A queued run has none yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

from rivet_assets.dagster.pages.lineage import key_part

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_resources.contracts.source import Source

EXPORT_TAG, SOURCE_TAG, MODE_TAG = "rivet/export", "rivet/source", "rivet/mode"
PARTITION_TAG = "dagster/partition"
RANGE_TAGS = ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end")


def run_tags(export: Export, *, source_name: str, source: Source) -> dict[str, str]:
    """Return the tags of runs that make an export: `rivet/export.orders: shop`, `rivet/source.shop: postgres`, …"""
    # The step puts them on its run, so those of schedules, sensors, backfills, the command line and the buttons of the
    # UI all have them. Dagster 1.13 has no way to give them to a run that a person launches before it starts, since
    # neither tags of assets nor of ops become tags of runs. One tag per value, because a run may make several exports,
    # and Dagster filters by whole values only.
    return {
        f"{EXPORT_TAG}.{key_part(export.name.replace('/', '.'))}": source_name,
        f"{SOURCE_TAG}.{key_part(source_name)}": source.type,
        f"{MODE_TAG}.{export.mode}": "true",
    }


def tag_run(
    context: dg.AssetExecutionContext | dg.OpExecutionContext, export: Export, *, source_name: str, source: Source
) -> None:
    """Tag the run in progress; a storage that refuses is a line in the log, since a tag is no reason to fail."""
    tags = run_tags(export, source_name=source_name, source=source)
    if tags.items() <= context.run.tags.items():  # `rivet run` knows them before
        return
    try:
        context.instance.add_run_tags(context.run_id, tags)
    except Exception as error:
        context.log.warning(f"{export.name}: the run was not tagged ({type(error).__name__}).")


def partition_of(run: dg.DagsterRun) -> str:
    """Name the partition of a run, or its range, `first...last`; '' where it has none."""
    first, last = (run.tags.get(tag, "") for tag in RANGE_TAGS)
    return run.tags.get(PARTITION_TAG) or (first if first == last else f"{first}...{last}")
