"""When a drain is asked for, what a look tells, and what a tick survives."""

import dataclasses
import json
from contextlib import closing
from pathlib import Path

import dagster as dg
import pytest

from rivet_assets.config.load import load_text
from rivet_assets.dagster.build import build_assets
from rivet_assets.dagster.checks.drain_checks import change_check_specs
from rivet_assets.dagster.location import joined
from rivet_assets.dagster.sensors import drain_sensor as sensors
from rivet_assets.dagster.sensors.drain_sensor import (
    DRAIN,
    FAILURES_COUNTED,
    IDLE_SECONDS,
    MOST_WAIT_SECONDS,
    TELL_SECONDS,
    drain_sensors,
    tick,
)
from rivet_assets.dagster.sensors.drain_sensor_cursor import DrainCursor
from rivet_assets.dagster.sensors.drain_wait import LATE_SECONDS
from rivet_assets.run.admit.scope import state_of
from rivet_assets.run.drain import LEASE
from rivet_assets.run.log_status import read_position
from rivet_resources.contracts.read_limits import ReadWindow
from rivet_resources.errors import LogBusy, SourceUnreachable
from rivet_resources.state.checkpoints.stores import Checkpoint, state_checkpoints
from tests.fake_logs import IDENTITY, FakeLog, FakeSource, Gate, place, settle

CONFIG = """
sources:
  shop: {type: postgres, url_env: NOWHERE, environment: local}
spark: inline
exports:
  - {name: changes, table: orders, mode: cdc, format: parquet, destination: {type: local, path: LAKE}}
"""
SECOND = """  - name: more
    tables: [lines, public.items]
    mode: cdc
    cdc: {slot: other}
    format: parquet
    destination: {type: local, path: LAKE}
"""
NOW = 1_800_000_000.0
ORDERS = dg.AssetKey(["shop", "changes"])


class Bench:
    """A configuration whose source is a fake, an instance, and the ticks of its one sensor."""

    def __init__(self, folder: Path, instance: dg.DagsterInstance, text: str = CONFIG) -> None:
        self.config = load_text(text.replace("LAKE", str(folder / "lake")), file=folder / "rivet.yaml")
        self.source = FakeSource({export.name: FakeLog() for export in self.config.exports})
        self.instance = instance
        self.cursor: str | None = None
        (self.sensor,) = drain_sensors(self.config)
        self.watched = [dataclasses.replace(each, source=self.source) for each in self.sensor.watched]

    @property
    def log(self) -> FakeLog:
        return self.source.logs["changes"]

    def drained(self, number: int, *, export: str = "changes", state: str = "draining") -> None:
        """Save a checkpoint as a drain does."""
        with closing(state_of(self.config)) as store:
            checkpoints, key = state_checkpoints(store), f"shop.{export}"
            _, generation = checkpoints.take(key)
            at = place(number)
            checkpoints.save(
                Checkpoint(
                    key=key,
                    source_type="postgres",
                    position_type=at.type,
                    position=at.text,
                    sort_key=at.key,
                    metadata={"state": state},
                    generation=generation,
                    source_identity=IDENTITY,
                )
            )

    def tick(self, at: float = NOW) -> dg.SensorResult:
        """Evaluate once, and keep what the daemon would."""
        context = dg.build_sensor_context(instance=self.instance, cursor=self.cursor)
        result = tick(self.watched, context, now=at)
        for event in result.asset_events:
            self.instance.report_runless_asset_event(event)
        self.cursor = result.cursor
        return result

    def run(
        self, status: dg.DagsterRunStatus, *, tag: str = "shop/changes", keys: set[dg.AssetKey] | None = None
    ) -> str:
        """Store a run as the daemon would have left it."""
        run = dg.DagsterRun(
            job_name="__ASSET_JOB", tags={DRAIN: tag} if tag else {}, status=status,
            asset_selection=frozenset(keys) if keys else None,
        )  # fmt: skip
        self.instance.add_run(run)
        return run.run_id


@pytest.fixture
def instance():
    """An instance in memory."""
    with dg.DagsterInstance.ephemeral() as made:
        yield made


@pytest.fixture
def bench(tmp_path, instance):
    """One export, never drained, 100 bytes of log."""
    return Bench(tmp_path, instance)


def skipped(result: dg.SensorResult) -> str:
    """Return the reason of a tick that asked for nothing."""
    assert [] == list(result.run_requests)
    return result.skip_reason.skip_message


# --- when a drain is due -------------------------------------------------------------------------


def test_export_that_was_never_drained_is_asked_for(bench):
    """The first drain makes the slot; nothing else would start it."""
    (request,) = bench.tick().run_requests

    assert ([ORDERS], "shop/changes", None) == (request.asset_selection, request.tags[DRAIN], request.run_key)


def test_drain_is_due_when_the_log_is_ahead_of_the_checkpoint(bench):
    """And not when it is not; a second later nothing was lost by waiting."""
    bench.drained(100)
    bench.tick()  # a sensor without memory asks once
    assert "changes: nothing unread" == skipped(bench.tick(NOW + 30))

    bench.log.end = 120

    assert 1 == len(bench.tick(NOW + 60).run_requests)


def test_first_run_that_died_is_asked_for_again(bench):
    """A checkpoint that says `copying` holds no committed position."""
    bench.drained(100, state="copying")
    bench.tick()
    bench.run(dg.DagsterRunStatus.CANCELED)

    assert 1 == len(bench.tick(NOW + 30).run_requests)


def test_quiet_log_is_drained_once_an_hour(bench):
    """So that the source may forget what it kept for us."""
    bench.drained(100)
    bench.tick()

    skipped(bench.tick(NOW + IDLE_SECONDS - 1))

    assert 1 == len(bench.tick(NOW + IDLE_SECONDS).run_requests)


def test_log_that_a_drain_cannot_finish_is_not_asked_for_at_every_tick(bench):
    """MariaDB's position may stay some bytes below the end although everything was read (`cdc.md`, 5.2)."""
    bench.drained(90)
    assert 1 == len(bench.tick().run_requests)
    assert 1 == len(bench.tick().run_requests)  # a request that got lost
    bench.run(dg.DagsterRunStatus.SUCCESS)

    assert "changes: nothing unread since the last drain" == skipped(bench.tick(NOW + 30))

    bench.drained(95)
    assert 1 == len(bench.tick(NOW + 60).run_requests)


@pytest.mark.parametrize(
    "status", [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.NOT_STARTED]
)
def test_drain_in_flight_is_waited_for(bench, status):
    """The reason names the run."""
    run_id = bench.run(status)

    assert f"changes: a drain is in flight: run {run_id[:8]}" == skipped(bench.tick())


def test_run_that_a_person_started_is_in_flight_too(bench):
    """It has no tag of ours, but it drains the same asset; one of other assets is nobody's drain."""
    other = bench.run(dg.DagsterRunStatus.STARTED, tag="", keys={dg.AssetKey("else")})
    assert 1 == len(bench.tick().run_requests)

    mine = bench.run(dg.DagsterRunStatus.STARTED, tag="", keys={ORDERS, dg.AssetKey("else")})

    assert other != mine
    assert mine[:8] in skipped(bench.tick(NOW + 30))


def test_drain_of_another_instance_is_seen_by_its_lease(bench):
    """`rivet run` without DAGSTER_HOME leaves no run in this instance."""
    with closing(state_of(bench.config)) as state, state.lease("changes", LEASE, "r1"):
        assert "changes: a drain is in flight: r1" == skipped(bench.tick())

    assert 1 == len(bench.tick(NOW + 30).run_requests)


def test_failing_drains_are_tried_at_growing_distance(bench):
    """A drain that fails each time must not fill the run list."""
    bench.tick()
    waits = []
    for _ in range(FAILURES_COUNTED):
        run_id = bench.run(dg.DagsterRunStatus.FAILURE)
        ended = bench.instance.get_run_records(dg.RunsFilter(run_ids=[run_id]))[0].update_timestamp.timestamp()
        waits.append(next(wait for wait in (60, 120, 240, 480, 960, 1800) if bench.tick(ended + wait).run_requests))
        assert "the next try is in 1 s" in skipped(bench.tick(ended + waits[-1] - 1))

    assert [60, 120, 240, 480, 960, 1800, 1800, 1800] == waits
    assert MOST_WAIT_SECONDS == waits[-1]


def test_drain_that_worked_ends_the_waiting(bench):
    """Only failures in a row count."""
    bench.drained(90)
    bench.run(dg.DagsterRunStatus.FAILURE)
    bench.run(dg.DagsterRunStatus.SUCCESS)

    assert 1 == len(bench.tick().run_requests)


def test_export_with_a_schedule_is_only_watched(tmp_path, instance):
    """One trigger per drain; the lag is told all the same."""
    bench = Bench(tmp_path, instance, CONFIG.replace("mode: cdc", 'mode: cdc, schedule: "0 * * * *"'))
    bench.drained(50)

    result = bench.tick()

    assert "changes: its schedule (0 * * * *) starts its drains" == skipped(result)
    assert any(isinstance(event, dg.AssetObservation) for event in result.asset_events)


# --- what a tick survives ------------------------------------------------------------------------


def test_lost_position_asks_for_a_snapshot_and_for_no_drain(bench):
    """It would fail at each tick; what helps is told."""
    bench.drained(50)
    bench.log.oldest = 60

    reason = skipped(bench.tick())

    assert "RIVET_LOG_POSITION_LOST" in reason
    assert "needs a new snapshot" in reason
    assert "rivet state reset" in reason


def test_no_drain_is_asked_for_while_the_source_may_not_be_read(bench):
    """It would be refused; the reason says until when."""
    object.__setattr__(bench.source, "read_windows", (ReadWindow(start="10:00", end="11:00"),))

    before, after = bench.tick(), bench.tick(NOW + 7200)  # 08:00 and 10:00

    assert not before.run_requests
    assert "its source may not be read before 2027-01-15 10:00 UTC" in str(before.skip_reason)
    assert 1 == len(after.run_requests)


def test_no_part_of_a_microsecond_closes_a_source(bench):
    """A clock tells parts of a microsecond, and a datetime rounds them, up as often as down."""
    assert 1 == len(bench.tick(NOW + 7e-7).run_requests)


def test_one_export_in_trouble_leaves_the_others(tmp_path, instance):
    """The tick succeeds; the reason of the other one is in the log of the sensor."""
    bench = Bench(tmp_path, instance, CONFIG + SECOND)
    bench.source.logs["changes"].fault = SourceUnreachable("No server at db:5432.")

    (request,) = bench.tick().run_requests

    keys = [dg.AssetKey(["shop", "more", "lines"]), dg.AssetKey(["shop", "more", "items"])]
    assert ("shop/more", keys) == (request.tags[DRAIN], request.asset_selection)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (SourceUnreachable("No server at db:5432."), "changes: RIVET_SOURCE_UNREACHABLE: No server at db:5432."),
        (
            LogBusy("Slot s is read by 17."),
            "changes: another reader holds the log (RIVET_LOG_BUSY): Slot s is read by 17.",
        ),
        (ValueError("password=hunter2"), "changes: the look broke with ValueError; run `rivet doctor` to see more"),
    ],
)
def test_reason_names_what_kept_us_from_looking(bench, error, expected):
    """The text of an error that is not ours is not shown: it may hold a secret."""
    bench.source.refusal = error

    assert expected == skipped(bench.tick())


def test_damaged_checkpoint_is_told_and_never_drained(bench):
    """Nothing starts from now because a record cannot be read."""
    bench.drained(50)
    with (
        closing(state_of(bench.config)) as state,
        state._database.write() as connection,
    ):
        connection.exec_driver_sql("UPDATE checkpoint SET position = '0/FF'")

    assert "RIVET_CHECKPOINT_UNUSABLE" in skipped(bench.tick())


def test_silent_source_does_not_hold_the_tick(bench, monkeypatch):
    """Nor do its ticks pile up threads: the second one does not ask again while the first hangs."""
    monkeypatch.setattr(sensors, "LOOK_SECONDS", 0.05)
    gate = bench.source.wait = Gate()

    first, second = skipped(bench.tick()), skipped(bench.tick(NOW + 30))
    gate.open()
    settle()

    assert "changes: the source is silent: no answer in 0.05 s" == first
    assert "has still not answered" in second
    assert 1 == len(bench.source.paces)


def test_looks_are_hasty(bench):
    """No retries and short statements: a tick has a minute for everything."""
    bench.tick()

    assert [(0, 10)] == [(pace.max_retries, pace.statement_timeout_s) for pace in bench.source.paces]


@pytest.mark.parametrize("cursor", [None, "", "{", "[]", '{"shop/changes": 3}', '{"shop/changes": {"other": 1}}'])
def test_cursor_is_decoration(bench, cursor):
    """Whatever stands there, a drain that is due is asked for."""
    bench.cursor = cursor

    assert 1 == len(bench.tick().run_requests)


def test_cursor_forgets_exports_that_are_gone():
    """It does not grow for ever."""
    memory = DrainCursor()
    memory.ask("old", "a…b", at=NOW - 31 * 86_400)
    memory.ask("new", "a…b", at=NOW)

    assert ["new"] == list(json.loads(memory.text(NOW)))


# --- what is told --------------------------------------------------------------------------------


def observed(result: dg.SensorResult) -> list[dict]:
    """Return the metadata of the observations of a tick."""
    events = [event for event in result.asset_events if isinstance(event, dg.AssetObservation)]
    return [{name: fact.value for name, fact in event.metadata.items()} for event in events]


def test_observation_has_the_lag_as_numbers(bench):
    """Numbers are plotted; health is text; what the engine does not know is left out."""
    bench.drained(90)
    bench.log.held, bench.log.budget, bench.log.facts = 4096, 0.25, {"wal_status": "reserved", "spilled": 3}

    (told,) = observed(bench.tick())

    assert told == {
        "rivet/lag_bytes": 10, "rivet/lag_seconds": 10.0, "rivet/held_bytes": 4096, "rivet/lag_budget": 0.25,
        "rivet/position": "0/5A", "rivet/log_wal_status": "reserved", "rivet/log_spilled": 3,
    }  # fmt: skip


def test_look_without_facts_is_not_told(bench):
    """Before the first drain there may be no slot, and so no number."""
    assert [] == observed(bench.tick())


def test_every_table_of_a_drain_is_told_of(tmp_path, instance):
    """They share the log, so they share its lag."""
    bench = Bench(tmp_path, instance, CONFIG + SECOND)
    for log in bench.source.logs.values():
        log.held = 7

    events = bench.tick().asset_events

    told = {event.asset_key.path[-1] for event in events if isinstance(event, dg.AssetObservation)}
    assert {"changes", "lines", "items"} == told


def test_observations_come_with_news_and_else_now_and_then(bench):
    """At two a minute they would fill the event log."""
    bench.drained(90)
    told = [bool(observed(bench.tick(NOW + seconds))) for seconds in (0, 30, TELL_SECONDS - 1, TELL_SECONDS)]
    assert [True, False, False, True] == told

    bench.log.budget = 0.6
    assert observed(bench.tick(NOW + TELL_SECONDS + 30))

    bench.drained(100)
    assert observed(bench.tick(NOW + TELL_SECONDS + 60))


def test_checks_turn_red_without_a_drain(bench):
    """A drain that never comes cannot say that it is late."""
    bench.instance.report_runless_asset_event(dg.AssetMaterialization(ORDERS))
    bench.drained(10)
    bench.log.budget, bench.log.facts = 0.9, {"wal_status": "unreserved"}

    bench.tick()

    keys = [dg.AssetCheckKey(ORDERS, name) for name in ("lag", "slot_budget")]
    stored = bench.instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
    assert ["FAILED", "FAILED"] == [stored[key].status.name for key in keys]


# --- definitions ---------------------------------------------------------------------------------


def lag_light(bench: Bench) -> tuple[str, str]:
    """Return the colour of `lag` and what it says; blanks without a verdict."""
    key = dg.AssetCheckKey(ORDERS, "lag")
    record = bench.instance.event_log_storage.get_latest_asset_check_execution_by_key([key]).get(key)
    return (record.status.value, record.evaluation.description) if record is not None else ("", "")


def test_lag_turns_red_when_a_queued_drain_does_not_begin(bench):
    """A queued run fails nobody; a source without a limit has no budget to use up."""
    bench.drained(40)
    bench.tick()
    run_id = bench.run(dg.DagsterRunStatus.NOT_STARTED)
    bench.tick(NOW + LATE_SECONDS - 1)
    assert "SUCCEEDED" == lag_light(bench)[0]

    bench.tick(NOW + LATE_SECONDS)

    colour, text = lag_light(bench)
    assert "FAILED" == colour
    assert "nobody has drained for 15 min" in text
    assert run_id[:8] in text


def test_lag_is_green_again_when_a_drain_moved_on(bench):
    """Any step forward counts, though some is still unread."""
    bench.drained(40)
    bench.tick()
    bench.tick(NOW + LATE_SECONDS)

    bench.drained(60)
    bench.tick(NOW + LATE_SECONDS + 30)

    assert "SUCCEEDED" == lag_light(bench)[0]


def test_lag_stays_green_while_somebody_drains(bench):
    """A first copy of hours moves no position; its lease says that it lives."""
    bench.drained(40)
    bench.tick()
    with closing(state_of(bench.config)) as store, store.lease("changes", LEASE, "somebody"):
        bench.tick(NOW + 2 * LATE_SECONDS)

        assert "SUCCEEDED" == lag_light(bench)[0]


def test_lag_turns_red_when_nobody_can_look(bench):
    """The source is away: what waits there is unknown, and that nobody drains is not."""
    bench.drained(100)
    bench.tick()
    bench.log.fault = SourceUnreachable("Cannot connect to shop.")
    bench.tick(NOW + 30)

    bench.tick(NOW + 30 + LATE_SECONDS)

    colour, text = lag_light(bench)
    assert "FAILED" == colour
    assert "Cannot connect to shop." in text


@pytest.mark.parametrize(
    ("block", "seconds"),
    [('schedule: "30 * * * *"', 1800 + LATE_SECONDS), ("freshness: {fail_after: 5h}", 5 * 3600)],
)
def test_limit_of_the_wait_is_that_of_the_export(tmp_path, instance, block, seconds):
    """What is drained once an hour waits up to an hour, and then some."""
    bench = Bench(tmp_path, instance, CONFIG.replace("mode: cdc", f"mode: cdc, {block}"))
    bench.drained(40)
    bench.tick()
    bench.tick(NOW + seconds - 1)
    assert "SUCCEEDED" == lag_light(bench)[0]

    bench.tick(NOW + seconds)

    assert "FAILED" == lag_light(bench)[0]


def test_sensor_is_running_from_the_start(bench):
    """Nobody has to switch it on, and it looks every half minute."""
    sensor = bench.sensor

    assert ("rivet_drains_shop", dg.DefaultSensorStatus.RUNNING, 30) == (
        sensor.name, sensor.default_status, sensor.minimum_interval_seconds
    )  # fmt: skip


def test_config_without_changes_has_no_sensor(tmp_path):
    """Nothing ticks for nothing."""
    text = CONFIG.replace("mode: cdc, ", "").replace("LAKE", str(tmp_path))

    assert [] == drain_sensors(load_text(text, file=tmp_path / "rivet.yaml"))


def test_files_on_one_source_share_a_sensor(tmp_path, instance):
    """Two sensors of one name would not load; others pass unchanged."""
    one = Bench(tmp_path, instance).sensor
    two = Bench(tmp_path, instance, CONFIG.replace("name: changes", "name: other")).sensor

    @dg.sensor(asset_selection=[ORDERS])
    def mine() -> None: ...

    both = joined([one, mine, two])

    assert ["rivet_drains_shop", "mine"] == [sensor.name for sensor in both]
    assert ["changes", "other"] == [each.export.name for each in both[0].watched]
    assert both[1] is mine


def test_dagster_takes_the_whole_tick(tmp_path, instance):
    """The real evaluation: requests become runs of the asset job, for exactly the drain's assets and checks."""
    bench = Bench(tmp_path, instance, CONFIG + SECOND)

    def drain_of(keys: tuple[dg.AssetKey, ...]) -> dg.AssetsDefinition:
        checks = [check for key in keys for check in change_check_specs(key)]

        @dg.multi_asset(
            name=keys[0].to_python_identifier(), specs=[dg.AssetSpec(key) for key in keys], check_specs=checks
        )
        def drains():
            for key in keys:
                yield dg.MaterializeResult(asset_key=key)
            for check in checks:
                yield dg.AssetCheckResult(asset_key=check.asset_key, check_name=check.name, passed=True)

        return drains

    sensor = sensors.DrainSensor("shop", bench.watched)
    assets = [drain_of(each.keys) for each in bench.watched]
    defs = dg.Definitions(assets=assets, sensors=[sensor])
    context = dg.build_sensor_context(instance=instance, definitions=defs)

    data = sensor.evaluate_tick(context)

    assert [{"changes"}, {"lines", "items"}] == [
        {key.path[-1] for key in request.asset_selection} for request in data.run_requests
    ]
    assert all(request.job_name for request in data.run_requests)
    job, second = defs.resolve_implicit_global_asset_job_def(), data.run_requests[1]
    chosen = job.get_subset(asset_selection=set(second.asset_selection))
    ran = chosen.execute_in_process(instance=instance)
    assert {"lines", "items"} == {event.asset_key.path[-1] for event in ran.get_asset_materialization_events()}
    evaluated = {evaluation.check_name for evaluation in ran.get_asset_check_evaluations()}
    assert {spec.name for spec in change_check_specs(ORDERS)} == evaluated


# --- the pool ------------------------------------------------------------------------------------


@pytest.fixture
def stored(tmp_path):
    """An instance on disk: one in memory has no pools."""
    with dg.instance_for_test(temp_dir=str(tmp_path)) as made:
        yield made


@pytest.mark.parametrize(
    ("status", "free"), [(dg.DagsterRunStatus.FAILURE, True), (dg.DagsterRunStatus.STARTED, False)]
)
def test_tick_frees_what_ended_runs_left_taken(tmp_path, stored, status, free):
    """A killed run gives its slot back to nobody; one that runs keeps it."""
    bench = Bench(tmp_path, stored)
    storage = stored.event_log_storage
    storage.set_concurrency_slots("source:shop", 1)
    run_id = bench.run(status, tag="")
    assert storage.claim_concurrency_slot("source:shop", run_id, "shop__orders").is_claimed

    bench.tick()

    assert free == (set() == {slot.run_id for slot in storage.get_concurrency_info("source:shop").claimed_slots})


def test_tick_leaves_pools_of_others_and_makes_none(tmp_path, stored):
    """Slots that are not of an export are not ours to free."""
    bench = Bench(tmp_path, stored)
    storage = stored.event_log_storage
    storage.set_concurrency_slots("theirs", 1)
    run_id = bench.run(dg.DagsterRunStatus.FAILURE, tag="")
    storage.claim_concurrency_slot("theirs", run_id, "step")

    bench.tick()

    assert {run_id} == {slot.run_id for slot in storage.get_concurrency_info("theirs").claimed_slots}
    assert ["theirs"] == [limit.name for limit in storage.get_pool_limits()]


def test_drain_has_no_pool(bench):
    """A slot would outlive a killed drain, and stop the capture for good."""
    (drain,) = build_assets(bench.config.exports[0], config=bench.config)

    assert None is drain.op.pool


def test_no_checkpoint_no_position():
    """The one place that knows what a checkpoint of a first run means."""
    assert read_position(None) is None
