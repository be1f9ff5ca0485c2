"""Which windows of an export want a repair, found now: rows that are not the source's, files that are not as committed.

Belongs here: joining the two looks. Not here: looking (`reconciling.py`, `validating.py`), reading a report of earlier
(`reconcile_report.py`), repairing (`repairing.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from rivet_assets.reconcile_report import Flagged, flagged_in, flagged_of
from rivet_assets.reconciled import Depth
from rivet_assets.reconciling import reconcile_export
from rivet_assets.validate_report import document
from rivet_assets.validating import Asked, validate_export

if TYPE_CHECKING:
    from rivet_assets.config import RivetConfig
    from rivet_assets.export import Export
    from rivet_resources.state.store import State
    from rivet_resources.validation_flaws import Depth as FileDepth

# How closely the files are looked at while the rows are: counting rows reads no file, comparing cells reads all.
FILE_DEPTHS: Mapping[Depth, FileDepth] = {"counts": "sample", "checksums": "full", "rows": "full"}


def flagged_now(
    config: RivetConfig,
    export: Export,
    *,
    depth: Depth,
    windows: Sequence[str] | None,
    state: State,
    tell: Callable[[str], None],
) -> tuple[Flagged, ...]:
    """Compare an export's windows with the source and with their files; each window that is wrong, once.

    Raises:
        ConfigError: no such window is committed.
        RivetError: whatever looking raises.
    """
    folders = validate_export(export, Asked(depth=FILE_DEPTHS[depth], windows=tuple(windows or ())), state=state)
    rows = reconcile_export(config, export, depth=depth, windows=windows, state=state, tell=tell)
    found = {each.window: each for each in flagged_in(document([(export, folders)]))}
    for each in flagged_of(rows):
        found[each.window] = joined(found[each.window], each) if each.window in found else each
    return tuple(found.values())


def joined(files: Flagged, rows: Flagged) -> Flagged:
    """Give what repairs both: the chunks of either, or the whole window where one of them needs it."""
    is_whole = not rows.chunks or not (files.parts or files.chunks or files.markers_only)
    return Flagged(
        rows.export,
        rows.window,
        rows.run_id,
        chunks=() if is_whole else rows.chunks,
        parts=() if is_whole else files.parts,
        reason="; ".join(filter(None, (files.reason, rows.reason))),
    )
