"""Parts on Azure that one request carries: staged below `_staged/<run id>/`, published by the store out of that blob.

Belongs here: the requests of such a part, which are three (PUT, PUT from the staged blob, DELETE). Not here: larger
parts, which wait as blocks of their final name (`azure.py`).

What publishes is `Put Blob From URL`: it writes a blob whole or not at all, compares what it took with the MD5 that was
measured, and tells the one it computed. A store that takes no blob by its address (Azurite; a signature that is bound
to addresses of machines) is sent the bytes a second time, which is one request more.
"""

# `Copy Blob From URL` would do with one request too, and is supported by Azurite. But its ETag changes when it begins
# and when it ends: in between an empty blob has the part's name. Source: Microsoft Learn, "Copy Blob From URL".

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

from rivet_resources.contracts.parts import Part
from rivet_resources.destinations.azure_client import (
    PIECE_BYTES,
    TAKEN,
    AzureLocation,
    api_exceptions,
    error_code,
    is_passing,
    source_of,
)
from rivet_resources.errors import PartCorrupt

# Blocks cost four requests beside them: Azure drops none of them by request, so a marker says that they wait.
MOST_BYTES = PIECE_BYTES  # in memory at once, as a block is
_refusing: set[AzureLocation] = set()  # where this process was refused the address of a blob that was there


def is_small(size_bytes: int) -> bool:
    """Return whether one request carries a part."""
    return size_bytes <= MOST_BYTES


def send(staged: Any, file: Path, *, uri: str, md5: str) -> None:
    """Upload a file in one request, whose MD5 the store compares.

    Raises:
        PartCorrupt: the file is not what was measured.
    """
    content = file.read_bytes()
    if _md5_of(content) != md5:
        raise PartCorrupt(f"{file} changed while it was uploaded to {uri}. Run again; check the disk.")
    staged.upload_blob(content, overwrite=True, validate_content=True)


def publish(part: Part, *, staged: Any, final: Any, location: AzureLocation, uri: str) -> bool:
    """Write the final blob; whether the store then told the MD5 that was staged.

    False also where the staged blob is gone, as after an earlier call.

    Raises:
        PartCorrupt: the store holds something else.
    """
    if location not in _refusing:
        # A blob is there as a whole or not at all. A death behind it leaves the staged one, which a sweep removes, and
        # a second call would put the same bytes there.
        answer = _taken(part, staged, final)
        if answer is not None:
            told = base64.b64encode(bytes(answer.get("content_md5") or b"")).decode()
            if told not in ("", part.md5):
                raise _different(uri)
            return told == part.md5
    try:
        content = staged.download_blob().readall()
    except api_exceptions().ResourceNotFoundError as error:
        if error_code(error) not in TAKEN:  # the container
            raise
        return False
    if _md5_of(content) != part.md5:
        raise _different(uri)
    final.upload_blob(content, overwrite=True, validate_content=True)
    # Only now is it known that the refusal was of the address, and not of a blob that is gone.
    _refusing.add(location)
    return True


def _taken(part: Part, staged: Any, final: Any) -> dict[str, Any] | None:
    """Let the store write the final blob out of the staged one; its answer, None where it does not."""
    address, authorization = source_of(staged)
    try:
        answer: dict[str, Any] = final.upload_blob_from_url(
            address,
            overwrite=True,
            include_source_blob_properties=False,
            source_authorization=authorization,
            source_content_md5=bytearray(base64.b64decode(part.md5)),
            # What readers and `rivet validate` compare with; the client has no word for it.
            headers={"x-ms-blob-content-md5": part.md5},
        )
    except api_exceptions().HttpResponseError as error:
        # Why it was refused does not matter: who reads and writes the blob instead meets what stands in the way.
        if error.response is None or is_passing(error):
            raise
        return None
    return answer


def _different(uri: str) -> PartCorrupt:
    return PartCorrupt(f"{uri} is not what was staged. Nothing was published; run again.")


def _md5_of(content: bytes) -> str:
    return base64.b64encode(hashlib.md5(content).digest()).decode()
