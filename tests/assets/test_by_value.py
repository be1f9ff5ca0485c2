"""A window and a partition per value of a column: every row in one of them, and none in two."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from rivet_assets.config.load import RivetConfig, load_config
from rivet_assets.dagster.checks.window_holes import windows_verdict
from rivet_assets.dagster.sensors.values_sensor import values_sensors
from rivet_assets.definitions import definitions_of
from rivet_assets.launch.apply_plan import PlanStale, apply_plan
from rivet_assets.launch.run_exports import Outcome, run_exports
from rivet_assets.modes.partitions import partitions_of
from rivet_assets.plan.planner import plan_exports
from rivet_assets.preflight.check import check_exports
from rivet_assets.prove.reconcile import reconcile_export
from rivet_assets.prove.repair import repair_export
from rivet_assets.prove.validate import ValidationScope, validate_export
from rivet_assets.run.admit.scope import state_of
from rivet_resources.commit.manifest import current_manifests
from rivet_resources.destinations.local import Local
from rivet_resources.errors import ConfigError
from rivet_resources.read.stage import Exporter
from rivet_resources.spark.runtime import Spark, SparkRuntime
from tests.backfills import ORDERS, QUIET, launch

ROWS = [(1, "eu"), (2, "us"), (3, "eu"), (4, "a|b%/c"), (5, None), (6, "us")]
LISTED = {"column": "region", "values": ["eu", "us"], "others": "ignore"}


class Regions:
    """A table of orders in regions, and exports of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sql("CREATE TABLE orders (id INTEGER PRIMARY KEY, region TEXT)")
        for number, region in ROWS:
            self.sql("INSERT INTO orders VALUES (?, ?)", number, region)

    def sql(self, statement: str, *values: object) -> None:
        """Run one statement at the source."""
        with closing(sqlite3.connect(self.folder / "shop.db")) as connection, connection:
            connection.execute(statement, values)

    def config(self, by: Mapping[str, Any] | None, **keys: Any) -> RivetConfig:
        """Write and load the configuration of one export."""
        export = {
            "name": "orders", "table": "orders", "format": "parquet",
            "destination": {"type": "local", "path": str(self.folder / "lake")}, **keys,
        }  # fmt: skip
        if by is not None:
            export["partition_by"] = by
        document = {"source": {"type": "sqlite", "path": str(self.folder / "shop.db")}, "spark": "inline"}
        path = self.folder / "rivet.yaml"
        path.write_text(yaml.safe_dump(document | {"exports": [export]}))
        return load_config(path)

    def run(self, by: Mapping[str, Any] | None, *partitions: str, **keys: Any) -> Outcome:
        """Run the export as `rivet run` does."""
        (outcome,) = run_exports(self.config(by, **keys), partitions=partitions)
        return outcome

    @property
    def windows(self) -> dict[str, list[int]]:
        """Return the ids that each published window has."""
        root = self.folder / "lake/orders"
        current = current_manifests(Local(type="local", path=str(self.folder / "lake")).root("orders"))
        return {
            key: sorted(id for part in each.parts for id in pq.read_table(root / part.path)["id"].to_pylist())
            for key, each in sorted(current.items())
        }


@pytest.fixture
def regions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Regions:
    """Six orders in four regions."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    return Regions(tmp_path)


# --- every row in one window ---------------------------------------------------------------------

ALL = {"column": "region", "values": ["eu", "us", "a|b%/c", None]}
ALL_WINDOWS = {
    "region=__HIVE_DEFAULT_PARTITION__": [5],
    "region=a%7Cb%25%2Fc": [4],
    "region=eu": [1, 3],
    "region=us": [2, 6],
}


@pytest.mark.parametrize("mode", ["full", "chunked"])
def test_each_value_has_a_window_of_its_own(regions, mode):
    """NULL is a value too, and no character of a value leads out of its folder."""
    outcome = regions.run(ALL, mode=mode)

    assert ("success", 6) == (outcome.status, outcome.rows)
    assert ALL_WINDOWS == regions.windows
    assert {"region=eu", "region=us", "region=a%7Cb%25%2Fc", "region=__HIVE_DEFAULT_PARTITION__", "_rivet"} == {
        path.name for path in (regions.folder / "lake/orders").iterdir() if path.name != "_staged"
    }


def test_one_value_can_be_run_again_by_itself(regions):
    """Its window is replaced; the others are as they were. Both spellings of a partition mean it."""
    regions.run(ALL)
    regions.sql("INSERT INTO orders VALUES (7, 'eu'), (8, 'us')")

    by_value, by_window = regions.run(ALL, "eu"), regions.run(ALL, "region=us")

    assert (("region=eu",), ("region=us",)) == (by_value.windows, by_window.windows)
    assert ALL_WINDOWS | {"region=eu": [1, 3, 7], "region=us": [2, 6, 8]} == regions.windows


def test_value_that_is_not_listed_cannot_be_run(regions):
    """The message names those that are."""
    with pytest.raises(Exception, match="no partition 'ap'; it has eu, us"):
        regions.run(LISTED, "ap")


# --- rows of other values ------------------------------------------------------------------------


def test_rows_of_values_that_are_not_listed_refuse_the_run(regions):
    """They are counted, NULL among them, and nothing is published."""
    outcome = regions.run({"column": "region", "values": ["eu", "us"]})

    assert ("failed", "RIVET_OTHER_VALUES", 3) == (outcome.status, outcome.code, outcome.exit_code)
    assert "2 rows of orders have a region that `partition_by` does not list" in outcome.message
    assert {} == regions.windows


def test_rows_of_other_values_may_be_left_out(regions):
    """`others: ignore` says so."""
    assert "success" == regions.run(LISTED).status

    assert {"region=eu": [1, 3], "region=us": [2, 6]} == regions.windows


def test_rows_of_other_values_may_have_a_window_of_their_own(regions):
    """With a value that is listed later they part, and are never read twice in between."""
    others = {"column": "region", "others": "own_window"}
    regions.run(others | {"values": ["eu", "us"]})
    before = regions.windows

    alone = regions.run(others | {"values": ["eu", "us", None]}, "__HIVE_DEFAULT_PARTITION__")
    refused_windows = regions.windows
    regions.run(others | {"values": ["eu", "us", None]})

    assert {"region=__OTHERS__": [4, 5], "region=eu": [1, 3], "region=us": [2, 6]} == before == refused_windows
    assert ("failed", "RIVET_WINDOW_CONFLICT") == (alone.status, alone.code)
    assert "Run partition __OTHERS__ first" in alone.message
    assert before | {"region=__OTHERS__": [4], "region=__HIVE_DEFAULT_PARTITION__": [5]} == regions.windows


def test_value_that_is_listed_no_more_keeps_its_window_and_is_named(regions, capsys):
    """It stays until somebody removes it; other values' rows are not published twice meanwhile."""
    regions.run(ALL | {"others": "own_window"})

    outcome = regions.run({"column": "region", "values": ["eu"], "others": "own_window"})

    assert "RIVET_WINDOW_CONFLICT" == outcome.code
    assert "its value is not listed any more" in outcome.message
    assert ALL_WINDOWS | {"region=__OTHERS__": []} == regions.windows


def test_values_of_another_column_do_not_stand_beside(regions):
    """Their windows would show each row twice."""
    regions.run(ALL)

    outcome = regions.run({"column": "id", "values": [1, 2, 3, 4, 5, 6]})

    assert "RIVET_WINDOW_CONFLICT" == outcome.code
    assert "another column" in outcome.message


def test_export_of_all_rows_replaces_the_windows_of_values(regions):
    """And not the other way round: `all` would show every row a second time."""
    regions.run(ALL)
    regions.run(None)
    one = regions.windows

    back = regions.run(ALL)

    assert {"all": [1, 2, 3, 4, 5, 6]} == one == regions.windows
    assert "RIVET_WINDOW_CONFLICT" == back.code


def test_two_spellings_of_one_value_are_refused(regions):
    """1 and 01 are one number, and its rows would be in two windows."""
    outcome = regions.run({"column": "id", "values": ["1", "01"], "others": "ignore"})

    assert "'1' and '01' of `partition_by` are one value of column id" in outcome.message


def test_masked_column_cannot_name_windows(regions):
    """Its plain values would stand in folders and manifests."""
    mask = {"type": "mask", "fields": ["region"], "method": "redact"}

    outcome = regions.run(ALL, transforms=[mask])

    assert "column 'region' is masked" in outcome.message


# --- Dagster -------------------------------------------------------------------------------------


def test_partitions_are_the_values(regions):
    """As they are written, so that assets downstream may use the same definition."""
    by = {"column": "region", "values": ["eu", 7, None, ""], "others": "own_window"}

    found = partitions_of(regions.config(by).export("orders"))

    assert ["__OTHERS__", "eu", "7", "__HIVE_DEFAULT_PARTITION__", "__EMPTY__"] == found.get_partition_keys()


def test_backfill_records_each_value_with_its_checks(regions, instance):
    """One run; materializations and verdicts are those of partitions."""
    config = regions.config(LISTED, quality={"row_count_min": 2})

    run = launch(config, instance, "eu", "us")

    assert run.success
    assert {"eu", "us"} == instance.get_materialized_partitions(ORDERS)
    assert {("eu", True), ("us", True)} == {
        (each.partition, each.passed)
        for each in run.get_asset_check_evaluations()
        if each.check_name == "row_count_min"
    }
    told = [each.step_materialization_data.materialization for each in run.get_asset_materialization_events()]
    assert {"eu": 2, "us": 2} == {each.partition: each.metadata["dagster/partition_row_count"].value for each in told}


def test_input_of_one_value_is_its_rows(regions, instance):
    """An asset with the same partitions gets its own; one with a mapping gets each by its value."""
    config, seen = regions.config(LISTED), {}

    def of_value(context: dg.AssetExecutionContext, orders: pa.Table) -> None:
        seen[context.partition_key] = orders["id"].to_pylist()

    def of_all(orders: dict[str, pa.Table]) -> None:
        seen["all"] = {key: rows["id"].to_pylist() for key, rows in orders.items()}

    of_value.__annotations__ |= {"context": dg.AssetExecutionContext, "orders": pa.Table, "return": None}
    of_all.__annotations__ |= {"orders": dict[str, pa.Table], "return": None}
    ins = {"orders": dg.AssetIn(key=ORDERS)}
    launch(config, instance, "eu", "us")

    launch(
        config,
        instance,
        "us",
        more=[dg.asset(ins=ins, partitions_def=dg.StaticPartitionsDefinition(["eu", "us"]))(of_value)],
    )
    launch(config, instance, more=[dg.asset(ins=ins)(of_all)])

    assert {"us": [2, 6], "all": {"eu": [1, 3], "us": [2, 6]}} == seen


def test_schedule_asks_for_every_value(regions, instance):
    """A tick means all of them."""
    config = regions.config(LISTED, schedule="0 3 * * *")
    defs = definitions_of(config)
    at = datetime(2026, 1, 31, 2, 0, tzinfo=UTC)
    first = dg.evaluate_automation_conditions(defs, instance, evaluation_time=at)

    later = dg.evaluate_automation_conditions(
        defs, instance, evaluation_time=at + timedelta(hours=2), cursor=first.cursor
    )

    assert {"eu", "us"} == later.get_requested_partitions(ORDERS)


def test_values_that_were_never_exported_are_missing(regions, instance):
    """The check of complete windows names them; without order among values, all count."""
    config = regions.config(ALL, schedule="0 3 * * *")
    export = config.export("orders")
    launch(config, instance, "us", "a%7Cb%25/c")

    verdict = windows_verdict(export, ORDERS, instance, now=time.time())

    assert not verdict.passed
    assert "Missing windows: 2, eu, __HIVE_DEFAULT_PARTITION__" in verdict.text


# --- values that a query finds -------------------------------------------------------------------

ASKED = {"column": "region", "query": "SELECT code FROM region ORDER BY code", "others": "ignore"}


@pytest.fixture
def asked(regions):
    """The regions have a table of their own."""
    regions.sql("CREATE TABLE region (code TEXT)")
    regions.sql("INSERT INTO region VALUES ('us'), ('eu'), ('eu')")
    return regions


def test_query_finds_the_values_at_each_run(asked):
    """A new value has a window at once, and one that is gone keeps what it published."""
    asked.run(ASKED)
    before = asked.windows
    asked.sql("DELETE FROM region WHERE code = 'eu'")
    asked.sql("DELETE FROM orders WHERE region = 'eu'")
    asked.sql("INSERT INTO region VALUES (NULL)")

    outcome = asked.run(ASKED)

    assert {"region=eu": [1, 3], "region=us": [2, 6]} == before
    assert ("region=__HIVE_DEFAULT_PARTITION__", "region=us") == outcome.windows
    assert before | {"region=__HIVE_DEFAULT_PARTITION__": [5]} == asked.windows


def test_rows_whose_value_the_query_does_not_find_refuse_the_run(asked):
    """As those of a value that is not listed."""
    assert "2 rows of orders" in asked.run(ASKED | {"others": "refuse"}).message


def test_window_of_all_others_is_what_the_query_leaves(asked):
    """In plan, check, reconcile and repair too, which ask the query by themselves."""
    by = ASKED | {"others": "own_window"}
    asked.run(by)
    config = asked.config(by)
    (entry,), (checked,) = plan_exports(config).artefact.exports, check_exports(config)
    state = state_of(config)

    found = reconcile_export(
        config, config.export("orders"), depth="checksums", windows=None, state=state, tell=lambda line: None
    )
    state.close()

    assert {"region=__OTHERS__": [4, 5], "region=eu": [1, 3], "region=us": [2, 6]} == asked.windows
    assert ["region=__OTHERS__", "region=eu", "region=us"] == [window.key for window in entry.computed.windows]
    assert checked.error is None
    assert ["match"] * 3 == [each.verdict for each in found.windows]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT code, 1 FROM region", "gives 2 columns; write a SELECT of one"),
        ("SELECT 'a' UNION SELECT 'A'", "differ only by case"),
        ("SELECT '__OTHERS__'", "a name that Rivet gives"),
        ("SELECT nope FROM region", "orders: the query of `partition_by` cannot be asked. .*no such column: nope"),
    ],
)
def test_query_whose_values_cannot_be_windows_is_refused(asked, query, message):
    """Before anything is published."""
    outcome = asked.run(ASKED | {"query": query})

    assert ("failed", "RIVET_SOURCE_REFUSED", {}) == (outcome.status, outcome.code, asked.windows)
    assert re.search(message, outcome.message)


def test_values_that_cannot_be_asked_for_stop_no_other_export(asked):
    """The source of one is away; its sibling, of a source that is there, is exported all the same."""
    config = asked.config(ASKED)
    document = yaml.safe_load(config.file.read_text())
    document["sources"] = {
        "shop": document.pop("source"),
        "away": {"type": "sqlite", "path": str(asked.folder / "no.db")},
    }
    (export,) = document["exports"]
    sibling = {key: each for key, each in export.items() if key != "partition_by"}
    document["exports"] = [export | {"source": "away"}, sibling | {"name": "sibling", "source": "shop"}]
    config.file.write_text(yaml.safe_dump(document))
    config = load_config(config.file)

    away, sibling = run_exports(config)

    assert ("failed", "RIVET_SOURCE_MISSING", 1) == (away.status, away.code, away.exit_code)
    assert ("success", len(ROWS)) == (sibling.status, sibling.rows)
    with closing(state_of(config)) as state:
        (kept,), journal = state.runs("orders"), state.journal("orders")
    assert ((kept.run_id,), "failed", away.code) == (away.run_ids, kept.status, kept.error_code)
    assert (away.message, "?", "RunCompleted") == (kept.error_message, kept.window, journal[-1].event)
    with pytest.raises(ConfigError, match="has no partition 'nowhere'"):
        run_exports(asked.config(ASKED), names=["orders"], partitions=["nowhere"])


@pytest.mark.parametrize("force", [False, True])
def test_plan_of_a_value_that_went_does_not_hold(asked, force):
    """There is no such window any more; nothing runs and nothing is noted as applied, by force neither."""
    config = asked.config(ASKED)
    artefact = plan_exports(config).artefact
    asked.sql("UPDATE region SET code = 'ap' WHERE code = 'us'")

    with pytest.raises(PlanStale, match="finds no value for region=us any more") as refused:
        apply_plan(config, artefact, watch=lambda news: None, force=force)

    assert 4 == refused.value.exit_code
    with closing(state_of(config)) as state:
        assert [] == state.audit_log()


def test_sensor_keeps_the_partitions_that_the_query_finds(asked, instance):
    """What came can be run, what went cannot; a query that finds nothing takes nothing away."""
    config = asked.config(ASKED)
    (sensor,) = values_sensors(config)
    repository = definitions_of(config).get_repository_def()
    name = sensor.asked[0].partitions.name

    def ticked() -> tuple[list[str], str]:
        told = sensor.evaluate_tick(dg.build_sensor_context(instance=instance, repository_def=repository))
        for each in told.dynamic_partitions_requests or ():
            if isinstance(each, dg.AddDynamicPartitionsRequest):
                instance.add_dynamic_partitions(name, each.partition_keys)
            else:
                for key in each.partition_keys:
                    instance.delete_dynamic_partition(name, key)
        return list(instance.get_dynamic_partitions(name)), told.skip_message

    first = ticked()
    run = launch(config, instance, "eu", "us")
    asked.sql("UPDATE region SET code = 'ap' WHERE code = 'us'")
    second = ticked()
    asked.sql("DELETE FROM region")
    third = ticked()

    assert (["eu", "us"], "orders: new values eu, us") == first
    assert run.success
    assert {"eu", "us"} == instance.get_materialized_partitions(ORDERS)
    assert ["eu", "ap"] == second[0]
    assert "finds us no more; what was published of them stays" in second[1]
    assert ["eu", "ap"] == third[0]


def test_run_in_dagster_adds_values_that_came_since(asked, instance):
    """So a run by hand is enough; the check of windows then names the new one as missing."""
    config = asked.config(ASKED, schedule="0 3 * * *")
    (sensor,) = values_sensors(config)
    instance.add_dynamic_partitions(sensor.asked[0].partitions.name, ["eu"])

    launch(config, instance, "eu")
    verdict = windows_verdict(config.export("orders"), ORDERS, instance, now=time.time())

    assert ["eu", "us"] == list(instance.get_dynamic_partitions(sensor.asked[0].partitions.name))
    assert "Missing windows: 1, us" in verdict.text


# --- looked at before and after ------------------------------------------------------------------


def test_plan_and_check_know_the_windows(regions):
    """A plan lists one for each value, and a check judges the statement of one."""
    config = regions.config(ALL)

    plan, (checked,) = plan_exports(config), check_exports(config)

    (entry,) = plan.artefact.exports
    assert ["region=eu", "region=us", "region=a%7Cb%25%2Fc", "region=__HIVE_DEFAULT_PARTITION__"] == [
        window.key for window in entry.computed.windows
    ]
    assert ["region is eu", "region is NULL"] == [entry.computed.windows[place].text for place in (0, -1)]
    assert checked.error is None


@pytest.mark.parametrize("mode", ["full", "chunked"])
def test_one_wrong_window_is_found_and_repaired_alone(regions, mode):
    """Reconcile and validate judge each value by itself; repair reads the one that differs."""
    by = {"column": "region", "values": ["eu", "us"], "others": "own_window"}
    regions.run(by, mode=mode)
    config = regions.config(by, mode=mode)
    export, state, told = config.export("orders"), state_of(config), []
    before = regions.windows
    regions.sql("INSERT INTO orders VALUES (7, 'ap')")

    found = reconcile_export(config, export, depth="checksums", windows=None, state=state, tell=told.append)
    exporter = Exporter(SparkRuntime(Spark(engine="inline")), state)
    done = repair_export(config, export, found, execute=True, exporter=exporter, state=state, tell=told.append)
    valid = validate_export(export, ValidationScope("full"), state=state)
    state.close()

    assert {"region=eu": "match", "region=us": "match", "region=__OTHERS__": "mismatch"} == {
        each.window: each.verdict for each in found.windows
    }
    assert [("region=__OTHERS__", "repaired")] == [(each.window, each.status) for each in done.windows]
    assert before | {"region=__OTHERS__": [4, 5, 7]} == regions.windows
    assert [] == [flaw for folder in valid for flaw in folder.all_flaws]


def test_trial_of_a_value_is_told_at_its_partition(regions: Regions, instance: dg.DagsterInstance) -> None:
    """`limit` reads some rows of the value, publishes nothing, and its observation stands at the partition."""
    done = (
        definitions_of(regions.config(LISTED))
        .resolve_implicit_global_asset_job_def()
        .execute_in_process(
            instance=instance,
            asset_selection=[ORDERS],
            partition_key="eu",
            run_config={**QUIET, "ops": {"sqlite__orders": {"config": {"limit": 1}}}},
        )
    )

    (event,) = [event for event in done.all_events if event.event_type_value == "ASSET_OBSERVATION"]
    assert ("eu", {}) == (event.partition, regions.windows)
