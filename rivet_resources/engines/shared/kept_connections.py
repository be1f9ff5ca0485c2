"""Connections that wait, cleaned, for the next session of a command that runs many exports.

Belongs here: while they are kept, and whose they are. Not here: how one is opened, cleaned and found alive (each
engine's `connect.py`).

A round of a thousand exports, one after another, so connects once and not two thousand times: each connection costs a
PostgreSQL a process, and us 3 ms. What has a cap (`max_connections`) is not kept, since a connection that waits here
would be one too many for another process.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol


class Closable(Protocol):
    """A driver's connection."""

    def close(self) -> Any:
        """End it."""


_lock = threading.Lock()
_kept: defaultdict[str, list[Closable]] = defaultdict(list)
_blocks: list[int] = []  # process ids of the blocks that are open: a forked process uses none of its parent's


@contextmanager
def keeping() -> Iterator[None]:
    """Keep connections until the block ends; blocks may lie in one another, and side by side in threads."""
    with _lock:
        _blocks.append(os.getpid())
    try:
        yield
    finally:
        with _lock:
            _blocks.remove(os.getpid())
            left = [] if _blocks else [each for connections in _kept.values() for each in connections]
            if not _blocks:
                _kept.clear()
        for connection in left:
            close(connection)


def are_kept() -> bool:
    """Return whether a connection that is handed back now is kept."""
    return os.getpid() in _blocks


def take(key: str) -> Any | None:
    """Return a connection that somebody with the same key kept; it may be dead by now. None: there is none."""
    with _lock:
        return _kept[key].pop() if are_kept() and _kept.get(key) else None


def keep(key: str, connection: Closable) -> None:
    """Keep a connection that carries nothing of its session any more; outside a block it is closed."""
    with _lock:
        if are_kept():
            _kept[key].append(connection)
            return
    close(connection)


def close(connection: Closable) -> None:
    """End a connection that nobody waits for: what it says of that is nobody's concern."""
    with suppress(Exception):
        connection.close()


def key_of(*facts: object) -> str:
    """Return the key of what makes two connections equal; secrets among it are not to be read in the key."""
    return hashlib.sha256(repr(facts).encode()).hexdigest()
