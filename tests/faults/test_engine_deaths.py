"""Deaths on engines without a snapshot that connections share: of the process, and of the line to the server."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests import processes
from tests.faults.dying import DIED
from tests.lab import Lab, lab_in
from tests.lab_engines import ENGINES

pytestmark = pytest.mark.faults

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
TUNED = "tuning: {batch_size: 20}"
MODES = {
    "full": f"{{name: events, table: events, mode: full, {TUNED}}}",
    "incremental": f"{{name: events, table: events, mode: incremental, cursor_column: at, {TUNED}}}",
    "resumed": (
        "{name: events, table: events, mode: chunked, chunk_column: id, chunk_size: 40, chunk_checkpoint: true, "
        f"{TUNED}}}"
    ),
}
PLACES = ("page", "part", "manifest", "cursor")


@pytest.fixture(params=["mariadb", "sqlite"])
def lab(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A database with 72 hourly events over three days."""
    engine = ENGINES[request.param]
    laboratory = lab_in(tmp_path, engine, request, monkeypatch)
    laboratory.create("events", {"id": "whole", "at": "instant"}, index=["at"])
    laboratory.insert("events", [{"id": n, "at": FIRST + timedelta(hours=n)} for n in range(72)])
    laboratory.analyze("events")
    return laboratory


def run_until_death(lab: Lab, block: str, place: str) -> None:
    """Run the export in a process of its own, which must die at `place`."""
    lab.config(block)
    process = processes.run("tests.faults.dying", str(lab.folder / "rivet.yaml"), place)
    assert process.returncode == DIED, process.stdout + process.stderr


def leftovers(lab: Lab) -> set[Path]:
    """List what lies at the destination and belongs to no manifest."""
    return set((lab.folder / "lake/events").rglob("*.parquet")) - set(lab.parts("events"))


@pytest.mark.matrix
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("mode", MODES)
def test_rerun_after_a_death_shows_every_row_once(lab: Lab, mode: str, place: str) -> None:
    """The second export dies on new rows; readers keep whole windows, and the third run has every row once."""
    lab.export(MODES[mode])
    lab.insert("events", [{"id": n, "at": FIRST + timedelta(days=4, seconds=n)} for n in range(100, 150)])
    run_until_death(lab, MODES[mode], place)
    counted = sum(manifest.row_count for manifest in lab.manifests("events").values())
    assert counted == len(set(lab.ids("events"))) == len(lab.ids("events"))
    assert set(range(72)) <= set(lab.ids("events"))

    outcome = lab.export(MODES[mode])

    assert outcome.success, outcome.message
    assert [*range(72), *range(100, 150)] == lab.ids("events")
    assert set() == leftovers(lab)


# --- the line to the server ----------------------------------------------------------------------

on_servers = pytest.mark.parametrize("lab", ["mariadb", "mysql"], indirect=True)
OTHERS = "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"


def kill(lab: Lab, condition: str = "1 = 1") -> int:
    """End every other connection to this database that the condition finds; how many there were."""
    from tests.servers.mysql import connection

    with connection(lab.url) as opened, opened.cursor() as cursor:
        cursor.execute(f"{OTHERS} AND {condition}")
        found = [number for (number,) in cursor.fetchall()]
        for number in found:
            cursor.execute(f"KILL CONNECTION {number}")
        return len(found)


def judge(lab: Lab, block: str, outcome: Any) -> None:
    """All or nothing is published; and the next run has every row once."""
    if outcome.success:
        assert list(range(72)) == lab.ids("events")
    else:
        assert 2 == outcome.exit_code, outcome.message
        assert {} == lab.manifests("events")
    again = lab.export(block)
    assert again.success, again.message
    assert list(range(72)) == lab.ids("events")
    assert set() == leftovers(lab)


@on_servers
@pytest.mark.parametrize("mode", MODES)
def test_line_killed_between_pages_loses_and_repeats_no_row(
    lab: Lab, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first page every connection is killed, the planning one included."""
    config = lab.config(MODES[mode])
    source = type(config.source_of(config.exports[0])[1])
    original, killed = source.pages, []

    def pages(self: Any, *args: Any, **kwargs: Any) -> Any:
        for page in original(self, *args, **kwargs):
            if not killed:
                killed.append(kill(lab))
            yield page

    monkeypatch.setattr(source, "pages", pages)

    outcome = lab.export(MODES[mode])

    assert killed
    assert killed[0] > 0
    judge(lab, MODES[mode], outcome)


@on_servers
def test_line_killed_in_mid_page_loses_and_repeats_no_row(lab: Lab) -> None:
    """The connection is killed while the server is still at the page's statement."""
    query = "SELECT id, at, SLEEP(0.02) AS slept FROM events"
    block = f"{{name: events, query: '{query}', mode: full}}"
    killed, ended = threading.Event(), threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            if kill(lab, "info LIKE '%SLEEP(%' AND state LIKE '%sleep%'"):
                killed.set()
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        outcome = lab.export(block)
    finally:
        ended.set()
        watcher.join()

    assert killed.is_set()
    judge(lab, block, outcome)
