"""The YAML block `notifications:`: who is told, of what, and where their addresses are kept.

Belongs here: the keys and their rules. Not here: deciding (`notify/messages.py`), sending
(`rivet_resources/webhooks.py`).
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from rivet_assets.blocks.choice import Choice
from rivet_assets.blocks.export_values import rule_broken
from rivet_resources.contracts.notifier import Notifier
from rivet_resources.contracts.settings import Settings
from rivet_resources.registry import NOTIFIERS
from rivet_resources.webhooks import refused_address

Trigger = Literal["failure", "schema_change", "degraded", "recovered"]
TRIGGERS = "failure, schema_change, degraded, recovered"
HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")  # RFC 9110, 5.6.2, a token


class Slack(Settings):
    """A Slack channel to tell, by its incoming webhook."""

    webhook_url: SecretStr | None = Field(None, description="better: webhook_url_env")
    webhook_url_env: str | None = Field(None, description="environment variable that holds the webhook's URL")
    on: tuple[Trigger, ...] = Field(("failure",), description=f"what is told: {TRIGGERS}")

    @model_validator(mode="after")
    def one_url(self) -> Self:
        """Refuse two webhooks, and an address that nothing would be sent to."""
        if self.webhook_url is not None and self.webhook_url_env is not None:
            raise rule_broken("RIVET_CONFIG_SLACK", "sets webhook_url and webhook_url_env; keep webhook_url_env")
        refused = refused_address(self.webhook_url.get_secret_value()) if self.webhook_url else ""
        if refused:
            raise rule_broken("RIVET_CONFIG_SLACK", f"has a webhook_url that {refused}")
        return self


class Webhook(Settings):
    """A service to tell: one POST of JSON per event."""

    url: SecretStr | None = Field(None, description="better: url_env")
    url_env: str | None = Field(None, description="environment variable that holds the URL")
    on: tuple[Trigger, ...] = Field(("failure",), description=f"what is told: {TRIGGERS}")
    headers_env: dict[str, str] = Field(
        default_factory=dict, description="more headers: name → environment variable that holds the value"
    )
    secret_env: str | None = Field(
        None, description="environment variable with the key of the HMAC-SHA256 in X-Rivet-Signature"
    )

    @model_validator(mode="after")
    def one_url(self) -> Self:
        """Refuse two addresses, one that nothing would be sent to, and headers that are none."""
        if self.url is not None and self.url_env is not None:
            raise rule_broken("RIVET_CONFIG_WEBHOOK", "sets url and url_env; keep url_env")
        refused = refused_address(self.url.get_secret_value()) if self.url else ""
        if refused:
            raise rule_broken("RIVET_CONFIG_WEBHOOK", f"has a url that {refused}")
        for name in self.headers_env:
            if not HEADER.fullmatch(name):
                message = f"has the header {name!r} in headers_env; a name has letters, digits and '-'"
                raise rule_broken("RIVET_CONFIG_WEBHOOK", message)
        return self


class Notifications(Settings):
    """Who is told what happened."""

    slack: Slack | None = Field(None, description="one message per run of an export to a Slack webhook")
    webhook: Webhook | None = Field(None, description="one POST of JSON per event to a service of yours")
    others: tuple[Annotated[Notifier, Choice("type", NOTIFIERS, unknown="RIVET_CONFIG_TYPE_UNKNOWN")], ...] = Field(
        (), description="notifiers of packages: `type` and their own keys"
    )
    webserver_url: str | None = Field(
        None, description="address of Dagster's webserver, such as https://dagster.example.com: messages link to runs"
    )

    @field_validator("webserver_url")
    @classmethod
    def plain_address(cls, url: str | None) -> str | None:
        """Refuse what is no address of a page, and one that holds a password: it is sent to people."""
        parts = urlsplit(url) if url is not None else None
        if parts is not None and (parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc):
            message = "webserver_url is not http(s)://host without user and password; write it like that"
            raise rule_broken("RIVET_CONFIG_WEBHOOK", message)
        return url
