"""Removing what a compaction or a retention replaced, once nobody can be reading it any more.

Belongs here: reading the records at the destination and ending what they tell of. Not here: writing them (`compact.py`,
`retain.py`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime

from rivet_resources.commit.manifest import Manifest, collect_superseded
from rivet_resources.commit.manifest_entries import Superseded
from rivet_resources.commit.publish import mark_success, nonces_of, remove_manifests
from rivet_resources.commit.retired import RETIRED, Retired, read_retired
from rivet_resources.contracts.addressing import nonce_of
from rivet_resources.contracts.destination import Root
from rivet_resources.prove.replace_chunks import stale_markers


@dataclass(frozen=True)
class RetiredFiles:
    """Files whose time has come, and of those that still wait for theirs the number."""

    removed: int = 0
    waiting: int = 0

    def __add__(self, other: RetiredFiles) -> RetiredFiles:
        """Add up what two folders have."""
        return RetiredFiles(self.removed + other.removed, self.waiting + other.waiting)


def sweep_retired(
    root: Root, manifests: tuple[Manifest, ...], *, living: Collection[str], is_dry: bool = False
) -> RetiredFiles:
    """Remove what may go, and forget the records that say nothing more.

    Args:
        manifests: all that are at the destination, hidden ones too, read before.
        living: runs that may still be between the record and the swap.
        is_dry: only count.
    """
    records = read_retired(root, root.list(f"{RETIRED}/"))
    now, alive = datetime.now(UTC), nonces_of(living)
    hidden = collect_superseded(manifests)
    named = {part.path for each in manifests if each.entry not in hidden for part in each.files}
    # What one record may remove, another may still have to keep: a part that was produced by one swap and replaced by
    # the next.
    kept = {path for _, each in records if each.until > now for path in each.parts}
    removed = waiting = 0
    for path, each in records:
        # Between its record and its swap a compaction has brought parts that no manifest names yet.
        if nonce_of(each.run_id) in alive:
            waiting += len(each.parts)
            continue
        strays = [file for file in each.produced if file not in named | kept]
        # All that should have been replaced is still named: the swap did not happen, so the record has nothing to wait
        # for.
        never_came = bool(each.parts) and named.issuperset(each.parts)
        is_due = each.until <= now
        gone = [file for file in each.parts if file not in named | kept] if is_due else []
        waiting += 0 if is_due or never_came else len(each.parts)
        removed += len(strays) + len(gone)
        if is_dry:
            continue
        if is_due:
            entries = set(each.windows) & hidden
            remove_manifests([one for one in manifests if one.entry in entries], root=root)
        root.delete([*strays, *gone])
        _heal_markers(each, manifests, hidden, root=root)
        if is_due or never_came:
            root.delete([path])
    return RetiredFiles(removed, waiting)


def _heal_markers(
    retired: Retired, manifests: tuple[Manifest, ...], hidden: Collection[Superseded], *, root: Root
) -> None:
    """Write `manifest.json` and `_SUCCESS` anew where a compaction died between its swap and these."""
    current = [each for each in manifests if each.entry not in hidden]
    folder = next((each.window_folder for each in current if each.run_id == retired.run_id), None)
    if folder is None:
        return
    for stale in stale_markers({each.window: each for each in current if each.window_folder == folder}, root=root):
        mark_success(stale, root=root)
