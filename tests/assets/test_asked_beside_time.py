"""Values that a query finds beside windows of time and beside snapshots: one asset, a dynamic second dimension."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from rivet_assets.config.load import RivetConfig, load_config
from rivet_assets.config.selection import due, keys_of
from rivet_assets.dagster.checks.window_holes import windows_verdict
from rivet_assets.dagster.sensors.retry_sensor import RANGE_END, RANGE_START, retry_sensors, tick
from rivet_assets.dagster.sensors.values_sensor import values_sensors
from rivet_assets.definitions import definitions_of
from rivet_assets.launch.rivet_resource import RivetResource
from rivet_assets.launch.run_exports import Outcome, run_exports
from rivet_assets.modes import by_value
from rivet_assets.modes.partitions import asked_partitions, partitions_of
from rivet_assets.plan.planner import plan_exports
from rivet_assets.preflight.check import check_exports
from rivet_assets.prove.reconcile import reconcile_export
from rivet_assets.prove.repair import repair_export
from rivet_assets.prove.validate import ValidationScope, validate_export
from rivet_assets.run import attempt
from rivet_assets.run.admit.scope import state_of
from rivet_assets.upkeep.retain import retain_export
from rivet_resources.commit.manifest import current_manifests
from rivet_resources.destinations.local import Local
from rivet_resources.errors import ConfigError
from rivet_resources.read.stage import Exporter
from rivet_resources.spark.runtime import Spark, SparkRuntime
from tests.assets.test_snapshots import clock
from tests.backfills import ORDERS, launch

TODAY = datetime.now(UTC).date().isoformat()  # at midnight a test may meet two days
ROWS = [(1, 1, "eu"), (2, 1, "us"), (3, 2, "eu"), (4, 3, "us")]  # id, day, region
ALL = {
    "2026-01-01|region=eu": [1], "2026-01-01|region=us": [2], "2026-01-02|region=eu": [3],
    "2026-01-02|region=us": [], "2026-01-03|region=eu": [], "2026-01-03|region=us": [4],
}  # fmt: skip
DAYS = {
    "mode": "time_window", "time_column": "at", "time_column_type": "unix", "start": "2026-01-01", "end": "2026-01-04",
}  # fmt: skip
SNAPSHOTS = {"snapshots": "daily", "start": "2026-01-01"}
NOON = datetime(2026, 1, 4, 12, tzinfo=UTC).timestamp()


class Shop:
    """Orders of three days in two regions, and a table of the regions."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch
        self.sql("CREATE TABLE orders (id INTEGER PRIMARY KEY, at INTEGER, region TEXT)")
        self.sql("CREATE TABLE region (code TEXT)")
        self.sql("INSERT INTO region VALUES ('eu'), ('us')")
        for row in ROWS:
            self.add(*row)

    def sql(self, statement: str, *values: object) -> None:
        """Run one statement at the source."""
        with closing(sqlite3.connect(self.folder / "shop.db")) as connection, connection:
            connection.execute(statement, values)

    def add(self, number: int, day: int, region: str | None) -> None:
        """Insert an order of noon of a day."""
        at = int(datetime(2026, 1, day, 12, tzinfo=UTC).timestamp())
        self.sql("INSERT INTO orders VALUES (?, ?, ?)", number, at, region)

    def config(self, kind: dict[str, Any], **keys: Any) -> RivetConfig:
        """Write and load the configuration of one export."""
        by = {"column": "region", "query": "SELECT code FROM region ORDER BY code"}
        export = {
            "name": "orders", "table": "orders", "format": "parquet", "partition_by": by,
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

    def on(self, day: str, *partitions: str, **keys: Any) -> Outcome:
        """Take the snapshots of a day."""
        with self.monkeypatch.context() as patch:
            patch.setattr(attempt, "datetime", clock(day))
            return self.run(SNAPSHOTS, *(partitions or (day,)), **keys)

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
    """Four orders."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    return Shop(tmp_path, monkeypatch)


def know(config: RivetConfig, instance: dg.DagsterInstance, *values: str) -> None:
    """Let an instance know values, as the sensor does."""
    found = asked_partitions(config.export("orders"))
    assert found is not None
    instance.add_dynamic_partitions(str(found.name), values)


def told(instance: dg.DagsterInstance, run: dg.ExecuteInProcessResult) -> Iterator[str]:
    """Yield what a run told people in its log."""
    return (entry.user_message for entry in instance.all_logs(run.run_id) if entry.user_message)


# --- every row in one window ---------------------------------------------------------------------


def test_each_row_is_in_the_window_of_its_day_and_of_the_value_that_was_found(shop):
    """A range of days alone means all values; folders are of both."""
    outcome = shop.run(DAYS, "2026-01-01...2026-01-03")

    assert ("success", 4) == (outcome.status, outcome.rows), outcome.message
    assert ALL == shop.windows
    folders = {
        path.parent.relative_to(shop.folder / "lake/orders").as_posix()
        for path in (shop.folder / "lake").rglob("*.parquet")
    }
    assert {f"dt={key.replace('|', '/')}" for key, ids in ALL.items() if ids} <= folders


def test_one_window_is_run_again_by_itself(shop):
    """Its neighbours of the day, and of the value, stay as they are; both spellings mean it."""
    shop.run(DAYS, "2026-01-01...2026-01-03")
    shop.add(5, 1, "eu")
    shop.add(6, 2, "eu")

    one, other = shop.run(DAYS, "2026-01-01|eu"), shop.run(DAYS, "2026-01-03|region=eu")

    assert (("2026-01-01|region=eu",), ("2026-01-03|region=eu",)) == (one.windows, other.windows)
    assert ALL | {"2026-01-01|region=eu": [1, 5]} == shop.windows


def test_run_without_a_partition_is_of_the_latest_day_and_all_values(shop):
    """Of snapshots it is of today."""
    latest, today = shop.run(DAYS), shop.run(SNAPSHOTS, destination={"type": "local", "path": "other"})

    assert ("2026-01-03|region=eu", "2026-01-03|region=us") == latest.windows
    assert (f"snapshot={TODAY}|region=eu", f"snapshot={TODAY}|region=us") == today.windows
    assert 4 == today.rows


def test_query_is_asked_once_for_all_windows_of_a_run(shop, instance, monkeypatch):
    """However many windows it has."""
    config, asked, read = shop.config(DAYS), [], by_value._read_values
    know(config, instance, "eu", "us")
    monkeypatch.setattr(by_value, "_read_values", lambda *given: asked.append(given) or read(*given))

    run = launch(config, instance, "2026-01-01|eu", "2026-01-03|us")

    assert run.success
    assert (6, 1) == (len(shop.windows), len(asked))


def test_rows_that_the_query_finds_no_value_for_refuse_their_days(shop):
    """Rows of other days are the business of their runs; `others: ignore` leaves them out."""
    shop.add(5, 1, "ap")
    by = {"column": "region", "query": "SELECT code FROM region", "others": "ignore"}

    there, elsewhere = shop.run(DAYS, "2026-01-01"), shop.run(DAYS, "2026-01-02")
    ignored = shop.run(DAYS, "2026-01-01", partition_by=by)

    assert ("failed", "RIVET_OTHER_VALUES") == (there.status, there.code)
    assert ("success", "success") == (elsewhere.status, ignored.status)
    assert ([1], [2]) == (shop.windows["2026-01-01|region=eu"], shop.windows["2026-01-01|region=us"])


SIGNS = "a,b[c]|d=e%"


def test_signs_that_dagster_refuses_beside_a_time_do_not_stand_in_partitions(shop, instance):
    """They come from data, so nobody could rename them; the reader's keys are Dagster's."""
    shop.sql("INSERT INTO region VALUES (?)", SIGNS)
    shop.add(5, 1, SIGNS)
    config = shop.config(DAYS)
    export, name = config.export("orders"), "a%2Cb%5Bc%5D%7Cd=e%25"
    know(config, instance, name)

    by_hand = shop.run(DAYS, f"2026-01-01|{name}")
    backfill = launch(config, instance, f"2026-01-01|{name}")
    read = RivetResource().load(config, "orders", as_type=dict[str, pa.Table])

    assert "success" == by_hand.status, by_hand.message
    assert backfill.success
    assert {f"2026-01-01|{name}"} == instance.get_materialized_partitions(ORDERS)
    assert [[5]] == list(shop.windows.values())
    assert {f"2026-01-01|{name}": [5]} == {key: rows["id"].to_pylist() for key, rows in read.items()}
    assert tuple(shop.windows) == keys_of(config, export, [f"2026-01-01|{name}"])


def test_listed_values_may_have_such_signs_too(shop):
    """A list beside a time was refused for them."""
    shop.add(5, 1, "eu, west")

    outcome = shop.run(DAYS, "2026-01-01", partition_by={"column": "region", "values": ["eu", "us", "eu, west"]})

    assert ("success", 3) == (outcome.status, outcome.rows), outcome.message
    assert {"2026-01-01|region=eu%2C%20west": [5]}.items() <= shop.windows.items()


# --- values that come and go ---------------------------------------------------------------------


def test_value_that_comes_later_is_named_with_the_command_that_makes_its_passed_windows(shop, instance):
    """A schedule asks for the latest day alone; the command that is told makes the others, and is told no more."""
    shop.run(DAYS, "2026-01-01...2026-01-02")
    shop.sql("INSERT INTO region VALUES ('ap')")
    shop.add(5, 1, "ap")
    shop.add(6, 3, "ap")
    config = shop.config(DAYS)
    know(config, instance, "eu", "us")

    run = launch(config, instance, "2026-01-03|eu", "2026-01-03|us")
    (line,) = [each for each in told(instance, run) if "came later" in each]
    asked = line.partition("--partition '")[2].partition("'")[0]
    before = shop.windows
    made = shop.run(DAYS, asked)
    again = launch(config, instance, "2026-01-03|eu")

    assert "orders: ap came later than others, so windows of passed times are missing" in line
    assert "2026-01-01|ap...2026-01-03|ap" == asked
    assert ("success", 2) == (made.status, made.rows), made.message
    later = {"2026-01-01|region=ap": [5], "2026-01-02|region=ap": [], "2026-01-03|region=ap": [6]}
    assert before | later == shop.windows
    assert [] == [each for each in told(instance, again) if "came later" in each]


def test_summary_of_a_run_warns_of_values_that_came_and_went(shop):
    """Who runs exports from a shell sees it without `-v`: passed windows of the new value are missing."""
    shop.run(DAYS, "2026-01-01...2026-01-02")
    shop.sql("UPDATE region SET code = 'ap' WHERE code = 'us'")
    shop.sql("DELETE FROM orders WHERE region = 'us'")

    outcome = shop.run(DAYS, "2026-01-03|eu")

    gone, late = outcome.warnings
    assert ("success", True) == (outcome.status, gone.startswith("windows region=us stay published"))
    assert late.startswith("ap came later than others, so windows of passed times are missing")


def test_first_runs_of_values_tell_of_no_later_one(shop, instance):
    """A backfill goes value by value: what is not there yet did not come late."""
    config = shop.config(DAYS)
    know(config, instance, "eu", "us")

    first = launch(config, instance, "2026-01-01|eu", "2026-01-03|eu")

    assert [] == [each for each in told(instance, first) if "came later" in each]


def test_shard_that_comes_later_is_named_too(shop, instance, monkeypatch):
    """Its passed windows are missing as those of a value are."""
    monkeypatch.setenv("EU_DB", str(shop.folder / "shop.db"))
    (shop.folder / "us").mkdir()
    (shop.folder / "us/shop.db").write_bytes((shop.folder / "shop.db").read_bytes())
    monkeypatch.setenv("US_DB", str(shop.folder / "us/shop.db"))
    one, both = {"shards": {"eu": "EU_DB"}}, {"shards": {"eu": "EU_DB", "us": "US_DB"}}
    shop.run(DAYS, "2026-01-01", partition_by=None, **one)

    run = launch(shop.config(DAYS, partition_by=None, **both), instance, "2026-01-02|eu")

    assert 1 == len([each for each in told(instance, run) if "orders: us came later than others" in each])


def test_value_that_is_gone_keeps_its_files_and_is_named(shop, instance):
    """It is no partition any more; a reader of the table sees its rows, each once."""
    shop.run(DAYS, "2026-01-01...2026-01-03")
    shop.sql("DELETE FROM region WHERE code = 'us'")
    shop.sql("DELETE FROM orders WHERE region = 'us'")
    config = shop.config(DAYS)
    know(config, instance, "eu")

    run = launch(config, instance, "2026-01-03|eu")

    (line,) = [each for each in told(instance, run) if "stay published" in each]
    assert "windows region=us stay published, though the query of `partition_by` finds their values no more" in line
    assert ALL == shop.windows
    with pytest.raises(ConfigError, match=r"no partition 'us'; it has eu.*the query of `partition_by` finds it"):
        due(config, config.export("orders"), ["2026-01-01|us"])
    rows = RivetResource().load(config, "orders")
    assert [1, 2, 3, 4] == sorted(rows["id"].to_pylist())


def test_query_that_finds_nothing_runs_nothing(shop):
    """And a value that is asked for is refused by name."""
    shop.sql("DELETE FROM region")
    config = shop.config(DAYS)
    export = config.export("orders")

    assert [] == due(config, export, None) == due(config, export, ["2026-01-01"])
    with pytest.raises(ConfigError, match="no partition 'eu'; it has none"):
        due(config, export, ["2026-01-01|eu"])


def test_more_values_than_stand_beside_times_are_refused(shop, monkeypatch):
    """Each would be a partition of each time."""
    monkeypatch.setattr(by_value, "MOST_BESIDE_TIME", 1)

    (outcome,) = run_exports(shop.config(DAYS))

    assert ("failed", "RIVET_SOURCE_REFUSED") == (outcome.status, outcome.code)
    assert "gives more than 1 values; each would be a window of each time" in outcome.message


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("2026-01-01|ap", "no partition 'ap'; it has eu, us"),
        ("2027-01-01|eu", "no partition '2027-01-01'"),
        ("2026-01-03...2026-01-01", "ends before it begins"),
        ("2026-01-01|us...2026-01-02|eu", "ends before it begins"),
    ],
)
def test_partition_that_is_not_there_is_named(shop, asked, message):
    """Either half of it."""
    config = shop.config(DAYS)

    with pytest.raises(ConfigError, match=message):
        due(config, config.export("orders"), [asked])


def test_range_is_of_both_dimensions(shop):
    """From a day to a day, and from a value to a value in the order of the query."""
    config = shop.config(DAYS)

    assert ["2026-01-01|us", "2026-01-02|us"] == due(
        config, config.export("orders"), ["2026-01-01|us...2026-01-02|region=us"]
    )


# --- snapshots -----------------------------------------------------------------------------------


def test_each_day_has_a_snapshot_of_each_value_that_is_found_then(shop):
    """A value that comes later begins that day; one that is gone keeps its newest, also with `keep` and `retain`."""
    shop.on("2026-01-29", keep=1)
    shop.sql("UPDATE region SET code = 'ap' WHERE code = 'us'")
    shop.sql("UPDATE orders SET region = 'ap' WHERE region = 'us'")
    shop.on("2026-01-30", keep=1)
    config = shop.config(SNAPSHOTS, keep=1)
    with closing(state_of(config)) as state:
        gone = retain_export(config.export("orders"), state=state, tell=lambda line: None)
    read = RivetResource().load(config, "orders")

    assert {
        "snapshot=2026-01-29|region=us": [2, 4], "snapshot=2026-01-30|region=ap": [2, 4],
        "snapshot=2026-01-30|region=eu": [1, 3],
    } == shop.windows  # fmt: skip
    assert () == tuple(gone.windows)
    assert 6 == read.num_rows


def test_passed_day_of_a_snapshot_is_refused(shop):
    """Of a value that was found, too."""
    outcome = shop.run(SNAPSHOTS, "2026-01-30|eu")

    assert ("failed", "RIVET_SNAPSHOT_PAST") == (outcome.status, outcome.code)


# --- looked at before and after ------------------------------------------------------------------


@pytest.mark.parametrize("kind", [DAYS, SNAPSHOTS], ids=["days", "snapshots"])
def test_windows_are_compared_checked_planned_and_repaired(shop, kind):
    """A late row is found in its window, and only that is read again."""
    shop.run(kind, *(["2026-01-01...2026-01-03"] if kind is DAYS else []))
    before = shop.windows
    shop.add(9, 3, "us")
    config = shop.config(kind)
    export, late = config.export("orders"), next(reversed(before))
    with closing(state_of(config)) as state:
        found = reconcile_export(config, export, depth="checksums", state=state, tell=lambda line: None)
        exporter = Exporter(SparkRuntime(Spark(engine="inline")), state)
        done = repair_export(
            config, export, found, execute=True, exporter=exporter, state=state, tell=lambda line: None
        )
        (files,) = validate_export(export, ValidationScope(depth="full"), state=state)
    (entry,) = plan_exports(config).artefact.exports
    (checked,) = check_exports(config)

    assert {late} == {each.window for each in found.windows if each.verdict != "match"}
    assert [(late, "repaired")] == [(each.window, each.status) for each in done.windows]
    assert before | {late: sorted([*before[late], 9])} == shop.windows
    assert not files.flaws
    day = "2026-01-03" if kind is DAYS else f"snapshot={TODAY}"
    assert [f"{day}|region=eu", f"{day}|region=us"] == [each.key for each in entry.computed.windows]
    assert checked.error is None


def test_window_of_a_value_that_is_gone_is_repaired_all_the_same(shop):
    """Its rows may still be there; only runs go by the query."""
    shop.run(DAYS, "2026-01-01...2026-01-03")
    shop.sql("DELETE FROM region WHERE code = 'us'")
    shop.add(9, 3, "us")
    config = shop.config(DAYS)
    export = config.export("orders")
    with closing(state_of(config)) as state:
        found = reconcile_export(config, export, depth="checksums", state=state, tell=lambda line: None)
        exporter = Exporter(SparkRuntime(Spark(engine="inline")), state)
        done = repair_export(
            config, export, found, execute=True, exporter=exporter, state=state, tell=lambda line: None
        )

    assert [("2026-01-03|region=us", "repaired")] == [(each.window, each.status) for each in done.windows]
    assert ALL | {"2026-01-03|region=us": [4, 9]} == shop.windows


@pytest.mark.parametrize("kind", [DAYS, SNAPSHOTS], ids=["days", "snapshots"])
def test_time_alone_means_all_that_is_published_of_it(shop, kind):
    """In validate, reconcile and repair, as in run; values that are gone are published, too."""
    shop.run(kind, *(["2026-01-01...2026-01-02"] if kind is DAYS else []))
    shop.sql("DELETE FROM region WHERE code = 'us'")
    config, day = shop.config(kind), "2026-01-02" if kind is DAYS else TODAY
    export, head = config.export("orders"), "" if kind is DAYS else "snapshot="
    both = (f"{head}{day}|region=eu", f"{head}{day}|region=us")
    with closing(state_of(config)) as state:
        (files,) = validate_export(export, ValidationScope("full", keys_of(config, export, [day])), state=state)

    assert both == keys_of(config, export, [day]) == keys_of(config, export, [f"{head}{day}"])
    assert (f"{head}2026-01-09",) == keys_of(config, export, ["2026-01-09"])
    assert not files.flaws


# --- Dagster -------------------------------------------------------------------------------------


def test_partitions_are_days_and_what_an_instance_knows(shop, instance):
    """The definition is the same whatever the query finds."""
    config = shop.config(DAYS)
    found = partitions_of(config.export("orders"))
    know(config, instance, "eu")

    assert isinstance(found, dg.MultiPartitionsDefinition)
    assert ["date", "value"] == list(found.partition_dimension_names)
    assert ["2026-01-01|eu", "2026-01-02|eu", "2026-01-03|eu"] == list(
        found.get_partition_keys(dynamic_partitions_store=instance)
    )


def test_backfill_of_a_range_is_one_run_adds_what_is_new_and_tells_both_dimensions(shop, instance):
    """Nobody has to wait for the sensor."""
    config = shop.config(DAYS, quality={"row_count_min": 0})
    know(config, instance, "eu")

    run = launch(config, instance, "2026-01-01|eu", "2026-01-02|eu")

    assert run.success
    assert {"2026-01-01|eu", "2026-01-02|eu"} == instance.get_materialized_partitions(ORDERS)
    (event,) = instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=ORDERS, asset_partitions=["2026-01-02|eu"]), limit=9
    ).records
    tags = event.event_log_entry.asset_materialization.tags
    assert ("2026-01-02", "eu") == (tags["dagster/partition/date"], tags["dagster/partition/value"])
    name = asked_partitions(config.export("orders")).name
    assert ["eu", "us"] == list(instance.get_dynamic_partitions(name))
    assert {"2026-01-01|eu", "2026-01-02|eu"} == {
        each.partition for each in run.get_asset_check_evaluations() if each.check_name == "row_count_min"
    }


def test_sensor_keeps_the_values_and_says_what_is_missing_then(shop, instance):
    """Of snapshots nothing passed can be made, so nothing is said of it."""
    days, snapshots = shop.config(DAYS), shop.config(SNAPSHOTS)
    name = asked_partitions(days.export("orders")).name

    def ticked(config: RivetConfig) -> str:
        (sensor,) = values_sensors(config)
        context = dg.build_sensor_context(instance=instance, repository_def=definitions_of(config).get_repository_def())
        result = sensor.evaluate_tick(context)
        for each in result.dynamic_partitions_requests or ():
            if isinstance(each, dg.AddDynamicPartitionsRequest):
                instance.add_dynamic_partitions(name, each.partition_keys)
            else:
                for key in each.partition_keys:
                    instance.delete_dynamic_partition(name, key)
        return str(result.skip_message)

    first = ticked(days)
    shop.sql("UPDATE region SET code = 'ap' WHERE code = 'us'")
    second = ticked(snapshots)

    assert "orders: new values eu, us, whose passed windows are missing until a backfill" == first
    assert second.startswith("orders: new values ap; orders: the query finds us no more")
    assert ["eu", "ap"] == list(instance.get_dynamic_partitions(name))


def test_hole_of_a_value_that_came_between_two_looks_is_seen(shop, instance):
    """Two looks after one tick of the schedule; Dagster's own list of both dimensions would be the first one's."""
    config = shop.config(DAYS, schedule="0 3 * * *")
    export = config.export("orders")
    know(config, instance, "eu")
    launch(config, instance, "2026-01-02|eu", "2026-01-03|eu")
    name = asked_partitions(export).name
    instance.delete_dynamic_partition(name, "us")
    before = windows_verdict(export, ORDERS, instance, now=NOON)

    know(config, instance, "ap")
    after = windows_verdict(export, ORDERS, instance, now=NOON)

    assert before.passed, before.text
    assert {"missing": 2, "windows": 4} == after.facts
    assert "2026-01-02|ap to 2026-01-03|ap" in after.text


def test_all_values_of_todays_snapshot_count(shop, instance):
    """A passed day can never be filled."""
    config = shop.config(SNAPSHOTS, schedule="0 0 * * *")
    know(config, instance, "eu", "us")
    launch(config, instance, f"{TODAY}|us")
    now = datetime.fromisoformat(f"{TODAY}T12:00:00+00:00").timestamp()

    verdict = windows_verdict(config.export("orders"), ORDERS, instance, now=now)

    assert {"missing": 1, "windows": 2} == verdict.facts
    assert f"Missing windows: 1, {TODAY}|eu" in verdict.text


@pytest.mark.parametrize(("kind", "day"), [(DAYS, "2026-01-02"), (SNAPSHOTS, "2026-01-03")], ids=["days", "snapshots"])
def test_schedule_asks_for_all_known_values_of_the_latest_day(shop, instance, kind, day):
    """The condition knows which of the two dimensions is time."""
    config = shop.config(kind, schedule="0 3 * * *")
    know(config, instance, "eu", "us")
    defs = definitions_of(config)
    first = dg.evaluate_automation_conditions(defs, instance, evaluation_time=datetime(2026, 1, 3, 2, 59, tzinfo=UTC))

    later = dg.evaluate_automation_conditions(
        defs, instance, evaluation_time=datetime(2026, 1, 3, 3, 1, tzinfo=UTC), cursor=first.cursor
    )

    assert {f"{day}|eu", f"{day}|us"} == set(later.get_requested_partitions(ORDERS))


def test_windows_of_a_scheduled_run_that_failed_are_asked_for_again(shop, instance):
    """As ranges that Dagster knows; what is there by then is forgotten."""
    config = shop.config(DAYS, schedule="0 3 * * *")
    know(config, instance, "eu", "us")
    (sensor,) = retry_sensors(config)
    missing = {"began": 1.0, "failed_at": 1.0, "windows": ["2026-01-02|eu", "2026-01-02|us", "2026-01-02|gone"]}
    cursor = str({"seen": NOON, "missing": {"sqlite/orders": missing}}).replace("'", '"')
    context = dg.build_sensor_context(instance=instance, cursor=cursor)

    result = tick(sensor.scheduled, context, now=NOON)
    (request,) = result.run_requests
    done = launch(config, instance, request.tags[RANGE_START], request.tags[RANGE_END])
    later = tick(sensor.scheduled, dg.build_sensor_context(instance=instance, cursor=result.cursor), now=NOON + 9)

    assert ("2026-01-02|eu", "2026-01-02|us") == (request.tags[RANGE_START], request.tags[RANGE_END])
    assert done.success
    assert not later.run_requests
    assert '"2026-01-02|eu"' not in later.cursor


def test_reader_gets_each_window_by_both(shop, instance):
    """An asset with the same partitions its own, one with a mapping each by Dagster's key."""
    config = shop.config(DAYS)
    know(config, instance, "eu", "us")
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
        "2026-01-02|eu": 1, "all 2026-01-01|eu": 1, "all 2026-01-01|us": 1, "all 2026-01-02|eu": 1,
        "all 2026-01-02|us": 0,
    } == seen  # fmt: skip


# --- where snapshots begin -----------------------------------------------------------------------


def test_check_says_the_line_for_snapshots_without_a_start(shop):
    """Today where nothing is published, else the first day that was; with the line there is nothing to say."""
    plain = {"snapshots": "daily", "partition_by": None}

    def findings(**keys: Any) -> list[tuple[str, str]]:
        (checked,) = check_exports(shop.config({**plain, **keys}))
        return [(each.status, each.fix) for each in checked.findings if each.name == "snapshots"]

    before = findings()
    with shop.monkeypatch.context() as patch:
        patch.setattr(attempt, "datetime", clock("2026-01-30"))
        shop.run(plain, "2026-01-30")
    shop.run(plain)

    assert [("warn", f"start: {TODAY}  # today")] == before
    assert [("warn", "start: 2026-01-30  # the first that was published")] == findings()
    assert [] == findings(start="2026-01-30")
