"""What every object of a store is written with (keys, tags, metadata), and what the store's own checksums prove.

Belongs here: reading it back from moto and the GCS emulator by their own clients. Not here: staging and publishing
themselves (`test_destinations.py`).
"""

from __future__ import annotations

import base64
import hashlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import boto3
import pytest

from rivet_assets.config.load import load_config
from rivet_assets.launch.run_exports import run_exports
from rivet_resources.commit.manifest import current_manifests, describe_part
from rivet_resources.contracts.parts import Part
from rivet_resources.destinations import s3 as s3_rooms
from rivet_resources.destinations.azure import Azure
from rivet_resources.destinations.gcs import Gcs
from rivet_resources.destinations.s3 import S3
from rivet_resources.destinations.s3_client import refusal
from rivet_resources.errors import DestinationError, PartCorrupt
from rivet_resources.prove.validate import validate
from tests.engines.test_destinations import NAME, RUN, azure_place
from tests.servers.postgres import ObjectStore

KEY = "projects/shop/locations/eu/keyRings/lake/cryptoKeys/rows"
PIECES = b"a" * (8 << 20) + b"b" * 10  # of which an upload takes two


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sign in anyhow: the emulators ask nobody."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


def staged(root: Any, folder: Path, content: bytes) -> Part:
    """Write a file and stage it."""
    file = folder / f"{uuid.uuid4().hex}.parquet"
    file.write_bytes(content)
    md5 = base64.b64encode(hashlib.md5(content).digest()).decode()
    return Part(NAME, 1, len(content), "xxh3:0", md5, root.stage(file, run_id=RUN, path=NAME, md5=md5))


def write_all(root: Any, folder: Path, content: bytes = PIECES) -> Part:
    """Write an object by each of the ways there are: a part, a small object, a swapped one twice."""
    part = staged(root, folder, content)
    root.publish(part)
    root.put("small.json", b"{}")
    version = root.swap("_rivet/all.json", b"{}", expected=None)
    root.swap("_rivet/all.json", b"{1}", expected=version)
    return part


PATHS = (NAME, "small.json", "_rivet/all.json")
SSE = {
    "sse-s3": ({"encryption": "sse-s3"}, ("AES256", None)),
    "sse-kms": ({"encryption": "sse-kms", "kms_key": "alias/lake"}, ("aws:kms", "alias/lake")),
    "none": ({}, (None, None)),
}


@pytest.mark.parametrize("wanted", SSE)
def test_every_object_of_s3_is_encrypted_and_tagged_as_asked(
    s3_server: ObjectStore, tmp_path: Path, wanted: str
) -> None:
    """Parts in pieces, markers, manifests: what the store shows of each is what the block says."""
    keys, expected = SSE[wanted]
    tags = {"team": "shop", "cost centre": "a+b=c/ü d"}
    place = S3(bucket="lake", prefix=uuid.uuid4().hex, endpoint=s3_server.endpoint, tags=tags, **keys)
    root = place.root("orders")
    client = boto3.client("s3", endpoint_url=s3_server.endpoint, region_name="us-east-1")

    write_all(root, tmp_path)

    for path in PATHS:
        at = {"Bucket": "lake", "Key": f"{root.prefix}/{path}"}
        head = client.head_object(**at)
        assert expected == (head.get("ServerSideEncryption"), head.get("SSEKMSKeyId"))
        assert tags == {tag["Key"]: tag["Value"] for tag in client.get_object_tagging(**at)["TagSet"]}


@dataclass
class Deaf:
    """A client of S3 whose store leaves some words of its answers out, as stores that do not know them do."""

    client: Any
    words: tuple[str, ...]

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.client, name)
        if name not in ("put_object", "create_multipart_upload", "complete_multipart_upload", "head_object"):
            return found
        return lambda **asked: {key: value for key, value in found(**asked).items() if key not in self.words}


def deafened(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    """Let the store leave words out from now on."""
    connect: Callable[[Any], Any] = s3_rooms.connect
    monkeypatch.setattr(
        "rivet_resources.destinations.s3_client.connect", lambda location: Deaf(connect(location), words)
    )


def test_a_store_that_does_not_encrypt_is_found_out(
    s3_server: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words that a store passes over are not taken for encryption, by the doctor's probe least of all."""
    root = S3(bucket="lake", prefix=uuid.uuid4().hex, endpoint=s3_server.endpoint, encryption="sse-kms").root("orders")
    deafened(monkeypatch, "ServerSideEncryption")

    for write in (root.check, lambda: staged(root, tmp_path, b"rows")):
        with pytest.raises(DestinationError, match="asked to encrypt by sse-kms and says it does so by nothing"):
            write()


@pytest.mark.parametrize("code", ["KMS.NotFoundException", "KMS.DisabledException", "KMSInvalidStateException"])
def test_a_key_that_cannot_be_used_is_named(code: str) -> None:
    """The message names the key of the configuration and the rights on it."""
    assert all(
        word in str(refusal(code, bucket="lake", where="s3://lake/x: cannot write y"))
        for word in (code, "destination.kms_key", "kms:GenerateDataKey", "kms:Decrypt")
    )


@pytest.mark.parametrize("place", [S3(bucket="b", tags={"team": "shop"}), Gcs(bucket="b", metadata={"team": "shop"})])
def test_places_with_tags_are_told_apart_as_others_are(place: Any) -> None:
    """Whoever looks at each place once keeps them in a mapping."""
    same, other = place.model_copy(), place.model_copy(update={"prefix": "raw"})

    assert {place, other} == {place, same, other}
    assert 2 == len({place, same, other})


# --- checksums of pieces -------------------------------------------------------------------------


@pytest.mark.parametrize("checksum", ["md5", "sha256"])
def test_the_manifest_keeps_the_checksum_of_each_piece(s3_server: ObjectStore, tmp_path: Path, checksum: str) -> None:
    """Whoever has the object can prove any piece of it alone; the store proves the whole without its being read."""
    root = S3(bucket="lake", prefix=uuid.uuid4().hex, endpoint=s3_server.endpoint, checksum=checksum).root("orders")

    content = PIECES * 3  # more than one request carries

    part = write_all(root, tmp_path, content)

    entry = describe_part(0, part)
    assert entry.upload is not None
    size = entry.upload.piece_bytes
    pieces = [content[at : at + size] for at in range(0, len(content), size)]
    assert [hashlib.new(checksum, piece).hexdigest() for piece in pieces] == list(entry.upload.pieces)
    told = {"size": part.size_bytes, "md5": part.md5, "sums": entry.upload.sums}
    assert root.told_whole(NAME, **told) is True
    other = replace(entry.upload.sums, pieces=("00" * (16 if checksum == "md5" else 32), *entry.upload.pieces[1:]))
    assert root.told_whole(NAME, **{**told, "sums": other}) is False
    assert root.told_whole(NAME, **{**told, "sums": None}) is None


def test_a_part_of_one_request_is_proved_by_its_md5(s3_server: ObjectStore, tmp_path: Path) -> None:
    """It has no pieces, and the store tells the MD5 of the copy that was published."""
    root = S3(bucket="lake", prefix=uuid.uuid4().hex, endpoint=s3_server.endpoint).root("orders")

    part = write_all(root, tmp_path, b"small")

    assert describe_part(0, part).upload is None
    assert root.told_whole(NAME, size=5, md5=part.md5, sums=None) is True
    assert root.told_whole(NAME, size=5, md5=base64.b64encode(b"0" * 16).decode(), sums=None) is False


@pytest.mark.parametrize("keys", ["checksum: md5", "checksum: sha256", "encryption: sse-kms"])
def test_validate_finds_an_exchanged_object_without_reading_it(
    s3_server: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: str
) -> None:
    """At depth sample: an object of the same size with other bytes is another object by the store's own checksum."""
    monkeypatch.chdir(tmp_path)
    block = f"type: s3, bucket: lake, prefix: {uuid.uuid4().hex}, endpoint: '{s3_server.endpoint}', {keys}"
    Path("rivet.yaml").write_text(f"""
source: {{type: datagen, pattern: orders, max_events: 50, events_per_second: 0, seed: 1}}
spark: inline
exports: [{{name: orders, table: orders, format: csv, destination: {{{block}}}}}]
""")
    config = load_config("rivet.yaml")
    (outcome,) = run_exports(config)
    assert "success" == outcome.status, outcome.message
    root = config.exports[0].destination.root("orders")
    (manifest,) = current_manifests(root).values()
    assert () == validate(root, export="orders", depth="sample").all_flaws

    (part,) = manifest.parts
    client = boto3.client("s3", endpoint_url=s3_server.endpoint, region_name="us-east-1")
    client.put_object(
        Bucket="lake", Key=f"{root.prefix}/{part.path}", Body=b"x" * part.size_bytes, ChecksumAlgorithm="SHA256",
        **({"ServerSideEncryption": "aws:kms"} if "kms" in keys else {}),
    )  # fmt: skip

    (flaw,) = validate(root, export="orders", depth="sample").all_flaws
    assert "PART_CHECKSUM_MISMATCH" == flaw.short


def test_the_etag_of_an_object_under_kms_proves_nothing(s3_server: ObjectStore, tmp_path: Path) -> None:
    """By MD5 nothing is claimed there, and SHA-256 is what is taken by default."""
    place = S3(bucket="lake", prefix=uuid.uuid4().hex, endpoint=s3_server.endpoint, encryption="sse-kms")
    by_md5 = place.model_copy(update={"checksum": "md5"}).root("orders")
    part = write_all(by_md5, tmp_path)
    assert by_md5.told_whole(NAME, size=part.size_bytes, md5=part.md5, sums=part.sums) is None

    part = write_all(place.model_copy(update={"prefix": uuid.uuid4().hex}).root("orders"), tmp_path)

    assert part.sums is not None
    assert "sha256" == part.sums.algorithm


def test_a_store_that_keeps_no_sha256_is_refused_with_the_way_out(
    s3_server: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checksum that nobody keeps would be compared with nothing."""
    root = S3(bucket="lake", prefix=uuid.uuid4().hex, endpoint=s3_server.endpoint, checksum="sha256").root("orders")
    part = staged(root, tmp_path, PIECES)
    deafened(monkeypatch, "ChecksumSHA256")

    with pytest.raises(DestinationError, match=r"keeps no SHA-256.*destination\.checksum: md5"):
        root.publish(part)


def test_pieces_that_were_exchanged_are_found_at_publishing(s3_server: ObjectStore, tmp_path: Path) -> None:
    """What the store puts together is compared with what was sent, by SHA-256 too."""
    root = S3(bucket="lake", prefix=uuid.uuid4().hex, endpoint=s3_server.endpoint, checksum="sha256").root("orders")
    part = staged(root, tmp_path, PIECES)
    client = boto3.client("s3", endpoint_url=s3_server.endpoint, region_name="us-east-1")
    other = client.upload_part(
        Bucket="lake", Key=part.staged["key"], UploadId=part.staged["upload_id"], PartNumber=2, Body=b"c" * 10,
        ChecksumSHA256=base64.b64encode(hashlib.sha256(b"c" * 10).digest()).decode(),
    )  # fmt: skip
    etags = [part.staged["etags"][0], other["ETag"].strip('"')]

    with pytest.raises((PartCorrupt, DestinationError)):
        root.publish(replace(part, staged={**part.staged, "etags": etags}))


def test_azure_keeps_the_checksum_of_each_block(
    azure_server: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each block was compared by its MD5 when it was sent; the manifest has them all."""
    place: Azure = azure_place(azure_server, prefix=uuid.uuid4().hex)
    root = place.root("orders")

    part = write_all(root, tmp_path)

    sums = part.sums
    assert sums is not None
    pieces = [PIECES[at : at + sums.piece_bytes] for at in range(0, len(PIECES), sums.piece_bytes)]
    assert [hashlib.md5(piece).hexdigest() for piece in pieces] == list(sums.pieces)
    assert root.told_whole(NAME, size=part.size_bytes, md5=part.md5, sums=sums) is True
    assert root.told_whole(NAME, size=part.size_bytes, md5="AAAA", sums=sums) is False


# --- Google Cloud Storage ------------------------------------------------------------------------


def gcs_place(server: ObjectStore, **keys: Any) -> Gcs:
    """Describe a place in the emulator."""
    return Gcs(bucket="lake", prefix=uuid.uuid4().hex, endpoint=server.endpoint, allow_anonymous=True, **keys)


def test_every_object_of_gcs_has_the_metadata_that_was_asked_for(gcs_server: ObjectStore, tmp_path: Path) -> None:
    """Staged and rewritten parts, small objects, manifests."""
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    root = gcs_place(gcs_server, metadata={"team": "shop"}).root("orders")
    options = {"api_endpoint": gcs_server.endpoint}
    client = storage.Client(project="x", credentials=AnonymousCredentials(), client_options=options)

    part = write_all(root, tmp_path)

    found = [client.bucket("lake").get_blob(f"{root.prefix}/{path}").metadata for path in PATHS]
    assert [{"team": "shop"}] * 3 == found
    assert root.told_whole(NAME, size=part.size_bytes, md5=part.md5, sums=None) is True
    assert root.told_whole(NAME, size=part.size_bytes, md5="AAAA", sums=None) is False


def test_an_object_of_gcs_that_was_not_encrypted_as_asked_is_refused(gcs_server: ObjectStore, tmp_path: Path) -> None:
    """The emulator knows no keys and says so by its silence."""
    root = gcs_place(gcs_server, kms_key=KEY).root("orders")

    for write in (root.check, lambda: staged(root, tmp_path, b"rows")):
        with pytest.raises(DestinationError, match=r"asked to encrypt by `destination\.kms_key`"):
            write()
