"""Connecting to SQL Server: the block, the transport gate, the log-in; on the emulator unless a real one is named."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote, urlsplit, urlunsplit

import pytest
from pydantic import ValidationError

from rivet_resources.contracts.settings import Tls
from rivet_resources.engines.sqlserver import connect as sqlserver_connect
from rivet_resources.engines.sqlserver.connect import connect
from rivet_resources.engines.sqlserver.source import SqlServer
from rivet_resources.errors import ConfigError, RivetError, SourceAuth, SourceLost, SourceMissing, SourceUnreachable
from tests.emulators.tds import server as tds
from tests.engines.sqlserver.reads import EAGER, session, source

emulated = pytest.mark.skipif(not tds.is_emulated(), reason="a real server fails at no one's demand")
FIELDS = {"host": "127.0.0.1", "user": "sa", "database": "app", "password": "x"}


@pytest.mark.parametrize("kind", ["sqlserver", "mssql"])
def test_both_names_of_the_engine_are_known(kind):
    """`type: mssql`, the older name, means the same block."""
    assert SqlServer(type=kind, **FIELDS).type == kind


def test_a_line_to_another_machine_needs_a_word_on_tls():
    """Without a `tls:` block only this machine is connected to."""
    with pytest.raises(ConfigError, match="tls"):
        SqlServer(**{**FIELDS, "host": "db.example.com"}).conn_params("x", EAGER)


TRANSPORTS = [
    (None, "Encrypt={no}"),
    (Tls(mode="disable"), "Encrypt={no}"),
    (Tls(mode="require"), "Encrypt={yes};TrustServerCertificate={yes}"),
    (Tls(mode="verify-full"), "Encrypt={yes};TrustServerCertificate={no}"),
]


@pytest.mark.parametrize(("tls", "words"), TRANSPORTS)
def test_tls_modes_become_the_drivers_words(tls, words):
    """Each `tls.mode` is written into the connection string."""
    assert words in SqlServer(**FIELDS, tls=tls).conn_params("x", EAGER).text


def test_a_check_the_driver_cannot_do_is_refused_with_a_way_out():
    """`verify-ca` has no counterpart in the driver; the message says what to do."""
    with pytest.raises(ConfigError, match="verify-full"):
        SqlServer(**FIELDS, tls=Tls(mode="verify-ca")).conn_params("x", EAGER)


def test_a_password_cannot_leave_its_place_in_the_connection_string():
    """Semicolons and braces of a password stay inside it, and no repr shows it."""
    conn_params = SqlServer(**{**FIELDS, "password": "a;b}c{Encrypt=no"}).conn_params("x", EAGER)

    assert "PWD={a;b}}c{Encrypt=no}" in conn_params.text
    assert "a;b" not in repr(conn_params)


def test_a_readable_secondary_is_asked_for_by_the_block_or_the_url():
    """`application_intent: read_only` and the driver's own word in the URL mean the same."""
    block = SqlServer(**FIELDS, application_intent="read_only").conn_params("x", EAGER)
    url = SqlServer(url="mssql://sa:x@127.0.0.1/app?ApplicationIntent=ReadOnly").conn_params("x", EAGER)

    assert all("ApplicationIntent={ReadOnly}" in conn_params.text for conn_params in (block, url))


def test_a_url_of_another_engine_is_refused_before_any_driver_sees_it():
    """A postgres URL in a sqlserver block is named as such, and not shown."""
    with pytest.raises(ConfigError, match="needs mssql://") as refused:
        SqlServer(url="postgresql://u:secret-word@h/d").conn_params("x", EAGER)

    assert "secret-word" not in str(refused.value)


def test_an_unknown_key_is_refused():
    """The block takes no key it does not know."""
    with pytest.raises(ValidationError):
        SqlServer(**FIELDS, instance="x")


@pytest.mark.usefixtures("driver")
def test_nobody_listening_is_said_at_once(sqlserver_url: str):
    """A wrong port fails on the first try, naming host and port."""
    with pytest.raises(SourceUnreachable, match=r"127\.0\.0\.1:9 "), session("mssql://sa:x@127.0.0.1:9/app"):
        pass


@pytest.mark.usefixtures("driver")
def test_a_wrong_password_is_said_without_showing_it(sqlserver_url: str):
    """The log-in's refusal names the place, never the password."""
    wrong = sqlserver_url.replace(tds.PASSWORD, "Wrong-word-1")
    with pytest.raises(SourceAuth) as refused, session(wrong):
        pass

    assert "Wrong-word-1" not in str(refused.value)


@pytest.fixture
def in_database(sqlserver_url: str) -> Callable[[str], str]:
    """What spells the URL of another database of the server."""
    return lambda name: urlunsplit(urlsplit(sqlserver_url)._replace(path=f"/{quote(name)}"))


@pytest.mark.usefixtures("driver")
def test_a_database_that_is_not_there_is_said_at_once(in_database: Callable[[str], str]):
    """The server's words are those of a database that is not up yet; it is asked which of the two it is."""
    with pytest.raises(SourceMissing, match='no database "no\'where"') as missing, session(in_database("no'where")):
        pass

    assert not missing.value.retry


@emulated
@pytest.mark.usefixtures("driver")
def test_a_database_that_does_not_take_the_login_is_said_at_once(sqlserver_url: str):
    """It is open, and the login has no user in it: nothing that passes."""
    url = f"{tds.create_database(sqlserver_url)}_closed"
    name = urlsplit(url).path.removeprefix("/")
    tds.execute(sqlserver_url, f"CREATE DATABASE [{name}]")
    with pytest.raises(SourceAuth, match=r"CREATE USER \[reader\] FOR LOGIN \[reader\]"), session(tds.as_reader(url)):
        pass


@emulated
@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(
    ("number", "text", "times"),
    [
        (4060, 'Cannot open database "app" requested by the login. The login failed.', 1),
        (4060, 'Cannot open database "app" requested by the login. The login failed.', 3),
        (18456, "Login failed for user 'sa'.", 1),  # all that the driver tells of the two errors
    ],
)
def test_a_database_that_cannot_be_opened_yet_may_pass(sqlserver_url: str, number: int, text: str, times: int):
    """After a start a server takes log-ins before its databases are recovered."""
    tds.fault(sqlserver_url, match="LOGIN sa", number=number, text=text, times=times)
    try:
        with pytest.raises(SourceLost) as lost:
            connect(source(sqlserver_url).conn_params("test", EAGER))
    finally:
        tds.forget(sqlserver_url)

    assert (type(lost.value), lost.value.extra_seconds) == (SourceLost, 10)


@emulated
@pytest.mark.usefixtures("driver")
def test_a_server_that_is_busy_is_lost_and_not_refused(sqlserver_url: str):
    """Azure's transient answers to a log-in ask to come back later, ten seconds on top."""
    text = "Database 'app' on server 'x' is not currently available. Please retry the connection later."
    tds.fault(sqlserver_url, match="LOGIN sa", number=40613, text=text)
    with pytest.raises(SourceLost) as lost, session(sqlserver_url):
        pass
    tds.forget(sqlserver_url)

    assert lost.value.extra_seconds == 10


@emulated
@pytest.mark.usefixtures("driver")
def test_every_session_is_pinned_before_it_asks_anything(fresh_sqlserver: str):
    """Date order, lock timeout and our own mark are set in the first batch."""
    tds.forget(fresh_sqlserver)
    with session(fresh_sqlserver):
        pinned = next(batch for batch in tds.seen(fresh_sqlserver) if batch.startswith("SET DATEFORMAT ymd"))

    assert all(
        word in pinned for word in ("SET XACT_ABORT OFF", "SET LOCK_TIMEOUT -1", "SET CONTEXT_INFO 0x72697665743a")
    )


@emulated
@pytest.mark.usefixtures("driver")
def test_setting_that_is_refused_late_refuses_the_session(sqlserver_url: str, monkeypatch: pytest.MonkeyPatch):
    """The fault of a later setting comes behind the others' answers; a session pinned in part is not used."""
    settings = ("SET DATEFORMAT ymd", "SELECT 1 AS n", "SELECT n FROM nowhere")
    monkeypatch.setattr(sqlserver_connect, "PINNED", settings)
    with pytest.raises(RivetError, match="pinning the session"), session(sqlserver_url):
        pass
