"""`python -m tests.bench.parallel [--rows 1000000] [--rate 8]`: what a second task gains where connections limit.

Belongs here: one export by one task and by two, each connection to the server held to a rate of its own, as by a
network or by a server with cores to spare. Not here: speed on one machine that server and tasks share (`rivals.py`):
there a second task has no core left, whatever it would gain.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.bench import shop
from tests.bench.full import environment
from tests.bench.measuring import table

YAML = """
source: {{type: postgres, url_env: BENCH_URL}}
spark: {spark}
exports:
  - {{name: narrow, table: narrow, {mode}, parallel: {tasks}, format: parquet, compression_level: 1,
      tuning: {{profile: fast}}, destination: {{type: local, path: {path}}}}}
"""
SPARKS = {"Spark": "{master: 'local[2]'}", "inline": "inline"}
MODES = {"full": "mode: full", "chunked": "mode: chunked, chunk_size: 100000"}
PIECE = 32 * 1024


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rate", type=float, default=8.0, help="MB a second that a connection gives")
    parser.add_argument("--rounds", type=int, default=3, help="of which the median counts")
    parser.add_argument("--folder", default="/var/tmp/rivet-bench", help="the server's files; kept")
    args = parser.parse_args()
    folder = Path(args.folder)
    lines: list[tuple[object, ...]] = []
    with shop.server(folder / "server") as url, held_to(url, rate=args.rate * 1e6) as slow:
        env = environment(slow, folder)
        shop.fill(url, "narrow", args.rows)
        for spark in SPARKS:
            for mode in MODES:
                walls: dict[int, list[float]] = {1: [], 2: []}
                for _ in range(args.rounds):
                    for tasks, found in walls.items():
                        found.append(exported(env, spark=SPARKS[spark], mode=MODES[mode], tasks=tasks))
                one, two = (statistics.median(found) for found in walls.values())
                lines.append((f"{mode}, {spark}", round(one, 1), round(two, 1), f"{one / two:.2f}"))
                print(f"  {lines[-1]}", file=sys.stderr)
    print("\n" + table((f"{args.rows:,} narrow rows, {args.rate:g} MB/s", "1 task s", "2 tasks s", "×"), lines))


def exported(env: dict[str, str], *, spark: str, mode: str, tasks: int) -> float:
    """Return the seconds of an export, its start included."""
    with tempfile.TemporaryDirectory() as work:
        config = Path(work) / "rivet.yaml"
        config.write_text(YAML.format(spark=spark, mode=mode, tasks=tasks, path=Path(work) / "lake"))
        command = [sys.executable, "-m", "rivet_assets.cli.main", "run", "-q", "-c", str(config)]
        began = time.monotonic()
        subprocess.run(command, cwd=work, env=env, check=True)
        return time.monotonic() - began


@contextmanager
def held_to(url: str, *, rate: float) -> Iterator[str]:
    """Serve a URL in front of a server: each connection gives at most so many bytes a second."""
    parts = urlsplit(url)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                server = socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 5432))
                for one, other, limit in ((client, server, None), (server, client, rate)):
                    threading.Thread(target=pass_on, args=(one, other, limit), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        port = listener.getsockname()[1]
        yield parts._replace(netloc=parts.netloc.rpartition(":")[0] + f":{port}").geturl()


def pass_on(one: socket.socket, other: socket.socket, rate: float | None) -> None:
    """Copy what comes to the other side, no faster than the rate allows."""
    due = time.monotonic()
    try:
        while piece := one.recv(PIECE):
            if rate is not None:
                due = max(due, time.monotonic() - PIECE / rate) + len(piece) / rate
                time.sleep(max(0.0, due - time.monotonic()))
            other.sendall(piece)
        other.shutdown(socket.SHUT_WR)
    except OSError:
        one.close()
        other.close()


if __name__ == "__main__":
    main()
