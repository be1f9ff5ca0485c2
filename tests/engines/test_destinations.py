"""What every destination promises, on a folder, an S3 server, emulators of GCS and Azure: one suite, unchanged."""

from __future__ import annotations

import base64
import errno
import hashlib
import io
import json
import os
import pickle
import re
import threading
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from rivet_resources.contracts.parts import Part
from rivet_resources.destinations import azure_small_parts, s3_client, s3_small_parts
from rivet_resources.destinations.azure import Azure
from rivet_resources.destinations.azure_client import source_of
from rivet_resources.destinations.azure_client import translate_errors as translate_azure
from rivet_resources.destinations.gcs import Gcs
from rivet_resources.destinations.local import Local, LocalRoot, translate
from rivet_resources.destinations.s3 import S3
from rivet_resources.destinations.stdout import Stdout
from rivet_resources.errors import (
    BucketMissing,
    DestinationAuth,
    DestinationError,
    DestinationPermission,
    DestinationUnreachable,
    DiskFull,
    PartCorrupt,
    RivetError,
    WindowTaken,
)
from tests import room
from tests.asked import requests_noted
from tests.fence import fenced, taking
from tests.servers.postgres import AZURITE_ACCOUNT, AZURITE_KEY, ObjectStore

RUN, OTHER_RUN = "orders_20260131T120000.000_aaaaaa", "orders_20260131T120000.000_bbbbbb"
NAME = "dt=2026-01-31/orders_20260131_120000_000_aaaaaa_chunk0.parquet"
NOWHERE = "http://127.0.0.1:9"  # the discard port: nobody listens


@pytest.fixture(scope="session")
def fenced_s3(s3_server: ObjectStore) -> Iterator[str]:
    """The endpoint of a proxy that makes moto's conditional PUT one step."""
    with fenced(s3_server.endpoint) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def fenced_gcs(gcs_server: ObjectStore) -> Iterator[str]:
    """The endpoint of a proxy that enforces the generation matches which the emulator ignores."""
    with fenced(gcs_server.endpoint) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def taking_azure(azure_server: ObjectStore) -> Iterator[ObjectStore]:
    """Azurite behind a proxy that writes blobs out of others, as Azure does."""
    with taking(azure_server.endpoint, account=AZURITE_ACCOUNT, key=AZURITE_KEY) as endpoint:
        yield replace(azure_server, endpoint=endpoint)


# Azurite takes no blob by its address, so small parts are sent to it twice; large ones wait as blocks.
@pytest.fixture(params=["local", "s3", "gcs", "azure", "azure, by address", "azure, in blocks"])
def destination(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An empty place of each kind, and of each way to bring parts there."""
    prefix = uuid.uuid4().hex
    if request.param == "azure, by address":
        return azure_place(request.getfixturevalue("taking_azure"), prefix=prefix)
    if request.param == "azure, in blocks":
        monkeypatch.setattr(azure_small_parts, "MOST_BYTES", -1)
        return azure_place(request.getfixturevalue("azure_server"), prefix=prefix)
    if request.param == "local":
        return Local(path=str(tmp_path / "lake"))
    if request.param == "s3":
        return S3(bucket="lake", prefix=prefix, endpoint=request.getfixturevalue("fenced_s3"))
    if request.param == "azure":
        return azure_place(request.getfixturevalue("azure_server"), prefix=prefix)
    return Gcs(bucket="lake", prefix=prefix, endpoint=request.getfixturevalue("fenced_gcs"), allow_anonymous=True)


def azure_place(server: ObjectStore, **keys: Any) -> Azure:
    """Describe a place in Azurite."""
    settings = {"account": AZURITE_ACCOUNT, "container": server.bucket, "endpoint": server.endpoint}
    return Azure(**{**settings, "account_key_env": "AZURE_KEY", **keys})


@pytest.fixture
def root(destination: Any) -> Any:
    """The folder of one export in it."""
    return destination.root("orders")


def staged(root: Any, folder: Path, content: bytes = b"rows", *, run_id: str = RUN, path: str = NAME) -> Part:
    """Write a file and stage it."""
    file = folder / f"{uuid.uuid4().hex}.parquet"
    file.write_bytes(content)
    md5 = base64.b64encode(hashlib.md5(content).digest()).decode()
    return Part(path, 1, len(content), "xxh3:0", md5, root.stage(file, run_id=run_id, path=path, md5=md5))


# --- staging and publishing ----------------------------------------------------------------------


def test_staged_part_is_invisible_until_published(root: Any, tmp_path: Path) -> None:
    """A reader sees nothing of a staged part, and all of a published one."""
    part = staged(root, tmp_path)
    before = root.list(), root.read(NAME)

    root.publish(part)

    assert before == ({}, None)
    assert {NAME: 4} == root.list()
    assert b"rows" == root.open(NAME).read()


def test_staging_takes_the_local_file_away(root: Any, tmp_path: Path) -> None:
    """What is staged no longer fills the scratch disk."""
    staged(root, tmp_path)

    assert [] == list(tmp_path.glob("*.parquet"))


def test_publishing_twice_changes_nothing(root: Any, tmp_path: Path) -> None:
    """A repeated publish finds its part in place, and leaves nothing staged."""
    part = staged(root, tmp_path)
    root.publish(part)

    root.publish(part)

    assert {NAME: 4} == root.list()
    assert 0 == root.sweep(keep=[])


def test_publishing_a_part_that_was_swept_fails(root: Any, tmp_path: Path) -> None:
    """A part that somebody removed is an error, not an empty window."""
    part = staged(root, tmp_path)
    root.discard([part])

    with pytest.raises((DestinationError, PartCorrupt), match=r"[Rr]un again"):
        root.publish(part)


def test_discarded_part_is_gone_and_discarding_again_is_fine(root: Any, tmp_path: Path) -> None:
    """Discard leaves nothing, and may be repeated."""
    part = staged(root, tmp_path)

    root.discard([part])
    root.discard([part])

    assert not root.staged_exists(part)
    assert 0 == root.sweep(keep=[])


def test_staged_part_is_found_again_staged_or_published(root: Any, tmp_path: Path) -> None:
    """A later run may use what an earlier one staged, even if that one died after giving it its name."""
    part = staged(root, tmp_path)
    waiting = root.staged_exists(part)
    root.publish(part)

    assert waiting
    assert root.staged_exists(part)


def test_two_attempts_of_one_part_do_not_meet(root: Any, tmp_path: Path) -> None:
    """Two attempts stage the same final name; the one that is published wins, the other can be discarded."""
    first, second = staged(root, tmp_path, b"first"), staged(root, tmp_path, b"second")

    root.publish(second)
    root.discard([first])

    assert b"second" == root.open(NAME).read()


def test_part_of_many_pieces_arrives_whole(root: Any, tmp_path: Path) -> None:
    """A part larger than one request is put together again, and can be read in ranges."""
    content = os.urandom(1 << 20) * 18
    root.publish(staged(root, tmp_path, content))

    with root.open(NAME) as stream:
        stream.seek(-5, io.SEEK_END)
        tail = stream.read()
        stream.seek(0)
        whole = stream.read()

    assert content[-5:] == tail
    assert content == whole


def test_parquet_is_read_through_open(root: Any, tmp_path: Path) -> None:
    """pyarrow reads a published part where it lies."""
    table = pa.table({"id": list(range(1000))})
    sink = io.BytesIO()
    pq.write_table(table, sink)
    root.publish(staged(root, tmp_path, sink.getvalue()))

    assert table == pq.read_table(root.open(NAME))


@pytest.mark.parametrize("destination", ["s3", "gcs", "azure", "azure, in blocks"], indirect=True)
def test_upload_that_differs_from_what_was_measured_is_refused(root: Any, tmp_path: Path) -> None:
    """A file that changed after its MD5 was taken is not staged."""
    file = tmp_path / "part.parquet"
    file.write_bytes(b"changed")
    md5 = base64.b64encode(hashlib.md5(b"measured").digest()).decode()

    with pytest.raises(PartCorrupt, match="Run again"):
        root.stage(file, run_id=RUN, path=NAME, md5=md5)


# --- small objects -------------------------------------------------------------------------------


def test_swap_writes_only_over_the_version_it_knows(root: Any) -> None:
    """A swap succeeds from absent or from the version read, and fails from any other."""
    first = root.swap("_rivet/all.json", b"1", expected=None)
    second = root.swap("_rivet/all.json", b"2", expected=first)

    for stale in (None, first):
        with pytest.raises(WindowTaken, match="another run"):
            root.swap("_rivet/all.json", b"3", expected=stale)
    assert (b"2", second) == root.read("_rivet/all.json")


def test_swap_of_a_manifest_that_was_removed_is_refused(root: Any) -> None:
    """What stood there when the window was planned must still stand there."""
    version = root.swap("_rivet/all.json", b"1", expected=None)
    root.delete(["_rivet/all.json"])

    with pytest.raises(WindowTaken):
        root.swap("_rivet/all.json", b"2", expected=version)


def test_of_concurrent_swaps_exactly_one_wins(root: Any) -> None:
    """Eight writers know the same version; one writes, seven are told."""
    version = root.swap("_rivet/all.json", b"0", expected=None)
    start, won, lost = threading.Barrier(8), [], []

    def write(number: int) -> None:
        start.wait()
        try:
            root.swap("_rivet/all.json", str(number).encode(), expected=version)
            won.append(str(number).encode())
        except WindowTaken:
            lost.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (1, 7) == (len(won), len(lost))
    assert won[0] == root.read("_rivet/all.json")[0]


def test_put_replaces_and_delete_of_nothing_is_fine(root: Any) -> None:
    """Small objects are written over and removed without asking."""
    root.put("_SUCCESS", b"1")
    root.put("_SUCCESS", b"2")
    content = root.read("_SUCCESS")[0]

    root.delete(["_SUCCESS", "never-there"])

    assert b"2" == content
    assert root.read("_SUCCESS") is None


def test_listing_sees_what_is_below_a_path_and_nothing_hidden(root: Any, tmp_path: Path) -> None:
    """Listing hides what is staged and names that begin with a dot."""
    staged(root, tmp_path)
    for path in ("_rivet/all.json", "_rivet/.lock", "dt=2026-01-31/_SUCCESS", "_staged/x/unique/0.u128"):
        root.put(path, b"12")

    assert {"_rivet/all.json": 2, "dt=2026-01-31/_SUCCESS": 2} == root.list()
    assert {"_rivet/all.json": 2} == root.list("_rivet/")
    assert {} == root.list("nowhere/")


def test_listing_goes_on_after_a_path(root: Any) -> None:
    """In the order of the names, whatever comes before; the path itself, and what is hidden, is none of it."""
    names = ("2026-01-01.json", "2026-01-01-05~3A00.json", "after=5.json", "all.json", ".lock", "column=a.json")
    for name in names:
        root.put(f"_rivet/{name}", b"1")
    listed = sorted(f"_rivet/{name}" for name in names if name != ".lock")

    assert listed == list(root.list_after("_rivet/", most=100))
    assert listed[:2] == list(root.list_after("_rivet/", most=2))
    assert listed[2:4] == list(root.list_after(listed[1], most=2))
    assert ["_rivet/after=5.json"] == list(root.list_after("_rivet/:", most=1))
    assert {} == root.list_after(listed[-1], most=1)
    assert {} == root.list_after("nowhere/", most=1)


def test_listing_tells_the_version_that_reading_and_swapping_tell(root: Any) -> None:
    """So that what was read at a version need not be read again; a folder on a disk tells none."""
    root.put("_rivet/put.json", b"1")
    swapped = root.swap("_rivet/swapped.json", b"2", expected=None)
    told = root.list_after("_rivet/", most=100)

    known = {"_rivet/put.json": root.read("_rivet/put.json")[1], "_rivet/swapped.json": swapped}
    assert told == (dict.fromkeys(known) if isinstance(root, LocalRoot) else known)


def test_sweep_spares_the_runs_it_is_told_to_keep(root: Any, tmp_path: Path) -> None:
    """Staged parts and sidecars of other runs go; those of kept runs stay and can be published."""
    kept = staged(root, tmp_path)
    lost = staged(root, tmp_path, run_id=OTHER_RUN, path=NAME.replace("aaaaaa", "bbbbbb"))
    root.put(f"_staged/{OTHER_RUN}/unique/0.u128", b"12")

    removed = root.sweep(keep=iter([RUN]))
    root.publish(kept)

    assert removed >= 2
    assert not root.staged_exists(lost)
    assert {NAME: 4} == root.list()


def test_sweep_lists_before_it_asks_whom_to_keep(root: Any, tmp_path: Path) -> None:
    """A run that begins while a sweep runs loses nothing: names are asked for after the listing."""
    dead, parts = staged(root, tmp_path, run_id=OTHER_RUN, path=NAME.replace("aaaaaa", "bbbbbb")), []

    def names() -> Iterator[str]:
        parts.append(staged(root, tmp_path))
        yield "somebody else"

    root.sweep(keep=names())

    assert root.staged_exists(parts[0])
    assert not root.staged_exists(dead)


def test_sweep_of_nothing_asks_nobody(root: Any) -> None:
    """Whom to keep is a question to the state store, which a run that left nothing need not ask."""

    def names() -> Iterator[str]:
        raise AssertionError("asked")
        yield

    assert 0 == root.sweep(keep=names())


def test_check_writes_and_leaves_nothing(root: Any) -> None:
    """The probe proves the place and goes."""
    root.check()

    assert root.read(".rivet_doctor_probe") is None


def test_destinations_and_roots_travel_to_executors(destination: Any, tmp_path: Path) -> None:
    """Both are plain values that pickle, also after they were used."""
    root = destination.root("orders")
    root.check()

    assert root == pickle.loads(pickle.dumps(root))
    assert destination == pickle.loads(pickle.dumps(destination))


# --- what is wrong, and what it says -------------------------------------------------------------


@pytest.mark.parametrize("kind", ["s3", "gcs"])
def test_missing_bucket_is_named_and_never_created(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """A bucket that does not exist is refused at the first write and by the check."""
    server = request.getfixturevalue(f"{kind}_server")
    settings = {"bucket": "no-such-lake", "endpoint": server.endpoint}
    root = (S3(**settings) if kind == "s3" else Gcs(**settings, allow_anonymous=True)).root("orders")

    for act in (root.check, root.list, lambda: staged(root, tmp_path)):
        with pytest.raises(BucketMissing, match=r"bucket no-such-lake does not exist.*Rivet creates none"):
            act()


@pytest.mark.parametrize("kind", ["s3", "gcs"])
def test_unreachable_endpoint_is_named_and_may_be_tried_again(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listening is a transient error that names the endpoint."""
    monkeypatch.setattr("rivet_resources.destinations.gcs_client.RETRY_SECONDS", 1)
    monkeypatch.setattr("rivet_resources.destinations.s3_client.TRIES", 2)
    settings = {"bucket": "lake", "endpoint": NOWHERE, "prefix": uuid.uuid4().hex}
    root = (S3(**settings, region="eu-central-1") if kind == "s3" else Gcs(**settings, allow_anonymous=True)).root("o")

    with pytest.raises(DestinationUnreachable, match=re.escape(NOWHERE)) as caught:
        root.put("x", b"1")

    assert caught.value.retry


@contextmanager
def checked_keys(endpoint: str) -> Iterator[None]:
    """Make moto check keys, as a real store does."""

    def allow(requests_unchecked: bytes) -> None:
        plain = {"Content-Type": "text/plain"}
        reset = f"{endpoint}/moto-api/reset-auth"
        urllib.request.urlopen(urllib.request.Request(reset, requests_unchecked, plain, method="POST")).close()

    allow(b"0")
    try:
        yield
    finally:
        allow(b"inf")


def test_wrong_s3_keys_are_refused_without_showing_them(
    s3_server: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that the store does not know end the run, and stand in no message."""
    monkeypatch.setenv("LAKE_KEY", "AKIAWRONG")
    monkeypatch.setenv("LAKE_SECRET", "very-secret")
    keys = {"access_key_env": "LAKE_KEY", "secret_key_env": "LAKE_SECRET"}
    root = S3(bucket="lake", endpoint=s3_server.endpoint, **keys).root("orders")

    with checked_keys(s3_server.endpoint), pytest.raises(DestinationAuth, match="InvalidAccessKeyId") as caught:
        root.put("x", b"1")

    assert not re.search("AKIAWRONG|very-secret", str(caught.value))


def test_missing_s3_credentials_say_what_to_set(s3_server: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without keys, profile or role nothing is sent."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    s3_client._client.cache_clear()
    root = S3(bucket="lake", endpoint=s3_server.endpoint, region="us-west-1").root("orders")

    with pytest.raises(DestinationAuth, match="access_key_env and secret_key_env"):
        root.put("x", b"1")
    s3_client._client.cache_clear()


def test_rejected_gcs_key_is_an_auth_error(gcs_server: ObjectStore, tmp_path: Path) -> None:
    """A service account whose key is no longer valid is refused at the token's door."""
    with token_refusal() as url:
        root = Gcs(bucket="lake", endpoint=gcs_server.endpoint, credentials_file=service_account(tmp_path, url)).root(
            "o"
        )

        with pytest.raises(DestinationAuth, match="credentials_file"):
            root.put("x", b"1")


def test_gcs_key_file_that_is_no_key_is_an_auth_error(tmp_path: Path) -> None:
    """A file of something else is named."""
    (tmp_path / "key.json").write_text("{}")
    root = Gcs(bucket="lake", credentials_file=tmp_path / "key.json").root("orders")

    with pytest.raises(DestinationAuth, match=r"key\.json is not a service account's JSON key"):
        root.put("x", b"1")


def service_account(folder: Path, token_uri: str) -> Path:
    """Write a well-formed key of nobody."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    private = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    key = {"type": "service_account", "private_key": private.decode(), "client_email": "x@y", "token_uri": token_uri}
    (folder / "key.json").write_text(json.dumps(key))
    return folder / "key.json"


@contextmanager
def token_refusal() -> Iterator[str]:
    """Serve an authority that refuses every key."""

    class Refusal(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(400)
            self.end_headers()
            self.wfile.write(b'{"error": "invalid_grant"}')

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Refusal)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/token"
    finally:
        server.shutdown()
        server.server_close()


# --- Azure alone ---------------------------------------------------------------------------------


def test_missing_container_is_named_and_never_created(azure_server: ObjectStore, tmp_path: Path) -> None:
    """A container that does not exist is refused at the first write and by the check."""
    root = azure_place(azure_server, container="no-such-lake").root("orders")

    for act in (root.check, root.list, lambda: root.read("x"), lambda: staged(root, tmp_path)):
        with pytest.raises(BucketMissing, match=r"container no-such-lake .* does not exist.*Rivet creates none"):
            act()


def test_unreachable_azure_is_named_and_may_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listening is a transient error that names the endpoint."""
    monkeypatch.setattr("rivet_resources.destinations.azure_client.TRIES", 1)
    monkeypatch.setenv("AZURE_KEY", AZURITE_KEY)
    root = azure_place(ObjectStore(NOWHERE, "lake"), prefix=uuid.uuid4().hex).root("o")

    with pytest.raises(DestinationUnreachable, match=re.escape(NOWHERE)) as caught:
        root.put("x", b"1")

    assert caught.value.retry


def test_host_that_a_connection_string_names_is_the_one_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked, and not the account of the configuration; nothing of the string's secrets is shown."""
    monkeypatch.setattr("rivet_resources.destinations.azure_client.TRIES", 1)
    text = f"AccountName={AZURITE_ACCOUNT};AccountKey={AZURITE_KEY};BlobEndpoint={NOWHERE}/{AZURITE_ACCOUNT}"
    monkeypatch.setenv("STRING", f"DefaultEndpointsProtocol=http;{text}")
    place = Azure(account=AZURITE_ACCOUNT, container="lake", connection_string_env="STRING", prefix=uuid.uuid4().hex)

    with pytest.raises(DestinationUnreachable) as caught:
        place.root("o").put("x", b"1")

    assert f"{NOWHERE} did not answer" in str(caught.value)
    assert "Check the endpoint in Environment variable STRING" in str(caught.value)
    assert AZURITE_KEY[:8] not in str(caught.value)


@pytest.mark.parametrize("kind", [S3, Gcs])
@pytest.mark.parametrize("prefix", [".", "./lake", "a/./b", "a/."])
def test_prefix_with_a_dot_for_a_folder_is_refused(kind: Any, prefix: str) -> None:
    """Keys are no paths; stores on file systems list such an object elsewhere than they were asked to put it."""
    with pytest.raises(ValidationError, match=r"has a '\.' component"):
        kind(bucket="lake", prefix=prefix)


WRONG = base64.b64encode(b"very-secret").decode()
SECRETS = {
    "other key": ({"account_key_env": "SECRET"}, WRONG, "AuthenticationFailed|AuthorizationFailure"),
    "no key": ({"account_key_env": "SECRET"}, "very-secret!", "no usable credentials|no usable secret"),
    "no connection string": ({"connection_string_env": "SECRET"}, "very-secret", "no usable connection string"),
    "another account's": (
        {"connection_string_env": "SECRET"}, f"AccountName=other;AccountKey={WRONG};BlobEndpoint=URL", "Make them agree"
    ),
    "no signature": ({"sas_token_env": "SECRET"}, "sv=2024-01-01&sig=very-secret", r"role Storage Blob"),
}  # fmt: skip


@pytest.mark.parametrize("kind", SECRETS)
def test_wrong_azure_secret_is_refused_without_showing_it(
    kind: str, azure_server: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each way to sign in says what is wrong with it, and no piece of the secret."""
    way, secret, says = SECRETS[kind]
    monkeypatch.setenv("SECRET", secret.replace("URL", azure_server.endpoint))
    endpoint = None if "connection_string_env" in way else azure_server.endpoint
    keys = {"account": AZURITE_ACCOUNT, "container": "lake", "endpoint": endpoint}
    root = Azure(**keys, **way).root("orders")

    with pytest.raises((DestinationAuth, DestinationPermission), match=says) as caught:
        root.put("x", b"1")

    assert not re.search(f"very-secret|{WRONG[:8]}", str(caught.value))


def test_azure_signs_in_by_connection_string_or_signature(
    azure_server: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both reach the same blobs as the account's key."""
    from azure.storage.blob import generate_container_sas

    text = f"AccountName={AZURITE_ACCOUNT};AccountKey={AZURITE_KEY};BlobEndpoint={azure_server.endpoint}"
    until = datetime.now(UTC) + timedelta(hours=1)
    signature = generate_container_sas(
        AZURITE_ACCOUNT, "lake", account_key=AZURITE_KEY, permission="racwdl", expiry=until
    )
    monkeypatch.setenv("STRING", f"DefaultEndpointsProtocol=http;{text}")
    monkeypatch.setenv("SIGNATURE", f"?{signature}")
    prefix = uuid.uuid4().hex
    by_key = azure_place(azure_server, prefix=prefix).root("orders")
    by_string = azure_place(
        azure_server, prefix=prefix, endpoint=None, account_key_env=None, connection_string_env="STRING"
    ).root("orders")
    by_signature = azure_place(azure_server, prefix=prefix, account_key_env=None, sas_token_env="SIGNATURE").root(
        "orders"
    )

    by_string.put("a", b"1")
    by_signature.put("b", b"22")

    assert {"a": 1, "b": 2} == by_key.list() == by_signature.list()


def test_blobs_that_stand_for_folders_are_not_seen(azure_server: ObjectStore) -> None:
    """ADLS Gen2 lists each folder as an empty blob; it is neither a part nor something to sweep."""
    root = azure_place(azure_server, prefix=uuid.uuid4().hex).root("orders")
    with translate_azure(root.location, uri="", action="") as container:
        for name in ("dt=2026-01-31", f"_staged/{RUN}"):
            container.upload_blob(f"{root.prefix}/{name}", b"", metadata={"hdi_isfolder": "true"})

    assert ({}, set(), 0) == (root.list(), root.staged_runs(), root.sweep(keep=[]))


@pytest.mark.parametrize("destination", ["azure, in blocks"], indirect=True)
def test_part_whose_blocks_were_dropped_is_not_taken_for_staged(root: Any, tmp_path: Path) -> None:
    """Azure drops blocks after a week: the marker alone proves nothing, and such a part is an error when published."""
    part = staged(root, tmp_path)
    lost = replace(part, staged={**part.staged, "attempt": "00000000"})

    assert not root.staged_exists(lost)
    with pytest.raises(DestinationError, match="run again"):
        root.publish(lost)


def test_azure_is_named_as_its_readers_name_it() -> None:
    """By container and account, in the cloud it is in."""
    china = "https://shop.blob.core.chinacloudapi.cn"
    keys = {"account": "shop", "container": "lake", "prefix": "raw"}

    assert "abfss://lake@shop.dfs.core.windows.net/raw/orders" == Azure(**keys).root("orders").uri
    assert "abfss://lake@shop.dfs.core.chinacloudapi.cn/raw/orders" == Azure(**keys, endpoint=china).root("orders").uri


@pytest.mark.parametrize("way", ["account_key_env", "connection_string_env", "sas_token_env"])
def test_azure_reads_its_own_blobs_by_each_way_to_sign_in(
    taking_azure: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """What lets the store read the staged blob for us is made of what signs the request; Azurite checks it."""
    from azure.storage.blob import generate_container_sas

    words = f"AccountName={AZURITE_ACCOUNT};AccountKey={AZURITE_KEY};BlobEndpoint={taking_azure.endpoint}"
    until = datetime.now(UTC) + timedelta(hours=1)
    monkeypatch.setenv("connection_string_env", f"DefaultEndpointsProtocol=http;{words}")
    monkeypatch.setenv("account_key_env", AZURITE_KEY)
    monkeypatch.setenv(
        "sas_token_env",
        generate_container_sas(AZURITE_ACCOUNT, "lake", account_key=AZURITE_KEY, permission="racwdl", expiry=until),
    )
    keys = {"account_key_env": None, way: way} | ({"endpoint": None} if way == "connection_string_env" else {})
    root = azure_place(taking_azure, prefix=uuid.uuid4().hex, **keys).root("orders")

    with requests_noted() as asked:
        root.publish(staged(root, tmp_path))

    assert ["PUT", "PUT", "DELETE"] == asked
    assert b"rows" == root.open(NAME).read()


def test_azure_reads_its_own_blobs_with_a_token_of_the_default_chain() -> None:
    """Which goes beside the address, for that has no signature."""
    from azure.core.credentials import AccessToken
    from azure.storage.blob import BlobClient

    class Chain:
        """Signs in as anybody."""

        def get_token(self, *scopes: str, **more: Any) -> AccessToken:
            """Name what it is for."""
            return AccessToken(" ".join(scopes), 0)

    blob = BlobClient("https://shop.blob.core.windows.net", "lake", "raw/a b", credential=Chain())

    assert (
        "https://shop.blob.core.windows.net/lake/raw/a%20b",
        "Bearer https://storage.azure.com/.default",
    ) == source_of(blob)


def test_azure_that_does_not_tell_what_it_wrote_is_asked(azure_server: ObjectStore, tmp_path: Path) -> None:
    """One request more, and a part that is not there is an error all the same."""
    with taking(azure_server.endpoint, account=AZURITE_ACCOUNT, key=AZURITE_KEY, untold=True) as endpoint:
        root = azure_place(replace(azure_server, endpoint=endpoint), prefix=uuid.uuid4().hex).root("orders")
        with requests_noted() as asked:
            root.publish(staged(root, tmp_path))

    assert ["PUT", "PUT", "HEAD", "DELETE"] == asked


@pytest.mark.parametrize("destination", ["azure", "azure, by address"], indirect=True)
def test_blob_on_azure_that_is_not_what_was_staged_is_refused(root: Any, tmp_path: Path) -> None:
    """The MD5 of what the store took, or of what is sent again, decides before any manifest names the part."""
    part = staged(root, tmp_path)
    root.put(part.staged["object"], b"rot!")

    with pytest.raises(PartCorrupt, match="Nothing was published"):
        root.publish(part)
    assert {} == root.list()


@pytest.mark.parametrize("destination", ["azure, by address"], indirect=True)
def test_blocks_of_an_earlier_rivet_are_still_published(
    root: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk that a dead run of before had staged in blocks, small as it is, is used by the next run."""
    with monkeypatch.context() as before:
        before.setattr(azure_small_parts, "MOST_BYTES", -1)
        part = staged(root, tmp_path)

    assert "marker" in part.staged
    assert root.staged_exists(part)
    root.publish(part)
    assert b"rows" == root.open(NAME).read()


# --- S3 alone ------------------------------------------------------------------------------------


def test_sweep_finds_an_upload_whose_process_died_before_it_was_marked(fenced_s3: str) -> None:
    """The run's nonce in the key is enough; uploads of other exports and programs are left alone."""
    root = S3(bucket="lake", prefix=uuid.uuid4().hex, endpoint=fenced_s3).root("orders")
    client = s3_client.connect(root.location)
    for name in (NAME, NAME.replace("orders", "other"), "backup.tar"):
        client.create_multipart_upload(Bucket="lake", Key=f"{root.prefix}/{name}")

    removed = root.sweep(keep=[OTHER_RUN])
    left = client.list_multipart_uploads(Bucket="lake", Prefix=root.prefix)["Uploads"]

    assert 1 == removed
    assert {NAME.replace("orders", "other"), "backup.tar"} == {u["Key"].removeprefix(f"{root.prefix}/") for u in left}


# --- a local disk alone --------------------------------------------------------------------------

ERRNOS = {
    errno.ENOSPC: (DiskFull, "Free space"),
    errno.EDQUOT: (DiskFull, "Free space"),
    errno.EACCES: (DestinationPermission, "write permission"),
    errno.EROFS: (DestinationPermission, "write permission"),
    errno.ENOTDIR: (DestinationError, "Check `destination.path`"),
}


@pytest.mark.parametrize("number", ERRNOS)
def test_errno_becomes_an_error_one_can_act_on(number: int) -> None:
    """Full, forbidden and impossible are told apart, each with what to do."""
    error = translate(OSError(number, os.strerror(number)), uri="/lake/orders", action="stage x")

    assert ERRNOS[number][0] is type(error)
    assert ERRNOS[number][1] in str(error)


def test_file_in_place_of_the_folder_is_an_error(tmp_path: Path) -> None:
    """A path that runs through a file is refused with its name."""
    (tmp_path / "lake").write_text("")

    with pytest.raises(DestinationError, match=r"lake/orders: cannot write"):
        Local(path=str(tmp_path / "lake")).root("orders").check()


def test_part_from_another_file_system_is_copied_and_compared(tmp_path: Path) -> None:
    """Where a rename is impossible the copy is checked, and a wrong one refused."""
    places = [place for place in (room.MEMORY, room.DISK, Path("/tmp")) if place.is_dir()]
    others = [place for place in places if place.stat().st_dev != tmp_path.stat().st_dev]
    if not others:
        pytest.skip(f"{', '.join(map(str, places))} are all of one file system")
    root = Local(path=str(tmp_path)).root("orders")
    scratch = others[0] / uuid.uuid4().hex
    scratch.mkdir()
    try:
        root.publish(staged(root, scratch))
        (scratch / "part").write_bytes(b"changed")
        with pytest.raises(PartCorrupt, match="MD5"):
            root.stage(scratch / "part", run_id=RUN, path=NAME, md5="")
    finally:
        (scratch / "part").unlink(missing_ok=True)
        scratch.rmdir()

    assert b"rows" == root.open(NAME).read()


def test_crashed_write_leaves_a_stray_that_a_later_sweep_removes(tmp_path: Path) -> None:
    """Old temp files go; young ones may belong to somebody; other dot files are not ours."""
    root = Local(path=str(tmp_path)).root("orders")
    for name in (".old.rivet-tmp", ".young.rivet-tmp", ".keep"):
        root.put(f"dt=1/{name}", b"")
    os.utime(tmp_path / "orders/dt=1/.old.rivet-tmp", (0, 0))

    assert 1 == root.sweep(keep=[])
    assert {".young.rivet-tmp", ".keep"} == {path.name for path in (tmp_path / "orders/dt=1").iterdir()}


# --- a stream alone ------------------------------------------------------------------------------


def test_stdout_writes_parts_when_published_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """The stream gets a part's bytes once; it keeps no manifests."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    root = Stdout().root("orders")
    part = staged(root, tmp_path)
    before = capfdbinary.readouterr().out

    root.publish(part)
    root.publish(part)

    assert (b"", b"rows") == (before, capfdbinary.readouterr().out)
    assert not root.keeps_manifests


# --- settings ------------------------------------------------------------------------------------

PLACES = {
    "./out": "/work/out/orders",
    "out/": "/work/out/orders",
    "/data/{export}": "/data/orders",
    "/data/{table}/raw": "/data/orders/raw",
    "/": "/orders",
}


@pytest.mark.parametrize("path", PLACES)
def test_export_lies_below_the_path_or_where_its_name_stands(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path with {export} or {table} is the export's own; else it gets a folder below."""
    monkeypatch.setattr(os, "getcwd", lambda: "/work")

    assert PLACES[path] == Local(path=path).root("orders").uri


def test_prefix_has_no_slash_to_spare() -> None:
    """However a prefix is written, keys have single slashes."""
    uris = {S3(bucket="lake", prefix=prefix).root("orders").uri for prefix in ("raw", "/raw/", "raw/{export}", "raw//")}

    assert {"s3://lake/raw/orders"} == uris
    assert "gs://lake/orders" == Gcs(bucket="lake").root("orders").uri


def test_date_of_a_run_that_crosses_midnight_stays() -> None:
    """`on` fixes the day once, for the driver and every executor."""
    fixed = Local(path="/out/{date}").on(date(2026, 1, 31))

    assert "/out/2026-01-31/orders" == fixed.root("orders").uri


REFUSED: list[tuple[type[Any], dict[str, Any], str]] = [
    (Local, {"path": "../out"}, r"'\.\.' component"),
    (Local, {"path": "a/../b"}, r"'\.\.' component"),
    (Local, {"path": "out/{window}"}, r"allowed are \{date\}, \{export\}, \{table\}"),
    (Local, {"path": "out/{partition}/raw"}, r"\{partition\}, which must be the last folder"),
    (Local, {"path": ""}, "at least 1 character"),
    (S3, {"bucket": "b", "prefix": "a/../b"}, r"'\.\.' component"),
    (S3, {"bucket": "b", "endpoint": "http://minio.example:9000"}, "allow_insecure_endpoint: true"),
    (S3, {"bucket": "b", "endpoint": "https://key:secret@minio.example"}, "endpoint carries credentials"),
    (S3, {"bucket": "b", "endpoint": "minio:9000"}, "endpoint is not a URL"),
    (S3, {"bucket": "b", "access_key_env": "A"}, "go together; set both or neither"),
    (S3, {"bucket": "b", "session_token_env": "A"}, "set all three"),
    (S3, {"bucket": "b", "aws_profile": "p", "allow_anonymous": True}, "aws_profile and allow_anonymous"),
    (S3, {"bucket": "b", "kms_key": "alias/lake"}, "kms_key goes with encryption: sse-kms"),
    (S3, {"bucket": "b", "encryption": "aes"}, "'sse-s3' or 'sse-kms'"),
    (S3, {"bucket": "b", "tags": {f"t{i}": "" for i in range(11)}}, "has 11 tags, .* at most 10"),
    (S3, {"bucket": "b", "tags": {"k": "v" * 257}}, "at most 256 characters"),
    (S3, {"bucket": "b", "tags": {"k": "a&b"}}, "S3 takes letters, digits"),
    (S3, {"bucket": "b", "tags": {"aws:x": "y"}}, "Amazon's own"),
    (Gcs, {"bucket": "b", "kms_key": "alias/lake"}, "is no key of Cloud KMS; write projects/"),
    (Gcs, {"bucket": "b", "metadata": {"a b": "c"}}, "String should match pattern"),
    (Gcs, {"bucket": "b", "credentials_file": "/nowhere.json"}, "/nowhere.json does not exist"),
    (Gcs, {"bucket": "b", "credentials_file": __file__, "allow_anonymous": True}, "keep one"),
    (Gcs, {"bucket": "b", "colour": "red"}, "Extra inputs"),
    (Azure, {"account": "Shop", "container": "lake"}, "account"),
    (Azure, {"account": "shop", "container": "La_ke"}, "container"),
    (Azure, {"account": "shop", "container": "lake", "endpoint": "http://127.0.0.1:1/shop"}, "plain http, over which"),
    (
        Azure,
        {"account": "shop", "container": "lake", "endpoint": "http://far:1", "account_key_env": "A"},
        "unprotected",
    ),
    (Azure, {"account": "shop", "container": "lake", "account_key_env": "A", "sas_token_env": "B"}, "keep one"),
    (Azure, {"account": "shop", "container": "lake", "connection_string_env": "A", "endpoint": "https://x"}, "remove"),
    (Stdout, {"path": "x"}, "Extra inputs"),
]


@pytest.mark.parametrize(("block", "settings", "says"), REFUSED)
def test_wrong_settings_are_refused_with_what_is_allowed(block: Any, settings: dict[str, Any], says: str) -> None:
    """Each wrong block has its own sentence."""
    with pytest.raises(ValidationError, match=says) as caught:
        block(**settings)

    assert "secret" not in str(caught.value).replace("secret_key_env", "")


def test_plain_http_is_accepted_at_home_or_on_request() -> None:
    """Loopback needs no permission; another machine does."""
    allowed = [
        {"endpoint": "http://localhost:9000"},
        {"endpoint": "http://minio:9000", "allow_insecure_endpoint": True},
    ]

    assert [settings["endpoint"] for settings in allowed] == [S3(bucket="b", **s).endpoint for s in allowed]


def test_every_error_here_is_ours() -> None:
    """Callers need to catch one root."""
    assert all(issubclass(error, RivetError) for error in (BucketMissing, DestinationAuth, DiskFull, PartCorrupt))


# Of a part that one request carries.
REQUESTS_OF_A_PART = {
    "s3": ["PUT", "PUT", "DELETE"],
    "gcs": ["POST", "POST", "DELETE"],
    "azure, by address": ["PUT", "PUT", "DELETE"],
    "azure": ["PUT", "GET", "PUT", "DELETE"],  # as of a store that does not read its own blobs for us
    # Azure has no request that drops blocks: a marker says that they wait.
    "azure, in blocks": ["PUT", "PUT", "HEAD", "PUT", "DELETE"],
}
MANY_PIECES_ON_S3 = ["POST", "PUT", "PUT", "PUT", "PUT", "POST", "DELETE"]  # three of them pieces


@pytest.mark.parametrize(("destination", "requests"), list(REQUESTS_OF_A_PART.items()), indirect=["destination"])
def test_part_costs_no_more_requests_than_it_needs(root: Any, requests: list[str], tmp_path: Path) -> None:
    """What the store is asked is paid for, ten thousand windows an hour: sent, given its name, tidied up."""
    root.check()  # whoever signs in has done so
    with requests_noted() as asked:
        root.publish(staged(root, tmp_path))

    assert requests == asked


@pytest.mark.parametrize("destination", ["s3"], indirect=True)
def test_part_of_many_pieces_on_s3_costs_four_requests_beside_them(root: Any, tmp_path: Path) -> None:
    """The upload is created, marked, completed, and the marker removed."""
    root.check()
    with requests_noted() as asked:
        root.publish(staged(root, tmp_path, bytes(17 << 20)))

    assert MANY_PIECES_ON_S3 == asked


@pytest.mark.parametrize("destination", ["s3", "azure"], indirect=True)
def test_staged_object_is_found_by_no_glob_for_parts(root: Any, tmp_path: Path) -> None:
    """A reader of `**/*.parquet` sees nothing of what is not committed."""
    part = staged(root, tmp_path)

    assert part.staged["object"].startswith(f"_staged/{RUN}/")
    assert not part.staged["object"].endswith(".parquet")


def test_copy_on_s3_that_is_not_what_was_staged_is_refused(fenced_s3: str, tmp_path: Path) -> None:
    """The store's own digest of the copy decides, before any manifest names the part."""
    root = S3(bucket="lake", prefix=uuid.uuid4().hex, endpoint=fenced_s3).root("orders")
    part = staged(root, tmp_path)
    root.put(part.staged["object"], b"rot!")

    with pytest.raises(PartCorrupt, match="Nothing was published"):
        root.publish(part)


def test_upload_of_an_earlier_rivet_is_still_published(
    fenced_s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk that a dead run of before had staged as an upload, small as it is, is used by the next run."""
    root = S3(bucket="lake", prefix=uuid.uuid4().hex, endpoint=fenced_s3).root("orders")
    with monkeypatch.context() as before:
        before.setattr(s3_small_parts, "MOST_BYTES", 0)
        part = staged(root, tmp_path)

    assert "upload_id" in part.staged
    assert root.staged_exists(part)
    root.publish(part)
    assert b"rows" == root.open(NAME).read()
