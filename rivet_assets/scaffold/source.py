"""The source that `rivet init` and `rivet discover` are pointed at, as a block that holds no secret.

Belongs here: which engine a URL means, how the block refers to it, whether the line needs `tls:`. Not here: what is
made of the tables (`init.py`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from pydantic import SecretStr

from rivet_assets.scaffold.cursors import snake
from rivet_resources.contracts.source import Source
from rivet_resources.engines.shared.server import is_loopback
from rivet_resources.errors import ConfigError
from rivet_resources.registry import ENGINES, engines_by_scheme
from rivet_resources.secrets import resolve_secret


@dataclass(frozen=True)
class Pointed:
    """A source, and its block for a file: references only."""

    source: Source
    block: Mapping[str, Any]
    notes: tuple[str, ...] = ()  # for people, beside the block
    first: tuple[str, ...] = ()  # commands to run before the file can be used
    default_schema: str = ""  # which tables are named without


def point(*, url: str | None, env: str | None, file: str | None, tls: str | None = None) -> Pointed:
    """Find the source that exactly one of the three names.

    Raises:
        ConfigError: none or several are given, the variable or file is missing, or the URL means no engine we know.
    """
    given = [name for name, value in (("--source", url), ("--source-env", env), ("--source-file", file)) if value]
    if len(given) != 1:
        said = f"got {' and '.join(given)}" if given else "none is given"
        raise ConfigError(f"Name the source by exactly one of --source, --source-env and --source-file; {said}.")
    if env is not None and env not in os.environ:
        raise ConfigError(f"Environment variable {env}, named by --source-env, is not set. Export it first.")
    text = url or resolve_secret(None, env=env, file=Path(file) if file else None, key="source") or ""
    text = text.strip()
    engine = _engine(text, given[0])
    if ENGINES[engine].facts.file_endings:
        return _file(text, engine, env)
    return _server(text, engine, url=url, env=env, file=file, tls=tls)


def _engine(text: str, given: str) -> str:
    scheme, found, _ = text.partition("://")
    if not found and (word := _of_a_file(text)):
        return word
    known = engines_by_scheme()
    if not found or scheme.lower() not in known:
        raise ConfigError(
            f"{given} holds no URL that Rivet knows; write scheme://user:password@host:port/database with one of "
            f"{', '.join(known)}, or the path of a SQLite file."
        )
    return known[scheme.lower()]


def _of_a_file(text: str) -> str:
    """Return the engine whose database the file is, by its ending; the first with files where that tells nothing."""
    with_files = {word: made.facts.file_endings for word, made in ENGINES.items() if made.facts.file_endings}
    by_ending = [word for word, endings in with_files.items() if text.lower().endswith(endings)]
    return next(iter(by_ending or (with_files if Path(text).is_file() else ())), "")


def _file(text: str, engine: str, env: str | None) -> Pointed:
    """Refer to a file: a path is no secret, so it may stand in the YAML."""
    is_url = "://" in text
    path = unquote(text.partition(":///")[2]) if is_url else text
    keys = {"path_env": env} if env and not is_url else {"path": path}
    made = ENGINES[engine]
    source = made.model_validate({"type": engine, "path": Path(path)})
    return Pointed(source=source, block={"type": engine, **keys}, default_schema=made.facts.default_schema)


def _server(text: str, engine: str, *, url: str | None, env: str | None, file: str | None, tls: str | None) -> Pointed:
    """Refer to a server's URL, which never stands in the YAML."""
    far = [host for host in _hosts(text) if not is_loopback(host)]
    mode = tls or ("verify-full" if far else None)
    protection = {"tls": {"mode": mode}} if mode else {}
    near = {} if far else {"environment": "local"}
    name = env or f"{snake(_database(text)).upper() or 'SOURCE'}_URL"
    keys: dict[str, Any] = {"url_file": file} if file else {"url_env": name}
    own = {"url": SecretStr(url)} if url else keys
    scheme = text.partition("://")[0]
    shape = f"{scheme}://user:password@host:port/database"
    said, first = [], []
    if url:
        said = [f"The URL is a secret, so it does not stand here: export {name}='{shape}'."]
        first = [f"export {name}='…'   # the URL you gave to --source"]
    if far and tls is None:
        said += ["verify-full checks certificate and host name; a private authority: add ca_file, a PEM file."]
    if near:
        said += [
            "environment: local reads at full speed (profile fast). Remove it if this is a tunnel to a busy server."
        ]
    return Pointed(
        source=ENGINES[engine].model_validate({"type": engine, **own, **near, **protection}),
        block={"type": engine, **keys, **near, **protection},
        notes=tuple(said),
        first=tuple(first),
        default_schema=_database(text) if ENGINES[engine].facts.schema_is_database else "",
    )


def _hosts(url: str) -> list[str]:
    """List the hosts of a URL; several stand between commas, or in its options, as libpq reads them."""
    place = re.split(r"[/?#]", url.partition("://")[2], maxsplit=1)[0].rpartition("@")[2]
    options = parse_qs(url.partition("?")[2])
    named = [*place.split(","), *",".join(options.get("host", []) + options.get("hostaddr", [])).split(",")]
    return [unquote(re.sub(r":\d*$", "", host) if not host.endswith("]") else host).strip("[]") for host in named]


def _database(url: str) -> str:
    try:
        return unquote(urlsplit(url).path.removeprefix("/"))
    except ValueError:
        return ""
