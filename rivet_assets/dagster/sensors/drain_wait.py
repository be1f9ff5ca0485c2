"""How long changes wait while nobody drains them, and from when on that is red: `lag` turns by time, too.

Belongs here: since when, until when, the words. Not here: the lag itself (`run/judge/drain_verdicts.py`), asking for
drains (`drain_sensor.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster._utils.schedules import schedule_execution_time_iterator  # not exported; what schedules tick by

from rivet_assets.run.drain import NO_LAG
from rivet_assets.run.judge.drain_verdicts import LAG, ChangeVerdict, lag_verdict
from rivet_assets.run.log_status import LogLook
from rivet_resources.errors import LogBusy

if TYPE_CHECKING:
    from rivet_assets.dagster.sensors.drain_sensor_cursor import DrainTick
    from rivet_assets.modes.cdc import Cdc

LATE_SECONDS = 900.0  # after a drain is due: it starts in half a minute, and failed ones are tried again in minutes


# A queued run, a sensor whose drains all fail, a source that nobody can look at: nothing of that is a failed check by
# itself, and the bytes behind a source without a limit are none either.
@dataclass(frozen=True)
class Waiting:
    """Changes that nobody drained yet; times in unix seconds."""

    since: float = 0.0  # 0: nothing waits
    reached: str = ""  # the committed position, as a sort key: one that moves is a drain that works
    late_at: float = 0.0
    is_draining: bool = False

    def is_late(self, now: float) -> bool:
        """Return whether somebody should have drained by now."""
        return bool(self.since) and not self.is_draining and now >= self.late_at


def waiting(export: Cdc, seen: LogLook | Exception, before: DrainTick, *, now: float) -> Waiting:
    """Return how long changes wait, by a look and what was known before; a log nobody can look at may hold some."""
    if isinstance(seen, Exception):
        reached, is_waiting, is_draining = before.reached, True, isinstance(seen, LogBusy)
    else:
        reached = seen.position.key if seen.position else ""
        is_waiting, is_draining = seen.has_unread, bool(seen.holder)
    if not is_waiting:
        return Waiting(reached=reached)
    since = before.waiting_since if before.waiting_since and before.reached == reached else now
    return Waiting(since, reached, _late_at(export, since), is_draining)


def late_verdict(seen: LogLook | Exception, found: Waiting, *, why: str, now: float) -> ChangeVerdict:
    """Judge that nobody drains.

    Args:
        why: what the tick says of it.
    """
    waited, limit = now - found.since, found.late_at - found.since
    told = f"nobody has drained for {_time(waited)}, at most {_time(limit)} is expected; {why or 'a drain is due'}"
    lag = seen.lag if isinstance(seen, LogLook) else NO_LAG
    by_lag = lag_verdict(lag)
    text = f"{told}. {by_lag.text}" if isinstance(seen, LogLook) else told
    facts = {**by_lag.facts, "waited_seconds": round(waited), "limit_seconds": round(limit)}
    return ChangeVerdict(LAG, False, False, round(waited), round(limit), 0, text, facts, "fail")


def _late_at(export: Cdc, since: float) -> float:
    """Return when to worry: after `freshness:`, else after the schedule's next tick, else soon."""
    if export.freshness is not None:
        return since + export.freshness.fail_after
    if export.schedule is not None:
        return next(schedule_execution_time_iterator(since, export.schedule, "UTC")).timestamp() + LATE_SECONDS
    return since + LATE_SECONDS


def _time(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 7200 else f"{seconds / 60:.0f} min"
