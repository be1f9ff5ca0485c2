"""Columns that an ALTER TABLE defines anew: what it does to old values, as the servers themselves do it.

Belongs here: the judgement of types against both servers, and what a drain refuses, tells or passes. Not here: the
words of the statement (unit/engines/mysql/test_ddl.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pymysql
import pytest

from rivet_resources.contracts.change_log import Commit, Position
from rivet_resources.engines.mysql.binlog.alter.redefine import Effect, Shape, effect_of
from rivet_resources.engines.mysql.binlog.alter.shapes import Redefined, Shapes, shapes_now
from rivet_resources.engines.mysql.binlog.ddl import parse_alter
from rivet_resources.engines.mysql.binlog.position import BinlogPosition
from rivet_resources.engines.mysql.connect import connect
from rivet_resources.engines.mysql.session import MySqlSession
from rivet_resources.engines.mysql.source import MySql
from tests.engines.mysql.changes import EAGER, log, run, window
from tests.engines.mysql.test_log_untold import begun, drained, refused
from tests.servers.mysql import connection

VALUES = {
    "int": ["0", "1", "-1", "127", "255", "2147483647"],
    "int unsigned": ["0", "255", "4294967295"],
    "bigint": ["1", "-1", "9223372036854775807"],
    "tinyint(1)": ["0", "1"],
    "tinyint": ["0", "5", "-1"],
    "decimal(10,4)": ["1.2345", "-1.5", "99999.9999"],
    "double": ["0.1", "123456.789", "-2.5"],
    "float": ["0.5", "-1.25"],
    "varchar(20)": ["'abc'", "'abc  '", "'Straße'", "'日本'", "''"],
    "varchar(20) character set latin1": ["'abc'", "'Straße'", "'abc  '"],
    "char(10)": ["'abc'", "'é'"],
    "text": ["'abc'", "'日本 '"],
    "varbinary(10)": ["x'616263'", "x'00ff'"],
    "binary(4)": ["x'6162'", "x'00ff'"],
    "datetime(6)": ["'2020-01-01 10:00:00.500000'", "'2020-12-31 23:59:59.999999'"],
    "timestamp(6)": ["'2020-07-01 10:00:00.654321'"],
    "time(6)": ["'10:00:00.75'", "'-1:00:00'"],
    "date": ["'2020-02-29'"],
    "year": ["2020"],
    "enum('a','b','c')": ["'a'", "'c'"],
    "set('a','b','c')": ["'a,c'", "''"],
    "bit(8)": ["b'101'"],
}
DEFINITIONS = {
    "int": ["smallint", "bigint", "int unsigned", "decimal(10,2)", "decimal(12,2)", "double", "float", "int(3)",
            "int AUTO_INCREMENT UNIQUE", "int zerofill", "year", "boolean", "int NOT NULL"],
    "int unsigned": ["int", "bigint", "bigint unsigned"],
    "bigint": ["int", "decimal(20,0)", "double", "bigint unsigned"],
    "tinyint(1)": ["int", "tinyint(1) NOT NULL DEFAULT 0", "bool"],
    "tinyint": ["tinyint(1)", "tinyint unsigned", "smallint"],
    "decimal(10,4)": ["decimal(12,4)", "numeric(12,6)", "decimal(10,2)", "int", "decimal(8,4)", "decimal"],
    "double": ["float", "int", "decimal(10,2)", "double(10,2)", "double NOT NULL"],
    "float": ["double", "int", "float(7,2)"],
    "varchar(20)": ["varchar(30)", "varchar(3)", "char(20)", "text", "tinytext", "varchar(20) CHARACTER SET latin1",
                    "varchar(20) COLLATE utf8mb4_bin", "varchar(20) CHARSET utf8mb3", "int", "enum('abc','x')"],
    "varchar(20) character set latin1": ["varchar(20) CHARACTER SET utf8mb4", "varchar(20) CHARACTER SET ascii",
                                         "varbinary(20)"],
    "char(10)": ["varchar(10)", "char(20)", "char(2)", "binary(10)"],
    "text": ["varchar(20)", "longtext", "char(20)", "tinytext"],
    "varbinary(10)": ["varbinary(20)", "binary(10)", "blob", "varbinary(2)"],
    "binary(4)": ["binary(8)", "varbinary(8)", "binary(4)"],
    "datetime(6)": ["datetime", "datetime(3)", "datetime(6) NOT NULL", "date"],
    "timestamp(6)": ["timestamp NULL", "timestamp(6) NULL"],
    "time(6)": ["time", "time(3)", "datetime"],
    "date": ["datetime"],
    "year": ["int"],
    "enum('a','b','c')": ["enum('a','b','c','d')", "enum('c','b','a')", "enum('a','b')", "varchar(5)", "int",
                          "enum('A','B','C')"],
    "set('a','b','c')": ["set('a','b','c','d')", "set('c','b','a')", "set('a','b')"],
    "bit(8)": ["bit(16)", "bit(2)"],
}  # fmt: skip
CASES = [(old, new) for old, news in DEFINITIONS.items() for new in news]


@pytest.fixture(params=["mariadb", "mysql"])
def url(request: pytest.FixtureRequest) -> str:
    """An empty database."""
    found: str = request.getfixturevalue(f"fresh_{request.param}")
    return found


def cells(cursor: Any) -> list[Any]:
    """Read the column, each cell as what it means: numbers as such, whatever their type, and the rest as texts."""
    cursor.execute("SELECT v FROM t ORDER BY id")
    return [_meaning(row[0]) for row in cursor.fetchall()]


def _meaning(cell: Any) -> Any:
    if isinstance(cell, bytes):
        # A BIT has as many bytes as its width.
        return cell.lstrip(b"\0") if len(cell) <= 2 else cell
    # A day is its midnight.
    return float(cell) if isinstance(cell, (int, float, Decimal)) else str(cell).removesuffix(" 00:00:00")


def judged(url: str, definition: str) -> Redefined:
    """Judge a definition of column v, from what the catalog has and the statement says."""
    source = MySql(url=url)  # type: ignore[arg-type]
    params = source.conn_params("rivet:test", EAGER)
    opened = connect(params)
    shapes = shapes_now(MySqlSession(params, opened), ["t"])["t"]
    is_mariadb = "mariadb" in str(opened.server_version).lower()
    opened.close()
    return next(iter(_effects(shapes, definition, is_mariadb)))


def _effects(shapes: Any, definition: str, is_mariadb: bool) -> Iterator[Redefined]:
    known = Shapes(is_mariadb=is_mariadb)
    known.note("t", shapes, None)
    yield from known.effects("t", parse_alter(f"MODIFY v {definition}").retyped, place=BinlogPosition("log.1", 4))


def altered(cursor: Any, old: str, new: str, *, mode: str) -> tuple[list[Any], list[Any] | None]:
    """Alter a table of all values; what was there before and behind, None where the server refused."""
    cursor.execute("SET SESSION sql_mode = %s", (mode,))
    cursor.execute("DROP TABLE IF EXISTS t")
    extra = " NULL" if old.startswith("timestamp") else ""
    cursor.execute(f"CREATE TABLE t (id int PRIMARY KEY, v {old}{extra}) CHARACTER SET utf8mb4")
    for number, value in enumerate(VALUES[old]):
        cursor.execute(f"INSERT INTO t VALUES ({number}, {value})")
    before = cells(cursor)
    try:
        cursor.execute(f"ALTER TABLE t MODIFY v {new}")
    except pymysql.MySQLError:
        return before, None
    return before, cells(cursor)


@pytest.mark.wide
def test_what_is_taken_for_harmless_changes_no_value_at_the_server(url: str) -> None:
    """Strict or not: SAME is never refused and changes nothing, and what is checked changes nothing under strict."""
    wrong = []
    with connection(url) as opened, opened.cursor() as cursor:
        for old, new in CASES:
            strict = altered(cursor, old, new, mode="STRICT_TRANS_TABLES")
            loose = altered(cursor, old, new, mode="")
            cursor.execute("DROP TABLE t")
            extra = " NULL" if old.startswith("timestamp") else ""
            cursor.execute(f"CREATE TABLE t (id int PRIMARY KEY, v {old}{extra}) CHARACTER SET utf8mb4")
            effect = judged(url, new).effect
            if effect is Effect.SAME and strict[0] != strict[1]:
                wrong.append((old, new, "strict", *strict))
            if effect is Effect.SAME and loose[0] != loose[1]:
                wrong.append((old, new, "loose", *loose))
            if effect in (Effect.CHECKED, Effect.CHECKED_LETTERS) and strict[1] not in (None, strict[0]):
                wrong.append((old, new, "checked", *strict))

    assert [] == wrong


# Statement → what the refusal says; under the sql_mode that servers have by default.
HARMFUL = {
    "MODIFY d decimal(10,1)": "makes decimal(10,1) of column d of t, which was decimal(10,2)",
    "MODIFY at datetime": "makes datetime of column at of t",
    "CHANGE v v char(20)": "makes char(20) of column v of t",
    "MODIFY n float": "makes float of column n of t",
    "MODIFY e enum('A','b')": "makes enum('A','b') of column e of t",
    "MODIFY v varchar(20) AS (upper(w)) STORED": "of column v of t",
}
HARMLESS = [
    "MODIFY id bigint NOT NULL", "MODIFY v varchar(40) NOT NULL", "MODIFY v varchar(3)", "MODIFY d decimal(12,4)",
    "CHANGE COLUMN e e enum('a','b','c') DEFAULT 'a' COMMENT 'x' AFTER id", "CONVERT TO CHARACTER SET latin1",
    "MODIFY w longtext, MODIFY n bigint", "MODIFY at datetime(6) NULL DEFAULT CURRENT_TIMESTAMP(6)",
]  # fmt: skip
TABLE = (
    "CREATE TABLE t (id int PRIMARY KEY, v varchar(20), w text, d decimal(10,2), at datetime(3), n int, "
    "e enum('a','b')) CHARACTER SET utf8mb4",
    "INSERT INTO t (id, v, d, e, at, n) VALUES (1, 'a', 1.25, 'a', '2026-01-01 00:00:00.5', 1)",
)
LOOSE = ("SET SESSION sql_mode = ''", "SET SESSION sql_mode = DEFAULT")


@pytest.mark.matrix
@pytest.mark.parametrize("words", HARMFUL)
@pytest.mark.parametrize("seen", [False, True], ids=["catalog", "log"])
def test_definition_that_changes_old_values_is_refused(url: str, words: str, seen: bool) -> None:
    """Whether the log has had a row of the table or not; whoever accepts it goes on."""
    run(url, *TABLE)
    start = begun(url, "t")
    if seen:
        run(url, "INSERT INTO t (id) VALUES (5)")
        start = drained(url, start, "t").position
    statement = f"ALTER TABLE t {words}"
    run(url, "UPDATE t SET v = NULL, e = 'a'" if "AS (" in words else "SELECT 1", statement)

    refused(url, start, HARMFUL[words], "accept_untold: [columns]", "Take a new snapshot")

    assert not any(c.warnings for c in drained(url, start, "t", accepts=frozenset({"columns"})).commits)


@pytest.mark.matrix
@pytest.mark.parametrize("words", HARMLESS)
def test_definition_that_changes_no_value_is_passed_without_a_word(url: str, words: str) -> None:
    """It widens a type, or the server would have refused it."""
    run(url, *TABLE)
    start = begun(url, "t")
    run(url, f"ALTER TABLE t {words}", "INSERT INTO t (id, v) VALUES (6, 'f')")

    found = drained(url, start, "t")

    assert ([6], []) == ([row["id"] for row in found.rows()], [w for c in found.commits for w in c.warnings])


@pytest.mark.matrix
@pytest.mark.parametrize("words", ["MODIFY v varchar(3)", "MODIFY v varchar(20) NOT NULL", "MODIFY n smallint"])
def test_definition_that_a_loose_server_makes_values_fit_is_refused(url: str, words: str) -> None:
    """Without a strict sql_mode the statement cuts, and goes well."""
    run(url, *TABLE)
    start = begun(url, "t")
    run(url, LOOSE[0], f"ALTER TABLE t {words}", LOOSE[1])

    refused(url, start, "under an sql_mode that is not strict", "accept_untold: [columns]")


@pytest.mark.matrix
def test_definition_of_a_table_that_undoes_nothing_is_not_checked(url: str) -> None:
    """MyISAM cuts values behind the first row under STRICT_TRANS_TABLES."""
    run(url, "CREATE TABLE t (id int PRIMARY KEY, v varchar(20)) ENGINE=MyISAM")
    start = begun(url, "t")
    run(url, "SET SESSION sql_mode = 'STRICT_TRANS_TABLES'", "ALTER TABLE t MODIFY v varchar(3)")

    refused(url, start, "not strict")


@pytest.mark.matrix
def test_type_is_remembered_as_it_was_at_the_position(url: str) -> None:
    """However far the log was read: statements that the next drain reads again are judged as they were."""
    run(url, *TABLE)
    start = begun(url, "t")
    # Windows of two changes; behind large rows, small ones do not fill a piece, and what follows them is read as well.
    wide = "INSERT INTO t (id, w) VALUES ({}, repeat('x', 9000)), ({}, repeat('x', 9000))"
    run(url, wide.format(3, 4), "INSERT INTO t (id) VALUES (5), (6)", "ALTER TABLE t MODIFY d decimal(12,4)",
        "ALTER TABLE t MODIFY d decimal(14,6)", wide.format(7, 8))  # fmt: skip
    with log(url, "t") as opened:
        end, upto = start, opened.survey().target
        for _ in range(2):
            end = next(item.position for item in opened.read(end, upto, most=2) if isinstance(item, Commit))

    found = drained(url, end, "t")

    assert ([7, 8], []) == ([row["id"] for row in found.rows()], [w for c in found.commits for w in c.warnings])
    run(url, "ALTER TABLE t MODIFY d decimal(14,5)")
    refused(url, found.position, "makes decimal(14,5) of column d of t, which was decimal(14,6)")


@pytest.mark.matrix
def test_number_that_a_zero_may_have_got_is_told_as_a_doubt(url: str) -> None:
    """AUTO_INCREMENT numbers a zero anew, unless the session rules it out; nobody knows whether there was one."""
    run(url, *TABLE)
    start = begun(url, "t")
    kept = "SET SESSION sql_mode = CONCAT(@@sql_mode, ',NO_AUTO_VALUE_ON_ZERO')"
    run(url, "ALTER TABLE t MODIFY id bigint NOT NULL AUTO_INCREMENT", kept,
        "ALTER TABLE t MODIFY id bigint NOT NULL AUTO_INCREMENT COMMENT 'x'", LOOSE[1])  # fmt: skip

    told = [finding.text for commit in drained(url, start, "t").commits for finding in commit.warnings]

    assert 1 == len(told)
    assert "defines column id of t anew" in told[0]


@pytest.mark.matrix
def test_definition_of_a_column_nobody_remembers_is_told_as_a_doubt(url: str) -> None:
    """A position of an older Rivet, and no row of the table in between; told once, behind the statement."""
    run(url, *TABLE)
    start = begun(url, "t")
    old = Position(start.key, start.text, start.type, {k: v for k, v in start.more.items() if k != "shapes"})
    run(url, "ALTER TABLE t MODIFY v varchar(40)", "INSERT INTO t (id) VALUES (6)")
    with log(url, "t") as opened:
        opened.refuse_lost(old, opened.survey())
        found = window(opened, old)
    told = [finding.text for commit in found.commits for finding in commit.warnings]

    assert 1 == len(told)
    assert "defines column v of t anew" in told[0]


def test_equal_definitions_are_the_same_whatever_the_type() -> None:
    """Also of a type that nobody here knows; an unknown one that changes is a doubt."""
    odd = Shape("xmltype")

    assert Effect.SAME is effect_of(odd, odd, is_mariadb=True)
    assert Effect.UNKNOWN is effect_of(odd, Shape("text", "utf8mb4"), is_mariadb=True)
