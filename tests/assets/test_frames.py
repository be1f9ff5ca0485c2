"""Inputs of assets downstream come as they are annotated, and no JVM starts for them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import dagster as dg
import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from rivet_assets.config.load import load_config
from rivet_assets.definitions import definitions_of
from rivet_assets.modes.partitions import partitions_of
from rivet_resources.commit.manifest import current_manifests
from rivet_resources.dagster.frames import READERS, Parts, read_as, to_pandas
from rivet_resources.destinations.local import Local
from rivet_resources.errors import ConfigError

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
CONFIG = """
sources:
  shop: {type: sqlite, path: shop.db}
  made: {type: datagen, pattern: orders, max_events: 500, events_per_second: 0, seed: 4, clock: "2026-01-31T00:00:00Z"}
spark: inline
exports:
  - &orders
    {name: parquet, source: shop, table: orders, format: parquet, destination: {type: local, path: lake}}
  - {<<: *orders, name: csv, format: csv}
  - {<<: *orders, name: ndjson, format: ndjson}
  - {<<: *orders, name: avro, format: avro}
  - {<<: *orders, name: seen, preview: 2, transforms: [{type: mask, fields: [card], method: partial, last: 4}]}
  - name: days
    source: made
    table: orders
    mode: time_window
    time_column: created_at
    start: 2026-01-24
    end: 2026-02-01
    format: parquet
    destination: {type: local, path: lake}
"""
CARD = "4929-1234-5678-9012"
DAYS = ("2026-01-28", "2026-01-30")
FRAMES = (pd.DataFrame, pl.DataFrame, pl.LazyFrame, pa.Table, ds.Dataset, duckdb.DuckDBPyRelation)


def rows_of(frame: Any) -> list[dict[str, Any]]:
    """Return the rows of any frame."""
    match frame:
        case pd.DataFrame():
            return frame.to_dict("records")
        case pl.LazyFrame():
            return frame.collect().to_dicts()
        case pl.DataFrame():
            return frame.to_dicts()
        case ds.Dataset():
            return frame.to_table().to_pylist()
        case duckdb.DuckDBPyRelation():
            return frame.to_arrow_table().to_pylist()
        case _:
            return frame.to_pylist()


class Shop:
    """A folder with a SQLite file, exports of it, and an instance."""

    def __init__(self, folder: Path, instance: dg.DagsterInstance) -> None:
        self.folder, self.instance = folder, instance
        with closing(sqlite3.connect(folder / "shop.db")) as connection:
            connection.executescript(
                "CREATE TABLE orders (id INTEGER PRIMARY KEY, card TEXT, total NUMERIC(12,2));"
                f"INSERT INTO orders VALUES (1, '{CARD}', 1.25), (2, 'a|b', NULL), (3, NULL, 3);"
            )
        (folder / "rivet.yaml").write_text(CONFIG)
        self.config = load_config(folder / "rivet.yaml")

    def run(self, *keys: str, days: tuple[str, str] | None = None, more: Any = ()) -> dg.ExecuteInProcessResult:
        """Materialize assets; with `days`, a range of partitions."""
        names = ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end")
        definitions = dg.Definitions.merge(definitions_of(self.config), dg.Definitions(assets=[*more]))
        return definitions.resolve_implicit_global_asset_job_def().execute_in_process(
            instance=self.instance,
            asset_selection=[dg.AssetKey(key.split("/")) for key in keys],
            tags=dict(zip(names, days, strict=True)) if days else {},
            raise_on_error=False,
            run_config=QUIET,
        )

    def reads(self, key: str, annotation: Any, *, days: tuple[str, str] | None = None, source: str = "shop") -> Any:
        """Return what an asset downstream is given."""
        seen = []

        def mart(rows):
            seen.append(rows)
            return dg.MaterializeResult()

        mart.__annotations__ = {"rows": annotation, "return": dg.MaterializeResult}
        parts: dict[str, Any] = {}
        if days:
            parts = {"partitions_def": partitions_of(self.config.export(key))}
            parts |= {"backfill_policy": dg.BackfillPolicy.single_run()}
        asset = dg.asset(ins={"rows": dg.AssetIn(key=dg.AssetKey([source, key]))}, **parts)(mart)
        run = self.run("mart", days=days, more=[asset])
        if not run.success:
            (failed,) = (event for event in run.all_events if event.event_type_value == "STEP_FAILURE")
            raise AssertionError(str(failed.step_failure_data))
        return seen[0]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """Three orders, a thousand made-up ones, and a Java that cannot start."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with dg.DagsterInstance.ephemeral() as instance:
        yield Shop(tmp_path, instance)


@pytest.mark.parametrize("form", ["parquet", "csv", "ndjson", "avro"])
def test_rows_come_as_the_input_is_annotated(shop: Shop, form: str) -> None:
    """Each frame holds the committed rows, of each format."""
    assert shop.run(f"shop/{form}").success

    for kind in FRAMES:
        frame = shop.reads(form, kind)

        rows = sorted(rows_of(frame), key=lambda row: row["id"])
        assert isinstance(frame, kind)
        assert [1, 2, 3] == [row["id"] for row in rows], kind
        assert [CARD, "a|b"] == [row["card"] for row in rows[:2]], kind
        assert 1.25 == float(rows[0]["total"]), kind


def test_one_window_a_range_and_a_mapping(shop: Shop) -> None:
    """A run of partitions gets its windows, one without gets all, and `dict[str, X]` tells them apart."""
    assert shop.run("made/days", days=DAYS).success

    one = shop.reads("days", pd.DataFrame, days=(DAYS[0], DAYS[0]), source="made")
    some = shop.reads("days", pl.DataFrame, days=DAYS, source="made")
    apart = shop.reads("days", dict[str, pa.Table], days=DAYS, source="made")
    every = shop.reads("days", dict[str, pl.LazyFrame], source="made")

    days = ["2026-01-28", "2026-01-29", "2026-01-30"]
    assert (days, days) == (list(apart), sorted(every))
    assert len(some) == sum(table.num_rows for table in apart.values()) > 0
    assert len(one) == apart[days[0]].num_rows
    assert [apart[day].num_rows for day in days] == [every[day].collect().height for day in days]


@pytest.mark.parametrize("annotation", [list[int], dict, dict[int, pd.DataFrame], dict[str, str], pd.Series])
def test_annotation_that_cannot_be_read_is_refused_with_those_that_can(shop: Shop, annotation: Any) -> None:
    """Before a part is opened; the message lists what to write instead."""
    parts = Parts(Local(type="local", path="lake").root("none"), [], session=lambda: pytest.fail("Spark"))

    with pytest.raises(ConfigError, match=r"shop/orders is annotated .*pandas\.DataFrame, polars\.DataFrame"):
        read_as(annotation, parts, asset="shop/orders")


def test_only_spark_frames_ask_for_spark(shop: Shop) -> None:
    """The table of readers is complete, and one of them alone starts a JVM."""
    assert shop.run("shop/parquet").success
    root = Local(type="local", path=str(shop.folder / "lake")).root("parquet")
    asked = []
    for name, reader in READERS.items():
        parts = Parts(root, list(current_manifests(root).values()), session=lambda: 1 / 0)  # type: ignore[arg-type]
        try:
            reader(parts)
        except ZeroDivisionError:
            asked.append(name)

    assert [("pyspark", "DataFrame")] == asked


def test_preview_shows_rows_as_the_file_has_them_and_only_when_asked(shop: Shop) -> None:
    """Two masked rows on the page of the export that asks for them; none on the other's, and none in the log."""
    runs = [shop.run(f"shop/{name}") for name in ("seen", "parquet")]

    seen, plain = (
        run.asset_materializations_for_node(f"shop__{name}")
        for run, name in zip(runs, ("seen", "parquet"), strict=True)
    )
    records = [record.data for record in seen[0].metadata["rivet/preview"].records]
    assert ["1", "2"] == [record["id"] for record in records]
    assert records[0]["card"].endswith("9012")
    assert CARD not in str(records)
    assert "rivet/preview" not in plain[0].metadata
    assert len(seen[0].metadata) <= 12


@pytest.mark.parametrize("rows", [-1, 101])
def test_preview_of_more_than_a_hundred_rows_is_refused(shop: Shop, rows: int) -> None:
    """The rows go into Dagster's event log."""
    (shop.folder / "rivet.yaml").write_text(CONFIG.replace("preview: 2", f"preview: {rows}"))

    with pytest.raises(ConfigError, match="preview"):
        load_config(shop.folder / "rivet.yaml")


def test_pandas_rounds_no_integer() -> None:
    """A NULL beside it makes a float of an integer in pandas, unless it is told; in a list, too."""
    big = 2**63 - 1
    rows = pa.table({
        "signed": pa.array([big, None], pa.int64()),
        "unsigned": pa.array([2**64 - 1, None], pa.uint64()),
        "small": pa.array([1, 2], pa.int16()),
        "listed": pa.array([[big, None], None], pa.list_(pa.int64())),
    })  # fmt: skip

    assert pa.Table.from_pandas(to_pandas(rows), preserve_index=False).to_pydict() == rows.to_pydict()
