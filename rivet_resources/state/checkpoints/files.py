"""Checkpoints as JSON files (`cdc: {checkpoint: PATH}`): one file for one key, or a folder with one file per key.

Belongs here: the order in which a store reads, compares and writes. Not here: which files there are and how one is
replaced (`file_swap.py`), what may follow what (`record.py`).
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from urllib.parse import unquote

from rivet_resources.errors import CheckpointUnusable, DiskFull, StateError
from rivet_resources.state.checkpoints.file_swap import (
    CheckpointFile,
    Fence,
    keep_previous,
    key_of,
    read,
    read_settled,
    salvage,
    sweep,
    sync_folder,
    write_json,
)
from rivet_resources.state.checkpoints.record import (
    Checkpoint,
    Listed,
    Reset,
    pack,
    refuse_generation,
    refuse_key,
    refuse_step,
    unusable,
    whole,
)

# File systems allow 255; suffixes and a temporary name take some.
NAME_BYTES = 220
UNUSUAL = re.compile(r"^\.|[\x00-\x7f](?<![A-Za-z0-9._-])")  # letters of other scripts stay as they are


class FileCheckpoints:
    """Checkpoints in files of one machine, or of a file system that keeps `flock` among its machines."""

    def __init__(self, path: Path | str) -> None:
        """Take `path` as a folder when it ends in a slash or is one; else it is the file of the only key."""
        self.path = Path(path).resolve()  # the same after a change of folder, and a link is not replaced
        # The text as given: a `Path` has lost the slash that says a folder which is not there yet.
        self.is_folder = str(path).endswith("/") or os.path.isdir(self.path)
        self.name = str(self.path)

    def __repr__(self) -> str:
        return f"FileCheckpoints({self.name!r})"

    def take(self, key: str) -> tuple[Checkpoint | None, int]:
        """Return the stored record and a generation that is now ours: whoever had the key before can save no more.

        Raises:
            CheckpointUnusable: the record or its fence cannot be read, or is gone; the generation stays.
            StateError: the folder cannot be written.
        """
        with self._alone(key) as place:
            sweep(place)
            _, record, fence = read(place, key)
            ours = _generation(record, fence) + 1
            # Durable before the position is known to this run: whoever had the key before can save nothing behind here.
            write_json(place.fence, Fence(key, ours, record is not None).content())
            return record, ours

    def save(self, record: Checkpoint) -> None:
        """Store a position; durable when this returns.

        Raises:
            CheckpointUnusable: another run took the key; the position lies behind the stored one, or is of another
                source.
            StateError: the file cannot be written.
        """
        with self._alone(record.key) as place:
            raw, stored, fence = read(place, record.key)
            # The generation first: of a run that was fenced nothing else matters, and it would be told of a step
            # backwards instead.
            refuse_generation(record, _generation(stored, fence), where=place.name)
            refuse_step(record, stored, where=place.name)
            # The record before stays under `.prev`, for a human whose file is damaged later.
            if stored is not None:
                keep_previous(place)
            write_json(place.record, pack(record, over=raw))
            # After the record: a fence that promises one which is not there would refuse every later run.
            if fence is None or not fence.saved:
                write_json(place.fence, Fence(record.key, record.generation, saved=True).content())

    def load(self, key: str) -> Checkpoint | None:
        """Read a record; None: there is none.

        Raises:
            CheckpointUnusable: there is one that cannot be read, or one was saved and is gone.
        """
        place = self._place(key)
        with read_settled(place):
            return read(place, key)[1]

    def waiting(self, key: str) -> Checkpoint | None:
        """Return None: a file has had the same keys all along."""
        return None

    def adopt(self, key: str, identity: str) -> None:
        """Do nothing: a file has had the same keys all along."""

    def delete(self, key: str) -> None:
        """Forget a record, readable or not; a run that has the key can save no more. Without one, do nothing."""
        place = self._place(key)
        if not os.path.lexists(place.record) and not os.path.lexists(place.fence):
            return
        with self._alone(key):
            self._refuse_foreign(place, key)
            raw, fence = salvage(place, key)
            # The fence before the record goes: a run that still has the key must not save in between.
            write_json(place.fence, Fence(key, _salvaged_generation(raw, fence) + 1, saved=False).content())
            for path in (place.record, place.previous):
                path.unlink(missing_ok=True)
            sync_folder(place.record.parent)

    def reset(self, key: str, reason: str) -> None:
        """Forget a record as `delete` does, but keep it as `.prev`, and note why before anything changes."""
        with self._alone(key) as place:
            self._refuse_foreign(place, key)
            raw, fence = salvage(place, key)
            generation = _salvaged_generation(raw, fence) + 1
            position = raw.get("position")
            entry = Reset(key, reason, int(time.time()), generation, position if isinstance(position, str) else None)
            # Appended and synced before the position goes: if we die in between there is an entry too many, and no
            # position that vanished without one.
            with open(place.audit, "ab") as file:
                file.write((json.dumps(asdict(entry)) + "\n").encode())
                file.flush()
                os.fsync(file.fileno())
            write_json(place.fence, Fence(key, generation, saved=False).content())
            if place.record.exists():
                os.replace(place.record, place.previous)
            sync_folder(place.record.parent)

    def list(self) -> Listed:
        """Return every record by key, sorted; None: it cannot be read or is gone, and `load` says why."""
        found: Listed = []
        for key in self._keys():
            try:
                record = self.load(key)
            except CheckpointUnusable:
                found.append((key, None))
            else:
                found += [(key, record)] if record is not None else []
        return found

    def all(self) -> dict[str, Checkpoint]:
        """Return every record by key.

        Raises:
            CheckpointUnusable: some cannot be read; the message names them.
        """
        return whole(self.list(), where=self.name)

    def resets(self, key: str) -> tuple[Reset, ...]:
        """Return the audit of a key, oldest first; a line that a death cut off is left out."""
        try:
            lines = self._place(key).audit.read_text().splitlines()
        except FileNotFoundError:
            return ()
        entries = []
        for line in lines:
            with suppress(ValueError, TypeError):
                entries.append(Reset(**json.loads(line)))
        return tuple(entries)

    def _place(self, key: str) -> CheckpointFile:
        refuse_key(key)
        if not self.is_folder:
            return CheckpointFile(self.path)
        # Percent signs are unusual themselves, so no two keys meet in one name.
        name = UNUSUAL.sub(lambda found: f"%{ord(found[0]):02X}", key) + ".json"
        if len(os.fsencode(name)) > NAME_BYTES:
            raise CheckpointUnusable(f"Checkpoint key {key!r} makes a file name over {NAME_BYTES} bytes. Shorten it.")
        return CheckpointFile(self.path / name)

    def _refuse_foreign(self, place: CheckpointFile, key: str) -> None:
        """Refuse to give up what a single file keeps for another key.

        Raises:
            CheckpointUnusable
        """
        owner = key if self.is_folder else key_of(place)
        if owner not in (key, None):
            raise unusable(place.name, key, f"it is the record of key {owner!r}", advice="Give each its own path.")

    def _keys(self) -> Iterable[str]:
        """Name the keys that have, or should have, a record."""
        if not self.is_folder:
            place = CheckpointFile(self.path)
            return [key_of(place) or self.path.stem] if any(map(os.path.lexists, (place.record, place.fence))) else []
        names = os.listdir(self.path) if os.path.isdir(self.path) else []
        files = {name.removesuffix(".generation") for name in names if not name.startswith(".")}
        return sorted(unquote(name.removesuffix(".json")) for name in files if name.endswith(".json"))

    @contextmanager
    def _alone(self, key: str) -> Iterator[CheckpointFile]:
        """Keep every other writer of this key out, thread or process, until the block ends.

        Raises:
            DiskFull, StateError: in our words, for what the system refused inside the block.
        """
        place = self._place(key)
        try:
            place.record.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(place.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                yield place
            finally:
                os.close(descriptor)
        except OSError as error:
            said = f"Checkpoint {key} in {place.name} cannot be written: {error.strerror or 'the system refused'}."
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(f"{said} Free some space, then run again.") from error
            raise StateError(f"{said} Make its folder writable for this user, or name another path.") from error


def _generation(record: Checkpoint | None, fence: Fence | None) -> int:
    """Return the generation that counts: the fence may be missing beside a record that was put back."""
    return max(record.generation if record else 0, fence.generation if fence else 0)


def _salvaged_generation(raw: Mapping[str, object], fence: Fence | None) -> int:
    found = raw.get("generation")
    return max(found if isinstance(found, int) else 0, fence.generation if fence else 0)
