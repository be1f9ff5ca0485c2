"""What `rivet check` says of snapshots without `start`: the line that makes Dagster's missing days true.

Belongs here: that one finding. Not here: which day a run may take a snapshot of (`modes/full.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rivet_resources.contracts.evidence import Finding
from rivet_resources.contracts.rows.value_windows import snapshot_day, snapshot_key

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_resources.state.store import State


def snapshot_findings(export: Export, *, state: State | None, at: datetime) -> Iterator[Finding]:
    """Yield a warning where nobody wrote when snapshots begin; else nothing is looked up.

    Args:
        state: None where there is no store yet, so that nothing was published.

    Raises:
        StateError
    """
    if not export.is_first_snapshot_assumed:
        return
    published = state.first_window(export.name, snapshot_key("")) if state is not None else None
    day = at.astimezone(UTC).date().isoformat() if published is None else snapshot_day(published)
    text = f"without `start` Dagster shows each day since {export.first_snapshot} as missing, and a passed one cannot "
    why = "today" if published is None else "the first that was published"
    yield Finding("snapshots", "warn", f"{text}be exported any more", f"start: {day}  # {why}")
