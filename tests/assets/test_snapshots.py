"""`snapshots: daily`: each day's copy of a table stays, as a window and a partition of its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from rivet_assets.config.load import RivetConfig, load_config
from rivet_assets.definitions import definitions_of
from rivet_assets.launch.rivet_resource import RivetResource
from rivet_assets.launch.run_exports import Outcome, run_exports
from rivet_assets.modes.partitions import due_keys, partitions_of
from rivet_assets.plan.planner import plan_exports
from rivet_assets.preflight.check import check_exports
from rivet_assets.prove.reconcile import reconcile_export
from rivet_assets.prove.repair import repair_export
from rivet_assets.prove.validate import ValidationScope, validate_export
from rivet_assets.run import attempt
from rivet_assets.run.admit.scope import state_of
from rivet_resources.commit import publish
from rivet_resources.commit.manifest import current_manifests
from rivet_resources.destinations.local import Local
from rivet_resources.read.stage import Exporter
from rivet_resources.spark.runtime import Spark, SparkRuntime

TODAY = datetime.now(UTC).date().isoformat()  # at midnight a test may meet two days
STOCK = dg.AssetKey(["sqlite", "stock"])


class Stock:
    """A table of what is in stock, and an export of it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch
        self.sql("CREATE TABLE stock (id INTEGER PRIMARY KEY)")
        self.sql("INSERT INTO stock VALUES (1)")

    def sql(self, statement: str) -> None:
        """Run one statement at the source."""
        with closing(sqlite3.connect(self.folder / "shop.db")) as connection, connection:
            connection.execute(statement)

    def config(self, **keys: Any) -> RivetConfig:
        """Write and load the configuration."""
        export = {
            "name": "stock", "table": "stock", "format": "parquet", "snapshots": "daily",
            "destination": {"type": "local", "path": str(self.folder / "lake")}, **keys,
        }  # fmt: skip
        document = {"source": {"type": "sqlite", "path": str(self.folder / "shop.db")}, "spark": "inline"}
        path = self.folder / "rivet.yaml"
        path.write_text(yaml.safe_dump(document | {"exports": [export]}))
        return load_config(path)

    def run(self, *partitions: str, **keys: Any) -> Outcome:
        """Run the export as `rivet run` does."""
        (outcome,) = run_exports(self.config(**keys), partitions=partitions)
        return outcome

    def on(self, day: str, **keys: Any) -> Outcome:
        """Run it on a day, when one row more is there than the day before."""
        self.sql("INSERT INTO stock SELECT max(id) + 1 FROM stock")
        with self.monkeypatch.context() as patch:
            patch.setattr(attempt, "datetime", clock(day))
            return self.run(day, **keys)

    @property
    def windows(self) -> dict[str, int]:
        """Return how many rows each published snapshot has, and see that no other file is there."""
        root = self.folder / "lake/stock"
        current = current_manifests(Local(type="local", path=str(self.folder / "lake")).root("stock"))
        named = {part.path for each in current.values() for part in each.parts}
        assert named == {str(path.relative_to(root)) for path in root.rglob("*.parquet")}
        return {key: sum(pq.read_table(root / p.path).num_rows for p in each.parts) for key, each in current.items()}


def clock(day: str) -> type[datetime]:
    """Make a clock that stands at three in the morning of a day."""

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return datetime.fromisoformat(f"{day}T03:00:00+00:00")

    return Clock


@pytest.fixture
def stock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stock:
    """One row in stock."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    return Stock(tmp_path, monkeypatch)


def test_each_day_has_a_folder_and_the_same_day_is_replaced(stock):
    """A run without a partition is of today."""
    stock.on("2026-01-30")
    stock.on("2026-01-31")
    stock.on("2026-01-31")
    outcome = stock.run()

    assert ("success", (f"snapshot={TODAY}",)) == (outcome.status, outcome.windows)
    assert {"snapshot=2026-01-30": 2, "snapshot=2026-01-31": 4, f"snapshot={TODAY}": 4} == stock.windows
    assert {"dt=2026-01-30", "dt=2026-01-31", f"dt={TODAY}"} == {
        path.parent.name for path in (stock.folder / "lake/stock").rglob("*.parquet")
    }


def test_day_that_is_over_cannot_be_run(stock):
    """What was published of it stays; the message says which day can be."""
    stock.on("2026-01-30")

    outcome = stock.run("2026-01-30")

    assert ("failed", "RIVET_SNAPSHOT_PAST") == (outcome.status, outcome.code)
    assert f"no snapshot of 2026-01-30 on {TODAY} (UTC)" in outcome.message
    assert {"snapshot=2026-01-30": 2} == stock.windows


def test_older_snapshots_than_are_kept_go_with_the_swap_of_a_new_one(stock):
    """Their files too."""
    for day in (28, 29, 30, 31):
        stock.on(f"2026-01-{day}", keep=2)

    assert {"snapshot=2026-01-30": 4, "snapshot=2026-01-31": 5} == stock.windows


def test_death_amid_the_removal_brings_no_old_snapshot_back(stock, monkeypatch):
    """The new manifest hides what is too old from the instant of its swap; the next run removes what is left."""
    for day in (28, 29):
        stock.on(f"2026-01-{day}", keep=2)

    def dies(*args: object, **kwargs: object) -> None:
        raise OSError("the process died")

    with monkeypatch.context() as patch:
        patch.setattr(publish, "remove_replaced", dies)
        stock.on("2026-01-30", keep=2)
    root = Local(type="local", path=str(stock.folder / "lake")).root("stock")
    between = sorted(current_manifests(root))
    stock.on("2026-01-31", keep=2)

    assert ["snapshot=2026-01-29", "snapshot=2026-01-30"] == between
    assert {"snapshot=2026-01-30": 4, "snapshot=2026-01-31": 5} == stock.windows


def test_snapshots_and_one_window_do_not_stand_side_by_side(stock):
    """Rows would show many times; all rows as one window replace them."""
    stock.on("2026-01-30")
    stock.on("2026-01-31")
    stock.run(snapshots=None)
    before = stock.windows

    refused = stock.run()

    assert {"all": 3} == before == stock.windows
    assert "RIVET_WINDOW_CONFLICT" == refused.code


def test_partitions_are_days_from_start_to_today(stock):
    """And a schedule asks for today's."""
    export = stock.config(start="2026-01-30").export("stock")

    found = partitions_of(export).get_partition_keys()

    assert ("2026-01-30", TODAY) == (found[0], found[-1])
    assert [TODAY] == due_keys(export)
    assert ["2026-03-01"] == due_keys(export, at=datetime(2026, 3, 1, 23, 59, tzinfo=UTC))


def test_plan_check_and_proofs_know_snapshots(stock):
    """Today's is compared and repaired; of another day the files can be proved, not the rows."""
    stock.on("2026-01-30")
    stock.run()
    config = stock.config()
    export, state = config.export("stock"), state_of(config)
    (entry,), (checked,) = plan_exports(config).artefact.exports, check_exports(config)
    stock.sql("INSERT INTO stock VALUES (99)")

    def compared(windows: list[str] | None) -> Any:
        return reconcile_export(
            config, export, depth="checksums", windows=windows, state=state, tell=lambda line: None
        ).windows

    today, past = compared(None), compared(["snapshot=2026-01-30"])
    exporter = Exporter(SparkRuntime(Spark(engine="inline")), state)
    found = reconcile_export(config, export, depth="counts", windows=None, state=state, tell=lambda line: None)
    done = repair_export(config, export, found, execute=True, exporter=exporter, state=state, tell=lambda line: None)
    valid = validate_export(export, ValidationScope("full"), state=state)
    state.close()

    assert [f"snapshot={TODAY}"] == [window.key for window in entry.computed.windows]
    assert checked.error is None
    assert [(f"snapshot={TODAY}", "mismatch")] == [(each.window, each.verdict) for each in today]
    assert [("unknown", "it is a snapshot of another day, and the source has today's rows only")] == [
        (each.verdict, each.text) for each in past
    ]
    assert [(f"snapshot={TODAY}", "repaired")] == [(each.window, each.status) for each in done.windows]
    assert {"snapshot=2026-01-30": 2, f"snapshot={TODAY}": 3} == stock.windows
    assert [] == [flaw for folder in valid for flaw in folder.all_flaws]


READS: dict[str, tuple[Any, Callable[[Any], Any], Any]] = {
    "newest": (pa.Table, lambda rows: rows["id"].to_pylist(), [1, 2, 3]),
    "each": (
        dict[str, pa.Table],
        lambda rows: {key: len(table) for key, table in rows.items()},
        {"2026-01-30": 2, "2026-01-31": 3},
    ),
}


@pytest.mark.parametrize("case", READS)
def test_input_downstream_is_the_newest_snapshot(stock, case):
    """All of them where the asset asks for a mapping; never the rows of several days in one table."""
    annotation, shown, expected = READS[case]
    stock.on("2026-01-30")
    stock.on("2026-01-31")
    seen = []

    def mart(stock: Any) -> None:
        seen.append(shown(stock))

    mart.__annotations__ |= {"stock": annotation, "return": None}
    asset = dg.asset(ins={"stock": dg.AssetIn(key=STOCK)})(mart)
    definitions = dg.Definitions.merge(definitions_of(stock.config()), dg.Definitions(assets=[asset]))

    run = definitions.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=dg.DagsterInstance.ephemeral(), asset_selection=[asset.key], raise_on_error=False
    )

    assert run.success
    assert [expected] == seen
    assert expected == shown(RivetResource().load(stock.config(), "stock", as_type=annotation))
