"""A real Dagster daemon and code server, and what becomes of exports when a process of theirs is killed."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.execution.backfill import BulkActionStatus

from rivet_assets.config.load import load_config
from rivet_assets.dagster.sensors.drain_sensor import DRAIN
from rivet_assets.definitions import definitions_of
from tests.living import Place, ask_for_all, living, process_of, waited_for

pytestmark = pytest.mark.rare
# A stream that never ends: its drain runs until somebody ends it.
BLOCK = """
sources: {stream: {type: datagen, cdc_mode: true, max_events: 0, events_per_second: 20, seed: 1}}
spark: inline
exports:
  - name: changes
    source: stream
    table: datagen
    mode: cdc
    cdc: {until_current: false, max_events: 1000000}
    format: parquet
    destination: {type: local, path: LAKE}
"""
# Asked for each minute, and so slow that a run is met amid its work: twenty seconds of rows.
SLOW = """
sources: {stream: {type: datagen, max_events: 2000, events_per_second: 100, seed: 1}}
spark: inline
exports:
  - name: slow
    source: stream
    table: datagen
    schedule: "* * * * *"
    format: parquet
    destination: {type: local, path: LAKE}
"""
DAYS = """
sources: {shop: {type: sqlite, path: SHOP}}
spark: inline
exports:
  - name: days
    source: shop
    table: orders
    mode: time_window
    time_column: at
    time_column_type: unix
    start: 2026-01-01
    end: 2026-01-04
    quality: {row_count_min: 1}
    format: parquet
    destination: {type: local, path: LAKE}
  - {name: whole, source: shop, table: orders, format: parquet, destination: {type: local, path: LAKE}}
"""
JANUARY = 1767225600  # 2026-01-01, UTC


@pytest.fixture
def daemon(tmp_path: Path, pytestconfig: pytest.Config) -> Iterator[dg.DagsterInstance]:
    """A daemon over a change export."""
    with living(tmp_path, pytestconfig, BLOCK) as (_, instance):
        yield instance


@pytest.fixture
def scheduled(tmp_path: Path, pytestconfig: pytest.Config) -> Iterator[tuple[Place, dg.DagsterInstance]]:
    """A daemon over an export that is asked for each minute."""
    with living(tmp_path, pytestconfig, SLOW) as found:
        yield found


def test_drain_that_is_killed_is_followed_by_the_next(daemon: dg.DagsterInstance) -> None:
    """Nothing of the dead run stands in its way: no slot, no lease; nobody has to do anything."""

    def drain(status: dg.DagsterRunStatus, *, but: str = "") -> Callable[[], dg.DagsterRun | None]:
        filters = dg.RunsFilter(statuses=[status], tags={DRAIN: "stream/changes"})
        return lambda: next((run for run in daemon.get_runs(filters) if run.run_id != but), None)

    first = waited_for(drain(dg.DagsterRunStatus.STARTED))
    os.kill(process_of(daemon, first.run_id), signal.SIGKILL)
    waited_for(drain(dg.DagsterRunStatus.FAILURE))

    second = waited_for(drain(dg.DagsterRunStatus.STARTED, but=first.run_id))

    assert second.run_id != first.run_id
    steps = dg.DagsterEventType.STEP_START
    waited_for(lambda: second if daemon.get_records_for_run(second.run_id, of_type=steps).records else None)


def kill_run(place: Place, instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
    """Kill the process of a run."""
    os.kill(process_of(instance, run.run_id), signal.SIGKILL)


def kill_daemon(place: Place, instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
    """Kill the daemon; whoever supervises it begins it anew."""
    place.kill_daemon()
    place.begin()


def kill_code_server(place: Place, instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
    """Kill the process that holds the definitions; the daemon begins another."""
    os.kill(place.code_server(), signal.SIGKILL)


@pytest.mark.parametrize("kill", [kill_run, kill_daemon, kill_code_server])
def test_schedule_goes_on_after_a_death(
    scheduled: tuple[Place, dg.DagsterInstance], kill: Callable[[Place, dg.DagsterInstance, dg.DagsterRun], None]
) -> None:
    """A later tick brings a run that publishes, and nobody had to do anything; no run is left that never ends."""
    place, instance = scheduled

    def run(status: dg.DagsterRunStatus, after: float = 0.0) -> Callable[[], dg.DagsterRun | None]:
        filters = dg.RunsFilter(statuses=[status], created_after=datetime.fromtimestamp(after, UTC))
        return lambda: next(iter(instance.get_runs(filters)), None)

    first = waited_for(run(dg.DagsterRunStatus.STARTED))
    process_of(instance, first.run_id)  # its step has begun
    kill(place, instance, first)
    killed_at = time.time()

    waited_for(run(dg.DagsterRunStatus.SUCCESS, killed_at))

    print(f"{kill.__name__}: a run published {time.time() - killed_at:.0f} s after")
    waited_for(lambda: found if (found := instance.get_run_by_id(first.run_id)) and found.is_finished else None)


def test_backfill_of_the_daemon_exports_every_window(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """As the dialog asks for it, with an export without windows beside; its checks are green, and no other shows."""
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        connection.execute("CREATE TABLE orders (id integer PRIMARY KEY, at integer NOT NULL)")
        connection.executemany("INSERT INTO orders VALUES (?, ?)", [(n, JANUARY + n * 43_200) for n in range(6)])
    days, whole = dg.AssetKey(["shop", "days"]), dg.AssetKey(["shop", "whole"])
    with living(tmp_path, pytestconfig, DAYS.replace("SHOP", str(tmp_path / "shop.db"))) as (place, instance):
        graph = definitions_of(load_config(place.folder / "rivet.yaml")).resolve_asset_graph()
        ended = ask_for_all(place, instance, days, whole)

        assert BulkActionStatus.COMPLETED_SUCCESS == waited_for(ended)
        keys = [each for each in graph.asset_check_keys if each.asset_key in (days, whole)]
        shown = instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)

        assert {"2026-01-01", "2026-01-02", "2026-01-03"} == instance.get_materialized_partitions(days)
        assert {("days", "row_count_min"), ("days", "columns"), ("whole", "columns")} == {
            (each.asset_key.path[-1], each.name) for each in shown
        }
