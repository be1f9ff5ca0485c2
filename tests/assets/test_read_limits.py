"""Limits of a source in Dagster: what a refused run shows, and when a schedule asks for it again."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from rivet_assets.config.load import load_text
from rivet_assets.dagster.sensors.drain_sensor import MOST_WAIT_SECONDS
from rivet_assets.dagster.sensors.retry_sensor import retry_sensors, tick
from rivet_assets.definitions import definitions_of

BLOCK = """
source: {type: sqlite, path: shop.db, LIMITS}
spark: inline
exports:
  - {name: orders, table: orders, schedule: "0 3 * * *", format: parquet, destination: {type: local, path: lake}}
"""
KEY = dg.AssetKey(["sqlite", "orders"])
SCHEDULED = {"dagster/from_automation_condition": "true"}


@pytest.mark.parametrize(
    ("limits", "code"),
    [("CLOSED", "RIVET_READ_WINDOW_CLOSED"), ("budget: {rows_per_month: 1}", "RIVET_BUDGET_REACHED")],
)
def test_refused_run_is_asked_for_again_when_the_source_may_be_read(
    limits: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its failure says until when; not every half hour, and not never."""
    monkeypatch.chdir(tmp_path)
    with closing(sqlite3.connect("shop.db")) as shop, shop:
        shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        shop.execute("INSERT INTO orders VALUES (1), (2)")
    opens = (datetime.now(UTC) + timedelta(hours=2)).replace(second=0, microsecond=0)
    window = f'read_windows: [{{start: "{opens:%H:%M}", end: "{opens + timedelta(hours=1):%H:%M}"}}]'
    config = load_text(BLOCK.replace("LIMITS", limits.replace("CLOSED", window)), file=tmp_path / "rivet.yaml")
    job = definitions_of(config).resolve_implicit_global_asset_job_def()
    (sensor,) = retry_sensors(config)

    with dg.DagsterInstance.ephemeral() as instance:
        for _ in range(2):  # the first one reaches the budget, and publishes
            done = job.execute_in_process(
                asset_selection=[KEY], tags=SCHEDULED, instance=instance, raise_on_error=False
            )
        assert not done.success
        (failed,) = done.get_step_failure_events()
        facts = failed.step_failure_data.user_failure_data.metadata
        not_before = facts["rivet/not_before"].value
        assert code == facts["rivet/code"].value
        if limits == "CLOSED":
            assert opens.timestamp() == not_before

        context = dg.build_sensor_context(instance=instance)
        before = tick(sensor.scheduled, context, now=min(time.time() + MOST_WAIT_SECONDS, not_before - 1))
        context = dg.build_sensor_context(instance=instance, cursor=before.cursor)
        after = tick(sensor.scheduled, context, now=not_before + 1)

    assert not before.run_requests
    assert "its source may not be read now" in str(before.skip_reason)
    assert [[KEY]] == [request.asset_selection for request in after.run_requests]
