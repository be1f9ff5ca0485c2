"""What becomes of each export right now, by its state store: who works on what, how far, how the last run ended.

Belongs here: joining leases, runs, finished chunks and the rows that tasks have counted. Not here: asking the source
how far behind a drain is (`log_status.py`), how it is shown (`cli/commands/status.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from rivet_assets.run.admit.scope import names_of
from rivet_resources import scratch
from rivet_resources.read.rows_so_far import rows_of
from rivet_resources.state.process import is_here

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_resources.state.leases import Holder
    from rivet_resources.state.runs import RunRecord
    from rivet_resources.state.store import State

# A run that never came to its end, and whose process is gone.
DIED = "died"


@dataclass(frozen=True)
class Work:
    """One window that a run works on."""

    window: str
    run_id: str
    host: str
    pid: int
    since: datetime
    rows: int | None  # read so far by the tasks of this machine; None: it runs on another one


@dataclass(frozen=True)
class ExportStatus:
    """What is known of one export. `status` is `running`, `never ran`, `died`, or how its last run ended."""

    export: str
    mode: str
    status: str
    work: tuple[Work, ...]
    kept_chunks: int  # finished by runs that did not come to their end; the next one keeps them
    cursor: str | None
    last_run: RunRecord | None

    @property
    def is_running(self) -> bool:
        """Return whether somebody works on it."""
        return bool(self.work)


def status_of(export: Export, *, cursor: str | None, state: State) -> ExportStatus:
    """Return what becomes of an export; nothing is changed, and neither source nor destination is asked."""
    holders = [held for name in names_of(export) for held in state.leases(name)]
    last = next(iter(state.runs(export.name, last=1)), None)
    work = tuple(_work(held) for held in sorted(holders, key=lambda held: held.acquired_at))
    kept = sum(progress.chunks for progress in state.chunk_progress(export.name))
    return ExportStatus(export.name, export.mode, _word(work, last, state), work, kept, cursor, last)


def _word(work: tuple[Work, ...], last: RunRecord | None, state: State) -> str:
    if work:
        return "running"
    if last is None:
        return "never ran"
    if last.status != "running":
        return last.status
    return "running" if last.run_id in state.live_runs(last.export) else DIED


def _work(held: Holder) -> Work:
    at = held.process
    rows = rows_of(scratch.folder_of(held.run_id)) if is_here(at) else None
    return Work(held.window, held.run_id, at.host, at.pid, held.acquired_at, rows)
