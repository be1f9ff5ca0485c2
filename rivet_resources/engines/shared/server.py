"""What the YAML blocks of all database servers share: where it is, who asks, and whether the line is protected.

Belongs here: the keys, the ways to give credentials, the parsed address, the transport gate. Not here: what one
driver makes of them (`postgres/source.py`, `mysql/source.py`, `sqlserver/source.py`).
"""

from __future__ import annotations

import ipaddress
import re
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import Field, SecretStr, model_validator

from rivet_resources.contracts.read_limits import SourceBudget, SourceRate, SourceWindows
from rivet_resources.contracts.settings import Settings, Tls, Tuning
from rivet_resources.errors import ConfigError
from rivet_resources.secrets import resolve_secret

URLS = ("url", "url_env", "url_file")
FIELDS = ("host", "port", "user", "database", "password", "password_env")


class Server(Settings):
    """Where a database server is and how hard it may be driven. Each engine adds its `type`."""

    url: SecretStr | None = Field(
        default=None, description="engine://user:password@host:port/database; better: url_env"
    )
    url_env: str | None = Field(default=None, description="environment variable that holds the URL")
    url_file: Path | None = Field(default=None, description="file that holds the URL")
    host: str | None = Field(default=None, description="host name, address, or folder of a unix socket")
    port: int | None = Field(default=None, ge=1, le=65535, description="default: the engine's own")
    user: str | None = Field(default=None, description="user name")
    database: str | None = Field(default=None, description="database name")
    password: SecretStr | None = Field(default=None, description="better: password_env")
    password_env: str | None = Field(default=None, description="environment variable that holds the password")
    environment: Literal["local", "replica", "production"] = Field(
        default="production", description="local: profile fast"
    )
    tuning: Tuning | None = Field(default=None, description="how hard the source may be driven")
    max_connections: int | None = Field(
        default=None, ge=2, description="most connections of exports at once, over all runs that share a state store"
    )
    tls: Tls | None = Field(default=None, description="needed unless the host is this machine; mode: disable opts out")
    rate_limit: SourceRate = None
    read_windows: SourceWindows = None
    budget: SourceBudget = None

    @property
    def needed_fields(self) -> tuple[str, ...]:
        """Return the fields that go together where there is no URL."""
        return ("host", "user", "database")

    @property
    def only_here(self) -> str:
        """Return why a worker on another machine cannot connect; "" where it can, as far as the block tells."""
        return "is a unix socket of this machine" if (self.host or "").startswith("/") else ""

    @model_validator(mode="after")
    def _one_way_to_connect(self) -> Self:
        """Refuse a block that connects in two ways, or in none.

        Raises:
            ValueError: the message lists the keys that were given and the choices.
        """
        urls = [name for name in URLS if getattr(self, name) is not None]
        fields = [name for name in FIELDS if getattr(self, name) is not None]
        if len(urls) + bool(fields) > 1:
            raise ValueError(
                f"sets {', '.join(urls + fields)}; keep exactly one of url, url_env, url_file, "
                "or the fields host, user, database"
            )
        if not urls:
            needed = self.needed_fields
            missing = [name for name in needed if getattr(self, name) is None]
            if missing:
                raise ValueError(
                    f"lacks {', '.join(missing)}; set one of url, url_env, url_file, "
                    f"or {', '.join(needed[:-1])} and {needed[-1]} together"
                )
        if self.password is not None and self.password_env is not None:
            raise ValueError("sets both password and password_env; keep password_env")
        return self

    @model_validator(mode="after")
    def _local_is_fast(self) -> Self:
        """Let `environment: local` choose the fast profile, unless a profile is written."""
        if self.environment == "local" and (self.tuning is None or self.tuning.profile is None):
            given = self.tuning.model_dump(exclude_none=True) if self.tuning else {}
            # The model is frozen; this is still its making.
            object.__setattr__(self, "tuning", Tuning(**{**given, "profile": "fast"}))
        return self

    def at(self, variable: str) -> Self:
        """Return the same source at the URL that an environment variable holds; see the protocol."""
        # Nothing of the old address stays: the fields would make two ways to connect, which the block refuses.
        return self.model_copy(update={**dict.fromkeys((*URLS, *FIELDS)), "url_env": variable})

    def url_text(self) -> str | None:
        """Resolve the URL from wherever it stands; None when the fields are used.

        Raises:
            ConfigError: its variable or file is missing.
        """
        return resolve_secret(self.url, env=self.url_env, file=self.url_file, key="url")

    def password_text(self) -> str | None:
        """Resolve the password of the fields.

        Raises:
            ConfigError: its variable is missing.
        """
        return resolve_secret(self.password, env=self.password_env, key="password")

    def secret_texts(self) -> tuple[str, ...]:
        """Return what no message may show: the URL, and the password in each spelling a driver may print."""
        # Each spelling is blanked out: a driver may print the password as the URL has it, or decoded, and one of
        # them would pass.
        url, password = self.url_text(), self.password_text()
        # Drivers show a password decoded or as the URL has it, by the fault.
        spelled = re.search(r"//[^/@]*?:([^@]*)@", url or "")
        words = (url, password, *((unquote(spelled[1]), spelled[1]) if spelled else ()))
        return tuple(dict.fromkeys(word for word in words if word))

    def url_key(self) -> str:
        """Name the key under which the URL was given."""
        return next((key for key in URLS if getattr(self, key) is not None), "url")


@dataclass(frozen=True)
class Address:
    """Where to connect and as whom, from the URL or the fields; `options` are the URL's own."""

    host: str
    port: int
    user: str
    password: str | None = field(repr=False)
    database: str = ""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def where(self) -> str:
        """Name the place in messages."""
        return f"{self.host}:{self.port}"


def address(server: Server, *, schemes: tuple[str, ...], default_port: int, example: str) -> Address:
    """Read where a server is from its URL or its fields.

    Args:
        schemes: of URLs that mean this engine.
        example: a URL as it should be, for messages.

    Raises:
        ConfigError: a variable or file is missing, or the URL cannot be read; it is not shown.
    """
    url = server.url_text()
    if url is None:
        return Address(
            host=server.host or "",
            port=server.port or default_port,
            user=server.user or "",
            password=server.password_text(),
            database=server.database or "",
        )
    # Before parsing: a driver that is given the URL of another database tends to print it whole.
    check_scheme(url, key=server.url_key(), schemes=schemes, example=example)
    try:
        parts = urlsplit(url)
        host, port = unquote(parts.hostname or ""), parts.port or default_port
    except ValueError:
        # Without the parser's own message, which quotes the URL.
        host, port = "", 0
    # A URL of MySQL may name a socket among its options, and no host.
    if not host and "unix_socket" not in url:
        raise ConfigError(
            f"The source's URL cannot be read; write {example}, "
            "with special characters of the password percent-encoded."
        )
    return Address(
        host=host or "localhost",
        port=port,
        user=unquote(parts.username or ""),
        password=unquote(parts.password) if parts.password is not None else None,
        database=unquote(parts.path.removeprefix("/")),
        options=dict(parse_qsl(parts.query)),
    )


def check_scheme(url: str, *, key: str, schemes: tuple[str, ...], example: str) -> None:
    """Refuse a URL of another database before a driver shows it in an error.

    Raises:
        ConfigError
    """
    scheme = urlsplit(url).scheme if "://" in url else ""
    if "://" in url and scheme not in schemes:
        wanted = example.partition("://")[0]
        raise ConfigError(f"`{key}` of the source starts with {scheme!r}://; this source needs {wanted}://.")


# --- the transport gate --------------------------------------------------------------------------


def require_protected(tls: Tls | None, hosts: Iterable[str]) -> None:
    """Refuse an unprotected line to another machine (`contract.md`, 1.3); no socket was opened yet.

    Raises:
        ConfigError: no `tls:` block, and one of the hosts is not this machine.
    """
    # Judged by the name as it is written. Resolving it would be a connection before the gate is passed.
    far = [host for host in hosts if not is_loopback(host.strip())]
    if tls is None and far:
        raise ConfigError(
            f"Source at {', '.join(far)} is not this machine and has no `tls:` block. "
            "Add `tls: {mode: verify-full}`, or `tls: {mode: disable}` to go unprotected on purpose."
        )


def is_loopback(host: str) -> bool:
    """Return whether a host is a unix socket or a loopback address."""
    # `/` begins a socket's folder, `@` one in Linux's abstract namespace (libpq, "Parameter Key Words", host).
    if host == "" or host[0] in "/@" or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def system_authorities() -> str:
    """Return the machine's own file of authorities, since drivers bring an OpenSSL that looks elsewhere."""
    paths = ssl.get_default_verify_paths()
    known = (
        paths.cafile,
        paths.openssl_cafile,
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/pki/tls/certs/ca-bundle.crt",
    )
    return next((path for path in known if path and Path(path).is_file()), "system")
