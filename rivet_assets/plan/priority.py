"""Which exports come first, and whether a plan still holds: facts in, decisions out (`contract.md`, 13.2).

Belongs here: scores, classes, waves, and the gates between a plan and its application. Not here: finding the facts
(`facts.py`), the sealed file (`artefact.py`), running (`launch/apply_plan.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from rivet_assets.modes.registry import MODES
from rivet_assets.run.drift import compare

CursorWorth = Literal["strong", "weak", "fallback", "none"]
Cost = Literal["low", "medium", "high", "very high"]
Class = Literal["high", "medium", "low"]

BASE = 50
# Signal → points (`contract.md`, 13.2, first table); the result is kept within 0 to 100.
POINTS: Mapping[str, int] = {
    "rows_few": +12,
    "rows_many": -15,
    "rows_unknown": -3,
    "full": +5,
    "cursor_strong": +18,
    "cursor_weak": -8,
    "cursor_fallback": -14,
    "cursor_none": -12,
    "chunked_large": -10,
    "sparse_keys": -18,
    "reconcile_required": -12,
    "window_narrow": +6,
    "verdict_efficient": +8,
    "verdict_degraded": -12,
    "verdict_unsafe": -25,
    "last_run_failed": -8,
    "retries_many": -5,
    "runs_long": -4,
    "warnings_many": -4,
}
# Lowest score of each, best first; the last one takes the rest.
CLASSES: Sequence[tuple[int, Class]] = ((70, "high"), (40, "medium"), (0, "low"))
WAVES: Sequence[tuple[int, int]] = ((75, 1), (55, 2), (35, 3), (0, 4))
# Fewest rows of each, dearest first. Rows nobody has counted may be many, but most tables are small.
# The contract names four classes of cost and not their bounds; ours are those of its own signals and verdicts, 100,000,
# 1 million and 10 million rows (2026-11).
COSTS: Sequence[tuple[int, Cost]] = ((10_000_000, "very high"), (1_000_000, "high"), (100_000, "medium"), (0, "low"))
COST_OF_UNKNOWN: Cost = "medium"
# So many exports of a cost run side by side inside a wave.
ABREAST: Mapping[Cost, int] = {"low": 10, "medium": 3, "high": 2, "very high": 2}

FEW_ROWS, MANY_ROWS, LARGE_ROWS = 100_000, 10_000_000, 1_000_000
# History shorter than this says nothing of retries and duration.
RUNS_THAT_SAY = 3
RETRY_RATE, LONG_SECONDS, MANY_WARNINGS = 0.3, 300.0, 3
NARROW = timedelta(days=7)
SILENT = timedelta(hours=1)  # a plan of this age is applied without a word
UNKNOWN_SECONDS = 5.0  # of an export without history


@dataclass(frozen=True)
class RunHistory:
    """What earlier runs of an export tell: how many were looked at, and how they went."""

    runs: int = 0
    last_failed: bool = False
    retry_rate: float = 0.0  # retries per run
    average_seconds: float | None = None  # of those that committed
    rows_per_second: float | None = None  # of those that committed rows; None: nobody has measured one


@dataclass(frozen=True)
class PriorityFacts:
    """All that the priority of one export depends on."""

    mode: str
    rows: int | None = None
    verdict: str = ""  # EFFICIENT, ACCEPTABLE, DEGRADED, UNSAFE; '' unknown
    cursor: CursorWorth | None = None
    chunks: int = 0
    is_sparse: bool = False
    is_narrow: bool = False
    reconcile_required: bool = False
    warnings: int = 0
    history: RunHistory = RunHistory()
    wave: int | None = None  # the user's own word


@dataclass(frozen=True)
class Priority:
    """Where an export stands among the others, and why: signals by name, each with its points."""

    score: int
    signals: Mapping[str, int]
    rank: Class
    wave: int
    cost: Cost


def prioritise(facts: PriorityFacts) -> Priority:
    """Judge one export; a `wave` of its own wins over that of its score."""
    signals = {name: POINTS[name] for name in _signals(facts)}
    score = max(0, min(100, BASE + sum(signals.values())))
    by_score = next(wave for least, wave in WAVES if score >= least)
    return Priority(
        score=score,
        signals=signals,
        rank=next(rank for least, rank in CLASSES if score >= least),
        wave=facts.wave or by_score,
        cost=cost_of(facts.rows),
    )


def cost_of(rows: int | None) -> Cost:
    """Class what reading so many rows costs."""
    if rows is None:
        return COST_OF_UNKNOWN
    return next(cost for least, cost in COSTS if rows >= least)


def cursor_worth(*, is_indexed: bool, is_nullable: bool, has_fallback: bool) -> CursorWorth:
    """Judge a cursor: strong is indexed and never NULL, weak lacks one of the two, none lacks both."""
    if has_fallback:
        return "fallback"
    if is_indexed and not is_nullable:
        return "strong"
    return "weak" if is_indexed or not is_nullable else "none"


def is_narrow(windows: Sequence[tuple[datetime, datetime]], *, at: datetime) -> bool:
    """Return whether windows of time are few or recent: a week altogether at most, or none older than a week."""
    spans = [end - start for start, end in windows]
    return bool(spans) and (sum(spans, timedelta()) <= NARROW or min(end for _, end in windows) >= at - NARROW)


def _signals(facts: PriorityFacts) -> Iterable[str]:
    yield from _of_rows(facts.rows)
    yield from _of_mode(facts)
    if facts.is_sparse:
        yield "sparse_keys"
    if facts.reconcile_required:
        yield "reconcile_required"
    if facts.is_narrow:
        yield "window_narrow"
    if facts.verdict in ("EFFICIENT", "DEGRADED", "UNSAFE"):
        yield f"verdict_{facts.verdict.lower()}"
    yield from _of_history(facts.history)
    if facts.warnings > MANY_WARNINGS:
        yield "warnings_many"


def _of_rows(rows: int | None) -> Iterable[str]:
    if rows is None:
        yield "rows_unknown"
    elif rows < FEW_ROWS:
        yield "rows_few"
    elif rows >= MANY_ROWS:
        yield "rows_many"


def _of_mode(facts: PriorityFacts) -> Iterable[str]:
    answers = MODES[facts.mode].answers
    if answers.cuts and not answers.by_ranges:
        yield "full"
    if facts.cursor is not None:
        yield f"cursor_{facts.cursor}"
    if answers.by_ranges and (facts.chunks > 1 or (facts.rows or 0) > LARGE_ROWS):
        yield "chunked_large"


def _of_history(history: RunHistory) -> Iterable[str]:
    if history.last_failed:
        yield "last_run_failed"
    if history.runs < RUNS_THAT_SAY:
        return
    if history.retry_rate > RETRY_RATE:
        yield "retries_many"
    if (history.average_seconds or 0.0) >= LONG_SECONDS:
        yield "runs_long"


# --- gates ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StaleReason:
    """One way in which the world is not what a plan saw. `export` is '' where it is about the whole plan."""

    name: str
    text: str
    export: str = ""
    exit_code: int = 4
    yields: bool = True  # to --force


@dataclass(frozen=True)
class Standing:
    """What a plan of one export rests on, as it was or as it is now."""

    fingerprint: str  # of the resolved export
    columns: tuple[tuple[str, str], ...]  # name, Arrow type; () when nothing could be described
    boundary: str | None  # committed cursor, or position of a drain
    manifests: Mapping[str, str | None]  # planned window → run that committed it last, None: nobody
    lost: str = ""  # why the relation cannot be described now


def age_gates(*, created_at: datetime, expires_at: datetime, at: datetime) -> tuple[list[StaleReason], str]:
    """Judge a plan's age: the gates it shuts, and a warning ('' for none)."""
    if at >= expires_at:
        text = f"the plan of {_minute(created_at)} expired at {_minute(expires_at)}"
        return [StaleReason("expired", text, exit_code=1)], ""
    # Clocks of two machines may differ by a little; by an hour, one of them is wrong, and so is the age of the plan.
    if created_at - at > SILENT:
        text = f"the plan was made at {_minute(created_at)}, which is in the future; compare the clocks"
        return [StaleReason("from_the_future", text, exit_code=1)], ""
    age = at - created_at
    hours = f"{age / timedelta(hours=1):.1f} h"
    return [], f"the plan is {hours} old; the source may have changed since" if age >= SILENT else ""


def world_gates(export: str, planned: Standing, now: Standing) -> list[StaleReason]:
    """Compare what a plan saw of one export with what is there now."""
    gates = []
    if planned.fingerprint != now.fingerprint:
        gates.append(StaleReason("config", "its configuration is not the planned one", export))
    # Without columns there is nothing to compare: they would all count as removed.
    if now.lost:
        gates.append(StaleReason("relation", f"what it reads is not there as planned: {now.lost}", export))
    else:
        drift = compare(planned.columns, now.columns)
        if drift:
            gates.append(StaleReason("schema", f"the columns of its relation changed: {drift}", export))
    if planned.boundary != now.boundary:
        told = f"the committed boundary was {_spell_boundary(planned.boundary)} and is {_spell_boundary(now.boundary)}"
        gates.append(StaleReason("boundary", told, export))
    for window, run_id in planned.manifests.items():
        if now.manifests.get(window) != run_id:
            by = now.manifests.get(window)
            text = f"window {window} was committed since, by run {by}" if by else f"the commit of {window} is gone"
            gates.append(StaleReason("manifest", text, export))
    return gates


def _spell_boundary(boundary: str | None) -> str:
    return "none" if boundary is None else repr(boundary)


def _minute(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"
