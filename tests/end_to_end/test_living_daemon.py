"""A real Dagster daemon and code server, and what becomes of exports when a process of theirs is killed."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import dagster as dg
import pytest
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill

from rivet_assets.config.load import load_config
from rivet_assets.dagster.sensors.drain_sensor import DRAIN
from rivet_assets.definitions import definitions_of

Found = TypeVar("Found")

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
PATIENCE_SECONDS = 280.0


class Place:
    """A configuration, an instance, and a daemon of it that can be ended and begun again, as a supervisor does."""

    def __init__(self, folder: Path, block: str) -> None:
        self.folder, self.home = folder, folder / "home"
        self.home.mkdir()
        settings = "telemetry: {enabled: false}\nconcurrency: {pools: {granularity: op, default_limit: 1}}\n"
        (self.home / "dagster.yaml").write_text(settings)
        (folder / "rivet.yaml").write_text(block.replace("LAKE", str(folder / "lake")))
        self.begin()

    def begin(self) -> None:
        """Start the daemon; it starts the code server, which starts the runs."""
        environment = {**os.environ, "DAGSTER_HOME": str(self.home), "RIVET_CONFIG": str(self.folder / "rivet.yaml")}
        command = [sys.executable, "-m", "dagster._daemon", "run", "-m", "rivet_assets.definitions"]
        with (self.folder / "daemon.log").open("a") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, cwd=self.folder, start_new_session=True
            )

    def kill_daemon(self) -> None:
        """Kill the daemon, and nothing beside it."""
        self.process.kill()
        self.process.wait()

    def code_server(self) -> int:
        """Return the id of the code server's process."""
        for child in children_of(self.process.pid):
            if b"grpc" in Path(f"/proc/{child}/cmdline").read_bytes():
                return child
        raise AssertionError("the daemon has no code server")

    def close(self) -> None:
        """End every process that works for this instance, and no other."""
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if str(self.home).encode() in (entry / "environ").read_bytes() and int(entry.name) != os.getpid():
                    os.kill(int(entry.name), signal.SIGKILL)
        self.process.wait()


def children_of(process: int) -> list[int]:
    """List the processes that a process started."""
    return [
        int(pid) for task in Path(f"/proc/{process}/task").iterdir() for pid in (task / "children").read_text().split()
    ]


@contextmanager
def living(folder: Path, config: pytest.Config, block: str) -> Iterator[tuple[Place, dg.DagsterInstance]]:
    """Run a daemon over a configuration, with the pools of docker-compose.yaml; all its processes end with it."""
    if not config.getoption("--whole"):
        pytest.skip("minutes of waiting for a real daemon: `pytest --whole` runs it")
    place = Place(folder, block)
    try:
        with dg.DagsterInstance.from_config(str(place.home)) as instance:
            yield place, instance
    finally:
        place.close()


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


def waited_for(found: Callable[[], Found | None]) -> Found:
    """Wait for a run, or for what becomes of one."""
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        seen = found()
        if seen is not None:
            return seen
        time.sleep(1)
    raise AssertionError("nothing of that kind came")


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


def process_of(instance: dg.DagsterInstance, run_id: str) -> int:
    """Return the id of the process that executes a run, once its step has begun."""
    steps = dg.DagsterEventType.STEP_START
    until = time.monotonic() + PATIENCE_SECONDS
    while not instance.get_records_for_run(run_id, of_type=steps).records and time.monotonic() < until:
        time.sleep(1)
    events = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.ENGINE_EVENT).records
    for record in events:
        event = record.event_log_entry.dagster_event
        if event is not None and "pid" in event.engine_event_data.metadata:
            return int(event.engine_event_data.metadata["pid"].value)
    raise AssertionError("no event names the process")


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
        backfill = PartitionBackfill.from_asset_partitions(
            asset_graph=graph,  # type: ignore[arg-type]
            backfill_id="januaries",
            tags={},
            backfill_timestamp=time.time(),
            asset_selection=[days, whole],
            partition_names=None,
            dynamic_partitions_store=instance,
            all_partitions=True,
            title=None,
            description=None,
            run_config=None,
        )
        instance.add_backfill(backfill)

        def ended() -> BulkActionStatus | None:
            status = found.status if (found := instance.get_backfill("januaries")) else None
            return status if status not in (BulkActionStatus.REQUESTED, BulkActionStatus.FAILING) else None

        assert BulkActionStatus.COMPLETED_SUCCESS == waited_for(ended)
        keys = [each for each in graph.asset_check_keys if each.asset_key in (days, whole)]
        shown = instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)

        assert {"2026-01-01", "2026-01-02", "2026-01-03"} == instance.get_materialized_partitions(days)
        assert {("days", "row_count_min"), ("days", "columns"), ("whole", "columns")} == {
            (each.asset_key.path[-1], each.name) for each in shown
        }
