"""An export that failed before its windows were known: on record as any run that fails.

Belongs here: the run's row, its journal, its Outcome. Not here: asking for the windows (`config/selection.py`), runs
that began (`run/attempt.py`).
"""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rivet_assets.launch.outcome import Outcome, not_begun
from rivet_assets.run.attempt import new_run_id
from rivet_assets.run.journal import Journal
from rivet_resources.errors import RivetError
from rivet_resources.state.runs import RunEnd, RunRecord

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_assets.config.load import RivetConfig

WINDOW = "?"  # none is known


def fail_unbegun(config: RivetConfig, export: Export, error: RivetError, *, began: datetime) -> Outcome:
    """Record that an export failed since `began`, as its windows could not be had, and return its outcome."""
    source, _ = config.source_of(export)
    ended, run_id = datetime.now(UTC), new_run_id(export.name, began)
    outcome = not_begun(export.name, error, source=source, mode=export.mode)
    # Without it `rivet status` and metrics would go on showing the run before, while the source is away. A store that
    # is away too is no second failure.
    with suppress(RivetError):
        _record(config, export, error, run_id, (began, ended))
        return replace(
            outcome, run_ids=(run_id,), started_at=began, finished_at=ended, seconds=(ended - began).total_seconds()
        )
    return outcome


def _record(
    config: RivetConfig, export: Export, error: RivetError, run_id: str, span: tuple[datetime, datetime]
) -> None:
    from rivet_assets.run.admit.scope import state_of  # start

    began, ended = span
    end: RunEnd = {
        "finished_at": ended,
        "error_code": error.code,
        "error_message": str(error),
        "duration_ms": round((ended - began).total_seconds() * 1000),
    }
    with closing(state_of(config)) as state:
        state.begin_run(RunRecord(run_id, export.name, WINDOW, began, mode=export.mode))
        Journal(state, run_id, export.name, tell=lambda line: None).completed("failed", end)
        state.finish_run(run_id, "failed", **end)
