"""Connections that wait, cleaned, for the next session of a command that runs many exports.

Belongs here: while they are kept, whose they are, and which are worth it. Not here: how one is opened, woken and
cleaned (each engine's `connect.py`).

A round of a thousand exports, one after another, so connects once and not two thousand times: each connection costs a
PostgreSQL a process, and us 3 ms. What has a cap (`max_connections`) is not kept, since a connection that waits here
would be one too many for another process.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TypeVar


class Closable(Protocol):
    """A driver's connection."""

    def close(self) -> Any:
        """End it."""


class Keyed(Protocol):
    """What a connection is made of, as far as keeping it needs that."""

    @property
    def key(self) -> str:
        """Return the same text for connections that may stand for one another (`key_of`)."""

    @property
    def is_capped(self) -> bool:
        """Return whether the source's connections are counted."""


C = TypeVar("C", bound=Closable)
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


def borrow(
    conn_params: Keyed,
    *,
    wake: Callable[[C], object],
    deaths: tuple[type[Exception], ...],
    connect: Callable[[], C],
) -> C:
    """Return a connection that an earlier session of this command left behind, made as new by `wake`; else a new one.

    Args:
        deaths: what `wake` raises where the connection died while it waited.
    """
    with _lock:
        waiting = _kept.get(conn_params.key) if are_kept() else None
        kept: Any = waiting.pop() if waiting else None
    if kept is not None:
        try:
            wake(kept)
        except deaths:
            close(kept)
        else:
            return kept  # type: ignore[no-any-return]
    return connect()


def hand_back(connection: C, conn_params: Keyed, *, is_cleaned: Callable[[C], bool]) -> None:
    """End a session: its connection waits for the next one without anything of this one, or is closed.

    Args:
        is_cleaned: takes away what the session left in it; False where it is not worth keeping.
    """
    if are_kept() and not conn_params.is_capped and is_cleaned(connection):
        with _lock:
            # Asked again: the block may have ended meanwhile.
            if are_kept():
                _kept[conn_params.key].append(connection)
                return
    close(connection)


def close(connection: Closable) -> None:
    """End a connection that nobody waits for: what it says of that is nobody's concern."""
    with suppress(Exception):
        connection.close()


def key_of(*facts: object) -> str:
    """Return the key of what makes two connections equal; secrets among it are not to be read in the key."""
    return hashlib.sha256(repr(facts).encode()).hexdigest()
