"""When a scheduled export that failed is asked for again, and when it no longer is."""

from __future__ import annotations

import time
from pathlib import Path

import dagster as dg
import pytest

from rivet_assets.config.load import RivetConfig, load_text
from rivet_assets.dagster.sensors.drain_sensor import MOST_WAIT_SECONDS
from rivet_assets.dagster.sensors.retry_sensor import (
    ASKED_AGAIN,
    LOOK_SECONDS,
    MOST_LOOKS,
    RANGE_END,
    RANGE_START,
    Missing,
    RetryCursor,
    retry_sensors,
    tick,
)
from rivet_assets.definitions import definitions_of
from rivet_resources.conformance.lines import Proxy, proxied
from tests.lab_engines import connect_postgres

BLOCKS = """
source: {type: postgres, url_env: SHOP_URL, tuning: {throttle_ms: 0, max_retries: 0, retry_backoff_ms: 1}}
spark: inline
exports:
  - {name: orders, table: orders, schedule: "0 3 * * *", format: parquet, destination: {type: local, path: LAKE}}
  - name: days
    table: orders
    mode: time_window
    time_column: at
    start: 2026-01-01
    end: 2026-01-05
    schedule: "0 3 * * *"
    format: parquet
    destination: {type: local, path: LAKE}
  - {name: gone, table: nowhere, schedule: "0 3 * * *", format: parquet, destination: {type: local, path: LAKE}}
  - name: rare
    query: SELECT * FROM orders WHERE id < 0
    skip_empty: true
    schedule: "0 3 * * *"
    format: parquet
    destination: {type: local, path: LAKE}
  - {name: by_hand, table: orders, format: parquet, destination: {type: local, path: LAKE}}
"""
SCHEDULED = {"dagster/from_automation_condition": "true"}


class Bench:
    """A location, an instance, a source that may be away, and the ticks of the sensor."""

    def __init__(self, config: RivetConfig, instance: dg.DagsterInstance, proxy: Proxy) -> None:
        self.config, self.instance, self.proxy = config, instance, proxy
        self.job = definitions_of(config).resolve_implicit_global_asset_job_def()
        (self.sensor,) = retry_sensors(config)
        self.cursor: str | None = None

    def run(self, export: str, tags: dict[str, str]) -> bool:
        """Run an export as the daemon would; whether it succeeded."""
        key = dg.AssetKey(["postgres", export])
        done = self.job.execute_in_process(
            asset_selection=[key], tags=tags, instance=self.instance, raise_on_error=False
        )
        return done.success

    def windows(self) -> tuple[str, str]:
        """Return the colour of `windows_complete` and what it says; blanks without a verdict."""
        check = dg.AssetCheckKey(dg.AssetKey(["postgres", "days"]), "windows_complete")
        found = self.instance.event_log_storage.get_latest_asset_check_execution_by_key([check]).get(check)
        return (found.status.value, found.evaluation.description) if found is not None else ("", "")

    def tick(self, *, later: float = 0.0) -> list[dg.RunRequest]:
        """Evaluate once, so many seconds from now, and keep what the daemon would."""
        context = dg.build_sensor_context(instance=self.instance, cursor=self.cursor)
        result = tick(self.sensor.scheduled, context, now=time.time() + later)
        self.cursor = result.cursor
        for event in result.asset_events:
            self.instance.report_runless_asset_event(event)
        return list(result.run_requests or ())


@pytest.fixture
def bench(fresh_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A source of four days behind a proxy."""
    with connect_postgres(fresh_database) as execute:
        execute("CREATE TABLE orders (id bigint PRIMARY KEY, at timestamptz NOT NULL)")
        execute("INSERT INTO orders SELECT n, date '2026-01-01' + n FROM generate_series(0, 3) AS n")
    with proxied(fresh_database) as (proxy, url), dg.DagsterInstance.ephemeral() as instance:
        monkeypatch.setenv("SHOP_URL", url)
        config = load_text(BLOCKS.replace("LAKE", str(tmp_path / "lake")), file=tmp_path / "rivet.yaml")
        yield Bench(config, instance, proxy)


def test_scheduled_export_whose_source_was_away_is_asked_for_until_it_is_there(bench: Bench) -> None:
    """After a minute, then after longer; once it is there, no more."""
    bench.proxy.down()
    assert not bench.run("orders", SCHEDULED)

    assert [] == bench.tick()
    (request,) = bench.tick(later=61)
    assert ([dg.AssetKey(["postgres", "orders"])], "postgres/orders") == (
        request.asset_selection, request.tags[ASKED_AGAIN]
    )  # fmt: skip
    assert not bench.run("orders", request.tags)
    assert [] == bench.tick(later=62)
    (request,) = bench.tick(later=122)
    bench.proxy.up()
    assert bench.run("orders", request.tags)

    assert [] == bench.tick(later=MOST_WAIT_SECONDS)


def test_only_the_windows_that_are_missing_are_asked_for(bench: Bench) -> None:
    """One run for each range of them."""
    whole = {RANGE_START: "2026-01-01", RANGE_END: "2026-01-04"}
    bench.proxy.down()
    assert not bench.run("days", SCHEDULED | whole)
    bench.proxy.up()
    assert bench.run("days", {RANGE_START: "2026-01-02", RANGE_END: "2026-01-02"})  # somebody by hand

    requests = bench.tick(later=61)

    assert [("2026-01-01", "2026-01-01"), ("2026-01-03", "2026-01-04")] == [
        (request.tags[RANGE_START], request.tags[RANGE_END]) for request in requests
    ]
    assert all(bench.run("days", request.tags) for request in requests)
    assert [] == bench.tick(later=MOST_WAIT_SECONDS)


def test_hole_in_the_windows_is_red_until_it_is_filled(bench: Bench) -> None:
    """Whatever made it; what lies before the first window was never asked for."""
    assert bench.run("days", {RANGE_START: "2026-01-02", RANGE_END: "2026-01-02"})
    assert bench.run("days", {RANGE_START: "2026-01-04", RANGE_END: "2026-01-04"})
    bench.tick()

    colour, text = bench.windows()
    assert "FAILED" == colour
    assert text.startswith("Missing windows: 1, 2026-01-03. Materialize them")

    assert bench.run("days", {RANGE_START: "2026-01-03", RANGE_END: "2026-01-03"})
    bench.tick(later=LOOK_SECONDS)
    assert ("SUCCEEDED", "3 windows are there, none is missing") == bench.windows()


def test_windows_are_judged_when_somebody_asks(bench: Bench) -> None:
    """The check has a button, too."""
    assert bench.run("days", {RANGE_START: "2026-01-01", RANGE_END: "2026-01-01"})
    check = dg.AssetCheckKey(dg.AssetKey(["postgres", "days"]), "windows_complete")

    job = bench.job.get_subset(asset_selection=set(), asset_check_selection={check})
    assert job.execute_in_process(instance=bench.instance).success

    assert "2026-01-02 to 2026-01-04" in bench.windows()[1]


def test_run_that_went_well_without_a_row_ends_it(bench: Bench) -> None:
    """`skip_empty` publishes nothing, and there is nothing to wait for."""
    bench.proxy.down()
    assert not bench.run("rare", SCHEDULED)
    (request,) = bench.tick(later=61)
    bench.proxy.up()
    assert bench.run("rare", request.tags)

    assert [] == bench.tick(later=2 * MOST_WAIT_SECONDS)


def test_trial_of_an_export_leaves_what_is_missing_missing(bench: Bench) -> None:
    """A run with `limit` goes well and publishes nothing."""
    bench.proxy.down()
    assert not bench.run("orders", SCHEDULED)
    bench.proxy.up()
    config = {"ops": {"postgres__orders": {"config": {"limit": 1}}}}
    key = dg.AssetKey(["postgres", "orders"])
    assert bench.job.execute_in_process(asset_selection=[key], instance=bench.instance, run_config=config).success

    (request,) = bench.tick(later=61)

    assert [key] == request.asset_selection


def test_failure_that_stays_is_not_asked_for_again(bench: Bench) -> None:
    """A table that is not there needs a person, who was told."""
    assert not bench.run("gone", SCHEDULED)

    assert [] == bench.tick(later=MOST_WAIT_SECONDS)


def test_run_that_somebody_started_is_not_asked_for_again(bench: Bench) -> None:
    """They see what became of it."""
    bench.proxy.down()
    assert not bench.run("orders", {})

    assert [] == bench.tick(later=MOST_WAIT_SECONDS)


def test_run_in_flight_is_waited_for(bench: Bench) -> None:
    """Whoever started it."""
    bench.proxy.down()
    assert not bench.run("orders", SCHEDULED)
    started = dg.DagsterRun(
        job_name="__ASSET_JOB", status=dg.DagsterRunStatus.STARTED,
        asset_selection=frozenset({dg.AssetKey(["postgres", "orders"])}),
    )  # fmt: skip
    bench.instance.add_run(started)

    assert [] == bench.tick(later=MOST_WAIT_SECONDS)


def test_cursor_that_is_lost_costs_nothing(bench: Bench) -> None:
    """The failures of the last day are read again."""
    bench.proxy.down()
    assert not bench.run("orders", SCHEDULED)
    bench.tick()
    bench.cursor = "nonsense"

    assert 1 == len(bench.tick(later=61))


def test_location_without_schedules_has_no_such_sensor(bench: Bench) -> None:
    """There is nothing it could ask for."""
    alone = bench.config.model_copy(update={"exports": bench.config.exports[-1:]})

    assert [] == retry_sensors(alone)


MANY = MOST_LOOKS + 20


def test_windows_of_very_many_exports_are_looked_at_in_turn(tmp_path: Path) -> None:
    """A tick has a minute; those that wait longest come first, and each has its turn."""
    block = (
        "{name: days%d, table: orders, mode: time_window, time_column: at, start: 2026-01-01, "
        "schedule: '0 3 * * *', format: csv, destination: {type: local, path: lake}}"
    )
    exports = "\n".join(f"  - {block % number}" for number in range(MANY))
    config = load_text(f"source: {{type: sqlite, path: shop.db}}\nexports:\n{exports}\n", file=tmp_path / "rivet.yaml")
    (sensor,) = retry_sensors(config)
    cursor, looked = None, list[int]()

    with dg.DagsterInstance.ephemeral() as instance:
        for later in (0, 30, 60, LOOK_SECONDS):
            now = 1_800_000_000.0 + later
            cursor = tick(sensor.scheduled, dg.build_sensor_context(instance=instance, cursor=cursor), now=now).cursor
            looked.append(sum(at == now for at, _ in RetryCursor.read(cursor, now=now).told.values()))

    assert [MOST_LOOKS, MANY - MOST_LOOKS, 0, MOST_LOOKS] == looked


@pytest.mark.parametrize("many", [1, MANY])
def test_runs_are_read_once_however_many_exports_are_missing(
    many: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a night without the source: asked for each export they took a tick of 300 beyond its minute, for ever."""
    block = "{name: e%d, table: orders, schedule: '0 3 * * *', format: csv, destination: {type: local, path: lake}}"
    exports = "\n".join(f"  - {block % number}" for number in range(many))
    config = load_text(f"source: {{type: sqlite, path: shop.db}}\nexports:\n{exports}\n", file=tmp_path / "rivet.yaml")
    (sensor,) = retry_sensors(config)
    now, asked = 1_800_000_000.0, list[object]()
    missing = {each.tag: Missing(now - 3600, now - 3000) for each in sensor.scheduled}

    with dg.DagsterInstance.ephemeral() as instance:
        read = instance.get_run_records
        monkeypatch.setattr(instance, "get_run_records", lambda *a, **k: asked.append(a) or read(*a, **k))
        context = dg.build_sensor_context(instance=instance, cursor=RetryCursor(now - 60, missing).text())
        requests = tick(sensor.scheduled, context, now=now).run_requests

    assert many == len(requests or ())
    assert 3 == len(asked)  # failed, unfinished, succeeded
