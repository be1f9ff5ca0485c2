"""Lay the framed cells of many rows into one buffer, a column at a time (`contract.md`, 9).

Belongs here: the frame (NULL, scalar, list, struct) and the copying. Not here: how a cell is spelled (`cells.py`) and
the hash (`hash.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

# One store of numpy moves up to 69 bytes of every row at about the price of one byte, so cells are copied in fixed
# windows: the rest of a window is garbage that the next column overwrites, and a gap behind every row takes the last
# one's. That is why rows are given by start and length, not by one list of offsets.
# Bytes of one copy; every buffer a cell is read from has so many to spare behind its last cell.
WINDOW = 64
# So many windows a cell are copied by column; the rest of a longer one is copied alone.
WINDOWS = 8
MARKED, COUNTED = 1, 5  # bytes of a frame's head: `01`, or `01` and a length or a count
GAP = COUNTED + WINDOW

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class HashCells:
    """The bodies of one column's cells: `lengths` bytes of `values` from `starts` on, none for NULL.

    `present` is None where no cell is NULL. `counts` stands in the head instead of the length; `head` is MARKED for
    structs, which have neither. `values` has WINDOW bytes to spare behind the last cell.
    """

    values: Bytes
    starts: Places
    lengths: Places
    present: Mask | None
    head: int = COUNTED
    counts: Places | None = None

    def sizes(self) -> Places:
        """Return the bytes of each cell in its frame."""
        if self.present is None or self.head == MARKED:
            return self.lengths + self.head
        return self.lengths + self.present * (COUNTED - MARKED) + MARKED

    def write(self, target: Bytes, at: Places) -> None:
        """Write the cells in their frames."""
        widest = int(self.lengths.max(initial=0))
        width = min(widest, WINDOW)
        framed = np.empty(len(at), layout(self.head, width))
        framed["head"] = heads(self.lengths if self.counts is None else self.counts, self.present)
        if width:
            framed["body"] = windows(self.values, width)[self.starts]
        # Every cell is written in one width, so what is too much of a short one reaches into the next cell's place,
        # which is written later; hence the order of the columns.
        windows(target, framed.itemsize)[at] = framed.view(f"V{framed.itemsize}")
        if widest > WINDOW:
            _rest(target, at + self.head, self)


@dataclass(frozen=True)
class Framed:
    """One column's cells in their frames, each at the beginning of an array's element; `lengths` with the head."""

    cells: npt.NDArray[np.void]
    lengths: Places

    def sizes(self) -> Places:
        """Return the bytes of each cell in its frame."""
        return self.lengths

    def write(self, target: Bytes, at: Places) -> None:
        """Write the cells in their frames."""
        windows(target, self.cells.itemsize)[at] = self.cells


@dataclass(frozen=True)
class HashRows:
    """Bytes of rows, with gaps between them and WINDOW bytes to spare."""

    values: Bytes
    starts: Places
    lengths: Places


def padded(values: Bytes) -> Bytes:
    """Copy bytes, with a window to spare behind them."""
    copied = np.empty(len(values) + WINDOW, np.uint8)
    copied[: len(values)] = values
    return copied


def heads(numbers: Places, present: Mask | None) -> Places:
    """Return heads as integers: `01` and a number in little-endian order are its low bytes; NULL is zero."""
    head = numbers << 8 | 1
    return head if present is None else head * present


def rows(columns: Sequence[HashCells | Framed], count: int, *, into: Bytes | None = None) -> HashRows:
    """Lay the cells of one row behind one another, in the buffer `into` when it is large enough.

    Memory used before is cheaper than new, whose pages the system has to find. Without columns, rows have no bytes.
    """
    sizes = [column.sizes() for column in columns]
    lengths = np.zeros(count, np.int64)
    for each in sizes:
        lengths += each
    starts = np.cumsum(lengths + GAP)
    needed = (int(starts[-1]) if count else 0) + GAP
    values = np.empty(needed, np.uint8) if into is None or len(into) < needed else into
    starts -= lengths + GAP
    at = starts.copy()
    for column, each in zip(columns, sizes, strict=True):
        column.write(values, at)
        at += each
    return HashRows(values, starts, lengths)


def packed(found: HashRows) -> tuple[Bytes, Places]:
    """Close the gaps; the bytes, and the offsets of rows in them."""
    offsets = np.zeros(len(found.lengths) + 1, np.int64)
    np.cumsum(found.lengths, out=offsets[1:])
    places = np.arange(offsets[-1]) + np.repeat(found.starts - offsets[:-1], found.lengths)
    return padded(found.values[places]), offsets


def _rest(target: Bytes, at: Places, column: HashCells) -> None:
    """Write what is behind the first window of the bodies."""
    into, out = windows(target, WINDOW), windows(column.values, WINDOW)
    for done in range(WINDOW, WINDOW * WINDOWS, WINDOW):
        longer = np.flatnonzero(column.lengths > done)
        into[at[longer] + done] = out[column.starts[longer] + done]
    done = WINDOW * WINDOWS
    longer = np.flatnonzero(column.lengths > done)
    places = (at[longer] + done, column.starts[longer] + done, column.lengths[longer] - done)
    whole, source = memoryview(target), memoryview(column.values)  # type: ignore[arg-type]
    # Long cells one by one: in windows, a text of a megabyte would make a round over all rows for each 64 bytes of it.
    for to, start, size in zip(*(one.tolist() for one in places), strict=True):
        whole[to : to + size] = source[start : start + size]


@lru_cache(maxsize=256)
def layout(head: int, width: int) -> np.dtype[np.void]:
    """Describe a head and the beginning of a body; the head's integer reaches under the body, which comes later."""
    size = max(8, head + width)
    if not width:
        return np.dtype({"names": ["head"], "formats": ["<u8"], "offsets": [0], "itemsize": size})
    names, formats = ["head", "body"], ["<u8", f"V{width}"]
    return np.dtype({"names": names, "formats": formats, "offsets": [0, head], "itemsize": size})


def windows(values: Bytes, width: int) -> npt.NDArray[np.void]:
    """Look at bytes as windows that begin at every byte."""
    return np.ndarray((len(values) - width + 1,), f"V{width}", values, 0, (1,))
