"""PostgreSQL as a source: its YAML block, how to connect, and the Source methods (`type: postgres`).

Belongs here: settings, the transport gate, connection parameters, quoting and literals. Not here: the catalog,
planning, pages, cells and faults, which are `postgres_*.py` beside this file.
"""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from pydantic import Field, SecretStr, model_validator

from rivet_resources import retry
from rivet_resources.errors import ConfigError, SourceLost
from rivet_resources.extract import Chunk
from rivet_resources.settings import Pace, Settings, Tls, Tuning, secret
from rivet_resources.sources import postgres_pages, postgres_session, postgres_sql
from rivet_resources.sources.protocol import Page, Session, Wait
from rivet_resources.types import Column

DEFAULT_PORT = 5432
URLS = ("url", "url_env", "url_file")
FIELDS = ("host", "port", "user", "database", "password", "password_env")

# Pinned so that no server's or user's setting changes a cell (`types.md`, section 3; `engine.md`, section 2).
PINNED: Mapping[str, str] = {
    "default_transaction_read_only": "on",
    "standard_conforming_strings": "on",
    "TimeZone": "UTC",
    "DateStyle": "ISO",
    "IntervalStyle": "iso_8601",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "xmloption": "content",
    # Set, never disabled; above the longest pause of a throttle between two pages, and of a planner waiting for tasks.
    "idle_in_transaction_session_timeout": "86400000",
}


@dataclass(frozen=True)
class Line:
    """All that one connection needs. Holds secrets: never logged, never pickled, lives as long as its reader."""

    parameters: Mapping[str, str] = field(repr=False)  # libpq's, without `options`
    settings: Mapping[str, str]  # server settings of the session
    where: str  # host:port, for messages
    user: str
    secrets: tuple[str, ...] = field(repr=False)

    def conninfo(self, *, options: bool = True) -> str:
        """Write the libpq connection string; without `options` for a pooler that refuses them."""
        from psycopg.conninfo import make_conninfo

        parameters = dict(self.parameters)
        if options:
            given = [parameters.get("options", "")]
            given += [f"-c {name}={_escape(value)}" for name, value in self.settings.items()]
            parameters["options"] = " ".join(word for word in given if word)
        else:
            parameters.pop("options", None)
        return make_conninfo("", **parameters)


class Postgres(Settings):
    """Where a PostgreSQL database is and how hard it may be driven."""

    type: Literal["postgres"] = "postgres"
    url: SecretStr | None = Field(default=None, description="postgresql://user:password@host:5432/db; better: url_env")
    url_env: str | None = Field(default=None, description="environment variable that holds the URL")
    url_file: Path | None = Field(default=None, description="file that holds the URL")
    host: str | None = Field(default=None, description="host name, address, or folder of a unix socket")
    port: int | None = Field(default=None, ge=1, le=65535, description="default: 5432")
    user: str | None = None
    database: str | None = None
    password: SecretStr | None = Field(default=None, description="better: password_env")
    password_env: str | None = Field(default=None, description="environment variable that holds the password")
    environment: Literal["local", "replica", "production"] = Field(
        default="production", description="local: profile fast"
    )
    tuning: Tuning | None = None
    tls: Tls | None = Field(default=None, description="needed unless the host is this machine; mode: disable opts out")

    @model_validator(mode="after")
    def _one_way_to_connect(self) -> Postgres:
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
            missing = [name for name in ("host", "user", "database") if getattr(self, name) is None]
            if missing:
                raise ValueError(
                    f"lacks {', '.join(missing)}; set one of url, url_env, url_file, "
                    "or host, user and database together"
                )
        if self.password is not None and self.password_env is not None:
            raise ValueError("sets both password and password_env; keep password_env")
        return self

    @model_validator(mode="after")
    def _local_is_fast(self) -> Postgres:
        """Let `environment: local` choose the fast profile, unless a profile is written."""
        if self.environment == "local" and (self.tuning is None or self.tuning.profile is None):
            given = self.tuning.model_dump(exclude_none=True) if self.tuning else {}
            object.__setattr__(self, "tuning", Tuning(**{**given, "profile": "fast"}))
        return self

    # --- what a Source does ----------------------------------------------------------------------

    @contextmanager
    def session(self, *, application: str, pace: Pace, snapshot: bool = True) -> Iterator[Session]:
        """Connect for planning; see the protocol. The connection and its snapshot end with the block."""
        line = self.line(application, pace)
        session = retry.call(lambda: postgres_session.open_session(line, snapshot=snapshot), pace=pace, on=SourceLost)
        try:
            yield session
        finally:
            session.close()

    def pages(
        self,
        chunk: Chunk,
        columns: tuple[Column, ...],
        *,
        snapshot: str | None,
        application: str,
        pace: Pace,
        wait: Wait,
    ) -> Generator[Page, None, None]:
        """Read a chunk page by page, on a connection of its own; see the protocol."""
        line = self.line(application, pace)
        return postgres_pages.read(chunk, columns, line=line, snapshot=snapshot, pace=pace, wait=wait)

    def quote(self, name: str) -> str:
        """Quote one identifier, inner quotes doubled."""
        return postgres_sql.quote(name)

    def literal(self, text: str, column: Column) -> str:
        """Render a canonical text as a typed literal of this column's type; see the protocol."""
        return postgres_sql.literal(text, column)

    def lineage_name(self, table: str) -> tuple[str, str]:
        """Split a table as configured into (schema, name); `public` where none is written."""
        schema, name = postgres_sql.split_name(table)
        return schema or "public", name

    # --- connecting ------------------------------------------------------------------------------

    def line(self, application: str, pace: Pace) -> Line:
        """Resolve secrets and write down one connection; the transport gate stands here, before any socket.

        Raises:
            ConfigError: a variable or file is missing, the URL cannot be read, or the line would be unprotected.
        """
        parameters = self._parameters()
        password = parameters.get("password", "")
        pinned = {"application_name": application[:63], "client_encoding": "UTF8"}
        parameters |= pinned | self._transport(parameters)
        parameters.setdefault("connect_timeout", "10")
        parameters.setdefault("keepalives_idle", "60")
        host = parameters.get("host") or parameters.get("hostaddr") or os.environ.get("PGHOST", "unix socket")
        limits = {
            "statement_timeout": str(pace.statement_timeout_s * 1000),
            "lock_timeout": str(pace.lock_timeout_s * 1000),
        }
        return Line(
            parameters=parameters,
            settings={**PINNED, **limits},
            where=f"{host}:{parameters.get('port', DEFAULT_PORT)}",
            user=parameters.get("user", ""),
            secrets=tuple(word for word in {password, *self._url_secrets()} if word),
        )

    def _url(self) -> str | None:
        return secret(self.url, env=self.url_env, file=self.url_file, key="url")

    def _url_secrets(self) -> tuple[str, ...]:
        """Give the URL and the password as the URL spells it: a driver may print either."""
        url = self._url()
        if url is None:
            return ()
        spelled = re.search(r"//[^/@]*?:([^@]*)@", url)
        return (url, unquote(spelled[1]), spelled[1]) if spelled else (url,)

    def _parameters(self) -> dict[str, str]:
        """Give libpq's parameters from the URL or the fields."""
        url = self._url()
        if url is None:
            password = secret(self.password, env=self.password_env, key="password")
            fields = {
                "host": self.host, "port": self.port, "user": self.user, "dbname": self.database, "password": password,
            }  # fmt: skip
            return {name: str(value) for name, value in fields.items() if value is not None}
        from psycopg import ProgrammingError
        from psycopg.conninfo import conninfo_to_dict

        _check_scheme(url, key=next(k for k in URLS if getattr(self, k) is not None))
        try:
            found: dict[str, Any] = conninfo_to_dict(url)
        except ProgrammingError:  # its text shows the URL
            raise ConfigError(
                "The source's URL cannot be read; write postgresql://user:password@host:5432/database, "
                "with special characters of the password percent-encoded."
            ) from None
        return {name: str(value) for name, value in found.items() if value is not None}

    def _transport(self, parameters: Mapping[str, str]) -> dict[str, str]:
        """Give the TLS parameters.

        Raises:
            ConfigError: no `tls:` block, and the host is not this machine.
        """
        if self.tls is None:
            if not _is_this_machine(parameters):
                host = parameters.get("host") or parameters.get("hostaddr") or parameters.get("service", "?")
                raise ConfigError(
                    f"Source at {host} is not this machine and has no `tls:` block. "
                    "Add `tls: {mode: verify-full}`, or `tls: {mode: disable}` to go unprotected on purpose."
                )
            return {}
        if not self.tls.mode.startswith("verify"):
            return {"sslmode": self.tls.mode}
        authorities = str(self.tls.ca_file) if self.tls.ca_file else _system_authorities()
        return {"sslmode": self.tls.mode, "sslrootcert": authorities}


def _check_scheme(url: str, *, key: str) -> None:
    """Refuse a URL of another database before a driver shows it in an error."""
    scheme = urlsplit(url).scheme if "://" in url else ""
    if "://" in url and scheme not in ("postgres", "postgresql"):
        raise ConfigError(f"`{key}` of the source starts with {scheme!r}://; a postgres source needs postgresql://.")


def _is_this_machine(parameters: Mapping[str, str]) -> bool:
    """Say whether every host libpq may try is a unix socket or loopback; a service file may name any host."""
    if parameters.get("service") or os.environ.get("PGSERVICE"):
        return False
    hosts = ",".join(
        parameters.get(name) or os.environ.get(variable, "")
        for name, variable in (("host", "PGHOST"), ("hostaddr", "PGHOSTADDR"))
    )
    return all(_is_loopback(host.strip()) for host in hosts.split(","))


def _is_loopback(host: str) -> bool:
    if host == "" or host[0] in "/@" or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _system_authorities() -> str:
    """Give the machine's own file of authorities, since the drivers bring an OpenSSL that looks elsewhere."""
    paths = ssl.get_default_verify_paths()
    known = (
        paths.cafile,
        paths.openssl_cafile,
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/pki/tls/certs/ca-bundle.crt",
    )
    return next((path for path in known if path and Path(path).is_file()), "system")


def _escape(value: str) -> str:
    """Escape a value inside `options`, where blanks and backslashes need a backslash."""
    return re.sub(r"([\\ ])", r"\\\1", value)
