"""`python -m tests.bench.full [--rows 5000000] [--wide 200000]`: a whole table, against the floor and Spark JDBC.

Belongs here: the contenders, side by side in one run, and the proof that they wrote the same rows. Not here:
how a run is measured (`measuring.py`). A contender that cannot run is listed with its reason.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import duckdb

from rivet_resources.spark import jvm, jvm_archive
from rivet_resources.spark.jvm_training import build
from tests.bench import shop
from tests.bench.measuring import Figures, measure, table

RIVET_YAML = """
source: {{type: postgres, url_env: BENCH_URL}}
{spark}
exports:
  - name: {name}
    table: {name}
    mode: full
    format: parquet
    compression: zstd
    compression_level: 1
    {tuning}
    destination: {{type: local, path: {path}}}
"""
VARIANTS = {
    "rivet, default profile": ("", ""),
    "rivet, throttle_ms 0": ("", "tuning: {throttle_ms: 0}"),
    "rivet, throttle_ms 0, local[1,3]": ("spark: {master: 'local[1,3]'}", "tuning: {throttle_ms: 0}"),
    "rivet, throttle_ms 0, inline": ("spark: inline", "tuning: {throttle_ms: 0}"),
}
HEADER = (
    "narrow or wide",
    "rows",
    "CPU s",
    "driver + tasks + JVM",
    "× floor",
    "wall s",
    "task MB",
    "JVM MB",
    "longest statement s",
    "same rows",
)


def main() -> None:
    """Measure both tables and print one table."""
    args = _arguments()
    folder = Path(args.folder)
    with shop.server(folder / "server") as url:
        env = environment(url, folder)
        for name, rows in (("narrow", args.rows), ("wide", args.wide)):
            if rows:
                print(f"filling {name} with {rows} rows", file=sys.stderr)
                shop.fill(url, name, rows)
                lines = _contest(name, rows, folder, env, only=args.only)
                print("\n" + table((name, *HEADER[1:]), lines) + "\n", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000, help="rows of the narrow table; 0: leave it out")
    parser.add_argument("--wide", type=int, default=200_000, help="rows of the wide table; 0: leave it out")
    parser.add_argument("--folder", default="/var/tmp/rivet-bench", help="server, jar and outputs; kept")
    parser.add_argument("--only", default="", help="contenders whose name holds this, besides the floor")
    return parser.parse_args()


def environment(url: str, folder: Path) -> dict[str, str]:
    """Return what every contender runs under; the archive is there before the first is measured."""
    os.environ["RIVET_JVM_ARCHIVE"] = str(folder / "archive")
    java = jvm.find_java()
    if not jvm_archive.use(java):
        print(f"archive for Java {java.version}: {build(java)}", file=sys.stderr)
    root = str(Path(__file__).parents[2])
    return {
        **os.environ,
        "BENCH_URL": url,
        "PYTHONPATH": root,
        "DAGSTER_DISABLE_TELEMETRY": "yes",
        "PYTHONWARNINGS": "ignore",
    }


def _contest(name: str, rows: int, folder: Path, env: dict[str, str], *, only: str) -> list[Sequence[object]]:
    out = folder / "out" / name
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    contenders: dict[str, Callable[[], list[str]]] = {"floor: ADBC to pyarrow": lambda: _floor(name, out)}
    for variant in VARIANTS:
        contenders[variant] = lambda variant=variant: _rivet(name, variant, out)  # type: ignore[misc]
    contenders["Spark JDBC, best flags"] = lambda: _jdbc(name, out, folder, env)
    lines: list[Sequence[object]] = []
    floor: Figures | None = None
    for contender, command in contenders.items():
        if floor is not None and only not in contender:
            continue
        print(f"  {contender}", file=sys.stderr)
        try:
            figures = measure(command(), url=env["BENCH_URL"], env=env, cwd=out)
        except RuntimeError as error:
            print(error, file=sys.stderr)
            reason = f"not run: {str(error).splitlines()[0][:60]}"
            lines.append((contender, rows, *[None] * (len(HEADER) - 3), reason))
            continue
        floor = floor or figures
        same = "–" if figures is floor else _same(name, out, contender)
        peaks = (figures.python_mb, figures.jvm_mb, figures.longest_statement)
        lines.append(
            (contender, rows, figures.cpu, figures.shares, figures.cpu / floor.cpu, figures.wall, *peaks, same)
        )
    return lines


def _floor(name: str, out: Path) -> list[str]:
    return [sys.executable, "-m", "tests.bench.floor", shop.QUERIES[name], str(out / "floor.parquet")]


def _rivet(name: str, variant: str, out: Path) -> list[str]:
    spark, tuning = VARIANTS[variant]
    folder = out / _slug(variant)
    folder.mkdir()
    config = folder / "rivet.yaml"
    config.write_text(RIVET_YAML.format(name=name, spark=spark, tuning=tuning, path=folder / "lake"))
    return [sys.executable, "-m", "rivet_assets.cli.main", "run", "-c", str(config)]


def _jdbc(name: str, out: Path, folder: Path, env: dict[str, str]) -> list[str]:
    """Run with an archive of its own, since its jar is on the class path.

    Raises:
        RuntimeError: the driver's jar is not here; with the command that brings it.
    """
    jars = [
        *folder.glob("postgresql-*.jar"),
        *Path.home().glob(".m2/repository/org/postgresql/postgresql/*/postgresql-*.jar"),
    ]
    if not jars:
        raise RuntimeError("no JDBC driver: mvn dependency:get -Dartifact=org.postgresql:postgresql:42.7.7")
    java = jvm.find_java()
    suffix, use = ("aot", "AOTCache") if java.major >= jvm_archive.AOT_SINCE else ("jsa", "SharedArchiveFile")
    archive = folder / "archive" / f"jdbc-java{java.major}.{suffix}"
    command = [sys.executable, "-m", "tests.bench.jdbc", shop.QUERIES[name], str(out / "jdbc"), str(jars[-1])]
    if not archive.exists():
        recording = " ".join(jvm_archive.record(java, archive))
        few = f"{shop.QUERIES[name]} LIMIT 1000"
        subprocess.run([*command[:3], few, *command[4:], recording], env=env, check=True, capture_output=True)
    return [*command, f"-XX:{use}={archive} -Xshare:auto -Xlog:cds=off"]


def _slug(variant: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in variant)


def _same(name: str, out: Path, contender: str) -> str:
    """Compare with the floor's rows both ways, repeats counted: no row may be on one side only."""
    files = out / "jdbc" / "*.parquet" if "JDBC" in contender else out / _slug(contender) / "lake" / name / "*.parquet"
    with duckdb.connect() as db:
        db.execute(f"SET TimeZone = 'UTC'; SET temp_directory = '{out}'; SET memory_limit = '8GB'")
        for side, path in (("mine", files), ("theirs", out / "floor.parquet")):
            types = dict(
                db.execute(f"SELECT column_name, column_type FROM (DESCRIBE SELECT * FROM '{path}')").fetchall()
            )
            uid = "lower(uid::VARCHAR)" if types.get("uid") != "BLOB" else "lower(hex(uid))"
            db.execute(f"CREATE VIEW {side} AS {shop.COMPARED[name].format(uid=uid)} FROM '{path}'")
        odd = [
            (db.execute(f"SELECT count(*) FROM (FROM {a} EXCEPT ALL FROM {b})").fetchone() or [None])[0]
            for a, b in (("mine", "theirs"), ("theirs", "mine"))
        ]
    return "yes" if odd == [0, 0] else f"NO: {odd[0]} only here, {odd[1]} only in the floor"


if __name__ == "__main__":
    main()
