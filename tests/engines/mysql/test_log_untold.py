"""What happens to rows without a word in the binary log: refused by name, again and again, or harmless.

Belongs here: columns added and renamed, foreign keys that change rows, tables without a key, tables replaced whole.
Not here: the words of an ALTER TABLE (unit/test_mysql_ddl.py).
"""

from __future__ import annotations

from decimal import Decimal

import pytest

from rivet_resources.contracts.change_log import Position
from rivet_resources.errors import LogRefused, LogSetup
from tests.engines.mysql.changes import Window, log, run, window

pytestmark = pytest.mark.matrix


@pytest.fixture(params=["mariadb", "mysql"])
def url(request: pytest.FixtureRequest) -> str:
    """An empty database with a table."""
    found: str = request.getfixturevalue(f"fresh_{request.param}")
    run(found, "CREATE TABLE t (id int PRIMARY KEY, v varchar(20))", "INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    return found


def begun(url: str, *tables: str, **keys: object) -> Position:
    """Begin where the log ends now."""
    with log(url, *tables, **keys) as opened:
        return opened.begin()


def drained(url: str, at: Position, *tables: str, **keys: object) -> Window:
    """Drain from a position, as a run does."""
    with log(url, *tables, **keys) as opened:
        opened.refuse_lost(at, opened.survey())
        return window(opened, at)


def refused(url: str, at: Position, *words: str) -> None:
    """Expect the refusal, twice."""
    for _ in range(2):
        with pytest.raises(LogRefused) as failure:
            drained(url, at, "t")
        for word in words:
            assert word in str(failure.value)


COLUMNS = {
    "default": ("ALTER TABLE t ADD COLUMN d int NOT NULL DEFAULT 7", "adds column d to t with a value"),
    "rename": ("ALTER TABLE t CHANGE v w varchar(20)", "renames column v of t to w"),
    "dropped and added": ("ALTER TABLE t DROP v, ADD v int", "v"),
}


@pytest.mark.parametrize("case", COLUMNS)
def test_columns_of_old_rows_that_the_log_does_not_tell_are_refused(url: str, case: str) -> None:
    """And taken as they are by whoever says so."""
    statement, words = COLUMNS[case]
    start = begun(url, "t")
    if case == "dropped and added":
        run(url, "ALTER TABLE t DROP v", "INSERT INTO t VALUES (8)")
        start = drained(url, start, "t").position  # the drop is remembered from drain to drain
        statement = "ALTER TABLE t ADD v int"
    run(url, statement, "INSERT INTO t (id) VALUES (9)")
    refused(url, start, words, "accept_untold: [columns]")
    assert drained(url, start, "t", accepts=frozenset({"columns"})).rows()[-1]["id"] == 9


def test_nullable_column_without_a_default_goes_on(url: str) -> None:
    """Old rows are NULL at the source as well."""
    start = begun(url, "t")
    run(url, "ALTER TABLE t ADD COLUMN d varchar(9)", "ALTER TABLE t ADD COLUMN e timestamp NULL",
        "INSERT INTO t VALUES (9, 'z', 'new', NULL)")  # fmt: skip
    assert [(row["id"], row["d"]) for row in drained(url, start, "t").rows()] == [(9, "new")]


CHILD = """CREATE TABLE child (id int PRIMARY KEY, t_id int,
CONSTRAINT of_t FOREIGN KEY (t_id) REFERENCES t (id) ON DELETE CASCADE ON UPDATE CASCADE)"""


def test_child_of_a_cascade_is_named_and_refused_unless_accepted(url: str, request: pytest.FixtureRequest) -> None:
    """Before the first run, and at a later one whose checkpoint is older than the question; MySQL 9.6 logs them."""
    run(url, CHILD)
    is_hidden = "mariadb" in request.node.name
    with log(url, "t", "child") as opened:
        found = [each for each in opened.preflight() if each.name.startswith("cascades")]
        if not is_hidden:
            assert found == []
            return
        assert [(each.name, each.status) for each in found] == [("cascades child", "fail")]
        assert "of_t" in found[0].text
        assert "accept_untold: [cascades]" in found[0].fix
        start = opened.begin()
        old = Position(start.key, start.text, start.type, {k: v for k, v in start.more.items() if k != "cascades"})
        with pytest.raises(LogSetup, match="child is changed by foreign keys"):
            opened.refuse_lost(old, opened.survey())
    with log(url, "t", "child", accepts=frozenset({"cascades"})) as opened:
        assert [each.status for each in opened.preflight() if each.name.startswith("cascades")] == ["warn"]
        opened.refuse_lost(old, opened.survey())


def test_default_that_is_no_text_hides_no_cascade(url: str, request: pytest.FixtureRequest) -> None:
    """Bytes in a table's DDL are no fault of the connection, which goes on; nor a reason not to look."""
    run(url, CHILD.replace("t_id int", "code varbinary(4) NOT NULL DEFAULT x'00e88bff', t_id int"))
    with log(url, "t", "child") as opened:
        found = [each.name for each in opened.preflight() if each.name.startswith("cascades")]
        survey = opened.survey()

    assert (["cascades child"] if "mariadb" in request.node.name else []) == found
    assert survey.target.key


def test_cascade_that_comes_later_is_refused_where_the_log_shows_it(url: str, request: pytest.FixtureRequest) -> None:
    """The statement that makes the foreign key is in the log."""
    run(url, "CREATE TABLE p (id int PRIMARY KEY)")
    start = begun(url, "t")
    run(url, "ALTER TABLE t ADD COLUMN p_id int, ADD FOREIGN KEY (p_id) REFERENCES p (id) ON DELETE SET NULL")
    if "mariadb" in request.node.name:
        refused(url, start, "a foreign key of t", "accept_untold: [cascades]")
    else:
        drained(url, start, "t")


def test_table_without_a_key_is_refused_before_a_copy(url: str) -> None:
    """The copy overlaps with the log, and only a key tells what came twice."""
    run(url, "CREATE TABLE loose (a bigint, b text)", "CREATE TABLE named (a int NOT NULL UNIQUE, b text)",
        "CREATE TABLE half (a int UNIQUE, b text)")  # fmt: skip
    with log(url, "t", "loose", "named", "half", copies=True) as opened:
        found = [each for each in opened.preflight() if each.name.startswith("key ")]
    assert [(each.name, each.status) for each in found] == [("key loose", "fail"), ("key half", "fail")]
    assert "initial: snapshot" in found[0].fix
    with log(url, "loose") as opened:
        assert not [each for each in opened.preflight() if each.name.startswith("key ")]


def test_key_that_nothing_keeps_unique_is_refused_before_the_first_run(url: str) -> None:
    """Columns beside those of a unique index do no harm; an index with NULLs, of other columns, or none, is not it."""
    run(url, "CREATE TABLE c (id int PRIMARY KEY, a int NOT NULL, b int NOT NULL, n int, UNIQUE (a), UNIQUE (n),"
        " UNIQUE (b, id))")  # fmt: skip
    keys = [("A",), ("a", "b"), ("id", "made"), ("b",), ("n",), ("made",)]
    found = []
    for key in keys:
        with log(url, "c", is_keyed=True, is_applied=True, key=key, copies=True) as opened:
            found.append([each.status for each in opened.preflight() if each.name == "key c"])
    with log(url, "c", is_keyed=True, key=("b",), copies=True) as opened:
        messages = [each for each in opened.preflight() if each.name == "key c"]

    assert [[], [], [], ["fail"], ["fail"], ["fail"]] == found
    assert [] == messages


def test_table_that_is_replaced_whole_is_emptied_first(url: str, request: pytest.FixtureRequest) -> None:
    """CREATE OR REPLACE, which MariaDB knows, is a DROP without the word."""
    if "mariadb" not in request.node.name:
        return
    start = begun(url, "t")
    run(url, "CREATE OR REPLACE TABLE t (id int PRIMARY KEY, v varchar(20))", "INSERT INTO t VALUES (9, 'z')")
    assert [row["__op"] for row in drained(url, start, "t").rows()] == ["truncate", "insert"]
    at = begun(url, "t")
    run(url, "CREATE OR REPLACE TABLE t (id int PRIMARY KEY, v varchar(20)) AS SELECT 3 AS id, 'q' AS v")
    with pytest.raises(LogRefused):
        drained(url, at, "t")


def test_null_in_a_decimal_of_38_digits_is_read(url: str) -> None:
    """What lies where its bytes would be is the text of another column, and no number."""
    long = "z" * 40
    run(url, "CREATE TABLE wide (id int PRIMARY KEY, c decimal(38,30), d decimal(37,30), v varchar(40))")
    start = begun(url, "wide")
    run(url, f"INSERT INTO wide VALUES (1, 0.5, 1.5, '{long}'), (2, NULL, NULL, '{long}')")
    rows = drained(url, start, "wide").rows()
    assert [(row["c"], row["d"]) for row in rows] == [(Decimal("0.5"), Decimal("1.5")), (None, None)]


@pytest.mark.parametrize("form", ["STATEMENT", "MIXED", "ROW"])
def test_table_that_a_query_fills_is_refused_where_its_rows_are_no_rows_of_the_log(url: str, form: str) -> None:
    """CREATE TABLE … SELECT is a statement in MIXED format too: the log has no row of it."""
    start = begun(url, "t")
    run(
        url, "DROP TABLE t", f"SET SESSION binlog_format = {form}",
        "CREATE TABLE t (id int PRIMARY KEY, v varchar(20)) SELECT 9 AS id, 'z' AS v",
    )  # fmt: skip
    if form == "ROW":
        assert [("truncate", None), ("insert", 9)] == [(r["__op"], r["id"]) for r in drained(url, start, "t").rows()]
    else:
        refused(url, start, "CREATE TABLE of t with a query", "binlog_format is not ROW")


def test_rows_that_another_table_exchanges_with_ours_are_refused(url: str) -> None:
    """The statement is about the partitioned table; ours stands at its end, under its full name or not."""
    database = url.rpartition("/")[2]
    run(url, "CREATE TABLE p (id int PRIMARY KEY, v varchar(20)) PARTITION BY RANGE (id) "
             "(PARTITION p0 VALUES LESS THAN (100))", "INSERT INTO p VALUES (7, 'p')")  # fmt: skip
    for name in ("t", f"{database}.`t`"):
        start = begun(url, "t")
        run(url, f"ALTER TABLE p EXCHANGE PARTITION p0 WITH TABLE {name}")
        refused(url, start, "ALTER TABLE … EXCHANGE PARTITION")
        assert drained(url, start, "t", accepts=frozenset({"partitions"})).rows() == []


def test_table_that_becomes_a_partition_or_was_one_is_refused(url: str, request: pytest.FixtureRequest) -> None:
    """MariaDB's CONVERT TABLE and CONVERT PARTITION, of ours and with ours."""
    if "mariadb" not in request.node.name:
        return
    run(url, "CREATE TABLE p (id int PRIMARY KEY, v varchar(20)) PARTITION BY RANGE (id) "
             "(PARTITION p0 VALUES LESS THAN (0))", "CREATE TABLE n (id int PRIMARY KEY, v varchar(20))")  # fmt: skip
    for statement, table in (
        ("ALTER TABLE p CONVERT TABLE t TO PARTITION p1 VALUES LESS THAN (100)", "t"),
        ("ALTER TABLE p CONVERT TABLE n TO PARTITION p2 VALUES LESS THAN (200)", "p"),
        ("ALTER TABLE p CONVERT PARTITION p1 TO TABLE t", "t"),
    ):
        start = begun(url, table)
        run(url, statement)
        with pytest.raises(LogRefused, match="CONVERT"):
            drained(url, start, table)


def test_rows_that_alter_ignore_drops_are_refused(url: str, request: pytest.FixtureRequest) -> None:
    """MariaDB drops the second of two equal rows, and logs no row."""
    if "mariadb" not in request.node.name:
        return
    run(url, "INSERT INTO t VALUES (3, 'b')")
    start = begun(url, "t")
    run(url, "ALTER IGNORE TABLE t ADD UNIQUE (v)")
    refused(url, start, "may drop rows of t (IGNORE)", "accept_untold: [columns]")
    assert drained(url, start, "t", accepts=frozenset({"columns"})).rows() == []
