"""A real Dagster daemon, and what it makes of a run whose process is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import dagster as dg
import pytest

from rivet_assets.dagster.drain_sensor import DRAIN

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
PATIENCE_SECONDS = 280.0


@pytest.fixture
def daemon(tmp_path: Path, pytestconfig: pytest.Config) -> Iterator[dg.DagsterInstance]:
    """A daemon over a change export, with the pools of docker-compose.yaml; all its processes end with it."""
    if not pytestconfig.getoption("--whole"):
        pytest.skip("two minutes of waiting for a real daemon: `pytest --whole` runs it")
    home = tmp_path / "home"
    home.mkdir()
    settings = "telemetry: {enabled: false}\nconcurrency: {pools: {granularity: op, default_limit: 1}}\n"
    (home / "dagster.yaml").write_text(settings)
    (tmp_path / "rivet.yaml").write_text(BLOCK.replace("LAKE", str(tmp_path / "lake")))
    environment = {**os.environ, "DAGSTER_HOME": str(home), "RIVET_CONFIG": str(tmp_path / "rivet.yaml")}
    command = [sys.executable, "-m", "dagster._daemon", "run", "-m", "rivet_assets.definitions"]
    with (tmp_path / "daemon.log").open("w") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env=environment, cwd=tmp_path, start_new_session=True
        )
        try:
            with dg.DagsterInstance.from_config(str(home)) as instance:
                yield instance
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def waited_for(found: Callable[[], dg.DagsterRun | None]) -> dg.DagsterRun:
    """Wait for a run."""
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        run = found()
        if run is not None:
            return run
        time.sleep(1)
    raise AssertionError("no such run")


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
