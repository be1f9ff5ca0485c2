"""What a window costs an object store: each request is paid for, ten thousand windows an hour.

Beside the three PUTs (the manifest, and the two files that the original's readers know) a window looks around twice,
before it reads and before its swap, and reads one manifest in all. Parts have their own test (`test_destinations.py`).
"""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rivet_assets.config.load import load_config
from rivet_assets.launch.run_exports import run_exports
from rivet_resources.commit import listing
from rivet_resources.commit.manifest import current_manifests
from rivet_resources.contracts.extract import Window
from rivet_resources.destinations.local import LocalRoot
from rivet_resources.drain import window_size
from rivet_resources.fan_out import in_threads
from rivet_resources.registry import DESTINATIONS
from tests.asked import requests_noted
from tests.engines.test_destinations import taking_azure  # noqa: F401
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

DRAIN = """
source: {{type: datagen, pattern: orders, cdc_mode: true, events_per_second: 0, seed: 1}}
state: sqlite:///{folder}/state.db
spark: inline
exports:
  - name: orders
    table: orders
    mode: cdc
    cdc: {{max_events: {changes}}}
    format: parquet
    destination: {place}
"""

PART = Counter({"PUT": 2, "DELETE": 1})
WINDOW = Counter({"LIST": 2, "GET": 1, "PUT": 3})
REPLACED = Counter({"DELETE": 1})  # the old part
ON_GCS = Counter({"LIST": 2, "GET": 3, "POST": 3})  # the emulator leaves the generation out of an answer: two more
ON_AZURE = Counter({"LIST": 2, "GET": 1, "PUT": 3})
ON_DISK = Counter({"LIST": 2, "GET": 3, "PUT": 3})  # whose listings tell no versions
DRAINED = Counter({"LIST": 1, "GET": 1, "PUT": 3})  # the window before was committed by the same process


@pytest.fixture(params=["s3", "gcs", "azure"])
def place(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Settings of an empty place of each kind."""
    name = "taking_azure" if request.param == "azure" else f"{request.param}_server"
    server: ObjectStore = request.getfixturevalue(name)
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
    expected["azure"] = ON_AZURE + PART

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
@pytest.mark.parametrize("runs", [5, 8])
def test_long_chain_that_was_never_compacted_costs_no_request_more(
    place: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: int
) -> None:
    """It is known by its last window, and what replaces a chain has a name behind all of its windows."""
    monkeypatch.setattr(listing, "MANY", 3)

    assert WINDOW + PART == asked_by_the_last(tmp_path, place, INCREMENTAL, runs=runs)


FIRST_ID = 1_000_000  # names of windows sort as their numbers do, as those of times


def fill(destination: dict[str, Any], key_of: Callable[[int], str], *, windows: int) -> None:
    """Cut the last window of a chain into so many, each a copy of it; parts are not looked at."""
    root = DESTINATIONS[destination["type"]](**destination).root("orders")
    manifests = current_manifests(root)
    original = next(each for each in manifests.values() if len(manifests) == 1 or each.window != "after=start")
    assert original.cursor is not None

    def put(number: int) -> None:
        low = key_of(number) if number else original.cursor.low
        made = original.model_copy(
            update={
                "run_id": f"orders_20260101T000000.000_{number:06x}",
                "window": Window.after(low).key,
                "cursor": original.cursor.model_copy(update={"low": low, "high": key_of(number + 1)}),
            }
        )
        if isinstance(root, LocalRoot):  # ten thousand waits for a disk would be the whole test
            (Path(root.uri) / made.path).write_bytes(made.content)
        else:
            root.put(made.path, made.content)

    in_threads(put, range(windows), most=8)


@contextmanager
def calls_noted() -> Iterator[list[str]]:
    """Note what is asked of a folder on a disk, by the names that a bill of a store would have."""
    noted, bill = list[str](), {"list_after": "LIST", "list": "LIST", "read": "GET", "put": "PUT", "swap": "PUT"}
    with pytest.MonkeyPatch.context() as patch:
        for name, kind in bill.items():
            asked = getattr(LocalRoot, name)
            patch.setattr(
                LocalRoot, name,
                lambda *given, kind=kind, asked=asked, **named: noted.append(kind) or asked(*given, **named),
            )  # fmt: skip
        yield noted


@pytest.mark.slow
@pytest.mark.rare
@pytest.mark.parametrize("kind", ["s3", "local"])
def test_chain_of_ten_thousand_windows_costs_no_request_more(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    """Never compacted; what the first run finds beside it, and what the next ones do."""
    windows = 10_000
    place: dict[str, Any] = {"type": "local", "path": str(tmp_path / "lake")}
    if kind == "s3":
        server: ObjectStore = request.getfixturevalue("s3_server")
        place = {"type": "s3", "bucket": server.bucket, "prefix": uuid.uuid4().hex, "endpoint": server.endpoint}
    settings = INCREMENTAL.strip("{}").replace(", ", "\n    ")
    (tmp_path / "rivet.yaml").write_text(YAML.format(folder=tmp_path, place=json.dumps(place), mode=settings))
    config = load_config(tmp_path / "rivet.yaml")
    with sqlite3.connect(tmp_path / "shop.db") as shop:
        shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, at TEXT)")
    counted = list[Counter[str]]()
    for number in range(4):
        with sqlite3.connect(tmp_path / "shop.db") as shop:
            shop.execute("INSERT INTO orders VALUES (?, '2026-01-01 00:00:00')", (FIRST_ID + windows + number,))
        with requests_noted() if kind == "s3" else calls_noted() as asked:
            (outcome,) = run_exports(config)
        assert outcome.status == "success", outcome
        if number == 0:
            fill(place, lambda link: str(FIRST_ID + link), windows=windows)
        counted.append(Counter(asked))

    assert {"s3": WINDOW + PART, "local": ON_DISK}[kind] == counted[-1]


@pytest.mark.parametrize("place", ["s3"], indirect=True)
@pytest.mark.parametrize(
    "windows",
    [
        10,
        pytest.param(1200, marks=pytest.mark.rare),
        pytest.param(10_000, marks=[pytest.mark.rare, pytest.mark.slow]),
    ],
)
def test_window_of_a_drain_costs_five_requests_beside_its_part(
    place: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, windows: int
) -> None:
    """Each begins where the last one of the same process ended, however long the chain is."""
    counted = list[Counter[str]]()
    for number, cut in enumerate((1, 2, 3, 4, 5)):
        changes = windows if not number else cut
        monkeypatch.setattr(window_size, "MOST_CHANGES", changes if not number else 1)
        (tmp_path / "rivet.yaml").write_text(DRAIN.format(folder=tmp_path, place=json.dumps(place), changes=changes))
        with requests_noted() as asked:
            (outcome,) = run_exports(load_config(tmp_path / "rivet.yaml"))
        assert outcome.status == "success", outcome
        if number == 0:
            fill(place, lambda link: f"{link:016x}", windows=windows)
        counted.append(Counter(asked))

    assert WINDOW + PART + DRAINED + PART + DRAINED + PART == counted[2]
    assert DRAINED + PART == counted[3] - counted[2] == counted[4] - counted[3]
