"""`driver: odbc`: pyodbc with Debian's FreeTDS, on the emulator; Microsoft's ODBC driver was at hand nowhere."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import pytest

from rivet_resources.contracts.settings import Tls, Tuning, pace
from rivet_resources.engines.sqlserver import driver as sqlserver_driver
from rivet_resources.engines.sqlserver import preflight
from rivet_resources.engines.sqlserver.connect import connect
from rivet_resources.engines.sqlserver.drivers import odbc
from rivet_resources.engines.sqlserver.source import SqlServer
from rivet_resources.errors import (
    ConfigError,
    ExtraMissing,
    RivetError,
    SourceAuth,
    SourceError,
    SourceTls,
    SourceUnreachable,
    StatementTimeout,
)
from rivet_resources.tls_faults import WORDS, Kind
from tests.emulators.tds import server as tds
from tests.emulators.tds.protocol import LOGINS
from tests.engines.sqlserver import reads
from tests.engines.sqlserver.reads import EAGER, session
from tests.servers import kerberos
from tests.servers import own as servers_own

emulated = pytest.mark.skipif(not tds.is_emulated(), reason="a real server fails at no one's demand")
FREETDS = reads.DRIVERS["freetds"]
HASTY = pace(Tuning(profile="fast", max_retries=0, statement_timeout_s=1), None)


@pytest.fixture(autouse=True)
def _by_freetds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read by FreeTDS; skip where it is not installed."""
    if lacking := tds.missing_odbc():
        pytest.skip(lacking)
    monkeypatch.setattr(reads, "chosen", "freetds")


def test_doctor_tells_the_driver_and_its_version(sqlserver_url: str):
    """Which library answers, and which version of it, stands beside the server's version."""
    with session(sqlserver_url) as opened:
        (told,) = [finding for finding in opened.examine() if finding.name == "driver"]

    assert "ok" == told.status
    assert told.text.startswith("libtdsodbc.so ")
    assert "pyodbc 5." in told.text


def test_driver_that_is_not_installed_is_named_with_those_that_are(sqlserver_url: str):
    """Microsoft's name without Microsoft's package."""
    absent = "ODBC Driver 3 for SQL Server"
    with pytest.raises(SourceError, match=r"this machine has: .*FreeTDS") as refused:
        connect(reads.source(sqlserver_url, odbc_driver=absent).conn_params("test", EAGER))

    assert tds.PASSWORD not in str(refused.value)


def test_freetds_is_taken_only_where_it_was_asked_for(sqlserver_url: str, monkeypatch: pytest.MonkeyPatch):
    """Without `odbc_driver` Microsoft's newest is looked for; what to install is said."""
    monkeypatch.setattr(odbc, "installed", lambda: ("FreeTDS", "PostgreSQL ANSI"))
    with pytest.raises(ExtraMissing, match=r"has: FreeTDS, PostgreSQL ANSI.*`odbc_driver: FreeTDS`"):
        reads.source(sqlserver_url, odbc_driver=None).conn_params("test", EAGER)


# --- signing in ----------------------------------------------------------------------------------


MARKS = [*((driver, login) for driver in reads.DRIVERS for login in ("braced", "split")), ("mssql-python", "odd")]


def signed_in_as(url: str, login: str) -> str:
    """Spell the URL of another log-in."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{login}:{quote(LOGINS[login], safe='')}@{parts.hostname}:{parts.port}"))


@emulated
@pytest.mark.parametrize(("driver", "login"), MARKS)
def test_password_with_the_marks_of_a_connection_string_signs_in(sqlserver_url: str, driver: str, login: str):
    """Braces, semicolons, quotes and something that looks like a key."""
    block = SqlServer(url=signed_in_as(sqlserver_url, login), **reads.DRIVERS[driver])
    connection = connect(block.conn_params("test", EAGER))
    rows = sqlserver_driver.rows_of(sqlserver_driver.execute(connection, "SELECT 42 AS n", timeout=5))
    sqlserver_driver.close(connection)

    assert [(42,)] == rows


def test_password_that_versions_of_freetds_read_differently_is_refused(sqlserver_url: str):
    """Half of it would be sent, or a word too many."""
    with pytest.raises(ConfigError, match="The password of the source") as refused:
        reads.source(signed_in_as(sqlserver_url, "odd")).conn_params("test", EAGER)

    assert "PWD" not in str(refused.value)


@emulated
def test_kerberos_without_a_ticket_says_how_to_get_one(
    sqlserver_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """No password is asked for, and none is sent."""
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path / 'none'}")
    parts = urlsplit(sqlserver_url)
    url = urlunsplit(parts._replace(netloc=f"{parts.hostname}:{parts.port}"))
    with pytest.raises(SourceAuth, match="kinit"):
        connect(reads.source(url, auth="kerberos").conn_params("test", EAGER))


@emulated
def test_kerberos_ticket_signs_in_as_its_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A real KDC gives the ticket, FreeTDS hands it over, and the emulator takes it by its keytab."""
    if lacking := kerberos.missing():
        pytest.skip(lacking)
    with kerberos.realm(tmp_path / "realm") as realm, tds.emulate(environment=realm.environment) as served:
        parts = urlsplit(served)
        realm.add_service(f"MSSQLSvc/{parts.hostname}:{parts.port}")
        realm.sign_in()
        for name, value in realm.environment.items():
            monkeypatch.setenv(name, value)
        block = SqlServer(host=parts.hostname, port=parts.port, database="app", auth="kerberos", **FREETDS)
        connection = connect(block.conn_params("test", EAGER))
        rows = sqlserver_driver.rows_of(sqlserver_driver.execute(connection, "SELECT SUSER_SNAME() AS n", timeout=5))
        sqlserver_driver.close(connection)

    assert [(kerberos.USER,)] == rows


# --- ends of waits -------------------------------------------------------------------------------


@emulated
def test_connection_goes_on_after_a_statement_that_ran_into_its_limit(sqlserver_url: str):
    """The client's timeout ends the statement at the server too."""
    with session(sqlserver_url) as opened:
        opened.conn_params = reads.source(sqlserver_url).conn_params("test", HASTY)
        tds.fault(sqlserver_url, match="SELECT 42", delay_seconds=20)
        with pytest.raises(StatementTimeout):
            opened.ask("SELECT 42 AS n", doing="asking")

        assert [(43,)] == opened.ask("SELECT 43 AS n", doing="asking again")


@emulated
def test_session_that_cannot_be_pinned_in_time_asks_for_a_smaller_page(fresh_sqlserver: str):
    """Nothing was begun, so no instant is to be kept; it was an AttributeError once."""
    tds.execute(fresh_sqlserver, "CREATE TABLE t (id int NOT NULL PRIMARY KEY)", "INSERT INTO t (id) VALUES (1)")
    with session(fresh_sqlserver) as opened:
        relation = opened.describe(table="t", query=None, params={}, rules=reads.rules())
        (chunk,) = opened.chunks(relation)
    tds.fault(fresh_sqlserver, match="SET DATEFORMAT", delay_seconds=20)

    found = [page.table.num_rows for page in reads.pages(fresh_sqlserver, relation, chunk, speed=HASTY)]

    assert (True, [1]) == (chunk.one_instant, found)


@emulated
def test_line_that_another_thread_hangs_up_ends_the_wait(sqlserver_url: str):
    """What the clock of `deadlines.py` does, when a server keeps neither its limit nor its word."""
    connection = connect(reads.source(sqlserver_url).conn_params("test", EAGER))
    tds.fault(sqlserver_url, match="SELECT 42", delay_seconds=30)
    assert 1 == len(connection.lines)
    timer = threading.Timer(0.2, sqlserver_driver.hang_up, [connection.lines])
    timer.start()
    with pytest.raises(sqlserver_driver.DriverRefused) as lost:
        sqlserver_driver.execute(connection, "SELECT 42 AS n", timeout=60)
    sqlserver_driver.close(connection)

    assert sqlserver_driver.LOST == lost.value.number


# --- certificates --------------------------------------------------------------------------------

# Certificate of the server → mode → kind of the refusal; what is not listed connects.
REFUSED: dict[str, dict[str, Kind]] = {
    "good": {},
    "other-name": {"verify-full": "host"},
    "expired": {"verify-ca": "expired", "verify-full": "expired"},
    "other-authority": {"verify-ca": "authority", "verify-full": "authority"},
    "plain": {"require": "plain", "verify-ca": "plain", "verify-full": "plain"},
}


@pytest.fixture(scope="module")
def certificates(server_folder: Path) -> Path:
    """The folder of all authorities and certificates."""
    folder = server_folder / "certificates-tds"
    servers_own.make_certificates(folder)
    return folder


@pytest.fixture(scope="module", params=REFUSED)
def guarded(request: pytest.FixtureRequest, certificates: Path) -> Iterator[tuple[str, str]]:
    """The kind of a certificate, and an emulator that has it."""
    kind: str = request.param
    files = [] if kind == "plain" else [str(certificates / f"{kind}.{ending}") for ending in ("pem", "key")]
    with tds.emulate(*files) as url:
        yield kind, url


@pytest.mark.parametrize("mode", ["require", "verify-ca", "verify-full"])
def test_freetds_connects_only_as_protected_as_asked(guarded: tuple[str, str], certificates: Path, mode: Any):
    """Chain, dates and name are checked as the mode says, and by no less."""
    kind, url = guarded
    tls = Tls(mode=mode, ca_file=certificates / "ours.pem")
    expected = REFUSED[kind].get(mode)
    told: RivetError | None = None
    try:
        connection = connect(reads.source(url, tls=tls).conn_params("test", EAGER))
    except RivetError as error:
        told = error
    else:
        line = sqlserver_driver.rows_of(sqlserver_driver.execute(connection, preflight.LINE, timeout=5))
        sqlserver_driver.close(connection)
        assert [("TRUE",)] == line

    assert tds.PASSWORD not in str(told)
    assert (told is None) == (expected is None), told
    if expected is not None:
        assert isinstance(told, SourceTls)
        assert WORDS[expected][0] in str(told)


def test_missing_file_of_authorities_is_named(sqlserver_url: str, tmp_path: Path):
    """Before anything is asked of the server."""
    with pytest.raises(ConfigError, match=r"none\.pem is no file"):
        reads.source(sqlserver_url, tls=Tls(mode="verify-ca", ca_file=tmp_path / "none.pem")).conn_params("x", EAGER)


def test_nobody_listening_is_unreachable(sqlserver_url: str):
    """And not a matter of the password."""
    with pytest.raises(SourceUnreachable), session("mssql://sa:x@127.0.0.1:9/app"):
        pass


# --- cells ---------------------------------------------------------------------------------------


def test_half_of_a_utf16_pair_is_refused_without_its_bytes():
    """A server stores what is no letter; pyodbc cannot read it, and says so."""

    class Torn:
        description = (("v", str, None, 10, 10, 0, True),)

        def fetchmany(self, rows: int) -> list[Any]:
            raise UnicodeDecodeError("utf-16-le", b"\x00\xd8secret", 0, 2, "illegal encoding")

    with pytest.raises(odbc.DriverFailed, match="UTF-16") as refused:
        odbc.batch(Torn(), 10)

    assert "secret" not in str(refused.value)
