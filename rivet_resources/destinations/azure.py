"""Blobs in a container of Azure Blob Storage or ADLS Gen2 (`type: azure`).

Belongs here: the YAML block, and staging, committing and swapping on Azure. Not here: the order of publishing
(`commit/publish.py`); connecting and what errors mean (`azure_client.py`).

A staged part that one request carries is a blob below `_staged/<run id>/`, out of which the store writes the final one
(`azure_small_parts.py`). A larger one is blocks of its final name that no block list names yet: the blob does not exist
for anybody. Azure takes back no block by itself before a week has passed, and has no request to drop them: a marker
below `_staged/<run id>/` says that blocks wait, and without its marker a part is not published any more.

The swap of a manifest is one upload with `If-None-Match` or `If-Match`; a version is an ETag.
"""

from __future__ import annotations

import base64
import hashlib
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Any, BinaryIO, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from rivet_resources.contracts.addressing import (
    STAGED,
    PrefixTemplate,
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
from rivet_resources.destinations import azure_credentials, azure_small_parts, small_parts
from rivet_resources.destinations.azure_client import (
    PIECE_BYTES,
    TAKEN,
    AzureLocation,
    api_exceptions,
    error_code,
    translate_errors,
)
from rivet_resources.destinations.range_file import open_ranged
from rivet_resources.destinations.stores import prove_writable, window_taken
from rivet_resources.errors import DestinationError, PartCorrupt
from rivet_resources.extras import AZURE, Extra
from rivet_resources.fan_out import in_threads

# A block list has at most 50,000 blocks. Source: Microsoft Learn, "Scale targets for Blob storage".
BLOCKS = 50_000
DELETE_THREADS = 8
# Metadata of the empty blobs that stand for folders, as ADLS Gen2 and Hadoop keep them.
FOLDER = "hdi_isfolder"
Account = Annotated[str, Field(pattern=r"^[a-z0-9]{3,24}$")]
Container = Annotated[str, Field(pattern=r"^(\$root|\$web|[a-z0-9](-?[a-z0-9]){2,62})$")]


class Azure(Settings):
    """A container of a storage account and a prefix; both must exist. Without a variable: Azure's default chain."""

    type: Literal["azure"] = "azure"
    is_stream: ClassVar[bool] = False
    extra: ClassVar[Extra | None] = AZURE
    schemes: ClassVar[tuple[str, ...]] = ("abfss", "abfs", "az", "azure")
    account: Account = Field(description="storage account, by its name alone")
    container: Container = Field(description="never created by Rivet")
    prefix: PrefixTemplate = Field("", description="below the container; {date}, {export}, {table}")
    endpoint: str | None = Field(None, description="of another cloud, a private endpoint or Azurite, with its account")
    connection_string_env: str | None = Field(None, description="variable with the account's connection string")
    account_key_env: str | None = Field(None, description="variable with a key of the account")
    sas_token_env: str | None = Field(
        None, description="variable with a shared access signature of the container; none of the three: default chain"
    )
    allow_insecure_endpoint: bool = Field(False, description="accept plain http to another machine")

    @model_validator(mode="after")
    def credentials_are_one_way(self) -> Self:
        """Refuse two ways to sign in at once, and an identity's token over plain http."""
        ways = ("connection_string_env", "account_key_env", "sas_token_env")
        chosen = [name for name in ways if getattr(self, name)]
        if len(chosen) > 1:
            raise ValueError(f"{' and '.join(chosen)} are different ways to sign in; keep one")
        if self.connection_string_env and self.endpoint:
            raise ValueError("connection_string_env names an endpoint of its own; remove endpoint")
        check_endpoint(self.endpoint, plain_http_allowed=self.allow_insecure_endpoint)
        if not chosen and (self.endpoint or "").startswith("http:"):
            raise ValueError(
                "endpoint is plain http, over which Azure's default chain signs in nowhere; name account_key_env or "
                "sas_token_env, or use https"
            )
        return self

    @property
    def location(self) -> AzureLocation:
        """Return what the client needs to know of this block."""
        return AzureLocation(
            account=self.account,
            container=self.container,
            endpoint=self.endpoint,
            connection_string_env=self.connection_string_env,
            account_key_env=self.account_key_env,
            sas_token_env=self.sas_token_env,
            allow_insecure=self.allow_insecure_endpoint,
        )

    def root(self, export: str) -> AzureRoot:
        """Address one export's prefix."""
        return AzureRoot(self.location, export_prefix(self.prefix, export), export)

    def credentials(self) -> Iterator[Finding]:
        """Yield who signs in, and to which endpoint; the store itself is not asked."""
        return azure_credentials.findings(self.location)

    @staticmethod
    def read_address(address: str) -> dict[str, str]:
        """Return account, container and prefix of `container@account.…/prefix` or `account.…/container/prefix`."""
        place, _, path = address.partition("/")
        container, at, host = place.rpartition("@")
        if not at:
            container, _, path = path.partition("/")
        account, dot, _ = host.partition(".")
        # `az://container/prefix` says nothing of an account.
        if not (account and container and (dot or at)):
            return {}
        return {"account": account, "container": container, "prefix": path.strip("/")}

    def on(self, day: date) -> Self:
        """Fix `{date}` to the day a run started on."""
        return self.model_copy(update={"prefix": with_date(self.prefix, day)})


@dataclass(frozen=True)
class AzureRoot:
    """One export's prefix in a container; implements `Root`."""

    location: AzureLocation
    prefix: str
    export: str
    keeps_manifests: bool = True

    @property
    def uri(self) -> str:
        """Name the folder for readers: as Spark, DuckDB and Polars take it, but for an emulator."""
        at = self.location
        host = urlsplit(at.url).netloc
        if host.startswith(f"{at.account}.blob."):
            return f"abfss://{at.container}@{host.replace('.blob.', '.dfs.', 1)}/{self.prefix}"
        return f"az://{host}/{at.account}/{at.container}/{self.prefix}"

    def stage(self, file: Path, *, run_id: str, path: str, md5: str) -> dict[str, Any]:
        """Send a small part below `_staged/`; of a larger one every block of the final name, and commit none.

        Each request is checked by MD5 on both sides.
        """
        if azure_small_parts.is_small(file.stat().st_size):
            return self._stage_small(file, run_id=run_id, path=path, md5=md5)
        attempt = uuid.uuid4().hex[:8]
        marker = f"{STAGED}/{run_id}/{attempt}.blocks"
        # First: blocks without it are nobody's, and Azure drops them.
        self.put(marker, path.encode())
        whole, number, sums = hashlib.md5(), 0, []
        with self._translate(f"stage {path}") as container:
            blob = container.get_blob_client(self._key(path))
            for number, piece in enumerate(pieces(file), start=1):
                whole.update(piece)
                sums.append(hashlib.md5(piece).hexdigest())
                # Names begin with the attempt: blocks of two attempts wait under one blob name, and a list must name
                # only its own.
                blob.stage_block(block_id(attempt, number), piece, validate_content=True)
        if base64.b64encode(whole.digest()).decode() != md5:
            self.delete([marker])
            raise PartCorrupt(f"{file} changed while it was uploaded to {self.uri}/{path}. Run again; check the disk.")
        told = {"algorithm": "md5", "piece_bytes": piece_bytes(file), "pieces": sums}
        file.unlink()
        return {"attempt": attempt, "blocks": number, "marker": marker, "sums": told}

    def _stage_small(self, file: Path, *, run_id: str, path: str, md5: str) -> dict[str, Any]:
        waiting = small_parts.staged_name(run_id)
        with self._translate(f"stage {path}") as container:
            blob = container.get_blob_client(self._key(waiting))
            azure_small_parts.send(blob, file, uri=f"{self.uri}/{path}", md5=md5)
        file.unlink()
        return {"object": waiting}

    def staged_exists(self, part: Part) -> bool:
        """Return whether it still waits as it was staged, or was already published, with its size."""
        with self._translate(f"look for {part.path}") as container:
            # Looked at before the blocks: committing dropped all blocks of that name that the list does not have.
            if self._holds(container, part.path, part):
                return True
            if small_parts.is_staged_whole(part):
                return self._holds(container, part.staged["object"], part)
            if not container.get_blob_client(self._key(part.staged["marker"])).exists():
                return False
            with suppress(api_exceptions().ResourceNotFoundError):  # a week went by
                _, waiting = container.get_blob_client(self._key(part.path)).get_block_list("uncommitted")
                sizes = {block.id: block.size for block in waiting}
                return bool(sum(sizes.get(name, 0) for name in _blocks_of(part)) == part.size_bytes)
        return False

    def publish(self, part: Part) -> None:
        """Write the blob of a small part, commit the list of a larger one; calling it again changes nothing."""
        if small_parts.is_staged_whole(part):
            self._publish_small(part)
            return
        with self._translate(f"publish {part.path}") as container:
            try:
                # A list is committed as a whole or not at all, and the store compared each block with its MD5 as it
                # came.
                self._commit(container, part)
            except DestinationError:
                # A publish that died behind its commit is repeated: the marker is gone, and the blob is what was
                # measured.
                if not self._holds(container, part.path, part):
                    raise
        self.delete([part.staged["marker"]])

    def _publish_small(self, part: Part) -> None:
        with self._translate(f"publish {part.path}") as container:
            staged, final = map(container.get_blob_client, map(self._key, (part.staged["object"], part.path)))
            where = f"{self.uri}/{part.path}"
            is_told = azure_small_parts.publish(part, staged=staged, final=final, location=self.location, uri=where)
            # The store tells the MD5 of what it wrote, or is asked what is there.
            if not is_told and not self._holds(container, part.path, part):
                raise self._gone(part)
        self.delete([part.staged["object"]])

    def discard(self, parts: Iterable[Part]) -> None:
        """Forget staged parts; Azure itself drops their blocks after a week."""
        # What waits for a part, whichever way it was staged.
        self.delete([part.staged.get("object") or part.staged["marker"] for part in parts])

    def read(self, path: str) -> tuple[bytes, str] | None:
        """Read a small object; its version is its ETag, of the same answer."""
        with self._translate(f"read {path}") as container:
            try:
                stream = container.download_blob(self._key(path))
                return stream.readall(), str(stream.properties.etag)
            except api_exceptions().ResourceNotFoundError as error:
                if error_code(error) not in TAKEN:  # the container
                    raise
                return None

    def put(self, path: str, content: bytes) -> None:
        """Write a small object; an upload is atomic and durable."""
        with self._translate(f"write {path}") as container:
            container.upload_blob(self._key(path), content, overwrite=True, validate_content=True)

    def swap(self, path: str, content: bytes, *, expected: str | None) -> str:
        """Write by a conditional upload: `If-None-Match: *` for a new object, `If-Match` for one seen before."""
        api = api_exceptions()
        condition: dict[str, Any] = {"overwrite": False}
        if expected is not None:
            from azure.core import MatchConditions  # driver

            # `overwrite` only says that a blob may be there; which one, the condition says.
            condition = {"overwrite": True, "etag": expected, "match_condition": MatchConditions.IfNotModified}
        with self._translate(f"write {path}") as container:
            blob = container.get_blob_client(self._key(path))
            try:
                answer = blob.upload_blob(content, validate_content=True, **condition)
            except api.HttpResponseError as error:
                # A blob that was there when the window was planned, and is gone, answers 404: that is taken as well.
                if error.response is not None and (error.status_code == 412 or error_code(error) in TAKEN):
                    raise window_taken(self.uri, path) from error
                raise
            return str(answer["etag"])

    def list(self, prefix: str = "") -> dict[str, int]:
        """List objects; staged and dot names are not seen."""
        return {path: size for path, size in self._objects(prefix).items() if not is_reserved(path)}

    def list_after(self, path: str, *, most: int) -> dict[str, str | None]:
        """List the folder, and take what follows: a container is listed from its beginning."""
        folder = parent_of(path)
        with self._translate(f"list {folder or 'the prefix'}"):
            # An answer to a read has the ETag in quotes, a listing without.
            found = {each: f'"{blob.etag.strip(chr(34))}"' for each, blob in self._blobs(folder)}
        follows = sorted(each for each in found if each > path and not is_reserved(each))
        return {each: found[each] for each in follows[:most]}

    def delete(self, paths: Iterable[str]) -> None:
        """Remove objects, eight at a time."""
        api = api_exceptions()

        def remove(path: str) -> None:
            with self._translate(f"remove {path}") as container:
                try:
                    container.delete_blob(self._key(path))
                except api.ResourceNotFoundError as error:
                    if error_code(error) not in TAKEN:
                        raise

        in_threads(remove, paths, most=DELETE_THREADS)

    def told_whole(self, path: str, *, size: int, md5: str, sums: PieceSums | None) -> bool | None:
        """Return whether the MD5 that the commit wrote beside an object is what was sent; see `TellsContent`."""
        with self._translate(f"look at {path}") as container:
            found = container.get_blob_client(self._key(path)).get_blob_properties()
        told = base64.b64encode(bytes(found.content_settings.content_md5 or b"")).decode()
        return bool((found.size, told) == (size, md5)) if told else None

    def local_path(self, path: str) -> None:
        """Return None: nothing of it is a file of this machine."""

    def open(self, path: str) -> BinaryIO:
        """Open a published object; reads are ranged requests."""
        with self._translate(f"read {path}") as container:
            size = container.get_blob_client(self._key(path)).get_blob_properties().size

        def fetch(start: int, end: int) -> bytes:
            with self._translate(f"read {path}") as container:
                content: bytes = container.download_blob(self._key(path), offset=start, length=end - start).readall()
                return content

        return open_ranged(size, fetch)

    def staged_runs(self) -> set[str]:
        """Name the runs that have something staged here."""
        return runs_of(self._objects(f"{STAGED}/"))

    def sweep(self, *, keep: Iterable[str], everywhere: bool = True) -> int:
        """Remove what lies staged by runs outside `keep`; blocks go with their markers, as `discard` says."""
        found = self._objects(f"{STAGED}/")
        # Asked after the listing: a run that began since has nothing in it.
        kept = set(keep if found else ())
        dead = [path for path in found if staged_run(path, keep=kept)]
        self.delete(dead)
        return len(dead)

    def check(self) -> None:
        """Write, read and remove a probe."""
        prove_writable(self, thing="a blob", look_at="endpoint")

    def now(self) -> datetime | None:
        """Return the store's clock, to the second, from the head of its answer."""
        heads: list[str | None] = []

        def note(answer: Any) -> None:
            heads.append(answer.http_response.headers.get("Date"))

        with self._translate("list the prefix") as container:
            pages = container.list_blobs(self._key(""), results_per_page=1, raw_response_hook=note).by_page()
            next(pages, None)
        return date_of(heads[0]) if heads else None

    def _translate(self, action: str) -> Any:
        """Return the container's client; raise what it says in the house voice."""
        return translate_errors(self.location, uri=self.uri, action=action)

    def _key(self, path: str) -> str:
        return f"{self.prefix}/{path}"

    def _holds(self, container: Any, path: str, part: Part) -> bool:
        """Return whether a blob is there with a part's size and the MD5 that was kept with it when it was written."""
        try:
            found = container.get_blob_client(self._key(path)).get_blob_properties()
        except api_exceptions().ResourceNotFoundError as error:
            if error_code(error) not in TAKEN:
                raise
            return False
        # Azure computes no MD5 of a blob that is made of blocks, or of another blob: it gives back what it was told.
        md5 = base64.b64encode(bytes(found.content_settings.content_md5 or b"")).decode()
        return bool((found.size, md5) == (part.size_bytes, part.md5))

    def _commit(self, container: Any, part: Part) -> None:
        """Make the blob out of its blocks.

        Raises:
            DestinationError: marker or blocks are gone.
        """
        from azure.storage.blob import BlobBlock, ContentSettings  # driver

        api = api_exceptions()
        blob = container.get_blob_client(self._key(part.path))
        # Azure has no request that drops blocks, so discarding a part means removing its marker: without it the blocks
        # must not become a blob, as of a window that a quality rule refused.
        if not container.get_blob_client(self._key(part.staged["marker"])).exists():
            raise self._gone(part)
        # Of the whole file: what readers and `rivet validate` compare with. The store keeps it as told and checks
        # nothing.
        settings = ContentSettings(content_md5=bytearray(base64.b64decode(part.md5)))
        try:
            # The commit point of the part. Written out of a staged blob (as small ones are) every byte would be written
            # twice.
            blob.commit_block_list([BlobBlock(name) for name in _blocks_of(part)], content_settings=settings)
        except api.HttpResponseError as error:
            if error.response is not None and error_code(error) == "InvalidBlockList":
                raise self._gone(part) from error
            raise

    def _gone(self, part: Part) -> DestinationError:
        return DestinationError(
            f"{self.uri}: staged part {part.path} is gone. Something removed it while the run worked, or it waited "
            f"for more than a week; run again."
        )

    def _objects(self, prefix: str) -> dict[str, int]:
        """List the blobs below a path, with sizes; those that stand for folders are none."""
        with self._translate(f"list {prefix or 'the prefix'}"):
            return {path: blob.size for path, blob in self._blobs(prefix)}

    def _blobs(self, prefix: str) -> Iterator[tuple[str, Any]]:
        with self._translate(f"list {prefix or 'the prefix'}") as container:
            # With metadata, for accounts with a hierarchical namespace list their folders as empty blobs.
            for blob in container.list_blobs(self._key(prefix), include=["metadata"]):
                if (blob.metadata or {}).get(FOLDER) != "true":
                    yield blob.name.removeprefix(f"{self.prefix}/"), blob


def block_id(attempt: str, number: int) -> str:
    """Name a block; all names of a blob's blocks have one length."""
    # Source: Microsoft Learn, "Put Block": all ids of one blob's blocks have the same length.
    return f"{attempt}-{number:05d}"


def _blocks_of(part: Part) -> Iterable[str]:
    return [block_id(part.staged["attempt"], number) for number in range(1, part.staged["blocks"] + 1)]


def piece_bytes(file: Path) -> int:
    """Return how large the blocks of a file are, so that there are at most 50,000."""
    return max(PIECE_BYTES, -(-file.stat().st_size // BLOCKS))


def pieces(file: Path) -> Iterator[bytes]:
    """Cut a file into blocks: at most 50,000, and none of a file without bytes."""
    size = piece_bytes(file)
    with file.open("rb") as stream:
        while piece := stream.read(size):
            yield piece
