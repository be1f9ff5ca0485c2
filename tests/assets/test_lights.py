"""What Dagster shows of checks: only what was judged, and until it is judged again."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from rivet_assets.config.load import load_config
from rivet_assets.definitions import definitions_of
from tests.processes import Process

ORDERS, DAYS = dg.AssetKey(["shop", "orders"]), dg.AssetKey(["shop", "days"])
BLOCK = """
sources: {shop: {type: sqlite, path: shop.db}}
spark: inline
exports:
  - name: orders
    source: shop
    table: orders
    format: parquet
    destination: {type: local, path: lake}
    quality: {row_count_min: 2}
  - name: days
    source: shop
    table: orders
    mode: time_window
    time_column: at
    time_column_type: unix
    start: 2026-01-01
    end: 2026-01-05
    format: parquet
    destination: {type: local, path: lake}
    quality: {row_count_min: 2}
"""
FIRST_OF_JANUARY = 1767225600  # 2026, UTC
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


class Lights:
    """A configuration, its database, and what an instance shows of its checks."""

    def __init__(self, folder: Path, instance: dg.DagsterInstance) -> None:
        self.folder, self.instance = folder, instance
        if not (folder / "rivet.yaml").exists():
            self.begin()
        self.defs = definitions_of(load_config(folder / "rivet.yaml"))

    def begin(self) -> None:
        """Make the database and the configuration."""
        lake, shop = self.folder / "lake", self.folder / "shop.db"
        text = BLOCK.replace("shop.db", str(shop)).replace("path: lake", f"path: {lake}")
        (self.folder / "rivet.yaml").write_text(text)
        self.sql("CREATE TABLE orders (id integer PRIMARY KEY, at integer NOT NULL)")
        for number in range(8):
            self.sql(f"INSERT INTO orders VALUES ({number}, {FIRST_OF_JANUARY} + {number // 2} * 86400 + {number % 2})")

    def sql(self, statement: str) -> None:
        """Run one statement at the source."""
        with sqlite3.connect(self.folder / "shop.db") as connection:
            connection.execute(statement)

    def launch(
        self,
        key: dg.AssetKey | None,
        *checks: dg.AssetCheckKey,
        days: tuple[str, str] | None = None,
        config: Mapping[str, Any] | None = None,
        names_checks: bool = True,
    ) -> dg.ExecuteInProcessResult:
        """Run as the UI does: it names the assets, and all checks that stand on their pages."""
        job = self.defs.resolve_implicit_global_asset_job_def()
        named = set(checks) or {each for each in job.asset_layer.asset_graph.asset_check_keys if each.asset_key == key}
        first, last = days or ("", "")
        tags = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
        subset = job.get_subset(asset_selection={key} if key else set(), asset_check_selection=named)
        (name,) = {each.asset_key.to_python_identifier() for each in named}
        named = named if names_checks else set()
        return subset.execute_in_process(
            instance=self.instance,
            raise_on_error=False,
            run_config={**QUIET, "ops": {name: {"config": dict(config or {})}}},
            tags=tags if days else {},
        )

    def ask(self, key: dg.AssetKey, *names: str, **config: Any) -> dg.ExecuteInProcessResult:
        """Execute checks alone, as their buttons do; those give no run config."""
        return self.launch(None, *(dg.AssetCheckKey(key, name) for name in names), config=config)

    def look(self, key: dg.AssetKey, **config: Any) -> dg.ExecuteInProcessResult:
        """Run the job `rivet_repair`, which says what it would do."""
        options = {"asset": key.to_user_string(), **config}
        return self.defs.resolve_job_def("rivet_repair").execute_in_process(
            instance=self.instance,
            raise_on_error=False,
            run_config={**QUIET, "ops": {"repair_windows": {"config": options}}},
        )

    def slow_down(self) -> None:
        """Read a row at a time, and make the last day as long as a test."""
        text = (self.folder / "rivet.yaml").read_text()
        tuning = "    tuning: {batch_size: 1, throttle_ms: 300}\n"
        (self.folder / "rivet.yaml").write_text(text.replace("    time_column: at\n", tuning + "    time_column: at\n"))
        numbers = "WITH RECURSIVE n(i) AS (SELECT 100 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)"
        self.sql(f"INSERT INTO orders {numbers} SELECT i, {FIRST_OF_JANUARY} + 3 * 86400 + i FROM n")

    def by_day(self, check: dg.AssetCheckKey) -> dict[str, str]:
        """Return the status of a check for each partition that was judged."""
        found = self.instance.event_log_storage.get_asset_check_partition_info([check])
        told = {str(each.partition_key): each.latest_execution_status.value for each in found}
        return {day: status for day, status in told.items() if status != "PLANNED"}

    def shown(self, key: dg.AssetKey) -> dict[str, str]:
        """Return the latest status of each check that has one, by name."""
        graph = self.defs.resolve_asset_graph()
        keys = [each for each in graph.asset_check_keys if each.asset_key == key]
        found = self.instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
        return {each.name: record.status.value for each, record in found.items()}


@pytest.fixture
def lights(tmp_path: Path) -> Iterator[Lights]:
    """Two exports of a table with four days."""
    with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:
        yield Lights(tmp_path, instance)


def test_materialization_with_all_its_checks_named_plans_no_proof(lights):
    """The UI names every check of the page; none of those that read whole tables runs or is promised."""
    run = lights.launch(ORDERS)

    assert run.success
    assert {"row_count_min", "columns"} == set(lights.shown(ORDERS))
    assert {"shop__orders"} == {event.step_key for event in run.all_events if event.step_key}
    assert not [event for event in run.all_events if "did not yield" in (event.message or "")]


def test_every_proof_can_be_executed_by_itself(lights):
    """Their buttons work for exports with windows too, and nothing is exported."""
    lights.launch(DAYS, days=("2026-01-01", "2026-01-04"))

    run = lights.ask(DAYS, "files_intact", "equals_source")

    assert run.success
    assert {"files_intact", "equals_source"} == {each.check_name for each in run.get_asset_check_evaluations()}
    assert [] == run.get_asset_materialization_events()


def test_verdict_of_a_proof_stays_until_it_is_executed_again(lights):
    """A red light of a damaged file is neither skipped nor green after the next materialization."""
    lights.launch(DAYS, days=("2026-01-01", "2026-01-02"))
    for file in (lights.folder / "lake" / "days").rglob("*.parquet"):
        file.unlink()
    lights.ask(DAYS, "files_intact")

    lights.launch(DAYS, days=("2026-01-03", "2026-01-03"))

    assert "FAILED" == lights.shown(DAYS)["files_intact"]


def depth_of(run: dg.ExecuteInProcessResult) -> tuple[str, bool]:
    """Return how closely the one comparison of a run looked, and whether it passed."""
    (found,) = [each for each in run.get_asset_check_evaluations() if each.check_name == "equals_source"]
    return str(found.metadata["rivet/depth"].value), found.passed


def test_cells_are_compared_when_a_run_asks_for_it(lights):
    """A changed cell is not a changed count; the red light says which column differs."""
    lights.launch(ORDERS)
    lights.sql("UPDATE orders SET at = at + 1 WHERE id = 3")

    assert ("counts", True) == depth_of(lights.ask(ORDERS, "equals_source"))
    run = lights.ask(ORDERS, "equals_source", depth="checksums")

    (found,) = run.get_asset_check_evaluations()
    assert ("checksums", False) == depth_of(run)
    assert dg.AssetCheckSeverity.ERROR == found.severity
    assert "at" == found.metadata["rivet/columns_differing"].value


def test_red_of_cells_is_not_taken_back_by_a_look_at_counts(lights):
    """The button looks as closely as the look that made the light red, until it is green."""
    lights.launch(ORDERS)
    lights.sql("UPDATE orders SET at = at + 1 WHERE id = 3")
    lights.ask(ORDERS, "equals_source", depth="checksums")

    assert ("checksums", False) == depth_of(lights.ask(ORDERS, "equals_source"))
    lights.launch(ORDERS, config={"reconcile": True})  # equal now, and counted only
    assert "FAILED" == lights.shown(ORDERS)["equals_source"]
    assert ("checksums", True) == depth_of(lights.ask(ORDERS, "equals_source"))
    assert ("counts", True) == depth_of(lights.ask(ORDERS, "equals_source"))


def test_run_that_compares_cells_turns_the_light_green(lights):
    """`depth` implies `reconcile`."""
    lights.launch(ORDERS)
    lights.sql("UPDATE orders SET at = at + 1 WHERE id = 3")
    lights.ask(ORDERS, "equals_source", depth="checksums")

    run = lights.launch(ORDERS, config={"depth": "checksums"})

    assert ("checksums", True) == depth_of(run)
    assert "SUCCEEDED" == lights.shown(ORDERS)["equals_source"]


def test_look_of_the_repair_job_sets_the_light(lights):
    """Its launchpad is where people choose how closely to look; what it repairs then is to be looked at again."""
    lights.launch(ORDERS)
    lights.sql("UPDATE orders SET at = at + 1 WHERE id = 3")

    assert lights.look(ORDERS, depth="checksums").success
    assert "FAILED" == lights.shown(ORDERS)["equals_source"]
    assert lights.look(ORDERS).success
    assert "FAILED" == lights.shown(ORDERS)["equals_source"], "a look at counts says nothing of cells"
    assert lights.look(ORDERS, depth="checksums", execute=True).success
    assert "FAILED" == lights.shown(ORDERS)["equals_source"]
    assert lights.look(ORDERS, depth="checksums").success
    assert "SUCCEEDED" == lights.shown(ORDERS)["equals_source"]


def test_columns_tell_of_drift_and_of_replaced_values(lights):
    """One light for both, which says which of them it is."""
    lights.launch(ORDERS)
    lights.sql("ALTER TABLE orders ADD COLUMN note text")

    run = lights.launch(ORDERS)

    (found,) = [each for each in run.get_asset_check_evaluations() if each.check_name == "columns"]
    assert (False, dg.AssetCheckSeverity.WARN) == (found.passed, found.severity)
    assert found.description.startswith("columns changed: ")
    assert "note" in found.description
    assert (1, 0) == tuple(found.metadata[name].value for name in ("drift", "special_values"))


def test_refused_gate_shows_the_refused_check_and_no_other(lights):
    """Only the rule that stopped the window is red."""
    lights.launch(ORDERS)
    lights.ask(ORDERS, "files_intact")
    lights.sql("DELETE FROM orders WHERE id > 0")

    run = lights.launch(ORDERS)

    assert not run.success
    assert {
        "row_count_min": "FAILED", "columns": "SUCCEEDED", "files_intact": "SUCCEEDED"
    } == lights.shown(ORDERS)  # fmt: skip


def test_refused_window_among_good_ones_is_what_the_badge_shows(lights):
    """The check's latest verdict is the red one, though a later window passed."""
    lights.sql("DELETE FROM orders WHERE id = 2")

    run = lights.launch(DAYS, days=("2026-01-01", "2026-01-04"))

    check = dg.AssetCheckKey(DAYS, "row_count_min")
    latest = lights.instance.event_log_storage.get_latest_asset_check_execution_by_key([check])[check]
    assert not run.success
    assert ("FAILED", "2026-01-02") == (latest.status.value, latest.partition)
    assert {"row_count_min": "FAILED", "columns": "SUCCEEDED"} == lights.shown(DAYS)


def test_badge_is_the_refused_window_in_postgres_too(tmp_path, fresh_database):
    """Dagster's storage there commits each statement by itself; the row is moved whole."""
    storage = {"storage": {"postgres": {"postgres_url": fresh_database}}}
    with dg.instance_for_test(temp_dir=str(tmp_path), overrides=storage) as instance:
        lights = Lights(tmp_path, instance)
        lights.sql("DELETE FROM orders WHERE id = 2")

        lights.launch(DAYS, days=("2026-01-01", "2026-01-04"))

        check = dg.AssetCheckKey(DAYS, "row_count_min")
        days = {f"2026-01-0{day}": "SUCCEEDED" for day in (1, 2, 3, 4)} | {"2026-01-02": "FAILED"}
        assert days == lights.by_day(check)
        assert {"row_count_min": "FAILED", "columns": "SUCCEEDED"} == lights.shown(DAYS)


# A process of its own, as every run of a backfill is.
KILLED = """
import sys
from pathlib import Path
import dagster as dg
from tests.assets.test_lights import DAYS, Lights
with dg.DagsterInstance.from_config(sys.argv[1]) as instance:
    Lights(Path(sys.argv[2]), instance).launch(DAYS, days=("2026-01-01", "2026-01-04"))
"""


def wait_for(seen: Callable[[], bool], run: Process) -> None:
    """Wait until something is seen while a run goes on."""
    until = time.monotonic() + 60
    while not seen():
        assert run.poll() is None, run.stderr.read()
        assert time.monotonic() < until, "it was not seen"
        time.sleep(0.1)


def test_refused_window_of_a_killed_run_is_red(lights, tmp_path):
    """It was told when it was refused; the window that the kill met has no light, and the others have their own."""
    lights.sql("DELETE FROM orders WHERE id = 2")
    lights.slow_down()
    check = dg.AssetCheckKey(DAYS, "row_count_min")
    with Process("-c", KILLED, str(tmp_path), str(lights.folder)) as run:
        try:
            wait_for(lambda: "2026-01-03" in lights.by_day(check), run)
            wait_for(lambda: "FAILED" == lights.shown(DAYS).get("row_count_min"), run)
        finally:
            run.kill()

    assert {"2026-01-01": "SUCCEEDED", "2026-01-02": "FAILED", "2026-01-03": "SUCCEEDED"} == lights.by_day(check)
    assert {"row_count_min": "FAILED", "columns": "SUCCEEDED"} == lights.shown(DAYS)


@pytest.mark.parametrize(("key", "days"), [(ORDERS, None), (DAYS, ("2026-01-01", "2026-01-02"))])
def test_run_that_cannot_begin_leaves_every_light_as_it_was(lights, key, days):
    """The database is away: the run is red, and no check was judged."""
    lights.launch(key, days=days)
    before = lights.shown(key)
    (lights.folder / "shop.db").rename(lights.folder / "away.db")

    run = lights.launch(key, days=days)

    assert not run.success
    assert set(before.values()) == {"SUCCEEDED"}
    assert before == lights.shown(key)


def test_rule_that_is_executed_alone_keeps_its_verdict(lights):
    """It is judged as the rows are written; alone there is nothing to judge, and no light changes."""
    lights.launch(ORDERS)

    run = lights.ask(ORDERS, "row_count_min")

    assert run.success
    assert "SUCCEEDED" == lights.shown(ORDERS)["row_count_min"]


@pytest.mark.parametrize(("rows", "expected"), [("id >= 0", []), ("id < 0", ["mart"])])
def test_asset_downstream_in_one_run_waits_for_the_gate(lights, rows, expected):
    """It runs when the rules pass, and does not when one of them refused the export."""

    @dg.asset(deps=[ORDERS])
    def mart() -> None: ...

    lights.sql(f"DELETE FROM orders WHERE {rows}")
    lights.defs = dg.Definitions.merge(lights.defs, dg.Definitions(assets=[mart]))
    job = lights.defs.resolve_implicit_global_asset_job_def()
    run = job.get_subset(asset_selection={ORDERS, mart.key}).execute_in_process(
        instance=lights.instance, raise_on_error=False, run_config=QUIET
    )

    made = [event.asset_key.to_user_string() for event in run.get_asset_materialization_events()]
    assert expected == [name for name in made if name == "mart"]


CHANGES = """
sources: {shop: {type: postgres, url_env: NOWHERE, environment: local}}
exports:
  - name: changes
    tables: [orders, lines]
    mode: cdc
    apply: [mirror]
    format: parquet
    destination: {type: local, path: lake}
"""


EVERY_KIND = """
sources: {shop: {type: postgres, url_env: NOWHERE, environment: local}}
exports:
  - {name: whole, table: orders, format: parquet, destination: {type: local, path: lake}}
  - {name: dated, table: orders, snapshots: daily, start: 2026-01-01, schedule: "0 3 * * *", format: parquet, destination: {type: local, path: lake}}
  - {name: more, table: orders, mode: incremental, cursor_column: id, schedule: "0 3 * * *", format: parquet, destination: {type: local, path: lake}}
  - {name: big, table: orders, mode: chunked, chunk_column: id, format: parquet, destination: {type: local, path: lake}}
  - {name: days, table: orders, mode: time_window, time_column: at, start: 2026-01-01, schedule: "0 3 * * *", format: parquet, destination: {type: local, path: lake}}
  - {name: changes, tables: [orders, lines], mode: cdc, apply: [mirror, history], format: parquet, destination: {type: local, path: lake}}
"""  # noqa: E501


def test_rivet_brings_at_most_five_checks_to_an_asset(tmp_path):
    """Each is a row to load, to draw and to store with each run; a light that nobody looks at hides the others."""
    (tmp_path / "rivet.yaml").write_text(EVERY_KIND)
    graph = definitions_of(load_config(tmp_path / "rivet.yaml")).resolve_asset_graph()
    counted = Counter("/".join(each.asset_key.path[1:]) for each in graph.asset_check_keys)

    whole = {"whole": 4, "more": 4, "big": 4, "dated": 5, "days": 5}
    drained = {"changes/orders": 5, "changes/orders_mirror": 2, "changes/orders_history": 1}
    assert whole | drained == {name: number for name, number in counted.items() if "lines" not in name}


def planned(defs: dg.Definitions, key: dg.AssetKey | None, checks: set[dg.AssetCheckKey]) -> set[str]:
    """Return the checks that stand in the plan of a launch, by name."""
    job = defs.resolve_implicit_global_asset_job_def()
    subset = job.get_subset(asset_selection={key} if key else set(), asset_check_selection=checks)
    with dg.DagsterInstance.ephemeral() as instance:
        run = instance.create_run_for_job(subset)
        records = instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED)
    events = [record.event_log_entry.dagster_event for record in records.records]
    return {event.event_specific_data.check_name for event in events}


@pytest.mark.parametrize("name", ["changes/orders", "changes/orders_mirror"])
def test_run_plans_every_check_that_it_is_asked_for(tmp_path, name):
    """The daemon refuses a backfill whose plan lacks one of the checks that it names, and it names all."""
    (tmp_path / "rivet.yaml").write_text(CHANGES)
    defs = definitions_of(load_config(tmp_path / "rivet.yaml"))
    graph = defs.resolve_asset_graph()
    key = dg.AssetKey(["shop", *name.split("/")])
    checks = {each for each in graph.asset_check_keys if each.asset_key == key}

    assert {"columns"} < {each.name for each in checks}
    assert {each.name for each in checks} == planned(defs, key, checks)


def test_schedule_names_no_check(tmp_path):
    """Each has a condition of its own, so the daemon asks for the asset alone."""
    (tmp_path / "rivet.yaml").write_text(EVERY_KIND)
    graph = definitions_of(load_config(tmp_path / "rivet.yaml")).resolve_asset_graph()

    assert set() == {each for each in graph.asset_check_keys if graph.get(each).automation_condition is None}


@pytest.mark.parametrize(("key", "days"), [(ORDERS, None), (DAYS, ("2026-01-01", "2026-01-02"))])
def test_run_that_names_no_check_tells_what_it_judged(lights, key, days):
    """As runs of schedules do."""
    run = lights.launch(key, days=days, names_checks=False)

    assert run.success
    assert {"row_count_min": "SUCCEEDED", "columns": "SUCCEEDED"} == lights.shown(key)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("changes/orders", "prerequisites"), ("changes/orders_mirror", "mirror_equals_source")],
)
def test_checks_that_ask_the_source_are_planned_when_they_are_executed(tmp_path, name, expected):
    """Executed with all others of the page, they alone are promised."""
    (tmp_path / "rivet.yaml").write_text(CHANGES)
    defs = definitions_of(load_config(tmp_path / "rivet.yaml"))
    key = dg.AssetKey(["shop", *name.split("/")])
    checks = {each for each in defs.resolve_asset_graph().asset_check_keys if each.asset_key == key}

    assert {expected} == planned(defs, None, checks)
