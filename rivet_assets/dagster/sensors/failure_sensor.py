"""The sensor that tells people of runs that failed, crashed ones too: one per location with `notifications:`.

Belongs here: which failures are told, from a failed run's events to what is told. Not here: words
(`notify/messages.py`), sending (`notify/notify.py`), the messages of runs that ended well, which their own process
sends (`export_asset.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from rivet_assets.config.load import RivetConfig
from rivet_assets.dagster.build import asset_keys, step_names
from rivet_assets.dagster.tell_success import RIVET_RUN, STARTED_BY, whereabouts
from rivet_assets.dagster.translator import SpecOf
from rivet_assets.notify.messages import Ended
from rivet_assets.notify.notify import notify_all, wants

NAME = "rivet_failures"
SENSOR_SECONDS = 30
WILL_RETRY = "dagster/will_retry"
MOST_TOLD = 50  # exports of one run
SLOW_SECONDS = 5.0  # after which a tick tells of no further run
# No step of ours failed: the process or its machine is gone.
STOPPED = "RIVET_RUN_STOPPED"


@dataclass(frozen=True)
class NotifiedConfig:
    """A configuration whose people are told, and how its assets are called."""

    config: RivetConfig = field(repr=False)
    spec_of: SpecOf | None = None

    def key_of(self, export: str) -> dg.AssetKey:
        """Return the key of an export's asset; of a drain of several tables, the first."""
        return asset_keys(self.config.export(export), config=self.config, spec_of=self.spec_of)[0]

    def steps(self) -> dict[str, str]:
        """Map the steps of the exports to their names."""
        return {
            step: export.name
            for export in self.config.exports
            for step in step_names(export, config=self.config, spec_of=self.spec_of)
        }


class FailureSensor(dg.RunStatusSensorDefinition):
    """A sensor that knows whom it tells, so that those of several files can be joined."""

    def __init__(self, told: Sequence[NotifiedConfig], suffix: str = "") -> None:
        self.told, self.suffix = tuple(told), suffix
        super().__init__(
            name=f"{NAME}{suffix}",
            run_status=dg.DagsterRunStatus.FAILURE,
            run_status_sensor_fn=self._notify,
            minimum_interval_seconds=SENSOR_SECONDS,
            default_status=dg.DefaultSensorStatus.RUNNING,
            description="Tells the people of `notifications:` which exports failed, and why.",
        )

    def joined_with(self, other: FailureSensor) -> FailureSensor:
        """Return one sensor that tells for both."""
        return FailureSensor([*self.told, *other.told], self.suffix)

    def _notify(self, context: dg.RunStatusSensorContext) -> dg.SkipReason | None:
        began = time.monotonic()
        for line in tell_failure(self.told, context.dagster_run, context.instance):
            context.log.warning(line)
        # A tick is shown five runs and has a minute; beyond it Dagster forgets that any was told, and those who did
        # answer would hear of them again at each tick. What a sensor returns ends its tick, and is remembered.
        took = time.monotonic() - began
        if took <= SLOW_SECONDS:
            return None
        return dg.SkipReason(f"to tell of one run took {took:.0f} s; runs that failed since are told at the next tick")


def failure_sensors(config: RivetConfig, *, spec_of: SpecOf | None = None, suffix: str = "") -> list[FailureSensor]:
    """Return the sensor of a configuration that wants to hear of failures, or of schema changes that are refused.

    Args:
        spec_of: what an asset shows, when it is not `asset_spec`; as for `build_assets`.
    """
    wanted = wants(config, "failure", "schema_change")
    return [FailureSensor([NotifiedConfig(config, spec_of)], suffix)] if wanted else []


def tell_failure(told: Sequence[NotifiedConfig], run: dg.DagsterRun, instance: dg.DagsterInstance) -> list[str]:
    """Notify people of each export of ours that failed in a run; return lines for the log, of what could not be."""
    # A run that Dagster will try again is not told yet, and one that `rivet run` started never, since that tells by
    # itself.
    if run.tags.get(WILL_RETRY) == "true" or run.tags.get(STARTED_BY) == RIVET_RUN:
        return []
    lines: list[str] = []
    ends: list[tuple[RivetConfig, list[Ended]]] = []
    for each in told:
        found = [*_endings(each, run, instance)][:MOST_TOLD]
        ends.append((each.config, [replace(end, **asdict(whereabouts(each.key_of(end.export), run))) for end in found]))
    notify_all(ends, tell=lines.append)
    return lines


def _endings(told: NotifiedConfig, run: dg.DagsterRun, instance: dg.DagsterInstance) -> Iterator[Ended]:
    """Find what became of our exports: those whose step failed; if none did, those that the run was to make."""
    exports = told.steps()
    events = _events(run, instance, dg.DagsterEventType.STEP_FAILURE)
    failed = {exports[step]: event for step, event in events.items() if step in exports}
    took = _milliseconds(run, instance)
    for export, event in failed.items():
        code, error = _words(event.step_failure_data)
        yield _end(export, run, took, code, error)
    # Some step of the run did fail, ours or not: what has not run since is not told as gone.
    if events:
        return
    wanted = {key.to_python_identifier() for key in run.asset_selection or ()}
    done = _events(run, instance, dg.DagsterEventType.STEP_SUCCESS)
    for step, export in exports.items():
        if step in wanted and step not in done:
            text = "The run ended before the export did: its process, or the machine, is gone or was told to stop."
            yield _end(export, run, took, STOPPED, text)


def _events(run: dg.DagsterRun, instance: dg.DagsterInstance, kind: dg.DagsterEventType) -> dict[str, dg.DagsterEvent]:
    """Read a run's events of one kind, by step."""
    records = instance.get_records_for_run(run.run_id, of_type=kind).records
    events = [record.event_log_entry.dagster_event for record in records]
    return {event.step_key: event for event in events if event is not None and event.step_key is not None}


def _end(export: str, run: dg.DagsterRun, took: int, code: str, error: str) -> Ended:
    return Ended(
        export, "failed", run.run_id, datetime.now(UTC), duration_ms=took, code=code, error=error,
        schema_changed=code == "RIVET_DRIFT_REFUSED",
    )  # fmt: skip


def _words(failure: Any) -> tuple[str, str]:
    """Return code and text of a failure of ours; of any other error the class alone, as its text may hold a value."""
    ours = failure.user_failure_data
    code = str(getattr(ours.metadata.get("rivet/code"), "value", "")) if ours else ""
    if code:
        return code, str(ours.description or "")
    error = failure.error
    # Dagster wraps what a step raised; the innermost is the one that says something.
    while error is not None and error.cause is not None:
        error = error.cause
    return "", str(error.cls_name) if error is not None and error.cls_name else "an unknown error"


def _milliseconds(run: dg.DagsterRun, instance: dg.DagsterInstance) -> int:
    record = instance.get_run_record_by_id(run.run_id)
    if record is None or record.start_time is None:
        return 0
    return round(((record.end_time or time.time()) - record.start_time) * 1000)
