"""Texts of a binary log: bytes cut out and decoded, and values spelled as the server spells them in a batch read.

Belongs here: character sets, padding, labels, the text forms of numbers and times. Not here: values (values.py),
binary JSON (json.py), names of collations (tables.py).

Texts are the common case and vectorised; spelling numbers and times is for `columns: {…: text}` and portable files,
and goes value by value.
"""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from ipaddress import IPv4Address, IPv6Address
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources.contracts.types import Column
from rivet_resources.engines.mysql.binlog import events as ev
from rivet_resources.engines.mysql.binlog.compression import decompress
from rivet_resources.engines.mysql.binlog.events import Field
from rivet_resources.engines.mysql.binlog.json import double_text, json_text
from rivet_resources.engines.mysql.binlog.row_layout import Bytes, RowCells, little
from rivet_resources.engines.shared.cells import masked, nulls
from rivet_resources.errors import LogRefused

LONGEST = (1 << 31) - 1
# Bytes of a cell on average, above which each is copied alone: `take` copies twice when it must grow.
LONG = 1024


def gather(buffer: Bytes, cells: RowCells) -> pa.Array:
    """Cut cells out of the buffer into one Arrow binary array."""
    count, total = len(cells.start), int(cells.length.sum())
    if not count:
        return pa.array([], pa.binary())
    valid = pa.py_buffer(np.packbits(~cells.null, bitorder="little")) if cells.null.any() else None
    if total > LONG * count:
        return _copy_cells(buffer, cells, valid, total)
    # By the buffer and not by the cells: offsets point into all of it, and 32 bits reach to 2 GB.
    is_large = len(buffer) > LONGEST
    # Cell, gap, cell, gap … is a binary array over the buffer already, whose even elements `take` copies at the speed
    # of memory (see wire/rows.py).
    bounds = np.empty(2 * count + 1, np.int64 if is_large else np.int32)
    bounds[:-1:2] = cells.start
    np.add(cells.start, cells.length, out=bounds[1::2], casting="same_kind")
    bounds[-1] = bounds[-2]
    kind = pa.large_binary() if is_large else pa.binary()
    spread = pa.Array.from_buffers(kind, 2 * count, [None, pa.py_buffer(bounds), pa.py_buffer(buffer)])
    found = pc.take(spread, pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)), boundscheck=False)
    if is_large and total <= LONGEST:
        found = found.cast(pa.binary())
    if valid is None:
        return found
    _, places, data = found.buffers()
    return pa.Array.from_buffers(found.type, count, [valid, places, data], offset=found.offset)


def _copy_cells(buffer: Bytes, cells: RowCells, valid: pa.Buffer | None, total: int) -> pa.Array:
    """Copy long cells one by one, into exactly the memory they need."""
    view = buffer.data
    spans = zip(cells.start.tolist(), cells.length.tolist(), strict=True)
    data = pa.py_buffer(b"".join([view[start : start + size] for start, size in spans]))
    is_large = total > LONGEST
    offsets = np.zeros(len(cells.start) + 1, np.int64 if is_large else np.int32)
    np.cumsum(cells.length, out=offsets[1:])
    return pa.Array.from_buffers(
        pa.large_binary() if is_large else pa.binary(), len(cells.start), [valid, pa.py_buffer(offsets), data]
    )


def pad(array: pa.Array, length: int) -> pa.Array:
    """Restore the zero bytes that the log leaves out at the end of BINARY(n)."""
    lengths = pc.binary_length(array)
    if pc.all(pc.equal(lengths, length)).as_py() is not False:
        return array
    return pa.array([None if cell is None else cell.ljust(length, b"\0") for cell in array.to_pylist()], pa.binary())


def inflate_columns(array: pa.Array) -> pa.Array:
    """Open MariaDB's COMPRESSED columns: a byte of method and header, the length, what zlib or nobody packed."""
    return pa.array([None if cell is None else _open_cell(cell) for cell in array.to_pylist()], pa.binary())


def _open_cell(cell: bytes) -> bytes:
    if not cell:
        return cell
    method, has_no_header, size = cell[0] >> 4, cell[0] & 8, cell[0] & 7
    if method == 0:
        return cell[1:]
    if method != 8:
        raise LogRefused(f"A COMPRESSED column is packed by method {method}; only zlib (8) is known.")
    length = int.from_bytes(cell[1 : 1 + size], "big")
    try:
        return decompress(cell[1 + size :], size=length, wbits=-zlib.MAX_WBITS if has_no_header else zlib.MAX_WBITS)
    except ValueError as error:
        raise LogRefused(
            f"A COMPRESSED column of the binary log cannot be opened: {error}. Let the server's owner check the table "
            f"with CHECK TABLE."
        ) from None


# --- character sets ------------------------------------------------------------------------------

UTF8 = frozenset({"utf8mb4", "utf8mb3", "utf8", "ascii"})
# The server's name → Python's. Source: MySQL 9 manual, "Supported Character Sets and Collations".
CODECS: Mapping[str, str] = {
    "latin1": "rivet-latin1", "latin2": "iso8859-2", "latin5": "iso8859-9", "latin7": "iso8859-13", "cp1250": "cp1250",
    "cp1251": "cp1251", "cp1256": "cp1256", "cp1257": "cp1257", "cp850": "cp850", "cp852": "cp852", "cp866": "cp866",
    "greek": "iso8859-7", "hebrew": "iso8859-8", "koi8r": "koi8-r", "koi8u": "koi8-u", "tis620": "tis-620",
    "macroman": "mac-roman", "macce": "mac-latin2", "big5": "big5", "gbk": "gbk", "gb2312": "gb2312",
    "gb18030": "gb18030", "sjis": "shift-jis", "cp932": "cp932", "ujis": "euc-jp", "eucjpms": "euc-jp",
    "euckr": "cp949", "ucs2": "utf-16-be", "utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be",
}  # fmt: skip
WIDE_SETS = frozenset({"ucs2", "utf16", "utf16le", "utf32"})  # ASCII letters are more than one byte


def _latin1(data: bytes) -> str:
    """Decode MySQL's latin1: cp1252, and where that has no letter, the control character of that number."""
    return data.decode("cp1252", "surrogateescape").translate(CONTROLS)


# Letters that Python's codec reads otherwise than the server, by Python's. Asked of MySQL 9.7 and MariaDB 10.11 for
# every code of one and two bytes, and those of three of eucjpms (2026-11).
DIFFERENCES: Mapping[str, Mapping[int, int]] = {
    name: str.maketrans(pythons, servers)
    for name, pythons, servers in (
        ("cp866", "\u2116\u00a4", "\u207f\u00b2"),
        ("eucjpms", "\u301c\u2016\u2212\u00a2\u00a3\u00ac\u00a6", "\uff5e\u2225\uff0d\uffe0\uffe1\uffe2\uffe4"),
        ("gb18030", "\ue7c7\u1e3f", "\u1e3f\ue7c7"),
        ("greek", "\u2018\u2019", "\u02bd\u02bc"),
        ("hebrew", "\u00af", "\u203e"),
        ("koi8u", "\u2219", "\u2022"),
        ("sjis", "\uff3c", "\\"),
        ("ujis", "\uff3c", "\\"),
    )
}
# Two codes of eucjpms are one letter to the server; Python reads the second as the ASCII one, which has a code too.
TILDE, OTHER_TILDE = b"\xa1\xc1", b"\x8f\xa2\xb7"

CONTROLS = {0xDC00 + code: code for code in (0x81, 0x8D, 0x8F, 0x90, 0x9D)}


def decoder(charset: str, column: Column) -> Callable[[bytes], str]:
    """Return the function from bytes of a character set to text.

    Raises:
        LogRefused: Python has no such character set.
    """
    found = _codec(charset)
    if found is None:
        raise LogRefused(
            f"Column {column.name} is text in {charset}, which Rivet cannot read from a binary log. "
            f"Convert it with ALTER TABLE … CONVERT TO CHARACTER SET utf8mb4, or leave it out."
        )
    return found


@cache
def _codec(charset: str) -> Callable[[bytes], str] | None:
    """Return what decodes a character set as the server does; None where Python has none."""
    if charset == "latin1":
        return _latin1
    try:
        decode, differences = codecs.lookup(CODECS[charset]).decode, DIFFERENCES.get(charset)
    except (KeyError, LookupError):
        return None
    if charset == "eucjpms":
        return lambda data: decode(data.replace(OTHER_TILDE, TILDE))[0].translate(DIFFERENCES[charset])
    if differences:
        return lambda data: decode(data)[0].translate(differences)
    return lambda data: decode(data)[0]


def decode_texts(array: pa.Array, charset: str, column: Column) -> pa.Array:
    """Turn texts into UTF-8; those that are that already stay bytes, to be checked by who asked."""
    if charset in UTF8:
        return array
    # ASCII letters are the same bytes in every set but the wide ones, and most cells have no other letters.
    if charset not in WIDE_SETS and _is_ascii(array):
        return array
    read = decoder(charset, column)
    found: list[str | None] = []
    for cell in array.to_pylist():
        try:
            found.append(None if cell is None else read(cell))
        except UnicodeDecodeError:
            # Refused, and counted, as bytes that are no text.
            return array
    return pa.array(found, pa.string())


def _is_ascii(array: pa.Array) -> bool:
    data = array.buffers()[2]
    return data is None or not (np.frombuffer(data, np.uint8) & 0x80).any()


# --- labels --------------------------------------------------------------------------------------


def spell_labels(buffer: Bytes, cells: RowCells, field: Field, charset: str) -> pa.Array:
    """Spell ENUM and SET: the label, '' for none; labels in the order of their definition."""
    labels = _labels(field.labels, charset)
    at = np.where(cells.null, 0, cells.start)
    number = little(buffer, at, field.meta[1])
    if field.type == ev.ENUM:
        words = pa.array(["", *labels], pa.string())
        return words.take(pa.array(number, mask=cells.null))
    # Each combination is spelled once, however many rows have it.
    kinds, places = np.unique(number, return_inverse=True)
    # A SET of 64 labels uses the bit of the sign.
    masks = [int(kind) & ((1 << 64) - 1) for kind in kinds]
    texts = [",".join(label for i, label in enumerate(labels) if mask >> i & 1) for mask in masks]
    return pa.array(texts, pa.string()).take(pa.array(places.reshape(-1), mask=cells.null))


@cache
def _labels(labels: tuple[bytes, ...], charset: str) -> tuple[str, ...]:
    # Of wide sets the definition's labels are stored in the wide set; '' has no bytes.
    read = _codec(charset) or bytes.decode
    return tuple(read(label) for label in labels)


# --- bytes that have a text form -----------------------------------------------------------------


def hexadecimal(array: pa.Array) -> pa.Array:
    r"""Spell bytes as \x and lower-case digits."""
    return pa.array([None if cell is None else "\\x" + cell.hex() for cell in array.to_pylist()], pa.string())


def uuids(bits: pa.Array) -> pa.Array:
    """Spell UUIDs canonically."""
    return pa.array([None if cell is None else str(UUID(bytes=cell)) for cell in bits.to_pylist()], pa.string())


def addresses(array: pa.Array, base: str) -> pa.Array:
    """Spell MariaDB's UUID, INET4 and INET6."""
    spell: Any = {"uuid": lambda b: UUID(bytes=b), "inet4": IPv4Address, "inet6": _inet6}[base]
    width = {"uuid": 16, "inet4": 4, "inet6": 16}[base]
    cells = array.to_pylist()
    # The log leaves out zero bytes at the end, as of every BINARY(n).
    return pa.array([None if cell is None else str(spell(cell.ljust(width, b"\0"))) for cell in cells], pa.string())


def _inet6(bits: bytes) -> str:
    """Write an address as inet_ntop does: one that holds an IPv4 address shows it with dots."""
    is_mapped = bits[:12] == bytes(10) + b"\xff\xff"
    is_compatible = bits[:12] == bytes(12) and bits[12:14] != b"\0\0"
    if is_mapped or is_compatible:
        return ("::ffff:" if is_mapped else "::") + str(IPv4Address(bits[12:]))
    return str(IPv6Address(bits))


def json_texts(array: pa.Array) -> pa.Array:
    """Spell MySQL's binary JSON as the server does."""
    return pa.array([None if cell is None else json_text(cell) for cell in array.to_pylist()], pa.string())


# --- numbers -------------------------------------------------------------------------------------

WIDTH = re.compile(r"\((\d+)\)")


def number_texts(array: pa.Array, column: Column) -> pa.Array:
    """Spell whole numbers; ZEROFILL and YEAR have a width."""
    found = array.cast(pa.string())
    width = WIDTH.search(column.native)
    if "zerofill" in column.native.lower() and width:
        return pc.utf8_lpad(found, int(width[1]), "0")
    return pc.utf8_lpad(found, 4, "0") if column.fact("base") == "year" else found


def decimal_texts(array: pa.Array, column: Column) -> pa.Array:
    """Spell decimals with all digits of their scale, never with an exponent; ZEROFILL has a width."""
    found = pa.array([None if cell is None else f"{cell:f}" for cell in array.to_pylist()], pa.string())
    if "zerofill" not in column.native.lower():
        return found
    return pc.utf8_lpad(found, array.type.precision + (array.type.scale > 0), "0")


def float_texts(array: pa.Array) -> pa.Array:
    """Spell floats as the server does: shortest digits, an exponent beyond 15 places."""
    doubles = array.cast(pa.float64()).to_pylist()
    return pa.array([None if cell is None else double_text(cell) for cell in doubles], pa.string())


# --- dates and times -----------------------------------------------------------------------------


def _fraction(micro: int, field: Field) -> str:
    places = field.meta[0] if field.meta else 0
    return f".{micro:06d}"[: places + 1] if places else ""


def _clock(second: int) -> str:
    return f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"


def date_texts(parts: Iterable[tuple[Any, ...]], field: Field) -> pa.Array:
    """Spell dates and datetimes, impossible ones too; parts are year, month, day, second, µs, whether NULL."""
    found: list[str | None] = []
    for year, month, day, second, micro, null in parts:
        text = f"{year:04d}-{month:02d}-{day:02d}"
        if field.type != ev.DATE:
            text += f" {_clock(second)}{_fraction(micro, field)}"
        found.append(None if null else text)
    return pa.array(found, pa.string())


def instant_texts(array: pa.Array, field: Field) -> pa.Array:
    """Spell TIMESTAMPs as a session in UTC sees them; 0 is the zero date."""
    places = field.meta[0] if field.meta else 0
    stamps = pc.strftime(array.view(pa.timestamp("us")), format="%Y-%m-%d %H:%M:%S")
    # strftime writes six digits of a second, the server as many as the column has.
    cut = pc.utf8_slice_codeunits(stamps, 0, 19 + (places + 1 if places else 0))
    zero = "0000-00-00 00:00:00" + ("." + "0" * places if places else "")
    return pc.if_else(pc.equal(array, 0), zero, cut)


def clock_texts(array: pa.Array, field: Field) -> pa.Array:
    """Spell TIMEs, of either sign."""
    found: list[str | None] = []
    for cell in array.to_pylist():
        if cell is None:
            found.append(None)
            continue
        second, micro = divmod(abs(cell), 1_000_000)
        found.append(("-" if cell < 0 else "") + _clock(second) + _fraction(micro, field))
    return pa.array(found, pa.string())


# --- zones ---------------------------------------------------------------------------------------

FIRST_US, LAST_US = 86400 * 1_000_000, 2147385600 * 1_000_000  # 1970-01-02 and 2038-01-18


def to_utc(micros: pa.Array, zone: str, column: Column, counts: dict[str, int]) -> pa.Array:
    """Take naive times of a zone to UTC as CONVERT_TZ does: of two instants the earlier, of none the next there is."""
    outside = pc.or_(pc.less(micros, FIRST_US), pc.greater_equal(micros, LAST_US))
    inside = masked(micros, {"zone_range": outside}, counts, nulls(column)).view(pa.timestamp("us"))
    return pc.assume_timezone(inside, zone, ambiguous="earliest", nonexistent="latest").view(pa.int64())
