"""Types of the SQL Server emulator: what a declared type is, how DuckDB stores it, how TDS carries it.

Belongs here: `Type`, storage, wire bytes ([MS-TDS] 2.2.5.4 to 2.2.5.6). Not here: SQL (sql.py), times
(times.py).

Stored form: times and uuids are texts whose order is SQL Server's own. A datetimeoffset is its UTC time, then its
offset; a uniqueidentifier is 32 hex digits with the last group first, as the server compares them.
"""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from tests.emulators.tds.times import EPOCH, parsed, ticks_of

DEFAULT_COLLATION = "SQL_Latin1_General_CP1_CI_AS"
TEMPORAL = frozenset({"date", "time", "datetime", "smalldatetime", "datetime2", "datetimeoffset"})
TEXTS = frozenset({"char", "varchar", "nchar", "nvarchar", "text", "ntext", "xml", "json", "hierarchyid", "geometry",
                   "geography", "sql_variant"})  # fmt: skip
BINARY = frozenset({"binary", "varbinary", "image", "timestamp"})
# system_type_id, user_type_id, bytes, precision, scale of sys.types. Source: Microsoft, "sys.types".
CATALOG: Mapping[str, tuple[int, int, int, int, int]] = {
    "image": (34, 34, 16, 0, 0), "text": (35, 35, 16, 0, 0), "uniqueidentifier": (36, 36, 16, 0, 0),
    "date": (40, 40, 3, 10, 0), "time": (41, 41, 5, 16, 7), "datetime2": (42, 42, 8, 27, 7),
    "datetimeoffset": (43, 43, 10, 34, 7), "tinyint": (48, 48, 1, 3, 0), "smallint": (52, 52, 2, 5, 0),
    "int": (56, 56, 4, 10, 0), "smalldatetime": (58, 58, 4, 16, 0), "real": (59, 59, 4, 24, 0),
    "money": (60, 60, 8, 19, 4), "datetime": (61, 61, 8, 23, 3), "float": (62, 62, 8, 53, 0),
    "sql_variant": (98, 98, 8016, 0, 0), "ntext": (99, 99, 16, 0, 0), "bit": (104, 104, 1, 1, 0),
    "decimal": (106, 106, 17, 38, 38), "numeric": (108, 108, 17, 38, 38), "smallmoney": (122, 122, 4, 10, 4),
    "bigint": (127, 127, 8, 19, 0), "hierarchyid": (240, 128, 892, 0, 0), "geometry": (240, 129, -1, 0, 0),
    "geography": (240, 130, -1, 0, 0), "varbinary": (165, 165, 8000, 0, 0), "varchar": (167, 167, 8000, 0, 0),
    "binary": (173, 173, 8000, 0, 0), "char": (175, 175, 8000, 0, 0), "timestamp": (189, 189, 8, 0, 0),
    "nvarchar": (231, 231, 8000, 0, 0), "sysname": (231, 256, 256, 0, 0), "nchar": (239, 239, 8000, 0, 0),
    "xml": (241, 241, -1, 0, 0), "json": (244, 244, -1, 0, 0),
}  # fmt: skip


@dataclass(frozen=True)
class Type:
    """One declared type; `length` in bytes, −1 for (max)."""

    name: str
    length: int = 0
    precision: int = 0
    scale: int = 0
    collation: str = ""

    @property
    def storage(self) -> str:
        """Name the DuckDB type that holds it."""
        if self.name in ("decimal", "numeric", "money", "smallmoney"):
            return f"DECIMAL({self.precision},{self.scale})"
        if self.name in TEXTS:
            is_exact = any(word in self.collation for word in ("_BIN", "_CS_"))
            return "VARCHAR" if is_exact or self.name not in ("char", "varchar", "nchar", "nvarchar") else (
                "VARCHAR COLLATE NOCASE"
            )  # fmt: skip
        return STORAGE.get(self.name, "VARCHAR")


STORAGE = {
    "bit": "BOOLEAN", "tinyint": "UTINYINT", "smallint": "SMALLINT", "int": "INTEGER", "bigint": "BIGINT",
    "real": "FLOAT", "float": "DOUBLE", "binary": "BLOB", "varbinary": "BLOB", "image": "BLOB", "timestamp": "BLOB",
}  # fmt: skip


def named(name: str, *arguments: str, collation: str = "") -> Type:
    """Return the type of a name and its modifiers, defaults filled in."""
    if name == "sysname":
        return Type("nvarchar", 256, collation=collation or DEFAULT_COLLATION)
    _, _, length, precision, scale = CATALOG[name]
    if name in ("decimal", "numeric"):
        given = [int(a) for a in arguments] or [18, 0]
        return Type(name, 17, given[0], given[1] if len(given) > 1 else 0)
    if name in ("time", "datetime2", "datetimeoffset"):
        return Type(name, length, precision, int(arguments[0]) if arguments else 7)
    if name in ("char", "varchar", "nchar", "nvarchar", "binary", "varbinary"):
        wide = 2 if name[0] == "n" else 1
        size = -1 if arguments and arguments[0].lower() == "max" else wide * int(arguments[0] if arguments else 1)
        is_text = "char" in name
        return Type(name, size, collation=(collation or DEFAULT_COLLATION) if is_text else "")
    is_text = name in ("text", "ntext", "xml", "json")
    return Type(name, length, precision, scale, collation=(collation or DEFAULT_COLLATION) if is_text else "")


WIDE = replace(named("nvarchar", "max"))


def of_duckdb(text: str) -> Type:
    """Return the type of a result column nobody has declared."""
    text = text.upper()
    if text.startswith("DECIMAL"):
        precision, scale = text.removeprefix("DECIMAL(").rstrip(")").split(",")
        return named("decimal", precision, scale)
    return {
        "BOOLEAN": named("bit"), "TINYINT": named("smallint"), "UTINYINT": named("tinyint"),
        "SMALLINT": named("smallint"), "INTEGER": named("int"), "BIGINT": named("bigint"),
        "HUGEINT": named("decimal", "38", "0"), "FLOAT": named("real"), "DOUBLE": named("float"),
        "BLOB": named("varbinary", "max"),
    }.get(text, WIDE)  # fmt: skip


# --- uuids ---------------------------------------------------------------------------------------

ORDER = (10, 11, 12, 13, 14, 15, 8, 9, 7, 6, 5, 4, 3, 2, 1, 0)  # over the little-endian bytes, as the server compares


def stored_uuid(text: str) -> str:
    """Return a uuid's stored form; one that is in it already is left."""
    if len(text) == 32 and "-" not in text:
        return text
    raw = UUID(text.strip("{}")).bytes_le
    return bytes(raw[i] for i in ORDER).hex()


def uuid_of(stored: str) -> UUID:
    """Return the uuid of a stored form."""
    raw = bytearray(16)
    for place, byte in zip(ORDER, bytes.fromhex(stored), strict=True):
        raw[place] = byte
    return UUID(bytes_le=bytes(raw))


# --- the wire ------------------------------------------------------------------------------------

INTEGERS = {"tinyint": 1, "smallint": 2, "int": 4, "bigint": 8}
CODES = {"varchar": 0xA7, "char": 0xAF, "nvarchar": 0xE7, "nchar": 0xEF, "binary": 0xAD, "varbinary": 0xA5}


def collation_bytes(name: str) -> bytes:
    """Return a collation's five bytes: language, flags, sort order; clients choose the code page by them."""
    if name.startswith("SQL_Latin1"):
        return struct.pack("<IB", 0x00D00409, 0x34)
    language = 0x0419 if name.startswith("Cyrillic") else 0x0409
    return struct.pack("<IB", language | 0x00D00000 | (0x04000000 if "UTF8" in name else 0), 0)


def codec(collation: str) -> str:
    """Name Python's codec of a collation's code page."""
    return "utf-8" if "UTF8" in collation else "cp1251" if collation.startswith("Cyrillic") else "cp1252"


def as_sent(kind: Type) -> Type:
    """Return the type a value travels as; those without wire form of ours go as nvarchar(max)."""
    if kind.name in CODES or kind.name in INTEGERS or kind.name in TEMPORAL:
        return kind
    if kind.name in ("bit", "real", "float", "money", "smallmoney", "decimal", "numeric", "uniqueidentifier"):
        return kind
    return (
        named("binary", "8")
        if kind.name == "timestamp"
        else named("varbinary", "max")
        if kind.name == "image"
        else WIDE
    )


def info(kind: Type) -> bytes:
    """Return TYPE_INFO."""
    name = kind.name
    if name in CODES:
        size = 0xFFFF if kind.length == -1 else max(kind.length, 1)
        head = bytes([CODES[name]]) + struct.pack("<H", size)
        return head + (collation_bytes(kind.collation) if "char" in name else b"")
    if name in INTEGERS:
        return bytes([0x26, INTEGERS[name]])
    if name in ("decimal", "numeric"):
        return bytes([0x6C, _decimal_size(kind.precision) + 1, kind.precision, kind.scale])
    if name in ("time", "datetime2", "datetimeoffset"):
        return bytes([{"time": 0x29, "datetime2": 0x2A, "datetimeoffset": 0x2B}[name], kind.scale])
    return {
        "bit": b"\x68\x01", "real": b"\x6d\x04", "float": b"\x6d\x08", "money": b"\x6e\x08", "smallmoney": b"\x6e\x04",
        "date": b"\x28", "datetime": b"\x6f\x08", "smalldatetime": b"\x6f\x04", "uniqueidentifier": b"\x24\x10",
    }[name]  # fmt: skip


def _decimal_size(precision: int) -> int:
    return 4 if precision <= 9 else 8 if precision <= 19 else 12 if precision <= 28 else 16


def encoder(kind: Type) -> Callable[[Any], bytes]:
    """Return what turns a stored value into its bytes in a row."""
    if kind.name in CODES:
        return _long(kind) if kind.length == -1 else _short(kind)
    body = _body(kind)

    def encode(value: Any) -> bytes:
        if value is None:
            return b"\0"
        content = body(value)
        return bytes([len(content)]) + content

    return encode


def _best_fit(error: UnicodeError) -> tuple[bytes, int]:
    """Encode letters that a code page lacks as Windows does: C1 controls as their byte, all others as `?`."""
    assert isinstance(error, UnicodeEncodeError)
    letters = error.object[error.start : error.end]
    return bytes(ord(x) if 0x80 <= ord(x) < 0xA0 else 0x3F for x in letters), error.end


codecs.register_error("tds_best_fit", _best_fit)


# Halves of a letter, which LEFT and SUBSTRING leave in a real server's nvarchar, and no text of ours can hold: on their
# way out these letters stand for them.
HALVES = {0xE83D: 0xD83D, 0xEC00: 0xDC00}


def _bytes(kind: Type) -> Callable[[Any], bytes]:
    if kind.name[0] == "n":
        return lambda value: str(value).translate(HALVES).encode("utf-16le", "surrogatepass")
    if "char" in kind.name:
        name = codec(kind.collation)
        return lambda value: str(value).encode(name, "tds_best_fit")
    return bytes


def _short(kind: Type) -> Callable[[Any], bytes]:
    content_of = _bytes(kind)
    pad = {"char": b" ", "nchar": b" \0", "binary": b"\0"}.get(kind.name)

    def encode(value: Any) -> bytes:
        if value is None:
            return b"\xff\xff"
        content = content_of(value)
        if pad is not None and len(content) < kind.length:
            content += pad * ((kind.length - len(content)) // len(pad))
        return struct.pack("<H", len(content)) + content

    return encode


def _long(kind: Type) -> Callable[[Any], bytes]:
    content_of = _bytes(kind)

    def encode(value: Any) -> bytes:
        if value is None:
            return b"\xff" * 8
        content = content_of(value)
        # Text of unknown length and in pieces, as a server streams it. Binaries with their length: without one,
        # mssql-python 1.16 never comes back from the fetch.
        length = b"\xfe" + b"\xff" * 7 if "char" in kind.name else struct.pack("<Q", len(content))
        pieces = [content[i : i + 65_000] for i in range(0, len(content), 65_000)]
        return length + b"".join(struct.pack("<I", len(p)) + p for p in pieces) + b"\0\0\0\0"

    return encode


def _body(kind: Type) -> Callable[[Any], bytes]:
    name = kind.name
    if name in INTEGERS:
        size = INTEGERS[name]
        return lambda v: int(v).to_bytes(size, "little", signed=name != "tinyint")
    if name in ("decimal", "numeric"):
        size = _decimal_size(kind.precision)
        return lambda v: bytes([int(v >= 0)]) + _unscaled(v, kind.scale).to_bytes(size, "little")
    if name in ("money", "smallmoney"):
        return lambda v: _money(_unscaled(v, 4) * (1 if v >= 0 else -1), name)
    if name == "uniqueidentifier":
        return lambda v: uuid_of(v).bytes_le
    if name in TEMPORAL:
        return lambda v: _temporal(v, kind)
    return {
        "bit": lambda v: bytes([bool(v)]),
        "real": lambda v: struct.pack("<f", v),
        "float": lambda v: struct.pack("<d", v),
    }[name]


def _unscaled(value: Any, scale: int) -> int:
    """Return the absolute digits without a context that would round them."""
    sign, digits, exponent = Decimal(value).as_tuple()
    del sign
    number, shift = int("".join(map(str, digits))), int(exponent) + scale
    return number * 10**shift if shift >= 0 else number // 10**-shift


def _money(units: int, name: str) -> bytes:
    if name == "smallmoney":
        return struct.pack("<i", units)
    return struct.pack("<iI", units >> 32, units & 0xFFFFFFFF)


def _temporal(stored: str, kind: Type) -> bytes:
    day, ticks, offset = parsed(stored, kind.name)
    days = (date.fromordinal(day) - EPOCH).days
    if kind.name == "date":
        return days.to_bytes(3, "little")
    if kind.name == "datetime":
        return struct.pack("<iI", day - datetime(1900, 1, 1).toordinal(), (ticks * 300 + 5_000_000) // 10_000_000)
    if kind.name == "smalldatetime":
        return struct.pack("<HH", day - datetime(1900, 1, 1).toordinal(), ticks // 600_000_000)
    scaled = (ticks // 10 ** (7 - kind.scale)).to_bytes(3 if kind.scale <= 2 else 4 if kind.scale <= 4 else 5, "little")
    if kind.name == "time":
        return scaled
    return scaled + days.to_bytes(3, "little") + (struct.pack("<h", offset) if kind.name == "datetimeoffset" else b"")


__all__ = ["Type", "as_sent", "encoder", "info", "named", "of_duckdb", "stored_uuid", "ticks_of", "uuid_of"]
