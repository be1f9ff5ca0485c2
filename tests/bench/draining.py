"""One drain as a run does it, from a place in a log that an earlier run seems to have left.

Belongs here: what the benches of all logs share: zstd Parquet on a disk, synced, manifests, a checkpoint. Not here:
servers and workloads.
"""

from __future__ import annotations

import json
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from rivet_resources.contracts.change_log import Capture, Handover, LogSource, Position
from rivet_resources.contracts.destination import Destination
from rivet_resources.contracts.extract import Staged
from rivet_resources.contracts.settings import Tuning, pace
from rivet_resources.destinations.local import Local
from rivet_resources.drain.checkpoint_book import DRAINING
from rivet_resources.drain.drain import drain
from rivet_resources.drain.plan import Drained, DrainPlan, DrainServices
from rivet_resources.state.checkpoints.stores import Checkpoint, state_checkpoints
from rivet_resources.state.store import default_url, open_state
from rivet_resources.write.formats.parquet import Parquet

EAGER = pace(Tuning(profile="fast"), None)
RUN = "bench_20260101T000000.000_000001"


def drained(
    source: LogSource, capture: Capture, start: Position, *, identity: str, destination: Destination | None = None
) -> tuple[Drained, dict[str, float]]:
    """Drain one table from `start`; what came, and seconds, CPU seconds and peak MB of this process.

    Args:
        destination: default: a folder.
    """
    (table,) = capture.tables
    with tempfile.TemporaryDirectory(prefix="rivet-bench-", dir="/var/tmp") as name:
        folder = Path(name)
        plan = DrainPlan(
            capture=capture, source=source, destination=destination or Local(type="local", path=str(folder / "lake")),
            format=Parquet(type="parquet"), pace=EAGER, key="bench", run_id=RUN, started_at=datetime.now(UTC),
            folders={table: "bench"},
        )  # fmt: skip
        state = open_state(default_url(folder))
        checkpoints = state_checkpoints(state)
        _, generation = checkpoints.take("bench")
        facts = {"state": DRAINING, "chain": json.dumps({table: start.key}), "more": json.dumps(dict(start.more))}
        begun = Checkpoint(
            key="bench", source_type=source.type, position_type=start.type, position=start.text, sort_key=start.key,
            metadata=facts, generation=generation, source_identity=identity, pipeline="bench", run_id="begin",
        )  # fmt: skip
        checkpoints.save(begun)
        with state.lease("bench", "drain", plan.run_id) as lease:
            hands = DrainServices(
                state=state, checkpoints=checkpoints, lease=lease, roots={table: plan.destination.root("bench")},
                copy=_no_copy, judge=_no_judge, scratch=folder,
            )  # fmt: skip
            began, cpu = time.perf_counter(), time.process_time()
            done = drain(plan, hands)
            figures = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu, "peak_mb": peak_mb()}
    assert done.disorder == 0, done.disorder
    return done, figures


def peak_mb() -> float:
    """Read this process's own peak: getrusage's starts from that of the process which started this one."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


def _no_copy(table: str, position: Position, handover: Handover | None) -> Staged:
    raise AssertionError(f"{table} has a checkpoint, so nothing is copied")


def _no_judge(table: str, staged: Staged, *, is_between: bool = False) -> None:
    """Take any columns."""
