"""HMAC-SHA256 and SHA-256 of a column, and the stable number of a bucket.

Belongs here: what exactly is hashed, and doing it with as little Python per cell as there can be. Not here: steps.

Hashed is the JSON text of the value (`connectors.md`, section 4): UTF-8, unescaped, sorted keys, compact; a text keeps
its quotes, integers, floats and booleans are bare, JSON columns are themselves in that form, all other types are their
canonical text in quotes. Bucket numbers hash the canonical text without quotes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources.contracts.types import JSON
from rivet_resources.shape.transforms.cell_text import json_text, spell
from rivet_resources.shape.transforms.fields import is_text, plain

BLOCK = 64  # bytes of a SHA-256 block, to which HMAC pads its key (RFC 2104)
# What JSON must escape (RFC 8259, section 7); only such texts go through Python's encoder.
UNESCAPED = r'["\\\x00-\x1f]'
SEPARATOR = "\x1f"
NULL_TEXT = "\x00"
SAMPLE = 512


def hashed(column: pa.ChunkedArray, *, key: bytes | None, length: int) -> pa.Array:
    """Return `length` lower-case hexadecimal digits per cell, NULL for NULL; without a key plain SHA-256."""
    array = plain(column)
    if is_text(array.type) and column.type != JSON:
        array = array.cast(pa.string())
    if pa.types.is_nested(array.type) or not _repeats(array):
        return _digests(_json(array, column.type), key=key, length=length)
    encoded = array.dictionary_encode()
    return _digests(_json(encoded.dictionary, column.type), key=key, length=length).take(encoded.indices)


def _repeats(array: pa.Array) -> bool:
    """Return whether cells repeat so often that hashing each distinct one once pays."""
    sample = array.slice(0, SAMPLE)
    return len(array) > SAMPLE and pc.count_distinct(sample).as_py() < len(sample) * 0.9


def _json(array: pa.Array, arrow: pa.DataType) -> pa.Array:
    """Write each cell as JSON text."""
    if arrow == JSON:
        return pa.array(
            [None if cell is None else json_text(json.loads(cell)) for cell in array.to_pylist()], pa.string()
        )
    if pa.types.is_integer(array.type) or pa.types.is_boolean(array.type):
        return array.cast(pa.string())
    if pa.types.is_floating(array.type) or pa.types.is_nested(array.type):
        return pa.array([None if cell is None else json_text(cell) for cell in array.to_pylist()], pa.string())
    if is_text(array.type):
        text = array
    else:
        typed = isinstance(arrow, pa.BaseExtensionType)
        text = spell(pa.chunked_array([pa.ExtensionArray.from_storage(arrow, array) if typed else array]))
    if pc.any(pc.match_substring_regex(text, UNESCAPED)).as_py():
        return pa.array([None if cell is None else json_text(cell) for cell in text.to_pylist()], pa.string())
    return pc.binary_join_element_wise('"', text, '"', "")


def _digests(texts: pa.Array, *, key: bytes | None, length: int) -> pa.Array:
    """Hash each text; the two key blocks of HMAC are hashed once and their states copied per cell."""
    cells = texts.cast(pa.binary()).to_pylist()
    digests = _sha256(cells) if key is None else _hmac(cells, key)
    digits = np.frombuffer(b"".join(digests).hex().encode(), np.uint8).reshape(-1, 64)[:, :length]
    offsets = pa.py_buffer(np.arange(len(cells) + 1, dtype=np.int32) * length)
    made = pa.StringArray.from_buffers(len(cells), offsets, pa.py_buffer(np.ascontiguousarray(digits).reshape(-1)))
    return pc.if_else(texts.is_valid(), made, pa.scalar(None, pa.string())) if texts.null_count else made


def _sha256(cells: Sequence[bytes | None]) -> list[bytes]:
    sha = hashlib.sha256
    return [sha(cell or b"").digest() for cell in cells]


def _hmac(cells: Sequence[bytes | None], key: bytes) -> list[bytes]:
    """Source: RFC 2104. `hmac.digest` sets the key up per call and takes three times as long (measured 2026-11)."""
    padded = (hashlib.sha256(key).digest() if len(key) > BLOCK else key).ljust(BLOCK, b"\0")
    # 0x36 and 0x5C are the inner and the outer pad.
    inner_state = hashlib.sha256(bytes(byte ^ 0x36 for byte in padded)).copy
    outer_state = hashlib.sha256(bytes(byte ^ 0x5C for byte in padded)).copy
    digests: list[bytes] = []
    append = digests.append
    for cell in cells:
        inner = inner_state()
        inner.update(cell or b"")
        outer = outer_state()
        outer.update(inner.digest())
        append(outer.digest())
    return digests


def buckets(columns: Sequence[pa.ChunkedArray], count: int) -> pa.Array:
    """Return XXH3-64 of the canonical texts modulo `count`, as int32; several columns are joined by U+001F.

    NULL is hashed as U+0000, so that every row has a bucket. The same on every machine and in every version.
    """
    texts = [spell(column) for column in columns]
    joined = pc.binary_join_element_wise(*texts, SEPARATOR, null_handling="replace", null_replacement=NULL_TEXT)
    if not _repeats(joined):
        return _numbers(joined, count)
    encoded = joined.dictionary_encode()
    return _numbers(encoded.dictionary, count).take(encoded.indices)


def _numbers(texts: pa.Array, count: int) -> pa.Array:
    import xxhash  # start

    digest = xxhash.xxh3_64_intdigest
    numbers = np.fromiter((digest(cell) for cell in texts.cast(pa.binary()).to_pylist()), np.uint64, len(texts))
    return pa.array((numbers % np.uint64(count)).astype(np.int32))
