"""Compression of text parts (`text_compression:`): gzip and zstd, on the way to the disk and back.

Belongs here: compressed bytes. Not here: the text in them (`csv.py`, `ndjson.py`).

Readers look at a file's first bytes, which no UTF-8 text begins with, and need no setting: windows of before and after
the key are read alike.
"""

from __future__ import annotations

import gzip
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

import pyarrow as pa

from rivet_resources.errors import PartCorrupt

TextCodec = Literal["gzip", "zstd"]
# A key of its own, since `compression: zstd` is every export's default, and has always meant Parquet alone: files of
# before keep their bytes.
EXTENSIONS = {None: "", "gzip": ".gz", "zstd": ".zst"}
GZIP_LEVEL = 6
# As manifests name them. 1 is the level of Arrow's streams, which take no other.
NAMES = {None: "none", "gzip": f"gzip({GZIP_LEVEL})", "zstd": "zstd(1)"}
# Sources: RFC 1952, 2.3.1; RFC 8878, 3.1.1. The second byte of both continues a character that none began.
MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
BLOCK = 1024 * 1024


class Compressor:
    """Compresses into an open file; equal texts written in equal pieces make equal bytes."""

    def __init__(self, file: io.FileIO, codec: TextCodec, *, limit_bytes: int | None) -> None:
        self._file, self._limit, self._held = file, limit_bytes, 0
        # Arrow's stream closes what it writes to, and the file must stay open until the disk has it.
        self._own = open(os.dup(file.fileno()), "wb", buffering=0)  # noqa: SIM115
        self._stream: Any = (
            # No name and no time, or equal rows would make other bytes in each run.
            gzip.GzipFile(filename="", mode="wb", compresslevel=GZIP_LEVEL, fileobj=self._own, mtime=0)
            if codec == "gzip"
            else pa.CompressedOutputStream(pa.PythonFile(self._own, mode="w"), "zstd")
        )

    def write(self, content: bytes | memoryview) -> int:
        """Append; the bytes in the file, exact once they may have come to the limit."""
        # What the codec holds back is pushed out only then: each push costs some compression.
        self._stream.write(content)
        self._held += len(content)
        if self._limit is not None and self._file.tell() + self._held >= self._limit:
            self._stream.flush()
            self._held = 0
        return self._file.tell()

    def finish(self) -> None:
        """Write the end of the stream; the file stays open."""
        # A file is one gzip member or one zstd frame: some readers (Python's `zstandard.open`, so pandas) stop at the
        # end of the first frame and would lose rows without a word.
        self._stream.close()
        self._own.close()


@contextmanager
def plain(file: BinaryIO) -> Iterator[BinaryIO]:
    """Yield the text of an open file from its beginning, whether it is compressed or not."""
    head = file.read(max(map(len, MAGIC)))
    file.seek(0)
    codec = next((codec for magic, codec in MAGIC.items() if head.startswith(magic)), None)
    if codec is None:
        yield file
    else:
        yield cast(BinaryIO, io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(file, mode="r"), codec), BLOCK))


@contextmanager
def counted(path: Path) -> Iterator[BinaryIO]:
    """Yield the text of a finished file, to be counted.

    Raises:
        PartCorrupt: its compressed bytes are damaged, or end too early.
    """
    with open(path, "rb") as file:
        try:
            with plain(file) as text:
                yield text
        except OSError as error:
            if error.errno is not None:  # the disk, not the codec
                raise
            raise PartCorrupt(f"Part {path.name} is damaged: its compressed bytes do not unpack. Run again.") from error
