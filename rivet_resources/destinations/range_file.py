"""A seekable file over a store that answers byte ranges, so that Parquet readers fetch footers and columns only.

Belongs here: the arithmetic of reading. Not here: requests; `fetch` makes them.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import BinaryIO, cast

BUFFER_BYTES = 1 << 20


class Ranged(io.RawIOBase):
    """Bytes of one object; `fetch(start, end)` returns them, end exclusive."""

    def __init__(self, size: int, fetch: Callable[[int, int], bytes]) -> None:
        self._size, self._fetch, self._position = size, fetch, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move; nothing is fetched."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        """Fill `buffer` with one request."""
        end = min(self._size, self._position + len(buffer))
        if end <= self._position:
            return 0
        content = self._fetch(self._position, end)
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)

    def readall(self) -> bytes:
        """Read the rest with one request; the inherited loop would ask for 8 KiB at a time."""
        content = self._fetch(self._position, self._size) if self._position < self._size else b""
        self._position += len(content)
        return content


def open_ranged(size: int, fetch: Callable[[int, int], bytes]) -> BinaryIO:
    """Open an object for reading, seekable and buffered."""
    return cast(BinaryIO, io.BufferedReader(Ranged(size, fetch), BUFFER_BYTES))
