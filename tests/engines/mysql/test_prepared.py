"""How a reader's statements are sent to real servers: prepared, let go of, and as text where that is refused."""

from __future__ import annotations

from typing import Any

import pytest
from pymysql import err

from rivet_resources.engines.mysql.connect import connect, rows_of
from rivet_resources.engines.mysql.source import MySql
from rivet_resources.engines.mysql.wire import stream as mysql_stream
from tests.engines.mysql.reads import EAGER, SERVERS, describe, pages, run, session, whole

KINDS = """(id INT PRIMARY KEY, b BIGINT UNSIGNED, f FLOAT, d DOUBLE, n DECIMAL(30,5), y YEAR, da DATE, dt DATETIME(6),
 ts TIMESTAMP NULL, ti TIME(3), t TEXT, x VARBINARY(9), e ENUM('a','b'), bit5 BIT(5), tiny TINYINT(1))"""
ROWS = """(1, 18446744073709551615, 1.1, 0.1, -1.5, 1901, '1000-01-01', '9999-12-31 23:59:59.999999',
 '2020-01-01 00:00:00', '12:00:00.5', 'é', x'00ff', 'b', b'10101', 1),
 (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
 (3, 0, -3.4e38, 1.7976931348623157e308, 0, 2155, '2024-02-29', '2024-02-29 00:00:00', '2037-01-01 12:00:00',
  '00:00:00', '', '', 'a', b'0', 0)"""

LARGE = f"SELECT REPEAT('x', 2000) FROM {', '.join(f't AS t{each}' for each in range(7))}"


@pytest.fixture(params=SERVERS)
def url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty database, of each server in turn."""
    return str(request.getfixturevalue(request.param))


def counted(opened: Any) -> dict[str, int]:
    """How many statements this connection prepared, and how many of them the server was told to forget."""
    rows = rows_of(opened, "SHOW SESSION STATUS LIKE 'Com_stmt_%'")
    return {str(name): int(value or 0) for name, value in rows}


def test_statements_are_prepared_and_let_go_or_sent_as_text(url: str) -> None:
    """Rows are the same by either protocol; the server keeps no statement, and one without room for any serves too.

    One test for both: the limit is the whole server's, and another test beside this one would meet it.
    """
    run(url, f"CREATE TABLE t {KINDS}", f"INSERT INTO t VALUES {ROWS}")
    opened = connect(MySql(url=url).conn_params("rivet:test", EAGER))
    with session(url) as planning:
        relation = describe(planning)
        chunk = planning.chunks(relation)[0]

    for _ in range(3):
        assert mysql_stream.read_whole(opened, "SELECT * FROM t", limit_bytes=None).is_binary
    assert mysql_stream.read_or_drop(opened, LARGE, limit_bytes=1000) is None
    list(mysql_stream.stream(opened, "SELECT * FROM t", target_bytes=1))
    binary = whole(relation, pages(url, relation, chunk))
    seen = counted(opened)
    assert (seen["Com_stmt_prepare"], seen["Com_stmt_close"]) == (5, 5)

    [[before]] = rows_of(opened, "SELECT @@GLOBAL.max_prepared_stmt_count")
    run(url, "SET GLOBAL max_prepared_stmt_count = 0")
    try:
        assert not mysql_stream.read_whole(opened, "SELECT * FROM t", limit_bytes=None).is_binary
        text = whole(relation, pages(url, relation, chunk))
    finally:
        run(url, f"SET GLOBAL max_prepared_stmt_count = {before}")
        opened.close()

    assert text == binary


def test_a_question_mark_outside_of_quotes_is_the_servers_to_refuse(url: str) -> None:
    """It is no parameter of ours: the server says where its syntax is wrong, and the connection works on."""
    opened = connect(MySql(url=url).conn_params("rivet:test", EAGER))

    with pytest.raises(err.ProgrammingError, match="syntax"):
        mysql_stream.read_whole(opened, "SELECT ? AS a", limit_bytes=None)
    raw = mysql_stream.read_whole(opened, "SELECT '?' AS a", limit_bytes=None)

    opened.close()
    assert len(raw.starts) == 1
