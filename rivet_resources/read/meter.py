"""Keeping to a source's limits: counting each page, waiting until it is paid for, and ending where no more may be read.

Belongs here: what one task does, and the refusal before anybody connects. Not here: the numbers that tasks share
(`state/readings.py`), what limits there are (`contracts/read_limits.py`).

Tasks count in the state store, since it is the one place that all of them share, also those of other runs. A page's
size is known when it was read: so it is paid for afterwards, and pages are kept so small that none costs much more
than a second. Over any time no more is read than the rate allows, and one page per task.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import Protocol

from rivet_resources.contracts.extract import Extract
from rivet_resources.contracts.read_limits import (
    Budget,
    Metering,
    MonthRead,
    PageCounted,
    RateLimit,
    SourceLimits,
    is_open,
    limits_of,
    month_end,
    next_opening,
)
from rivet_resources.contracts.settings import Pace
from rivet_resources.contracts.source import Page
from rivet_resources.engines.shared.server import Server
from rivet_resources.errors import BudgetReached, ConfigError, ReadWindowClosed

MIB = 1024 * 1024
USUAL_PAGE_MB = 16
LONGEST_SLEEP_SECONDS = 1.0

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """Return the time of this machine."""
    return datetime.now(UTC)


class PageCounter(Protocol):
    """What counting needs of the state store; `State` has it."""

    def count_page(self, place: str, page: MonthRead, costs: Mapping[str, float]) -> PageCounted:
        """Add a page to its source's month, and put off each meter."""


class Months(Protocol):
    """What a refusal needs of the state store; `State` has it."""

    def read_in_month(self, place: str, at: datetime) -> MonthRead:
        """Return what was read of a source in the month of `at`."""


def place_of(source: object, pace: Pace) -> str:
    """Name what two blocks of one server, or of one file, have in common.

    Raises:
        ConfigError: the source's address cannot be resolved.
    """
    if isinstance(source, Server):
        # Host and port as for permits: two blocks with two users of one server share its month and its rate.
        return str(source.conn_params("rivet", pace).where)  # type: ignore[attr-defined]  # each engine has its own
    kind = getattr(source, "type", type(source).__name__)
    # The real path: a link to a file, or a relative path, is the same file.
    if (find := getattr(source, "conn_params", None)) is not None:  # a file
        return f"{kind}:{os.path.realpath(find(pace).path)}"
    return f"{kind}:{getattr(source, 'stream_name', '')}"


def refuse_now(source: object, *, name: str, state: Months, pace: Pace, at: datetime) -> None:
    """Raise where a source may not be read now; nobody has connected yet. Without limits nothing is looked up.

    Raises:
        ReadWindowClosed, BudgetReached: with the instant from which on it may be read again.
        ConfigError: the source's address cannot be resolved.
    """
    limits = limits_of(source)
    refuse_closed(limits, name=name, at=at)
    # With `on_reached: warn` nothing is refused, so the store is not asked.
    if limits.budget is not None and limits.budget.on_reached == "stop":
        refuse_spent(limits.budget, state.read_in_month(place_of(source, pace), at), name=name, at=at)


def refuse_closed(limits: SourceLimits, *, name: str, at: datetime) -> None:
    """Raise outside of the source's windows.

    Raises:
        ReadWindowClosed
    """
    if is_open(limits.windows, at):
        return
    opens = next_opening(limits.windows, at)
    raise ReadWindowClosed(
        f"{name}: the source may be read {'; '.join(window.text for window in limits.windows)}, and it is "
        f"{at:%Y-%m-%d %H:%M} UTC. The next window opens at {opens:%Y-%m-%d %H:%M} UTC; run again then, or change "
        f"`read_windows` of the source.",
        not_before=opens.timestamp(),
    )


def refuse_spent(budget: Budget, read: MonthRead, *, name: str, at: datetime) -> None:
    """Raise where the month's budget is reached.

    Raises:
        BudgetReached
    """
    if budget.share(read.rows, read.size_bytes) < 1:
        return
    ends = month_end(at)
    raise BudgetReached(
        f"{name}: the budget of the source for {at:%Y-%m} is reached: {budget.text(read.rows, read.size_bytes)} were "
        f"read. Nothing more is read before {ends:%Y-%m-%d} UTC; run again then, raise `budget` of the source, or "
        f"write `on_reached: warn`.",
        not_before=ends.timestamp(),
    )


def slowed(pace: Pace, *rates: RateLimit | None) -> Pace:
    """Return a pace whose pages take about a second at the slowest of these rates, with the same throttle per row."""
    rows = min((rate.rows_per_second for rate in rates if rate and rate.rows_per_second), default=None)
    size = min((rate.bytes_per_second for rate in rates if rate and rate.bytes_per_second), default=None)
    changed: dict[str, object] = {}
    if rows is not None and rows < pace.batch_size:
        # The pause belongs to a full page of the old size; per row it stays what the user wrote.
        throttle_ms = pace.throttle_ms * rows // pace.batch_size
        changed |= {"batch_size": rows, "batch_size_is_explicit": True, "throttle_ms": throttle_ms}
    # The usual page stands for one whose size in memory nobody set; without it a byte rate would never shrink
    # pages.
    if size is not None and size < (pace.batch_size_memory_mb or USUAL_PAGE_MB) * MIB:
        changed["batch_size_memory_mb"] = max(1, size // MIB)
    return pace.model_copy(update=changed)


class Meter:
    """Counts what one task reads, and waits."""

    def __init__(
        self,
        metering: Metering,
        counter: PageCounter,
        *,
        clock: Clock = utc_now,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._metering, self._counter = metering, counter
        self._clock, self._sleep = clock, sleep

    def begin(self) -> float:
        """Wait until what others have read is paid for; return the seconds it took.

        Raises:
            ReadWindowClosed: of an export whose finished chunks are kept.
            BudgetReached: the month's budget is spent.
        """
        # Only where finished chunks are kept does an end in the middle lose nothing; other exports that began
        # within a window finish.
        if self._metering.ends_between_chunks:
            refuse_closed(self._metering.limits, name=self._name, at=self._clock())
        # An empty page costs nothing and brings back how much is owed: what other runs read is waited for before
        # the first statement.
        return self._count(MonthRead())

    def count(self, page: Page) -> float:
        """Count a page and wait until it is paid for; return the seconds it took.

        A page that crosses the budget is kept, for its rows are read; the next one is refused.

        Raises:
            BudgetReached: it was spent before this page.
        """
        # The size in Arrow and not on the wire: it is what every engine can count alike.
        return self._count(MonthRead(page.table.num_rows, page.nbytes))

    @property
    def _name(self) -> str:
        return f"Export {self._metering.name}"

    def _count(self, page: MonthRead) -> float:
        limits = self._metering.limits
        counted = self._counter.count_page(self._metering.place, page, dict(self._costs(page)))
        # Judged by what stood before this page: a page that crosses the limit was read already, and throwing it away
        # would spend the budget for nothing.
        if limits.budget is not None and limits.budget.on_reached == "stop":
            # As it stood before this page, counted by the store: other tasks may have read meanwhile.
            before = MonthRead(counted.month.rows - page.rows, counted.month.size_bytes - page.size_bytes)
            refuse_spent(limits.budget, before, name=self._name, at=self._clock())
        left = counted.wait_seconds
        while left > 0:
            # In pieces, so that a signal is heard soon.
            self._sleep(min(left, LONGEST_SLEEP_SECONDS))
            left -= LONGEST_SLEEP_SECONDS
        return counted.wait_seconds

    def _costs(self, page: MonthRead) -> Iterator[tuple[str, float]]:
        """Yield each meter with the seconds that a page takes at its rate."""
        rates = {f"source:{self._metering.place}": self._metering.limits.rate}
        # Two projects on one store may have an export of the same name, so the source's place is part of the
        # meter's name.
        own = f"export:{self._metering.place} {self._metering.name}"
        for owner, rate in {**rates, own: self._metering.export_rate}.items():
            if rate is not None and rate.rows_per_second is not None:
                yield f"{owner} rows", page.rows / rate.rows_per_second
            if rate is not None and rate.bytes_per_second is not None:
                yield f"{owner} bytes", page.size_bytes / rate.bytes_per_second


@contextmanager
def meter_of(extract: Extract) -> Iterator[Meter | None]:
    """Open the meter of a task; None where nothing limits its export.

    Raises:
        StateError: the store cannot be reached from here.
    """
    if extract.metering is None:
        yield None
        return
    from rivet_resources.state.store import open_state  # start

    with closing(open_state(extract.metering.store)) as state:
        yield Meter(extract.metering, state)


def is_limited(extract: Extract) -> bool:
    """Return whether tasks must count, or look at the clock."""
    limits = limits_of(extract.source)
    return limits.is_counted or extract.rate_limit is not None or bool(limits.windows and extract.resumable)


def metered(extract: Extract, *, store: str, is_far: bool, is_encrypted: bool) -> Extract:
    """Return an extract whose tasks keep to the limits of its source and its export.

    Args:
        store: URL of the state store.
        is_far: whether tasks run on other machines.
        is_encrypted: whether the lines to these are.

    Raises:
        ConfigError: tasks elsewhere could not reach a store that is a file here, or would get its password in clear.
    """
    from sqlalchemy import make_url  # start

    limits = limits_of(extract.source)
    # Refused here and not by a task: a path of this machine names another file there, or none.
    if is_far and store.startswith("sqlite"):
        raise ConfigError(
            f"Export {extract.export} has limits (`rate_limit`, `read_windows` or `budget`), which tasks on other "
            f"machines count in the state store, and that is a file of this one. Write `state: postgresql://…`, run "
            f"with a local master, or remove the limits."
        )
    # The extract travels pickled, with this URL in it.
    if is_far and not is_encrypted and make_url(store).password:
        raise ConfigError(
            f"Export {extract.export} has limits (`rate_limit`, `read_windows` or `budget`), which tasks on other "
            f"machines count in the state store, and the password in its URL would travel to them over lines that are "
            f'not encrypted. Encrypt them (docs/guides/cluster.md, "Secrets"), let '
            f"the store take its password from elsewhere (PGPASSFILE), or remove the limits."
        )
    return extract.with_metering(
        Metering(
            store=store,
            place=place_of(extract.source, extract.pace),
            name=extract.export,
            limits=limits,
            export_rate=extract.rate_limit,
            ends_between_chunks=extract.resumable,
        ),
        # A page read ahead would be beyond the limit, and uncounted where reading ends at it.
        pace=slowed(extract.pace, limits.rate, extract.rate_limit).model_copy(update={"reads_ahead": False}),
    )
