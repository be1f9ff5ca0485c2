"""Whatever line a run dies on: before the next run a reader sees whole windows, after it every row once."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests import processes
from tests.faults.dying import DIED, PLACES
from tests.lab import Lab

pytestmark = pytest.mark.faults

TABLE = """
CREATE TABLE events (id bigint PRIMARY KEY, at timestamptz NOT NULL);
CREATE INDEX ON events (at);
INSERT INTO events SELECT n, timestamptz '2026-01-01' + n * interval '1 hour' FROM generate_series(0, 71) n;
ANALYZE events
"""
NEW_ROWS = "INSERT INTO events SELECT n, timestamptz '2026-01-04' + n * interval '1 s' FROM generate_series(100, 149) n"
DAYS = ("2026-01-01", "2026-01-02", "2026-01-03")
TUNED = "tuning: {batch_size: 20}"

MODES: dict[str, tuple[str, tuple[str, ...]]] = {
    "full": (f"{{name: events, table: events, mode: full, {TUNED}}}", ()),
    "incremental": (f"{{name: events, table: events, mode: incremental, cursor_column: at, {TUNED}}}", ()),
    "chunked": (f"{{name: events, table: events, mode: chunked, chunk_column: id, chunk_size: 40, {TUNED}}}", ()),
    "resumed": (
        "{name: events, table: events, mode: chunked, chunk_column: id, chunk_size: 40, chunk_checkpoint: true, "
        f"{TUNED}}}",
        (),
    ),
    "time_window": (
        "{name: events, table: events, mode: time_window, time_column: at, start: 2026-01-01, end: 2026-01-04, "
        f"{TUNED}}}",
        DAYS,
    ),
}


def in_full(chosen: str, *, of: Iterable[str]) -> list[object]:
    """List the modes; one dies at every place, the others, which share the steps of `publish`, at a sample of them."""
    return [mode if mode == chosen else pytest.param(mode, marks=pytest.mark.matrix) for mode in of]


@pytest.fixture
def lab(tmp_path: Path, fresh_database: str, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A database with 72 hourly events over three days."""
    monkeypatch.setenv("LAB_URL", fresh_database)
    monkeypatch.chdir(tmp_path)
    laboratory = Lab(tmp_path, fresh_database)
    laboratory.sql(*TABLE.split(";\n"))
    return laboratory


def run_until_death(lab: Lab, block: str, place: str, partitions: tuple[str, ...]) -> None:
    """Run the export in a process of its own, which must die at `place`."""
    lab.config(block)
    process = processes.run("tests.faults.dying", str(lab.folder / "rivet.yaml"), place, *partitions)
    assert process.returncode == DIED, process.stdout + process.stderr


def whole_windows(lab: Lab) -> bool:
    """Return whether each manifest's parts hold just the rows it counts."""
    counted = sum(manifest.row_count for manifest in lab.manifests("events").values())
    return counted == len(lab.ids("events")) == len(set(lab.ids("events")))


def leftovers(lab: Lab) -> list[Path]:
    """List what lies at the destination and belongs to no manifest."""
    folder = lab.folder / "lake/events"
    named = {folder / part.path for manifest in lab.manifests("events").values() for part in manifest.parts}
    return [path for path in folder.rglob("*.parquet") if path not in named]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("mode", in_full("incremental", of=MODES))
def test_rerun_after_a_death_at_any_step_shows_every_row_once(lab: Lab, mode: str, place: str) -> None:
    """The first export dies; the next one leaves each row readable exactly once, and no litter."""
    block, partitions = MODES[mode]
    run_until_death(lab, block, place, partitions)
    assert whole_windows(lab)

    outcome = lab.export(block, partitions=partitions)

    assert outcome.success, outcome.message
    assert list(range(72)) == lab.ids("events")
    assert [] == leftovers(lab)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("mode", in_full("resumed", of=["full", "incremental", "chunked", "resumed"]))
def test_death_in_a_later_run_keeps_the_earlier_rows_readable(lab: Lab, mode: str, place: str) -> None:
    """The second export dies on new rows; readers keep whole windows, and the third run has every row once."""
    block, _ = MODES[mode]
    lab.export(block)
    lab.sql(NEW_ROWS)
    run_until_death(lab, block, place, ())
    assert whole_windows(lab)
    assert set(range(72)) <= set(lab.ids("events"))

    outcome = lab.export(block)

    assert outcome.success, outcome.message
    assert [*range(72), *range(100, 150)] == lab.ids("events")
    assert [] == leftovers(lab)
