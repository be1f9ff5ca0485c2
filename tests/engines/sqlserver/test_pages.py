"""Pages of SQL Server: every kind of key to its end, streams without one, and what happens when a page fails."""

from __future__ import annotations

import pytest

from rivet_resources.contracts.settings import Tuning, pace
from rivet_resources.engines.sqlserver import driver
from rivet_resources.errors import SourceLost, StatementTimeout
from tests.emulators.tds import server as tds
from tests.engines.sqlserver.reads import chunk_for, column, describe, pages, read, rules, session, small_pages

pytestmark = pytest.mark.usefixtures("driver")
emulated = pytest.mark.skipif(not tds.is_emulated(), reason="a real server fails at no one's demand")

# Key type, expression over `value` (1 to 60) that makes it.
KEYS = [
    ("int", "value - 30"),
    ("bigint", "value * CONVERT(bigint, 100000000000)"),
    ("decimal(20,3)", "value * 1.001"),
    ("float", "value / 7e0"),
    ("uniqueidentifier", "NEWID()"),
    ("date", "DATEADD(day, value, CONVERT(datetime2(7), '2020-01-01'))"),
    ("datetime", "DATEADD(millisecond, value * 10, CONVERT(datetime2(7), '2020-01-01'))"),
    ("datetime2(6)", "DATEADD(second, value, CONVERT(datetime2(7), '2020-01-01'))"),
    ("datetimeoffset(3)", "DATEADD(second, value, CONVERT(datetime2(7), '2020-01-01'))"),
    ("varchar(20)", "CONCAT('k', value)"),
    ("varchar(20) COLLATE Cyrillic_General_CI_AS", "CONCAT(N'ж', value)"),
    ("nvarchar(20)", "CONCAT(N'к''', value)"),
    ("nvarchar(20) COLLATE Latin1_General_BIN2", "CONCAT(N'K', value)"),
    ("varbinary(8)", "CONVERT(varbinary(8), CONCAT('b', value))"),
]


@pytest.mark.parametrize(("kind", "expression"), KEYS)
def test_every_kind_of_key_pages_to_its_end_once(fresh_sqlserver: str, kind, expression):
    """Pages of seven rows visit each row exactly once, whatever the key's type and order."""
    tds.execute(
        fresh_sqlserver,
        f"CREATE TABLE t (k {kind} NOT NULL PRIMARY KEY, n int NOT NULL)",
        f"INSERT INTO t (k, n) SELECT {expression}, value FROM GENERATE_SERIES(1, 60) AS g",
    )

    found = column(read(fresh_sqlserver, "t", speed=small_pages(7)), "n")

    assert sorted(found) == list(range(1, 61))


def test_a_composite_key_pages_to_its_end_once(fresh_sqlserver: str):
    """Ties of the first columns are resumed by the last one."""
    tds.execute(
        fresh_sqlserver,
        "CREATE TABLE t (a int NOT NULL, b nvarchar(10) NOT NULL, c int NOT NULL, PRIMARY KEY (a, b, c))",
        "INSERT INTO t (a, b, c) SELECT value % 3, CONCAT('x', value % 5), value FROM GENERATE_SERIES(1, 60) AS g",
    )

    found = column(read(fresh_sqlserver, "t", speed=small_pages(4)), "c")

    assert sorted(found) == list(range(1, 61))


def test_a_table_without_a_key_is_one_stream_in_bites(fresh_sqlserver: str):
    """Without a unique key all rows come in one stream, and the note says so."""
    tds.execute(
        fresh_sqlserver,
        "CREATE TABLE t (id int NULL)",
        "INSERT INTO t (id) SELECT value FROM GENERATE_SERIES(1, 50) AS g",
    )
    with session(fresh_sqlserver) as opened:
        relation = opened.describe(table="t", query=None, params={}, rules=rules())
        (chunk,) = opened.chunks(relation)
        note = opened.note

    sizes = [page.table.num_rows for page in pages(fresh_sqlserver, relation, chunk, speed=small_pages(20))]

    assert (chunk.reader, sizes, "without a unique key" in note) == ("cursor", [20, 20, 10], True)


def test_one_chunk_is_one_instant_where_the_database_allows_it(fresh_sqlserver: str):
    """A row committed between two pages of a one-instant chunk is not seen by it."""
    tds.execute(
        fresh_sqlserver,
        "CREATE TABLE t (id int NOT NULL PRIMARY KEY)",
        "INSERT INTO t (id) SELECT value FROM GENERATE_SERIES(1, 20) AS g",
    )
    with session(fresh_sqlserver) as opened:
        relation = opened.describe(table="t", query=None, params={}, rules=rules())
        (chunk,) = opened.chunks(relation)
        consistency = opened.consistency
    reading = pages(fresh_sqlserver, relation, chunk, speed=small_pages(10))
    found = column(next(reading).table, "id")
    tds.execute(fresh_sqlserver, "INSERT INTO t (id) VALUES (1000)")

    rest = [value for page in reading for value in column(page.table, "id")]

    assert (consistency, [*found, *rest]) == ("single", list(range(1, 21)))


def test_without_snapshot_isolation_the_plan_says_so(sqlserver_url: str):
    """A database that does not allow SNAPSHOT gives `per_query` and a plain word."""
    url = tds.create_database(sqlserver_url, snapshot=False)
    tds.execute(url, "CREATE TABLE t (id int NOT NULL PRIMARY KEY)")
    with session(url) as opened:
        relation = opened.describe(table="t", query=None, params={}, rules=rules())
        (chunk,) = opened.chunks(relation)
        told = (opened.consistency, chunk.one_instant, "ALLOW_SNAPSHOT_ISOLATION" in opened.note)
    tds.drop_database(sqlserver_url, url)

    assert told == ("per_query", False, True)


def test_chunks_cover_every_row_once(fresh_sqlserver: str):
    """Key ranges from a sample hold all rows, each in one chunk."""
    tds.execute(
        fresh_sqlserver,
        "CREATE TABLE t (id int NOT NULL PRIMARY KEY)",
        "INSERT INTO t (id) SELECT value * value FROM GENERATE_SERIES(1, 100) AS g",
    )
    with session(fresh_sqlserver) as opened:
        relation = opened.describe(table="t", query=None, params={}, rules=rules())
        chunks = opened.chunks(relation, pieces=4)

    found = [v for c in chunks for page in pages(fresh_sqlserver, relation, c) for v in column(page.table, "id")]

    assert (len(chunks), sorted(found)) == (4, [n * n for n in range(1, 101)])


# --- faults, on the emulator ---------------------------------------------------------------------

PAGE = r"SELECT TOP \(\d+\).*FROM \[dbo\]\.\[t\]"


@pytest.fixture
def twenty(fresh_sqlserver: str) -> str:
    """A table of twenty rows."""
    tds.execute(
        fresh_sqlserver,
        "CREATE TABLE t (id int NOT NULL PRIMARY KEY, n nvarchar(max))",
        "INSERT INTO t (id, n) SELECT value, REPLICATE(N'x', 3000) FROM GENERATE_SERIES(1, 20) AS g",
    )
    return fresh_sqlserver


@emulated
@pytest.mark.parametrize("demand", [{"number": 1205}, {"number": 1222}, {"cut_after_rows": 3}])
def test_a_failed_page_is_asked_again_in_place(twenty: str, demand, monkeypatch):
    """A deadlock, a lock timeout or a line cut in mid-page costs a retry of that page, and no row."""
    monkeypatch.setattr("rivet_resources.retry.time.sleep", lambda seconds: None)
    relation = describe(twenty, "t")
    tds.fault(twenty, match=PAGE, skip=1, **demand)

    read_pages = list(pages(twenty, relation, chunk_for("keyset", relation), speed=small_pages(8)))

    ids = [value for page in read_pages for value in column(page.table, "id")]
    assert (ids, sum(page.retries for page in read_pages)) == (list(range(1, 21)), 1)


@emulated
def test_a_line_cut_inside_one_instant_starts_the_chunk_over(twenty: str):
    """A page of a one-instant chunk is never asked on another connection, which would see another instant."""
    with session(twenty) as opened:
        relation = opened.describe(table="t", query=None, params={}, rules=rules())
        (chunk,) = opened.chunks(relation)
    tds.fault(twenty, match=PAGE, skip=1, cut_after_rows=3)

    with pytest.raises(SourceLost):
        list(pages(twenty, relation, chunk, speed=small_pages(8)))


@emulated
@pytest.mark.parametrize("is_rolled_back", [False, True])
def test_a_page_given_up_inside_one_instant_goes_on_in_it_or_starts_over(twenty: str, is_rolled_back, monkeypatch):
    """A smaller page is read in the transaction of the pages before; where that is gone, in no other one."""
    with session(twenty) as opened:
        relation = opened.describe(table="t", query=None, params={}, rules=rules())
        (chunk,) = opened.chunks(relation)
    execute = driver.execute

    def ending(connection, statement, *, timeout):
        """Stand in for a server that ends the transaction with the statement, as SET XACT_ABORT ON would have it."""
        try:
            return execute(connection, statement, timeout=timeout)
        except driver.DriverRefused:
            if is_rolled_back:
                execute(connection, "IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION", timeout=timeout)
            raise

    monkeypatch.setattr(driver, "execute", ending)
    hasty = pace(Tuning(profile="fast", batch_size=8, max_retries=0, statement_timeout_s=1), None)
    tds.fault(twenty, match=PAGE, skip=1, delay_seconds=20)

    if is_rolled_back:
        with pytest.raises(SourceLost, match="starts over"):
            list(pages(twenty, relation, chunk, speed=hasty))
    else:
        ids = [value for page in pages(twenty, relation, chunk, speed=hasty) for value in column(page.table, "id")]
        assert ids == list(range(1, 21))


@emulated
def test_a_line_cut_in_a_stream_starts_the_chunk_over(twenty: str):
    """A stream cannot be resumed in its middle."""
    relation = describe(twenty, "t")
    tds.fault(twenty, match=r"SELECT \[id\].*FROM \[dbo\]\.\[t\]", cut_after_rows=15)

    with pytest.raises(SourceLost):
        list(pages(twenty, relation, chunk_for("cursor", relation), speed=small_pages(4)))


@emulated
def test_a_slow_statement_is_given_up_and_not_repeated_for_ever(twenty: str):
    """The client's timeout asks for a smaller page once, and then is the export's fault."""
    relation = describe(twenty, "t")
    hasty = pace(Tuning(profile="fast", max_retries=1, retry_backoff_ms=1, statement_timeout_s=1), None)
    tds.fault(twenty, match=PAGE, times=2, delay_seconds=20)

    with pytest.raises(StatementTimeout, match="statement_timeout_s"):
        list(pages(twenty, relation, chunk_for("keyset", relation), speed=hasty))


@emulated
def test_long_columns_travel_last(twenty: str):
    """`(max)` columns stand at the end of the SELECT list, and the table keeps its own order."""
    tds.execute(
        twenty,
        "CREATE TABLE l (a nvarchar(max), id int NOT NULL PRIMARY KEY, b int)",
        "INSERT INTO l VALUES (N'x', 1, 2)",
    )

    table = read(twenty, "l")

    sent = next(batch for batch in tds.seen(twenty) if "FROM [dbo].[l]" in batch and "TOP" in batch)
    assert (sent.split(" FROM ")[0].split(") ")[1], table.column_names) == ("[id], [b], [a]", ["a", "id", "b"])
