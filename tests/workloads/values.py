"""Cells of random workloads: made by word and number, and spelled so that two of them compare.

Belongs here: what a column of a word may hold on every engine. Not here: how an engine spells it in SQL.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random

Row = dict[str, object]
Cells = tuple[tuple[str, object], ...]

TEXTS = (
    "", " ", "x", "NULL", "null", "it's", 'say "so"', "back\\slash", "a,b;c", "line\nfeed", "tab\there", "čšž ĀŽ",
    "🦀🚢", "日本語", "\u200b\u00a0", "e\u0301", "%_", "0", "-1e5", "true", "z" * 180, "\\N", "'; DROP TABLE t; --",
)  # fmt: skip
VALUES: Mapping[str, tuple[object, ...]] = {
    "whole": (0, 1, -1, 2**63 - 1, -(2**63), 10**15),
    "number": (0, 1, -1, 2**31 - 1, -(2**31)),
    "ratio": (0.0, 1.5, -2.25, 0.1, 1e-7, 123456789.125, 1e15, -1e15),
    "amount": (Decimal("0.00"), Decimal("0.01"), Decimal("-9999999999.99"), Decimal("9999999999.99"), Decimal("1.10")),
    "note": TEXTS,
    "payload": (b"", b"\x00", b"\xff\x00\x01", bytes(range(48)), b"'\\"),
    "flag": (True, False),
    "day": (date(1970, 1, 1), date(1000, 1, 1), date(9999, 12, 31), date(2024, 2, 29), date(1969, 12, 31)),
    "moment": (
        datetime(1970, 1, 1), datetime(1000, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999),
        datetime(2024, 2, 29, 12, 0, 0, 1), datetime(1969, 12, 31, 23, 59, 59),
    ),
    "instant": (
        datetime(1970, 1, 2, tzinfo=UTC), datetime(2037, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        datetime(2025, 3, 30, 1, 30, tzinfo=UTC), datetime(2025, 10, 26, 0, 30, 0, 5, tzinfo=UTC),
    ),
}  # fmt: skip
KEY_WORDS = ("whole", "number", "label", "uuid", "amount", "day")


def cell(rng: Random, word: str, *, nullable: bool = True) -> object:
    """Make a random cell of a column: sometimes NULL, sometimes an extreme, else something between."""
    chance = rng.random()
    if nullable and chance < 0.2:
        return None
    if chance < 0.5 or word == "flag":
        return rng.choice(VALUES[word])
    number = rng.randrange(10**6)
    return BETWEEN[word](number)


BETWEEN: Mapping[str, Callable[[int], object]] = {
    "whole": lambda n: n * 7919 - 10**9,
    "number": lambda n: n - 500_000,
    "ratio": lambda n: n / 8,
    "amount": lambda n: Decimal(n - 500_000) / 100,
    "note": lambda n: f"note {n} {TEXTS[n % len(TEXTS)][:20]}",
    "payload": lambda n: n.to_bytes(4, "big"),
    "day": lambda n: date(1900, 1, 1) + timedelta(days=n % 60_000),
    "moment": lambda n: datetime(2001, 1, 1) + timedelta(seconds=n * 61, microseconds=n),
    "instant": lambda n: datetime(2001, 1, 1, tzinfo=UTC) + timedelta(seconds=n * 61, microseconds=n),
}


def key_cell(word: str, number: int) -> object:
    """Make the key cell of a number: another one for each, in no order but that of `whole` and `number`."""
    match word:
        case "whole" | "number":
            return number
        case "label":
            return f"{'abBčž_'[number % 6]}{number:05d}{('', '-x', 'Ž')[number % 3]}"
        case "uuid":
            return str(uuid.UUID(int=(number + 1) * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128, version=4))
        case "amount":
            return (number * 7919 % 100_003 - 50_000) * Decimal("0.37")
        case "day":
            return date(1990, 1, 1) + timedelta(days=number * 3)
    raise ValueError(word)


# --- as they are compared ------------------------------------------------------------------------


def plain(value: object) -> object:
    """Return a cell so that equal ones are equal and hash alike, and TRUE is not 1."""
    if isinstance(value, bool):
        return f"bool {value}"
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return ("instant", value.astimezone(UTC).replace(tzinfo=None))
    return value


def cells(row: Mapping[str, object], *, is_csv: bool = False) -> Cells:
    """Return a row as it is compared: without NULLs, and for CSV without empty cells, which it spells alike."""
    present = ((name, plain(value)) for name, value in row.items() if value is not None)
    return tuple(sorted((name, value) for name, value in present if not (is_csv and value in ("", b""))))


def of_text(text: str | None, word: str) -> object:
    """Read a cell of CSV as a value of its word."""
    return None if text is None or text == "" else PARSED[word](text)


def _instant(text: str) -> datetime:
    assert text.endswith("Z"), text
    return datetime.fromisoformat(text[:-1]).replace(tzinfo=UTC)


def _flag(text: str) -> bool:
    return {"true": True, "false": False}[text]


PARSED: Mapping[str, Callable[[str], object]] = {
    "whole": int, "number": int, "ratio": float, "amount": Decimal, "note": str, "label": str, "uuid": str,
    "payload": bytes.fromhex, "flag": _flag, "day": date.fromisoformat, "moment": datetime.fromisoformat,
    "instant": _instant,
}  # fmt: skip
