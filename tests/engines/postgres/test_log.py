"""PostgreSQL's log: what is read equals what was done, whatever the schema, the cut or the second reading."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from rivet_resources.drain import window_size
from rivet_resources.errors import LogRefused, PositionLost
from tests.engines.postgres.changes import (
    FLUSHED,
    as_oracle,
    capture,
    drain,
    log_of,
    oracle,
    run,
    transaction,
    window,
)
from tests.faults.shop import postgres_shop
from tests.servers import logical as servers_logical


@pytest.fixture(params=["embedded", "real"])
def database(request: pytest.FixtureRequest) -> Iterator[str]:
    """An empty database on either server, whose slots are dropped with it."""
    server = request.getfixturevalue("postgres_url" if request.param == "embedded" else "real_postgres_url")
    with servers_logical.logical_database(server) as url:
        yield url


@pytest.fixture
def fresh(postgres_url: str) -> Iterator[str]:
    """An empty database of the wheel's server."""
    with servers_logical.logical_database(postgres_url) as url:
        yield url


SHOP = (
    "CREATE TABLE a (id int PRIMARY KEY, v text)",
    'CREATE SCHEMA "Other. One"',
    'CREATE TABLE "Other. One"."Mixed ""Case" ("Id" int PRIMARY KEY, "Wert €" text)',
    "CREATE TABLE f (id int PRIMARY KEY, v text, n int)",
    "ALTER TABLE f REPLICA IDENTITY FULL",
    "CREATE TABLE x (id int NOT NULL, other int NOT NULL, v text)",
    "CREATE UNIQUE INDEX x_other ON x (other)",
    "ALTER TABLE x REPLICA IDENTITY USING INDEX x_other",
)
MIXED = '"Other. One"."Mixed ""Case"'
LABELS = {"a": "public.a", "public.f": "public.f", "x": "public.x", MIXED: 'Other. One.Mixed "Case'}
WORK = (
    ("INSERT INTO a SELECT g, 'v' || g FROM generate_series(1, 50) g", "UPDATE a SET v = 'é' || v WHERE id % 3 = 0"),
    (f"INSERT INTO {MIXED} VALUES (1, NULL), (2, ''), (3, 'drei')", "DELETE FROM a WHERE id = 4"),
    ("UPDATE a SET id = id + 1000 WHERE id < 3", f'UPDATE {MIXED} SET "Id" = 9 WHERE "Id" = 2'),
    ("INSERT INTO f SELECT g, repeat(md5(g::text), 200), g FROM generate_series(1, 20) g",),
    ("ALTER TABLE f ALTER v SET STORAGE EXTERNAL",),
    ("INSERT INTO f SELECT g, repeat(md5(g::text), 200), g FROM generate_series(21, 30) g",),
    ("UPDATE f SET n = -n WHERE id > 10", "UPDATE f SET id = 500 WHERE id = 25", "DELETE FROM f WHERE id IN (3, 23)"),
    ("ALTER TABLE a ALTER v SET STORAGE EXTERNAL", "INSERT INTO a VALUES (77, repeat('x', 9000))"),
    ("UPDATE a SET id = 78 WHERE id = 77", "UPDATE a SET id = id"),
    ("INSERT INTO x VALUES (1, 1, 'a'), (2, 2, 'b')", "UPDATE x SET other = 5 WHERE id = 1"),
    ("DELETE FROM x WHERE id = 2",),
    ("TRUNCATE a, f", "INSERT INTO a VALUES (1, 'again')"),
    ("BEGIN; SAVEPOINT s; INSERT INTO a VALUES (2, 'gone'); ROLLBACK TO s; INSERT INTO a VALUES (3, 'kept'); COMMIT",),
)  # fmt: skip


def test_comments_are_those_of_now_and_a_part_of_a_table_has_its_own_alone(fresh: str) -> None:
    """Of a table that was renamed, too; a table that is gone has none."""
    run(
        fresh,
        "CREATE TABLE a (id int PRIMARY KEY, v text)",
        "COMMENT ON COLUMN a.v IS 'first'",
        "CREATE TABLE whole (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE part PARTITION OF whole FOR VALUES FROM (0) TO (10)",
        "COMMENT ON COLUMN whole.v IS 'of the whole'",
    )
    with log_of(fresh, capture("a", "whole", "part")) as log:
        log.survey()
        found = {table: (log.comments(table).kind, log.comments(table).texts) for table in ("a", "whole", "part")}
        run(fresh, "COMMENT ON COLUMN a.v IS 'second'", "ALTER TABLE a RENAME TO b")
        later = log.comments("a").texts
        run(fresh, "DROP TABLE b")
        gone = log.comments("a").texts

    assert ("all", {"id": "", "v": "first"}) == found["a"]
    assert ("all", {"id": "", "v": "of the whole"}) == found["whole"]
    assert ("own", {"id": "", "v": ""}) == found["part"]
    assert ({"id": "", "v": "second"}, {}) == (later, gone)


def test_every_change_is_what_a_plain_decoder_says(database: str) -> None:
    """Operation, position, number, cells and unchanged names equal those of a decoder that reads one by one."""
    run(database, *SHOP)
    asked = capture(*LABELS, slot="rivet_oracle")
    with log_of(database, asked) as log:
        start = log.begin()
        for work in WORK:
            transaction(database, *work)
        expected = oracle(database, "rivet_oracle", "rivet_oracle")

        drained = drain(log, start)

    assert sorted(expected, key=lambda row: (row[2], row[3], row[0])) == as_oracle(drained.changes, LABELS)
    assert {"insert", "update", "delete", "truncate"} == {row[1] for row in expected}
    assert any(row[5] for row in expected), "the work has unchanged TOAST"
    assert any(row[3] % 2 == 0 for row in expected), "the work has changes of keys"


@pytest.mark.parametrize("most", [1, 2, 7, 60, 10**6])
def test_windows_cut_anywhere_hold_the_same_changes(fresh: str, most: int) -> None:
    """Wherever windows end, their union is the same, each ends behind a commit, and none is read twice."""
    run(fresh, *SHOP)
    with log_of(fresh, capture(*LABELS, slot="rivet_cut")) as log:
        start = log.begin()
        for work in WORK:
            transaction(fresh, *work)
        whole = window(log, start)

        cut = drain(log, start, most=most)

    assert as_oracle(whole.changes, LABELS) == as_oracle(cut.changes, LABELS)
    assert [c.position.key for c in cut.commits] == sorted({c.position.key for c in cut.commits})
    assert sum(c.transactions for c in whole.commits) == sum(c.transactions for c in cut.commits)


def test_window_ends_with_the_transaction_that_fills_it(fresh: str) -> None:
    """Of transactions of two changes, a window of five holds three, whatever the slot's count of messages is."""
    run(fresh, "CREATE TABLE t (id int PRIMARY KEY)")
    with log_of(fresh, capture("t", slot="rivet_five")) as log:
        start = log.begin()
        for i in range(10):
            run(fresh, f"INSERT INTO t VALUES ({2 * i}), ({2 * i + 1})")

        first = window(log, start, most=5)
        second = window(log, first.position, most=5)

    assert [list(range(6)), list(range(6, 12))] == [[row["id"] for row in part.rows()] for part in (first, second)]
    assert [3, 3] == [part.commits[-1].transactions for part in (first, second)]


def test_reading_again_gives_equal_positions_and_numbers(fresh: str) -> None:
    """A second reading, also one that captures fewer tables, numbers every change as the first did."""
    run(fresh, *SHOP)
    with log_of(fresh, capture(*LABELS, slot="rivet_again")) as log:
        start = log.begin()
        for work in WORK:
            transaction(fresh, *work)
        first, again = window(log, start), window(log, start)
    with log_of(fresh, capture("public.f", slot="rivet_again")) as log:
        fewer = window(log, start)

    assert first.rows() == again.rows()
    assert first.rows("public.f") == fewer.rows()


def test_table_added_to_the_publication_numbers_nothing_anew(fresh: str) -> None:
    """Changes before a table was published keep their numbers when they are read after it was."""
    run(fresh, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
    with log_of(fresh, capture("t", slot="rivet_added")) as log:
        start = log.begin()
        work = (
            "INSERT INTO u VALUES (1)",
            "INSERT INTO t VALUES (1)",
            "INSERT INTO u VALUES (2)",
            "INSERT INTO t VALUES (2)",
        )
        transaction(fresh, *work)
        before = window(log, start).rows()
        run(fresh, "ALTER PUBLICATION rivet_added ADD TABLE u")
        transaction(fresh, *(statement.replace("(1)", "(3)").replace("(2)", "(4)") for statement in work))

        after = window(log, start).rows()

    assert before == after[:2]
    assert [1, 3, 3, 7] == [row["__seq"] for row in after]


def test_interleaved_transactions_come_in_the_order_of_their_commits(fresh: str) -> None:
    """Rows of a transaction stand together, at the place of its commit."""
    run(fresh, "CREATE TABLE t (id int PRIMARY KEY, w text)")
    with log_of(fresh, capture("t", slot="rivet_inter")) as log:
        start = log.begin()
        with psycopg.connect(fresh, options=FLUSHED) as one, psycopg.connect(fresh, options=FLUSHED) as two:
            for i in range(5):
                one.execute("INSERT INTO t VALUES (%s, 'one')", (i,))
                two.execute("INSERT INTO t VALUES (%s, 'two')", (10 + i,))
            two.commit()
            one.commit()

        rows = drain(log, start).rows()

    assert ["two"] * 5 + ["one"] * 5 == [row["w"] for row in rows]
    assert 2 == len({row["__pos"] for row in rows})


def test_commits_that_do_not_wait_for_the_disk_are_not_lost(fresh: str) -> None:
    """Under synchronous_commit=off, drains that run beside the writer miss nothing and repeat nothing."""
    run(fresh, "CREATE TABLE t (id int PRIMARY KEY)")
    stop, written = threading.Event(), [0]

    def write() -> None:
        with psycopg.connect(fresh, autocommit=True) as connection:
            connection.execute("SET synchronous_commit = off")
            while not stop.is_set():
                written[0] += 1
                connection.execute("INSERT INTO t VALUES (%s)", (written[0],))

    with log_of(fresh, capture("t", slot="rivet_async")) as log:
        at, ids = log.begin(), list[int]()
        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(8):
                part = drain(log, at, most=100)
                at = part.position if part.commits else at
                ids += [row["id"] for row in part.rows()]
        finally:
            stop.set()
            writer.join()
        run(fresh, "CHECKPOINT")
        ids += [row["id"] for row in drain(log, at).rows()]

    assert list(range(1, written[0] + 1)) == ids


# --- keys, images, schemas -----------------------------------------------------------------------


def test_key_only_delete_has_nulls_also_where_the_table_has_none(fresh: str) -> None:
    """Columns that the catalog says are NOT NULL are NULL in a key-only delete and in a truncate."""
    run(fresh, "CREATE TABLE t (id int PRIMARY KEY, v text NOT NULL)")
    with log_of(fresh, capture("t", slot="rivet_null")) as log:
        start = log.begin()
        run(fresh, "INSERT INTO t VALUES (1, 'x')", "DELETE FROM t", "TRUNCATE t")

        drained = drain(log, start)

    assert [("insert", 1, "x"), ("delete", 1, None), ("truncate", None, None)] == drained.short()
    assert all(column.nullable for changes in drained.changes for column in changes.columns)


def test_rows_told_apart_by_other_columns_than_their_keys_leave_no_old_row(fresh: str) -> None:
    """Where a mirror, or messages, go by `key`, a change of these columns is a delete of the old row, and an insert."""
    run(
        fresh, "CREATE TABLE t (id int PRIMARY KEY, email text UNIQUE, v text)",
        "CREATE TABLE n (email text, v text)", "ALTER TABLE t REPLICA IDENTITY FULL",
        "ALTER TABLE n REPLICA IDENTITY FULL",
    )  # fmt: skip
    with log_of(fresh, capture("t", "n", slot="rivet_key", is_keyed=True, key=("email",))) as log:
        start = log.begin()
        run(
            fresh, "INSERT INTO t VALUES (1, 'a', 'x'), (2, NULL, 'x')", "UPDATE t SET email = 'b' WHERE id = 1",
            "UPDATE t SET email = 'c' WHERE id = 2", "UPDATE t SET v = 'y' WHERE id = 1",
            "INSERT INTO n VALUES ('a', 'x')", "UPDATE n SET email = 'b'",
        )  # fmt: skip

        drained = drain(log, start)

    assert [
        ("insert", 1, "a", "x"), ("insert", 2, None, "x"), ("delete", 1, "a", "x"), ("insert", 1, "b", "x"),
        ("delete", 2, None, "x"), ("insert", 2, "c", "x"), ("update", 1, "b", "y"),
    ] == drained.short("t")  # fmt: skip
    assert [("insert", "a", "x"), ("delete", "a", "x"), ("insert", "b", "x")] == drained.short("n")


IDENTITIES = {
    "key beside the identity": (("email",), ()),
    "identity beside the key": ((), ("ALTER TABLE t REPLICA IDENTITY USING INDEX t_email",)),
}


@pytest.mark.parametrize("case", IDENTITIES)
@pytest.mark.parametrize("when", ["before", "later"])
def test_log_that_does_not_say_which_row_is_deleted_is_refused(fresh: str, case: str, when: str) -> None:
    """A mirror goes by columns that deletes lack: it would keep rows for ever. Without one, changes are just read."""
    key, statements = IDENTITIES[case]
    run(fresh, "CREATE TABLE t (id int PRIMARY KEY, email text NOT NULL)", "CREATE UNIQUE INDEX t_email ON t (email)")
    asked = capture("t", slot="rivet_untold_key", is_keyed=True, key=key)
    if when == "before":
        run(fresh, *statements)
        with log_of(fresh, asked) as log, log_of(fresh, capture("t", slot="rivet_plain")) as plain:
            found, unkeyed = log.preflight(), plain.preflight()

        (finding,) = [each for each in found if each.name == "key public.t"]
        assert ("fail", 'ALTER TABLE "t" REPLICA IDENTITY FULL;') == (finding.status, finding.fix)
        assert not [each for each in unkeyed if each.name == "key public.t"]
        return
    with log_of(fresh, asked) as log:
        start = log.begin()
        run(fresh, *statements, "INSERT INTO t VALUES (1, 'a')", "DELETE FROM t")

        with pytest.raises(LogRefused, match="REPLICA IDENTITY FULL"):
            drain(log, start)
    run(fresh, "ALTER TABLE t REPLICA IDENTITY FULL", "INSERT INTO t VALUES (2, 'b')")
    with log_of(fresh, replace(asked, slot="rivet_full")) as log:
        assert not [each for each in log.preflight() if each.name == "key public.t"]


@pytest.mark.parametrize("when", ["before", "later"])
def test_key_that_two_rows_may_have_for_a_while_is_refused(fresh: str, when: str) -> None:
    """`UPDATE t SET n = n + 1` gives rows the key of the next one: a mirror would take the deletes for theirs."""
    table, whole = "CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL)", "ALTER TABLE t REPLICA IDENTITY FULL"
    deferrable = "ALTER TABLE t ADD CONSTRAINT t_n UNIQUE (n) DEFERRABLE"
    run(fresh, table, whole, *([deferrable] if when == "before" else []))
    asked = capture("t", slot="rivet_exchangeable", is_keyed=True, key=("n",))
    with log_of(fresh, asked) as log, log_of(fresh, replace(asked, slot="rivet_unkeyed", is_keyed=False)) as plain:
        found, unkeyed = log.preflight(), plain.preflight()
        if when == "later":
            start = log.begin()
            run(fresh, deferrable, "INSERT INTO t VALUES (1, 1), (2, 2)", "UPDATE t SET n = n + 1")

            with pytest.raises(LogRefused, match=r"t_n keeps unique: it is DEFERRABLE.*make the constraint NOT DEFER"):
                drain(log, start)
    failing = [each.status for each in found if each.name == "key public.t"]

    assert (["fail"] if when == "before" else []) == failing
    assert not [each for each in unkeyed if each.name == "key public.t"]
    run(fresh, "ALTER TABLE t DROP CONSTRAINT t_n, ADD CONSTRAINT t_n UNIQUE (n)")
    with log_of(fresh, replace(asked, slot="rivet_immediate")) as log:
        assert not [each for each in log.preflight() if each.name == "key public.t"]


NOT_UNIQUE = {
    "nothing": ((), {}, ["warn"]),
    "a unique index": (("CREATE UNIQUE INDEX t_n ON t (n)",), {}, []),
    "a part of the key": (("CREATE UNIQUE INDEX t_m ON t (m)",), {"key": ("n", "m")}, []),
    "an index with NULLs": (("CREATE UNIQUE INDEX t_o ON t (o)",), {"key": ("o",)}, ["warn"]),
    "an index of some rows": (("CREATE UNIQUE INDEX t_n ON t (n) WHERE n > 0",), {}, ["warn"]),
    "no first copy": ((), {"copies": False}, ["fail"]),
    "rows that go unseen": ((), {"accepts": frozenset({"partitions"})}, ["fail"]),
    "a column that a step makes": ((), {"key": ("made",)}, ["fail"]),
    "messages alone": ((), {"is_applied": False}, []),
}


@pytest.mark.parametrize(("statements", "asked", "told"), NOT_UNIQUE.values(), ids=NOT_UNIQUE)
def test_key_that_nothing_keeps_unique_is_told(
    fresh: str, statements: tuple[str, ...], asked: dict[str, Any], told: list[str]
) -> None:
    """Taken with a warning where the copy shows which keys are in use, so that two rows of one will be found."""
    run(fresh, "CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL, m int NOT NULL, o int)", *statements)
    run(fresh, "ALTER TABLE t REPLICA IDENTITY FULL")
    settled = {"is_keyed": True, "is_applied": True, "copies": True, "key": ("n",)}
    wanted = capture("t", slot="rivet_shared", **settled | asked)

    with log_of(fresh, wanted) as log:
        found = [each for each in log.preflight() if each.name == "key public.t"]

    assert told == [each.status for each in found]
    assert all("unique constraint that is not DEFERRABLE" in each.fix for each in found)


def test_deferrable_primary_key_alone_identifies_no_row(fresh: str) -> None:
    """PostgreSQL refuses the application's own UPDATE once such a table is published: the preflight comes first."""
    run(fresh, "CREATE TABLE t (id int PRIMARY KEY DEFERRABLE)")
    with log_of(fresh, capture("t", slot="rivet_deferrable")) as log:
        (found,) = [each for each in log.preflight() if each.name == "replica_identity public.t"]

    assert ("fail", 'ALTER TABLE "t" REPLICA IDENTITY FULL;') == (found.status, found.fix)


def test_rows_before_are_given_when_asked(fresh: str) -> None:
    """`__before` is the whole row under FULL, the key alone when a key moved, and NULL where the log has none."""
    run(
        fresh,
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "CREATE TABLE f (id int PRIMARY KEY, v text)",
        "ALTER TABLE f REPLICA IDENTITY FULL",
    )
    with log_of(fresh, capture("t", "f", slot="rivet_before", before=True)) as log:
        start = log.begin()
        for table in ("t", "f"):
            run(
                fresh, f"INSERT INTO {table} VALUES (1, 'a')", f"UPDATE {table} SET v = 'b'",
                f"UPDATE {table} SET id = 2", f"DELETE FROM {table}",
            )  # fmt: skip

        drained = drain(log, start)

    got = {table: [(row["__op"], row["__before"]) for row in drained.rows(table)] for table in ("t", "f")}
    assert {
        "t": [
            ("insert", None), ("update", None), ("delete", {"id": 1, "v": None}), ("insert", None),
            ("delete", {"id": 2, "v": None}),
        ],
        "f": [
            ("insert", None), ("update", {"id": 1, "v": "a"}), ("delete", {"id": 1, "v": "b"}), ("insert", None),
            ("delete", {"id": 2, "v": "b"}),
        ],
    } == got  # fmt: skip


def test_table_altered_inside_a_transaction_gives_one_schema_each(database: str) -> None:
    """Rows before and after an ALTER have the columns of their time, in one drain and across two."""
    run(database, "CREATE TABLE t (id int PRIMARY KEY, v int)")
    with log_of(database, capture("t", slot="rivet_ddl", accepts=frozenset({"columns"}))) as log:
        start = log.begin()
        transaction(
            database,
            "INSERT INTO t VALUES (1, 10)",
            "ALTER TABLE t ADD w text DEFAULT 'w'",
            "INSERT INTO t VALUES (2, 20)",
            "ALTER TABLE t ALTER v TYPE text",
            "INSERT INTO t VALUES (3, 'x')",
            "ALTER TABLE t RENAME v TO u",
            "INSERT INTO t VALUES (4, 'y')",
        )
        first = drain(log, start)
        run(database, "ALTER TABLE t DROP w", "INSERT INTO t VALUES (5, 'z')")
        second = drain(log, first.position)

    shown = [
        ([f"{c.name} {c.native}" for c in changes.columns], [r["id"] for r in changes.data.to_pylist()])
        for changes in first.changes + second.changes
    ]
    assert [
        (["id integer", "v integer"], [1]),
        (["id integer", "v integer", "w text"], [2]),
        (["id integer", "v text", "w text"], [3]),
        (["id integer", "u text", "w text"], [4]),
        (["id integer", "u text"], [5]),
    ] == shown


def test_renamed_table_is_followed(fresh: str) -> None:
    """A rename, between drains and inside one, loses no row: the relation stays the table that was configured."""
    run(fresh, "CREATE TABLE t (id int PRIMARY KEY)")
    asked = capture("t", slot="rivet_rename")
    with log_of(fresh, asked) as log:
        start = log.begin()
        run(fresh, "INSERT INTO t VALUES (1)")
        first = drain(log, start)
        run(fresh, "INSERT INTO t VALUES (2)", "ALTER TABLE t RENAME TO renamed", "INSERT INTO renamed VALUES (3)")
    with log_of(fresh, asked) as log:
        second = drain(log, first.position)

    assert [("t", 1), ("t", 2), ("t", 3)] == [
        (changes.table, row["id"]) for changes in first.changes + second.changes for row in changes.data.to_pylist()
    ]


def test_swapped_table_is_not_mixed_with_the_old_one(fresh: str) -> None:
    """After a new table took the name, the old one's rows under its new name are not the configured table's."""
    run(fresh, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE made (id int PRIMARY KEY)")
    run(fresh, "CREATE PUBLICATION rivet_swap FOR TABLE t, made")
    with log_of(fresh, capture("t", slot="rivet_swap")) as log:
        start = log.begin()
        run(
            fresh, "INSERT INTO t VALUES (1)",
            "BEGIN; ALTER TABLE t RENAME TO old; ALTER TABLE made RENAME TO t; COMMIT",
            "INSERT INTO old VALUES (2)", "INSERT INTO t VALUES (3)",
        )  # fmt: skip

        drained = window(log, start)
        with pytest.raises(PositionLost, match="Another table has taken the name of t"):
            log.refuse_lost(start, log.survey())

    assert [("insert", 1), ("insert", 3)] == drained.short()


def test_dropped_table_and_type_are_read_to_their_end(fresh: str) -> None:
    """Changes made before a DROP are still read; of a type that is gone, the text."""
    run(fresh, "CREATE TYPE mood AS ENUM ('sad', 'glad')", "CREATE TABLE t (id int PRIMARY KEY, m mood)")
    with log_of(fresh, capture("t", slot="rivet_drop")) as log:
        start = log.begin()
        run(fresh, "INSERT INTO t VALUES (1, 'glad')", "DROP TABLE t", "DROP TYPE mood")

        assert [("insert", 1, "glad")] == drain(log, start).short()


def test_partitions_come_under_their_roots_name(database: str) -> None:
    """A row that moves between partitions is a delete and an insert of the one table that was configured."""
    run(
        database,
        "CREATE TABLE t (id int, k int, PRIMARY KEY (id, k)) PARTITION BY RANGE (k)",
        "CREATE TABLE t_low PARTITION OF t FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE t_high PARTITION OF t FOR VALUES FROM (10) TO (20)",
    )
    with log_of(database, capture("t", slot="rivet_part")) as log:
        start = log.begin()
        run(database, "INSERT INTO t VALUES (1, 1), (2, 11)", "UPDATE t SET k = 12 WHERE id = 1")

        drained = drain(log, start)

    assert [("insert", 1, 1), ("insert", 2, 11), ("delete", 1, 1), ("insert", 1, 12)] == drained.short()
    assert {"t"} == {changes.table for changes in drained.changes}


def test_generated_columns_are_absent_and_named(real_postgres_url: str) -> None:
    """PostgreSQL 15 leaves stored generated columns out of the log, and preflight says which."""
    with servers_logical.logical_database(real_postgres_url) as url:
        run(url, "CREATE TABLE t (id int PRIMARY KEY, d int GENERATED ALWAYS AS (id * 2) STORED)")
        with log_of(url, capture("t", slot="rivet_gen")) as log:
            start = log.begin()
            run(url, "INSERT INTO t VALUES (1)")

            drained = drain(log, start)
            named = [finding.text for finding in log.preflight() if finding.name == "generated public.t"]

    assert [["id"]] == [[column.name for column in changes.columns] for changes in drained.changes]
    assert ["generated columns of public.t are not in the log and not in its changes: d"] == named


@pytest.mark.parametrize(("file_bytes", "moves"), [(1, True), (1 << 30, False)])
def test_changes_of_other_tables_move_the_position_only(
    fresh: str, monkeypatch: pytest.MonkeyPatch, file_bytes: int, moves: bool
) -> None:
    """A log without our changes gives one Commit at its end; the slot follows when that frees a file of the log."""
    from rivet_resources.engines.postgres.log import log as postgres

    monkeypatch.setattr(postgres, "SEGMENT_BYTES", file_bytes)
    run(fresh, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
    with log_of(fresh, capture("t", slot="rivet_other")) as log:
        start = log.begin()
        run(fresh, "INSERT INTO u SELECT generate_series(1, 100)")
        target = log.survey().target

        drained = drain(log, start)
        oldest = log.survey().oldest

    assert ([], [target.key], 0) == (
        drained.changes,
        [c.position.key for c in drained.commits],
        drained.commits[0].transactions,
    )
    assert oldest is not None
    assert oldest.key == (target.key if moves else start.key)


def test_large_answers_come_through_adbc_as_small_ones_do_by_copy(fresh: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to us bring the same changes, and so does COPY where ADBC is not installed."""
    from rivet_resources.engines.postgres.log import log as postgres
    from rivet_resources.engines.postgres.log import peek as postgres_peek

    run(fresh, *SHOP)
    got: list[Any] = []
    with log_of(fresh, capture(*LABELS, slot="rivet_ways")) as log:
        start = log.begin()
        for work in WORK:
            transaction(fresh, *work)
        for small, adbc in ((1 << 30, True), (0, True), (0, False)):
            monkeypatch.setattr(postgres, "SMALL_BYTES", small)
            monkeypatch.setattr(postgres_peek, "has_adbc", lambda adbc=adbc: adbc)
            log._wire.close()
            got.append(as_oracle(window(log, start).changes, LABELS))

    assert got[0]
    assert got[0] == got[1] == got[2]


def test_transaction_larger_than_a_batch_is_split_in_order(fresh: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction of many batches keeps its position and numbers on over them, and has one Commit."""
    from rivet_resources.engines.postgres.log import log as postgres
    from rivet_resources.engines.postgres.log import peek as postgres_peek

    monkeypatch.setattr(postgres, "SMALL_BYTES", 0)
    monkeypatch.setattr(postgres_peek, "BATCH_BYTES", 20_000)
    run(fresh, "CREATE TABLE t (id int PRIMARY KEY, v text)")
    with log_of(fresh, capture("t", slot="rivet_large")) as log:
        start = log.begin()
        run(fresh, "INSERT INTO t SELECT g, md5(g::text) FROM generate_series(1, 3000) g")

        drained = drain(log, start, most=10)

    rows = drained.rows()
    assert len(drained.changes) > 5
    assert (list(range(1, 3001)), list(range(1, 6001, 2))) == ([r["id"] for r in rows], [r["__seq"] for r in rows])
    assert (1, 1) == (len({r["__pos"] for r in rows}), len(drained.commits))


def test_slot_stands_behind_the_last_of_several_windows(
    fresh_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows are read ahead of what is acknowledged; when the drain ends, nothing is left to the next one."""
    monkeypatch.setattr(window_size, "MOST_CHANGES", 5)
    with postgres_shop(fresh_database, tmp_path) as shop:
        shop.write()
        shop.drain()
        shop.write()
        shop.write()

        done = shop.drain()

        assert done.windows > 2
        assert shop.stored() == shop.account()
        shop.must_hold()
