"""Exports to S3, GCS and Azure over HTTP: the same promises as on a local disk, judged through the manifests."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rivet_resources.commit.manifest import current_manifests
from rivet_resources.contracts.destination import Root
from rivet_resources.destinations.azure import Azure
from rivet_resources.destinations.gcs import Gcs
from rivet_resources.destinations.s3 import S3
from tests.lab import Lab
from tests.servers.postgres import AZURITE_ACCOUNT

TABLE = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, at timestamptz NOT NULL, note text)",
    "CREATE INDEX ON orders (at)",
    "INSERT INTO orders SELECT n, timestamptz '2026-01-01' + n * interval '1 h', 'n' FROM generate_series(0, 71) n",
    "ANALYZE orders",
)
DAYS = ("2026-01-01...2026-01-03",)
BLOCKS = {
    "full": ("name: orders, table: orders, mode: full, max_file_size: 1B", ()),
    "incremental": ("name: orders, table: orders, mode: incremental, cursor_column: at", ()),
    "chunked": ("name: orders, table: orders, mode: chunked, chunk_column: id, chunk_size: 20, parallel: 2", ()),
    "time_window": ("name: orders, table: orders, mode: time_window, time_column: at, start: 2026-01-01", DAYS),
}


@pytest.fixture
def lab(tmp_path: Path, fresh_database: str, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A database with 72 hourly orders."""
    monkeypatch.setenv("LAB_URL", fresh_database)
    monkeypatch.chdir(tmp_path)
    laboratory = Lab(tmp_path, fresh_database)
    laboratory.sql(*TABLE)
    return laboratory


def place(store: str, request: pytest.FixtureRequest, prefix: str) -> tuple[str, Root]:
    """Return the YAML of a destination below `prefix`, and the export's root for reading it back."""
    server = request.getfixturevalue(f"{store}_server")
    if store == "azure":
        keys = {"endpoint": server.endpoint, "account": AZURITE_ACCOUNT, "container": server.bucket, "prefix": prefix}
        keys["account_key_env"] = "AZURE_KEY"
        root: Root = Azure(**keys).root("orders")
    elif store == "s3":
        keys = {"endpoint": server.endpoint, "bucket": server.bucket, "prefix": prefix, "region": "us-east-1"}
        root = S3(type="s3", **keys).root("orders")
    else:
        keys = {"endpoint": server.endpoint, "bucket": server.bucket, "prefix": prefix, "allow_anonymous": "true"}
        root = Gcs(type="gcs", **keys).root("orders")
    return f"{{type: {store}, {', '.join(f'{key}: {value!r}' for key, value in keys.items())}}}", root


def ids(root: Root) -> list[int]:
    """Read the `id` of every committed row, ascending, repeats included."""
    tables = [
        pq.read_table(io.BytesIO(root.open(part.path).read()), columns=["id"])
        for manifest in current_manifests(root).values()
        for part in manifest.parts
    ]
    return sorted(pa.concat_tables(tables).column("id").to_pylist())


@pytest.mark.parametrize("store", ["s3", "gcs", "azure"])
@pytest.mark.parametrize("mode", BLOCKS)
def test_every_mode_commits_to_an_object_store(
    lab: Lab, request: pytest.FixtureRequest, store: str, mode: str, tmp_path: Path
) -> None:
    """Two runs leave every row once, and no object that no manifest names."""
    block, partitions = BLOCKS[mode]
    destination, root = place(store, request, prefix=f"{tmp_path.name}/{mode}")

    outcomes = [lab.export(f"{{{block}, destination: {destination}}}", partitions=partitions) for _ in range(2)]

    assert [""] * 2 == [outcome.message for outcome in outcomes]
    assert list(range(72)) == ids(root)
    named = {part.path for manifest in current_manifests(root).values() for part in manifest.parts}
    assert named == {path for path in root.list() if path.endswith(".parquet")}
