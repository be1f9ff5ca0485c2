"""`python -m tests.bench.cdc_apply [--rows 1500000] [--changes 2000000] [--keys 1200000]`: applying changes in Spark.

Belongs here: the seconds of a mirror's and a history's job over one large window, first from scratch, then onto a base.
Not here: draining (`cdc_postgres.py` and its siblings), what the rows must be (`engines/test_apply.py`).
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

from rivet_resources.commit.publish import publish
from rivet_resources.contracts.change_log import change_schema
from rivet_resources.contracts.settings import Spark
from rivet_resources.destinations.local import Local
from rivet_resources.spark.runtime import SparkRuntime
from rivet_resources.state.store import open_state
from rivet_resources.tables.history import stage_history
from rivet_resources.tables.mirror import stage_mirror
from tests.applying import Lake
from tests.bench.measuring import table

PIECES = 20


def rows(ids: np.ndarray[Any, Any], salt: int) -> pa.Table:
    """Make rows of ten columns, about 95 bytes each."""
    count = len(ids)
    rng = np.random.default_rng(salt)
    texts = pa.array([f"customer-{n:08d}" for n in range(100_000)])
    notes = pa.array([f"note {n} " * 3 for n in range(5_000)])
    return pa.table({
        "id": pa.array(ids, pa.int64()),
        "customer": texts.take(pa.array(rng.integers(0, 100_000, count))),
        "note": notes.take(pa.array(rng.integers(0, 5_000, count))),
        "amount": pa.array(rng.integers(0, 10**8, count)).cast(pa.decimal128(21, 2)),
        "quantity": pa.array(rng.integers(0, 100, count), pa.int32()),
        "rate": pa.array(rng.random(count), pa.float64()),
        "paid": pa.array(rng.integers(0, 2, count).astype(bool)),
        "ordered_at": pa.array(1_700_000_000_000_000 + rng.integers(0, 10**12, count), pa.timestamp("us", "UTC")),
        "shipped_on": pa.array(rng.integers(19_000, 20_000, count), pa.int32()).cast(pa.date32()),
        "status": pa.array(["new", "paid", "sent", "done"]).take(pa.array(rng.integers(0, 4, count))),
    })  # fmt: skip


def changes(count: int, keys: int, base: int) -> pa.Table:
    """Make changes of 100 to a transaction: a tenth deletes, and keys beyond the base are new."""
    rng = np.random.default_rng(7)
    ids = rng.permutation(np.concatenate([np.arange(keys), rng.integers(0, keys, count - keys)])) + base // 10
    number = np.arange(count)
    operations = pa.array(["update", "insert", "delete"])
    kinds = np.where(ids >= base, 1, np.where(rng.random(count) < 0.1, 2, 0))
    positions = pa.array([f"{n:016x}" for n in range(2, count // 100 + 3)])
    envelope = {
        "__op": operations.take(pa.array(kinds)),
        "__pos": positions.take(pa.array(number // 100)),
        "__seq": pa.array(2 * (number % 100) + 1),
        "__ts": pa.array(1_800_000_000_000_000 + number // 100 * 1000, pa.timestamp("us", "UTC")),
        "__unchanged": pa.nulls(count, pa.list_(pa.string())),
    }
    cells = rows(ids, 8)
    return pa.Table.from_arrays([*envelope.values(), *cells.columns], schema=change_schema(cells.schema))


def cpu_seconds(runtime: SparkRuntime) -> float:
    """Return what the JVM has used so far; on a busy machine it says more than the clock."""
    assert runtime.process is not None
    times = psutil.Process(runtime.process.pid).cpu_times()
    return float(times.user + times.system)


def worker_seconds(runtime: SparkRuntime) -> float:
    """Return what Python workers have used so far, those that live."""
    assert runtime.process is not None
    told = 0.0
    for worker in psutil.Process(runtime.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            times = worker.cpu_times()
            told += times.user + times.system
    return told


def main() -> None:
    """Make, apply, tell."""
    asked = argparse.ArgumentParser()
    asked.add_argument("--rows", type=int, default=1_500_000)
    asked.add_argument("--changes", type=int, default=2_000_000)
    asked.add_argument("--keys", type=int, default=1_200_000)
    asked.add_argument("--master", default="local[*,3]")
    asked.add_argument("--memory", default="2g")
    asked.add_argument("--jit", default="full")
    options = asked.parse_args()
    runtime = SparkRuntime(Spark(master=options.master, driver_memory=options.memory, jit=options.jit))
    with tempfile.TemporaryDirectory(prefix="rivet-bench-") as folder:
        lake = Lake(Local(path=f"{folder}/lake"), open_state(f"sqlite:///{folder}/state.db"))
        lake.copy(rows(np.arange(options.rows), 1), at=f"{1:016x}")
        runtime.session().range(1).count()
        told = []
        stages = {"mirror": stage_mirror, "history": stage_history}
        for work in ("first copy", "changes onto it"):
            for name, stage in stages.items():
                derived = lake.derived(name, key=("id",))
                began, used, worked = time.monotonic(), cpu_seconds(runtime), worker_seconds(runtime)
                staged = stage(derived, spark=runtime)
                assert staged is not None
                middle = time.monotonic()
                publish(staged, root=derived.root, state=lake.state)
                spent = cpu_seconds(runtime) - used
                seconds, megabytes = middle - began, sum(part.size_bytes for part in staged.parts) / 2**20
                told.append([
                    name, work, seconds, time.monotonic() - middle, staged.measures.rows, len(staged.parts),
                    megabytes, staged.measures.peak_mb, spent, worker_seconds(runtime) - worked,
                ])  # fmt: skip
                print(*told[-1], flush=True)
            if work == "first copy":
                made = changes(options.changes, options.keys, options.rows)
                lake.window(made, high=f"{options.changes // 100 + 3:016x}", pieces=PIECES)
        print(
            table(
                [
                    "table",
                    "work",
                    "stage s",
                    "publish s",
                    "rows",
                    "parts",
                    "MB",
                    "task peak MB",
                    "JVM CPU s",
                    "workers CPU s",
                ],
                told,
            )
        )
    runtime.stop()


if __name__ == "__main__":
    main()
