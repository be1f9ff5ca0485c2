"""Backfills that a living daemon carries out: of two dimensions, and killed in their midst."""

from __future__ import annotations

import os
import signal
import sqlite3
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.execution.backfill import BulkActionStatus

from tests.living import ask_for_all, living, process_of, waited_for

pytestmark = [pytest.mark.ui, pytest.mark.rare]

ORDERS, MANY = dg.AssetKey(["shop", "orders"]), dg.AssetCheckKey(dg.AssetKey(["shop", "orders"]), "row_count_min")
BLOCK = """
sources: {shop: {type: sqlite, path: FOLDER/shop.db}}
spark: inline
exports:
  - name: orders
    source: shop
    table: orders
    mode: time_window
    time_column: at
    time_column_type: unix
    start: 2026-01-01
    end: 2026-01-05
    quality: {row_count_min: 2}
    format: parquet
    destination: {type: local, path: LAKE}
"""
JANUARY = 1767225600  # 2026-01-01, UTC
RETRIES = """
run_retries: {enabled: true, max_retries: 1, retry_on_asset_or_op_failure: false}
run_monitoring: {enabled: true, poll_interval_seconds: 5, free_slots_after_run_end_seconds: 1}
"""


def orders(path: Path, counts: dict[int, int]) -> None:
    """Make a database with so many orders on each day of January."""
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE orders (id integer PRIMARY KEY, at integer NOT NULL)")
        for day, count in counts.items():
            rows = [(JANUARY + (day - 1) * 86_400 + number,) for number in range(count)]
            connection.executemany("INSERT INTO orders (at) VALUES (?)", rows)


def lights(instance: dg.DagsterInstance) -> dict[str, str]:
    """Return the status of `row_count_min` for each partition that was judged."""
    found = instance.event_log_storage.get_asset_check_partition_info([MANY])
    told = {str(each.partition_key): each.latest_execution_status.value for each in found}
    return {day: status for day, status in told.items() if status != "PLANNED"}


def badge(instance: dg.DagsterInstance) -> str | None:
    """Return the check's latest status, which its badge shows."""
    found = instance.event_log_storage.get_latest_asset_check_execution_by_key([MANY]).get(MANY)
    return found.status.value if found is not None else None


def test_backfill_of_two_dimensions_brings_every_window(tmp_path, pytestconfig, monkeypatch):
    """Each day of each shard; what a gate refuses is red, and it alone."""
    for shard, counts in {"eu": {1: 2, 2: 3, 3: 2, 4: 2}, "us": {1: 4, 2: 1, 3: 2, 4: 5}}.items():
        orders(tmp_path / f"{shard}.db", counts)
        monkeypatch.setenv(f"{shard.upper()}_DB", str(tmp_path / f"{shard}.db"))
    block = BLOCK.replace("FOLDER", str(tmp_path)) + "    shards: {eu: EU_DB, us: US_DB}\n"
    refused = "2026-01-02|us"

    with living(tmp_path, pytestconfig, block) as (place, instance):
        assert BulkActionStatus.COMPLETED_FAILED == waited_for(ask_for_all(place, instance, ORDERS))
        runs = instance.get_runs()

        keys = {f"2026-01-0{day}|{shard}" for day in (1, 2, 3, 4) for shard in ("eu", "us")}
        assert keys - {refused} == instance.get_materialized_partitions(ORDERS)
        assert {key: "FAILED" if key == refused else "SUCCEEDED" for key in keys} == lights(instance)
        assert ["FAILURE", "SUCCESS"] == sorted(run.status.value for run in runs)  # one for each shard


def test_killed_backfill_tells_of_the_refused_window(tmp_path, pytestconfig):
    """At once, while nobody has begun anew, and after the daemon did; the others have their own light or none."""
    orders(tmp_path / "shop.db", {1: 2, 2: 1, 3: 2, 4: 60})
    tuning = "    tuning: {batch_size: 1, throttle_ms: 300}\n"
    block = BLOCK.replace("FOLDER", str(tmp_path)) + tuning
    judged = {"2026-01-01": "SUCCEEDED", "2026-01-02": "FAILED", "2026-01-03": "SUCCEEDED"}

    with living(tmp_path, pytestconfig, block, RETRIES) as (place, instance):
        ended = ask_for_all(place, instance, ORDERS)
        waited_for(lambda: True if lights(instance) == judged and badge(instance) == "FAILED" else None)
        (run,) = instance.get_runs()
        os.kill(process_of(instance, run.run_id), signal.SIGKILL)
        waited_for(lambda: True if instance.get_run_by_id(run.run_id).is_finished else None)

        assert judged == {day: status for day, status in lights(instance).items() if day != "2026-01-04"}
        assert "2026-01-04" not in lights(instance)
        assert "FAILED" == badge(instance)

        assert BulkActionStatus.COMPLETED_FAILED == waited_for(ended)
        assert 2 == len(instance.get_runs())
        assert judged | {"2026-01-04": "SUCCEEDED"} == lights(instance)
        assert "FAILED" == badge(instance)
