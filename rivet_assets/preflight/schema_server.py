"""`rivet schema serve`: who may be answered, and the server's life.

Belongs here: refusing a server that anybody could write to, starting and ending it. Not here: what it answers
(`rivet_resources/schema_registry/server.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from ipaddress import ip_address

from rivet_assets.config.root import RivetConfig
from rivet_assets.run.admit.scope import state_of
from rivet_resources.errors import ConfigError
from rivet_resources.schema_registry.embedded import EmbeddedSchemaRegistry
from rivet_resources.schema_registry.server import ServerSettings, registry_server
from rivet_resources.secrets import resolve_secret


def serve(
    config: RivetConfig, settings: ServerSettings, *, password_env: str | None, tell: Callable[[str], None]
) -> None:
    """Serve the registry in the state store until the process is interrupted.

    Raises:
        ConfigError: it cannot listen there, or others could write to it, or read its password on the way.
    """
    _refuse_open_door(settings)
    password = resolve_secret(None, env=password_env, key="password")
    registry = EmbeddedSchemaRegistry(state_of(config))
    server = registry_server(registry, replace(settings, password=password), tell=tell)
    scheme = "https" if settings.certificate else "http"
    tell(f"schema registry {registry.name}: {scheme}://{settings.host}:{server.server_port} (Ctrl-C ends it)")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        tell("ended")
    finally:
        server.server_close()


def _refuse_open_door(settings: ServerSettings) -> None:
    """Refuse to answer other machines without a password, or to read one that everybody on the way could.

    Raises:
        ConfigError
    """
    if _is_here(settings.host):
        return
    if settings.username is None:
        raise ConfigError(
            f"At {settings.host} every machine of the network could add schemas. Write --username and --password-env, "
            f"or listen at 127.0.0.1."
        )
    if settings.certificate is None:
        raise ConfigError(
            f"At {settings.host} without TLS the password could be read on its way. Write --certificate and --key, or "
            f"listen at 127.0.0.1 behind a proxy that speaks TLS."
        )


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
