"""Rows that come later with the very cursor value at which a run ended: each comes once, on every engine."""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from rivet_assets.config.load import load_config
from rivet_assets.launch.run_exports import run_exports
from rivet_resources.contracts.rows import boundary
from rivet_resources.state.store import default_url
from tests.lab import Lab, lab_in
from tests.lab_engines import ENGINES, Engine

pytestmark = pytest.mark.wide

if TYPE_CHECKING:
    from rivet_resources.spark.runtime import SparkRuntime

BATCHES = "{name: orders, table: orders, mode: incremental, cursor_column: k}"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture(params=["sqlite"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """The engine a test runs on; SQLite where the engine does not matter."""
    return ENGINES[request.param]


@pytest.fixture
def lab(tmp_path: Path, engine: Engine, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """An empty database and an empty folder."""
    return lab_in(tmp_path, engine, request, monkeypatch)


HOLDING = (
    "rivet_resources.contracts.rows.boundary",
    "rivet_resources.read.sieve",
    "rivet_assets.modes.incremental_boundary",
)
everywhere = pytest.mark.parametrize("engine", ENGINES, indirect=True)


def run(lab: Lab, block: str = BATCHES) -> int:
    """Run the export; the rows it published."""
    outcome = lab.export(block)
    assert outcome.success, outcome.message
    return outcome.rows


def insert(lab: Lab, *keys: int, k: object, table: str = "orders") -> None:
    """Insert rows of one cursor value."""
    lab.insert(table, [{"id": key, "k": k} for key in keys])


VALUES: Mapping[str, tuple[str, object, object]] = {
    "whole": ("whole", 10, 11),
    "instant": ("instant", NOON, NOON + timedelta(seconds=1)),
    "day": ("day", date(2026, 1, 1), date(2026, 1, 2)),
    "amount": ("amount", Decimal("1.50"), Decimal("2.25")),
    "text": ("note", "batch 10", "batch 11"),
}


@everywhere
@pytest.mark.matrix
@pytest.mark.parametrize("indexed", [True, False], ids=["index", "no-index"])
@pytest.mark.parametrize("word", VALUES)
def test_rows_of_the_last_cursor_value_come_with_the_next_run(lab: Lab, word: str, indexed: bool) -> None:
    """Whatever the cursor is made of: rows of its last value are taken when they come, and once."""
    column, first, second = VALUES[word]
    lab.create("orders", {"id": "whole", "k": column}, index=["k"] if indexed else [])
    insert(lab, 1, 2, k=first)

    counts = [run(lab)]
    for new, value in (((3,), first), ((), first), ((0, 4), first), ((5,), second), ((6,), first), ((7,), second)):
        if new:
            insert(lab, *new, k=value)
        counts.append(run(lab))

    assert [2, 1, 0, 2, 1, 0, 1] == counts  # 6 came below the cursor, which is above its value by then
    assert [0, 1, 2, 3, 4, 5, 7] == lab.ids("orders")


@everywhere
@pytest.mark.parametrize("form", ["table", "query"])
def test_equal_rows_without_a_key_come_as_often_as_they_are(lab: Lab, form: str) -> None:
    """Rows that nothing tells apart are counted: two were exported, so of three the third is new."""
    lab.sql(f"CREATE TABLE orders (id {lab.engine.types['whole']}, k {lab.engine.types['whole']})")
    block = BATCHES if form == "table" else BATCHES.replace("table: orders", "query: 'SELECT * FROM orders'")
    insert(lab, 1, 1, 2, k=10)

    counts = [run(lab, block)]
    insert(lab, 1, 2, k=10)
    counts.append(run(lab, block))
    insert(lab, 1, k=10)
    insert(lab, 1, k=11)
    counts.append(run(lab, block))

    assert [3, 2, 2] == counts
    assert [1, 1, 1, 1, 1, 2, 2] == lab.ids("orders")


def test_idle_runs_share_one_window(lab: Lab) -> None:
    """Only a run that found rows at the last value makes the next window another one."""
    lab.create("orders", {"id": "whole", "k": "whole"})
    insert(lab, 1, k=10)
    assert [1, 0, 0] == [run(lab) for _ in range(3)]
    assert {"after=start", "after=10"} == set(lab.manifests("orders"))
    insert(lab, 2, k=10)

    assert [1, 0, 0] == [run(lab) for _ in range(3)]
    assert {"after=start", "after=10", "after+1=10"} == set(lab.manifests("orders"))


@everywhere
def test_row_that_changed_under_the_same_cursor_value_stays_as_it_was_exported(lab: Lab) -> None:
    """The key tells that it was exported; a change that the cursor does not show is not seen, as ever."""
    lab.create("orders", {"id": "whole", "k": "whole", "note": "note"}, index=["k"])
    lab.insert("orders", [{"id": 1, "k": 10, "note": "old"}])
    assert 1 == run(lab)
    lab.sql("UPDATE orders SET note = 'new' WHERE id = 1")
    lab.insert("orders", [{"id": 2, "k": 10, "note": "late"}])

    assert 1 == run(lab)

    assert [(1, "old"), (2, "late")] == [(row["id"], row["note"]) for row in lab.rows("orders")]


@everywhere
def test_row_that_moves_up_from_the_last_value_comes_again(lab: Lab) -> None:
    """A change that the cursor shows is exported, also of a row that is remembered."""
    lab.create("orders", {"id": "whole", "k": "whole"}, index=["k"])
    insert(lab, 1, 2, k=10)
    assert 2 == run(lab)
    lab.sql("UPDATE orders SET k = 11 WHERE id = 1")

    assert 1 == run(lab)


@pytest.mark.matrix
@everywhere
@pytest.mark.parametrize("key", [True, False], ids=["key", "no-key"])
def test_random_batches_come_once_each(lab: Lab, key: bool) -> None:
    """Whatever comes, at or above the last value, in whatever order: the union of the windows is the table."""
    dice = random.Random(f"{lab.engine.name}{key}")
    primary = " NOT NULL PRIMARY KEY" if key else ""
    lab.sql(f"CREATE TABLE orders (id {lab.engine.types['whole']}{primary}, k {lab.engine.types['whole']})")
    ids, top = iter(dice.sample(range(10_000), 400)), 0
    given: list[int] = []
    for _ in range(8):
        rows = []
        for _ in range(dice.randrange(12)):
            top += dice.choice([0, 0, 0, 1])
            rows.append({"id": next(ids), "k": top})
        if not key:
            rows += [dice.choice(rows) for _ in rows[:3]]  # equal rows, of values not below the last run's top
        if rows:
            lab.insert("orders", rows)
        given += [row["id"] for row in rows]
        run(lab)

    assert sorted(given) == lab.ids("orders")


# --- where the memory is kept ----------------------------------------------------------------------


def test_lost_state_store_costs_no_row_of_the_last_value(lab: Lab) -> None:
    """The manifests remember too: of the window that ended at the value, and of those that began there."""
    lab.create("orders", {"id": "whole", "k": "whole"})
    counts = []
    for new in ((1, 2), (3,), (4,), ()):
        if new:
            insert(lab, *new, k=10)
        counts.append(run(lab))
        Path(default_url(lab.folder).removeprefix("sqlite:///")).unlink()
    insert(lab, 5, k=11)
    counts.append(run(lab))

    assert [2, 1, 1, 0, 1] == counts
    assert [1, 2, 3, 4, 5] == lab.ids("orders")
    assert {"after=start", "after=10", "after+1=10", "after+2=10"} == set(lab.manifests("orders"))


def test_masked_rows_are_remembered_but_not_named_by_a_manifest(lab: Lab) -> None:
    """A hash of a masked key could be guessed back; the state store has it, the manifest only a count."""
    lab.create("orders", {"id": "whole", "k": "whole", "note": "note"})
    block = BATCHES.replace("}", ", transforms: [{type: mask, fields: [id], method: hash, unkeyed: true}]}")
    counts = []
    for key in (1, 2, 3):
        lab.insert("orders", [{"id": key, "k": 10, "note": "n"}])
        counts.append(run(lab, block))

    cursors = [manifest.cursor for manifest in lab.manifests("orders").values()]
    assert [1, 1, 1] == counts
    assert 3 == len({row["id"] for row in lab.rows("orders")})
    assert {None} == {edge.ids for each in cursors for edge in (each.low_edge, each.high_edge) if edge and edge.rows}


def test_lost_memory_is_told_and_doubles_nothing(lab: Lab) -> None:
    """With the store lost and manifests that name no rows, a run goes on behind the value, and says so."""
    lab.create("orders", {"id": "whole", "k": "whole", "note": "note"})
    block = BATCHES.replace("}", ", transforms: [{type: filter, where: 'id > 0'}]}")
    insert(lab, 1, k=10)
    assert 1 == run(lab, block)
    Path(default_url(lab.folder).removeprefix("sqlite:///")).unlink()
    insert(lab, 2, k=10)
    insert(lab, 3, k=11)

    outcome = lab.export(block)

    assert (True, 1) == (outcome.success, outcome.rows)
    assert "with the value of k at which it ended are not seen this time" in " ".join(outcome.notes)
    assert [1, 3] == lab.ids("orders")


def test_altered_table_is_told_and_doubles_nothing(lab: Lab) -> None:
    """A new column changes what tells rows without a key apart: what is remembered says nothing any more."""
    lab.sql("CREATE TABLE orders (id INTEGER, k INTEGER)")
    insert(lab, 1, 2, k=10)
    assert 2 == run(lab)
    lab.sql("ALTER TABLE orders ADD COLUMN note TEXT")
    insert(lab, 3, k=10)
    insert(lab, 4, k=11)

    outcome = lab.export(BATCHES)

    assert (True, 1) == (outcome.success, outcome.rows)
    assert "the columns that tell its rows apart have changed" in " ".join(outcome.notes)


def test_state_of_an_older_rivet_goes_on_behind_its_value(lab: Lab) -> None:
    """Nothing is remembered of it: nothing is doubled, the run says so, and the next value is remembered."""
    lab.create("orders", {"id": "whole", "k": "whole"})
    insert(lab, 1, k=10)
    assert 1 == run(lab)
    with closing(lab.state) as state:
        state.reset_cursor("orders")
        state.advance_cursor("orders", "10", expected=None)
    insert(lab, 2, k=10)

    outcome = lab.export(BATCHES)
    insert(lab, 3, k=11)
    assert 1 == run(lab)
    insert(lab, 4, k=11)

    assert (0, True) == (outcome.rows, "as after an older Rivet" in " ".join(outcome.notes))
    assert 1 == run(lab)


# --- too many to remember --------------------------------------------------------------------------


def test_value_with_too_many_rows_is_told_and_no_row_of_it_is_lost_silently(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run that ends there says so; the run after more have come is refused, with ways to go on."""
    for name in HOLDING:
        monkeypatch.setattr(f"{name}.MOST_REMEMBERED", 3)
    lab.create("orders", {"id": "whole", "k": "whole"})
    insert(lab, 1, 2, 3, 4, k=10)

    first = lab.export(BATCHES)
    second = lab.export(BATCHES)
    insert(lab, 5, k=10)
    third = lab.export(BATCHES)
    lab.sql("DELETE FROM orders WHERE id = 5")
    insert(lab, 6, k=11)
    fourth = lab.export(BATCHES)

    assert [True, True, False, True] == [each.success for each in (first, second, third, fourth)]
    assert "4 rows share the last value of k, and at most 3 are remembered" in " ".join(first.notes)
    assert "5 rows of orders have the value of k" in third.message
    assert "4 of them were exported" in third.message
    assert "rivet state reset" in third.message
    assert [1, 2, 3, 4, 6] == lab.ids("orders")


def test_visits_to_one_value_add_up_to_too_many(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """What several windows found is remembered together, and limited together."""
    for name in HOLDING:
        monkeypatch.setattr(f"{name}.MOST_REMEMBERED", 3)
    lab.create("orders", {"id": "whole", "k": "whole"})
    insert(lab, 1, 2, k=10)
    assert 2 == run(lab)
    insert(lab, 3, 4, k=10)

    second = lab.export(BATCHES)
    quiet = run(lab)
    insert(lab, 5, k=10)

    assert (2, 0) == (second.rows, quiet)
    assert "4 rows share the last value of k" in " ".join(second.notes)
    assert not lab.export(BATCHES).success
    assert [1, 2, 3, 4] == lab.ids("orders")
    assert 10_000 <= boundary.DIGITS * 10_000


# --- what the server holds for equal -----------------------------------------------------------------


@pytest.mark.parametrize("engine", ["mariadb", "mysql"], indirect=True)
@pytest.mark.parametrize("key", [True, False], ids=["key", "no-key"])
def test_texts_that_the_server_holds_for_equal_are_one_value(lab: Lab, key: bool) -> None:
    """'a' = 'A' there: rows of both are at the end of the window, and none of them comes twice or never."""
    primary = " PRIMARY KEY" if key else ""
    lab.sql(
        f"CREATE TABLE orders (id int NOT NULL{primary}, k varchar(20) CHARACTER SET utf8mb4 "
        f"COLLATE utf8mb4_general_ci NOT NULL, KEY (k))"
    )
    for keys, value in (((1, 2), "a"), ((3,), "A"), ((4,), "á")):
        insert(lab, *keys, k=value)

    counts = [run(lab)]
    insert(lab, 0, 5, k="A")
    counts.append(run(lab))
    insert(lab, 6, k="a ")  # trailing blanks do not count there
    insert(lab, 7, k="b")
    counts.append(run(lab))

    assert [4, 2, 2] == counts
    assert list(range(8)) == lab.ids("orders")


def test_texts_by_a_collation_of_sqlite_are_one_value(lab: Lab) -> None:
    """The same where the column says NOCASE."""
    lab.sql("CREATE TABLE orders (id INTEGER PRIMARY KEY, k TEXT COLLATE NOCASE)")
    insert(lab, 1, k="a")
    insert(lab, 2, k="A")

    counts = [run(lab)]
    insert(lab, 3, k="a")
    counts.append(run(lab))

    assert [2, 1] == counts
    assert [1, 2, 3] == lab.ids("orders")


@pytest.mark.parametrize("engine", ["postgres", "mariadb", "sqlite"], indirect=True)
def test_both_zeros_of_floats_are_one_value(lab: Lab) -> None:
    """-0.0 = 0.0, and each row of them comes once."""
    kind = {"postgres": "double precision", "mariadb": "double", "sqlite": "REAL"}[lab.engine.name]
    lab.sql(f"CREATE TABLE orders (id int NOT NULL PRIMARY KEY, k {kind})")
    lab.sql("INSERT INTO orders VALUES (1, -0.0), (2, 0.0)")

    counts = [run(lab)]
    lab.sql("INSERT INTO orders VALUES (3, -0.0), (4, 0.0)")
    counts.append(run(lab))

    assert [2, 2] == counts


@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
def test_decimals_of_other_lengths_are_one_value(lab: Lab) -> None:
    """1.0 = 1.00 where the column has no scale of its own."""
    lab.sql("CREATE TABLE orders (id int NOT NULL PRIMARY KEY, k numeric)")
    lab.sql("INSERT INTO orders VALUES (1, 1.0), (2, 1.00)")

    counts = [run(lab)]
    lab.sql("INSERT INTO orders VALUES (3, 1), (4, 1.000)")
    counts.append(run(lab))

    assert [2, 2] == counts


# --- with the other keys -----------------------------------------------------------------------------


@everywhere
def test_fallback_column_stands_in_at_the_last_value_too(lab: Lab) -> None:
    """With coalesce a row is at the value by either column."""
    lab.create("orders", {"id": "whole", "k": "whole", "made": "whole"})
    block = BATCHES.replace("}", ", incremental_cursor_mode: coalesce, cursor_fallback_column: made}")
    lab.insert("orders", [{"id": 1, "k": 10, "made": 1}, {"id": 2, "k": None, "made": 10}])

    counts = [run(lab, block)]
    lab.insert("orders", [{"id": 3, "k": None, "made": 10}, {"id": 4, "k": 10, "made": 2}])
    counts.append(run(lab, block))

    assert [2, 2] == counts
    assert [1, 2, 3, 4] == lab.ids("orders")


def test_rows_without_a_cursor_come_with_the_first_run_only(lab: Lab) -> None:
    """Rows of the last value change nothing for those that have none."""
    lab.create("orders", {"id": "whole", "k": "whole"})
    insert(lab, 1, k=None)
    insert(lab, 2, k=10)
    counts = [run(lab)]
    insert(lab, 3, k=None)
    insert(lab, 4, k=10)
    counts.append(run(lab))

    assert [2, 1] == counts
    assert [1, 2, 4] == lab.ids("orders")


def test_rows_that_were_exported_count_for_no_rule(lab: Lab) -> None:
    """They are left out before rules, transforms and empty windows are judged."""
    lab.create("orders", {"id": "whole", "k": "whole"})
    block = BATCHES.replace("}", ", skip_empty: true, quality: {unique_columns: [id], row_count_max: 2}}")
    insert(lab, 1, 2, k=10)
    counts = [run(lab, block)]
    skipped = lab.export(block)
    insert(lab, 3, 4, k=10)
    counts.append(run(lab, block))

    assert [2, 2] == counts
    assert "skipped" == skipped.status
    assert [1, 2, 3, 4] == lab.ids("orders")


def test_cursor_that_is_the_key_remembers_nothing(lab: Lab) -> None:
    """No value of it comes a second time."""
    lab.create("orders", {"id": "whole", "k": "whole"})
    insert(lab, 1, 2, k=10)
    run(lab, BATCHES.replace("cursor_column: k", "cursor_column: id"))

    (manifest,) = lab.manifests("orders").values()
    assert ("", None, None) == (manifest.cursor.scheme, manifest.cursor.low_edge, manifest.cursor.high_edge)


@pytest.mark.spark
def test_tasks_of_spark_remember_as_this_process_does(lab: Lab, spark_runtime: SparkRuntime) -> None:
    """What a task found at the ends of a window comes back with its parts."""
    lab.create("orders", {"id": "whole", "k": "note"})
    settings = f"spark: {{master: '{spark_runtime.session().sparkContext.master}', niceness: 0}}"
    for keys, value in (((1, 2), "a"), ((3,), "a"), ((4,), "b")):
        insert(lab, *keys, k=value)
        lab.config(BATCHES)
        path = lab.folder / "rivet.yaml"
        text = path.read_text().replace("spark: inline", settings)
        # Workers may be older than the lab's variable.
        path.write_text(text.replace("path_env: LAB_URL", f"path: {lab.url}"))
        (outcome,) = run_exports(load_config(path))
        assert "success" == outcome.status, outcome.message

    assert [1, 2, 3, 4] == lab.ids("orders")
    assert ["after+1=a", "after=a", "after=start"] == sorted(lab.manifests("orders"))


def test_parts_of_both_windows_stay(lab: Lab) -> None:
    """The window of the later rows replaces nothing, also when the source has forgotten the earlier ones."""
    lab.create("orders", {"id": "whole", "k": "whole"})
    insert(lab, 1, k=10)
    run(lab)
    insert(lab, 2, k=10)
    run(lab)
    lab.sql("DELETE FROM orders")
    insert(lab, 3, k=10)
    run(lab)
    run(lab)

    assert [1, 2, 3] == lab.ids("orders")
    assert [1, 1, 1] == sorted(pq.read_table(path).num_rows for path in lab.parts("orders"))[-3:]
