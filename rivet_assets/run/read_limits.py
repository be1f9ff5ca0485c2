"""What people are told of a source's limits: by `rivet check` and `rivet plan` before a run, in its journal after it.

Belongs here: words, and the end of a drain where a window closes. Not here: the limits (`contracts/read_limits.py`),
keeping to them (`read/meter.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rivet_resources.contracts.evidence import Finding
from rivet_resources.contracts.read_limits import WARN_SHARE, is_open, limits_of, month_end, next_opening
from rivet_resources.contracts.settings import pace
from rivet_resources.read.meter import place_of

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_resources.contracts.source import Source
    from rivet_resources.state.store import State


def limit_findings(
    export: Export, source: Source, *, state: State | None, rows: int | None, at: datetime
) -> Iterator[Finding]:
    """Yield what the limits mean for a run at `at`; without limits nothing is looked up.

    Args:
        state: None where there is no store yet, so that nothing was read.
        rows: about as many would be read; None: nobody knows.

    Raises:
        ConfigError, StateError
    """
    limits = limits_of(source)
    for owner, rate in (("the source", limits.rate), ("the export", export.rate_limit)):
        if rate is not None:
            yield Finding("rate-limit", "ok", f"{owner} is read at no more than {rate.text}{_at_least(rate, rows)}")
    if limits.windows:
        told = f"it may be read {'; '.join(window.text for window in limits.windows)}"
        opens = next_opening(limits.windows, at)
        if opens == at:
            yield Finding("read-window", "ok", f"{told}: open now")
        else:
            yield Finding("read-window", "warn", f"{told}: closed now, opens at {opens:%Y-%m-%d %H:%M} UTC", "run then")
    if (spent := budget_text(source, export, state=state, at=at)) is not None:
        share, text = spent
        yield Finding("budget", "ok" if share < WARN_SHARE else "warn", text)


def budget_notes(source: Source, export: Export, *, state: State, at: datetime) -> Iterator[str]:
    """Yield a warning where most of the month's budget is read; without a budget nothing is looked up."""
    told = budget_text(source, export, state=state, at=at)
    if told is not None and told[0] >= WARN_SHARE:
        yield told[1]


def budget_text(source: Source, export: Export, *, state: State | None, at: datetime) -> tuple[float, str] | None:
    """Return how much of the month's budget is read, as a share and in words; None without a budget."""
    budget = limits_of(source).budget
    if budget is None:
        return None
    place = place_of(source, pace(source.tuning, export.tuning))
    read = state.read_in_month(place, at) if state is not None else None
    rows, size = (read.rows, read.size_bytes) if read is not None else (0, 0)
    share = budget.share(rows, size)
    text = f"budget of the source for {at:%Y-%m}: {budget.text(rows, size)} read"
    if share >= 1 and budget.on_reached == "stop":
        text += f"; nothing more is read before {month_end(at):%Y-%m-%d} UTC"
    return share, text


def ends_at_closing(source: Source, is_asked: Callable[[], bool]) -> Callable[[], bool]:
    """Return what a drain asks between its windows: whether to end, as asked for or because the time is over."""
    windows = limits_of(source).windows
    if not windows:
        return is_asked
    return lambda: is_asked() or not is_open(windows, datetime.now(UTC))


def _at_least(rate: object, rows: int | None) -> str:
    """Return how long the rows of a run take at the least; '' where nobody knows."""
    most = getattr(rate, "rows_per_second", None)
    if most is None or not rows:
        return ""
    minutes, seconds = divmod(-(-rows // most), 60)
    hours, minutes = divmod(minutes, 60)
    told = [f"{hours} h"] if hours else []
    told += [f"{minutes} min"] if minutes else []
    return f": about {rows:,} rows take {' '.join(told or [f'{seconds} s'])} or more"
