"""How long a plan says that an export takes, and what it says that the server keeps meanwhile."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from rivet_assets.plan.duration import advice, duration_text, holds_back_text, rate_of
from rivet_assets.run.words import human_seconds
from rivet_resources.contracts.engine_facts import EngineFacts
from rivet_resources.contracts.extract import Extract, Window
from rivet_resources.contracts.relation import Chunk, Relation
from rivet_resources.state.runs import RunRecord

POSTGRES = EngineFacts(holds_back="vacuum waits")
HOUR, NOW = 3600.0, datetime(2026, 3, 1, tzinfo=UTC)
ALL: dict[str, Any] = {"rows": 9_000_000, "seconds": 10 * HOUR}


def extract(**changes: Any) -> Extract:
    """Make one of ten chunks under a shared snapshot."""
    chunks = tuple(Chunk(number, "cursor", "orders") for number in range(10))
    relation = Relation("orders", "orders", (), True)
    made = Extract(
        export="orders", mode="chunked", window=Window("all"), run_id="r", relation=relation, chunks=chunks,
        source=None, destination=None, format=None, pace=None, consistency="snapshot", snapshot="00-1",
    )  # fmt: skip
    return replace(made, **changes)


def run(rows: int, milliseconds: int, **changes: Any) -> RunRecord:
    """Make the record of a run that committed so many rows."""
    return RunRecord("r", "orders", "all", NOW, total_rows=rows, duration_ms=milliseconds, **changes)


def test_rate_is_of_the_run_that_read_most() -> None:
    """Small runs are mostly their own start; rows that a filter left out were read all the same."""
    assert rate_of([run(10, 2_000), run(50_000, 2_500, rows_read=100_000), run(70_000, 70_000)]) == 40_000
    assert rate_of([run(0, 900)]) is None
    assert rate_of([]) is None


def test_duration_needs_rows_and_a_rate() -> None:
    """Nothing is said where either is unknown."""
    assert duration_text(480_000_000, 40_000.0) == "about 3 h 20 min, at 40,000 rows/s as its largest run"
    assert duration_text(None, 40_000.0) == ""
    assert duration_text(0, 40_000.0) == ""
    assert duration_text(480_000_000, None) == ""


@pytest.mark.parametrize(
    ("changes", "how", "expected"),
    [
        ({}, ALL, "one snapshot, about 10 h: vacuum waits"),
        ({}, {"rows": 9_000_000, "seconds": None}, "one snapshot, as long as it takes: vacuum waits"),
        ({}, {"rows": 900, "seconds": None}, ""),
        ({}, {"rows": 9_000_000, "seconds": 40.0}, ""),
        ({}, {"rows": 0, "seconds": 0.0}, ""),
        ({"snapshot": None, "consistency": "single"}, ALL, "one snapshot, about 10 h: vacuum waits"),
        ({"snapshot": None, "consistency": "per_query", "parallel": 2}, ALL,
         "one snapshot for each of 10 chunks, about 2 h: vacuum waits"),
        ({"snapshot": None, "consistency": "per_query", "chunks": (Chunk(0, "keyset", "orders"),)}, ALL, ""),
    ],
)  # fmt: skip
def test_plan_says_what_a_server_keeps_and_for_how_long(
    changes: dict[str, Any], how: dict[str, Any], expected: str
) -> None:
    """All of the time for one instant, a chunk's share for one each, and nothing for short pages."""
    assert holds_back_text(extract(**changes), POSTGRES, **how) == expected
    assert holds_back_text(extract(**changes), EngineFacts(), **how) == ""


def test_advice_names_the_key_that_holds_less() -> None:
    """Only where a long snapshot is held, and the source can do without."""
    assert advice(extract(), POSTGRES, seconds=10 * HOUR, is_chunked=True).startswith("consistency: per_chunk holds")
    assert advice(extract(), POSTGRES, seconds=10 * HOUR, is_chunked=False).startswith("mode: chunked with consistency")
    assert advice(extract(), POSTGRES, seconds=60.0, is_chunked=True) == ""
    assert advice(extract(), POSTGRES, seconds=None, is_chunked=True) == ""
    assert advice(extract(), replace(POSTGRES, has_chunk_instants=False), seconds=10 * HOUR, is_chunked=True) == ""
    assert advice(extract(snapshot=None, consistency="per_query"), POSTGRES, seconds=10 * HOUR, is_chunked=True) == ""


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.44, "0.4 s"), (12.3, "12 s"), (89, "89 s"), (300, "5 min"), (12_000, "3 h 20 min"), (7200, "2 h"),
        (187_200, "2 d 4 h"), (172_800, "2 d"),
    ],
)  # fmt: skip
def test_durations_are_written_as_people_read_them(seconds: float, expected: str) -> None:
    """Two units at most."""
    assert human_seconds(seconds) == expected
