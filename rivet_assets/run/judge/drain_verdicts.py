"""The checks of change capture: lag, what we make the source keep, gaps, and whether the mirror is the table.

Belongs here: judging, arithmetic only. Not here: measuring (`engines/*/log/`, `drain/drain.py`), their shape in Dagster
(`dagster/checks/drain_checks.py`).

None of them stops a window. Changes that were read are better published than kept back: holding them would only let
the source's log grow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from rivet_assets.run.judge.quality import Verdict
from rivet_resources.contracts.change_log import Lag
from rivet_resources.contracts.evidence import Finding

LAG = "lag"
SLOT_BUDGET = "slot_budget"
SEQUENCE = "sequence"
PREREQUISITES = "prerequisites"
MIRROR = "mirror_equals_source"

# Shares of what the source keeps before it throws away what we have not read (`cdc.md`, section 10).
WARN_BUDGET = 0.5
FAIL_BUDGET = 0.8

# PostgreSQL's `pg_replication_slots.wal_status`.
# Source: PostgreSQL documentation, "pg_replication_slots".
WAL_STATUS: Mapping[str, Literal["ok", "warn", "fail"]] = {
    "reserved": "ok",
    "extended": "warn",  # past max_wal_size, still kept
    "unreserved": "fail",  # gone with the server's next checkpoint
    "lost": "fail",
}
ADVICE = "Drain more often, or raise what the source keeps (max_slot_wal_keep_size, binlog_expire_logs_seconds, …)."


@dataclass(frozen=True)
class ChangeVerdict(Verdict):
    """A verdict that stops nothing, and still knows a failure from a warning."""

    level: Literal["ok", "warn", "fail"] = "ok"


@dataclass(frozen=True)
class MirrorComparison:
    """How a table at the source and its mirror differ, counted by key; no key and no value is in it."""

    source_rows: int
    mirror_rows: int
    missing: int  # in the mirror
    extra: int
    different: int
    position: str = ""  # of the mirror
    facts: Mapping[str, object] | None = None


def lag_verdict(lag: Lag, *, rows: int = 0) -> ChangeVerdict:
    """Judge how much of the source's retention we use up: a warning from half, a failure from 80 %."""
    told = lag_text(lag)
    if lag.budget is None:
        return _verdict(LAG, "ok", 0.0, FAIL_BUDGET, rows, f"{told}; this source states no limit", lag)
    level = level_of(lag.budget)
    text = f"{told}; {lag.budget:.0%} of what the source keeps for us"
    return _verdict(LAG, level, lag.budget, FAIL_BUDGET, rows, text if level == "ok" else f"{text}. {ADVICE}", lag)


def slot_verdict(lag: Lag, *, rows: int = 0) -> ChangeVerdict:
    """Judge how much log the source keeps because of us, and whether it still means to keep it."""
    status = str(lag.facts.get("wal_status") or "")
    # The server's own word first: it knows of a checkpoint to come, which no share of bytes tells.
    level = WAL_STATUS.get(status, "ok")
    if lag.budget is not None and level == "ok":
        level = level_of(lag.budget)
    kept = "the source does not tell what it keeps" if lag.held_bytes is None else f"{lag.held_bytes:,} bytes kept"
    text = f"{kept} for us{f', wal_status {status}' if status else ''}"
    if status == "lost":
        text += ". The log behind our position is gone: only a new snapshot helps"
    elif level != "ok":
        text += f". {ADVICE}"
    return _verdict(SLOT_BUDGET, level, lag.budget or 0.0, FAIL_BUDGET, rows, text, lag)


def sequence_verdict(links: Iterable[tuple[str | None, str]], *, disorder: int, rows: int) -> ChangeVerdict:
    """Judge whether the committed windows cover the log without a hole, and whether parts are in log order.

    Args:
        links: (low, high] of windows, as sort keys of positions; low None: of the first that is looked at. Windows
            that hold nothing (low = high) are passed over.
        disorder: rows whose (__pos, __seq) is not above that of the row before, in this drain's parts.
    """
    gaps, overlaps = _breaks(links)
    told = [f"a gap between {low} and {high}" for low, high in gaps[:3]]
    told += [f"two windows hold what lies between {low} and {high}" for low, high in overlaps[:3]]
    if disorder:
        told.append(f"{disorder} rows are not in log order")
    broken = len(gaps) + len(overlaps) + disorder
    text = "; ".join(told) or "windows follow one another, rows are in log order"
    if gaps:
        text += ". Changes may be missing there: take a new snapshot"
    facts = {"gaps": len(gaps), "overlaps": len(overlaps), "disorder": disorder}
    return ChangeVerdict(SEQUENCE, not broken, False, broken, 0, rows, text, facts, "fail" if broken else "ok")


def mirror_verdict(found: MirrorComparison) -> ChangeVerdict:
    """Judge whether a mirror holds exactly the rows of its table."""
    off = found.missing + found.extra + found.different
    text = f"{found.source_rows:,} rows at the source, {found.mirror_rows:,} in the mirror"
    if off:
        text += f"; {found.missing:,} missing, {found.extra:,} extra, {found.different:,} different"
    facts = {
        "missing": found.missing, "extra": found.extra, "different": found.different,
        **({"position": found.position} if found.position else {}), **(found.facts or {}),
    }  # fmt: skip
    return ChangeVerdict(MIRROR, not off, False, off, 0, found.source_rows, text, facts, "fail" if off else "ok")


def prerequisites_verdict(findings: Iterable[Finding]) -> ChangeVerdict:
    """Judge a preflight as one check: what is wrong, with what to run."""
    found = list(findings)
    off = [finding for finding in found if finding.status != "ok"]
    level: Literal["ok", "warn", "fail"] = "ok" if not off else "warn"
    if any(finding.status == "fail" for finding in off):
        level = "fail"
    told = "; ".join(f"{finding.name}: {finding.text}{f' → {finding.fix}' if finding.fix else ''}" for finding in off)
    text = told or (f"all {len(found)} hold" if found else "not asked in this run; `rivet doctor` asks")
    return ChangeVerdict(PREREQUISITES, not off, False, len(off), 0, 0, text, {"checked": len(found)}, level)


def level_of(budget: float) -> Literal["ok", "warn", "fail"]:
    """Return how worrying a used-up share of the source's retention is."""
    return "fail" if budget >= FAIL_BUDGET else "warn" if budget >= WARN_BUDGET else "ok"


def _breaks(links: Iterable[tuple[str | None, str]]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Find the stretches of the log that no window, and that more than one window holds."""
    gaps, overlaps = [], []
    reached: str | None = None
    # Windows that hold nothing begin and end at one place, where another window may begin as well.
    for low, high in sorted(((low or "", high) for low, high in links if low != high), key=lambda link: link):
        if reached is not None and low > reached:
            gaps.append((reached, low))
        elif reached is not None and low < reached:
            overlaps.append((low, min(reached, high)))
        reached = high if reached is None else max(reached, high)
    return gaps, overlaps


def lag_text(lag: Lag) -> str:
    """Return in one line how far behind we are."""
    known = []
    if lag.unread_changes is not None:
        known.append(f"{lag.unread_changes:,} changes unread")
    if lag.unread_bytes is not None:
        known.append(f"{lag.unread_bytes:,} bytes unread")
    if lag.seconds is not None:
        known.append(f"{lag.seconds:,.0f} s behind")
    return ", ".join(known) or "this source cannot tell how far behind we are"


def _verdict(
    check: str, level: Literal["ok", "warn", "fail"], observed: float, threshold: float, rows: int, text: str, lag: Lag
) -> ChangeVerdict:
    numbers = {
        "unread_changes": lag.unread_changes, "unread_bytes": lag.unread_bytes, "held_bytes": lag.held_bytes,
        "seconds": lag.seconds, "budget": lag.budget,
    }  # fmt: skip
    facts = {name: number for name, number in numbers.items() if number is not None}
    return ChangeVerdict(check, level == "ok", False, observed, threshold, rows, text, facts, level)
