"""`profile:` from the file to Dagster, the manifest and `rivet profile`."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from click.testing import CliRunner

from rivet_assets.cli.main import commands
from rivet_assets.config.load import RivetConfig, load_config
from rivet_assets.launch.run_exports import run_exports
from rivet_assets.run.admit.scope import state_of
from rivet_resources.commit.manifest import Manifest, current_manifests
from rivet_resources.destinations.local import Local
from rivet_resources.errors import ConfigError
from tests.backfills import launch


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table of a hundred orders in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    with closing(sqlite3.connect("shop.db")) as connection, connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, email TEXT, total INT)")
        rows = [(n, f"secret{n % 50}@x", n if n % 4 else None) for n in range(100)]
        connection.executemany("INSERT INTO orders VALUES (?, ?, ?)", rows)
    return tmp_path


def config(folder: Path, profile: Any = True, **keys: Any) -> RivetConfig:
    """Write and load an export with a profile."""
    mask = {"type": "mask", "method": "redact", "fields": ["email"]}
    export = {
        "name": "orders", "table": "orders", "format": "parquet", "transforms": [mask], "profile": profile,
        "destination": {"type": "local", "path": str(folder / "lake")}, **keys,
    }  # fmt: skip
    document = {"source": {"type": "sqlite", "path": "shop.db"}, "spark": "inline", "exports": [export]}
    (folder / "rivet.yaml").write_text(yaml.safe_dump(document))
    return load_config(folder / "rivet.yaml")


def manifest(folder: Path) -> Manifest:
    """Read the only window's manifest."""
    [found] = current_manifests(Local(type="local", path=str(folder / "lake")).root("orders")).values()
    return found


@pytest.mark.parametrize("keys", [{}, {"mode": "chunked", "chunk_column": "id", "chunk_size": 7, "format": "csv"}])
def test_profile_is_committed_with_its_window(folder, keys):
    """Of all chunks, in any format; nothing of it is left beside the parts."""
    [outcome] = run_exports(config(folder, **keys))

    found = manifest(folder).profile
    told = {each.name: (each.nulls, each.distinct, each.min, each.max, each.is_masked) for each in found.columns}
    assert ("success", 100) == (outcome.status, found.rows)
    assert {"id": (0, 100, "0", "99", False), "total": (25, 75, "1", "99", False)}.items() <= told.items()
    assert (0, None, None, True) == (told["email"][0], *told["email"][2:])
    assert [] == [each for each in (folder / "lake").rglob("_staged/**/*") if each.is_file()]


def test_profile_is_on_the_page_and_its_numbers_can_be_plotted(folder):
    """A table with bars, without a masked value; the run's record has numbers only."""
    loaded, instance = config(folder), dg.DagsterInstance.ephemeral()

    run = launch(loaded, instance)

    [event] = [each for each in run.all_events if each.event_type_value == "ASSET_MATERIALIZATION"]
    facts = {name: each.value for name, each in event.materialization.metadata.items()}
    assert (0.25, 75, 50.0) == tuple(facts[f"rivet/{fact}/total"] for fact in ("null_share", "distinct", "mean"))
    assert "| total | int64 | 25 (25.0%) | 75 | 1 | 99 | 50 |" in facts["rivet/profile"]
    assert "secret" not in facts["rivet/profile"]
    state = state_of(loaded)
    [noted] = [each for each in state.journal("orders") if each.event == "Profiled"]
    assert {"nulls": 25, "distinct": 75} == noted.detail["columns"]["total"]
    state.close()


def test_command_shows_the_newest_profile(folder):
    """For people, and as JSON; without one it says what to write."""
    config(folder, profile=False)
    runner = CliRunner()
    before = runner.invoke(commands, ["profile"])
    run_exports(config(folder, {"columns": ["total"], "histogram": 4}))

    shown, as_json = runner.invoke(commands, ["profile"]), runner.invoke(commands, ["profile", "--json"])

    assert "write `profile: true`" in before.stderr
    assert "orders all: 100 rows" in shown.stdout
    assert "█" in shown.stdout
    [document] = json.loads(as_json.stdout)
    assert ["total"] == [column["name"] for column in document["columns"]]
    assert len(document["columns"][0]["histogram"]) <= 4


def test_export_without_a_profile_has_no_key_of_it(folder):
    """Neither in its manifest nor in its fingerprint."""
    run_exports(config(folder, profile=False))

    assert "profile" not in json.loads(manifest(folder).content)


@pytest.mark.parametrize(
    "keys",
    [
        {"mode": "poll", "updated_at_column": "total", "primary_key": ["id"], "transforms": []},
        {"destination": {"type": "stdout"}},
    ],
)
def test_profile_that_nothing_keeps_or_of_changes_is_refused(folder, keys):
    """When the file is read."""
    with pytest.raises(ConfigError, match="profile"):
        config(folder, **keys)


def test_column_that_is_not_written_is_refused(folder):
    """Before a row is read, with those that are."""
    [outcome] = run_exports(config(folder, {"columns": ["gone"]}))

    assert ("failed", 0) == (outcome.status, outcome.rows)
    assert "has no column 'gone'; it has id, email, total" in outcome.message
