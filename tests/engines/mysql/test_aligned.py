"""`consistency: aligned`: all tasks of a window see one instant of MySQL and MariaDB, under load, or nothing is read.

Belongs here: money that moves while it is exported, the lock and its rights, tasks that come too late. Not here: one
chunk in one transaction (`test_pages.py`).
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pymysql
import pytest
import yaml

from rivet_assets.config.load import load_config
from rivet_assets.launch.run_exports import Outcome, run_exports
from rivet_resources.contracts.aligning import Meeting
from rivet_resources.engines.mysql import aligned
from rivet_resources.engines.mysql.source import MySql
from rivet_resources.errors import SnapshotLost, SourceLost
from rivet_resources.spark.runtime import SparkRuntime
from tests.engines.mysql.reads import EAGER
from tests.lab import Lab, lab_in
from tests.lab_engines import MARIADB, MYSQL
from tests.servers.mysql import run

ACCOUNTS, BALANCE = 1_200, 100
BLOCKS = {
    "full": "{name: bank, table: account, parallel: 4}",
    "chunked": "{name: bank, table: account, mode: chunked, chunk_column: id, chunk_size: 100, parallel: 4}",
    "query": "{name: bank, query: 'SELECT id, balance FROM account', mode: chunked, chunk_column: id, chunk_count: 8, "
    "parallel: 4}",
}


# Connections to this database but the one that asks, the oldest first.
OURS = "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID() ORDER BY id"
# The same, and whether each is in a transaction.
BEGUN = (
    "SELECT p.id, t.trx_id IS NOT NULL FROM information_schema.processlist p LEFT JOIN information_schema.innodb_trx t "
    "ON t.trx_mysql_thread_id = p.id WHERE p.db = DATABASE() AND p.id <> CONNECTION_ID() ORDER BY p.id"
)


@pytest.fixture(params=[MARIADB, MYSQL], ids=lambda engine: engine.name)
def lab(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """Accounts with a hundred each."""
    laboratory = lab_in(tmp_path, request.param, request, monkeypatch)
    laboratory.create("account", {"id": "whole", "balance": "whole"})
    laboratory.insert("account", [{"id": number, "balance": BALANCE} for number in range(1, ACCOUNTS + 1)])
    return laboratory


def export(lab: Lab, block: str, *, spark: str = "inline") -> Outcome:
    """Run one export, slowly: small pages with pauses between them."""
    pace = {"throttle_ms": 20, "batch_size": 20, "max_retries": 0, "retry_backoff_ms": 100}
    config = lab.config(block)
    written = yaml.safe_load((lab.folder / "rivet.yaml").read_text())
    written["source"] |= {"consistency": "aligned", "tuning": {**pace, "adaptive": False}}
    if spark != "inline":
        written["spark"] = {"master": spark, "niceness": 0}
        # Workers may be older than the lab's variable.
        written["source"] = {
            **{key: value for key, value in written["source"].items() if key != "url_env"},
            "url": lab.url,
        }
    (lab.folder / "rivet.yaml").write_text(yaml.safe_dump(written))
    config = load_config(lab.folder / "rivet.yaml")
    (outcome,) = run_exports(config)
    return outcome


def connection_to(url: str) -> Any:
    """Connect as the tests' user."""
    at = urlsplit(url)
    return pymysql.connect(
        host=at.hostname, port=at.port, user=at.username, password=at.password or "", database=at.path[1:]
    )


@contextmanager
def transfers(url: str) -> Iterator[list[int]]:
    """Move money, from accounts at one end to accounts at the other, and open accounts with money of others, until the
    block ends; one number for each commit."""
    done, commits = threading.Event(), list[int]()

    def move(seed: int) -> None:
        chance = random.Random(seed)
        with connection_to(url) as connection, connection.cursor() as cursor:
            while not done.is_set():
                low, high = chance.randint(1, 300), chance.randint(900, ACCOUNTS)
                cursor.execute("UPDATE account SET balance = balance - 1 WHERE id = %s", (low,))
                if chance.random() < 0.05:  # a key that no plan has seen
                    cursor.execute("INSERT INTO account SELECT MAX(id) + 1, 1 FROM account")
                else:
                    cursor.execute("UPDATE account SET balance = balance + 1 WHERE id = %s", (high,))
                connection.commit()
                commits.append(seed)

    thread = threading.Thread(target=move, args=(1,))
    thread.start()
    try:
        yield commits
    finally:
        done.set()
        thread.join()


def total(lab: Lab) -> int:
    """Add up what was exported."""
    return sum(lab.table("bank").column("balance").to_pylist())


@pytest.mark.parametrize("kind", BLOCKS)
def test_money_that_moves_while_it_is_exported_is_neither_lost_nor_made(lab: Lab, kind: str) -> None:
    """Four tasks read for a second or more, hundreds of transfers commit meanwhile, and the sum is what it was."""
    with transfers(lab.url) as commits:
        outcome = export(lab, BLOCKS[kind])
        during = len(commits)

    assert "success" == outcome.status, outcome.message
    (manifest,) = lab.manifests("bank").values()
    assert ("snapshot", ACCOUNTS * BALANCE) == (manifest.consistency, total(lab))
    assert during > 20
    assert len(set(lab.ids("bank"))) == len(lab.ids("bank")) >= ACCOUNTS


@pytest.mark.spark
def test_tasks_of_spark_meet_at_the_server(lab: Lab, spark_runtime: SparkRuntime) -> None:
    """Processes that know nothing of each other begin at one instant."""
    with transfers(lab.url):
        outcome = export(lab, BLOCKS["chunked"], spark=spark_runtime.session().sparkContext.master)

    assert "success" == outcome.status, outcome.message
    (manifest,) = lab.manifests("bank").values()
    assert ("snapshot", ACCOUNTS * BALANCE) == (manifest.consistency, total(lab))


def test_nothing_stays_locked_or_open(lab: Lab) -> None:
    """After the export no connection of ours is left, and a table can be altered at once."""
    assert "success" == export(lab, BLOCKS["full"]).status

    with connection_to(lab.url) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION lock_wait_timeout = 2")
        cursor.execute("ALTER TABLE account ADD COLUMN nick varchar(10)")
        for _ in range(100):  # the server takes a moment to see that a line has ended
            cursor.execute(OURS)
            if not (left := cursor.fetchall()):
                break
            time.sleep(0.05)
    assert () == left
    assert {} == aligned._held


def test_writers_wait_for_the_lock_no_longer_than_it_lasts(lab: Lab) -> None:
    """What an export holds up is one commit for a moment, not the reading."""
    longest, done = [0.0], threading.Event()

    def write() -> None:
        with connection_to(lab.url) as connection, connection.cursor() as cursor:
            while not done.is_set():
                began = time.monotonic()
                cursor.execute("UPDATE account SET balance = balance WHERE id = 1")
                connection.commit()
                longest[0] = max(longest[0], time.monotonic() - began)

    thread = threading.Thread(target=write)
    thread.start()
    began = time.monotonic()
    try:
        outcome = export(lab, BLOCKS["full"])
    finally:
        done.set()
        thread.join()

    assert "success" == outcome.status, outcome.message
    assert longest[0] < time.monotonic() - began - 0.1


def test_a_transaction_that_does_not_end_stops_the_export_and_not_the_others(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is waited for a few times for a short time; then the message says who is in the way and what else."""
    monkeypatch.setattr(aligned, "LOCK_SECONDS", 1)
    monkeypatch.setattr(aligned, "LOCK_TRIES", 2)
    monkeypatch.setattr(aligned, "PAUSE_SECONDS", 0.1)
    with connection_to(lab.url) as connection, connection.cursor() as cursor:
        cursor.execute("UPDATE account SET balance = 0 WHERE id = 1")

        outcome = export(lab, BLOCKS["full"])

    assert ("failed", 2) == (outcome.status, outcome.exit_code), outcome.message
    for words in ("lock for aligned snapshots", "not to be had in 2 tries", "consistency: per_query"):
        assert words in outcome.message
    assert {} == lab.manifests("bank")
    assert {} == aligned._held


@pytest.mark.parametrize(
    ("kind", "grants", "right"),
    [("full", "SELECT", "LOCK TABLES, SELECT ON"), ("query", "SELECT, LOCK TABLES", "RELOAD ON *.*")],
)
def test_a_user_without_the_right_is_told_the_grant(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, kind: str, grants: str, right: str
) -> None:
    """By `rivet doctor` before, and by the run."""
    at, name = urlsplit(lab.url), "teller"
    run(
        lab.url, f"DROP USER IF EXISTS {name}@'%'", f"CREATE USER {name}@'%' IDENTIFIED BY 'pw'",
        f"GRANT {grants} ON {at.path[1:]}.* TO {name}@'%'",
    )  # fmt: skip
    monkeypatch.setenv("LAB_URL", f"mysql://{name}:pw@{at.hostname}:{at.port}{at.path}")

    outcome = export(lab, BLOCKS[kind])

    assert "failed" == outcome.status
    for words in ("may not take the lock", f"GRANT {right}", "consistency: per_query"):
        assert words in outcome.message
    source = load_config(lab.folder / "rivet.yaml").source
    with source.session(application="rivet:test", pace=EAGER, snapshot=False) as session:  # as `rivet doctor` opens it
        (finding,) = (each for each in session.examine() if each.name == "aligned")
    assert "warn" == finding.status
    assert right.partition(",")[0] in f"{finding.text} {finding.fix}"


def test_a_task_that_comes_too_late_has_missed_the_instant(lab: Lab) -> None:
    """As one that Spark begins anew: it never reads at an instant of its own."""
    source = MySql(url=lab.url)
    conn_params, meeting = source.conn_params("rivet:test", EAGER), Meeting("0123456789ab", 1, "")
    lead = aligned.open_meeting(conn_params, meeting, ended=threading.Event())
    leader = threading.Thread(target=lead)
    leader.start()
    aligned.held(conn_params, meeting.place(0))
    leader.join()
    aligned.drop(meeting.place(0))

    with pytest.raises(SnapshotLost, match="when the meeting for aligned snapshots had ended"):
        aligned.held(conn_params, meeting.place(0))


def test_a_meeting_that_nobody_comes_to_ends(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a proxy that spreads connections, or where Spark has no room for all tasks."""
    monkeypatch.setattr(aligned, "READY_SECONDS", 0.5)
    conn_params = MySql(url=lab.url).conn_params("rivet:test", EAGER)
    lead = aligned.open_meeting(conn_params, Meeting("0123456789ac", 2, ""), ended=threading.Event())

    with pytest.raises(SourceLost, match=r"0 of 2 tasks began .* Lower `parallel`"):
        lead()


def test_a_line_that_breaks_begins_the_window_anew(lab: Lab) -> None:
    """A new connection would see another instant, so all tasks meet again, in another run."""
    done = threading.Event()

    def kill_one() -> None:
        with connection_to(lab.url) as connection, connection.cursor() as cursor:
            had_met = False
            while not done.wait(0.002):
                cursor.execute(BEGUN)
                there = cursor.fetchall()
                # Four tasks that have begun, the plan's is gone: MariaDB shows it, MySQL the one that locks before.
                if len(there) == 4 and (had_met or all(has_begun for _, has_begun in there)):
                    cursor.execute(f"KILL {there[-1][0]}")
                    return
                had_met = had_met or len(there) == 5

    thread = threading.Thread(target=kill_one)
    thread.start()
    try:
        outcome = export(lab, BLOCKS["chunked"])
    finally:
        done.set()
        thread.join()

    lost, _ = outcome.run_ids
    assert ("success", "RIVET_SOURCE_SNAPSHOT_LOST") == (outcome.status, lab.state.run(lost).error_code)
    assert list(range(1, ACCOUNTS + 1)) == lab.ids("bank")
