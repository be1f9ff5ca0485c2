"""`python -m tests.bench.harm [--rows 5000000] [--rate 300]`: what an export costs the people who work meanwhile.

Belongs here: pgbench at a steady rate on a real PostgreSQL 15, its latencies alone and beside an export, with and
without the governor. Not here: what the export costs itself (`full.py`). Client, server and export share this machine,
so what is measured is the export's whole appetite, not only the server's part of it.

Variants take turns. A transaction's latency counts from the instant it was due (`--rate`), so one that could not begin
in time is not forgiven.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench import shop
from tests.bench.full import environment
from tests.bench.measuring import table

YAML = """
source: {{type: postgres, url_env: BENCH_URL}}
exports:
  - name: narrow
    table: narrow
    mode: full
    format: parquet
    compression: zstd
    compression_level: 1
    tuning: {tuning}
    destination: {{type: local, path: {path}}}
"""
VARIANTS = {
    "balanced": "{profile: balanced}",
    "balanced, adaptive false": "{profile: balanced, adaptive: false}",
    "fast": "{profile: fast}",
}
HEADER = ("beside pgbench", "transactions", "p50 ms", "p95 ms", "p99 ms", "p95 × quiet", "p99 × quiet", "export s")
WARM_SECONDS = 3


@dataclass
class Felt:
    """Latencies that pgbench's clients felt beside one variant, over all rounds, ms."""

    latencies: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # of the exports

    def quantile(self, share: float) -> float:
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def main() -> None:
    """Measure quiet and beside each variant, in turns, and print one table."""
    args = _arguments()
    folder = Path(args.folder)
    with shop.server(folder / "server") as url:
        env = environment(url, folder)
        print(f"filling narrow with {args.rows} rows", file=sys.stderr)
        shop.fill(url, "narrow", args.rows)
        subprocess.run([args.pgbench, "-i", "-q", "-s", str(args.scale), url], check=True, capture_output=True)
        felt = {name: Felt() for name in ("quiet", *VARIANTS)}
        for number in range(args.rounds):
            print(f"round {number + 1}, load {os.getloadavg()[0]:.2f}", file=sys.stderr)
            for name in felt:
                _round(name, felt[name], args, url, env, folder / "out" / "harm")
    print("\n" + table(HEADER, list(_lines(felt))) + "\n", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000, help="rows of the exported table")
    parser.add_argument("--rate", type=int, default=300, help="transactions a second; half of what the machine can do")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--scale", type=int, default=20, help="of pgbench's tables")
    parser.add_argument("--quiet", type=float, default=15, help="seconds of a quiet round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--folder", default="/var/tmp/rivet-bench", help="server and outputs; kept")
    parser.add_argument("--pgbench", default="/usr/bin/pgbench")
    return parser.parse_args()


def _round(name: str, felt: Felt, args: argparse.Namespace, url: str, env: dict[str, str], out: Path) -> None:
    """Let pgbench work, alone or beside one export, and keep what its clients felt meanwhile."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    with _pgbench(args, url, out):
        time.sleep(WARM_SECONDS)
        began = time.time()
        if name == "quiet":
            time.sleep(args.quiet)
        else:
            _export(VARIANTS[name], env, out)
        ended = time.time()
    felt.seconds.append(ended - began)
    felt.latencies += _latencies(out, began, ended)


@contextmanager
def _pgbench(args: argparse.Namespace, url: str, out: Path) -> Iterator[None]:
    command = [args.pgbench, "-n", "-l", "--log-prefix", str(out / "pgbench"), "-c", str(args.clients), "-j", "2",
               "-R", str(args.rate), "-T", "600", url]  # fmt: skip
    with subprocess.Popen(command, cwd=out, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        try:
            yield
            if running.poll() is not None:
                raise RuntimeError(f"pgbench ended before the export did, with {running.returncode}")
        finally:
            running.terminate()


def _export(tuning: str, env: dict[str, str], out: Path) -> None:
    config = out / "rivet.yaml"
    config.write_text(YAML.format(tuning=tuning, path=out / "lake"))
    command = [sys.executable, "-m", "rivet_assets.cli.main", "run", "-c", str(config)]
    ran = subprocess.run(command, cwd=out, env=env, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(f"the export ended with {ran.returncode}:\n{ran.stderr[-3000:]}")


def _latencies(out: Path, began: float, ended: float) -> list[float]:
    """Read pgbench's logs: client, number, latency µs, script, seconds and µs of the end, lag µs."""
    found = []
    for log in out.glob("pgbench.*"):
        for line in log.read_text().splitlines():
            words = line.split()
            if len(words) < 7 or not words[2].isdigit():
                continue
            ended_at = int(words[4]) + int(words[5]) / 1e6
            if began <= ended_at <= ended:
                found.append(int(words[2]) / 1000)
    return found


def _lines(felt: dict[str, Felt]) -> Iterator[Sequence[object]]:
    quiet = felt["quiet"]
    for name, one in felt.items():
        p95, p99 = one.quantile(0.95), one.quantile(0.99)
        ratios = (p95 / quiet.quantile(0.95), p99 / quiet.quantile(0.99))
        seconds = None if name == "quiet" else statistics.median(one.seconds)
        yield (name, len(one.latencies), one.quantile(0.5), p95, p99, *ratios, seconds)


if __name__ == "__main__":
    main()
