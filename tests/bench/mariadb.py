"""`python -m tests.bench.mariadb [--rows 5000000] [--wide 200000]`: a whole table of MariaDB, against its rivals.

Belongs here: the contenders, side by side in one run, and the proof that they wrote the same rows. Not here:
the server and its tables (`mariadb_shop.py`), the rivals (`mariadb_rivals.py`), how a run is measured
(`measuring.py`). Nothing is printed of a table of which two contenders disagree.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import duckdb

from rivet_resources.spark import jvm, jvm_archive
from tests.bench import mariadb_shop as shop
from tests.bench import measuring
from tests.bench.full import environment
from tests.bench.measuring import Figures, table

RIVET_YAML = """
source: {{type: mariadb, url_env: BENCH_URL}}
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
RIVET = {
    "rivet, default profile": ("", ""),
    "rivet, throttle_ms 0": ("", "tuning: {throttle_ms: 0}"),
    "rivet, throttle_ms 0, inline": ("spark: inline", "tuning: {throttle_ms: 0}"),
}
ODBC = "arrow-odbc, keyset pages"
RIVALS = {ODBC: "odbc", "PyMySQL's own cursor": "rows", "Spark JDBC, best flags": "jdbc"}
JAR = "org.mariadb.jdbc:mariadb-java-client:3.5.3"
HEADER = (
    "rows",
    "CPU s",
    "driver + tasks + JVM",
    "× arrow-odbc",
    "wall s",
    "task MB",
    "JVM MB",
    "longest statement s",
)


def main() -> None:
    """Measure both tables and print one table each."""
    args = _arguments()
    folder = Path(args.folder)
    with _server(args.url, folder) as url:
        env = environment(url, folder)
        for name, rows in (("narrow", args.rows), ("wide", args.wide)):
            if rows:
                print(f"filling {name} with {rows} rows", file=sys.stderr)
                shop.fill(url, name, rows)
                lines = _contest(name, rows, folder, env, only=args.only)
                print("\n" + table((name, *HEADER), lines) + "\n", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000, help="rows of the narrow table; 0: leave it out")
    parser.add_argument("--wide", type=int, default=200_000, help="rows of the wide table; 0: leave it out")
    parser.add_argument("--folder", default="/var/tmp/rivet-bench-mariadb", help="server, archive and outputs; kept")
    parser.add_argument("--only", default="", help="contenders whose name holds this, besides arrow-odbc")
    parser.add_argument(
        "--url", default=os.environ.get("RIVET_BENCH_MARIADB_URL", ""), help="a server that runs; else one is started"
    )
    return parser.parse_args()


@contextmanager
def _server(url: str, folder: Path) -> Iterator[str]:
    """Yield the server's URL: the one named, in a database of its own, or a new one."""
    if not url:
        with shop.server(folder / "server") as own:
            yield own
        return
    yield url


def _contest(name: str, rows: int, folder: Path, env: dict[str, str], *, only: str) -> list[Sequence[object]]:
    """Measure every contender, compare every output, then give the lines.

    Raises:
        RuntimeError: two outputs differ.
    """
    out = folder / "out" / name
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    contenders: dict[str, Callable[[], list[str]]] = {
        rival: lambda word=word: _rival(word, name, out, folder, env)  # type: ignore[misc]
        for rival, word in RIVALS.items()
    } | {
        variant: lambda variant=variant: _rivet(name, variant, out)  # type: ignore[misc]
        for variant in RIVET
    }
    measured: dict[str, Figures | str] = {}
    for contender, command in contenders.items():
        if contender == ODBC or only in contender:
            print(f"  {contender}", file=sys.stderr)
            try:
                measured[contender] = measuring.measure(
                    command(), url=env["BENCH_URL"], env=env, cwd=out, watch=shop.longest_statement
                )
            except RuntimeError as error:
                print(error, file=sys.stderr)
                measured[contender] = f"not run: {str(error).splitlines()[0][:60]}"
    _require_same(name, rows, out, [one for one, figures in measured.items() if isinstance(figures, Figures)])
    yardstick = measured[ODBC]
    base = yardstick.cpu if isinstance(yardstick, Figures) else None
    return [_line(contender, rows, figures, base) for contender, figures in measured.items()]


def _line(contender: str, rows: int, figures: Figures | str, base: float | None) -> Sequence[object]:
    if isinstance(figures, str):
        return (contender, rows, None, figures, *[None] * (len(HEADER) - 3))
    ratio = figures.cpu / base if base else None
    peaks = (figures.python_mb, figures.jvm_mb, figures.longest_statement)
    return (contender, rows, figures.cpu, figures.shares, ratio, figures.wall, *peaks)


def _rivet(name: str, variant: str, out: Path) -> list[str]:
    spark, tuning = RIVET[variant]
    folder = out / _slug(variant)
    folder.mkdir()
    config = folder / "rivet.yaml"
    config.write_text(RIVET_YAML.format(name=name, spark=spark, tuning=tuning, path=folder / "lake"))
    return [sys.executable, "-m", "rivet_assets.cli.main", "run", "-c", str(config)]


def _rival(word: str, name: str, out: Path, folder: Path, env: dict[str, str]) -> list[str]:
    target = out / (f"{word}.parquet" if word != "jdbc" else word)
    command = [sys.executable, "-m", "tests.bench.mariadb_rivals", word, name, str(target)]
    return command if word != "jdbc" else _with_archive(command, name, folder, env)


def _with_archive(command: list[str], name: str, folder: Path, env: dict[str, str]) -> list[str]:
    """Add the driver's jar, and a class archive of its own since the jar is on the class path.

    Raises:
        RuntimeError: the driver's jar is not here; with the command that brings it.
    """
    group, artefact, version = JAR.split(":")
    jar = Path.home() / ".m2/repository" / group.replace(".", "/") / artefact / version / f"{artefact}-{version}.jar"
    if not jar.exists():
        raise RuntimeError(f"no JDBC driver: mvn dependency:get -Dartifact={JAR}")
    java = jvm.find_java()
    suffix, use = ("aot", "AOTCache") if java.major >= jvm_archive.AOT_SINCE else ("jsa", "SharedArchiveFile")
    archive = folder / "archive" / f"jdbc-{name}-java{java.major}.{suffix}"
    if not archive.exists():
        recording = " ".join(jvm_archive.record(java, archive))
        subprocess.run([*command, str(jar), recording], env=env, check=True, capture_output=True)
    return [*command, str(jar), f"-XX:{use}={archive} -Xshare:auto -Xlog:cds=off"]


def _slug(variant: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in variant)


def _files(contender: str, name: str, out: Path) -> Path:
    word = RIVALS.get(contender)
    if word is None:
        return out / _slug(contender) / "lake" / name / "*.parquet"
    return out / word / "*.parquet" if word == "jdbc" else out / f"{word}.parquet"


def _require_same(name: str, rows: int, out: Path, contenders: Sequence[str]) -> None:
    """Compare all with the first both ways, repeats counted: no row may be on one side only.

    Raises:
        RuntimeError: some row is.
    """
    first, *others = contenders
    with duckdb.connect() as db:
        db.execute(f"SET TimeZone = 'UTC'; SET temp_directory = '{out}'; SET memory_limit = '8GB'")
        db.execute(f"CREATE TABLE theirs AS {shop.COMPARED[name]} FROM '{_files(first, name, out)}'")
        counted = (db.execute("SELECT count(*) FROM theirs").fetchone() or [None])[0]
        if counted != rows:
            raise RuntimeError(f"{first} wrote {counted} rows of {rows}")
        for contender in others:
            db.execute(f"CREATE OR REPLACE VIEW mine AS {shop.COMPARED[name]} FROM '{_files(contender, name, out)}'")
            odd = [
                (db.execute(f"SELECT count(*) FROM (FROM {a} EXCEPT ALL FROM {b})").fetchone() or [None])[0]
                for a, b in (("mine", "theirs"), ("theirs", "mine"))
            ]
            if odd != [0, 0]:
                raise RuntimeError(f"{name}: {odd[0]} rows only in {contender}, {odd[1]} only in {first}")
    print(f"  {len(contenders)} outputs hold the same {rows} rows", file=sys.stderr)


if __name__ == "__main__":
    main()
