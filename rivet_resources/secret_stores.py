"""Stores of secrets, each asked by its own client: AWS Secrets Manager, Google Secret Manager, Vault, a keyring, files.

Belongs here: one read of one secret, and what a store's refusal means. Not here: how long it is kept (`secrets.py`),
the block (`contracts/secret_reference.py`). How each store signs in is its client's own way: AWS's and Google's default
chains, for Vault `VAULT_TOKEN`, the token file that `vault login` and Vault's agent write, or the service account of
a pod.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rivet_resources.contracts.secret_reference import SecretReference
from rivet_resources.errors import SecretStoreUnreachable, SecretUnreadable
from rivet_resources.extras import AWS_SECRETS, GCP_SECRETS, KEYRING, VAULT, Extra
from rivet_resources.secret_file import secret_text
from rivet_resources.webhooks import refused_address

SECONDS = 10  # for one answer
# Source: AWS Secrets Manager API reference, GetSecretValue, "Errors", and the SDK's own names for throttling.
AWS_FOR_A_WHILE = frozenset(
    {"InternalServiceError", "RequestLimitExceeded", "ServiceUnavailable", "ThrottlingException"}
)
# Where a pod finds the token of its service account; source: Kubernetes documentation, "Configure Service Accounts".
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
# Below the home folder; source: Vault documentation, "login".
VAULT_TOKEN_FILE = Path(".vault-token")


def read_secret(name: str, reference: SecretReference) -> str:
    """Read a secret from its store.

    Args:
        name: under which the configuration knows it, for errors.

    Raises:
        SecretUnreadable: it is not there, has no such field, or may not be read.
        SecretStoreUnreachable: the store does not answer.
        ExtraMissing: the store's client is not installed.
    """
    extra, read = READERS[reference.store]
    if extra is not None:
        extra.require()
    whole = read(name, reference)
    return whole if reference.field is None or reference.vault is not None else _field(name, reference, whole)


def _field(name: str, reference: SecretReference, whole: str) -> str:
    try:
        found = json.loads(whole)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise SecretUnreadable(f"{_place(name, reference)} is no JSON object, so it has no fields. Remove `field`.")
    return _text(name, reference, found)


def _text(name: str, reference: SecretReference, found: Mapping[str, Any]) -> str:
    """Take a field; numbers are written as JSON writes them."""
    if reference.field not in found:
        raise SecretUnreadable(
            f"{_place(name, reference)}: there is no such field; there are {', '.join(sorted(found)) or 'none'}. "
            f"Fix `field`."
        )
    value = found[str(reference.field)]
    return value if isinstance(value, str) else json.dumps(value)


def _place(name: str, reference: SecretReference) -> str:
    return f"Secret {name} ({reference.text})"


def _refused(name: str, reference: SecretReference, why: str) -> SecretUnreadable:
    return SecretUnreadable(
        f"{_place(name, reference)} cannot be read: {why}. Check its name, and that whoever runs Rivet may read it."
    )


def _away(name: str, reference: SecretReference, why: str) -> SecretStoreUnreachable:
    return SecretStoreUnreachable(
        f"{_place(name, reference)}: its store does not answer ({why}). Check the network and `endpoint`."
    )


def _from_file(name: str, reference: SecretReference) -> str:
    try:
        # Only line ends: editors add one, and a blank may be part of a password.
        return secret_text(Path(str(reference.file))).rstrip("\r\n")
    except ValueError as error:
        raise _refused(name, reference, str(error)) from None


def _from_keyring(name: str, reference: SecretReference) -> str:
    import keyring  # driver
    from keyring.errors import KeyringError  # driver

    try:
        found: str | None = keyring.get_password(str(reference.keyring), str(reference.username))
    except KeyringError as error:
        raise _refused(name, reference, f"{type(error).__name__} of the keyring") from None
    if found is None:
        raise _refused(name, reference, "there is no such entry")
    return found


def _from_aws(name: str, reference: SecretReference) -> str:
    import boto3  # driver
    from botocore.config import Config  # driver
    from botocore.exceptions import BotoCoreError, ClientError, ConnectionError, HTTPClientError  # driver

    waits = Config(connect_timeout=SECONDS, read_timeout=SECONDS, retries={"max_attempts": 2})
    try:
        client = boto3.session.Session().client(
            "secretsmanager", region_name=reference.region, endpoint_url=reference.endpoint, config=waits
        )
        answer = client.get_secret_value(SecretId=str(reference.aws))
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", "an error"))
        # `from None`: the client's text may hold the name of the account, or of whoever signed in.
        raise (_away if code in AWS_FOR_A_WHILE else _refused)(name, reference, code) from None
    except (ConnectionError, HTTPClientError) as error:
        raise _away(name, reference, type(error).__name__) from None
    except BotoCoreError as error:
        raise _refused(name, reference, type(error).__name__) from None
    if "SecretString" not in answer:
        raise _refused(name, reference, "it holds bytes, not text")
    return str(answer["SecretString"])


def _from_gcp(name: str, reference: SecretReference) -> str:
    from google.api_core import exceptions  # driver
    from google.api_core.client_options import ClientOptions  # driver
    from google.auth.exceptions import GoogleAuthError  # driver
    from google.cloud import secretmanager  # driver

    place = {"api_endpoint": reference.endpoint} if reference.endpoint is not None else {}
    try:
        client = secretmanager.SecretManagerServiceClient(transport="rest", client_options=ClientOptions(**place))
        # `retry=None`: the client would try again by itself, and whoever connects has a deadline of its own.
        answer = client.access_secret_version(name=str(reference.gcp), timeout=SECONDS, retry=None)
        return bytes(answer.payload.data).decode()
    except (exceptions.ServerError, exceptions.TooManyRequests, exceptions.RetryError) as error:
        raise _away(name, reference, type(error).__name__) from None
    except (exceptions.GoogleAPICallError, GoogleAuthError) as error:
        raise _refused(name, reference, type(error).__name__) from None
    except UnicodeDecodeError:
        raise _refused(name, reference, "it holds bytes, not text") from None
    except OSError as error:
        # requests' own: nothing listens, a name is unknown, it is silent.
        raise _away(name, reference, type(error).__name__) from None


def _from_vault(name: str, reference: SecretReference) -> str:
    import hvac  # driver
    from hvac import exceptions  # driver

    for_a_while = (
        exceptions.VaultDown, exceptions.InternalServerError, exceptions.BadGateway, exceptions.RateLimitExceeded,
        exceptions.VaultNotInitialized, OSError,
    )  # fmt: skip
    endpoint = reference.endpoint or os.environ.get("VAULT_ADDR")
    if endpoint is None:
        raise _refused(name, reference, "neither `endpoint` nor VAULT_ADDR says where Vault is")
    # VAULT_ADDR comes from the environment, unchecked by the configuration: a token must not go over plain http.
    if why := refused_address(endpoint):
        raise _refused(name, reference, f"VAULT_ADDR {why}")
    token = None if reference.role is not None else _vault_token()
    with _closed(hvac.Client(url=endpoint, token=token, timeout=SECONDS)) as client:
        try:
            if reference.role is not None:
                client.auth.kubernetes.login(
                    role=reference.role, jwt=_service_account(name, reference), mount_point=reference.sign_in_mount
                )
            answer = client.secrets.kv.v2.read_secret_version(
                # A deleted version would else come back without data, and be told to be no answer of Vault's.
                path=str(reference.vault),
                mount_point=reference.mount,
                raise_on_deleted_version=True,
            )
        except for_a_while as error:
            raise _away(name, reference, type(error).__name__) from None
        except exceptions.VaultError as error:
            raise _refused(name, reference, type(error).__name__) from None
        except (ValueError, KeyError, TypeError):
            raise _refused(name, reference, "its answer is none of Vault's, KV version 2") from None
    found = answer.get("data", {}).get("data") if isinstance(answer, dict) else None
    if not isinstance(found, dict):
        raise _refused(name, reference, "its answer is none of Vault's, KV version 2")
    return _text(name, reference, found)


@contextmanager
def _closed(client: Any) -> Iterator[Any]:
    try:
        yield client
    finally:
        client.adapter.close()


def _service_account(name: str, reference: SecretReference) -> str:
    """Read who this pod is; Kubernetes exchanges the token, so it is read anew each time.

    Raises:
        SecretUnreadable: this is no pod, or one without a service account.
    """
    try:
        return SERVICE_ACCOUNT.read_text().strip()
    except OSError:
        why = f"`role` signs in with a pod's service account, and there is no {SERVICE_ACCOUNT}"
        raise _refused(name, reference, why) from None


def _vault_token() -> str | None:
    """Return the token of whoever runs Rivet; None: Vault refuses, and says so."""
    if token := os.environ.get("VAULT_TOKEN"):
        return token
    try:
        return (Path.home() / VAULT_TOKEN_FILE).read_text().strip()
    except (OSError, RuntimeError):
        return None


READERS: Mapping[str, tuple[Extra | None, Callable[[str, SecretReference], str]]] = {
    "aws": (AWS_SECRETS, _from_aws),
    "gcp": (GCP_SECRETS, _from_gcp),
    "vault": (VAULT, _from_vault),
    "keyring": (KEYRING, _from_keyring),
    "file": (None, _from_file),
}
