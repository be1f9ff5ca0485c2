"""Times of the SQL Server emulator, to 100 ns: stored as texts that sort as they should.

Belongs here: parsing, rounding, rendering and arithmetic of date, time, datetime, smalldatetime, datetime2,
datetimeoffset. Not here: SQL (sql.py), bytes (types.py).

A stored datetimeoffset is its UTC time and then its offset in minutes: `2018-07-13 01:23:45.4560000 +660`.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta

EPOCH = date(1, 1, 1)
DAY_TICKS = 864_000_000_000
TEXT = re.compile(
    r"\s*(?:(?P<y>\d{4})-?(?P<m>\d\d)-?(?P<d>\d\d))?[T ]?"
    r"(?:(?P<H>\d{1,2}):(?P<M>\d\d)(?::(?P<S>\d\d)(?:\.(?P<f>\d{1,9}))?)?)?"
    r"\s*(?P<z>Z|[+-]\d\d:\d\d)?\s*"
)
STORED_OFFSET = re.compile(r"(.*) ([+-]?\d+)$")


class Unparsable(ValueError):
    """A text is no time: error 241 of the server."""


def parsed(text: str, kind: str) -> tuple[int, int, int]:
    """Read a user's or a stored text: (ordinal of the day, 100 ns ticks, offset in minutes); offsets count as UTC.

    Raises:
        Unparsable
    """
    offset = 0
    stored = STORED_OFFSET.fullmatch(text) if ":" in text and len(text) > 27 else None
    is_stored = bool(stored) and ":" not in (stored[2] if stored else "")
    if stored and is_stored:
        text, offset = stored[1], int(stored[2])
    match = TEXT.fullmatch(text)
    if not match or not text.strip():
        raise Unparsable
    day = (
        date(int(match["y"]), int(match["m"]), int(match["d"])).toordinal()
        if match["y"]
        else date(1900, 1, 1).toordinal()
    )
    fraction = (match["f"] or "").ljust(7, "0")[:7]
    ticks = (int(match["H"] or 0) * 3600 + int(match["M"] or 0) * 60 + int(match["S"] or 0)) * 10_000_000 + int(
        fraction
    )
    if match["z"] and match["z"] != "Z":
        offset = (1 if match["z"][0] == "+" else -1) * (int(match["z"][1:3]) * 60 + int(match["z"][4:]))
        if kind == "datetimeoffset":
            day, ticks = shifted(day, ticks, -offset * 600_000_000)
    return day, ticks, offset


def shifted(day: int, ticks: int, by: int) -> tuple[int, int]:
    """Move a moment by ticks."""
    carry, ticks = divmod(ticks + by, DAY_TICKS)
    return day + carry, ticks


def ticks_of(text: str) -> int:
    """Return the ticks of a stored moment since year 1, for differences."""
    day, ticks, _ = parsed(text, "datetime2")
    return day * DAY_TICKS + ticks


def stored(text: str | None, kind: str, scale: int, source: str = "") -> str | None:
    """Return the stored form of a text for a type, rounded as the server rounds; `source` is its type, if stored."""
    if text is None:
        return None
    day, ticks, offset = parsed(text, "datetimeoffset" if source == "datetimeoffset" else kind)
    if source == "datetimeoffset" and kind != "datetimeoffset":
        day, ticks = shifted(day, ticks, offset * 600_000_000)  # the local time is what is kept
    if kind == "datetime":
        ticks = round(ticks * 300 / 10_000_000)  # thirds of a hundredth, shown as .000 .003 .007
        ticks = (ticks * 100 + 15) // 30 * 10_000
    elif kind == "smalldatetime":
        ticks = (ticks + 300_000_000 - 1) // 600_000_000 * 600_000_000
    else:
        unit = 10 ** (7 - scale)
        ticks = (ticks + unit // 2) // unit * unit
    day, ticks = shifted(day, ticks, 0)
    shown = date.fromordinal(day).isoformat()
    clock = clock_of(ticks, 7)
    if kind == "date":
        return shown
    if kind == "time":
        return clock
    return f"{shown} {clock}" + (f" {offset:+d}" if kind == "datetimeoffset" else "")


def clock_of(ticks: int, scale: int) -> str:
    """Write a time of day with so many digits."""
    seconds, fraction = divmod(ticks, 10_000_000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{text}.{fraction:07d}"[: 9 + scale] if scale else text


def shown(stored_text: str | None, kind: str, scale: int, style: int) -> str | None:
    """Write a stored time as CONVERT(varchar, …, style) does: 23, 112, 121, 126 and the default."""
    if stored_text is None:
        return None
    day, ticks, offset = parsed(stored_text, kind)
    if kind == "datetimeoffset":
        day, ticks = shifted(day, ticks, offset * 600_000_000)
    digits = {"datetime": 3, "smalldatetime": 0, "date": 0}.get(kind, scale)
    days = date.fromordinal(day).isoformat()
    zone = (
        f"{'-' if offset < 0 else '+'}{abs(offset) // 60:02d}:{abs(offset) % 60:02d}"
        if kind == "datetimeoffset"
        else ""
    )
    if kind == "date":
        return days.replace("-", "") if style == 112 else days
    if kind == "time":
        return clock_of(ticks, digits)
    glue = "T" if style in (126, 127) else " "
    return days + glue + clock_of(ticks, digits) + (("" if glue == "T" else " ") + zone if zone else "")


def now(zone: str = "utc") -> str:
    """Return the clock in stored form; the emulator's local time is UTC."""
    del zone
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f") + "0"


UNIT_TICKS = {
    "nanosecond": 0.01, "microsecond": 10, "millisecond": 10_000, "second": 10_000_000, "minute": 600_000_000,
    "hour": 36_000_000_000, "day": DAY_TICKS, "week": 7 * DAY_TICKS,
}  # fmt: skip


def added(unit: str, number: int, stored_text: str | None) -> str | None:
    """Do DATEADD on a datetime2; months and years are not emulated."""
    if stored_text is None:
        return None
    day, ticks, _ = parsed(stored_text, "datetime2")
    day, ticks = shifted(day, ticks, int(UNIT_TICKS[unit.lower()] * number))
    return f"{date.fromordinal(day).isoformat()} {clock_of(ticks, 7)}"


def between(unit: str, low: str | None, high: str | None) -> int | None:
    """Do DATEDIFF: boundaries of the unit that lie between."""
    if low is None or high is None:
        return None
    size = int(UNIT_TICKS[unit.lower()])
    return ticks_of(high[:27]) // size - ticks_of(low[:27]) // size


def part(unit: str, stored_text: str | None, kind: str) -> int | None:
    """Do DATEPART."""
    if stored_text is None:
        return None
    day, ticks, _ = parsed(stored_text, kind)
    whole = date.fromordinal(day)
    seconds = ticks // 10_000_000
    return {
        "year": whole.year, "month": whole.month, "day": whole.day, "hour": seconds // 3600,
        "minute": seconds // 60 % 60, "second": seconds % 60, "nanosecond": ticks % 10_000_000 * 100,
    }[unit.lower()]  # fmt: skip


def in_zone(stored_text: str | None, zone: str) -> str | None:
    """Do AT TIME ZONE on a naive time: the offset that holds there then; stored form of a datetimeoffset."""
    if stored_text is None:
        return None
    from zoneinfo import ZoneInfo

    from rivet_resources.engines.sqlserver.zones import WINDOWS

    name = next(iana for iana, windows in WINDOWS.items() if windows == zone)
    naive = datetime.fromisoformat(stored_text[:26])
    offset = int((naive.replace(tzinfo=ZoneInfo(name)).utcoffset() or timedelta()).total_seconds() // 60)
    day, ticks, _ = parsed(stored_text, "datetime2")
    day, ticks = shifted(day, ticks, -offset * 600_000_000)
    return f"{date.fromordinal(day).isoformat()} {clock_of(ticks, 7)} {offset:+d}"
