"""Connecting to S3, and what its errors mean to a user.

Belongs here: credentials, the client, the table of error codes. Not here: what is written (`s3.py`).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rivet_resources.destinations import stores
from rivet_resources.destinations.stores import is_cut, silent
from rivet_resources.errors import (
    BucketMissing,
    DestinationAuth,
    DestinationError,
    DestinationPermission,
    DestinationUnreachable,
)
from rivet_resources.extras import S3
from rivet_resources.fan_out import given_up
from rivet_resources.secrets import resolve_store_key

CONNECT_SECONDS = 5
READ_SECONDS = 60
# botocore's standard mode: exponential backoff. `Patience` goes on behind it.
TRIES = 4

CUT_SECONDS = 0.1
# Answers that tell what an object is; source: Amazon S3 API Reference, "Response Syntax" of each.
WITH_ETAG = frozenset({"GetObject", "HeadObject", "PutObject", "UploadPart"})
LISTINGS = frozenset({"ListObjectsV2", "ListMultipartUploads", "ListParts"})

# Source: Amazon S3 API Reference, "List of error codes". A HEAD has no body, so its code is the HTTP status.
ABSENT = frozenset({"NoSuchKey", "NoSuchUpload", "404", "NotFound"})
# Two conditional writes of one object at once, mostly our own two: the first one's answer was lost, and it is under way
# still. Asked again until it is known which of them came through. Source: Amazon S3 User Guide, "Conditional writes".
UNDECIDED = "ConditionalRequestConflict"
# Amazon has no quotas on bytes; these are of stores that speak S3.
FULL = frozenset({"QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "InsufficientStorage", "507"})
REFUSED = frozenset(
    {"AccountProblem", "InvalidAccessKeyId", "InvalidSecurity",
     "InvalidToken", "InvalidClientTokenId", "SignatureDoesNotMatch", "Unauthorized",
     "401", "403"}
)  # fmt: skip
FORBIDDEN = frozenset({"AccessDenied", "AllAccessDisabled"})
RIGHTS = (
    "s3:ListBucket, s3:ListBucketMultipartUploads, s3:GetObject, s3:PutObject, s3:DeleteObject and "
    "s3:AbortMultipartUpload"
)
EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"})
TLS = "Fix the endpoint's certificate, or name its authority by the variable AWS_CA_BUNDLE (a PEM file)."
LATER = frozenset(
    {"InternalError", "OperationAborted", "RequestTimeout", "ServiceUnavailable", "SlowDown", "ThrottlingException",
     "Throttling", "TooManyRequests", "429", "500", "502", "503", "504"}
)  # fmt: skip
ELSEWHERE = frozenset(
    {
        "AuthorizationHeaderMalformed",
        "IllegalLocationConstraintException",
        "PermanentRedirect",
        "TemporaryRedirect",
        "301",
        "302",
        "307",
    }
)


@dataclass(frozen=True)
class S3Location:
    """Which bucket, where, and who signs in by which way; no secret, only names of variables."""

    bucket: str
    region: str | None = None
    endpoint: str | None = None
    access_key_env: str | None = None
    secret_key_env: str | None = None
    session_token_env: str | None = None
    profile: str | None = None
    is_anonymous: bool = False


def connect(location: S3Location) -> Any:
    """Return this process's client for a location; keys are read from the environment each time.

    Raises:
        ConfigError: a named variable is not set, or empty.
    """
    # Read each time and part of the cache's key, so that a session token that was renewed makes a new client.
    keys = tuple(
        resolve_store_key(variable, key=key)
        for variable, key in (
            (location.access_key_env, "access_key"),
            (location.secret_key_env, "secret_key"),
            (location.session_token_env, "session_token"),
        )
    )
    return _client(location.region, location.endpoint, location.profile, location.is_anonymous, keys)


@functools.lru_cache(maxsize=8)
def _client(
    region: str | None, endpoint: str | None, profile: str | None, anonymous: bool, keys: tuple[str | None, ...]
) -> Any:
    """Make a client; one per process and sign-in, since making one costs tens of milliseconds."""
    import boto3  # driver
    import botocore  # driver
    from botocore.config import Config  # driver

    session = boto3.session.Session(profile_name=profile)
    config = Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=READ_SECONDS,
        retries={"mode": "standard", "total_max_attempts": TRIES},
        # Content-MD5 is understood by every S3-compatible store; trailing CRC checksums are not.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        # Other stores have no certificate and often no name for `<bucket>.<endpoint>`; Amazon's own wants the bucket as
        # a host.
        s3={"addressing_style": "path"} if endpoint else None,
        signature_version=botocore.UNSIGNED if anonymous else None,
    )
    region = region or session.region_name or "us-east-1"
    access, secret_key, token = keys
    client = session.client(
        "s3", region_name=region, endpoint_url=endpoint, config=config,
        aws_access_key_id=access, aws_secret_access_key=secret_key, aws_session_token=token,
    )  # fmt: skip
    # Before botocore's own judge, of which the first answer counts: that one knows no `Retry-After`, and three pauses.
    client.meta.events.register_first("needs-retry.s3", Patience())
    return client


class Patience:
    """Judge of one client over what is sent again: what comes to nothing because the store is busy, or away a while."""

    def __init__(self) -> None:
        self._has_answered = False

    def __call__(self, *, response: Any, attempts: int, operation: Any, request_dict: Any, **_: Any) -> float | None:
        """Return the seconds after which the request is sent again; False: never, None: let botocore decide."""
        _refuse_circle(response, operation)
        # Kept with the request, as botocore keeps its own count there.
        began = request_dict["context"].setdefault("rivet_began", time.monotonic())
        pause = self._pause(response, attempts)
        if pause is not None:
            is_late = time.monotonic() + pause >= began + stores.PATIENCE_SECONDS
            # Waited here: botocore would sleep on where a signal has ended the run.
            if is_late:
                return None
            return False if given_up.wait(pause) else 0.0
        return _pause_if_cut(response, attempts, operation)

    def _pause(self, response: Any, attempts: int) -> float | None:
        if response is None:
            # A wrong endpoint is told at once; a store that was there is one that is started anew.
            return stores.pause_before_try(attempts) if self._has_answered else None
        answer, parsed = response
        if parsed.get("Error", {}).get("Code") in {*LATER, UNDECIDED} or answer.status_code in (429, 503):
            return stores.pause_before_try(attempts, told=answer.headers.get("retry-after"))
        self._has_answered = True
        return None


def _refuse_circle(response: Any, operation: Any) -> None:
    """End botocore's search for a bucket's region where a store redirects that question too, and names none.

    It asks HeadBucket, which we never do, and would follow its redirects until Python's stack is full.

    Raises:
        botocore.exceptions.ClientError
    """
    from botocore.exceptions import ClientError  # driver

    if operation.name == "HeadBucket" and response and response[0].status_code in (301, 302, 307):
        raise ClientError(response[1], operation.name)


def _pause_if_cut(response: Any, attempts: int, operation: Any) -> float | None:
    """Return the seconds after which an answer that was cut inside its head is asked for again; None: it is whole.

    So is one that somebody else gives: a proxy's page for signing in has no ETag, and is no listing.

    Raises:
        botocore.exceptions.ConnectionClosedError: it was cut as often as it may be asked for.
    """
    from botocore.exceptions import ConnectionClosedError  # driver

    answer = response[0] if response else None
    if answer is None:
        return None
    is_good = answer.status_code in (200, 206)
    lacks_etag = is_good and operation.name in WITH_ETAG and "etag" not in answer.headers
    # botocore passes elements over that it does not know: a page of HTML would be a listing of nothing.
    is_no_listing = is_good and operation.name in LISTINGS and "IsTruncated" not in response[1]
    if not lacks_etag and not is_no_listing and not is_cut(answer.status_code, answer.headers, answer.raw):
        return None
    if attempts >= TRIES:
        raise ConnectionClosedError(endpoint_url=str(answer.url))
    return CUT_SECONDS * float(attempts)


@contextmanager
def translate_errors(location: S3Location, *, uri: str, action: str) -> Iterator[Any]:
    """Yield the client; what botocore raises inside comes out as an error a user can act on.

    Raises:
        ExtraMissing, BucketMissing, DestinationAuth, DestinationUnreachable, DestinationError
    """
    S3.require()
    from botocore import exceptions  # driver

    where = f"{uri}: cannot {action}"
    try:
        yield connect(location)
    except exceptions.ClientError as error:
        if error_code(error) in EXPIRED:
            # What the default chain had found is kept by the client: whoever lives on, as a code server does, must find
            # what was written to ~/.aws since.
            _client.cache_clear()
        raise refusal(error_code(error), bucket=location.bucket, where=where) from error
    # Before BotoCoreError, which is their base as well.
    except (exceptions.HTTPClientError, exceptions.ConnectionError) as error:
        store = location.endpoint or "Amazon S3"
        raise silent(
            error, where=where, store=store, tls_advice=TLS, look_at="`destination.endpoint`, `destination.region`"
        ) from error
    except exceptions.BotoCoreError as error:
        # What is left is about signing in: no credentials, half of them, an unknown profile, an expired login.
        raise DestinationAuth(
            f"{where}: no usable credentials ({type(error).__name__}). Set access_key_env and secret_key_env, "
            f"or aws_profile, or give the machine a role."
        ) from error


def refusal(code: str, *, bucket: str, where: str) -> DestinationError:
    """Turn an error code into the class a user can act on; the store's own text may hold keys, so it is left out."""
    if code == "NoSuchBucket":
        return BucketMissing(
            f"{where}: bucket {bucket} does not exist. Create it, or fix `destination.bucket`; Rivet creates none."
        )
    if code in EXPIRED:
        return DestinationAuth(f"{where}: the session token has expired ({code}). Sign in again, then run again.")
    if code == "RequestTimeTooSkewed":
        return DestinationAuth(
            f"{where}: this machine's clock and the store's are over 15 minutes apart ({code}), so signatures look "
            f"forged. Set this machine's clock by NTP."
        )
    if code.startswith("KMS") or "KMSInvalid" in code:
        return DestinationError(
            f"{where}: the store cannot use the key of KMS ({code}). Check `destination.kms_key`: that it is "
            f"there, enabled, in the region of the bucket, and that whoever signed in has kms:GenerateDataKey and "
            f"kms:Decrypt on it."
        )
    if code in FORBIDDEN:
        return DestinationPermission(
            f"{where}: whoever signed in may not do that ({code}). It needs {RIGHTS} on bucket {bucket}; with "
            f"`destination.tags` also s3:PutObjectTagging, with sse-kms kms:GenerateDataKey and kms:Decrypt."
        )
    if code in REFUSED:
        return DestinationAuth(
            f"{where}: the store refused the credentials or the permission ({code}). Check the keys; they need "
            f"{RIGHTS} on bucket {bucket}."
        )
    if code in LATER:
        return stores.asked_later(where, code)
    if code in ELSEWHERE:
        return DestinationError(
            f"{where}: bucket {bucket} is in another region ({code}), or at another address. Set `destination.region`, "
            f"or fix `destination.endpoint`."
        )
    if code in FULL:
        return DestinationError(
            f"{where}: the store has no room left, or a quota of bucket {bucket} is used up ({code}). Make room, or "
            f"raise the quota, then run again."
        )
    if code == "NoSuchUpload":
        return DestinationUnreachable(
            f"{where}: its upload was removed while it was sent ({code}). Run again; if it stays, look for a lifecycle "
            f"rule of bucket {bucket} that aborts uploads earlier than a run takes."
        )
    if code in {"NotImplemented", "501"}:
        return DestinationError(
            f"{where}: the store does not know this request ({code}). Rivet needs multipart uploads and conditional "
            f"PUTs (If-Match, If-None-Match); `destination.encryption` and `tags` need a store that encrypts and has "
            f"tags. Remove these keys, or use a store or a version that has them."
        )
    return DestinationError(f"{where}: the store refused ({code}). Check `destination`.")


def error_code(error: Any) -> str:
    """Read the code of a ClientError; the HTTP status of an answer that names none, as a proxy's page does not."""
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", "unknown")
    return str(error.response.get("Error", {}).get("Code") or status)


def same_object(answer: Mapping[str, Any], *, etag: str, expected: str) -> bool:
    """Compare an ETag with the MD5 it should be; where the store encrypts with KMS or customer keys it is none."""
    # Source: Amazon S3 API Reference, Object, ETag: under SSE-KMS, DSSE-KMS and SSE-C it is no digest of the content.
    opaque = str(answer.get("ServerSideEncryption", "")).startswith("aws:") or "SSECustomerAlgorithm" in answer
    return opaque or etag == expected
