"""A secret that lies in a store of secrets: where, and which of its fields.

Belongs here: the block of one entry of `secrets:`, as a value that travels to tasks. Not here: reading it
(`rivet_resources/secret_stores.py`), names of variables (`rivet_resources/secrets.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from rivet_resources.contracts.settings import Settings

CODE = "RIVET_CONFIG_SECRET"
STORES = ("aws", "gcp", "vault", "keyring", "file")
# Which keys belong to one store only.
OF_STORE = {
    "region": ("aws",), "endpoint": ("aws", "gcp", "vault"), "username": ("keyring",), "mount": ("vault",),
    "role": ("vault",), "sign_in_mount": ("vault",),
}  # fmt: skip


def _broken(message: str) -> PydanticCustomError:
    return PydanticCustomError(CODE, "{message}", {"message": message})


class SecretReference(Settings):
    """One secret, in one store; it is read when something connects, and never kept in a file."""

    aws: str | None = Field(None, min_length=1, description="AWS Secrets Manager: name or ARN of the secret")
    gcp: str | None = Field(
        None,
        pattern=r"^projects/[^/]+(/locations/[^/]+)?/secrets/[^/]+/versions/[^/]+$",
        description="Google Secret Manager: projects/P/secrets/S/versions/latest",
    )
    vault: str | None = Field(None, min_length=1, description="HashiCorp Vault, KV version 2: path below the mount")
    keyring: str | None = Field(None, min_length=1, description="the system's keyring: name of the service")
    file: Path | None = Field(None, description="a file that holds it, such as a mounted secret of Kubernetes")
    field: str | None = Field(
        None, min_length=1, description="which field of a secret that is a JSON object; Vault always needs it"
    )
    username: str | None = Field(None, min_length=1, description="keyring: the user name of the entry")
    mount: str = Field("secret", min_length=1, description="vault: where the engine is mounted")
    role: str | None = Field(
        None, min_length=1, description="vault: sign in as this role with the pod's service account (Kubernetes)"
    )
    sign_in_mount: str = Field(
        "kubernetes", min_length=1, description="vault, with role: where the way to sign in is mounted"
    )
    region: str | None = Field(None, min_length=1, description="aws: the region; default: as AWS's own tools find it")
    endpoint: str | None = Field(
        None, min_length=1, description="address of the store; vault: default VAULT_ADDR; else the provider's own"
    )

    @model_validator(mode="after")
    def _one_store(self) -> Self:
        """Refuse several stores, none, and keys that the chosen one does not look at."""
        named = [store for store in STORES if getattr(self, store) is not None]
        if len(named) != 1:
            raise _broken(f"names {', '.join(named) or 'no store'}; write exactly one of {', '.join(STORES)}")
        for key, stores in OF_STORE.items():
            if key in self.model_fields_set and named[0] not in stores:
                raise _broken(f"sets {key}, which belongs to {', '.join(stores)}, beside {named[0]}; remove it")
        if self.vault is not None and self.field is None:
            raise _broken("has no field; a secret of Vault has several, so write which one")
        if "sign_in_mount" in self.model_fields_set and self.role is None:
            raise _broken("sets sign_in_mount, which belongs to role; add that, or remove it")
        if self.keyring is not None and self.username is None:
            raise _broken("has no username; an entry of a keyring is a service and a user name")
        if self.endpoint is not None:
            from rivet_resources.webhooks import refused_address  # start

            if why := refused_address(self.endpoint):
                raise _broken(f"has an endpoint that {why}")
        return self

    @property
    def store(self) -> str:
        """Return the key that names the store."""
        return next(store for store in STORES if getattr(self, store) is not None)

    @property
    def text(self) -> str:
        """Return where it lies, for people: `vault secret/shop, field url`."""
        place = getattr(self, self.store)
        path = f"{self.mount}/{place}" if self.vault is not None else place
        more = f", field {self.field}" if self.field is not None else ""
        return f"{self.store} {path}{f', user {self.username}' if self.username is not None else ''}{more}"
