"""What SQL Server's catalog says of tables and queries, and how far an incremental read may go."""

from __future__ import annotations

import pytest

from rivet_resources.engines.sqlserver.sql import render_parameters
from rivet_resources.errors import (
    ConfigError,
    SourceError,
    SourcePermission,
    UnknownColumn,
    UnknownTable,
    UnsupportedColumn,
)
from tests.emulators.tds import server as tds
from tests.engines.sqlserver.reads import column, describe, rules, session

pytestmark = pytest.mark.usefixtures("driver")
emulated = pytest.mark.skipif(not tds.is_emulated(), reason="needs the emulator's second login")


def test_a_table_tells_its_columns_key_and_size(fresh_sqlserver: str):
    """Names, native types, NOT NULL, the key and the rows come from the catalog."""
    tds.execute(
        fresh_sqlserver,
        "CREATE TABLE t (id int NOT NULL, [a]]b] decimal(12,2), n nvarchar(50) NOT NULL, PRIMARY KEY (id))",
        "INSERT INTO t (id, n) VALUES (1, N'x'), (2, N'y')",
    )

    relation = describe(fresh_sqlserver, "t")

    assert (relation.name, relation.sql, relation.key) == ("dbo.t", "[dbo].[t]", ("id",))
    assert [(c.name, c.native, c.nullable) for c in relation.columns] == [
        ("id", "int", False),
        ("a]b", "decimal(12,2)", True),
        ("n", "nvarchar(50)", False),
    ]
    assert relation.rows_estimate == 2


KEYS = [
    ("id int NOT NULL, u int NOT NULL", "CREATE UNIQUE INDEX i ON t (u)", ("u",)),
    ("id int NOT NULL, u int NULL", "CREATE UNIQUE INDEX i ON t (u)", ()),
    ("id int NOT NULL, u int NOT NULL", "CREATE UNIQUE INDEX i ON t (u) WHERE id > 5", ()),
    ("id int NOT NULL, u int NOT NULL", "CREATE INDEX i ON t (u)", ()),
    ("id int NOT NULL, u int NOT NULL UNIQUE, PRIMARY KEY (id, u)", "CREATE INDEX i ON t (u)", ("id", "u")),
]


@pytest.mark.parametrize(("columns", "index", "key"), KEYS)
def test_only_a_whole_unique_index_without_nulls_is_a_key(fresh_sqlserver: str, columns, index, key):
    """The primary key wins; filtered, nullable and plain indexes are no keys."""
    tds.execute(fresh_sqlserver, f"CREATE TABLE t ({columns})", index)

    assert describe(fresh_sqlserver, "t").key == key


@pytest.mark.parametrize("name", ["t", "dbo.t", "[dbo].[t]", '"dbo"."t"'])
def test_a_table_is_found_by_any_spelling(fresh_sqlserver: str, name):
    """Plain, bracketed and quoted names mean the same table; a view is read like one."""
    tds.execute(fresh_sqlserver, "CREATE TABLE t (id int)", "CREATE VIEW w AS SELECT id FROM dbo.t")

    assert (describe(fresh_sqlserver, name).name, describe(fresh_sqlserver, "w").name) == ("dbo.t", "dbo.w")


def test_a_missing_table_is_named_with_those_that_look_like_it(fresh_sqlserver: str):
    """The message offers the same name in another schema."""
    tds.execute(fresh_sqlserver, "CREATE SCHEMA shop", "CREATE TABLE shop.orders (id int)")

    with pytest.raises(UnknownTable, match=r"shop\.orders"):
        describe(fresh_sqlserver, "orders")


@emulated
def test_a_missing_grant_is_spelled_out(fresh_sqlserver: str):
    """Who may not read a table is told which GRANT would help."""
    tds.execute(fresh_sqlserver, "CREATE TABLE secrets (id int)")

    with pytest.raises(SourcePermission, match=r"GRANT SELECT ON \[dbo\]\.\[secrets\] TO \[reader\]"):
        describe(tds.as_reader(fresh_sqlserver), "secrets")


def test_a_query_is_described_and_read_without_running_first(fresh_sqlserver: str):
    """Columns of a query have the types the server gives them, parameters are literals."""
    tds.execute(fresh_sqlserver, "CREATE TABLE t (id int, n nvarchar(9))", "INSERT INTO t VALUES (1, N'a'), (2, N'b')")
    with session(fresh_sqlserver) as opened:
        query = "SELECT id, n AS [name], CONVERT(decimal(9,2), id) AS d FROM t WHERE n = :wanted -- end"
        relation = opened.describe(table=None, query=query, params={"wanted": "b"}, rules=rules())
        count = opened.count(relation)

    assert ([(c.name, c.native) for c in relation.columns], count) == (
        [("id", "int"), ("name", "nvarchar(9)"), ("d", "decimal(9,2)")],
        1,
    )


REFUSED = [
    ("", ConfigError, "empty"),
    (";", ConfigError, "empty"),
    ("WITH x AS (SELECT 1 AS a) SELECT a FROM x", ConfigError, "WITH"),
    ("SELECT :x AS a", ConfigError, "known parameters: none"),
    ("SELECT a FROM nowhere", UnknownTable, "Invalid object name"),
]


@pytest.mark.parametrize(("query", "error", "words"), REFUSED)
def test_a_query_that_cannot_be_read_says_why(fresh_sqlserver: str, query, error, words):
    """Each fault of a query is one clear error before anything is read."""
    with session(fresh_sqlserver) as opened, pytest.raises(error, match=words):
        opened.describe(table=None, query=query, params={}, rules=rules())


PARAMETERS = [
    ("a = :x", "a = N'v''w'"),
    ("':x' [:x] /* :x /* */ :x */ geometry::Parse(:x)", "':x' [:x] /* :x /* */ :x */ geometry::Parse(N'v''w')"),
    ("a --:x\n = :x", "a --:x\n = N'v''w'"),
]


@pytest.mark.parametrize(("query", "expected"), PARAMETERS)
def test_parameters_are_found_only_in_code(query, expected):
    """Colons in quotes, brackets, comments and static calls are left alone."""
    assert render_parameters(query, {"x": "v'w"}) == expected


def test_rules_for_a_column_that_is_not_there_are_refused(fresh_sqlserver: str):
    """A typo in `columns:` lists the columns that exist; strictness refuses text forms."""
    tds.execute(fresh_sqlserver, "CREATE TABLE t (id int, h hierarchyid)")

    with pytest.raises(UnknownColumn, match="it has id, h"):
        describe(fresh_sqlserver, "t", columns={"idd": "text"})
    with pytest.raises(UnsupportedColumn, match="on_unsupported"):
        describe(fresh_sqlserver, "t", on_unsupported="fail")


BOUNDS = [
    ("int", "1), (5", "1", "5"),
    ("decimal(10,2)", "1.50), (2", "1.50", "2.00"),
    ("date", "'2020-01-01'), ('2021-01-01'", "2020-01-01", "2021-01-01"),
    ("datetime2(7)", "'2020-01-01'), ('2020-01-01T00:00:00.1234567'", "2020-01-01T00:00:00.000000",
     "2020-01-01T00:00:00.1234567"),
    ("datetimeoffset(0)", "'2020-01-01T00:00:00+02:00'), ('2020-01-01T00:00:00+00:00'", "2019-12-31T22:00:00.000000Z",
     "2020-01-01T00:00:00.000000Z"),
    ("nvarchar(9)", "N'a'), (N'b'", "a", "b"),
    ("varbinary(4)", "0x01), (0xFF", "\\x01", "\\xff"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "values", "low", "high"), BOUNDS)
def test_bounds_are_canonical_and_come_back_as_the_same_value(fresh_sqlserver: str, kind, values, low, high):
    """MIN and MAX as texts, rendered as literals, find their own rows again."""
    tds.execute(fresh_sqlserver, f"CREATE TABLE t (v {kind} NULL)", f"INSERT INTO t (v) VALUES ({values}), (NULL)")
    from rivet_resources.engines.sqlserver.sql import literal

    with session(fresh_sqlserver) as opened:
        relation = opened.describe(table="t", query=None, params={}, rules=rules())
        found = opened.bounds(relation, "v")
        kept = relation.columns[0]
        counts = [opened.count(relation, where=f"[v] = {literal(bound, kept)}") for bound in (low, high)]

    assert (found.low, found.high, found.nulls, counts) == (low, high, 1, [1, 1])


def test_a_bound_of_another_type_is_refused_without_showing_it(fresh_sqlserver: str):
    """A cursor's text that is no value of its column never becomes SQL."""
    tds.execute(fresh_sqlserver, "CREATE TABLE t (v int)")
    from rivet_resources.engines.sqlserver.sql import literal

    kept = describe(fresh_sqlserver, "t").columns[0]
    with pytest.raises(SourceError) as refused:
        literal("1; DROP TABLE t", kept)

    assert "DROP" not in str(refused.value)


# --- the horizon ---------------------------------------------------------------------------------


@pytest.fixture
def stamped(fresh_sqlserver: str) -> str:
    """A table with an integer, a stamp and a rowversion, two rows old enough to read."""
    tds.execute(
        fresh_sqlserver,
        "CREATE TABLE t (id int NOT NULL PRIMARY KEY, at datetime2(6), v rowversion)",
        "INSERT INTO t (id, at) VALUES (1, '2026-01-01'), (2, '2026-01-02')",
    )
    return fresh_sqlserver


def _high(url: str, name: str) -> tuple[str | None, str]:
    with session(url) as opened:
        relation = opened.describe(table="t", query=None, params={}, rules=rules())
        kept = relation.column(name)
        assert kept is not None
        found = opened.horizon(relation, name, kept, after=None)
    return found.high, found.note


def test_nothing_open_means_the_newest_row(stamped: str):
    """With no open transaction an incremental read goes to the end."""
    assert (_high(stamped, "id"), _high(stamped, "at")) == (("2", ""), ("2026-01-02T00:00:00.000000", ""))


def test_an_integer_cursor_waits_for_open_writers(stamped: str):
    """While a writer is open, an integer cursor stays, and the note names the session."""
    with tds.writer(stamped) as other:
        other.execute("INSERT INTO t (id, at) VALUES (3, '2026-01-03')")
        high, note = _high(stamped, "id")

    assert (high, "session" in note) == (None, True)


def test_a_rowversion_cursor_stops_below_open_writers(stamped: str):
    """MIN_ACTIVE_ROWVERSION() bounds a rowversion exactly."""
    before, _ = _high(stamped, "v")
    with tds.writer(stamped) as other:
        other.execute("INSERT INTO t (id, at) VALUES (3, '2026-01-03')")
        tds.execute(stamped, "INSERT INTO t (id, at) VALUES (4, '2026-01-04')")
        during, note = _high(stamped, "v")
        other.commit()
    after, _ = _high(stamped, "v")

    assert (during, bool(note), after != before) == (before, True, True)


@emulated
def test_a_login_that_sees_no_transactions_stays_a_minute_behind(stamped: str):
    """Without VIEW SERVER STATE stamps of the last minute wait, and the note says which GRANT would help."""
    tds.execute(stamped, "INSERT INTO t (id, at) VALUES (3, SYSUTCDATETIME())")

    high, note = _high(tds.as_reader(stamped), "at")

    assert (high, "VIEW SERVER STATE" in note) == ("2026-01-02T00:00:00.000000", True)


def test_our_own_sessions_hold_nothing_back(stamped: str):
    """A reader of ours inside a transaction does not stop the next run's horizon."""
    from tests.engines.sqlserver.reads import pages, small_pages

    with session(stamped) as opened:
        relation = opened.describe(table="t", query=None, params={}, rules=rules())
        (chunk,) = opened.chunks(relation)
    reading = pages(stamped, relation, chunk, speed=small_pages(1))
    first = column(next(reading).table, "id")

    found = _high(stamped, "id")
    reading.close()

    assert (first, found) == ([1], ("2", ""))
