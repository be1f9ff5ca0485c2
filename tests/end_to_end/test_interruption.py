"""Commands that are told to end, by each signal and at bad moments: in time, in one line, with nothing left running.

Belongs here: the real executable, since what is proved is how a process ends. Not here: what a death leaves at a
destination (`tests/faults`).
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import psutil
import psycopg
import pytest
import yaml

from tests.lab import store_of
from tests.servers.logical import logical_database

ENDS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
# What the issue promises, and then as much again for a busy machine: without the cure these never end, or take minutes.
PATIENCE_SECONDS = 25.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a SQLite database of one table."""
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT)")
        connection.execute(
            "INSERT INTO orders WITH n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 20000) "
            "SELECT i, 'x' FROM n"
        )
        connection.commit()
    return tmp_path


def configure(folder: Path, source: dict[str, object], export: dict[str, object], spark: object = "inline") -> None:
    """Write a rivet.yaml of one export to a local folder."""
    block = {"format": "parquet", "destination": {"type": "local", "path": "lake"}, **export}
    (folder / "rivet.yaml").write_text(yaml.safe_dump({"source": source, "spark": spark, "exports": [block]}))


SLOW = {"type": "sqlite", "path": "shop.db", "tuning": {"throttle_ms": 2000, "batch_size": 100, "max_retries": 0}}
ORDERS = {"name": "orders", "table": "orders", "mode": "full"}


class Command:
    """One run of the executable, watched."""

    def __init__(self, folder: Path, *arguments: str, in_background: bool = False) -> None:
        def dispose() -> None:  # whatever this process was told to ignore, and a child would ignore too
            for number in ENDS:
                signal.signal(number, signal.SIG_DFL)
            if in_background:  # as a script's `&` does
                signal.signal(signal.SIGINT, signal.SIG_IGN)

        environment = {name: value for name, value in os.environ.items() if name != "DAGSTER_HOME"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rivet_assets.cli.main", *arguments],
            cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            preexec_fn=dispose,
        )  # fmt: skip
        self.seen: dict[int, psutil.Process] = {}

    def look(self) -> list[psutil.Process]:
        """List the processes it has started, and remember them."""
        with suppress(psutil.NoSuchProcess):
            self.seen |= {child.pid: child for child in psutil.Process(self.process.pid).children(recursive=True)}
        return list(self.seen.values())

    def names(self) -> set[str]:
        """Name the processes it has started that are still there."""
        found = set()
        for child in self.look():
            with suppress(psutil.NoSuchProcess):
                found.add(child.name())
        return found

    def until(self, met: Callable[[], bool]) -> None:
        """Wait for a moment of the run."""
        until = time.monotonic() + 60
        while not met():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < until, "the moment never came"
            time.sleep(0.02)

    def end(self, number: signal.Signals) -> tuple[int, str]:
        """Send it a signal; its exit code and all it said."""
        self.look()
        self.process.send_signal(number)
        try:
            said, _ = self.process.communicate(timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            said, _ = self.process.communicate()
            pytest.fail(f"it was still there after {PATIENCE_SECONDS} s and said: {said}")
        return self.process.returncode, said

    def left(self) -> list[str]:
        """List those of its processes that outlived it."""
        _, alive = psutil.wait_procs(list(self.seen.values()), timeout=5)
        return [child.name() for child in alive]


@pytest.fixture
def run(folder: Path) -> Iterator[Callable[..., Command]]:
    """Start commands; none outlives its test."""
    begun: list[Command] = []

    def start(*arguments: str, in_background: bool = False) -> Command:
        begun.append(Command(folder, *arguments, in_background=in_background))
        return begun[-1]

    yield start
    for command in begun:
        for process in [*command.look(), command.process]:
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                process.kill()


def statuses(folder: Path) -> list[str]:
    """Read how the runs of the export ended; those of a dead process count as the next run would count them."""
    source = yaml.safe_load((folder / "rivet.yaml").read_text())["source"]["type"]
    return [run.status for run in store_of(folder, source).runs("orders")]


@pytest.mark.parametrize("number", ENDS)
def test_run_in_the_middle_of_reading_is_interrupted(
    folder: Path, run: Callable[..., Command], number: signal.Signals
) -> None:
    """One line, exit 130, the run's record says so, and nothing is published."""
    configure(folder, SLOW, ORDERS)
    command = run("--json-errors", "run")
    command.until(lambda: (folder / ".rivet_state.db").exists() and statuses(folder) == ["running"])
    time.sleep(1)

    code, said = command.end(number)

    assert (130, ["interrupted"], False) == (code, statuses(folder), "Traceback" in said), said
    assert said.count("interrupted; whatever was not committed is invisible") == 2, said  # for people, and in the JSON
    assert '"exit_class": "interrupted"' in said
    assert [] == list(folder.glob("lake/**/*.json"))


def test_run_in_the_background_of_a_script_is_ended_too(folder: Path, run: Callable[..., Command]) -> None:
    """There SIGINT is ignored, and Dagster treats SIGTERM as SIGINT."""
    configure(folder, SLOW, ORDERS)
    command = run("run", in_background=True)
    command.until(lambda: (folder / ".rivet_state.db").exists() and statuses(folder) == ["running"])
    time.sleep(1)

    code, said = command.end(signal.SIGTERM)

    assert (130, False) == (code, "Traceback" in said), said


@pytest.mark.spark
@pytest.mark.parametrize("seconds", [0.0, 1.5, 4.0])
def test_start_of_spark_can_be_ended(folder: Path, run: Callable[..., Command], seconds: float) -> None:
    """While the JVM comes up, at three moments: no half-read answer becomes an error, and no JVM stays."""
    configure(folder, SLOW, ORDERS, spark={"master": "local[2]"})
    command = run("run")
    command.until(lambda: "java" in command.names())
    time.sleep(seconds)

    code, said = command.end(signal.SIGTERM)

    assert (130, []) == (code, command.left()), said
    assert not any(word in said for word in ("Traceback", "AttributeError", "Py4J", "status: failed")), said


def test_drain_without_end_finishes_its_window(folder: Path, run: Callable[..., Command], postgres_url: str) -> None:
    """It is the way to end it, so all is well: exit 0, and what was read is committed."""
    with logical_database(postgres_url) as url, psycopg.connect(url, autocommit=True) as shop:
        shop.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        cdc = {"until_current": False, "slot": "rivet_without_end"}
        configure(folder, {"type": "postgres", "url": url}, {**ORDERS, "mode": "cdc", "cdc": cdc})
        command = run("run")
        for number in range(1, 4):  # it follows: each window is committed while the drain goes on
            command.until(lambda least=number: len(list(folder.glob("lake/orders/_rivet/*.json"))) >= least)
            shop.execute(f"INSERT INTO orders VALUES ({number})".encode())

        code, said = command.end(signal.SIGTERM)

        assert (0, ["success"]) == (code, statuses(folder)), said


@pytest.mark.parametrize("number", ENDS)
def test_any_command_ends_while_it_waits_for_a_server(
    folder: Path, run: Callable[..., Command], number: signal.Signals
) -> None:
    """A look at a server that says nothing is ended like a run."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        configure(folder, {"type": "postgres", "url": f"postgresql://u:p@127.0.0.1:{port}/d"}, ORDERS)
        command = run("check")
        listener.settimeout(60)
        line, _ = listener.accept()
        time.sleep(0.5)
        code, said = command.end(number)
        line.close()

    assert (130, False) == (code, "Traceback" in said), said
