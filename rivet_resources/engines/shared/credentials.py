"""Where the credentials of a source come from: told without a secret.

Belongs here: the keys of a server's block, the variables and files behind them, what a driver adds by itself. Not here:
resolving them (server.py), whether the server agrees.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from rivet_resources.contracts.evidence import Finding
from rivet_resources.engines.shared.server import Server
from rivet_resources.errors import RivetError
from rivet_resources.secrets import read_variable


def findings(server: Server, *, is_written: bool) -> Iterator[Finding]:
    """Yield which key gives the address and the password, and whether what it names is there.

    Args:
        is_written: a secret stands in the file itself, not a reference to one.
    """
    if server.url is not None:
        yield _literal("url", is_written)
    elif server.url_env is not None:
        yield _variable(server.url_env, key="url_env")
    elif server.url_file is not None:
        yield _file(server.url_file, key="url_file")
    elif server.password is not None:
        yield _literal("password", is_written)
    elif server.password_env is not None:
        yield _variable(server.password_env, key="password_env")
    elif getattr(server, "auth", "") == "kerberos":
        yield Finding("credentials", "ok", "the Kerberos ticket of this process (`klist`)")
    else:
        yield Finding("credentials", "ok", f"user {server.user}, no password in the config{_drivers_own(server)}")


def _literal(key: str, is_written: bool) -> Finding:
    if not is_written:
        return Finding("credentials", "ok", f"{key}, filled in from a variable or --param")
    text = f"{key} stands in the file for every reader to see"
    return Finding("credentials", "warn", text, f"{key}_env: <VARIABLE>  -- and `export <VARIABLE>=…`")


def _variable(name: str, *, key: str) -> Finding:
    """Distinguish an empty variable from one that is not there: the second is refused, the first is an odd secret."""
    try:
        found = read_variable(name)
    except RivetError as error:  # of its store
        return Finding("credentials", "fail", str(error), f"Fix `secrets: {name}`.")
    if found is None:
        return Finding("credentials", "fail", f"the variable {name} (from {key}) is not set", f"export {name}=…")
    if not found:
        return Finding("credentials", "warn", f"the variable {name} (from {key}) is set, but empty", f"export {name}=…")
    return Finding("credentials", "ok", f"the variable {name} (from {key}), set")


def _file(path: Path, *, key: str) -> Finding:
    """Return how a secret's file stands: missing, read by others too, or well."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return Finding(
            "credentials", "fail", f"file {path} (from {key}) cannot be read: {error.strerror}", f"ls -l {path}"
        )
    # Of the group and of others: one bit is enough to read a password.
    if mode & 0o077:
        return Finding("credentials", "warn", f"file {path} (from {key}) may be read by others", f"chmod 600 {path}")
    return Finding("credentials", "ok", f"file {path} (from {key})")


def _drivers_own(server: Server) -> str:
    """Return what libpq adds by itself; the other drivers add nothing."""
    if getattr(server, "type", "") != "postgres":
        return ""
    # libpq looks at the variable before its file.
    if os.environ.get("PGPASSWORD"):
        return ", libpq takes PGPASSWORD"
    known = Path(os.environ.get("PGPASSFILE") or Path.home() / ".pgpass")
    return f", libpq looks into {known}" if known.is_file() else ", and none in PGPASSWORD or ~/.pgpass"
