"""`rivet demo` as the README promises it: the first round, the second, the UI."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.servers.postgres import free_port

ROOT = Path(__file__).parents[2]
DEMO = [sys.executable, "-m", "rivet_assets.cli.main", "demo"]


def environment() -> dict[str, str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("DAGSTER_HOME", "RIVET_"))}
    return {**kept, "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the demo is run; all tests of this module use it one after another."""
    folder = tmp_path_factory.mktemp("demo")
    yield folder
    outside = folder / "rivet_demo" / "postgres" / "outside"  # of root's server: pytest's folders let nobody else in
    if outside.is_symlink():
        shutil.rmtree(outside.resolve())


@pytest.fixture(scope="module")
def rounds(folder: Path) -> list[subprocess.CompletedProcess[str]]:
    """The first `rivet demo` and the second."""
    return [
        subprocess.run(DEMO, cwd=folder, env=environment(), text=True, capture_output=True, timeout=900)
        for _ in range(2)
    ]


@pytest.mark.spark
@pytest.mark.slow
def test_first_demo_exports_the_shop(rounds: list[subprocess.CompletedProcess[str]]) -> None:
    """It ends with 0, and its table has every export, in every mode, all checks passed."""
    first = rounds[0]

    assert 0 == first.returncode, first.stderr
    for export in ("customers", "customers_csv", "orders", "order_items", "events"):
        assert export in first.stderr
    for words in ("full", "incremental", "chunked", "time_window", "80,000", "200,000", "60,000", "passed"):
        assert words in first.stderr
    assert "FAIL" not in first.stderr


@pytest.mark.spark
@pytest.mark.slow
def test_second_demo_takes_only_what_is_new(rounds: list[subprocess.CompletedProcess[str]], folder: Path) -> None:
    """The cursor moved by the new rows; the late day replaced itself, the others kept their parts."""
    second = rounds[1]

    assert 0 == second.returncode, second.stderr
    assert "took only what is new: 1,500 rows" in second.stderr
    assert "2026-01-17 replaced itself" in second.stderr
    assert "drained 271 changes" in second.stderr
    assert 80_250 == rows_of(folder, "order_changes_mirror")
    assert (61_500, 80_250) == (rows_of(folder, "events"), rows_of(folder, "orders"))


@pytest.mark.spark
@pytest.mark.slow
def test_nothing_is_left_running(rounds: list[subprocess.CompletedProcess[str]], folder: Path) -> None:
    """No server outlives the demo."""
    postgres = folder / "rivet_demo" / "postgres"

    assert [] == list(postgres.rglob("postmaster.pid")) + list((postgres / "outside").rglob("postmaster.pid"))


@pytest.fixture
def ui(folder: Path) -> Iterator[str]:
    """`rivet demo --ui` on a free port: the address of its GraphQL."""
    port = free_port()
    command = [*DEMO, "--ui", "--port", str(port)]
    process = subprocess.Popen(
        command, cwd=folder, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield f"http://127.0.0.1:{port}/graphql"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


@pytest.mark.ui
@pytest.mark.slow
def test_ui_serves_the_same_project(ui: str) -> None:
    """The location is called rivet, loads without an error, and has the demo's assets."""
    query = """{ workspaceOrError { ... on Workspace { locationEntries { name locationOrLoadError { __typename
        ... on RepositoryLocation { repositories { assetNodes { assetKey { path } } } } } } } } }"""

    (location,) = ask(ui, query)["workspaceOrError"]["locationEntries"]
    nodes = location["locationOrLoadError"]["repositories"][0]["assetNodes"]

    assert "rivet" == location["name"]
    assert {
        "customers",
        "customers_csv",
        "orders",
        "order_items",
        "events",
        "order_changes",
        "order_changes_mirror",
    } <= {node["assetKey"]["path"][-1] for node in nodes}


def ask(url: str, query: str) -> dict:
    """Ask GraphQL, waiting until the server is up."""
    body = json.dumps({"query": query}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    deadline = time.monotonic() + 90
    while True:
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                found = json.load(response)["data"]
            if found["workspaceOrError"]["locationEntries"] or time.monotonic() > deadline:
                return found
        except OSError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.5)


def rows_of(folder: Path, export: str) -> int:
    """Count rows as a plain glob over the lake sees them."""
    parts = (folder / "rivet_demo" / "lake" / export).glob("**/*.parquet")
    return sum(pq.read_metadata(part).num_rows for part in parts if "_staged" not in part.parts)
