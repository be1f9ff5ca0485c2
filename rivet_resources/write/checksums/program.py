"""XXH3-64 of short cells as a WebAssembly program: its text, and the process's running copies of it.

Belongs here: the algorithm, where its memory holds what, starting it. Not here: which cells it is given (`xxh3.py`).
Source: xxHash 0.8, doc/xxhash_spec.md, "XXH3 Algorithm (for small inputs)"; seed 0, default secret.

The hash is a few products of 64 by 64 bits for each cell. Measured (2026-11-26, tests/bench/checksums.py), ns a text
of 36 bytes: a call of `xxhash` for each 60, numpy 35 (it has no 128-bit product), this program 12. Rejected: a C
extension, which needs a compiler or a wheel for each platform and does not go to a cluster inside a zip; polars with
a plugin, for its size.
"""

from __future__ import annotations

import atexit
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

Hashes = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.integer[Any]]
Bits = Bytes | None  # one for each cell, the first the lowest of a byte, 0 where it is NULL; None: none is

# Cells at once, and their bytes: so many that the 15 µs of a call do not count, so few that caches hold them.
BLOCK = 32_768
VALUES_BYTES = 2 << 20
# Importing and compiling take 60 ms, as much as a million cells by calls; a small export does without.
WORTH_STARTING = 200_000
# For fewer cells than this at once calls cost less.
FEW = 150
# Bytes of the longest cell that the program hashes; beyond it a call for each cell costs less.
SHORT = 128
MASK = (1 << 64) - 1
# Where the memory holds what: what a call is about and what it found, which cells are not NULL, hashes, where cells
# begin, their bytes.
WIDTH_AT, COUNT_AT, NULLS_AT, LONGER_AT, SUM_AT, BITS_AT = 0, 4, 8, 12, 16, 32
HASHES_AT = BITS_AT + BLOCK // 8
OFFSETS_AT = HASHES_AT + 8 * BLOCK
VALUES_AT = OFFSETS_AT + 4 * (BLOCK + 4)
PAGES = -(-(VALUES_AT + VALUES_BYTES) // 65_536)

# The first 144 bytes of the default secret, as the words that are read from it.
SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
)
PRIME64_1, PRIME64_2, PRIME64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
PRIME_MX1, PRIME_MX2 = 0x165667919E3779F9, 0x9FB21C651E98DF25


class Hashed(NamedTuple):
    """What a call found."""

    each: Hashes  # good until the next call; 0 for a NULL and for a cell over `SHORT`
    total: int  # modulo 2^64
    longer: int  # cells over `SHORT`


class Program:
    """One running copy, with a memory of its own. Not shared between threads while it works."""

    def __init__(self, engine: Any, module: Any) -> None:
        import wasmtime  # start

        self._store = wasmtime.Store(engine)
        exports: Any = wasmtime.Instance(self._store, module, []).exports(self._store)
        memory = exports["memory"]
        self._hash = exports["hash"]
        # It never grows, so it never moves.
        whole = np.ctypeslib.as_array(memory.data_ptr(self._store), (memory.data_len(self._store),))
        self._about = whole[WIDTH_AT:SUM_AT].view("<u4")
        self._sum = whole[SUM_AT : SUM_AT + 8].view("<u8")
        self._bits = whole[BITS_AT:HASHES_AT]
        self._hashes = whole[HASHES_AT:OFFSETS_AT].view("<u8")
        self._offsets = whole[OFFSETS_AT : OFFSETS_AT + 4 * (BLOCK + 1)].view("<i4")
        self._values = whole[VALUES_AT : VALUES_AT + VALUES_BYTES]

    def even(self, values: Bytes, width: int, bits: Bits) -> Hashed:
        """Hash at most `BLOCK` cells of one width up to `SHORT`, one behind the other, `VALUES_BYTES` together."""
        self._values[: len(values)] = values
        return self._run(width, len(values) // width, bits)

    def ragged(self, values: Bytes, offsets: Places, bits: Bits) -> Hashed:
        """Hash at most `BLOCK` cells of at most `VALUES_BYTES` together.

        Args:
            offsets: where cells begin in `values` and the last one ends.
        """
        count, begin, end = len(offsets) - 1, int(offsets[0]), int(offsets[-1])
        self._values[: end - begin] = values[begin:end]
        np.subtract(offsets, begin, out=self._offsets[: count + 1], casting="unsafe")
        return self._run(0, count, bits)

    def _run(self, width: int, count: int, bits: Bits) -> Hashed:
        if bits is not None:
            self._bits[: len(bits)] = bits
        # In its memory and not as arguments and a result: with three of these and one of those a call from Python
        # costs 40 µs (measured), with none 10.
        self._about[:3] = width, count, bits is not None
        self._hash(self._store)
        return Hashed(self._hashes[:count], int(self._sum[0]), int(self._about[3]))


_idle: list[Program] = []


@dataclass
class _Demand:
    """How many cells this process was to hash so far."""

    cells: int = 0


_demand = _Demand()


@contextmanager
def borrowed(cells: int) -> Iterator[Program | None]:
    """Lend a running copy for a moment, to hash so many cells; None where it is not worth it, or where none can run."""
    _demand.cells += cells
    is_worth = cells >= FEW and (_compiled.cache_info().currsize > 0 or _demand.cells >= WORTH_STARTING)
    program = _taken() if is_worth else None
    try:
        yield program
    finally:
        if program is not None:
            _idle.append(program)


def _taken() -> Program | None:
    # Taking from a list and adding to it are atomic, so there are as many copies as threads hash at once.
    with suppress(IndexError):
        return _idle.pop()
    compiled = _compiled()
    return None if compiled is None else Program(*compiled)


@lru_cache(maxsize=1)
def _compiled() -> tuple[Any, Any] | None:
    """Compile the text, about 5 ms, and start it once; None where this machine does not run it."""
    try:
        import wasmtime  # start

        config = wasmtime.Config()
        config.wasm_wide_arithmetic = True
        config.parallel_compilation = False
        # Bounds are looked at and not trapped by the processor: no handler of signals is put into the user's process,
        # and no gigabytes of addresses are reserved, which YARN counts. It costs 3 ns a text of 36 bytes.
        config.signals_based_traps = False
        config.memory_guard_size = config.memory_reservation_for_growth = 0
        config.memory_reservation = PAGES * 65_536
        engine = wasmtime.Engine(config)
        module = wasmtime.Module(engine, text())
        _idle.append(Program(engine, module))
    except Exception:
        # No wheel for this platform, or a system where memory may not become code: there is another way to the same
        # hashes, so why is nobody's trouble.
        return None
    return engine, module


@atexit.register
def _let_go() -> None:
    """End all copies before the interpreter does: then wasmtime finds itself half gone and says so on stderr."""
    _idle.clear()
    _compiled.cache_clear()
    _demand.cells = 0


# --- its text ------------------------------------------------------------------------------------


def text() -> str:
    """Write the program: `hash()`, of as many cells as its memory says; a width of 0: cells end where the offsets say.

    It leaves each hash in the memory, and their sum; of a NULL it is 0, and of a cell over `SHORT`, and such cells are
    counted at `LONGER_AT`. All arithmetic is spelled where it is needed: calls would double its time.
    """
    return f"""
(module
  (memory (export "memory") {PAGES} {PAGES})
  (func (export "hash")
    (local $width i32) (local $nulls i32) (local $offset i32) (local $into i32) (local $last i32) (local $at i32)
    (local $end i32) (local $size i32) (local $row i32) (local $longer i32) (local $long i64) (local $hash i64)
    (local $other i64) (local $words v128) (local $sum i64)
    (local.set $width (i32.load (i32.const {WIDTH_AT})))
    (local.set $nulls (i32.load (i32.const {NULLS_AT})))
    (local.set $offset (i32.const {OFFSETS_AT}))
    (local.set $into (i32.const {HASHES_AT}))
    (local.set $last (i32.add (local.get $into) (i32.shl (i32.load (i32.const {COUNT_AT})) (i32.const 3))))
    (local.set $at (i32.const {VALUES_AT}))
    (block $done (loop $next
      (br_if $done (i32.ge_u (local.get $into) (local.get $last)))
      (if (local.get $width)
        (then (local.set $end (i32.add (local.get $at) (local.get $width))))
        (else
          (local.set $offset (i32.add (local.get $offset) (i32.const 4)))
          (local.set $end (i32.add (i32.const {VALUES_AT}) (i32.load (local.get $offset))))))
      (local.set $size (i32.sub (local.get $end) (local.get $at)))
      (local.set $long (i64.extend_i32_u (local.get $size)))
      {_by_size()}
      (if (local.get $nulls) (then
        (local.set $hash (i64.and (local.get $hash) (i64.sub (i64.const 0) (i64.and (i64.const 1) (i64.shr_u
          (i64.load8_u offset={BITS_AT} (i32.shr_u (local.get $row) (i32.const 3)))
          (i64.extend_i32_u (i32.and (local.get $row) (i32.const 7))))))))
        (local.set $row (i32.add (local.get $row) (i32.const 1)))))
      (i64.store (local.get $into) (local.get $hash))
      (local.set $sum (i64.add (local.get $sum) (local.get $hash)))
      (local.set $at (local.get $end))
      (local.set $into (i32.add (local.get $into) (i32.const 8)))
      (br $next)))
    (i32.store (i32.const {LONGER_AT}) (local.get $longer))
    (i64.store (i32.const {SUM_AT}) (local.get $sum))))
"""


def _by_size() -> str:
    """Hash the cell between $at and $end into $hash."""
    return f"""
      (if (i32.eq (local.get $size) (i32.const 8)) (then
        (local.set $hash (i64.rotl (i64.load (local.get $at)) (i64.const 32)))
        {_rrmxmx("(i64.const 8)")})
      (else (if (i32.gt_u (local.get $size) (i32.const 16)) (then
        (if (i32.gt_u (local.get $size) (i32.const {SHORT})) (then
          (local.set $hash (i64.const 0))
          (local.set $longer (i32.add (local.get $longer) (i32.const 1))))
        (else
          {_over_16()})))
      (else (if (i32.gt_u (local.get $size) (i32.const 8)) (then
        {_over_8()})
      (else (if (i32.gt_u (local.get $size) (i32.const 3)) (then
        (local.set $hash (i64.add
          (i64.shl (i64.load32_u (local.get $at)) (i64.const 32))
          (i64.load32_u (i32.sub (local.get $end) (i32.const 4)))))
        {_rrmxmx("(local.get $long)")})
      (else (if (local.get $size) (then
        {_up_to_3()})
      (else
        (local.set $hash (i64.const {xxhash.xxh3_64_intdigest(b"")}))))))))))))"""


def _over_16() -> str:
    """Hash 17 to 128 bytes: pairs of words from both ends inwards."""
    return f"""
          (local.set $hash (i64.mul (local.get $long) (i64.const {PRIME64_1})))
          {_pairs(0)}
          (if (i32.gt_u (local.get $size) (i32.const 32)) (then
            {_pairs(1)}
            (if (i32.gt_u (local.get $size) (i32.const 64)) (then
              {_pairs(2)}
              (if (i32.gt_u (local.get $size) (i32.const 96)) (then
                {_pairs(3)}))))))
          {_avalanche()}"""


def _over_8() -> str:
    """Hash 9 to 16 bytes: the first eight and the last eight."""
    return f"""
        (local.set $hash (i64.xor (i64.load (local.get $at)) (i64.const {_word(24) ^ _word(32)})))
        (local.set $other
          (i64.xor (i64.load (i32.sub (local.get $end) (i32.const 8))) (i64.const {_word(40) ^ _word(48)})))
        (local.set $long (i64.add (i64.add (local.get $long) (local.get $other))
          (i64.xor (i64.mul_wide_u (local.get $hash) (local.get $other)))))
        {_byteswapped()}
        (local.set $hash (i64.add (local.get $hash) (local.get $long)))
        {_avalanche()}"""


def _up_to_3() -> str:
    """Hash 1 to 3 bytes: the first, the one in the middle, the last, and the length."""
    return f"""
        (local.set $hash (i64.xor (i64.const {_word(0, 4) ^ _word(4, 4)})
          (i64.or
            (i64.or
              (i64.shl (i64.load8_u (local.get $at)) (i64.const 16))
              (i64.shl
                (i64.load8_u (i32.add (local.get $at) (i32.shr_u (local.get $size) (i32.const 1)))) (i64.const 24)))
            (i64.or
              (i64.load8_u (i32.sub (local.get $end) (i32.const 1)))
              (i64.shl (local.get $long) (i64.const 8))))))
        {_shifted(33, PRIME64_2)}
        {_shifted(29, PRIME64_3)}
        (local.set $hash (i64.xor (local.get $hash) (i64.shr_u (local.get $hash) (i64.const 32))))"""


def _word(at: int, size: int = 8) -> int:
    """Read a word of the secret."""
    return int.from_bytes(SECRET[at : at + size], "little")


def _pairs(number: int) -> str:
    """Add the pair so many pairs from the begin, and its twin before the end: words xor-ed with the secret."""
    words = struct.unpack_from("<4Q", SECRET, 32 * number)
    head, tail = f"offset={16 * number} (local.get $at)", f"(i32.sub (local.get $end) (i32.const {16 * number + 16}))"
    return _pair(head, *words[:2]) + _pair(tail, *words[2:])


def _pair(place: str, one: int, two: int) -> str:
    """Add the product of two words, its halves folded together; read at once, as each read is held to the memory."""
    return f"""
      (local.set $words (v128.xor (v128.load {place}) (v128.const i64x2 {one} {two})))
      (local.set $hash (i64.add (local.get $hash) (i64.xor (i64.mul_wide_u
        (i64x2.extract_lane 0 (local.get $words)) (i64x2.extract_lane 1 (local.get $words))))))"""


def _byteswapped() -> str:
    """Turn the bytes of $hash round."""
    swapped = "".join(f"""
      (local.set $hash (i64.or
        (i64.and (i64.shr_u (local.get $hash) (i64.const {bits})) (i64.const {mask}))
        (i64.shl (i64.and (local.get $hash) (i64.const {mask})) (i64.const {bits}))))"""
        for bits, mask in ((8, 0x00FF00FF00FF00FF), (16, 0x0000FFFF0000FFFF)))  # fmt: skip
    return swapped + "(local.set $hash (i64.rotl (local.get $hash) (i64.const 32)))"


def _avalanche() -> str:
    """Finish more than 8 bytes (`XXH3_avalanche`)."""
    return f"""{_shifted(37, PRIME_MX1)}
      (local.set $hash (i64.xor (local.get $hash) (i64.shr_u (local.get $hash) (i64.const 32))))"""


def _rrmxmx(size: str) -> str:
    """Finish 4 to 8 bytes (`XXH3_rrmxmx`), the secret first."""
    return f"""
      (local.set $hash (i64.xor (local.get $hash) (i64.const {_word(8) ^ _word(16)})))
      (local.set $hash (i64.mul (i64.const {PRIME_MX2})
        (i64.xor (local.get $hash)
          (i64.xor (i64.rotl (local.get $hash) (i64.const 49)) (i64.rotl (local.get $hash) (i64.const 24))))))
      (local.set $hash (i64.mul (i64.const {PRIME_MX2})
        (i64.xor (local.get $hash) (i64.add (i64.shr_u (local.get $hash) (i64.const 35)) {size}))))
      (local.set $hash (i64.xor (local.get $hash) (i64.shr_u (local.get $hash) (i64.const 28))))"""


def _shifted(by: int, prime: int) -> str:
    """Fold the upper bits of $hash down and multiply."""
    return f"""(local.set $hash
        (i64.mul (i64.xor (local.get $hash) (i64.shr_u (local.get $hash) (i64.const {by}))) (i64.const {prime})))"""
