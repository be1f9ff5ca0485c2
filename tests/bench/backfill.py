"""`python -m tests.bench.backfill [--rows 1000000]`: 365 daily windows in one run against one full export.

Belongs here: what windows cost. Not here: throughput (`full.py`).
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

import psycopg

from tests.bench import shop
from tests.bench.full import environment
from tests.bench.measuring import measure, table

DAYS = 365
YAML = """
source: {{type: postgres, url_env: BENCH_URL, tuning: {{throttle_ms: {throttle}}}}}
exports:
  - {{name: all_days, table: days, mode: full, format: parquet, destination: {{type: local, path: {path}}}}}
  - name: by_day
    table: days
    mode: time_window
    time_column: created_at
    granularity: day
    start: 2025-01-01
    format: parquet
    destination: {{type: local, path: {path}}}
"""
HEADER = (
    "daily windows",
    "rows",
    "wall s",
    "CPU s",
    "driver + tasks + JVM",
    "task MB",
    "JVM MB",
    "longest statement s",
)


def main() -> None:
    """Measure both ways and print one table with the bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--days", type=int, default=DAYS)
    parser.add_argument("--throttle-ms", type=int, default=50, help="50 is the default profile's")
    parser.add_argument("--folder", default="/var/tmp/rivet-bench", help="server and outputs; kept")
    args = parser.parse_args()
    folder = Path(args.folder)
    out = folder / "out" / "backfill"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    config = out / "rivet.yaml"
    config.write_text(YAML.format(path=out / "lake", throttle=args.throttle_ms))
    run = [sys.executable, "-m", "rivet_assets.cli.main", "run", "-c", str(config)]
    with shop.server(folder / "server") as url:
        env = environment(url, folder)
        _fill(url, args.rows)
        with psycopg.connect(url) as connection:
            last = (connection.execute("SELECT (date '2025-01-01' + %s)::text", [args.days - 1]).fetchone() or [""])[0]
        lines = []
        full = measure([*run, "-e", "all_days"], url=url, env=env, cwd=out)
        days = measure([*run, "-e", "by_day", "--partition-range", f"2025-01-01...{last}"], url=url, env=env, cwd=out)
        for name, one in (("one full export", full), (f"{args.days} windows, one run", days)):
            lines.append(
                (name, args.rows, one.wall, one.cpu, one.shares, one.python_mb, one.jvm_mb, one.longest_statement)
            )
    print("\n" + table(HEADER, lines))
    print(f"\nbound: 2 × full + 60 s = {2 * full.wall + 60:.1f} s; took {days.wall:.1f} s")


def _fill(url: str, rows: int) -> None:
    """Spread the rows evenly over the year, in the order of time, with an index on it."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS days")
        connection.execute(
            "CREATE TABLE days AS SELECT i AS id, "
            "timestamptz '2025-01-01 00:00:00+00' + (i - 1) * interval '365 days' / %s AS created_at, "
            "(i * 31 %% 10000) / 100.0 AS amount, 'note ' || i AS note FROM generate_series(1, %s) AS i",
            [rows, rows],
        )
        connection.execute("ALTER TABLE days ADD PRIMARY KEY (id)")
        connection.execute("CREATE INDEX ON days (created_at)")
        connection.execute("VACUUM ANALYZE days")


if __name__ == "__main__":
    main()
