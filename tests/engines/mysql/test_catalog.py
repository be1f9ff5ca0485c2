"""What MySQL's and MariaDB's catalogs say of tables and queries, and what becomes of it."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from rivet_resources.contracts.relation import Relation
from rivet_resources.contracts.source import ColumnRule
from rivet_resources.errors import ConfigError, SourceError, SourcePermission, UnknownColumn, UnknownTable
from tests.engines.mysql.reads import SERVERS, describe, pages, rules, run, session, table, whole


@pytest.fixture(params=SERVERS)
def url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty database, of each server in turn."""
    return str(request.getfixturevalue(request.param))


@pytest.fixture
def poor(url: str) -> Iterator[str]:
    """The URL of the same database for a user without any right."""
    parts = urlsplit(url)
    name = f"poor{parts.path[1:]}"[-30:]
    run(url, f"CREATE USER {name}@'%' IDENTIFIED BY 'pw'", f"GRANT USAGE ON *.* TO {name}@'%'")
    yield f"mysql://{name}:pw@{parts.hostname}:{parts.port}{parts.path}"
    run(url, f"DROP USER {name}@'%'")


def user_of(url: str) -> str:
    """Name the user of a URL as GRANT wants it."""
    return f"{urlsplit(url).username}@'%'"


def grant(url: str, poor: str, what: str, on: str = "*") -> None:
    """Give the poor user a right in its database; on a connection that names none, for MySQL's sake."""
    database = urlsplit(url).path[1:]
    run(url, f"GRANT {what} ON {database}.{on} TO {user_of(poor)}")


def query(url: str, text: str, **params: str) -> Relation:
    """Describe a query."""
    with session(url) as planning:
        return planning.describe(table=None, query=text, params=params, rules=rules())


def test_unknown_table_is_named_with_the_near_ones(url: str) -> None:
    """A typing slip, or another case, gets the tables that were meant."""
    run(url, "CREATE TABLE orders (id INT)", "CREATE TABLE `Customers` (id INT)")
    database = urlsplit(url).path[1:]

    with session(url) as planning:
        for wrong, meant in (("ordres", "orders"), ("customers", "Customers")):
            with pytest.raises(UnknownTable, match=rf"no table {wrong} .* Did you mean .*{database}\.{meant}"):
                describe(planning, wrong)


def test_table_without_a_grant_names_the_grant(url: str, poor: str) -> None:
    """A table that this user may not read is told from one that is not there."""
    run(url, "CREATE TABLE t (id INT)", "CREATE TABLE other (id INT)")
    grant(url, poor, "SELECT", "other")

    with (
        session(poor) as planning,
        pytest.raises(SourcePermission, match=r"GRANT SELECT ON `\w+`\.`t` TO 'poor\w+'@'%'"),
    ):
        describe(planning, "t")


def test_column_without_a_grant_is_not_left_out_in_silence(url: str, poor: str) -> None:
    """The catalog hides what a user may not read; an export must not shrink by that."""
    run(url, "CREATE TABLE t (id INT PRIMARY KEY, hidden INT)")
    grant(url, poor, "SELECT (id)", "t")

    with session(poor) as planning, pytest.raises(SourcePermission, match="GRANT SELECT ON"):
        describe(planning, "t")


def test_table_of_a_source_without_a_database_needs_one(url: str) -> None:
    """The name of the database is asked for where neither says it."""
    bare = url.rpartition("/")[0] + "/"

    with session(bare) as planning, pytest.raises(ConfigError, match=r"Write database\.table, or set `database`"):
        describe(planning, "t")


def test_names_of_any_kind_are_read(url: str) -> None:
    """Backticks, quotes, dots, reserved words and letters beyond ASCII are names."""
    run(
        url,
        "CREATE TABLE `a.b ``q``` (`select` INT PRIMARY KEY, `Üm` INT, `x``y` INT)",
        "INSERT INTO `a.b ``q``` VALUES (1, 2, 3)",
    )

    for spelled in ("`a.b ``q```", '"a.b `q`"'):
        read = table(url, spelled)
        assert [{"select": 1, "Üm": 2, "x`y": 3}] == read.to_pylist()


def test_invisible_column_is_exported_only_when_listed(url: str) -> None:
    """`SELECT *` leaves it out, and so do we, unless `columns:` names it."""
    run(url, "CREATE TABLE t (id INT PRIMARY KEY, secret INT INVISIBLE DEFAULT 7)", "INSERT INTO t (id) VALUES (1)")

    plain, listed = table(url), table(url, columns={"secret": "int8"})

    assert (["id"], [{"id": 1, "secret": 7}]) == (plain.column_names, listed.to_pylist())


def test_generated_columns_are_read_by_name(url: str) -> None:
    """Virtual and stored columns have types like others."""
    run(
        url,
        "CREATE TABLE t (id INT PRIMARY KEY, double_id INT AS (id * 2) VIRTUAL, "
        "word VARCHAR(9) AS (CONCAT('w', id)) STORED)",
        "INSERT INTO t (id) VALUES (4)",
    )

    assert [{"id": 4, "double_id": 8, "word": "w4"}] == table(url).to_pylist()


def test_view_is_read_like_a_table_without_a_key(url: str) -> None:
    """A view has columns and types, no key and no size."""
    run(
        url,
        "CREATE TABLE t (id INT PRIMARY KEY, u BIGINT UNSIGNED)",
        "INSERT INTO t VALUES (1, 5)",
        "CREATE VIEW v AS SELECT * FROM t",
    )

    with session(url) as planning:
        relation = describe(planning, "v")

    assert ((), None, pa.uint64()) == (relation.key, relation.rows_estimate, relation.columns[1].arrow)
    assert [{"id": 1, "u": 5}] == table(url, "v").to_pylist()


def test_rows_of_a_small_table_are_counted(url: str) -> None:
    """The engine's own estimate lags behind; a young table must not look empty."""
    run(url, "CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2), (3)")

    with session(url) as planning:
        assert 3 == describe(planning).rows_estimate


def test_unknown_column_of_a_rule_lists_what_exists(url: str) -> None:
    """`columns:` is about columns that are there, exact case."""
    run(url, "CREATE TABLE t (id INT PRIMARY KEY)")

    with session(url) as planning, pytest.raises(UnknownColumn, match=r"no column 'ID'; it has id"):
        describe(planning, columns={"ID": "int8"})


def test_comments_and_nullability_are_the_catalogs(url: str) -> None:
    """A NOT NULL column is not nullable in the file, unless a policy may add NULLs."""
    run(url, "CREATE TABLE t (id INT PRIMARY KEY, born DATE NOT NULL COMMENT 'of birth', x INT)")

    with session(url) as planning:
        strict = describe(planning)
        lenient = describe(planning, on_special_value="null")

    assert [(False, ""), (False, "of birth"), (True, "")] == [(c.nullable, c.comment) for c in strict.columns]
    assert [False, True, True] == [c.nullable for c in lenient.columns]


def test_query_has_the_types_of_its_tables(url: str) -> None:
    """Precision, signedness, width and charset survive the way through a derived table."""
    run(
        url,
        "CREATE TABLE t (a DECIMAL(60, 3), b DECIMAL(12, 2) UNSIGNED, c BIGINT UNSIGNED, d TINYINT(1), e BIT(64), "
        "f BINARY(4), g CHAR(4), h ENUM ('x'), i SET ('y'), j TIMESTAMP NULL, k DATETIME(6), l TIME, m YEAR, "
        "n FLOAT, o BLOB, p TEXT)",
    )
    with session(url) as planning:
        direct = describe(planning)

    through = query(url, "SELECT * FROM t")

    assert [(c.name, c.arrow) for c in direct.columns] == [(c.name, c.arrow) for c in through.columns]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("SELECT 1 AS a, 2 AS A", "returns '[aA]' more than once"),
        ("SELECT nonsense", "Unknown column|nonsense"),
        ("SELECT 1 FROM no_such_table", "no_such_table"),
        ("SELEC 1", "syntax"),
    ],
)
def test_query_that_cannot_be_described_is_refused(url: str, text: str, words: str) -> None:
    """The server's word, cleaned, reaches the user."""
    with pytest.raises((ConfigError, SourceError), match=words):
        query(url, text)


def test_query_with_parameters_and_comments_is_read(url: str) -> None:
    """A trailing line comment and parameters do not break the derived table."""
    run(url, "CREATE TABLE t (id INT PRIMARY KEY, w VARCHAR(9))", "INSERT INTO t VALUES (1, 'a'), (2, 'it''s')")
    relation = query(url, "SELECT id FROM t WHERE w = :w # the one", w="it's")
    with session(url) as planning:
        chunks = planning.chunks(relation)

    assert [2] == whole(relation, pages(url, relation, chunks[0])).column("id").to_pylist()


def test_zone_that_the_server_does_not_know_is_refused(url: str) -> None:
    """CONVERT_TZ would give NULL for every row."""
    run(url, "CREATE TABLE t (id INT PRIMARY KEY, at DATETIME)")
    rule = ColumnRule(type="timestamp_tz", timezone="Mars/Olympus")

    with session(url) as planning, pytest.raises(ConfigError, match="does not know the time zone 'Mars/Olympus'"):
        describe(planning, columns={"at": rule})


def test_time_outside_the_range_of_zones_is_not_taken_over_unshifted(url: str) -> None:
    """CONVERT_TZ gives such times back as they came, so they are special."""
    run(
        url,
        "CREATE TABLE t (id INT PRIMARY KEY, at DATETIME)",
        "INSERT INTO t VALUES (1, '9999-12-31'), (2, '2020-01-01')",
    )
    rule = ColumnRule(type="timestamp_tz", timezone="+02:00", on_special_value="null")

    read = table(url, columns={"at": rule})

    assert [None, "2019-12-31T22:00:00+00:00"] == [at and at.isoformat() for at in read.column("at").to_pylist()]


# --- MariaDB -------------------------------------------------------------------------------------


def test_mariadb_json_is_marked_by_its_check(fresh_mariadb: str) -> None:
    """JSON there is LONGTEXT with a CHECK; other long texts stay texts."""
    run(fresh_mariadb, "CREATE TABLE t (id INT PRIMARY KEY, j JSON, `w``x` JSON, w LONGTEXT)")

    with session(fresh_mariadb) as planning:
        relation = describe(planning)

    assert ["", "json", "json", ""] == [column.logical for column in relation.columns]


def test_mariadb_sequence_is_refused(fresh_mariadb: str) -> None:
    """A sequence looks like a table and is none."""
    run(fresh_mariadb, "CREATE SEQUENCE s")

    with session(fresh_mariadb) as planning, pytest.raises(SourceError, match=r"\.s is a sequence"):
        describe(planning, "s")


def test_mariadb_versioned_table_gives_its_current_rows(fresh_mariadb: str) -> None:
    """History is not exported; each current row comes once."""
    run(
        fresh_mariadb,
        "CREATE TABLE t (id INT PRIMARY KEY, x INT) WITH SYSTEM VERSIONING",
        "INSERT INTO t VALUES (1, 1), (2, 2)",
        "UPDATE t SET x = x + 10",
        "DELETE FROM t WHERE id = 2",
    )

    assert [{"id": 1, "x": 11}] == table(fresh_mariadb).to_pylist()


def test_mariadb_own_types_are_keys(fresh_mariadb: str) -> None:
    """UUID and INET6 keys are compared by the server alone, which orders UUIDs by its own rule."""
    run(
        fresh_mariadb,
        "CREATE TABLE t (k UUID PRIMARY KEY, i INET6)",
        "INSERT INTO t SELECT UUID(), '::1' FROM seq_1_to_100",
        "CREATE TABLE n (k INET6 PRIMARY KEY)",
        "INSERT INTO n VALUES ('::1'), ('2001:db8::ff'), ('::ffff:1.2.3.4')",
    )
    with session(fresh_mariadb) as planning:
        relation = describe(planning)
        assert (("k",), ["uuid", "inet6"]) == (relation.key, [column.native for column in relation.columns])

    assert 100 == len(set(table(fresh_mariadb).column("k").to_pylist()))
    assert ["::1", "::ffff:1.2.3.4", "2001:db8::ff"] == table(fresh_mariadb, "n").column("k").to_pylist()


# --- MySQL ---------------------------------------------------------------------------------------


def test_mysql_functional_index_is_no_key(fresh_mysql: str) -> None:
    """An expression may be unique without any column being so."""
    run(fresh_mysql, "CREATE TABLE t (a INT NOT NULL, UNIQUE u ((a + 1)))")

    with session(fresh_mysql) as planning:
        relation = describe(planning)

    assert ((), frozenset()) == (relation.key, relation.indexed)


def test_mysql_vector_is_binary(fresh_mysql: str) -> None:
    """A vector is its floats, four little-endian bytes each."""
    run(
        fresh_mysql, "CREATE TABLE t (id INT PRIMARY KEY, v VECTOR(2))", "INSERT INTO t VALUES (1, TO_VECTOR('[1, 2]'))"
    )

    read = table(fresh_mysql)

    assert [bytes.fromhex("0000803f00000040")] == read.column("v").to_pylist()
