"""When an export runs by itself, and when it counts as stale: `schedule:` and `freshness:` for Dagster.

Belongs here: automation conditions, the sensor that evaluates them, freshness policies. Not here: sensors with a
trigger outside Dagster.
"""

from __future__ import annotations

from collections.abc import Iterable
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
    # Decision: a condition on the asset instead of a job and a schedule per export, which cost seconds of load time for
    # a few hundred exports (dagster.md, section 2).
    if export.schedule is None:
        return None
    zone = getattr(export, "timezone", "UTC")
    # Not while it runs: a run that takes longer than its schedule would be asked for on top of itself.
    condition = dg.AutomationCondition.cron_tick_passed(export.schedule, zone) & ~dg.AutomationCondition.in_progress()
    # One window, or one for each value: all of them.
    if not export.has_days:
        return condition.with_label(f"schedule {export.schedule} {zone}")
    days = getattr(export, "days_window", None)
    latest = dg.AutomationCondition.in_latest_time_window(timedelta(days=days) if days else None)
    told = f"the windows of the last {days} days" if days else "the latest window"
    return (latest & condition).with_label(f"schedule {export.schedule} {zone}, {told}")


def freshness_of(export: Export) -> dg.FreshnessPolicy | None:
    """Return the policy of `freshness:`; None without one."""
    if export.freshness is None:
        return None
    warn = export.freshness.warn_after
    return dg.FreshnessPolicy.time_window(
        fail_window=timedelta(seconds=export.freshness.fail_after),
        warn_window=timedelta(seconds=warn) if warn else None,
    )


class ScheduleSensor(dg.AutomationConditionSensorDefinition):
    """The sensor of these assets' conditions, on from the start; Dagster's default one waits to be switched on."""

    def __init__(self, keys: Iterable[dg.AssetKey] | None, suffix: str = "") -> None:
        self.keys = None if keys is None else tuple(keys)
        self.suffix = suffix
        every = dg.AssetSelection.all(include_sources=False)
        super().__init__(
            f"rivet_schedules{suffix}",
            target=every if self.keys is None else dg.AssetSelection.assets(*self.keys).without_checks(),
            # Dagster's own starts stopped, and a schedule in YAML that does nothing until a click is a trap.
            default_status=dg.DefaultSensorStatus.RUNNING,
            minimum_interval_seconds=SENSOR_SECONDS,
            description="Runs the exports whose `schedule:` is due.",
        )

    def joined_with(self, other: ScheduleSensor) -> ScheduleSensor:
        """Return one sensor for the assets of both; of all, where one of them is for all."""
        keys = None if self.keys is None or other.keys is None else [*self.keys, *other.keys]
        return ScheduleSensor(keys, self.suffix)


def automation_sensor() -> ScheduleSensor:
    """Return the sensor of every asset of the location."""
    return ScheduleSensor(None)
