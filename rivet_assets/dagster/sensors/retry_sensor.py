"""The sensor that asks again for what a schedule asked for while the source was away: one per location with schedules.

Belongs here: which failed runs are asked for again, when, and until when. Not here: what may pass by itself
(`errors.py`), retries inside a run (`retry.py`, `dagster/errors.py`), drains without a schedule
(`drain_sensor.py`).

Decisions:
* Only runs that nobody started by hand: automation, schedules, and this sensor's own.
* Only failures of the transient class, by the `rivet/exit_code` that a step's failure carries. A run whose process
  died carries none: Dagster's own run retries are for those.
* Until it is there, however long that takes; between two tries at most half an hour. A source whose `read_windows` are
  closed or whose `budget` is reached is asked again when it may be read, and not before.
* What failed is remembered in the sensor's cursor. Without it, the failures of the last day are read again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES  # not exported; a list of what is

from rivet_assets.dagster.build import step_names
from rivet_assets.dagster.checks.drain_checks import change_evaluations
from rivet_assets.dagster.checks.window_holes import windows_verdict
from rivet_assets.dagster.op_options import pool_of
from rivet_assets.dagster.pages.lineage import key_part
from rivet_assets.dagster.pages.specs import asset_spec
from rivet_assets.dagster.pools import free_ended
from rivet_assets.dagster.run_config import LIMIT
from rivet_assets.dagster.sensors.drain_sensor import MOST_WAIT_SECONDS, RUNS_SEEN, SENSOR_SECONDS
from rivet_assets.dagster.sensors.failure_sensor import WILL_RETRY
from rivet_assets.modes.partitions import keys_within, known_keys, partitions_of

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_assets.config.load import RivetConfig
    from rivet_assets.dagster.translator import SpecOf

NAME = "rivet_retries"
ASKED_AGAIN = "rivet/asked_again"  # run tag: <source>/<export>
BY_ITSELF = ("dagster/from_automation_condition", "dagster/schedule_name", ASKED_AGAIN)  # tags of such runs
RANGE_START, RANGE_END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
PARTITION = "dagster/partition"
TRANSIENT = 2
LOOK_BACK_SECONDS = 86_400.0
LOOK_SECONDS = 600.0  # between looks at which windows are there
MOST_LOOKS = 50  # in one tick, of about 40 ms each: a tick has a minute, and hundreds of exports may be due at once


@dataclass(frozen=True)
class Missing:
    """What a schedule asked for and is not there yet; times in unix seconds."""

    began: float  # of the run that failed first: what was materialized since is there
    failed_at: float
    failures: int = 1
    asked_at: float = 0.0  # 0: not since it failed
    windows: tuple[str, ...] = ()  # () for an export without any
    not_before: float = 0.0  # when the source may be read again by its limits; 0: it was away

    def due_at(self) -> float:
        """Return when to ask again: when it may be read, or after 1, 2, 4 … minutes, at most half an hour."""
        # A closed reading window says when it opens; to ask each half hour until then would only fill the list of runs.
        return self.not_before or self.failed_at + min(MOST_WAIT_SECONDS, SENSOR_SECONDS * 2.0**self.failures)


@dataclass
class RetryCursor:
    """What the sensor remembers: up to where it has read failed runs, and by `source/export` what is missing.

    Also what it last told of windows, and when it looked.
    """

    seen: float
    missing: dict[str, Missing] = field(default_factory=dict)
    told: dict[str, tuple[float, str]] = field(default_factory=dict)

    @classmethod
    def read(cls, cursor: str | None, *, now: float) -> RetryCursor:
        """Read a cursor; what cannot be read was never remembered."""
        try:
            found = json.loads(cursor or "")
            missing = {
                str(name): Missing(**{**entry, "windows": tuple(entry["windows"])})
                for name, entry in found["missing"].items()
            }
            told = {str(name): (float(at), str(text)) for name, (at, text) in found.get("told", {}).items()}
            return cls(float(found["seen"]), missing, told)
        # The cursor is decoration: rolled back, cut or lost, it costs a look at the failures of a day.
        except (ValueError, TypeError, KeyError, AttributeError):
            return cls(now - LOOK_BACK_SECONDS)

    def text(self) -> str:
        """Write the cursor."""
        missing = {name: asdict(entry) for name, entry in self.missing.items()}
        return json.dumps({"seen": self.seen, "missing": missing, "told": self.told}, sort_keys=True)


@dataclass(frozen=True)
class Scheduled:
    """One export with a schedule."""

    export: Export
    source_name: str
    keys: tuple[dg.AssetKey, ...]  # of its assets
    steps: frozenset[str]  # that make them
    pool: str = ""

    @property
    def tag(self) -> str:
        """Name it."""
        return f"{self.source_name}/{self.export.name}"


class RetrySensor(dg.SensorDefinition):
    """A sensor that knows whose exports it asks for, so that those of several files can be joined."""

    def __init__(self, scheduled: Sequence[Scheduled], suffix: str = "") -> None:
        self.scheduled, self.suffix = tuple(scheduled), suffix
        super().__init__(
            name=f"{NAME}{suffix}",
            evaluation_fn=self._tick,
            asset_selection=dg.AssetSelection.assets(*(key for each in self.scheduled for key in each.keys)),
            minimum_interval_seconds=SENSOR_SECONDS,
            default_status=dg.DefaultSensorStatus.RUNNING,
            description="Asks again for scheduled exports whose source or destination was away, until they are there.",
        )

    def joined_with(self, other: RetrySensor) -> RetrySensor:
        """Return one sensor that asks for both."""
        return RetrySensor([*self.scheduled, *other.scheduled], self.suffix)

    def _tick(self, context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return tick(self.scheduled, context, now=datetime.now(UTC).timestamp())


def retry_sensors(config: RivetConfig, *, spec_of: SpecOf | None = None, suffix: str = "") -> list[RetrySensor]:
    """Return the sensor of a configuration that has schedules.

    Args:
        spec_of: what an asset shows, when it is not `asset_spec`; as for `build_assets`.
    """
    describe = spec_of or partial(asset_spec, config=config)
    found = []
    for export in config.exports:
        if export.schedule is None:
            continue
        keys = tuple(describe(each).key for each, _ in export.relations())
        first = step_names(export, config=config, spec_of=describe)[0]
        steps = frozenset({first, *(key.to_python_identifier() for key in keys)})
        pool = pool_of(export, config=config)
        found.append(Scheduled(export, config.source_of(export)[0], keys, steps, pool))
    return [RetrySensor(found, suffix)] if found else []


def tick(scheduled: Sequence[Scheduled], context: dg.SensorEvaluationContext, *, now: float) -> dg.SensorResult:
    """Read the runs that failed since the last tick, and ask for what is due."""
    instance, memory = context.instance, RetryCursor.read(context.cursor, now=now)
    # Before anything is asked for: a run that was killed keeps its slot, and the new one would wait behind it for ever.
    free_ended(instance, {each.pool for each in scheduled})
    _read_failures(scheduled, instance, memory)
    requests: list[dg.RunRequest] = []
    reasons: list[str] = []
    runs = _Runs(instance, since=min((entry.failed_at for entry in memory.missing.values()), default=now))
    for each in scheduled:
        entry = _still(each, memory, instance, runs)
        if entry is None:
            continue
        reason = _not_now(each, entry, runs, now=now)
        if reason:
            reasons.append(f"{each.export.name}: {reason}")
            continue
        requests += _requests(each, entry, instance)
        memory.missing[each.tag] = replace(entry, asked_at=now)
    known = {each.tag for each in scheduled}
    # What is no longer in the configuration would stay in the cursor for ever.
    memory.missing = {tag: entry for tag, entry in memory.missing.items() if tag in known}
    memory.told = {tag: told for tag, told in memory.told.items() if tag in known}
    return dg.SensorResult(
        run_requests=requests,
        asset_events=[
            event
            for each in _to_look_at(scheduled, memory, now=now)
            for event in _tell_windows(each, memory, instance, now=now)
        ],
        skip_reason=None if requests else "; ".join(reasons) or "nothing is missing",
        cursor=memory.text(),
    )


def _to_look_at(scheduled: Sequence[Scheduled], memory: RetryCursor, *, now: float) -> list[Scheduled]:
    """Return exports whose windows were not looked at for a while, those that wait longest first."""
    waiting = [(memory.told.get(each.tag, (0.0, ""))[0], each) for each in scheduled]
    due = [(at, each) for at, each in waiting if now - at >= LOOK_SECONDS and partitions_of(each.export) is not None]
    return [each for _, each in sorted(due, key=lambda pair: pair[0])[:MOST_LOOKS]]


def _tell_windows(
    each: Scheduled, memory: RetryCursor, instance: dg.DagsterInstance, *, now: float
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield whether windows of an export are missing, where it is not what was told before."""
    _, told = memory.told.get(each.tag, (0.0, ""))
    verdict = windows_verdict(each.export, each.keys[0], instance, now=now)
    memory.told[each.tag] = (now, verdict.text)
    if verdict.text != told:
        yield from change_evaluations(each.keys[0], [verdict], instance=instance)


# --- what failed ---------------------------------------------------------------------------------


def _read_failures(scheduled: Sequence[Scheduled], instance: dg.DagsterInstance, memory: RetryCursor) -> None:
    since = datetime.fromtimestamp(memory.seen, UTC)
    filters = dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE], updated_after=since)
    # The oldest first: what is beyond the limit is read at the next tick.
    records = instance.get_run_records(filters, limit=RUNS_SEEN, order_by="update_timestamp", ascending=True)
    for record in records:
        memory.seen = max(memory.seen, record.update_timestamp.timestamp())
        run = record.dagster_run
        # Only what nobody started by hand: who pressed the button sees the failure, and decides.
        if not any(tag in run.tags for tag in BY_ITSELF) or run.tags.get(WILL_RETRY) == "true":
            continue
        found = _failures(run.run_id, instance)
        for each in scheduled:
            failure = next((found[step] for step in each.steps if step in found), None)
            if failure is None:
                continue
            if failure.exit_code == TRANSIENT:
                _note(each, record, memory, instance, not_before=failure.not_before)
            else:
                # It will not pass by itself: people were told.
                memory.missing.pop(each.tag, None)


@dataclass(frozen=True)
class _Failure:
    """How a step failed: the exit code that Rivet gives the error, and until when another try is in vain."""

    exit_code: int
    not_before: float


def _failures(run_id: str, instance: dg.DagsterInstance) -> dict[str, _Failure]:
    """Read how each step of a run failed."""
    records = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.STEP_FAILURE).records
    found: dict[str, _Failure] = {}
    for record in records:
        event = record.event_log_entry.dagster_event
        if event is None or event.step_key is None:
            continue
        ours = event.step_failure_data.user_failure_data
        told = ours.metadata if ours is not None else {}
        code, not_before = (getattr(told.get(f"rivet/{name}"), "value", None) for name in ("exit_code", "not_before"))
        found[event.step_key] = _Failure(1 if code is None else int(code), float(not_before or 0.0))
    return found


def _note(
    each: Scheduled, record: dg.RunRecord, memory: RetryCursor, instance: dg.DagsterInstance, *, not_before: float
) -> None:
    began = record.start_time or record.create_timestamp.timestamp()
    ended = record.end_time or record.update_timestamp.timestamp()
    windows = tuple(_windows_of(each, record.dagster_run.tags, instance))
    # Windows that the export no longer has.
    if not windows and partitions_of(each.export) is not None:
        return
    before = memory.missing.get(each.tag)
    if before is None:
        memory.missing[each.tag] = Missing(began, ended, windows=windows, not_before=not_before)
        return
    is_ours = ASKED_AGAIN in record.dagster_run.tags
    memory.missing[each.tag] = replace(
        before,
        failed_at=ended,
        failures=before.failures + is_ours,
        not_before=not_before,
        asked_at=0.0 if is_ours else before.asked_at,
        windows=tuple(dict.fromkeys((*before.windows, *windows))),
    )


def _windows_of(each: Scheduled, tags: Mapping[str, str], instance: dg.DagsterInstance) -> Iterator[str]:
    """Name the windows that a run was for."""
    definition = partitions_of(each.export)
    if definition is None:
        return
    first, last = (tags.get(tag) or tags.get(PARTITION) for tag in (RANGE_START, RANGE_END))
    keys = set(known_keys(each.export, instance))
    if first in keys and last in keys:
        with dg.partition_loading_context(dynamic_partitions_store=instance):
            yield from keys_within(definition, str(first), str(last))


# --- what is due ---------------------------------------------------------------------------------


class _Runs:
    """Runs that may be about what is missing, each list read once a tick: hundreds of exports ask for them at once."""

    def __init__(self, instance: dg.DagsterInstance, *, since: float) -> None:
        self.instance, self.since = instance, since

    @cached_property
    def unfinished(self) -> list[dg.DagsterRun]:
        """Return queued and running runs, the newest."""
        records = self.instance.get_run_records(dg.RunsFilter(statuses=NOT_FINISHED_STATUSES), limit=RUNS_SEEN)
        return [record.dagster_run for record in records]

    @cached_property
    def succeeded(self) -> list[dg.RunRecord]:
        """Return runs that went well since the first failure, the newest."""
        since = datetime.fromtimestamp(self.since, UTC)
        filters = dg.RunsFilter(statuses=[dg.DagsterRunStatus.SUCCESS], updated_after=since)
        return list(self.instance.get_run_records(filters, limit=RUNS_SEEN))


def _still(each: Scheduled, memory: RetryCursor, instance: dg.DagsterInstance, runs: _Runs) -> Missing | None:
    """Return what is still missing of an export, and forget what is there by now."""
    entry = memory.missing.get(each.tag)
    if entry is None:
        return None
    there = _there(each, entry, instance, runs)
    left = tuple(window for window in entry.windows if window not in there)
    if not left and (entry.windows or there):
        del memory.missing[each.tag]
        return None
    memory.missing[each.tag] = replace(entry, windows=left)
    return memory.missing[each.tag]


def _there(each: Scheduled, entry: Missing, instance: dg.DagsterInstance, runs: _Runs) -> set[str]:
    """Name the windows that are there since the first failed run began; `""` for a whole export.

    Those that were materialized, and those of runs that went well and had nothing to materialize.
    """
    records = instance.fetch_materializations(
        dg.AssetRecordsFilter(
            asset_key=each.keys[0],
            asset_partitions=list(entry.windows) or None,
            after_timestamp=entry.began,
        ),
        limit=max(1, 2 * len(entry.windows)),
    ).records
    there = {record.partition_key or "" for record in records}
    # Since the failure, not since the beginning: a run that went well before it says nothing of what failed later.
    since = datetime.fromtimestamp(entry.failed_at, UTC)
    trial = f"{LIMIT}.{key_part(each.export.name.replace('/', '.'))}"
    for run in (record.dagster_run for record in runs.succeeded if record.update_timestamp > since):
        # A run with a limit reads some rows and publishes none.
        if trial in run.tags:
            continue
        if run.tags.get(ASKED_AGAIN) == each.tag or each.keys[0] in (run.asset_selection or ()):
            there |= set(_windows_of(each, run.tags, instance)) if entry.windows else {""}
    return there


def _not_now(each: Scheduled, entry: Missing, runs: _Runs, *, now: float) -> str:
    """Return why nothing is asked for; '' when it is due."""
    wanted = set(each.keys)
    for run in runs.unfinished:
        if run.tags.get(ASKED_AGAIN) == each.tag or (run.asset_selection is not None and run.asset_selection & wanted):
            return f"a run is in flight: {run.run_id[:8]}"
    # A request may get lost between the sensor and the queue, so it is not waited for without end.
    if entry.asked_at and now - entry.asked_at < MOST_WAIT_SECONDS:
        return "it was asked for, and the run has not begun"
    left = entry.due_at() - now
    if entry.not_before and left > 0:
        opens = datetime.fromtimestamp(entry.not_before, UTC)
        return f"its source may not be read now; the next try is at {opens:%Y-%m-%d %H:%M} UTC"
    many = f"failed {entry.failures} times" if entry.failures > 1 else "failed"
    return f"the source or the destination was away ({many}); the next try is in {left:.0f} s" if left > 0 else ""


def _requests(each: Scheduled, entry: Missing, instance: dg.DagsterInstance) -> Iterator[dg.RunRequest]:
    """Ask for an export, or for each unbroken range of its missing windows."""
    for tags in _ranges(each.export, entry.windows, instance) if entry.windows else [{}]:
        yield dg.RunRequest(asset_selection=list(each.keys), tags={ASKED_AGAIN: each.tag, **tags})


def _ranges(export: Export, windows: Sequence[str], instance: dg.DagsterInstance) -> list[dict[str, Any]]:
    """Join windows that follow one another; the tags of a run for each range."""
    definition = partitions_of(export)
    if definition is None:
        return []
    with dg.partition_loading_context(dynamic_partitions_store=instance):
        subset = definition.subset_with_partition_keys([key for key in windows if definition.has_partition_key(key)])
        ranges = subset.get_partition_key_ranges(definition)
    return [{RANGE_START: each.start, RANGE_END: each.end} for each in ranges]
