"""The demo: a shop in an embedded PostgreSQL, exported through Dagster on Spark into ./rivet_demo.

Belongs here: what `rivet demo` does and says, in order. Not here: the shop's rows (`shop.py`), the exports
(`defs/demo/defs.yaml`, the very project that `rivet demo --ui` and `dagster dev` serve), running
(`launch/run_exports.py`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from rivet_assets.demo import shop
from rivet_assets.launch import outcome as report
from rivet_assets.run import interruption
from rivet_assets.run.words import human_bytes
from rivet_resources.embedded_postgres import SMALL, EmbeddedServer, ServerFailed, serving
from rivet_resources.extras import DEMO, UI

if TYPE_CHECKING:
    from rivet_assets.config.load import RivetConfig
    from rivet_assets.launch.outcome import Outcome
    from rivet_assets.launch.recorder import News, Watch
    from rivet_resources.commit.manifest import Manifest

Say = Callable[[str], None]

HOME = Path("rivet_demo")  # below the current folder, as `defs.yaml` says too
DEFINITIONS = Path(__file__).parents[1] / "defs" / "demo" / "defs.yaml"
DATABASE = "shop"
LOGICAL = {**SMALL, "wal_level": "logical"}  # so that the log can be followed

DAGSTER_YAML = """\
# Written by `rivet demo`. No pools: their slots outlive a killed process, and the next demo would wait for them.
telemetry: {enabled: false}
nux: {enabled: false}
"""
WORKSPACE_YAML = """\
# Written by `rivet demo`: the location under the name it has everywhere.
load_from:
  - python_module: {module_name: rivet_assets.definitions, location_name: rivet}
"""


@dataclass(frozen=True)
class Round:
    """Which time this is, and what the lake held before it: {export: {window: manifest}}."""

    number: int
    before: Mapping[str, Mapping[str, Manifest]]


def demo_config() -> RivetConfig:
    """Load the demo's exports from their one definition.

    Raises:
        ConfigError: the packaged file is wrong.
    """
    from rivet_assets.config.load import config_from_attributes  # start

    document = yaml.safe_load(DEFINITIONS.read_text())
    return config_from_attributes(document["attributes"], file=DEFINITIONS)


def run(*, say: Say) -> int:
    """Fill the shop (or add a round of rows), run the exports, tell what happened; the exit code.

    Raises:
        ExtraMissing, SparkUnavailable: the server, a driver or Java is not installed.
        ServerFailed: the embedded server does not start.
    """
    from rivet_assets.launch.run_exports import run_windows  # start

    _require_installed()
    _prepare()
    with _shop(say) as number:
        config = demo_config()
        this = Round(number, _lake(config))
        say(f"Running {len(config.exports)} exports through Dagster on Spark")
        outcomes = run_windows(config, {"orders": _days(this)}, watch=_progress(say))
        after = _lake(config)
    for outcome in outcomes:
        if not outcome.success or outcome.warnings:
            say(f"\n{report.block(outcome)}")
    say(f"\n{report.table(outcomes)}")
    if this.number > 1:
        say("\n" + "\n".join(_changes(this, after)))
    say("\n" + _where_it_is(outcomes))
    return report.worst_exit_code(outcomes)


def serve_ui(*, port: int, say: Say) -> int:
    """Serve the project in Dagster on 127.0.0.1 until Ctrl-C, the shop's server running; the exit code.

    Raises:
        ExtraMissing, SparkUnavailable: the server, the web pages or a driver is not installed.
    """
    UI.require()
    _require_installed()
    _prepare()
    with _shop(say, add_rows=False):
        workspace = HOME / "workspace.yaml"
        workspace.write_text(WORKSPACE_YAML)
        say(f"Dagster will be at http://127.0.0.1:{port} in some ten seconds; Ctrl-C ends it and the database.")
        return _until_interrupted([
            sys.executable, "-m", "dagster", "dev", "-w", str(workspace), "-h", "127.0.0.1", "-p", str(port),
        ])  # fmt: skip


# --- the shop ------------------------------------------------------------------------------------


def _require_installed() -> None:
    """Raise before the demo leaves a folder behind that it cannot fill."""
    from rivet_assets.launch.run_exports import require_installed  # start

    DEMO.require()
    config = demo_config()
    require_installed(config, config.exports)


def _prepare() -> None:
    """Make the folder; runs are kept where the UI will look for them."""
    home = HOME / "dagster_home"
    home.mkdir(parents=True, exist_ok=True)
    if not (home / "dagster.yaml").exists():
        (home / "dagster.yaml").write_text(DAGSTER_YAML)
    os.environ["DAGSTER_HOME"] = str(home.absolute())
    os.environ.setdefault("DAGSTER_DISABLE_TELEMETRY", "yes")
    os.environ.pop("RIVET_CONFIG", None)  # the demo's project has no other exports


@contextmanager
def _shop(say: Say, *, add_rows: bool = True) -> Iterator[int]:
    """Run the server with the shop in it, its URL where `defs.yaml` expects it; yields the round's number."""
    began = time.monotonic()
    with serving(HOME / "postgres", settings=LOGICAL) as server:
        say(f"PostgreSQL runs in {HOME / 'postgres'} ({time.monotonic() - began:.1f} s)")
        _write_secret(HOME / "source.url", server.url(DATABASE))
        yield _fill(server, say, add_rows=add_rows)


def _write_secret(path: Path, text: str) -> None:
    # The mode is given as the file is made: with `chmod` after it, others could read it for a moment.
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text + "\n")


def _fill(server: EmbeddedServer, say: Say, *, add_rows: bool) -> int:
    """Make the shop, or add a round of rows to it; the number of the round that the shop is in."""
    import psycopg  # driver

    began = time.monotonic()
    try:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone():
                connection.execute(f"CREATE DATABASE {DATABASE}")
        with psycopg.connect(server.url(DATABASE)) as connection:  # one transaction: a shop is whole or not there
            known = connection.execute("SELECT to_regclass('demo_rounds')").fetchone()
            opened = bool(known and known[0])
            last = connection.execute("SELECT max(round) FROM demo_rounds").fetchone() if opened else None
            number = int(last[0]) if last else 0
            statements = shop.opening() if number == 0 else shop.later(number + 1) if add_rows else []
            for statement in statements:
                connection.execute(statement)
        if statements:
            with psycopg.connect(server.url(DATABASE), autocommit=True) as connection:
                connection.execute("ANALYZE")
    except psycopg.Error as error:
        raise ServerFailed(
            f"The shop could not be filled: {error}. Remove {HOME} and run `rivet demo` again."
        ) from error
    if not statements:
        return number
    say(f"{_what_came(number + 1)} ({time.monotonic() - began:.1f} s)")
    return number + 1


def _what_came(number: int) -> str:
    if number > 1:
        return (
            f"Round {number}: {shop.NEW_EVENTS:,} new events, {shop.LATE_ORDERS} late orders of {shop.LATE_DAY}, "
            f"some orders returned"
        )
    return (
        f"The shop is filled: {shop.CUSTOMERS:,} customers, {shop.ORDERS:,} orders, {shop.ORDER_ITEMS:,} order items, "
        f"{shop.EVENTS:,} events"
    )


# --- the runs and what is told of them -----------------------------------------------------------


def _lake(config: RivetConfig) -> dict[str, dict[str, Manifest]]:
    """Read what a reader sees now: the current manifests of each export."""
    from rivet_resources.commit.manifest import current_manifests  # start

    return {export.name: current_manifests(export.destination.root(export.name)) for export in config.exports}


def _days(this: Round) -> list[str]:
    """Choose the days of `orders` to run: those never committed, and the one that late orders came to."""
    january = [f"2026-01-{day:02d}" for day in range(1, 32)]
    return [day for day in january if day not in this.before["orders"] or (this.number > 1 and day == shop.LATE_DAY)]


def _progress(say: Say) -> Watch:
    began, committed = time.monotonic(), {"orders": 0}

    def tell(news: News) -> None:
        at = f"{time.monotonic() - began:6.1f} s  {news.export}"
        if news.what == "started":
            say(f"{at} …")
        elif news.what == "failed":
            say(f"{at} failed: {news.text}")
        elif news.what == "finished":
            say(f"{at} committed" + (f" (days: {committed[news.export]})" if news.window else ""))
        elif news.what == "committed" and news.window:
            committed[news.export] += 1
            if committed[news.export] % 10 == 0:
                say(f"{at} {news.window} committed")

    return tell


def _changes(this: Round, after: Mapping[str, Mapping[str, Manifest]]) -> list[str]:
    """Return, from the manifests alone, what this round changed in `events` and `orders`."""
    lines = [f"What round {this.number} changed"]
    old, new = this.before["events"], after["events"]
    fresh = [manifest for window, manifest in new.items() if window not in old]
    rows = sum(manifest.row_count for manifest in fresh)
    files = sum(manifest.part_count for manifest in fresh)
    lines.append(
        f"  events  took only what is new: {rows:,} rows in {files} new file(s), beside {len(old)} earlier window(s)"
    )
    known = this.before["order_changes"]
    changes = sum(each.row_count for window, each in after["order_changes"].items() if window not in known)
    lines.append(
        f"  order_changes  drained {changes:,} changes from the log, and brought order_changes_mirror up to date"
    )
    for window, manifest in sorted(after["orders"].items()):
        earlier = this.before["orders"].get(window)
        if earlier is not None and earlier.run_id != manifest.run_id:
            same = len(this.before["orders"]) - 1
            lines.append(
                f"  orders  {window} replaced itself: {earlier.row_count:,} → {manifest.row_count:,} rows; "
                f"the other {same} days were not touched"
            )
    return lines


def _where_it_is(outcomes: Sequence[Outcome]) -> str:
    rows = sum(outcome.rows for outcome in outcomes)
    size = human_bytes(sum(outcome.bytes for outcome in outcomes))
    lake = HOME / "lake"
    query = (
        f"import glob, pyarrow.dataset as d; print(d.dataset(glob.glob('{lake}/orders/*/*.parquet'))"
        f".to_table().group_by('status').aggregate([('amount', 'sum')]).to_pylist())"
    )
    return "\n".join([
        f"{rows:,} rows, {size}, in {lake.absolute()}",
        f"  read them   {_python()} -c \"{query}\"",
        f"  or DuckDB   SELECT status, sum(amount) FROM '{lake}/orders/*/*.parquet' GROUP BY status",
        "  once more   rivet demo        adds rows first, then takes only these",
        "  look at it  rivet demo --ui",
    ])  # fmt: skip


def _python() -> str:
    """Name this interpreter as one would type it here."""
    try:
        return str(Path(sys.executable).relative_to(Path.cwd()))
    except ValueError:
        return sys.executable


# --- the UI --------------------------------------------------------------------------------------


def _until_interrupted(command: Sequence[str]) -> int:
    """Run a program that ends by SIGINT; our Ctrl-C or SIGTERM becomes its SIGINT.

    It gets a session of its own and SIGINT's default back: started from a background shell, SIGINT would be
    ignored in its whole tree (`dagster.md`, section 11).
    """

    def restore() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    process = subprocess.Popen(command, start_new_session=True, preexec_fn=restore)
    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        with interruption.defer_end():
            return process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return 0
    finally:
        signal.signal(signal.SIGTERM, previous)
