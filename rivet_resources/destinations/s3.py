"""Objects in a bucket of S3, or of anything that speaks it (`type: s3`).

Belongs here: the YAML block, and staging, completing and swapping on an object store. Not here: the order
of publishing (`commit/publish.py`); connecting and what errors mean (`s3_client.py`).

A staged part is a multipart upload that is not completed: its final key does not exist for anybody.
Completing it is the commit point of the part; of a part that one request carries it is a copy on the server
(`s3_small_parts.py`). The swap of a manifest is one conditional PUT. A store that
knows no `If-Match` refuses it (HTTP 501) and the run ends with that message; one that silently ignores it
loses the fence between two runs that commit one window at once, and then only the lease in the state store
stands between them.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Literal, Self

from pydantic import Field, model_validator

from rivet_resources.contracts.addressing import (
    STAGED,
    PrefixTemplate,
    bucket_of,
    check_endpoint,
    check_place,
    date_of,
    export_prefix,
    is_reserved,
    nonce_of,
    parent_of,
    part_nonce,
    runs_of,
    staged_run,
    with_date,
)
from rivet_resources.contracts.evidence import Finding
from rivet_resources.contracts.parts import Part, PieceSums
from rivet_resources.contracts.settings import Settings
from rivet_resources.destinations import s3_credentials, s3_small_parts, small_parts
from rivet_resources.destinations.range_file import open_ranged
from rivet_resources.destinations.s3_client import (
    ABSENT,
    S3Location,
    connect,
    error_code,
    same_object,
    translate_errors,
)
from rivet_resources.destinations.s3_objects import (
    AS_THE_BUCKET_DOES,
    Checksum,
    Encryption,
    S3Objects,
    Tags,
    is_told,
    pieces_of,
)
from rivet_resources.destinations.stores import prove_writable, window_taken
from rivet_resources.errors import DestinationError, PartCorrupt
from rivet_resources.extras import S3 as S3_EXTRA
from rivet_resources.extras import Extra
from rivet_resources.fan_out import in_threads

# S3 takes 5 MiB to 5 GiB per piece and 10,000 pieces per upload; 8 MiB bounds a task's memory.
# Source: Amazon S3 User Guide, "Amazon S3 multipart upload limits".
PIECE_BYTES = 8 << 20
LARGEST_PIECE_BYTES = 64 << 20
PIECES = 10_000
DELETE_THREADS = 8
PAGE_KEYS = 1000  # the most that one answer to a listing has


class S3(Settings):
    """A bucket and a prefix; the bucket must exist."""

    type: Literal["s3"] = "s3"
    is_stream: ClassVar[bool] = False
    extra: ClassVar[Extra | None] = S3_EXTRA
    schemes: ClassVar[tuple[str, ...]] = ("s3",)
    bucket: str = Field(min_length=1, description="never created by Rivet")
    prefix: PrefixTemplate = Field("", description="below the bucket; {date}, {export}, {table}")
    region: str | None = Field(None, description="of the bucket")
    endpoint: str | None = Field(None, description="of an S3-compatible store: MinIO, R2, Wasabi, B2")
    access_key_env: str | None = Field(None, description="variable with the key id; only with secret_key_env")
    secret_key_env: str | None = Field(None, description="variable with the secret; neither: the default chain")
    session_token_env: str | None = Field(None, description="variable with the session token, beside the two keys")
    aws_profile: str | None = Field(None, description="profile of ~/.aws instead of keys")
    allow_anonymous: bool = Field(
        False, description="unsigned requests where no key is named: emulators and public endpoints"
    )
    allow_insecure_endpoint: bool = Field(False, description="accept plain http to another machine")
    encryption: Encryption | None = Field(
        None, description="of every object, by the store's own keys or by a key of KMS; default: as the bucket does"
    )
    kms_key: str | None = Field(
        None, min_length=1, description="id, ARN or alias of the key; only with sse-kms; default: the account's own"
    )
    tags: Tags = Field(default_factory=dict, description="of every object, at most 10: {team: shop}")
    checksum: Checksum | None = Field(
        None, description="of each piece of a part, kept in the manifest; sha256 is kept by the store as well, and is "
        "the default with sse-kms, under which its own MD5s prove nothing; default: md5"
    )  # fmt: skip

    @model_validator(mode="after")
    def credentials_are_one_way(self) -> Self:
        """Refuse half a key pair, and two ways at once."""
        if (self.access_key_env is None) != (self.secret_key_env is None):
            raise ValueError("access_key_env and secret_key_env go together; set both or neither")
        if self.session_token_env and not self.access_key_env:
            raise ValueError("session_token_env goes with access_key_env and secret_key_env; set all three")
        ways = ("access_key_env", "aws_profile", "allow_anonymous")
        chosen = [name for name in ways if getattr(self, name)]
        # Files of the original have both: keys sign, and `allow_anonymous` is for where there are none.
        if len(chosen) > 1 and chosen != ["access_key_env", "allow_anonymous"]:
            raise ValueError(f"{' and '.join(chosen)} are different ways to sign in; keep one")
        check_endpoint(self.endpoint, plain_http_allowed=self.allow_insecure_endpoint)
        if self.kms_key is not None and self.encryption != "sse-kms":
            raise ValueError("kms_key goes with encryption: sse-kms; set it, or remove kms_key")
        return self

    def __hash__(self) -> int:
        """Hash it as `==` compares it: places are told apart by being keys of a mapping, and a dict is no key."""
        return hash(self.model_dump_json())

    @property
    def objects(self) -> S3Objects:
        """Return with what every object is written."""
        checksum = self.checksum or ("sha256" if self.encryption == "sse-kms" else "md5")
        return S3Objects(self.encryption, self.kms_key, tuple(self.tags.items()), checksum)

    @property
    def location(self) -> S3Location:
        """Return what the client needs to know of this block."""
        return S3Location(
            bucket=self.bucket,
            region=self.region,
            endpoint=self.endpoint,
            access_key_env=self.access_key_env,
            secret_key_env=self.secret_key_env,
            session_token_env=self.session_token_env,
            profile=self.aws_profile,
            is_anonymous=self.allow_anonymous and self.access_key_env is None,
        )

    def root(self, export: str) -> S3Root:
        """Address one export's prefix."""
        return S3Root(self.location, export_prefix(self.prefix, export), export, self.objects)

    def credentials(self) -> Iterator[Finding]:
        """Yield who signs in, and to which endpoint; the store itself is not asked."""
        return s3_credentials.findings(self.location)

    @staticmethod
    def read_address(address: str) -> dict[str, str]:
        """Return bucket and prefix."""
        return bucket_of(address)

    def on(self, day: date) -> Self:
        """Fix `{date}` to the day a run started on."""
        return self.model_copy(update={"prefix": with_date(self.prefix, day)})


@dataclass(frozen=True)
class S3Root:
    """One export's prefix in a bucket; implements `Root`."""

    location: S3Location
    prefix: str
    export: str
    objects: S3Objects = AS_THE_BUCKET_DOES
    keeps_manifests: bool = True

    @property
    def uri(self) -> str:
        """Name the folder for readers."""
        return f"s3://{self.location.bucket}/{self.prefix}"

    def stage(self, file: Path, *, run_id: str, path: str, md5: str) -> dict[str, Any]:
        """Upload a small part below `_staged/`; of a larger one every piece of an upload that is not completed.

        Each request is checked by MD5 on both sides.
        """
        with self._translate(f"stage {path}") as client:
            # One request has no checksum of its pieces but its MD5: who asks for SHA-256 gets an upload in pieces.
            if self.objects.checksum == "md5" and s3_small_parts.is_small(file.stat().st_size):
                waiting = small_parts.staged_name(run_id)
                at = self._at(waiting)
                s3_small_parts.send(client, file, at, uri=f"{self.uri}/{path}", md5=md5, objects=self.objects)
                file.unlink()
                return {"object": waiting}
            answer = client.create_multipart_upload(**self._at(path), **self.objects.upload_words())
            upload_id = answer["UploadId"]
            # Behind the create, as it names the upload's id, and before the first piece, as pieces are what costs. A
            # death between the two leaves an upload without pieces, which the sweep finds by the run's nonce in its
            # key.
            marker = f"{STAGED}/{run_id}/{hashlib.md5(upload_id.encode()).hexdigest()}.upload"
            self.put(marker, json.dumps({"path": path, "upload_id": upload_id}).encode())
            self.objects.check_answer(answer, where=f"{self.uri}: cannot stage {path}")
            whole, etags, sums, size = hashlib.md5(), [], [], 0
            for number, piece in enumerate(pieces(file), start=1):
                whole.update(piece)
                size += len(piece)
                sums.append(self.objects.piece_sum(piece))
                etags.append(self._upload(client, piece, path=path, upload_id=upload_id, number=number))
            # The store proved each piece against what was read just now; only this proves that it was still the file
            # that was measured and read back.
            if base64.b64encode(whole.digest()).decode() != md5:
                client.abort_multipart_upload(**self._at(path), UploadId=upload_id)
                raise PartCorrupt(
                    f"{file} changed while it was uploaded to {self.uri}/{path}. Run again; check the disk."
                )
        told = {"algorithm": self.objects.checksum, "piece_bytes": piece_bytes(file), "pieces": sums}
        file.unlink()
        placed = {"upload_id": upload_id, "key": self._key(path), "marker": marker}
        return {**placed, "etags": etags, "size": size, "sums": told}

    def staged_exists(self, part: Part) -> bool:
        """Return whether all pieces still wait, or the part was already completed, with its size."""
        with self._translate(f"look for {part.path}") as client:
            if small_parts.is_staged_whole(part):
                places = (part.staged["object"], part.path)
                return any(s3_small_parts.holds(client, self._at(place), part) for place in places)
            try:
                pages = client.get_paginator("list_parts").paginate(**self._upload_of(part))
                found = [piece for page in pages for piece in page.get("Parts", [])]
            except client.exceptions.ClientError as error:
                if error_code(error) not in ABSENT:
                    raise
                # No such upload: it was completed by a publish that died behind that request, or aborted by somebody.
                return self._is_complete(client, part)
        # Sizes are enough here: what the pieces hold was compared as each arrived, and is again when they are put
        # together.
        return bool(sum(piece["Size"] for piece in found) == part.size_bytes)

    def publish(self, part: Part) -> None:
        """Complete the upload and compare what the store then holds; a part that is already there is left as it is."""
        if small_parts.is_staged_whole(part):
            self._publish_small(part)
            return
        answer: dict[str, Any] = {}
        with self._translate(f"publish {part.path}") as client:
            try:
                answer = client.complete_multipart_upload(
                    **self._upload_of(part), MultipartUpload={"Parts": pieces_of(part)}
                )
            except client.exceptions.ClientError as error:
                if error_code(error) not in ABSENT:
                    raise
            # The store tells the digest of the pieces it put together. Where it tells none, or another one (encrypted
            # by a key of KMS), or the upload had been completed before, it is asked what it holds.
            if is_told(answer, sums_of(part)) is not True and not self._is_complete(client, part):
                raise self._lost(part)
        # Last: as long as the marker is there, a sweep knows which upload to abort if we die before the completion.
        self.delete([part.staged["marker"]])

    def _publish_small(self, part: Part) -> None:
        staged, final = self._at(part.staged["object"]), self._at(part.path)
        with self._translate(f"publish {part.path}") as client:
            # As above: the store tells the digest of the copy, or is asked.
            is_told_whole = s3_small_parts.copy(client, part, staged=staged, final=final, objects=self.objects)
            if not is_told_whole and not s3_small_parts.holds(client, final, part):
                raise self._lost(part)
        self.delete([part.staged["object"]])

    def _lost(self, part: Part) -> PartCorrupt:
        return PartCorrupt(
            f"{self.uri}/{part.path} is not what was uploaded, or its upload was removed while the run worked. "
            f"Nothing was published; run again."
        )

    def discard(self, parts: Iterable[Part]) -> None:
        """Abort uploads and remove staged objects; missing ones are fine."""
        for part in parts:
            if small_parts.is_staged_whole(part):
                self.delete([part.staged["object"]])
                continue
            self._abort(part.path, upload_id=part.staged["upload_id"])
            self.delete([part.staged["marker"]])

    def read(self, path: str) -> tuple[bytes, str] | None:
        """Read a small object; its version is its ETag."""
        with self._translate(f"read {path}") as client:
            try:
                answer = client.get_object(**self._at(path))
            except client.exceptions.ClientError as error:
                if error_code(error) in ABSENT:
                    return None
                raise
            return answer["Body"].read(), answer["ETag"]

    def put(self, path: str, content: bytes) -> None:
        """Write a small object; a PUT is atomic and durable."""
        with self._translate(f"write {path}") as client:
            answer = client.put_object(
                **self._at(path), Body=content, ContentMD5=md5_of(content), **self.objects.words()
            )
            self.objects.check_answer(answer, where=f"{self.uri}: cannot write {path}")

    def swap(self, path: str, content: bytes, *, expected: str | None) -> str:
        """Write by a conditional PUT: `If-None-Match: *` for a new object, `If-Match` for one seen before."""
        words = self.objects.words() | ({"IfNoneMatch": "*"} if expected is None else {"IfMatch": expected})
        with self._translate(f"write {path}") as client:
            try:
                # Not a read, a comparison and a write: between them another run could commit. The store compares and
                # writes in one step.
                answer = client.put_object(**self._at(path), Body=content, ContentMD5=md5_of(content), **words)
            except client.exceptions.ClientError as error:
                # 404: it was there when planned and is gone. 409: another conditional write is under way.
                if error_code(error) in {"PreconditionFailed", "412", "ConditionalRequestConflict", *ABSENT}:
                    raise window_taken(self.uri, path) from error
                raise
            return str(answer["ETag"])

    def list(self, prefix: str = "") -> dict[str, int]:
        """List objects; staged and dot names are not seen."""
        with self._translate(f"list {prefix or 'the prefix'}"):
            return {path: size for path, size in self._objects(prefix) if not is_reserved(path)}

    def list_after(self, path: str, *, most: int) -> dict[str, str | None]:
        """List from a place on; a listing has the ETag of each object."""
        with self._translate(f"list after {path}"):
            items = self._items(parent_of(path), after=path, most=most)
            found = ((each, item.get("ETag")) for each, item in items if each > path and not is_reserved(each))
            return dict(islice(found, most))

    def delete(self, paths: Iterable[str]) -> None:
        """Remove objects, eight requests at a time; not every store takes the checksums of DeleteObjects."""
        with self._translate("remove objects") as client:
            in_threads(lambda path: client.delete_object(**self._at(path)), paths, most=DELETE_THREADS)

    def told_whole(self, path: str, *, size: int, md5: str, sums: PieceSums | None) -> bool | None:
        """Return whether the store itself says that an object is what was sent; see `TellsContent`."""
        with self._translate(f"look at {path}") as client:
            found = self._head(client, path, sums)
        told = is_told(found, sums) if sums is not None else s3_small_parts.is_md5(found, md5)
        return told if told is None else bool(told and found["ContentLength"] == size)

    def local_path(self, path: str) -> None:
        """Return None: nothing of it is a file of this machine."""

    def open(self, path: str) -> BinaryIO:
        """Open a published object; reads are ranged requests."""
        with self._translate(f"read {path}") as client:
            size = client.head_object(**self._at(path))["ContentLength"]

        def fetch(start: int, end: int) -> bytes:
            with self._translate(f"read {path}") as client:
                answer = client.get_object(**self._at(path), Range=f"bytes={start}-{end - 1}")
                content: bytes = answer["Body"].read()
                return content

        return open_ranged(size, fetch)

    def staged_runs(self) -> set[str]:
        """Name the runs that have something staged here."""
        with self._translate("sweep"):
            return runs_of(path for path, _ in self._objects(f"{STAGED}/"))

    def sweep(self, *, keep: Iterable[str], everywhere: bool = True) -> int:
        """Abort uploads that runs outside `keep` left, by their markers and by the run nonce in their keys.

        Markers name the run exactly, and serve stores that list uploads by whole key only (MinIO); the
        listing finds an upload whose process died before its marker was written.
        """
        with self._translate("sweep"):
            # Both ways, since neither finds all: a store may list no uploads below a prefix, and a process may die
            # before its marker.
            found, uploads = list(self._objects(f"{STAGED}/")), list(self._uploads())
            kept = set(
                keep if found or uploads else ()
            )  # asked after the listing: a run that began since has nothing in it
            dead = [path for path, _ in found if staged_run(path, keep=kept)]
            for path in dead:
                marker = self.read(path) if path.endswith(".upload") else None
                if marker:
                    self._abort_marked(marker[0])
            self.delete(dead)
            removed = len(dead)
            for path, upload_id in uploads:
                # A key that is no part name of this export is an upload of somebody else's, in a prefix that we share.
                nonce = part_nonce(path, export=self.export)
                if nonce and nonce not in {nonce_of(run_id) for run_id in kept}:
                    self._abort(path, upload_id=upload_id)
                    removed += 1
        return removed

    def _abort_marked(self, marker: bytes) -> None:
        """Abort the upload that a marker names; one that is damaged, or names a place elsewhere, names none."""
        try:
            upload = json.loads(marker)
            # The marker lies in a bucket that others may write to: what it names must stay below the export's prefix.
            path, upload_id = check_place(upload["path"]), str(upload["upload_id"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return
        self._abort(path, upload_id=upload_id)

    def check(self) -> None:
        """Write, read and remove a probe."""
        prove_writable(self, thing="an object", look_at="endpoint")

    def now(self) -> datetime | None:
        """Return the store's clock, to the second, from the head of its answer."""
        with self._translate("list the prefix") as client:
            answer = client.list_objects_v2(Bucket=self.location.bucket, Prefix=self._key(""), MaxKeys=1)
        return date_of(answer["ResponseMetadata"]["HTTPHeaders"].get("date"))

    def _translate(self, action: str) -> Any:
        """Return the client; raise what it says in the house voice."""
        return translate_errors(self.location, uri=self.uri, action=action)

    def _key(self, path: str) -> str:
        return f"{self.prefix}/{path}"

    def _at(self, path: str) -> dict[str, str]:
        return {"Bucket": self.location.bucket, "Key": self._key(path)}

    def _upload_of(self, part: Part) -> dict[str, str]:
        return {**self._at(part.path), "UploadId": part.staged["upload_id"]}

    def _upload(self, client: Any, piece: bytes, *, path: str, upload_id: str, number: int) -> str:
        """Send one piece; its ETag, which is its MD5 unless the store encrypts with keys of its own."""
        words = self.objects.piece_words(piece)
        answer = client.upload_part(**self._at(path), UploadId=upload_id, PartNumber=number, Body=piece, **words)
        etag = answer["ETag"].strip('"')
        # A store that does not know SHA-256 tells none; only a different one is a fault here. That none is kept is
        # refused when the upload is completed.
        sums = (answer.get("ChecksumSHA256"), words.get("ChecksumSHA256"))
        if not same_object(answer, etag=etag, expected=hashlib.md5(piece).hexdigest()) or (
            sums[0] and len(set(sums)) > 1
        ):
            raise PartCorrupt(f"{self.uri}/{path}: the store holds another piece {number} than was sent. Run again.")
        return str(etag)

    def _is_complete(self, client: Any, part: Part) -> bool:
        """Return whether the final object is there with the size and the composite checksum of its pieces."""
        sums = sums_of(part)
        try:
            found = self._head(client, part.path, sums)
        except client.exceptions.ClientError as error:
            if error_code(error) in ABSENT:
                return False
            raise
        told = is_told(found, sums)
        if told is None and sums.algorithm == "sha256":
            raise DestinationError(
                f"{self.uri}/{part.path}: the store keeps no SHA-256 of what it was sent. "
                f"Set `destination.checksum: md5`."
            )
        return bool(found["ContentLength"] == part.size_bytes and told is not False)

    def _head(self, client: Any, path: str, sums: PieceSums | None) -> Any:
        # Amazon tells the checksum of an object only to who asks for it.
        mode = {"ChecksumMode": "ENABLED"} if sums is not None and sums.algorithm == "sha256" else {}
        return client.head_object(**self._at(path), **mode)

    def _abort(self, path: str, *, upload_id: str) -> None:
        """Abort one upload; a missing one is fine."""
        with self._translate(f"discard {path}") as client:
            try:
                client.abort_multipart_upload(**self._at(path), UploadId=upload_id)
            except client.exceptions.ClientError as error:
                if error_code(error) not in ABSENT:
                    raise

    def _objects(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Walk the objects below a path, with sizes."""
        return ((path, item["Size"]) for path, item in self._items(prefix))

    def _items(self, prefix: str, *, after: str = "", most: int = PAGE_KEYS) -> Iterator[tuple[str, dict[str, Any]]]:
        """Walk the objects below a path, with what the listing tells of each."""
        client = connect(self.location)
        about = {"Bucket": self.location.bucket, "Prefix": self._key(prefix)}
        if after:
            # Names, not tokens of pages: one request goes straight to the place, however many objects lie before it.
            about["StartAfter"] = self._key(after)
        sizes = {"PageSize": min(most, PAGE_KEYS)}
        for page in client.get_paginator("list_objects_v2").paginate(**about, PaginationConfig=sizes):
            for item in page.get("Contents", []):
                yield item["Key"].removeprefix(f"{self.prefix}/"), item

    def _uploads(self) -> Iterator[tuple[str, str]]:
        """Walk the open uploads below the prefix: path, upload id."""
        client = connect(self.location)
        pages = client.get_paginator("list_multipart_uploads").paginate(
            Bucket=self.location.bucket, Prefix=self._key("")
        )
        for page in pages:
            for upload in page.get("Uploads", []):
                yield upload["Key"].removeprefix(f"{self.prefix}/"), upload["UploadId"]


def md5_of(content: bytes) -> str:
    """Return the value of a Content-MD5 header."""
    return base64.b64encode(hashlib.md5(content).digest()).decode()


def sums_of(part: Part) -> PieceSums:
    """Return the checksums of the pieces a part was sent in; of one that an older Rivet staged, what the store told."""
    return part.sums or PieceSums("md5", PIECE_BYTES, tuple(part.staged["etags"]))


def piece_bytes(file: Path) -> int:
    """Return how large the pieces of a file are, so that there are at most 10,000."""
    return min(LARGEST_PIECE_BYTES, max(PIECE_BYTES, -(-file.stat().st_size // PIECES)))


def pieces(file: Path) -> Iterator[bytes]:
    """Cut a file into pieces of an upload: at least one, at most 10,000."""
    size = piece_bytes(file)
    with file.open("rb") as stream:
        # An empty file has one piece without bytes: an upload without any piece cannot be completed.
        piece = stream.read(size)
        while True:
            yield piece
            piece = stream.read(size)
            if not piece:
                return
