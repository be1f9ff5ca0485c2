"""Files on a disk of this machine, or on one mounted at the same place by all (`type: local`).

Belongs here: the YAML block, and staging, renaming and swapping on a file system. Not here: the order of publishing
(`commit/publish.py`).

The folder itself may be reached through symbolic links, as the user configured it.
"""

from __future__ import annotations

import base64
import errno
import fcntl
import fnmatch
import hashlib
import heapq
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Literal, Self

import xxhash
from pydantic import Field

from rivet_resources.contracts.addressing import (
    MANIFESTS,
    STAGED,
    Template,
    export_path,
    is_reserved,
    parent_of,
    stays_inside,
    with_date,
)
from rivet_resources.contracts.evidence import Finding
from rivet_resources.contracts.parts import Part
from rivet_resources.contracts.settings import Settings
from rivet_resources.destinations.stores import prove_writable, window_taken
from rivet_resources.errors import DestinationError, DestinationPermission, DiskFull, PartCorrupt
from rivet_resources.extras import Extra

# A temp file this old belongs to nobody: small objects take milliseconds to write.
STRAY_SECONDS = 3600


class Local(Settings):
    """A folder; exports lie below it, or where `{export}` says."""

    type: Literal["local"] = "local"
    is_stream: ClassVar[bool] = False
    extra: ClassVar[Extra | None] = None
    schemes: ClassVar[tuple[str, ...]] = ()
    path: Template = Field(min_length=1, description="relative to the working directory; {date}, {export}, {table}")
    shared_path: bool = Field(
        False,
        exclude_if=lambda given: not given,  # a key that came later leaves the fingerprints of before as they are
        description="the folder is mounted at this path on every worker of a Spark cluster",
    )

    @property
    def only_here(self) -> str:
        """Return why a worker on another machine cannot write there; "" where it can."""
        return "" if self.shared_path else "is a folder of this machine"

    def root(self, export: str) -> LocalRoot:
        """Address one export's folder, absolute, so that every process means the same place."""
        return LocalRoot(os.path.abspath(export_path(self.path, export)), export)

    def credentials(self) -> Iterator[Finding]:
        """Yield nothing: nobody signs in."""
        return iter(())

    @staticmethod
    def read_address(address: str) -> dict[str, str]:
        """Return nothing: no URL means it."""
        return {}

    def on(self, day: date) -> Self:
        """Fix `{date}` to the day a run started on."""
        return self.model_copy(update={"path": with_date(self.path, day)})


@dataclass(frozen=True)
class LocalRoot:
    """One export's folder on disk; implements `Root`."""

    uri: str
    export: str
    keeps_manifests: bool = True

    def stage(self, file: Path, *, run_id: str, path: str, md5: str) -> dict[str, Any]:
        """Move a finished file into `_staged/<run id>/` under a name no other attempt has."""
        # Spark may run a task twice at once, and a dead attempt reports nothing: no two may share a name.
        relative = f"{STAGED}/{run_id}/{uuid.uuid4().hex[:8]}-{file.name}"
        with self._translate(f"stage {path}"):
            target = self._place(relative)
            size = file.stat().st_size
            in_folder(target.parent, lambda: move(file, target, md5=md5))
            if self._size(relative) != size:
                raise PartCorrupt(f"Staged {target} has {self._size(relative)} bytes instead of {size}. Run again.")
        return {"path": relative}

    def staged_exists(self, part: Part) -> bool:
        """Return whether the part still lies staged, or already under its final name, with its size."""
        return any(self._size(path) == part.size_bytes for path in (part.staged["path"], part.path))

    def publish(self, part: Part) -> None:
        """Rename into place; a part that is already there is left as it is."""
        with self._translate(f"publish {part.path}"):
            # A rename inside one file system is the commit point; every rename is followed by an fsync of its folder,
            # so that it outlives a power cut.
            source, target = self._place(part.staged["path"]), self._place(part.path)
            try:
                refuse_link(source)
                # The file's bytes were made durable when it was staged; the rename is atomic, so no reader sees half of
                # a part.
                in_folder(target.parent, lambda: os.replace(source, target))
            except FileNotFoundError:
                # A publish that died behind its rename is repeated by a retry of the step, and finds the part in its
                # place.
                if self._size(part.path) != part.size_bytes:
                    raise DestinationError(
                        f"{self.uri}: staged part {part.staged['path']} is gone and {part.path} is not there. "
                        f"Something removed it while the run worked; run again."
                    ) from None
            # The name must be on the disk before a manifest says it is there (invariant I2 of `contract.md`, section
            # 3).
            fsync_folder(target.parent)
            remove_empty(source.parent, below=Path(self.uri))

    def discard(self, parts: Iterable[Part]) -> None:
        """Remove staged parts; missing ones are fine."""
        self.delete([part.staged["path"] for part in parts])

    def read(self, path: str) -> tuple[bytes, str] | None:
        """Read a small file; its version is a hash of its content."""
        with self._translate(f"read {path}"):
            try:
                content = self._file(path).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None
        return content, version_of(content)

    def put(self, path: str, content: bytes) -> None:
        """Write a temp file beside, fsync, rename."""
        with self._translate(f"write {path}"):
            replace_content(self._place(path), content)

    def swap(self, path: str, content: bytes, *, expected: str | None) -> str:
        """Compare and rename under a lock that every writer of this export's manifests takes."""
        with self._translate(f"write {path}"), self._lock():
            # A file system has no conditional write. Reading and renaming are one step only for those who take the
            # lock, so every writer of manifests goes through here.
            now = self.read(path)
            if (now[1] if now else None) != expected:
                raise window_taken(self.uri, path)
            replace_content(self._place(path), content)
        return version_of(content)

    def list(self, prefix: str = "") -> dict[str, int]:
        """Walk the folder; staged and dot files are not seen, nor is anything behind a link to a folder."""
        with self._translate(f"list {prefix or 'the folder'}"):
            start = self._file(prefix.rstrip("/")) if prefix.strip("/") else Path(self.uri)
            found: dict[str, int] = {}
            for folder, _, names in os.walk(start, onerror=raise_unless_missing):
                for name in names:
                    relative = Path(folder, name).relative_to(self.uri).as_posix()
                    size = None if is_reserved(relative) else self._listed_size(relative)
                    # None: reserved, or removed since the folder was read.
                    if size is not None:
                        found[relative] = size
            return found

    def list_after(self, path: str, *, most: int) -> dict[str, str | None]:
        """List the folder's own files, without asking for their sizes."""
        folder = parent_of(path)
        with self._translate(f"list {folder or 'the folder'}"):
            try:
                # Nothing follows this folder's links: an entry that is one counts as a file, and who reads it is told.
                found = os.scandir(self._file(folder.rstrip("/")) if folder else self.uri)
            except FileNotFoundError:
                return {}
            with found:
                paths = (f"{folder}{each.name}" for each in found if not each.is_dir(follow_symlinks=False))
                follows = heapq.nsmallest(most, (each for each in paths if each > path and not is_reserved(each)))
                return dict.fromkeys(follows)

    def delete(self, paths: Iterable[str]) -> None:
        """Unlink, then remove folders that became empty."""
        for path in paths:
            with self._translate(f"remove {path}"):
                # A link is removed itself, not what it leads to.
                target = self._place(path)
                target.unlink(missing_ok=True)
                remove_empty(target.parent, below=Path(self.uri))

    def open(self, path: str) -> BinaryIO:
        """Open a published file."""
        with self._translate(f"read {path}"):
            return self._file(path).open("rb")

    def staged_runs(self) -> set[str]:
        """Name the runs that have something staged here."""
        with self._translate("sweep"):
            return {folder.name for folder in entries(self._file(STAGED))}

    def sweep(self, *, keep: Iterable[str], everywhere: bool = True) -> int:
        """Remove staging folders of other runs, and temp files nobody writes any more."""
        removed = 0
        with self._translate("sweep"):
            folders = entries(self._file(STAGED))
            # Asked after the listing: a run that began since has nothing in it.
            kept = set(keep if folders else ())
            for folder in folders:
                if folder.name not in kept:
                    removed += remove_tree(folder)
            for place, _, names in os.walk(self.uri, onerror=raise_unless_missing) if everywhere else ():
                # By age, as the name tells no run: a file that is being written is seconds old.
                for name in fnmatch.filter(names, ".*.rivet-tmp"):
                    stray = Path(place, name)
                    if is_older(stray, STRAY_SECONDS):
                        stray.unlink(missing_ok=True)
                        removed += 1
        return removed

    def check(self) -> None:
        """Write, read and remove a probe."""
        prove_writable(self, thing="a file", look_at="mount")

    def local_path(self, path: str) -> Path:
        """Name a published file for those who read files by name.

        Raises:
            DestinationError: it lies behind a link that leads out of the folder.
        """
        with self._translate(f"read {path}"):
            return self._file(path)

    def _size(self, path: str) -> int | None:
        """Measure a file; None when absent."""
        with self._translate(f"read {path}"):
            try:
                return self._file(path).stat().st_size
            except (FileNotFoundError, NotADirectoryError):
                return None

    def _listed_size(self, path: str) -> int | None:
        """Measure an entry of a listing; None when it was removed since."""
        try:
            return self._size(path)
        except DestinationError:
            # A link that leads out of the folder is listed, as an entry of its own size: who reads it is told.
            with suppress(FileNotFoundError):
                return Path(self.uri, path).lstat().st_size
            return None

    def _place(self, path: str) -> Path:
        """Name an entry whose folder is really below this one; the entry itself may be a link, or absent.

        Raises:
            DestinationError: the path, or a link on its way, leads elsewhere.
        """
        return place_below(self.uri, path, last=False)

    def _file(self, path: str) -> Path:
        """Name a file or folder to look into: as `_place`, and it is no link that leads elsewhere.

        Raises:
            DestinationError
        """
        return place_below(self.uri, path, last=True)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Hold the lock file; the kernel frees it when the process dies."""
        lock_path = self._file(f"{MANIFESTS}/.lock")
        make_folder(lock_path.parent)
        # Never removed: a lock on an unlinked file excludes nobody.
        with lock_path.open("ab") as lock:
            # The lock is of this opening of the file, not of the process:
            # threads of one process wait for each other, too.
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _translate(self, action: str) -> Iterator[None]:
        """Raise what the operating system says in the house voice."""
        try:
            yield
        except OSError as error:
            raise translate(error, uri=self.uri, action=action) from error


# Source: Linux manual, errno(3).
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def translate(error: OSError, *, uri: str, action: str) -> DestinationError:
    """Turn an errno into the error class a user can act on."""
    where = f"{uri}: cannot {action}: {error.strerror}"
    if error.errno in FULL:
        return DiskFull(f"{where}. Free space there or choose another `destination.path`; nothing was published.")
    if error.errno in REFUSED:
        return DestinationPermission(f"{where}. Give this user write permission, or choose another `destination.path`.")
    return DestinationError(f"{where}. Check `destination.path`.")


def place_below(root: str, path: str, *, last: bool) -> Path:
    """Name an entry of a folder, after a look at every component below it, the last one only if asked.

    Raises:
        DestinationError: it would be somewhere else.
    """
    # Below it no link is followed that leads out of it, nor any in place of what Rivet keeps there for itself: who may
    # write into a shared lake could otherwise have files elsewhere read, overwritten or removed by the one who exports.
    components = path.split("/")
    if not stays_inside(path):
        raise DestinationError(f"{root}: {path!r} leads out of this folder; nothing was touched. Remove what names it.")
    place = root
    # Each component by itself: `resolve` of the whole path would follow the very link that is to be refused.
    for depth, component in enumerate(components, start=1):
        place = os.path.join(place, component)
        if (depth < len(components) or last) and os.path.islink(place):
            refuse_way_out(root, place, is_own=components[0] in (STAGED, MANIFESTS))
    return Path(place)


def refuse_way_out(root: str, link: str, *, is_own: bool) -> None:
    """Refuse a link that leads out of a folder; in what Rivet keeps for itself, any.

    Raises:
        DestinationError
    """
    real, target = os.path.realpath(root), os.path.realpath(link)
    # With the slash, or `/lake2` would count as below `/lake`.
    if is_own or not f"{target}/".startswith(f"{real.rstrip('/')}/"):
        raise DestinationError(
            f"{link} is a symbolic link, which {'may not stand there' if is_own else 'leads out of ' + root}; nothing "
            f"behind it was touched. Remove the link, or move what it leads to into its place, and run again."
        )


def refuse_link(file: Path) -> None:
    """Refuse a staged part that is a link: readers would be led to what Rivet did not write.

    Raises:
        DestinationError
    """
    if file.is_symlink():
        raise DestinationError(f"{file} is a symbolic link, not the part that was staged. Remove it and run again.")


def entries(folder: Path) -> list[Path]:
    """List what is in a folder, by name; nothing of one that is not there, or not any more."""
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def is_older(path: Path, seconds: float) -> bool:
    """Return whether something was last changed so long ago; no of what another run has removed since."""
    try:
        return time.time() - path.lstat().st_mtime > seconds
    except FileNotFoundError:
        return False


def remove_tree(folder: Path) -> int:
    """Remove a folder with all files below it, and return their number; a link is removed, and nothing behind it."""
    if folder.is_symlink():
        folder.unlink(missing_ok=True)
        return 1
    files = sum(len(names) for _, _, names in os.walk(folder))
    shutil.rmtree(folder, ignore_errors=True)
    return files


def version_of(content: bytes) -> str:
    """Name a content."""
    return xxhash.xxh3_64_hexdigest(content)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, each durably."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    # From above: a folder's name is kept by the one above it, so that one is synced behind each.
    for each in reversed(missing):
        each.mkdir(parents=True, exist_ok=True)
        fsync_folder(each.parent)


def in_folder(folder: Path, act: Callable[[], None]) -> None:
    """Make a folder and act in it, again if another run removed it, empty as it was, in between."""
    # `remove_empty` of another run may take the folder between making and use; five times in a row it is not that.
    for _ in range(5):
        make_folder(folder)
        try:
            return act()
        except FileNotFoundError:
            if folder.is_dir():
                raise
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))


def fsync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # Source: Linux manual, fsync(2): syncing a file does not sync its entry in the folder.
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_file(file: Path) -> None:
    """Make a file's bytes durable."""
    with file.open("rb") as stream:
        os.fsync(stream.fileno())


def move(file: Path, target: Path, *, md5: str) -> None:
    """Rename a file durably; across file systems copy it, and compare what was read with `md5`.

    Raises:
        PartCorrupt: the copied bytes are not those that were measured.
    """
    try:
        # Its bytes first: a power cut behind the rename would else leave the final name without them.
        fsync_file(file)
        os.replace(file, target)
    except OSError as error:
        # Another file system: there is nothing to rename into.
        if error.errno != errno.EXDEV:
            raise
        copy(file, target, md5=md5)
        file.unlink()
    fsync_folder(target.parent)


def copy(file: Path, target: Path, *, md5: str) -> None:
    """Copy to a temp name, fsync, rename."""
    stray = target.with_name(f".{target.name}.rivet-tmp")
    try:
        shutil.copyfile(file, stray)
        fsync_file(stray)
        with stray.open("rb") as stream:
            # A rename moves no byte, a copy moves all of them, through two disks: here something can go wrong without
            # an error.
            found = base64.b64encode(hashlib.file_digest(stream, "md5").digest()).decode()
        if found != md5:
            raise PartCorrupt(f"{target}: the copy has MD5 {found} instead of {md5}. Run again; check the disks.")
        os.replace(stray, target)
    finally:
        stray.unlink(missing_ok=True)


def replace_content(target: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old or the new content, and a power cut leaves one of both."""
    # A dot name, which listings do not show and globs do not find, in the same folder, so that the rename stays inside
    # one file system.
    stray = target.with_name(f".{uuid.uuid4().hex}.rivet-tmp")

    def write() -> None:
        with stray.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(stray, target)
        fsync_folder(target.parent)

    try:
        in_folder(target.parent, write)
    finally:
        stray.unlink(missing_ok=True)


def remove_empty(folder: Path, *, below: Path) -> None:
    """Remove a folder and those above it while they are empty, but never `below` or the reserved folders in it."""
    while below in folder.parents and folder not in (below / STAGED, below / MANIFESTS):
        try:
            # Only an empty folder goes, so a file that another run puts there at this moment is safe.
            folder.rmdir()
        except FileNotFoundError:
            pass
        except OSError:
            return  # not empty
        folder = folder.parent


def raise_unless_missing(error: OSError) -> None:
    """Let a walk over an absent folder find nothing, and fail on any other trouble."""
    if error.errno not in (errno.ENOENT, errno.ENOTDIR):
        raise error
