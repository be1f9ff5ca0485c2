"""Connecting to MySQL and MariaDB: the block, the transport gate, pinned settings, faults without secrets, literals."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pydantic import ValidationError

from rivet_assets.modes.registry import MODES
from rivet_resources.contracts.settings import Tuning, pace
from rivet_resources.contracts.types import Column
from rivet_resources.engines.mysql import sql as mysql_sql
from rivet_resources.engines.mysql.connect import connect, rows_of
from rivet_resources.engines.mysql.source import MySql
from rivet_resources.errors import (
    ConfigError,
    RivetError,
    SourceAuth,
    SourceError,
    SourceMissing,
    SourceTls,
    SourceUnreachable,
)
from tests.engines.mysql.reads import EAGER, SERVERS, run, session, table
from tests.servers import mysql as servers_mysql
from tests.servers.postgres import free_port

PACE = pace(None, None)
HERE = {"host": "localhost", "user": "u", "database": "d"}


@pytest.fixture(params=SERVERS)
def url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty database, of each server in turn."""
    return str(request.getfixturevalue(request.param))


def test_both_words_mean_the_same_source() -> None:
    """`type: mysql` and `type: mariadb` take the same keys."""
    assert ["mysql", "mariadb"] == [MySql(type=word, **HERE).type for word in ("mysql", "mariadb")]  # type: ignore[arg-type]


# Block, words of the refusal.
BAD_BLOCKS: list[tuple[dict[str, Any], str]] = [
    ({}, "lacks host, user, database"),
    ({"url": "mysql://h/d", "url_env": "U"}, "sets url, url_env; keep exactly one"),
    ({**HERE, "password": "p", "password_env": "P"}, "keep password_env"),
    ({**HERE, "hots": "x"}, "Extra inputs"),
]


@pytest.mark.parametrize(("block", "words"), BAD_BLOCKS)
def test_block_that_cannot_connect_is_refused(block: dict[str, Any], words: str) -> None:
    """One way to connect, complete, without unknown keys."""
    with pytest.raises(ValidationError, match=words):
        MySql(**block)


# Block, whether it may go without TLS.
HOSTS: list[tuple[dict[str, Any], bool]] = [
    (HERE, True),
    ({**HERE, "host": "127.0.0.5"}, True),
    ({**HERE, "host": "/run/mysqld/mysqld.sock"}, True),
    ({"url": "mysql://u@localhost/d?unix_socket=/tmp/s.sock"}, True),
    ({"url": "mysql://u@/d?unix_socket=/tmp/s.sock"}, True),
    ({**HERE, "host": "db.example.com"}, False),
    ({"url": "mariadb://u@10.0.0.1/d"}, False),
]


@pytest.mark.parametrize(("block", "is_allowed"), HOSTS)
def test_other_machines_need_a_word_on_tls(block: dict[str, Any], is_allowed: bool) -> None:
    """Without a `tls:` block only this machine is connected to; the refusal comes before any socket."""
    source = MySql(**block)

    if is_allowed:
        assert source.conn_params("rivet:x", PACE).parameters()["ssl_disabled"]
    else:
        with pytest.raises(ConfigError, match=r"tls: \{mode: verify-full\}"):
            source.conn_params("rivet:x", PACE)


@pytest.mark.parametrize(
    "url", ["postgresql://u:s3cret@h/d", "mysql://u:s3cret@h:port:1/d", "mysql://u:s3cret@h/d?nope=1"]
)
def test_url_that_cannot_be_read_is_not_shown(url: str, tmp_path: Path) -> None:
    """The refusal of a URL holds nothing of it but its scheme."""
    file = tmp_path / "url"
    file.write_text(url + "\n")

    with pytest.raises(ConfigError) as failure:
        MySql(url_file=file).conn_params("rivet:x", PACE)

    assert "s3cret" not in str(failure.value)


def test_line_does_not_show_its_secrets() -> None:
    """Neither the password nor the URL is in what a log may print."""
    conn_params = MySql(url="mysql://u:s3cret@localhost/d").conn_params("rivet:x", PACE)

    assert "s3cret" not in repr(conn_params)


def test_unreadable_authority_is_named() -> None:
    """A `ca_file` that is no certificate is a fault of the configuration."""
    source = MySql(**HERE, tls={"ca_file": "/no/such/ca.pem"})  # type: ignore[arg-type]

    with pytest.raises(ConfigError, match=r"`tls.ca_file` /no/such/ca.pem cannot be read"):
        source.conn_params("rivet:x", PACE).parameters()


@pytest.mark.parametrize(
    ("table", "expected"), [("t", ("d", "t")), ("shop.t", ("shop", "t")), ('`a.b`."c"', ("a.b", "c"))]
)
def test_lineage_fills_in_the_sources_database(table: str, expected: tuple[str, str]) -> None:
    """A table without a database is in the one the source connects to."""
    assert [expected] * 2 == [
        source.lineage_name(table) for source in (MySql(**HERE), MySql(url="mysql://u:p@h/d?unix_socket=/s"))
    ]


def test_lineage_needs_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the URL is not at hand, tables are named under the engine."""
    monkeypatch.delenv("NO_SUCH_URL", raising=False)

    assert ("mariadb", "t") == MySql(type="mariadb", url_env="NO_SUCH_URL").lineage_name("t")


@pytest.mark.parametrize("mode", ["full", "incremental", "chunked", "time_window"])
def test_every_batch_mode_is_possible(mode: str) -> None:
    """Nothing is refused at load time."""
    assert ["", ""] == [MySql(**HERE).refuses(MODES[mode].answers, relation) for relation in ("table", "query")]  # type: ignore[arg-type]


# --- a real server -------------------------------------------------------------------------------


def connect_error(**block: Any) -> RivetError:
    """Open a session that fails; give the fault."""
    with pytest.raises(RivetError) as failure, MySql(**block).session(application="rivet:x", pace=EAGER):
        pass
    return failure.value


def test_wrong_password_is_an_auth_fault_without_it(url: str) -> None:
    """The message says what to check and shows no password, in whatever spelling."""
    parts = urlsplit(url)

    error = connect_error(url=f"mysql://{parts.username}:s3c%20ret@{parts.hostname}:{parts.port}{parts.path}")

    assert (SourceAuth, False, 1) == (type(error), "s3c" in str(error), error.exit_code)
    assert "Check `user`, the password reference" in str(error)


def test_dead_address_may_come_alive() -> None:
    """Nobody listening may be a server that starts again; the message says what to check."""
    error = connect_error(**{**HERE, "host": "127.0.0.1"}, port=free_port())

    assert (SourceUnreachable, True, 2) == (type(error), error.retry, error.exit_code)


def test_unknown_host_may_become_known() -> None:
    """A name that does not resolve may be the name server's trouble."""
    error = connect_error(host="no-such-host.invalid", user="u", database="d", tls={"mode": "disable"})

    assert SourceUnreachable is type(error)


def test_unknown_database_is_named(url: str) -> None:
    """A database that is not there is the user's to fix."""
    error = connect_error(url=url.rpartition("/")[0] + "/no_such_database")

    assert (SourceMissing, False) == (type(error), error.retry)
    assert "no_such_database" in str(error)


def test_session_is_pinned_and_read_back(url: str) -> None:
    """Whatever the server's settings are, cells do not depend on them; limits are the pace's."""
    conn_params = MySql(url=url).conn_params(
        "rivet:orders", pace(Tuning(statement_timeout_s=7, lock_timeout_s=3), None)
    )
    opened = connect(conn_params)
    wanted = ("time_zone", "sql_mode", "lock_wait_timeout", "innodb_lock_wait_timeout", "character_set_results",
              "max_execution_time", "max_statement_time", "transaction_read_only", "tx_read_only")  # fmt: skip
    shown = f"SHOW VARIABLES WHERE Variable_name IN {wanted}"

    found = dict(rows_of(opened, shown))

    opened.close()
    assert {"ON"} == {found.pop(name) for name in ("transaction_read_only", "tx_read_only") if name in found}
    limit = found.pop("max_execution_time", None) or found.pop("max_statement_time", None)
    assert limit in ("7000", "7.000000")
    expected = {
        "time_zone": "+00:00", "sql_mode": "", "lock_wait_timeout": "3", "innodb_lock_wait_timeout": "3",
        "character_set_results": "utf8mb4",
    }  # fmt: skip
    assert expected == found


def test_limit_of_the_server_cuts_no_rows_off(url: str) -> None:
    """It cuts the answer of SHOW as well, by which settings are found that are to be pinned."""
    run(url, "CREATE TABLE t (id INT)", "INSERT INTO t VALUES (1), (2), (3)", "SET GLOBAL sql_select_limit = 2")
    try:
        found, opened = table(url), connect(MySql(url=url).conn_params("rivet:x", EAGER))
        zone = rows_of(opened, "SELECT @@time_zone, @@sql_select_limit")
        opened.close()
    finally:
        run(url, "SET GLOBAL sql_select_limit = DEFAULT")

    assert [1, 2, 3] == found.column("id").to_pylist()
    assert [("+00:00", "18446744073709551615")] == zone


def test_session_cannot_write(url: str) -> None:
    """A source is only ever read."""
    run(url, "CREATE TABLE t (id INT)")

    with session(url) as planning, pytest.raises(SourceError, match="READ ONLY transaction"):
        planning.ask("INSERT INTO t VALUES (1)", doing="trying to write")


def test_tls_is_required_and_encrypts(url: str) -> None:
    """`require` takes any certificate, and the line is encrypted."""
    opened = connect(MySql(url=url, tls={"mode": "require"}).conn_params("rivet:x", EAGER))  # type: ignore[arg-type]

    (row,) = rows_of(opened, "SHOW STATUS LIKE 'Ssl_cipher'")

    opened.close()
    assert row[1]


def test_certificate_of_nobody_is_refused(url: str) -> None:
    """Without its authority a server's own certificate is not believed."""
    error = connect_error(url=url, tls={"mode": "verify-full"})

    assert SourceTls is type(error)
    assert "certificate verify failed" in str(error)


@pytest.mark.parametrize(("mode", "host", "is_accepted"), [
    ("verify-full", "127.0.0.1", True), ("verify-full", "127.0.0.2", False), ("verify-ca", "127.0.0.2", True),
])  # fmt: skip
def test_certificate_is_checked_against_authority_and_name(
    fresh_mariadb: str, mode: str, host: str, is_accepted: bool
) -> None:
    """`verify-full` checks the host name too, `verify-ca` the authority only."""
    parts = urlsplit(fresh_mariadb)
    if host != parts.hostname:
        pytest.importorskip("socket")
    block = {
        "url": f"mysql://rivet:rivet@localhost:{parts.port}{parts.path}"
        if is_accepted and mode == "verify-ca"
        else fresh_mariadb.replace("127.0.0.1", host)
    }
    tls: Any = {"mode": mode, "ca_file": servers_mysql.mariadb_authority()}

    if is_accepted:
        with MySql(**block, tls=tls).session(application="rivet:x", pace=EAGER) as planning:
            assert planning.now()
    else:
        assert type(connect_error(**block, tls=tls)) in (SourceTls, SourceUnreachable)


# --- names and literals --------------------------------------------------------------------------


def column(base: str) -> Column:
    """Make a column of a base type."""
    import pyarrow as pa

    return Column("c", base, pa.string(), "`c`", facts=(("base", base),))


# Base type, canonical text, SQL type to compare in, and the value's text as the server shows it.
LITERALS = [
    ("bigint unsigned", "18446744073709551615", "18446744073709551615"),
    ("bigint", "-9223372036854775808", "-9223372036854775808"),
    ("decimal", "-123456789012345678901234567890.125", "-123456789012345678901234567890.125"),
    ("date", "0018-04-01", "0018-04-01"),
    ("datetime", "9999-12-31T23:59:59.999999", "9999-12-31 23:59:59.999999"),
    ("datetime", "2020-01-01", "2020-01-01 00:00:00"),
    ("timestamp", "2016-11-04T11:51:30.123456Z", "2016-11-04 11:51:30.123456"),
    ("time", "23:59:59.999999", "23:59:59.999999"),
    ("double", "1.7976931348623157e+308", "1.7976931348623157e308"),
    ("varchar", "it's \\ \" % _ `x` 🎉 \n\t;--", "it's \\ \" % _ `x` 🎉 \n\t;--"),
    ("varchar", "", ""),
    ("varchar", "\\", "\\"),
    ("varbinary", "\\x00ff5c27", None),
    ("varbinary", "\\x", None),
    ("bool", "true", "true"),
]


@pytest.mark.parametrize(("base", "text", "expected"), LITERALS)
def test_literal_is_read_back_as_it_was(url: str, base: str, text: str, expected: str | None) -> None:
    """The server understands each literal as the very value it was made from."""
    written = mysql_sql.literal(text, column(base))

    with session(url) as planning:
        (row,) = planning.ask(f"SELECT {written}, HEX({written})", doing="reading a literal back")

    assert expected == row[0] if expected is not None else bytes.fromhex(text[2:]).hex().upper() == row[1]


BAD_LITERALS = [
    ("int", "1 OR 1=1"), ("int", ""), ("decimal", "1e5"), ("date", "0000-00-00"), ("date", "2000-00-01"),
    ("datetime", "2000-01-00T00:00:00"), ("datetime", "now()"), ("time", "x"), ("varbinary", "ff"), ("uuid", "x"),
    ("double", "nan"), ("tinyint(1)", "2"),
]  # fmt: skip


@pytest.mark.parametrize(("base", "text"), BAD_LITERALS)
def test_text_that_is_no_value_is_no_literal(base: str, text: str) -> None:
    """A bound of the wrong form stops here and is not shown."""
    with pytest.raises(SourceError, match="A bound of column c is not a value of its type") as failure:
        mysql_sql.literal(text, column(base))

    assert not text or f"'{text}'" not in str(failure.value)


QUERIES = [
    ("SELECT :a, ':a', \":a\", `:a` -- :a\n, :b # :a", "SELECT 'x''', ':a', \":a\", `:a` -- :a\n, 'y\\\\' # :a"),
    ("SELECT 'it''s :a' /* :a */, '\\' :a', @v := 1, :a", "SELECT 'it''s :a' /* :a */, '\\' :a', @v := 1, 'x'''"),
    ("SELECT 1--:a", "SELECT 1--'x'''"),
    ("SELECT '10:30', TIME'10:30:00'", "SELECT '10:30', TIME'10:30:00'"),
]


@pytest.mark.parametrize(("query", "expected"), QUERIES)
def test_parameters_are_replaced_only_where_they_are_code(query: str, expected: str) -> None:
    """Quotes and comments keep their colons; values are quoted, so they alter no SQL."""
    assert expected == mysql_sql.render_parameters(query, {"a": "x'", "b": "y\\"})


def test_parameter_without_a_value_is_named() -> None:
    """The refusal lists what is known."""
    with pytest.raises(ConfigError, match="uses :since, which has no value; known parameters: a, b"):
        mysql_sql.render_parameters("SELECT :since", {"b": "1", "a": "2"})


@pytest.mark.parametrize("query", ["", "  -- nothing\n", ";", "; ; # x", "# x"])
def test_query_that_cannot_be_wrapped_is_refused(query: str) -> None:
    """Nothing but comments and semicolons is a fault of the configuration."""
    with pytest.raises(ConfigError):
        mysql_sql.strip_query(query)
