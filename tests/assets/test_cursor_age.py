"""How far an incremental export is behind: the age of its cursor, where that is an instant."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from rivet_assets.config.load import load_config
from tests.backfills import launch

CONFIG = """
source: {{type: sqlite, path: shop.db}}
spark: inline
exports:
  - {{name: orders, table: orders, mode: incremental, cursor_column: {cursor}, format: parquet,
     columns: {{at: timestamp_tz, local: timestamp}}, destination: {{type: local, path: lake}}}}
"""


@pytest.mark.parametrize(("cursor", "is_told"), [("at", True), ("local", False), ("id", False)])
def test_age_of_the_cursor_is_told_where_it_is_an_instant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cursor: str, is_told: bool
) -> None:
    """An order of an hour ago: 3,600 seconds and what the run took; numbers and times without a zone have no age."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    at = (datetime.now(UTC) - timedelta(hours=1)).strftime("%Y-%m-%d %H:%M:%S")
    with closing(sqlite3.connect("shop.db")) as connection, connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, at TIMESTAMP, local DATETIME)")
        connection.execute("INSERT INTO orders VALUES (1, ?, ?)", (f"{at}+00:00", at))
    Path("rivet.yaml").write_text(CONFIG.format(cursor=cursor))

    run = launch(load_config("rivet.yaml"), dg.DagsterInstance.ephemeral())

    (event,) = (each for each in run.all_events if each.event_type_value == "ASSET_MATERIALIZATION")
    age = event.materialization.metadata.get("rivet/cursor_age_seconds")
    assert is_told == (age is not None)
    assert age is None or 3600 <= age.value < 3600 + 600
