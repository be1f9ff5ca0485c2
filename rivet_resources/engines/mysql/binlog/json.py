"""MySQL's binary JSON, as the server would print it.

Belongs here: one value's bytes to its text. Not here: MariaDB's JSON, which is text already.

Source: MySQL source, sql-common/json_binary.h (the format) and json_dom.cc, `wrapper_to_string` (the spelling).
"""

from __future__ import annotations

import base64
import struct

from rivet_resources.errors import LogRefused

SMALL_OBJECT, LARGE_OBJECT, SMALL_ARRAY, LARGE_ARRAY, LITERAL = 0, 1, 2, 3, 4
INT16, UINT16, INT32, UINT32, INT64, UINT64, DOUBLE, STRING, OPAQUE = 5, 6, 7, 8, 9, 10, 11, 12, 15
LITERALS = {0: "null", 1: "true", 2: "false"}
NUMBERS = {INT16: "<h", UINT16: "<H", INT32: "<i", UINT32: "<I", INT64: "<q", UINT64: "<Q"}
INLINE = {LITERAL, INT16, UINT16}  # in the entry itself, where it is two bytes wide
INLINE_LARGE = {*INLINE, INT32, UINT32}
# Types that an opaque value may be of.
DATE, TIME, DATETIME, TIMESTAMP, DECIMAL = 10, 11, 12, 7, 246
DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
# Source: json_dom.cc, `double_quote`.
ESCAPES = {ord('"'): '\\"', ord("\\"): "\\\\", 8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r"}
ESCAPED = {**{code: f"\\u{code:04x}" for code in range(32)}, **ESCAPES}


def json_text(data: bytes) -> str:
    """Spell one JSON value; an empty one, which only a damaged row has, is `null`.

    Raises:
        LogRefused: the bytes are not in this format.
    """
    if not data:
        return "null"
    try:
        # A value has one byte at least, and a text's bytes are counted besides: more than this no server writes.
        return _value(data[0], data, 1, [2 * len(data)])
    except (IndexError, struct.error, KeyError, UnicodeDecodeError, RecursionError):
        raise LogRefused(
            "A JSON value of the binary log is not in the format that MySQL documents. Let the server's owner check "
            "the table with CHECK TABLE."
        ) from None


def _value(kind: int, data: bytes, at: int, left: list[int]) -> str:
    """Spell the value that begins at a place; offsets inside a container count from its own beginning.

    `left` is how many values and bytes of text may still come. What a server wrote has each byte in one value; of what
    a stranger wrote, containers may lie in themselves and in each other, and would have no end.
    """
    left[0] -= 1
    if left[0] < 0:
        raise IndexError
    if kind in (SMALL_OBJECT, LARGE_OBJECT):
        return _object(data, at, left, is_large=kind == LARGE_OBJECT)
    if kind in (SMALL_ARRAY, LARGE_ARRAY):
        return _array(data, at, left, is_large=kind == LARGE_ARRAY)
    if kind == LITERAL:
        return LITERALS[data[at]]
    if kind in NUMBERS:
        return str(struct.unpack_from(NUMBERS[kind], data, at)[0])
    if kind == DOUBLE:
        return _double(struct.unpack_from("<d", data, at)[0])
    if kind == STRING:
        size, start = _length(data, at)
        return _quote(_bytes(data, start, size, left).decode())
    if kind == OPAQUE:
        size, start = _length(data, at + 1)
        return _opaque(data[at], _bytes(data, start, size, left))
    raise KeyError(kind)


def _bytes(data: bytes, start: int, size: int, left: list[int]) -> bytes:
    left[0] -= size
    if left[0] < 0 or start + size > len(data):
        raise IndexError
    return data[start : start + size]


def _length(data: bytes, at: int) -> tuple[int, int]:
    """Read a length of seven bits a byte."""
    size = 0
    # Five times seven bits hold every length of 32 bits; a sixth byte is damage.
    for i in range(5):
        byte = data[at + i]
        size |= (byte & 0x7F) << (7 * i)
        if not byte & 0x80:
            return size, at + i + 1
    raise IndexError


def _quote(text: str) -> str:
    return f'"{text.translate(ESCAPED)}"'


def _number(data: bytes, at: int, width: int) -> int:
    return int.from_bytes(data[at : at + width], "little")


def _object(data: bytes, base: int, left: list[int], *, is_large: bool) -> str:
    width = 4 if is_large else 2
    count = _number(data, base, width)
    # Behind count and size: entries of keys (offset, length in 2
    # bytes), then of values (type in 1 byte, offset or the value).
    key, value = base + 2 * width, base + 2 * width + count * (width + 2)
    members = []
    for i in range(count):
        at = key + i * (width + 2)
        start, size = base + _number(data, at, width), _number(data, at + width, 2)
        name = _quote(_bytes(data, start, size, left).decode())
        members.append(f"{name}: {_entry(data, base, value + i * (width + 1), width, left)}")
    return "{" + ", ".join(members) + "}"


def _array(data: bytes, base: int, left: list[int], *, is_large: bool) -> str:
    width = 4 if is_large else 2
    count, first = _number(data, base, width), base + 2 * width
    return "[" + ", ".join(_entry(data, base, first + i * (width + 1), width, left) for i in range(count)) + "]"


def _entry(data: bytes, base: int, at: int, width: int, left: list[int]) -> str:
    kind = data[at]
    # Small numbers stand where the offset would; how small is small depends on the container's width.
    if kind in (INLINE_LARGE if width == 4 else INLINE):
        return _value(kind, data, at + 1, left)
    return _value(kind, data, base + _number(data, at + 1, width), left)


def _double(value: float) -> str:
    """Spell a double as JSON does: `1.0`, where SQL has `1`."""
    text = double_text(value)
    return text if any(letter in text for letter in ".e") else text + ".0"


PLACES = 15  # MAX_DECPT_FOR_F_FORMAT of both servers


def double_text(value: float) -> str:
    """Spell one double."""
    mantissa, _, exponent = f"{value!r}".partition("e")
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, part = mantissa.lstrip("-").partition(".")
    digits = (whole + part).lstrip("0")
    if not digits.strip("0"):
        return sign + "0"
    point = len(whole) + int(exponent or 0) - (len(whole + part) - len(digits))
    digits = digits.rstrip("0")
    if not -PLACES < point <= PLACES:
        tail = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{tail}e{point - 1}"
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    whole, part = digits[:point].ljust(point, "0"), digits[point:]
    return sign + whole + (f".{part}" if part else "")


# --- values that JSON does not have --------------------------------------------------------------


def _opaque(kind: int, data: bytes) -> str:
    """Spell DECIMAL as a number, times as quoted texts, all others in base64 behind their type."""
    if kind == DECIMAL:
        return _decimal(data)
    if kind in (DATE, DATETIME, TIMESTAMP, TIME):
        packed = struct.unpack("<q", data)[0]
        return f'"{_time(packed) if kind == TIME else _datetime(packed, kind)}"'
    return f'"base64:type{kind}:{base64.b64encode(data).decode()}"'


def _decimal(data: bytes) -> str:
    # A byte each; then groups of digits as in a row, the first bit set in positive numbers (values.py).
    precision, scale = data[0], data[1]
    whole = precision - scale
    negative = not data[2] & 0x80
    body = bytearray(data[2:])
    body[0] ^= 0x80
    if negative:
        body = bytearray(byte ^ 0xFF for byte in body)
    digits, at = "", 0
    for size in [whole % 9] * (whole % 9 > 0) + [9] * (whole // 9) + [9] * (scale // 9) + [scale % 9] * (scale % 9 > 0):
        width = DIGIT_BYTES[size]
        digits += f"{int.from_bytes(body[at : at + width], 'big'):0{size}d}"
        at += width
    return _place_point(digits, scale, negative)


def _place_point(digits: str, scale: int, negative: bool) -> str:
    whole = (digits[: len(digits) - scale] or "0").lstrip("0") or "0"
    part = digits[len(digits) - scale :] if scale else ""
    return ("-" if negative else "") + whole + (f".{part}" if part else "")


def _datetime(packed: int, kind: int) -> str:
    micro, packed = packed & 0xFFFFFF, packed >> 24
    # Years times 13 and month (17 bits), day (5), hour (5), minute (6), second (6), microseconds (24).
    month = packed >> 22
    text = f"{month // 13:04d}-{month % 13:02d}-{(packed >> 17) & 31:02d}"
    if kind == DATE:
        return text
    return f"{text} {(packed >> 12) & 31:02d}:{(packed >> 6) & 63:02d}:{packed & 63:02d}.{micro:06d}"


def _time(packed: int) -> str:
    sign, packed = ("-", -packed) if packed < 0 else ("", packed)
    micro, packed = packed & 0xFFFFFF, packed >> 24
    # Hours (10 bits), minute (6), second (6), microseconds (24).
    return f"{sign}{(packed >> 12) & 1023:02d}:{(packed >> 6) & 63:02d}:{packed & 63:02d}.{micro:06d}"
