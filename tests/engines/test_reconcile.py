"""What `rivet reconcile` promises, seen from outside: rows changed behind an export, and what is told of it."""

from __future__ import annotations

import base64
import itertools
import json
import re
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from rivet_assets.blocks.export import Export
from rivet_assets.prove.reconcile import reconcile_export
from rivet_assets.prove.reconcile_report import document, exit_code, render
from rivet_assets.prove.reconcile_result import Depth, Reconciled, WindowVerdict, facts_of_reconcile
from rivet_assets.prove.reconcile_window import WindowComparison
from rivet_resources.errors import ConfigError
from tests import processes
from tests.lab import Lab, lab_in
from tests.lab_engines import ENGINES, Engine

pytestmark = pytest.mark.wide

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
ORDERS = {"id": "whole", "at": "instant", "amount": "amount", "note": "note"}
IDS = range(1, 61)

FULL = "{name: orders, table: orders}"
CHUNKED = "{name: orders, table: orders, mode: chunked, chunk_column: id, chunk_size: 10, parallel: 2}"
INCREMENTAL = "{name: orders, table: orders, mode: incremental, cursor_column: id}"
BY_TIME = "{name: orders, table: orders, mode: incremental, cursor_column: at}"
WINDOWS = "{name: orders, table: orders, mode: time_window, time_column: at, start: 2026-01-01, end: 2026-01-04}"
QUERY = "{name: orders, query: 'SELECT * FROM orders', mode: full}"
CHUNKED_QUERY = "{name: orders, query: 'SELECT * FROM orders', mode: chunked, chunk_column: id, chunk_size: 20}"
DAYS = ("2026-01-01...2026-01-03",)

BLOCKS = {
    "full": FULL, "query": QUERY, "chunked": CHUNKED, "chunked query": CHUNKED_QUERY,
    "incremental": INCREMENTAL, "by time": BY_TIME, "time_window": WINDOWS,
}  # fmt: skip
every_mode = pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
everywhere = pytest.mark.parametrize("engine", ["sqlite", "postgres", "mariadb", "sqlserver"], indirect=True)


@pytest.fixture(params=["sqlite", "postgres"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """The engine a test runs on."""
    return ENGINES[request.param]


def order(number: int) -> dict[str, object]:
    """Make an order; twenty of them a day."""
    at = FIRST + timedelta(hours=number) - timedelta(minutes=30)
    return {"id": number, "at": at, "amount": Decimal(number) * Decimal("1.25"), "note": f"secret-{number}"}


@pytest.fixture
def lab(tmp_path: Path, engine: Engine, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A database with 60 hourly orders over three days, and an empty folder."""
    laboratory = lab_in(tmp_path, engine, request, monkeypatch)
    laboratory.create("orders", ORDERS, index=["at"])
    laboratory.insert("orders", map(order, IDS))
    laboratory.analyze("orders")
    return laboratory


def exported(lab: Lab, block: str) -> None:
    """Export it, the windows of time all three days."""
    outcome = lab.export(block, partitions=DAYS if "time_window" in block else ())
    assert outcome.success, outcome.message


def reconciled(lab: Lab, block: str, depth: Depth = "counts", windows: list[str] | None = None) -> Reconciled:
    """Compare it."""
    config = lab.config(block)
    return reconcile_export(
        config, config.exports[0], depth=depth, windows=windows, state=lab.state, tell=lambda line: None
    )


def edited(lab: Lab, window: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Edit a window's manifest by hand."""
    (path,) = (lab.folder / "lake/orders/_rivet").glob(f"{window}.json")
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


# --- verdicts, on every engine and in every mode ---------------------------------------------------


@pytest.mark.matrix
@everywhere
@every_mode
@pytest.mark.parametrize("depth", ["counts", "checksums", "rows"])
def test_untouched_source_matches(lab: Lab, block: str, depth: Depth) -> None:
    """What was exported and not changed since matches, however deep one looks, and the cursor stays."""
    exported(lab, block)
    before = lab.state.cursor("orders")

    found = reconciled(lab, block, depth)

    assert ("match", 60, 60) == (found.verdict, found.source_count, found.exported_rows), found.text
    assert exit_code([found], strict=True) == 0
    assert before == lab.state.cursor("orders")
    assert {"match"} == {each.verdict for each in lab.state.verifications("orders", "reconcile")}


@pytest.mark.matrix
@everywhere
@every_mode
def test_deleted_and_inserted_rows_are_counted(lab: Lab, block: str) -> None:
    """Rows that went or came behind a window make it differ, and the text says which way."""
    exported(lab, block)

    lab.sql("DELETE FROM orders WHERE id IN (3, 4)")
    fewer = reconciled(lab, block)
    lab.insert("orders", [{**order(5), "id": -number} for number in range(1, 4)])
    more = reconciled(lab, block)

    assert ("mismatch", 58) == (fewer.verdict, fewer.source_count)
    assert "2 rows fewer than were exported" in fewer.windows[0].text
    assert exit_code([fewer], strict=False) == 3
    assert ("mismatch", 61) == (more.verdict, more.source_count)
    if "chunk" not in block:  # there they lie under the first range
        assert "1 row more" in " ".join(each.text for each in more.windows)


@pytest.mark.matrix
@everywhere
@every_mode
def test_changed_cell_shows_in_the_sums_of_its_column(lab: Lab, block: str) -> None:
    """A cell that was changed is no other count; the sums name its column."""
    exported(lab, block)

    lab.sql("UPDATE orders SET note = 'other' WHERE id = 17")

    assert reconciled(lab, block).verdict == "match"
    deep = reconciled(lab, block, "checksums")
    wrong = [each for each in deep.windows if each.verdict == "mismatch"]
    assert len(wrong) == 1
    assert "cells differ in note" in wrong[0].text
    assert facts_of_reconcile(deep)["rivet/columns_differing"] == "note"


@pytest.mark.matrix
@everywhere
@every_mode
def test_rows_that_differ_are_found_by_key(lab: Lab, block: str) -> None:
    """Depth rows counts missing, extra and different rows, and names them by their key."""
    exported(lab, block)
    lab.sql("DELETE FROM orders WHERE id = 33", "UPDATE orders SET amount = 0 WHERE id IN (35, 36)")

    found = reconciled(lab, block, "rows")

    rows = [each.rows for each in found.windows if each.rows is not None]
    counts = tuple(sum(getattr(each, name) for each in rows) for name in ("missing", "extra", "different"))
    assert counts == ((2, 3, 0) if "query" in block else (0, 1, 2))  # without a key a changed row is two
    keyed = {(each.kind, each.key) for one in rows for each in one.examples}
    expected = {("different", ("35",)), ("different", ("36",)), ("extra", ("33",))}
    assert keyed == (set() if "query" in block else expected)


# --- chunks ----------------------------------------------------------------------------------------


def test_manifest_tells_what_each_key_range_brought(lab: Lab) -> None:
    """Ranges, counts and sums of the chunks add up to the window's; parts name their chunk."""
    exported(lab, CHUNKED)

    (manifest,) = lab.manifests("orders").values()

    assert [("1", "10"), ("11", "20")] == [(each.range.low, each.range.high) for each in manifest.chunks[:2]]
    assert {"id"} == {each.range.column for each in manifest.chunks}
    assert [10] * 6 == [each.rows for each in manifest.chunks] == [each.source_row_count for each in manifest.chunks]
    assert list(range(6)) == sorted(part.chunk for part in manifest.parts if part.chunk is not None)
    for place, whole in enumerate(manifest.column_checksums or ()):
        parts = [int(each.column_checksums[place].checksum) for each in manifest.chunks if each.column_checksums]
        assert int(whole.checksum) == sum(parts) % 2**64


@pytest.mark.parametrize("block", [FULL, INCREMENTAL, WINDOWS])
def test_manifests_of_other_modes_have_no_chunks(lab: Lab, block: str) -> None:
    """Only windows cut by key ranges tell of chunks."""
    exported(lab, block)

    manifests = lab.manifests("orders").values()
    assert {()} == {each.chunks for each in manifests}
    assert {None} == {part.chunk for each in manifests for part in each.parts}


def test_only_the_chunk_that_differs_is_named(lab: Lab) -> None:
    """A deletion in one key range is told of that range."""
    exported(lab, CHUNKED)
    lab.sql("DELETE FROM orders WHERE id = 25")

    (window,) = reconciled(lab, CHUNKED).windows

    assert (window.verdict, window.broken_chunks, window.chunks_compared) == ("mismatch", (2,), 6)
    assert "1 of 6 chunks differ: 2" in window.text


def test_key_above_the_plan_is_newer_and_one_below_it_is_not(lab: Lab) -> None:
    """Rows with newer keys come with the next run; rows under the first range were missed."""
    exported(lab, CHUNKED)
    lab.insert("orders", [order(number) for number in (61, 62)])
    newer = reconciled(lab, CHUNKED).windows[0]
    lab.insert("orders", [order(-7)])

    below = reconciled(lab, CHUNKED).windows[0]

    assert (newer.verdict, newer.newer_rows) == ("match", 2)
    assert "2 rows came later and come with the next run" in newer.text
    assert (below.verdict, below.outside_rows, below.broken_chunks) == ("mismatch", 1, ())
    assert "1 row outside of every key range" in below.text


# --- manifests that were edited, or are old --------------------------------------------------------

EVIL = ["1); DROP TABLE orders; --", "1 OR 1=1", "' OR ''='", "1'\"`]", "0x31", "١٢", "9" * 400, "NaN", "", "\0"]


@everywhere
def test_edited_bounds_are_never_executed(lab: Lab) -> None:
    """A bound that is no value of its column ends in a mismatch or an error, and the table stands."""
    exported(lab, CHUNKED)
    whole = (lab.folder / "lake/orders/_rivet/all.json").read_text()
    for evil, end in itertools.product(EVIL, ("low", "high")):
        edited(lab, "all", lambda manifest: manifest["chunks"][2]["range"].update({end: evil}))  # noqa: B023

        assert told_as_wrong(lab, CHUNKED), evil

        (lab.folder / "lake/orders/_rivet/all.json").write_text(whole)
    assert reconciled(lab, CHUNKED, "checksums").verdict == "match"


@everywhere
def test_edited_texts_of_a_text_key_are_values_and_nothing_else(lab: Lab) -> None:
    """Any text is a value of a text column: it is quoted, finds no row, and the table stands."""
    block = "{name: orders, table: orders, mode: chunked, chunk_column: note, chunk_count: 3, parallel: 3}"
    exported(lab, block)
    whole = (lab.folder / "lake/orders/_rivet/all.json").read_text()
    for evil in EVIL:
        edited(lab, "all", lambda manifest: manifest["chunks"][0]["range"].update({"low": evil, "high": evil}))  # noqa: B023

        assert told_as_wrong(lab, block), evil

        (lab.folder / "lake/orders/_rivet/all.json").write_text(whole)
    assert reconciled(lab, block, "checksums").verdict == "match"


@everywhere
def test_edited_column_is_never_executed(lab: Lab) -> None:
    """A column that the table lacks ends in a mismatch, and the table stands."""
    exported(lab, CHUNKED)
    whole = (lab.folder / "lake/orders/_rivet/all.json").read_text()
    for evil in ("id; DROP TABLE orders", 'id" OR 1=1 --', "missing", ""):
        (lab.folder / "lake/orders/_rivet/all.json").write_text(whole)

        def change(manifest: dict[str, Any]) -> None:
            for chunk in manifest["chunks"]:
                chunk["range"]["column"] = evil  # noqa: B023

        edited(lab, "all", change)

        assert told_as_wrong(lab, CHUNKED), evil
    (lab.folder / "lake/orders/_rivet/all.json").write_text(whole)
    assert reconciled(lab, CHUNKED, "checksums").verdict == "match"


@everywhere
def test_edited_cursor_is_never_executed(lab: Lab) -> None:
    """A cursor in a manifest that is no value of its column, or another one, is a mismatch."""
    exported(lab, INCREMENTAL)
    for evil in ("1 OR 1=1", "'; DROP TABLE orders; --", "59"):
        edited(lab, "after=start", lambda manifest: manifest["cursor"].update({"high": evil}))  # noqa: B023

        assert told_as_wrong(lab, INCREMENTAL), evil
    assert lab.export(FULL.replace("orders,", "again,", 1)).rows == 60


@pytest.mark.parametrize(("end", "value"), [("high", "18"), ("low", "23")])
def test_edited_range_that_leaves_rows_out_is_found(lab: Lab, end: str, value: str) -> None:
    """Rows that fell between two ranges are counted too."""
    exported(lab, CHUNKED)
    place = 1 if end == "high" else 2
    edited(lab, "all", lambda manifest: manifest["chunks"][place]["range"].update({end: value}))

    (window,) = reconciled(lab, CHUNKED).windows

    assert (window.verdict, window.outside_rows) == ("mismatch", 2)


def told_as_wrong(lab: Lab, block: str) -> bool:
    """Return whether reconciling does anything but call it a match."""
    from rivet_resources.errors import RivetError

    try:
        return reconciled(lab, block).verdict == "mismatch"
    except RivetError:
        return True


def test_manifest_without_sums_is_unknown_where_sums_are_asked_for(lab: Lab) -> None:
    """An old manifest has no sums: counts match, cells are unknown, and comparing rows still tells."""
    exported(lab, FULL)
    edited(lab, "all", lambda manifest: manifest.update({"column_checksums": None}))

    deep = reconciled(lab, FULL, "checksums")

    assert (reconciled(lab, FULL).verdict, deep.verdict) == ("match", "unknown")
    assert (exit_code([deep], strict=False), exit_code([deep], strict=True)) == (0, 1)
    assert reconciled(lab, FULL, "rows").verdict == "match"
    lab.sql("UPDATE orders SET note = 'x' WHERE id = 1")
    assert reconciled(lab, FULL, "rows").verdict == "mismatch"


def test_window_of_another_mode_is_unknown(lab: Lab) -> None:
    """What a mode committed that the export no longer has cannot be counted by it."""
    exported(lab, WINDOWS)

    assert reconciled(lab, FULL).verdict == "unknown"


def test_nothing_committed_is_unknown(lab: Lab) -> None:
    """An export that never ran has nothing to compare."""
    found = reconciled(lab, FULL)

    assert (found.verdict, found.windows) == ("unknown", ())
    assert found.text.endswith("/lake/orders")


def test_window_that_is_not_there_is_refused(lab: Lab) -> None:
    """A key that is no committed window is an error that lists those there are."""
    exported(lab, WINDOWS)

    with pytest.raises(ConfigError, match="2026-01-01, 2026-01-02, 2026-01-03"):
        reconciled(lab, WINDOWS, windows=["2026-02-30"])


def test_one_window_can_be_asked_for(lab: Lab) -> None:
    """Of several windows only those asked for are compared."""
    exported(lab, WINDOWS)
    lab.sql("DELETE FROM orders WHERE id = 1")

    asked = reconciled(lab, WINDOWS, windows=["2026-01-02"])
    whole = reconciled(lab, WINDOWS)

    assert (asked.verdict, len(asked.windows)) == ("match", 1)
    assert ["mismatch", "match", "match"] == [each.verdict for each in whole.windows]


def test_empty_window_matches_an_empty_source(lab: Lab) -> None:
    """No row is as many as no row, and has no sums to miss."""
    lab.sql("DELETE FROM orders")
    exported(lab, FULL)

    assert ("match", 0) == (reconciled(lab, FULL, "checksums").verdict, reconciled(lab, FULL).source_count)


@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
def test_windows_are_counted_in_one_snapshot(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that goes from a window to the next while these are compared is counted in one of them, not in two."""
    exported(lab, WINDOWS)
    judged, moved = WindowComparison.verdict, lab.literal(FIRST + timedelta(days=2, hours=5))

    def moving(comparison: WindowComparison, depth: Depth) -> WindowVerdict:
        found = judged(comparison, depth)
        lab.sql(f"UPDATE orders SET at = {moved} WHERE id = 7")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(WindowComparison, "verdict", moving)
        during = reconciled(lab, WINDOWS)
    after = reconciled(lab, WINDOWS)

    assert [("match", 60), ("mismatch", 60)] == [(each.verdict, each.source_count) for each in (during, after)]
    assert "of its own instant" not in after.text


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
def test_counts_of_several_instants_say_so(lab: Lab) -> None:
    """Without a snapshot a mismatch of windows tells to compare again; one count of a table is of one instant."""
    for block in (WINDOWS, FULL.replace("orders,", "whole,", 1)):
        exported(lab, block)
    lab.sql("DELETE FROM orders WHERE id = 7")

    windows, whole = (reconciled(lab, block) for block in (WINDOWS, FULL.replace("orders,", "whole,", 1)))

    assert ("mismatch", "mismatch") == (windows.verdict, whole.verdict)
    assert "each count is of its own instant" in windows.text
    assert "of its own instant" not in whole.text


# --- shaped rows -----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["parquet", "csv", "ndjson", "avro"])
@pytest.mark.parametrize("depth", ["counts", "checksums", "rows"])
def test_filtered_and_masked_rows_are_compared_as_they_were_shaped(
    lab: Lab, form: str, depth: Depth, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts are before filters; cells are compared behind all transforms, in every format."""
    monkeypatch.setenv("MASK_KEY", "k1")
    block = shaped(form)
    exported(lab, block)
    same = reconciled(lab, block, depth)
    lab.sql("UPDATE orders SET note = 'other' WHERE id = 50", "DELETE FROM orders WHERE id IN (2, 51)")

    found = reconciled(lab, block, depth)

    assert ("match", 60) == (same.verdict, same.source_count), same.text
    assert lab.manifests("orders")["all"].row_count == 30
    assert ("mismatch", 58) == (found.verdict, found.source_count), found.text
    if depth == "rows":
        assert found.windows[0].rows is not None
        assert (1, 1) == (found.windows[0].rows.extra, found.windows[0].rows.different)


def shaped(form: str) -> str:
    """An export that keeps half of the rows and masks the note."""
    steps = [
        {"type": "filter", "field": "id", "op": ">", "value": 30},
        {"type": "mask", "fields": ["note"], "method": "hash", "key_env": "MASK_KEY"},
    ]
    return json.dumps({"name": "orders", "table": "orders", "format": form, "transforms": steps})


def test_values_are_shown_nowhere_but_to_who_asked_for_rows(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys stand in the report of depth rows only; no state, no metadata, and of a masked key nothing at all."""
    monkeypatch.setenv("MASK_KEY", "k1")
    lab.sql("UPDATE orders SET id = id + 770000")
    masked = {"type": "mask", "fields": ["id"], "method": "hash", "key_env": "MASK_KEY"}
    for steps in ([], [masked]):
        block = json.dumps({"name": "orders", "table": "orders", "transforms": steps})
        exported(lab, block)
        lab.sql("UPDATE orders SET note = 'secret-other' WHERE id = 770050")
        found = reconciled(lab, block, "rows")

        shown = json.dumps(document([found]), default=str) + str(render([found]))
        kept = (
            str(facts_of_reconcile(found)) + str(lab.state.verifications("orders")) + str(lab.state.journal("orders"))
        )
        assert found.verdict == "mismatch"
        assert bool(steps) != ("770050" in shown)
        assert "770050" not in kept
        assert "secret" not in shown + kept
        lab.sql("UPDATE orders SET note = 'secret-50' WHERE id = 770050")


def test_unreadable_part_is_told_and_not_thrown(lab: Lab) -> None:
    """Rows of a window that differs cannot be compared with a part that is gone: that is said, beside the rest."""
    exported(lab, FULL)
    lab.sql("DELETE FROM orders WHERE id = 1")
    lab.parts("orders")[0].unlink()

    (window,) = reconciled(lab, FULL, "rows").windows

    assert window.verdict == "mismatch"
    assert "`rivet validate` tells what is wrong" in window.text


# --- streams of changes ------------------------------------------------------------------------------

POLL = "{name: orders, table: orders, mode: poll, updated_at_column: at}"


def test_polled_table_matches_what_its_changes_amount_to(lab: Lab) -> None:
    """The latest state per key is as many rows as the table has; what changed since leaves a doubt."""
    exported(lab, POLL)
    lab.sql(f"UPDATE orders SET at = {lab.literal(FIRST + timedelta(days=9))} WHERE id IN (1, 2)")
    doubt = reconciled(lab, POLL)

    exported(lab, POLL)

    found = reconciled(lab, POLL)
    assert ("unknown", "match") == (doubt.verdict, found.verdict), found.text
    assert (60, 60) == (found.source_count, found.exported_rows)
    assert 62 == sum(each.row_count for each in lab.manifests("orders").values())


def test_deletion_that_a_poll_did_not_notice_is_a_mismatch(lab: Lab) -> None:
    """A row that is gone is still published: the text says what would notice it."""
    exported(lab, POLL)
    lab.sql("DELETE FROM orders WHERE id IN (3, 4)")

    found = reconciled(lab, POLL)

    assert ("mismatch", 58, 60) == (found.verdict, found.source_count, found.exported_rows)
    assert "deletes are not noticed without `delete_detection`" in found.text


def test_polled_keys_that_are_masked_cannot_be_told_together(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without plain keys there is no latest state per key: unknown, with the reason."""
    monkeypatch.setenv("MASK_KEY", "k1")
    step = {"type": "mask", "fields": ["id"], "method": "hash", "key_env": "MASK_KEY"}
    exported(lab, POLL)

    found = reconciled(lab, POLL.replace("}", f", transforms: [{json.dumps(step)}]}}"))

    assert "unknown" == found.verdict


@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
def test_captured_table_is_compared_by_its_mirror(lab: Lab) -> None:
    """Changes are not rows: the mirror is counted, and without one it is unknown."""
    exported(lab, FULL.replace("name: orders", "name: orders_mirror"))  # what a mirror looks like from outside
    config = lab.config("{name: orders, table: orders, mode: cdc, cdc: {slot: s, initial: snapshot}}")
    mirrored = config.exports[0].model_copy(update={"apply": ("mirror",)})

    def compared(export: Export) -> Reconciled:
        return reconcile_export(config, export, state=lab.state, tell=lambda line: None)

    same = compared(mirrored)
    lab.sql("DELETE FROM orders WHERE id = 3")
    fewer, none = compared(mirrored), compared(config.exports[0])

    assert ("match", "mismatch", "unknown") == (same.verdict, fewer.verdict, none.verdict)
    assert "changes that are not drained yet count as differences" in fewer.text
    assert "add `apply: mirror`" in none.text


# --- the command -----------------------------------------------------------------------------------


def rivet(lab: Lab, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `rivet` as a user does."""
    return processes.run(processes.RIVET, *arguments, cwd=lab.folder)


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
def test_command_answers_by_exit_code_and_writes_its_report(lab: Lab) -> None:
    """0 for a match, 3 for a mismatch, 1 for unknown under --strict; -o writes what --json prints."""
    exported(lab, WINDOWS)
    good = rivet(lab, "reconcile")
    lab.sql("DELETE FROM orders WHERE id = 30")

    bad = rivet(lab, "reconcile", "-e", "orders", "--depth", "rows", "--json", "-o", "report.json")
    lab.config(FULL)
    unsure = rivet(lab, "reconcile")
    strict = rivet(lab, "reconcile", "--strict")

    assert good.returncode == 0, good.stderr
    assert "orders: match" in good.stdout
    assert bad.returncode == 3, bad.stderr
    assert json.loads(bad.stdout) == json.loads((lab.folder / "report.json").read_text())
    (export,) = json.loads(bad.stdout)["exports"]
    assert (export["source_count"], export["exported_rows"], export["matched"]) == (59, 60, False)
    assert ["30"] == export["windows"][1]["rows"]["examples"][0]["key"]
    assert (unsure.returncode, strict.returncode) == (0, 1)
    assert re.search("warning: not everything", unsure.stderr)


def test_schema_text_is_untouched(lab: Lab) -> None:
    """Reconciling writes nothing at the destination."""
    exported(lab, CHUNKED)
    before = {path: base64.b64encode(path.read_bytes()) for path in (lab.folder / "lake").rglob("*") if path.is_file()}

    reconciled(lab, CHUNKED, "rows")

    after = {path: base64.b64encode(path.read_bytes()) for path in (lab.folder / "lake").rglob("*") if path.is_file()}
    assert before == after
