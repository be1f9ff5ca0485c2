"""`python -m tests.bench.features [--rows 1000000] [--beside FOLDER]`: what each feature costs, on and off.

Belongs here: CPU of one inline export of the shop's narrow rows without any feature, with each alone, and, without any,
by the code of another checkout: what is off must cost nothing (within 1 %). Not here: whether features are right. Runs
take turns, and the best of each counts, since other processes share the machine's caches: run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from tests.bench import shop
from tests.bench.measuring import table

ROOT = Path(__file__).parents[2]
YAML = """
source: {{type: postgres, url_env: BENCH_URL, tuning: {{profile: fast, throttle_ms: 0}}}}
spark: inline
{root}
exports:
  - {{name: narrow, table: narrow, mode: full, format: parquet, compression_level: 1,
      destination: {{type: local, path: {path}}}{export}}}
"""
# Name → (keys of the root, keys of the export).
FEATURES: Mapping[str, tuple[str, str]] = {
    "nothing": ("", ""),
    "contract": ("", ", contract: {columns: {id: {required: true}, amount: {min: 0}, status: {required: true}}}"),
    "quarantine": ("", ", on_error: dead_letter"),
    "limits": ("", ", rate_limit: {rows_per_second: 1000000000}"),
    "registry": ("schema_registry: {embedded: true}", ", schema_registry: avro"),
    "profile": ("", ", profile: true"),
    "masks": ("", ", transforms: [{type: mask, fields: [note], method: redact}]"),
    "masks by tag, no column has one": ("mask_tags: {pii: {method: redact}}", ""),
}


def main() -> None:
    """Print CPU of the task for a row, and times that of an export with nothing."""
    args = _arguments()
    names = {name: (ROOT, name) for name in FEATURES if args.only in name or name == "nothing"}
    if args.beside:
        names["nothing, by the other checkout"] = (Path(args.beside).absolute(), "nothing")
    best = dict.fromkeys(names, float("inf"))
    with shop.server(Path(args.folder)) as url, tempfile.TemporaryDirectory() as work:
        shop.fill(url, "narrow", args.rows)
        for turn in range(args.rounds):
            for name in best if turn % 2 else [*best][::-1]:
                code, feature = names[name]
                best[name] = min(best[name], _export(Path(work), feature, code, url) / args.rows * 1e9)
                print(f"  {name}: {best[name]:.0f}", file=sys.stderr)
    lines = [(name, each, each / best["nothing"]) for name, each in best.items()]
    print(table((f"{args.rows} narrow rows, inline", "CPU ns a row", "× nothing"), lines))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the export")
    parser.add_argument("--rounds", type=int, default=7, help="exports of each kind, of which the best counts")
    parser.add_argument("--only", default="", help="features whose name holds this, besides nothing")
    parser.add_argument("--beside", default="", help="another checkout, such as one from before a feature came")
    parser.add_argument("--folder", default="/var/tmp/rivet-bench-checksums", help="the server's files; kept")
    return parser.parse_args()


def _export(work: Path, feature: str, code: Path, url: str) -> float:
    """Export once in a process of its own, by the code of a checkout; CPU seconds of its one task."""
    for old in work.iterdir():
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    root, export = FEATURES[feature]
    config = work / "rivet.yaml"
    config.write_text(YAML.format(path=work / "lake", root=root, export=export))
    env = {**os.environ, "BENCH_URL": url, "PYTHONPATH": str(code), "DAGSTER_DISABLE_TELEMETRY": "yes"}
    command = [sys.executable, "-m", "rivet_assets.cli.main", "run", "-c", str(config)]
    done = subprocess.run(command, env=env, cwd=work, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{feature}: {done.stdout}{done.stderr}")
    with closing(sqlite3.connect(work / ".rivet_state.db")) as store:
        return float(store.execute("SELECT cpu_seconds FROM export_metrics ORDER BY finished_at DESC").fetchone()[0])


if __name__ == "__main__":
    main()
