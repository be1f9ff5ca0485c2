"""How hard a source may be driven, decided from looks at it: looks go in, a level comes out.

Belongs here: the decision, pure, so that it can be tested as a table. Not here: looking and telling the tasks
(`governor_thread.py`), slowing down inside a task (`throttle.py`), what one engine is asked (`sources/*_gauge.py`).

The rule is that of a good guest: what was there before us is what is usual, and when the host has it worse than usual
we halve, whoever's fault it is; only when it has been well for a while, we come back step by step. Every sign used here
leaves our own sessions out, so that reading alone never looks like suffering; what our reading costs others in time
is part of what is usual from the first look on.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace

from rivet_resources.contracts.evidence import Pressure

# An eighth of the speed: slower would only hold the snapshot longer, which costs the source more than reading.
LOWEST_STEP = 3
CALM_LOOKS, MOST_CALM_LOOKS = 2, 16  # before a step up; doubled by each relapse
UNREADABLE_LOOKS = 3
USUAL_LOOKS = 20
SPARE_CONNECTIONS = 0.9  # of the limit


@dataclass(frozen=True)
class Level:
    """How hard to read: `speed` is each task's share of its pace, above 0 and at most 1; `tasks` may run at once."""

    speed: float
    tasks: int


def level_of(step: int, *, tasks: int, min_parallel: int) -> Level:
    """Halve both speed and tasks with each step down; at least `min_parallel` tasks stay, as far as there were."""
    return Level(speed=0.5**step, tasks=max(min(min_parallel, tasks), math.ceil(tasks / 2**step)))


# A value, never changed in place: the whole decision can be tested as a table of looks without a thread or a clock.
@dataclass(frozen=True)
class Course:
    """What the governor knows after some looks. Step 0 is the configured pace."""

    step: int = 0
    reason: str = ""  # why the last look led to another step; '' when it did not
    usual: tuple[Pressure, ...] = ()  # the last looks without pressure
    last: Pressure | None = None
    calm: int = 0
    calm_needed: int = CALM_LOOKS
    has_recovered: bool = False  # the last move was a step up
    unreadable: int = 0
    most_lock_waits: int | None = None
    most_waiting_for_us: int | None = None

    @property
    def is_blind(self) -> bool:
        """Return whether governing ends, for the source cannot be looked at."""
        return self.unreadable >= UNREADABLE_LOOKS

    def after(self, look: Pressure | None, *, memory: str = "") -> Course:
        """Take one look; None could not be read. `memory` says that our own processes hold too much, '' if not."""
        if look is None:
            return self._unread()
        signs = [*signs_of(look, usual=self.usual, last=self.last), *([memory] if memory else [])]
        told = replace(
            self,
            last=look,
            unreadable=0,
            reason="",
            most_lock_waits=_most(self.most_lock_waits, look.lock_waits),
            most_waiting_for_us=_most(self.most_waiting_for_us, look.waiting_for_us),
        )
        return told._step_down(signs) if signs else told._step_up(look)

    def _unread(self) -> Course:
        blind = replace(self, unreadable=self.unreadable + 1, reason="")
        if not blind.is_blind:
            return blind
        # Blind is not pressed: back to the configured pace, or a gauge that lost its rights would slow the rest of
        # the export.
        return replace(blind, step=0, reason="the source could not be looked at three times" if self.step else "")

    def _step_down(self, signs: list[str]) -> Course:
        # Each relapse right after a step up doubles the patience. With a fixed one, speed would swing for ever
        # between a step that the source bears and one that it does not.
        needed = min(self.calm_needed * 2, MOST_CALM_LOOKS) if self.has_recovered else self.calm_needed
        pressed = replace(self, calm=0, calm_needed=needed, has_recovered=False)
        if self.step == LOWEST_STEP:
            return pressed
        return replace(pressed, step=self.step + 1, reason="; ".join(signs))

    def _step_up(self, look: Pressure) -> Course:
        # Only calm looks are usual: under pressure for long enough, pressure would become the measure.
        calmed = replace(self, calm=self.calm + 1, usual=(*self.usual, look)[-USUAL_LOOKS:])
        if calmed.calm < self.calm_needed:
            return calmed
        # The pace stayed well at its full height for long enough: earlier relapses are forgotten.
        if self.step == 0:
            return replace(calmed, calm_needed=CALM_LOOKS, has_recovered=False)
        reason = f"the source was well for {calmed.calm} looks"
        return replace(calmed, step=self.step - 1, calm=0, has_recovered=True, reason=reason)


# By how much a number must pass what is usual: so many times, and by so much at least.
LIMITS: dict[str, tuple[float, float]] = {
    "lock_waits": (2.0, 1.0),
    "active": (3.0, 4.0),
    "lag_seconds": (2.0, 5.0),
    "latency_ms": (4.0, 10.0),
}
WORDS = {
    "lock_waits": "{now:.0f} sessions waited for locks, {usual:.0f} is usual",
    "active": "{now:.0f} other sessions were at work, {usual:.0f} is usual",
    "lag_seconds": "a replica was {now:.1f} s behind, {usual:.1f} is usual",
    "latency_ms": "a short statement took {now:.0f} ms, {usual:.0f} is usual",
}


def signs_of(look: Pressure, *, usual: tuple[Pressure, ...], last: Pressure | None) -> list[str]:
    """Return in words what is worse than usual; [] when nothing is. Numbers that cannot be read are no sign.

    Args:
        usual: looks without pressure; without one, only what is wrong by itself counts.
        last: the look before, for counters and for what must still be growing.
    """
    signs = []
    for name, (times, at_least) in LIMITS.items():
        # They wait until we are done (and others queue behind them): slowing down would only prolong it.
        if name == "lock_waits" and look.waiting_for_us:
            continue
        now = getattr(look, name)
        known = [each for each in (getattr(one, name) for one in usual) if each is not None]
        if now is None or not known:
            continue
        # The median: one odd look among those that are usual (a backup began, a batch ended) moves it little.
        middle = statistics.median(known)
        # Both must be passed. Twice nothing is nothing, and a busy server goes up and down by a few sessions
        # without being ill.
        if now >= max(middle * times, middle + at_least) and not _shrinks(name, look, last):
            signs.append(WORDS[name].format(now=now, usual=middle))
    # A counter needs no history: each wait for the log since the last look is a sign by itself.
    if (waited := _log_waits_since(look, last)) > 0:
        signs.append(f"its log had to wait {waited} times since the last look")
    if look.connections_limit and (look.connections or 0) >= look.connections_limit * SPARE_CONNECTIONS:
        signs.append(f"{look.connections} of its {look.connections_limit} connections are taken")
    return signs


def _most(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)


def _log_waits_since(look: Pressure, last: Pressure | None) -> int:
    if last is None or look.log_waits is None or last.log_waits is None:
        # The first look has nothing to compare with; a counter's height tells of the years before us.
        return 0
    return look.log_waits - last.log_waits


def _shrinks(name: str, look: Pressure, last: Pressure | None) -> bool:
    """Return that a replica catches up already, so that nothing is asked of us any more."""
    if name != "lag_seconds" or last is None or last.lag_seconds is None or look.lag_seconds is None:
        return False
    return look.lag_seconds < last.lag_seconds
