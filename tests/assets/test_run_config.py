"""What one run of an export may be asked for in the launchpad and the backfill dialog."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from rivet_assets.config.load import load_config
from rivet_assets.dagster.run_config import RUN_CONFIG, TABLE_RUN_CONFIG, AskedRun
from rivet_assets.definitions import definitions_of
from rivet_assets.run.admit.scope import state_of
from rivet_assets.run.run_options import RunOptions
from rivet_resources.commit.manifest import Manifest, current_manifests, manifest_path
from rivet_resources.contracts.extract import AppliedChanges, Window
from rivet_resources.contracts.settings import Tuning
from rivet_resources.tables.reading import START, pending

BLOCK = """
sources:
  shop: {type: sqlite, path: FOLDER/shop.db}
  made: {type: datagen, pattern: orders, max_events: 50, events_per_second: 0, seed: 4, cdc_mode: true}
spark: inline
exports:
  - {name: whole, source: shop, table: orders, format: parquet, destination: {type: local, path: FOLDER/lake}}
  - name: grown
    source: shop
    table: orders
    mode: incremental
    cursor_column: id
    format: parquet
    destination: {type: local, path: FOLDER/lake}
  - name: cut
    source: shop
    table: orders
    mode: chunked
    chunk_size: 2
    format: parquet
    destination: {type: local, path: FOLDER/lake}
  - name: days
    source: shop
    table: orders
    mode: time_window
    time_column: at
    time_column_type: unix
    start: 2026-01-01
    end: 2026-01-05
    format: parquet
    destination: {type: local, path: FOLDER/lake}
  - name: moving
    source: shop
    query: SELECT id FROM many WHERE id <= (julianday('now') - julianday('NOW')) * 86400 * 100
    format: parquet
    destination: {type: local, path: FOLDER/lake}
  - name: changes
    source: made
    mode: cdc
    table: datagen
    cdc: {initial: snapshot}
    format: parquet
    destination: {type: local, path: FOLDER/lake}
"""
FIRST_OF_JANUARY = 1767225600  # 2026, UTC
QUIET = {"console": {"config": {"log_level": "CRITICAL"}}}


class Place:
    """A configuration, its database, and the instance that its runs are stored in."""

    def __init__(self, folder: Path, instance: dg.DagsterInstance) -> None:
        self.folder, self.instance = folder, instance
        self.sql("CREATE TABLE orders (id integer PRIMARY KEY, at integer NOT NULL)")
        for number in range(8):
            self.sql(f"INSERT INTO orders VALUES ({number}, {FIRST_OF_JANUARY} + {number // 2} * 86400)")
        with sqlite3.connect(folder / "shop.db") as connection:
            (now,) = connection.execute("SELECT datetime('now')").fetchone()
        (folder / "rivet.yaml").write_text(BLOCK.replace("FOLDER", str(folder)).replace("NOW", now))
        self.config = load_config(folder / "rivet.yaml")
        self.job = definitions_of(self.config).resolve_implicit_global_asset_job_def()

    def sql(self, statement: str) -> None:
        """Run one statement at the source."""
        with sqlite3.connect(self.folder / "shop.db") as connection:
            connection.execute(statement)

    def run(
        self, export: str, config: Mapping[str, Any] | None = None, *, days: tuple[str, str] | None = None
    ) -> dg.ExecuteInProcessResult:
        """Materialize one export, as the launchpad and, with `days`, the backfill dialog do."""
        key = dg.AssetKey([self.config.source_of(self.config.export(export))[0], export])
        first, last = days or ("", "")
        tags = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
        given = {} if config is None else {"ops": {key.to_python_identifier(): {"config": config}}}
        return self.job.execute_in_process(
            instance=self.instance,
            asset_selection=[key],
            run_config={"loggers": QUIET, **given},
            tags=tags if days else {},
            raise_on_error=False,
        )

    def tags(self, run: dg.ExecuteInProcessResult) -> dict[str, str]:
        """Read which tags a run has in the end."""
        found = self.instance.get_run_by_id(run.run_id)
        assert found is not None
        return dict(found.tags)

    def manifests(self, export: str) -> dict[str, Manifest]:
        """Read what a reader of the lake sees."""
        return current_manifests(self.config.export(export).destination.root(export))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """Four days of orders, two each, and exports of every mode."""
    with dg.DagsterInstance.ephemeral() as instance:
        yield Place(tmp_path, instance)


def summary(run: dg.ExecuteInProcessResult) -> str:
    """Return what leads the page after a run."""
    (event,) = run.get_asset_materialization_events()
    return str(event.materialization.metadata["rivet/summary"].value)


def failure(run: dg.ExecuteInProcessResult) -> dg.Failure:
    """Find the failure of the run's one step."""
    (event,) = (each for each in run.all_events if each.event_type_value == "STEP_FAILURE")
    return event.step_failure_data.user_failure_data


def verdicts(run: dg.ExecuteInProcessResult) -> dict[str, bool]:
    """Return what a run judged."""
    return {each.check_name: each.passed for each in run.get_asset_check_evaluations()}


def test_run_without_config_does_what_it_always_did(place):
    """The second run of an increment finds nothing new; no tag says that anything was asked for."""
    place.run("grown")

    run = place.run("grown")

    assert run.success
    assert {"rivet/export.grown", "rivet/mode.incremental", "rivet/source.shop"} == {
        tag for tag in place.tags(run) if tag.startswith("rivet/")
    }
    assert not any(field.is_required for field in (*RUN_CONFIG.values(), *TABLE_RUN_CONFIG.values()))


def test_full_refresh_reads_all_rows_again_and_replaces_every_window(place):
    """Two windows of an increment become one; the run after it goes on from there."""
    place.run("grown")
    place.sql("INSERT INTO orders VALUES (90, 0)")
    place.run("grown")
    assert 2 == len(place.manifests("grown"))

    run = place.run("grown", {"full_refresh": True})

    assert "| Rows | 9 |" in summary(run)
    assert "| Asked for | full\\_refresh |" in summary(run)
    assert "true" == place.tags(run)["rivet/full_refresh.grown"]
    assert ["after=start"] == list(place.manifests("grown"))
    place.sql("INSERT INTO orders VALUES (91, 0)")
    assert "| Rows | 1 |" in summary(place.run("grown"))


def test_full_refresh_that_fails_leaves_what_is_published(place):
    """The next run, whoever starts it, begins anew."""
    place.run("grown")
    before = place.manifests("grown")
    place.sql("ALTER TABLE orders RENAME TO away")

    assert not place.run("grown", {"full_refresh": True}).success

    assert before == place.manifests("grown")


def test_full_refresh_takes_the_first_copy_of_a_drain_again(place):
    """As after `rivet state reset`; a drain that goes on brings nothing."""
    first = place.run("changes")
    assert [] == place.run("changes").get_asset_materialization_events()

    run = place.run("changes", {"full_refresh": True})

    lead = [line for line in summary(first).splitlines() if line.startswith("| Changes")]
    assert lead == [line for line in summary(run).splitlines() if line.startswith("| Changes")]


@pytest.mark.parametrize(
    ("export", "config", "expected"),
    [
        ("whole", {"full_refresh": True}, "`full_refresh` means nothing for mode full: each run reads all rows"),
        ("days", {"full_refresh": True}, "`full_refresh` means nothing for mode time_window: each run reads its wind"),
        ("changes", {"limit": 5}, "`limit` means nothing for mode cdc: a log is read once"),
        ("whole", {"limit": 5, "validate": True}, "`limit` publishes nothing, so there is nothing to validate"),
        ("whole", {"limit": 0}, "`limit`: Input should be greater than or equal to 1"),
        ("whole", {"tuning": {"batch_size": 0}}, "`tuning.batch_size`: Input should be greater than or equal to 1"),
    ],
)
def test_option_that_means_nothing_is_refused_by_name(place, export, config, expected):
    """Before a row is read; the message says why."""
    days = ("2026-01-01", "2026-01-01") if export == "days" else None

    run = place.run(export, config, days=days)

    assert expected in failure(run).description
    assert "RIVET_CONFIG_INVALID" == failure(run).metadata["rivet/code"].value
    assert {} == place.manifests(export)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            {"fullrefresh": True},
            ["fullrefresh", "depth", "full_refresh", "limit", "parallel", "reconcile", "tuning", "validate"],
        ),
        ({"limit": "ten"}, ["root:ops:shop__whole:config:limit", "Int"]),
        ({"tuning": {"profile": "huge"}}, ["huge", "balanced", "fast", "safe"]),
        ({"tuning": {"batchsize": 1}}, ["batchsize", "batch_size", "throttle_ms"]),
    ],
)
def test_unknown_keys_and_wrong_types_never_become_a_run(place, config, expected):
    """Dagster's own check refuses them and names what is allowed."""
    with pytest.raises(dg.DagsterInvalidConfigError) as caught:
        place.run("whole", config)

    assert [] == [word for word in expected if word not in str(caught.value)]
    assert 0 == place.instance.get_runs_count()


def test_every_key_of_tuning_is_there_under_its_name_in_yaml(place):
    """Whoever knows the block knows the run config."""
    assert set(Tuning.model_fields) == set(RUN_CONFIG["tuning"].config_type.fields)
    assert {"full_refresh", "validate", "reconcile", "depth", "limit", "parallel", "tuning"} == set(RUN_CONFIG)


def test_tuning_is_of_this_run_alone(place):
    """Read in smaller pages, by the profile asked for; the next run reads as configured."""
    run = place.run("cut", {"tuning": {"profile": "safe", "batch_size": 1}, "parallel": 2})

    (event,) = run.get_asset_materialization_events()
    assert "| profile | safe |" in event.materialization.metadata["rivet/details"].value
    assert "| pages | 8 |" in event.materialization.metadata["rivet/details"].value
    assert "p=2" in summary(run)
    assert "profile=safe, batch_size=1" == place.tags(run)["rivet/tuning.cut"]
    (event,) = place.run("cut").get_asset_materialization_events()
    assert "| profile | balanced |" in event.materialization.metadata["rivet/details"].value


def test_proofs_of_all_windows_are_the_verdicts_of_their_checks(place):
    """What `files_intact` and `equals_source` would find, they found."""
    run = place.run("whole", {"validate": True, "reconcile": True})

    assert run.success
    assert verdicts(run)["files_intact"]
    assert verdicts(run)["equals_source"]


def test_backfill_proves_each_of_its_windows_and_says_nothing_of_others(place):
    """Several windows in one run; a check that speaks of all windows turns green by a look at all of them only."""
    first = place.run("days", {"validate": True}, days=("2026-01-01", "2026-01-03"))
    assert first.success
    assert verdicts(first)["files_intact"]

    second = place.run("days", {"validate": True, "reconcile": True}, days=("2026-01-04", "2026-01-04"))

    assert second.success
    assert {"files_intact", "equals_source"}.isdisjoint(verdicts(second))
    assert 4 == len(place.manifests("days"))


def test_run_that_does_not_match_its_source_fails_and_stays_published(place):
    """Rows that came in between are told at once: exit code 3, the check is red, the rows are there."""
    place.sql("CREATE TABLE many (id integer PRIMARY KEY)")
    place.sql(
        "INSERT INTO many WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000) "
        "SELECT i FROM n"
    )

    run = place.run("moving", {"reconcile": True})

    assert "Export moving is published, but does not match its source" in failure(run).description
    assert 3 == failure(run).metadata["rivet/exit_code"].value
    assert verdicts(run)["files_intact"]
    assert not verdicts(run)["equals_source"]
    assert ["all"] == list(place.manifests("moving"))


def test_limit_is_a_trial_that_leaves_nothing(place):
    """Some rows are read and written, and what is published, remembered and recorded stays as it was."""
    run = place.run("grown", {"limit": 3})

    assert run.success
    assert [] == run.get_asset_materialization_events()
    (event,) = (each for each in run.all_events if each.event_type_value == "ASSET_OBSERVATION")
    facts = event.asset_observation_data.asset_observation.metadata
    assert 3 == facts["rivet/sample_rows"].value
    assert ["id", "at"] == [column.name for column in facts["dagster/column_schema"].value.columns]
    assert [] == [path for path in (place.folder / "lake").rglob("*") if path.is_file()]
    state = state_of(place.config)
    assert (None, []) == (state.cursor("grown"), state.runs("grown", last=5))
    assert "3" == place.tags(run)["rivet/limit.grown"]


@pytest.mark.parametrize(
    ("config", "expected"), [({"limit": 3}, 1), ({"limit": 3, "full_refresh": True}, 3), ({"limit": 30}, 1)]
)
def test_trial_reads_what_the_next_run_would(place, config, expected):
    """From the cursor, or with `full_refresh` from the beginning; the cursor stays."""
    place.run("grown")
    place.sql("INSERT INTO orders VALUES (90, 0)")

    run = place.run("grown", config)

    (event,) = (each for each in run.all_events if each.event_type_value == "ASSET_OBSERVATION")
    assert expected == event.asset_observation_data.asset_observation.metadata["rivet/sample_rows"].value
    assert "| Rows | 1 |" in summary(place.run("grown"))


def test_trial_goes_on_to_the_next_chunk_and_stops_in_it(place):
    """Chunks of two rows each: five rows are in three of them."""
    run = place.run("cut", {"limit": 5})

    (event,) = (each for each in run.all_events if each.event_type_value == "ASSET_OBSERVATION")
    assert 5 == event.asset_observation_data.asset_observation.metadata["rivet/sample_rows"].value


def test_trial_of_windows_looks_into_each(place):
    """No partition is materialized by it."""
    run = place.run("days", {"limit": 1}, days=("2026-01-01", "2026-01-02"))

    seen = [each for each in run.all_events if each.event_type_value == "ASSET_OBSERVATION"]
    assert ["2026-01-01", "2026-01-02"] == [each.partition for each in seen]
    assert {} == place.manifests("days")


def test_retry_of_a_step_does_not_begin_anew_again(place):
    """What was read since the run began anew is kept by its second try; another run begins anew."""
    export = place.config.export("grown")
    state = state_of(place.config)
    cursors = []

    @dg.op
    def twice(context):
        asked = AskedRun(place.config, export, RunOptions(full_refresh=True), context)
        for _ in range(2):
            place.run("grown")
            asked.begin(state)(asked.export)
            cursors.append(state.cursor("grown").value)

    @dg.job
    def retried():
        twice()

    for _ in range(2):
        assert retried.execute_in_process(instance=place.instance, run_config={"loggers": QUIET}).success

    assert [None, "7", None, "7"] == cursors


@pytest.mark.slow
def test_command_line_of_dagster_takes_the_same_config(place):
    """`dagster asset materialize --config-json` goes through the launch of a real process."""
    config = {"ops": {"shop__grown": {"config": {"full_refresh": True, "validate": True}}}}
    (place.folder / "home").mkdir()
    (place.folder / "home/dagster.yaml").write_text("telemetry: {enabled: false}\n")
    more = {"RIVET_CONFIG": str(place.folder / "rivet.yaml"), "DAGSTER_HOME": str(place.folder / "home")}
    place.run("grown")

    done = subprocess.run(
        [sys.executable, "-m", "dagster", "asset", "materialize", "-m", "rivet_assets.definitions",
         "--select", "shop/grown", "--config-json", json.dumps(config)],
        env={**os.environ, **more}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip

    assert 0 == done.returncode, done.stderr[-2000:]
    assert "begins anew, as `full_refresh` asks for" in done.stderr
    assert "1 files with 8 rows of 1 windows are what was committed" in done.stderr, done.stderr[-5000:]


def test_table_beside_changes_is_made_of_all_of_them_anew(place):
    """Though its last version holds every change, and would have nothing to do."""
    place.run("changes")
    destination = place.config.export("changes").destination
    changes, mirror = destination.root("changes"), destination.root("changes_mirror")
    windows = current_manifests(changes)
    first, high = windows[START], max(window.cursor.high or "" for window in windows.values())
    extraction = first.source.extraction.model_copy(update={"strategy": "mirror"})
    held = AppliedChanges(changes.uri, first.run_id, ("id",), high, "")
    source = first.source.model_copy(update={"extraction": extraction})
    whole = first.model_copy(update={"window": "all", "applied": held, "source": source})
    mirror.swap(manifest_path(Window("all")), whole.content, expected=None)
    assert pending(changes, mirror, mode="mirror", key=("id",)) is None

    todo = pending(changes, mirror, mode="mirror", key=("id",), anew=True)

    assert (set(windows), None) == ({window.window for window in todo.windows}, todo.base)
    assert todo.fence is not None


@pytest.mark.spark
@pytest.mark.slow
def test_full_refresh_makes_a_mirror_of_all_changes_anew(tmp_path):
    """Though its last version holds every change; any other option is refused by Dagster itself."""
    text = """
    sources: {made: {type: datagen, pattern: orders, max_events: 50, events_per_second: 0, seed: 4, cdc_mode: true}}
    exports:
      - name: changes
        source: made
        mode: cdc
        table: datagen
        apply: mirror
        key: [order_id]
        format: parquet
        destination: {type: local, path: FOLDER/lake}
    """
    (tmp_path / "rivet.yaml").write_text(text.replace("FOLDER", str(tmp_path)))
    job = definitions_of(load_config(tmp_path / "rivet.yaml")).resolve_implicit_global_asset_job_def()
    key = dg.AssetKey(["made", "changes_mirror"])

    def made(config: Mapping[str, Any], *, of: dg.AssetKey = key) -> list[Any]:
        given = {"ops": {"made__changes_mirror": {"config": config}}} if config else {}
        run = job.execute_in_process(
            instance=instance, asset_selection=[of], run_config={"loggers": QUIET, **given}, raise_on_error=False
        )
        assert run.success
        return [
            event.materialization.metadata["dagster/row_count"].value
            for event in run.get_asset_materialization_events()
            if of == key
        ]

    with dg.DagsterInstance.ephemeral() as instance:
        made({}, of=dg.AssetKey(["made", "changes"]))
        (rows,) = made({})
        assert [] == made({})

        assert [rows] == made({"full_refresh": True})

        with pytest.raises(dg.DagsterInvalidConfigError, match="limit"):
            made({"limit": 1})
