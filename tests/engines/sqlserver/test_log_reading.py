"""Where SQL Server's change log begins, what is lost, which instances and columns it has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rivet_resources.contracts.change_log import Position
from rivet_resources.errors import CheckpointUnusable, LogSetup, PositionLost
from tests.emulators.tds import server as tds
from tests.engines.sqlserver.changes import (
    ENABLE,
    ORDERS,
    brief,
    captured_tables,
    drained,
    enabling,
    opened,
    settle,
    start_of,
    window,
    write,
)
from tests.engines.sqlserver.reads import pages

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


# --- where it begins, and what is lost -----------------------------------------------------------


def test_copy_and_the_changes_after_it_make_the_table(shop: str):
    """Begin, write, copy, write, drain: the copy with the changes over it is the table."""
    write(shop, "INSERT INTO orders (id, name) VALUES (1, N'a'), (2, N'b'), (3, N'c')")
    with opened(shop) as log:
        start = log.begin()
        write(shop, "UPDATE orders SET name = N'x' WHERE id = 1", "DELETE FROM orders WHERE id = 2")
        with log.handover() as handover:
            session = handover.session
            relation = session.describe(table="orders", query=None, params={}, rules=log.capture.rules)
            (chunk,) = session.chunks(relation)
            mirror = {row["id"]: row["name"] for page in pages(shop, relation, chunk) for row in page.table.to_pylist()}
            assert handover.seen() == ""
    write(shop, "INSERT INTO orders (id, name) VALUES (4, N'd')", "DELETE FROM orders WHERE id = 3")
    for row in drained(shop, start):
        mirror.pop(row["id"], None) if row["__op"] == "delete" else mirror.update({row["id"]: row["name"]})

    assert mirror == {1: "x", 4: "d"}


@emulated
def test_table_captured_a_moment_ago_begins_where_its_log_does(fresh_sqlserver: str):
    """Until the job has passed a new instance, the log's end lies before it; then reading begins with the instance."""
    captured_tables(fresh_sqlserver, LINES)
    tds.execute(fresh_sqlserver, "EXEC sys.sp_cdc_stop_job N'capture'", ORDERS, enabling("orders"))

    start = start_of(fresh_sqlserver)
    tds.execute(
        fresh_sqlserver, "INSERT INTO orders (id, name) VALUES (1, N'a')", "EXEC sys.sp_cdc_start_job N'capture'"
    )

    assert brief(drained(fresh_sqlserver, start)) == [("insert", 1, "a")]


def test_begin_is_the_newest_place(shop: str):
    """What commits after it has a greater position."""
    start = start_of(shop)
    write(shop, "INSERT INTO orders (id) VALUES (1)")
    with opened(shop) as log:
        assert log.begin().key > start.key


@emulated
def test_capture_that_has_never_run_is_no_empty_log(fresh_sqlserver: str):
    """Enabled, and nothing captured yet: refused, with what to start."""
    tds.execute(fresh_sqlserver, ENABLE, "EXEC sys.sp_cdc_stop_job N'capture'", ORDERS, enabling("orders"))

    with opened(fresh_sqlserver) as log, pytest.raises(LogSetup, match="sp_cdc_start_job"):
        log.survey()


def forgotten(url: str, instance: str = "dbo_orders") -> None:
    """Clean everything up to now."""
    ((high,),) = read_all(url, "SELECT CONVERT(varchar(22), sys.fn_cdc_get_max_lsn(), 1) AS h")
    tds.execute(
        url,
        f"EXEC sys.sp_cdc_cleanup_change_table @capture_instance = N'{instance}', @low_water_mark = {high}, "
        f"@threshold = 5000",
    )


def read_all(url: str, statement: str) -> list[tuple[object, ...]]:
    """Run one statement."""
    with tds.connect(url) as execute:
        return execute(statement)


def test_position_behind_the_clean_up_is_lost(shop: str):
    """Changes that the clean-up took are never passed over: neither by the check at the start nor by a read."""
    start = start_of(shop)
    write(shop, "INSERT INTO orders (id) VALUES (1)", "INSERT INTO orders (id) VALUES (2)")
    forgotten(shop)

    with opened(shop) as log:
        survey = log.survey()
        with pytest.raises(PositionLost, match="initial: snapshot"):
            log.refuse_lost(start, survey)
        with pytest.raises(PositionLost, match="dbo_orders begins at 0x"):
            list(log.read(start, survey.target, most=10))


@emulated
@pytest.mark.parametrize("during", [r"UNION ALL|COUNT_BIG", r"ORDER BY \[__\$start_lsn\]"])
def test_clean_up_during_a_query_is_noticed(shop: str, during: str):
    """The least position is read again behind each query, so a scan under the clean-up's hands is not believed."""
    start = start_of(shop)
    write(shop, "INSERT INTO orders (id) VALUES (1)")
    tds.set_capture(shop, clean_when=during)

    with opened(shop) as log, pytest.raises(PositionLost):
        window(log, start)


@emulated
def test_stopped_capture_job_is_never_no_changes(shop: str):
    """Nothing new and no mark for ten minutes: the job does not run. With a mark from now, there is nothing new."""
    start = start_of(shop)
    with opened(shop) as log:
        log.refuse_lost(start, log.survey())
        tds.execute(shop, "UPDATE cdc.lsn_time_mapping SET tran_end_time = DATEADD(minute, -11, tran_end_time)")
        with pytest.raises(LogSetup, match=r"capture job is not running.*11 minutes"):
            log.refuse_lost(start, log.survey())
        findings = {finding.name: finding for finding in log.preflight()}
        tds.execute(shop, "INSERT INTO orders (id) VALUES (1)")
        log.refuse_lost(start, log.survey())  # there is something to read

    assert (findings["capture job"].status, "sp_cdc_start_job" in findings["capture job"].fix) == ("fail", True)


def test_position_of_another_kind_is_refused(shop: str):
    """A text that is no LSN is not read as one."""
    with opened(shop) as log, pytest.raises(CheckpointUnusable, match="20 hexadecimal digits"):
        log.refuse_lost(Position("0", "0/16B3748", "PostgresLsn"), log.survey())


def test_identity_is_the_databases(shop: str, fresh_sqlserver: str, sqlserver_url: str):
    """Two databases of one server are two sources; one is the same every time."""
    other = tds.create_database(sqlserver_url)
    try:
        captured_tables(other, ORDERS)
        with opened(shop) as one, opened(other) as two_:
            assert one.survey().identity == one.survey().identity != two_.survey().identity
    finally:
        tds.drop_database(sqlserver_url, other)


# --- instances and columns -----------------------------------------------------------------------


def test_two_instances_need_a_name(shop: str):
    """With two capture instances the user says which; each reads its own log."""
    start = start_of(shop)
    tds.execute(shop, enabling("orders", instance="orders_2", columns="id, name"))
    settle(shop)
    with opened(shop) as log, pytest.raises(LogSetup, match=r"two capture instances, dbo_orders and orders_2"):
        log.survey()
    switched = start_of(shop, capture_instances=("orders_2",))
    write(shop, "INSERT INTO orders (id, name) VALUES (1, N'a')")

    old = drained(shop, start, capture_instances=("dbo_orders",))
    new = drained(shop, switched, capture_instances=("orders_2",))

    assert brief(old) == brief(new) == [("insert", 1, "a")]
    assert ("note" in old[0], "note" in new[0]) == (True, False)
    with opened(shop, capture_instances=("orders_2",)) as log, pytest.raises(PositionLost):
        log.refuse_lost(Position("0" * 20, "0x" + "0" * 20, "Custom"), log.survey())


NAMES = [
    (("nosuch",), (), r"Table nosuch is not captured.*sp_cdc_enable_table @source_schema = N'dbo'"),
    (("orders",), ("nosuch",), r"no capture instance nosuch.*orders has dbo_orders"),
    (("lines",), ("dbo_orders",), r"dbo_orders captures dbo.orders, and the export's table is lines"),
]


@pytest.mark.parametrize(("tables", "instances", "words"), NAMES)
def test_instance_that_does_not_fit_is_refused(two: str, tables, instances, words):
    """What is wrong is named, with what is there."""
    with opened(two, *tables, capture_instances=instances) as log, pytest.raises(LogSetup, match=words):
        log.survey()


@pytest.mark.parametrize("name", ["dbo.orders", "[dbo].[orders]", "ORDERS"])
def test_table_is_found_by_any_spelling(shop: str, name: str):
    """The instance is found by the source table, however it is written."""
    assert start_of(shop, name).key == start_of(shop).key


def test_added_column_is_absent_and_told(shop: str):
    """A column that came after the capture is not in its log; the preflight writes the second instance out."""
    start = start_of(shop)
    tds.execute(shop, "ALTER TABLE orders ADD extra int NULL")
    write(shop, "INSERT INTO orders (id, name, extra) VALUES (1, N'a', 5)")

    with opened(shop) as log:
        (finding,) = [f for f in log.preflight() if f.status == "warn"]

    assert "extra" not in drained(shop, start)[0]
    assert ("does not capture extra" in finding.text, "N'dbo_orders_2'" in finding.fix) == (True, True)


@emulated
def test_computed_column_is_left_out_and_told(shop: str):
    """The log has NULL for every computed cell, so the column is no part of the changes."""
    start = start_of(shop)
    tds.execute(shop, "UPDATE cdc.captured_columns SET is_computed = 1 WHERE column_name = N'note'")
    write(shop, "INSERT INTO orders (id, name, note) VALUES (1, N'a', N'x')")

    with opened(shop) as log:
        told = [finding.text for finding in log.preflight() if finding.status == "warn"]

    assert "note" not in drained(shop, start)[0]
    assert told == ["The log has no values of computed columns, so changes lack note of dbo.orders."]
