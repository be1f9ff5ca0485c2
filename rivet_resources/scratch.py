"""Folders for unfinished files on this machine: private, and gone when nobody uses them any more.

Belongs here: making them, holding on to them, removing those whose processes died. Not here: what lies in them.

Whoever uses a folder holds a shared lock on a file in it, which the kernel frees when the process dies, however it
died.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from rivet_resources.errors import DestinationError, DiskFull

PREFIX = "rivet-scratch-"
LOCK = ".in-use"
FULL = (errno.ENOSPC, errno.EDQUOT)
# A folder without a lock file is being made this very moment, or was made by a Rivet before 2026-11-22.
YOUNG_SECONDS, OLD_SECONDS = 60.0, 86_400.0


def folder_of(run_id: str) -> Path:
    """Name the folder below which a run's unfinished files lie on this machine.

    Raises:
        DestinationError: there is no folder for temporary files, as where all of a container is read-only.
    """
    try:
        return Path(tempfile.gettempdir()) / f"{PREFIX}{run_id}"
    except FileNotFoundError as error:
        raise DestinationError(
            "No folder for unfinished parts can be written: neither TMPDIR nor /tmp, /var/tmp and /usr/tmp. Point "
            "TMPDIR at a disk with room."
        ) from error


@contextmanager
def held(folder: Path) -> Iterator[Path]:
    """Make a folder, or join those who use it, until the block ends; the last one removes it with all that is in it.

    Raises:
        DestinationError: it cannot be made, or is not ours.
    """
    sweep_once(folder)
    with enough_room(folder.parent):
        lock = _joined(folder)
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):
            _remove_unless_used(folder, lock)
        os.close(lock)


@contextmanager
def temporary(purpose: str) -> Iterator[Path]:
    """Make a folder of one's own until the block ends.

    Raises:
        DestinationError: it cannot be made.
    """
    with held(folder_of(f"{purpose}-{uuid.uuid4().hex[:12]}")) as folder:
        yield folder


def private_folder(folder: Path) -> Path:
    """Make a folder that only this user can look into; one that is there must be such a folder already.

    Raises:
        DestinationError: it cannot be made; or it is a link, or another user's, who could read what will be in it.
    """
    # Rows on their way to a private bucket lie here for a while, so no other user may look: the folder is ours, 0700,
    # and no link.
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700, parents=True)
        # `lstat`: in a folder that all may write, somebody may have put a link of this name, to where they can read.
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "it is a link or a file, not a folder")
        if found.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "it belongs to another user")
        if found.st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as error:
        if error.errno in FULL:
            raise
        raise DestinationError(
            f"Scratch folder {folder} cannot be made: {error.strerror}. Remove it, or point TMPDIR at a folder that "
            f"only this user can write."
        ) from error
    return folder


def sweep(base: Path | None = None) -> int:
    """Remove the folders of processes that died, whatever export they were of; how many were removed."""
    removed = 0
    with contextlib.suppress(OSError), os.scandir(base or tempfile.gettempdir()) as entries:
        found = [Path(entry.path) for entry in entries if entry.name.startswith(PREFIX)]
        for folder in found:
            with contextlib.suppress(OSError):
                removed += _swept(folder)
    return removed


@lru_cache(maxsize=64)
def sweep_once(folder: Path) -> None:
    """Sweep beside a folder, once per process and folder: a worker runs many tasks of a run."""
    sweep(folder.parent)


# --- locks ---------------------------------------------------------------------------------------


def _joined(folder: Path) -> int:
    """Make a folder and take its lock with others; again if somebody removed it in between."""
    for _ in range(20):
        private_folder(folder)
        try:
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno in FULL:
                raise
            raise DestinationError(f"Scratch folder {folder} cannot be used: {error.strerror}. Remove it.") from error
        try:
            # Shared among all tasks of a run; the kernel frees it when the process dies, however that dies, so no file
            # can lie.
            fcntl.flock(lock, fcntl.LOCK_SH)
            # The folder may have been removed before the lock was ours: then it is on a file that nobody else sees.
            if os.fstat(lock).st_ino == os.stat(folder / LOCK).st_ino:
                return lock
        except FileNotFoundError:
            pass
        except OSError as error:
            os.close(lock)
            raise DestinationError(
                f"Scratch folder {folder} cannot be locked: {error.strerror}. Point TMPDIR at a disk of this machine."
            ) from error
        os.close(lock)
    raise DestinationError(f"Scratch folder {folder} is removed again and again. Point TMPDIR at another folder.")


def _remove_unless_used(folder: Path, lock: int) -> bool:
    """Remove a folder when its lock can be had alone."""
    # A folder whose lock can be had alone is nobody's: each run, and each task on a worker, sweeps those.
    try:
        # A refusal takes the shared lock away as well (flock(2)), which is fine: every caller closes it next.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    shutil.rmtree(folder, ignore_errors=True)
    return True


def _swept(folder: Path) -> bool:
    """Remove one folder if it is ours and its processes are dead."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        return False
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        idle = time.time() - found.st_mtime
        # Between mkdir and the lock a folder has none, for an instant: as one that is being made it must not be taken
        # away.
        if idle < YOUNG_SECONDS or (idle < OLD_SECONDS and any(folder.iterdir())):
            return False
        shutil.rmtree(folder, ignore_errors=True)
        return True
    try:
        return _remove_unless_used(folder, lock)
    finally:
        os.close(lock)


@contextmanager
def enough_room(folder: Path) -> Iterator[None]:
    """Turn a full disk below `folder` into our own error; pyarrow and Python both say ENOSPC.

    Raises:
        DiskFull: ENOSPC or EDQUOT came up inside the block.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DiskFull(
            f"No space is left below {folder}, where parts are written before they are staged. "
            f"Free some, or point TMPDIR at a larger disk; then run again."
        ) from error
