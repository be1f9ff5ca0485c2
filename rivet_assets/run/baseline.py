"""Which columns the next commit of an export is compared with: those of its last one, whoever remembers it.

Belongs here: asking the state store and, where it may not know the last commit, the manifests. Not here: the comparison
and the policies (`drift.py`).

"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from rivet_assets.run.admit.admission import last_of_chain
from rivet_resources.commit.manifest import Manifest, current_manifests, window_manifest
from rivet_resources.contracts.change_log import ENVELOPE
from rivet_resources.state.committed import columns_of
from rivet_resources.state.schemas import Columns

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_assets.run.drift import Drift
    from rivet_resources.contracts.destination import ReadableRoot, Root
    from rivet_resources.contracts.relation import Relation
    from rivet_resources.state.store import State

# Ours: switching them is no drift of the source.
META_COLUMNS = frozenset({"_rivet_exported_at", "_rivet_row_hash", *(field.name for field in ENVELOPE)})
# Back to the last one that ended well; those that skipped an empty window tell nothing.
RUNS_LOOKED_AT = 50


def baseline_of(export: str, *, state: State, root: Root, without: Collection[str] = META_COLUMNS) -> Columns | None:
    """Return the columns of an export's last commit; None before the first, and after a reset.

    Args:
        without: columns that are not the source's.

    Raises:
        ManifestUnreadable, StateError
    """
    columns = state.schema(export)
    # The store is told of a commit last of all. A run that died before that, and a store that was lost, leave manifests
    # whose rows stand beside the next window's, so their columns count.
    if columns is None or _may_have_died(export, state):
        newest = _newest(export, state, root)
        if newest is not None and not (columns and _is_recorded(newest, state)):
            columns = columns_of(newest)
    return None if columns is None else [column for column in columns if column[0] not in without]


def cursor_drift(drift: Drift, export: Export, relation: Relation, *, state: State, root: ReadableRoot) -> Drift:
    """Return a drift with its cursor column as the source has it, then and now: what steps make of it orders nothing.

    A step may hide another order, or the whole column; and one that is new in the file changes none. A window tells
    the type that its cursor was read with; where none does, the drift stays as it is.
    """
    if export.cursor is None or not root.keeps_manifests:
        return drift
    name = export.cursor[0]
    last, column = last_of_chain(state, export.name), relation.column(name)
    # Read already, when it was asked whose database the rows are of.
    found = window_manifest(root, last) if last is not None else None
    told = found[0].source.extraction if found is not None else None
    if told is None or told.cursor_column != name or told.cursor_type is None or column is None:
        return drift
    now = str(column.arrow)
    mine = () if told.cursor_type == now else ((name, told.cursor_type, now),)
    return replace(drift, retyped=(*(each for each in drift.retyped if each[0] != name), *mine))


def _may_have_died(export: str, state: State) -> bool:
    """Return whether a run since the last one that ended well may have committed what the store was not told."""
    told = state.statuses(export, last=RUNS_LOOKED_AT)
    return next((status for status in told if status not in ("running", "skipped")), "success") != "success"


def _is_recorded(manifest: Manifest, state: State) -> bool:
    run = state.run(manifest.run_id)
    return run is not None and run.status == "success"


def _newest(export: str, state: State, root: Root) -> Manifest | None:
    """Read the manifest that was committed last, since the export was reset if it was; None where there is none.

    Raises:
        ManifestUnreadable
    """
    if not root.keeps_manifests:
        return None
    reset_at = _reset_at(export, state)
    # A reset forgot the columns on purpose; manifests of before still have them.
    known = [each for each in current_manifests(root).values() if reset_at is None or each.finished_at > reset_at]
    return max(known, key=lambda each: each.finished_at, default=None)


def _reset_at(export: str, state: State) -> datetime | None:
    """Return when a reset forgot the columns on purpose; None where nothing was reset since a cursor moved."""
    cursor = state.cursor(export)
    return cursor.updated_at if cursor is not None and cursor.value is None else None
