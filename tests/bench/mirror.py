"""`python -m tests.bench.mirror [--rows 1,4,16]`: what 1,000 changes onto a mirror cost by how large it is.

Belongs here: CPU seconds of one `apply` by the size of its base. Not here: reading the log (`cdc_postgres.py`), large
applies (`cdc_apply.py`).

Changes near: updates among the newest twentieth of the keys, and inserts after them. Changes far: updates of any key.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from rivet_resources.commit.manifest import current_manifests
from rivet_resources.commit.publish import publish
from rivet_resources.contracts.settings import Spark
from rivet_resources.shape.change_envelope import as_inserts
from rivet_resources.spark.runtime import SparkRuntime
from rivet_resources.state.store import open_state
from rivet_resources.tables.mirror import stage_mirror
from tests.applying import Lake, position
from tests.bench.full import environment
from tests.bench.measuring import measure, table

CHANGES, RUNS, COPY_ROWS = 1_000, 3, 500_000
HEADER = ("rows", "changes", "CPU s", "of the smallest", "driver + tasks + JVM", "parts", "written again")


def main() -> None:
    """Print one table; in a process of its own, apply once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="1,4,16", help="millions")
    parser.add_argument("--folder", default="/var/tmp/rivet-bench/mirror", help="everything is written here")
    parser.add_argument("--apply", action="store_true", help="only apply what is new in the folder")
    arguments = parser.parse_args()
    folder = Path(arguments.folder)
    if arguments.apply:
        return apply(lake_at(folder))
    shutil.rmtree(folder, ignore_errors=True)
    lines: list[tuple[object, ...]] = []
    for kind in ("near", "far"):
        first = 0.0
        for millions in map(float, arguments.rows.split(",")):
            rows = int(millions * 1_000_000)
            line = cost(folder / f"{kind}{rows}", rows, kind=kind)
            first = first or line[0]
            lines.append((f"{rows:,}", kind, round(line[0], 2), f"{line[0] / first:.2f}", *line[1:]))
            print(f"  {lines[-1]}", file=sys.stderr)
    print("\n" + table(HEADER, lines))


def cost(folder: Path, rows: int, *, kind: str) -> tuple[float, str, int, int]:
    """Return the median CPU seconds of an apply, how they were shared, the parts, and those that the last one wrote."""
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "tests.bench.mirror", "--apply", "--folder", str(folder)]
    env = environment("", folder.parent)
    lake = lake_at(folder)
    for start in range(0, rows, COPY_ROWS):  # the copy in several windows, as a copy of several tasks has several parts
        made = pa.table({
            "id": pa.array(range(start, start + COPY_ROWS)),
            "area": pa.nulls(COPY_ROWS, pa.string()).fill_null("n"),
            "note": [f"note {number}" for number in range(COPY_ROWS)],
            "paid": pa.nulls(COPY_ROWS, pa.decimal128(12, 2)),
        })  # fmt: skip
        lake.window(as_inserts(made, position(1 + start)), high=position(1 + start))
    measure(command, url="", env=env, cwd=folder, watch=nobody)
    found = []
    for number in range(RUNS):
        drain(lake, rows, number, kind=kind)
        before = parts(folder)
        found.append(measure(command, url="", env=env, cwd=folder, watch=nobody))
    median = sorted(found, key=lambda each: each.cpu)[RUNS // 2]
    now = parts(folder)
    return statistics.median(each.cpu for each in found), median.shares, len(now), len(now - before)


def drain(lake: Lake, rows: int, number: int, *, kind: str) -> None:
    """Publish a window of changes."""
    at, chance = 2 * rows + number, random.Random(number)
    half = CHANGES // 2 if kind == "near" else CHANGES
    lowest = rows * 19 // 20 if kind == "near" else 0
    keys = chance.sample(range(lowest, rows), half)
    new = range(rows + number * CHANGES, rows + number * CHANGES + CHANGES - half)
    lake.drain(
        [
            {"__op": op, "__pos": position(at), "__seq": 2 * seq + 1, "__ts": None, "__unchanged": None}
            | {"id": key, "area": "n", "note": "changed", "paid": None}
            for seq, (op, key) in enumerate([*(("update", key) for key in keys), *(("insert", key) for key in new)])
        ],
        high=position(at + 1),
    )


def lake_at(folder: Path) -> Lake:
    """Return the change export in a folder, at its end."""
    lake = Lake.at(folder / "lake", open_state(f"sqlite:///{folder}/state.db"))
    cursors = [each.cursor.high for each in current_manifests(lake.changes).values() if each.cursor]
    lake.reached = max(filter(None, cursors), default=None)
    return lake


def apply(lake: Lake) -> None:
    """Make the next version of the mirror."""
    derived = lake.derived("mirror", key=("id",))
    spark = SparkRuntime(Spark())
    try:
        staged = stage_mirror(derived, spark=spark)
    finally:
        spark.stop()
    assert staged is not None
    publish(staged, root=derived.root, state=lake.state)


def parts(folder: Path) -> set[str]:
    """Name the mirror's parts."""
    (manifest,) = current_manifests(lake_at(folder).destination.root("orders_mirror")).values()
    return {part.path for part in manifest.parts}


@contextmanager
def nobody(url: str) -> Iterator[list[float]]:
    """Ask no server."""
    yield [0.0]


if __name__ == "__main__":
    main()
