"""`python -m tests.bench.transforms [--rows 5000000]`: what ten transforms add to an export of narrow rows.

Belongs here: the same export with and without ten steps, in one run, and what each step takes of a page. Not here:
what steps make of values (tests/unit/test_transforms_*.py). The steps keep every row and make the file no smaller, so
that nothing they save hides what they cost.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from rivet_resources import registry
from rivet_resources.shape.transforms.pipeline import plan
from tests.bench import mariadb_shop as shop
from tests.bench import measuring
from tests.bench.full import environment
from tests.bench.measuring import Figures, table
from tests.bench.rowhash import narrow

STEPS: list[dict[str, Any]] = [
    {"type": "filter", "field": "id", "op": ">", "value": 0},
    {"type": "mask", "fields": ["uid"], "method": "partial", "last": 4},
    {"type": "rename", "columns": {"note": "remark"}},
    {"type": "cast", "columns": {"customer_id": "text"}},
    {"type": "add", "columns": {"origin": "shop"}},
    {"type": "upper", "columns": ["status"]},
    {"type": "replace", "columns": ["remark"], "find": "note ", "with": "n"},
    {"type": "set_null", "columns": ["remark"], "if_empty": True},
    {"type": "concat", "columns": ["status", "remark"], "separator": "-", "into": "label"},
    {"type": "hash_bucket", "columns": ["customer_id"], "buckets": 16},
]
RIVET_YAML = """
source: {{type: mariadb, url_env: BENCH_URL}}
{spark}
exports:
  - name: narrow
    table: narrow
    mode: full
    format: parquet
    compression: zstd
    compression_level: 1
    transforms: {steps}
    tuning: {{throttle_ms: 0}}
    destination: {{type: local, path: {path}}}
"""
# What the steps make of rows exported without them.
EXPECTED = """
    SELECT id, customer_id::VARCHAR, upper(status), repeat('*', 32) || right(uid, 4),
        nullif(replace(note, 'note ', 'n'), ''), 'shop'
"""
WRITTEN = "SELECT id, customer_id, status, uid, remark, origin"
SPARK = {"Spark": "", "inline": "spark: inline"}
PAGE_ROWS = 65_536
ROUNDS = 7


def main() -> None:
    """Print what each step takes of a page, then the runs."""
    args = _arguments()
    print(table(("step, pages in memory", "CPU ns a row"), _steps()) + "\n", flush=True)
    if not args.rows:
        return
    folder = Path(args.folder)
    with shop.server(folder / "server") as url:
        env = environment(url, folder)
        print(f"filling narrow with {args.rows} rows", file=sys.stderr)
        shop.fill(url, "narrow", args.rows)
        lines = [line for name, spark in SPARK.items() for line in _pair(name, spark, args.rows, folder, env)]
    header = ("narrow", "rows", "CPU s", "driver + tasks + JVM", "× without", "wall s")
    print(table(header, lines))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000, help="rows of the table; 0: only pages in memory")
    parser.add_argument("--folder", default="/var/tmp/rivet-bench-mariadb", help="server and outputs; kept")
    return parser.parse_args()


def _page() -> pa.Table:
    """Make a page as the source gives it."""
    found = narrow(PAGE_ROWS)
    uid = pa.array([f"{number:08x}-7919-4bd7-a7f4-{number * 7919:012x}" for number in range(PAGE_ROWS)])
    names = ["id", "customer_id", "status", "amount", "weight", "created_at", "shipped_on", "note"]
    return found.select(names).append_column("uid", uid)


def _steps() -> list[tuple[str, float]]:
    """Return the best of some rounds for each step, and their sum."""
    page = _page()
    steps = [registry.STEPS[step["type"]].model_validate(step) for step in STEPS]
    stages = plan(steps, page.schema).stages
    best = [float("inf")] * len(stages)
    for _ in range(ROUNDS):
        shaped = page
        for place, stage in enumerate(stages):
            began = time.process_time()
            shaped = stage.apply(shaped)
            best[place] = min(best[place], (time.process_time() - began) / PAGE_ROWS * 1e9)
    return [*((str(step["type"]), each) for step, each in zip(STEPS, best, strict=True)), ("all ten", sum(best))]


def _pair(name: str, spark: str, rows: int, folder: Path, env: dict[str, str]) -> list[tuple[object, ...]]:
    """Run without and with the steps; lines for both.

    Raises:
        RuntimeError: the steps did not make what DuckDB makes of the plain rows.
    """
    out = folder / "out" / f"transforms-{name}"
    shutil.rmtree(out, ignore_errors=True)
    plain = _run(out / "plain", spark, [], env)
    shaped = _run(out / "shaped", spark, STEPS, env)
    _require_same(out, rows)
    return [
        (f"{name}, no transforms", rows, plain.cpu, plain.shares, 1.0, plain.wall),
        (f"{name}, ten transforms", rows, shaped.cpu, shaped.shares, shaped.cpu / plain.cpu, shaped.wall),
    ]


def _run(folder: Path, spark: str, steps: list[dict[str, Any]], env: dict[str, str]) -> Figures:
    folder.mkdir(parents=True)
    config = folder / "rivet.yaml"
    config.write_text(RIVET_YAML.format(spark=spark, steps=json.dumps(steps), path=folder / "lake"))
    print(f"  {folder.parent.name}, {folder.name}", file=sys.stderr)
    command = [sys.executable, "-m", "rivet_assets.cli.main", "run", "-c", str(config)]
    return measuring.measure(command, url=env["BENCH_URL"], env=env, cwd=folder, watch=shop.longest_statement)


def _require_same(out: Path, rows: int) -> None:
    with duckdb.connect() as db:
        db.execute(f"SET temp_directory = '{out}'; SET memory_limit = '8GB'")
        db.execute(f"CREATE VIEW mine AS {WRITTEN} FROM '{out}/shaped/lake/narrow/*.parquet'")
        db.execute(f"CREATE VIEW theirs AS {EXPECTED} FROM '{out}/plain/lake/narrow/*.parquet'")
        counts = [
            (db.execute(f"SELECT count(*) FROM ({select})").fetchone() or [None])[0]
            for select in ("FROM mine", "FROM mine EXCEPT ALL FROM theirs", "FROM theirs EXCEPT ALL FROM mine")
        ]
    if counts != [rows, 0, 0]:
        raise RuntimeError(f"of {rows} rows, {counts[0]} written; {counts[1]} only there, {counts[2]} only by DuckDB")


if __name__ == "__main__":
    main()
