"""With what every object of S3 is written: encryption, tags, checksums of its pieces; and what the store says of them.

Belongs here: the words of the requests, and comparing answers with them. Not here: the requests (`s3.py`), the client
and its errors (`s3_client.py`).
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from pydantic import AfterValidator, StringConstraints

from rivet_resources.contracts.parts import Part, PieceSums
from rivet_resources.destinations.s3_client import same_object
from rivet_resources.errors import DestinationError

Encryption = Literal["sse-s3", "sse-kms"]
Checksum = Literal["md5", "sha256"]
# What the requests call it. Source: Amazon S3 API Reference, PutObject, `x-amz-server-side-encryption`.
WORDS: Mapping[str, str] = {"sse-s3": "AES256", "sse-kms": "aws:kms"}
# Source: Amazon S3 User Guide, "Categorizing your objects using tags".
MOST_TAGS = 10


# Letters and digits of any language, space, and these signs.
TAG = re.compile(r"[\w .:/=+@-]*")


def _check_tags(tags: dict[str, str]) -> dict[str, str]:
    if len(tags) > MOST_TAGS:
        raise ValueError(f"has {len(tags)} tags, and an object of S3 takes at most {MOST_TAGS}")
    for name in tags:
        if name.lower().startswith("aws:"):
            raise ValueError(f"has the tag {name!r}, and names that begin with aws: are Amazon's own")
        if not (TAG.fullmatch(name) and TAG.fullmatch(tags[name])):
            raise ValueError(f"has the tag {name!r}; S3 takes letters, digits, spaces and _ . : / = + - @ in both")
    return tags


Tags = Annotated[
    dict[
        Annotated[str, StringConstraints(min_length=1, max_length=128)],
        Annotated[str, StringConstraints(max_length=256)],
    ],
    AfterValidator(_check_tags),
]


@dataclass(frozen=True)
class S3Objects:
    """What is asked of the store for every object; plain data, no secret: a key of KMS is named, never held."""

    encryption: Encryption | None = None
    kms_key: str | None = None
    tags: tuple[tuple[str, str], ...] = ()
    checksum: Checksum = "md5"

    def words(self) -> dict[str, str]:
        """Return what a request that makes an object says beside its content."""
        found = {"Tagging": urlencode(self.tags)} if self.tags else {}
        if self.encryption is not None:
            found["ServerSideEncryption"] = WORDS[self.encryption]
        if self.kms_key is not None:
            found["SSEKMSKeyId"] = self.kms_key
        return found

    def upload_words(self) -> dict[str, str]:
        """Return the same for an upload in pieces."""
        return self.words() | ({"ChecksumAlgorithm": "SHA256"} if self.checksum == "sha256" else {})

    def copy_words(self) -> dict[str, str]:
        """Return the same for a copy on the server; tags are named, since reading those of another needs a right."""
        return self.upload_words() | ({"TaggingDirective": "REPLACE"} if self.tags else {})

    def check_answer(self, answer: Mapping[str, Any], *, where: str) -> None:
        """See that the store encrypts as it was asked to: one that knows no encryption passes the words over.

        Raises:
            DestinationError
        """
        # A word that a store does not know is passed over without an error, and the object would lie there in the
        # clear.
        if self.encryption is None or answer.get("ServerSideEncryption") == WORDS[self.encryption]:
            return
        raise DestinationError(
            f"{where}: the store was asked to encrypt by {self.encryption} and says it does so by "
            f"{answer.get('ServerSideEncryption') or 'nothing'}. Use a store that does, or remove "
            f"`destination.encryption`."
        )

    def piece_words(self, piece: bytes) -> dict[str, str]:
        """Return what the store is to compare a piece with."""
        words = {"ContentMD5": _base64(hashlib.md5(piece).digest())}
        return words | (
            {"ChecksumSHA256": _base64(hashlib.sha256(piece).digest())} if self.checksum == "sha256" else {}
        )

    def piece_sum(self, piece: bytes) -> str:
        """Return a piece's checksum as the manifest has it: hexadecimal."""
        return hashlib.new(self.checksum, piece).hexdigest()


AS_THE_BUCKET_DOES = S3Objects()


def pieces_of(part: Part) -> list[dict[str, Any]]:
    """List the pieces of an upload as completing it names them."""
    found: list[dict[str, Any]] = [
        {"PartNumber": number, "ETag": f'"{etag}"'} for number, etag in enumerate(part.staged["etags"], start=1)
    ]
    sums = part.sums
    if sums is not None and sums.algorithm == "sha256":
        # An upload that was begun with SHA-256 is completed with the same sums, or the store refuses.
        for piece, digest in zip(found, sums.pieces, strict=True):
            piece["ChecksumSHA256"] = _base64(bytes.fromhex(digest))
    return found


def composite_etag(sums: PieceSums) -> str:
    """Return the ETag of an object that was put together of pieces: the MD5 of their MD5s, and how many they were.

    Source: Amazon S3 user guide, "Checking object integrity", multipart uploads.
    """
    return f"{hashlib.md5(_joined(sums)).hexdigest()}-{len(sums.pieces)}"


def is_told(answer: Mapping[str, Any], sums: PieceSums) -> bool | None:
    """Return whether what a store tells of an object is the checksum of these pieces; None: it tells none.

    Where it encrypts by keys of KMS, its ETag is no checksum; a SHA-256 is one everywhere.
    """
    if sums.algorithm == "md5":
        etag = str(answer.get("ETag", "")).strip('"')
        if same_object(answer, etag="", expected="-"):  # opaque
            return None
        return etag == composite_etag(sums)
    # Amazon adds `-<pieces>`, others do not.
    told = str(answer.get("ChecksumSHA256", "")).partition("-")[0]
    return told == _base64(hashlib.sha256(_joined(sums)).digest()) if told else None


def _joined(sums: PieceSums) -> bytes:
    return b"".join(map(bytes.fromhex, sums.pieces))


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()
