"""`python -m tests.bench.scale [--windows 10,100,1000,10000] [--chain] [--grow]`: what one commit costs beside many.

Belongs here: CPU seconds and requests by how much is there already; with `--grow` CPU seconds and memory of one run by
its rows and by its columns. Not here: throughput (`full.py`).

The windows that are there are copies of one that a run committed, each with its own key and its row in the state store:
made by hand, since 10,000 runs would take an hour, and since a run looks at names and manifests, not at parts. With
`--chain` they are a chain of `after=` windows that was never compacted, from which the state store is rebuilt.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from rivet_resources.commit.manifest import manifest_path
from rivet_resources.contracts.destination import Destination
from rivet_resources.contracts.extract import Window
from rivet_resources.destinations.local import Local
from rivet_resources.destinations.s3 import S3
from rivet_resources.fan_out import in_threads
from tests.asked import kind_of
from tests.bench.measuring import table
from tests.fence import Fence
from tests.servers.postgres import moto_s3

FIRST = datetime(2020, 1, 1, tzinfo=UTC)
RUNS = 3
HEADER = ("windows there", "CPU s", "of the fewest", "requests", "of these")
YAML = """
source: {{type: sqlite, path: {folder}/shop.db}}
state: sqlite:///{folder}/state.db
spark: inline
exports:
  - name: orders
    query: SELECT 1 AS id, '2020-01-01 00:30:00' AS at
    columns: {{at: timestamp}}
    mode: time_window
    time_column: at
    granularity: hour
    start: 2020-01-01
    skip_empty: false
    format: parquet
    destination: {destination}
"""


CHAIN = """
source: {{type: sqlite, path: {folder}/shop.db}}
state: sqlite:///{folder}/state.db
spark: inline
exports:
  - name: orders
    table: orders
    mode: incremental
    cursor_column: id
    format: parquet
    destination: {destination}
"""
GROWN = """
source: {{type: sqlite, path: {folder}/shop.db}}
state: sqlite:///{folder}/state.db
spark: inline
exports:
  - {{name: orders, table: orders, mode: full, format: parquet, destination: {{type: local, path: {folder}/lake}}}}
"""
ROWS, OF_COLUMNS = (0, 1_000_000, 2_000_000, 4_000_000), 10
COLUMNS, OF_ROWS = (0, 10, 100, 1000), 5_000
FIRST_ID = 1_000_000  # of a chain: names of windows sort as their numbers do, as those of times


@dataclass
class Place:
    """Where windows lie, and how its requests are counted."""

    name: str
    yaml: str
    destination: Destination
    requests: Callable[[], Counter[str]]


def main() -> None:
    """Print one table for each place."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", default="10,100,1000,10000")
    parser.add_argument("--folder", default="/var/tmp/rivet-bench/scale", help="everything is written here, and kept")
    parser.add_argument("--grow", action="store_true", help="one run by its rows and by its columns instead")
    parser.add_argument("--chain", action="store_true", help="windows of an incremental export")
    arguments = parser.parse_args()
    beside = commit_to_chain if arguments.chain else commit_beside
    sizes = [int(each) for each in arguments.windows.split(",")]
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "DAGSTER_DISABLE_TELEMETRY": "yes",
        "PYTHONWARNINGS": "ignore",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    if arguments.grow:
        grow(Path(arguments.folder) / f"{datetime.now(UTC):%H%M%S}-grow")
        return
    with moto_s3() as store, counting(store.endpoint) as (endpoint, seen):
        for kind in ("local", "s3"):
            lines: list[tuple[object, ...]] = []
            for size in sizes:
                folder = Path(arguments.folder) / f"{datetime.now(UTC):%H%M%S}-{kind}-{size}"
                folder.mkdir(parents=True)
                place = local(folder) if kind == "local" else on_s3(folder, endpoint, seen)
                cpu, requests = beside(place, folder, windows=size)
                ratio = cpu / float(lines[0][1]) if lines else 1.0  # type: ignore[arg-type]
                told = ", ".join(f"{count} {name}" for name, count in sorted(requests.items()))
                lines.append((f"{size:,}", round(cpu, 2), f"{ratio:.2f}", sum(requests.values()), told))
                print(f"  {kind} {size}", file=sys.stderr)
            print(f"\n{kind}\n" + table(HEADER, lines))


def grow(folder: Path) -> None:
    """Print what full exports of a table cost by its rows, and by its columns; less the start over no rows."""
    sizes = {
        "rows": [(rows, OF_COLUMNS) for rows in ROWS],
        "columns": [(OF_ROWS if columns else 0, columns or OF_COLUMNS) for columns in COLUMNS],
    }
    for what, tables in sizes.items():
        lines, start, each = list[tuple[object, ...]](), 0.0, 0.0
        for rows, columns in tables:
            cpu, peak = exported(folder / f"{what}-{rows}-{columns}", rows=rows, columns=columns)
            if not rows:
                start = cpu
            cells = rows * columns
            each = each or (cpu - start) / max(cells, 1) if rows else 0.0
            ratio = f"{(cpu - start) / cells / each:.2f}" if rows else "start"
            lines.append((f"{rows:,}", f"{columns:,}", round(cpu, 2), ratio, round(peak)))
        print(f"\n{what}\n" + table(("rows", "columns", "CPU s", "a cell, of the fewest", "peak MB"), lines))


def exported(folder: Path, *, rows: int, columns: int) -> tuple[float, float]:
    """Return the CPU seconds and the largest memory of a full export of a made-up table."""
    folder.mkdir(parents=True)
    (folder / "rivet.yaml").write_text(GROWN.format(folder=folder))
    names = [f"c{number}" for number in range(1, columns)]
    with sqlite3.connect(folder / "shop.db") as shop:
        shop.execute(f"CREATE TABLE orders (id INTEGER PRIMARY KEY, {', '.join(f'{name} INTEGER' for name in names)})")
        values = ", ".join(f"(n * 7919 + {number}) % 100003" for number in range(1, columns))
        shop.execute(
            f"WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers LIMIT {rows}) "
            f"INSERT INTO orders SELECT n, {values} FROM numbers WHERE {rows}"
        )
    best = [spent(folder, "run", "-q") for _ in range(RUNS)]
    return statistics.median(cpu for cpu, _ in best), statistics.median(peak for _, peak in best)


def local(folder: Path) -> Place:
    """Return a folder of this machine; nobody counts."""
    path = folder / "lake"
    return Place("local", f"{{type: local, path: {path}}}", Local(path=str(path)), Counter)


def on_s3(folder: Path, endpoint: str, seen: Counter[str]) -> Place:
    """Return a prefix of the emulator, behind the proxy that counts."""
    yaml = f"{{type: s3, bucket: lake, prefix: {folder.name}, endpoint: '{endpoint}'}}"
    return Place("s3", yaml, S3(bucket="lake", prefix=folder.name, endpoint=endpoint), lambda: Counter(seen))


def commit_beside(place: Place, folder: Path, *, windows: int) -> tuple[float, Counter[str]]:
    """Return the CPU seconds of a run of one new window beside so many, and its requests; medians of `RUNS`."""
    (folder / "rivet.yaml").write_text(YAML.format(folder=folder, destination=place.yaml))
    sqlite3.connect(folder / "shop.db").close()
    run(folder, hour=0)
    run(folder, hour=1)  # the first look for leftovers is over
    multiply(place.destination, folder / "state.db", windows=windows)
    return measured(place, lambda number: run(folder, hour=windows + number))


def commit_to_chain(place: Place, folder: Path, *, windows: int) -> tuple[float, Counter[str]]:
    """Return the same of a window that continues a chain of so many."""
    (folder / "rivet.yaml").write_text(CHAIN.format(folder=folder, destination=place.yaml))
    with sqlite3.connect(folder / "shop.db") as shop:
        shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")

    def add(number: int) -> float:
        with sqlite3.connect(folder / "shop.db") as shop:
            shop.execute("INSERT INTO orders VALUES (?)", (FIRST_ID + number,))
        return rivet(folder, "run", "-q")

    add(0)
    add(1)
    root = place.destination.root("orders")
    found = root.read(manifest_path(Window.after(str(FIRST_ID))))
    assert found is not None
    original = json.loads(found[0])

    def put(number: int) -> None:
        low, high = str(FIRST_ID + number), str(FIRST_ID + number + 1)
        window = Window.after(low)
        run_id = f"orders_{FIRST:%Y%m%dT%H%M%S}.000_{number:06x}"
        made = {**original, "run_id": run_id, "window": window.key}
        made["cursor"] = {**original["cursor"], "low": low, "high": high}
        root.put(manifest_path(window), json.dumps(made, indent=2).encode())

    in_threads(put, range(1, windows - 1), most=8)
    rivet(folder, "state", "rebuild", "-e", "orders")
    return measured(place, lambda number: add(windows + number))


def measured(place: Place, commit: Callable[[int], float]) -> tuple[float, Counter[str]]:
    """Commit some more; medians of their CPU seconds and of their requests."""
    costs, requests = [], []
    for number in range(RUNS):
        before = place.requests()
        costs.append(commit(number))
        requests.append(place.requests() - before)
    return statistics.median(costs), sorted(requests, key=lambda each: sum(each.values()))[RUNS // 2]


def run(folder: Path, *, hour: int) -> float:
    """Run one window of time; its CPU seconds."""
    return rivet(folder, "run", "-q", "--partition", key_of(hour))


def rivet(folder: Path, *arguments: str) -> float:
    """Run a command beside the configuration; its CPU seconds."""
    return spent(folder, *arguments)[0]


def spent(folder: Path, *arguments: str) -> tuple[float, float]:
    """Run a command beside the configuration; its CPU seconds, and its largest memory in MB.

    Raises:
        RuntimeError: it failed; with the end of what it wrote.
    """
    command = [sys.executable, "-m", "rivet_assets.cli.main", *arguments]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
        assert child.stdout is not None
        said = child.stdout.read()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {child.returncode}:\n{said[-3000:]}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def multiply(destination: Destination, state: Path, *, windows: int) -> None:
    """Copy the manifest and the history of hour 1 to each hour up to `windows`."""
    root = destination.root("orders")
    found = root.read(manifest_path(Window(key_of(1))))
    assert found is not None
    original = json.loads(found[0])
    with sqlite3.connect(state) as store:
        for hour in range(2, windows):
            run_id = f"orders_{FIRST:%Y%m%dT%H%M%S}.000_{hour:06x}"
            start, end = (f"{FIRST + timedelta(hours=each):%Y-%m-%dT%H:%M:%SZ}" for each in (hour, hour + 1))
            made = {**original, "run_id": run_id, "window": key_of(hour), "window_start": start, "window_end": end}
            root.put(manifest_path(Window(key_of(hour))), json.dumps(made, indent=2).encode())
            copy_rows(store, original["run_id"], run_id, key_of(hour))


def copy_rows(store: sqlite3.Connection, like: str, run_id: str, window: str) -> None:
    """Copy what the store keeps of a run."""
    for name in ("export_metrics", "file_manifest"):
        columns = [row[1] for row in store.execute(f"PRAGMA table_info({name})")]
        values = ["?" if column in ("run_id", "window_key") else column for column in columns]
        given = [
            {"run_id": run_id, "window_key": window}[column] for column in columns if column in ("run_id", "window_key")
        ]
        store.execute(
            f"INSERT INTO {name} ({', '.join(columns)}) SELECT {', '.join(values)} FROM {name} WHERE run_id = ?",
            (*given, like),
        )


def key_of(hour: int) -> str:
    """Name the window of an hour."""
    return f"{FIRST + timedelta(hours=hour):%Y-%m-%d-%H:00}"


@contextmanager
def counting(endpoint: str) -> Iterator[tuple[str, Counter[str]]]:
    """Serve a proxy before a store; its endpoint, and what passed: {LIST, GET, PUT …: how often}."""
    seen: Counter[str] = Counter()

    class Counting(Fence):
        upstream = urlsplit(endpoint).netloc
        lock = threading.Lock()

        def ask(
            self, method: str, path: str, body: bytes, headers: Mapping[str, str]
        ) -> tuple[int, dict[str, str], bytes]:
            """Count, and pass on."""
            seen[kind_of(method, path)] += 1
            return super().ask(method, path, body, dict(headers))

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Counting)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()


if __name__ == "__main__":
    main()
