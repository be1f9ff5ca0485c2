"""What a destination on disk promises when the disk fills or the power goes: a name stands for a whole file."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from rivet_resources.destinations.local import Local, LocalRoot
from rivet_resources.errors import DiskFull
from tests.engines.test_destinations import NAME, staged

MANIFEST = "_rivet/all.json"


@pytest.fixture
def root(tmp_path: Path) -> LocalRoot:
    """The folder of one export."""
    return Local(path=str(tmp_path / "lake")).root("orders")


def write(root: LocalRoot, how: str, content: bytes) -> None:
    """Write the manifest in one of the two ways."""
    if how == "put":
        root.put(MANIFEST, content)
        return
    found = root.read(MANIFEST)
    root.swap(MANIFEST, content, expected=found[1] if found else None)


@pytest.mark.parametrize("how", ["put", "swap"])
def test_small_file_is_on_disk_before_it_has_its_name(
    root: LocalRoot, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut there is the old content or the new, never an empty file."""
    told: list[tuple[str, int]] = []
    fsync, replace = os.fsync, os.replace

    def syncing(file: int) -> None:
        told.append(("fsync", os.fstat(file).st_ino))
        fsync(file)

    def replacing(source: Any, target: Any) -> None:
        told.append(("replace", os.stat(source).st_ino))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(os, "replace", replacing)
    write(root, how, b"new")

    file = (Path(root.uri) / MANIFEST).stat().st_ino
    renamed = told.index(("replace", file))
    assert ("fsync", file) in told[:renamed]
    assert ("fsync", (Path(root.uri) / "_rivet").stat().st_ino) in told[renamed:]


@pytest.mark.parametrize("how", ["put", "swap"])
def test_disk_that_fills_amid_a_small_file_leaves_the_old_one(
    root: LocalRoot, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the new content is under its name, and nothing is listed beside it."""
    write(root, how, b"old")

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFull):
        write(root, how, b"new and longer")
    monkeypatch.undo()

    assert ((root.read(MANIFEST) or (b"",))[0], [MANIFEST]) == (b"old", list(root.list()))


def test_nobody_else_gets_in_between_the_look_and_the_write_of_a_swap(
    root: LocalRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two runs that commit one window the second looks once the first has written, so only one of them wins."""
    write(root, "swap", b"old")
    seen: list[bool] = []
    read, replace = LocalRoot.read, os.replace

    def is_shut() -> bool:
        with open(f"{root.uri}/_rivet/.lock", "ab") as other:
            try:
                fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def reading(self: LocalRoot, path: str) -> tuple[bytes, str] | None:
        seen.append(is_shut())
        return read(self, path)

    def replacing(source: Any, target: Any) -> None:
        seen.append(is_shut())
        replace(source, target)

    version = root.read(MANIFEST)
    assert version is not None
    monkeypatch.setattr(LocalRoot, "read", reading)
    monkeypatch.setattr(os, "replace", replacing)
    root.swap(MANIFEST, b"new", expected=version[1])

    assert [True, True] == seen


def test_published_part_is_the_very_file_that_was_staged(root: LocalRoot, tmp_path: Path) -> None:
    """It is renamed, not copied: there is no instant at which half of it has its name."""
    part = staged(root, tmp_path)
    file = (Path(root.uri) / part.staged["path"]).stat().st_ino

    root.publish(part)

    assert file == (Path(root.uri) / NAME).stat().st_ino
