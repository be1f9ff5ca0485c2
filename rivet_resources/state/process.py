"""Who a process is, so that another one can tell whether it still lives.

Belongs here: host, pid, start time and the space of its pid, and the look at the process table. Not here: what follows
from it (`leases.py`, `runs.py`). A pid alone is not enough: systems give it again to somebody else. Nor is a host's
name: containers, and copies of a machine, may share one, and each has a process table of its own.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

# psutil derives the start from the boot time, which moves by a little when the clock is set.
START_TOLERANCE_SECONDS = 2.0
BOOT, PID_NAMESPACE = Path("/proc/sys/kernel/random/boot_id"), "/proc/self/ns/pid"


@dataclass(frozen=True)
class Process:
    """One process of one host; `start` is its create time, seconds since the epoch.

    `space` names the process table that its pid is of: boot and pid namespace, where the system has them; None in rows
    of before this was noted.
    """

    host: str
    pid: int
    start: float
    space: str | None = None


def this_process() -> Process:
    """Name the calling process; a forked child gets its own name."""
    return _process(os.getpid())


@cache
def _process(pid: int) -> Process:
    return Process(socket.gethostname(), pid, psutil.Process(pid).create_time(), _space())


@cache
def _space() -> str:
    """Name this process table. Source: proc(5), `random/boot_id`; namespaces(7), "The /proc/pid/ns/ directory"."""
    try:
        boot, table = BOOT.read_text().strip(), os.stat(PID_NAMESPACE)
    except OSError:
        # Not Linux: no namespaces either.
        return ""
    return f"{boot}:{table.st_dev}:{table.st_ino}"


def is_here(process: Process) -> bool:
    """Return whether its death can be seen from here: it ran on this host, and its pid is of our process table."""
    # A row without a space (of an older Rivet) is of no process table that we know: its lease speaks for it.
    return process.host == socket.gethostname() and process.space == _space()


def is_alive(process: Process) -> bool:
    """Return whether a process of this host still runs; a zombie does not, nor does another one with the same pid."""
    try:
        # Systems give a pid again, so its start is compared, too.
        found = psutil.Process(process.pid)
        # A zombie is dead and only not waited for: as where the parent is a container's first process that reaps
        # nobody.
        if found.status() == psutil.STATUS_ZOMBIE:
            return False
        return bool(abs(found.create_time() - process.start) < START_TOLERANCE_SECONDS)
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        # It exists and is somebody else's; its lease will expire if it is not the holder.
        return True
