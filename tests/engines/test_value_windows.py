"""A window per value, and folders by time, on every engine: each row in exactly one of them, and found again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rivet_assets.prove.reconcile import reconcile_export
from rivet_assets.run.admit.scope import state_of
from tests.lab import Lab, lab_in
from tests.lab_engines import ENGINES, Engine

pytestmark = pytest.mark.wide

ORDERS = {"id": "whole", "at": "instant", "day": "day", "amount": "amount", "note": "note", "shop": "whole"}
FIRST = datetime(2026, 1, 30, 21, tzinfo=UTC)
NOTES = ["eu", None, "", "o'neil/%", "two words"]
everywhere = pytest.mark.parametrize("engine", ENGINES, indirect=True)


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Engine:
    """The engine a test runs on."""
    return ENGINES[request.param]


@pytest.fixture
def lab(tmp_path: Path, engine: Engine, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A database with twenty hourly orders over two days."""
    laboratory = lab_in(tmp_path, engine, request, monkeypatch)
    laboratory.create("orders", ORDERS)
    laboratory.insert(
        "orders",
        [
            {
                "id": number, "at": FIRST + timedelta(hours=number), "day": (FIRST + timedelta(hours=number)).date(),
                "amount": None if number == 7 else Decimal(number % 3) / 4, "note": NOTES[number % 5],
                "shop": number % 2,
            }
            for number in range(20)
        ],
    )  # fmt: skip
    return laboratory


def test_column_whose_name_begins_with_a_point_has_windows_that_are_seen(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What begins with a point is hidden: windows were committed under such names, and no reader saw them."""
    lab = lab_in(tmp_path, ENGINES["sqlite"], request, monkeypatch)
    lab.sql('CREATE TABLE t (id INTEGER PRIMARY KEY, ".at" TEXT)', "INSERT INTO t VALUES (1, '2026-01-31 00:00:00')")

    block = "{name: v, table: t, partition_by: {column: .at, values: ['2026-01-31 00:00:00']}}"
    by_value = lab.export(block)
    by_day = lab.export("{name: d, table: t, partition_by: .at, columns: {.at: timestamp}}")

    assert (by_value.success, by_day.success) == (True, True)
    assert [1] == lab.ids("v") == lab.ids("d")
    assert not [path for path in (tmp_path / "lake").rglob("*") if path.name.startswith(".") and path.name != ".lock"]
    config = lab.config(block)
    state = state_of(config)
    found = reconcile_export(
        config, config.export("v"), depth="checksums", windows=None, state=state, tell=lambda line: None
    )
    state.close()
    assert "match" == found.verdict, found.text


@everywhere
@pytest.mark.parametrize("mode", ["mode: full", "mode: chunked, chunk_column: id, chunk_size: 6"])
@pytest.mark.parametrize(("column", "windows"), [("note", 5), ("day", 2), ("amount", 4), ("shop", 2)])
def test_each_row_is_in_the_window_of_its_value(lab: Lab, column: str, windows: int, mode: str) -> None:
    """Values that a query finds lead back to exactly their rows, whatever their type; reconcile agrees."""
    table = lab.engine.quote("orders")
    query = f"SELECT DISTINCT {lab.engine.quote(column)} FROM {table}"
    block = f"{{name: orders, table: orders, {mode}, partition_by: {{column: {column}, query: '{query}'}}}}"

    outcome = lab.export(block)

    assert outcome.success, outcome.message
    assert windows == len(lab.manifests("orders"))
    assert list(range(20)) == lab.ids("orders")
    for manifest in lab.manifests("orders").values():
        paths = [lab.folder / "lake/orders" / part.path for part in manifest.parts]
        assert 1 == len({cell for path in paths for cell in pq.read_table(path)[column].to_pylist()})
    config = lab.config(block)
    state = state_of(config)
    found = reconcile_export(
        config, config.export("orders"), depth="checksums", windows=None, state=state, tell=lambda line: None
    )
    state.close()
    assert "match" == found.verdict, found.text


@everywhere
@pytest.mark.parametrize(("column", "values"), [("note", 5), ("shop", 2)])
def test_each_row_is_in_the_window_of_its_day_and_value(lab: Lab, column: str, values: int) -> None:
    """Of days beside values that a query finds, NULL and odd texts among them; reconcile agrees."""
    query = f"SELECT DISTINCT {lab.engine.quote(column)} FROM {lab.engine.quote('orders')}"
    days = "mode: time_window, time_column: at, start: 2026-01-30, end: 2026-02-01"
    block = f"{{name: orders, table: orders, {days}, partition_by: {{column: {column}, query: '{query}'}}}}"

    outcome = lab.export(block, partitions=("2026-01-30...2026-01-31",))

    assert outcome.success, outcome.message
    assert 2 * values == len(lab.manifests("orders"))
    assert list(range(20)) == lab.ids("orders")
    config = lab.config(block)
    state = state_of(config)
    found = reconcile_export(
        config, config.export("orders"), depth="checksums", windows=None, state=state, tell=lambda line: None
    )
    state.close()
    assert "match" == found.verdict, found.text


@everywhere
def test_rows_of_other_values_are_one_window(lab: Lab) -> None:
    """NULL is among them, unless it is listed."""
    by = "partition_by: {column: note, values: [eu, 'two words'], others: own_window}"

    outcome = lab.export(f"{{name: orders, table: orders, {by}}}")

    assert outcome.success, outcome.message
    assert list(range(20)) == lab.ids("orders")
    assert 12 == lab.manifests("orders")["note=__OTHERS__"].row_count


@everywhere
@pytest.mark.parametrize("column", ["at", "day"])
def test_rows_lie_in_folders_of_their_day(lab: Lab, column: str) -> None:
    """Of UTC, by instants and by dates."""
    outcome = lab.export(f"{{name: orders, table: orders, partition_by: {column}}}")

    assert outcome.success, outcome.message
    (manifest,) = lab.manifests("orders").values()
    rows = {part.partition: part.rows for part in manifest.parts}
    assert {f"{column}=2026-01-30": 3, f"{column}=2026-01-31": 17} == rows
