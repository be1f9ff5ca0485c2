"""What every mode promises, seen from outside: a YAML block in, the union of the manifests out."""

from __future__ import annotations

import shutil
import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from tests.lab import Lab, lab_in
from tests.lab_engines import ENGINES, Engine

pytestmark = pytest.mark.wide

ORDERS = {"id": "whole", "at": "instant", "day": "day", "epoch": "whole", "amount": "amount", "note": "note"}
FIRST = datetime(2026, 1, 1, tzinfo=UTC)
FEBRUARY, MARCH = datetime(2026, 2, 1, tzinfo=UTC), datetime(2026, 3, 1, tzinfo=UTC)
ALL_IDS = list(range(240))

# Every mode on every engine; what the modes promise in detail, on one engine with a shared snapshot and one without.
everywhere = pytest.mark.parametrize("engine", ENGINES, indirect=True)
on_servers = pytest.mark.parametrize("engine", ["postgres", "mariadb", "mysql"], indirect=True)


@pytest.fixture(params=["postgres", "mariadb"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """The engine a test runs on."""
    return ENGINES[request.param]


def order(number: int) -> dict[str, object]:
    """Make the order of an hour."""
    at = FIRST + timedelta(hours=number)
    note = None if number % 3 == 0 else "" if number % 3 == 1 else f"note {number}"
    amount = Decimal(number) * Decimal("1.25")
    return {"id": number, "at": at, "day": at.date(), "epoch": int(at.timestamp()), "amount": amount, "note": note}


@pytest.fixture
def lab(tmp_path: Path, engine: Engine, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A database with 240 hourly orders over ten days, and an empty folder."""
    laboratory = lab_in(tmp_path, engine, request, monkeypatch)
    laboratory.create("orders", ORDERS, index=["at"])
    laboratory.insert("orders", map(order, ALL_IDS))
    laboratory.analyze("orders")
    return laboratory


FULL = "{name: orders, table: orders, mode: full}"
INCREMENTAL = "{name: orders, table: orders, mode: incremental, cursor_column: at}"

WHOLE_TABLE = {
    "full": FULL,
    "full query": "{name: orders, query: 'SELECT * FROM orders', mode: full}",
    "incremental": INCREMENTAL,
    "incremental query": "{name: orders, query: 'SELECT * FROM orders', mode: incremental, cursor_column: at}",
    "incremental by number": "{name: orders, table: orders, mode: incremental, cursor_column: id}",
    "chunk_size": "{name: orders, table: orders, mode: chunked, chunk_column: id, chunk_size: 50, parallel: 2}",
    "chunk_count": "{name: orders, table: orders, mode: chunked, chunk_column: id, chunk_count: 7}",
    "chunk_by_days": "{name: orders, table: orders, mode: chunked, chunk_column: at, chunk_by_days: 3}",
    "chunk_by_days of dates": "{name: orders, table: orders, mode: chunked, chunk_column: day, chunk_by_days: 4}",
    "dense": "{name: orders, table: orders, mode: chunked, chunk_column: id, chunk_dense: true, chunk_size: 70}",
    "keyset": "{name: orders, table: orders, mode: chunked, chunk_by_key: id, parallel: 3}",
    "statistics": "{name: orders, table: orders, mode: chunked, parallel: 4}",
    "statistics of a timestamp": "{name: orders, table: orders, mode: chunked, chunk_column: at, parallel: 3}",
    "chunked query": "{name: orders, query: 'SELECT * FROM orders', mode: chunked, chunk_column: id, chunk_size: 100}",
}


@everywhere
@pytest.mark.parametrize("block", WHOLE_TABLE.values(), ids=WHOLE_TABLE)
def test_every_mode_gives_every_row_once_and_the_same_cells(lab: Lab, block: str) -> None:
    """Whatever the mode and the way of cutting, the union of manifests is the table, with one type per column."""
    whole = lab.export(FULL.replace("name: orders", "name: whole"))

    outcome = lab.export(block)

    assert whole.success, whole.message
    assert outcome.success, outcome.message
    assert lab.ids("orders") == ALL_IDS
    assert lab.rows("whole") == lab.rows("orders")
    assert lab.schema("whole") == lab.schema("orders")


@everywhere
def test_cells_of_the_table_are_those_of_its_rows(lab: Lab) -> None:
    """What was inserted is what a reader gets, as Python's own values."""
    lab.export(FULL)

    assert [order(number) for number in ALL_IDS] == lab.rows("orders")


def test_full_run_again_replaces_the_window(lab: Lab) -> None:
    """A second full export shows the table of now, not both tables."""
    lab.export(FULL)
    lab.sql("DELETE FROM orders WHERE id >= 10")

    lab.export(FULL)

    assert list(range(10)) == lab.ids("orders")
    assert {"all"} == set(lab.manifests("orders"))


@pytest.mark.parametrize("block", [FULL, INCREMENTAL, WHOLE_TABLE["statistics"], WHOLE_TABLE["chunk_size"]])
def test_empty_table_is_committed_as_empty(lab: Lab, block: str) -> None:
    """A reader can tell an empty export from one that never ran."""
    lab.sql("DELETE FROM orders")

    outcome = lab.export(block)

    assert outcome.success, outcome.message
    assert [manifest.row_count for manifest in lab.manifests("orders").values()] == [0]
    assert (lab.folder / "lake/orders/_SUCCESS").exists()


@pytest.mark.parametrize("block", [FULL, INCREMENTAL])
def test_skip_empty_leaves_no_trace(lab: Lab, block: str) -> None:
    """With skip_empty an empty window writes nothing and leaves the old manifest alone."""
    lab.sql("DELETE FROM orders")

    outcome = lab.export(block.replace("}", ", skip_empty: true}"))

    assert outcome.success, outcome.message
    assert lab.manifests("orders") == {}


# --- incremental ---------------------------------------------------------------------------------


def test_incremental_takes_only_what_is_new(lab: Lab) -> None:
    """The second window holds the new rows and no other."""
    lab.export(INCREMENTAL)
    lab.insert("orders", [{"id": 1000 + n, "at": MARCH + timedelta(seconds=n)} for n in range(5)])

    lab.export(INCREMENTAL)

    assert [*ALL_IDS, *range(1000, 1005)] == lab.ids("orders")
    assert sorted(manifest.row_count for manifest in lab.manifests("orders").values()) == [5, 240]


def test_incremental_with_nothing_new_changes_nothing(lab: Lab) -> None:
    """An idle run succeeds with zero rows and the cursor stays."""
    lab.export(INCREMENTAL)
    before = lab.state.cursor("orders")

    outcome = lab.export(INCREMENTAL)

    assert (outcome.success, outcome.rows) == (True, 0)
    assert before is not None
    assert before.value == lab.state.cursor("orders").value
    assert lab.ids("orders") == ALL_IDS


@on_servers
@pytest.mark.parametrize("cursor", ["at", "id"])
def test_late_commit_is_not_skipped(lab: Lab, cursor: str) -> None:
    """A row stamped early and committed late comes with the next run; one stamped later does not overtake it."""
    block = INCREMENTAL.replace("cursor_column: at", f"cursor_column: {cursor}")
    late = f"INSERT INTO orders (id, at) VALUES (900, {lab.literal(datetime.now(UTC))})"
    with lab.writer() as writer:
        writer.execute(late)
        lab.insert("orders", [{"id": 901, "at": datetime.now(UTC)}])
        first = lab.export(block)
        writer.commit()
    time.sleep(lab.engine.settled_seconds)

    second = lab.export(block)

    assert first.success, first.message
    assert second.success, second.message
    assert [*ALL_IDS, 900, 901] == lab.ids("orders")


@everywhere
@pytest.mark.parametrize("cursor", ["at", "day"])
def test_rows_stamped_ahead_of_now_are_counted_and_told(lab: Lab, cursor: str) -> None:
    """They are held back until their moment; nobody has to guess how many, and how long."""
    years = [datetime(year, 5, 1, tzinfo=UTC) for year in (2036, 2037)]  # a TIMESTAMP of MySQL ends in 2038
    lab.insert("orders", [{"id": 900 + n, "at": at, "day": at.date()} for n, at in enumerate(years)])

    outcome = lab.export(INCREMENTAL.replace("cursor_column: at", f"cursor_column: {cursor}"))

    assert outcome.success, outcome.message
    assert ALL_IDS == lab.ids("orders")
    assert "2 rows are stamped ahead of now and held back, the last until 2037-05-01" in "; ".join(outcome.notes)


def test_ties_at_the_bound_are_all_taken(lab: Lab) -> None:
    """Rows that share the newest cursor value are exported together, and once."""
    lab.sql(f"UPDATE orders SET at = {lab.literal(FEBRUARY)} WHERE id >= 100")

    lab.export(INCREMENTAL)
    lab.export(INCREMENTAL)

    assert lab.ids("orders") == ALL_IDS


def test_rows_without_cursor_come_with_the_first_run_only(lab: Lab) -> None:
    """The stated policy for NULL cursors: exported by the first run, counted in each."""
    lab.sql("UPDATE orders SET at = NULL WHERE id < 5")
    lab.export(INCREMENTAL)
    lab.insert("orders", [{"id": 500, "at": None}, {"id": 501, "at": MARCH}])

    lab.export(INCREMENTAL)

    assert [*ALL_IDS, 501] == lab.ids("orders")


def test_rows_without_cursor_can_be_refused(lab: Lab) -> None:
    """cursor_nulls: fail stops the run and names column, count and the ways out."""
    lab.sql("UPDATE orders SET at = NULL WHERE id < 5")

    outcome = lab.export(INCREMENTAL.replace("}", ", cursor_nulls: fail}"))

    assert not outcome.success
    assert "orders.at is NULL in 5 rows" in outcome.message
    assert lab.manifests("orders") == {}


def test_coalesce_cursor_orders_by_the_fallback_where_the_first_is_null(lab: Lab) -> None:
    """With a fallback column no row is without a cursor."""
    lab.sql(f"ALTER TABLE orders ADD created {lab.engine.types['instant']}")
    lab.sql("UPDATE orders SET created = at, at = at WHERE id % 2 = 0", "UPDATE orders SET at = NULL WHERE id % 2 = 0")
    block = INCREMENTAL.replace("}", ", incremental_cursor_mode: coalesce, cursor_fallback_column: created}")
    lab.export(block)
    lab.insert("orders", [{"id": 700, "created": MARCH}])

    lab.export(block)

    assert [*ALL_IDS, 700] == lab.ids("orders")


def test_reset_cursor_exports_again_without_duplicates(lab: Lab) -> None:
    """After a reset the first window replaces all that followed it."""
    lab.export(INCREMENTAL)
    lab.insert("orders", [{"id": 600, "at": MARCH}])
    lab.export(INCREMENTAL)
    lab.state.reset_cursor("orders")

    lab.export(INCREMENTAL)

    assert [*ALL_IDS, 600] == lab.ids("orders")


def test_lost_state_store_is_found_again_in_the_manifests(lab: Lab) -> None:
    """Without its state store an incremental export goes on where the manifests end."""
    lab.export(INCREMENTAL)
    for path in lab.folder.glob(".rivet_state.db*"):
        path.unlink()
    lab.insert("orders", [{"id": 600, "at": MARCH}])

    outcome = lab.export(INCREMENTAL)

    assert (outcome.success, outcome.rows) == (True, 1)
    assert [*ALL_IDS, 600] == lab.ids("orders")


@pytest.mark.parametrize("behind", [1, 3], ids=["by one window", "by several"])
def test_restored_state_store_takes_no_row_back(lab: Lab, tmp_path: Path, behind: int) -> None:
    """Windows that a copy of the store does not know stay: the source may have no row of them any more."""
    lab.export(INCREMENTAL)
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in lab.folder.glob(".rivet_state.db*"):
        shutil.copy(path, copy)
    for number in range(behind):
        lab.insert("orders", [{"id": 600 + number, "at": MARCH}])
        assert lab.export(INCREMENTAL).success
    for path in lab.folder.glob(".rivet_state.db*"):
        path.unlink()
    for path in copy.iterdir():
        shutil.copy(path, lab.folder)
    lab.sql("DELETE FROM orders WHERE id = 600")
    lab.insert("orders", [{"id": 700, "at": MARCH}])

    outcome, again = lab.export(INCREMENTAL), lab.export(INCREMENTAL)

    assert (True, 1, 0) == (outcome.success, outcome.rows, again.rows), outcome.message
    assert [*ALL_IDS, *range(600, 600 + behind), 700] == lab.ids("orders")


def test_state_store_from_before_a_reset_shows_no_row_twice(lab: Lab, tmp_path: Path) -> None:
    """Its cursor is where no window of the newer chain ends: the manifests tell where that does."""
    lab.export(INCREMENTAL)
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in lab.folder.glob(".rivet_state.db*"):
        shutil.copy(path, copy)
    lab.insert("orders", [{"id": 600, "at": MARCH}])
    lab.state.reset_cursor("orders")
    assert lab.export(INCREMENTAL).success
    lab.insert("orders", [{"id": 601, "at": MARCH}])
    assert lab.export(INCREMENTAL).success
    for path in lab.folder.glob(".rivet_state.db*"):
        path.unlink()
    for path in copy.iterdir():
        shutil.copy(path, lab.folder)
    lab.insert("orders", [{"id": 700, "at": MARCH}])

    outcome, again = lab.export(INCREMENTAL), lab.export(INCREMENTAL)

    assert (True, 1, 0) == (outcome.success, outcome.rows, again.rows), outcome.message
    assert [*ALL_IDS, 600, 601, 700] == lab.ids("orders")


# --- chunked -------------------------------------------------------------------------------------


def test_sparse_key_is_refused_with_the_ways_out(lab: Lab) -> None:
    """Ranges that would mostly be empty are refused before a row is read."""
    lab.sql("INSERT INTO orders (id) VALUES (1000000)")
    lab.analyze("orders")

    outcome = lab.export("{name: orders, table: orders, mode: chunked, chunk_column: id, chunk_size: 100}")

    assert not outcome.success
    assert "is sparse" in outcome.message
    assert "chunk_dense" in outcome.message


PAIRS = {
    "automatic": "chunk_size: 100, parallel: 2",
    "by key": "chunk_by_key: tenant, parallel: 2",
    "dense": "chunk_dense: true, chunk_size: 100",
    "resumable": "chunk_checkpoint: true, chunk_size: 60",
}


@everywhere
@pytest.mark.parametrize("keys", PAIRS.values(), ids=PAIRS)
def test_table_with_a_composite_key_is_cut_by_its_first_column(lab: Lab, keys: str) -> None:
    """Every row once, though one tenant has nearly all of them and a page ends in its middle."""
    lab.sql("CREATE TABLE pairs (tenant INT NOT NULL, id INT NOT NULL, PRIMARY KEY (tenant, id))")
    rows = [{"tenant": 2 if n % 50 else n // 50, "id": n} for n in range(300)]
    lab.insert("pairs", rows)
    lab.analyze("pairs")

    outcome = lab.export(f"{{name: pairs, table: pairs, mode: chunked, tuning: {{batch_size: 23}}, {keys}}}")

    assert outcome.success, outcome.message
    assert rows == lab.rows("pairs")


@everywhere
def test_query_may_end_as_a_statement_does(lab: Lab) -> None:
    """A semicolon, as in every file for a client, ends the query and is not sent."""
    outcome = lab.export("{name: some, mode: full, query: 'SELECT * FROM orders WHERE id < 9 -- few; \n ; -- end'}")

    assert outcome.success, outcome.message
    assert list(range(9)) == lab.ids("some")


def test_key_with_nulls_is_refused(lab: Lab) -> None:
    """No range would hold the rows without a key, so nothing is exported at all."""
    lab.sql("UPDATE orders SET epoch = NULL WHERE id = 7")

    outcome = lab.export("{name: orders, table: orders, mode: chunked, chunk_column: epoch, chunk_count: 4}")

    assert not outcome.success
    assert "is NULL in some rows" in outcome.message
    assert lab.manifests("orders") == {}


# --- time_window ---------------------------------------------------------------------------------

DAILY = "{name: orders, table: orders, mode: time_window, time_column: at, start: 2026-01-01, end: 2026-01-11}"


@pytest.mark.parametrize(
    ("column", "extra"),
    [("at", ""), ("day", ""), ("epoch", ", time_column_type: unix")],
    ids=["instant", "date", "unix"],
)
def test_ten_days_hold_every_row_once(lab: Lab, column: str, extra: str) -> None:
    """The union of the daily windows is the table, by whatever kind of time column."""
    block = DAILY.replace("time_column: at", f"time_column: {column}{extra}")

    outcome = lab.export(block, partitions=tuple(f"2026-01-{day:02d}" for day in range(1, 11)))

    assert outcome.success, outcome.message
    assert lab.ids("orders") == ALL_IDS
    assert len(lab.manifests("orders")) == 10


def test_days_of_a_query_hold_its_rows(lab: Lab) -> None:
    """A query is cut by time like a table."""
    block = DAILY.replace("table: orders", "query: 'SELECT id, at FROM orders WHERE id % 2 = 0'")

    outcome = lab.export(block, partitions=("2026-01-01...2026-01-03",))

    assert outcome.success, outcome.message
    assert list(range(0, 72, 2)) == lab.ids("orders")


def test_row_at_midnight_belongs_to_the_day_that_begins(lab: Lab) -> None:
    """Windows are half-open."""
    lab.export(DAILY, partitions=("2026-01-02",))

    assert list(range(24, 48)) == lab.ids("orders")


def test_day_run_again_replaces_itself(lab: Lab) -> None:
    """Running a day twice changes nothing but what changed in that day."""
    lab.export(DAILY, partitions=("2026-01-01", "2026-01-02"))
    lab.sql("DELETE FROM orders WHERE id = 5", "UPDATE orders SET note = 'changed' WHERE id = 30")

    lab.export(DAILY, partitions=("2026-01-01",))

    assert [n for n in range(48) if n != 5] == lab.ids("orders")
    assert "changed" not in {row["note"] for row in lab.rows("orders")}


def test_day_begins_where_the_timezone_says(lab: Lab) -> None:
    """A day in Prague in winter begins an hour before the one in UTC."""
    lab.export(DAILY.replace("}", ", timezone: Europe/Prague}"), partitions=("2026-01-02",))

    assert list(range(23, 47)) == lab.ids("orders")


@pytest.mark.parametrize("engine", ["postgres", "mariadb", "mysql", "sqlserver", "sqlite"], indirect=True)
def test_times_without_a_zone_are_read_in_that_of_the_windows(lab: Lab) -> None:
    """A day of Prague is that day's digits, wherever the server is; a column of dates has only whole days."""
    lab.create("local", {"id": "whole", "moment": "moment", "day": "day"}, index=["moment"])
    first = datetime(2026, 1, 1)
    rows = [first + timedelta(hours=hour) for hour in range(72)]
    lab.insert("local", [{"id": n, "moment": at, "day": at.date()} for n, at in enumerate(rows)])
    block = "{{name: local, table: local, mode: time_window, time_column: {}, start: 2026-01-01, timezone: {}}}"

    for column in ("moment", "day"):
        for zone in ("Europe/Prague", "America/New_York"):
            outcome = lab.export(block.format(column, zone), partitions=("2026-01-02",))
            assert outcome.success, outcome.message
            assert list(range(24, 48)) == lab.ids("local"), (column, zone)


def test_hourly_windows_hold_one_hour(lab: Lab) -> None:
    """granularity: hour cuts at the hour."""
    lab.export(DAILY.replace("}", ", granularity: hour}"), partitions=("2026-01-03-05:00",))

    assert lab.ids("orders") == [53]


# --- gates ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["parquet", "csv"])
@pytest.mark.parametrize(
    "rule", ["row_count_min: 1000", "row_count_max: 3", "null_ratio_max: {note: 0.1}", "unique_columns: [amount, note]"]
)
def test_failed_gate_publishes_nothing(lab: Lab, form: str, rule: str) -> None:
    """A rule that fails leaves the published rows and the cursor where they were."""
    lab.export(INCREMENTAL.replace("}", f", format: {form}}}"))
    cursor = lab.state.cursor("orders").value
    lab.insert("orders", [{"id": n, "at": MARCH, "note": "x" if n > 1010 else None} for n in range(1000, 1021)])

    outcome = lab.export(INCREMENTAL.replace("}", f", format: {form}, quality: {{{rule}}}}}"))

    assert (outcome.success, outcome.exit_code) == (False, 3)
    assert lab.ids("orders") == ALL_IDS
    assert cursor == lab.state.cursor("orders").value
    assert [path for path in (lab.folder / "lake/orders/_staged").rglob("*") if path.is_file()] == []


def test_gate_judges_the_whole_window_across_chunks(lab: Lab) -> None:
    """A value that repeats in another chunk is found; each chunk alone is unique."""
    lab.sql("UPDATE orders SET note = concat('n', id % 120)")
    block = WHOLE_TABLE["chunk_size"].replace("}", ", quality: {unique_columns: [note]}}")

    outcome = lab.export(block)

    assert not outcome.success
    assert lab.manifests("orders") == {}


def test_one_bad_day_fails_that_day_only(lab: Lab) -> None:
    """In a backfill the good days are committed, the bad one is not."""
    lab.sql("DELETE FROM orders WHERE day = '2026-01-02' AND id <> 30")
    days = tuple(f"2026-01-{day:02d}" for day in range(1, 5))

    outcome = lab.export(DAILY.replace("}", ", quality: {row_count_min: 20}}"), partitions=days)

    assert (outcome.success, outcome.exit_code) == (False, 3)
    assert {"2026-01-01", "2026-01-03", "2026-01-04"} == set(lab.manifests("orders"))
    assert "2026-01-02" in outcome.message


DECISIVE = {
    "incremental": INCREMENTAL.replace("}", ", on_special_value: 'null'}"),
    "time_window": DAILY.replace("}", ", on_special_value: 'null'}"),
}


# Smaller than any time, and none that Arrow has.
BEFORE_TIME = {
    "postgres": ("UPDATE orders SET at = '-infinity' WHERE id = 5",),
    "mariadb": ("SET sql_mode = ''", "UPDATE orders SET at = '0000-00-00' WHERE id = 5"),
}


@pytest.mark.parametrize("mode", DECISIVE)
def test_special_value_in_a_deciding_column_always_fails(lab: Lab, mode: str) -> None:
    """An infinite, or zero, cursor or time is never turned to NULL: that would lose rows later."""
    lab.sql(*BEFORE_TIME[lab.engine.name])

    outcome = lab.export(DECISIVE[mode], partitions=("2026-01-01",) if mode == "time_window" else ())

    if mode == "time_window":  # the row belongs to no window, so it is not read at all
        assert outcome.success, outcome.message
        assert [n for n in range(24) if n != 5] == lab.ids("orders")
    else:
        assert (False, 3) == (outcome.success, outcome.exit_code), outcome.message
        assert {} == lab.manifests("orders")


ODD_NAMES = {
    "postgres": '"Sales. ""Dept"""."Order.Lines"',
    "mariadb": "`Order.`` Lines`",
    "mysql": "`Order.`` Lines`",
    "sqlserver": "[Order.]] Lines]",
    "sqlite": '"Order."" Lines"',
}


@everywhere
@pytest.mark.parametrize(
    "mode", ["mode: full", "mode: chunked\nchunk_count: 3", "mode: incremental\ncursor_column: Id"]
)
def test_names_that_need_quotes_are_read(lab: Lab, mode: str) -> None:
    """Blanks, dots, capitals, keywords and quotes in names are names, in every mode."""
    table, columns = ODD_NAMES[lab.engine.name], [lab.engine.quote(name) for name in ("Id", "select", "Üm", "a.b")]
    if lab.engine.name == "postgres":
        lab.sql('CREATE SCHEMA "Sales. ""Dept"""')
    types = zip(columns, ("int NOT NULL PRIMARY KEY", "varchar(9)", "int", "int"), strict=True)
    lab.sql(f"CREATE TABLE {table} ({', '.join(map(' '.join, types))})")
    lab.insert(table, [dict(zip(columns, (n, "x", n, n), strict=True)) for n in range(1, 51)])

    outcome = lab.export(f"name: lines of sales\ntable: '{table}'\n{mode}")

    assert outcome.success, outcome.message
    assert list(range(1, 51)) == sorted(row["Id"] for row in lab.rows("lines of sales"))
    assert ["Id", "select", "Üm", "a.b"] == list(lab.rows("lines of sales")[0])


def test_gate_over_a_quoted_column_is_judged(lab: Lab) -> None:
    """A rule may name any column, also one whose name no identifier of Dagster can hold; two such stay apart."""
    names = map(lab.engine.quote, ("a b", "a.b"))
    lab.sql(f"CREATE TABLE odd ({' int, '.join(names)} int)", "INSERT INTO odd VALUES (1, NULL), (1, NULL)")

    outcome = lab.export("{name: odd, table: odd, quality: {unique_columns: ['a b', a.b], null_ratio_max: {a.b: 0.5}}}")

    assert (False, 3) == (outcome.success, outcome.exit_code), outcome.message
    assert 2 == len(outcome.checks_failed)
