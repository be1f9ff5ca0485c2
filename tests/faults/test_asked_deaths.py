"""A run that removes old snapshots, or begins anew, dies: readers see whole windows, the next run heals the rest."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from rivet_assets.config.load import load_config
from rivet_resources.commit.manifest import Manifest, current_manifests
from tests import processes
from tests.faults.dying import DIED, PUBLISH_STEPS

pytestmark = pytest.mark.faults
SNAPSHOTS = {"snapshots": "daily", "keep": 2}
GROWING = {"mode": "incremental", "cursor_column": "id", "tuning": {"batch_size": 2}}


class Stock:
    """A table that grows, and an export of it."""

    def __init__(self, folder: Path, block: dict[str, object]) -> None:
        self.folder, self.rows = folder, 0
        self.sql("CREATE TABLE stock (id INTEGER PRIMARY KEY)")
        export = {
            "name": "stock", "table": "stock", "format": "parquet",
            "destination": {"type": "local", "path": str(folder / "lake")}, **block,
        }  # fmt: skip
        document = {"source": {"type": "sqlite", "path": str(folder / "shop.db")}, "spark": "inline"}
        (folder / "rivet.yaml").write_text(yaml.safe_dump(document | {"exports": [export]}))

    def sql(self, statement: str, *values: object) -> None:
        """Run one statement at the source."""
        with closing(sqlite3.connect(self.folder / "shop.db")) as connection, connection:
            connection.execute(statement, values)

    def grow(self, rows: int) -> None:
        """Insert the next rows."""
        for _ in range(rows):
            self.rows += 1
            self.sql("INSERT INTO stock VALUES (?)", self.rows)

    def run(self, *asked: str, place: str = "") -> None:
        """Run in a process of its own, which must die at `place` if there is one."""
        process = processes.run("tests.faults.dying_asked", str(self.folder / "rivet.yaml"), place, *asked)
        told = process.stdout + process.stderr
        assert process.returncode == (DIED if place else 0), told
        assert place or "success" in process.stdout, told

    @property
    def manifests(self) -> dict[str, Manifest]:
        """Return what a reader sees."""
        return current_manifests(load_config(self.folder / "rivet.yaml").export("stock").destination.root("stock"))

    @property
    def ids(self) -> dict[str, list[int]]:
        """Return the ids of each window; each part that is named is there, and holds what it says."""
        root = self.folder / "lake/stock"
        found = {}
        for key, each in sorted(self.manifests.items()):
            found[key] = sorted(id for part in each.parts for id in pq.read_table(root / part.path)["id"].to_pylist())
            assert each.row_count == len(found[key])
        return found

    @property
    def strays(self) -> list[str]:
        """List the files that no manifest names."""
        root = self.folder / "lake/stock"
        named = {part.path for each in self.manifests.values() for part in each.parts}
        return [path.name for path in root.rglob("*.parquet") if str(path.relative_to(root)) not in named]


@pytest.mark.parametrize("place", [*PUBLISH_STEPS, "delete-1", "delete-2", "delete-3"])
def test_death_while_an_old_snapshot_is_removed_shows_none_of_it_and_the_next_run_cleans_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Before the swap the old ones are there, after it the new ones: never three, and never half of one."""
    monkeypatch.chdir(tmp_path)
    stock = Stock(tmp_path, SNAPSHOTS)
    for day in (29, 30):
        stock.grow(1)
        stock.run(f"today=2026-01-{day}")
    stock.grow(1)

    stock.run("today=2026-01-31", place=place)
    dead = stock.ids
    stock.run("today=2026-01-31")

    is_swapped = place not in ("parts", "manifest")
    after = {"snapshot=2026-01-30": [1, 2], "snapshot=2026-01-31": [1, 2, 3]}
    before = {"snapshot=2026-01-29": [1], "snapshot=2026-01-30": [1, 2]}
    assert (after if is_swapped else before) == dead
    assert after == stock.ids
    assert [] == stock.strays


@pytest.mark.parametrize("place", ["page", *PUBLISH_STEPS, "delete-1", "delete-2"])
@pytest.mark.parametrize(
    "again", [pytest.param((), id="plain"), pytest.param(("full_refresh",), id="asked_again", marks=pytest.mark.matrix)]
)
def test_death_of_a_full_refresh_keeps_every_row_and_the_next_run_has_each_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, again: tuple[str, ...]
) -> None:
    """Between forgetting the cursor and the commit readers see the old windows; what comes next begins at the start."""
    monkeypatch.chdir(tmp_path)
    stock = Stock(tmp_path, GROWING)
    for _ in range(2):
        stock.grow(3)
        stock.run()
    stock.grow(1)

    stock.run("full_refresh", place=place)
    dead = sorted(id for ids in stock.ids.values() for id in ids)
    stock.grow(1)
    stock.run(*again)

    assert dead in ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 7])
    assert list(range(1, 9)) == sorted(id for ids in stock.ids.values() for id in ids)
    assert [] == stock.strays
