"""Lines protected by TLS, against real servers with certificates of several kinds: who connects, who is refused how."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Literal

import psycopg
import pymysql
import pytest
from azure.core.pipeline.transport import HttpTransport

from rivet_resources.contracts.evidence import Finding
from rivet_resources.destinations.azure import Azure
from rivet_resources.destinations.gcs import Gcs
from rivet_resources.destinations.s3 import S3
from rivet_resources.engines.mysql.errors import connect_fault as mysql_fault
from rivet_resources.engines.mysql.source import MySql
from rivet_resources.engines.postgres.errors import connect_fault as postgres_fault
from rivet_resources.engines.postgres.source import Postgres
from rivet_resources.engines.sqlserver.driver import DriverRefused
from rivet_resources.engines.sqlserver.errors import connect_fault
from rivet_resources.errors import ConfigError, DestinationTls, RivetError, SourceAuth, SourceTls
from rivet_resources.tls_faults import TEXTS, WORDS, tls_fault
from tests.engines.postgres.reads import EAGER
from tests.servers import own as servers_own
from tests.servers.own import PASSWORD
from tests.servers.postgres import AZURITE_KEY, free_port

Mode = Literal["disable", "require", "verify-ca", "verify-full"]
MODES: tuple[Mode, ...] = ("disable", "require", "verify-ca", "verify-full")
CERTIFICATES = (*servers_own.CERTIFICATES, "plain")

# Certificate of the server → mode → kind of the refusal; what is not listed connects.
REFUSED: dict[str, dict[str, str]] = {
    "good": {},
    "other-name": {"verify-full": "host"},
    "expired": {"verify-ca": "expired", "verify-full": "expired"},
    "other-authority": {"verify-ca": "authority", "verify-full": "authority"},
    "plain": {"require": "plain", "verify-ca": "plain", "verify-full": "plain"},
}

Connects = Callable[..., tuple[Finding, ...]]


@dataclass(frozen=True)
class Guarded:
    """A server, the kind of its certificate, and how to connect and look at it."""

    certificate: str
    examine: Connects


@pytest.fixture(scope="module")
def certificates(server_folder: Path) -> Path:
    """The folder of all authorities and certificates."""
    folder = server_folder / "certificates"
    servers_own.make_certificates(folder)
    return folder


@pytest.fixture(scope="module")
def cluster(server_folder: Path) -> Path:
    """The data of a PostgreSQL 15 that nobody runs yet."""
    if not servers_own.is_there():
        pytest.skip("no PostgreSQL 15: apt-get install postgresql-15")
    return servers_own.initialise(server_folder / "guarded")


@pytest.fixture(scope="module", params=CERTIFICATES)
def postgres(request: pytest.FixtureRequest, cluster: Path, certificates: Path) -> Iterator[Guarded]:
    """A PostgreSQL with each of the certificates, and one without."""
    settings = {}
    if request.param != "plain":
        for setting, ending in (("ssl_cert_file", "pem"), ("ssl_key_file", "key")):
            held = cluster.parent / f"server.{ending}"
            settings[setting] = str(servers_own.hand_over(certificates / f"{request.param}.{ending}", held))
        settings["ssl"] = "on"
    with servers_own.postgres(cluster, **settings) as own:

        def examine(tls: dict[str, Any] | None, host: str = "127.0.0.1") -> tuple[Finding, ...]:
            source = Postgres(url=own.url(host=host), tls=tls)  # type: ignore[arg-type]
            with source.session(application="rivet:x", pace=EAGER, snapshot=False) as session:
                return session.examine()

        yield Guarded(request.param, examine)


@pytest.fixture(scope="module", params=CERTIFICATES)
def mariadb(
    request: pytest.FixtureRequest, mariadb_url: str, server_folder: Path, certificates: Path
) -> Iterator[Guarded]:
    """A MariaDB with each of the certificates, and one without."""
    folder = server_folder / f"mariadb-{request.param}"
    folder.mkdir()
    settings = ["--skip-ssl"]
    if request.param != "plain":
        held = {ending: certificates / f"{request.param}.{ending}" for ending in ("pem", "key")}
        settings = [f"--ssl-cert={held['pem']}", f"--ssl-key={held['key']}"]
    with servers_own.mariadb(folder, *settings) as port:

        def examine(tls: dict[str, Any] | None, host: str = "127.0.0.1") -> tuple[Finding, ...]:
            source = MySql(url=f"mysql://rivet:{PASSWORD}@{host}:{port}/shop", tls=tls)  # type: ignore[arg-type]
            with source.session(application="rivet:x", pace=EAGER) as session:
                return session.examine()

        yield Guarded(request.param, examine)


def far_address() -> str:
    """Return an address of this machine that counts as another one; skip where there is none."""
    address = servers_own.own_address()
    if address is None:
        pytest.skip("this machine has no address but 127.0.0.1")
    return address


def judged(guarded: Guarded, mode: Mode, certificates: Path, **more: Any) -> Finding | RivetError:
    """Connect, and give what is said of the line, or the refusal."""
    try:
        findings = guarded.examine({"mode": mode, "ca_file": certificates / "ours.pem"}, **more)
    except RivetError as error:
        return error
    return next(finding for finding in findings if finding.name == "tls")


@pytest.mark.parametrize("mode", MODES)
def test_postgres_connects_only_as_protected_as_asked(postgres: Guarded, certificates: Path, mode: Mode) -> None:
    """Each mode checks what its name says; a refusal says what is wrong, and is no matter of passwords."""
    check(judged(postgres, mode, certificates), expected=REFUSED[postgres.certificate].get(mode), mode=mode)


@pytest.mark.parametrize("mode", MODES)
def test_mariadb_connects_only_as_protected_as_asked(mariadb: Guarded, certificates: Path, mode: Mode) -> None:
    """The same modes, the same refusals, by another driver."""
    check(judged(mariadb, mode, certificates), expected=REFUSED[mariadb.certificate].get(mode), mode=mode)


def check(found: Finding | RivetError, *, expected: str | None, mode: Mode) -> None:
    """Compare what came of a connection with the table."""
    if expected is None:
        assert isinstance(found, Finding), found
        assert ("plain" in found.text, "ok") == (mode == "disable", found.status)
    else:
        assert (SourceTls, "RIVET_SOURCE_TLS", False) == (type(found), getattr(found, "code", ""), found.retry)  # type: ignore[union-attr]
        why, fix = WORDS[expected]  # type: ignore[index]
        assert why in str(found)
        assert str(found).endswith(fix)
        assert PASSWORD not in str(found)


# Mode → what is said of it when the host is another machine.
FAR: dict[Mode, tuple[str, str]] = {
    "disable": ("warn", "not protected"),
    "require": ("warn", "nobody checks who answers"),
    "verify-ca": ("ok", "certificate checked"),
}


@pytest.mark.parametrize("mode", FAR)
@pytest.mark.parametrize("postgres", ["good"], indirect=True)
def test_weaker_line_to_another_machine_is_a_warning(postgres: Guarded, certificates: Path, mode: Mode) -> None:
    """`disable` and `require` are choices, and doctor says what they cost."""
    found = judged(postgres, mode, certificates, host=far_address())

    assert isinstance(found, Finding), found
    status, words = FAR[mode]
    assert (status, True) == (found.status, words in found.text)
    assert (status == "warn") == bool(found.fix)


@pytest.mark.parametrize("mariadb", ["good"], indirect=True)
def test_weaker_line_to_another_mariadb_is_a_warning(mariadb: Guarded, certificates: Path) -> None:
    """The same words for the other driver."""
    found = {mode: judged(mariadb, mode, certificates, host=far_address()) for mode in FAR}

    assert {mode: status for mode, (status, _) in FAR.items()} == {
        mode: finding.status for mode, finding in found.items() if isinstance(finding, Finding)
    }


@pytest.mark.parametrize("postgres", ["good"], indirect=True)
def test_certificate_must_name_the_host_that_was_asked_for(postgres: Guarded, certificates: Path) -> None:
    """The same server by its other address is another host to `verify-full`."""
    found = judged(postgres, "verify-full", certificates, host=far_address())

    assert SourceTls is type(found)
    assert WORDS["host"][0] in str(found)


def test_mysql_that_takes_protected_lines_only_says_so() -> None:
    """Its own code and words. MariaDB 10.11 says only that access is denied, so that stays a matter of the login."""
    said = "Connections using insecure transport are prohibited while --require_secure_transport=ON."

    error = mysql_fault(pymysql.OperationalError(3159, said), where="db:3306")

    assert (SourceTls, True) == (type(error), WORDS["demanded"][0] in str(error))


@pytest.mark.parametrize("words", [", no encryption", ", SSL encryption"])
def test_login_that_only_a_protected_line_may_have_is_hinted_at(words: str) -> None:
    """PostgreSQL says only that no line of pg_hba.conf fits; which one was meant, nobody tells."""
    said = f'FATAL:  no pg_hba.conf entry for host "10.0.0.1", user "u", database "d"{words}'

    error = postgres_fault(psycopg.OperationalError(said), where="db:5432")

    assert (SourceAuth, "no encryption" in words) == (type(error), "add `tls: {mode: verify-full}`" in str(error))


@pytest.mark.parametrize("postgres", ["good"], indirect=True)
def test_missing_file_of_authorities_is_named(postgres: Guarded) -> None:
    """It is looked for when the line is opened."""
    with pytest.raises(SourceTls, match=r"Fix `tls\.ca_file`"):
        postgres.examine({"mode": "verify-full", "ca_file": "/no/such/ca.pem"})


@pytest.mark.parametrize("kind", [Postgres, MySql])
def test_no_socket_is_opened_to_another_machine_without_a_word_on_tls(kind: Any) -> None:
    """A server listens at this machine's own address, and nobody comes."""
    host = far_address()
    with socket.create_server((host, 0)) as server:
        server.settimeout(0.3)
        source = kind(host=host, port=server.getsockname()[1], user="u", database="d", password=PASSWORD)

        with (
            pytest.raises(ConfigError, match=r"tls: \{mode: verify-full\}"),
            source.session(application="x", pace=EAGER),
        ):
            pass

        with pytest.raises(TimeoutError):
            server.accept()


# --- texts ---------------------------------------------------------------------------------------

# What Microsoft's driver says on Linux, from its documentation and from its own strings; no server was asked.
MICROSOFT = [
    ("SSL Provider: [error:0A000086:SSL routines::certificate verify failed:self-signed certificate]", "authority"),
    ("SSL Provider: [error:0A000086:SSL routines::certificate verify failed:unable to get local issuer certificate]",
     "authority"),
    ("SSL Provider: [error:0A000086:SSL routines::certificate verify failed:subject name does not match host name]",
     "host"),
    ("SSL Provider: [error:0A000086:SSL routines::certificate verify failed:certificate has expired]", "expired"),
    ("SSL Provider: The target principal name is incorrect.", "host"),
    ("SSL Provider: [error:0A000102:SSL routines::unsupported protocol]", "handshake"),
    ("Encryption not supported on the server.", "plain"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), MICROSOFT)
def test_microsofts_texts_are_sorted_like_the_others(text: str, expected: str) -> None:
    """The driver wraps OpenSSL's own words."""
    error = connect_fault(DriverRefused(f"[Microsoft][ODBC Driver 18 for SQL Server]{text}"), where="db:1433")

    assert (SourceTls, True) == (type(error), WORDS[expected][0] in str(error))  # type: ignore[index]


@pytest.mark.parametrize(
    "text",
    ["SSL SYSCALL error: EOF detected", "[SSL: UNEXPECTED_EOF_WHILE_READING] x", "connection refused", "no password"],
)
def test_line_that_ended_is_no_fault_of_its_protection(text: str) -> None:
    """A new one may last, so it must not look permanent."""
    assert tls_fault(text) is None


def test_every_kind_has_its_words_and_a_text() -> None:
    """The two tables fit."""
    assert set(WORDS) == {kind for _, kind in TEXTS}


# --- object stores -------------------------------------------------------------------------------


class Answer(BaseHTTPRequestHandler):
    """Says yes to everything; nobody gets so far."""

    def do_GET(self) -> None:
        """Answer yes."""
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet."""


@contextmanager
def endpoint(certificates: Path, kind: str) -> Iterator[str]:
    """Serve https with one of the certificates; its URL."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / f"{kind}.pem", certificates / f"{kind}.key")
    server = HTTPServer(("127.0.0.1", free_port()), Answer)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda request, client_address: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("kind", ["expired", "other-authority", "other-name"])
def test_s3_endpoint_with_a_bad_certificate_says_so(
    certificates: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a matter of credentials nor of the network."""
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificates / "ours.pem"))
    monkeypatch.setenv("KEY", "AKIAEXAMPLE")
    monkeypatch.setenv("SECRET", "geheim-geheim")
    with endpoint(certificates, kind) as url, pytest.raises(DestinationTls) as refused:
        S3(bucket="lake", endpoint=url, access_key_env="KEY", secret_key_env="SECRET").root("orders").check()

    assert WORDS[REFUSED[kind]["verify-full"]][0] in str(refused.value)  # type: ignore[index]
    assert "geheim" not in str(refused.value)


@pytest.mark.parametrize("kind", ["expired", "other-authority", "other-name"])
def test_gcs_endpoint_with_a_bad_certificate_says_so(
    certificates: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client does not try it again and again either."""
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificates / "ours.pem"))
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    with endpoint(certificates, kind) as url, pytest.raises(DestinationTls) as refused:
        Gcs(bucket="lake", endpoint=url, allow_anonymous=True).root("orders").check()

    assert WORDS[REFUSED[kind]["verify-full"]][0] in str(refused.value)  # type: ignore[index]


@pytest.mark.parametrize("kind", ["expired", "other-authority", "other-name"])
def test_azure_endpoint_with_a_bad_certificate_says_so(
    certificates: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client, which would wait and try three times more, does not: a refused certificate stays refused."""
    waited: list[float] = []
    monkeypatch.setattr(HttpTransport, "sleep", lambda self, seconds: waited.append(seconds))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificates / "ours.pem"))
    monkeypatch.setenv("AZURE_SECRET", AZURITE_KEY)
    with endpoint(certificates, kind) as url, pytest.raises(DestinationTls) as refused:
        Azure(account="shop", container="lake", endpoint=url, account_key_env="AZURE_SECRET").root("orders").check()

    assert WORDS[REFUSED[kind]["verify-full"]][0] in str(refused.value)  # type: ignore[index]
    assert AZURITE_KEY not in str(refused.value)
    assert [] == waited
