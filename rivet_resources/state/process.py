"""Who a process is, so that another one can tell whether it still lives.

Belongs here: host, pid and start time, and the look at the process table. Not here: what follows from it
(`leases.py`, `runs.py`). A pid alone is not enough: systems give it again to somebody else.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from functools import cache

import psutil

# psutil derives the start from the boot time, which moves by a little when the clock is set.
START_TOLERANCE_SECONDS = 2.0


@dataclass(frozen=True)
class Process:
    """One process of one host; `start` is its create time, seconds since the epoch."""

    host: str
    pid: int
    start: float


def this_process() -> Process:
    """Name the calling process; a forked child gets its own name."""
    return _process(os.getpid())


@cache
def _process(pid: int) -> Process:
    return Process(socket.gethostname(), pid, psutil.Process(pid).create_time())


def is_here(process: Process) -> bool:
    """Say whether it ran on this host, so that its death can be seen from here."""
    return process.host == socket.gethostname()


def is_alive(process: Process) -> bool:
    """Say whether a process of this host still runs; a zombie does not, nor does another one with the same pid."""
    try:
        found = psutil.Process(process.pid)
        if found.status() == psutil.STATUS_ZOMBIE:
            return False
        return bool(abs(found.create_time() - process.start) < START_TOLERANCE_SECONDS)
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True  # it exists and is somebody else's; its lease will expire if it is not the holder
