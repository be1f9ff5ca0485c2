"""Spell many dates and times at once, by looking days and seconds up.

Belongs here: ISO 8601 as the row hash reads it (`contract.md`, 9): years of four digits, others with a sign; a
fraction in groups of three digits, left out when it is zero. Not here: time zones; an instant is a number in UTC.
What has one width is written into its frame at once.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from rivet_resources.shape.rowhash.frames import (
    COUNTED,
    MARKED,
    WINDOW,
    Bytes,
    Framed,
    HashCells,
    Mask,
    Places,
    heads,
    layout,
)
from rivet_resources.shape.rowhash.numbers import over

UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
DAY_SECONDS = 86_400
# 1900-01-01 to 2100-01-01: those looked up. Days of 0000-01-01 and 10000-01-01: those with four digits.
KNOWN_DAYS = (-25_567, 47_482)
PLAIN_DAYS = (-719_528, 2_932_897)
DAY_BYTES, CLOCK_BYTES = 10, 8
# One minute more than a day has: PostgreSQL knows 24:00:00.
MINUTES = np.frombuffer("".join(f"{one // 60:02d}:{one % 60:02d}:\0\0" for one in range(24 * 60 + 1)).encode(), "<u8")
SECONDS = np.frombuffer("".join(f"{one:02d}.\0" for one in range(60)).encode(), "<u4")
GROUP = np.frombuffer("".join(f"{number:03d}\0" for number in range(1_000)).encode(), "<u4")
GROUPS = ("ms", "us", "ns")


def dates(days: Places, present: Mask | None) -> HashCells | Framed:
    """Spell days since 1970-01-01."""
    # One far day sends the whole piece through Python: such pieces are rare, and one way to write is enough for the
    # others.
    if not _inside(days, PLAIN_DAYS):
        return _join_texts([_far_day(day) for day in days.tolist()], present)
    found = np.empty(len(days), layout(COUNTED, DAY_BYTES))
    lengths = np.full(len(days), DAY_BYTES)
    found["head"] = heads(lengths, present)
    found["body"] = _days(days)
    return Framed(found.view(f"V{found.itemsize}"), _sizes(lengths, present))


def times(found: Places, unit: int, present: Mask | None) -> HashCells | Framed:
    """Spell times of day, in fractions `1 / unit` of a second."""
    seconds, fraction = _divide(found, unit)
    if not _inside(seconds, (0, DAY_SECONDS + 1)):
        return _join_texts([_far_time(one, unit) for one in found.tolist()], present)
    rows = np.empty(len(found), _row(0))
    lengths = _clock(rows, seconds, fraction, unit)
    return _framed(rows, lengths, present)


def timestamps(found: Places, unit: int, present: Mask | None, *, zone: str) -> HashCells | Framed:
    """Spell instants since 1970-01-01, with `zone` behind: one letter or none."""
    days, rest = _divide(found, DAY_SECONDS * unit)
    if not _inside(days, PLAIN_DAYS):
        spans = [_far_time(one, unit) for one in rest.tolist()]
        texts = [f"{_far_day(day)}T{span}{zone}" for day, span in zip(days.tolist(), spans, strict=True)]
        return _join_texts(texts, present)
    seconds, fraction = _divide_positive(rest, unit)
    rows = np.empty(len(found), _row(DAY_BYTES + 1))
    rows["day"] = _days(days)
    rows["T"] = ord("T")
    lengths = _clock(rows, seconds, fraction, unit) + (DAY_BYTES + 1)
    if zone:
        _zone(rows, lengths, zone)
        lengths += 1
    return _framed(rows, lengths, present)


def _clock(rows: npt.NDArray[np.void], seconds: Places, fraction: Places, unit: int) -> Places:
    """Write `HH:MM:SS`, a point and groups of three digits; the bytes of each."""
    minutes, seconds = _divide_positive(seconds, 60)
    rows["minute"], rows["second"] = MINUTES[minutes], SECONDS[seconds]
    lengths = np.full(len(rows), CLOCK_BYTES)
    for name in GROUPS:
        unit //= 1_000
        if not unit:
            break
        group, rest = (fraction, fraction) if unit == 1 else _divide_positive(fraction, unit)
        rows[name] = GROUP[group]
        # A group is said when it, or one behind it, is not zero; the first brings the point along.
        said, size = fraction != 0, 4 if name == GROUPS[0] else 3
        lengths += size if said.all() else said * size
        fraction = rest
    return lengths


def _zone(rows: npt.NDArray[np.void], lengths: Places, zone: str) -> None:
    """Write a letter behind each text."""
    flat = rows.view(np.uint8)
    if len(rows) and lengths.min() == lengths.max():
        flat.reshape(len(rows), -1)[:, COUNTED + int(lengths[0])] = ord(zone)
    else:
        flat[np.arange(len(rows)) * rows.itemsize + COUNTED + lengths] = ord(zone)


def _framed(rows: npt.NDArray[np.void], lengths: Places, present: Mask | None) -> Framed:
    # Last: the fields before it reach under their neighbours, and `_row` says in which order they may be written.
    rows["head"], rows["high"] = heads(lengths, present), 0
    return Framed(rows.view(f"V{rows.itemsize}"), _sizes(lengths, present))


@lru_cache(maxsize=2)
def _row(start: int) -> np.dtype[np.void]:
    """Describe a frame whose clock begins `start` bytes behind its head; with room for a zone."""
    at = COUNTED + start
    fields = [("head", "<u4", 0), ("high", "u1", 4), ("minute", "<u8", at), ("second", "<u4", at + 6)]
    fields += [("ms", "<u4", at + 9), ("us", "<u4", at + 12), ("ns", "<u4", at + 15)]
    if start:
        fields += [("day", f"V{DAY_BYTES}", COUNTED), ("T", "u1", COUNTED + DAY_BYTES)]
    names, formats, offsets = (list(each) for each in zip(*fields, strict=True))
    # Every field reaches under the next one by the bytes it has too many, so they are written in this order.
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": at + 20})


def _sizes(lengths: Places, present: Mask | None) -> Places:
    """Return the bytes of cells in their frames."""
    return lengths + COUNTED if present is None else np.where(present, lengths + COUNTED, MARKED)


def _days(days: Places) -> npt.NDArray[np.void]:
    """Return the texts of days whose years have four digits."""
    return _known_days()[days - KNOWN_DAYS[0]] if _inside(days, KNOWN_DAYS) else _spelled_days(days)


@lru_cache(maxsize=1)
def _known_days() -> npt.NDArray[np.void]:
    return _spelled_days(np.arange(*KNOWN_DAYS))


def _spelled_days(days: Places) -> npt.NDArray[np.void]:
    return days.astype("M8[D]").astype(f"S{DAY_BYTES}").view(f"V{DAY_BYTES}")


def _far_day(day: int) -> str:
    """Spell one day of any year."""
    first = np.datetime64(day, "D")
    month = first.astype("M8[M]")
    year, number = divmod(int(month.astype(np.int64)), 12)
    year += 1970
    spelled = f"{year:04d}" if 0 <= year <= 9999 else f"{'-' if year < 0 else '+'}{abs(year):04d}"
    return f"{spelled}-{number + 1:02d}-{int((first - month.astype('M8[D]')).astype(np.int64)) + 1:02d}"


def _far_time(found: int, unit: int) -> str:
    """Spell one time of day or a span."""
    seconds, fraction = divmod(abs(found), unit)
    figures = f"{fraction:0{len(str(unit)) - 1}d}" if fraction else ""
    while figures.endswith("000"):
        figures = figures[:-3]
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{'-' if found < 0 else ''}{clock}{'.' if figures else ''}{figures}"


def _divide(number: Places, by: int) -> tuple[Places, Places]:
    """Return quotient and rest; numpy's divmod minds the signs twice, and takes three times as long."""
    whole = number // by
    return whole, number - whole * by


def _divide_positive(number: Places, by: int) -> tuple[Places, Places]:
    """Return quotient and rest of what is not below zero."""
    whole = over(number, by)
    return whole, number - whole * by


def _inside(number: Places, ends: tuple[int, int]) -> bool:
    return not len(number) or (int(number.min()) >= ends[0] and int(number.max()) < ends[1])


def _join_texts(texts: list[str], present: Mask | None) -> HashCells:
    """Lay texts behind one another."""
    lengths = np.array([len(text) for text in texts], np.int64)
    values: Bytes = np.frombuffer("".join(texts).encode() + bytes(WINDOW), np.uint8)
    return HashCells(values, np.cumsum(lengths) - lengths, lengths if present is None else lengths * present, present)
