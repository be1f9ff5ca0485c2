"""Two runs of one window at once: one winner, one clear error, every row once."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rivet_resources.commit.publish import publish
from rivet_resources.errors import WindowTaken
from rivet_resources.state.store import open_state
from tests import processes
from tests.faults.one_run import EXPORT, Run, committed, destination_of, execute, plan, stage
from tests.lab import Lab

FULL = """
{name: events, table: events, mode: chunked, chunk_column: id, chunk_size: 500,
 tuning: {throttle_ms: 60, batch_size: 250}}
"""


@pytest.fixture
def lab(tmp_path: Path, fresh_database: str, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A database with 5000 events, read slowly."""
    monkeypatch.setenv("LAB_URL", fresh_database)
    monkeypatch.chdir(tmp_path)
    laboratory = Lab(tmp_path, fresh_database)
    laboratory.sql(
        "CREATE TABLE events AS SELECT n AS id FROM generate_series(1, 5000) n",
        "ALTER TABLE events ADD PRIMARY KEY (id)",
        "ANALYZE events",
    )
    return laboratory


def start(lab: Lab, **environment: str) -> processes.Process:
    """Start `rivet run` in a process of its own."""
    command = (processes.RIVET, "run", "-c", str(lab.folder / "rivet.yaml"))
    return processes.Process(*command, env=os.environ | environment)


@pytest.mark.parametrize("stores", ["one state store", "two state stores"])
def test_two_runs_of_one_window_end_with_one_winner(lab: Lab, stores: str) -> None:
    """With one store the lease decides, with two the swap of the manifest: the loser says so and leaves nothing."""
    lab.config(FULL)
    second = {} if stores == "one state store" else {"RIVET_STATE_URL": f"sqlite:///{lab.folder}/other.db"}
    runs = [start(lab), start(lab, **second)]

    told = [run.communicate(timeout=120)[1] for run in runs]
    codes = sorted(run.returncode for run in runs)

    assert [0, 2] == codes, told
    assert list(range(1, 5001)) == lab.ids("events")
    assert 1 == len(lab.manifests("events"))
    named = {part.path for manifest in lab.manifests("events").values() for part in manifest.parts}
    folder = lab.folder / "lake/events"
    found = {str(path.relative_to(folder)) for path in folder.rglob("*.parquet")}
    assert named == found


def test_window_committed_before_ours_came_to_publish_leaves_nothing_staged(tmp_path: Path) -> None:
    """The loser finds the winner's manifest before it publishes a part: what it staged goes, the winner's stays."""
    run = Run({"type": "local", "path": str(tmp_path / "lake")}, f"sqlite:///{tmp_path}/state.db", "all", rows=10)
    destination, state = destination_of(run.destination), open_state(run.state_url)
    root = destination.root(EXPORT)
    ours = f"{EXPORT}_{datetime.now(UTC):%Y%m%dT%H%M%S}.000_abcdef"
    late = stage(plan(run, destination, ours, low=None), root, first=1, last=5)
    execute(replace(run, state_url=f"sqlite:///{tmp_path}/other.db"))  # what another store's run staged today stays

    with pytest.raises(WindowTaken, match="was committed by run"):
        publish(late, root=root, state=state)

    assert set() == root.staged_runs()
    assert list(range(1, 11)) == committed(root)
