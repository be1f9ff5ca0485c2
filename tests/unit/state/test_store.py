"""What the state store remembers, in one process: the same suite on SQLite and on PostgreSQL."""

from __future__ import annotations

import base64
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rivet_resources.commit.manifest import Manifest
from rivet_resources.commit.manifest_entries import (
    Extraction,
    ManifestCursor,
    ManifestDestination,
    ManifestPart,
    ManifestSource,
)
from rivet_resources.contracts.parts import ChunkResult, Measures, Part
from rivet_resources.errors import StateError
from rivet_resources.state.overview import describe, metrics
from rivet_resources.state.runs import RunRecord
from rivet_resources.state.store import State, default_url, open_state

MONDAY = datetime(2026, 1, 5, 12, 0, 0, 123456, tzinfo=UTC)
SCHEMA = pa.schema([("id", pa.int64()), ("note", pa.string())])
PART = Part("dt=2026-01-31/a.parquet", 10, 1234, "xxh3:0011223344556677", "md5==", {"upload": "u-1", "etags": ["x"]}, 3)
RESULT = ChunkResult(
    chunk=3,
    parts=(PART, replace(PART, path="b.parquet", staged={})),
    measures=Measures(
        rows=20,
        nulls={"note": 2},
        special_values={"amount": {"nan": 1}},
        unique={"id": ["_staged/r/unique/0-chunk3-0.u128"]},
        pages=2,
        arrow_bytes=2**40,
        longest_statement_ms=12.5,
        cpu_seconds=0.25,
        peak_mb=101.5,
    ),
)


def manifest(**values: Any) -> Manifest:
    """The manifest of a commit of `orders`: two parts of ten rows."""
    parts = values.pop("parts", RESULT.parts)
    schema = values.pop("schema", SCHEMA)
    entries = tuple(
        ManifestPart(
            part_id=number,
            path=part.path,
            rows=part.rows,
            size_bytes=part.size_bytes,
            content_fingerprint=part.fingerprint,
            content_md5=part.md5,
        )
        for number, part in enumerate(parts)
    )
    facts = {
        "run_id": "orders_r1",
        "export_name": "orders",
        "export_family": "orders",
        "started_at": MONDAY,
        "finished_at": MONDAY + timedelta(seconds=2),
        "window": "all",
        "consistency": "snapshot",
        "source": ManifestSource(engine="postgres", extraction=Extraction(strategy="full")),
        "destination": ManifestDestination(kind="local", uri="/lake/orders"),
        "format": "parquet",
        "compression": "zstd(3)",
        "schema_fingerprint": "xxh3:0",
        "schema_ipc": base64.b64encode(schema.serialize().to_pybytes()).decode(),
    }
    totals = {"row_count": sum(part.rows for part in parts), "part_count": len(parts), "parts": entries}
    return Manifest(**(facts | totals | values))


@pytest.fixture(params=["sqlite", "postgres"])
def state(request: pytest.FixtureRequest, tmp_path: Path):
    """An empty store in each of the two databases."""
    url = default_url(tmp_path) if request.param == "sqlite" else request.getfixturevalue("fresh_database")
    state = open_state(url)
    yield state
    state.close()


def run(run_id: str = "orders_r1", **values: object) -> RunRecord:
    """A run of `orders` that starts now, on Monday."""
    return replace(RunRecord(run_id, "orders", "all", MONDAY, mode="full"), **values)


# --- cursors -------------------------------------------------------------------------------------


def test_export_that_never_ran_has_no_cursor(state: State):
    """Before the first commit there is no cursor, not an empty one."""
    assert state.cursor("orders") is None


def test_cursor_advances_from_what_the_run_was_planned_on(state: State):
    """The first advance expects the start, the next one the value before."""
    state.advance_cursor("orders", "10", expected=None)
    state.advance_cursor("orders", "20", expected="10")

    assert state.cursor("orders").value == "20"


def test_cursor_that_another_run_moved_is_not_overwritten(state: State):
    """A run planned on an older cursor is refused, and what is stored stays."""
    state.advance_cursor("orders", "10", expected=None)
    state.advance_cursor("orders", "20", expected="10")

    with pytest.raises(StateError, match="orders was moved by another run"):
        state.advance_cursor("orders", "15", expected="10")
    assert state.cursor("orders").value == "20"


def test_advancing_twice_to_the_same_value_changes_nothing(state: State):
    """Publishing again after a death moves the cursor to where it already is: allowed, and the same."""
    state.advance_cursor("orders", "10", expected=None)
    first = state.cursor("orders")
    state.advance_cursor("orders", "10", expected=None)

    assert state.cursor("orders").value == first.value


def test_refused_first_advance_leaves_no_cursor_behind(state: State):
    """A run planned on a cursor that a fresh store does not know leaves the store as it was."""
    with pytest.raises(StateError):
        state.advance_cursor("orders", "20", expected="10")

    assert state.cursor("orders") is None


def test_reset_differs_from_never_ran(state: State):
    """After a reset there is a cursor without a value, from which the next run starts."""
    state.advance_cursor("orders", "10", expected=None)
    state.reset_cursor("orders")

    assert state.cursor("orders").value is None
    state.advance_cursor("orders", "5", expected=None)
    assert state.cursor("orders").value == "5"


@pytest.mark.parametrize("value", ["", "it's", '"', "Ω 𝄞", "2026-01-31T00:00:00.000000", "9" * 400, "a\nb"])
def test_cursor_text_comes_back_as_it_was(state: State, value: str):
    """Any text is a cursor; the store neither trims nor compares it."""
    state.advance_cursor("orders", value, expected=None)

    assert state.cursor("orders").value == value


# --- chunks --------------------------------------------------------------------------------------


def test_finished_chunk_comes_back_as_the_same_value(state: State):
    """A ChunkResult survives its JSON form: parts, staging facts and every measure."""
    state.save_chunk("orders", "all", "plan", "r1", RESULT, "id:[1,100)")

    assert state.finished_chunks("orders", "all", "plan") == {"id:[1,100)": ("r1", RESULT)}


def test_chunks_of_another_plan_do_not_count(state: State):
    """A changed fingerprint finds nothing, and the first chunk under the new plan ends the old progress."""
    state.save_chunk("orders", "all", "plan", "r1", RESULT, "a")

    assert state.finished_chunks("orders", "all", "other") == {}
    state.save_chunk("orders", "all", "other", "r2", RESULT, "b")
    assert state.finished_chunks("orders", "all", "plan") == {}
    assert state.resumable_runs("orders") == {"r2"}


def test_parts_of_forgotten_chunks_are_due_a_sweep(state: State):
    """Nothing else would look for them: the run that staged them was swept for already, and they were kept then."""
    state.note_sweep("orders", "s3://lake", failures=0)
    state.save_chunk("orders", "all", "plan", "r1", RESULT, "a")
    assert state.failures_to_sweep("orders", "s3://lake") is None

    state.save_chunk("orders", "all", "other", "r2", RESULT, "b")

    assert state.failures_to_sweep("orders", "s3://lake") == 1


@pytest.mark.parametrize(("run_id", "expected"), [("r1", None), ("r2", 1)])
def test_chunks_of_others_than_who_commits_are_due_a_sweep(state: State, run_id: str, expected: int | None):
    """A run's own chunks are in what it committed."""
    state.note_sweep("orders", "s3://lake", failures=0)
    state.save_chunk("orders", "all", "plan", "r1", RESULT, "a")

    state.record_commit(manifest(run_id=run_id))

    assert (set(), expected) == (state.resumable_runs("orders"), state.failures_to_sweep("orders", "s3://lake"))


def test_chunk_done_again_replaces_its_first_result(state: State):
    """One row per chunk: a later run that had to redo it stands for it."""
    state.save_chunk("orders", "all", "plan", "r1", RESULT, "a")
    state.save_chunk("orders", "all", "plan", "r2", RESULT, "a")

    assert state.finished_chunks("orders", "all", "plan") == {"a": ("r2", RESULT)}


def test_chunks_of_other_windows_and_exports_stay_apart(state: State):
    """Forgetting one window's progress leaves the others'."""
    for export, window in [("orders", "2026-01-01"), ("orders", "2026-01-02"), ("events", "2026-01-01")]:
        state.save_chunk(export, window, "plan", f"{export}-{window}", RESULT, "a")
    state.forget_chunks("orders", "2026-01-01")

    assert state.resumable_runs("orders") == {"orders-2026-01-02"}
    assert state.resumable_runs("events") == {"events-2026-01-01"}


# --- runs ----------------------------------------------------------------------------------------


def test_run_that_began_is_running_and_live(state: State):
    """A begun run carries this process, and counts as live while it lives."""
    state.begin_run(run())

    (found,) = state.runs("orders")
    assert (found.status, found.started_at) == ("running", MONDAY)
    assert found.pid > 0
    assert state.live_runs("orders") == {"orders_r1"}


def test_run_ends_with_its_figures(state: State):
    """What is learnt at the end stands beside what was known at the beginning."""
    state.begin_run(run(tuning_profile="safe"))
    state.finish_run(
        "orders_r1",
        "failed",
        finished_at=MONDAY + timedelta(seconds=1.5),
        error_code="RIVET_QUALITY_REFUSED",
        quality_passed=False,
        cpu_seconds=1.25,
        bytes_written=2**40,
    )

    (found,) = state.runs("orders")
    assert (found.status, found.duration_ms, found.error_code) == ("failed", 1500, "RIVET_QUALITY_REFUSED")
    assert (found.quality_passed, found.validated, found.degraded) == (False, None, False)
    assert (found.cpu_seconds, found.bytes_written, found.tuning_profile) == (1.25, 2**40, "safe")
    assert state.live_runs("orders") == set()


@pytest.mark.parametrize("status", ["success", "skipped"])
def test_run_that_ended_well_leaves_nothing_to_look_for(state: State, status: str):
    """A place is looked at once, and not again while its runs end well."""
    assert state.failures_to_sweep("orders", "/lake/orders") == 0
    state.note_sweep("orders", "/lake/orders", failures=0)
    state.begin_run(run())
    state.finish_run("orders_r1", status)

    assert state.failures_to_sweep("orders", "/lake/orders") is None
    assert state.failures_to_sweep("orders", "/other/orders") == 0
    assert state.failures_to_sweep("events", "/lake/orders") == 0


@pytest.mark.parametrize("status", ["failed", "interrupted"])
def test_run_that_failed_may_have_left_something(state: State, status: str):
    """A look that began before a failure did not see what that run left."""
    state.note_sweep("orders", "/lake/orders", failures=0)
    state.begin_run(run())
    state.finish_run("orders_r1", status)
    assert state.failures_to_sweep("orders", "/lake/orders") == 1

    state.note_sweep("orders", "/lake/orders", failures=0)
    assert state.failures_to_sweep("orders", "/lake/orders") == 1
    state.note_sweep("orders", "/lake/orders", failures=1)
    assert state.failures_to_sweep("orders", "/lake/orders") is None


def test_reset_asks_for_a_look(state: State):
    """What an export begins anew beside is looked at once more."""
    state.note_sweep("orders", "/lake/orders", failures=0)
    state.reset("orders")

    assert state.failures_to_sweep("orders", "/lake/orders") == 0


def test_run_that_never_began_cannot_end(state: State):
    """Finishing an unknown run is an error that says what was forgotten."""
    with pytest.raises(StateError, match="begin_run"):
        state.finish_run("nobody", "success")


def test_runs_come_newest_first_and_at_most_last(state: State):
    """History is read from its end, over one export or over all."""
    for number in range(5):
        state.begin_run(
            run(f"r{number}", export="even" if number % 2 == 0 else "odd", started_at=MONDAY + timedelta(number))
        )

    assert [found.run_id for found in state.runs(last=3)] == ["r4", "r3", "r2"]
    assert [found.run_id for found in state.runs("even")] == ["r4", "r2", "r0"]


# --- files and schemas ---------------------------------------------------------------------------


def test_file_log_names_each_part_once_however_often_it_is_recorded(state: State):
    """Recording a commit again replaces what the same run logged of the window."""
    for _ in range(2):
        state.record_files("orders", "r1", "all", RESULT.parts, "parquet", "zstd(3)")

    assert {(file.file_name, file.row_count, file.bytes, file.content_md5) for file in state.files("orders")} == {
        ("dt=2026-01-31/a.parquet", 10, 1234, "md5=="),
        ("b.parquet", 10, 1234, "md5=="),
    }


def test_schema_keeps_its_history_and_ignores_order(state: State):
    """Only a real difference makes a version; the first one is no difference."""
    first = [("id", "int64"), ("note", "string")]
    answers = [
        state.save_schema("orders", first),
        state.save_schema("orders", first[::-1]),
        state.save_schema("orders", [("id", "int64")]),
    ]

    assert answers == [False, False, True]
    assert state.schema("orders") == [("id", "int64")]
    assert [version.columns for version in state.schema_history("orders")] == [tuple(first), (("id", "int64"),)]


# --- commits -------------------------------------------------------------------------------------


def test_commit_writes_files_schema_and_success_and_ends_chunk_progress(state: State):
    """One call after the manifest leaves the store knowing all of the window."""
    state.begin_run(run())
    state.save_chunk("orders", "all", "plan", "orders_r1", RESULT, "a")
    state.record_commit(manifest(cursor=ManifestCursor(column="id", low=None, high="20")))

    (found,) = state.runs("orders")
    assert (found.status, found.mode, found.total_rows, found.files_produced) == ("success", "full", 20, 2)
    assert (found.bytes_written, found.duration_ms, found.cursor_high) == (2468, 2000, "20")
    assert found.schema_changed is False
    assert state.schema("orders") == [("id", "int64"), ("note", "string")]
    assert len(state.files("orders")) == 2
    assert state.resumable_runs("orders") == set()


def test_commit_recorded_twice_is_the_same_as_once(state: State):
    """A death after the metrics step may repeat it; a schema change stays reported."""
    state.save_schema("orders", [("id", "int64")])
    state.begin_run(run())
    state.record_commit(manifest())
    once = (state.runs(), state.files(), state.schema_history("orders"))
    state.record_commit(manifest())

    assert once == (state.runs(), state.files(), state.schema_history("orders"))
    assert once[0][0].schema_changed is True


def test_commit_of_a_run_that_never_began_here_is_recorded(state: State):
    """A store that was lost in mid-run takes the commit as it comes."""
    state.record_commit(manifest())

    assert [(found.run_id, found.status, found.total_rows) for found in state.runs()] == [("orders_r1", "success", 20)]


def test_empty_window_is_recorded_without_files(state: State):
    """No part is a commit too."""
    state.record_commit(manifest(parts=()))

    assert (state.runs()[0].status, state.files()) == ("success", [])


# --- whole exports -------------------------------------------------------------------------------


def test_reset_forgets_cursor_chunks_and_schema_but_not_history(state: State):
    """After a reset the next run begins anew; what happened stays readable."""
    state.record_commit(manifest())
    state.advance_cursor("orders", "20", expected=None)
    state.save_chunk("orders", "all", "plan", "r2", RESULT, "a")
    state.reset("orders")

    assert (state.cursor("orders").value, state.schema("orders"), state.resumable_runs("orders")) == (None, None, set())
    assert (len(state.runs("orders")), len(state.files("orders"))) == (1, 2)


def test_rebuild_writes_what_the_manifests_say_over_whatever_stood_there(state: State):
    """Cursor, files and schema come from the manifests alone, the newest schema last."""
    state.advance_cursor("orders", "wrong", expected=None)
    state.record_files("orders", "gone", "all", (PART,), "csv", "none")
    older = manifest(run_id="r1", window="after=start", parts=(PART,))
    newer = manifest(
        run_id="r2",
        window="after=10",
        parts=(replace(PART, path="c.parquet"),),
        finished_at=MONDAY + timedelta(days=1),
        schema=pa.schema([("id", pa.int64())]),
    )
    state.rebuild("orders", [newer, older], cursor="20")

    assert state.cursor("orders").value == "20"
    assert [(file.run_id, file.window, file.file_name) for file in state.files("orders")] == [
        ("r2", "after=10", "c.parquet"),
        ("r1", "after=start", "dt=2026-01-31/a.parquet"),
    ]
    assert state.schema("orders") == [("id", "int64")]


def test_rebuild_without_a_cursor_leaves_none(state: State):
    """An export whose manifests have no chain never had a cursor."""
    state.advance_cursor("orders", "wrong", expected=None)
    state.rebuild("orders", [manifest()])

    assert state.cursor("orders") is None


def test_overview_has_one_row_per_export_that_is_known_for_anything(state: State):
    """`rivet state show` names an export by its cursor, its runs, its files, its schema or its chunks."""
    state.reset_cursor("by_cursor")
    state.begin_run(run(export="by_run"))
    state.record_files("by_files", "r1", "all", (PART,), "csv", "none")
    state.save_schema("by_schema", [("id", "int64")])
    state.save_chunk("by_chunk", "all", "plan", "r9", RESULT, "a")
    with state.lease("by_run", "all", "orders_r1"):
        rows = {row["export"]: row for row in describe(state)}

    assert list(rows) == ["by_chunk", "by_cursor", "by_files", "by_run", "by_schema"]
    assert rows["by_cursor"]["cursor_state"] == "reset"
    assert rows["by_run"]["busy"] == {"all": "orders_r1"}
    assert rows["by_chunk"]["resumable_runs"] == ["r9"]
    assert [row["export"] for row in describe(state, "by_schema")] == ["by_schema"]
    assert describe(state, "nobody") == []


def test_metrics_give_runs_as_plain_rows_without_the_process(state: State):
    """`rivet metrics` needs no class to print from."""
    state.record_commit(manifest())

    (row,) = metrics(state)
    assert (row["run_id"], row["status"], row["total_rows"]) == ("orders_r1", "success", 20)
    assert not {"host", "pid", "process_start"} & set(row)
