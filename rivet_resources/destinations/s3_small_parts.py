"""Parts on S3 that one request carries: staged below `_staged/<run id>/`, published by one copy on the server.

Belongs here: the requests of such a part, which are three (PUT, copy, DELETE). Not here: parts of several pieces, which
are multipart uploads (`s3.py`).

What proves a part is the same as of larger ones: the store checks the MD5 of what it is sent, and tells its own digest
of what it then holds, of the copy too.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rivet_resources.contracts.parts import Part
from rivet_resources.destinations.s3_client import ABSENT, error_code, same_object
from rivet_resources.destinations.s3_objects import S3Objects
from rivet_resources.errors import PartCorrupt

# An upload that waits to be completed costs five requests for a file of a few kilobytes: it is created, and since not
# every store lists open uploads below a prefix, a marker is written and removed beside it (decided 2026-11).
MOST_BYTES = 16 << 20  # sent again whole when the line breaks
DIFFERENT = frozenset({"BadDigest", "InvalidDigest"})  # what arrived has another MD5 than was announced


def is_small(size_bytes: int) -> bool:
    """Return whether one request carries a part."""
    return size_bytes <= MOST_BYTES


def send(client: Any, file: Path, at: dict[str, str], *, uri: str, md5: str, objects: S3Objects) -> None:
    """Upload a file in one request; the store compares its MD5, and tells it unless it encrypts with keys of its own.

    Raises:
        PartCorrupt: the store got something else than was measured.
        DestinationError: the store does not encrypt as it was asked to.
    """
    try:
        with file.open("rb") as body:
            answer = client.put_object(**at, Body=body, ContentMD5=md5, **objects.upload_words())
    except client.exceptions.ClientError as error:
        if error_code(error) not in DIFFERENT:
            raise
        raise _changed(file, uri) from error
    etag = str(answer["ETag"]).strip('"')
    if not same_object(answer, etag=etag, expected=base64.b64decode(md5).hex()):
        # What is there is not ours to keep; without this the sweep would have to find it.
        client.delete_object(**at)
        raise _changed(file, uri)
    objects.check_answer(answer, where=f"{uri}: cannot stage it")


def copy(client: Any, part: Part, *, staged: dict[str, str], final: dict[str, str], objects: S3Objects) -> bool:
    """Copy a staged object to its final key; whether the store then told the digest that was staged.

    A copy is an object of its own: without words it is encrypted as the bucket says, whatever the staged one was.

    False also where the staged object is gone, as after an earlier call.
    """
    try:
        # The copy is atomic: the final key shows the whole part or nothing. A death behind it leaves the staged one,
        # which a sweep removes, and a second copy would put the same bytes there.
        answer = client.copy_object(**final, CopySource=staged, **objects.copy_words())
    except client.exceptions.ClientError as error:
        if error_code(error) not in ABSENT:
            raise
        return False
    # Encrypted by KMS, this is no MD5 and False: `publish` then asks for the size of what is there.
    told = str(answer.get("CopyObjectResult", {}).get("ETag", "")).strip('"')
    return told == base64.b64decode(part.md5).hex()


def holds(client: Any, at: dict[str, str], part: Part) -> bool:
    """Return whether an object is there with a part's size and MD5; where its ETag is no MD5, with its size."""
    try:
        found = client.head_object(**at)
    except client.exceptions.ClientError as error:
        if error_code(error) in ABSENT:
            return False
        raise
    same = same_object(found, etag=found["ETag"].strip('"'), expected=base64.b64decode(part.md5).hex())
    return bool(found["ContentLength"] == part.size_bytes and same)


def is_md5(answer: Mapping[str, Any], md5: str) -> bool | None:
    """Return whether what a store tells of an object is this MD5; None: it tells none, or it was sent in pieces."""
    etag = str(answer.get("ETag", "")).strip('"')
    if "-" in etag or same_object(answer, etag="", expected="-"):  # of pieces, or opaque
        return None
    return etag == base64.b64decode(md5).hex()


def _changed(file: Path, uri: str) -> PartCorrupt:
    return PartCorrupt(f"{file} changed while it was uploaded to {uri}. Run again; check the disk.")
