"""Databases of one shape on real servers: two on one server are two, one under two URLs is one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rivet_assets.config.load import RivetConfig
from rivet_assets.launch.run_exports import run_exports
from rivet_assets.run.admit.admission import ADOPT
from rivet_resources.commit.manifest import current_manifests
from rivet_resources.commit.shards import shard_manifests, shard_roots
from rivet_resources.contracts.destination import Destination
from tests.engines.test_destinations import destination, fenced_gcs, fenced_s3, taking_azure  # noqa: F401
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
    with database_beside(laboratory) as url:
        for place, shard in ((laboratory, "eu"), (Lab(tmp_path, url, engine), "us")):
            monkeypatch.setenv(f"{shard.upper()}_URL", place.url)
            place.create("orders", {"id": "whole", "note": "note"})
            place.insert("orders", [{"id": number, "note": shard} for number in range(5)])
        yield laboratory


@contextmanager
def database_beside(lab: Lab) -> Iterator[str]:
    """Make another database of the same server, or another file; its URL or path."""
    if lab.engine.name == "sqlite":
        yield f"{lab.url}.us"
        return
    name = f"us_{urlsplit(lab.url).path.removeprefix('/')}"
    lab.sql(f"CREATE DATABASE {name}")
    if lab.engine.name == "sqlserver":
        lab.sql(f"ALTER DATABASE {name} SET ALLOW_SNAPSHOT_ISOLATION ON")
    yield path_of(lab.url, name)
    lab.sql(f"DROP DATABASE {name}")


def windows_of(config: RivetConfig) -> dict[str, list[tuple[int, str]]]:
    """Read the published rows of each window, wherever they are."""
    export = config.export("orders")
    root = export.destination.root("orders")
    found = (
        shard_manifests(shard_roots(export.destination, "orders", export.shards))
        if export.is_apart
        else [*current_manifests(root).values()]
    )
    rows: dict[str, list[tuple[int, str]]] = {each.window: [] for each in found}
    for each in found:
        for part in each.parts:
            table = pq.read_table(pa.BufferReader(root.read(part.path)[0]))
            rows[each.window] += [(row["id"], row["note"]) for row in table.to_pylist()]
    return {key: sorted(ids) for key, ids in rows.items()}


OF_BOTH = {f"shard={shard}": [(number, shard) for number in range(5)] for shard in ("eu", "us")}


@pytest.mark.parametrize("engine", ENGINES, indirect=True)
@pytest.mark.parametrize("mode", ["", "mode: chunked, chunk_column: id, chunk_size: 2, parallel: 2, "])
def test_two_databases_of_one_server_are_two_shards(lab: Lab, mode: str) -> None:
    """Each window has the rows of its own; run again, each is known for what it was."""
    block = BLOCK.replace("shards", f"{mode}shards")

    first, second = lab.export(block), lab.export(block)

    assert ("success", "success") == (first.status, second.status), first.message or second.message
    assert OF_BOTH == windows_of(lab.config(block))


@pytest.mark.parametrize("engine", ENGINES, indirect=True)
def test_each_database_goes_on_from_its_own_cursor(
    lab: Lab, tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have the same keys; one that is away keeps its cursor, and the other one's is moved."""
    block = BLOCK.replace("shards", "mode: incremental, cursor_column: id, shards")
    us = os.environ["US_URL"]
    first = lab.export(block)
    lab.insert("orders", [{"id": 5, "note": "eu"}])
    Lab(tmp_path, us, engine).insert("orders", [{"id": number, "note": "us"} for number in (5, 6)])
    with monkeypatch.context() as away:
        away.setenv("US_URL", f"{us}.gone" if engine.name == "sqlite" else path_of(us, "rivet_is_not_there"))
        second = lab.export(block)
    between = windows_of(lab.config(block))
    third = lab.export(block)

    assert ("success", 10) == (first.status, first.rows), first.message
    assert ("failed", ("shard=us",), ("shard=eu",)) == (second.status, second.refused, second.windows), second.message
    assert "Shard us: " in second.message
    of_eu = {"shard=eu": [*OF_BOTH["shard=eu"], (5, "eu")]}
    assert OF_BOTH | of_eu == between
    assert ("success", 2) == (third.status, third.rows), third.message
    assert of_eu | {"shard=us": [*OF_BOTH["shard=us"], (5, "us"), (6, "us")]} == windows_of(lab.config(block))


@pytest.mark.parametrize("engine", ENGINES, indirect=True)
def test_each_database_and_each_value_has_a_snapshot_of_the_day(lab: Lab) -> None:
    """Run again on the same day, it is replaced."""
    shards = BLOCK.replace("shards", "snapshots: daily, keep: 2, shards")
    values = BLOCK.replace("name: orders", "name: days").replace(
        "shards: {eu: EU_URL, us: US_URL}", "snapshots: daily, partition_by: {column: note, values: [eu, us]}"
    )

    first, second, by_value = lab.export(shards), lab.export(shards), lab.export(values)

    assert ["success"] * 3 == [first.status, second.status, by_value.status], first.message or by_value.message
    day = first.windows[0].partition("|")[0]
    assert {f"{day}|{shard}": rows for shard, rows in OF_BOTH.items()} == windows_of(lab.config(shards))
    assert ((f"{day}|note=eu", f"{day}|note=us"), 5) == (by_value.windows, by_value.rows)


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
@pytest.mark.parametrize("mode", ["", "mode: incremental, cursor_column: id, "])
@pytest.mark.parametrize("destination", ["s3", "gcs", "azure"], indirect=True)
def test_shards_are_windows_in_an_object_store(lab: Lab, destination: Destination, mode: str) -> None:  # noqa: F811
    """Each in a folder of its own; a second run replaces one of them and leaves the other."""
    place = destination.model_dump_json(exclude_unset=True)[1:]
    block = BLOCK.replace("shards", f"destination: {{type: {destination.type}, {place}, {mode}shards")

    first = lab.export(block)
    lab.sql("INSERT INTO orders VALUES (5, 'eu')")
    second = lab.export(block, partitions=("eu",))

    assert ("success", "success") == (first.status, second.status), first.message or second.message
    assert OF_BOTH | {"shard=eu": [*OF_BOTH["shard=eu"], (5, "eu")]} == windows_of(lab.config(block))


@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
@pytest.mark.parametrize("mode", ["", "mode: incremental, cursor_column: id, "])
def test_one_database_under_two_urls_is_refused(lab: Lab, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server says who it is: in the first run, and later, when only one of the two is asked."""
    block = BLOCK.replace("shards", f"{mode}shards")
    other, rest = lab.url.split("://", 1)
    monkeypatch.setenv("US_URL", f"{'postgres' if other == 'postgresql' else 'postgresql'}://{rest}")

    together = lab.export(block)
    alone = lab.export(block, partitions=together.refused)

    assert ["RIVET_PROVENANCE_REFUSED"] * 2 == [together.code, alone.code], together.message
    assert "are one database" in alone.message
    assert 1 == len(together.refused) == len(windows_of(lab.config(block)))
    assert together.refused == alone.refused

    adopted = run_exports(lab.config(block), tags={ADOPT: "true"})
    assert ["success"] * 2 == [adopted[0].status, lab.export(block).status]  # a copy, as somebody says
    assert 2 == len(windows_of(lab.config(block)))
