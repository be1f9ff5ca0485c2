"""What every mode promises, seen from outside: a YAML block in, the union of the manifests out."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from tests.lab import Lab

ORDERS = """
CREATE TABLE orders (id bigint PRIMARY KEY, at timestamptz, day date, epoch bigint, amount numeric(12,2), note text);
INSERT INTO orders
SELECT n, timestamptz '2026-01-01 00:00+00' + n * interval '1 hour', date '2026-01-01' + (n / 24)::int,
       extract(epoch FROM timestamptz '2026-01-01 00:00+00' + n * interval '1 hour')::bigint,
       n * 1.25, CASE WHEN n % 3 = 0 THEN NULL WHEN n % 3 = 1 THEN '' ELSE 'note ' || n END
FROM generate_series(0, 239) n;
CREATE INDEX ON orders (at);
ANALYZE orders;
"""

ALL_IDS = list(range(240))


@pytest.fixture
def lab(tmp_path: Path, fresh_database: str, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A database with 240 hourly orders over ten days, and an empty folder."""
    monkeypatch.setenv("LAB_URL", fresh_database)
    monkeypatch.chdir(tmp_path)
    laboratory = Lab(tmp_path, fresh_database)
    laboratory.sql(*filter(str.strip, ORDERS.split(";\n")))
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


@pytest.mark.parametrize("block", WHOLE_TABLE.values(), ids=WHOLE_TABLE)
def test_every_mode_gives_every_row_once(lab: Lab, block: str) -> None:
    """Whatever the mode and the way of cutting, the union of manifests is the table."""
    outcome = lab.export(block)

    assert outcome.success, outcome.message
    assert lab.ids("orders") == ALL_IDS


@pytest.mark.parametrize("block", WHOLE_TABLE.values(), ids=WHOLE_TABLE)
def test_every_mode_gives_the_same_cells(lab: Lab, block: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A cell has one type and one value, in whatever mode it was read."""
    lab.export(block)
    other = Lab(tmp_path_factory.mktemp("full"), lab.url)
    other.export(FULL)

    assert other.rows("orders") == lab.rows("orders")


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
    lab.sql("TRUNCATE orders")

    outcome = lab.export(block)

    assert outcome.success, outcome.message
    assert [manifest.row_count for manifest in lab.manifests("orders").values()] == [0]
    assert (lab.folder / "lake/orders/_SUCCESS").exists()


@pytest.mark.parametrize("block", [FULL, INCREMENTAL])
def test_skip_empty_leaves_no_trace(lab: Lab, block: str) -> None:
    """With skip_empty an empty window writes nothing and leaves the old manifest alone."""
    lab.sql("TRUNCATE orders")

    outcome = lab.export(block.replace("}", ", skip_empty: true}"))

    assert outcome.success, outcome.message
    assert lab.manifests("orders") == {}


# --- incremental ---------------------------------------------------------------------------------


def test_incremental_takes_only_what_is_new(lab: Lab) -> None:
    """The second window holds the new rows and no other."""
    lab.export(INCREMENTAL)
    lab.sql(
        "INSERT INTO orders SELECT 1000 + n, timestamptz '2026-03-01' + n * interval '1 s' FROM generate_series(0,4) n"
    )

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


@pytest.mark.parametrize(
    ("cursor", "late", "early"),
    [
        ("at", "INSERT INTO orders (id, at) VALUES (900, now())", "INSERT INTO orders (id, at) VALUES (901, now())"),
        ("id", "INSERT INTO orders (id) VALUES (900)", "INSERT INTO orders (id) VALUES (901)"),
    ],
)
def test_late_commit_is_not_skipped(lab: Lab, cursor: str, late: str, early: str) -> None:
    """A row stamped early and committed late comes with the next run; one stamped later does not overtake it."""
    block = INCREMENTAL.replace("cursor_column: at", f"cursor_column: {cursor}")
    with psycopg.connect(lab.url) as writer:
        writer.execute(late)
        lab.sql(early)
        first = lab.export(block)
        writer.commit()
    lab.sql("SELECT pg_sleep(0.5)")

    second = lab.export(block)

    assert first.success, first.message
    assert second.success, second.message
    assert [*ALL_IDS, 900, 901] == lab.ids("orders")


def test_ties_at_the_bound_are_all_taken(lab: Lab) -> None:
    """Rows that share the newest cursor value are exported together, and once."""
    lab.sql("UPDATE orders SET at = '2026-02-01' WHERE id >= 100")

    lab.export(INCREMENTAL)
    lab.export(INCREMENTAL)

    assert lab.ids("orders") == ALL_IDS


def test_rows_without_cursor_come_with_the_first_run_only(lab: Lab) -> None:
    """The stated policy for NULL cursors: exported by the first run, counted in each."""
    lab.sql("UPDATE orders SET at = NULL WHERE id < 5")
    lab.export(INCREMENTAL)
    lab.sql("INSERT INTO orders (id, at) VALUES (500, NULL), (501, '2026-03-01')")

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
    lab.sql("ALTER TABLE orders ADD created timestamptz", "UPDATE orders SET created = at, at = NULL WHERE id % 2 = 0")
    block = INCREMENTAL.replace("}", ", incremental_cursor_mode: coalesce, cursor_fallback_column: created}")
    lab.export(block)
    lab.sql("INSERT INTO orders (id, created) VALUES (700, '2026-03-01')")

    lab.export(block)

    assert [*ALL_IDS, 700] == lab.ids("orders")


def test_reset_cursor_exports_again_without_duplicates(lab: Lab) -> None:
    """After a reset the first window replaces all that followed it."""
    lab.export(INCREMENTAL)
    lab.sql("INSERT INTO orders (id, at) VALUES (600, '2026-03-01')")
    lab.export(INCREMENTAL)
    lab.state.reset_cursor("orders")

    lab.export(INCREMENTAL)

    assert [*ALL_IDS, 600] == lab.ids("orders")


def test_lost_state_store_is_found_again_in_the_manifests(lab: Lab) -> None:
    """Without its state store an incremental export goes on where the manifests end."""
    lab.export(INCREMENTAL)
    for path in lab.folder.glob(".rivet_state.db*"):
        path.unlink()
    lab.sql("INSERT INTO orders (id, at) VALUES (600, '2026-03-01')")

    outcome = lab.export(INCREMENTAL)

    assert (outcome.success, outcome.rows) == (True, 1)
    assert [*ALL_IDS, 600] == lab.ids("orders")


# --- chunked -------------------------------------------------------------------------------------


def test_sparse_key_is_refused_with_the_ways_out(lab: Lab) -> None:
    """Ranges that would mostly be empty are refused before a row is read."""
    lab.sql("INSERT INTO orders (id) VALUES (1000000)", "ANALYZE orders")

    outcome = lab.export("{name: orders, table: orders, mode: chunked, chunk_column: id, chunk_size: 100}")

    assert not outcome.success
    assert "is sparse" in outcome.message
    assert "chunk_dense" in outcome.message


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
    note = "CASE WHEN n > 1010 THEN 'x' END"
    lab.sql(f"INSERT INTO orders (id, at, note) SELECT n, '2026-03-01', {note} FROM generate_series(1000, 1020) n")

    outcome = lab.export(INCREMENTAL.replace("}", f", format: {form}, quality: {{{rule}}}}}"))

    assert (outcome.success, outcome.exit_code) == (False, 3)
    assert lab.ids("orders") == ALL_IDS
    assert cursor == lab.state.cursor("orders").value
    assert [path for path in (lab.folder / "lake/orders/_staged").rglob("*") if path.is_file()] == []


def test_gate_judges_the_whole_window_across_chunks(lab: Lab) -> None:
    """A value that repeats in another chunk is found; each chunk alone is unique."""
    lab.sql("UPDATE orders SET note = 'n' || (id % 120)")
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


@pytest.mark.parametrize("mode", DECISIVE)
def test_special_value_in_a_deciding_column_always_fails(lab: Lab, mode: str) -> None:
    """An infinite cursor or time is never turned to NULL: that would lose rows later."""
    lab.sql("UPDATE orders SET at = '-infinity' WHERE id = 5")

    outcome = lab.export(DECISIVE[mode], partitions=("2026-01-01",) if mode == "time_window" else ())

    if mode == "time_window":  # the row belongs to no window, so it is not read at all
        assert outcome.success, outcome.message
        assert [n for n in range(24) if n != 5] == lab.ids("orders")
    else:
        assert (False, 3) == (outcome.success, outcome.exit_code), outcome.message
        assert {} == lab.manifests("orders")


QUOTED = '"Sales. ""Dept"""."Order.Lines"'


@pytest.mark.parametrize(
    "mode", ["mode: full", "mode: chunked\nchunk_count: 3", "mode: incremental\ncursor_column: Id"]
)
def test_names_that_need_quotes_are_read(lab: Lab, mode: str) -> None:
    """Blanks, dots, capitals, keywords and quotes in names are names, in every mode."""
    lab.sql(
        'CREATE SCHEMA "Sales. ""Dept"""',
        f'CREATE TABLE {QUOTED} ("Id" int PRIMARY KEY, "select" text, "Üm" int, "a.b" int)',
        f"INSERT INTO {QUOTED} SELECT n, 'x', n, n FROM generate_series(1, 50) n",
    )

    outcome = lab.export(f"name: lines of sales\ntable: '{QUOTED}'\n{mode}")

    assert outcome.success, outcome.message
    assert list(range(1, 51)) == sorted(row["Id"] for row in lab.rows("lines of sales"))
    assert ["Id", "select", "Üm", "a.b"] == list(lab.rows("lines of sales")[0])


def test_gate_over_a_quoted_column_is_judged(lab: Lab) -> None:
    """A rule may name any column, also one whose name no identifier of Dagster can hold; two such stay apart."""
    lab.sql('CREATE TABLE odd ("a b" int, "a.b" int)', "INSERT INTO odd VALUES (1, NULL), (1, NULL)")

    outcome = lab.export("{name: odd, table: odd, quality: {unique_columns: ['a b', a.b], null_ratio_max: {a.b: 0.5}}}")

    assert (False, 3) == (outcome.success, outcome.exit_code), outcome.message
    assert 2 == len(outcome.checks_failed)
