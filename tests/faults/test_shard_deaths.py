"""A run over several databases dies: whatever it had committed stays, and the next one has every row of each once."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from rivet_assets.config.load import load_config
from rivet_assets.launch.run_exports import run_exports
from rivet_resources.commit.manifest import Manifest, current_manifests
from rivet_resources.commit.shards import shard_manifests, shard_roots
from tests import processes
from tests.faults.dying import DIED, PLACES

pytestmark = pytest.mark.faults
SHARDS = {"ap": 30, "eu": 50, "us": 70}  # rows of each
FIRST = 1_767_225_600  # 2026-01-01 in UTC; an event each hour
ALL = [(shard, number) for shard, rows in SHARDS.items() for number in range(rows)]
DAYS = ("2026-01-01", "2026-01-02", "2026-01-03")
MODES = {
    "full": {"mode": "full"},
    "windows": {
        "mode": "time_window",
        "time_column": "at",
        "time_column_type": "unix",
        "start": DAYS[0],
        "end": "2026-01-04",
    },
    "chains": {"mode": "incremental", "cursor_column": "id"},
    "resumed": {"mode": "chunked", "chunk_column": "id", "chunk_size": 20, "chunk_checkpoint": True},
}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three databases whose keys are the same numbers."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    for shard, rows in SHARDS.items():
        monkeypatch.setenv(f"{shard.upper()}_DB", str(tmp_path / f"{shard}.db"))
        with closing(sqlite3.connect(tmp_path / f"{shard}.db")) as connection, connection:
            connection.execute("CREATE TABLE events (id INTEGER PRIMARY KEY, of TEXT, at INTEGER)")
            events = [(number, shard, FIRST + number * 3600) for number in range(rows)]
            connection.executemany("INSERT INTO events VALUES (?, ?, ?)", events)
    return tmp_path / "rivet.yaml"


def manifests(file: Path) -> list[Manifest]:
    """Return the current manifests."""
    export = load_config(file).export("events")
    if export.is_apart:
        return shard_manifests(shard_roots(export.destination, export.name, export.shards))
    return list(current_manifests(export.destination.root("events")).values())


def readable(file: Path) -> list[tuple[str, int]]:
    """Return what a reader of manifests sees, repeats included: (shard, id)."""
    paths = [part.path for each in manifests(file) for part in each.parts]
    tables = [pq.read_table(file.parent / "lake/events" / path) for path in paths]
    return sorted((row["of"], row["id"]) for table in tables for row in table.to_pylist())


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("mode", ["resumed", "windows", "chains", pytest.param("full", marks=pytest.mark.matrix)])
def test_rerun_after_a_death_has_every_row_of_every_shard_once(file: Path, mode: str, place: str) -> None:
    """Chunks of one database are never taken for those of another, though their keys are the same."""
    export = {
        "name": "events", "table": "events", "format": "parquet", "tuning": {"batch_size": 10},
        "destination": {"type": "local", "path": str(file.parent / "lake")},
        "shards": {shard: f"{shard.upper()}_DB" for shard in SHARDS}, **MODES[mode],
    }  # fmt: skip
    source = {"type": "sqlite", "path": str(file.parent / "nowhere.db")}
    file.write_text(yaml.safe_dump({"source": source, "spark": "inline", "exports": [export]}))
    partitions = (f"{DAYS[0]}...{DAYS[-1]}",) if mode == "windows" else tuple(SHARDS)
    died = processes.run("tests.faults.dying", str(file), place, *partitions)
    assert died.returncode == DIED, died.stdout + died.stderr
    before = readable(file)
    assert len(set(before)) == len(before)

    (outcome,) = run_exports(load_config(file), partitions=partitions)

    assert "success" == outcome.status, outcome.message
    assert ALL == readable(file)
    named = {part.path for each in manifests(file) for part in each.parts}
    folder = file.parent / "lake/events"
    assert named == {path.relative_to(folder).as_posix() for path in folder.rglob("*.parquet")}
