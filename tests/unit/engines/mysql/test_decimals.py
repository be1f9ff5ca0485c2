"""DECIMAL cells of a binary log: every precision and scale, with NULLs between, whatever bytes lie under them."""

from __future__ import annotations

import random
from decimal import Context, Decimal

import numpy as np
import pytest

from rivet_resources.engines.mysql.binlog import events as ev
from rivet_resources.engines.mysql.binlog.events import Field
from rivet_resources.engines.mysql.binlog.row_layout import DIGIT_BYTES, RowCells, decimal_bytes
from rivet_resources.engines.mysql.binlog.values import decimal
from rivet_resources.engines.mysql.binlog.vector import Vector
from rivet_resources.errors import LogRefused

EXACT = Context(prec=100)
LARGEST_PRECISION, LARGEST_SCALE = 65, 38


def field(precision: int, scale: int) -> Field:
    """Describe a column as a table map does."""
    return Field(name="c", type=ev.DECIMAL, meta=(precision, scale), nullable=True)


def packed(digits: str, scale: int, *, is_negative: bool) -> bytes:
    """Write digits as a server does: groups of nine from the point outwards, the sign in the first bit."""
    whole, part = (digits[:-scale], digits[-scale:]) if scale else (digits, "")
    head = len(whole) % 9
    groups = [whole[:head]] * (head > 0) + [whole[i : i + 9] for i in range(head, len(whole), 9)]
    groups += [part[i : i + 9] for i in range(0, len(part), 9)]
    raw = bytearray(b"".join(int(group).to_bytes(DIGIT_BYTES[len(group)], "big") for group in groups))
    raw[0] ^= 0x80
    return bytes(byte ^ 0xFF for byte in raw) if is_negative else bytes(raw)


def vector(precision: int, scale: int, cells: list[bytes], nulls: list[bool], first: bytes) -> Vector:
    """Lay cells one behind the other, behind some bytes that are read for NULLs."""
    width = decimal_bytes(precision, scale)
    assert all(len(cell) == width for cell in cells)
    start = len(first) + width * np.arange(len(cells), dtype=np.int64)
    buffer = np.frombuffer(first + b"".join(cells) + bytes(16), np.uint8)
    length = np.where(nulls, 0, width)
    return Vector(buffer, RowCells(start, length, np.array(nulls)), field(precision, scale), "")


@pytest.mark.parametrize("precision", range(1, LARGEST_PRECISION + 1))
def test_every_precision_and_scale_is_read_among_nulls_over_garbage(precision: int) -> None:
    """A NULL's bytes are whatever lies there: they neither show nor stop the drain."""
    chance = random.Random(precision)
    for scale in range(min(precision, LARGEST_SCALE) + 1):
        texts = ["9" * precision, "0" * precision, "".join(chance.choices("0123456789", k=precision))]
        signed = [(text, is_negative) for text in texts for is_negative in (False, True)]
        width = decimal_bytes(precision, scale)
        for garbage in (b"\xff" * 64, chance.randbytes(64)):
            cells = [packed(text, scale, is_negative=sign) for text, sign in signed] + [garbage[:width]]
            found = decimal(vector(precision, scale, cells, [False] * len(signed) + [True], garbage)).to_pylist()
            expected = [
                Decimal(text).scaleb(-scale, EXACT).copy_sign(Decimal(-1 if sign else 1)) for text, sign in signed
            ]
            assert found == [*expected, None], (precision, scale)


@pytest.mark.parametrize(("precision", "scale"), [(9, 0), (18, 0), (27, 9), (37, 37), (38, 38), (65, 30)])
def test_bytes_that_are_no_decimal_are_refused_by_the_columns_name(precision: int, scale: int) -> None:
    """A group of nine digits above 999999999 is no number: said with the column, not as an overflow."""
    cells = [b"\xff" * decimal_bytes(precision, scale)]
    with pytest.raises(LogRefused, match=rf"Column c .* no decimal\({precision},{scale}\)"):
        decimal(vector(precision, scale, cells, [False], b"\x80"))
