"""Late commits on MySQL and MariaDB: an incremental read goes only as far as nothing can appear behind it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from rivet_resources.engines.mysql.sql import literal
from rivet_resources.errors import SourceError
from tests.engines.mysql.reads import SERVERS, describe, pages, run, session
from tests.servers.mysql import connection

pytestmark = pytest.mark.wide


@pytest.fixture(params=SERVERS)
def url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty database, of each server in turn."""
    return str(request.getfixturevalue(request.param))


def export_after(url: str, cursor: str, after: str | None, *, lag: float = 0.0) -> tuple[list[int], str | None, str]:
    """Read what an incremental run would: (after, high]; gives ids, the new cursor and the note."""
    with session(url) as planning:
        relation = describe(planning)
        column = relation.column(cursor)
        assert column is not None
        found = planning.horizon(relation, cursor, column, after=after, lag_seconds=lag)
        if found.high is None or found.high == after:
            return [], found.high, found.note
        where = f"`{cursor}` <= {literal(found.high, column)}"
        where += f" AND `{cursor}` > {literal(after, column)}" if after else ""
        (chunk,) = planning.chunks(relation, where=where, order_by=(f"`{cursor}`", "`id`"))
    read = pages(url, relation, chunk)
    return sorted(i for page in read for i in page.table.column("id").to_pylist()), found.high, found.note


@contextmanager
def writer(url: str, *statements: str) -> Iterator[Any]:
    """A transaction that has written and not yet committed."""
    with connection(url, autocommit=False) as opened:
        with opened.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
        yield opened
        opened.rollback()


STAMPED = "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, at {} NOT NULL DEFAULT CURRENT_TIMESTAMP(6), KEY (at))"
INSERT = "INSERT INTO t (id) VALUES (NULL)"
OLD = "INSERT INTO t (at) VALUES (UTC_TIMESTAMP() - INTERVAL 1 HOUR)"
PAST_MARGIN = 2.3  # seconds after which a stamp of now is read, if nothing holds it back


@pytest.mark.parametrize("stamp", ["TIMESTAMP(6)", "DATETIME(6)"])
def test_row_that_commits_late_is_read_by_the_next_run(url: str, stamp: str) -> None:
    """The horizon stays below the oldest open transaction; the next run reads its row, and none twice."""
    run(url, STAMPED.format(stamp), OLD)
    with writer(url, INSERT) as late:
        run(url, INSERT)
        time.sleep(PAST_MARGIN)
        first, high, note = export_after(url, "at", None)
        number = late.thread_id()
        late.commit()
    second, _, calm = export_after(url, "at", high)

    assert ([1], [2, 3], "") == (first, second, calm)
    assert f"held back by connection {number} (open since" in note


def test_running_statement_holds_the_stamp_it_took(url: str) -> None:
    """NOW() is fixed when a statement starts, long before its transaction shows up."""
    run(url, STAMPED.format("DATETIME(6)"), OLD)

    def insert_slowly() -> None:
        run(url, "INSERT INTO t (id, at) SELECT NULL, NOW(6) FROM (SELECT SLEEP(5)) AS s")

    slow = threading.Thread(target=insert_slowly)
    slow.start()
    time.sleep(0.3)
    run(url, INSERT)
    time.sleep(PAST_MARGIN)
    first, high, note = export_after(url, "at", None)
    slow.join()
    time.sleep(PAST_MARGIN)
    second, _, _ = export_after(url, "at", high)

    assert ([1], [2, 3]) == (first, second)
    assert "held back by connection" in note


def test_reader_in_a_long_transaction_holds_nothing_back(url: str) -> None:
    """A read-only transaction cannot write; ours are such."""
    run(url, STAMPED.format("DATETIME(6)"), OLD)
    with writer(url, "ROLLBACK", "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY", "SELECT * FROM t"):
        time.sleep(0.2)
        found = export_after(url, "at", None)
        numbered = export_after(url, "id", None)

    assert (([1], ""), ([1], "1", "")) == ((found[0], found[2]), numbered)


def test_rows_of_the_last_moment_wait(url: str) -> None:
    """Stamps are whole seconds in places, so the last two seconds are the next run's."""
    run(url, STAMPED.format("DATETIME(6)"), INSERT)

    assert ([], None, "rows of the last moment wait for the next run") == export_after(url, "at", None)


def test_lag_keeps_behind_by_the_users_word(url: str) -> None:
    """`cursor_lag` is for stamps of application clocks."""
    run(url, STAMPED.format("DATETIME(6)"), OLD, INSERT)
    time.sleep(PAST_MARGIN)

    found = export_after(url, "at", None, lag=600.0)

    assert ([1], "stayed 600 s behind (cursor_lag)") == (found[0], found[2])


def test_number_cursor_waits_for_open_transactions(url: str) -> None:
    """A transaction that ends within two seconds is waited for, and its row is in the same run."""
    run(url, STAMPED.format("DATETIME(6)"))
    with writer(url, INSERT) as late:
        run(url, INSERT)
        timer = threading.Timer(0.6, late.commit)
        timer.start()
        found = export_after(url, "id", None)
        timer.join()

    assert ([1, 2], "2", "") == found


def test_number_cursor_reads_nothing_new_while_a_transaction_stays_open(url: str) -> None:
    """A transaction that does not end holds the cursor where it is, and the note names it."""
    run(url, STAMPED.format("DATETIME(6)"), INSERT)
    with writer(url, INSERT) as late:
        run(url, INSERT)
        held = export_after(url, "id", "1")
        number = late.thread_id()
        late.commit()
    freed = export_after(url, "id", "1")

    assert ([], "1") == held[:2]
    assert f"connection {number} (open since" in held[2]
    assert ([2, 3], "3", "") == freed


def test_prepared_transaction_holds_the_horizon(url: str) -> None:
    """A prepared XA transaction has no connection, and is still noticed."""
    run(url, STAMPED.format("DATETIME(6)"), OLD)
    name = f"'{urlsplit(url).path[1:]}'"
    with connection(url) as opened, opened.cursor() as cursor:
        for statement in (f"XA START {name}", INSERT, f"XA END {name}", f"XA PREPARE {name}"):
            cursor.execute(statement)
    try:
        run(url, INSERT)
        time.sleep(PAST_MARGIN)
        stamped, numbered = export_after(url, "at", None), export_after(url, "id", None)
    finally:
        run(url, f"XA COMMIT {name}")

    assert ([1], []) == (stamped[0], numbered[0])
    assert ["a prepared XA transaction (open since" in note for note in (stamped[2], numbered[2])] == [True, True]


def test_user_without_process_stays_behind_and_names_the_grant(url: str) -> None:
    """Who may not see others' transactions stays a minute behind, or says that a late commit can be missed."""
    parts = urlsplit(url)
    name = f"blind{parts.path[1:]}"[-30:]
    run(
        url,
        STAMPED.format("DATETIME(6)"),
        OLD,
        INSERT,
        f"CREATE USER {name}@'%' IDENTIFIED BY 'pw'",
        f"GRANT SELECT ON {parts.path[1:]}.* TO {name}@'%'",
    )
    blind = f"mysql://{name}:pw@{parts.hostname}:{parts.port}{parts.path}"
    try:
        stamped, numbered = export_after(blind, "at", None), export_after(blind, "id", None)
    finally:
        run(url, f"DROP USER {name}@'%'")

    grant = f"GRANT PROCESS ON *.* TO '{name}'@'%'"
    assert ([1], [1, 2]) == (stamped[0], numbered[0])
    assert (True, True) == (grant in stamped[2], grant in numbered[2])
    assert "stayed 60 s behind" in stamped[2]
    assert "a late commit can be missed" in numbered[2]


def test_zero_date_cannot_be_a_cursor(url: str) -> None:
    """Nothing is lost quietly: the fault names the column."""
    run(url, "CREATE TABLE t (id INT PRIMARY KEY, at DATETIME)")
    with connection(url) as opened, opened.cursor() as cursor:
        cursor.execute("SET sql_mode = ''")
        cursor.execute("INSERT INTO t VALUES (1, '0000-00-00'), (2, '0000-00-00')")

    with session(url) as planning:
        relation = describe(planning)
        column = relation.column("at")
        assert column is not None
        with pytest.raises(SourceError, match=r"at` of .*t holds zero or partial dates"):
            planning.horizon(relation, "at", column, after=None)


def test_nothing_there_is_nothing(url: str) -> None:
    """An empty table has no horizon."""
    run(url, STAMPED.format("DATETIME(6)"))

    assert [([], None, ""), ([], None, "")] == [export_after(url, cursor, None) for cursor in ("at", "id")]


@pytest.mark.parametrize("cursor", ["at", "id"])
def test_no_row_is_lost_to_writers_with_open_transactions(url: str, cursor: str) -> None:
    """Four writers keep transactions open for up to a second while runs follow runs: each row is read once."""
    run(url, STAMPED.format("DATETIME(6)"))
    until = time.monotonic() + 6

    def write(seed: int) -> None:
        chance = random.Random(seed)
        with connection(url, autocommit=False) as opened, opened.cursor() as at:
            while time.monotonic() < until:
                for _ in range(3):
                    at.execute(INSERT)
                    time.sleep(chance.random() * 0.3)
                opened.commit()

    writers = [threading.Thread(target=write, args=(seed,)) for seed in range(4)]
    for thread in writers:
        thread.start()
    seen: list[int] = []
    after: str | None = None
    while any(thread.is_alive() for thread in writers):
        ids, after, _ = export_after(url, cursor, after)
        seen += ids
    time.sleep(PAST_MARGIN)
    ids, after, _ = export_after(url, cursor, after)
    seen += ids

    with session(url) as planning:
        rows = planning.count(describe(planning))
    assert (rows, rows) == (len(seen), len(set(seen)))
