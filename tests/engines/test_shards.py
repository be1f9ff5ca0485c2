"""Databases of one shape on real servers: two on one server are two, one under two URLs is one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow.parquet as pq
import pytest

from rivet_assets.launch.run_exports import run_exports
from rivet_assets.run.admit.admission import ADOPT
from tests.lab import Lab, lab_in
from tests.lab_engines import ENGINES, Engine

pytestmark = pytest.mark.wide

BLOCK = "{name: orders, table: orders, shards: {eu: EU_URL, us: US_URL}, tuning: {batch_size: 3}}"


def path_of(url: str, path: str) -> str:
    """Return a URL of another database of the same server."""
    return urlsplit(url)._replace(path=f"/{path}").geturl()


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Engine:
    """The engine a test runs on."""
    return ENGINES[request.param]


@pytest.fixture
def lab(
    tmp_path: Path, engine: Engine, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Lab]:
    """Two databases with five orders each, of the same keys; the first is the source's own address, too."""
    laboratory = lab_in(tmp_path, engine, request, monkeypatch)
    name = f"us_{urlsplit(laboratory.url).path.removeprefix('/')}"
    laboratory.sql(f"CREATE DATABASE {name}")
    other = Lab(tmp_path, path_of(laboratory.url, name), engine)
    for place, shard in ((laboratory, "eu"), (other, "us")):
        monkeypatch.setenv(f"{shard.upper()}_URL", place.url)
        place.create("orders", {"id": "whole", "note": "note"})
        place.insert("orders", [{"id": number, "note": shard} for number in range(5)])
    yield laboratory
    laboratory.sql(f"DROP DATABASE {name}")


@pytest.mark.parametrize("engine", ["postgres", "mariadb"], indirect=True)
@pytest.mark.parametrize("mode", ["", "mode: chunked, chunk_column: id, chunk_size: 2, parallel: 2, "])
def test_two_databases_of_one_server_are_two_shards(lab: Lab, mode: str) -> None:
    """Each window has the rows of its own; run again, each is known for what it was."""
    block = BLOCK.replace("shards", f"{mode}shards")

    first, second = lab.export(block), lab.export(block)

    assert ("success", "success") == (first.status, second.status), first.message or second.message
    for shard in ("eu", "us"):
        parts = lab.manifests("orders")[f"shard={shard}"].parts
        rows = [row for part in parts for row in pq.read_table(lab.folder / "lake/orders" / part.path).to_pylist()]
        assert [(number, shard) for number in range(5)] == sorted((row["id"], row["note"]) for row in rows)


@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
def test_one_database_under_two_urls_is_refused(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server says who it is: in the first run, and later, when only one of the two is asked."""
    other, rest = lab.url.split("://", 1)
    monkeypatch.setenv("US_URL", f"{'postgres' if other == 'postgresql' else 'postgresql'}://{rest}")

    together = lab.export(BLOCK)
    alone = lab.export(BLOCK, partitions=together.refused)

    assert ["RIVET_PROVENANCE_REFUSED"] * 2 == [together.code, alone.code], together.message
    assert "are one database" in alone.message
    assert 1 == len(together.refused) == len(lab.manifests("orders"))
    assert together.refused == alone.refused

    adopted = run_exports(lab.config(BLOCK), tags={ADOPT: "true"})
    assert ["success"] * 2 == [adopted[0].status, lab.export(BLOCK).status]  # a copy, as somebody says
    assert 2 == len(lab.manifests("orders"))
