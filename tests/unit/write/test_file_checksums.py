"""Checksums of parts, of finished files and behind a writer."""

from __future__ import annotations

import base64
import hashlib
import threading
from pathlib import Path

import pytest
import xxhash

from rivet_resources.errors import PartCorrupt
from rivet_resources.write.file_checksums import FollowedFile, checksums

BLOCKS = [bytes([number]) * size for number, size in enumerate((1, 700_000, 0, 3_000_000, 17))]
ALL = 1 << 30  # as if so much were written: reading on begins


def test_checksums_are_of_the_whole_file(tmp_path: Path) -> None:
    """Size, XXH3 in hex and MD5 in base64, as other tools compute them."""
    file, content = tmp_path / "part", b"".join(BLOCKS)
    file.write_bytes(content)

    md5 = base64.b64encode(hashlib.md5(content).digest()).decode()
    assert (len(content), f"xxh3:{xxhash.xxh3_64_hexdigest(content)}", md5) == checksums(file)


def test_file_that_grows_has_the_checksums_of_what_it_became(tmp_path: Path) -> None:
    """However often it was read on while it was written."""
    file = tmp_path / "part"
    file.touch()
    behind = FollowedFile(file)
    for number, block in enumerate(BLOCKS):
        with open(file, "ab") as writer:
            writer.write(block)
        behind.advance(ALL * number)

    assert checksums(file) == behind.finish()


def test_little_that_was_written_waits_for_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread for each page of a few rows would cost more than it saves."""
    file = tmp_path / "part"
    file.write_bytes(b"rows")
    behind = FollowedFile(file)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda self: pytest.fail("a thread for four bytes"))
        behind.advance(4)

    assert checksums(file) == behind.finish()


def test_head_that_is_filled_in_later_is_read(tmp_path: Path) -> None:
    """A format of somebody else may go back to the beginning of its file."""
    file = tmp_path / "part"
    file.write_bytes(b"....rows")
    behind = FollowedFile(file)
    behind.advance(ALL)
    behind.advance(2 * ALL)  # waits for the reading before
    file.write_bytes(b"HEADrows and rows")

    assert checksums(file) == behind.finish()


def test_file_that_shrinks_is_refused(tmp_path: Path) -> None:
    """What was read is no longer there, so its checksums would be of no file."""
    file = tmp_path / "part"
    file.write_bytes(bytes(9000))
    behind = FollowedFile(file)
    file_of_before = behind.finish()
    file.write_bytes(bytes(8000))

    with pytest.raises(PartCorrupt, match="has 8000 bytes, 9000 were read"):
        behind.finish()
    assert 9000 == file_of_before[0]


def test_reading_that_fails_behind_the_writer_is_told(tmp_path: Path) -> None:
    """It happened in a thread, and is raised where the file is asked for."""
    behind = FollowedFile(tmp_path / "gone")
    behind.advance(ALL)

    with pytest.raises(FileNotFoundError, match="gone"):
        behind.finish()


def test_system_without_threads_reads_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that cannot begin costs time, not the part."""

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    file = tmp_path / "part"
    file.write_bytes(b"rows")
    behind = FollowedFile(file)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        behind.advance(ALL)

    assert checksums(file) == behind.finish()
