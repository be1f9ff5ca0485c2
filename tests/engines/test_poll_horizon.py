"""Stamps coarser than the clock: cut or rounded, they lie below the instant they were taken at."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from rivet_resources.contracts.settings import pace
from rivet_resources.contracts.source import TypeRules
from rivet_resources.engines.postgres.horizon import Floor
from rivet_resources.engines.sqlserver.source import SqlServer
from tests.emulators.tds import server as tds
from tests.engines.postgres.reads import rules, run, session

SECOND = datetime(2026, 1, 1, 0, 0, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("stamp", "cap", "high"),
    [
        ("timestamptz(0)", 400_000, None),
        ("timestamptz(0)", 999_999, None),
        ("timestamptz(1)", 99_999, None),
        ("timestamptz(1)", 100_000, "2026-01-01T00:00:05.000000Z"),
        ("timestamptz", 1, "2026-01-01T00:00:05.000000Z"),
        ("timestamp(0)", 400_000, None),
        ("timestamp(3)", 1_000, "2026-01-01T00:00:05.000000"),
    ],
)
def test_bound_is_cut_to_what_the_column_holds(fresh_database: str, stamp: str, cap: int, high: str | None) -> None:
    """A transaction that begins at second 5.4 stamps 5: rows of 5 are not final while that may still begin."""
    run(fresh_database, f"CREATE TABLE t (id int PRIMARY KEY, at {stamp})", "SET timezone = 'UTC'")
    run(fresh_database, "INSERT INTO t VALUES (1, '2026-01-01 00:00:05+00')")
    with session(fresh_database) as planning:
        relation = planning.describe(table="t", query=None, params={}, rules=rules())
        planning.floor = Floor(SECOND + timedelta(seconds=9), SECOND + timedelta(microseconds=cap), zone="UTC")
        column = relation.column("at")
        assert column is not None

        found = planning.horizon(relation, "at", column, after=None)

    assert high == found.high


def test_smalldatetime_waits_for_its_minute(fresh_sqlserver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQL Server rounds it to the minute: rows of the running one are not final."""
    monkeypatch.setenv("LAB_URL", fresh_sqlserver)
    source = SqlServer(type="sqlserver", url_env="LAB_URL")
    with tds.connect(fresh_sqlserver) as execute:
        execute("CREATE TABLE t (id int NOT NULL PRIMARY KEY, at smalldatetime)")
        execute("INSERT INTO t VALUES (1, '2026-01-01T00:00:00')")
    minute = None
    while minute != (minute := datetime.now(UTC).replace(second=0, microsecond=0)):  # until none begins meanwhile
        with tds.connect(fresh_sqlserver) as execute:
            execute("DELETE FROM t WHERE id = 2")
            execute(f"INSERT INTO t VALUES (2, '{minute:%Y-%m-%dT%H:%M:%S}')")
        with source.session(application="rivet:t", pace=pace(None, None)) as planning:
            relation = planning.describe(table="t", query=None, params={}, rules=TypeRules(columns={}))
            column = relation.column("at")
            assert column is not None
            found = planning.horizon(relation, "at", column, after=None)

    assert "2026-01-01T00:00:00.000000" == found.high
