"""Bytes to this process's standard output (`type: stdout`).

Belongs here: the YAML block, and a stage that is a temp folder. A stream has no commit point: nothing that
was written can be taken back, so there are no manifests, and a run that dies in the middle of publishing
has written a beginning. Logs go to standard error only.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Literal, Self

from rivet_resources.contracts.addressing import STAGED
from rivet_resources.contracts.evidence import Finding
from rivet_resources.contracts.parts import Part
from rivet_resources.contracts.settings import Settings
from rivet_resources.destinations.local import LocalRoot, entries, is_older, remove_tree
from rivet_resources.errors import DestinationError
from rivet_resources.extras import Extra
from rivet_resources.scratch import private_folder

ABANDONED_SECONDS = 86_400.0  # no part waits longer for the others of its run


class Stdout(Settings):
    """Standard output; one part at a time, in order."""

    type: Literal["stdout"] = "stdout"
    is_stream: ClassVar[bool] = True
    extra: ClassVar[Extra | None] = None
    schemes: ClassVar[tuple[str, ...]] = ()
    only_here: ClassVar[str] = "is this process's own output"

    def root(self, export: str) -> StdoutRoot:
        """Stage below the machine's temp folder, under this user's id."""
        return StdoutRoot(LocalRoot(f"{stage_folder()}/{export}", export), export)

    def credentials(self) -> Iterator[Finding]:
        """Yield nothing: nobody signs in."""
        return iter(())

    @staticmethod
    def read_address(address: str) -> dict[str, str]:
        """Return nothing: no URL means it."""
        return {}

    def on(self, day: date) -> Self:
        """A stream has no date."""
        return self


def stage_folder() -> Path:
    """Name the folder below which parts wait for their turn; others may guess it, so it is looked at before use."""
    return Path(tempfile.gettempdir()) / f"rivet-stdout-{os.getuid()}"


@dataclass(frozen=True)
class StdoutRoot:
    """A stream with a staging folder beside it; implements `Root`."""

    beside: LocalRoot
    export: str
    uri: str = "stdout"
    keeps_manifests: bool = False

    @property
    def staging(self) -> LocalRoot:
        """Return the staging folder, made or proved to be private.

        Raises:
            DestinationError: it is another user's, or a link.
        """
        base = stage_folder()
        # Below the machine's temp folder, where anybody could have made a folder of this name before us.
        if Path(self.beside.uri).is_relative_to(base):
            private_folder(base)
        return self.beside

    def stage(self, file: Path, *, run_id: str, path: str, md5: str) -> dict[str, Any]:
        """Keep the file until all parts are there and the gate has passed."""
        return self.staging.stage(file, run_id=run_id, path=path, md5=md5)

    def staged_exists(self, part: Part) -> bool:
        """Return whether the part still waits."""
        return self.staging.staged_exists(part)

    def publish(self, part: Part) -> None:
        """Write a part to the stream and forget it; a part that is gone was written before."""
        # A part that was written is removed behind it, so a step that is tried again goes on where it stopped. One that
        # was written only in part is written again: a stream cannot take it back.
        file = Path(self.staging.uri, part.staged["path"])
        if not file.exists():
            return
        try:
            with file.open("rb") as stream:
                shutil.copyfileobj(stream, sys.stdout.buffer, 1 << 20)
            sys.stdout.buffer.flush()
        except OSError as error:
            raise DestinationError(
                f"stdout: cannot write {part.path}: {error.strerror}. The reader of the stream ended early; run again."
            ) from error
        self.staging.discard([part])

    def discard(self, parts: Iterable[Part]) -> None:
        """Remove waiting parts; missing ones are fine."""
        self.staging.discard(parts)

    def read(self, path: str) -> tuple[bytes, str] | None:
        """Read a sidecar of the staging folder."""
        return self.staging.read(path)

    def put(self, path: str, content: bytes) -> None:
        """Write a sidecar into the staging folder."""
        self.staging.put(path, content)

    def swap(self, path: str, content: bytes, *, expected: str | None) -> str:
        """Refuse: a stream keeps no manifest.

        Raises:
            DestinationError: always.
        """
        raise DestinationError(f"stdout keeps no {path}; choose a destination with manifests: local, s3 or gcs.")

    def list(self, prefix: str = "") -> dict[str, int]:
        """Find nothing: what was written is gone."""
        return {}

    def list_after(self, path: str, *, most: int) -> dict[str, str | None]:
        """Find nothing, as `list` does."""
        return {}

    def delete(self, paths: Iterable[str]) -> None:
        """Remove sidecars."""
        self.staging.delete(paths)

    def local_path(self, path: str) -> None:
        """Return None: nothing of it is a file of this machine."""

    def open(self, path: str) -> BinaryIO:
        """Open a sidecar of the staging folder."""
        return self.staging.open(path)

    def staged_runs(self) -> set[str]:
        """Name the runs that have something staged here."""
        return self.staging.staged_runs()

    def sweep(self, *, keep: Iterable[str], everywhere: bool = True) -> int:
        """Remove staging folders of other runs, and those of other exports that nobody touched for a day."""
        removed, base = self.staging.sweep(keep=keep), stage_folder()
        if not Path(self.beside.uri).is_relative_to(base):
            return removed
        places = [Path(folder) for folder, names, _ in os.walk(base) if STAGED in names]  # others go meanwhile
        for folder in (each for place in places for each in entries(place / STAGED)):
            # Of other exports nobody here knows who lives; by age alone, and no part waits for a day.
            if is_older(folder, ABANDONED_SECONDS):
                removed += remove_tree(folder)
        return removed

    def check(self) -> None:
        """Prove that the staging folder can be written."""
        self.staging.check()
