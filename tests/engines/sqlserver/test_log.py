"""SQL Server's change tables as a log: rows and windows; on the emulator unless a real server is named."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from rivet_resources.contracts.change_log import Position, change_schema
from rivet_resources.contracts.source import ColumnRule
from rivet_resources.engines.sqlserver.log import connection as sqlserver_asking
from rivet_resources.errors import LogRefused, SourceError, UnknownColumn, ValueDoesNotFit
from tests.emulators.tds import server as tds
from tests.engines.sqlserver.changes import (
    ORDERS,
    brief,
    captured_tables,
    drained,
    opened,
    rows,
    settle,
    start_of,
    window,
    write,
)
from tests.engines.sqlserver.reads import column, describe, read
from tests.engines.sqlserver.test_types import CASES

pytestmark = [pytest.mark.wide, pytest.mark.usefixtures("driver")]

emulated = pytest.mark.skipif(not tds.is_emulated(), reason="a real server's log does nothing at a test's demand")
LINES = "CREATE TABLE lines (id int NOT NULL PRIMARY KEY, name nvarchar(40) NULL)"


@pytest.fixture
def shop(fresh_sqlserver: str) -> Iterator[str]:
    """A database whose table `orders` is captured."""
    tds.forget(fresh_sqlserver) if tds.is_emulated() else None
    captured_tables(fresh_sqlserver, ORDERS)
    yield fresh_sqlserver
    tds.forget(fresh_sqlserver) if tds.is_emulated() else None


@pytest.fixture
def two(fresh_sqlserver: str) -> str:
    """A database whose tables `orders` and `lines` are captured."""
    captured_tables(fresh_sqlserver, ORDERS, LINES)
    return fresh_sqlserver


# --- changes -------------------------------------------------------------------------------------


def test_every_operation_arrives_in_the_order_of_its_commit(shop: str):
    """Insert, update and delete come once each, numbered inside their commit, stamped with its time."""
    start = start_of(shop)
    write(
        shop,
        "INSERT INTO orders (id, name) VALUES (1, N'a'), (2, N'b')",
        "UPDATE orders SET name = N'c' WHERE id = 1",
        "DELETE FROM orders WHERE id = 2",
    )

    found = drained(shop, start)

    assert brief(found) == [("insert", 1, "a"), ("insert", 2, "b"), ("update", 1, "c"), ("delete", 2, "b")]
    assert [row["__seq"] for row in found] == [3, 5, 5, 3]
    assert [row["__pos"] for row in found] == sorted(row["__pos"] for row in found)
    assert len({row["__pos"] for row in found}) == 3
    assert all(len(row["__pos"]) == 20 for row in found)
    with opened(shop) as log:
        age = (log.survey().facts["newest_seconds"]) or 0
    assert all(row["__ts"] is not None and row["__ts"].utcoffset().total_seconds() == 0 for row in found)
    assert age < 60


def test_changes_have_the_schema_of_a_part(shop: str):
    """The envelope comes first and the table's columns follow, as a batch read types them."""
    start = start_of(shop)
    write(shop, "INSERT INTO orders (id, name) VALUES (1, N'a')")
    with opened(shop) as log:
        (changes,), _ = window(log, start)

    batch = pa.schema([c.field for c in describe(shop, "orders").columns])

    assert changes.data.schema == change_schema(batch)


def test_comments_of_a_table_are_read_while_its_changes_stream_in(shop: str):
    """By a connection of their own; the emulator keeps no MS_Description, so they are empty there."""
    start = start_of(shop)
    write(shop, "INSERT INTO orders (id, name) VALUES (1, N'a'), (2, N'b')")

    with opened(shop) as log:
        reading = log.read(start, log.survey().target, most=1)
        changes = next(reading)
        comments = log.comments("orders")
        rest = list(reading)

    assert ("all", {column.name for column in changes.columns}) == (comments.kind, set(comments.texts))
    assert 1 == len(rest)


@pytest.mark.parametrize(("kind", "literal", "expected"), CASES, ids=[f"{i}-{case[0]}" for i, case in enumerate(CASES)])
def test_a_cell_of_the_log_equals_the_batch_read(fresh_sqlserver: str, kind, literal, expected):
    """A value of each type is the same cell of the same type in a change and in an export."""
    captured_tables(fresh_sqlserver, f"CREATE TABLE t (id int NOT NULL PRIMARY KEY, v {kind} NULL)")
    start = start_of(fresh_sqlserver, "t")
    write(fresh_sqlserver, f"INSERT INTO t (id, v) VALUES (1, {literal}), (2, NULL)")

    with opened(fresh_sqlserver, "t") as log:
        (changes,), _ = window(log, start)
    batch = read(fresh_sqlserver, "t")

    assert column(changes.data) == [expected, None]
    assert changes.data.schema.field("v").type == batch.schema.field("v").type


def test_override_and_special_values_hold_for_changes(fresh_sqlserver: str):
    """`columns:` types a log's cells; what does not fit fails, or is NULL and counted, as in an export."""
    captured_tables(fresh_sqlserver, "CREATE TABLE t (id int NOT NULL PRIMARY KEY, v datetime2(7) NULL)")
    start = start_of(fresh_sqlserver, "t")
    write(fresh_sqlserver, "INSERT INTO t VALUES (1, '2020-01-01T00:00:00.0000001')")

    with pytest.raises(ValueDoesNotFit, match="seventh digit"):
        drained(fresh_sqlserver, start, "t")
    with opened(fresh_sqlserver, "t", columns={"v": ColumnRule(on_special_value="null")}) as log:
        (changes,), _ = window(log, start)
    as_text = drained(fresh_sqlserver, start, "t", columns={"t.v": "text", "dbo.t.id": "int8"})

    assert (column(changes.data), changes.special) == ([None], {"v": {"seventh_digit": 1}})
    assert [row["v"] for row in as_text] == ["2020-01-01 00:00:00.0000001"]
    with pytest.raises(UnknownColumn, match="nosuch"):
        drained(fresh_sqlserver, start, "t", columns={"nosuch": "text"})


def test_changed_key_is_a_delete_and_an_insert(shop: str):
    """A row that moves to another key leaves no ghost under the old one."""
    write(shop, "INSERT INTO orders (id, name) VALUES (1, N'a')")
    start = start_of(shop)
    write(shop, "UPDATE orders SET id = 9 WHERE id = 1")

    assert brief(drained(shop, start)) == [("delete", 1, "a"), ("insert", 9, "a")]


@emulated
@pytest.mark.parametrize("before", [False, True])
def test_changed_key_in_one_update_is_two_changes_too(shop: str, before: bool):
    """Halves 3 and 4 with the key's bit set are the same two changes; the delete has the even number before."""
    write(shop, "INSERT INTO orders (id, name) VALUES (1, N'a'), (2, N'b')")
    tds.set_capture(shop, splits_key_updates=False)
    start = start_of(shop)
    write(shop, "UPDATE orders SET id = id + 10", "UPDATE orders SET name = N'z' WHERE id = 11")

    found = drained(shop, start, before=before)

    moves = [("delete", 1, "a"), ("insert", 11, "a"), ("delete", 2, "b"), ("insert", 12, "b")]
    assert brief(found) == [*moves, ("update", 11, "z")]
    assert [row["__seq"] for row in found] == [4, 5, 8, 9, 5]


@emulated
def test_row_told_apart_by_another_column_leaves_no_old_row(shop: str):
    """Where a mirror, or messages, go by `key`, a change of that column is a delete of the old row, and an insert."""
    write(shop, "INSERT INTO orders (id, name) VALUES (1, N'a'), (2, NULL)")
    start = start_of(shop)
    write(shop, "UPDATE orders SET name = N'b' WHERE id = 1", "UPDATE orders SET name = N'c' WHERE id = 2")

    found = drained(shop, start, is_keyed=True, key=("name",))

    assert brief(found) == [("delete", 1, "a"), ("insert", 1, "b"), ("delete", 2, None), ("insert", 2, "c")]


@emulated
def test_half_of_a_letter_is_refused_in_the_log_as_in_a_table(shop: str, driver: str):
    """The emulator sends U+E83D as the first half of a letter."""
    fault, words = (ValueDoesNotFit, "halves of letters") if driver == "mssql-python" else (SourceError, "half of")
    start = start_of(shop)
    write(shop, "INSERT INTO orders (id, name) VALUES (1, N'a\ue83d')")

    with pytest.raises(fault, match=words):
        drained(shop, start)


def test_row_before_is_there_where_it_was_asked_for(shop: str):
    """`__before` is the row as it was: of updates and deletes, not of inserts."""
    start = start_of(shop)
    write(
        shop,
        "INSERT INTO orders (id, name, note) VALUES (1, N'a', N'long')",
        "UPDATE orders SET name = N'b' WHERE id = 1",
        "DELETE FROM orders WHERE id = 1",
    )

    found = drained(shop, start, before=True)

    images = [row["__before"] and (row["__before"]["name"], row["__before"]["note"]) for row in found]
    assert images == [None, ("a", "long"), ("b", "long")]
    assert "__before" not in drained(shop, start)[0]


def test_large_cell_the_log_left_out_is_named(shop: str):
    """A deleted row's text column is NULL in the log whatever it held, and `__unchanged` says so."""
    start = start_of(shop)
    write(
        shop,
        "INSERT INTO orders (id, name, note, old) VALUES (1, N'a', N'long', 'older')",
        "DELETE FROM orders WHERE id = 1",
    )

    found = drained(shop, start)

    assert [(row["note"], row["old"], row["__unchanged"]) for row in found] == [
        ("long", "older", None),
        ("long", None, ["old"]),
    ]


@emulated
def test_large_cell_missing_after_an_update_means_as_before(shop: str):
    """NULL in a large column that the update did not set is named; one that was set to NULL is not."""
    write(shop, "INSERT INTO orders (id, name, note) VALUES (1, N'a', N'x')")
    start = start_of(shop)
    write(shop, "UPDATE orders SET name = N'b' WHERE id = 1", "UPDATE orders SET note = NULL WHERE id = 1")
    tds.execute(shop, "UPDATE cdc.dbo_orders_CT SET note = NULL")  # as a log that carries changed cells only

    found = drained(shop, start)

    assert [row["__unchanged"] for row in found] == [["note", "old"], ["old"]]


# --- windows -------------------------------------------------------------------------------------


def written(url: str) -> Position:
    """Write transactions of one to four changes, in two tables, some across both."""
    start = start_of(url, "orders", "lines")
    for i in range(6):
        with tds.writer(url) as opened_:
            opened_.execute(f"INSERT INTO orders (id, name) VALUES ({10 * i}, N'a'), ({10 * i + 1}, N'b')")
            if i % 2:
                opened_.execute(f"INSERT INTO lines (id, name) VALUES ({i}, N'l')")
                opened_.execute(f"UPDATE orders SET name = N'u' WHERE id = {10 * i}")
            opened_.commit()
    settle(url)
    return start


def numbered(found: list[dict[str, object]]) -> dict[tuple[object, ...], object]:
    """Return each change by its number."""
    return {(row["__pos"], row["__seq"], "note" in row): (row["__op"], row["id"]) for row in found}


@pytest.mark.parametrize("most", [1, 2, 3, 5, 100])
def test_cut_windows_give_the_same_changes_with_the_same_numbers(two: str, most: int):
    """However a drain is cut, the union is the same, and every change has the same (__pos, __seq)."""
    start = written(two)

    whole = drained(two, start, "orders", "lines")
    cut = drained(two, start, "orders", "lines", most=most)

    assert len(whole) == len(cut) == 18
    assert numbered(cut) == numbered(whole)


def test_numbers_of_a_table_do_not_depend_on_the_others(two: str):
    """A drain of one table numbers its changes as a drain of both does."""
    start = written(two)

    both = [row for row in drained(two, start, "lines", "orders") if "note" in row]

    assert numbered(drained(two, start, "orders")) == numbered(both)


def test_window_ends_with_the_transaction_that_reached_its_bound(two: str):
    """The Commit lies behind whole transactions, the first after which enough was read; then comes the next."""
    start = written(two)
    with opened(two, "orders", "lines") as log:
        changes, commit = window(log, start, most=3)
        again, same = window(log, start, most=3)

    assert (len(rows(changes)), commit.transactions) == (6, 2)
    assert (rows(again), same) == (rows(changes), commit)
    assert max(row["__pos"] for row in rows(changes)) == commit.position.key
    assert commit.committed_at == max(row["__ts"] for row in rows(changes))


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_batches_that_cut_an_update_in_two_change_nothing(two: str, batch: int, monkeypatch: pytest.MonkeyPatch):
    """Halves of an update that arrive in two batches are one change, and numbering goes on across them."""
    start = written(two)
    whole = drained(two, start, "orders", "lines", before=True)
    monkeypatch.setattr(sqlserver_asking, "BATCH_ROWS", batch)

    assert drained(two, start, "orders", "lines", before=True) == whole


def test_large_rows_come_in_small_batches(shop: str, monkeypatch: pytest.MonkeyPatch):
    """A batch holds about a quarter of the memory a drain allows, once the first has shown how large rows are."""
    monkeypatch.setattr(sqlserver_asking, "FIRST_ROWS", 2)
    start = start_of(shop)
    values = ", ".join(f"({i}, REPLICATE(CONVERT(nvarchar(max), N'x'), 50000))" for i in range(12))
    write(shop, f"INSERT INTO orders (id, note) VALUES {values}")

    with opened(shop, memory_bytes=800_000) as log:
        changes, _ = window(log, start)

    assert [row["id"] for row in rows(changes)] == list(range(12))
    assert 3 <= max(item.data.num_rows for item in changes) <= 5


@emulated
def test_rows_that_share_a_sequence_value_keep_numbers_of_their_own(shop: str):
    """One statement on many rows may give all of them one seqval: no two changes share a number, on any read."""
    tds.set_capture(shop, shares_seqval=True)
    start = start_of(shop)
    write(
        shop,
        "INSERT INTO orders (id, name) VALUES (3, N'c'), (1, N'a'), (2, N'b')",
        "UPDATE orders SET name = N'z'",
        "DELETE FROM orders",
    )

    found = drained(shop, start)

    assert [(row["__op"], row["id"], row["__seq"]) for row in found] == [
        *(("insert", i, 2 * i + 1) for i in (1, 2, 3)),
        *(("update", i, 4 * i + 1) for i in (1, 2, 3)),
        *(("delete", i, 2 * i + 1) for i in (1, 2, 3)),
    ]


@emulated
@pytest.mark.parametrize("given", ["(2, N'b'), (1, N'a')", "(1, N'a'), (2, N'b')"])
def test_two_rows_that_share_a_sequence_value_have_one_order(shop: str, given: str):
    """Whatever order the server gave them, as it may give another on the next read."""
    tds.set_capture(shop, shares_seqval=True)
    start = start_of(shop)
    write(shop, f"INSERT INTO orders (id, name) VALUES {given}")

    assert [(row["id"], row["__seq"]) for row in drained(shop, start)] == [(1, 3), (2, 5)]


@emulated
def test_updates_of_keys_that_cannot_be_told_apart_are_refused(shop: str):
    """Under one sequence value nothing says which old key became which new one."""
    write(shop, "INSERT INTO orders (id, name) VALUES (1, N'a'), (2, N'b')")
    tds.set_capture(shop, shares_seqval=True, splits_key_updates=False)
    start = start_of(shop)
    write(shop, "UPDATE orders SET id = id + 10")

    with pytest.raises(LogRefused, match="dbo_orders holds several updates of one sequence value"):
        drained(shop, start)


@emulated
@pytest.mark.parametrize("operation", [3, 4])
def test_half_of_an_update_is_refused(shop: str, operation: int):
    """Nothing is guessed from an update whose other half is not there."""
    start = start_of(shop)
    write(shop, "INSERT INTO orders (id) VALUES (1)", "UPDATE orders SET name = N'b'")
    tds.execute(shop, f"DELETE FROM cdc.dbo_orders_CT WHERE [__$operation] = {operation}")

    with pytest.raises(LogRefused, match=r"half of an update at 0x[0-9a-f]{20}"):
        drained(shop, start)


def test_rolled_back_and_foreign_changes_are_none_and_the_position_moves(two: str):
    """Changes of other tables only: no rows, success, and the position is the log's end."""
    start = start_of(two, "orders")
    with tds.writer(two) as opened_:
        opened_.execute("INSERT INTO orders (id) VALUES (1)")
    write(two, "INSERT INTO lines (id) VALUES (1)")

    with opened(two, "orders") as log:
        changes, commit = window(log, start)
        target = log.survey().target

    assert (changes, commit.position, commit.transactions) == ([], target, 0)
    assert commit.position.key > start.key


def test_read_from_the_end_is_a_commit_there(shop: str):
    """Nothing between after and upto: one Commit, and no statement."""
    start = start_of(shop)
    with opened(shop) as log:
        assert [item.position for item in log.read(start, start, most=10)] == [start]  # type: ignore[union-attr]
