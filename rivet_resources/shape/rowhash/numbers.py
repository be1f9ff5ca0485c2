"""Spell many integers and decimals at once, four digits a look-up.

Belongs here: numbers of up to sixteen digits, which is nearly all there are. Not here: longer ones, for which
Arrow's casts are taken (`cells.py`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rivet_resources.shape.rowhash.frames import COUNTED, MARKED, WINDOW, Framed, HashCells, Mask, Places, heads, layout

LIMIT = 10**16
# Decimals of more digits behind the point are left to Arrow.
SCALE = 12
FOUR_TEXTS = "".join(f"{number:04d}" for number in range(10_000)).encode()
FOUR = np.frombuffer(FOUR_TEXTS, "<u4")
FOUR_WIDE = FOUR.astype(np.uint64)
POWERS = 10 ** np.arange(1, 17)
EIGHT = 8
# A row of digits has so many bytes before them, the last for the sign.
SIGN = 8


def fit(found: npt.NDArray[Any], scale: int) -> bool:
    """Return whether `spelled` can spell all these."""
    # Not even the least integer of 64 bits, whose `abs` is itself.
    limit = min(LIMIT * 10**scale, 2**63 - 1)
    return scale <= SCALE and (not len(found) or (int(found.max()) < limit and int(found.min()) > -limit))


def spelled(found: Places, scale: int, present: Mask | None) -> HashCells | Framed:
    """Spell integers with a point before the last `scale` digits; no point when `scale` is 0."""
    below = found < 0
    signed = bool(below.any())
    size = np.abs(found) if signed else found
    if scale == 0 and not signed and int(size.max(initial=0)) < 10**EIGHT:
        return _short(size, present)
    whole = size // 10**scale if scale else size
    figures = EIGHT if int(whole.max(initial=0)) < 10**EIGHT else 2 * EIGHT
    width = SIGN + figures + (1 + -(-scale // 4) * 4 if scale else 0)
    # More rows than numbers: a window to spare behind the last one.
    rows = np.empty((len(found) + 1 + WINDOW // width, width), np.uint8)
    # All digits, and zeros before them, into rows of one width; a number begins behind the zeros.
    _write(rows[: len(found)], whole, SIGN + figures)
    if scale:
        _fraction(rows[: len(found)], size - whole * 10**scale, SIGN + figures, scale)
    # Counted by look-up and not by a logarithm, which rounds at powers of ten.
    lengths = np.searchsorted(POWERS[: figures - 1], whole, side="right") + 1
    starts = np.arange(SIGN + figures, len(found) * width + SIGN + figures, width) - lengths
    lengths += scale + 1 if scale else 0
    if signed:
        starts -= below
        lengths += below
        rows.reshape(-1)[starts[below]] = ord("-")
    return HashCells(rows.reshape(-1), starts, lengths if present is None else lengths * present, present)


def _short(number: Places, present: Mask | None) -> Framed:
    """Spell numbers of up to eight digits, which fit into one integer of eight bytes, in their frames."""
    above = over(number, 10_000)
    lengths = np.searchsorted(POWERS[: EIGHT - 1], number, side="right") + 1
    text = FOUR_WIDE[number - above * 10_000]
    text <<= 32
    text |= FOUR_WIDE[above]
    # The zeros before the number are the low bytes.
    text >>= (EIGHT - lengths).view(np.uint64) << 3
    framed = np.empty(len(number), layout(COUNTED, EIGHT))
    framed["head"] = heads(lengths, present)
    framed["body"] = text.view("V8")
    lengths += COUNTED
    sizes = lengths if present is None else np.where(present, lengths, MARKED)
    return Framed(framed.view(f"V{framed.itemsize}"), sizes)


def _write(rows: npt.NDArray[np.uint8], number: Places, end: int) -> None:
    """Write all digits of a number, the last one before byte `end`, four at a time."""
    for place in range(end, SIGN, -4):
        if place - 4 > SIGN:
            above = over(number, 10_000)
            number, four = above, number - above * 10_000
        else:
            four = number
        rows[:, place - 4 : place].view("<u4")[:, 0] = FOUR[four]


def _fraction(rows: npt.NDArray[np.uint8], rest: Places, start: int, scale: int) -> None:
    """Write a point and `scale` digits, and zeros up to a multiple of four."""
    rows[:, start] = ord(".")
    groups = -(-scale // 4)
    rest = rest * 10 ** (groups * 4 - scale)
    for place in range(start + 1 + groups * 4, start + 1, -4):
        above = over(rest, 10_000)
        rows[:, place - 4 : place].view("<u4")[:, 0] = FOUR[rest - above * 10_000]
        rest = above


def over(number: Places, by: int) -> Places:
    """Divide what is not below zero; without signs it takes half the time."""
    return (number.view(np.uint64) // np.uint64(by)).view(np.int64)
