"""Dates, times and instants of a binary log, as parts and as microseconds.

Belongs here: the packed forms of MySQL 5.5 and 5.6. Not here: what becomes of a zero date (values.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rivet_resources.engines.mysql.binlog import events as ev
from rivet_resources.engines.mysql.binlog.row_layout import Integers, Truths, big, little
from rivet_resources.engines.mysql.binlog.vector import Vector, values

SECOND = 1_000_000
MONTH_DAYS = np.array([31, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31, 31, 31, 31])  # 0 and 13 on: any


def days(year: Integers, month: Integers, day: Integers) -> Integers:
    """Count days since 1970-01-01, by the proleptic Gregorian calendar."""
    year = year - (month <= 2)
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * (month + np.where(month > 2, -3, 9)) + 2) // 5 + day - 1
    found: Integers = era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468
    return found


@dataclass(frozen=True)
class Moments:
    """Dates and times in parts, as the server prints them; a TIMESTAMP has none but `micros`."""

    year: Integers
    month: Integers
    day: Integers
    second: Integers  # of the day
    micro: Integers

    @property
    def is_partial(self) -> Truths:
        """Which have no month or no day: zero dates are that too."""
        found: Truths = (self.month == 0) | (self.day == 0)
        return found

    @property
    def is_impossible(self) -> Truths:
        """Which name a day that their month does not have (ALLOW_INVALID_DATES)."""
        leap = (self.year % 4 == 0) & ((self.year % 100 != 0) | (self.year % 400 == 0))
        last = MONTH_DAYS[self.month & 15] + (leap & (self.month == 2))
        found: Truths = ~self.is_partial & ((self.day > last) | (self.month > 12))
        return found


def moments(vector: Vector) -> Moments:
    """Read DATE, or DATETIME of either form."""
    buffer, at, kind = vector.buffer, vector.at, vector.field.type
    none = np.zeros(len(vector), np.int64)
    if kind == ev.DATE:
        # Day (5 bits), month (4), year.
        packed = little(buffer, at, 3)
        return Moments(packed >> 9, (packed >> 5) & 15, packed & 31, none, none)
    if kind == ev.DATETIME:
        # A number whose decimal digits are YYYYMMDDhhmmss.
        packed = little(buffer, at, 8)
        date, clock = packed // 1_000_000, packed % 1_000_000
        second = (clock // 10000 * 60 + clock // 100 % 100) * 60 + clock % 100
        return Moments(date // 10000, date // 100 % 100, date % 100, second, none)
    # Offset so that bytes sort: years times 13 and month (17 bits), day (5), hour (5), minute (6), second (6).
    packed = big(buffer, at, 5) - 0x8000000000
    month = packed >> 22
    second = (((packed >> 12) & 31) * 60 + ((packed >> 6) & 63)) * 60 + (packed & 63)
    return Moments(month // 13, month % 13, (packed >> 17) & 31, second, _fraction(vector, at + 5))


def _fraction(vector: Vector, at: Integers) -> Integers:
    """Read the microseconds behind a time of MySQL 5.6's form."""
    size = (vector.field.meta[0] + 1) // 2
    found: Integers = big(vector.buffer, at, size) * 10 ** (6 - 2 * size)
    return found


def instants(vector: Vector) -> tuple[Integers, Truths]:
    """Read a TIMESTAMP as µs since 1970, and which are the zero date."""
    if vector.field.type == ev.TIMESTAMP:
        second, micro = little(vector.buffer, vector.at, 4), np.zeros(len(vector), np.int64)
    else:
        second, micro = big(vector.buffer, vector.at, 4), _fraction(vector, vector.at + 4)
    return second * SECOND + micro, (second == 0) & (micro == 0)


def clock(vector: Vector) -> pa.Array:
    """Read a TIME as int64 µs, of either sign and up to 838 hours."""
    buffer, at, field = vector.buffer, vector.at, vector.field
    if field.type == ev.TIME:
        packed = little(buffer, at, 3)
        packed = (packed ^ 0x800000) - 0x800000
        size = np.abs(packed)
        second = (size // 10000 * 60 + size // 100 % 100) * 60 + size % 100
        return values(vector, np.sign(packed) * second * SECOND, pa.int64())
    width = (field.meta[0] + 1) // 2
    # One number with its fraction, offset so that it sorts: below the offset it is negative, fraction and all.
    whole = big(buffer, at, 3 + width) - (0x800000 << (8 * width))
    value = np.abs(whole)
    packed, fraction = value >> (8 * width), value & ((1 << (8 * width)) - 1)
    second = ((packed >> 12) & 1023) * 3600 + ((packed >> 6) & 63) * 60 + (packed & 63)
    return values(vector, np.sign(whole) * (second * SECOND + fraction * 10 ** (6 - 2 * width)), pa.int64())
