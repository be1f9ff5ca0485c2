"""What a column's new definition does to values that were there: nothing, a refusal by the server, or another value.

Belongs here: types as they are spelled, taken apart and compared. Not here: the statement around them (ddl.py), whose
columns they are (tables.py), where they are kept (shapes.py).

A log has the statement and no row of it. That a type holds each value of the old one is a matter of both spellings.
That it does not is an error of the statement under a strict `sql_mode`, so that a statement which is in a log went
well. What is changed without an error, strict or not, was found by altering tables of each type (2026-11, MySQL 9.7,
MariaDB 10.11): fractions of numbers and times, spaces at the end of a CHAR, zeros at the end of a BINARY, labels that
differ in case, a SET's order. In a mirror old values are read as the new type, and this must give what the server made
of them: types of another kind are refused unless that is certain.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from rivet_resources.engines.mysql.binlog.columns import BYTES_OF_LETTER


class Effect(IntEnum):
    """What becomes of old values, from harmless to harmful."""

    SAME = 0
    CHECKED = 1  # under a strict sql_mode the server refuses what does not fit; else it cuts, or makes it fit
    CHECKED_LETTERS = 2  # only where the character set, which the definition does not say, is another one
    CHANGED = 3  # without a word
    UNKNOWN = 4


@dataclass(frozen=True)
class Shape:
    """A column's type: the server's spelling, its character set ('': none; `?`: not known), whether it has NULLs."""

    native: str
    charset: str = ""
    nullable: bool = True


@dataclass(frozen=True)
class Kind:
    """A type taken apart."""

    family: str
    word: str
    numbers: tuple[int, ...] = ()
    labels: tuple[str, ...] = ()
    unsigned: bool = False
    charset: str = ""


# Spellings that mean another type's. Source: MySQL Reference Manual, "Using Data Types from Other Database Engines",
# "Numeric Type Syntax".
SYNONYMS: Mapping[str, str] = {
    "int1": "tinyint", "int2": "smallint", "int3": "mediumint", "middleint": "mediumint", "int4": "int",
    "integer": "int", "int8": "bigint", "dec": "decimal", "numeric": "decimal", "fixed": "decimal", "real": "double",
    "float4": "float", "float8": "double", "character": "char", "nvarchar": "varchar", "varcharacter": "varchar",
    "bool": "tinyint", "boolean": "tinyint",
}  # fmt: skip
BITS: Mapping[str, int] = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
TEXT_BYTES: Mapping[str, int] = {"tinytext": 1 << 8, "text": 1 << 16, "mediumtext": 1 << 24, "longtext": 1 << 32}
BLOB_BYTES: Mapping[str, int] = {"tinyblob": 1 << 8, "blob": 1 << 16, "mediumblob": 1 << 24, "longblob": 1 << 32}
FAMILIES: Mapping[str, str] = {
    **dict.fromkeys(BITS, "integer"), "decimal": "decimal", "float": "float", "double": "float", "bit": "bit",
    "char": "char", "varchar": "text", **dict.fromkeys(TEXT_BYTES, "text"), "binary": "binary", "varbinary": "bytes",
    **dict.fromkeys(BLOB_BYTES, "bytes"), "date": "date", "time": "time", "datetime": "datetime",
    "timestamp": "timestamp", "year": "year", "enum": "enum", "set": "set", "json": "json", "uuid": "uuid",
    "inet4": "inet4", "inet6": "inet6", "vector": "vector", "geometry": "geometry",
}  # fmt: skip
# Words behind a type that make another one of it.
OTHERWISE = frozenset({"byte", "precision", "varying"})
NATIVE = re.compile(r"(?s)\s*([a-z0-9_]+)\s*(?:\((.*?)\))?([^()]*)$")
LABEL = re.compile(r"""(?s)'((?:[^'\\]|''|\\.)*)'|"((?:[^"\\]|""|\\.)*)\"""")
ESCAPED = re.compile(r"(?s)''|\"\"|\\(.)")
EXACT_IN_FLOAT, EXACT_IN_DOUBLE = 24, 53  # bits of a whole number


def kind_of(shape: Shape, *, is_mariadb: bool) -> Kind | None:
    """Take a type apart; None for one that nobody here knows."""
    match = NATIVE.match(shape.native if "'" in shape.native else shape.native.lower())
    if match is None:
        return None
    spelled = match[1].lower()
    word = SYNONYMS.get(spelled, spelled)
    # There it is another spelling of a text with a CHECK.
    word = "longtext" if is_mariadb and word == "json" else word
    family = FAMILIES.get(word)
    if family is None:
        return None
    inside = match[2] or ""
    labels = tuple(_label(found) for found in LABEL.finditer(inside)) if family in ("enum", "set") else ()
    numbers = tuple(int(number) for number in re.findall(r"\d+", inside)) if not labels else ()
    if spelled in ("bool", "boolean"):
        numbers = (1,)
    # Of `text(100)` the server chooses the type.
    if numbers and word in (*TEXT_BYTES, *BLOB_BYTES):
        return None
    if OTHERWISE & set(match[3].lower().split()):
        return None
    is_unsigned = "unsigned" in match[3].lower() or "zerofill" in match[3].lower()
    return Kind(family, word, numbers, labels, is_unsigned, shape.charset)


def _label(found: re.Match[str]) -> str:
    inside = found[1] if found[1] is not None else found[2]
    return ESCAPED.sub(lambda escaped: escaped[1] or escaped[0][0], inside)


def effect_of(old: Shape, new: Shape, *, is_mariadb: bool) -> Effect:
    """Return what a new definition does to the values of a column."""
    if (old.native.lower(), old.charset) == (new.native.lower(), new.charset):
        found = Effect.SAME
    else:
        before, after = kind_of(old, is_mariadb=is_mariadb), kind_of(new, is_mariadb=is_mariadb)
        if before is None or after is None:
            return Effect.UNKNOWN
        judge = PAIRS.get((before.family, after.family))
        found = judge(before, after) if judge is not None else Effect.CHANGED
    # A NULL is refused by a strict server, and becomes a zero or an empty text on another.
    return max(found, Effect.CHECKED) if old.nullable and not new.nullable else found


def _fitting(fits: bool) -> Effect:
    return Effect.SAME if fits else Effect.CHECKED


def _range(kind: Kind) -> tuple[int, int]:
    bits = BITS[kind.word]
    return (0, (1 << bits) - 1) if kind.unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)


def _digits(kind: Kind) -> tuple[int, int]:
    """Return a decimal's digits before and behind the point."""
    precision, scale = (*kind.numbers, *(10, 0)[len(kind.numbers) :])[:2]
    return precision - scale, scale


def _is_flag(kind: Kind) -> bool:
    return kind.word == "tinyint" and kind.numbers == (1,)


def _whole(old: Kind, new: Kind) -> Effect:
    # As a truth value: 5 would be read as true.
    if _is_flag(new) and not _is_flag(old):
        return Effect.CHANGED
    (least, most), (lowest, highest) = _range(old), _range(new)
    return _fitting(lowest <= least and most <= highest)


def _whole_as_decimal(old: Kind, new: Kind) -> Effect:
    most = max(map(abs, _range(old)))
    return Effect.CHANGED if _is_flag(old) else _fitting(most < 10 ** _digits(new)[0] and _keeps_sign(old, new))


def _whole_as_float(old: Kind, new: Kind) -> Effect:
    exact = EXACT_IN_FLOAT if new.word == "float" else EXACT_IN_DOUBLE
    return Effect.SAME if BITS[old.word] <= exact and not new.numbers and not _is_flag(old) else Effect.CHANGED


def _keeps_sign(old: Kind, new: Kind) -> bool:
    return old.unsigned or not new.unsigned


def _decimal(old: Kind, new: Kind) -> Effect:
    (before, places), (room, kept) = _digits(old), _digits(new)
    return Effect.CHANGED if kept < places else _fitting(room >= before and _keeps_sign(old, new))


def _float(old: Kind, new: Kind) -> Effect:
    # One number is a width in bits, `float(53)`; two are rounded to.
    is_narrower = new.word == "float" and old.word == "double"
    return Effect.CHANGED if is_narrower or new.numbers else _fitting(_keeps_sign(old, new))


def _bits(old: Kind, new: Kind) -> Effect:
    widths = [each.numbers[0] if each.numbers else 1 for each in (old, new)]
    # One bit is a truth value, as above.
    return _fitting(widths[0] <= widths[1]) if (widths[0] == 1) == (widths[1] == 1) else Effect.CHANGED


def _letters(kind: Kind) -> int | None:
    return (kind.numbers or (1,))[0] if kind.word in ("char", "varchar") else None


def _has_room(old: Kind, new: Kind) -> bool:
    """Return whether each text of one type has as many letters as another takes."""
    before, after = _letters(old), _letters(new)
    if after is not None:
        return before is not None and before <= after
    most = before * BYTES_OF_LETTER.get(new.charset, 4) if before is not None else TEXT_BYTES[old.word] - 1
    return most < TEXT_BYTES[new.word]


def _keeps_letters(old: Kind, new: Kind) -> bool:
    same = {old.charset, new.charset} <= {"utf8", "utf8mb3"}
    return new.charset in (old.charset, "utf8mb4") or same


def _text(old: Kind, new: Kind) -> Effect:
    return _fitting(_has_room(old, new) and _keeps_letters(old, new))


def _bytes(old: Kind, new: Kind) -> Effect:
    before, after = (
        each.numbers[0] if each.word in ("binary", "varbinary") and each.numbers else BLOB_BYTES.get(each.word, 2) - 1
        for each in (old, new)
    )
    return _fitting(before <= after)


def _padded(old: Kind, new: Kind) -> Effect:
    # Zeros are put behind what is shorter.
    return Effect.SAME if (old.numbers or (1,)) == (new.numbers or (1,)) else Effect.CHANGED


def _fraction(old: Kind, new: Kind) -> Effect:
    return Effect.SAME if (new.numbers or (0,)) >= (old.numbers or (0,)) else Effect.CHANGED


def _labels(old: Kind, new: Kind) -> Effect:
    before, after = set(old.labels), set(new.labels)
    if before <= after:
        return Effect.SAME
    # A label that is gone stops a strict server, unless another one is equal to it but for its case, or its accents:
    # among those that were there, none is.
    return Effect.CHECKED if after <= before else Effect.CHANGED


def _label_sets(old: Kind, new: Kind) -> Effect:
    common = [label for label in old.labels if label in new.labels]
    # Members are told in the order of the definition.
    return _labels(old, new) if common == [label for label in new.labels if label in common] else Effect.CHANGED


def _labels_as_text(old: Kind, new: Kind) -> Effect:
    longest = sum(len(label) + 1 for label in old.labels) if old.family == "set" else max(map(len, old.labels))
    room = _letters(new)
    return _fitting((room is None or longest <= room) and _keeps_letters(old, new))


def _same(old: Kind, new: Kind) -> Effect:
    return Effect.SAME


def _year_as_whole(old: Kind, new: Kind) -> Effect:
    return _fitting(BITS[new.word] >= 16) if not _is_flag(new) else Effect.CHANGED


def _as_it_is(old: Kind, new: Kind) -> Effect:
    return Effect.SAME if (old.word, old.numbers) == (new.word, new.numbers) else Effect.CHANGED


Judge = Callable[[Kind, Kind], Effect]
# What may follow what; a pair that is not here changes values, or is read otherwise in a mirror than at the server.
PAIRS: Mapping[tuple[str, str], Judge] = {
    ("integer", "integer"): _whole,
    ("integer", "decimal"): _whole_as_decimal,
    ("integer", "float"): _whole_as_float,
    ("decimal", "decimal"): _decimal,
    ("float", "float"): _float,
    ("bit", "bit"): _bits,
    ("char", "char"): _text,
    ("char", "text"): _text,
    ("text", "text"): _text,
    ("bytes", "bytes"): _bytes,
    ("binary", "bytes"): _bytes,
    ("binary", "binary"): _padded,
    ("time", "time"): _fraction,
    ("datetime", "datetime"): _fraction,
    ("timestamp", "timestamp"): _fraction,
    ("enum", "enum"): _labels,
    ("set", "set"): _label_sets,
    ("date", "datetime"): _same,
    ("year", "integer"): _year_as_whole,
    ("enum", "text"): _labels_as_text,
    ("set", "text"): _labels_as_text,
    **{(name, name): _as_it_is for name in ("date", "year", "json", "uuid", "inet4", "inet6", "vector", "geometry")},
}
