"""The YAML blocks `schema_registry:`: of the root, where schemas are registered; of an export, as what.

Belongs here: the keys and their rules. Not here: what is checked before a window is published
(`run/schema_agreement.py`), asking a registry (`rivet_resources/schema_registry/`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator

from rivet_assets.blocks.export_values import Duration, rule_broken
from rivet_resources.contracts.schema_registry import LONGEST_SUBJECT, Compatibility, SchemaFormat
from rivet_resources.contracts.settings import Settings
from rivet_resources.extras import PROTOBUF, Extra
from rivet_resources.webhooks import refused_address

CODE = "RIVET_CONFIG_SCHEMA_REGISTRY"
RECORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")


def _subject(name: str) -> str:
    """Refuse what registries do not take, or what nobody could read."""
    if not name.strip() or len(name) > LONGEST_SUBJECT or re.search(r"[\x00-\x1f\x7f]", name):
        message = f"is not a subject: 1 to {LONGEST_SUBJECT} characters, none of them a control character"
        raise rule_broken(CODE, message)
    return name


def _record(name: str) -> str:
    if not RECORD.fullmatch(name):
        raise rule_broken(CODE, f"{name!r} cannot name a record; use letters, digits and '_', with dots between")
    return name


class SchemaRegistrySettings(Settings):
    """Where schemas are registered: in the state store, or at a registry that speaks Confluent's HTTP API."""

    embedded: bool = Field(False, description="true: in the state store, for all who share it")
    url: str | None = Field(None, description="address of a registry, without user and password")
    username: str | None = Field(None, min_length=1, description="for basic authentication; of Confluent Cloud the key")
    password: SecretStr | None = Field(None, description="better: password_env")
    password_env: str | None = Field(None, description="environment variable that holds the password, or the secret")
    ca_file: Path | None = Field(None, description="PEM file with the certificate authority of the registry")
    timeout: Duration = Field(10, ge=1, description="of each request: seconds, or a number with s, m, h or d")
    cache: Duration = Field(
        600, description="a schema that was agreed is not asked for again for so long: seconds, or with s, m, h or d"
    )

    @model_validator(mode="after")
    def one_place(self) -> Self:
        """Refuse two places, none, and what would send a password where everyone can read it."""
        if self.embedded == (self.url is not None):
            raise rule_broken(CODE, "needs either `embedded: true` or `url`; write one of them")
        of_url = sorted({"username", "password", "password_env", "ca_file", "timeout"} & self.model_fields_set)
        if self.embedded and of_url:
            raise rule_broken(CODE, f"sets {', '.join(of_url)} beside `embedded`; these belong to `url`")
        if self.password is not None and self.password_env is not None:
            raise rule_broken(CODE, "sets both password and password_env; keep password_env")
        has_password = self.password is not None or self.password_env is not None
        if (self.username is not None) != has_password:
            raise rule_broken(CODE, "has half of a sign-in; write username with password_env")
        if self.url is not None and has_password and (refused := refused_address(self.url)):
            raise rule_broken(CODE, f"has a url that {refused}")
        return self

    @field_validator("url")
    @classmethod
    def plain_address(cls, url: str | None) -> str | None:
        """Refuse what is no address, and one that holds a password: it is shown in messages."""
        try:
            parts = urlsplit(url) if url is not None else None
            is_plain = parts is None or (parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0)
        except ValueError:
            parts, is_plain = None, False
        if not is_plain or (parts is not None and ("@" in parts.netloc or parts.query or parts.fragment)):
            raise rule_broken(CODE, "is not http(s)://host without user and password; write these as keys beside it")
        return url


class SchemaSubject(Settings):
    """As what the schema of an export is registered, and which changes of it are refused."""

    subject: Annotated[str, AfterValidator(_subject)] | None = Field(
        None, description="default: <export>-value, after <project>. where the root has `project`"
    )
    format: SchemaFormat = Field("avro", description="language of the schema: avro, json (JSON Schema) or protobuf")
    record: Annotated[str, AfterValidator(_record)] | None = Field(
        None, description="name of the record, the message or the title; default: the export's"
    )
    compatibility: Compatibility | None = Field(
        None,
        description="which changes pass: none, backward, forward, full, the last three also with _transitive; default: "
        "the registry's rule for the subject",
    )
    auto_register: bool = Field(True, description="false: a schema that is not registered already stops the window")

    @property
    def extra(self) -> Extra | None:
        """Return what the language of the schema needs to be installed; None: nothing."""
        return {"protobuf": PROTOBUF}.get(self.format)


def format_alone(value: object) -> object:
    """Read `schema_registry: avro` as its block."""
    return {"format": value} if isinstance(value, str) else value
