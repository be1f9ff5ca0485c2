"""Change capture as a user meets it: a YAML, `rivet run`, `rivet cdc`, `rivet doctor`, and what lies in the lake."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest

from rivet_assets.config.load import RivetConfig, load_config
from rivet_assets.launch import outcome as report
from rivet_assets.launch.run_exports import run_exports
from rivet_assets.prove.reconcile import reconcile_export
from rivet_assets.prove.reconcile_result import Depth, Reconciled
from rivet_assets.run.admit.scope import state_of
from rivet_resources.commit.manifest import current_manifests
from rivet_resources.destinations.local import Local
from rivet_resources.prove.compare_rows import RowDifferences
from rivet_resources.spark import runtime as runtimes
from rivet_resources.spark.runtime import SparkRuntime
from tests.end_to_end.test_cli import ROOT, Shell
from tests.servers.logical import logical_database

TABLES = """
CREATE TABLE orders (id bigint PRIMARY KEY, total numeric(12,2), note text);
CREATE TABLE "Order Lines" (order_id bigint, n int, sku text, PRIMARY KEY (order_id, n));
INSERT INTO orders SELECT n, n * 1.5, 'note ' || n FROM generate_series(1, 100) n;
INSERT INTO "Order Lines" SELECT n, 1, 'sku' FROM generate_series(1, 100) n;
"""


@dataclass
class Shop:
    """A database, a folder with a rivet.yaml, and what a reader of the lake sees."""

    url: str
    shell: Shell

    def run_sql(self, *statements: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            for statement in ("SET synchronous_commit = on", *statements):
                connection.execute(statement.encode())

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute(statement.encode()).fetchall()

    def changes(self, name: str) -> list[tuple[Any, ...]]:
        """Read (op, id) of an export's committed changes in log order."""
        return self.select(name, "SELECT __op, COLUMNS(* EXCLUDE (__op, __pos, __seq, __ts, __unchanged)) FROM lake")

    def select(self, name: str, query: str) -> list[tuple[Any, ...]]:
        """Ask DuckDB of an export's committed parts, as the view `lake`, in log order where there is one."""
        root = Local(type="local", path=str(self.shell.folder / "lake")).root(name)
        files = [f"{root.uri}/{part.path}" for each in current_manifests(root).values() for part in each.parts]
        with duckdb.connect() as connection:
            read = f"read_parquet({files!r}, hive_partitioning = false, union_by_name = true)"
            order = " ORDER BY __pos, __seq" if "__op" in query else ""
            connection.execute(f"CREATE VIEW lake AS SELECT * FROM {read}{order}")
            return connection.execute(query).fetchall()


@pytest.fixture
def shop(tmp_path: Path, postgres_url: str) -> Iterator[Shop]:
    with logical_database(postgres_url) as url:
        kept = {name: text for name, text in os.environ.items() if not name.startswith(("DAGSTER_HOME", "RIVET_"))}
        made = Shop(url, Shell(tmp_path, {**kept, "SHOP_URL": url, "PYTHONPATH": str(ROOT)}))
        made.run_sql(TABLES)
        yield made


CDC = {"name": "shop", "mode": "cdc", "cdc": {"slot": "e2e", "initial": "snapshot"}}


def test_warnings_of_the_first_run_are_shown_without_asking(shop: Shop) -> None:
    """In the summary, in its JSON, and at a later run that a table is gone."""
    shop.run_sql("ALTER TABLE orders ADD COLUMN twice numeric GENERATED ALWAYS AS (total * 2) STORED")
    shop.shell.configure(
        {**CDC, "tables": ["orders", '"Order Lines"'], "cdc": {"slot": "e2e_warn", "initial": "snapshot"}}
    )
    first = shop.shell.rivet("run")
    shop.run_sql('DROP TABLE "Order Lines"')
    second = shop.shell.rivet("run", "--json")

    assert 0 == first.code == second.code, first.err + second.err
    told = first.out + first.err
    assert "generated columns of public.orders are not in the log" in told
    (gone,) = json.loads(second.out)["exports"][0]["warnings"]
    assert 'the source shows no table "Order Lines" any more' in gone


def test_run_shows_lag_and_cost_of_a_drain(shop: Shop) -> None:
    """After the first copy, and after changes: the block on the terminal and the JSON of the run have both."""
    shop.shell.configure({**CDC, "table": "orders", "cdc": {"slot": "e2e_lag", "initial": "snapshot"}})
    first = shop.shell.rivet("run")
    shop.run_sql("UPDATE orders SET total = 0 WHERE id = 7")

    second = shop.shell.rivet("run", "--json")

    assert (0, 0) == (first.code, second.code), first.err + second.err
    (export,) = json.loads(second.out)["exports"]
    assert {"log_read_seconds", "log_held_bytes", "lag_bytes"} <= set(export["harm"])
    for answer in (first, second):
        assert "lag:" in answer.err
        assert "of log kept for us" in answer.err
    assert "longest statement" in first.err


def test_drain_of_two_tables_copies_then_follows(shop: Shop) -> None:
    """The first run copies, the next ones bring each change once, an idle one is a success that brings nothing."""
    shop.shell.configure(
        {**CDC, "tables": ["orders", '"Order Lines"'], "cdc": {"slot": "e2e_two", "initial": "snapshot"}}
    )
    assert 0 == shop.shell.rivet("run").code
    shop.run_sql("UPDATE orders SET total = 0 WHERE id = 7", 'INSERT INTO "Order Lines" VALUES (7, 2, NULL)')
    shop.run_sql("DELETE FROM orders WHERE id = 8")

    second, idle = shop.shell.rivet("run", "--json"), shop.shell.rivet("run", "--json")

    assert 0 == second.code, second.err
    assert 3 == json.loads(second.out)["rows"]
    assert (0, 0) == (idle.code, json.loads(idle.out)["rows"])
    assert 100 == len([row for row in shop.changes("shop/orders") if row[0] == "insert"])
    assert [("update", 7), ("delete", 8)] == [row[:2] for row in shop.changes("shop/orders") if row[0] != "insert"]
    assert [(7, 2, None)] == [row[1:] for row in shop.changes("shop/Order_Lines")][100:]
    position = next(row for row in json.loads(shop.shell.rivet("state", "show", "--json").out))["cursor"]
    assert "/" in position


def test_lines_on_stdout_are_one_object_per_change(shop: Shop) -> None:
    """`rivet cdc` prints what came since its last run, both images nested, and remembers where it stood."""
    command = ("cdc", "--source-env", "SHOP_URL", "--table", "orders", "--slot", "e2e_lines", "--until-current")
    assert "" == shop.shell.rivet(*command).out
    shop.run_sql("INSERT INTO orders VALUES (101, 2.50, NULL)", "DELETE FROM orders WHERE id = 101")

    answer = shop.shell.rivet(*command)

    assert 0 == answer.code, answer.err
    lines = [json.loads(line) for line in answer.out.splitlines()]
    assert [("insert", None, 101), ("delete", 101, None)] == [
        (line["op"], (line["before"] or {}).get("id"), (line["after"] or {}).get("id")) for line in lines
    ]
    assert ["op", "schema", "table", "before", "after", "pos", "seq"] == list(lines[0])
    assert ("public", "orders") == (lines[0]["schema"], lines[0]["table"])
    assert "" == shop.shell.rivet(*command).out


def test_command_line_without_a_source_or_with_a_remote_one_is_refused(shop: Shop) -> None:
    """Nothing is opened: the message says which option is missing, or that a remote host needs `tls:`."""
    none = shop.shell.rivet("cdc", "--table", "orders")
    remote = shop.shell.rivet("cdc", "--source", "postgresql://u:pw@db.example.com/x", "--table", "orders")
    other = shop.shell.rivet("cdc", "--source", "sqlite:///x.db", "--table", "orders")

    assert (1, 1, 1) == (none.code, remote.code, other.code)
    assert "--source-env" in none.err
    assert "tls" in remote.err
    assert "pw" not in remote.err
    assert "postgresql" in other.err


def test_doctor_names_what_to_run_before_the_first_drain(shop: Shop) -> None:
    """A role without REPLICATION and a table without a key: both are named with SQL to paste; exit code 1."""
    shop.run_sql(
        "CREATE TABLE keyless (v int)", "DROP ROLE IF EXISTS e2e_reader", "CREATE ROLE e2e_reader LOGIN",
        "GRANT SELECT ON keyless TO e2e_reader",
    )  # fmt: skip
    shop.shell.configure({**CDC, "table": "keyless", "cdc": {"slot": "e2e_doctor"}})
    shop.shell.environment["SHOP_URL"] = shop.url.replace("postgres@", "e2e_reader@")

    answer = shop.shell.rivet("doctor")
    run = shop.shell.rivet("run")

    assert 1 == answer.code, answer.out
    assert "ALTER ROLE" in answer.out
    assert "REPLICA IDENTITY" in answer.out
    assert 1 == run.code
    assert "ALTER ROLE" in run.err
    assert [] == shop.ask("SELECT 1 FROM pg_replication_slots WHERE slot_name = 'e2e_doctor'")


def test_reset_begins_anew_and_replaces_what_was_there(shop: Shop) -> None:
    """The slot must go first, and the message says so; then the copy is taken again and no row is there twice."""
    shop.shell.configure({**CDC, "table": "orders", "cdc": {"slot": "e2e_reset", "initial": "snapshot"}})
    assert 0 == shop.shell.rivet("run").code
    shop.run_sql("UPDATE orders SET total = 0 WHERE id < 5")
    assert 0 == shop.shell.rivet("run").code
    assert 0 == shop.shell.rivet("state", "reset", "-e", "shop").code

    refused = shop.shell.rivet("run")
    assert 1 == refused.code
    assert "pg_drop_replication_slot('e2e_reset')" in refused.err
    shop.run_sql("SELECT pg_drop_replication_slot('e2e_reset')")
    again = shop.shell.rivet("run")

    assert 0 == again.code, again.err
    assert 100 == len(shop.changes("shop"))


def one_jvm(config: RivetConfig, request: pytest.FixtureRequest) -> None:
    """Keep one Spark session for all that the test does, with the environment as it is now.

    One that tests of this worker share has the environment of its start, so it ends first; they start another.
    """
    for user in [*(runtimes._started.users if runtimes._started is not None else ())]:
        user.stop()
    runtime = SparkRuntime(config.spark)
    request.addfinalizer(runtime.stop)
    runtime.session()


@pytest.mark.spark
def test_mirror_and_history_follow_the_table(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """After two drains the mirror is the table, and the history knows what was before; both through Spark."""
    monkeypatch.setenv("SHOP_URL", shop.url)
    monkeypatch.chdir(shop.shell.folder)
    shop.shell.configure(
        {**CDC, "table": "orders", "apply": ["mirror", "history"], "cdc": {"slot": "e2e_mirror", "initial": "snapshot"},
         "quality": {"unique_columns": ["id"]}},
        spark={"conf": {}},
    )  # fmt: skip
    config = load_config(Path("rivet.yaml"))
    one_jvm(config, request)
    assert [("success", "")] == [(outcome.status, outcome.message) for outcome in run_exports(config)]
    shop.run_sql("UPDATE orders SET note = NULL WHERE id = 3", "UPDATE orders SET id = 300 WHERE id = 4")
    shop.run_sql("DELETE FROM orders WHERE id = 5")

    outcomes = run_exports(config)

    assert ["success"] == [outcome.status for outcome in outcomes], report.block(outcomes[0])
    mirror = sorted(shop.select("shop_mirror", "SELECT id, total, note FROM lake"))
    assert shop.ask("SELECT id, total, note FROM orders ORDER BY id") == mirror
    history = shop.select(
        "shop_history", "SELECT id, note, is_current FROM lake WHERE id IN (3, 4, 5, 300) ORDER BY ALL"
    )
    assert [
        (3, "note 3", False), (3, None, True), (4, "note 4", False), (5, "note 5", False), (300, "note 4", True),
    ] == history  # fmt: skip
    assert 100 - 1 == len(mirror)


def test_drain_that_cannot_begin_gives_its_own_reason_beside_its_tables(shop: Shop) -> None:
    """Its mirror fails too, for want of changes: the code that is told is the first one's, as its words are."""
    shop.run_sql("CREATE TABLE places (n int NOT NULL)", "ALTER TABLE places REPLICA IDENTITY FULL")
    shop.run_sql("ALTER TABLE places ADD CONSTRAINT places_n UNIQUE (n) DEFERRABLE")
    shop.shell.configure(
        {**CDC, "table": "places", "key": ["n"], "apply": ["mirror"], "cdc": {"slot": "e2e_n", "initial": "snapshot"}},
        spark={"conf": {}},
    )  # fmt: skip

    answer = shop.shell.rivet("run", "--json")

    (export,) = json.loads(answer.out)["exports"]
    assert (1, "RIVET_LOG_SETUP") == (answer.code, export["code"]), answer.err
    assert "places_n keeps unique: it is DEFERRABLE" in export["message"]


@pytest.mark.spark
def test_statement_that_shifts_keys_is_exact_or_refused(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Where nothing keeps `key` unique: keys that are free when they are taken are followed, and others end the run."""
    monkeypatch.setenv("SHOP_URL", shop.url)
    monkeypatch.chdir(shop.shell.folder)
    shop.run_sql("CREATE TABLE places (n int NOT NULL)", "ALTER TABLE places REPLICA IDENTITY FULL")
    shop.run_sql("INSERT INTO places VALUES (1), (2), (3)")
    shop.shell.configure(
        {**CDC, "table": "places", "key": ["n"], "apply": ["mirror"], "cdc": {"slot": "e2e_n", "initial": "snapshot"}},
        spark={"conf": {}},
    )  # fmt: skip
    config = load_config(Path("rivet.yaml"))
    one_jvm(config, request)
    first = run_exports(config)
    shop.run_sql("UPDATE places SET n = n - 1", "BEGIN; DELETE FROM places WHERE n = 2; INSERT INTO places VALUES (2)")
    exact = run_exports(config)
    followed = sorted(shop.select("shop_mirror", "SELECT n FROM lake"))
    shop.run_sql("UPDATE places SET n = n + 1")

    shared = run_exports(config)

    assert [["success"], ["success"]] == [[each.status for each in ran] for ran in (first, exact)], exact[0].message
    assert [(0,), (1,), (2,)] == followed == sorted(shop.select("shop_mirror", "SELECT n FROM lake"))
    assert [("failed", "RIVET_KEY_SHARED")] == [(each.status, each.code) for each in shared]
    assert "a row gets a key (`key: n`) that another row still has" in shared[0].message


@pytest.mark.rare
@pytest.mark.spark
def test_reconcile_compares_a_mirror_with_its_table(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """After a drain cells match; what changed behind it is counted row by row; no copy of the table stays."""
    monkeypatch.setenv("SHOP_URL", shop.url)
    monkeypatch.chdir(shop.shell.folder)
    block = {**CDC, "tables": ["orders", '"Order Lines"'], "cdc": {"slot": "e2e_reconcile", "initial": "snapshot"}}
    shop.shell.configure({**block, "apply": ["mirror"]}, spark={"conf": {}})
    config = load_config(Path("rivet.yaml"))
    one_jvm(config, request)
    state = state_of(config)

    def reconciled(depth: Depth) -> Reconciled:
        return reconcile_export(config, config.exports[0], depth=depth, state=state, tell=lambda line: None)

    assert [("success", "")] == [(outcome.status, outcome.message) for outcome in run_exports(config)]
    before = sorted(Path("lake").rglob("*"))
    same = [reconciled(depth) for depth in ("counts", "checksums")]
    shop.run_sql("UPDATE orders SET total = 0 WHERE id IN (7, 8)", "DELETE FROM orders WHERE id = 9")
    shop.run_sql("INSERT INTO orders VALUES (1000, 1, NULL), (1001, 1, NULL)")
    numbers, cells = reconciled("counts"), reconciled("rows")
    shop.shell.configure(block)
    bare = shop.shell.rivet("reconcile", "--strict")

    assert ["match", "match"] == [each.verdict for each in same], [each.text for each in same]
    assert [(101, 100), (100, 100)] == [(each.source_count, each.exported_rows) for each in numbers.windows]
    assert ["mismatch", "match"] == [each.verdict for each in cells.windows], cells.text
    assert RowDifferences(missing=2, extra=1, different=2) == cells.windows[0].rows
    assert "changes that are not drained yet count as differences" in cells.text
    assert before == sorted(Path("lake").rglob("*"))
    assert 1 == bare.code
    assert "add `apply: mirror`" in bare.out


def test_mysql_and_mariadb_names_are_one_engine(shop: Shop) -> None:
    """`rivet cdc` takes the engine from the URL; one that nobody answers is told as such, without the password."""
    answer = shop.shell.rivet("cdc", "--source", "mariadb://u:secret@127.0.0.1:1/x", "--table", "t", "--until-current")

    assert 2 == answer.code
    assert "127.0.0.1:1" in answer.err
    assert "secret" not in answer.err
