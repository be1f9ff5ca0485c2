"""Connecting to Google Cloud Storage, and what its errors mean to a user.

Belongs here: credentials, the client, the table of errors. Not here: what is written (`gcs.py`).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rivet_resources.destinations import stores
from rivet_resources.destinations.stores import refuse_cut, silent
from rivet_resources.errors import (
    BucketMissing,
    DestinationAuth,
    DestinationError,
    DestinationPermission,
)
from rivet_resources.extras import GCS
from rivet_resources.fan_out import given_up
from rivet_resources.tls_faults import tls_fault

REQUEST_SECONDS = 60
RETRY_SECONDS = 15  # of the client's own retries of a line that broke; Spark and Dagster retry above it

TLS = "Fix the endpoint's certificate, or name its authority by the variable REQUESTS_CA_BUNDLE (a PEM file)."


@dataclass(frozen=True)
class GcsLocation:
    """Which bucket, where, and who signs in by which way; no secret, only the key file's path."""

    bucket: str
    credentials_file: Path | None = None
    endpoint: str | None = None
    is_anonymous: bool = False


def control() -> dict[str, Any]:
    """Return the arguments every request is made with: bounded waiting, bounded retries."""
    from google.cloud.storage.retry import DEFAULT_RETRY  # driver

    usual = DEFAULT_RETRY._predicate
    began = time.monotonic()

    def may_pass(error: Exception) -> bool:
        # A refused certificate stays refused.
        if given_up.is_set() or not usual(error) or tls_fault(error) is not None:
            return False
        # A store that answers is there, and asks to come back later; a line that breaks may lead nowhere.
        return bool(status_of(error)) or time.monotonic() < began + RETRY_SECONDS

    # To repeat is safe: our writes are conditional, or put the same bytes under the same name.
    retry = DEFAULT_RETRY.with_timeout(stores.PATIENCE_SECONDS).with_delay(maximum=stores.LONGEST_PAUSE_SECONDS)
    return {"timeout": REQUEST_SECONDS, "retry": retry.with_predicate(may_pass)}


def api_exceptions() -> Any:
    """Return the client's module of exceptions, which every request may raise.

    Raises:
        ExtraMissing: the client is not installed.
    """
    GCS.require()
    from google.api_core import exceptions  # driver

    return exceptions


def connect(location: GcsLocation) -> Any:
    """Return this process's client for a location.

    Raises:
        DestinationAuth: the key file is none.
    """
    return _client(location.credentials_file, location.endpoint, location.is_anonymous)


@functools.lru_cache(maxsize=8)
def _client(credentials_file: Path | None, endpoint: str | None, anonymous: bool) -> Any:
    """Make a client; one per process and sign-in. No project is needed to use objects of an existing bucket."""
    from google.auth.credentials import AnonymousCredentials  # driver
    from google.cloud import storage  # driver

    options = {"api_endpoint": endpoint} if endpoint else None
    if credentials_file is not None:
        try:
            return _guarded(
                storage.Client.from_service_account_json(str(credentials_file), project=None, client_options=options)
            )
        except (OSError, KeyError, ValueError) as error:
            raise DestinationAuth(
                f"{credentials_file} is not a service account's JSON key ({type(error).__name__}). Download it again."
            ) from error
    credentials = AnonymousCredentials() if anonymous else None
    return _guarded(storage.Client(project=None, credentials=credentials, client_options=options))


def _guarded(client: Any) -> Any:
    """Have a client refuse answers that are cut; its own retries then ask again."""
    client._http.hooks["response"].append(refuse_cut)
    return client


@contextmanager
def translate_errors(location: GcsLocation, *, uri: str, action: str) -> Iterator[Any]:
    """Yield the bucket; what the client raises inside comes out as an error a user can act on.

    Raises:
        ExtraMissing, BucketMissing, DestinationAuth, DestinationUnreachable, DestinationError
    """
    api = api_exceptions()
    import requests  # start
    from google.auth import exceptions as auth  # driver
    from google.cloud.storage.exceptions import InvalidResponse  # driver

    where = f"{uri}: cannot {action}"
    try:
        yield connect(location).bucket(location.bucket)
    except (api.GoogleAPICallError, InvalidResponse) as error:
        raise refusal(status_of(error), bucket=location.bucket, where=where) from error
    # Before GoogleAuthError, which is the base of TransportError: a sign-in server that is away is no wrong key.
    except (api.RetryError, auth.TransportError, requests.RequestException, ConnectionError) as error:
        # Given up after many answers: the last one stands behind it.
        if status := status_of(getattr(error, "cause", None)):
            raise refusal(status, bucket=location.bucket, where=where) from error
        store = location.endpoint or "Google Cloud Storage"
        raise silent(error, where=where, store=store, tls_advice=TLS, look_at="`destination.endpoint`") from error
    except auth.GoogleAuthError as error:
        raise DestinationAuth(
            f"{where}: no usable credentials ({type(error).__name__}). Set `destination.credentials_file` to a service "
            f"account's JSON key, or sign in with `gcloud auth application-default login`."
        ) from error


def status_of(error: Any) -> int:
    """Read the HTTP status of a refused request."""
    status = getattr(error, "code", None) or getattr(getattr(error, "response", None), "status_code", None)
    return int(status or 0)


def refusal(status: int, *, bucket: str, where: str) -> DestinationError:
    """Turn an HTTP status into the class a user can act on.

    Source: Cloud Storage documentation, "HTTP status and error codes for JSON".
    """
    # An object that is not there is answered before (`NotFound` is caught where one may be missing), so this is the
    # bucket.
    if status == 404:
        return BucketMissing(
            f"{where}: bucket {bucket} does not exist, or is not shown to this account. Create it, or fix "
            f"`destination.bucket`; Rivet creates none."
        )
    if status == 403:
        return DestinationPermission(
            f"{where}: the store refused the permission (HTTP {status}). The account needs "
            f"storage.objects.create, get, list and delete on bucket {bucket} (role Storage Object Admin)."
        )
    if status == 401:
        return DestinationAuth(
            f"{where}: the store refused the credentials (HTTP {status}). Sign in again, or check "
            f"`destination.credentials_file`."
        )
    if status in (408, 429) or status >= 500:
        return stores.asked_later(where, f"HTTP {status}")
    return DestinationError(f"{where}: the store refused (HTTP {status}). Check `destination`.")
