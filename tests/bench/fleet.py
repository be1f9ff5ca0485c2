"""`python -m tests.bench.fleet [--exports 100,1000]`: one round of many incremental exports that find nothing new.

Belongs here: CPU seconds and memory of `rivet run` by how many exports a file has, all of one PostgreSQL. Not here:
what is there already (`scale.py`), throughput (`full.py`). `--profile FILE` writes what cProfile sees of the largest.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tests.bench.measuring import table
from tests.servers import postgres as servers

HEADER = ("exports", "round", "CPU s", "CPU s per export", "wall s", "peak MB")
HEAD = """
source: {{type: postgres, url_env: FLEET_URL, tuning: {{profile: fast}}}}
state: sqlite:///{folder}/state.db
spark: inline
exports:
"""
EXPORT = (
    "  - {{name: t{n}, table: t{n}, mode: incremental, cursor_column: id, format: parquet, skip_empty: {skip}, "
    "destination: {{type: local, path: {folder}/lake}}}}\n"
)


PROFILED = """
import cProfile, runpy, sys, time
file, sys.argv = sys.argv[1], sys.argv[3:]
profile = cProfile.Profile(time.process_time)
profile.enable()
try:
    runpy.run_module("rivet_assets.cli.main", run_name="__main__", alter_sys=True)
finally:
    profile.dump_stats(file)
"""


@dataclass(frozen=True)
class Cost:
    """What one run took."""

    cpu: float
    wall: float
    megabytes: float


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--exports", default="1,100,1000")
    parser.add_argument("--skip-empty", action="store_true", help="write no manifest of a window without rows")
    parser.add_argument("--options", default="", help="of `rivet run`, such as `--pool 4`")
    parser.add_argument("--profile", help="of a last round of the most exports, for pstats")
    arguments = parser.parse_args()
    sizes = [int(each) for each in arguments.exports.split(",")]
    lines: list[tuple[object, ...]] = []
    with tempfile.TemporaryDirectory(prefix="rivet-fleet-", dir="/var/tmp") as name:
        os.chmod(name, 0o755)
        with servers.embedded_postgres(Path(name) / "server") as server:
            url = servers.create_database(server)
            fill(url, max(sizes))
            for size in sizes:
                folder = Path(name) / str(size)
                write(folder, size, skip_empty=arguments.skip_empty)
                rounds = [run(folder, url, arguments.options.split()) for _ in range(3)]
                for what, cost in zip(
                    ("first, 10 rows each", "nothing new", "nothing new, again"), rounds, strict=True
                ):
                    figures = (
                        round(cost.cpu, 1),
                        round(cost.cpu / size, 3),
                        round(cost.wall, 1),
                        round(cost.megabytes),
                    )
                    lines.append((size, what, *figures))
                print(f"  {size}", file=sys.stderr)
            if arguments.profile:
                run(folder, url, arguments.options.split(), python=[sys.executable, "-c", PROFILED, arguments.profile])
    print("\n" + table(HEADER, lines))


def fill(url: str, count: int) -> None:
    """Make so many tables of ten rows."""
    with psycopg.connect(url, autocommit=True) as connection:
        for number in range(count):
            connection.execute(f"CREATE TABLE t{number} (id bigint PRIMARY KEY, note text)")
            connection.execute(f"INSERT INTO t{number} SELECT i, 'row ' || i FROM generate_series(1, 10) AS i")
        connection.execute("ANALYZE")


def write(folder: Path, count: int, *, skip_empty: bool) -> None:
    """Write the configuration."""
    folder.mkdir()
    exports = (EXPORT.format(n=number, folder=folder, skip=str(skip_empty).lower()) for number in range(count))
    (folder / "rivet.yaml").write_text(HEAD.format(folder=folder) + "".join(exports))


def run(folder: Path, url: str, options: Sequence[str], *, python: Sequence[str] = (sys.executable,)) -> Cost:
    """Run all exports; what it cost.

    Raises:
        RuntimeError: one failed; with the end of what was written.
    """
    command = [*python, "-m", "rivet_assets.cli.main", "run", "-q", *options]
    environment = {**os.environ, "FLEET_URL": url, "DAGSTER_DISABLE_TELEMETRY": "yes", "PYTHONWARNINGS": "ignore"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    began = time.monotonic()
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as child:
        assert child.stdout is not None
        said = child.stdout.read()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {child.returncode}:\n{said[-3000:]}")
    return Cost(used.ru_utime + used.ru_stime, time.monotonic() - began, used.ru_maxrss / 1024)


if __name__ == "__main__":
    main()
