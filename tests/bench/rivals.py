"""`python -m tests.bench.rivals [WORK …] [--rounds 3]`: Rivet beside the original and the bare driver, in one run.

Belongs here: the works, who does them, medians of several rounds in turn. Not here: how a run is measured
(`measuring.py`), that two outputs are equal (`full.py`, `mariadb.py` prove that), servers and tables (`shop.py`).

The original is a program of its own: `cargo install rivet-cli --version 0.32.2 --root FOLDER`, named by
`--original FOLDER/bin/rivet`. It gets the same YAML where it has the keys. Without it its rows are left out.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psycopg

from tests.bench import mariadb_shop, mysql_shop, shop
from tests.bench.full import environment
from tests.bench.measuring import Figures, Watch, measure, table

OURS = (sys.executable, "-m", "rivet_assets.cli.main")
HEADER = ("wall s", "CPU s", "driver + tasks + JVM", "task MB", "JVM MB", "wall s of each round", "CPU s of each round")
FAST = "tuning: {profile: fast}"


@dataclass(frozen=True)
class Contender:
    """One way to do a work; `block` is what its export has besides source, table and destination."""

    name: str
    block: str = ""
    top: str = ""  # keys of the whole file
    is_original: bool = False
    script: tuple[str, ...] = ()  # a module and its arguments in place of a configuration
    exports: int = 1


@dataclass(frozen=True)
class Work:
    """A table and who exports it."""

    kind: str  # of the server: its tables, and `type` of the source
    table: str
    rows: int
    contenders: tuple[Contender, ...]


TWO = f"parallel: 2, {FAST}"
RANGES = f"mode: chunked, chunk_column: id, chunk_size: 500000, {TWO}"
ORIGINAL = (
    Contender("original, fast", f"mode: full, {FAST}", is_original=True),
    Contender("original, chunked, 2 tasks", RANGES, is_original=True),
)
NARROW = (
    Contender("Rivet, fast, 1 task, Spark", f"mode: full, {FAST}"),
    Contender("Rivet, fast, 1 task, inline", f"mode: full, {FAST}", top="spark: inline"),
    Contender("Rivet, fast, full, 2 tasks, Spark", f"mode: full, {TWO}"),
    Contender("Rivet, fast, chunked, 2 tasks, Spark", RANGES),
    Contender("Rivet, fast, full, 2 tasks, inline", f"mode: full, {TWO}", top="spark: inline"),
)
WORKS: Mapping[str, Work] = {
    "start": Work(
        "postgres",
        "small",
        1_000,
        (
            Contender("original", "mode: full", is_original=True),
            Contender("Rivet, inline", "mode: full", top="spark: inline"),
            Contender("Rivet, Spark", "mode: full"),
            Contender("Rivet, Spark, 10 exports", "mode: full", exports=10),
        ),
    ),
    "narrow": Work(
        "postgres",
        "narrow",
        5_000_000,
        (Contender("ADBC script", script=("tests.bench.floor", shop.QUERIES["narrow"])), *ORIGINAL, *NARROW),
    ),
    "wide": Work(
        "postgres",
        "wide",
        200_000,
        (Contender("ADBC script", script=("tests.bench.floor", shop.QUERIES["wide"])), *ORIGINAL, *NARROW[:3]),
    ),
    "mariadb": Work(
        "mariadb",
        "narrow",
        5_000_000,
        (Contender("arrow-odbc script", script=("tests.bench.mariadb_rivals", "odbc", "narrow")), *NARROW),
    ),
    "mysql": Work("mysql", "narrow", 5_000_000, (*ORIGINAL, *NARROW)),
}


def main() -> None:
    """Measure the works that are named, or all, and print a table for each."""
    args = _arguments()
    folder, original = Path(args.folder), args.original
    for name in args.work or WORKS:
        work = WORKS[name]
        contenders = [each for each in work.contenders if original or not each.is_original]
        with _server(work.kind, Path(f"{folder}-mariadb" if work.kind == "mariadb" else folder)) as (url, watch):
            env = environment(url, folder)
            _fill(url, work, args.rows or work.rows)
            found: dict[str, list[Figures]] = {each.name: [] for each in contenders}
            for number in range(args.rounds):
                for each in contenders:
                    print(f"  {name}, round {number + 1}: {each.name}", file=sys.stderr)
                    with _place(folder / "out" / "rivals") as place:
                        command = _command(work, each, place, original)
                        found[each.name].append(measure(command, url=url, env=env, cwd=place, watch=watch))
        lines = [_line(each, figures) for each, figures in found.items()]
        print("\n" + table((f"{name}: {args.rows or work.rows:,} rows", *HEADER), lines) + "\n", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", nargs="*", choices=[*WORKS, []], help="all of them where none is named")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=0, help="other than each work's own number of rows")
    parser.add_argument("--folder", default="/var/tmp/rivet-bench", help="server and outputs; the server's files stay")
    parser.add_argument("--original", default="", help="the original's program; else its rows are left out")
    return parser.parse_args()


@contextmanager
def _server(kind: str, folder: Path) -> Iterator[tuple[str, Watch]]:
    if kind == "mariadb":
        with mariadb_shop.server(folder / "server") as url:
            yield url, mariadb_shop.longest_statement
    elif kind == "mysql":
        with mysql_shop.server() as url:
            yield url, _unwatched
    else:
        with shop.server(folder / "server") as url:
            yield url, _unwatched


def _unwatched(url: str) -> AbstractContextManager[list[float]]:
    """Ask the server for nothing: on two cores its answers would cost the contenders time."""
    return nullcontext([0.0])


def _fill(url: str, work: Work, rows: int) -> None:
    print(f"filling {work.table} with {rows:,} rows", file=sys.stderr)
    if work.kind == "mysql":
        mysql_shop.fill(url, rows)
        return
    if work.table != "small":
        (mariadb_shop if work.kind == "mariadb" else shop).fill(url, work.table, rows)
        return
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS small")
        numbers = f"generate_series(1, {int(rows)}) AS i"
        connection.execute(f"CREATE TABLE small AS SELECT i AS id, 'row ' || i AS note FROM {numbers}".encode())


@contextmanager
def _place(folder: Path) -> Iterator[Path]:
    """Yield an empty folder, without a state of runs before."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def _command(work: Work, contender: Contender, place: Path, original: str) -> Sequence[str]:
    if contender.script:
        return [sys.executable, "-m", *contender.script, str(place / "out.parquet")]
    parquet = "format: parquet, compression: zstd, compression_level: 1"
    exports = "".join(
        f"  - {{name: {work.table}{number or ''}, table: {work.table}, {parquet}, {contender.block}, "
        f"destination: {{type: local, path: {place / 'lake'}}}}}\n"
        for number in range(contender.exports)
    )
    config = place / "rivet.yaml"
    config.write_text(f"source: {{type: {work.kind}, url_env: BENCH_URL}}\n{contender.top}\nexports:\n{exports}")
    program = [original] if contender.is_original else OURS
    return [*program, "run", *(["--config", str(config)] if contender.is_original else ["-c", str(config)])]


def _line(contender: str, figures: Sequence[Figures]) -> Sequence[object]:
    def middle(of: Callable[[Figures], float | None]) -> float | None:
        found = [value for each in figures if (value := of(each)) is not None]
        return median(found) if found else None

    each_round = [", ".join(f"{value:.1f}" for value in values) for values in (
        [each.wall for each in figures], [each.cpu for each in figures],
    )]  # fmt: skip
    return (
        contender, middle(lambda each: each.wall), middle(lambda each: each.cpu), figures[-1].shares,
        middle(lambda each: each.python_mb), middle(lambda each: each.jvm_mb), *each_round,
    )  # fmt: skip


if __name__ == "__main__":
    os.environ.setdefault("DAGSTER_DISABLE_TELEMETRY", "yes")
    main()
