"""`rivet status` and `rivet spec`: what runs, and what there is."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rivet_assets.cli.main import commands
from rivet_assets.config.load import load_config
from rivet_assets.run.admit.scope import state_of
from rivet_resources import scratch
from rivet_resources.registry import DESTINATIONS, ENGINES, FORMATS, STEPS
from rivet_resources.state.runs import RunRecord
from rivet_resources.state.store import State

YAML = """
source: {type: sqlite, path: shop.db}
exports:
  - {name: orders, mode: full, table: orders, format: parquet, destination: {type: local, path: lake}}
  - {name: items, mode: chunked, chunk_column: id, table: items, format: parquet, destination: {type: local, path: l2}}
"""
RUN = "orders_20260101T000000.000_000001"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[State]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rivet.yaml").write_text(YAML)
    state = state_of(load_config(tmp_path / "rivet.yaml"))
    yield state
    state.close()


def rivet(*arguments: str) -> Result:
    return CliRunner().invoke(commands, arguments, standalone_mode=False)


def lines(*arguments: str) -> dict[str, Any]:
    """Return what `rivet status --json` tells of each export."""
    told = rivet("status", "--json", *arguments)
    assert told.exception is None, told.output
    return {each["export"]: each for each in json.loads(told.stdout)}


def test_export_that_never_ran_says_so(state: State) -> None:
    """Nothing is known of it, and nothing is made up."""
    found = lines()

    assert [found["orders"]["status"], found["orders"]["work"], found["orders"]["last_run"]] == ["never ran", [], None]


def test_running_export_tells_window_process_and_rows_read_so_far(state: State) -> None:
    """While a run holds its window: whose it is, since when, and how many rows its tasks have read."""
    folder = scratch.folder_of(RUN) / "task"
    with scratch.held(folder.parent), state.lease("orders", "all", RUN):
        state.begin_run(RunRecord(RUN, "orders", "all", datetime.now(UTC), mode="full"))
        folder.mkdir()
        (folder / "rows").write_text("4711")
        found = lines()["orders"]
        text = rivet("status").output

    (work,) = found["work"]
    assert (found["status"], work["window"], work["pid"], work["rows"]) == ("running", "all", os.getpid(), 4711)
    assert "4,711" in text
    assert f"process {os.getpid()} on" in text


def test_last_run_is_told_with_its_end(state: State) -> None:
    """At rest: how the last run ended, its rows, and the code of its error."""
    state.begin_run(RunRecord(RUN, "orders", "all", datetime(2026, 1, 1, tzinfo=UTC), mode="full"))
    state.finish_run(RUN, "failed", finished_at=datetime(2026, 1, 1, 1, tzinfo=UTC), error_code="RIVET_SOURCE_LOST")

    found, text = lines("-e", "orders"), rivet("status", "-e", "orders").output

    assert list(found) == ["orders"]
    assert (found["orders"]["status"], found["orders"]["last_run"]["error_code"]) == ("failed", "RIVET_SOURCE_LOST")
    assert "2026-01-01 01:00:00Z" in text


def test_run_whose_process_is_gone_is_not_called_running(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its record says `running` for ever; nobody holds its window and its process is dead, so it died."""
    gone = RunRecord(RUN, "orders", "all", datetime.now(UTC), mode="full")
    state.begin_run(gone)
    monkeypatch.setattr("rivet_resources.state.runs.is_alive", lambda process: False)

    assert lines()["orders"]["status"] == "died"


def test_lag_of_drains_is_asked_when_it_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a drain how far behind it is; of other exports nothing; a source that is away is named, and ends nothing."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rivet.yaml").write_text("""
sources:
  made: {type: datagen, pattern: orders, max_events: 10, events_per_second: 0, seed: 1}
  away: {type: postgres, url: "postgresql://u:s3cr3t@127.0.0.1:1/d"}
spark: inline
exports:
  - {name: plain, source: made, table: orders, format: parquet, destination: {type: local, path: lake}}
  - {name: made, source: made, table: orders, mode: cdc, format: parquet, destination: {type: local, path: lake}}
  - {name: gone, source: away, table: orders, mode: cdc, format: parquet, destination: {type: local, path: lake},
     cdc: {slot: gone}}
""")

    told = rivet("status", "--lag", "--json")

    assert told.exception is None, told.output
    lags = {each["export"]: each["lag"] for each in json.loads(told.stdout)}
    assert (lags["plain"], lags["gone"]) == (None, None)
    assert lags["made"] == "this source cannot tell how far behind we are"
    assert "gone: not known how far behind: " in told.stderr
    assert "s3cr3t" not in told.output


def test_spec_lists_every_word_of_the_registry() -> None:
    """Each engine, destination, format and transform once, by all its words."""
    blocks = json.loads(rivet("spec", "--json").stdout)

    words = [word for block in blocks for word in block["words"]]
    assert sorted(words) == sorted([*ENGINES, *DESTINATIONS, *FORMATS, *STEPS])
    extras = {block["words"][0]: block["extra"] for block in blocks if block["kind"] in ("engine", "destination")}
    assert (extras["postgres"], extras["s3"], extras["sqlite"]) == ("postgres", "s3", "")


def test_spec_tells_the_keys_of_one_thing() -> None:
    """What must be given, what it takes, its default, and what it means."""
    (block,) = json.loads(rivet("spec", "s3", "--json").stdout)
    keys = {key["key"]: key for key in block["keys"]}

    assert (keys["bucket"]["is_required"], keys["prefix"]["is_required"]) == (True, False)
    assert keys["allow_anonymous"]["type"] == "true | false"
    assert "never created by Rivet" in rivet("spec", "s3").output


def test_spec_of_an_unknown_word_names_the_nearest() -> None:
    """As with wrong commands and keys."""
    told = rivet("spec", "postgers")

    assert "did you mean 'postgres'?" in str(told.exception)
