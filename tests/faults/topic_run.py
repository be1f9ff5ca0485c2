"""One run of the first export of a config, to a topic, in a process of its own that may be killed at a chosen step.

Belongs here: what such a process does, without Dagster, which has no say in the order of effects. Not here: what must
hold afterwards (`test_kafka_deaths.py`).
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

from rivet_assets.blocks.export import Export
from rivet_assets.config.load import RivetConfig, load_config
from rivet_assets.modes.cdc import Cdc, drain_of
from rivet_assets.modes.partitions import window_of
from rivet_assets.run.admit.scope import state_of
from rivet_assets.run.attempt import Site, attempt
from rivet_assets.run.drain import DrainSite, run_drain
from rivet_assets.run.schema_agreement import schema_gate
from rivet_resources.commit.publish import publish
from rivet_resources.contracts.change_log import LogSource
from rivet_resources.errors import GateRefused
from rivet_resources.read.stage import Exporter
from rivet_resources.spark.runtime import SparkRuntime
from rivet_resources.state.store import State

Step = Callable[[str], None]


def export_once(config_path: Path, *, step: Step = lambda name: None, partition: str = "") -> int:
    """Run the config's first export; how many rows it published."""
    config = load_config(config_path)
    export, state = config.exports[0], state_of(config)
    try:
        if drain_of(export) is not None:
            return _drain(config, cast(Cdc, export), state, step)
        return _batch(config, export, state, step, partition)
    finally:
        state.close()


def _batch(config: RivetConfig, export: Export, state: State, step: Step, partition: str) -> int:
    name, source = config.source_of(export)
    root = export.destination.root(export.name)
    exporter = Exporter(spark=SparkRuntime(config.spark), state=state)
    gate = schema_gate(config, export, state)
    site = Site(export, name, source, exporter, state, root, lambda text: None, schemas=gate)
    with attempt(site, window_of(export, partition) if partition else None) as made:
        if made.is_refused:
            raise GateRefused("the gate refuses the window")
        if made.is_skipped:
            return 0
        publish(made.staged, root=root, state=state, step=step)
        return made.staged.measures.rows


def _drain(config: RivetConfig, export: Cdc, state: State, step: Step) -> int:
    name, source = config.source_of(export)
    site = DrainSite(
        export=export,
        source_name=name,
        source=cast(LogSource, source),
        exporter=lambda: Exporter(spark=SparkRuntime(config.spark), state=state),
        state=state,
        folder=config.folder,
        tell=lambda text: None,
        step=step,
        schemas=lambda one: schema_gate(config, one, state),
    )
    return sum(table.rows for table in run_drain(site).tables.values())


def killed_at(place: str, nth: int = 1) -> Step:
    """Return what kills this process where the n-th step of this name would begin, as `kill -9` does."""
    seen = 0

    def told(name: str) -> None:
        nonlocal seen
        seen += name == place
        if name == place and seen == nth:
            os.kill(os.getpid(), signal.SIGKILL)

    return told


if __name__ == "__main__":
    print(export_once(Path(sys.argv[1]), step=killed_at(sys.argv[2], int(sys.argv[3])), partition=sys.argv[4]))
