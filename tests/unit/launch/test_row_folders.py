"""`partition_by: <column>`: rows of a window lie in folders by a column's day, month or year."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from rivet_assets.config.load import RivetConfig, load_config
from rivet_assets.launch.run_exports import Outcome, run_exports
from rivet_assets.prove.reconcile import reconcile_export
from rivet_assets.prove.repair import repair_export
from rivet_assets.prove.validate import ValidationScope, validate_export
from rivet_assets.run.admit.scope import state_of
from rivet_resources.commit.manifest import current_manifests
from rivet_resources.contracts.rows.row_folders import RowFolders
from rivet_resources.dagster.frames import Parts
from rivet_resources.destinations.local import Local
from rivet_resources.read.stage import Exporter
from rivet_resources.spark.runtime import Spark, SparkRuntime
from rivet_resources.write import row_folders

DAYS = ["2026-01-31 10:00:00", "2026-02-01 00:00:00", None, "2026-01-31 23:59:59", "2025-12-31 00:00:00"]
BY_DAY = {
    "at=2026-01-31": [0, 3], "at=2026-02-01": [1], "at=2025-12-31": [4], "at=__HIVE_DEFAULT_PARTITION__": [2],
}  # fmt: skip


class Events:
    """A table of events, and exports of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sql("CREATE TABLE events (id INTEGER PRIMARY KEY, at TEXT, word TEXT)")
        for number, at in enumerate(DAYS):
            self.sql("INSERT INTO events VALUES (?, ?, 'x')", number, at)

    def sql(self, statement: str, *values: object) -> None:
        """Run one statement at the source."""
        with closing(sqlite3.connect(self.folder / "shop.db")) as connection, connection:
            connection.execute(statement, values)

    def config(self, **keys: Any) -> RivetConfig:
        """Write and load the configuration of one export."""
        export = {
            "name": "events", "table": "events", "format": "parquet", "partition_by": "at",
            "columns": {"at": "timestamp"},
            "destination": {"type": "local", "path": f"{self.folder}/lake/{{partition}}"}, **keys,
        }  # fmt: skip
        document = {"source": {"type": "sqlite", "path": str(self.folder / "shop.db")}, "spark": "inline"}
        path = self.folder / "rivet.yaml"
        path.write_text(yaml.safe_dump(document | {"exports": [export]}))
        return load_config(path)

    def run(self, **keys: Any) -> Outcome:
        """Run the export as `rivet run` does."""
        (outcome,) = run_exports(self.config(**keys))
        return outcome

    @property
    def folders(self) -> dict[str, list[int]]:
        """Return the ids that each folder has, as manifests tell."""
        found: dict[str, list[int]] = {}
        for manifest in current_manifests(self.root).values():
            for part in manifest.parts:
                assert part.path.rpartition("/")[0].endswith(str(part.partition))
                rows = pq.read_table(self.folder / "lake/events" / part.path)["id"].to_pylist()
                found[part.path.rpartition("/")[0]] = sorted(found.get(part.path.rpartition("/")[0], []) + rows)
        return found

    @property
    def root(self) -> Any:
        """Address the export's folder."""
        return Local(type="local", path=str(self.folder / "lake")).root("events")


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Events:
    """Five events on three days, and one of no day."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    return Events(tmp_path)


MODES: dict[str, dict[str, Any]] = {
    "full": {},
    "chunked": {"chunk_size": 2},
    "incremental": {"cursor_column": "id"},
}


@pytest.mark.parametrize("mode", MODES)
def test_rows_lie_in_folders_by_their_day(events, mode):
    """In one window with one manifest; what is read through it is every row once."""
    outcome = events.run(mode=mode, **MODES[mode])

    (manifest,) = current_manifests(events.root).values()
    rows = Parts(events.root, [manifest], lambda: None).table(lambda kind: kind)
    assert ("success", 5, 5) == (outcome.status, outcome.rows, manifest.row_count)
    assert BY_DAY == events.folders
    assert [0, 1, 2, 3, 4] == sorted(rows["id"].to_pylist())


def test_folders_of_a_window_of_time_lie_in_its_own(events):
    """Months of another column inside of a day."""
    events.sql("ALTER TABLE events ADD COLUMN seen TEXT")
    events.sql("UPDATE events SET seen = '2026-03-05 00:00:00' WHERE id <> 3")

    events.run(
        mode="time_window", time_column="at", start="2026-01-31", end="2026-02-01", partition_by="seen",
        partition_granularity="month", columns={"at": "timestamp", "seen": "timestamp"},
    )  # fmt: skip

    head = "dt=2026-01-31/seen="
    assert {f"{head}2026-03": [0], f"{head}__HIVE_DEFAULT_PARTITION__": [3]} == events.folders


@pytest.mark.parametrize("form", ["csv", "ndjson"])
def test_text_formats_have_folders_too(events, form):
    """And files of the first run are gone after the second."""
    events.run(format=form, partition_granularity="year")
    before = {path for path in (events.folder / "lake/events").rglob(f"*.{form}")}

    events.run(format=form, partition_granularity="year")

    after = {path for path in (events.folder / "lake/events").rglob(f"*.{form}")}
    assert {"at=2026", "at=2025", "at=__HIVE_DEFAULT_PARTITION__"} == {path.parent.name for path in after}
    assert (3, set()) == (len(after), before & after)


def test_rows_of_many_folders_pass_through_scratch(events, monkeypatch):
    """Memory is bounded: what is held goes to scratch, and comes back once, in order."""
    monkeypatch.setattr(row_folders, "HELD_BYTES", 1)
    for number in range(5, 40):
        events.sql("INSERT INTO events VALUES (?, ?, 'y')", number, f"2024-01-{number % 7 + 1:02} 00:00:00")

    events.run(tuning={"batch_size": 3}, max_file_size="1B")

    expected = {f"at=2024-01-{day + 1:02}": [n for n in range(5, 40) if n % 7 == day] for day in range(7)}
    assert BY_DAY | expected == events.folders


def test_too_many_folders_are_refused(events, monkeypatch):
    """Each is a file at least; the message says what helps."""
    monkeypatch.setattr(row_folders, "MOST_FOLDERS", 3)

    outcome = events.run()

    assert "more than 3 folders by day of at" in outcome.message
    assert {} == current_manifests(events.root)


@pytest.mark.parametrize(("column", "message"), [("word", "is string, which has no day"), ("when", "no column 'when'")])
def test_column_without_days_is_refused(events, column, message):
    """Before a row is read."""
    assert message in events.run(partition_by=column).message


def test_wrong_part_is_found_and_its_window_repaired(events):
    """Validate, reconcile and repair know the folders, chunk by chunk."""
    events.run(mode="chunked", chunk_size=2)
    config = events.config(mode="chunked", chunk_size=2)
    export, state = config.export("events"), state_of(config)
    events.sql("UPDATE events SET at = '2026-02-02 00:00:00' WHERE id = 0")

    found = reconcile_export(config, export, depth="checksums", windows=None, state=state, tell=lambda line: None)
    exporter = Exporter(SparkRuntime(Spark(engine="inline")), state)
    done = repair_export(config, export, found, execute=True, exporter=exporter, state=state, tell=lambda line: None)
    valid = validate_export(export, ValidationScope("full"), state=state)
    again = reconcile_export(config, export, depth="checksums", windows=None, state=state, tell=lambda line: None)
    state.close()

    assert [("all", "repaired", (0,))] == [(each.window, each.status, each.chunks) for each in done.windows]
    assert BY_DAY | {"at=2026-01-31": [3], "at=2026-02-02": [0]} == events.folders
    assert [] == [flaw for folder in valid for flaw in folder.all_flaws]
    assert "match" == again.verdict


@pytest.mark.parametrize(
    ("cell", "granularity", "name"),
    [
        (date(2026, 1, 31), "day", "at=2026-01-31"),
        (date(1, 2, 3), "month", "at=0001-02"),
        (datetime(1969, 12, 31, 23, 59, 59, 999999), "day", "at=1969-12-31"),
        (datetime(1969, 12, 31, 23, 59, 59, 999999), "month", "at=1969-12"),
        (datetime(9999, 12, 31, tzinfo=UTC), "year", "at=9999"),
        (None, "year", "at=__HIVE_DEFAULT_PARTITION__"),
    ],
)
def test_folder_is_named_by_the_time(cell, granularity, name):
    """Of UTC, also before 1970."""
    folders = RowFolders("at", granularity)
    cells = pa.chunked_array([pa.array([cell], None if cell is not None else pa.date32())])

    assert folders.fits(cells.type)
    assert name == folders.name(folders.numbers(cells)[0].as_py())
