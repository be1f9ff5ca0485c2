"""Databases of one shape: one asset, a window and a partition each, every row once and of its own database."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from rivet_assets.config.load import RivetConfig, load_config
from rivet_assets.definitions import definitions_of
from rivet_assets.doctor.examine import examine
from rivet_assets.launch.run_exports import Outcome, run_exports
from rivet_assets.modes.partitions import partitions_of
from rivet_assets.plan.fingerprint import collect_hidden, export_fingerprint
from rivet_assets.plan.planner import plan_exports
from rivet_assets.preflight.check import check_exports
from rivet_assets.prove.reconcile import reconcile_export
from rivet_assets.prove.repair import repair_export
from rivet_assets.prove.validate import ValidationScope, validate_export
from rivet_assets.run.admit.admission import ADOPT
from rivet_assets.run.admit.scope import state_of
from rivet_assets.run.other_values import windows_left
from rivet_assets.run.reset import forget
from rivet_resources.commit.manifest import Manifest, current_manifests
from rivet_resources.destinations.local import Local
from rivet_resources.read.stage import Exporter
from rivet_resources.spark.runtime import Spark, SparkRuntime
from tests.backfills import ORDERS, QUIET, launch

SHARDS = {"eu": "EU_DB", "us": "US_DB"}
FIRST = {"shard=eu": [1, 2], "shard=us": [1, 2, 3]}  # the same keys in both: rows are told apart by their shard alone


class World:
    """Two databases of orders, and an export of both."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for shard, rows in {"eu": 2, "us": 3}.items():
            self.sql(shard, "CREATE TABLE orders (id INTEGER PRIMARY KEY, of TEXT)")
            for number in range(1, rows + 1):
                self.sql(shard, "INSERT INTO orders VALUES (?, ?)", number, shard)

    def sql(self, shard: str, statement: str, *values: object) -> None:
        """Run one statement in a shard."""
        (self.folder / shard).mkdir(exist_ok=True)
        with closing(sqlite3.connect(self.folder / shard / "shop.db")) as connection, connection:
            connection.execute(statement, values)

    def config(self, shards: dict[str, str] | None = None, **keys: Any) -> RivetConfig:
        """Write and load the configuration of one export; the source's own address leads nowhere."""
        export = {
            "name": "orders", "table": "orders", "format": "parquet", "shards": SHARDS if shards is None else shards,
            "destination": {"type": "local", "path": str(self.folder / "lake")}, **keys,
        }  # fmt: skip
        source = {"type": "sqlite", "path": str(self.folder / "nowhere.db"), "tuning": {"batch_size": 2}}
        path = self.folder / "rivet.yaml"
        path.write_text(yaml.safe_dump({"source": source, "spark": "inline", "exports": [export]}))
        return load_config(path)

    def run(self, *partitions: str, shards: dict[str, str] | None = None, adopt: bool = False, **keys: Any) -> Outcome:
        """Run the export as `rivet run` does."""
        (outcome,) = run_exports(
            self.config(shards, **keys), partitions=partitions, tags={ADOPT: "true"} if adopt else {}
        )
        return outcome

    @property
    def manifests(self) -> dict[str, Manifest]:
        """Return the current manifests by window."""
        return current_manifests(Local(type="local", path=str(self.folder / "lake")).root("orders"))

    @property
    def windows(self) -> dict[str, list[int]]:
        """Return the ids that each published window has; every row is of the window's own database."""
        found = {}
        for key, each in sorted(self.manifests.items()):
            rows = [row for part in each.parts for row in pq.read_table(self.root / part.path).to_pylist()]
            assert {key.partition("=")[2]} >= {row["of"] for row in rows}
            found[key] = sorted(row["id"] for row in rows)
        return found

    @property
    def root(self) -> Path:
        """Return the folder of the export."""
        return self.folder / "lake/orders"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Two orders in Europe, three in America."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    for shard, variable in SHARDS.items():
        monkeypatch.setenv(variable, str(tmp_path / shard / "shop.db"))
    return World(tmp_path)


# --- every row of its own database ---------------------------------------------------------------


@pytest.mark.parametrize("keys", [{}, {"mode": "chunked", "chunk_column": "id", "chunk_size": 1}])
def test_each_shard_has_a_window_of_its_own(world, keys):
    """Both have the same keys; each window has its database's rows, in its folder, and says whose they are."""
    outcome = world.run(**keys)

    assert ("success", 5) == (outcome.status, outcome.rows)
    assert FIRST == world.windows
    assert {"shard=eu", "shard=us", "_rivet"} == {path.name for path in world.root.iterdir() if path.name != "_staged"}
    assert ["sqlite[eu]", "sqlite[us]"] == [world.manifests[key].source.name for key in FIRST]


def test_one_shard_can_be_run_by_itself(world):
    """The other database is not asked: its window stays as it is. Both spellings of a partition mean it."""
    world.run()
    world.sql("eu", "INSERT INTO orders VALUES (3, 'eu')")
    world.sql("us", "INSERT INTO orders VALUES (4, 'us')")

    by_name = world.run("eu")
    after_eu = world.windows
    by_window = world.run("shard=us")

    assert (("shard=eu",), ("shard=us",)) == (by_name.windows, by_window.windows)
    assert FIRST | {"shard=eu": [1, 2, 3]} == after_eu
    assert {"shard=eu": [1, 2, 3], "shard=us": [1, 2, 3, 4]} == world.windows


def test_shard_that_is_not_listed_cannot_be_run(world):
    """The message names those that are."""
    with pytest.raises(Exception, match=r"no partition 'ap'; it has eu, us.*`shards` lists it"):
        world.run("ap")


# --- databases that are away, or not what they should be -----------------------------------------


def test_shard_that_is_away_is_named_and_the_others_are_published(world, monkeypatch):
    """Its window stays what it was; the first of the list must not keep the second from its rows."""
    monkeypatch.setenv("EU_DB", str(world.folder / "gone/shop.db"))

    outcome = world.run()

    assert ("failed", ("shard=eu",)) == (outcome.status, outcome.refused)
    assert "Shard eu: " in outcome.message
    assert {"shard=us": [1, 2, 3]} == world.windows


def test_variable_that_is_not_set_is_named(world, monkeypatch):
    """With its shard; the others are published."""
    monkeypatch.delenv("US_DB")

    outcome = world.run()

    assert "failed" == outcome.status
    assert "Shard us: Environment variable US_DB" in outcome.message
    assert {"shard=eu": [1, 2]} == world.windows


def test_two_shards_that_are_one_database_are_refused(world, monkeypatch):
    """Else its rows would be there twice, and every light green."""
    monkeypatch.setenv("US_DB", str(world.folder / "eu/shop.db"))

    outcome = world.run()

    assert ("failed", "RIVET_PROVENANCE_REFUSED") == (outcome.status, outcome.code)
    assert "are one database" in outcome.message
    assert {} == world.windows


def test_shard_that_becomes_another_database_is_refused_until_it_is_adopted(world, monkeypatch):
    """The other shards are asked as ever."""
    world.run()
    world.sql("ap", "CREATE TABLE orders (id INTEGER PRIMARY KEY, of TEXT)")
    (world.folder / "ap/shop.db").rename(world.folder / "ap/other.db")
    monkeypatch.setenv("US_DB", str(world.folder / "ap/other.db"))
    world.sql("eu", "INSERT INTO orders VALUES (3, 'eu')")

    refused = world.run()
    before = world.windows
    adopted = world.run("us", adopt=True)

    assert ("RIVET_PROVENANCE_REFUSED", ("shard=us",)) == (refused.code, refused.refused)
    assert FIRST | {"shard=eu": [1, 2, 3]} == before
    assert "success" == adopted.status
    assert {"shard=eu": [1, 2, 3], "shard=us": []} == world.windows


def test_reset_lets_every_shard_be_another_database(world, monkeypatch):
    """It forgets of which database each of them was."""
    world.run()
    (world.folder / "us/shop.db").rename(world.folder / "us/other.db")
    monkeypatch.setenv("US_DB", str(world.folder / "us/other.db"))
    config = world.config()
    with closing(state_of(config)) as state:
        held = [state.provenance(name).provenance for name in ("orders/eu", "orders/us", "orders")]
        forget(config, config.export("orders"), state=state)

    assert ["sqlite[eu]", "sqlite[us]", None] == [each and each.source_name for each in held]
    assert "success" == world.run().status
    with closing(state_of(config)) as state:
        assert ["orders"] == state.exports()


@pytest.mark.parametrize("is_first", [True, False])
def test_shard_with_other_columns_is_named(world, is_first):
    """At once, in the first run too, when nothing is committed to compare with; by `on_schema_drift` it is refused."""
    if not is_first:
        world.run()
    world.sql("us", "ALTER TABLE orders ADD COLUMN note TEXT")

    outcome = world.run(on_schema_drift="fail", parallel=1)

    assert ("failed", "RIVET_DRIFT_REFUSED") == (outcome.status, outcome.code)
    assert 1 == len(outcome.refused)
    assert "Shard " in outcome.message
    assert "note" in outcome.message


def test_shard_with_other_columns_is_a_warning_by_default(world):
    """As drift is: databases of one shape are migrated one after another."""
    world.run()
    world.sql("us", "ALTER TABLE orders ADD COLUMN note TEXT")

    outcome = world.run()

    assert ("success", True) == (outcome.status, outcome.schema_changed)
    assert FIRST == world.windows


def test_shard_that_is_listed_no_more_keeps_its_window(world):
    """It is named, is no partition any more, and can neither be compared nor repaired; its files are still intact."""
    world.run()
    config = world.config({"eu": "EU_DB"})

    outcome = world.run(shards={"eu": "EU_DB"})
    export = config.export("orders")
    site = SimpleNamespace(export=export, root=export.destination.root("orders"))
    with closing(state_of(config)) as state:
        found = reconcile_export(config, config.export("orders"), depth="counts", state=state, tell=lambda line: None)
        (files,) = validate_export(config.export("orders"), ValidationScope(depth="full"), state=state)

    assert ["shard=us"] == windows_left(site, list(export.shards))
    assert ("success", ("shard=eu",)) == (outcome.status, outcome.windows)
    assert FIRST == world.windows
    assert {"shard=eu": "match", "shard=us": "unknown"} == {each.window: each.verdict for each in found.windows}
    assert "no shard 'us' any more; it has eu" in next(each.text for each in found.windows if each.verdict == "unknown")
    assert not files.flaws


# --- comparing, repairing, planning --------------------------------------------------------------


@pytest.mark.parametrize("keys", [{}, {"mode": "chunked", "chunk_column": "id", "chunk_size": 2}])
def test_one_shard_is_compared_and_repaired_by_itself(world, keys):
    """Rows that differ in one database are read again there, and nowhere else."""
    world.run(**keys)
    world.sql("us", "DELETE FROM orders WHERE id = 2")
    config = world.config(**keys)
    export = config.export("orders")
    before = {key: each.run_id for key, each in world.manifests.items()}
    with closing(state_of(config)) as state:
        found = reconcile_export(config, export, depth="checksums", state=state, tell=lambda line: None)
        exporter = Exporter(SparkRuntime(Spark(engine="inline")), state)
        done = repair_export(
            config, export, found, execute=True, exporter=exporter, state=state, tell=lambda line: None
        )

    assert {"shard=eu": "match", "shard=us": "mismatch"} == {each.window: each.verdict for each in found.windows}
    assert [("shard=us", "repaired")] == [(each.window, each.status) for each in done.windows]
    assert {"shard=eu": [1, 2], "shard=us": [1, 3]} == world.windows
    assert before["shard=eu"] == world.manifests["shard=eu"].run_id


def test_shard_that_is_away_is_not_compared_and_the_others_are(world, monkeypatch):
    """What cannot be told is unknown, never a match."""
    world.run()
    monkeypatch.setenv("EU_DB", str(world.folder / "gone/shop.db"))
    config = world.config()
    with closing(state_of(config)) as state:
        found = reconcile_export(config, config.export("orders"), depth="counts", state=state, tell=lambda line: None)

    assert {"shard=eu": "unknown", "shard=us": "match"} == {each.window: each.verdict for each in found.windows}
    assert "Shard eu: " in next(each.text for each in found.windows if each.verdict == "unknown")


def test_plan_looks_at_each_shard_in_its_database(world):
    """Rows are estimated there; the text says whose they are."""
    world.run()
    config = world.config()

    (entry,) = plan_exports(config).artefact.exports

    assert ["all rows of shard eu", "all rows of shard us"] == [each.text for each in entry.computed.windows]
    assert list(FIRST) == [each.key for each in entry.computed.windows]


def test_check_and_doctor_ask_every_shard(world, monkeypatch):
    """One that is away is named; another database than before is foreseen."""
    world.run()
    well = check_exports(world.config())[0]
    (world.folder / "us/shop.db").rename(world.folder / "us/other.db")
    monkeypatch.setenv("US_DB", str(world.folder / "us/other.db"))
    moved = check_exports(world.config())[0]
    monkeypatch.setenv("EU_DB", str(world.folder / "gone/shop.db"))
    away = check_exports(world.config())[0]
    rows = examine(world.config())

    assert (None, 5) == (well.error, well.rows_estimate)
    assert ["fail"] == [each.status for each in moved.findings if each.name == "provenance"]
    assert "shard eu: " in str(away.error)
    assert "shard us" not in str(away.error)
    told = {(row.about, row.name): row.status for row in rows}
    assert ("fail", "ok") == (told["source sqlite[eu]", "connect"], told["source sqlite[us]", "connect"])


def test_sample_is_read_of_the_shard_that_is_asked_for(world):
    """`limit` reads there, and publishes nothing."""
    result = (
        definitions_of(world.config())
        .resolve_implicit_global_asset_job_def()
        .execute_in_process(
            asset_selection=[ORDERS],
            partition_key="us",
            run_config={"ops": {"sqlite__orders": {"config": {"limit": 3}}}, **QUIET},
        )
    )

    (seen,) = result.get_asset_observation_events()
    assert 3 == seen.asset_observation_data.asset_observation.metadata["rivet/sample_rows"].value
    assert {} == world.windows


# --- in Dagster ----------------------------------------------------------------------------------


def test_shards_are_partitions_of_one_asset(world, instance):
    """A range runs all of it in one run; each window is recorded at once."""
    config = world.config()
    partitions = partitions_of(config.export("orders"))

    result = launch(config, instance, "eu", "us")

    assert isinstance(partitions, dg.StaticPartitionsDefinition)
    assert ["eu", "us"] == list(partitions.get_partition_keys())
    assert result.success
    assert {"eu", "us"} == set(instance.get_materialized_partitions(ORDERS))
    assert FIRST == world.windows


def test_dead_shard_leaves_its_partition_open(world, instance, monkeypatch):
    """The run fails and names it; the other partition is green."""
    monkeypatch.setenv("EU_DB", str(world.folder / "gone/shop.db"))

    result = launch(world.config(), instance, "eu", "us")

    assert not result.success
    assert {"us"} == set(instance.get_materialized_partitions(ORDERS))


def test_reader_gets_one_frame_for_each_shard(world, instance):
    """By its name, as the asset's partitions are called; or all rows as one."""
    config = world.config()
    launch(config, instance, "eu", "us")
    seen: dict[str, int] = {}

    @dg.asset(ins={"orders": dg.AssetIn(ORDERS)})
    def by_shard(orders: dict[str, pa.Table]) -> None:
        seen.update({key: table.num_rows for key, table in orders.items()})

    @dg.asset(ins={"orders": dg.AssetIn(ORDERS)})
    def together(orders: pa.Table) -> None:
        seen["all"] = orders.num_rows

    assert launch(config, instance, more=[by_shard, together]).success
    assert {"eu": 2, "us": 3, "all": 5} == seen


def test_rows_of_shards_may_lie_in_folders_by_day(world):
    """`partition_by: <column>` without values makes folders within the window."""
    for shard in SHARDS:
        world.sql(shard, "ALTER TABLE orders ADD COLUMN day DATE")
        world.sql(shard, "UPDATE orders SET day = '2026-01-0' || id")

    outcome = world.run(partition_by="day", columns={"day": {"type": "date"}})

    assert "success" == outcome.status, outcome.message
    days = {(shard, day.name) for shard in SHARDS for day in (world.root / f"shard={shard}").iterdir()}
    assert {("eu", "day=2026-01-01"), *(("us", f"day=2026-01-0{day}") for day in (1, 2))} <= days
    assert FIRST == world.windows


# --- what is told of a shard's address -----------------------------------------------------------


def test_no_plan_shows_a_secret_of_a_shard(tmp_path, monkeypatch):
    """Its URL and its password are hidden, as those of the source are; a plan proves where each shard was."""
    source = {"type": "postgres", "url": "postgresql://rivet@localhost/shop"}
    export = {
        "name": "orders", "table": "orders", "format": "parquet", "shards": {"eu": "EU_URL"},
        "destination": {"type": "local", "path": str(tmp_path / "lake")},
    }  # fmt: skip
    (tmp_path / "rivet.yaml").write_text(yaml.safe_dump({"source": source, "exports": [export]}))
    monkeypatch.setenv("EU_URL", "postgresql://rivet:hunter2@localhost/eu")
    config = load_config(tmp_path / "rivet.yaml")
    first = export_fingerprint(config, config.export("orders"))

    shown = collect_hidden(config, {}).text("connected with hunter2 to postgresql://rivet:hunter2@localhost/eu")
    monkeypatch.setenv("EU_URL", "postgresql://rivet:rotated@localhost/eu")
    rotated = export_fingerprint(config, config.export("orders"))
    monkeypatch.setenv("EU_URL", "postgresql://rivet:hunter2@localhost/us")
    moved = export_fingerprint(config, config.export("orders"))

    assert "hunter2" not in shown
    assert first == rotated != moved
