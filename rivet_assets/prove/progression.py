"""How far an export has committed, and how far a proof stands behind that: `rivet state progression`.

Belongs here: joining cursor, runs and verdicts. Not here: proving (`validate.py`, `reconcile.py`).

Advisory, from the state store alone: the manifests are the truth. A verdict counts for the commit it was given on, so a
window that was committed again since is unverified.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from rivet_assets.modes.registry import MODES
from rivet_assets.run.reset import standing

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_assets.config.load import RivetConfig
    from rivet_resources.state.runs import RunRecord
    from rivet_resources.state.store import State

RUNS = 10_000  # looked at for the current commit of a window


@dataclass(frozen=True)
class Progression:
    """Boundaries of one export: a cursor, a position, or the newest window; None: there is none yet."""

    export: str
    committed: str | None
    committed_at: datetime | None
    verified: str | None
    verified_at: datetime | None
    verified_by: str | None  # validate, reconcile
    windows: int  # committed ones that the store knows
    matching: int  # of these, with a verdict of their current commit that they match
    mismatching: int


def progression(config: RivetConfig, export: Export, *, state: State) -> Progression:
    """Read how far an export is, and how far that is proved."""
    names = export.folders()
    current = _current([run for name in names for run in state.runs(name, last=RUNS)])
    verdicts = [found for name in names for found in state.verifications(name) if found.run_id in current]
    # Of a commit with both, the word of the source counts for more: it comes last here, and stays.
    ordered = sorted(verdicts, key=lambda found: found.kind == "reconcile")
    matches = {found.run_id: found for found in ordered if found.verdict == "match"}
    broken = {found.run_id for found in verdicts if found.verdict == "mismatch"}
    newest = max(current.values(), key=_end_of, default=None)
    proved = [run for run_id, run in current.items() if run_id in matches and run_id not in broken]
    best = max(proved, key=_end_of, default=None)
    verdict = matches.get(best.run_id) if best else None
    return Progression(
        export=export.name,
        committed=standing(config, export, state=state) or (newest.window if newest else None),
        committed_at=_end_of(newest) if newest else None,
        verified=_boundary(best) if best else None,
        verified_at=verdict.verified_at if verdict else None,
        verified_by=verdict.kind if verdict else None,
        windows=len(current),
        matching=len(proved),
        mismatching=len(broken),
    )


def _current(runs: list[RunRecord]) -> dict[str, RunRecord]:
    """Find the last commit of each window, by run id; runs come newest first."""
    found: dict[tuple[str, str | None], RunRecord] = {}
    for run in runs:
        if run.status == "success":
            # Where one window follows another, a run begins under the name of all and learns its own by its cursor.
            found.setdefault((run.export, run.window if _is_named(run.mode) else run.cursor_low), run)
    return {run.run_id: run for run in found.values()}


def _is_named(mode: str) -> bool:
    """Return whether windows of a mode have names of their own; an unknown mode is of another Rivet."""
    return mode in MODES and MODES[mode].answers.window in ("all", "time")


def _boundary(run: RunRecord) -> str:
    """Name where a commit reaches: its cursor, else its window."""
    return run.cursor_high or run.window


def _end_of(run: RunRecord) -> datetime:
    return run.finished_at or run.started_at
