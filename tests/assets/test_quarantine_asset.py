"""What Dagster shows of rows that were set aside: a check of the export, and an asset downstream of it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import dagster as dg
import pytest

from rivet_assets.config.load import load_config
from rivet_assets.definitions import definitions_of

YAML = """
source: {type: sqlite, path: shop.db}
spark: inline
exports:
  - name: orders
    table: orders
    format: parquet
    destination: {type: local, path: lake}
    transforms: [{type: cast, columns: {note: int8}}]
"""
DAYS = """
    mode: time_window
    time_column: at
    granularity: day
    start: 2026-01-01
    end: 2026-01-03
    columns: {at: timestamp_tz}
"""
ORDERS, QUARANTINE = dg.AssetKey(["sqlite", "orders"]), dg.AssetKey(["sqlite", "orders_quarantine"])


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten orders of two days; the notes of two, of the first day, are no numbers."""
    monkeypatch.chdir(tmp_path)
    rows = [(n, "odd" if n in (2, 6) else str(n), f"2026-01-0{1 + n % 2}T12:00:00Z") for n in range(10)]
    with closing(sqlite3.connect("shop.db")) as connection, connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT, at TEXT)")
        connection.executemany("INSERT INTO orders VALUES (?, ?, ?)", rows)


def definitions(keys: str) -> dg.Definitions:
    Path("rivet.yaml").write_text(YAML + keys)
    return definitions_of(load_config(Path("rivet.yaml")))


def materialized(
    keys: str, instance: dg.DagsterInstance, *, partition: str | None = None, **config: int
) -> dg.ExecuteInProcessResult:
    made = definitions(keys)
    assets = [*(made.assets or ())]
    return dg.materialize(
        assets, selection=[ORDERS], instance=instance, resources=dict(made.resources or {}), partition_key=partition,
        raise_on_error=False, run_config={"ops": {"sqlite__orders": {"config": config}}},
    )  # fmt: skip


def reasons(instance: dg.DagsterInstance, partition: str | None = None) -> list[tuple[int, str]]:
    """Return what the quarantine's materializations tell, newest first."""
    wanted = dg.AssetRecordsFilter(QUARANTINE, asset_partitions=[partition] if partition else None)
    found = [each.asset_materialization for each in instance.fetch_materializations(wanted, limit=9).records]
    count = "dagster/partition_row_count" if partition else "dagster/row_count"
    return [(int(each.metadata[count].value), str(each.metadata["Reasons"].value)) for each in found if each]


def test_quarantine_is_an_asset_downstream_of_its_export(instance: dg.DagsterInstance) -> None:
    """It tells how many rows each commit set aside, and why; the check of the export warns."""
    result = materialized("    on_error: dead_letter\n", instance)

    assert result.success
    [check] = [each for each in result.get_asset_check_evaluations() if each.check_name == "row_errors"]
    assert (False, dg.AssetCheckSeverity.WARN, 2) == (check.passed, check.severity, check.metadata["observed"].value)
    assert [(2, "- 2 × step 1 (cast), note: cannot become int64")] == reasons(instance)
    graph = definitions("    on_error: dead_letter\n").resolve_asset_graph()
    assert {ORDERS} == graph.get(QUARANTINE).parent_keys


def test_mended_rows_leave_the_quarantine_and_turn_the_check_green(instance: dg.DagsterInstance) -> None:
    """The next commit tells of none."""
    materialized("    on_error: dead_letter\n", instance)
    with closing(sqlite3.connect("shop.db")) as connection, connection:
        connection.execute("UPDATE orders SET note = '0' WHERE note = 'odd'")
    result = materialized("    on_error: dead_letter\n", instance)

    [check] = [each for each in result.get_asset_check_evaluations() if each.check_name == "row_errors"]
    assert (True, (0, "none")) == (check.passed, reasons(instance)[0])


def test_bound_refuses_the_window_with_exactly_its_check_red(instance: dg.DagsterInstance) -> None:
    """Nothing is published, so the quarantine tells of nothing."""
    result = materialized("    on_error: dead_letter\n    max_errors: 1\n", instance)

    assert not result.success
    failed = [each for each in result.get_asset_check_evaluations() if not each.passed]
    assert [("row_errors", dg.AssetCheckSeverity.ERROR)] == [(each.check_name, each.severity) for each in failed]
    assert [] == reasons(instance)


def test_sample_leaves_no_letter_anywhere(instance: dg.DagsterInstance) -> None:
    """A trial run publishes nothing, and what it staged is gone."""
    assert materialized("    on_error: dead_letter\n", instance, limit=9).success

    assert [] == [path for path in Path("lake").rglob("*") if path.is_file() and not path.name.startswith(".")]


def test_each_window_has_a_quarantine_of_its_own(instance: dg.DagsterInstance) -> None:
    """Its partitions are those of the export."""
    for day in ("2026-01-01", "2026-01-02"):
        assert materialized(f"    on_error: dead_letter\n{DAYS}", instance, partition=day).success

    assert [(2, "- 2 × step 1 (cast), note: cannot become int64")] == reasons(instance, "2026-01-01")
    assert [(0, "none")] == reasons(instance, "2026-01-02")


@pytest.mark.parametrize("keys", ["", "    on_error: skip\n"])
def test_export_that_keeps_no_letters_has_no_such_asset(keys: str) -> None:
    """And one that stops at the first fault has no such check either."""
    graph = definitions(keys).resolve_asset_graph()

    assert QUARANTINE not in graph.get_all_asset_keys()
    assert ("skip" in keys) is any(each.name == "row_errors" for each in graph.asset_check_keys)
