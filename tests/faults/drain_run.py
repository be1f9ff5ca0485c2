"""One drain in a process of its own that may die at a chosen step; its arguments are the config, the step, its count.

Two more make windows of so many changes, and name the step at which the first window's publication stays until the
reader of the next one has died.

Belongs here: what such a process does, without Dagster, which has no say in the order of effects. Not here: what must
hold afterwards (`test_drain_deaths.py`).
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

from rivet_assets.config.load import load_config
from rivet_assets.modes.cdc import Cdc
from rivet_assets.run.admit.scope import state_of
from rivet_assets.run.drain import DrainSite, run_drain
from rivet_resources.contracts.change_log import LogSource
from rivet_resources.drain import window_size
from rivet_resources.drain.plan import Drained
from rivet_resources.read.stage import Exporter
from rivet_resources.spark.runtime import SparkRuntime

DEAD = 86  # exit code of a chosen death
PATIENCE = 10.0  # of one thread that waits for the other


def drained(
    config_path: Path,
    *,
    die_at: str = "",
    nth: int = 1,
    step: Callable[[str], None] = lambda place: None,
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


class Overlap:
    """Lets a death come while both threads of a drain are at work.

    A publication that is to die waits until the next window is staged; one that is `held` waits for the other's death.
    """

    def __init__(self, die_at: str, nth: int, held: str) -> None:
        self.die_at, self.nth, self.held = die_at, nth, held
        self.counts: dict[str, int] = {}
        self.is_staged, self.is_held = threading.Event(), threading.Event()

    def __call__(self, place: str) -> None:
        count = self.counts[place] = self.counts.get(place, 0) + 1
        if place == "staged" and count == self.nth + 1:
            self.is_staged.set()
        if threading.current_thread().name == "rivet-publishes":
            if (place, count) == (self.held, 1):
                self.is_held.set()
                threading.Event().wait(PATIENCE)
            elif (place, count) == (self.die_at, self.nth):
                assert self.is_staged.wait(PATIENCE), "no window was read meanwhile"
        elif self.held and (place, count) == (self.die_at, self.nth):
            assert self.is_held.wait(PATIENCE), f"no publication came to {self.held}"


def main(config: str, die_at: str, nth: str, changes: str = "", held: str = "") -> None:
    """Drain as the arguments say."""
    if not changes:
        drained(Path(config), die_at=die_at, nth=int(nth))
        return
    window_size.MOST_CHANGES = int(changes)
    drained(Path(config), die_at=die_at, nth=int(nth), step=Overlap(die_at, int(nth), held))


if __name__ == "__main__":
    print("ready", flush=True)  # the imports took most of the time so far
    main(*sys.argv[1:])
