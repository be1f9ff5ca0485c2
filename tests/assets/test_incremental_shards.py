"""Databases of one shape that each go on from a cursor of their own: one asset, a chain of windows for each."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import yaml

from rivet_assets.cli.main import commands
from rivet_assets.config.load import RivetConfig, load_config
from rivet_assets.definitions import definitions_of
from rivet_assets.doctor.examine import examine
from rivet_assets.launch.apply_plan import apply_plan
from rivet_assets.launch.rivet_resource import RivetResource
from rivet_assets.launch.run_exports import Outcome, run_exports
from rivet_assets.modes.by_shard import chains_of
from rivet_assets.plan.planner import plan_exports
from rivet_assets.preflight.check import check_exports
from rivet_assets.prove.reconcile import reconcile_export
from rivet_assets.prove.repair import repair_export
from rivet_assets.prove.validate import ValidationScope, validate_export
from rivet_assets.run.admit.admission import ADOPT
from rivet_assets.run.admit.scope import state_of
from rivet_assets.run.other_values import look_at_values
from rivet_assets.run.reset import standing
from rivet_resources.commit.manifest import current_manifests
from rivet_resources.errors import ConfigError
from rivet_resources.read.stage import Exporter
from rivet_resources.spark.runtime import Spark, SparkRuntime
from tests.backfills import ORDERS, QUIET, launch

SHARDS = {"eu": "EU_DB", "us": "US_DB"}


class World:
    """Two databases of orders whose keys are the same numbers, and an export of both."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for shard, rows in {"eu": 2, "us": 3}.items():
            self.create(shard)
            for number in range(1, rows + 1):
                self.add(shard, number)

    def create(self, shard: str) -> None:
        """Make the table in a database."""
        (self.folder / shard).mkdir(exist_ok=True)
        self.sql(shard, "CREATE TABLE orders (id INTEGER PRIMARY KEY, of TEXT)")

    def sql(self, shard: str, statement: str, *values: object) -> None:
        """Run one statement in a database."""
        with closing(sqlite3.connect(self.folder / shard / "shop.db")) as connection, connection:
            connection.execute(statement, values)

    def add(self, shard: str, number: int) -> None:
        """Insert an order."""
        self.sql(shard, "INSERT INTO orders VALUES (?, ?)", number, shard)

    def config(self, shards: dict[str, str] | None = None, **keys: Any) -> RivetConfig:
        """Write and load the configuration of one export; the source's own address leads nowhere."""
        export = {
            "name": "orders", "table": "orders", "format": "parquet", "mode": "incremental",
            **({} if keys.get("mode") else {"cursor_column": "id"}), "shards": SHARDS if shards is None else shards,
            "destination": {"type": "local", "path": str(self.folder / "lake")}, **keys,
        }  # fmt: skip
        source = {"type": "sqlite", "path": str(self.folder / "nowhere.db"), "tuning": {"batch_size": 2}}
        path = self.folder / "rivet.yaml"
        path.write_text(yaml.safe_dump({"source": source, "spark": "inline", "exports": [export]}))
        return load_config(path)

    def run(
        self, *partitions: str, shards: dict[str, str] | None = None, adopt: bool = False,
        options: dict[str, Any] | None = None, **keys: Any,
    ) -> Outcome:  # fmt: skip
        """Run the export as `rivet run` does."""
        (outcome,) = run_exports(
            self.config(shards, **keys),
            partitions=partitions,
            tags={ADOPT: "true"} if adopt else {},
            options=options or {},
        )
        return outcome

    @property
    def cursors(self) -> dict[str, str | None]:
        """Return how far each shard has committed."""
        config = self.config()
        with closing(state_of(config)) as state:
            return {one.of_shard: standing(config, one, state=state) for one in chains_of(config.export("orders"))}

    @property
    def windows(self) -> dict[str, dict[str, list[int]]]:
        """Return the ids of each window of each shard; every row is of the shard's own database, no file is beside."""
        found, named = {}, set()
        for one in chains_of(self.config().export("orders")):
            root = one.destination.root(one.name)
            found[one.of_shard] = windows = {}
            for key, each in sorted(current_manifests(root).items()):
                files = [Path(root.uri) / part.path for part in each.parts]
                rows = [row for file in files for row in pq.read_table(file).to_pylist()]
                assert {one.of_shard} >= {row["of"] for row in rows}
                windows[key] = sorted(row["id"] for row in rows)
                named |= set(files)
        assert named == set((self.folder / "lake").rglob("*.parquet"))
        return found


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Two orders in Europe, three in America."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    for shard in ("eu", "us", "ap"):
        monkeypatch.setenv(f"{shard.upper()}_DB", str(tmp_path / shard / "shop.db"))
    return World(tmp_path)


Cli = Callable[..., tuple[int, str]]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run a command as a user does: its exit code and what it prints."""

    def run(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        code = commands.main([*arguments, "-c", "rivet.yaml"], standalone_mode=False)
        return code, capsys.readouterr().out

    return run


# --- a cursor each -------------------------------------------------------------------------------


def test_each_shard_goes_on_from_its_own_cursor(world):
    """The next run of each begins where that one ended, though the keys of both are the same numbers."""
    first = world.run()
    world.add("eu", 3)
    world.add("us", 4)
    second = world.run()

    assert [("success", 5), ("success", 2)] == [(each.status, each.rows) for each in (first, second)], second.message
    assert ("shard=eu", "shard=us") == first.windows == second.windows
    assert {"eu": {"after=start": [1, 2], "after=2": [3]}, "us": {"after=start": [1, 2, 3], "after=3": [4]}} == (
        world.windows
    )
    assert {"eu": "3", "us": "4"} == world.cursors


def test_files_lie_in_a_folder_of_each_shard(world):
    """As in the other modes; what reads folders as columns finds the shard. Names of files are the export's."""
    world.run()

    found = ds.dataset(world.folder / "lake/orders", partitioning="hive", exclude_invalid_files=True).to_table()

    assert {("eu", 2), ("us", 3)} == {(shard, found["shard"].to_pylist().count(shard)) for shard in ("eu", "us")}
    assert {"orders"} == {path.name.partition("_")[0] for path in (world.folder / "lake").rglob("*.parquet")}


def test_one_shard_is_run_by_itself(world):
    """The other one's cursor stays, and its database is not asked."""
    world.run()
    world.add("eu", 3)
    world.add("us", 4)

    outcome = world.run("eu")

    assert ("success", ("shard=eu",)) == (outcome.status, outcome.windows)
    assert {"eu": "3", "us": "3"} == world.cursors


def test_shard_that_is_away_keeps_its_cursor_and_the_others_go_on(world, monkeypatch):
    """It is named; when it is back, it goes on from where it stood."""
    world.run()
    world.add("eu", 3)
    world.add("us", 4)
    with monkeypatch.context() as away:
        away.setenv("EU_DB", str(world.folder / "gone/shop.db"))
        outcome = world.run()
    between = world.cursors
    later = world.run()

    assert ("failed", ("shard=eu",), ("shard=us",)) == (outcome.status, outcome.refused, outcome.windows)
    assert "Shard eu: " in outcome.message
    assert {"eu": "2", "us": "4"} == between
    assert ("success", 1) == (later.status, later.rows)
    assert {"after=start": [1, 2], "after=2": [3]} == world.windows["eu"]


def test_rows_of_an_equal_cursor_are_told_apart_in_each_shard(world):
    """What is remembered of the rows at the end of a chain is of that shard alone."""
    keys: dict[str, Any] = {"cursor_column": "of"}  # the same value in all rows of a shard
    world.run(**keys)
    world.add("eu", 9)

    outcome = world.run(**keys)

    assert ("success", 1) == (outcome.status, outcome.rows), outcome.message
    assert [[1, 2], [9]] == sorted(filter(None, world.windows["eu"].values()))
    assert [[1, 2, 3]] == list(filter(None, world.windows["us"].values()))


def test_shard_that_is_listed_later_begins_at_its_start(world):
    """Its first run reads all its rows; the others go on."""
    world.run()
    world.create("ap")
    world.add("ap", 1)
    world.add("us", 4)

    outcome = world.run(shards=SHARDS | {"ap": "AP_DB"})

    assert ("success", 2) == (outcome.status, outcome.rows), outcome.message
    assert {"eu": "2", "us": "4"} == world.cursors


def test_shard_that_is_listed_no_more_is_named_and_keeps_its_cursor(world):
    """In one line; listed again it goes on."""
    world.run()
    config = world.config({"eu": "EU_DB"})
    export, told = config.export("orders"), list[str]()
    with closing(state_of(config)) as state:
        look_at_values(
            SimpleNamespace(export=export, state=state, root=export.destination.root("orders"), warn=told.append),
            [],
        )
    world.add("eu", 3)
    world.add("us", 4)
    outcome = world.run(shards={"eu": "EU_DB"})
    again = world.run()

    (line,) = told
    assert line.startswith("orders: shards us are listed no more; their cursors are kept")
    assert ("success", ("shard=eu",)) == (outcome.status, outcome.windows)
    assert ("success", 1) == (again.status, again.rows)
    assert {"after=start": [1, 2, 3], "after=3": [4]} == world.windows["us"]


# --- what must not be ----------------------------------------------------------------------------


def test_two_shards_that_are_one_database_are_refused(world, monkeypatch):
    """Else its rows would be there twice; by one address, and by two of one file."""
    monkeypatch.setenv("US_DB", str(world.folder / "eu/shop.db"))

    outcome = world.run()

    assert ("failed", "RIVET_PROVENANCE_REFUSED") == (outcome.status, outcome.code)
    assert "are one database" in outcome.message
    assert {"eu": None, "us": None} == world.cursors


def test_variable_that_is_not_set_is_named(world, monkeypatch):
    """With its shard; the other one is published."""
    monkeypatch.delenv("US_DB")

    outcome = world.run()

    assert ("failed", ("shard=us",)) == (outcome.status, outcome.refused)
    assert "Shard us: Environment variable US_DB" in outcome.message
    assert {"eu": "2", "us": None} == world.cursors


def test_shard_that_becomes_another_database_is_refused_until_it_is_adopted(world, monkeypatch):
    """Its cursor would skip rows of the other one; the message names the partition to run."""
    world.run()
    world.create("ap")
    (world.folder / "ap/shop.db").rename(world.folder / "ap/other.db")
    monkeypatch.setenv("US_DB", str(world.folder / "ap/other.db"))
    world.add("eu", 3)

    refused = world.run()
    adopted = world.run("us", adopt=True)

    assert ("RIVET_PROVENANCE_REFUSED", ("shard=us",)) == (refused.code, refused.refused)
    assert "rivet run -e orders --partition us --adopt" in refused.message
    assert {"eu": "3", "us": "3"} == world.cursors
    assert "failed" != adopted.status, adopted.message


@pytest.mark.parametrize("before", [{"mode": "full"}, {"shards": None}])
def test_windows_of_another_layout_refuse_the_run(world, monkeypatch, before):
    """Rows of theirs would show twice; nothing of them is touched."""
    if "shards" in before:
        (world.folder / "nowhere.db").write_bytes((world.folder / "eu/shop.db").read_bytes())
        first = run_exports(_without_shards(world))[0]
    else:
        first = world.run(**before)
    there = {path: path.read_bytes() for path in (world.folder / "lake").rglob("*.*")}

    outcome = world.run()

    assert ("success", "RIVET_WINDOW_CONFLICT") == (first.status, outcome.code), outcome.message
    assert "rows would show twice" in outcome.message
    assert there == {path: path.read_bytes() for path in (world.folder / "lake").rglob("*.*")}


@pytest.mark.parametrize("has_shards", [True, False])
def test_other_modes_refuse_the_folders_of_chains(world, has_shards):
    """The other way round."""
    world.run()
    (world.folder / "nowhere.db").write_bytes((world.folder / "eu/shop.db").read_bytes())
    keys: dict[str, Any] = {"mode": "full"}

    outcome = world.run(**keys) if has_shards else run_exports(_without_shards(world))[0]

    assert "RIVET_WINDOW_CONFLICT" == outcome.code, outcome.message


def _without_shards(world: World) -> RivetConfig:
    """Load the export without its shards."""
    world.config()
    path = world.folder / "rivet.yaml"
    document = yaml.safe_load(path.read_text())
    del document["exports"][0]["shards"]
    path.write_text(yaml.safe_dump(document))
    return load_config(path)


# --- beginning anew ------------------------------------------------------------------------------


def test_reset_lets_every_shard_begin_anew(world, cli):
    """And replaces what was published of each."""
    world.run()
    world.add("eu", 3)
    world.run()
    cli("state", "reset", "-e", "orders")
    between = world.cursors

    outcome = world.run()

    assert {"eu": "(reset)", "us": "(reset)"} == between
    assert ("success", 6) == (outcome.status, outcome.rows), outcome.message
    assert {"eu": {"after=start": [1, 2, 3]}, "us": {"after=start": [1, 2, 3]}} == world.windows


def test_full_refresh_of_one_shard_leaves_the_cursor_of_the_other(world):
    """It begins anew by itself."""
    world.run()
    world.add("eu", 3)
    world.add("us", 4)
    world.run()

    one = world.run("eu", options={"full_refresh": True})
    after_one = world.windows
    both = world.run(options={"full_refresh": True})

    assert [("success", 3), ("success", 7)] == [(each.status, each.rows) for each in (one, both)], both.message
    assert {"eu": {"after=start": [1, 2, 3]}, "us": {"after=start": [1, 2, 3], "after=3": [4]}} == after_one
    assert {"eu": {"after=start": [1, 2, 3]}, "us": {"after=start": [1, 2, 3, 4]}} == world.windows


def test_lost_state_is_rebuilt_from_the_manifests_of_each_shard(world):
    """As of any incremental export: by the next run, and by the command."""
    world.run()
    world.add("us", 4)
    with closing(state_of(world.config())) as state:
        file = state.file
    for each in file.parent.glob(f"{file.name}*"):
        each.unlink()

    outcome = world.run()

    assert ("success", 1) == (outcome.status, outcome.rows), outcome.message
    assert {"after=start": [1, 2, 3], "after=3": [4]} == world.windows["us"]


# --- proving -------------------------------------------------------------------------------------


def test_one_window_of_one_shard_is_compared_and_repaired_by_itself(world):
    """Windows are named with their shard; the others stay as they are."""
    world.run()
    world.add("us", 4)
    world.run()
    world.sql("us", "DELETE FROM orders WHERE id = 2")
    config = world.config()
    export = config.export("orders")
    with closing(state_of(config)) as state:
        found = reconcile_export(config, export, depth="checksums", state=state, tell=lambda line: None)
        exporter = Exporter(SparkRuntime(Spark(engine="inline")), state)
        done = repair_export(
            config, export, found, execute=True, exporter=exporter, state=state, tell=lambda line: None
        )
        (of_one,) = reconcile_export(
            config, export, depth="counts", windows=["shard=us/after=3"], state=state, tell=lambda line: None
        ).windows
        valid = validate_export(export, ValidationScope(depth="full"), state=state)

    assert {
        "shard=eu/after=start": "match", "shard=eu/after=2": "match",
        "shard=us/after=start": "mismatch", "shard=us/after=3": "match",
    } == {each.window: each.verdict for each in found.windows}  # fmt: skip
    assert [("shard=us/after=start", "repaired")] == [(each.window, each.status) for each in done.windows]
    assert {"after=start": [1, 3], "after=3": [4]} == world.windows["us"]
    assert ("shard=us/after=3", "match") == (of_one.window, of_one.verdict)
    assert ["orders/shard=eu", "orders/shard=us"] == [each.export for each in valid]
    assert not [flaw for each in valid for flaw in each.all_flaws]


def test_shard_that_is_away_is_not_compared_and_the_others_are(world, monkeypatch):
    """What cannot be told is unknown, never a match."""
    world.run()
    monkeypatch.setenv("EU_DB", str(world.folder / "gone/shop.db"))
    config = world.config()
    with closing(state_of(config)) as state:
        found = reconcile_export(config, config.export("orders"), depth="counts", state=state, tell=lambda line: None)

    assert {"shard=eu/after=start": "unknown", "shard=us/after=start": "match"} == {
        each.window: each.verdict for each in found.windows
    }
    assert "Shard eu: " in next(each.text for each in found.windows if each.verdict == "unknown")


def test_file_of_one_shard_that_is_gone_is_found_and_repaired_by_command(world, cli):
    """From a report of `rivet validate`, and without one."""
    world.run()
    for file in (world.folder / "lake/orders/shard=us").glob("*.parquet"):
        file.unlink()
    code, _ = cli("validate", "--json", "-o", "report.json")
    repaired, told = cli("repair", "-e", "orders", "--report", "report.json", "--execute")

    assert (3, 0) == (code, repaired), told
    assert {"after=start": [1, 2, 3]} == world.windows["us"]


def test_window_of_no_shard_cannot_be_compared(world):
    """The message says how windows are named."""
    world.run()
    config = world.config()
    with closing(state_of(config)) as state, pytest.raises(ConfigError, match=r"it has shard=eu, shard=us\. Pass one"):
        reconcile_export(config, config.export("orders"), windows=["after=start"], state=state, tell=lambda line: None)


def test_plan_tells_what_each_shard_reads_and_holds_only_while_no_cursor_moved(world):
    """Applied, it runs them; after another run it is stale."""
    world.run()
    world.add("eu", 3)
    config = world.config()

    planned = plan_exports(config)
    (entry,) = planned.artefact.exports
    applied = apply_plan(config, planned.artefact, watch=lambda news: None)
    with pytest.raises(Exception, match="does not hold") as stale:
        apply_plan(config, planned.artefact, watch=lambda news: None)

    assert ["shard=eu", "shard=us"] == [each.key for each in entry.computed.windows]
    assert ["id in (2, 3] of shard eu", "nothing new above id 3 of shard us"] == [
        each.text for each in entry.computed.windows
    ]
    assert ["success"] == [each.status for each in applied.outcomes]
    assert {"eu": "3", "us": "3"} == world.cursors
    assert "orders" in str(stale.value)


def test_check_and_doctor_ask_every_shard(world, monkeypatch):
    """One that is away is named; another database than before is foreseen."""
    world.run()
    well = check_exports(world.config())[0]
    (world.folder / "us/shop.db").rename(world.folder / "us/other.db")
    monkeypatch.setenv("US_DB", str(world.folder / "us/other.db"))
    moved = check_exports(world.config())[0]
    rows_moved = examine(world.config())
    monkeypatch.setenv("EU_DB", str(world.folder / "gone/shop.db"))
    away = check_exports(world.config())[0]
    rows = examine(world.config())

    assert ("orders", None) == (well.export, well.error)
    assert ["fail"] == [each.status for each in moved.findings if each.name == "provenance"]
    assert ["fail"] == [row.status for row in rows_moved if row.name == "provenance"]
    assert ("orders", True) == (away.export, "shard eu: " in str(away.error))
    told = {(row.about, row.name): row.status for row in rows}
    assert ("fail", "ok") == (told["source sqlite[eu]", "connect"], told["source sqlite[us]", "connect"])


# --- commands ------------------------------------------------------------------------------------


def test_status_and_state_name_each_shard(world, cli):
    """With its cursor, its runs and its files."""
    world.run()

    status = {row["export"]: row["cursor"] for row in json.loads(cli("status", "--json")[1])}
    shown = {row["export"]: (row["cursor"], row["rows"]) for row in json.loads(cli("state", "show", "--json")[1])}
    progress = {row["export"]: row["committed"] for row in json.loads(cli("state", "progression", "--json")[1])}
    files = json.loads(cli("state", "files", "-e", "orders", "--json")[1])
    runs = json.loads(cli("metrics", "-e", "orders", "--json")[1])
    events = json.loads(cli("journal", "-e", "orders", "--json")[1])
    audit = json.loads(cli("audit", "-e", "orders", "--json")[1])
    rebuilt, _ = cli("state", "rebuild", "-e", "orders")

    assert {"orders/shard=eu": "2", "orders/shard=us": "3"} == status == progress
    assert {"orders/shard=eu": ("2", 2), "orders/shard=us": ("3", 3)} == shown
    assert {"orders/shard=eu", "orders/shard=us"} == {each["export"] for each in runs}
    assert 2 <= len(files)
    assert {"orders/shard=eu", "orders/shard=us"} == {each["export"] for each in events}
    assert {"orders/shard=eu", "orders/shard=us"} == {each["export"] for each in audit}
    assert 0 == rebuilt
    assert {"eu": "2", "us": "3"} == world.cursors


def test_windows_of_each_shard_are_joined_and_dropped_by_themselves(world, cli):
    """`compact:` and `keep:` look at each chain."""
    world.run()
    for number in range(4, 8):
        world.add("us", number)
        world.run()
    keys: dict[str, Any] = {"compact": {"min_parts": 2, "older_than": 0}, "keep": 1}
    world.config(**keys)

    code, told = cli("compact", "-e", "orders", "--grace", "0")
    joined = world.windows["us"]
    world.config(**keys)
    also, dropped = cli("retain", "-e", "orders", "--grace", "0", "--json")

    assert (0, 0) == (code, also), told + dropped
    assert [1, 2, 3, 4, 5, 6, 7] == sorted(number for ids in joined.values() for number in ids)
    assert len(joined) < 5, told
    assert ("orders/shard=us", True) == (json.loads(dropped)["exports"][0]["windows"][0]["folder"], True), dropped
    assert {"eu": "2", "us": "7"} == world.cursors


def test_rows_that_are_set_aside_are_of_their_shard(world, cli):
    """Counted, read again after a fix, and dropped there."""
    world.sql("us", "UPDATE orders SET of = '7' WHERE id = 1")
    keys: dict[str, Any] = {"on_error": "dead_letter", "transforms": [{"type": "cast", "columns": {"of": "int8"}}]}
    outcome = world.run(**keys)
    listed = json.loads(cli("quarantine", "list", "--json")[1])
    code, told = cli("quarantine", "drop", "-e", "orders", "--partition", "us", "--execute")
    left = json.loads(cli("quarantine", "list", "--json")[1])

    assert ("success", 1) == (outcome.status, outcome.rows), outcome.message
    assert [("orders/shard=eu", 2), ("orders/shard=us", 2)] == [(each["export"], each["rows"]) for each in listed]
    assert 0 == code, told
    assert [("orders/shard=eu", "dead letter"), ("orders/shard=us", "dropped")] == [
        (each["export"], each["fate"]) for each in left
    ]


# --- Dagster and readers -------------------------------------------------------------------------


def test_backfill_and_schedule_know_the_shards(world):
    """Each is a partition; one that is away is red, and the other one is materialized."""
    instance = dg.DagsterInstance.ephemeral()
    config = world.config(schedule="0 3 * * *")
    defs = definitions_of(config)
    before = datetime(2026, 3, 1, 2, 59, tzinfo=UTC)
    first = dg.evaluate_automation_conditions(defs, instance, evaluation_time=before)
    later = dg.evaluate_automation_conditions(
        defs, instance, evaluation_time=before.replace(hour=3, minute=1), cursor=first.cursor
    )

    result = launch(config, instance, "eu", "us")

    assert {"eu", "us"} == set(later.get_requested_partitions(ORDERS))
    assert result.success
    assert {"eu", "us"} == set(instance.get_materialized_partitions(ORDERS))
    events = instance.fetch_materializations(ORDERS, limit=9).records
    assert {("eu", 2), ("us", 3)} == {
        (each.partition_key, each.asset_materialization.metadata["rivet/rows"].value) for each in events
    }


def test_run_proves_what_each_shard_committed(world):
    """Files and rows; a window that differs is named with its shard."""
    world.run()
    world.add("us", 4)

    well = world.run(options={"reconcile": True})
    world.sql("us", "DELETE FROM orders WHERE id = 2")
    world.add("eu", 3)
    only_new = world.run("eu", options={"reconcile": True})

    assert ["success", "success"] == [well.status, only_new.status], well.message or only_new.message


def test_checks_and_the_repair_job_know_the_windows_of_shards(world):
    """What is repaired is materialized as its shard's partition."""
    instance, config = dg.DagsterInstance.ephemeral(), world.config()
    launch(config, instance, "eu", "us")
    world.sql("us", "DELETE FROM orders WHERE id = 2")
    defs = definitions_of(config)
    looked = (
        defs.resolve_implicit_global_asset_job_def()
        .get_subset(
            asset_selection=set(),
            asset_check_selection={dg.AssetCheckKey(ORDERS, name) for name in ("files_intact", "equals_source")},
        )
        .execute_in_process(instance=instance, raise_on_error=False, run_config=QUIET)
    )
    asked = {"asset": ORDERS.to_user_string(), "execute": True}
    repaired = defs.resolve_job_def("rivet_repair").execute_in_process(
        instance=instance, run_config={**QUIET, "ops": {"repair_windows": {"config": asked}}}
    )

    assert {"files_intact": True, "equals_source": False} == {
        each.check_name: each.passed for each in looked.get_asset_check_evaluations()
    }
    (event,) = repaired.get_asset_materialization_events()
    assert ("us", "shard=us/after=start") == (
        event.partition,
        event.step_materialization_data.materialization.metadata["rivet/window"].value,
    )
    assert {"after=start": [1, 3]} == world.windows["us"]


def test_partition_of_a_shard_that_is_away_is_red_and_the_other_is_made(world, monkeypatch):
    """In one run of both."""
    monkeypatch.setenv("EU_DB", str(world.folder / "gone/shop.db"))
    instance = dg.DagsterInstance.ephemeral()

    result = launch(world.config(), instance, "eu", "us")

    assert not result.success
    assert {"us"} == set(instance.get_materialized_partitions(ORDERS))


READS: dict[str, tuple[Any, Callable[[Any], Any], Any]] = {
    "all": (pa.Table, lambda rows: sorted(rows["of"].to_pylist()), ["eu"] * 3 + ["us"] * 3),
    "each": (dict[str, pa.Table], lambda rows: {key: len(rows[key]) for key in rows}, {"eu": 3, "us": 3}),
}


@pytest.mark.parametrize("case", READS)
def test_reader_sees_all_windows_of_all_shards(world, case):
    """As one table, or as a mapping of shards, each with its whole chain."""
    annotation, shown, expected = READS[case]
    world.run()
    world.add("eu", 3)
    world.run()
    seen = []

    def mart(orders: Any) -> None:
        seen.append(shown(orders))

    mart.__annotations__ |= {"orders": annotation, "return": None}
    asset = dg.asset(ins={"orders": dg.AssetIn(ORDERS)})(mart)

    assert launch(world.config(), dg.DagsterInstance.ephemeral(), more=[asset]).success
    assert [expected] == seen
    assert expected == shown(RivetResource().load(world.config(), "orders", as_type=annotation))


def test_reader_of_a_partition_sees_its_shard(world):
    """Of an asset with the same partitions."""
    world.run()
    config, seen = world.config(), {}

    @dg.asset(ins={"orders": dg.AssetIn(ORDERS)}, partitions_def=dg.StaticPartitionsDefinition(list(SHARDS)))
    def of_one(context, orders: pa.Table) -> None:
        seen[context.partition_key] = orders.num_rows

    assert launch(config, dg.DagsterInstance.ephemeral(), "us", more=[of_one]).success
    assert {"us": 3} == seen
    assert 2 == RivetResource().load(config, "orders", as_type=pa.Table, partitions=["eu"]).num_rows


def test_sample_is_read_of_the_shard_that_is_asked_for(world):
    """`limit` reads there, and publishes nothing."""
    result = (
        definitions_of(world.config())
        .resolve_implicit_global_asset_job_def()
        .execute_in_process(
            asset_selection=[ORDERS],
            partition_key="us",
            run_config={"ops": {"sqlite__orders": {"config": {"limit": 3}}}},
        )
    )

    (seen,) = result.get_asset_observation_events()
    assert 3 == seen.asset_observation_data.asset_observation.metadata["rivet/sample_rows"].value
    assert {"eu": None, "us": None} == world.cursors


def test_one_shard_can_be_reset_by_the_name_that_its_state_has(world, cli):
    """As messages spell it; the other one goes on."""
    world.run()
    code, _ = cli("state", "reset", "-e", "orders/shard=us")

    assert (0, {"eu": "2", "us": "(reset)"}) == (code, world.cursors)
