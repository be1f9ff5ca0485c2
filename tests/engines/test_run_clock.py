"""`{type: add, timestamp_field: …, date_field: …}`: one time for a window, whichever runs read it.

Belongs here: what readers of the files see of it after a whole run, a death in mid-run, a repair of one chunk, and what
comparisons make of it. Not here: its place in a plan of steps (`test_transforms_plan.py`).
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rivet_assets.config.load import load_config
from rivet_assets.launch.run_exports import run_exports
from rivet_assets.prove.reconcile import reconcile_export
from rivet_assets.prove.reconcile_report import Flagged, flagged_of
from rivet_assets.prove.repair import repair_export
from rivet_resources.contracts.settings import Spark
from rivet_resources.read.stage import Exporter
from rivet_resources.spark.runtime import SparkRuntime
from rivet_resources.write.checksums.sums import column_sums
from tests.lab import Lab, lab_in
from tests.lab_engines import SQLITE

CLOCK = "{type: add, timestamp_field: loaded_at, date_field: loaded_on}"
META = "meta_columns: {exported_at: true, row_hash: true}"
BLOCK = f"""
    {{name: orders, table: orders, mode: chunked, chunk_column: id, chunk_size: 10, chunk_checkpoint: true,
     transforms: [{{type: cast, columns: {{note: int4}}}}, {CLOCK}], {META}}}"""


@pytest.fixture
def lab(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """Forty orders."""
    laboratory = lab_in(tmp_path, SQLITE, request, monkeypatch)
    laboratory.create("orders", {"id": "whole", "note": "note"})
    laboratory.insert("orders", [{"id": number, "note": str(number)} for number in range(1, 41)])
    laboratory.analyze("orders")
    return laboratory


def clocks(rows: pa.Table) -> tuple[datetime, date, datetime]:
    """Return the one instant, day and `_rivet_exported_at` of all rows."""
    names = ("loaded_at", "loaded_on", "_rivet_exported_at")
    (found,) = set(zip(*(rows.column(name).to_pylist() for name in names), strict=True))
    return found


def test_all_rows_of_a_window_hold_when_its_run_began(lab: Lab) -> None:
    """An instant and its UTC day, typed, never NULL; the manifest says it too."""
    before = datetime.now(UTC)
    outcome = lab.export(BLOCK)
    after = datetime.now(UTC)

    assert "success" == outcome.status, outcome.message
    rows = lab.table("orders")
    at, day, exported = clocks(rows)
    assert before <= at <= after
    assert (at.date(), at) == (day, exported)
    assert (pa.timestamp("us", "UTC"), False) == (
        rows.schema.field("loaded_at").type,
        rows.schema.field("loaded_at").nullable,
    )
    assert (pa.date32(), False) == (rows.schema.field("loaded_on").type, rows.schema.field("loaded_on").nullable)
    (manifest,) = lab.manifests("orders").values()
    assert at == manifest.clock


def test_a_window_that_another_run_ends_has_one_time_all_the_same(lab: Lab) -> None:
    """Chunks of a dead run are kept, and the rest is read at the time that these have."""
    lab.sql("UPDATE orders SET note = 'none' WHERE id = 35")
    assert "failed" == lab.export(BLOCK).status
    lab.sql("UPDATE orders SET note = '35' WHERE id = 35")
    before = datetime.now(UTC)

    outcome = lab.export(BLOCK)

    assert "success" == outcome.status, outcome.message
    (manifest,) = lab.manifests("orders").values()
    assert "resumed" == manifest.consistency
    at, _, _ = clocks(lab.table("orders"))
    assert at < before
    assert list(range(1, 41)) == lab.ids("orders")


def test_a_new_run_of_a_window_has_a_time_of_its_own_and_equal_sums(lab: Lab) -> None:
    """The time is no part of what rows are: neither checksums nor row hashes differ between two runs."""
    kept = []
    for _ in range(2):
        assert "success" == lab.export(BLOCK).status
        (manifest,) = lab.manifests("orders").values()
        hashes = column_sums(lab.table("orders").select(["_rivet_row_hash"]))
        kept.append((clocks(lab.table("orders"))[0], manifest.column_checksums, hashes))

    assert kept[0][0] < kept[1][0]
    assert kept[0][1:] == kept[1][1:]


def reported(lab: Lab, depth: str) -> tuple[Flagged, ...]:
    """Compare with the source, and give what differs."""
    config = lab.config(BLOCK)
    found = reconcile_export(config, config.exports[0], depth=depth, state=lab.state, tell=lambda line: None)
    return flagged_of(found)


def test_a_chunk_that_is_repaired_alone_gets_the_time_of_its_window(lab: Lab) -> None:
    """Comparisons by checksums and by rows see the changed row, and not that the clock went on."""
    assert "success" == lab.export(BLOCK).status
    at, _, _ = clocks(lab.table("orders"))
    assert ((), ()) == (reported(lab, "checksums"), reported(lab, "rows"))
    lab.sql("UPDATE orders SET note = '7' WHERE id = 15")
    config, (flagged,) = lab.config(BLOCK), reported(lab, "checksums")
    exporter = Exporter(SparkRuntime(Spark(engine="inline")), lab.state)

    done = repair_export(
        config, config.exports[0], [flagged], execute=True, exporter=exporter, state=lab.state, tell=lambda line: None
    )

    assert ["repaired"] == [each.status for each in done.windows]
    assert 7 == next(row["note"] for row in lab.rows("orders") if row["id"] == 15)
    assert at == clocks(lab.table("orders"))[0]
    assert ((), ()) == (reported(lab, "checksums"), reported(lab, "rows"))


def test_changes_hold_when_their_drain_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both images of a change go through the step, and have one time."""
    monkeypatch.chdir(tmp_path)
    Path("rivet.yaml").write_text(f"""
source: {{type: datagen, pattern: orders, cdc_mode: true, max_events: 60, events_per_second: 0, seed: 1}}
spark: inline
exports:
  - name: changes
    mode: cdc
    table: orders
    transforms: [{CLOCK}]
    meta_columns: {{exported_at: true}}
    format: parquet
    destination: {{type: local, path: lake}}
""")
    before = datetime.now(UTC)

    (outcome,) = run_exports(load_config("rivet.yaml"))

    assert "success" == outcome.status, outcome.message
    rows = pa.concat_tables(pq.read_table(path) for path in Path("lake").rglob("*.parquet"))
    assert 60 <= rows.num_rows
    assert before <= clocks(rows)[0] <= datetime.now(UTC)


@pytest.mark.parametrize(
    ("step", "says"),
    [
        ("{type: add}", "write columns, timestamp_field or date_field"),
        ("{type: add, timestamp_field: a, date_field: a}", "adds column 'a' twice"),
        ("{type: insert_field, static_fields: {a: 1}, date_field: a}", "adds column 'a' twice"),
    ],
)
def test_a_step_that_adds_nothing_or_twice_is_refused(lab: Lab, step: str, says: str) -> None:
    """When the file is read, with the step's place."""
    with pytest.raises(Exception, match=says):
        lab.config(f"{{name: orders, table: orders, transforms: [{step}]}}")
