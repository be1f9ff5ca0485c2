"""An export on a real PostgreSQL while others suffer: it steps back, its pages come more slowly, and it comes again.

Judged by what the governor recorded and by the pauses between pages of one and the same export, not by seconds.
"""

from __future__ import annotations

import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from rivet_resources.contracts.extract import Staged
from rivet_resources.contracts.settings import Spark, Tuning, pace
from rivet_resources.contracts.source import TypeRules
from rivet_resources.engines.postgres.source import Postgres
from rivet_resources.read.stage import Exporter
from rivet_resources.spark.runtime import SparkRuntime
from rivet_resources.state.store import open_state
from tests.fakes import extract_of
from tests.lab import Lab

PGBENCH = Path("/usr/bin/pgbench")
ROWS = 500_000
# Balanced but for pages so small that one export has more than a thousand of them.
PACE = pace(Tuning(batch_size=500, throttle_ms=2), None)


@dataclass
class Watched:
    """PostgreSQL, with a note of when each page came, and something to do after the first pages."""

    source: Postgres
    after_pages: dict[int, Callable[[], None]] = field(default_factory=dict)
    came: list[float] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)

    def pages(self, *args: Any, **about: Any) -> Any:
        """Read as the source does."""
        pages = self.source.pages(*args, **about)
        while True:
            try:
                page = next(pages)
            except StopIteration as end:
                return end.value
            self.came.append(time.monotonic())
            if todo := self.after_pages.pop(len(self.came), None):
                todo()
            yield page


@dataclass
class Export:
    """One export under watch: what the governor decided, and when."""

    lab: Lab
    source: Watched
    told: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    events: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def run(self) -> Staged:
        """Stage the table in this process."""
        with self.source.session(application="rivet:orders", pace=PACE) as session:
            relation = session.describe(table="orders", query=None, params={}, rules=TypeRules(columns={}))
            chunks = session.chunks(relation, pieces=1)
            extract = extract_of(
                pa.table({}),
                self.lab.folder / "lake",
                relation=relation,
                chunks=chunks,
                source=self.source,
                pace=PACE,
                snapshot=session.snapshot,
            )
            exporter = Exporter(SparkRuntime(Spark(engine="inline")), open_state(f"sqlite:///{self.lab.folder}/s.db"))
            return exporter.stage(extract, on_event=self._told)

    def _told(self, name: str, facts: Any) -> None:
        self.events.setdefault(name, []).append(dict(facts))
        if name == "ParallelismAdjusted":
            self.told.append((time.monotonic(), dict(facts)))

    @property
    def speeds(self) -> list[float]:
        """Return the speeds that were decided, in order."""
        return [facts["speed_to"] for _, facts in self.told]

    def await_speed(self, wanted: float) -> None:
        """Wait until the governor has decided on this speed or a lower one, and holds it; at most twenty seconds."""
        until = time.monotonic() + 20
        while time.monotonic() < until:
            if self.told and self.speeds[-1] <= wanted:
                return
            time.sleep(0.01)

    def await_full_speed(self) -> None:
        """Wait until it is as fast as it may be: beside other suites it may have stepped down before; at most 20 s."""
        until = time.monotonic() + 20
        while self.told and self.speeds[-1] < 1.0 and time.monotonic() < until:
            time.sleep(0.01)

    def steps_down(self, since: float) -> list[float]:
        """Return when it stepped down since a moment."""
        return [at for at, facts in self.told if at > since and facts["speed_to"] < facts["speed_from"]]

    def await_step_down(self, since: float) -> None:
        """Wait until it has stepped down since a moment; at most twenty seconds."""
        until = time.monotonic() + 20
        while not self.steps_down(since) and time.monotonic() < until:
            time.sleep(0.01)

    def gap(self, since: float, until: float) -> float:
        """Return the usual time between two pages of an interval, milliseconds."""
        came = [at for at in self.source.came if since <= at <= until]
        return statistics.median(b - a for a, b in pairwise(came)) * 1000


@pytest.fixture
def lab(tmp_path: Path, fresh_real_database: str, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A database with a table that takes thousands of pages, a governor that looks often."""
    monkeypatch.setenv("RIVET_GOVERNOR_INTERVAL_MS", "100")
    laboratory = Lab(tmp_path, fresh_real_database)
    laboratory.sql(
        f"CREATE TABLE orders AS SELECT n AS id, 'note ' || n AS note FROM generate_series(1, {ROWS}) AS n",
        "ALTER TABLE orders ADD PRIMARY KEY (id)",
        "CREATE TABLE accounts AS SELECT n AS id, 0 AS balance FROM generate_series(1, 10) AS n",
        "ANALYZE orders",
    )
    return laboratory


@contextmanager
def waiting_for_a_lock(url: str, sessions: int) -> Iterator[None]:
    """Let so many sessions wait for one row until the block ends."""
    update = "UPDATE accounts SET balance = balance + 1 WHERE id = 1"

    def want() -> None:
        with psycopg.connect(url) as connection:
            connection.execute(update)

    threads = [threading.Thread(target=want) for _ in range(sessions)]
    with psycopg.connect(url) as holding:
        holding.execute(update)
        for thread in threads:
            thread.start()
        yield
        holding.commit()
    for thread in threads:
        thread.join(20)


def test_export_steps_back_while_others_wait_for_locks_and_comes_again(lab: Lab) -> None:
    """Down to an eighth while they wait, with pauses between pages that grow as much; then up to the full pace."""
    export = Export(lab, Watched(Postgres(url=lab.url)))
    marks: dict[str, float] = {}

    def meanwhile() -> None:
        marks["locked"] = time.monotonic()
        with waiting_for_a_lock(lab.url, 3):
            export.await_speed(0.125)
            marks["lowest"] = time.monotonic()
            came = len(export.source.came)
            until = time.monotonic() + 20
            while len(export.source.came) < came + 12 and time.monotonic() < until:
                time.sleep(0.01)
            marks["freed"] = time.monotonic()

    others = threading.Thread(target=meanwhile)
    export.source.after_pages[150] = others.start
    staged = export.run()
    others.join(30)

    assert staged.measures.rows == ROWS
    assert 0.125 == min(export.speeds)
    assert [facts for _, facts in export.told if "waited for locks" in facts["reason"]]
    recovering = [at for at, facts in export.told if at > marks["freed"] and facts["speed_to"] > facts["speed_from"]]
    assert recovering, export.told
    before = export.gap(0, marks["locked"])
    lowest = export.gap(marks["lowest"], marks["freed"])
    after = export.gap(recovering[min(2, len(recovering) - 1)], time.monotonic())
    assert lowest > before * 2, (before, lowest, after)
    assert after < lowest / 1.5, (before, lowest, after)
    assert staged.harm["most_lock_waits_seen"] >= 3
    assert staged.harm["steps_down"] >= 1
    assert staged.harm["governed_seconds"] > 0


def test_ddl_that_waits_for_the_export_is_told_and_not_made_to_wait_longer(lab: Lab) -> None:
    """ALTER TABLE on the table that is read waits for its end: no step down for it, one event, and it gets its turn."""
    export = Export(lab, Watched(Postgres(url=lab.url)))
    altering = threading.Thread(target=lab.sql, args=("ALTER TABLE orders ADD COLUMN later text",))
    export.source.after_pages[150] = altering.start
    staged = export.run()
    altering.join(30)

    assert not altering.is_alive()
    assert staged.measures.rows == ROWS
    assert [1] == [facts["sessions"] for facts in export.events.get("OthersWaitForUs", [])]
    assert 1 == staged.harm["most_waiting_for_us_seen"]
    assert not [facts for _, facts in export.told if "waited for locks" in facts["reason"]]


@contextmanager
def pgbench(url: str, clients: int) -> Iterator[None]:
    """Load the server with clients that read and write as fast as they can."""
    with subprocess.Popen(
        [PGBENCH, "-n", "-c", str(clients), "-j", "2", "-T", "60", url],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as running:
        try:
            yield
        finally:
            running.terminate()


@pytest.mark.skipif(not PGBENCH.exists(), reason="no pgbench: apt-get install postgresql-contrib")
def test_export_steps_back_while_others_work_hard_and_comes_again(lab: Lab) -> None:
    """A dozen clients of pgbench make it step down, by signs of theirs; when they are gone it comes again."""
    subprocess.run([PGBENCH, "-i", "-q", "-s", "1", lab.url], check=True, capture_output=True)
    export = Export(lab, Watched(Postgres(url=lab.url)))
    loaded: list[float] = []

    def meanwhile() -> None:
        export.await_full_speed()
        loaded.append(time.monotonic())
        with pgbench(lab.url, 12):
            export.await_step_down(loaded[0])

    others = threading.Thread(target=meanwhile)
    export.source.after_pages[150] = others.start
    staged = export.run()
    others.join(30)

    assert staged.measures.rows == ROWS
    theirs = export.steps_down(loaded[0])
    assert theirs, export.told
    assert any(at > theirs[0] and facts["speed_to"] > facts["speed_from"] for at, facts in export.told), export.told


def test_export_alone_is_never_its_own_reason(lab: Lab) -> None:
    """Nobody else is there: whatever the machine does, no session of ours is taken for somebody who suffers."""
    export = Export(lab, Watched(Postgres(url=lab.url)))

    staged = export.run()

    assert staged.measures.rows == ROWS
    assert 0 == staged.harm["most_lock_waits_seen"]
    assert not [facts for _, facts in export.told if "sessions" in facts["reason"] or "connections" in facts["reason"]]
    assert staged.harm["rows_scanned"] == ROWS
    assert staged.harm["server_deadlocks"] == 0
