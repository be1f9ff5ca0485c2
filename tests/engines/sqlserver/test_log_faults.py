"""What SQL Server's change log needs, how its faults are told, what it costs, how far behind it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rivet_resources.engines.sqlserver.log import sql as sqlserver_sql
from rivet_resources.errors import LogBusy, LogSetup, SourceLost, SourcePermission
from tests.emulators.tds import server as tds
from tests.engines.sqlserver.changes import ORDERS, captured_tables, drained, opened, rows, start_of, window, write

emulated = pytest.mark.skipif(not tds.is_emulated(), reason="a real server's log does nothing at a test's demand")


@pytest.fixture
def shop(fresh_sqlserver: str) -> Iterator[str]:
    """A database whose table `orders` is captured."""
    tds.forget(fresh_sqlserver) if tds.is_emulated() else None
    captured_tables(fresh_sqlserver, ORDERS)
    yield fresh_sqlserver
    tds.forget(fresh_sqlserver) if tds.is_emulated() else None


# --- setup, faults, costs ------------------------------------------------------------------------


def test_preflight_of_a_ready_table_is_all_ok(shop: str):
    """Nothing to mend."""
    with opened(shop) as log:
        assert {finding.status for finding in log.preflight()} == {"ok"}


def test_preflight_writes_out_what_is_missing(fresh_sqlserver: str):
    """First the database, then the table: each failure comes with the T-SQL that mends it, and mends it."""
    with opened(fresh_sqlserver) as log:
        (finding,) = log.preflight()
        tds.execute(fresh_sqlserver, finding.fix.rstrip(";"))
        (database, instance) = log.preflight()
        tds.execute(fresh_sqlserver, "CREATE TABLE orders (id int NULL)", instance.fix.rstrip(";"))
        settled = {found.name: found for found in log.preflight()}

    assert (finding.status, database.status, instance.status) == ("fail", "ok", "fail")
    assert settled["capture instance orders"].status == "ok"
    assert "without a unique index" in settled["key dbo.orders"].text


def test_key_that_nothing_keeps_unique_is_refused(shop: str):
    """The copy overlaps with the log, and only a unique index says that no two rows share a key."""
    found = {}
    for key in (("id",), ("id", "name"), ("name",)):
        with opened(shop, is_keyed=True, is_applied=True, key=key) as log:
            found[key] = [each.status for each in log.preflight() if each.status != "ok"]

    assert {("id",): [], ("id", "name"): [], ("name",): ["fail"]} == found


@emulated
def test_missing_grant_names_role_and_user(shop: str):
    """A user outside the gating role gets the grants, ready to paste."""
    tds.execute(shop, "UPDATE cdc.change_tables SET role_name = N'cdc_reader'")
    tds.fault(shop, match="TOP \\(1\\) c.\\[__\\$operation\\]", number=229, text="The SELECT permission was denied.")

    with opened(shop) as log:
        failed = [finding for finding in log.preflight() if finding.status == "fail"]

    assert [f.fix for f in failed] == [
        "GRANT SELECT ON SCHEMA::cdc TO [sa]; ALTER ROLE [cdc_reader] ADD MEMBER [sa]; "
        "GRANT SELECT ON [dbo].[orders] TO [sa];"
    ]


FAULTS = [
    (208, LogSetup, "sp_cdc_enable_table"),
    (229, SourcePermission, "GRANT SELECT ON SCHEMA::cdc TO sa"),
    (1205, SourceLost, "run again"),
]


@emulated
@pytest.mark.parametrize("where", ["COUNT_BIG", r"ORDER BY \[__\$start_lsn\]"])
@pytest.mark.parametrize(("number", "kind", "words"), FAULTS)
def test_fault_of_a_read_has_its_class_and_advice(shop: str, where: str, number, kind, words):
    """Missing objects, grants and deadlocks are told apart; the next read finds everything."""
    start = start_of(shop)
    write(shop, "INSERT INTO orders (id) VALUES (1)")
    tds.fault(shop, match=where, number=number)

    with opened(shop) as log, pytest.raises(kind, match=words):
        window(log, start)

    assert len(drained(shop, start)) == 1


@emulated
def test_313_that_is_no_gap_is_told_as_it_came(shop: str):
    """The function's odd complaint leads to the gap check; where nothing is gone it stays the server's error."""
    start = start_of(shop)
    write(shop, "INSERT INTO orders (id) VALUES (1)")
    tds.fault(shop, match="COUNT_BIG", number=313, text="An insufficient number of arguments were supplied.")

    with opened(shop) as log, pytest.raises(Exception, match=r"insufficient number of arguments.*\(313\)"):
        window(log, start)


@emulated
def test_line_that_breaks_in_the_middle_is_no_end(shop: str):
    """Rows that came before the line broke are not a window: there is no Commit, and the next read has them all."""
    start = start_of(shop)
    write(shop, *(f"INSERT INTO orders (id) VALUES ({i})" for i in range(20)))
    tds.fault(shop, match=r"ORDER BY \[__\$start_lsn\]", cut_after_rows=7)

    with opened(shop) as log, pytest.raises(SourceLost):
        window(log, start)

    assert len(drained(shop, start)) == 20


def test_second_drain_is_refused_and_the_first_unharmed(shop: str):
    """Two drains of one export do not read side by side; a look, and another export, may."""
    start = start_of(shop)
    write(shop, "INSERT INTO orders (id) VALUES (1)")
    with opened(shop) as first, opened(shop) as second:
        window(first, start)
        with pytest.raises(LogBusy, match="Another drain of orders"):
            window(second, start)
        assert second.lag(start).unread_changes == 1
        assert len(rows(window(first, start)[0])) == 1
    assert len(drained(shop, start, export="other")) == 1
    assert len(drained(shop, start)) == 1


@emulated
def test_idle_drain_costs_two_statements(shop: str):
    """Nothing new: one look, one measure of the lag, and the pinning of the session."""
    start = start_of(shop)
    tds.forget(shop)
    with opened(shop) as log:
        log.refuse_lost(start, log.survey())
        log.lag(start)

    batches = [batch for batch in tds.seen(shop) if not batch.startswith(("LOGIN", "SET DATEFORMAT"))]
    assert len(batches) == 2


def test_lag_counts_what_is_unread_and_how_old_it_is(shop: str):
    """Unread transactions above the position; zero at the log's end."""
    start = start_of(shop)
    write(shop, "INSERT INTO orders (id) VALUES (1), (2)", "INSERT INTO orders (id) VALUES (3)")
    with opened(shop) as log:
        behind, current = log.lag(start), log.lag(log.survey().target)

    assert (behind.unread_changes if tds.is_emulated() else 2, current.unread_changes) == (2, 0)
    assert (0 <= (behind.seconds or 0) < 120, current.seconds) == (True, 0.0)


@emulated
def test_lag_tells_the_share_of_the_retention(shop: str):
    """A position of half the retention's age has used up half of the budget, and nobody says "none" of it."""
    start = start_of(shop)
    tds.execute(shop, "UPDATE cdc.lsn_time_mapping SET tran_end_time = DATEADD(hour, -36, tran_end_time)")
    with opened(shop) as log:
        known = log.lag(start)
        tds.fault(shop, match="msdb", number=229)
        hidden = log.lag(start)

    assert (known.unread_changes, known.seconds, known.facts["retention_seconds"]) == (None, None, 3 * 86_400)
    assert known.budget == pytest.approx(0.5, abs=0.01)
    assert hidden.budget == pytest.approx(0.5, abs=0.01)


def test_database_without_a_guid_is_not_read(shop: str, monkeypatch: pytest.MonkeyPatch):
    """What tells a database from its restored copy must be there before anything is read."""
    monkeypatch.setattr(sqlserver_sql, "SURVEY", sqlserver_sql.SURVEY.replace("DB_ID()", "0"))

    with opened(shop) as log, pytest.raises(SourcePermission, match="VIEW ANY DATABASE"):
        log.survey()
