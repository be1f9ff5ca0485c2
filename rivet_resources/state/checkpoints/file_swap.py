"""The files of one checkpoint: how they are read, and replaced so that a death at any line leaves the old or the new.

Belongs here: what lies where. Not here: in which order a store uses it (`files.py`). Beside the record
`PATH` lie:

    PATH.prev        the record before the last save or reset
    PATH.generation  the fence: last generation taken, and whether a record must be there
    PATH.audit       one line of JSON per reset
    PATH.lock        locked around every read-compare-write; never removed, or two could lock two files
    .PATH.*.tmp      what a killed writer left; ignored, and removed after an hour
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rivet_resources.errors import CheckpointUnusable
from rivet_resources.state.checkpoints.record import START_ANEW, Checkpoint, decode, unpack, unusable

STALE_SECONDS = 3600
FENCE_VERSION = 1


@dataclass(frozen=True)
class Fence:
    """Which run may save, and whether it left a record; the record itself cannot say so when it is gone."""

    key: str
    generation: int
    saved: bool

    def content(self) -> dict[str, Any]:
        """Spell it for its file."""
        return {"version": FENCE_VERSION, **asdict(self)}


@dataclass(frozen=True)
class CheckpointFile:
    """The files of one key."""

    record: Path

    @property
    def name(self) -> str:
        """Name it for people."""
        return str(self.record)

    @property
    def previous(self) -> Path:
        """The record before."""
        return self._beside("prev")

    @property
    def fence(self) -> Path:
        """The generation."""
        return self._beside("generation")

    @property
    def audit(self) -> Path:
        """The resets."""
        return self._beside("audit")

    @property
    def lock(self) -> Path:
        """What writers lock."""
        return self._beside("lock")

    def _beside(self, word: str) -> Path:
        return self.record.with_name(f"{self.record.name}.{word}")


@contextmanager
def read_settled(place: CheckpointFile) -> Iterator[None]:
    """Read between writes, never amid one; where nobody ever wrote, there is nothing to wait for."""
    try:
        # Read-only and never created: `rivet state show` of a user who may not write must work, and must leave nothing
        # behind.
        descriptor = os.open(place.lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield
        return
    try:
        # Shared: record and fence are two files, and between the two writes of a save they do not agree.
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


# --- reading -------------------------------------------------------------------------------------


def read(place: CheckpointFile, key: str) -> tuple[dict[str, Any] | None, Checkpoint | None, Fence | None]:
    """Read a record, as JSON and as value, and its fence; None for what is not there.

    Raises:
        CheckpointUnusable: one of them cannot be used, or the record was saved and is gone.
    """
    fence = _read_fence(place, key)
    raw = _json(place.record, key)
    if raw is None:
        # The fence outlives the record on purpose. Without it a removed file looks like a first run, which would begin
        # at the log's end, and what came between would be lost without a word.
        if fence is not None and fence.saved:
            advice = f"Put it back ({place.previous} is the one before it), or give it up: {START_ANEW}."
            raise unusable(place.name, key, "it is gone, though a run has saved one", advice=advice)
        return None, None, fence
    return raw, unpack(raw, where=place.name, key=key), fence


def _read_fence(place: CheckpointFile, key: str) -> Fence | None:
    raw = _json(place.fence, key)
    if raw is None:
        return None
    owner, generation, saved = raw.get("key"), raw.get("generation"), raw.get("saved")
    known = raw.get("version") == FENCE_VERSION and isinstance(owner, str) and isinstance(saved, bool)
    if not known or not isinstance(generation, int) or generation < 0:
        raise unusable(str(place.fence), key, "it is not a generation of this version of Rivet")
    # A path without a slash is of one key; two exports that name the same file would take turns at fencing each other
    # out.
    if owner != key:
        raise unusable(str(place.fence), key, f"it is the one of key {owner!r}", advice="Give each its own path.")
    return Fence(key, generation, saved is True)


def _json(path: Path, key: str) -> dict[str, Any] | None:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unusable(
            str(path), key, f"it cannot be read: {error.strerror}", advice="Let this user read it."
        ) from error
    return decode(content, where=str(path), key=key)


def salvage(place: CheckpointFile, key: str) -> tuple[dict[str, Any], Fence | None]:
    """Read what can be read of a record that is given up."""
    raw: dict[str, Any] = {}
    fence = None
    with suppress(CheckpointUnusable):
        raw = _json(place.record, key) or {}
    with suppress(CheckpointUnusable):
        fence = _read_fence(place, key)
    return raw, fence


def key_of(place: CheckpointFile) -> str | None:
    """Return whose a file is by what the record or its fence says; None: neither says."""
    for path in (place.record, place.fence):
        with suppress(CheckpointUnusable):
            owner = (_json(path, place.name) or {}).get("key")
            if isinstance(owner, str) and owner:
                return owner
    return None


# --- writing -------------------------------------------------------------------------------------


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Put a whole file in place of the old one: whoever looks, and whenever we die, sees one of the two."""
    temporary = _temporary(path)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with open(descriptor, "wb") as file:
            file.write((json.dumps(content, indent=2) + "\n").encode())
            file.flush()
            # Before the rename: a file system may make the new name durable
            # ahead of the bytes, and a power cut leaves an empty file.
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    # A rename is an entry of the folder, and durable with it only.
    sync_folder(path.parent)


def keep_previous(place: CheckpointFile) -> None:
    """Add a second name to the record before it loses its first; the save that follows makes that durable."""
    temporary = _temporary(place.previous)
    try:
        os.link(place.record, temporary)
    except OSError:  # no hard links on this file system
        shutil.copyfile(place.record, temporary)
    os.replace(temporary, place.previous)
    # Renaming onto another name of the same file does nothing at all.
    temporary.unlink(missing_ok=True)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sweep(place: CheckpointFile) -> None:
    """Remove what killed writers of this record left an hour ago or earlier."""
    folder, begins = place.record.parent, f".{place.record.name}."
    for name in os.listdir(folder):
        if name.startswith(begins) and name.endswith(".tmp"):
            with suppress(FileNotFoundError):
                if time.time() - (folder / name).stat().st_mtime > STALE_SECONDS:
                    (folder / name).unlink()
