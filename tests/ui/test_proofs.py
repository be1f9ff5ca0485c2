"""Checks that prove an export, run from its page, and repair as a run."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from tests.ui.conftest import QUIET

ORDERS = dg.AssetKey(["postgres", "orders"])
DAYS = dg.AssetKey(["postgres", "days"])
CHUNKED = """
source: {{type: postgres, url_env: SHOP_URL, environment: local}}
spark: inline
exports:
  - name: orders
    table: orders
    mode: chunked
    chunk_column: id
    chunk_size: 60
    format: parquet
    destination: {{type: local, path: {lake}}}
"""


def asked(shop, key: dg.AssetKey, *names: str, depth: str = "") -> dict[str, dg.AssetCheckEvaluation]:
    """Execute checks of an asset alone, as the buttons of its page do; those give no `depth`."""
    step = {"ops": {key.to_python_identifier(): {"config": {"depth": depth}}}} if depth else {}
    keys = [dg.AssetCheckKey(key, name) for name in names]
    job = shop.definitions().resolve_implicit_global_asset_job_def()
    subset = job.get_subset(asset_selection=set(), asset_check_selection=set(keys))
    run = subset.execute_in_process(instance=shop.instance, raise_on_error=False, run_config={**QUIET, **step})
    assert run.success, [e.message for e in run.all_events if e.is_failure]
    return {evaluation.check_name: evaluation for evaluation in run.get_asset_check_evaluations()}


def repaired(shop, **config) -> dg.ExecuteInProcessResult:
    """Run the job `rivet_repair`."""
    job = shop.definitions().resolve_job_def("rivet_repair")
    options = {
        "ops": {"repair_windows": {"config": config}},
        "loggers": {"console": {"config": {"log_level": "ERROR"}}},
    }
    return job.execute_in_process(run_config=options, instance=shop.instance, raise_on_error=False)


def parts(shop, export: str) -> dict[str, bytes]:
    """Read every committed file of an export."""
    return {
        part.path: (shop.folder / "lake" / export / part.path).read_bytes()
        for manifest in shop.manifests(export).values()
        for part in manifest.parts
    }


def test_every_proof_passes_after_an_export(shop):
    """Preflight, files and the comparison with the source answer for a table that did not change."""
    shop.run("postgres/orders")

    found = asked(shop, ORDERS, "preflight", "files_intact", "equals_source")

    assert dict.fromkeys(("preflight", "files_intact", "equals_source"), True) == {
        name: evaluation.passed for name, evaluation in found.items()
    }, {name: evaluation.description for name, evaluation in found.items()}
    assert 240 == found["equals_source"].metadata["rows"].value
    assert "SELECT" in found["preflight"].metadata["rivet/plan_statement"].value
    assert "orders" in found["preflight"].metadata["rivet/plan"].value


def test_one_proof_can_be_asked_for_alone(shop):
    """What is not asked for is not looked at."""
    shop.run("postgres/orders")

    assert {"equals_source"} == set(asked(shop, ORDERS, "equals_source"))


def test_no_proof_runs_along_with_the_export(shop):
    """They would read whole tables at every materialization."""
    run = shop.run("postgres/orders")

    told = {evaluation.check_name for evaluation in run.get_asset_check_evaluations()}
    assert set() == told & {"preflight", "files_intact", "equals_source"}


def test_rows_that_changed_fail_the_comparison_of_cells_only(shop):
    """A changed cell is not a changed count; the message names the column and no value."""
    shop.run("postgres/orders")
    shop.sql("UPDATE orders SET name = 'canary' WHERE id = 7")

    counts = asked(shop, ORDERS, "equals_source")["equals_source"]
    cells = asked(shop, ORDERS, "equals_source", depth="checksums")["equals_source"]

    assert (True, False) == (counts.passed, cells.passed)
    assert dg.AssetCheckSeverity.ERROR == cells.severity
    assert "name" in cells.description
    assert "canary" not in str(cells)


def test_damaged_file_fails_the_check_of_files(shop):
    """One flipped byte is seen, with the file's name and the stable code."""
    shop.run("postgres/orders")
    (name,) = parts(shop, "orders")
    flip(shop.folder / "lake" / "orders" / name)

    found = asked(shop, ORDERS, "files_intact")["files_intact"]

    assert not found.passed
    assert "RIVET_VERIFY_PART_CHECKSUM_MISMATCH" in found.description


def test_export_that_cannot_run_fails_its_preflight(shop):
    """A missing table is a failed check with the reason, not a failed run."""
    shop.sql("DROP TABLE orders")

    found = asked(shop, ORDERS, "preflight")["preflight"]

    assert not found.passed
    assert "orders" in found.description


def test_repair_says_first_what_it_would_do(shop):
    """Without `execute` no file changes."""
    shop.run("postgres/orders")
    shop.sql("DELETE FROM orders WHERE id = 7")
    before = parts(shop, "orders")

    run = repaired(shop, asset="postgres/orders")

    assert run.success
    assert before == parts(shop, "orders")
    assert [] == run.get_asset_materialization_events()
    assert "postgres" == shop.instance.get_run_by_id(run.run_id).tags["rivet/export.orders"]


def test_repair_reads_the_chunks_that_differ_and_nothing_else(shop):
    """Files of the other chunks are the same, byte for byte; the asset's page shows a materialization."""
    shop.configure(CHUNKED)
    shop.run("postgres/orders")
    shop.sql("DELETE FROM orders WHERE id = 70")
    before = parts(shop, "orders")

    run = repaired(shop, asset="postgres/orders", execute=True)

    after = parts(shop, "orders")
    assert run.success
    assert (4, 3) == (len(before), len(set(before.items()) & set(after.items())))
    assert 239 == sum(manifest.row_count for manifest in shop.manifests("orders").values())
    (event,) = run.get_asset_materialization_events()
    assert ORDERS == event.asset_key
    assert asked(shop, ORDERS, "equals_source")["equals_source"].passed


def test_repair_of_windows_of_time_touches_only_the_window_that_differs(shop):
    """The repaired day is told as its partition; the manifests of the others stay as they were."""
    shop.run("postgres/days", days=("2026-01-01", "2026-01-03"))
    shop.sql("INSERT INTO orders VALUES (1000, '2026-01-02 05:00Z', 'late', 1)")
    before = {key: manifest.run_id for key, manifest in shop.manifests("days").items()}

    run = repaired(shop, asset="postgres/days", execute=True)

    after = {key: manifest.run_id for key, manifest in shop.manifests("days").items()}
    assert run.success
    assert {"2026-01-02"} == {key for key in after if before[key] != after[key]}
    (event,) = run.get_asset_materialization_events()
    assert (DAYS, "2026-01-02") == (event.asset_key, event.partition)


def test_repair_is_refused_by_the_gate_as_a_run_would_be(shop):
    """What the source has now does not pass `quality:`: the window stays as it was, and the run fails with its code."""
    shop.run("postgres/days", days=("2026-01-01", "2026-01-03"))
    shop.sql("DELETE FROM orders WHERE id = 30")  # of 2 January; 24 are wanted
    before = parts(shop, "days")

    run = repaired(shop, asset="postgres/days", execute=True)

    (failed,) = [event for event in run.all_events if event.event_type_value == "STEP_FAILURE"]
    assert before == parts(shop, "days")
    assert "RIVET_QUALITY_REFUSED" == failed.step_failure_data.user_failure_data.metadata["rivet/code"].value


def test_repair_heals_a_damaged_file(shop):
    """Where the rows are right and a file is not, the window is read again."""
    shop.run("postgres/orders")
    (name,) = parts(shop, "orders")
    (shop.folder / "lake" / "orders" / name).unlink()

    run = repaired(shop, asset="postgres/orders", execute=True)

    assert run.success
    assert asked(shop, ORDERS, "files_intact")["files_intact"].passed


@pytest.mark.parametrize("asset", ["postgres/nothing", "days"])
def test_repair_of_an_unknown_asset_lists_the_known_ones(shop, asset: str):
    """The run fails at once, with the stable code."""
    run = repaired(shop, asset=asset)

    (failed,) = [event for event in run.all_events if event.event_type_value == "STEP_FAILURE"]
    assert not run.success
    assert "postgres/orders" in failed.step_failure_data.user_failure_data.description


def flip(file: Path) -> None:
    """Change one byte in the middle of a file."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))
