"""Statements that go on at a server though the process that asked for them died, and how the next start ends them.

Belongs here: what a process notes of its connections on this machine, and ending what such a note proves to be a dead
one's. Not here: connecting (connect.py).

MySQL and MariaDB look at a client only when they send; a long sort or scan goes on for a process that was killed, and
costs the source as much as if somebody waited for it. Each process has a token, which stands in the comment of each of
its statements, and a file with the server and number of each of its connections, locked while it lives (decided
2026-11). A statement is ended if the process is gone, the server's list shows it under the noted number, and its text
begins with the token: a number that was given again, or a text that somebody copied, is not enough. Behind a pooler,
where one connection of the server serves many clients in turn, nothing is ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import platform
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rivet_resources.errors import RivetError
from rivet_resources.scratch import private_folder

log = logging.getLogger(__name__)

YOUNG_SECONDS = 60.0  # an empty note may be about to be locked
OLD_SECONDS = 7 * 86_400.0  # a server that nobody has asked since
Ask = Callable[[str], list[tuple[str | None, ...]]]


@dataclass
class _Process:
    """What this process is called, and the file that it keeps open."""

    pid: int
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    file: int | None = None
    looked_at: set[tuple[str, str]] = field(default_factory=set)


_processes: list[_Process] = []


def _mine() -> _Process:
    # A worker that was forked is another process, and would else write under its parent's name.
    if not _processes or _processes[-1].pid != os.getpid():
        _processes[:] = [_Process(os.getpid())]
    return _processes[-1]


def token() -> str:
    """Return what tells this process's statements from those of any other."""
    return _mine().token


def note_connection(where: str, user: str, number: int) -> None:
    """Note a connection that was opened; without a place for notes, a dead process's statements run to their end."""
    with contextlib.suppress(OSError, RivetError):
        mine = _mine()
        if mine.file is None:
            path = private_folder(_folder()) / f"{mine.token}.lines"
            mine.file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(mine.file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        line = json.dumps([platform.node(), mine.pid, where, user, number])
        os.write(mine.file, f"{line}\n".encode())


def end_leftovers(ask: Ask, *, where: str, user: str, number: int) -> int:
    """End the statements that dead processes of this machine left at a server, once per process; how many.

    Args:
        ask: runs a statement over a connection of our own.
        number: of that connection, as the server greeted it.
    """
    if (where, user) in _mine().looked_at:
        return 0
    _mine().looked_at.add((where, user))
    ended = 0
    with contextlib.suppress(OSError), os.scandir(_folder()) as entries:
        for entry in [each for each in entries if each.name.endswith(".lines")]:
            with contextlib.suppress(OSError, ValueError), _dead(Path(entry.path)) as numbers:
                if found := numbers.pop((where, user), None):
                    ended += _end(ask, found, token=entry.name.partition(".")[0], number=number)
    if ended:
        log.warning("Statements that a dead process had left running at %s were ended: %d.", where, ended)
    return ended


def _end(ask: Ask, numbers: set[int], *, token: str, number: int) -> int:
    # A pooler's own number is none of the server's, and the connection under the server's may be anybody's by now.
    if ask("SELECT CONNECTION_ID()") != [(str(number),)]:
        return 0
    ended = 0
    for row in ask("SHOW FULL PROCESSLIST"):
        if int(row[0] or 0) in numbers and is_of(token, row[7] or ""):
            ask(f"KILL QUERY {row[0]}")
            ended += 1
    return ended


def is_of(token: str, statement: str) -> bool:
    """Return whether a statement begins with the comment of a process."""
    comment, end, _ = statement.partition("*/")
    return bool(end) and comment.startswith("/* ") and comment.split()[-1] == token


@contextmanager
def _dead(path: Path) -> Iterator[dict[tuple[str, str], set[int]]]:
    """Yield the connections of a process that died, by server and user; what is left behind the block is kept.

    Raises:
        OSError: it lives, or its note cannot be read. ValueError: it is none.
    """
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found, age = _read(file), time.time() - os.fstat(file).st_mtime
        kept = dict(found)
        yield kept
        if (not kept and (found or age > YOUNG_SECONDS)) or age > OLD_SECONDS:
            path.unlink(missing_ok=True)
        elif kept != found:
            lines = [json.dumps([platform.node(), 0, *key, each]) for key, numbers in kept.items() for each in numbers]
            os.ftruncate(file, 0)
            os.pwrite(file, "".join(f"{line}\n" for line in lines).encode(), 0)
    finally:
        os.close(file)


def _read(file: int) -> dict[tuple[str, str], set[int]]:
    """Read a note.

    Raises:
        BlockingIOError: its process is there, or is of another machine that shares the folder; a lock alone is not
            believed, since not each file system has them.
    """
    found: dict[tuple[str, str], set[int]] = {}
    for line in os.read(file, 1 << 22).decode().splitlines():
        node, pid, where, user, number = json.loads(line)
        if node != platform.node() or (pid and _is_alive(int(pid))):
            raise BlockingIOError
        found.setdefault((str(where), str(user)), set()).add(int(number))
    return found


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _folder() -> Path:
    return Path(tempfile.gettempdir()) / f"rivet-lines-{os.getuid()}"
