"""What a window costs an object store: each request is paid for, ten thousand windows an hour.

Beside the three PUTs (the manifest, and the two files that the original's readers know) a window looks around twice,
before it reads and before its swap, and reads one manifest in all. Parts have their own test (`test_destinations.py`).
"""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rivet_assets.config.load import load_config
from rivet_assets.launch.run_exports import run_exports
from rivet_resources.commit import listing
from tests.asked import requests_noted
from tests.servers.postgres import AZURITE_ACCOUNT, ObjectStore

YAML = """
source: {{type: sqlite, path: {folder}/shop.db}}
state: sqlite:///{folder}/state.db
spark: inline
exports:
  - name: orders
    table: orders
    columns: {{at: timestamp}}
    format: parquet
    destination: {place}
    {mode}
"""
HOURLY = "{mode: time_window, time_column: at, granularity: hour, start: 2026-01-01, skip_empty: false}"
DAILY = HOURLY.replace("hour", "day")
INCREMENTAL = "{mode: incremental, cursor_column: id}"
FULL = "{mode: full}"

PART = Counter({"PUT": 2, "DELETE": 1})
WINDOW = Counter({"LIST": 2, "GET": 1, "PUT": 3})
REPLACED = Counter({"DELETE": 1})  # the old part
ON_GCS = Counter({"LIST": 2, "GET": 3, "POST": 3})  # the emulator leaves the generation out of an answer: two more
ON_AZURE = Counter({"LIST": 2, "GET": 1, "PUT": 3})


@pytest.fixture(params=["s3", "gcs", "azure"])
def place(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Settings of an empty place of each kind."""
    server: ObjectStore = request.getfixturevalue(f"{request.param}_server")
    where = {"type": request.param, "prefix": f"p{uuid.uuid4().hex}", "endpoint": server.endpoint}
    if request.param == "azure":
        return {**where, "account": AZURITE_ACCOUNT, "container": server.bucket, "account_key_env": "AZURE_KEY"}
    return {**where, "bucket": server.bucket, **({"allow_anonymous": True} if request.param == "gcs" else {})}


def asked_by_the_last(
    folder: Path, place: dict[str, Any], mode: str, *, partitions: tuple[str, ...] = (), runs: int = 3
) -> Counter[str]:
    """Run an export some times, or once for each partition, with a new row before each; the requests of the last."""
    settings = mode.strip("{}").replace(", ", "\n    ")
    (folder / "rivet.yaml").write_text(YAML.format(folder=folder, place=json.dumps(place), mode=settings))
    config = load_config(folder / "rivet.yaml")
    with sqlite3.connect(folder / "shop.db") as shop:
        shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, at TEXT)")
    counted = list[Counter[str]]()
    for number, partition in enumerate(partitions or ("",) * runs):
        with sqlite3.connect(folder / "shop.db") as shop:
            shop.execute("INSERT INTO orders VALUES (?, ?)", (number, f"{partition[:10] or FIRST} 0{number}:30:00"))
        with requests_noted() as asked:
            (outcome,) = run_exports(config, partitions=(partition,) if partition else ())
        assert outcome.status == "success", outcome
        counted.append(Counter(asked))
    return counted[-1]


FIRST = "2026-01-01"
HOURS = tuple(f"2026-01-01-{hour:02}:00" for hour in range(4))
DAYS = tuple(f"2026-01-0{day}" for day in range(1, 7))


def test_window_of_time_costs_six_requests_beside_its_part(place: dict[str, Any], tmp_path: Path) -> None:
    """Nothing is asked twice, and nobody looks for leftovers where there can be none."""
    expected = {"s3": WINDOW + PART, "gcs": ON_GCS + Counter({"POST": 2, "DELETE": 1})}
    expected["azure"] = ON_AZURE + Counter({"PUT": 3, "HEAD": 1, "DELETE": 1})

    assert expected[place["type"]] == asked_by_the_last(tmp_path, place, HOURLY, partitions=HOURS)


@pytest.mark.parametrize("place", ["s3"], indirect=True)
def test_newest_window_costs_the_same_beside_more_than_a_listing_names(
    place: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its neighbours are found by one listing that begins a month before it."""
    monkeypatch.setattr(listing, "MANY", 3)
    monkeypatch.setattr(listing, "LONGEST_WINDOW", timedelta(days=1))

    assert WINDOW + PART == asked_by_the_last(tmp_path, place, DAILY, partitions=DAYS)


@pytest.mark.parametrize("place", ["s3"], indirect=True)
@pytest.mark.parametrize(("mode", "more"), [(INCREMENTAL, Counter()), (FULL, REPLACED)], ids=["incremental", "full"])
def test_other_windows_cost_six_requests_beside_their_part(
    place: dict[str, Any], mode: str, more: Counter[str], tmp_path: Path
) -> None:
    """What a full export replaces is read once, and its part removed."""
    assert WINDOW + PART + more == asked_by_the_last(tmp_path, place, mode)


@pytest.mark.parametrize("place", ["s3"], indirect=True)
def test_window_that_is_run_again_reads_its_own_manifest_and_its_neighbour(
    place: dict[str, Any], tmp_path: Path
) -> None:
    """One request more, and the part of before goes."""
    asked = asked_by_the_last(tmp_path, place, HOURLY, partitions=(*HOURS, HOURS[1]))

    assert WINDOW + PART + REPLACED + Counter({"GET": 3}) == asked


@pytest.mark.parametrize("place", ["s3"], indirect=True)
@pytest.mark.parametrize("runs", [3, 6])
def test_long_chain_that_was_never_compacted_costs_no_request_more(
    place: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: int
) -> None:
    """It is known by its last window, and what replaces a chain has a name behind all of its windows."""
    monkeypatch.setattr(listing, "MANY", 2)

    assert WINDOW + PART == asked_by_the_last(tmp_path, place, INCREMENTAL, runs=runs)
