"""Rivet in a project of somebody else's: two components, code, own jobs, own names; loaded and run as `dg` does."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

ACME = Path(__file__).parent / "acme_data"
ASSETS = {
    "billing/invoices", "best_customers", "crm/customers", "datagen/made_up", "revenue", "shop/days", "shop/orders",
    "sqlite/orders",
}  # fmt: skip


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the project, with its database."""
    folder = tmp_path / "acme"
    shutil.copytree(ACME, folder, ignore=shutil.ignore_patterns("__pycache__"))
    with sqlite3.connect(folder / "acme.db") as database:
        database.executescript("""
            CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER, cents INTEGER, at TIMESTAMP);
            INSERT INTO orders VALUES
              (1, 1, 500, '2026-01-01 10:00:00'),
              (2, 2, 900, '2026-01-02 10:00:00'), (3, 1, 300, '2026-01-03 10:00:00');
            CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT);
            INSERT INTO customers VALUES (1, 'Ann'), (2, 'Bo');
            CREATE TABLE invoices (id INTEGER PRIMARY KEY);
            INSERT INTO invoices VALUES (1), (2);
        """)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("HOOK", "https://hooks.example.com/x")
    monkeypatch.delenv("RIVET_CONFIG", raising=False)
    _forget()
    yield folder
    _forget()


def _forget() -> None:
    for name in [name for name in sys.modules if name == "acme_data" or name.startswith("acme_data.")]:
        del sys.modules[name]


def loaded(folder: Path) -> dg.Definitions:
    """Load the project as its own `definitions.py` does."""
    return dg.load_from_defs_folder(path_within_project=folder / "acme_data")


def of(definitions: dg.Definitions, key: str) -> dg.AssetSpec:
    """Find an asset's spec."""
    (spec,) = [each for each in definitions.resolve_all_asset_specs() if each.key.to_user_string() == key]
    return spec


def test_components_code_and_own_jobs_stand_in_one_project(project: Path) -> None:
    """Three component blocks, two doors from Python and a project's own `repair`, `rivet` and `lake`: all there."""
    definitions = loaded(project)
    dg.Definitions.validate_loadable(definitions)

    graph = definitions.resolve_asset_graph()
    assert {key.to_user_string() for key in graph.materializable_asset_keys} == ASSETS
    assert sorted(sensor.name for sensor in definitions.sensors or ()) == [
        "rivet_failures", "rivet_retries", "rivet_retries_billing", "rivet_schedules", "rivet_schedules_billing",
    ]  # fmt: skip
    assert {"repair", "count_invoices", "rivet_repair", "rivet_repair_billing"} == {
        job.name for job in definitions.jobs or ()
    }
    repository = definitions.get_repository_def()
    assert "of acme" == repository.get_top_level_resources()["rivet"].resource_fn(None)


def test_schedules_of_every_component_run_by_one_sensor_that_is_on(project: Path) -> None:
    """A `schedule:` in an existing project runs, without a switch that nobody knows of."""
    definitions = loaded(project)
    sensors = {sensor.name: sensor for sensor in definitions.sensors or ()}
    graph = definitions.resolve_asset_graph()
    watched = sensors["rivet_schedules"].asset_selection.resolve(graph)

    assert {"shop/orders", "crm/customers"} == {key.to_user_string() for key in watched}
    assert dg.DefaultSensorStatus.RUNNING == sensors["rivet_schedules"].default_status


def test_translation_in_yaml_and_in_python_names_the_assets(project: Path) -> None:
    """Key, group, owners, tags and metadata of a file; a translator's key; pool and tags of the steps."""
    definitions = loaded(project)
    customers, invoices = of(definitions, "crm/customers"), of(definitions, "billing/invoices")
    step = definitions.resolve_assets_def(dg.AssetKey(["crm", "customers"])).op

    assert ("crm", ["team:crm"], "raw", "crm") == (
        customers.group_name, customers.owners, customers.tags["layer"], customers.metadata["contact"]
    )  # fmt: skip
    assert "billing" == invoices.group_name
    assert ("crm_database", "low") == (step.pool, step.tags["cost"])


def test_everything_runs_in_one_run_and_feeds_what_is_downstream(project: Path) -> None:
    """Exports of each door, pandas and SQL behind them, under the project's own resources."""
    job = loaded(project).resolve_implicit_global_asset_job_def()
    keys = [dg.AssetKey(key.split("/")) for key in ASSETS - {"shop/days"}]
    with dg.DagsterInstance.ephemeral() as instance:
        done = job.execute_in_process(instance=instance, asset_selection=keys)
        days = job.execute_in_process(
            instance=instance, asset_selection=[dg.AssetKey(["shop", "days"])], partition_key="2026-01-02"
        )
        revenue = done.asset_materializations_for_node("revenue")[0].metadata["cents"].value
        best = done.asset_materializations_for_node("best_customers")[0].metadata["best"].value
        logged = [entry.message for entry in instance.all_logs(done.run_id)]

    assert done.success
    assert days.success
    assert (1700, "Bo") == (revenue, best)
    assert "before orders, with the project's own of acme" in logged


def test_rivet_resource_runs_exports_from_an_op(project: Path) -> None:
    """An own job exports and reads back, with ten lines of code."""
    with dg.DagsterInstance.ephemeral() as instance:
        job = loaded(project).resolve_job_def("count_invoices")
        done = job.execute_in_process(instance=instance)

    assert 2 == done.output_for_node("rows_of_orders")


def test_failed_export_fails_the_op_that_runs_it(project: Path) -> None:
    """Name and reason, and no try again."""
    with sqlite3.connect(project / "acme.db") as database:
        database.execute("DROP TABLE invoices")
    with dg.DagsterInstance.ephemeral() as instance:
        job = loaded(project).resolve_job_def("count_invoices")
        done = job.execute_in_process(instance=instance, raise_on_error=False)

    (failure,) = [event for event in done.all_events if event.is_step_failure]
    told = failure.step_failure_data.user_failure_data
    assert told is not None
    assert "1 of 1 exports failed: invoices: " in str(told.description)


def test_two_components_with_one_key_are_refused_with_both_places(project: Path) -> None:
    """Neither is loaded; the message says which two files, and what to do."""
    twin = project / "acme_data/defs/twin"
    shutil.copytree(project / "acme_data/defs/shop", twin)

    with pytest.raises(Exception, match="Error while building definitions for crm") as caught:
        loaded(project)

    text = str(caught.value.__cause__)
    assert "Asset shop/orders is defined twice" in text
    assert "defs/shop/defs.yaml:10" in text
    assert "defs/twin/defs.yaml:10" in text
    assert "key_prefix" in text


def test_translator_that_gives_one_key_twice_is_refused(project: Path) -> None:
    """Two exports would write each other's page."""
    from rivet_assets import ExportData, RivetTranslator, build_rivet_assets

    class Same(RivetTranslator):
        def get_asset_spec(self, data: ExportData) -> dg.AssetSpec:
            return super().get_asset_spec(data).replace_attributes(key=dg.AssetKey("one"))

    with pytest.raises(Exception, match=r"Asset one is defined twice, in .*billing\.yaml:5 and in .*billing\.yaml:10"):
        build_rivet_assets("acme_data/billing.yaml", translator=Same())


def test_assets_without_sensors_say_what_nobody_watches(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A `schedule:` that never runs is told while the project loads."""
    from rivet_assets import build_rivet_assets

    build_rivet_assets("acme_data/billing.yaml")

    assert "nothing watches over invoices (`schedule:`)" in caplog.text


def test_a_function_that_never_runs_its_export_fails(project: Path) -> None:
    """No green run that exported nothing."""
    from rivet_assets import rivet_assets

    @rivet_assets(config="acme_data/billing.yaml", select=["orders"])
    def forgetful(context, rivet):  # type: ignore[no-untyped-def]
        yield from ()

    with dg.DagsterInstance.ephemeral() as instance:
        done = dg.materialize(forgetful, instance=instance, raise_on_error=False)

    (failure,) = [event for event in done.all_events if event.is_step_failure]
    assert "yield from rivet.run()" in str(failure.step_failure_data.user_failure_data.description)
    assert not (project / "lake/billing").exists()


@pytest.mark.rare
@pytest.mark.slow
def test_dg_lists_scaffolds_checks_and_launches(project: Path) -> None:
    """The commands of a newcomer, with nothing said about Rivet in pyproject.toml."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        home = project / "home"
        home.mkdir(exist_ok=True)
        env = os.environ | {"DAGSTER_HOME": str(home), "DAGSTER_DISABLE_TELEMETRY": "yes", "PYTHONPATH": str(project)}
        command = str(Path(sys.executable).with_name("dg"))
        return subprocess.run([command, *words], cwd=project, env=env, capture_output=True, text=True, timeout=300)

    listed = run("list", "components", "--json")
    made = run("scaffold", "defs", "rivet_assets.Exports", "try_me")
    tables = ("scaffold", "defs", "rivet_assets.Exports", "legacy", "--source-env", "LEGACY")
    os.environ["LEGACY"] = str(project / "acme.db")
    try:
        of_tables = run(*tables)
    finally:
        del os.environ["LEGACY"]
    text = (project / "acme_data/defs/try_me/defs.yaml").read_text()
    legacy = (project / "acme_data/defs/legacy/defs.yaml").read_text()
    shutil.rmtree(project / "acme_data/defs/legacy")  # names the same keys as billing's
    checked = run("check", "defs")
    launched = run("launch", "--assets", "datagen/try_me,shop/orders,crm/customers")
    mixed = run("launch", "--assets", "shop/orders,revenue")

    assert "rivet_assets.Exports" in json.dumps(json.loads(listed.stdout)), listed.stderr
    assert 0 == made.returncode, made.stderr
    assert "name: try_me" in text
    assert 0 == of_tables.returncode, of_tables.stdout + of_tables.stderr
    assert legacy.count("- name: ") == 3
    assert 0 == checked.returncode, checked.stdout + checked.stderr
    assert 0 == launched.returncode, launched.stdout + launched.stderr
    assert [*(project / "exports/try_me").glob("*.parquet")]
    assert 0 == mixed.returncode, mixed.stdout + mixed.stderr
    assert "STEP_WORKER_STARTED" not in launched.stderr
    assert 2 == mixed.stderr.count("STEP_WORKER_STARTED")
