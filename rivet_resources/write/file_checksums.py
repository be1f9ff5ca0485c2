"""Checksums of a part: its size, XXH3 and MD5, read back from the disk.

Belongs here: reading a finished file, or one that is still growing behind its writer. Not here: sums of columns
(`checksums/`), what is done with them (`parts.py`, `prove/part.py`).
"""

from __future__ import annotations

import base64
import hashlib
import threading
from pathlib import Path

import xxhash

from rivet_resources.errors import PartCorrupt

BLOCK = 1024 * 1024
LEAST = 8 * BLOCK  # worth a thread
HEAD = 4096  # bytes of it that are looked at twice


def checksums(file: Path) -> tuple[int, str, str]:
    """Read a finished file once: its size, `xxh3:` and 16 hex, and its MD5 in base64.

    Raises:
        PartCorrupt: it changed meanwhile.
    """
    return FollowedFile(file).finish()


class FollowedFile:
    """Reads a file back while it is written, so that a part of gigabytes is not read from its start when it is whole.

    Bytes that were read are not looked at again, but for the first ones: a format that goes back to fill in its head is
    found out, and read anew.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._asked = 0  # bytes that were there when reading on began last
        self._begin()

    def advance(self, written: int) -> None:
        """Read on, in a thread that ends at what is the end of the file then; little is left for later.

        Args:
            written: bytes that the file has by now.

        Raises:
            OSError: what became of the reading before.
        """
        # A thread for each page would cost more than it reads.
        if written - self._asked < LEAST:
            return
        self._asked = written
        self._wait()
        # What is read comes from the page cache; the hashes release the interpreter's lock, so the next rows are
        # encoded meanwhile.
        thread = threading.Thread(target=self._try_read, name="rivet-checksums", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # The system gives none: `finish` reads all.
            return
        self._thread = thread

    def finish(self) -> tuple[int, str, str]:
        """Read the rest of the finished file: its size, `xxh3:` and 16 hex, and its MD5 in base64.

        Raises:
            PartCorrupt: it has another size than what was read.
            OSError: it cannot be read.
        """
        self._wait()
        # Parquet and the like write their head once; a format that fills it in later is read anew, from the start.
        if self._head != self._first_bytes():
            self._begin()
        self._read()
        # A page cache that gave other bytes than the disk has is not found here; that is what the store's own MD5 is
        # for.
        if self._size != self._file.stat().st_size:
            raise PartCorrupt(
                f"Part {self._file.name} has {self._file.stat().st_size} bytes, {self._size} were read. Run again."
            )
        md5 = base64.b64encode(self._slow.digest()).decode()
        return self._size, f"xxh3:{self._fast.hexdigest()}", md5

    def _begin(self) -> None:
        self._size, self._head = 0, b""
        # MD5 because stores compare it (Content-MD5), XXH3 because it is fast; neither protects against anybody.
        self._fast, self._slow = xxhash.xxh3_64(), hashlib.md5(usedforsecurity=False)

    def _wait(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        if self._error is not None:
            raise self._error

    def _try_read(self) -> None:
        try:
            self._read()
        except BaseException as error:
            self._error = error

    def _first_bytes(self) -> bytes:
        with open(self._file, "rb", buffering=0) as content:
            return content.read(len(self._head))

    def _read(self) -> None:
        with open(self._file, "rb", buffering=0) as content:
            content.seek(self._size)
            while block := content.read(BLOCK):
                self._head = self._head or block[:HEAD]
                self._size += len(block)
                self._fast.update(block)
                self._slow.update(block)
