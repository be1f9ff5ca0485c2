"""The sensors that start drains: one per source with change capture, looking every half minute.

Belongs here: when a drain is due, what a look is told as, ticks that stay short. Not here: draining, judging a lag
(`run/judge/drain_verdicts.py`), looking (`run/log_status.py`), schedules (`automation.py`).

Decisions:
* The position is in the checkpoint and at the source. The sensor's cursor remembers what was asked and told, to keep
  quiet; losing it costs one empty drain.
* An export with `schedule:` is only watched.
* Changes that nobody drains for too long turn `lag` red, whatever kept them waiting: a run that is queued, drains that
  fail, a log that cannot be looked at (`drain_wait.py`).
* An export that cannot be looked at never keeps its neighbours from being drained: it says so, and the tick succeeds.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES  # not exported; a list of what is

from rivet_assets.dagster.checks.drain_checks import change_evaluations
from rivet_assets.dagster.drain_asset import lag_metadata as lag_numbers
from rivet_assets.dagster.op_options import pool_of
from rivet_assets.dagster.pages.specs import asset_spec
from rivet_assets.dagster.pools import free_ended
from rivet_assets.dagster.sensors.drain_sensor_cursor import DrainCursor, DrainTick
from rivet_assets.dagster.sensors.drain_wait import late_verdict, waiting
from rivet_assets.run.admit.scope import state_of
from rivet_assets.run.drain import LEASE, checkpoint_key, checkpoints_of
from rivet_assets.run.judge.drain_verdicts import ChangeVerdict, lag_verdict, slot_verdict
from rivet_assets.run.log_status import LogLook, capture_exports, look, open_for_look
from rivet_resources.contracts.read_limits import limits_of, next_opening
from rivet_resources.errors import LogBusy, RivetError
from rivet_resources.fan_out import NoAnswer, side_by_side
from rivet_resources.state.checkpoints.record import START_ANEW

if TYPE_CHECKING:
    from rivet_assets.config.load import RivetConfig
    from rivet_assets.dagster.translator import SpecOf
    from rivet_assets.modes.cdc import Cdc

DRAIN = "rivet/drain"  # run tag: <source>/<export>
SENSOR_SECONDS = 30
LOOK_SECONDS = 20.0  # a sensor has about a minute in the code server
# Drain a log without our changes this often, so that the source may forget what it kept for us.
IDLE_SECONDS = 3600.0
TELL_SECONDS = 120.0  # between observations of one kind; of another kind, at once
MOST_WAIT_SECONDS = 1800.0  # between drains that keep failing
FAILURES_COUNTED = 8
RUNS_SEEN = 200  # unfinished runs of the instance


@dataclass(frozen=True)
class Watched:
    """One export that a sensor looks after."""

    export: Cdc
    source_name: str
    source: Any
    keys: tuple[dg.AssetKey, ...]
    config: RivetConfig = field(repr=False)

    @property
    def tag(self) -> str:
        """Name its drains among the runs of an instance."""
        return f"{self.source_name}/{self.export.name}"


class DrainSensor(dg.SensorDefinition):
    """A sensor that knows what it watches, so that those of several files on one source can be joined."""

    def __init__(self, source_name: str, watched: Sequence[Watched], suffix: str = "") -> None:
        self.source_name, self.watched, self.suffix = source_name, tuple(watched), suffix
        super().__init__(
            name=f"rivet_drains_{''.join(c if c.isascii() and c.isalnum() else '_' for c in source_name)}{suffix}",
            evaluation_fn=self._tick,
            asset_selection=dg.AssetSelection.assets(*(key for each in watched for key in each.keys)),
            minimum_interval_seconds=SENSOR_SECONDS,
            default_status=dg.DefaultSensorStatus.RUNNING,
            description=f"Looks at the change log of {source_name}, tells the lag, and starts drains that are due.",
        )

    def joined_with(self, other: DrainSensor) -> DrainSensor:
        """Return one sensor that watches for both."""
        return DrainSensor(self.source_name, [*self.watched, *other.watched], self.suffix)

    def _tick(self, context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return tick(self.watched, context, now=time.time())


def drain_sensors(config: RivetConfig, *, spec_of: SpecOf | None = None, suffix: str = "") -> list[DrainSensor]:
    """Return one sensor per source that has exports with `mode: cdc`; nothing is opened before its first tick.

    Args:
        spec_of: what an asset shows, when it is not `asset_spec`; as for `build_assets`.
    """
    describe = spec_of or partial(asset_spec, config=config)
    by_source: dict[str, list[Watched]] = {}
    for export in capture_exports(config):
        name, source = config.source_of(export)
        keys = tuple(describe(export.of_table(table)).key for table in export.captured)
        watched = Watched(export, name, source, keys, config)
        by_source.setdefault(name, []).append(watched)
    return [DrainSensor(name, watched, suffix) for name, watched in by_source.items()]


# --- one tick ------------------------------------------------------------------------------------


def tick(watched: Sequence[Watched], context: dg.SensorEvaluationContext, *, now: float) -> dg.SensorResult:
    """Look at every log, tell what was seen, and ask for the drains that are due."""
    free_ended(context.instance, {pool_of(each.export, config=each.config) for each in watched})
    memory = DrainCursor.read(context.cursor)
    in_flight = _in_flight(watched, context.instance)
    # Side by side and with a limit: one source that accepts the connection and stays silent must not use up the minute
    # that all others share.
    asks = {each.tag: partial(_look, each) for each in watched}
    looks = side_by_side(asks, seconds=LOOK_SECONDS, begun_within=LOOK_SECONDS)
    requests: list[dg.RunRequest] = []
    reasons: list[str] = []
    events: list[dg.AssetObservation | dg.AssetCheckEvaluation] = []
    for each in watched:
        seen, before = looks[each.tag], memory.of(each.tag)
        reason = _not_now(each, seen, before, in_flight.get(each.tag), context.instance, now=now)
        found = waiting(each.export, seen, before, now=now)
        memory.wait(each.tag, found.reached, since=found.since)
        late = late_verdict(seen, found, why=reason, now=now) if found.is_late(now) else None
        if worth_telling(seen, before, late, now=now):
            events += _events(each, seen, late, context.instance)
            memory.tell(each.tag, _kind(seen, late), at=now)
        if reason:
            reasons.append(f"{each.export.name}: {reason}")
        elif isinstance(seen, LogLook):
            requests.append(_request(each))
            memory.ask(each.tag, _place(seen), at=now)
    for text in reasons:
        context.log.info(text)
    return dg.SensorResult(
        run_requests=requests,
        skip_reason=None if requests else "; ".join(reasons) or "nothing is watched",
        asset_events=events,
        cursor=memory.text(now),
    )


def _request(each: Watched) -> dg.RunRequest:
    # No `run_key`: a key made of a position is remembered for ever, failed runs included, and one failed drain would
    # block its position for good (dagster #15982).
    return dg.RunRequest(asset_selection=list(each.keys), tags={DRAIN: each.tag})


def _look(each: Watched) -> LogLook:
    """Open state, checkpoint and log, each for this look alone.

    Raises:
        StateError, CheckpointUnusable, LogBusy, SourceError and its kin.
    """
    # Opened for each look: a code server lives for weeks, and a connection kept idle that long is one the server has
    # lost.
    with closing(state_of(each.config)) as state:
        checkpoints = checkpoints_of(each.export, state=state, folder=each.config.folder)
        checkpoint = checkpoints.load(checkpoint_key(each.export, each.source_name))
        holder = next((held.run_id for held in state.leases(each.export.name) if held.window == LEASE), "")
        with open_for_look(each.export, each.source, deployment=state.name) as log:
            return replace(look(log, checkpoint), holder=holder)


def _not_now(
    each: Watched, seen: LogLook | Exception, before: DrainTick, run_id: str | None, instance: dg.DagsterInstance,
    *, now: float,
) -> str:  # fmt: skip
    """Return why no drain is asked for; '' when one is due."""
    if run_id is not None:
        return f"a drain is in flight: run {run_id[:8]}"
    if isinstance(seen, Exception):
        return trouble(seen)
    # A drain of `rivet run`, or of another instance, is no run of this one: the lease tells of it.
    if seen.holder:
        return f"a drain is in flight: {seen.holder}"
    windows = limits_of(each.source).windows
    at = datetime.fromtimestamp(now, UTC)  # of whole microseconds, so later than `now` at times
    if (opens := next_opening(windows, at)) > at:
        return f"its source may not be read before {opens:%Y-%m-%d %H:%M} UTC"
    # No drain can help: it would fail at once, each half minute. A person has to choose a new first copy.
    if seen.lost is not None:
        return f"position lost ({seen.lost.code}): it needs a new snapshot; {START_ANEW}"
    # Two triggers for one drain would hide which of them is late.
    if each.export.schedule is not None:
        return f"its schedule ({each.export.schedule}) starts its drains"
    waiting = _backoff(each.tag, instance, now=now)
    if waiting:
        return waiting
    idle = now - before.asked_at
    # A log without our changes is drained once in a while all the same, so that the source may forget what it kept for
    # us.
    if not seen.has_unread and idle < IDLE_SECONDS:
        return "nothing unread"
    # What is unread may be of tables that we do not capture: the drain found nothing, and would find nothing again.
    if _place(seen) == before.place and _has_succeeded(each.tag, instance) and idle < IDLE_SECONDS:
        return "nothing unread since the last drain"
    return ""


def trouble(error: Exception) -> str:
    """Return what kept us from looking; the text of an error that is not ours may hold a secret."""
    if isinstance(error, LogBusy):
        return f"another reader holds the log ({error.code}): {error}"
    if isinstance(error, RivetError):
        return f"{error.code}: {error}"
    if isinstance(error, NoAnswer):
        return f"the source is silent: {error}"
    return f"the look broke with {type(error).__name__}; run `rivet doctor` to see more"


# --- runs of the instance ------------------------------------------------------------------------


def _in_flight(watched: Sequence[Watched], instance: dg.DagsterInstance) -> dict[str, str]:
    """Map exports to a queued or running run that drains them, whoever started it."""
    filters = dg.RunsFilter(statuses=NOT_FINISHED_STATUSES)
    runs = [record.dagster_run for record in instance.get_run_records(filters, limit=RUNS_SEEN)]
    found: dict[str, str] = {}
    for run in runs:
        for each in watched:
            selected = run.asset_selection
            if run.tags.get(DRAIN) == each.tag or (selected is not None and selected & set(each.keys)):
                found.setdefault(each.tag, run.run_id)
    return found


def _backoff(tag: str, instance: dg.DagsterInstance, *, now: float) -> str:
    """Return how long to wait after drains that failed one after another; '' to go on."""
    records = instance.get_run_records(dg.RunsFilter(tags={DRAIN: tag}), limit=FAILURES_COUNTED)
    failed = 0
    for record in records:
        if record.dagster_run.status != dg.DagsterRunStatus.FAILURE:
            break
        failed += 1
    if not failed:
        return ""
    ended = records[0].end_time or records[0].update_timestamp.timestamp()
    left = ended + min(MOST_WAIT_SECONDS, SENSOR_SECONDS * 2.0**failed) - now
    if left <= 0:
        return ""
    many = f"the last {failed} drains failed" if failed > 1 else "the last drain failed"
    return f"{many} (run {records[0].dagster_run.run_id[:8]}); the next try is in {left:.0f} s"


def _has_succeeded(tag: str, instance: dg.DagsterInstance) -> bool:
    """Return whether the newest drain ended well; False where there is none, as a request may get lost."""
    runs = instance.get_runs(dg.RunsFilter(tags={DRAIN: tag}), limit=1)
    return bool(runs) and runs[0].status == dg.DagsterRunStatus.SUCCESS


# --- telling -------------------------------------------------------------------------------------


def worth_telling(
    seen: LogLook | Exception, before: DrainTick, late: ChangeVerdict | None = None, *, now: float
) -> bool:
    """Return whether to tell: there are facts, or it is late; and other ones than the last, or some time has passed."""
    has_news = late is not None or (isinstance(seen, LogLook) and bool(look_metadata(seen)))
    return has_news and (_kind(seen, late) != before.kind or now - before.told_at >= TELL_SECONDS)


def look_metadata(seen: LogLook) -> dict[str, Any]:
    """Return what a look tells as metadata: numbers as numbers, under names that stay."""
    facts: dict[str, Any] = {
        **lag_numbers(seen.lag),
        "rivet/position": seen.checkpoint.position if seen.checkpoint else None,
        "rivet/position_lost": str(seen.lost) if seen.lost else None,
    }
    facts |= {f"rivet/log_{name}": fact for name, fact in seen.lag.facts.items()}
    return {name: _plain(fact) for name, fact in facts.items() if fact is not None}


def _events(
    each: Watched, seen: LogLook | Exception, late: ChangeVerdict | None, instance: dg.DagsterInstance
) -> Iterable[dg.AssetObservation | dg.AssetCheckEvaluation]:
    verdicts = [] if late is None else [late]
    if isinstance(seen, LogLook):
        verdicts = [late or lag_verdict(seen.lag), slot_verdict(seen.lag)]
    for key in each.keys:
        if isinstance(seen, LogLook):
            yield dg.AssetObservation(key, metadata=look_metadata(seen))
        yield from change_evaluations(key, verdicts, instance=instance)


def _plain(fact: Any) -> Any:
    return fact if isinstance(fact, bool | int | float | str) else str(fact)


def _kind(seen: LogLook | Exception, late: ChangeVerdict | None) -> str:
    """Sum up what people should hear of at once: from unread to none and back, and every turn of health."""
    if isinstance(seen, Exception):
        return "blind" if late is None else "blind late"
    levels = ((late or lag_verdict(seen.lag)).level, slot_verdict(seen.lag).level)
    return " ".join(("unread" if seen.has_unread else "read", *levels, "lost" if seen.lost else "kept"))


def _place(seen: LogLook) -> str:
    """Name where we stand and where the log ends: what a drain was asked for."""
    return f"{seen.position.key if seen.position else ''}…{seen.survey.target.key}"
