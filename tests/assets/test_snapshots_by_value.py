"""`snapshots: daily` beside values or shards: a day's copy of each, every row of a day in one window."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from rivet_assets.config.load import RivetConfig, load_config
from rivet_assets.config.selection import due, keys_of
from rivet_assets.definitions import definitions_of
from rivet_assets.doctor.examine import examine
from rivet_assets.launch.rivet_resource import RivetResource
from rivet_assets.launch.run_exports import Outcome, run_exports
from rivet_assets.modes.partitions import due_keys, partitions_of
from rivet_assets.plan.planner import plan_exports
from rivet_assets.preflight.check import check_exports
from rivet_assets.prove.reconcile import reconcile_export
from rivet_assets.prove.repair import repair_export
from rivet_assets.prove.validate import ValidationScope, validate_export
from rivet_assets.run import attempt
from rivet_assets.run.admit.scope import state_of
from rivet_assets.run.other_values import windows_left
from rivet_assets.upkeep.retain import retain_export
from rivet_resources.commit.manifest import current_manifests
from rivet_resources.destinations.local import Local
from rivet_resources.errors import ConfigError
from rivet_resources.read.stage import Exporter
from rivet_resources.spark.runtime import Spark, SparkRuntime
from tests.assets.test_snapshots import clock
from tests.backfills import ORDERS, launch

TODAY = datetime.now(UTC).date().isoformat()  # at midnight a test may meet two days
VALUES = {"partition_by": {"column": "of", "values": ["eu", "us"]}}
SHARDS = {"shards": {"eu": "EU_DB", "us": "US_DB"}}
COLUMN = {"values": "of", "shards": "shard"}
BOTH = pytest.mark.parametrize("kind", ["values", "shards"])
KINDS = {"values": VALUES, "shards": SHARDS}


class Shop:
    """Two orders of Europe and one of America: in one database, and of each in its own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch
        for name in ("shop", "eu", "us"):
            self.sql(name, "CREATE TABLE orders (id INTEGER PRIMARY KEY, of TEXT)")
        for number, of in [(1, "eu"), (2, "eu"), (3, "us")]:
            self.add(number, of)

    def sql(self, name: str, statement: str, *values: object) -> None:
        """Run one statement in a database."""
        with closing(sqlite3.connect(self.folder / f"{name}.db")) as connection, connection:
            connection.execute(statement, values)

    def add(self, number: int, of: str) -> None:
        """Insert an order, in the one database and in its own."""
        for name in ("shop", of):
            self.sql(name, "INSERT INTO orders VALUES (?, ?)", number, of)

    def config(self, kind: str, **keys: Any) -> RivetConfig:
        """Write and load the configuration of one export."""
        export = {
            "name": "orders", "table": "orders", "format": "parquet", "snapshots": "daily", "start": "2026-01-01",
            "destination": {"type": "local", "path": str(self.folder / "lake")}, **KINDS[kind], **keys,
        }  # fmt: skip
        document = {"source": {"type": "sqlite", "path": str(self.folder / "shop.db")}, "spark": "inline"}
        path = self.folder / "rivet.yaml"
        path.write_text(yaml.safe_dump(document | {"exports": [export]}))
        return load_config(path)

    def run(self, kind: str, *partitions: str, **keys: Any) -> Outcome:
        """Run the export as `rivet run` does."""
        (outcome,) = run_exports(self.config(kind, **keys), partitions=partitions)
        return outcome

    def on(self, day: str, kind: str, *partitions: str, **keys: Any) -> Outcome:
        """Run it on a day."""
        with self.monkeypatch.context() as patch:
            patch.setattr(attempt, "datetime", clock(day))
            return self.run(kind, *(partitions or (day,)), **keys)

    @property
    def windows(self) -> dict[str, list[int]]:
        """Return the ids of each published window, and see that no other file is there."""
        root = self.folder / "lake/orders"
        current = current_manifests(Local(type="local", path=str(self.folder / "lake")).root("orders"))
        named = {part.path for each in current.values() for part in each.parts}
        assert named == {path.relative_to(root).as_posix() for path in root.rglob("*.parquet")}
        return {
            key: sorted(id for part in each.parts for id in pq.read_table(root / part.path)["id"].to_pylist())
            for key, each in sorted(current.items())
        }


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """Three orders."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    monkeypatch.setenv("EU_DB", str(tmp_path / "eu.db"))
    monkeypatch.setenv("US_DB", str(tmp_path / "us.db"))
    return Shop(tmp_path, monkeypatch)


def key(kind: str, day: str, value: str) -> str:
    """Name a window."""
    return f"snapshot={day}|{COLUMN[kind]}={value}"


@BOTH
def test_each_day_and_value_has_a_window_and_a_folder(shop, kind):
    """A day alone means all its values; without a partition a run is of today."""
    shop.on("2026-01-30", kind)
    shop.add(4, "us")
    outcome = shop.run(kind)

    assert ("success", 4) == (outcome.status, outcome.rows), outcome.message
    assert {
        key(kind, "2026-01-30", "eu"): [1, 2], key(kind, "2026-01-30", "us"): [3],
        key(kind, TODAY, "eu"): [1, 2], key(kind, TODAY, "us"): [3, 4],
    } == shop.windows  # fmt: skip
    assert {f"dt={day}/{COLUMN[kind]}={value}" for day in ("2026-01-30", TODAY) for value in ("eu", "us")} == {
        path.parent.relative_to(shop.folder / "lake/orders").as_posix()
        for path in (shop.folder / "lake/orders").rglob("*.parquet")
    }


@BOTH
def test_one_value_of_today_is_run_again_by_itself(shop, kind):
    """Both spellings of a partition mean it; a day that is over cannot be run."""
    shop.on("2026-01-30", kind)
    shop.run(kind)
    shop.add(4, "eu")
    shop.add(5, "us")

    outcome = shop.run(kind, f"{TODAY}|eu")
    past = shop.run(kind, "2026-01-30|us")

    assert ("success", (key(kind, TODAY, "eu"),)) == (outcome.status, outcome.windows)
    assert ("failed", "RIVET_SNAPSHOT_PAST") == (past.status, past.code)
    assert f"no snapshot of 2026-01-30 on {TODAY} (UTC)" in past.message
    assert [[1, 2], [3], [1, 2, 4], [3]] == list(shop.windows.values())
    export = shop.config(kind).export("orders")
    assert (key(kind, TODAY, "eu"),) == keys_of(shop.config(kind), export, [f"{TODAY}|eu"])
    assert [f"{TODAY}|eu"] == due(shop.config(kind), export, [key(kind, TODAY, "eu")])


@BOTH
def test_old_days_of_each_value_go_by_themselves(shop, kind):
    """With the swap of a new one of the same value; another value that is not run keeps its days."""
    for day in ("2026-01-27", "2026-01-28"):
        shop.on(day, kind, keep=2)
    for day in ("2026-01-29", "2026-01-30"):
        shop.on(day, kind, f"{day}|eu", keep=2)

    assert {
        key(kind, "2026-01-29", "eu"), key(kind, "2026-01-30", "eu"),
        key(kind, "2026-01-27", "us"), key(kind, "2026-01-28", "us"),
    } == set(shop.windows)  # fmt: skip


@BOTH
@pytest.mark.parametrize("keep", [1, "1d"])
def test_retention_leaves_the_newest_day_of_each_value(shop, kind, keep):
    """It is what a reader of the table sees of the value, however old it is."""
    shop.on("2026-01-27", kind)
    shop.on("2026-01-28", kind, "2026-01-28|eu")
    config = shop.config(kind, keep=keep)
    with closing(state_of(config)) as state:
        done = retain_export(config.export("orders"), state=state, tell=lambda line: None)

    assert [key(kind, "2026-01-27", "eu")] == [each.window for each in done.windows]
    assert {key(kind, "2026-01-28", "eu"), key(kind, "2026-01-27", "us")} == set(
        current_manifests(config.export("orders").destination.root("orders"))
    )


def test_shard_that_is_away_keeps_its_day_and_the_others_have_todays(shop, monkeypatch):
    """Its partition is red by its name."""
    shop.on("2026-01-30", "shards")
    monkeypatch.setenv("EU_DB", str(shop.folder / "gone/eu.db"))

    outcome = shop.run("shards")

    assert ("failed", (key("shards", TODAY, "eu"),)) == (outcome.status, outcome.refused)
    assert "Shard eu: " in outcome.message
    assert [key("shards", "2026-01-30", "eu"), key("shards", "2026-01-30", "us"), key("shards", TODAY, "us")] == list(
        shop.windows
    )


def test_value_that_nobody_listed_refuses_the_day(shop):
    """A reader would miss its rows."""
    shop.sql("shop", "INSERT INTO orders VALUES (9, 'ap')")

    outcome = shop.run("values")

    assert ("failed", "RIVET_OTHER_VALUES") == (outcome.status, outcome.code), outcome.message


@pytest.mark.parametrize("is_split_first", [True, False])
def test_snapshots_of_all_rows_and_of_values_do_not_stand_side_by_side(shop, is_split_first):
    """A day's rows would show twice."""
    kinds = [{}, {"partition_by": None}]
    one, other = kinds if is_split_first else reversed(kinds)
    first = shop.run("values", **one)
    before = shop.windows
    second = shop.run("values", **other)

    assert ("success", "RIVET_WINDOW_CONFLICT") == (first.status, second.code), second.message
    assert before == shop.windows


@BOTH
def test_plan_check_doctor_and_proofs_know_both(shop, kind):
    """Today's is compared and repaired, of each value; of another day the files can be proved, not the rows."""
    shop.on("2026-01-30", kind)
    shop.run(kind)
    config = shop.config(kind)
    export, state = config.export("orders"), state_of(config)
    (entry,), (checked,) = plan_exports(config).artefact.exports, check_exports(config)
    rows = examine(config)
    shop.add(99, "us")

    found = reconcile_export(config, export, depth="checksums", state=state, tell=lambda line: None)
    past = reconcile_export(
        config, export, depth="counts", windows=[key(kind, "2026-01-30", "us")], state=state, tell=lambda line: None
    )
    exporter = Exporter(SparkRuntime(Spark(engine="inline")), state)
    done = repair_export(config, export, found, execute=True, exporter=exporter, state=state, tell=lambda line: None)
    (valid,) = validate_export(export, ValidationScope("full"), state=state)
    state.close()

    assert [key(kind, TODAY, "eu"), key(kind, TODAY, "us")] == [each.key for each in entry.computed.windows]
    assert (
        ["all rows of shard eu", "all rows of shard us"] if kind == "shards" else ["of is eu", "of is us"]
    ) == [each.text for each in entry.computed.windows]  # fmt: skip
    assert None is checked.error
    assert "fail" not in {row.status for row in rows}
    assert {key(kind, TODAY, "eu"): "match", key(kind, TODAY, "us"): "mismatch"} == {
        each.window: each.verdict for each in found.windows
    }
    assert ["unknown"] == [each.verdict for each in past.windows]
    assert [(key(kind, TODAY, "us"), "repaired")] == [(each.window, each.status) for each in done.windows]
    assert [[1, 2], [3], [1, 2], [3, 99]] == list(shop.windows.values())
    assert not valid.all_flaws


def test_partitions_are_of_both_dimensions(shop):
    """Days from start to today; a schedule asks for all values of today."""
    config = shop.config("shards", schedule="0 3 * * *")
    export = config.export("orders")
    defs, found = definitions_of(config), partitions_of(export)
    before = datetime(2026, 3, 1, 2, 59, tzinfo=UTC)
    instance = dg.DagsterInstance.ephemeral()
    first = dg.evaluate_automation_conditions(defs, instance, evaluation_time=before)
    later = dg.evaluate_automation_conditions(
        defs, instance, evaluation_time=before.replace(hour=3, minute=1), cursor=first.cursor
    )

    assert isinstance(found, dg.MultiPartitionsDefinition)
    assert ["date", "shard"] == list(found.partition_dimension_names)
    assert {"2026-01-01|eu", f"{TODAY}|us"} <= set(found.get_partition_keys())
    assert [f"{TODAY}|eu", f"{TODAY}|us"] == due_keys(export)
    assert {"2026-03-01|eu", "2026-03-01|us"} == set(later.get_requested_partitions(ORDERS))


def test_backfill_of_today_is_one_run_and_tells_both_dimensions(shop):
    """Dagster's own tags of a materialization name the day and the shard."""
    instance = dg.DagsterInstance.ephemeral()

    result = launch(shop.config("shards"), instance, f"{TODAY}|eu", f"{TODAY}|us")

    assert result.success
    assert {f"{TODAY}|eu", f"{TODAY}|us"} == set(instance.get_materialized_partitions(ORDERS))
    (event,) = instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=ORDERS, asset_partitions=[f"{TODAY}|us"]), limit=9
    ).records
    tags = event.event_log_entry.asset_materialization.tags
    assert (TODAY, "us") == (tags["dagster/partition/date"], tags["dagster/partition/shard"])


READS: dict[str, tuple[Any, Callable[[Any], Any], Any]] = {
    "newest": (pa.Table, lambda rows: sorted(rows["id"].to_pylist()), [1, 2, 3, 4]),
    "each": (
        dict[str, pa.Table],
        lambda rows: {key: len(table) for key, table in rows.items()},
        {"2026-01-30|eu": 2, "2026-01-30|us": 1, "2026-01-31|eu": 3},
    ),
}


@BOTH
@pytest.mark.parametrize("case", READS)
def test_reader_sees_the_newest_snapshot_of_each_value(shop, case, kind):
    """Of different days, where one of them was away; all of them where it asks for a mapping."""
    annotation, shown, expected = READS[case]
    shop.on("2026-01-30", kind)
    shop.add(4, "eu")
    shop.on("2026-01-31", kind, "2026-01-31|eu")

    assert expected == shown(RivetResource().load(shop.config(kind), "orders", as_type=annotation))


def test_value_that_is_listed_no_more_is_named_once(shop):
    """Not once for each of its days."""
    shop.on("2026-01-30", "shards")
    shop.run("shards")
    export = shop.config("shards", shards={"eu": "EU_DB"}).export("orders")

    left = windows_left(SimpleNamespace(export=export, root=export.destination.root("orders")), ["eu"])

    assert ["shard=us"] == left


def test_day_before_the_first_is_no_partition(shop):
    """The message says which there are."""
    with pytest.raises(ConfigError, match="has no partition '2025-12-31'; it has 2026-01-01 to"):
        shop.run("values", "2025-12-31|eu")
