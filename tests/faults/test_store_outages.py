"""A state store on a server that goes away in the middle of a whole `rivet run`: what was read is not lost."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from rivet_resources.commit.manifest import current_manifests
from rivet_resources.conformance.lines import proxied
from rivet_resources.destinations.local import Local
from rivet_resources.state.store import open_state
from tests import processes
from tests.lab_engines import connect_postgres

pytestmark = pytest.mark.faults

AWAY_SECONDS = 20.0  # longer than one try of a connection, shorter than a lease lasts
ROWS = 1500
LAST_DAY = 60  # of them are of the window that `days` exports, the latest
EXPORTS = [
    {"name": "orders", "mode": "incremental", "cursor_column": "id"},
    {"name": "chunks", "mode": "chunked", "chunk_column": "id", "chunk_size": 250, "chunk_checkpoint": True},
    {"name": "days", "mode": "time_window", "time_column": "at", "start": "2026-01-01", "end": "2026-01-04"},
]


def configure(folder: Path, **source: object) -> None:
    """Write a configuration whose exports take some seconds each: ten pages and more, with a pause after each."""
    tuning = {"batch_size": 100, "throttle_ms": 150, "max_retries": 0}
    common = {"table": "orders", "format": "parquet", "destination": {"type": "local", "path": "lake"}}
    document = {
        "source": {"type": "postgres", "url_env": "SHOP_URL", "tuning": tuning, **source},
        "spark": "inline",
        "exports": [common | export for export in EXPORTS],
    }
    (folder / "rivet.yaml").write_text(yaml.safe_dump(document))


def until(met: Callable[[], bool], process: processes.Process) -> None:
    """Wait for a moment of the run."""
    deadline = time.monotonic() + 60
    while not met():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "the moment never came"
        time.sleep(0.05)


def ids(folder: Path, export: str) -> list[int]:
    """Read the ids of every committed row."""
    root = Local(path=str(folder / "lake")).root(export)
    files = [part.path for manifest in current_manifests(root).values() for part in manifest.parts]
    return sorted(number for file in files for number in pq.read_table(f"{root.uri}/{file}")["id"].to_pylist())


@pytest.mark.matrix
@pytest.mark.parametrize("export", [export["name"] for export in EXPORTS])
def test_run_whose_store_is_away_for_twenty_seconds_is_finished(
    export: str, fresh_database: str, tmp_path: Path
) -> None:
    """While its rows are read, and when they are to be committed: the run waits, and everything is recorded."""
    with connect_postgres(fresh_database) as execute:
        execute("CREATE TABLE orders (id bigint PRIMARY KEY, at timestamptz NOT NULL)")
        execute(f"INSERT INTO orders SELECT n, timestamptz '2026-01-01 00:00+00' + n * interval '2 min' "
                f"FROM generate_series(0, {ROWS - 1}) AS n")  # fmt: skip
    configure(tmp_path, max_connections=2)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DAGSTER_HOME", "RIVET_"))}
    with proxied(fresh_database) as (proxy, url):
        open_state(url).close()
        environment = {**kept, "SHOP_URL": fresh_database, "RIVET_STATE_URL": url}
        arguments = ("run", "-e", export, "--json")
        state = open_state(fresh_database)
        with processes.Process(processes.RIVET, *arguments, cwd=tmp_path, env=environment) as process:
            until(lambda: any(run.status == "running" for run in state.runs()), process)
            proxy.down()
            began = time.monotonic()
            while time.monotonic() - began < AWAY_SECONDS:
                assert process.poll() is None, process.communicate()
                time.sleep(0.1)
            proxy.up()
            out, err = process.communicate(timeout=120)
        runs, leases = state.runs(), state.leases()
        state.close()

        assert 0 == process.returncode, err
        expected = list(range(ROWS - LAST_DAY if export == "days" else 0, ROWS))
        assert len(expected) == json.loads(out)["rows"]
        assert expected == ids(tmp_path, export)
        assert ({"success"}, []) == ({run.status for run in runs}, leases)
        assert "Traceback" not in err
        again = processes.run(processes.RIVET, *arguments, cwd=tmp_path, env=environment)
        assert 0 == again.returncode, again.stderr
        assert expected == ids(tmp_path, export)
