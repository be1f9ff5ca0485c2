"""Windows of values, folders by time and snapshots are made by Spark's tasks as by our own process."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from rivet_resources.commit.manifest import current_manifests
from rivet_resources.destinations.local import Local
from tests import processes


@pytest.mark.spark
def test_windows_and_folders_are_the_same_by_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row is in the window and the folder that `spark: inline` puts it in."""
    for name, count in {"shop": 12, "eu": 3, "us": 5}.items():
        monkeypatch.setenv(f"{name.upper()}_DB", str(tmp_path / f"{name}.db"))
        with closing(sqlite3.connect(tmp_path / f"{name}.db")) as database, database:
            database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, region TEXT, at DATE)")
            rows = [(n, ("eu", "us", None)[n % 3], f"2026-01-0{1 + n % 4}") for n in range(count)]
            database.executemany("INSERT INTO orders VALUES (?, ?, ?)", rows)
    lake = {"type": "local", "path": str(tmp_path / "lake")}
    common = {"table": "orders", "format": "parquet", "destination": lake, "columns": {"at": "date"}}
    exports = [
        {"name": "values", **common, "partition_by": {"column": "region", "values": ["eu", "us", None]}},
        {"name": "folders", **common, "partition_by": "at", "partition_granularity": "day"},
        {"name": "days", **common, "snapshots": "daily"},
        {"name": "shards", **common, "shards": {"eu": "EU_DB", "us": "US_DB"}},
    ]
    found = {}
    for way in ("inline", "spark"):
        chains = {**exports[-1], "name": f"chains_{way}", "mode": "incremental", "cursor_column": "id"}
        document = {"source": {"type": "sqlite", "path": str(tmp_path / "shop.db")}, "exports": [*exports, chains]}
        (tmp_path / "rivet.yaml").write_text(yaml.safe_dump(document | {"spark": way}))
        # A process of its own: workers of the JVM that tests share are older than the variables of the shards.
        done = processes.run(processes.RIVET, "run", "-c", str(tmp_path / "rivet.yaml"), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        found[way] = {each["name"]: windows(tmp_path, str(each["name"])) for each in exports}

    assert found["inline"] == found["spark"]
    assert {"region=eu", "region=us", "region=__HIVE_DEFAULT_PARTITION__"} == {w for w, _ in found["spark"]["values"]}
    assert {"shard=eu": [0, 1, 2], "shard=us": [0, 1, 2, 3, 4]} == {
        window: ids for (window, _), ids in found["spark"]["shards"].items()
    }
    assert [[[0, 1, 2]], [[0, 1, 2, 3, 4]]] == [
        [*windows(tmp_path, f"chains_spark/shard={shard}").values()] for shard in ("eu", "us")
    ]
    assert 4 == len({folder for _, folder in found["spark"]["folders"]})


def windows(folder: Path, export: str) -> dict[tuple[str, str], list[int]]:
    """Return the ids by window and folder."""
    found: dict[tuple[str, str], list[int]] = {}
    for key, manifest in current_manifests(Local(type="local", path=str(folder / "lake")).root(export)).items():
        for part in manifest.parts:
            ids = pq.read_table(folder / "lake" / export / part.path)["id"].to_pylist()
            place = (key, str(Path(part.path).parent))
            found[place] = sorted([*found.get(place, ()), *ids])
    return found
