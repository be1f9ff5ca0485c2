"""What a destination says of its export's past: which runs wrote there, and between which cursors.

Belongs here: reading manifests for it. Not here: what follows from it (`state/adoption.py`, `admission.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from rivet_resources.commit.manifest import Manifest, manifest_paths, read_manifests
from rivet_resources.state.adoption import Evidence

if TYPE_CHECKING:
    from rivet_resources.contracts.destination import Root


def evidence_at(root: Root) -> Evidence:
    """Collect it at a place; nothing where it keeps no manifests.

    Raises:
        ManifestUnreadable, DestinationError
    """
    if not root.keeps_manifests:
        return Evidence()
    return evidence_in(read_manifests(root, manifest_paths(root)), staged=root.staged_runs())


def evidence_in(manifests: Iterable[Manifest], *, staged: Collection[str] = ()) -> Evidence:
    """Collect it from manifests that were read already."""
    told = list(manifests)
    lows = {each.cursor.low for each in told if each.cursor}
    highs = {each.cursor.high for each in told if each.cursor and each.cursor.high != each.cursor.low}
    return Evidence(
        committed=frozenset(each.run_id for each in told),
        staged=frozenset(staged),
        reached=frozenset(end for end in lows | highs if end is not None),
        starts=frozenset(low for low in lows - highs if low is not None),
    )
