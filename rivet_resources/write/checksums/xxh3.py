"""XXH3-64 of many short byte strings at once, in numpy.

Belongs here: the hash itself, seed 0, default secret. Not here: which bytes a cell has (`cells.py`), sums (`sums.py`).
Source: xxHash 0.8, doc/xxhash_spec.md, "XXH3 Algorithm (for small inputs)".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

Hashes = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]

# Cells at once: 64 kB of each intermediate number stay in the processor's second cache.
BLOCK = 8_192
# So many bytes objects at once are made where the last ones lay.
EACH_BLOCK = 2_048
# Bytes of the longest cell that numpy hashes; beyond it, a call for each costs less.
SHORT = 64

_U = np.uint64
PRIME64_1, PRIME64_2, PRIME64_3 = _U(0x9E3779B185EBCA87), _U(0xC2B2AE3D27D4EB4F), _U(0x165667B19E3779F9)
PRIME_MX1, PRIME_MX2 = _U(0x165667919E3779F9), _U(0x9FB21C651E98DF25)
# What the default secret comes to with seed 0: two of its words, xor-ed.
FLIP_1_TO_3 = _U(0x87275A9B)
FLIP_4_TO_8 = _U(0xC73AB174C5ECD5A2)
SECRET = tuple(
    _U(word)
    for word in (
        0xBE4BA423396CFEB8, 0x1CAD21F72C81017C, 0xDB979083E96DD4DE, 0x1F67B3B7A4A44072,
        0x78E5C0CC4EE679CB, 0x2172FFCC7DD05A82, 0x8E2443F7744608B8, 0x4C263A81E69035E0,
    )
)  # fmt: skip
FLIP_9_TO_16 = _U(0x6782737BEA4239B9), _U(0xAF56BC3B0996523A)
LOW_HALF = _U(0xFFFFFFFF)
EMPTY = _U(xxhash.xxh3_64_intdigest(b""))


def number_hashes(numbers: npt.NDArray[np.unsignedinteger]) -> Hashes:
    """Hash numbers of 4 or 8 bytes, each as its little-endian bytes."""
    found = np.empty(len(numbers), np.uint64)
    for lo in range(0, len(numbers), BLOCK):
        block = numbers[lo : lo + BLOCK]
        if block.itemsize == 4:
            wide = block.astype(np.uint64)
            wide |= wide << _U(32)  # both reads of four bytes meet the same ones
        else:
            # Of eight bytes XXH3 puts the last four below the first four, and the number's are the other way round.
            wide = block << _U(32)
            wide |= block >> _U(32)
        wide ^= FLIP_4_TO_8
        found[lo : lo + BLOCK] = _mix(wide, _U(block.itemsize))
    return found


def pair_hashes(pairs: Hashes) -> Hashes:
    """Hash cells of sixteen bytes: shape (cells, 2), the first eight bytes and the last."""
    found = np.empty(len(pairs), np.uint64)
    for lo in range(0, len(pairs), BLOCK):
        block = pairs[lo : lo + BLOCK]
        found[lo : lo + BLOCK] = _fold(block[:, 0], block[:, 1], _U(16))
    return found


def small_table(width: int) -> Hashes:
    """Return the hashes of all numbers of one or two bytes, by number."""
    return _table_of_one() if width == 1 else _table_of_two()


def cell_hashes(cells: pa.Array) -> Hashes:
    """Hash binary cells, none of them NULL, in their order."""
    found = np.empty(len(cells), np.uint64)
    if not len(cells):
        return found
    values, offsets = _lay_out(cells)
    for lo in range(0, len(cells), BLOCK):
        hi = min(lo + BLOCK, len(cells))
        _hash_block(cells.slice(lo, hi - lo), values, offsets[lo : hi + 1], found[lo:hi])
    return found


# --- cells of several lengths --------------------------------------------------------------------


class _Cells(Protocol):
    """Bytes of cells whose lengths take the same way through XXH3."""

    @property
    def lengths(self) -> Hashes:
        """Return the bytes of each cell, or one number for all."""

    def head(self, width: int, at: int) -> Any:
        """Read a little-endian number of `width` bytes at so many bytes from each cell's begin."""

    def tail(self, width: int, at: int) -> Any:
        """Read one at so many bytes before each cell's end."""

    def middle(self) -> Any:
        """Read the byte in the middle."""

    def ends(self, words: int) -> tuple[Sequence[Any], Sequence[Any]]:
        """Read so many words of eight bytes from each cell's begin, and as many before its end; in their order."""


@dataclass(frozen=True)
class _Even:
    """Cells of one length, one behind the other, as Arrow lays them: words are read at equal steps."""

    values: Bytes
    start: int
    count: int
    length: int

    @property
    def lengths(self) -> Hashes:
        return np.array([self.length], np.uint64)  # not a scalar, whose overflow warns

    def head(self, width: int, at: int) -> Any:
        return np.ndarray((self.count,), f"<u{width}", self.values, self.start + at, (self.length,))

    def tail(self, width: int, at: int) -> Any:
        return self.head(width, self.length - at)

    def middle(self) -> Any:
        return self.head(1, self.length >> 1)

    def ends(self, words: int) -> tuple[Sequence[Any], Sequence[Any]]:
        places = range(0, 8 * words, 8)
        return [self.head(8, at) for at in places], [self.tail(8, 8 * words - at) for at in places]


@dataclass(frozen=True)
class _Scattered:
    """Cells of several lengths, anywhere: every word is looked up."""

    values: Bytes
    starts: Places
    sizes: Places

    @property
    def lengths(self) -> Hashes:
        return self.sizes.astype(np.uint64)

    def head(self, width: int, at: int) -> Any:
        return self._read(width, self.starts + at)

    def tail(self, width: int, at: int) -> Any:
        return self._read(width, self.starts + self.sizes - at)

    def middle(self) -> Any:
        return self._read(1, self.starts + (self.sizes >> 1))

    def ends(self, words: int) -> tuple[Sequence[Any], Sequence[Any]]:
        return self._words(words, self.starts), self._words(words, self.starts + self.sizes - 8 * words)

    def _words(self, words: int, places: Places) -> Sequence[Any]:
        """Read neighbouring words; looking up all of them costs no more than looking up one."""
        window = np.ndarray((len(self.values) - 8 * words + 1,), f"V{8 * words}", self.values, 0, (1,))
        return list(window[places].view("<u8").reshape(-1, words).T)

    def _read(self, width: int, places: Places) -> Any:
        return np.ndarray((len(self.values) - width + 1,), f"<u{width}", self.values, 0, (1,))[places]


def _lay_out(cells: pa.Array) -> tuple[Bytes, Places]:
    """Look at the bytes of an array, and at where each cell begins and the last one ends."""
    wide = pa.types.is_large_binary(cells.type) or pa.types.is_large_string(cells.type)
    _, offsets, values = cells.buffers()
    kind = np.dtype("<i8" if wide else "<i4")
    places = np.frombuffer(offsets, kind, len(cells) + 1, cells.offset * kind.itemsize)
    return np.frombuffer(values or b"", np.uint8), places.astype(np.int64)


def _hash_block(cells: pa.Array, values: Bytes, offsets: Places, into: Hashes) -> None:
    """Hash each length class its own way."""
    starts = offsets[:-1]
    lengths = offsets[1:] - starts
    longest, shortest = int(lengths.max()), int(lengths.min())
    if longest == shortest <= SHORT:
        into[:] = _way(longest)(_Even(values, int(starts[0]), len(starts), longest))
        return
    for low, high, hashed in WAYS:
        if shortest > high or longest < low:
            continue
        if low <= shortest and longest <= high:
            into[:] = hashed(_Scattered(values, starts, lengths))
            return
        rows = np.flatnonzero((lengths >= low) & (lengths <= high))
        if len(rows):
            into[rows] = hashed(_Scattered(values, starts[rows], lengths[rows]))
    if shortest > SHORT:
        into[:] = _each(cells)
    elif longest > SHORT:
        rows = np.flatnonzero(lengths > SHORT)
        into[rows] = _each(cells.take(pa.array(rows)))


def _each(cells: pa.Array) -> Hashes:
    """Call xxhash for every cell."""
    digests = b"".join(
        b"".join(map(xxhash.xxh3_64_digest, cells.slice(lo, EACH_BLOCK).to_numpy(zero_copy_only=False)))
        for lo in range(0, len(cells), EACH_BLOCK)
    )
    # A digest is written with the high bits first.
    return np.frombuffer(digests, ">u8").astype(np.uint64)


def _empty(cells: _Cells) -> Any:
    return EMPTY


def _tiny(cells: _Cells) -> Hashes:
    # First, middle and last byte, and the length between them (inputs of 1 to 3 bytes).
    combined: Hashes = cells.head(1, 0).astype(np.uint64) << _U(16)
    combined |= cells.middle().astype(np.uint64) << _U(24)
    combined |= cells.tail(1, 1)
    combined |= cells.lengths << _U(8)
    combined ^= FLIP_1_TO_3
    return _avalanche(combined)


def _word(cells: _Cells) -> Hashes:
    keyed: Hashes = cells.head(4, 0).astype(np.uint64) << _U(32)
    keyed += cells.tail(4, 4)
    keyed ^= FLIP_4_TO_8
    return _mix(keyed, cells.lengths)


def _two_words(cells: _Cells) -> Hashes:
    return _fold(cells.head(8, 0), cells.tail(8, 8), cells.lengths)


def _long(cells: _Cells, pairs: int) -> Hashes:
    """Hash 17 to 64 bytes: pairs of words from both ends, each xor-ed with the secret."""
    head, tail = cells.ends(2 * pairs)
    found: Hashes = np.zeros(len(head[0]), np.uint64)
    # Inputs of 17 to 128 bytes: the length starts the sum, then come pairs of 16 bytes from both ends.
    found += cells.lengths * PRIME64_1
    # Inwards from both ends; the secret goes on from pair to pair.
    for pair in range(pairs):
        first, last, secret = 2 * pair, 2 * (pairs - 1 - pair), SECRET[4 * pair : 4 * pair + 4]
        found += _product_folded(head[first] ^ secret[0], head[first + 1] ^ secret[1])
        found += _product_folded(tail[last] ^ secret[2], tail[last + 1] ^ secret[3])
    return _avalanche_long(found)


# Shortest and longest cell, and how they are hashed.
# Up to 64 bytes XXH3 is a few multiplications, so a whole block of cells goes through each of them together: 7 to 14 ns
# a number and 20 to 60 ns a text, instead of 80 by one call of `xxhash` a cell. Longer ones are called one by one,
# which costs less than numpy would (tests/bench/checksums.py).
WAYS: Sequence[tuple[int, int, Callable[[_Cells], Any]]] = (
    (0, 0, _empty),
    (1, 3, _tiny),
    (4, 8, _word),
    (9, 16, _two_words),
    (17, 32, partial(_long, pairs=1)),
    (33, SHORT, partial(_long, pairs=2)),
)


def _way(length: int) -> Callable[[_Cells], Any]:
    return next(hashed for _, high, hashed in WAYS if length <= high)


# --- the arithmetic ------------------------------------------------------------------------------


def _mix(keyed: Hashes, lengths: Hashes | np.uint64) -> Hashes:
    """Finish 4 to 8 bytes (`XXH3_rrmxmx`); writes over what it gets."""
    turned = keyed << _U(49)
    turned |= keyed >> _U(15)
    turned ^= keyed << _U(24)
    turned ^= keyed >> _U(40)
    keyed ^= turned
    keyed *= PRIME_MX2
    np.right_shift(keyed, _U(35), out=turned)
    turned += lengths
    keyed ^= turned
    keyed *= PRIME_MX2
    np.right_shift(keyed, _U(28), out=turned)
    keyed ^= turned
    return keyed


def _fold(first: Hashes, last: Hashes, lengths: Hashes | np.uint64) -> Hashes:
    """Finish 9 to 16 bytes: the 128-bit product of both ends, folded, and both ends themselves."""
    # Inputs of 9 to 16 bytes.
    low, high = first ^ FLIP_9_TO_16[0], last ^ FLIP_9_TO_16[1]
    found: Hashes = low.byteswap()
    found += lengths
    found += high
    found += _product_folded(low, high)
    return _avalanche_long(found)


def _avalanche_long(keyed: Hashes) -> Hashes:
    """Finish more than 8 bytes (`XXH3_avalanche`); writes over what it gets."""
    keyed ^= keyed >> _U(37)
    keyed *= PRIME_MX1
    keyed ^= keyed >> _U(32)
    return keyed


def _product_folded(one: Hashes, other: Hashes) -> Hashes:
    """Multiply to 128 bits, by halves of 32, and xor the upper 64 with the lower."""
    one_low, one_high = one & LOW_HALF, one >> _U(32)
    other_low, other_high = other & LOW_HALF, other >> _U(32)
    # numpy has no 128-bit product; four of 32 by 32 bits make it.
    cross = one_low * other_low
    cross >>= _U(32)
    middle = one_high * other_low
    cross += middle & LOW_HALF
    one_low *= other_high
    cross += one_low
    cross >>= _U(32)
    middle >>= _U(32)
    one_high *= other_high
    one_high += middle
    one_high += cross
    one_high ^= one * other
    return one_high


def _avalanche(keyed: Hashes) -> Hashes:
    """Finish 1 to 3 bytes (`XXH64_avalanche`); writes over what it gets."""
    keyed ^= keyed >> _U(33)
    keyed *= PRIME64_2
    keyed ^= keyed >> _U(29)
    keyed *= PRIME64_3
    keyed ^= keyed >> _U(32)
    return keyed


@lru_cache(maxsize=1)
def _table_of_one() -> Hashes:
    return np.array([xxhash.xxh3_64_intdigest(bytes([number])) for number in range(1 << 8)], np.uint64)


@lru_cache(maxsize=1)
def _table_of_two() -> Hashes:
    return _tiny(_Even(np.arange(1 << 16, dtype="<u2").view(np.uint8), 0, 1 << 16, 2))
