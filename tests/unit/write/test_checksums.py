"""Value checksums: published vectors, and a loop over cells that knows nothing of columns."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from rivet_resources.commit.manifest import describe_checksums
from rivet_resources.contracts.parts import Measures
from rivet_resources.write.checksums import program
from rivet_resources.write.checksums.program import BLOCK, SHORT, VALUES_BYTES
from rivet_resources.write.checksums.sums import WHOLE, RunningSums, column_sum, column_sums, keyed_sum
from rivet_resources.write.checksums.xxh3 import cell_hashes, even_hashes

NAIVE = datetime(2024, 1, 15, 10, 30, 0, 123456)
AWARE = datetime(2024, 1, 15, 10, 30, tzinfo=UTC)
MICROS = 1_705_314_600_123_456  # NAIVE since 1970
TEXTS = pa.list_(pa.string())


def summed(cells: list[bytes]) -> int:
    """Return what the recipe says: one hash after the other."""
    return sum(map(xxhash.xxh3_64_intdigest, cells)) % WHOLE


def element(tag: int, cell: bytes) -> bytes:
    """Frame an element of a list."""
    return bytes([tag]) + len(cell).to_bytes(4, "little") + cell


# type, cells, and the bytes of those that are not NULL.
SPELLED: list[tuple[pa.DataType, list[Any], list[bytes]]] = [
    (pa.bool_(), [True, None, False, True], [b"\1", b"\0", b"\1"]),
    (pa.int8(), [-1, None, 5], [b"\xff", b"\5"]),
    (pa.uint8(), [255], [b"\xff"]),
    (pa.int16(), [-2, 300], [b"\xfe\xff", b"\x2c\1"]),
    (pa.uint16(), [65535], [b"\xff\xff"]),
    (pa.int32(), [-1, 7], [b"\xff" * 4, b"\7\0\0\0"]),
    (pa.uint32(), [2**32 - 1], [b"\xff" * 4]),
    (pa.int64(), [-1, 7, None], [b"\xff" * 8, b"\7" + bytes(7)]),
    (pa.uint64(), [2**64 - 1], [b"\xff" * 8]),
    (pa.float16(), [np.float16(1.5)], [b"\x00\x3e"]),
    (pa.float32(), [1.5, None], [struct.pack("<f", 1.5)]),
    (pa.float64(), [-0.0, 1e100], [struct.pack("<d", -0.0), struct.pack("<d", 1e100)]),
    (pa.date32(), [date(1970, 1, 3), date(1969, 12, 31)], [b"\2\0\0\0", b"\xff" * 4]),
    (pa.timestamp("us"), [NAIVE], [struct.pack("<q", MICROS)]),
    (pa.timestamp("us", "UTC"), [AWARE], [struct.pack("<q", MICROS - 123_456)]),
    (pa.timestamp("s"), [AWARE.replace(tzinfo=None)], [struct.pack("<q", MICROS - 123_456)]),
    (pa.timestamp("ms"), [AWARE.replace(tzinfo=None)], [struct.pack("<q", MICROS - 123_456)]),
    (pa.timestamp("ns"), [NAIVE], [struct.pack("<q", MICROS * 1000)]),
    (pa.time64("us"), [time(0, 0, 1)], [struct.pack("<q", 1_000_000)]),
    (pa.time32("s"), [time(0, 0, 1)], [struct.pack("<q", 1_000_000)]),
    (pa.time32("ms"), [time(0, 0, 1)], [struct.pack("<q", 1_000_000)]),
    (pa.time64("ns"), [time(0, 0, 1)], [struct.pack("<q", 1_000_000_000)]),
    (pa.duration("us"), [None, 5], [struct.pack("<q", 5)]),
    (pa.decimal128(12, 2), [Decimal("12.50"), None], [(1250).to_bytes(16, "little")]),
    (pa.decimal128(38, 0), [Decimal(-1)], [b"\xff" * 16]),
    (pa.decimal256(60, 1), [Decimal("-0.1")], [b"\xff" * 32]),
    (pa.decimal64(10, 1), [Decimal("-0.2")], [b"\xfe" + b"\xff" * 15]),
    (pa.string(), ["a", "", None, "é" * 99], [b"a", b"", "é".encode() * 99]),
    (pa.large_string(), ["", ""], [b"", b""]),
    (pa.string_view(), ["ab", "x" * 40, None], [b"ab", b"x" * 40]),
    (pa.binary(), [b"\0", None], [b"\0"]),
    (pa.binary_view(), [b"\0" * 20, None], [b"\0" * 20]),
    (pa.binary(3), [b"abc", None], [b"abc"]),
    (pa.binary(16), [b"0123456789abcdef"], [b"0123456789abcdef"]),
    (pa.uuid(), [b"0123456789abcdef", None], [b"0123456789abcdef"]),
    (pa.json_(pa.string()), ['{"a": 1}', None], [b'{"a": 1}']),
    (pa.dictionary(pa.int8(), pa.string()), ["x", "y", None, "x"], [b"x", b"y", b"x"]),
    (pa.null(), [None, None], []),
    (TEXTS, [["a", None], [], None], [element(7, b"a") + element(0, b""), b""]),
    (pa.large_list(pa.int64()), [[1]], [element(4, b"\1" + bytes(7))]),
    (pa.list_(pa.bool_()), [[True, None]], [element(1, b"\1") + element(0, b"")]),
    (pa.list_(pa.int16(), 2), [[1, 2], None], [element(2, b"\1\0") + element(2, b"\2\0")]),
    (pa.list_(pa.float32()), [[1.5]], [element(5, struct.pack("<f", 1.5))]),
    (pa.list_(pa.date32()), [[date(1970, 1, 3)]], [element(8, b"\2\0\0\0")]),
    (pa.list_(pa.uuid()), [[b"0123456789abcdef"]], [element(8, b"0123456789abcdef")]),
    (pa.list_(TEXTS), [[["a"], None]], [element(8, element(7, b"a")) + element(0, b"")]),
    (pa.list_(pa.null()), [[None], []], [element(0, b""), b""]),
    (
        pa.struct([("n", pa.int32()), ("t", pa.string())]),
        [{"n": 1, "t": None}, None, {"n": None, "t": "x"}],
        [element(3, b"\1\0\0\0") + element(0, b""), element(0, b"") + element(7, b"x")],
    ),
    (
        pa.map_(pa.string(), pa.int64()),
        [[("k", 1)], None],
        [element(8, element(7, b"k") + element(4, b"\1" + bytes(7)))],
    ),
]


def array(kind: pa.DataType, cells: list[Any]) -> pa.Array:
    """Make an array, of extension types as well."""
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.array(cells, kind.storage_type))
    if pa.types.is_list(kind) and isinstance(kind.value_type, pa.BaseExtensionType):
        inner = array(kind.value_type, [cell for each in cells for cell in each])
        return pa.ListArray.from_arrays(np.cumsum([0, *map(len, cells)]), inner).cast(kind)
    return pa.array(cells, kind)


def test_published_vectors() -> None:
    """The sums of contract.md, 10.2, with and without a key."""
    numbers, texts = pa.array([1, 2, None, 2]), pa.array(["a", "", None])
    keys, cells = (pa.chunked_array([each]) for each in (pa.array([1, 2]), pa.array(["a", "b"])))

    assert {"n": 8127279815225589172} == column_sums(pa.table({"n": numbers}))
    assert {"t": 1426711699664790241} == column_sums(pa.table({"t": texts}))
    assert keyed_sum(keys, cells) == 7516786989151591824
    assert keyed_sum(keys, pa.chunked_array([cells.chunk(0).take([1, 0])])) == 5335974792209632927


@pytest.mark.parametrize(("kind", "cells", "spelled"), SPELLED, ids=[str(kind) for kind, *_ in SPELLED])
def test_cell_has_the_bytes_of_the_recipe(kind: pa.DataType, cells: list[Any], spelled: list[bytes]) -> None:
    """Every type's cells count with the bytes that are documented; slices, chunks and their order change nothing."""
    column = array(kind, cells)
    twice = pa.concat_arrays([column, column])
    cut = pa.chunked_array(
        [twice.slice(len(cells) - 1, 1), twice.slice(0, len(cells) - 1), twice.slice(0, 0)], column.type
    )

    assert column_sum(pa.chunked_array([column])) == summed(spelled)
    assert column_sum(cut) == summed(spelled)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.none() | st.binary(max_size=48), max_size=40), st.integers(0, 40), st.integers(0, 40))
def test_binary_cells_sum_as_a_loop_sums_them(cells: list[bytes | None], start: int, length: int) -> None:
    """Whatever lengths meet in a column, and wherever it is cut, each cell has the hash that xxhash gives it."""
    kept = cells[start : start + length]

    found = column_sum(pa.chunked_array([pa.array(cells, pa.binary()).slice(start, length)]))

    assert found == summed([cell for cell in kept if cell is not None])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=60))
def test_numbers_sum_as_a_loop_sums_them(cells: list[int | None]) -> None:
    """Numbers of eight and of sixteen bytes, with NULLs between them."""
    present = [cell for cell in cells if cell is not None]
    wide = pa.array([None if cell is None else Decimal(cell) for cell in cells], pa.decimal128(38, 0))

    sums = column_sums(pa.table({"n": pa.array(cells, pa.int64()), "d": wide}))

    assert {
        "n": summed([cell.to_bytes(8, "little", signed=True) for cell in present]),
        "d": summed([cell.to_bytes(16, "little", signed=True) for cell in present]),
    } == sums


@settings(max_examples=60, deadline=None)
@given(st.lists(st.none() | st.lists(st.none() | st.text(max_size=6), max_size=4), max_size=20))
def test_lists_sum_as_a_loop_sums_them(cells: list[list[str | None] | None]) -> None:
    """Tags, lengths and texts of elements, whatever is NULL."""
    spelled = [
        b"".join(element(0, b"") if each is None else element(7, each.encode()) for each in cell)
        for cell in cells
        if cell is not None
    ]

    assert column_sum(pa.chunked_array([pa.array(cells, TEXTS)])) == summed(spelled)


@pytest.mark.parametrize("rows", [2, BLOCK - 1, BLOCK, 2 * BLOCK + 3])
def test_blocks_join_without_a_seam(rows: int) -> None:
    """The last cell of one block and the first of the next are hashed like any other."""
    texts = [f"{number:x}" * (number % 5) for number in range(rows)]

    sums = column_sums(pa.table({"n": pa.array(range(rows)), "t": texts, "f": [f"kind {n % 3}" for n in range(rows)]}))

    assert {
        "n": summed([number.to_bytes(8, "little") for number in range(rows)]),
        "t": summed([text.encode() for text in texts]),
        "f": summed([b"kind %d" % (number % 3) for number in range(rows)]),
    } == sums


@pytest.fixture(params=["program", "loop"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Hash by the program, or as where no wheel of wasmtime is for the platform."""
    program._let_go()
    if request.param == "loop":
        monkeypatch.setitem(sys.modules, "wasmtime", None)
    with program.borrowed(program.WORTH_STARTING) as running:
        assert (running is not None) == (request.param == "program")
    yield request.param
    program._let_go()


@pytest.mark.parametrize("short", [0, 1000])
def test_each_length_has_the_hash_that_xxhash_gives_it(short: int, way: str) -> None:
    """Every length up to twice the longest that the program takes, bytes of all values, in one array."""
    random = np.random.default_rng(7)
    cells = [random.bytes(length) for length in range(2 * SHORT + 2) for _ in range(3)]
    cells += short * [random.bytes(7)]  # where most bytes are of long cells, the program gets none
    assert len(cells) >= program.FEW

    found = cell_hashes(pa.array(cells, pa.large_binary()))

    assert found.tolist() == list(map(xxhash.xxh3_64_intdigest, cells))


@pytest.mark.parametrize("width", [1, 2, 3, 4, 7, 8, 9, 16, 17, 32, 33, 96, 97, SHORT, SHORT + 1])
def test_cells_of_one_width_have_the_hashes_that_xxhash_gives_them(width: int, way: str) -> None:
    """Also where more of them come than the program takes at once."""
    count = 3 * min(BLOCK, VALUES_BYTES // width) // 2
    values = np.random.default_rng(7).integers(0, 256, count * width, np.uint8)

    found = even_hashes(values, width)

    rows = values.reshape(-1, width)
    assert found.tolist() == [xxhash.xxh3_64_intdigest(row.tobytes()) for row in rows]


@pytest.mark.parametrize("sizes", [
    (3, VALUES_BYTES + 1, 0, 17, VALUES_BYTES // 2, VALUES_BYTES // 2, 1, 128, 129, *(2,) * 300),
    (100,) * (VALUES_BYTES // 40),
])  # fmt: skip
def test_cells_that_fill_the_program_s_memory_are_hashed_in_turns(sizes: Sequence[int], way: str) -> None:
    """Short cells between long ones, one of them larger than all of the memory; and more short ones than it holds."""
    cells = [b"%d" % number + b"x" * size for number, size in enumerate(sizes)]

    assert cell_hashes(pa.array(cells, pa.binary())).tolist() == list(map(xxhash.xxh3_64_intdigest, cells))


@pytest.mark.parametrize("start", [0, 3, 8])
def test_nulls_do_not_count_wherever_a_column_is_cut(start: int, way: str) -> None:
    """More cells than the program takes at once, short and long, a third of them NULL over bytes."""
    random = np.random.default_rng(7)
    count = 2 * BLOCK + 21
    cells = [b"%d" % number + b"x" * (number % 3 * 70) for number in range(count)]
    is_null = random.random(count) < 1 / 3
    bits = pa.py_buffer(np.packbits(~is_null, bitorder="little"))
    texts = pa.Array.from_buffers(pa.binary(), count, [bits, *pa.array(cells, pa.binary()).buffers()[1:]])
    numbers = pa.Array.from_buffers(pa.int64(), count, [bits, *pa.array(range(count)).buffers()[1:]])
    present = [number for number in range(start, count) if not is_null[number]]

    sums = column_sums(pa.table({"t": texts.slice(start), "n": numbers.slice(start)}))

    assert {
        "t": summed([cells[number] for number in present]),
        "n": summed([number.to_bytes(8, "little") for number in present]),
    } == sums


def test_a_small_export_starts_no_program() -> None:
    """It begins once so many cells came, in however small pieces."""
    program._let_go()
    column = pa.chunked_array([pa.array(range(program.FEW))])
    seen = []
    for _ in range(program.WORTH_STARTING // program.FEW + 1):
        seen.append(bool(program._idle))
        column_sum(column)

    assert seen == [False] * len(seen)
    assert program._idle


def test_threads_hash_at_once(way: str) -> None:
    """Each has a running copy of its own for as long as it needs one."""
    columns = [pa.array([f"{thread} {number}" for number in range(2 * BLOCK)]) for thread in range(4)]

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda column: column_sum(pa.chunked_array([column])), columns))

    assert found == [summed([f"{thread} {number}".encode() for number in range(2 * BLOCK)]) for thread in range(4)]


@pytest.mark.parametrize("garbage", [0, 3, 40, 300])
def test_garbage_under_null_does_not_count(garbage: int) -> None:
    """A NULL cell may stand over any bytes; two arrays that differ only there have one sum."""
    bits = pa.py_buffer(b"\x05")  # the middle one of three is NULL
    number = pa.Array.from_buffers(pa.int64(), 3, [bits, pa.py_buffer(struct.pack("<3q", 1, 99, 2))])
    ends = struct.pack("<4i", 0, 1, 1 + garbage, 2 + garbage)
    texts = [bits, pa.py_buffer(ends), pa.py_buffer(b"a" + b"X" * garbage + b"b")]
    text = pa.Array.from_buffers(pa.string(), 3, texts)

    sums = column_sums(pa.table({"n": number, "t": text}))

    assert column_sums(pa.table({"n": pa.array([1, None, 2]), "t": ["a", None, "b"]})) == sums
    assert {"n": summed([b"\1" + bytes(7), b"\2" + bytes(7)]), "t": summed([b"a", b"b"])} == sums


@pytest.mark.parametrize("cells", [["kind 1", None, "kind 2"], [None, None, "x"], [None], ["same"]])
def test_cells_that_repeat_are_counted(cells: list[str | None]) -> None:
    """A column of few distinct cells is summed by counting them, NULLs aside."""
    many = cells * 3_000

    found = column_sum(pa.chunked_array([pa.array(many, pa.string())]))

    assert found == summed([cell.encode() for cell in many if cell is not None])


def test_pages_are_summed_as_they_come() -> None:
    """Small pages wait for each other, empty ones change nothing, and the sum is that of all rows."""
    table = pa.table({"a": range(150_000), "b": [f"t{n}" for n in range(150_000)]})
    sums = RunningSums()
    before = sums.result()
    for start in range(0, 150_000, 7_000):
        sums.add(table.slice(start, 7_000), size_bytes=1)
        sums.add(table.slice(0, 0), size_bytes=0)

    assert {} == before
    assert column_sums(table) == sums.result() == sums.result()


def test_column_that_has_no_bytes_is_left_out() -> None:
    """Unions have no bytes in the recipe: no sum rather than one that nobody else can make."""
    union = pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])])

    assert {"n": summed([b"\1" + bytes(7)] * 2)} == column_sums(
        pa.table({"u": union, "n": [1, 1], "x": [1, 2]}), leave_out={"x"}
    )


def test_sums_of_disjoint_rows_add_up() -> None:
    """The measures of two chunks have the sums of all their rows; modulo 2^64."""
    table = pa.table({"a": [1, 2, 3], "b": ["x", None, "y"]})
    one, other = table.slice(0, 1), table.slice(1)

    joined = Measures(rows=1, checksums=column_sums(one)) + Measures(rows=2, checksums=column_sums(other))

    assert column_sums(table) == joined.checksums


def test_rows_that_were_never_summed_leave_no_sums() -> None:
    """A chunk kept from a run of an older Rivet has no sums: the window then has none, instead of wrong ones."""
    joined = Measures(rows=1) + Measures(rows=2, checksums={"a": 7})

    assert {} == joined.checksums
    assert describe_checksums(joined) is None
    assert {"a": 7} == (Measures() + Measures(rows=2, checksums={"a": 7})).checksums
