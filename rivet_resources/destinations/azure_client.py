"""Connecting to Azure Blob Storage, and what its errors mean to a user.

Belongs here: credentials, the client, the table of error codes. Not here: what is written (`azure.py`).
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from rivet_resources.contracts.addressing import check_endpoint
from rivet_resources.destinations import stores
from rivet_resources.destinations.stores import refuse_cut, silent
from rivet_resources.errors import (
    BucketMissing,
    ConfigError,
    DestinationAuth,
    DestinationError,
    DestinationPermission,
    DestinationUnreachable,
)
from rivet_resources.extras import AZURE
from rivet_resources.fan_out import given_up
from rivet_resources.secrets import resolve_store_key
from rivet_resources.tls_faults import tls_fault

CONNECT_SECONDS = 5
READ_SECONDS = 60
TRIES = 4
# Per request of an upload; bounds a task's memory.
PIECE_BYTES = 8 << 20

# Source: Microsoft Learn, "Common REST API error codes" and "Blob service error codes".
ABSENT = frozenset({"BlobNotFound", "ResourceNotFound"})
GONE = frozenset({"ContainerNotFound", "ContainerDisabled"})
REFUSED = frozenset(
    {"AuthenticationFailed", "InvalidAuthenticationInfo", "NoAuthenticationInformation", "AccountIsDisabled",
     "KeyBasedAuthenticationNotPermitted", "PublicAccessNotPermitted"}
)  # fmt: skip
FORBIDDEN = frozenset(
    {"AuthorizationFailure", "AuthorizationPermissionMismatch", "AuthorizationProtocolMismatch",
     "AuthorizationResourceTypeMismatch", "AuthorizationServiceMismatch", "AuthorizationSourceIPMismatch",
     "InsufficientAccountPermissions"}
)  # fmt: skip
LATER = frozenset(
    {"ServerBusy", "OperationTimedOut", "InternalError", "ContainerBeingDeleted", "AccountBeingCreated", "Md5Mismatch"}
)
TOO_MANY = 429
NEVER = frozenset({501, 505})  # the store does not know that request
TAKEN = frozenset({"ConditionNotMet", "BlobAlreadyExists", "TargetConditionNotMet", *ABSENT})
RIGHTS = "the role Storage Blob Data Contributor, or a SAS with read, add, create, write, delete and list (racwdl),"
TLS = "Fix the endpoint's certificate, or name its authority by the variable REQUESTS_CA_BUNDLE (a PEM file)."
TOKENS = "https://storage.azure.com/.default"  # what a token of the default chain is for
SOURCE_LIFE = timedelta(hours=1)  # of a signature by which the store reads one blob for us; clocks may differ
SIGN_IN = "Set account_key_env, sas_token_env or connection_string_env, or sign in with `az login`."


@dataclass(frozen=True)
class AzureLocation:
    """Which container of which account, where, and who signs in by which way; no secret, only names of variables."""

    account: str
    container: str
    endpoint: str | None = None
    connection_string_env: str | None = None
    account_key_env: str | None = None
    sas_token_env: str | None = None
    allow_insecure: bool = False

    @property
    def url(self) -> str:
        """Return the address of the account that requests go to, but for one that a connection string names."""
        return self.endpoint or f"https://{self.account}.blob.core.windows.net"


def api_exceptions() -> Any:
    """Return the client's module of exceptions, which every request may raise.

    Raises:
        ExtraMissing: the client is not installed.
    """
    AZURE.require()
    from azure.core import exceptions  # driver

    return exceptions


def connect(location: AzureLocation) -> Any:
    """Return this process's client for a location; secrets are read from the environment each time.

    Raises:
        ConfigError: a named variable is not set, or empty; its connection string leads over plain http to another
            machine.
        DestinationAuth: the connection string or the key is none, or is of another account.
    """
    connection, key, sas = (
        resolve_store_key(variable, key=key)
        for variable, key in (
            (location.connection_string_env, "connection_string"),
            (location.account_key_env, "account_key"),
            (location.sas_token_env, "sas_token"),
        )
    )
    return _client(location, connection, key, sas)


@functools.lru_cache(maxsize=8)
def _client(location: AzureLocation, connection: str | None, key: str | None, sas: str | None) -> Any:
    """Make a client of the container; one per process and sign-in."""
    from azure.storage.blob import BlobServiceClient  # driver

    # Bounds on every request: the client's defaults wait for minutes, and a task would hold its page as long.
    settings = {
        "retry_policy": _retries(),
        "transport": _transport(),
        "max_single_put_size": PIECE_BYTES,
        "max_block_size": PIECE_BYTES,
    }
    try:
        if connection is not None:
            service = BlobServiceClient.from_connection_string(connection, **settings)
        else:
            service = BlobServiceClient(location.url, credential=_credential(location, key, sas), **settings)
    except ValueError as error:
        # Its text may hold a piece of the secret.
        raise DestinationAuth(
            f"{_named(location)} holds no usable {'connection string' if connection else 'secret'} "
            f"({type(error).__name__}). Copy it again from the account's page, Access keys."
        ) from None
    if connection is not None:
        _check_connection(service, location)
    return service.get_container_client(location.container)


def _transport() -> Any:
    """Return what sends requests, and refuses answers that are cut; the client's retries then ask again."""
    from azure.core.pipeline.transport import RequestsTransport  # driver

    transport = RequestsTransport(connection_timeout=CONNECT_SECONDS, read_timeout=READ_SECONDS)
    transport.open()
    transport.session.hooks["response"].append(refuse_cut)
    return transport


def _credential(location: AzureLocation, key: str | None, sas: str | None) -> Any:
    """Return what signs requests: the key, the SAS, or Azure's default chain."""
    if key is not None:
        return {"account_name": location.account, "account_key": key}
    if sas is not None:
        from azure.core.credentials import AzureSasCredential  # driver

        # Azure's pages show a signature with the question mark of its URL.
        return AzureSasCredential(sas.strip().lstrip("?"))
    return default_chain()


def default_chain() -> Any:
    """Return Azure's default chain: environment, workload identity, managed identity, `az login` and others.

    Raises:
        ExtraMissing: azure-identity is not installed.
    """
    try:
        from azure.identity import DefaultAzureCredential  # driver
    except ModuleNotFoundError as error:
        raise AZURE.error() from error
    # It logs a page about every step that did not answer; what matters of that is in our error.
    logging.getLogger("azure.identity").setLevel(logging.ERROR)
    return DefaultAzureCredential()


def _check_connection(service: Any, location: AzureLocation) -> None:
    """Refuse a connection string that contradicts the configuration; the place must not depend on a secret.

    Raises:
        ConfigError, DestinationAuth
    """
    # Else the configuration would name one place, and the secret decide about another.
    if service.account_name != location.account:
        raise DestinationAuth(
            f"{_named(location)} is of account {service.account_name}, and `destination.account` is "
            f"{location.account}. Make them agree."
        )
    try:
        check_endpoint(f"{service.scheme}://{service.primary_hostname}", plain_http_allowed=location.allow_insecure)
    except ValueError as error:
        raise ConfigError(f"{_named(location)}: {error}") from error


def _named(location: AzureLocation) -> str:
    variable = location.connection_string_env or location.account_key_env or location.sas_token_env
    return f"Environment variable {variable}"


def _retries() -> Any:
    """Return the client's own way of trying again, longer where the store asks for it.

    A refused certificate stays refused.
    """
    from azure.storage.blob import ExponentialRetry  # driver

    class Retries(ExponentialRetry):  # type: ignore[misc]
        def increment(self, settings: Any, request: Any, response: Any = None, error: Any = None) -> bool:
            # The same certificate is there at the next try, and each try waits longer.
            if error is not None and tls_fault(error) is not None:
                return False
            began = settings.setdefault("rivet_began", time.monotonic())
            told = response.headers.get("Retry-After") if response is not None else None
            pause = settings["rivet_pause"] = stores.pause_before_try(settings["count"] + 1, told=told)
            # Lines that break have their few tries; an answer of a store that is there has time instead. A body whose
            # bytes differ from their MD5 is an answer too, and no reason for patience.
            if response is not None and response.status_code >= 400:
                settings["total"], settings["status"] = TRIES, TRIES
                if given_up.is_set() or time.monotonic() + pause >= began + stores.PATIENCE_SECONDS:
                    return False
            return bool(super().increment(settings, request, response=response, error=error))

        def sleep(self, settings: Any, transport: Any) -> None:
            given_up.wait(settings["rivet_pause"])

        def send(self, request: Any) -> Any:
            # The client takes Too Many Requests for an answer like any other below 500.
            began, tries, body = time.monotonic(), 0, request.http_request.body
            place = body.tell() if hasattr(body, "seek") else None
            while True:
                response, tries = super().send(request), tries + 1
                answer = response.http_response
                pause = stores.pause_before_try(tries, told=answer.headers.get("Retry-After"))
                is_late = time.monotonic() + pause >= began + stores.PATIENCE_SECONDS
                if answer.status_code != TOO_MANY or is_late:
                    return response
                if place is not None:
                    body.seek(place)
                if given_up.wait(pause):
                    return response

    each = {"retry_connect": TRIES - 1, "retry_read": TRIES - 1, "retry_status": TRIES - 1}
    return Retries(retry_total=TRIES - 1, **each)


@contextmanager
def translate_errors(location: AzureLocation, *, uri: str, action: str) -> Iterator[Any]:
    """Yield the container's client; what it raises inside comes out as an error a user can act on.

    Raises:
        ExtraMissing, BucketMissing, DestinationAuth, DestinationUnreachable, DestinationError
    """
    api = api_exceptions()
    where = f"{uri}: cannot {action}"
    try:
        yield connect(location)
    except api.HttpResponseError as error:
        if error.response is None:  # of signing in: nothing was sent to the store
            raise DestinationAuth(f"{where}: no usable credentials ({type(error).__name__}). {SIGN_IN}") from error
        raise refusal(error_code(error), error.status_code, location=location, where=where) from error
    except (api.ServiceRequestError, api.ServiceResponseError, *_garbled(api), ConnectionError) as error:
        raise silent(error, where=where, tls_advice=TLS, **_asked(location)) from error
    except api.AzureError as error:
        # Such as an answer whose MD5 is not that of its bytes.
        raise DestinationUnreachable(f"{where}: the request failed ({type(error).__name__}). Run again.") from error


def _garbled(api: Any) -> tuple[type[Exception], ...]:
    """Return what an answer that is not the store's own ends in, such as a proxy's page for signing in."""
    return api.DecodeError, api.DeserializationError


def _asked(location: AzureLocation) -> dict[str, str]:
    """Return which store requests went to, and what may be wrong about it."""
    if location.connection_string_env is None:
        return {"store": location.url, "look_at": "`destination.account`, `destination.endpoint`"}
    # It names the host, whatever the configuration says beside it.
    address = urlsplit(connect(location).url)
    host = f"{address.scheme}://{address.hostname}{f':{address.port}' if address.port else ''}"
    return {"store": host, "look_at": f"the endpoint in {_named(location)}"}


def source_of(blob: Any) -> tuple[str, str | None]:
    """Return the address at which the store may read one of its own blobs for us, and the header that lets it.

    The store asks for more than the rights of the request itself: a signature in the address, or a token.
    """
    from azure.storage.blob import BlobSasPermissions, generate_blob_sas  # driver

    credential = blob.credential
    if key := getattr(credential, "account_key", None):
        signature = generate_blob_sas(
            credential.account_name, blob.container_name, blob.blob_name, account_key=key,
            permission=BlobSasPermissions(read=True), expiry=datetime.now(UTC) + SOURCE_LIFE,
        )  # fmt: skip
        return f"{blob.url}?{signature}", None
    if signature := getattr(credential, "signature", None):
        return f"{blob.url}?{signature}", None
    if hasattr(credential, "get_token"):
        return str(blob.url), f"Bearer {credential.get_token(TOKENS).token}"
    return str(blob.url), None  # the signature of a connection string is part of every address


def is_passing(error: Any) -> bool:
    """Return whether a refused request may succeed later as it is."""
    if error.status_code in NEVER:
        return False
    return error_code(error) in LATER - {"Md5Mismatch"} or error.status_code in (408, 429) or error.status_code >= 500


def error_code(error: Any) -> str:
    """Read the code of a refused request; without one, the HTTP status."""
    code = getattr(error, "error_code", None)
    return str(getattr(code, "value", code) or error.status_code)


def refusal(code: str, status: int | None, *, location: AzureLocation, where: str) -> DestinationError:
    """Turn an error code into the class a user can act on; the store's own text is left out."""
    container, account = location.container, location.account
    if code in GONE:
        return BucketMissing(
            f"{where}: container {container} of account {account} does not exist. Create it, or fix "
            f"`destination.container`; Rivet creates none."
        )
    if code in FORBIDDEN:
        return DestinationPermission(
            f"{where}: whoever signed in may not do that ({code}). It needs {RIGHTS} on container {container} of "
            f"account {account}, and the account's firewall must let this machine in."
        )
    if code in REFUSED or status in (401, 403):
        return DestinationAuth(
            f"{where}: the store refused the credentials ({code}). Check the key, the SAS and its end, or who signed "
            f"in, and this machine's clock; they need {RIGHTS} on container {container} of account {account}."
        )
    if status in (408, TOO_MANY) or (status or 0) >= 500:
        return stores.asked_later(where, code)
    if code in LATER:  # not asked again: it takes minutes, or the bytes were damaged on their way
        return DestinationUnreachable(f"{where}: the store asks to come back later ({code}). Run again.")
    return DestinationError(f"{where}: the store refused ({code}). Check `destination`.")
