"""Secrets in stores: `secrets:` of a configuration, read when something connects.

AWS's store is moto over HTTP, the keyring and files are real ones; Google's and Vault's are MOCKS that answer as their
documentation says (Secret Manager API v1, Vault KV version 2): neither server can run here.
"""

from __future__ import annotations

import base64
import json
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import keyring
import pytest
from keyring.backend import KeyringBackend

from rivet_assets.config.load import load_text
from rivet_assets.notify.notify import _Unset, _variable
from rivet_resources import secret_stores, secrets
from rivet_resources.contracts.secret_reference import SecretReference
from rivet_resources.engines.shared import credentials
from rivet_resources.errors import ConfigError, SecretStoreUnreachable, SecretUnreadable
from rivet_resources.secret_file import MOST_BYTES
from rivet_resources.secret_stores import read_secret
from rivet_resources.secrets import resolve_secret, resolve_store_key
from tests.servers.postgres import ObjectStore, free_port

SECRET = "hunter2"


@pytest.fixture(autouse=True)
def nothing_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test declares ends with it."""
    monkeypatch.setenv(secrets.REFERENCES, "{}")
    monkeypatch.setattr(secrets, "_kept", secrets._Kept())
    for name in ("VAULT_ADDR", "VAULT_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def reference(**keys: Any) -> SecretReference:
    """Describe a secret."""
    return SecretReference.model_validate(keys)


@contextmanager
def answering(answer: Callable[[BaseHTTPRequestHandler], tuple[int, Any]]) -> Iterator[str]:
    """Serve JSON over HTTP on a free port; the address of the server."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            status, body = answer(self)
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Report nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        serving.join()


def of_vault(request: BaseHTTPRequestHandler) -> tuple[int, Any]:
    """Answer as Vault does: one secret, for one token; `away` is sealed."""
    if request.path == "/v1/secret/data/away":
        return 503, {"errors": ["Vault is sealed"]}
    if request.headers.get("X-Vault-Token") != "a token":
        return 403, {"errors": ["permission denied"]}
    if request.path != "/v1/secret/data/shop":
        return 404, {"errors": []}
    return 200, {"data": {"data": {"password": SECRET, "port": 5432}, "metadata": {"version": 2}}}


# --- each store ----------------------------------------------------------------------------------


def test_aws_keeps_texts_and_objects(s3_server: ObjectStore) -> None:
    """A text as it is, of an object the field; what is not there is refused by its name."""
    client = boto3.client("secretsmanager", endpoint_url=s3_server.endpoint, region_name="us-east-1")
    client.create_secret(Name="rivet/text", SecretString=SECRET)
    client.create_secret(Name="rivet/object", SecretString=json.dumps({"url": SECRET, "port": 5432}))
    client.create_secret(Name="rivet/bytes", SecretBinary=b"\xff")
    place = {"endpoint": s3_server.endpoint, "region": "us-east-1"}

    assert SECRET == read_secret("A", reference(aws="rivet/text", **place))
    assert SECRET == read_secret("A", reference(aws="rivet/object", field="url", **place))
    assert "5432" == read_secret("A", reference(aws="rivet/object", field="port", **place))
    for keys, told in (
        ({"aws": "rivet/none"}, "ResourceNotFoundException"),
        ({"aws": "rivet/object", "field": "URL"}, "no such field; there are port, url"),
        ({"aws": "rivet/text", "field": "url"}, "no JSON object"),
        ({"aws": "rivet/bytes"}, "bytes, not text"),
    ):
        with pytest.raises(SecretUnreadable, match=told) as caught:
            read_secret("SHOP_URL", reference(**keys, **place))
        assert "SHOP_URL (aws rivet/" in str(caught.value)
        assert SECRET not in str(caught.value)


def test_vault_keeps_fields(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """For whoever has the token, in the environment or in the file of `vault login`; sealed is "for a while"."""
    monkeypatch.setenv("HOME", str(tmp_path))
    with answering(of_vault) as url:
        found = reference(vault="shop", field="password", endpoint=url)
        with pytest.raises(SecretUnreadable, match="Forbidden"):
            read_secret("A", found)
        (tmp_path / ".vault-token").write_text("a token\n")
        assert SECRET == read_secret("A", found)
        monkeypatch.setenv("VAULT_TOKEN", "a token")
        monkeypatch.setenv("VAULT_ADDR", url)
        assert "5432" == read_secret("A", reference(vault="shop", field="port"))
        with pytest.raises(SecretUnreadable, match="InvalidPath"):
            read_secret("A", reference(vault="none", field="password"))
        with pytest.raises(SecretUnreadable, match="no such field; there are password, port"):
            read_secret("A", reference(vault="shop", field="Password"))
        with pytest.raises(SecretStoreUnreachable, match="VaultDown"):
            read_secret("A", reference(vault="away", field="password"))
    monkeypatch.delenv("VAULT_ADDR")
    with pytest.raises(SecretUnreadable, match="neither `endpoint` nor VAULT_ADDR"):
        read_secret("A", reference(vault="shop", field="port"))


def test_vault_lets_a_pod_sign_in_by_its_role(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the token of its service account, which is read each time; no other token is sent."""
    account = tmp_path / "token"
    monkeypatch.setattr(secret_stores, "SERVICE_ACCOUNT", account)
    monkeypatch.setenv("VAULT_TOKEN", "somebody else's")

    def of_pods(request: BaseHTTPRequestHandler) -> tuple[int, Any]:
        if request.command == "GET":
            return of_vault(request)
        given = json.loads(request.rfile.read(int(request.headers["Content-Length"])))
        if request.path != "/v1/auth/eu/login" or given != {"role": "rivet", "jwt": "the pod"}:
            return 403, {"errors": ["permission denied"]}
        return 200, {"auth": {"client_token": "a token", "lease_duration": 600}}

    with answering(of_pods) as url:
        found = reference(vault="shop", field="password", role="rivet", sign_in_mount="eu", endpoint=url)
        with pytest.raises(SecretUnreadable, match="pod's service account, and there is no"):
            read_secret("A", found)
        account.write_text("the pod\n")
        assert SECRET == read_secret("A", found)
        account.write_text("another pod")
        with pytest.raises(SecretUnreadable, match="Forbidden") as caught:
            read_secret("A", found)
        assert "another pod" not in str(caught.value)
    with pytest.raises(ValueError, match="sign_in_mount, which belongs to role"):
        reference(vault="shop", field="password", sign_in_mount="eu")
    with pytest.raises(ValueError, match="role, which belongs to vault"):
        reference(aws="shop", role="rivet")


def test_google_keeps_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read over REST by Google's own client; what it refuses is named by its class."""
    import google.auth
    from google.auth.credentials import AnonymousCredentials

    monkeypatch.setattr(google.auth, "default", lambda *_, **__: (AnonymousCredentials(), "p"))

    def of_google(request: BaseHTTPRequestHandler) -> tuple[int, Any]:
        if "/v1/projects/p/secrets/shop/versions/latest:access" in request.path:
            return 200, {"name": "x", "payload": {"data": base64.b64encode(SECRET.encode()).decode()}}
        status = 503 if "away" in request.path else 403
        return status, {"error": {"code": status, "message": "said by a server", "status": "X"}}

    with answering(of_google) as url:
        place = {"endpoint": url}
        assert SECRET == read_secret("A", reference(gcp="projects/p/secrets/shop/versions/latest", **place))
        with pytest.raises(SecretUnreadable, match="Forbidden"):
            read_secret("A", reference(gcp="projects/p/secrets/other/versions/1", **place))
        with pytest.raises(SecretStoreUnreachable, match="ServiceUnavailable"):
            read_secret("A", reference(gcp="projects/p/secrets/away/versions/1", **place))


class MemoryKeyring(KeyringBackend):
    """A keyring of one entry."""

    priority = 1  # type: ignore[assignment]

    def get_password(self, service: str, username: str) -> str | None:
        return SECRET if (service, username) == ("rivet", "shop") else None

    def set_password(self, service: str, username: str, password: str) -> None:
        raise NotImplementedError

    def delete_password(self, service: str, username: str) -> None:
        raise NotImplementedError


def test_keyring_keeps_entries() -> None:
    """By service and user name, of whatever keyring the system has; a machine without one says so."""
    before = keyring.get_keyring()
    keyring.set_keyring(MemoryKeyring())
    try:
        assert SECRET == read_secret("A", reference(keyring="rivet", username="shop"))
        with pytest.raises(SecretUnreadable, match="no such entry"):
            read_secret("A", reference(keyring="rivet", username="none"))
    finally:
        keyring.set_keyring(before)


def test_files_hold_secrets(tmp_path: Path) -> None:
    """Without the line's end, spaces kept; a field of a file that is an object."""
    (tmp_path / "plain").write_text(f" {SECRET} \n")
    (tmp_path / "object").write_text(json.dumps({"url": SECRET}))

    assert f" {SECRET} " == read_secret("A", reference(file=str(tmp_path / "plain")))
    assert SECRET == read_secret("A", reference(file=str(tmp_path / "object"), field="url"))
    with pytest.raises(SecretUnreadable, match="No such file"):
        read_secret("A", reference(file=str(tmp_path / "none")))


NO_SECRETS = [(b"\xff\xfe\x00", "it is not UTF-8 text"), (b"x" * (MOST_BYTES + 1), "more than 1 MB")]


@pytest.mark.parametrize(("content", "why"), NO_SECRETS)
def test_file_that_holds_no_secret_is_refused_and_nothing_of_it_shown(tmp_path: Path, content: bytes, why: str) -> None:
    """A device that never ends is read no farther than a secret may reach, by `secrets:` and by `url_file` alike."""
    file = tmp_path / "file"
    file.write_bytes(content)

    with pytest.raises(SecretUnreadable, match=why) as told:
        read_secret("A", reference(file=str(file)))
    with pytest.raises(ConfigError, match=why) as also:
        resolve_secret(None, env=None, file=file, key="url")

    assert [None, None] == [told.value.__cause__, also.value.__cause__]
    assert ("xx" in str(told.value), "0xff" in str(also.value)) == (False, False)


def test_device_that_never_ends_is_no_secret() -> None:
    """It would fill the memory."""
    with pytest.raises(SecretUnreadable, match="more than 1 MB"):
        read_secret("A", reference(file="/dev/zero"))


@pytest.mark.parametrize("store", ["aws", "vault", "gcp"])
def test_store_that_is_away_is_asked_again_later(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing listens: the fault is one that a retry may heal, exit code 2."""
    monkeypatch.setenv("VAULT_TOKEN", "a token")
    place = {"endpoint": f"http://127.0.0.1:{free_port()}"}
    found = {
        "aws": reference(aws="rivet/text", region="us-east-1", **place),
        "vault": reference(vault="shop", field="password", **place),
        "gcp": reference(gcp="projects/p/secrets/s/versions/1", **place),
    }[store]
    if store == "gcp":
        import google.auth
        from google.auth.credentials import AnonymousCredentials

        monkeypatch.setattr(google.auth, "default", lambda *_, **__: (AnonymousCredentials(), "p"))

    with pytest.raises(SecretStoreUnreachable, match="does not answer") as caught:
        read_secret("SHOP_URL", found)
    assert (True, 2) == (caught.value.retry, caught.value.exit_code)


# --- names of variables --------------------------------------------------------------------------


def test_declared_name_wins_over_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a forgotten `export` does not outlive an exchanged password."""
    (tmp_path / "secret").write_text(SECRET)
    monkeypatch.setenv("SHOP_PASSWORD", "an old one")
    secrets.declare({"SHOP_PASSWORD": reference(file=str(tmp_path / "secret"))})

    assert SECRET == secrets.resolve_secret(None, env="SHOP_PASSWORD", key="password")
    assert "an old one" == os.environ["SHOP_PASSWORD"]
    assert SECRET not in os.environ[secrets.REFERENCES]


def test_exchanged_secret_is_read_after_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then the store is not asked again, however many connections open."""
    at = [1000.0]
    monkeypatch.setattr(secrets.time, "monotonic", lambda: at[0])
    (tmp_path / "secret").write_text("first")
    secrets.declare({"A": reference(file=str(tmp_path / "secret"))})
    found = [secrets.read_variable("A")]
    (tmp_path / "secret").write_text("second")
    for seconds in (59.0, 1.0):
        at[0] += seconds
        found.append(secrets.read_variable("A"))

    assert ["first", "first", "second"] == found


def test_two_meanings_of_a_name_are_refused() -> None:
    """Two configurations of one process must not read each other's secret."""
    secrets.declare({"A": reference(file="/run/a")})
    secrets.declare({"A": reference(file="/run/a"), "B": reference(vault="b", field="x")})

    with pytest.raises(ConfigError, match=r"file /run/b here and file /run/a in another configuration"):
        secrets.declare({"A": reference(file="/run/b")})


def test_places_travel_and_secrets_do_not(tmp_path: Path) -> None:
    """A child reads what it needs by itself; its environment holds the place only."""
    (tmp_path / "secret").write_text(SECRET)
    secrets.declare({"A": reference(file=str(tmp_path / "secret"))})
    code = (
        "import os; from rivet_resources.secrets import read_variable; "
        f"assert '{SECRET}' not in str(os.environ); print(read_variable('A'))"
    )

    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])

    assert SECRET == child.stdout.strip(), child.stderr


def test_doctor_and_messages_know_declared_names(tmp_path: Path) -> None:
    """Credentials that come from a store are set when it gives them; else the store's own sentence is told."""
    (tmp_path / "secret").write_text(SECRET)
    secrets.declare({"A": reference(file=str(tmp_path / "secret")), "B": reference(file=str(tmp_path / "none"))})

    found = [credentials._variable(name, key="url_env") for name in ("A", "B")]

    assert ["ok", "fail"] == [each.status for each in found]
    assert "Secret B (file" in found[1].text
    assert SECRET == _variable("A")
    with pytest.raises(_Unset, match="Secret B"):
        _variable("B")


# --- configurations ------------------------------------------------------------------------------

BLOCK = """
source: {{type: sqlite, path_env: SHOP}}
spark: inline
secrets: {{SHOP: {secret}}}
exports: [{{name: orders, table: orders, format: parquet, destination: {{type: local, path: lake}}}}]
"""


def test_export_reads_what_its_configuration_declares(tmp_path: Path) -> None:
    """`rivet run` with no variable set; a place where nothing lies stops it before anything is read."""
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute("CREATE TABLE orders (id integer PRIMARY KEY)")
    (tmp_path / "where").write_text(str(tmp_path / "shop.db"))
    environment = {name: text for name, text in os.environ.items() if name not in ("SHOP", secrets.REFERENCES)}
    environment |= {"PYTHONPATH": str(Path(__file__).parents[2])}
    codes, said = [], []
    for place in ("where", "none"):
        (tmp_path / "rivet.yaml").write_text(BLOCK.format(secret=f"{{file: {tmp_path / place}}}"))
        words = [sys.executable, "-m", "rivet_assets.cli.main", "run", "-c", "rivet.yaml"]
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
        codes.append(done.returncode)
        said.append(done.stdout + done.stderr)

    assert [0, 1] == codes, said
    assert "Secret SHOP (file" in said[1]
    assert "No such file" in said[1]


@pytest.mark.parametrize(
    ("secret", "told"),
    [
        ("{}", "names no store; write exactly one of aws, gcp, vault, keyring, file"),
        ("{aws: a, file: /b}", "names aws, file; write exactly one"),
        ("{vault: a}", "has no field"),
        ("{keyring: a}", "has no username"),
        ("{file: /a, region: b}", "sets region, which belongs to aws, beside file"),
        ("{gcp: shop}", "secrets.SHOP.gcp"),
        ("{vault: a, field: b, endpoint: 'http://vault.example.com'}", "plain http to another machine"),
        ("{vualt: a}", "vualt"),
    ],
)
def test_wrong_places_are_refused_by_name(secret: str, told: str, tmp_path: Path) -> None:
    """With the file, the line, the key, and what is allowed."""
    with pytest.raises(ConfigError) as caught:
        load_text(BLOCK.format(secret=secret), file=tmp_path / "rivet.yaml")

    assert told in str(caught.value)
    assert "rivet.yaml:4: secrets.SHOP" in str(caught.value)


def test_names_are_names_of_variables(tmp_path: Path) -> None:
    """Else no key could name them."""
    text = BLOCK.format(secret="{file: /a}").replace("{SHOP:", "{7-up:")
    with pytest.raises(ConfigError, match="'7-up' cannot name a variable"):
        load_text(text, file=tmp_path / "rivet.yaml")


@pytest.mark.parametrize("text", ["", " ", "\n"])
def test_key_of_a_store_that_is_empty_is_named(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store would say that the signature is wrong; one with a line end behind it is the key all the same."""
    monkeypatch.setenv("LAKE_SECRET", f"{SECRET}\n")
    found = resolve_store_key("LAKE_SECRET", key="secret_key")
    monkeypatch.setenv("LAKE_SECRET", text)

    with pytest.raises(ConfigError, match=r"LAKE_SECRET \(from `secret_key_env`\) is empty"):
        resolve_store_key("LAKE_SECRET", key="secret_key")

    assert (SECRET, None) == (found, resolve_store_key(None, key="secret_key"))
