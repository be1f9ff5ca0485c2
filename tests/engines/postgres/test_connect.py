"""Connecting to PostgreSQL: the block, the transport gate, faults without secrets, names and literals."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psycopg
import pytest
from pydantic import ValidationError

from rivet_resources.contracts.settings import Tuning, pace
from rivet_resources.contracts.types import Column
from rivet_resources.engines.postgres.errors import clean, fault
from rivet_resources.engines.postgres.source import Postgres
from rivet_resources.engines.postgres.sql import literal, render_parameters
from rivet_resources.engines.shared.names import split_name
from rivet_resources.errors import ConfigError, RivetError, SourceAuth, SourceError, SourceMissing, SourceUnreachable
from tests.engines.postgres.reads import EAGER
from tests.servers.postgres import free_port

PACE = pace(None, None)
HERE = {"host": "localhost", "user": "u", "database": "d"}

# Block, words of the refusal.
BAD_BLOCKS: list[tuple[dict[str, Any], str]] = [
    ({}, "lacks host, user, database"),
    ({"host": "h", "user": "u"}, "lacks database"),
    ({"url": "postgresql://h/d", "url_env": "U"}, "sets url, url_env; keep exactly one"),
    ({"url_env": "U", "host": "h"}, "sets url_env, host; keep exactly one"),
    ({**HERE, "password": "p", "password_env": "P"}, "keep password_env"),
    ({**HERE, "port": 70000}, "less than or equal to 65535"),
    ({**HERE, "hots": "x"}, "Extra inputs"),
]


@pytest.mark.parametrize(("block", "words"), BAD_BLOCKS)
def test_block_that_cannot_connect_is_refused(block: dict[str, Any], words: str) -> None:
    """One way to connect, complete, without unknown keys."""
    with pytest.raises(ValidationError, match=words):
        Postgres(**block)


# Block, whether it may go without TLS.
HOSTS: list[tuple[dict[str, Any], bool]] = [
    (HERE, True),
    ({**HERE, "host": "127.0.0.5"}, True),
    ({**HERE, "host": "::1"}, True),
    ({**HERE, "host": "/var/run/postgresql"}, True),
    ({"url": "postgresql:///d?host=/tmp"}, True),
    ({**HERE, "host": "db.example.com"}, False),
    ({**HERE, "host": "10.0.0.1"}, False),
    ({"url": "postgresql://u@localhost,db.example.com/d"}, False),
    ({"url": "postgresql://u@localhost/d?hostaddr=10.0.0.1"}, False),
    ({"url": "postgresql://u@db.example.com/d?sslmode=require"}, False),
    ({"url": "service=prod"}, False),
]


@pytest.mark.parametrize(("block", "is_allowed"), HOSTS)
def test_other_machines_need_a_word_on_tls(block: dict[str, Any], is_allowed: bool) -> None:
    """Without a `tls:` block only this machine is connected to; the refusal comes before any socket."""
    source = Postgres(**block)

    if is_allowed:
        assert "sslmode" not in source.conn_params("rivet:x", PACE).parameters
    else:
        with pytest.raises(ConfigError, match=r"tls: \{mode: verify-full\}"):
            source.conn_params("rivet:x", PACE)


@pytest.mark.parametrize(
    ("tls", "expected"),
    [
        ({"mode": "disable"}, {"sslmode": "disable"}),
        ({"mode": "require"}, {"sslmode": "require"}),
        ({"ca_file": "/ca.pem"}, {"sslmode": "verify-full", "sslrootcert": "/ca.pem"}),
        ({"mode": "verify-ca", "ca_file": "/ca.pem"}, {"sslmode": "verify-ca", "sslrootcert": "/ca.pem"}),
    ],
)
def test_tls_block_decides_the_line(tls: dict[str, Any], expected: dict[str, str]) -> None:
    """The block's mode goes to the driver, whatever the URL says."""
    source = Postgres(url="postgresql://u@db.example.com/d?sslmode=allow", tls=tls)

    parameters = source.conn_params("rivet:x", PACE).parameters

    assert expected == {name: parameters[name] for name in expected}


def test_session_settings_travel_in_the_connection_string() -> None:
    """Limits, read-only and pinned texts are options; the name says which export."""
    source = Postgres(**HERE, tuning=Tuning(statement_timeout_s=7, lock_timeout_s=3))

    told = source.conn_params("rivet:orders", pace(source.tuning, None)).conninfo()

    words = ("statement_timeout=7000", "lock_timeout=3000", "default_transaction_read_only=on", "TimeZone=UTC")
    assert [True] * 5 == [word in told for word in (*words, "application_name=rivet:orders")]


def test_environment_local_is_fast() -> None:
    """`environment: local` chooses the fast profile, unless one is written."""
    made = [
        Postgres(**HERE, environment="local", tuning=tuning)
        for tuning in (None, {"profile": "safe"}, {"batch_size": 5})
    ]

    assert ["fast", "safe", "fast"] == [source.tuning.profile for source in made if source.tuning]


def test_unset_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing secret says where it was looked for."""
    monkeypatch.delenv("NO_SUCH_URL", raising=False)

    with pytest.raises(ConfigError, match="NO_SUCH_URL"):
        Postgres(url_env="NO_SUCH_URL").conn_params("rivet:x", PACE)


@pytest.mark.parametrize(
    "url", ["mysql://u:s3cret@h/d", "postgresql://u:s3cret@h:port:1/d", "postgresql://u:s3cret@localhost/d?nope=1"]
)
def test_url_that_cannot_be_read_is_not_shown(url: str, tmp_path: Path) -> None:
    """The refusal of a URL holds nothing of it but its scheme."""
    file = tmp_path / "url"
    file.write_text(url + "\n")

    with pytest.raises(ConfigError) as failure:
        Postgres(url_file=file).conn_params("rivet:x", PACE)

    assert "s3cret" not in str(failure.value)


def connect_error(**block: Any) -> RivetError:
    """Open a session that fails; give the fault."""
    with pytest.raises(RivetError) as failure, Postgres(**block).session(application="rivet:x", pace=EAGER):
        pass
    return failure.value


def test_wrong_password_is_an_auth_fault_without_it(real_postgres_url: str) -> None:
    """The message says what to check and shows no password, in whatever spelling."""
    known = psycopg.conninfo.conninfo_to_dict(real_postgres_url)

    error = connect_error(url=f"postgresql://{known['user']}:s3c%20ret@{known['host']}:{known['port']}/postgres")

    assert (SourceAuth, False) == (type(error), "s3c" in str(error))


def test_dead_address_may_come_alive() -> None:
    """Nobody listening may be a server that starts again; the message says what to check."""
    error = connect_error(**{**HERE, "host": "127.0.0.1"}, port=free_port())

    assert (SourceUnreachable, True, 2) == (type(error), error.retry, error.exit_code)


def test_missing_database_is_permanent(postgres_url: str) -> None:
    """A database that does not exist is named."""
    error = connect_error(url=postgres_url.replace("/postgres?", "/nowhere?"))

    assert (SourceMissing, True) == (type(error), "nowhere" in str(error))


@pytest.mark.parametrize(
    ("kind", "expected", "retry"),
    [("NOLOGIN", "RIVET_SOURCE_AUTH", False), ("LOGIN CONNECTION LIMIT 0", "RIVET_SOURCE_LOST", True)],
)
def test_role_that_may_not_come_in_and_one_that_may_later(
    fresh_database: str, kind: str, expected: str, retry: bool
) -> None:
    """A role without LOGIN stays out; one whose connections are all taken gets in when one of them ends."""
    role = f"guest_{secrets.token_hex(4)}"
    with psycopg.connect(fresh_database, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {role} {kind}".encode())
        try:
            known = psycopg.conninfo.conninfo_to_dict(fresh_database)
            where = urlencode({name: known[name] for name in ("host", "port") if known.get(name)})
            error = connect_error(url=f"postgresql://{role}@/{known['dbname']}?{where}")
        finally:
            admin.execute(f"DROP ROLE {role}".encode())

    assert (expected, retry) == (error.code, error.retry), str(error)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ('ERROR:  invalid input syntax for type integer: "4711"\n\nQuery was: SELECT 1. SQLSTATE: 22P02',
         'invalid input syntax for type integer: …'),
        ("FATAL:  password authentication failed\x1b[31m for user", "password authentication failed [31m for user"),
        ("connection to postgresql://u:p@h/d password=geheim failed", "connection to postgresql://… password=… failed"),
        ("ERROR:  x\nDETAIL:  Key (id)=(5)", "x"),
        ("a hunter2 b", "a … b"),
    ],
)  # fmt: skip
def test_driver_messages_are_cleaned(said: str, expected: str) -> None:
    """No row value, no SQL, no secret, no control byte comes through."""
    assert expected == clean(said, secrets=["hunter2"])


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("ERROR:  canceling statement due to statement timeout", "RIVET_SOURCE_STATEMENT_TIMEOUT"),
        ("ERROR:  canceling statement due to lock timeout", "RIVET_SOURCE_LOST"),
        ("ERROR:  canceling statement due to conflict with recovery", "RIVET_SOURCE_LOST"),
        ("FATAL:  terminating connection due to administrator command", "RIVET_SOURCE_LOST"),
        ("server closed the connection unexpectedly", "RIVET_SOURCE_LOST"),
        ("FATAL:  sorry, too many clients already", "RIVET_SOURCE_LOST"),
        ('FATAL:  too many connections for database "shop"', "RIVET_SOURCE_LOST"),
        ("WARNING:  terminating connection because of crash of another server process", "RIVET_SOURCE_LOST"),
        ("FATAL:  terminating connection due to idle-session timeout", "RIVET_SOURCE_LOST"),
        ('FATAL:  pg_hba.conf rejects connection for host "10.0.0.1", user "u"', "RIVET_SOURCE_AUTH"),
        ("ERROR:  canceling statement due to user request", "RIVET_SOURCE_REFUSED"),
        ("ERROR:  permission denied for table t", "RIVET_SOURCE_PERMISSION"),
        ("ERROR:  something new", "RIVET_SOURCE_REFUSED"),
    ],
)
def test_text_without_sqlstate_is_classified(text: str, code: str) -> None:
    """Mid-stream errors come without a code; the text decides, and unknown is permanent."""
    assert code == fault(OSError(text), doing="reading").code


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("orders", (None, "orders")),
        ("shop.orders", ("shop", "orders")),
        ('public."Orders"', ("public", "Orders")),
        ('"a.b"."say ""x"""', ("a.b", 'say "x"')),
    ],
)
def test_table_names_are_split_exactly(table: str, expected: tuple[str | None, str]) -> None:
    """Plain and quoted segments keep their case, dots and quotes."""
    assert expected == split_name(table)


@pytest.mark.parametrize("table", ["", "a.b.c", "a.", ".a", 'a"b', "a b", 'a."b'])
def test_text_that_is_no_table_name_is_refused(table: str) -> None:
    """Anything but one or two segments is not a name."""
    with pytest.raises(ConfigError):
        split_name(table)


@pytest.mark.parametrize(
    ("base", "text"),
    [
        ("int8", "1; DROP TABLE t"),
        ("int8", "1.5"),
        ("numeric", "NaN"),
        ("numeric", "1e5"),
        ("timestamptz", "infinity"),
        ("timestamptz", "2020-01-01T00:00:00.000000"),
        ("timestamp", "yesterday"),
        ("date", "2020-1-1"),
        ("uuid", "4711-x"),
        ("text", "a\0b"),
        ("float8", "inf"),
    ],
)
def test_text_that_is_no_value_of_the_type_is_no_literal(base: str, text: str) -> None:
    """Only canonical texts are rendered; the refusal does not show them."""
    column = Column("c", base, None, '"c"', facts=(("base", base), ("type", base)))

    with pytest.raises(SourceError) as failure:
        literal(text, column)

    assert text not in str(failure.value)


def test_quotes_in_a_text_literal_stay_inside() -> None:
    """A quote is doubled, a backslash is a backslash."""
    column = Column("c", "text", None, '"c"', facts=(("base", "text"),))

    assert "'it''s \\'::text" == literal("it's \\", column)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT :a", "SELECT 'v'"),
        ("SELECT x::a, ':a', \":a\", E'\\':a'", None),
        ("SELECT $$ :a $$, $t$ :a $t$, $1", None),
        ("/* :a /* :a */ :a */ SELECT 1 -- :a", None),
        ("SELECT x[1:a]", None),
        ("SELECT f(a => :a)", "SELECT f(a => 'v')"),
        ("WHERE t>:a AND u<:a", "WHERE t>'v' AND u<'v'"),
    ],
)
def test_only_bare_parameters_are_replaced(query: str, expected: str | None) -> None:
    """A colon in quotes, comments, casts and slices is no parameter."""
    assert (expected or query) == render_parameters(query, {"a": "v"})
