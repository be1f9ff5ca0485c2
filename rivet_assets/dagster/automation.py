"""When an export runs by itself, and when it counts as stale: `schedule:` and `freshness:` for Dagster.

Belongs here: automation conditions, the sensor that evaluates them, freshness policies. Not here: sensors with a
trigger outside Dagster.

Decision: a condition on the asset instead of a job and a schedule per export, which cost seconds of load time for a
few hundred exports (dagster.md, section 2).
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import dagster as dg

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export

SENSOR_SECONDS = 30


def condition_of(export: Export) -> dg.AutomationCondition[Any] | None:
    """Return the condition of `schedule:`; None without one.

    Windows of time ask for the last `days_window` days, which replace themselves, else for the latest window only;
    those of values for each.
    """
    if export.schedule is None:
        return None
    zone = getattr(export, "timezone", "UTC")
    condition = dg.AutomationCondition.cron_tick_passed(export.schedule, zone) & ~dg.AutomationCondition.in_progress()
    if not export.has_days:  # one window, or one for each value: all of them
        return condition.with_label(f"schedule {export.schedule} {zone}")
    days = getattr(export, "days_window", None)
    latest = dg.AutomationCondition.in_latest_time_window(timedelta(days=days) if days else None)
    return (latest & condition).with_label(f"schedule {export.schedule} {zone}, last {days or 1} windows")


def freshness_of(export: Export) -> dg.FreshnessPolicy | None:
    """Return the policy of `freshness:`; None without one."""
    if export.freshness is None:
        return None
    warn = export.freshness.warn_after
    return dg.FreshnessPolicy.time_window(
        fail_window=timedelta(seconds=export.freshness.fail_after),
        warn_window=timedelta(seconds=warn) if warn else None,
    )


def automation_sensor() -> dg.AutomationConditionSensorDefinition:
    """Return the location's own sensor, which is on from the start; Dagster's default one waits to be switched on."""
    return dg.AutomationConditionSensorDefinition(
        "rivet_schedules",
        target=dg.AssetSelection.all(include_sources=False),
        default_status=dg.DefaultSensorStatus.RUNNING,
        minimum_interval_seconds=SENSOR_SECONDS,
        description="Runs the exports whose `schedule:` is due.",
    )
