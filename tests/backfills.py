"""Runs of partitions of one export of a SQLite file, as a backfill starts them.

Belongs here: what tests of values, shards and both dimensions share. Not here: their rows, and what must come of them.
"""

from __future__ import annotations

from typing import Any

import dagster as dg

from rivet_assets.config.load import RivetConfig
from rivet_assets.definitions import definitions_of

ORDERS = dg.AssetKey(["sqlite", "orders"])
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


def launch(
    config: RivetConfig, instance: dg.DagsterInstance, first: str = "", last: str = "", more: Any = ()
) -> dg.ExecuteInProcessResult:
    """Run a range of partitions, or assets behind the export, as a backfill does; without a range, all there is."""
    definitions = dg.Definitions.merge(definitions_of(config), dg.Definitions(assets=[*more]))
    names = ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end")
    return definitions.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=instance,
        asset_selection=[each.key for each in more] or [ORDERS],
        tags=dict(zip(names, (first, last or first), strict=True)) if first else {},
        raise_on_error=False,
        run_config=QUIET,
    )
