"""Objects in a bucket of Google Cloud Storage (`type: gcs`).

Belongs here: the YAML block, and staging, moving and swapping on GCS. Not here: the order of publishing
(`commit/publish.py`); connecting and what errors mean (`gcs_client.py`).

A staged part is an object below `_staged/<run id>/`. Publishing rewrites it on the server, without moving
its bytes through this machine, and deletes the staged one. The swap of a manifest is one upload with
`if_generation_match`; a version is a generation, 0 meaning absent.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, BinaryIO, ClassVar, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from rivet_resources.contracts.addressing import (
    STAGED,
    PrefixTemplate,
    bucket_of,
    check_endpoint,
    date_of,
    export_prefix,
    is_reserved,
    parent_of,
    runs_of,
    staged_run,
    with_date,
)
from rivet_resources.contracts.evidence import Finding
from rivet_resources.contracts.parts import Part, PieceSums
from rivet_resources.contracts.settings import Settings
from rivet_resources.destinations import gcs_credentials
from rivet_resources.destinations.gcs_client import (
    REQUEST_SECONDS,
    GcsLocation,
    api_exceptions,
    control,
    translate_errors,
)
from rivet_resources.destinations.range_file import open_ranged
from rivet_resources.destinations.stores import prove_writable, window_taken
from rivet_resources.errors import DestinationError, DestinationUnreachable, PartCorrupt
from rivet_resources.extras import GCS, Extra
from rivet_resources.fan_out import in_threads

# Per request of a resumable upload; bounds a task's memory.
UPLOAD_BYTES = 8 << 20
READ_TRIES = 5
# Source: Cloud KMS documentation, "Getting a Cloud KMS resource ID"; a version is the store's choice.
KMS_KEY = re.compile(r"projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+")
DELETE_THREADS = 8


class Gcs(Settings):
    """A bucket and a prefix; the bucket must exist. Without a key file: application default credentials."""

    type: Literal["gcs"] = "gcs"
    is_stream: ClassVar[bool] = False
    extra: ClassVar[Extra | None] = GCS
    schemes: ClassVar[tuple[str, ...]] = ("gs", "gcs")
    bucket: str = Field(min_length=1, description="never created by Rivet")
    prefix: PrefixTemplate = Field("", description="below the bucket; {date}, {export}, {table}")
    credentials_file: Path | None = Field(None, description="service account JSON; must exist")
    endpoint: str | None = Field(None, description="of an emulator or a private endpoint")
    allow_anonymous: bool = Field(False, description="unsigned requests: emulators and public endpoints")
    allow_insecure_endpoint: bool = Field(False, description="accept plain http to another machine")
    kms_key: str | None = Field(
        None,
        description="key of Cloud KMS that encrypts every object: projects/…/locations/…/keyRings/…/cryptoKeys/…; "
        "default: as the bucket does",
    )
    metadata: dict[Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]+$")], str] = Field(
        default_factory=dict, description="of every object: {team: shop}; Cloud Storage has no object tags"
    )

    @model_validator(mode="after")
    def credentials_are_one_way(self) -> Self:
        """Refuse a key file that is not there, and two ways to sign in at once."""
        if self.credentials_file is not None and self.allow_anonymous:
            raise ValueError("credentials_file and allow_anonymous are different ways to sign in; keep one")
        if self.credentials_file is not None and not self.credentials_file.is_file():
            raise ValueError(
                f"credentials_file {self.credentials_file} does not exist; download the service account's JSON key"
            )
        check_endpoint(self.endpoint, plain_http_allowed=self.allow_insecure_endpoint)
        if self.kms_key is not None and not KMS_KEY.fullmatch(self.kms_key):
            raise ValueError(
                f"kms_key {self.kms_key} is no key of Cloud KMS; write "
                f"projects/…/locations/…/keyRings/…/cryptoKeys/…, without a version"
            )
        return self

    def __hash__(self) -> int:
        """Hash it as `==` compares it: places are told apart by being keys of a mapping, and a dict is no key."""
        return hash(self.model_dump_json())

    @property
    def location(self) -> GcsLocation:
        """Return what the client needs to know of this block."""
        return GcsLocation(self.bucket, self.credentials_file, self.endpoint, self.allow_anonymous)

    def root(self, export: str) -> GcsRoot:
        """Address one export's prefix."""
        objects = GcsObjects(self.kms_key, tuple(self.metadata.items()))
        return GcsRoot(self.location, export_prefix(self.prefix, export), export, objects)

    def credentials(self) -> Iterator[Finding]:
        """Yield who signs in, and to which endpoint; the store itself is not asked."""
        return gcs_credentials.findings(self.location)

    @staticmethod
    def read_address(address: str) -> dict[str, str]:
        """Return bucket and prefix."""
        return bucket_of(address)

    def on(self, day: date) -> Self:
        """Fix `{date}` to the day a run started on."""
        return self.model_copy(update={"prefix": with_date(self.prefix, day)})


@dataclass(frozen=True)
class GcsObjects:
    """With what every object is written; plain data: a key of KMS is named, never held."""

    kms_key: str | None = None
    metadata: tuple[tuple[str, str], ...] = ()

    def blob(self, bucket: Any, key: str, **about: Any) -> Any:
        """Return an object to be written."""
        blob = bucket.blob(key, kms_key_name=self.kms_key, **about)
        if self.metadata:
            blob.metadata = dict(self.metadata)
        return blob

    def check(self, blob: Any, *, where: str) -> None:
        """See that the store encrypted as it was asked to: one that knows no keys passes them over.

        Raises:
            DestinationError
        """
        told = str(blob.kms_key_name or "").partition("/cryptoKeyVersions/")[0]
        if self.kms_key is not None and told != self.kms_key:
            raise DestinationError(
                f"{where}: the store was asked to encrypt by `destination.kms_key`, and says it did so by "
                f"{told or 'its own key'}. Use a store that can, or remove the key."
            )


AS_THE_BUCKET_DOES = GcsObjects()


@dataclass(frozen=True)
class GcsRoot:
    """One export's prefix in a bucket; implements `Root`."""

    location: GcsLocation
    prefix: str
    export: str
    objects: GcsObjects = AS_THE_BUCKET_DOES
    keeps_manifests: bool = True

    @property
    def uri(self) -> str:
        """Name the folder for readers."""
        return f"gs://{self.location.bucket}/{self.prefix}"

    def stage(self, file: Path, *, run_id: str, path: str, md5: str) -> dict[str, Any]:
        """Upload under `_staged/<run id>/` and compare the MD5 the store computed."""
        relative = f"{STAGED}/{run_id}/{uuid.uuid4().hex[:8]}-{file.name}"
        with self._translate(f"stage {path}") as bucket:
            size = file.stat().st_size
            blob = self.objects.blob(bucket, self._key(relative), chunk_size=UPLOAD_BYTES)
            blob.upload_from_filename(str(file), checksum="crc32c", **control())
            self.objects.check(blob, where=f"{self.uri}: cannot stage {path}")
            # An upload answers with the object's own MD5, so this proves the bytes at rest without a further request.
            if (blob.size, blob.md5_hash) != (size, md5):
                raise PartCorrupt(f"{self.uri}/{relative}: the store holds something else than was sent. Run again.")
        file.unlink()
        return {"path": relative}

    def staged_exists(self, part: Part) -> bool:
        """Return whether the part still lies staged, or already under its final name, with its MD5."""
        with self._translate(f"look for {part.path}") as bucket:
            return any(self._holds(bucket, path, part) for path in (part.staged["path"], part.path))

    def publish(self, part: Part) -> None:
        """Rewrite to the final name on the server, then delete the staged object; a published part is left as it is."""
        api = api_exceptions()

        with self._translate(f"publish {part.path}") as bucket:
            try:
                self._rewrite(bucket, part)
            except api.NotFound as error:  # of the staged object, or of the bucket, which the next request tells
                # A publish that died behind its rewrite is repeated, and meets a part that is in its place.
                if not self._holds(bucket, part.path, part):
                    raise DestinationError(
                        f"{self.uri}: staged part {part.staged['path']} is gone and {part.path} is not there. "
                        f"Something removed it while the run worked; run again."
                    ) from error
        # Behind the rewrite: what a death leaves between them is a second copy below `_staged/`, and no part is
        # missing.
        self.delete([part.staged["path"]])

    def discard(self, parts: Iterable[Part]) -> None:
        """Remove staged parts; missing ones are fine."""
        self.delete([part.staged["path"] for part in parts])

    def read(self, path: str) -> tuple[bytes, str] | None:
        """Read a small object with its generation; both from the same instant."""
        api = api_exceptions()

        with self._translate(f"read {path}") as bucket:
            told = bucket.blob(self._key(path))
            try:
                content = told.download_as_bytes(**control())
            except api.NotFound:
                return None
            # The head of the answer; emulators leave it out.
            if told.generation:
                return content, str(told.generation)
            # The version must be of the very content that was read: a swap compares with it, and a newer one would let
            # a writer pass who never saw what it overwrites.
            for _ in range(READ_TRIES):
                blob = bucket.get_blob(self._key(path), **control())
                if blob is None:
                    return None
                # Kept: a download writes what the answer's headers say over it.
                generation = blob.generation
                try:
                    return blob.download_as_bytes(if_generation_match=generation, **control()), str(generation)
                except (api.NotFound, api.PreconditionFailed):
                    # Replaced since `get_blob`.
                    continue
        raise DestinationUnreachable(f"{self.uri}/{path} is being rewritten all the time. Run again.")

    def put(self, path: str, content: bytes) -> None:
        """Write a small object; an upload is atomic and durable."""
        with self._translate(f"write {path}") as bucket:
            blob = self.objects.blob(bucket, self._key(path))
            blob.upload_from_string(content, checksum="md5", **control())
            self.objects.check(blob, where=f"{self.uri}: cannot write {path}")

    def swap(self, path: str, content: bytes, *, expected: str | None) -> str:
        """Write only over the generation seen before."""
        api = api_exceptions()

        with self._translate(f"write {path}") as bucket:
            blob = self.objects.blob(bucket, self._key(path))
            try:
                # Generation 0 means: only if there is none. Source: Cloud Storage documentation, "Request
                # preconditions".
                blob.upload_from_string(content, checksum="md5", if_generation_match=int(expected or 0), **control())
            except api.PreconditionFailed as error:
                raise window_taken(self.uri, path) from error
            return str(blob.generation)

    def list(self, prefix: str = "") -> dict[str, int]:
        """List objects; staged and dot names are not seen."""
        return {path: size for path, size in self._objects(prefix).items() if not is_reserved(path)}

    def list_after(self, path: str, *, most: int) -> dict[str, str | None]:
        """List from a place on; a listing has the generation of each object."""
        with self._translate(f"list after {path}") as bucket:
            # One more than asked for: `start_offset` is inclusive, and the place itself does not count.
            about = {"prefix": self._key(parent_of(path)), "start_offset": self._key(path), "page_size": most + 1}
            found = bucket.client.list_blobs(bucket, **about, **control())
            items = ((blob.name.removeprefix(f"{self.prefix}/"), str(blob.generation)) for blob in found)
            # The place itself may be among them; emulators begin at the beginning whatever they are asked.
            return dict(islice(((each, told) for each, told in items if each > path and not is_reserved(each)), most))

    def delete(self, paths: Iterable[str]) -> None:
        """Remove objects, eight at a time."""
        api = api_exceptions()

        def remove(path: str) -> None:
            with self._translate(f"remove {path}") as bucket, suppress(api.NotFound):
                bucket.blob(self._key(path)).delete(**control())

        in_threads(remove, paths, most=DELETE_THREADS)

    def told_whole(self, path: str, *, size: int, md5: str, sums: PieceSums | None) -> bool | None:
        """Return whether the store's own MD5 of an object is what was sent; see `TellsContent`."""
        with self._translate(f"look at {path}") as bucket:
            blob = bucket.get_blob(self._key(path), **control())
        # None: gone since it was listed; composite objects have no MD5.
        if blob is None or blob.md5_hash is None:
            return None
        return bool((blob.size, blob.md5_hash) == (size, md5))

    def local_path(self, path: str) -> None:
        """Return None: nothing of it is a file of this machine."""

    def open(self, path: str) -> BinaryIO:
        """Open a published object; reads are ranged requests."""
        with self._translate(f"read {path}") as bucket:
            blob = bucket.get_blob(self._key(path), **control())
            if blob is None:
                raise DestinationError(f"{self.uri}/{path} is not there. Run the export again.")

        def fetch(start: int, end: int) -> bytes:
            with self._translate(f"read {path}"):
                # The store's checksum is of the whole object, so a range cannot be compared with it.
                content: bytes = blob.download_as_bytes(start=start, end=end - 1, checksum=None, **control())
                return content

        return open_ranged(blob.size, fetch)

    def staged_runs(self) -> set[str]:
        """Name the runs that have something staged here."""
        return runs_of(path for path in self._objects(f"{STAGED}/"))

    def sweep(self, *, keep: Iterable[str], everywhere: bool = True) -> int:
        """Remove what lies staged by runs outside `keep`."""
        found = self._objects(f"{STAGED}/")
        # Asked after the listing: a run that began since has nothing in it.
        kept = set(keep if found else ())
        dead = [path for path in found if staged_run(path, keep=kept)]
        self.delete(dead)
        return len(dead)

    def check(self) -> None:
        """Write, read and remove a probe."""
        prove_writable(self, thing="an object", look_at="endpoint")

    def now(self) -> datetime | None:
        """Return the store's clock, to the second, from the head of its answer."""
        with self._translate("look at the bucket") as bucket:
            path = f"/b/{bucket.name}/o"
            url = bucket.client._connection.build_api_url(path, {"maxResults": 1, "prefix": self._key("")})
            return date_of(bucket.client._http.get(url, timeout=REQUEST_SECONDS).headers.get("Date"))

    def _translate(self, action: str) -> Any:
        """Return the bucket; raise what the client says in the house voice."""
        return translate_errors(self.location, uri=self.uri, action=action)

    def _key(self, path: str) -> str:
        return f"{self.prefix}/{path}"

    def _holds(self, bucket: Any, path: str, part: Part) -> bool:
        """Return whether an object is there with a part's size and MD5."""
        blob = bucket.get_blob(self._key(path), **control())
        return blob is not None and (blob.size, blob.md5_hash) == (part.size_bytes, part.md5)

    def _rewrite(self, bucket: Any, part: Part) -> None:
        """Copy on the server; large objects take several requests. The last answer tells what the copy is.

        Raises:
            PartCorrupt: the copy differs.
        """
        staged = bucket.blob(self._key(part.staged["path"]))
        final = self.objects.blob(bucket, self._key(part.path))
        # An object in another location or storage class, or under another key, is copied in several calls; the final
        # name shows nothing before the last.
        token, _, _ = final.rewrite(staged, **control())
        while token is not None:
            token, _, _ = final.rewrite(staged, token=token, **control())
        self.objects.check(final, where=f"{self.uri}: cannot publish {part.path}")
        if (final.size, final.md5_hash) != (part.size_bytes, part.md5):
            raise PartCorrupt(f"{self.uri}/{part.path} is not what was staged. Nothing was published; run again.")

    def _objects(self, prefix: str) -> dict[str, int]:
        """List the objects below a path, with sizes."""
        with self._translate(f"list {prefix or 'the prefix'}") as bucket:
            blobs = bucket.client.list_blobs(bucket, prefix=self._key(prefix), **control())
            return {blob.name.removeprefix(f"{self.prefix}/"): blob.size for blob in blobs}
