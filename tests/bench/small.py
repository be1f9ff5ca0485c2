"""`python -m tests.bench.small`: `rivet run` of a 1,000-row table from shell to shell, and of ten of them in one run.

Belongs here: what starting costs, with the class archive, without it, and inline. Not here: throughput (`full.py`).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import psycopg

from tests.bench import shop
from tests.bench.full import environment
from tests.bench.measuring import measure, table

VARIANTS = {
    "1 export": (1, "", True),
    "10 exports": (10, "", True),
    "1 export, no class archive": (1, "", False),
    "1 export, inline": (1, "spark: inline", True),
    "10 exports, inline": (10, "spark: inline", True),
}
HEADER = ("rivet run, 1,000 rows each", "wall s", "wall s", "CPU s", "driver + tasks + JVM")


def main() -> None:
    """Run each variant twice and print one table; the first column of walls is the first run's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", default="/var/tmp/rivet-bench", help="server and outputs; kept")
    folder = Path(parser.parse_args().folder)
    with shop.server(folder / "server") as url:
        env = environment(url, folder)
        with psycopg.connect(url, autocommit=True) as connection:
            for number in range(10):
                connection.execute(f"DROP TABLE IF EXISTS small{number}")
                connection.execute(
                    f"CREATE TABLE small{number} AS "
                    "SELECT i AS id, 'row ' || i AS note FROM generate_series(1, 1000) AS i"
                )
        lines = []
        for name, (count, spark, archive) in VARIANTS.items():
            print(f"  {name}", file=sys.stderr)
            command = _command(folder / "out" / "small", count, spark)
            used = env if archive else {**env, "RIVET_JVM_ARCHIVE": "off"}
            first, second = (measure(command, url=url, env=used, cwd=folder) for _ in range(2))
            lines.append((name, first.wall, second.wall, second.cpu, second.shares))
    print("\n" + table(HEADER, lines))


def _command(folder: Path, count: int, spark: str) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    exports = "".join(
        f"  - {{name: small{number}, table: small{number}, format: parquet, "
        f"destination: {{type: local, path: {folder / 'lake'}}}}}\n"
        for number in range(count)
    )
    config = folder / "rivet.yaml"
    config.write_text(f"source: {{type: postgres, url_env: BENCH_URL}}\n{spark}\nexports:\n{exports}")
    return [sys.executable, "-m", "rivet_assets.cli.main", "run", "-c", str(config)]


if __name__ == "__main__":
    main()
