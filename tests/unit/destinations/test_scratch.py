"""Scratch on this machine: nobody else looks into it, and nothing stays of processes that died."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rivet_resources import scratch
from rivet_resources.destinations.stdout import Stdout, stage_folder
from rivet_resources.errors import DestinationError
from rivet_resources.read.throttle import tell_speed

HOLD = """
import sys, time
from pathlib import Path
from rivet_resources import scratch
with scratch.held(Path(sys.argv[1])) as folder:
    (folder / "chunk0-0.parquet").write_bytes(b"rows")
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temp folder of its own."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield tmp_path
    tempfile.tempdir = None


def holder(folder: Path) -> subprocess.Popen[str]:
    """Start a process that uses a scratch folder until it is killed."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert "held\n" == process.stdout.readline()
    return process


def mode(path: Path) -> int:
    """Read the permission bits."""
    return stat.S_IMODE(path.stat().st_mode)


def test_folder_is_private_and_gone_at_the_end(machine: Path) -> None:
    """Whatever the umask: rows on their way to a private place are nobody else's business."""
    before = os.umask(0)
    try:
        with scratch.held(scratch.folder_of("orders_1")) as folder:
            (folder / "part").write_text("rows")

            assert 0o700 == mode(folder)
    finally:
        os.umask(before)
    assert [] == list(machine.iterdir())


def test_killed_process_leaves_nothing_for_longer_than_the_next_run(machine: Path) -> None:
    """After kill -9 the next run, of any export, removes what was left; what a living run has stays."""
    dead, alive = scratch.folder_of("orders_dead"), scratch.folder_of("clients_alive")
    doomed, living = holder(dead), holder(alive)
    try:
        doomed.send_signal(signal.SIGKILL)
        doomed.wait()
        assert (dead / "chunk0-0.parquet").exists()

        with scratch.held(scratch.folder_of("other_1")):
            assert (False, True) == (dead.exists(), (alive / "chunk0-0.parquet").exists())
    finally:
        living.kill()
        living.wait()
    assert 1 == scratch.sweep()
    assert [] == list(machine.iterdir())


def test_last_of_several_processes_removes_the_folder(machine: Path) -> None:
    """Tasks of a run share one; on a worker, where no driver cleans up, the last of them does."""
    folder = scratch.folder_of("orders_shared")
    other = holder(folder)

    with scratch.held(folder):
        pass
    assert folder.exists()
    with scratch.held(folder):
        other.kill()
        other.wait()
    assert not folder.exists()


@pytest.mark.parametrize("what", ["a link", "a file"])
def test_what_is_no_folder_of_ours_is_refused(machine: Path, what: str) -> None:
    """Somebody else may have been quicker with the name."""
    folder = scratch.folder_of("orders_1")
    (machine / "theirs").mkdir()
    if what == "a link":
        folder.symlink_to("theirs")
    else:
        folder.write_text("")

    with pytest.raises(DestinationError, match=r"cannot be made: it is a link.*TMPDIR"), scratch.held(folder):
        pass

    assert [] == list((machine / "theirs").iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_folder_of_another_user_is_refused_and_not_swept(machine: Path) -> None:
    """Its owner could read, and replace, what is written into it."""
    folder = scratch.folder_of("orders_1")
    folder.mkdir()
    os.chown(folder, 65534, 65534)

    with pytest.raises(DestinationError, match="it belongs to another user"):
        tell_speed(folder, 0.5)

    assert 0 == scratch.sweep()
    assert folder.exists()


def test_folder_that_others_could_read_is_closed(machine: Path) -> None:
    """A Rivet before this one left it open."""
    folder = scratch.folder_of("orders_1")
    folder.mkdir(mode=0o755)

    scratch.private_folder(folder)

    assert 0o700 == mode(folder)


def test_old_folder_without_a_lock_is_swept_and_a_young_one_stays(machine: Path) -> None:
    """It is another Rivet's, or being made at this very moment."""
    old, young = scratch.folder_of("orders_old"), scratch.folder_of("orders_young")
    for folder in (old, young):
        folder.mkdir()
        (folder / "part").write_text("rows")
    os.utime(old, (0, 0))

    assert 1 == scratch.sweep()
    assert young.exists()


def test_stage_of_a_stream_is_private_and_refused_when_it_is_not_ours(machine: Path) -> None:
    """Its name can be guessed."""
    root = Stdout().root("orders")
    root.check()
    assert 0o700 == mode(stage_folder())

    for path in sorted(stage_folder().rglob("*"), reverse=True):
        path.rmdir()
    stage_folder().rmdir()
    (machine / "theirs").mkdir()
    stage_folder().symlink_to("theirs")
    with pytest.raises(DestinationError, match="a link or a file"):
        root.check()
    assert [] == list((machine / "theirs").iterdir())
