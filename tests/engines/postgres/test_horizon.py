"""Late commits on PostgreSQL: an incremental read goes only as far as nothing can appear behind it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from rivet_resources.contracts.relation import Chunk
from rivet_resources.engines.postgres.session import PostgresSession, export_snapshot
from rivet_resources.errors import SourceError
from tests.engines.postgres.reads import pages, rules, run, session


def export_after(url: str, cursor: str, after: str | None, **settings: Any) -> tuple[list[int], str | None, str]:
    """Read what an incremental run would: (after, high]; gives ids, the new cursor and the note."""
    with session(url, **settings) as planning:
        relation = planning.describe(table="t", query=None, params={}, rules=rules())
        column = relation.column(cursor)
        assert column is not None
        found = planning.horizon(relation, cursor, column, after=after)
        if found.high is None or found.high == after:
            return [], found.high, found.note
        from rivet_resources.engines.postgres.sql import literal

        where = f'"{cursor}" <= {literal(found.high, column)}'
        where += f' AND "{cursor}" > {literal(after, column)}' if after else ""
        chunk = Chunk(index=0, reader="cursor", relation=relation.sql, where=where)
        read = pages(url, relation, chunk, snapshot=planning.snapshot)
        return sorted(i for page in read for i in page.table.column("id").to_pylist()), found.high, found.note


@contextmanager
def writer(url: str, *statements: str) -> Iterator[psycopg.Connection[Any]]:
    """A transaction that has written and not yet committed."""
    with psycopg.connect(url) as connection:
        for statement in statements:
            connection.execute(statement.encode())
        yield connection


STAMPED = "CREATE TABLE t (id serial PRIMARY KEY, at {} NOT NULL DEFAULT now())"
INSERT = "INSERT INTO t DEFAULT VALUES"


@pytest.mark.parametrize("stamp", ["timestamptz", "timestamp"])
def test_row_that_commits_late_is_read_by_the_next_run(fresh_database: str, stamp: str) -> None:
    """The horizon stays below the oldest open transaction; the next run reads its row, and none twice."""
    run(fresh_database, STAMPED.format(stamp), INSERT)
    time.sleep(0.3)
    with writer(fresh_database, INSERT) as late:
        run(fresh_database, INSERT)
        time.sleep(0.3)
        first, high, note = export_after(fresh_database, "at", None)
        late.commit()
    time.sleep(0.3)
    second, _, calm = export_after(fresh_database, "at", high)

    assert ([1], [2, 3]) == (first, second)
    assert "held back by pid" in note
    assert calm == ""


def test_commit_between_snapshot_and_plan_is_not_skipped(fresh_database: str) -> None:
    """A transaction open before the snapshot and gone before anyone could list it is still accounted for."""
    run(fresh_database, STAMPED.format("timestamptz"), INSERT)
    time.sleep(0.3)

    with writer(fresh_database, INSERT) as late:
        run(fresh_database, INSERT)
        time.sleep(0.3)

        def commit_then_export(planning: PostgresSession) -> str:
            late.commit()  # the snapshot exists already, and does not show this
            return export_snapshot(planning)

        first, high, _ = export_after(fresh_database, "at", None, export=commit_then_export)
    time.sleep(0.3)
    second, _, _ = export_after(fresh_database, "at", high)

    assert ([1], [2, 3]) == (first, second)


def test_commit_right_behind_the_snapshot_is_not_skipped(fresh_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who was open is listed before the snapshot is taken: a list of after it would lack who committed since."""
    run(fresh_database, STAMPED.format("timestamptz"), INSERT)
    time.sleep(0.3)
    begin = PostgresSession._start

    with writer(fresh_database, INSERT) as late:
        run(fresh_database, INSERT)
        time.sleep(0.3)

        def start(planning: PostgresSession) -> None:
            begin(planning)
            late.commit()

        monkeypatch.setattr(PostgresSession, "_start", start)
        first, high, _ = export_after(fresh_database, "at", None)
        monkeypatch.undo()
    time.sleep(0.3)
    second, _, _ = export_after(fresh_database, "at", high)

    assert ([1], [2, 3]) == (first, second)


def test_number_cursor_waits_for_open_transactions(fresh_database: str) -> None:
    """A transaction that ends within two seconds is waited for, and its row is in the same run."""
    run(fresh_database, STAMPED.format("timestamptz"))
    with writer(fresh_database, INSERT) as late:
        run(fresh_database, INSERT)
        timer = threading.Timer(0.4, late.commit)
        timer.start()
        found = export_after(fresh_database, "id", None)
        timer.join()

    assert ([1, 2], "2", "") == found


def test_number_cursor_reads_nothing_new_while_a_transaction_stays_open(fresh_database: str) -> None:
    """A transaction that does not end holds the cursor where it is, and the note names it."""
    run(fresh_database, STAMPED.format("timestamptz"), INSERT)
    with writer(fresh_database, INSERT) as late:
        run(fresh_database, INSERT)
        held = export_after(fresh_database, "id", "1")
        pid = late.info.backend_pid
        late.commit()
    freed = export_after(fresh_database, "id", "1")

    assert ([], "1") == held[:2]
    assert f"pid {pid} (open since" in held[2]
    assert ([2, 3], "3", "") == freed


def test_prepared_transaction_holds_the_horizon(fresh_real_database: str) -> None:
    """A prepared transaction has no session, and is still noticed."""
    run(fresh_real_database, STAMPED.format("timestamptz"), "INSERT INTO t (at) VALUES (now() - interval '1 hour')")
    run(fresh_real_database, f"BEGIN; {INSERT}; PREPARE TRANSACTION 'p'")

    try:
        run(fresh_real_database, INSERT)
        found, _, note = export_after(fresh_real_database, "at", None)
    finally:
        run(fresh_real_database, "COMMIT PREPARED 'p'")

    assert ([1], True) == (found, "a prepared transaction" in note)


def test_user_who_sees_no_transactions_waits_for_them(fresh_real_database: str) -> None:
    """Without pg_read_all_stats starts are hidden: open transactions are waited for, and the note says why."""
    run(
        fresh_real_database,
        STAMPED.format("timestamptz"),
        "DROP ROLE IF EXISTS blind",
        "CREATE ROLE blind LOGIN PASSWORD 'b'",
    )
    run(fresh_real_database, "GRANT SELECT ON t TO blind", INSERT)
    known = psycopg.conninfo.conninfo_to_dict(fresh_real_database)
    blind = f"postgresql://blind:b@{known['host']}:{known['port']}/{known['dbname']}"
    time.sleep(0.3)

    try:
        with writer(fresh_real_database, INSERT) as late:
            held = export_after(blind, "at", None)
            timer = threading.Timer(0.4, late.commit)
            timer.start()
            time.sleep(0.3)
            freed = export_after(blind, "at", None)
            timer.join()
    finally:
        run(fresh_real_database, "DROP OWNED BY blind", "DROP ROLE blind")

    assert ([], None, [1, 2]) == (held[0], held[1], freed[0])
    assert "pg_read_all_stats" in held[2]


def test_lag_keeps_a_distance_from_now(fresh_database: str) -> None:
    """`cursor_lag` leaves younger rows to a later run."""
    run(
        fresh_database,
        STAMPED.format("timestamptz"),
        "INSERT INTO t (at) VALUES (now() - interval '1 hour'), (now() - interval '10 s')",
    )

    with session(fresh_database) as planning:
        relation = planning.describe(table="t", query=None, params={}, rules=rules())
        column = relation.column("at")
        assert column is not None
        near = planning.horizon(relation, "at", column, after=None)
        far = planning.horizon(relation, "at", column, after=None, lag_seconds=60)

    assert (True, "stayed 60 s behind (cursor_lag)") == (str(near.high) > str(far.high), far.note)


def test_nothing_new_leaves_the_cursor(fresh_database: str) -> None:
    """An empty table has no horizon; one without newer rows has the cursor itself."""
    run(fresh_database, STAMPED.format("timestamptz"))
    empty = export_after(fresh_database, "at", None)
    run(fresh_database, "INSERT INTO t (at) VALUES ('2020-01-01 00:00:00.5+00')")
    stamp = "2020-01-01T00:00:00.500000Z"

    assert ([], None, "") == empty
    assert ([1], stamp, "") == export_after(fresh_database, "at", None)
    assert ([], stamp, "") == export_after(fresh_database, "at", stamp)


def test_infinite_cursor_is_refused(fresh_database: str) -> None:
    """Nothing comes after infinity, so it cannot be a cursor."""
    run(fresh_database, STAMPED.format("timestamptz"), "INSERT INTO t (at) VALUES ('infinity')")

    with pytest.raises(SourceError, match="nothing would ever come after it"):
        export_after(fresh_database, "at", None)


def test_date_cursor_leaves_today_to_tomorrow(fresh_database: str) -> None:
    """A date may get more rows until its day is over."""
    run(
        fresh_database,
        "CREATE TABLE t (id int, at date)",
        "INSERT INTO t VALUES (1, (now() AT TIME ZONE 'UTC')::date - 2), (2, (now() AT TIME ZONE 'UTC')::date)",
    )

    assert [1] == export_after(fresh_database, "at", None)[0]


def test_our_own_sessions_hold_nothing_back(fresh_database: str) -> None:
    """Another export's snapshot is read-only, so it does not delay this one."""
    run(fresh_database, STAMPED.format("timestamptz"), INSERT)

    with session(fresh_database):
        time.sleep(0.3)
        run(fresh_database, INSERT)
        time.sleep(0.3)
        found = export_after(fresh_database, "at", None)

    assert ([1, 2], "") == (found[0], found[2])
