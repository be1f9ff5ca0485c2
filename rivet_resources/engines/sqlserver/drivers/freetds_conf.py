"""The `freetds.conf` of this process, for what FreeTDS takes from there only: the file of authorities.

Belongs here: sections by content, in one file that ends with the process. Not here: the other words of a connection
(strings.py).

FreeTDS looks for its file in FREETDSCONF. The variable is set once, before the first such connection; lines without a
check do not read the file. Were a section missing, FreeTDS would look for a host of that name, and find none.
Source: FreeTDS User Guide, "freetds.conf" and "Environment variables".
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tempfile
import threading
from pathlib import Path

from rivet_resources.errors import ConfigError

_lock = threading.Lock()
_written: set[str] = set()


def section(host: str, port: int, *, authorities: Path, checks_name: bool) -> str:
    """Return the name of the section for a server whose certificate is checked; write it where it is new.

    Raises:
        ConfigError: the path or the host cannot stand in such a file.
    """
    lines = (
        f"host = {host}",
        f"port = {port}",
        "encryption = require",
        f"ca file = {authorities}",
        f"check certificate hostname = {'yes' if checks_name else 'no'}",
    )
    if any("\n" in line or "\r" in line for line in lines):
        raise ConfigError("`tls.ca_file` or `host` of the source holds a line end, which FreeTDS's file cannot hold.")
    content = "\n".join(lines)
    name = f"rivet-{hashlib.sha256(content.encode()).hexdigest()[:24]}"
    with _lock:
        if name not in _written:
            with _file().open("a") as file:
                file.write(f"[{name}]\n{content}\n\n")
            _written.add(name)
    return name


def _file() -> Path:
    if not _written:
        folder = Path(tempfile.mkdtemp(prefix="rivet-freetds-"))
        atexit.register(_remove, folder, os.getpid())
        os.environ["FREETDSCONF"] = str(folder / "freetds.conf")
    return Path(os.environ["FREETDSCONF"])


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _begin_anew() -> None:
    """Write a file of its own after a fork: the parent removes its own when it ends."""
    global _lock
    _lock = threading.Lock()
    _written.clear()


os.register_at_fork(after_in_child=_begin_anew)
