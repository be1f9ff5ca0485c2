"""The rows that exports could not take: how many and why, which, and what becomes of them.

Belongs here: listing, reading and giving up dead letters. Not here: setting rows aside (`write/dead_letters.py`),
reading their windows again (`repair.py`, which a replay is), the words of the command (`cli/commands/quarantine.py`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rivet_assets.prove.reconcile_report import Flagged
from rivet_assets.run.attempt import WHOLE, new_run_id
from rivet_resources.commit.manifest import Manifest, current_manifests, window_manifest
from rivet_resources.commit.publish import mark_success, sweep
from rivet_resources.contracts.extract import Window
from rivet_resources.prove.replace_chunks import marked_window

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_resources.contracts.destination import Root
    from rivet_resources.state.store import State


@dataclass(frozen=True)
class WindowQuarantine:
    """The rows of one committed window that are not in its parts, by reason."""

    export: str
    window: str
    run_id: str
    dead: Mapping[str, int] = field(default_factory=dict)
    skipped: Mapping[str, int] = field(default_factory=dict)
    dropped: int = 0  # dead letters that were given up


def quarantined(export: Export, windows: Collection[str] = ()) -> list[WindowQuarantine]:
    """Return the windows with rows that could not be exported, in the order of their keys.

    Args:
        windows: only these; () for all.

    Raises:
        ManifestUnreadable, DestinationError
    """
    return [
        WindowQuarantine(export.name, each.window, each.run_id, found.dead, found.skipped, found.dropped)
        for each in _manifests(_root(export), windows)
        if (found := each.quarantine) is not None
    ]


def dead_letters(export: Export, windows: Collection[str] = ()) -> Iterator[Mapping[str, Any]]:
    """Yield the dead letters of an export, window by window, as they lie in their files.

    Raises:
        ManifestUnreadable, DestinationError
    """
    root = _root(export)
    for manifest in _manifests(root, windows):
        for part in manifest.quarantine.parts if manifest.quarantine else ():
            with closing(root.open(part.path)) as file:
                for line in file:
                    yield json.loads(line)


def flagged_for_replay(export: Export, windows: Collection[str] = ()) -> tuple[Flagged, ...]:
    """Name the windows, of windows in key ranges the chunks, that hold dead letters: what is to be read again.

    Raises:
        ManifestUnreadable, DestinationError
    """
    found = []
    for manifest in _manifests(_root(export), windows):
        if manifest.quarantine is not None and manifest.quarantine.dead:
            ranged = {chunk.chunk for chunk in manifest.chunks}
            chunks = tuple(each.chunk for each in manifest.quarantine.chunks if each.dead and each.chunk in ranged)
            window, run_id = manifest.window, manifest.run_id
            found.append(Flagged(export.name, window, run_id, chunks, reason="dead letters", by_key=True))
    return tuple(found)


def drop_letters(export: Export, windows: Sequence[str], *, state: State) -> list[WindowQuarantine]:
    """Remove the dead letters of these windows, all when there are none: their files go, how many they were stays.

    The manifest is swapped first, under the lease of the window. What a death leaves behind goes with the next drop,
    or run, of the export.

    Raises:
        WindowBusy, WindowTaken: another run works on a window, or committed it meanwhile.
        ManifestUnreadable, DestinationError
    """
    root = _root(export)
    wanted = [each.window for each in quarantined(export, windows) if each.dead or each.dropped]
    if wanted:
        state.note_action("drop", export.name, {"windows": ", ".join(wanted)})
    dropped = [_drop_window(export, root, window, state) for window in wanted]
    if wanted:
        sweep(root, export=export.name, state=state)
    return dropped


def _drop_window(export: Export, root: Root, window: str, state: State) -> WindowQuarantine:
    key = window if export.has_partitions else WHOLE
    with state.lease(export.name, key, new_run_id(export.name, datetime.now(UTC))) as lease:
        found = window_manifest(root, Window(window))
        if found is None or found[0].quarantine is None:  # committed anew since it was listed
            return WindowQuarantine(export.name, window, found[0].run_id if found else "")
        manifest, version = found
        before, after = found[0].quarantine, found[0].quarantine.without_letters()
        if before.rows:
            manifest = manifest.model_copy(update={"quarantine": after})
            lease.check()
            root.swap(manifest.path, manifest.content, expected=version)
        if marked_window(manifest.window_folder, root=root) in (window, None):
            mark_success(manifest, root=root)
        root.delete([part.path for part in before.parts])
        return WindowQuarantine(export.name, window, manifest.run_id, {}, after.skipped, after.dropped)


def _root(export: Export) -> Root:
    return export.destination.root(export.name)


def _manifests(root: Root, windows: Collection[str]) -> list[Manifest]:
    """Read the manifests of these windows that readers see; a stream has none."""
    if not root.keeps_manifests:
        return []
    found = current_manifests(root)
    return [found[key] for key in sorted(found) if not windows or key in windows]
