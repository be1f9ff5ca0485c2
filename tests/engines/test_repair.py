"""What `rivet repair` promises, seen from outside: what differs is read again, and nothing else is touched."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from rivet_assets.prove.reconcile import reconcile_export
from rivet_assets.prove.reconcile_report import Flagged, flagged_in, flagged_of
from rivet_assets.prove.reconcile_result import Depth
from rivet_assets.prove.repair import Repaired, RepairRefused, repair_export
from rivet_assets.prove.validate import validate_export
from rivet_assets.prove.validate_report import document as validate_document
from rivet_resources.commit.manifest import Manifest, current_manifests
from rivet_resources.commit.manifest_entries import ManifestPart
from rivet_resources.contracts.extract import Window
from rivet_resources.contracts.settings import Spark
from rivet_resources.errors import ManifestUnreadable
from rivet_resources.read.stage import Exporter
from rivet_resources.spark.runtime import SparkRuntime
from tests import processes
from tests.lab import Lab, lab_in
from tests.lab_engines import ENGINES, Engine
from tests.servers.postgres import ObjectStore

pytestmark = pytest.mark.wide

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
ORDERS = {"id": "whole", "at": "instant", "amount": "amount", "note": "note"}
IDS = range(1, 61)

FULL = "{name: orders, table: orders}"
CHUNKED = "{name: orders, table: orders, mode: chunked, chunk_column: id, chunk_size: 10, parallel: 2}"
INCREMENTAL = "{name: orders, table: orders, mode: incremental, cursor_column: id}"
WINDOWS = "{name: orders, table: orders, mode: time_window, time_column: at, start: 2026-01-01, end: 2026-01-04}"
DAYS = ("2026-01-01...2026-01-03",)
BLOCKS = {"full": FULL, "chunked": CHUNKED, "incremental": INCREMENTAL, "time_window": WINDOWS}

every_mode = pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
everywhere = pytest.mark.parametrize("engine", ["sqlite", "postgres", "mariadb", "sqlserver"], indirect=True)


@pytest.fixture(params=["sqlite"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """The engine a test runs on."""
    return ENGINES[request.param]


def order(number: int) -> dict[str, object]:
    """Make an order; twenty-four of them a day."""
    at = FIRST + timedelta(hours=number) - timedelta(minutes=30)
    return {"id": number, "at": at, "amount": Decimal(number) * Decimal("1.25"), "note": f"note {number}"}


@pytest.fixture
def lab(tmp_path: Path, engine: Engine, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A database with 60 hourly orders over three days, and an empty folder."""
    laboratory = lab_in(tmp_path, engine, request, monkeypatch)
    laboratory.create("orders", ORDERS, index=["at"])
    laboratory.insert("orders", map(order, IDS))
    laboratory.analyze("orders")
    return laboratory


def exported(lab: Lab, block: str) -> None:
    """Export it; incremental in three windows of twenty, windows of time all three days."""
    if "incremental" not in block:
        outcome = lab.export(block, partitions=DAYS if "time_window" in block else ())
        assert outcome.success, outcome.message
        return
    lab.sql("DELETE FROM orders")
    for start in (1, 21, 41):
        lab.insert("orders", map(order, range(start, start + 20)))
        outcome = lab.export(block)
        assert outcome.success, outcome.message


def reported(lab: Lab, block: str, depth: Depth = "checksums") -> tuple[Flagged, ...]:
    """Compare, and give what differs."""
    config = lab.config(block)
    found = reconcile_export(config, config.exports[0], depth=depth, state=lab.state, tell=lambda line: None)
    return flagged_of(found)


def repaired(
    lab: Lab, block: str, report: Sequence[Flagged] | None = None, *, execute: bool = True,
    tell: Callable[[str], None] = lambda line: None,
) -> Repaired:  # fmt: skip
    """Repair what differs."""
    flagged = reported(lab, block) if report is None else report
    config, state = lab.config(block), lab.state
    exporter = Exporter(SparkRuntime(Spark(engine="inline")), state)
    return repair_export(
        config, config.exports[0], flagged, execute=execute, exporter=exporter, state=state, tell=tell
    )  # fmt: skip


def files(lab: Lab) -> dict[str, bytes]:
    """Read everything at the destination."""
    lake = lab.folder / "lake"
    return {path.relative_to(lake).as_posix(): path.read_bytes() for path in lake.rglob("*") if path.is_file()}


def is_clean(lab: Lab, block: str) -> bool:
    """Return whether files are as the manifests say and rows as the source has them, and nothing lies about."""
    config = lab.config(block)
    validated = validate_export(config.exports[0], state=lab.state)
    return not reported(lab, block) and [flaw for each in validated for flaw in each.all_flaws] == []


# --- every mode, on every engine -------------------------------------------------------------------


@pytest.mark.matrix
@everywhere
@every_mode
def test_repair_reads_what_differs_and_touches_nothing_else(lab: Lab, block: str) -> None:
    """Rows that went or changed behind one window come right; all other manifests and parts keep their bytes."""
    exported(lab, block)
    cursor, before = lab.state.cursor("orders"), files(lab)
    lab.sql("DELETE FROM orders WHERE id = 25", "UPDATE orders SET note = 'other' WHERE id = 27")
    (flagged,) = reported(lab, block)
    kept = {part.path for part in others(lab.manifests("orders"), flagged)}

    done = repaired(lab, block, [flagged])

    assert ["repaired"] == [each.status for each in done.windows], done
    assert [each for each in IDS if each != 25] == lab.ids("orders")
    assert ["other"] == [row["note"] for row in lab.rows("orders") if row["id"] == 27]
    assert is_clean(lab, block)
    assert cursor == lab.state.cursor("orders")
    after = files(lab)
    manifest = f"orders/_rivet/{Window(flagged.window).file_name}"
    untouched = {f"orders/{path}" for path in kept} | {
        path for path in before if "/_rivet/" in path and path.endswith(".json") and path != manifest
    }
    assert bool(untouched) != (block == FULL)  # that has one window of one piece
    assert {path: before[path] for path in untouched} == {path: after[path] for path in untouched}


def others(manifests: dict[str, Manifest], flagged: Flagged) -> list[ManifestPart]:
    """List the parts that a repair must leave alone."""
    return [
        part
        for window, manifest in manifests.items()
        for part in manifest.parts
        if window != flagged.window or (flagged.chunks and part.chunk not in flagged.chunks)
    ]


@every_mode
def test_dry_run_changes_nothing_and_says_what_it_would_read(lab: Lab, block: str) -> None:
    """Without --execute the rows and bytes that would be read again are told, and not a byte is written."""
    exported(lab, block)
    lab.sql("DELETE FROM orders WHERE id = 25")
    report, before = reported(lab, block), files(lab)

    (window,) = repaired(lab, block, report, execute=False).windows

    rows = {"full": 60, "chunked": 10, "incremental": 20, "time_window": 24}
    mode = next((mode for mode in rows if mode in block), "full")
    assert (window.status, window.rows) == ("planned", rows[mode])
    assert window.bytes > 0
    assert before == files(lab)


@every_mode
def test_repair_of_a_window_that_became_empty_shows_no_row_of_it(lab: Lab, block: str) -> None:
    """A window without rows replaces the old one, `skip_empty` or not."""
    block = block.replace("}", ", skip_empty: true}")
    exported(lab, block)
    lab.sql("DELETE FROM orders")

    done = repaired(lab, block)

    assert {"repaired"} == {each.status for each in done.windows}
    assert lab.ids("orders") == []
    assert is_clean(lab, block)


def test_nothing_flagged_is_nothing_done(lab: Lab) -> None:
    """A clean export is left as it is."""
    exported(lab, CHUNKED)
    before = files(lab)

    assert () == repaired(lab, CHUNKED).windows
    assert before == files(lab)


# --- chunks ----------------------------------------------------------------------------------------


def test_mended_manifest_tells_of_old_and_new_chunks_alike(lab: Lab) -> None:
    """Rows, counts, NULLs and sums of a mended window are those that a whole export would have."""
    exported(lab, CHUNKED)
    lab.sql("UPDATE orders SET note = NULL WHERE id IN (14, 55)", "DELETE FROM orders WHERE id = 56")
    (old,) = lab.manifests("orders").values()

    done = repaired(lab, CHUNKED)

    (mended,) = lab.manifests("orders").values()
    assert (1, 5) == done.windows[0].chunks
    assert done.windows[0].rows == 19
    assert 4 == len({part.path for part in mended.parts} & {part.path for part in old.parts})
    assert mended.consistency == "resumed"
    exported(lab, CHUNKED)
    (whole,) = lab.manifests("orders").values()
    for name in ("row_count", "part_count", "measures", "column_checksums", "chunks", "source", "schema_ipc"):
        assert getattr(whole, name) == getattr(mended, name), name
    assert [part.chunk for part in whole.parts] == [part.chunk for part in mended.parts]


def test_rows_outside_of_all_chunks_make_the_whole_be_read(lab: Lab) -> None:
    """A row under the first range has no chunk to come with."""
    exported(lab, CHUNKED)
    lab.insert("orders", [order(-3)])

    (window,) = repaired(lab, CHUNKED).windows

    assert (window.status, window.chunks) == ("repaired", ())
    assert [-3, *IDS] == lab.ids("orders")
    assert is_clean(lab, CHUNKED)


def test_chunks_of_two_schemas_never_stand_in_one_window(lab: Lab) -> None:
    """Where the table was altered, the whole window is read, however few chunks differ."""
    exported(lab, CHUNKED)
    lab.sql("DELETE FROM orders WHERE id = 25")
    report = reported(lab, CHUNKED, "counts")
    lab.sql("ALTER TABLE orders ADD COLUMN extra varchar(10)")

    (window,) = repaired(lab, CHUNKED, report).windows

    assert (report[0].chunks, window.chunks, window.status) == ((2,), (), "repaired")
    assert 59 == len([row for row in lab.rows("orders") if "extra" in row])


@pytest.mark.parametrize("change", ["low", "column"])
def test_edited_bounds_make_the_whole_be_read(lab: Lab, change: str) -> None:
    """What an edited manifest says of its chunks is never read; the window is exported anew."""
    exported(lab, CHUNKED)
    path = lab.folder / "lake/orders/_rivet/all.json"
    manifest = json.loads(path.read_text())
    for chunk in manifest["chunks"]:
        chunk["range"][change] = "1); DROP TABLE orders; --"
    path.write_text(json.dumps(manifest))

    (window,) = repaired(lab, CHUNKED).windows

    assert (window.status, window.chunks) == ("repaired", ())
    assert list(IDS) == lab.ids("orders")
    assert is_clean(lab, CHUNKED)


def test_edited_part_outside_of_the_folder_is_never_removed(lab: Lab) -> None:
    """A manifest that names a file elsewhere does not get it deleted."""
    stranger = lab.folder / "precious.parquet"
    stranger.write_text("keep me")
    for block in (CHUNKED, FULL):
        exported(lab, block)
        path = lab.folder / "lake/orders/_rivet/all.json"
        manifest = json.loads(path.read_text())
        for part in manifest["parts"]:
            part["path"] = "../../precious.parquet"
        path.write_text(json.dumps(manifest))
        lab.sql(f"DELETE FROM orders WHERE id = {25 if block == CHUNKED else 26}")

        with pytest.raises(ManifestUnreadable, match=r"parts.0.path: names a place outside of the export's folder"):
            repaired(lab, block)

        assert stranger.read_text() == "keep me"
        path.unlink()


# --- gates -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rule", ["{row_count_min: 60}", "{null_ratio_max: {note: 0.01}}"], ids=["rows", "nulls"]
)  # fmt: skip
@every_mode
def test_gate_refuses_a_repair_as_it_refuses_a_run(lab: Lab, block: str, rule: str) -> None:
    """A window that the rules refuse stays as it was, and the repair exits with 3."""
    exported(lab, block)
    lab.sql("DELETE FROM orders WHERE id = 25", "UPDATE orders SET note = NULL WHERE id IN (26, 27)")
    gated = block.replace("}", f", quality: {rule}}}")
    report, before = reported(lab, block), files(lab)

    done = repaired(lab, gated, report)

    assert (["failed"], 3) == ([each.status for each in done.windows], done.exit_code)
    assert "the quality gate refused it" in done.windows[0].text
    assert before == files(lab)


def test_gates_over_a_mended_window_count_all_of_its_chunks(lab: Lab) -> None:
    """Rules about rows and NULLs see kept and new chunks together; doubles are said not to be judged."""
    rules = "{row_count_min: 59, row_count_max: 59, null_ratio_max: {note: 0.04}, unique_columns: [id]}"
    block = CHUNKED.replace("}", f", quality: {rules}}}")
    exported(lab, CHUNKED)
    lab.sql("DELETE FROM orders WHERE id = 25", "UPDATE orders SET note = NULL WHERE id IN (26, 27)")

    done = repaired(lab, block)

    assert ["repaired"] == [each.status for each in done.windows], done
    assert "unique_columns (id) are only judged when the whole table is read" in done.windows[0].text


# --- files that are wrong --------------------------------------------------------------------------


@every_mode
@pytest.mark.parametrize("fault", ["missing", "cut", "flipped"])
def test_wrong_part_found_by_validate_is_made_anew(lab: Lab, block: str, fault: str) -> None:
    """A part that is gone, cut short or altered comes right by the report of `rivet validate`."""
    exported(lab, block)
    victim = sorted(lab.parts("orders"))[1 if "chunked" in block else 0]
    spoil(victim, fault)
    config = lab.config(block)
    found = [(config.exports[0], validate_export(config.exports[0], state=lab.state))]
    report = flagged_in(json.loads(json.dumps(validate_document(found))))

    done = repaired(lab, block, report)

    assert ["repaired"] == [each.status for each in done.windows], done
    assert ("chunked" in block) == (done.windows[0].chunks == (1,))
    assert list(IDS) == lab.ids("orders")
    assert is_clean(lab, block)


def spoil(path: Path, fault: str) -> None:
    """Damage a file."""
    content = path.read_bytes()
    if fault == "missing":
        path.unlink()
    elif fault == "cut":
        path.write_bytes(content[: len(content) // 2])
    else:
        path.write_bytes(content[:40] + bytes([content[40] ^ 255]) + content[41:])


def test_stale_marker_is_written_anew_without_reading_a_row(lab: Lab) -> None:
    """Only `manifest.json` and `_SUCCESS` differ: they are written, and the parts keep their names."""
    exported(lab, FULL)
    (lab.folder / "lake/orders/_SUCCESS").write_text("xxh3:0000000000000000\n")
    config = lab.config(FULL)
    found = [(config.exports[0], validate_export(config.exports[0], state=lab.state))]
    parts = lab.parts("orders")

    done = repaired(lab, FULL, flagged_in(validate_document(found)))

    assert (["repaired"], ("all",)) == ([each.status for each in done.windows], done.healed)
    assert parts == lab.parts("orders")
    assert is_clean(lab, FULL)


# --- others at work --------------------------------------------------------------------------------


@every_mode
def test_window_held_by_a_run_is_not_repaired(lab: Lab, block: str) -> None:
    """The lease of a living run keeps a repair out; it says so and exits with 2."""
    exported(lab, block)
    lab.sql("DELETE FROM orders WHERE id = 25")
    report, before = reported(lab, block), files(lab)

    with lab.state.lease("orders", report[0].window if "time" in block else "all", "orders_run_abcdef"):
        done = repaired(lab, block, report)

    assert (["failed"], 2) == ([each.status for each in done.windows], done.exit_code)
    assert done.windows[0].code == "RIVET_WINDOW_BUSY"
    assert before == files(lab)


@every_mode
def test_report_of_an_older_commit_is_stale(lab: Lab, block: str) -> None:
    """A window that was committed anew since the report is left alone."""
    exported(lab, block)
    lab.sql("DELETE FROM orders WHERE id = 25")
    report = reported(lab, block)
    repaired(lab, block, report)
    before = files(lab)

    done = repaired(lab, block, report)

    assert ["stale"] == [each.status for each in done.windows]
    assert before == files(lab)


@pytest.mark.parametrize("block", [WINDOWS, INCREMENTAL], ids=["time_window", "incremental"])
def test_window_that_another_repair_did_meanwhile_is_not_read_again(lab: Lab, block: str) -> None:
    """Of two repairs from one report the slower one leaves alone what the faster one has done."""
    exported(lab, block)
    lab.sql("DELETE FROM orders WHERE id IN (5, 45)")
    first, last = reported(lab, block)
    faster = []

    def other_repair(line: str) -> None:
        if first.window in line:
            faster.append(repaired(lab, block, [last]))

    slower = repaired(lab, block, [first, last], tell=other_repair)

    assert ["repaired", "stale"] == [each.status for each in slower.windows]
    assert ["repaired"] == [each.status for done in faster for each in done.windows]
    assert [each for each in IDS if each not in (5, 45)] == lab.ids("orders")
    assert is_clean(lab, block)


def test_next_run_goes_on_behind_a_repaired_window(lab: Lab) -> None:
    """An incremental chain stays whole when a window in its middle, or its first, is repaired."""
    exported(lab, INCREMENTAL)
    lab.sql("DELETE FROM orders WHERE id IN (5, 25)")
    repaired(lab, INCREMENTAL)
    lab.insert("orders", map(order, range(61, 71)))

    outcome = lab.export(INCREMENTAL)

    assert (outcome.success, outcome.rows) == (True, 10), outcome.message
    assert [each for each in range(1, 71) if each not in (5, 25)] == lab.ids("orders")
    assert is_clean(lab, INCREMENTAL)


def test_streams_of_changes_are_refused_with_the_way_out(lab: Lab) -> None:
    """Windows of changes cannot be read a second time."""
    block = "{name: orders, table: orders, mode: poll, updated_at_column: at}"

    with pytest.raises(RepairRefused, match="rivet state reset -e orders"):
        repaired(lab, block, [])


# --- formats and stores ----------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["csv", "ndjson", "avro"])
@every_mode
def test_other_formats_are_repaired_too(lab: Lab, block: str, form: str) -> None:
    """CSV, NDJSON and Avro parts come right like Parquet's."""
    block = block.replace("}", f", format: {form}}}")
    exported(lab, block)
    lab.sql("DELETE FROM orders WHERE id = 25", "UPDATE orders SET note = '' WHERE id = 26")

    done = repaired(lab, block)

    assert ["repaired"] == [each.status for each in done.windows], done
    assert 59 == sum(each.row_count for each in lab.manifests("orders").values())
    assert is_clean(lab, block)


@pytest.mark.parametrize("block", [CHUNKED, INCREMENTAL], ids=["chunked", "incremental"])
def test_objects_in_a_store_are_repaired_too(lab: Lab, block: str, s3_server: ObjectStore) -> None:
    """On S3 the same parts go and stay, by conditional writes."""
    place = {"type": "s3", "bucket": s3_server.bucket, "prefix": lab.folder.name, "endpoint": s3_server.endpoint}
    block = block.replace("}", f", destination: {json.dumps(place)}}}")
    exported(lab, block)
    root = lab.config(block).exports[0].destination.root("orders")
    before = current_manifests(root)
    lab.sql("DELETE FROM orders WHERE id = 25")

    done = repaired(lab, block)

    after = current_manifests(root)
    assert ["repaired"] == [each.status for each in done.windows], done
    assert 59 == sum(each.row_count for each in after.values())
    old, new = ({part.path for each in found.values() for part in each.parts} for found in (before, after))
    assert 1 == len(old - new) == len(new - old)
    listed = {path for path in root.list() if path.endswith(".parquet")}
    assert new == listed


# --- the command -----------------------------------------------------------------------------------


def rivet(lab: Lab, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `rivet` as a user does."""
    return processes.run(processes.RIVET, *arguments, cwd=lab.folder)


def test_command_repairs_from_a_report_and_in_place(lab: Lab) -> None:
    """A dry run by default; --execute does it; afterwards nothing is left to repair."""
    exported(lab, CHUNKED)
    lab.sql("DELETE FROM orders WHERE id = 25")
    assert rivet(lab, "reconcile", "-o", "report.json").returncode == 3

    dry = rivet(lab, "repair", "--report", "report.json")
    done = rivet(lab, "repair", "--report", "report.json", "--execute", "--json")
    again = rivet(lab, "repair", "--execute")
    lab.sql("DELETE FROM orders WHERE id = 26")
    in_place = rivet(lab, "repair", "--execute")
    lab.parts("orders")[0].unlink()
    file = rivet(lab, "repair", "--execute")
    wrong = rivet(lab, "repair", "--report", "rivet.yaml")

    assert (dry.returncode, done.returncode, again.returncode, in_place.returncode) == (0, 0, 0, 0), done.stderr
    assert "chunks 2 of 6 would be read again: 10 rows" in dry.stdout
    assert "nothing was changed; --execute does it" in dry.stderr
    assert ["repaired"] == [each["status"] for each in json.loads(done.stdout)["exports"][0]["windows"]]
    assert "orders: nothing to repair" in again.stdout
    assert "orders all: repaired, chunks 0 read again, 10 rows" in file.stdout
    assert [each for each in IDS if each not in (25, 26)] == lab.ids("orders")
    assert wrong.returncode == 1
    assert "is no report" in wrong.stderr
