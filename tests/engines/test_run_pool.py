"""Several exports at once in one `rivet run`: each runs once, and after those that it looks values up in."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import dagster as dg
import pytest

from rivet_assets import definitions
from rivet_assets.config.load import RivetConfig
from rivet_assets.launch.recorder import News
from rivet_assets.launch.run_exports import run_exports
from tests.lab import Lab
from tests.lab_engines import SQLITE

NAMES = [f"orders{number}" for number in range(7)]
LANES = 3


@pytest.fixture
def lab(tmp_path: Path, fresh_sqlite: str, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """Seven tables of one to seven rows."""
    monkeypatch.setenv("LAB_URL", fresh_sqlite)
    monkeypatch.chdir(tmp_path)
    laboratory = Lab(tmp_path, fresh_sqlite, SQLITE)
    for number, name in enumerate(NAMES):
        laboratory.create(name, {"id": "whole", "note": "note"})
        laboratory.insert(name, [{"id": each, "note": "x"} for each in range(number + 1)])
    return laboratory


def test_exports_run_in_so_many_lanes_at_once(lab: Lab) -> None:
    """The first of each lane waits for the first of the others: alone it would wait for ever."""
    config = lab.config(*(f"{{name: {name}, table: {name}}}" for name in NAMES))
    together, begun = threading.Barrier(LANES), list[str]()

    def watch(news: News) -> None:
        if news.what == "started" and len(begun) < LANES:
            begun.append(news.export)
            together.wait(timeout=60)

    outcomes = run_exports(config, watch=watch, pool=LANES)

    assert not together.broken
    assert sorted(NAMES[:LANES]) == sorted(begun)
    assert NAMES == [outcome.export for outcome in outcomes]
    assert [(True, number + 1) for number in range(7)] == [(outcome.success, outcome.rows) for outcome in outcomes]


def test_lanes_load_one_after_another(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dagster wraps resources at their first use, without a lock: two that load at once may be refused by it."""
    load, busy, met = definitions.definitions_of, threading.Lock(), list[bool]()

    def load_slowly(config: RivetConfig) -> dg.Definitions:
        alone = busy.acquire(blocking=False)
        met.append(alone)
        time.sleep(0.1)
        try:
            return load(config)
        finally:
            if alone:
                busy.release()

    monkeypatch.setattr(definitions, "definitions_of", load_slowly)

    outcomes = run_exports(lab.config(*(f"{{name: {name}, table: {name}}}" for name in NAMES)), pool=LANES)

    assert [True] * LANES == met
    assert all(outcome.success for outcome in outcomes)


def test_failed_export_stops_none_of_any_lane(lab: Lab) -> None:
    """Its outcome stands at its place."""
    blocks = [f"{{name: {name}, table: {name}}}" for name in NAMES]
    blocks[1] = "{name: orders1, table: nowhere}"

    outcomes = run_exports(lab.config(*blocks), pool=LANES)

    assert [name != "orders1" for name in NAMES] == [outcome.success for outcome in outcomes]


def test_export_runs_after_the_one_that_it_looks_values_up_in(lab: Lab) -> None:
    """Also where both could run at once."""
    contract = "contract: {references: {seventh: {columns: id, export: orders6}}}"
    ended = list[str]()

    def watch(news: News) -> None:
        if news.what in ("started", "finished"):
            ended.append(f"{news.what} {news.export}")

    outcomes = run_exports(
        lab.config(f"{{name: orders3, table: orders3, {contract}}}", "{name: orders6, table: orders6}"),
        watch=watch,
        pool=LANES,
    )

    assert [True, True] == [outcome.success for outcome in outcomes], outcomes
    assert ended.index("finished orders6") < ended.index("started orders3")
