"""A real Dagster daemon with its code server and its runs, for tests of what becomes of them.

Belongs here: starting and ending it, waiting for what it does, backfills as its dialog asks for them. Not here: what
must come of it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import dagster as dg
import pytest
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill

from rivet_assets.config.load import load_config
from rivet_assets.definitions import definitions_of

Found = TypeVar("Found")

PATIENCE_SECONDS = 280.0


class Place:
    """A configuration, an instance, and a daemon of it that can be ended and begun again, as a supervisor does."""

    def __init__(self, folder: Path, block: str, settings: str = "") -> None:
        self.folder, self.home = folder, folder / "home"
        self.home.mkdir()
        pools = "telemetry: {enabled: false}\nconcurrency: {pools: {granularity: op, default_limit: 1}}\n"
        (self.home / "dagster.yaml").write_text(pools + settings)
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
def living(
    folder: Path, config: pytest.Config, block: str, settings: str = ""
) -> Iterator[tuple[Place, dg.DagsterInstance]]:
    """Run a daemon over a configuration, with the pools of docker-compose.yaml; all its processes end with it.

    Args:
        settings: more of dagster.yaml.
    """
    if not config.getoption("--whole"):
        pytest.skip("minutes of waiting for a real daemon: `pytest --whole` runs it")
    place = Place(folder, block, settings)
    try:
        with dg.DagsterInstance.from_config(str(place.home)) as instance:
            yield place, instance
    finally:
        place.close()


def waited_for(found: Callable[[], Found | None]) -> Found:
    """Wait for a run, or for what becomes of one."""
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        seen = found()
        if seen is not None:
            return seen
        time.sleep(1)
    raise AssertionError("nothing of that kind came")


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


def ask_for_all(
    place: Place, instance: dg.DagsterInstance, *assets: dg.AssetKey
) -> Callable[[], BulkActionStatus | None]:
    """Ask the daemon for all partitions of assets, as the dialog does; what returns how it ended, None before."""
    graph = definitions_of(load_config(place.folder / "rivet.yaml")).resolve_asset_graph()
    backfill = PartitionBackfill.from_asset_partitions(
        asset_graph=graph,  # type: ignore[arg-type]
        backfill_id="januaries",
        tags={},
        backfill_timestamp=time.time(),
        asset_selection=list(assets),
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

    return ended
