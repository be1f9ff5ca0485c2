"""A chunk whose statement runs into `statement_timeout_s` is read in halves: each row once, or a way out is named.

Belongs here: real statements that are too long as a whole and short enough in halves, on every engine that has a limit
of its own. Not here: pages that shrink (each engine's `test_pages.py`), where a range is parted (`test_key_ranges.py`).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.emulators.tds import server as tds
from tests.lab import Lab, lab_in
from tests.lab_engines import MARIADB, MYSQL, POSTGRES, SQLSERVER, Engine

ROWS = 40
# Asleep for 30 ms on each row that a task reads; the planner's look for the least and the greatest key is not.
NAPS = {
    "postgres": "SELECT id, note FROM t WHERE CASE WHEN current_query() LIKE 'FETCH%' THEN pg_sleep(0.03) IS NOT NULL "
    "ELSE true END",
    "mariadb": "SELECT id, note, SLEEP(0.03) AS nap FROM t",
    "mysql": "SELECT id, note, SLEEP(0.03) AS nap FROM t",
}


@pytest.fixture(params=[POSTGRES, MARIADB, MYSQL], ids=lambda engine: engine.name)
def lab(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A table of forty rows, one of each key."""
    return filled(lab_in(tmp_path, request.param, request, monkeypatch))


def filled(lab: Lab) -> Lab:
    """Make the table."""
    lab.create("t", {"id": "whole", "note": "note"})
    lab.insert("t", [{"id": i, "note": f"n{i}"} for i in range(1, ROWS + 1)])
    return lab


def block(engine: Engine, *, chunks: int = 1) -> str:
    """Return an export by ranges of the key, with a limit of a second."""
    return f"""
        {{name: slow, mode: chunked, chunk_column: id, chunk_count: {chunks}, query: "{NAPS[engine.name]}",
         tuning: {{statement_timeout_s: 1}}}}"""


def test_a_chunk_that_is_too_long_is_read_in_halves_that_meet(lab: Lab) -> None:
    """1.2 s of statement under a limit of 1 s: two of 0.6 s bring every row, and none twice."""
    outcome = lab.export(block(lab.engine))

    assert outcome.status == "success", outcome.message
    assert list(range(1, ROWS + 1)) == lab.table("slow").column("id").to_pylist()
    (manifest,) = lab.manifests("slow").values()
    assert (ROWS, ROWS, 1) == (manifest.row_count, manifest.source.extraction.source_row_count, outcome.retries)


def test_halves_that_are_too_long_end_with_the_way_out(lab: Lab) -> None:
    """A chunk is parted once; what was staged of it is gone, and nothing is published."""
    lab.insert("t", [{"id": i, "note": "more"} for i in range(ROWS + 1, ROWS * 3)])

    outcome = lab.export(block(lab.engine))

    assert outcome.status == "failed"
    for words in ("statement_timeout_s", "raise that limit", "read in halves already"):
        assert words in outcome.message
    assert {} == lab.manifests("slow")
    assert [] == lab.parts("slow")


@pytest.mark.skipif(not tds.is_emulated(), reason="a real server fails at no one's demand")
@pytest.mark.parametrize("times", [1, 3])
def test_a_page_walk_of_sql_server_is_read_in_halves(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """A page that times out is asked smaller, then its chunk in halves; each half has one smaller page to spare."""
    lab = filled(lab_in(tmp_path, SQLSERVER, request, monkeypatch))
    tds.fault(lab.url, match=r"SELECT TOP.*FROM \[dbo\]\.\[t\].*ORDER BY", times=times, delay_seconds=20)

    outcome = lab.export(
        "{name: slow, mode: chunked, chunk_by_key: id, table: t, tuning: {statement_timeout_s: 1, batch_size: 16}}"
    )

    assert outcome.status == "success", outcome.message
    assert list(range(1, ROWS + 1)) == lab.table("slow").column("id").to_pylist()
