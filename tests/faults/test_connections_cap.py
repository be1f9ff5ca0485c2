"""Runs at once against one real PostgreSQL: together they never hold more connections than the source allows."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psycopg
import pytest

from tests import processes
from tests.lab import Lab

ROWS = 3_000
CONFIG = """
source: {{type: postgres, url_env: LAB_URL, max_connections: {cap},
          tuning: {{throttle_ms: 100, batch_size: 250, retry_backoff_ms: 100}}}}
spark: inline
exports:
  - {{name: {name}, table: events, mode: chunked, chunk_column: id, chunk_size: 500, parallel: 4,
     format: parquet, destination: {{type: local, path: {folder}/lake}}}}
"""
OURS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'rivet:%'"


@pytest.fixture
def lab(tmp_path: Path, fresh_database: str, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A database with some thousand events, read slowly, and a governor that would look at once."""
    monkeypatch.setenv("LAB_URL", fresh_database)
    monkeypatch.setenv("RIVET_GOVERNOR_INTERVAL_MS", "50")
    laboratory = Lab(tmp_path, fresh_database)
    laboratory.sql(
        f"CREATE TABLE events AS SELECT n AS id FROM generate_series(1, {ROWS}) n",
        "ALTER TABLE events ADD PRIMARY KEY (id)",
        "ANALYZE events",
    )
    return laboratory


def start(lab: Lab, name: str, *, cap: int) -> processes.Process:
    """Start an export of its own name in a process of its own; all share the state store beside their configs."""
    config = lab.folder / f"{name}.yaml"
    config.write_text(CONFIG.format(cap=cap, name=name, folder=lab.folder))
    return processes.Process(processes.RIVET, "run", "-c", str(config))


def test_runs_together_stay_below_the_cap(lab: Lab) -> None:
    """Two runs of four tasks each under a cap of three: never a fourth connection, and both end well."""
    most, before = 0, set[tuple[int]]()
    runs = [start(lab, f"export{number}", cap=3) for number in range(2)]
    with psycopg.connect(lab.url, autocommit=True) as watching:
        until = time.monotonic() + 120
        while any(run.poll() is None for run in runs) and time.monotonic() < until:
            seen = set(watching.execute(OURS).fetchall())
            most, before = (
                max(most, len(seen & before)),
                seen,
            )  # one that was closed is listed until its backend is gone
            time.sleep(0.05)

    told = [run.communicate(timeout=30) for run in runs]
    assert [0, 0] == [run.returncode for run in runs], told
    assert 2 <= most <= 3
    assert [ROWS] * 2 == [lab.manifests(f"export{number}")["all"].row_count for number in range(2)]
    awaited = [entry for number in range(2) for entry in lab.state.journal(f"export{number}")]
    assert "ConnectionsAwaited" in {entry.event for entry in awaited}


def test_permits_of_a_killed_run_are_free_at_once(lab: Lab) -> None:
    """A run that is killed while it reads leaves no permit behind that the next one would wait for."""
    first = start(lab, "killed", cap=2)
    with psycopg.connect(lab.url, autocommit=True) as watching:
        until = time.monotonic() + 60
        while len(watching.execute(OURS).fetchall()) < 2 and time.monotonic() < until:
            time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=30)

    second = start(lab, "next", cap=2)
    told = second.communicate(timeout=60)

    assert 0 == second.returncode, told
    assert ROWS == lab.manifests("next")["all"].row_count
