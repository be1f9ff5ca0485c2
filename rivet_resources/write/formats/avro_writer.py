"""The writing of one Avro object container file: header, blocks, compression.

Belongs here: the file. Not here: the bytes of rows (`avro_cells.py`), YAML (`avro.py`). Source: Apache Avro 1.12.0
specification, "Object Container Files".

The marker between blocks is a digest of the schema and the first block, not random: equal rows make equal files.
"""

from __future__ import annotations

import base64
import hashlib
import os
import zlib
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from rivet_resources.write.formats.avro_cells import render
from rivet_resources.write.formats.avro_schema import avro_json
from rivet_resources.write.formats.text_writer import SLICE_BYTES, SLICE_ROWS

MAGIC = b"Obj\x01"
# What blocks hold before they are compressed: enough for a codec to learn from, little for a reader to hold.
BLOCK_BYTES = 256 * 1024
# Arrow's IPC in base64, as fastavro reads all metadata as UTF-8.
ARROW_SCHEMA = "rivet.arrow_schema"
CODECS = {"none": "null", "gzip": "deflate", "snappy": "snappy", "zstd": "zstandard"}


class AvroWriter:
    """Writes one file; blocks are on their way to the disk when `write` returns, but for the last."""

    def __init__(
        self, path: Path, schema: pa.Schema, *, codec: str, level: int | None, limit_bytes: int | None = None
    ) -> None:
        self.bytes_written = 0
        self._schema, self._codec, self._level, self._limit = schema, codec, level, limit_bytes
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115  blocks are large; a buffer would only copy them
        self._pending: list[memoryview] = []
        self._rows = self._size = 0
        self._sync = b""

    def write(self, table: pa.Table) -> None:
        """Append rows.

        Raises:
            ValueDoesNotFit: a column that was declared without NULL holds one.
        """
        wide = max(1, table.nbytes // max(1, table.num_rows))
        rows = max(1, min(SLICE_ROWS, SLICE_BYTES // wide, BLOCK_BYTES // wide))
        for batch in table.to_batches(max_chunksize=rows):
            content = render(batch)
            self._pending.append(content)
            self._rows += batch.num_rows
            self._size += len(content)
            # Near its limit a part is flushed with each batch, so that its size is known.
            if self._size >= BLOCK_BYTES or self._limit_is_near():
                self._flush()

    def close(self) -> None:
        """Write what is left, and wait until the disk has it."""
        self._flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def _limit_is_near(self) -> bool:
        return self._limit is not None and self.bytes_written + self._size >= self._limit

    def _flush(self) -> None:
        """Write the pending rows as a block; before the first one the header, also where there are no rows."""
        content = b"".join(self._pending)
        # The marker is made of the first block, so the header can only be written with it.
        if not self._sync:
            metadata = header_of(self._schema, self._codec)
            self._sync = hashlib.md5(metadata + content, usedforsecurity=False).digest()
            self._put(MAGIC + metadata + self._sync)
        if self._rows:
            packed = pack(content, self._codec, self._level)
            self._put(varint(self._rows) + varint(len(packed)) + packed + self._sync)
        self._pending, self._rows, self._size = [], 0, 0

    def _put(self, content: bytes) -> None:
        """Write all of `content`: a raw file may take less than it is given."""
        rest = memoryview(content)
        self.bytes_written += len(rest)
        while rest:
            rest = rest[self._file.write(rest) :]


def header_of(schema: pa.Schema, codec: str) -> bytes:
    """Return the metadata of a file, spelled."""
    return _map({
        "avro.schema": avro_json(schema),
        "avro.codec": CODECS[codec].encode(),
        ARROW_SCHEMA: base64.b64encode(schema.serialize().to_pybytes()),
    })  # fmt: skip


def _map(entries: Mapping[str, bytes]) -> bytes:
    spelled = b"".join(varint(len(each)) + each for name, value in entries.items() for each in (name.encode(), value))
    return varint(len(entries)) + spelled + b"\0"


def varint(number: int) -> bytes:
    """Spell one whole number that is not negative."""
    number <<= 1
    content = bytearray()
    while number > 127:
        content.append(number & 127 | 128)
        number >>= 7
    return bytes([*content, number])


def pack(content: bytes, codec: str, level: int | None) -> bytes:
    """Compress a block."""
    if codec == "none":
        return content
    if codec == "gzip":  # deflate without the frame of gzip
        # Negative: raw deflate, without zlib's head and sum, as the specification asks.
        packer = zlib.compressobj(6 if level is None else level, zlib.DEFLATED, -15)
        return packer.compress(content) + packer.flush()
    if codec == "snappy":
        # Avro's snappy is followed by the CRC32 of what was packed, the high byte first.
        return bytes(pa.compress(content, "snappy", asbytes=True)) + zlib.crc32(content).to_bytes(4, "big")
    return bytes(pa.Codec("zstd", compression_level=level).compress(content, asbytes=True))


def unpack(content: bytes, codec: str, most: int) -> bytes:
    """Return a block as it was before `pack`; `codec` by the name that files have.

    Raises:
        ValueError, OSError, zlib.error: it is damaged, or holds more than `most` bytes.
    """
    if codec == "null":
        return content
    unpacker = zlib.decompressobj(-15) if codec == "deflate" else None
    if unpacker is not None:
        # Bounded while it unpacks: a few kilobytes of zeros would else become all of the memory.
        plain = unpacker.decompress(content, most)
        if not unpacker.eof:
            raise ValueError("a block is cut short, or too large")
        return plain
    if codec == "snappy":
        plain = _stream(content[:-4], "snappy", most)
        if zlib.crc32(plain).to_bytes(4, "big") != content[-4:]:
            raise ValueError("the checksum of a block differs")
        return plain
    return _stream(content, "zstd", most)


def _stream(content: bytes, codec: str, most: int) -> bytes:
    """Return the plain bytes of a block that tells its own size, as Snappy's do and Zstandard's by `pack`."""
    if codec == "zstd":
        with pa.CompressedInputStream(pa.BufferReader(content), "zstd") as stream:
            plain = bytes(stream.read(most + 1))
    else:
        size = shift = 0
        for byte in content:
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        plain = (
            bytes(pa.decompress(content, size, codec="snappy", asbytes=True)) if size <= most else b"\0" * (most + 1)
        )
    if len(plain) > most:
        raise ValueError("a block is too large")
    return plain
