"""Where the packets of an answer begin: the walk over their headers, whatever the packets hold.

Belongs here: whether an answer is whole, where each header is. Not here: reading it (packets.py), what is in it.
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

HEADER = 4  # three bytes of length, one of sequence number
CONTINUED = 0xFFFFFF  # a packet of this length goes on in the next one
# First byte of the last packet; END only when the packet is shorter than 9 bytes, else it begins a long value.
END, ERROR = 0xFE, 0xFF
SHORTEST_LONG_VALUE = 9
END_HEADER, END_BYTES = b"\x05\x00\x00", 5  # of an EOF packet, 4.1 protocol on
# Packets larger than this are few: steps are cheaper than looking for places to begin at.
LARGEST_BY_LANES = 2048
LANES, PACKETS_PER_LANE = 512, 64
# Packets at the begin that tell how long one is, and those in a row that make a place a header.
SAMPLE, CHAIN = 64, 4

Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]


def may_be_complete(tail: bytes) -> bool:
    """Return whether the bytes look as if they ended with the answer's last packet; a value may look so by chance.

    The server says nothing after that packet, so it can only be the end of what has arrived.
    """
    end = len(tail) - END_BYTES
    # An EOF packet has five bytes, so where it would begin is known; an error's length is not.
    if end >= HEADER and tail[end] == END and tail[end - HEADER : end - 1] == END_HEADER:
        return True
    place = tail.find(ERROR, HEADER)
    while place >= 0:
        if int.from_bytes(tail[place - HEADER : place - 1], "little") == len(tail) - place:
            return True
        place = tail.find(ERROR, place + 1)
    return False


def walk(buffer: Bytes) -> Places | None:
    """Return where the header of every packet is, when the bytes end with the answer's last packet; else None."""
    headers = walk_by_lanes(buffer)
    if headers is None:
        headers = walk_by_steps(buffer)
    if headers is None or not len(headers):
        return None
    last = int(headers[-1])
    size = len(buffer) - last - HEADER
    # It is the rest of a long row.
    goes_on = len(headers) > 1 and last - int(headers[-2]) - HEADER == CONTINUED
    if not size or goes_on:
        return None
    first = int(buffer[last + HEADER])
    return headers if first == ERROR or (first == END and size < SHORTEST_LONG_VALUE) else None


def walk_by_steps(buffer: Bytes) -> Places | None:
    """Walk packet by packet; None when the last one is not whole."""
    headers, behind = _steps(buffer, len(buffer))
    return np.array(headers, np.int64) if behind == len(buffer) else None


def walk_by_lanes(buffer: Bytes) -> Places | None:
    """Walk from many places at once; None when that does not work out, and steps must do.

    A step of Python costs 200 to 300 ns a packet, a step of numpy as much for hundreds of packets, if it is known
    where to begin. Each lane must end exactly where the next one began, so a wrong begin is never believed.
    """
    size = len(buffer)
    sample, behind = _steps(buffer, SAMPLE)
    mean = behind // max(len(sample), 1)
    lanes = min(LANES, size // (max(mean, 1) * PACKETS_PER_LANE))
    if lanes < 2 or mean > LARGEST_BY_LANES:
        return None
    begins = np.append(0, _begins(buffer, size // lanes, lanes, 2 * mean))
    ends = np.append(begins[1:], size)
    low, high = _words(buffer), buffer[2:]
    at, rounds = begins, []
    while (at < ends).any():
        rounds.append(at)
        # A lane that has ended stays where it is.
        inside = np.minimum(at, size - HEADER)
        behind_each = inside + HEADER + low[inside] + (high[inside].astype(np.int64) << 16)
        at = np.where(at < ends, behind_each, at)
    if not np.array_equal(at, ends):
        return None
    steps = np.array(rounds).T
    found: Places = steps[steps < ends[:, None]]
    return found


def _steps(buffer: Bytes, most: int) -> tuple[list[int], int]:
    """Walk at most so many packets: where they begin, and what stands behind the last one walked."""
    view, start = buffer.data, 0
    headers: list[int] = []
    unpack, note, last = struct.Struct("<HB").unpack_from, headers.append, len(buffer) - HEADER
    while start <= last and len(headers) < most:
        note(start)
        low, high = unpack(view, start)
        start += low + HEADER
        if high:
            start += high << 16
    return headers, start


def _begins(buffer: Bytes, step: int, lanes: int, window: int) -> Places:
    """Look for a header near the begin of each piece of `step` bytes but the first; what looks like one is one, nearly.

    A header below 64 KB has a zero as its third byte, and leads to another one, whose number is one more. Bytes that
    look so by chance mostly lead to a true header soon, so the last one of a chain is taken, not its begin.
    """
    window = min(window, step)
    starts = np.arange(1, lanes, dtype=np.int64) * step
    # All windows as rows of one view; a header's third byte stands two behind its begin.
    thirds = np.ndarray((lanes - 1, window - 2), np.uint8, buffer, int(starts[0]) + 2, (step, 1))
    lane, offset = np.nonzero(thirds == 0)
    at = starts[lane] + offset
    low, size = _words(buffer), len(buffer)
    number = buffer[at + 3]
    for _ in range(CHAIN):
        behind = at + low[at] + HEADER
        inside = np.minimum(behind, size - HEADER)
        number = number + np.uint8(1)  # wraps, as the server's does
        leads_on = (behind == inside) & (buffer[inside + 2] == 0) & (buffer[inside + 3] == number)
        at, number, lane = behind[leads_on], number[leads_on], lane[leads_on]
    first: Places = at[np.unique(lane, return_index=True)[1]]
    return np.unique(first)


def _words(buffer: Bytes) -> NDArray[np.uint16]:
    """Read a word of two bytes at every place."""
    return np.ndarray((len(buffer) - 1,), "<u2", buffer, 0, (1,))
