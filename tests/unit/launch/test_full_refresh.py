"""`rivet run --full-refresh`: an export begins anew, and what is published stays until the run replaced it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from rivet_assets.cli.commands.run import run_command
from rivet_resources.commit.manifest import current_manifests
from rivet_resources.destinations.local import Local
from rivet_resources.errors import ConfigError

BLOCK = """
sources: {shop: {type: sqlite, path: FOLDER/shop.db}}
spark: inline
exports:
  - name: grown
    table: orders
    mode: incremental
    cursor_column: id
    format: parquet
    destination: {type: local, path: FOLDER/lake}
  - name: whole
    table: orders
    format: parquet
    destination: {type: local, path: FOLDER/lake}
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Three orders, and two exports of them."""
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        connection.execute("CREATE TABLE orders (id integer PRIMARY KEY, name text)")
        connection.execute("INSERT INTO orders VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    (tmp_path / "rivet.yaml").write_text(BLOCK.replace("FOLDER", str(tmp_path)))
    return tmp_path


def run(shop: Path, *arguments: str) -> Result:
    """Run `rivet run …`."""
    command = ["-c", str(shop / "rivet.yaml"), "-q", *arguments]
    return CliRunner().invoke(run_command, command, standalone_mode=False)


def names(shop: Path) -> list[str]:
    """Read what a reader of the incremental export sees."""
    root = Local(type="local", path=str(shop / "lake")).root("grown")
    parts = [part.path for manifest in current_manifests(root).values() for part in manifest.parts]
    return sorted(name for part in parts for name in pq.read_table(shop / "lake" / "grown" / part)["name"].to_pylist())


def test_export_that_began_anew_has_every_row_once_as_it_is_now(shop):
    """Without the option only rows above the cursor are read."""
    assert 0 == run(shop, "-e", "grown").return_value
    with sqlite3.connect(shop / "shop.db") as connection:
        connection.execute("UPDATE orders SET name = 'x' WHERE id = 1")
    assert 0 == run(shop, "-e", "grown").return_value
    assert ["a", "b", "c"] == names(shop)

    again = run(shop, "-e", "grown", "--full-refresh")

    assert 0 == again.return_value, again.output
    assert ["b", "c", "x"] == names(shop)


def test_mode_that_replaces_all_rows_anyway_refuses_it_before_anything_runs(shop):
    """The message says why, and the export beside it did not run."""
    refused = run(shop, "--full-refresh")

    assert isinstance(refused.exception, ConfigError)
    assert "export whole: `full_refresh` means nothing for mode full" in str(refused.exception)
    assert not (shop / "lake").exists()
