"""Where tests put what they throw away: databases, files, scratch folders.

In memory where there is enough of it. On a disk the deleted files themselves cost: ext4 without a journal looks, for
each new file, through the inodes deleted in the last minutes (`recently_deleted` in fs/ext4/ialloc.c), and after an
hour of databases made and dropped that was five sixths of all CPU time.
"""

from __future__ import annotations

import os
from pathlib import Path

MEMORY = Path("/dev/shm")
DISK = Path("/var/tmp")
FREE_BYTES = 8 << 30  # all workers' servers and files at the end of a run took 2 GB
CHOSEN = "RIVET_TEST_ROOM"  # inherited, so that all workers of a run agree


def _available_bytes() -> int:
    with open("/proc/meminfo") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


def chosen() -> Path:
    """Return the folder to make folders in: the same for all processes of a test run."""
    if CHOSEN not in os.environ:
        try:
            found = os.statvfs(MEMORY)
            has_room = min(found.f_bavail * found.f_frsize, _available_bytes() - FREE_BYTES // 2) >= FREE_BYTES
        except OSError:  # no such file system
            has_room = False
        os.environ[CHOSEN] = str(MEMORY if has_room else DISK)
    return Path(os.environ[CHOSEN])
