"""The binary log of MariaDB and MySQL as a change log: rows, windows, positions, on servers that all tests share."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from rivet_resources.contracts.change_log import Commit
from rivet_resources.engines.mysql.binlog.position import place_of
from rivet_resources.errors import CheckpointUnusable, LogBusy, LogRefused, PositionLost
from tests.engines.mysql.changes import Window, log, rules, run, window
from tests.servers.mysql import connection

T = "CREATE TABLE t (id int PRIMARY KEY, v varchar(40), n int)"


@pytest.fixture(params=["mariadb", "mysql"])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty database of each product."""
    return str(request.getfixturevalue(f"fresh_{request.param}"))


def changes(found: Window) -> list[tuple[Any, ...]]:
    """Return op and row of all changes of `t`."""
    return [(row["__op"], row["id"], row["v"], row["n"]) for row in found.rows()]


def test_every_change_is_a_row_in_the_order_of_the_log(url: str) -> None:
    """Inserts, updates and deletes carry the row after, deletes the row before; a transaction has one position."""
    run(url, T)
    with log(url, "t") as opened:
        start = opened.begin()
        run(url, "BEGIN", "INSERT INTO t VALUES (1, 'a', 1), (2, NULL, 2)", "UPDATE t SET n = 3 WHERE id = 1", "COMMIT",
            "DELETE FROM t WHERE id = 2")  # fmt: skip
        found = window(opened, start)

    assert [("insert", 1, "a", 1), ("insert", 2, None, 2), ("update", 1, "a", 3), ("delete", 2, None, 2)] == changes(
        found
    )
    rows = found.rows()
    order = [(row["__pos"], row["__seq"]) for row in rows]
    assert sorted(set(order)) == order
    assert [(1 << 32) + 1, (1 << 32) + 3, (2 << 32) + 1, (1 << 32) + 1] == [row["__seq"] for row in rows]
    assert 2 == len({row["__pos"] for row in rows})
    assert found.position.key == rows[-1]["__pos"]
    assert 2 == found.commits[-1].transactions


def test_rows_told_apart_by_another_column_leave_no_old_row(url: str) -> None:
    """Where a mirror, or messages, go by `key`, a change of that column is a delete of the old row, and an insert."""
    run(url, "CREATE TABLE t (id int PRIMARY KEY, email varchar(20), v int)")
    with log(url, "t", is_keyed=True, key=("email",)) as opened:
        begun = opened.begin()
        run(
            url, "INSERT INTO t VALUES (1, 'a', 0), (2, NULL, 0)", "UPDATE t SET email = 'b' WHERE id = 1",
            "UPDATE t SET email = 'c' WHERE id = 2", "UPDATE t SET v = 1 WHERE id = 1",
            "UPDATE t SET id = 3 WHERE id = 2",
        )  # fmt: skip

        found = window(opened, begun)

    assert [
        ("insert", 1, "a", 0), ("insert", 2, None, 0), ("delete", 1, "a", 0), ("insert", 1, "b", 0),
        ("delete", 2, None, 0), ("insert", 2, "c", 0), ("update", 1, "b", 1), ("delete", 2, "c", 0),
        ("insert", 3, "c", 0),
    ] == [(row["__op"], row["id"], row["email"], row["v"]) for row in found.rows("t")]  # fmt: skip


def test_change_of_the_key_is_a_delete_and_an_insert(url: str) -> None:
    """The old key gets the even number before the new row's, with or without the row before."""
    run(url, "CREATE TABLE k (a int, b varchar(9), v int, PRIMARY KEY (b, a))", "INSERT INTO k VALUES (1, 'x', 1)")
    for before in (False, True):
        with log(url, "k", before=before) as opened:
            start = opened.begin()
            run(url, "UPDATE k SET v = 2", "UPDATE k SET b = CONCAT(b, 'y'), v = 3", "UPDATE k SET a = a + 1")
            found = window(opened, start)
        rows = [(r["__op"], r["__seq"] & 3, r["a"], len(r["b"]), r["v"]) for r in found.rows()]

        width = 2 if not before else 3
        key = 1 if not before else 2
        assert [
            ("update", 1, key, width - 1, 2),
            ("delete", 0, key, width - 1, 2),
            ("insert", 1, key, width, 3),
            ("delete", 0, key, width, 3),
            ("insert", 1, key + 1, width, 3),
        ] == rows
        if before:
            assert [3, 2, None, 3, None] == [row["__before"] and row["__before"]["v"] for row in found.rows()]


def test_row_before_is_there_when_asked_for(url: str) -> None:
    """Updates and deletes have `__before`, inserts none; its fields are the table's."""
    run(url, T)
    with log(url, "t", before=True) as opened:
        start = opened.begin()
        run(url, "INSERT INTO t VALUES (1, 'a', 1)", "UPDATE t SET v = 'b'", "DELETE FROM t")
        found = window(opened, start)

    seen = [row["__before"] for row in found.rows()]
    assert [None, {"id": 1, "v": "a", "n": 1}, {"id": 1, "v": "b", "n": 1}] == seen


# --- against an oracle ---------------------------------------------------------------------------


def scramble(url: str, seed: int) -> None:
    """Change `t` and its neighbours in many ways."""
    dice = random.Random(seed)
    with connection(url, autocommit=False) as opened, opened.cursor() as cursor:
        for _ in range(60):
            for _ in range(dice.choice((1, 1, 3, 30))):
                cursor.execute(dice.choice(STATEMENTS).format(a=dice.randrange(40), b=dice.randrange(1000)))
            (opened.rollback if dice.random() < 0.2 else opened.commit)()


STATEMENTS = (
    "INSERT IGNORE INTO t VALUES ({a}, 'v{b}', {b}), ({a} + 40, NULL, {b})",
    "REPLACE INTO t VALUES ({a}, 'r{b}', {b})",
    "UPDATE t SET n = n + {b} WHERE id % 3 = {a} % 3",
    "UPDATE IGNORE t SET id = id + {a} WHERE id < {a}",
    "DELETE FROM t WHERE id = {a}",
    "INSERT INTO other VALUES ({b})",
    "SAVEPOINT s{a}",
)


def applied(found: Window) -> dict[int, tuple[Any, ...]]:
    """Apply changes as a mirror does: the last of each key by (position, sequence)."""
    mirror: dict[int, tuple[Any, ...]] = {}
    for row in sorted(found.rows(), key=lambda row: (row["__pos"], row["__seq"])):
        if row["__op"] == "truncate":
            mirror.clear()
        elif row["__op"] == "delete":
            mirror.pop(row["id"], None)
        else:
            mirror[row["id"]] = (row["v"], row["n"])
    return mirror


def table(url: str) -> dict[int, tuple[Any, ...]]:
    """Read `t` as it is."""
    with connection(url) as opened, opened.cursor() as cursor:
        cursor.execute("SELECT id, v, n FROM t")
        return {row[0]: row[1:] for row in cursor.fetchall()}


@pytest.mark.parametrize("seed", [1, 2])
def test_changes_lead_to_the_table_however_windows_are_cut(url: str, seed: int) -> None:
    """Windows of any size, on one line or begun anew, with or without a neighbour, number each change alike."""
    run(url, T, "CREATE TABLE other (b int)")
    with log(url, "t") as opened:
        start = opened.begin()
        scramble(url, seed)
        target = opened.survey().target
        whole = window(opened, start, upto=target)
        cuts = [window(opened, start, upto=target, most=most) for most in (1, 7, 50)]
    with log(url, "t") as anew:
        anew.survey()
        begun = Window()
        at = start
        while at.key < target.key:
            part = Window(*_one(anew, at, target))
            anew._end_dump()
            begun.changes += part.changes
            at = part.position
    with log(url, "t", "other") as wider:
        both = [row for row in window(wider, start, upto=target).rows() if row.get("id") is not None]

    assert table(url) == applied(whole)
    for found in (*cuts, begun):
        assert whole.rows() == found.rows()
    assert whole.rows() == [{name: row[name] for name in whole.rows()[0]} for row in both]
    assert len(cuts[0].commits) > len(cuts[2].commits) > 1


def _one(opened: Any, at: Any, target: Any) -> tuple[list[Any], list[Any]]:
    items = list(opened.read(at, target, most=5))
    return [item for item in items if not isinstance(item, Commit)], items[-1:]


def test_window_ends_with_the_transaction_that_reaches_the_limit(url: str) -> None:
    """`most` is met by whole transactions: never fewer while there are more, never one transaction too many."""
    run(url, T)
    with log(url, "t") as opened:
        start = opened.begin()
        run(
            url,
            *(f"INSERT INTO t VALUES ({3 * i}, '', 0), ({3 * i + 1}, '', 0), ({3 * i + 2}, '', 0)" for i in range(9)),
        )
        items = list(opened.read(start, opened.survey().target, most=7))

    assert 9 == sum(item.data.num_rows for item in items[:-1])
    assert 3 == items[-1].transactions


def test_quiet_log_is_one_commit_at_its_end(url: str) -> None:
    """Nothing of ours moves the position all the same: to the target, whose log then reads as nothing left."""
    run(url, T, "CREATE TABLE other (b int)")
    with log(url, "t") as opened:
        start = opened.begin()
        run(
            url,
            "INSERT INTO other VALUES (1)",
            "FLUSH BINARY LOGS",
            "INSERT INTO other VALUES (2)",
            "FLUSH BINARY LOGS",
        )
        target = opened.survey().target
        items = list(opened.read(start, target, most=10))

    assert [(target.text, 0, None)] == [(item.position.text, item.transactions, item.committed_at) for item in items]
    assert items[0].position.more["gtid"] != start.more["gtid"]


def test_windows_go_on_over_several_files(url: str) -> None:
    """A rotation inside a window, and between two, loses nothing."""
    run(url, T)
    with log(url, "t") as opened:
        start = opened.begin()
        for i in range(6):
            run(url, f"INSERT INTO t VALUES ({i}, '', {i})", "FLUSH BINARY LOGS")
        found = window(opened, start, most=2)

    assert list(range(6)) == [row["id"] for row in found.rows()]
    assert place_of(found.position).number == place_of(start).number + 6


# --- schemas -------------------------------------------------------------------------------------


def test_rows_have_the_columns_they_had_when_they_were_written(url: str) -> None:
    """ALTER, RENAME and DROP inside a window: a piece per schema, names and types of its time."""
    run(url, T)
    with log(url, "t", accepts=frozenset({"columns"})) as opened:
        start = opened.begin()
        run(
            url,
            "INSERT INTO t VALUES (1, 'a', 1)",
            "ALTER TABLE t ADD COLUMN z decimal(10,2) AFTER id",
            "INSERT INTO t VALUES (2, 1.5, 'b', 2)",
            "ALTER TABLE t RENAME COLUMN v TO w, DROP COLUMN n",
            "INSERT INTO t VALUES (3, 2.5, 'c')",
            "ALTER TABLE t MODIFY z bigint unsigned",
            "INSERT INTO t VALUES (4, 18446744073709551615, 'd')",
            "DROP TABLE t",
            "CREATE TABLE t (id int PRIMARY KEY)",
            "INSERT INTO t VALUES (6)",
            "DROP TABLE t",
        )
        found = window(opened, start)

    seen = [[(column.name, column.arrow) for column in each.columns] for each in found.changes]
    number, text, small = pa.int32(), pa.string(), pa.decimal128(10, 2)
    assert [
        [("id", number), ("v", text), ("n", number)],
        [("id", number), ("z", small), ("v", text), ("n", number)],
        [("id", number), ("z", small), ("w", text)],
        [("id", number), ("z", pa.uint64()), ("w", text)],
        [("id", number), ("z", pa.uint64()), ("w", text)],  # the table is gone, and its rows with it
        [("id", number)],
        [("id", number)],
    ] == seen
    assert [1, 2, 3, 4, None, 6, None] == [row["id"] for row in found.rows()]
    assert ["truncate"] * 2 == [row["__op"] for row in found.rows() if row["id"] is None]


@pytest.mark.parametrize(
    "statement",
    ["RENAME TABLE t TO gone", "RENAME TABLE other TO t2, t TO gone", "ALTER TABLE t ADD COLUMN z int, RENAME TO gone",
     "ALTER TABLE other RENAME AS t3", "ALTER TABLE `t` RENAME gone"],
)  # fmt: skip
def test_rename_of_our_table_is_refused(url: str, statement: str) -> None:
    """What is written under another name would be missing without a word; other tables may be called as they like."""
    run(url, T, "CREATE TABLE other (b int)")
    with log(url, "t", "t3", accepts=frozenset({"columns"})) as opened:
        start = opened.begin()
        run(url, "ALTER TABLE t RENAME COLUMN v TO w", "INSERT INTO t VALUES (1, 'a', 1)", statement)

        with pytest.raises(LogRefused, match=r"renames t3?, or another table.*initial: snapshot"):
            window(opened, start)


def test_drop_of_several_tables_is_refused_when_one_is_ours(url: str) -> None:
    """One change cannot say that two tables are empty; a DROP of others is none of ours."""
    run(url, T, "CREATE TABLE a (b int)", "CREATE TABLE c (b int)", "CREATE TABLE d (b int)")
    with log(url, "t") as opened:
        start = opened.begin()
        run(url, "DROP TABLE a, c")
        assert [] == window(opened, start).changes
        run(url, "DROP TABLE d, t")
        with pytest.raises(LogRefused, match="DROP of several"):
            window(opened, start)


def test_truncate_is_a_row_without_cells(url: str) -> None:
    """However it is spelled and whether rows came before; another table's is none of ours."""
    run(url, T, "CREATE TABLE other (b int)", "INSERT INTO t VALUES (1, 'a', 1)")
    with log(url, "t") as opened:
        start = opened.begin()
        run(url, "TRUNCATE TABLE t", "TRUNCATE other", "INSERT INTO t VALUES (2, 'b', 2)", "/* why */ truncate `t`")
        found = window(opened, start)

    assert [("truncate", None, None, None), ("insert", 2, "b", 2), ("truncate", None, None, None)] == changes(found)
    assert {} == applied(found)


def test_invisible_and_generated_columns_are_as_in_a_batch(url: str) -> None:
    """A generated column has its value; an invisible one is there only when `columns:` lists it."""
    run(
        url,
        "CREATE TABLE g (id int PRIMARY KEY, a int, s int AS (a + 1) STORED, v int AS (a + 2), h int INVISIBLE)",
    )
    for typed, names in ((rules(), []), (rules({"h": "int8"}), ["h"])):
        with log(url, "g", typed=typed) as opened:
            start = opened.begin()
            run(url, "DELETE FROM g", "INSERT INTO g (id, a, h) VALUES (1, 10, 5)")
            row = window(opened, start).rows("__pos", "__seq", "__op")[-1]

        assert {"id": 1, "a": 10, "s": 11, "v": 12, **dict.fromkeys(names, 5)} == row


# --- transactions that are not plain -------------------------------------------------------------


def test_what_was_rolled_back_to_a_savepoint_is_not_there(url: str) -> None:
    """Names come again, and an inner one may be undone alone."""
    run(url, T)
    with log(url, "t") as opened:
        start = opened.begin()
        run(url, "BEGIN", "INSERT INTO t VALUES (1, '', 1)", "SAVEPOINT a", "INSERT INTO t VALUES (2, '', 2)",
            "SAVEPOINT b", "INSERT INTO t VALUES (3, '', 3)", "ROLLBACK TO b", "INSERT INTO t VALUES (4, '', 4)",
            "ROLLBACK TO a", "INSERT INTO t VALUES (5, '', 5)", "COMMIT")  # fmt: skip
        found = window(opened, start)

    assert [1, 5] == [row["id"] for row in found.rows()]


def test_tables_without_transactions_keep_what_was_rolled_back(fresh_mariadb: str) -> None:
    """MyISAM beside InnoDB: each has the rows that its table has. MySQL with GTIDs refuses such a transaction."""
    run(fresh_mariadb, T, "CREATE TABLE m (id int PRIMARY KEY, v varchar(40), n int) ENGINE = MyISAM")
    with log(fresh_mariadb, "t", "m") as opened:
        start = opened.begin()
        run(
            fresh_mariadb, "BEGIN", "INSERT INTO t VALUES (1, '', 1)", "SAVEPOINT a", "INSERT INTO t VALUES (2, '', 2)",
            "INSERT INTO m VALUES (3, '', 3)", "ROLLBACK TO a", "INSERT INTO t VALUES (4, '', 4)", "COMMIT",
            "BEGIN", "INSERT INTO m VALUES (5, '', 5)", "INSERT INTO t VALUES (6, '', 6)", "ROLLBACK",
        )  # fmt: skip
        found = window(opened, start)

    assert {1, 4} == {row["id"] for each in found.tables("t") for row in each.to_pylist()}
    assert {3, 5} == {row["id"] for each in found.tables("m") for row in each.to_pylist()}


def test_xa_transaction_of_our_tables_is_refused_unless_in_one_phase(url: str) -> None:
    """A prepared transaction may still be undone; one of other tables is passed by."""
    run(url, T, "CREATE TABLE other (b int)")
    with log(url, "t") as opened:
        start = opened.begin()
        run(url, "XA START 'a'", "INSERT INTO t VALUES (1, 'a', 1)", "XA END 'a'", "XA COMMIT 'a' ONE PHASE")
        run(url, "XA START 'b'", "INSERT INTO other VALUES (1)", "XA END 'b'", "XA PREPARE 'b'", "XA COMMIT 'b'")
        found = window(opened, start)
        assert [("insert", 1, "a", 1)] == changes(found)

        run(url, "XA START 'c'", "INSERT INTO t VALUES (2, 'a', 1)", "XA END 'c'", "XA PREPARE 'c'", "XA ROLLBACK 'c'")
        with pytest.raises(LogRefused, match="XA transaction on t"):
            window(opened, found.position)


def test_create_table_as_select_is_one_transaction(url: str) -> None:
    """Rows that come with their table are captured, and numbered from one."""
    with log(url, "made") as opened:
        start = opened.begin()
        run(url, "CREATE TABLE made (id int PRIMARY KEY) SELECT 1 AS id UNION SELECT 2", "INSERT INTO made VALUES (3)")
        found = window(opened, start)

    assert [1, 2, 3] == [row["id"] for row in found.rows()]


# --- what is refused -----------------------------------------------------------------------------

SESSIONS: dict[str, tuple[str, str]] = {
    "statement": ("SET binlog_format = STATEMENT", "event of type 2 .* logged as a statement, INSERT"),
    "minimal": ("SET binlog_row_image = MINIMAL", "without all columns"),
    "noblob": ("SET binlog_row_image = NOBLOB", "without all columns"),
}


@pytest.mark.parametrize("setting", SESSIONS)
def test_session_that_overrides_a_setting_is_refused_at_its_event(url: str, setting: str) -> None:
    """Type and position are named, nothing is given out; the rows of other tables do no harm."""
    statement, told = SESSIONS[setting]
    run(url, "CREATE TABLE b (id int PRIMARY KEY, v text, n int)", "CREATE TABLE other (id int PRIMARY KEY, v text)",
        "INSERT INTO b VALUES (1, 'x', 1)", "INSERT INTO other VALUES (1, 'y')")  # fmt: skip
    with log(url, "b") as opened:
        start = opened.begin()
        run(url, statement, "UPDATE other SET v = 'z'") if setting != "statement" else None
        assert [] == window(opened, start).rows()
        run(url, statement, "INSERT INTO b VALUES (2, 'q', 2)", "UPDATE b SET n = 5")

        with pytest.raises(LogRefused, match=told) as failure:
            window(opened, start)

    assert "ends at binlog." in str(failure.value)
    assert "new snapshot" in str(failure.value)


def test_partial_json_is_refused(fresh_mysql: str) -> None:
    """A difference is not a value: type 39."""
    run(fresh_mysql, "CREATE TABLE j (id int PRIMARY KEY, v json)", 'INSERT INTO j VALUES (1, \'{"a": "bbbbbbbb"}\')')
    with log(fresh_mysql, "j") as opened:
        start = opened.begin()
        run(fresh_mysql, "SET binlog_row_value_options = PARTIAL_JSON", "UPDATE j SET v = JSON_SET(v, '$.a', 'c')")

        with pytest.raises(LogRefused, match=r"type 39 .*PARTIAL_JSON"):
            window(opened, start)


def test_partition_that_is_emptied_is_refused(url: str) -> None:
    """Rows that leave without a word in the log stop the drain."""
    run(url, "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 2", "INSERT INTO p VALUES (1), (2)")
    with log(url, "p") as opened:
        start = opened.begin()
        run(url, "ALTER TABLE p TRUNCATE PARTITION p0")

        with pytest.raises(LogRefused, match="TRUNCATE PARTITION"):
            window(opened, start)


def test_system_versioned_table_is_refused(fresh_mariadb: str) -> None:
    """Its log holds old versions as if they were new rows."""
    run(fresh_mariadb, "CREATE TABLE s (id int PRIMARY KEY, v int) WITH SYSTEM VERSIONING")
    with log(fresh_mariadb, "s") as opened:
        start = opened.begin()
        run(fresh_mariadb, "INSERT INTO s VALUES (1, 1)")

        with pytest.raises(LogRefused, match="system-versioned"):
            window(opened, start)


# --- compressed ----------------------------------------------------------------------------------


def test_compressed_transactions_of_mysql_are_opened(fresh_mysql: str) -> None:
    """zstd payloads give the rows, the order and the numbers of plain ones; a position is behind the whole."""
    run(fresh_mysql, T)
    with log(fresh_mysql, "t") as opened:
        start = opened.begin()
        values = ",".join(f"({i}, 'aaaaaaaaaaaaaaaa', {i})" for i in range(2000))
        run(fresh_mysql, "SET binlog_transaction_compression = ON", f"INSERT INTO t VALUES {values}",
            "UPDATE t SET n = -1 WHERE id = 7")  # fmt: skip
        target = opened.survey().target
        found = window(opened, start, upto=target)
        again = window(opened, start, upto=target, most=1)

    assert 2001 == len(found.rows())
    assert ("update", 7, "aaaaaaaaaaaaaaaa", -1) == changes(found)[-1]
    assert found.rows() == again.rows()
    assert target.text == found.position.text


# --- who may read --------------------------------------------------------------------------------


def test_second_reader_is_refused_and_the_first_goes_on(url: str) -> None:
    """One reader per server id; the lock ends with its connection."""
    run(url, T)
    with log(url, "t") as first:
        start = first.begin()
        first.survey()
        with log(url, "t") as second, pytest.raises(LogBusy, match="server id"):
            second.survey()
        with log(url, "t", deployment="another") as other:
            other.survey()
        run(url, "INSERT INTO t VALUES (1, 'a', 1)")
        assert [("insert", 1, "a", 1)] == changes(window(first, start))
    with log(url, "t") as third:
        assert third.survey().target.key > start.key


def test_survey_costs_two_statements(url: str) -> None:
    """An idle drain asks the source two things."""
    with log(url, "t") as opened:
        opened._opened()
        asked: list[str] = []
        ask: Callable[..., Any] = opened.ask
        opened.ask = lambda statement, **keys: (asked.append(statement), ask(statement, **keys))[1]  # type: ignore[method-assign]
        opened.survey()

    assert 2 == len(asked)


def test_position_of_another_server_or_file_is_lost(url: str) -> None:
    """Identity, file, size: each has its own words, and all name the way out."""
    with log(url, "t") as opened:
        start = opened.begin()
        survey = opened.survey()
        opened.refuse_lost(start, survey)
        strange = {
            "it was replaced": place_of(start).position({**start.more, "identity": "server_uuid:0"}),
            "is not on the server any more": type(place_of(start))("binlog.999999", 4).position({}),
            "restored from": type(place_of(start))(place_of(start).file, 1 << 40).position({}),
        }
        for told, position in strange.items():
            with pytest.raises(PositionLost, match=told) as failure:
                opened.refuse_lost(position, survey)
            assert "initial: snapshot" in str(failure.value)


def test_position_inside_an_event_is_a_damaged_checkpoint(url: str) -> None:
    """The server's words mislead, ours do not; nothing is read."""
    run(url, T)
    with log(url, "t") as opened:
        start = place_of(opened.begin())
        run(url, "INSERT INTO t VALUES (1, 'a', 1)")
        inside = type(start)(start.file, start.offset + 7).position({})

        with pytest.raises((CheckpointUnusable, LogRefused), match="inside an event"):
            window(opened, inside)


def test_lag_is_nothing_at_the_end_and_bytes_behind_it(url: str) -> None:
    """Unread bytes count over files; what is unread is no older than the look whose end we have reached."""
    run(url, T)
    with log(url, "t") as opened:
        start = opened.begin()
        run(url, "INSERT INTO t VALUES (1, 'a', 1)")
        found = window(opened, start)
        until = time.monotonic() + 60
        # The server is shared: other tests write to it meanwhile, for seconds on end.
        while (caught_up := opened.lag(found.position)).unread_bytes and time.monotonic() < until:
            found = window(opened, found.position)
        run(url, "FLUSH BINARY LOGS", "INSERT INTO t VALUES (2, 'a', 1)")
        behind = opened.lag(found.position)

    assert (0, 0.0) == (caught_up.unread_bytes, caught_up.seconds)
    assert (behind.unread_bytes or 0) > 200
    assert behind.seconds is not None
    assert 0 < behind.seconds < 600
    assert 1 == behind.facts["files_behind"]


def test_handover_overlaps_and_loses_nothing(url: str) -> None:
    """A copy made behind the first position, then the log over it, is the table."""
    run(url, T, "INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2)")
    with log(url, "t") as opened:
        start = opened.begin()
        run(url, "UPDATE t SET n = 9 WHERE id = 1", "DELETE FROM t WHERE id = 2")
        with opened.handover() as handover:
            copy = table(url)
            relation = handover.session.describe(table="t", query=None, params={}, rules=rules())
            seen = handover.seen()
        run(url, "INSERT INTO t VALUES (3, 'c', 3)")
        found = window(opened, start)

    assert ["id", "v", "n"] == [column.name for column in relation.columns]
    assert "" == seen
    mirror = copy | applied(found)
    assert table(url) == {key: row for key, row in mirror.items() if key != 2}
