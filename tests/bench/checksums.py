"""`python -m tests.bench.checksums [--rows 500000]`: what checksums of cells cost, by type and in a whole export.

Belongs here: ns a cell by type beside a loop over `xxhash`, and the CPU of one inline export of the shop's narrow rows
with and without sums, as a ratio. Not here: whether sums are right (tests/unit/write/test_checksums.py). Rounds take
turns, and the best of each counts, since other processes share the machine's caches.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import xxhash

from rivet_assets.config.load import load_config
from rivet_assets.launch.run_exports import run_exports
from rivet_resources.write.checksums.cells import as_binary, plain
from rivet_resources.write.checksums.sums import column_sum, keyed_sum
from tests.bench import shop
from tests.bench.measuring import table
from tests.bench.rowhash import narrow
from tests.lab import store_of

CELLS = 65_536
ROUNDS = 9
YAML = """
source: {{type: postgres, url_env: BENCH_URL, tuning: {{profile: fast, throttle_ms: 0}}}}
spark: inline
exports:
  - {{name: narrow, table: narrow, mode: full, format: parquet, compression_level: 1,
      destination: {{type: local, path: {path}}}}}
"""


def main() -> None:
    """Print ns a cell, then the export."""
    args = _arguments()
    print(table(("cells", "CPU ns a cell", "by a loop", "with a key"), _cells()) + "\n", flush=True)
    if args.rows:
        lines = _exports(args.rows, args.rounds, Path(args.folder))
        print(table((f"{args.rows} narrow rows, inline", "CPU ns a row", "× without"), lines))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000, help="rows of the export; 0: only cells in memory")
    parser.add_argument("--rounds", type=int, default=5, help="exports of each kind, of which the best counts")
    parser.add_argument("--folder", default="/var/tmp/rivet-bench-checksums", help="the server's files; kept")
    return parser.parse_args()


def _columns() -> Mapping[str, pa.Array]:
    """Make the columns: the narrow rows of the row hash's bench, and texts of further lengths."""
    rows = narrow(CELLS)
    numbers = [number * 7_919 for number in range(CELLS)]
    return {
        **{name: rows.column(name).combine_chunks() for name in rows.column_names},
        "uuid": pa.ExtensionArray.from_storage(
            pa.uuid(), pa.array([number.to_bytes(16) for number in numbers], pa.binary(16))
        ),
        "email, 17 to 32 bytes": pa.array([f"user{number}@example.com" for number in numbers]),
        "uuid as text, 36 bytes": pa.array([f"{number:08x}-7919-4bd7-a7f4-{number:012x}" for number in numbers]),
        "json, 70 bytes": pa.array(
            [f'{{"ref": {number:9}, "items": 7, "source": "web", "note": "{number:9}"}}' for number in numbers]
        ),
        "text of 600 bytes": pa.array([f"{number:10}" * 60 for number in numbers]),
        "list of two texts": pa.array([[f"a{number % 9}", "b"] for number in numbers]),
    }


def _cells() -> list[tuple[object, ...]]:
    """Measure every column alone; beside it a loop over its cells, and the sum with the key `id`."""
    columns = _columns()
    key = pa.chunked_array([columns["id"]])
    lines = []
    for name, cells in columns.items():
        column = pa.chunked_array([cells])
        assert _looped(cells) == column_sum(column), f"the loop sums {name} otherwise"
        runs: list[Callable[[], object]] = [
            lambda column=column: column_sum(column),
            lambda cells=cells: _looped(cells),
            lambda column=column: keyed_sum(key, column),
        ]
        best = [float("inf")] * len(runs)
        for _ in range(ROUNDS):
            for place, run in enumerate(runs):
                began = time.process_time()
                run()
                best[place] = min(best[place], (time.process_time() - began) / CELLS * 1e9)
        lines.append((f"{name}: {cells.type}", *best))
    return lines


def _looped(cells: pa.Array) -> int:
    """Sum one cell after the other, its bytes given."""
    spelled = as_binary(plain(cells.drop_null())).to_numpy(zero_copy_only=False)
    return sum(map(xxhash.xxh3_64_intdigest, spelled)) % 2**64


def _exports(rows: int, rounds: int, folder: Path) -> list[tuple[object, ...]]:
    """Export with and without sums in turn; CPU of the tasks, as the state store has it."""
    best = {"without checksums": float("inf"), "with checksums": float("inf")}
    with shop.server(folder) as url, tempfile.TemporaryDirectory() as work:
        shop.fill(url, "narrow", rows)
        os.environ["BENCH_URL"] = url
        for turn in range(rounds):
            for name in best if turn % 2 else [*best][::-1]:
                best[name] = min(best[name], _export(Path(work), with_sums=name.startswith("with ")) / rows * 1e9)
    without = best["without checksums"]
    return [(name, each, each / without) for name, each in best.items()]


def _export(work: Path, *, with_sums: bool) -> float:
    """Export once; CPU seconds of its one task."""
    shutil.rmtree(work / "lake", ignore_errors=True)
    config = work / "rivet.yaml"
    config.write_text(YAML.format(path=work / "lake"))
    sums = mock.patch("rivet_resources.write.checksums.sums.RunningSums.add")
    if with_sums:
        (outcome,) = run_exports(load_config(config))
    else:
        with sums:
            (outcome,) = run_exports(load_config(config))
    if outcome.status != "success":
        raise RuntimeError(outcome.message)
    state = store_of(work)
    (run,) = state.runs("narrow", last=1)
    state.close()
    return run.cpu_seconds


if __name__ == "__main__":
    np.seterr(all="raise")
    main()
