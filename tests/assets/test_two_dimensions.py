"""Windows of time beside values or shards: one asset with two dimensions, every row in exactly one window."""

from __future__ import annotations

import sqlite3
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
from rivet_assets.config.selection import due
from rivet_assets.dagster.checks.window_holes import windows_verdict
from rivet_assets.definitions import definitions_of
from rivet_assets.launch.run_exports import Outcome, run_exports
from rivet_assets.modes.partitions import due_keys, partitions_of, ranges_of, window_of
from rivet_assets.plan.planner import plan_exports
from rivet_assets.preflight.check import check_exports
from rivet_assets.prove.reconcile import reconcile_export
from rivet_assets.prove.repair import repair_export
from rivet_assets.prove.validate import ValidationScope, validate_export
from rivet_assets.run.admit.scope import state_of
from rivet_assets.run.other_values import windows_left
from rivet_resources.commit.manifest import current_manifests
from rivet_resources.destinations.local import Local
from rivet_resources.errors import ConfigError
from rivet_resources.read.stage import Exporter
from rivet_resources.spark.runtime import Spark, SparkRuntime
from tests.backfills import ORDERS, launch

REGIONS = {"partition_by": {"column": "region", "values": ["eu", "us", None]}}
SHARDS = {"shards": {"eu": "EU_DB", "us": "US_DB"}}
NULL = "__HIVE_DEFAULT_PARTITION__"
ROWS = [(1, 1, "eu"), (2, 1, "us"), (3, 1, None), (4, 2, "eu"), (5, 2, "eu"), (6, 3, "us")]  # id, day, region
OF_REGIONS = {
    "2026-01-01|region=__HIVE_DEFAULT_PARTITION__": [3], "2026-01-01|region=eu": [1], "2026-01-01|region=us": [2],
    "2026-01-02|region=__HIVE_DEFAULT_PARTITION__": [], "2026-01-02|region=eu": [4, 5], "2026-01-02|region=us": [],
    "2026-01-03|region=__HIVE_DEFAULT_PARTITION__": [], "2026-01-03|region=eu": [], "2026-01-03|region=us": [6],
}  # fmt: skip
OF_SHARDS = {
    "2026-01-01|shard=eu": [1], "2026-01-01|shard=us": [2], "2026-01-02|shard=eu": [4, 5],
    "2026-01-02|shard=us": [], "2026-01-03|shard=eu": [], "2026-01-03|shard=us": [6],
}  # fmt: skip


class Shop:
    """Orders of three days: of all regions in one database, and of each in its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("shop", "eu", "us"):
            self.sql(name, "CREATE TABLE orders (id INTEGER PRIMARY KEY, at INTEGER, region TEXT)")
            for number, day, region in ROWS:
                if name in ("shop", region):
                    self.add(name, number, day, region)

    def sql(self, name: str, statement: str, *values: object) -> None:
        """Run one statement in a database."""
        with closing(sqlite3.connect(self.folder / f"{name}.db")) as connection, connection:
            connection.execute(statement, values)

    def add(self, name: str, number: int, day: int, region: str | None) -> None:
        """Insert an order of noon of a day."""
        at = int(datetime(2026, 1, day, 12, tzinfo=UTC).timestamp())
        self.sql(name, "INSERT INTO orders VALUES (?, ?, ?)", number, at, region)

    def config(self, kind: dict[str, Any], **keys: Any) -> RivetConfig:
        """Write and load the configuration of one export."""
        export = {
            "name": "orders", "table": "orders", "format": "parquet", "mode": "time_window", "time_column": "at",
            "time_column_type": "unix", "start": "2026-01-01", "end": "2026-01-04",
            "destination": {"type": "local", "path": str(self.folder / "lake")}, **kind, **keys,
        }  # fmt: skip
        document = {"source": {"type": "sqlite", "path": str(self.folder / "shop.db")}, "spark": "inline"}
        path = self.folder / "rivet.yaml"
        path.write_text(yaml.safe_dump(document | {"exports": [export]}))
        return load_config(path)

    def run(self, kind: dict[str, Any], *partitions: str, **keys: Any) -> Outcome:
        """Run the export as `rivet run` does."""
        (outcome,) = run_exports(self.config(kind, **keys), partitions=partitions)
        return outcome

    @property
    def windows(self) -> dict[str, list[int]]:
        """Return the ids that each published window has."""
        current = current_manifests(Local(type="local", path=str(self.folder / "lake")).root("orders"))
        root = self.folder / "lake/orders"
        return {
            key: sorted(id for part in each.parts for id in pq.read_table(root / part.path)["id"].to_pylist())
            for key, each in sorted(current.items())
        }


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """Six orders."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    monkeypatch.setenv("EU_DB", str(tmp_path / "eu.db"))
    monkeypatch.setenv("US_DB", str(tmp_path / "us.db"))
    return Shop(tmp_path)


BOTH = pytest.mark.parametrize(
    ("kind", "windows"), [(REGIONS, OF_REGIONS), (SHARDS, OF_SHARDS)], ids=["values", "shards"]
)


@BOTH
def test_each_row_is_in_the_window_of_its_day_and_value(shop, kind, windows):
    """A range of days alone means all values; folders are of both."""
    outcome = shop.run(kind, "2026-01-01...2026-01-03")

    assert ("success", sum(map(len, windows.values()))) == (outcome.status, outcome.rows), outcome.message
    assert windows == shop.windows
    folders = {
        path.parent.relative_to(shop.folder / "lake/orders").as_posix()
        for path in (shop.folder / "lake").rglob("*.parquet")
    }
    assert {f"dt={key.replace('|', '/')}" for key, ids in windows.items() if ids} <= folders


@BOTH
def test_one_window_is_run_again_by_itself(shop, kind, windows):
    """Its neighbours of the day, and of the value, stay as they are."""
    shop.run(kind, "2026-01-01...2026-01-03")
    for name in ("shop", "eu"):
        shop.add(name, 7, 1, "eu")
        shop.add(name, 8, 2, "eu")

    outcome = shop.run(kind, "2026-01-01|eu")

    (key,) = outcome.windows
    assert key.startswith("2026-01-01|")
    assert windows | {key: [1, 7]} == shop.windows


@BOTH
def test_windows_are_compared_checked_planned_and_repaired(shop, kind, windows):
    """A late row is found in its window, and only that is read again."""
    shop.run(kind, "2026-01-01...2026-01-03")
    for name in ("shop", "eu"):
        shop.add(name, 7, 3, "eu")
    config = shop.config(kind)
    export = config.export("orders")
    late = next(key for key in windows if key.startswith("2026-01-03") and key.endswith("=eu"))
    with closing(state_of(config)) as state:
        found = reconcile_export(config, export, depth="checksums", state=state, tell=lambda line: None)
        exporter = Exporter(SparkRuntime(Spark(engine="inline")), state)
        done = repair_export(
            config, export, found, execute=True, exporter=exporter, state=state, tell=lambda line: None
        )
        (files,) = validate_export(export, ValidationScope(depth="full"), state=state)
    (entry,) = plan_exports(config, partitions=["2026-01-03|us"]).artefact.exports
    (checked,) = check_exports(config)

    assert {late} == {each.window for each in found.windows if each.verdict != "match"}
    assert [(late, "repaired")] == [(each.window, each.status) for each in done.windows]
    assert windows | {late: [7]} == shop.windows
    assert not files.flaws
    assert [late.replace("=eu", "=us")] == [each.key for each in entry.computed.windows]
    assert entry.computed.windows[0].text.endswith(" us")
    assert checked.error is None


def test_rows_of_other_values_in_the_days_of_the_run_refuse_it(shop):
    """Rows of other days are the business of their runs."""
    kind = {"partition_by": {"column": "region", "values": ["eu", "us"]}}

    there, elsewhere = shop.run(kind, "2026-01-01"), shop.run(kind, "2026-01-02")

    assert ("failed", "RIVET_OTHER_VALUES") == (there.code and there.status, there.code)
    assert "success" == elsewhere.status
    assert {"2026-01-02|region=eu": [4, 5], "2026-01-02|region=us": []} == shop.windows


def test_windows_of_days_and_windows_of_days_and_values_do_not_stand_side_by_side(shop):
    """Rows would show twice; both ways round."""
    shop.run({}, "2026-01-01")
    refused = shop.run(REGIONS, "2026-01-02")
    other = shop.run(REGIONS, "2026-01-02", destination={"type": "local", "path": str(shop.folder / "other")})
    back = shop.run({}, "2026-01-01", destination={"type": "local", "path": str(shop.folder / "other")})

    assert "RIVET_WINDOW_CONFLICT" == refused.code
    assert "success" == other.status
    assert "RIVET_WINDOW_CONFLICT" == back.code


def test_windows_that_overlap_in_one_value_are_refused(shop):
    """A week of a region beside its days would show rows twice."""
    shop.run(REGIONS, "2026-01-02")

    week = shop.run(REGIONS, "2025-12-29|eu", granularity="week", end="2026-01-12")
    other = shop.run(REGIONS, "2026-01-05|eu", granularity="week", end="2026-01-12")

    assert "RIVET_WINDOW_CONFLICT" == week.code
    assert "2025-12-29|region=eu of export orders overlaps window 2026-01-02|region=eu" in week.message
    assert "success" == other.status


@pytest.mark.parametrize(
    ("key", "message"),
    [("2026-01-01|ap", "no partition 'ap'; it has eu, us"), ("2027-01-01|eu", "no partition '2027-01-01'")],
)
def test_partition_that_is_not_there_is_named(shop, key, message):
    """Either half of it."""
    with pytest.raises(ConfigError, match=message):
        window_of(shop.config(SHARDS).export("orders"), key)


def test_range_is_of_both_dimensions_as_dagster_means_it(shop):
    """From a day to a day, and from a value to a value."""
    config = shop.config(REGIONS)
    export = config.export("orders")

    assert ["2026-01-01|eu", "2026-01-01|us", "2026-01-02|eu", "2026-01-02|us"] == due(
        config, export, ["2026-01-01|eu...2026-01-02|region=us"]
    )
    assert [f"2026-01-03|{value}" for value in ("eu", "us", NULL)] == due(config, export, ["2026-01-03"])
    assert [f"2026-01-03|{value}" for value in ("eu", "us", NULL)] == due_keys(export)


def test_backfill_of_a_range_is_one_run_and_tells_both_dimensions(shop, instance):
    """Dagster's own tags of a materialization name the day and the value."""
    config = shop.config(SHARDS)
    partitions = partitions_of(config.export("orders"))

    result = launch(config, instance, "2026-01-01|eu", "2026-01-02|us")

    assert isinstance(partitions, dg.MultiPartitionsDefinition)
    assert ["date", "shard"] == list(partitions.partition_dimension_names)
    assert result.success
    assert {"2026-01-01|eu", "2026-01-01|us", "2026-01-02|eu", "2026-01-02|us"} == set(
        instance.get_materialized_partitions(ORDERS)
    )
    (event,) = instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=ORDERS, asset_partitions=["2026-01-02|eu"]), limit=9
    ).records
    tags = event.event_log_entry.asset_materialization.tags
    assert ("2026-01-02", "eu") == (tags["dagster/partition/date"], tags["dagster/partition/shard"])


def test_hole_is_seen_in_one_value(shop, instance):
    """From the first day that is there: all values of it, and of the days after it."""
    config = shop.config(SHARDS, schedule="0 3 * * *")
    launch(config, instance, "2026-01-02|us", "2026-01-02|us")

    verdict = windows_verdict(
        config.export("orders"), ORDERS, instance, now=datetime(2026, 1, 4, 12, tzinfo=UTC).timestamp()
    )

    assert not verdict.passed
    assert {"missing": 3, "windows": 4} == verdict.facts
    assert "2026-01-02|eu" in verdict.text


def test_schedule_asks_for_all_values_of_the_latest_day(shop, instance):
    """The condition knows which of the two dimensions is time."""
    defs = definitions_of(shop.config(SHARDS, schedule="0 3 * * *"))
    first = dg.evaluate_automation_conditions(defs, instance, evaluation_time=datetime(2026, 1, 3, 2, 59, tzinfo=UTC))

    later = dg.evaluate_automation_conditions(
        defs, instance, evaluation_time=datetime(2026, 1, 3, 3, 1, tzinfo=UTC), cursor=first.cursor
    )

    assert {"2026-01-02|eu", "2026-01-02|us"} == set(later.get_requested_partitions(ORDERS))


def test_reader_gets_each_window_by_both(shop, instance):
    """The keys of the mapping are Dagster's."""
    config = shop.config(SHARDS)
    launch(config, instance, "2026-01-01|eu", "2026-01-02|us")
    seen: dict[str, int] = {}

    @dg.asset(ins={"orders": dg.AssetIn(ORDERS)}, partitions_def=partitions_of(config.export("orders")))
    def of_one(context, orders: pa.Table) -> None:
        seen[str(context.partition_key)] = orders.num_rows

    @dg.asset(ins={"orders": dg.AssetIn(ORDERS)})
    def of_all(orders: dict[str, pa.Table]) -> None:
        seen.update({f"all {key}": table.num_rows for key, table in orders.items()})

    assert launch(config, instance, "2026-01-02|eu", more=[of_one]).success
    assert launch(config, instance, more=[of_all]).success
    assert {
        "2026-01-02|eu": 2, "all 2026-01-01|eu": 1, "all 2026-01-01|us": 1, "all 2026-01-02|eu": 2,
        "all 2026-01-02|us": 0,
    } == seen  # fmt: skip


def test_shard_that_becomes_another_database_is_refused_in_every_window(shop, monkeypatch):
    """Whichever day it is asked for; the other shard is run."""
    shop.run(SHARDS, "2026-01-01")
    (shop.folder / "us.db").rename(shop.folder / "moved.db")
    monkeypatch.setenv("US_DB", str(shop.folder / "moved.db"))

    outcome = shop.run(SHARDS, "2026-01-02")

    assert "RIVET_PROVENANCE_REFUSED" == outcome.code
    assert ("2026-01-02|shard=us",) == outcome.refused
    assert "2026-01-02|shard=eu" in shop.windows


def test_value_that_is_listed_no_more_is_named_once(shop):
    """Not once for each of its days."""
    shop.run(SHARDS, "2026-01-01...2026-01-03")
    export = shop.config({"shards": {"eu": "EU_DB"}}).export("orders")

    left = windows_left(SimpleNamespace(export=export, root=export.destination.root("orders")), ["eu"])

    assert ["shard=us"] == left


def test_shard_that_is_away_leaves_its_days_unknown_and_compares_the_others(shop, monkeypatch):
    """Each window has a verdict."""
    shop.run(SHARDS, "2026-01-01...2026-01-02")
    monkeypatch.setenv("EU_DB", str(shop.folder / "gone.db"))
    config = shop.config(SHARDS)
    with closing(state_of(config)) as state:
        found = reconcile_export(config, config.export("orders"), depth="counts", state=state, tell=lambda line: None)

    assert {
        "2026-01-01|shard=eu": "unknown", "2026-01-02|shard=eu": "unknown",
        "2026-01-01|shard=us": "match", "2026-01-02|shard=us": "match",
    } == {each.window: each.verdict for each in found.windows}  # fmt: skip


def test_ranges_are_of_one_value_as_the_daemon_cuts_a_backfill(shop):
    """So that a backfill is one run for each value, or for each day where these are fewer."""
    definition = partitions_of(shop.config(SHARDS).export("orders"))

    days = ranges_of(definition, [f"2026-01-0{day}|{shard}" for day in (1, 2, 3) for shard in ("eu", "us")])
    values = ranges_of(definition, ["2026-01-01|eu", "2026-01-01|us"])

    assert {("2026-01-01|eu", "2026-01-03|eu"), ("2026-01-01|us", "2026-01-03|us")} == set(days)
    assert [("2026-01-01|eu", "2026-01-01|us")] == values
