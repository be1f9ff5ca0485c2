"""What leads a page and what waits behind a link; the page of a drain, which is many loads of one table."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from rivet_assets.config.load import load_config
from rivet_assets.dagster.pages.page import ON_THE_PAGE, details, summary
from rivet_assets.definitions import definitions_of

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
DRAIN = """
sources:
  made: {type: datagen, pattern: orders, max_events: 50, events_per_second: 0, seed: 4, cdc_mode: true}
spark: inline
exports:
  - name: changes
    source: made
    table: orders
    mode: cdc
    cdc: {max_events: 50}
    preview: 5
    format: parquet
    destination: {type: local, path: lake}
"""


def test_summary_stays_short_enough_to_be_seen_and_details_long_enough_to_be_a_link() -> None:
    """Dagster 1.13 shows markdown below a thousand characters where it is, and links to longer ones."""
    few = summary({"Rows": 1234567, "Late rows": ""}, ["one | note", "with *stars*"]).value
    many = summary({"Rows": 1}, ["a note of forty characters, more or less"] * 100).value

    assert "| Rows | 1,234,567 |" in few
    assert "Late" not in few
    assert "with \\*stars\\*" in few
    assert len(many) < ON_THE_PAGE
    assert "rivet/details" in many
    assert len(details({"pages": 1}, cost={}, staged=None).value) >= ON_THE_PAGE


@pytest.fixture
def drained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dg.ExecuteInProcessResult]:
    """Drain made-up changes twice; the second drain finds nothing."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rivet.yaml").write_text(DRAIN)
    job = definitions_of(load_config(tmp_path / "rivet.yaml")).resolve_implicit_global_asset_job_def()
    with dg.DagsterInstance.ephemeral() as instance:
        return [job.execute_in_process(instance=instance, run_config=QUIET) for _ in range(2)]


def test_page_of_a_drain_tells_rows_of_the_load_and_each_thing_once(drained: list[dg.ExecuteInProcessResult]) -> None:
    """Changes are not rows of the table, and a dozen entries hold them."""
    (event,) = drained[0].asset_materializations_for_node("made__changes")

    facts = event.metadata
    assert "rivet/summary" == next(iter(facts))
    assert 50 == facts["rivet/rows"].value
    assert {"dagster/row_count", "dagster/partition_row_count"}.isdisjoint(facts)
    assert "| Changes | 50 |" in facts["rivet/summary"].value
    assert 5 == len(facts["rivet/preview"].records)
    assert len(facts) <= 12
    assert not [name for name, value in facts.items() if isinstance(value, dg.JsonMetadataValue)]
