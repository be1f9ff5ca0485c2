"""Limits of one real PostgreSQL under runs side by side and a killed one: what was read counts, whoever read it."""

from __future__ import annotations

import signal
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rivet_resources.contracts.read_limits import MonthRead
from rivet_resources.contracts.settings import pace
from rivet_resources.engines.postgres.source import Postgres
from rivet_resources.read.meter import place_of
from rivet_resources.state.store import default_url, open_state
from tests import processes
from tests.lab import Lab

ROWS = 3_000
CONFIG = """
source: {{type: postgres, url_env: LAB_URL, rate_limit: {{rows_per_second: {rate}}},
          tuning: {{throttle_ms: 0, retry_backoff_ms: 100}}}}
spark: inline
exports:
  - {{name: {name}, table: events, mode: chunked, chunk_column: id, chunk_size: 500, parallel: 2,
     chunk_checkpoint: true, format: parquet, destination: {{type: local, path: {folder}/lake}}}}
"""


@pytest.fixture
def lab(tmp_path: Path, fresh_database: str, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A database with some thousand events."""
    monkeypatch.setenv("LAB_URL", fresh_database)
    laboratory = Lab(tmp_path, fresh_database)
    laboratory.sql(
        f"CREATE TABLE events AS SELECT n AS id FROM generate_series(1, {ROWS}) n",
        "ALTER TABLE events ADD PRIMARY KEY (id)",
        "ANALYZE events",
    )
    return laboratory


def start(lab: Lab, name: str, *, rate: int) -> processes.Process:
    """Start an export of its own name in a process of its own; all share the state store beside their configs."""
    config = lab.folder / f"{name}.yaml"
    config.write_text(CONFIG.format(rate=rate, name=name, folder=lab.folder))
    return processes.Process(processes.RIVET, "run", "-c", str(config))


def read(lab: Lab) -> MonthRead:
    """Return what was read of the database this month."""
    place = place_of(Postgres(url_env="LAB_URL"), pace(None, None))
    with closing(open_state(default_url(lab.folder))) as state:
        return state.read_in_month(place, datetime.now(UTC))


def test_two_runs_at_once_share_one_account(lab: Lab) -> None:
    """Each of their rows is counted once, and both end well."""
    runs = [start(lab, name, rate=1_000_000) for name in ("one", "two")]

    told = [run.communicate(timeout=120) for run in runs]

    assert [0, 0] == [run.returncode for run in runs], told
    assert 2 * ROWS == read(lab).rows


def test_rows_of_a_killed_run_count_and_its_chunks_are_kept(lab: Lab) -> None:
    """The source was burdened with them; the next run reads the rest at its own rate."""
    run, deadline = start(lab, "events", rate=300), time.monotonic() + 60
    while not (default := lab.folder / ".rivet_state.db").exists() or read(lab).rows < 1_500:
        assert time.monotonic() < deadline, default
        time.sleep(0.1)
    run.send_signal(signal.SIGKILL)
    run.communicate()
    before = read(lab).rows

    again = start(lab, "events", rate=1_000_000)
    told = again.communicate(timeout=120)

    assert (0, True) == (again.returncode, 1_500 <= before < ROWS), told
    assert before < read(lab).rows < before + ROWS  # some chunks were not read again
