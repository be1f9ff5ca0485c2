"""`consistency: per_chunk`: each chunk has an instant of its own, nothing older is held, and finished chunks last."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from rivet_assets.launch.outcome import Outcome
from rivet_assets.launch.recorder import News
from rivet_assets.launch.run_exports import run_exports
from tests import processes
from tests.faults.dying import DIED
from tests.lab import Lab, lab_in
from tests.lab_engines import ENGINES, Engine

ROWS = 100
BLOCK = "{name: orders, table: orders, mode: chunked, chunk_column: id, chunk_size: 25, parallel: 1, %s}"
PER_CHUNK = "consistency: per_chunk, tuning: {batch_size: 10}"
HOLDERS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE application_name LIKE 'rivet%' AND datname = current_database() AND backend_xmin IS NOT NULL
"""


@pytest.fixture(params=["postgres", "mariadb", "mysql", "sqlite"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """The engine a test runs on."""
    return ENGINES[request.param]


@pytest.fixture
def lab(tmp_path: Path, engine: Engine, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A table of four chunks."""
    laboratory = lab_in(tmp_path, engine, request, monkeypatch)
    laboratory.create("orders", {"id": "whole", "note": "note"})
    laboratory.insert("orders", [{"id": number, "note": "before"} for number in range(ROWS)])
    laboratory.analyze("orders")
    return laboratory


def run(lab: Lab, keys: str, *statements: str) -> Outcome:
    """Run the export; the statements are run at the source once the first chunk is read."""
    left = list(statements)

    def watch(news: News) -> None:
        if news.progress is not None and news.progress.done == 1 and left:
            lab.sql(*left)
            left.clear()

    (outcome,) = run_exports(lab.config(BLOCK % keys), watch=watch)
    assert not left
    return outcome


def test_each_chunk_sees_the_rows_of_its_own_instant(lab: Lab) -> None:
    """A row that changed after the first chunk was read is exported as it is by now, where it is in a later one."""
    outcome = run(lab, PER_CHUNK, "UPDATE orders SET note = 'after' WHERE id IN (3, 80)")

    assert outcome.success, outcome.message
    assert {"before": 99, "after": 1} == count(lab)
    assert (ROWS, "after") == (len(lab.rows("orders")), lab.rows("orders")[80]["note"])
    (manifest,) = lab.manifests("orders").values()
    assert "per_query" == manifest.consistency


@pytest.mark.parametrize("engine", ["mariadb"], indirect=True)
def test_export_may_have_chunks_of_their_own_where_its_source_aligns(lab: Lab) -> None:
    """The export's word counts: no lock is taken, and each chunk sees its own instant."""
    lab.engine = replace(lab.engine, source=lab.engine.source | {"consistency": "aligned"})

    assert run(lab, PER_CHUNK, "UPDATE orders SET note = 'after' WHERE id IN (3, 80)").success

    assert {"before": 99, "after": 1} == count(lab)


@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
def test_one_snapshot_is_what_is_held_otherwise(lab: Lab) -> None:
    """The rest of the table is read as it was when the first chunk was."""
    assert run(lab, "consistency: snapshot", "UPDATE orders SET note = 'after' WHERE id = 80").success

    assert {"before": ROWS} == count(lab)


@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
@pytest.mark.parametrize(("keys", "held"), [("consistency: snapshot", 1), (PER_CHUNK, 0)])
def test_nothing_holds_vacuum_back_between_two_chunks(lab: Lab, keys: str, held: int) -> None:
    """No transaction of ours has an xmin while none of our chunks is read; with a snapshot one has."""
    seen = list[int]()

    def watch(news: News) -> None:
        if news.progress is not None and 0 < news.progress.done < news.progress.of:
            with psycopg.connect(lab.url) as looking:
                seen.append(looking.execute(HOLDERS).fetchone()[0])

    (outcome,) = run_exports(lab.config(BLOCK % keys), watch=watch)

    assert outcome.success, outcome.message
    assert {held} == {min(number, 1) for number in seen}


@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
def test_planning_connection_is_gone_before_rows_are_read(lab: Lab) -> None:
    """Nothing rests on it where chunks have instants of their own: between two of them nobody is connected."""
    seen = set[int]()

    def watch(news: News) -> None:
        if news.progress is not None and 0 < news.progress.done < news.progress.of:
            with psycopg.connect(lab.url) as looking:
                seen.add(looking.execute(f"{HOLDERS.partition('AND backend_xmin')[0]}").fetchone()[0])

    (outcome,) = run_exports(lab.config(BLOCK % PER_CHUNK), watch=watch)

    assert outcome.success, outcome.message
    assert 0 in seen


def test_finished_chunks_of_a_run_that_died_are_kept_without_being_asked_for(lab: Lab) -> None:
    """The next run reads the rest, and says that it did."""
    lab.config(BLOCK % PER_CHUNK)
    died = processes.run("tests.faults.dying", str(lab.folder / "rivet.yaml"), "part")
    assert DIED == died.returncode, died.stdout + died.stderr
    lab.sql("UPDATE orders SET note = 'after'")

    (outcome,) = run_exports(lab.config(BLOCK % PER_CHUNK))

    assert outcome.success, outcome.message
    assert {"before": 25, "after": 75} == count(lab)
    (manifest,) = lab.manifests("orders").values()
    assert "resumed" == manifest.consistency


def test_chunks_of_a_run_that_died_are_not_published_unasked(lab: Lab) -> None:
    """A run publishes rows of its own time, also where the source shares no snapshot."""
    lab.config(BLOCK % "tuning: {batch_size: 10}")
    died = processes.run("tests.faults.dying", str(lab.folder / "rivet.yaml"), "manifest")
    assert DIED == died.returncode, died.stdout + died.stderr
    lab.sql("UPDATE orders SET note = 'after'")

    (outcome,) = run_exports(lab.config(BLOCK % "tuning: {batch_size: 10}"))

    assert outcome.success, outcome.message
    assert {"after": ROWS} == count(lab)


@pytest.mark.parametrize("engine", ["sqlserver"], indirect=True)
def test_source_that_cannot_is_refused(lab: Lab) -> None:
    """SQL Server reads page after page, each of its own instant, and the database may not allow snapshots."""
    (outcome,) = run_exports(lab.config(BLOCK % PER_CHUNK))

    assert not outcome.success
    assert "`consistency: per_chunk` would promise too much" in outcome.message


def count(lab: Lab) -> dict[str, int]:
    """Count what a reader sees by note."""
    notes = [str(row["note"]) for row in lab.rows("orders")]
    return {note: notes.count(note) for note in dict.fromkeys(notes)}
