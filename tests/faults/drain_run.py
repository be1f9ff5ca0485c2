"""One drain in a process of its own that may die at a chosen step; its arguments are the config, the step, its count.

Belongs here: what such a process does, without Dagster, which has no say in the order of effects. Not here: what must
hold afterwards (`test_drain_deaths.py`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

from rivet_assets.config.load import load_config
from rivet_assets.modes.cdc import Cdc
from rivet_assets.run.admit.scope import state_of
from rivet_assets.run.drain import DrainSite, run_drain
from rivet_resources.contracts.change_log import LogSource
from rivet_resources.drain.plan import Drained
from rivet_resources.read.stage import Exporter
from rivet_resources.spark.runtime import SparkRuntime

DEAD = 86  # exit code of a chosen death


def drained(
    config_path: Path, *, die_at: str = "", nth: int = 1, step: Callable[[str], None] = lambda place: None
) -> Drained:
    """Drain the config's first export, dying where the n-th step of this name would begin; `step` is told of each."""
    config = load_config(config_path)
    export = cast(Cdc, config.exports[0])
    name, source = config.source_of(export)
    state = state_of(config)
    seen = 0

    def told(place: str) -> None:
        nonlocal seen
        step(place)
        seen += place == die_at
        if place == die_at and seen == nth:
            os._exit(DEAD)

    site = DrainSite(
        export=export,
        source_name=name,
        source=cast(LogSource, source),
        exporter=lambda: Exporter(spark=SparkRuntime(config.spark), state=state),
        state=state,
        folder=config.folder,
        tell=lambda text: None,
        step=told,
    )
    return run_drain(site)


if __name__ == "__main__":
    print("ready", flush=True)  # the imports took most of the time so far
    drained(Path(sys.argv[1]), die_at=sys.argv[2], nth=int(sys.argv[3]))
