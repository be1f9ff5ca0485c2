"""How fast, when and how much a source may be read: `rate_limit`, `read_windows`, `budget`.

Belongs here: the YAML blocks, when a window is open, and the values that go to tasks with them. Not here: counting
what was read (`state/readings.py`), waiting for it (`read/meter.py`), words (`rivet_assets/run/read_limits.py`).

A time that a clock shows twice is the first of the two; one that it leaves out is counted on from the time before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated, Any, Literal, Self, TypeVar
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from rivet_resources.contracts.settings import Settings, Size

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
Listed = TypeVar("Listed")
CODE = "RIVET_CONFIG_READ_LIMIT"
DAY_MINUTES = 24 * 60
WARN_SHARE = 0.8  # of a budget


def _time_of_day(text: object) -> object:
    """Refuse what is not a time such as `22:00`; some readers of YAML make a number of it where quotes are missing."""
    match = re.fullmatch(r"(\d\d):(\d\d)", text) if isinstance(text, str) else None
    minutes = int(match[1]) * 60 + int(match[2]) if match else -1
    if match is None or int(match[2]) > 59 or not 0 <= minutes <= DAY_MINUTES:
        raise PydanticCustomError(
            CODE, "{value} is not a time of day; write hours and minutes, such as '22:00'", {"value": text}
        )
    return text


def _some(listed: tuple[Listed, ...] | None) -> tuple[Listed, ...] | None:
    """Refuse an empty list: it would mean never, and always is meant by no key."""
    if listed == ():
        raise PydanticCustomError(CODE, "lists none, so that the source could never be read; remove it, or name some")
    return listed


def known_zone(name: str) -> str:
    """Return the name of a time zone.

    Raises:
        PydanticCustomError: the time zone database does not have it.
    """
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise PydanticCustomError(
            "RIVET_CONFIG_TIMEZONE", "'{name}' is not an IANA time zone, such as Europe/Prague", {"name": name}
        ) from error
    return name


TimeOfDay = Annotated[str, BeforeValidator(_time_of_day, json_schema_input_type=str)]


class RateLimit(Settings):
    """How fast rows may be read, over all tasks and all runs."""

    rows_per_second: int | None = Field(None, ge=1, description="as they leave the source, before filters")
    bytes_per_second: Size | None = Field(None, description="as Arrow holds them: a number with B, KB, MB or GB")

    @model_validator(mode="after")
    def _some_limit(self) -> Self:
        """Refuse a block that limits nothing."""
        if self.rows_per_second is None and self.bytes_per_second is None:
            raise PydanticCustomError(CODE, "limits nothing; write rows_per_second, bytes_per_second, or both")
        return self

    @property
    def text(self) -> str:
        """Word the limit for people."""
        told = [f"{self.rows_per_second:,} rows/s"] if self.rows_per_second else []
        return " and ".join([*told, *([f"{self.bytes_per_second:,} bytes/s"] if self.bytes_per_second else [])])


class ReadWindow(Settings):
    """A time of the day when the source may be read. One that ends before it starts goes over midnight."""

    start: TimeOfDay = Field(description="'22:00', inclusive")
    end: TimeOfDay = Field(description="'06:00', exclusive; '24:00' is midnight")
    days: Annotated[tuple[Day, ...], AfterValidator(_some)] = Field(
        DAYS, description="on which it starts; default: all"
    )
    timezone: Annotated[str, AfterValidator(known_zone)] = Field("UTC", description="IANA name, such as Europe/Prague")

    @model_validator(mode="after")
    def _has_a_length(self) -> Self:
        """Refuse a window without a minute in it."""
        if self.start == self.end or self.start == "24:00":
            raise PydanticCustomError(
                CODE,
                "starts at {start} and ends at {end}, which is no time; for a whole day write '00:00' to '24:00'",
                {"start": self.start, "end": self.end},
            )
        return self

    @property
    def text(self) -> str:
        """Word the window for people."""
        days = "" if set(self.days) == set(DAYS) else f" {', '.join(day for day in DAYS if day in self.days)}"
        return f"{self.start} to {self.end}{days} ({self.timezone})"

    def spans(self, at: datetime, *, days: int = 1) -> Iterator[tuple[datetime, datetime]]:
        """Yield (start, end) in UTC of those that start from the day before `at` on, for so many days."""
        zone = ZoneInfo(self.timezone)
        today = at.astimezone(zone).date()
        # From yesterday: a night that began before midnight may still be open.
        for ahead in range(-1, days):
            day = today + timedelta(days=ahead)
            if DAYS[day.weekday()] not in self.days:
                continue
            start = _instant(day, self.start, zone)
            # Each end by the zone's own calendar, and not start plus hours: the night in which clocks move is shorter
            # or longer.
            end = _instant(day if self.end > self.start else day + timedelta(days=1), self.end, zone)
            # False where clocks move over all of it.
            if start < end:
                yield start, end


def _instant(day: date, text: str, zone: ZoneInfo) -> datetime:
    """Return when a clock of the zone shows this time on this day."""
    if text == "24:00":
        day, text = day + timedelta(days=1), "00:00"
    return datetime.combine(day, time.fromisoformat(text), tzinfo=zone).astimezone(UTC)


class Budget(Settings):
    """How much may be read of the source in one calendar month, in UTC."""

    rows_per_month: int | None = Field(None, ge=1, description="as they leave the source, before filters")
    bytes_per_month: Size | None = Field(None, description="as Arrow holds them: a number with B, KB, MB or GB")
    on_reached: Literal["stop", "warn"] = Field(
        "stop", description="stop: nothing more is read until the month ends, and a run is stopped; warn: it is told"
    )

    @model_validator(mode="after")
    def _some_budget(self) -> Self:
        """Refuse a block without a number."""
        if self.rows_per_month is None and self.bytes_per_month is None:
            raise PydanticCustomError(CODE, "has no number; write rows_per_month, bytes_per_month, or both")
        return self

    def share(self, rows: int, size_bytes: int) -> float:
        """Return how much of it is read: 1 and more where it is reached."""
        shares = [rows / self.rows_per_month] if self.rows_per_month else []
        return max([*shares, *([size_bytes / self.bytes_per_month] if self.bytes_per_month else [])])

    def text(self, rows: int, size_bytes: int) -> str:
        """Word how much of it is read."""
        told = [f"{rows:,} of {self.rows_per_month:,} rows"] if self.rows_per_month else []
        if self.bytes_per_month:
            told.append(f"{size_bytes:,} of {self.bytes_per_month:,} bytes")
        return f"{' and '.join(told)} ({self.share(rows, size_bytes):.0%})"


SourceRate = Annotated[
    RateLimit | None, Field(description="how fast it may be read, over all runs that share a state store")
]
SourceWindows = Annotated[
    tuple[ReadWindow, ...] | None,
    AfterValidator(_some),
    Field(
        description="when it may be read: no run begins outside. What has begun ends, but drains, and chunks that are "
        "kept for the next run, of which no new one begins"
    ),
]
SourceBudget = Annotated[Budget | None, Field(description="how much of it may be read in a month, by failed runs too")]


@dataclass(frozen=True)
class SourceLimits:
    """What a source's block says of reading it; sources without these keys have none."""

    rate: RateLimit | None = None
    windows: tuple[ReadWindow, ...] = ()
    budget: Budget | None = None

    @property
    def is_counted(self) -> bool:
        """Return whether what is read must be counted."""
        return self.rate is not None or self.budget is not None


def limits_of(source: Any) -> SourceLimits:
    """Read the limits of a source."""
    # By `getattr`: engines of plugins, and rows that come from parts, have none of these keys.
    return SourceLimits(
        rate=getattr(source, "rate_limit", None),
        windows=getattr(source, "read_windows", None) or (),
        budget=getattr(source, "budget", None),
    )


def is_open(windows: Sequence[ReadWindow], at: datetime) -> bool:
    """Return whether the source may be read; always where there is no window."""
    return not windows or any(start <= at < end for window in windows for start, end in window.spans(at))


def next_opening(windows: Sequence[ReadWindow], at: datetime) -> datetime:
    """Return when the source may be read again: `at` where it may be now."""
    # Days are calendar days of the window's own zone, so a night is an hour shorter or longer where clocks move. A
    # window may fall out once where clocks move, so two weeks are looked at.
    if is_open(windows, at):
        return at
    return min(start for window in windows for start, _ in window.spans(at, days=15) if start > at)


def month_of(at: datetime) -> str:
    """Name the month that an instant is of: `2026-01`."""
    return f"{at.astimezone(UTC):%Y-%m}"


def month_end(at: datetime) -> datetime:
    """Return when the next month begins."""
    utc = at.astimezone(UTC)
    return datetime(utc.year + utc.month // 12, utc.month % 12 + 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class MonthRead:
    """What was read of a source in one month."""

    rows: int = 0
    size_bytes: int = 0


@dataclass(frozen=True)
class PageCounted:
    """What follows from a page that was counted."""

    wait_seconds: float  # until it is paid for
    month: MonthRead  # with this page


@dataclass(frozen=True)
class Metering:
    """What a task needs for keeping to the limits, wherever it runs."""

    store: str = field(repr=False)  # URL of the state store; may hold a password
    place: str  # of the source: two blocks with one server are one
    name: str  # of the export
    limits: SourceLimits
    export_rate: RateLimit | None = None
    ends_between_chunks: bool = False  # finished chunks are kept, so none begins after a window closed
