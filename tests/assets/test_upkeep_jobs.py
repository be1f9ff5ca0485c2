"""Compaction and retention as Dagster shows them: jobs with figures, and schedules that wait to be turned on."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from rivet_assets.config.load import load_config
from rivet_assets.definitions import definitions_of
from rivet_assets.launch.run_exports import run_exports
from rivet_assets.run.admit.scope import state_of
from rivet_assets.upkeep import compact
from rivet_assets.upkeep.compact import CompactedExport, JoinedWindow, Status
from rivet_resources.commit.manifest import current_manifests

BLOCK = """
sources: {{shop: {{type: sqlite, path: {folder}/shop.db}}}}
spark: inline
exports:
  - name: orders
    table: orders
    mode: incremental
    cursor_column: id
    format: parquet
    destination: {{type: local, path: {folder}/lake}}
    compact: {{min_parts: 2, older_than: 0}}
    keep: 2
  - name: plain
    table: orders
    format: parquet
    destination: {{type: local, path: {folder}/lake}}
"""


class Upkept:
    """An export of four windows, and the jobs that look after it."""

    def __init__(self, folder: Path, instance: dg.DagsterInstance) -> None:
        self.folder, self.instance = folder, instance
        (folder / "rivet.yaml").write_text(BLOCK.format(folder=folder))
        self.config = load_config(folder / "rivet.yaml")
        self.defs = definitions_of(self.config)
        with sqlite3.connect(folder / "shop.db") as shop:
            shop.execute("CREATE TABLE orders (id integer PRIMARY KEY)")
        only = self.config.model_copy(update={"exports": self.config.exports[:1]})
        for number in range(1, 5):
            with sqlite3.connect(folder / "shop.db") as shop:
                shop.execute(f"INSERT INTO orders VALUES ({number})")
            assert all(each.success for each in run_exports(only))

    def windows(self) -> int:
        """Count what a reader sees."""
        export = self.config.exports[0]
        return len(current_manifests(export.destination.root(export.name)))

    def run(self, kind: str, **config: Any) -> dg.ExecuteInProcessResult:
        """Run a job as the UI does."""
        options = {
            "ops": {f"{kind}_windows": {"config": config}},
            "loggers": {"console": {"config": {"log_level": "CRITICAL"}}},
        }
        return self.defs.resolve_job_def(f"rivet_{kind}").execute_in_process(
            run_config=options, instance=self.instance, raise_on_error=False
        )


@pytest.fixture
def upkept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Upkept]:
    """Four committed windows."""
    monkeypatch.chdir(tmp_path)
    with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:
        yield Upkept(tmp_path, instance)


def facts(run: dg.ExecuteInProcessResult) -> dict[str, Any]:
    """Return the figures on the run's output."""
    (event,) = [each for each in run.all_events if each.event_type_value == "STEP_OUTPUT"]
    return {name: value.value for name, value in event.event_specific_data.metadata.items()}  # type: ignore[union-attr]


def test_jobs_join_and_drop_and_say_in_figures_what_they_did(upkept: Upkept) -> None:
    """A dry run changes nothing; the real one joins; retention then drops what `keep:` does not keep."""
    dry = upkept.run("compact", dry_run=True)
    untouched = upkept.windows()
    joined = upkept.run("compact", assets=["shop/orders"])
    between = upkept.windows()
    dropped = upkept.run("retain")

    assert (dry.success, joined.success, dropped.success) == (True, True, True)
    assert (4, 2) == (untouched, between)
    assert 3 == facts(dry)["rivet/windows"] == facts(joined)["rivet/windows"]
    assert "joined" in facts(joined)["rivet/report"]
    assert 0 == facts(dropped)["rivet/windows"]  # two are left, and two are kept
    assert 2 == upkept.windows()
    (noted,) = state_of(upkept.config).audit_log("orders", "compact")
    assert ("Dagster, by hand", "after=start") == (noted.actor.partition(" (")[0], noted.detail["windows"])


def test_export_whose_windows_fail_keeps_no_other_from_its_turn(
    upkept: Upkept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is red and says which; what it did for the others is in its report."""
    (orders, plain) = upkept.config.exports
    other = orders.model_copy(update={"name": "other", "destination": plain.destination})
    both = definitions_of(upkept.config.model_copy(update={"exports": (orders, other)}))
    seen: list[str] = []

    def failing(export: Any, **about: Any) -> CompactedExport:
        seen.append(export.name)
        status: Status = "failed" if export.name == "orders" else "joined"
        join = JoinedWindow("", "all", status, 2, parts=2, parts_after=1, bytes=10, rows=2, text="disk is full")
        return CompactedExport(export.name, is_dry=False, joins=(join,))

    monkeypatch.setattr(compact, "compact_export", failing)
    options = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    run = both.resolve_job_def("rivet_compact").execute_in_process(
        run_config=options, instance=upkept.instance, raise_on_error=False
    )

    assert seen == ["orders", "other"]
    (failure,) = [each for each in run.all_events if each.event_type_value == "STEP_FAILURE"]
    told = failure.step_failure_data.user_failure_data
    assert told is not None
    assert "1 of 1 joins failed: disk is full" in str(told.description)
    assert told.metadata["rivet/windows"].value == 2


def test_asset_that_is_not_looked_after_is_refused_by_name(upkept: Upkept) -> None:
    """The message lists those that are."""
    run = upkept.run("compact", assets=["shop/plain"])

    assert not run.success
    (failure,) = [each for each in run.all_events if each.event_type_value == "STEP_FAILURE"]
    assert "there are shop/orders" in str(failure.event_specific_data)


def test_schedules_are_there_and_off(upkept: Upkept) -> None:
    """A job that removes files does not begin by itself."""
    repository = upkept.defs.get_repository_def()

    found = {each.name: (each.job_name, each.default_status) for each in repository.schedule_defs}

    assert found == {
        "rivet_compact_nightly": ("rivet_compact", dg.DefaultScheduleStatus.STOPPED),
        "rivet_retain_nightly": ("rivet_retain", dg.DefaultScheduleStatus.STOPPED),
    }
