"""Dropping committed windows that are older than they should be: which, and the order of effects.

Belongs here: the rule over manifests, and taking windows away. Not here: what `keep:` means in YAML
(`rivet_assets/blocks/upkeep.py`), removing the files when readers are done with them (`sweep.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from rivet_resources.commit.listing import JOINED
from rivet_resources.commit.manifest import Manifest, window_manifest
from rivet_resources.commit.manifest_entries import Superseded
from rivet_resources.commit.publish import Step, below, mark_success, no_hook
from rivet_resources.commit.retired import Retired
from rivet_resources.commit.snapshots import snapshot_value
from rivet_resources.contracts.destination import Root
from rivet_resources.contracts.extract import Window
from rivet_resources.contracts.retention import Retention
from rivet_resources.contracts.rows.value_windows import snapshot_day
from rivet_resources.errors import WindowTaken
from rivet_resources.prove.replace_chunks import marked_window
from rivet_resources.upkeep.compact import JOINED_TEXT
from rivet_resources.upkeep.plan import in_order, settled

DAY = timedelta(days=1)


# Windows of time and snapshots are as old as what they cover; windows of a chain as old as their commit, and only its
# beginning is dropped, never a window out of its middle. The newest window always stays: it holds the position, and a
# folder without any window would read as one that was never published.
def outdated_windows(
    manifests: Mapping[str, Manifest],
    keep: Retention,
    *,
    now: datetime,
    there: Collection[Superseded],
    applied: str | None = None,
) -> tuple[Manifest, ...]:
    """Pick the windows that are to go, oldest first.

    Args:
        manifests: the current ones of the export.
        there: the commits whose manifests are at the destination, hidden ones too. A joined window stays until those
            that it hides are gone: without it readers would see them again.
        applied: the position up to which every mirror and history holds the changes; None: there is none of these.

    Raises:
        ManifestUnreadable: the `after=` windows form no chain.
    """
    is_chain = any(each.cursor for each in manifests.values())
    ages = [(each, each.finished_at) for each in in_order(manifests)] if is_chain else _of_time(manifests)
    moments: dict[str, set[datetime]] = {}
    for each, at in ages:
        moments.setdefault(_split_of(each), set()).add(at)
    # By moment, not by window: of a day with a window of time for each value all stay, or all go.
    kept = {split: _kept(found, keep, now) for split, found in moments.items()}
    found = [each for each, at in ages if at not in kept[_split_of(each)]]
    if is_chain:
        found = _beginning(found, manifests, applied)
    # A joined window stays until those that it hides are gone: without it readers would see them again.
    return tuple(each for each in found if not set(each.supersedes) & set(there))


def _kept(moments: set[datetime], keep: Retention, now: datetime) -> set[datetime]:
    """Return which moments stay of windows that are looked at together; the newest always does."""
    if keep.count is not None:
        return set(sorted(moments, reverse=True)[: keep.count])
    assert keep.age is not None
    return {at for at in moments if at > now - keep.age} | {max(moments)}


def _split_of(manifest: Manifest) -> str:
    """Return the value whose snapshots are looked at by themselves: each value's newest is what readers see."""
    return snapshot_value(manifest.window) if Window(manifest.window).kind == "snapshot" else ""


def _of_time(manifests: Mapping[str, Manifest]) -> list[tuple[Manifest, datetime]]:
    """Return windows with the end of what they cover, oldest first; windows that cover no time are not among them."""
    found = [(each, end) for each in manifests.values() if (end := _end_of(each)) is not None]
    return sorted(found, key=lambda pair: (pair[1], pair[0].window))


def _end_of(manifest: Manifest) -> datetime | None:
    window = Window(manifest.window)
    if window.kind == "snapshot":
        return datetime.fromisoformat(snapshot_day(window.key)).replace(tzinfo=UTC) + DAY
    return manifest.window_end


def _beginning(found: Sequence[Manifest], manifests: Mapping[str, Manifest], applied: str | None) -> list[Manifest]:
    """Leave of these the ones at the beginning of the chain, before the first that stays or is not applied yet."""
    wanted = {each.window for each in found}
    loose = {
        each.window
        for each in settled(manifests)
        if applied is None or (each.cursor is not None and (each.cursor.high or "") <= applied)
    }
    chosen: list[Manifest] = []
    for each in in_order(manifests):
        # Never out of the middle: the chain would be two, and nobody could say where it ends.
        if each.window not in wanted & loose:
            break
        chosen.append(each)
    return chosen


# --- taking away ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class RetainSite:
    """Where windows are dropped. `prove_lease` raises once the lease is lost."""

    root: Root
    run_id: str
    until: datetime  # until when their parts stay
    prove_lease: Callable[[], None]
    step: Step = no_hook


def drop(windows: Sequence[Manifest], manifests: Mapping[str, Manifest], site: RetainSite) -> None:
    """Take windows away, oldest first, so that a reader sees each of them whole or not at all.

    Every step is durable before the next begins, and begins by calling `step` with its name:
      1. record     of the parts that may be removed later
      2. manifests  one after another; from here on readers do not see those rows
      3. success    `manifest.json` and `_SUCCESS` of folders whose newest window went

    Died at any line, the next retention goes on.

    Args:
        manifests: the current ones of the export.

    Raises:
        WindowTaken: a window was committed anew meanwhile; those after it stay.
    """
    root, step = site.root, site.step
    step("record")
    parts = tuple(part.path for each in windows for part in each.files)
    retired = Retired(
        run_id=site.run_id, until=site.until, parts=parts, windows=tuple(each.entry for each in windows)
    )  # fmt: skip
    root.put(retired.path, retired.content)
    if any(each.cursor for each in windows):
        root.put(JOINED, JOINED_TEXT)
    step("manifests")
    for each in windows:
        # Before each one: dropping a thousand windows takes longer than a lease lasts without a beat.
        site.prove_lease()
        found = window_manifest(root, Window(each.window))
        if found is None or found[0].entry != each.entry:
            raise WindowTaken(
                f"Window {each.window} of export {each.export_name} was committed anew while it was to be dropped; it "
                f"stays. The next retention looks at it again."
            )
        # The manifest only: its parts stay for readers that have opened them, and are swept by the record.
        root.delete([each.path])
    step("success")
    gone = {each.window for each in windows}
    for folder in {each.window_folder for each in windows}:
        mark_rest(folder, gone, manifests, root=root)


def mark_rest(folder: str, gone: Collection[str], manifests: Mapping[str, Manifest], *, root: Root) -> None:
    """Let a folder's `manifest.json` and `_SUCCESS` be of a window that is still there, or take them away."""
    rest = [each for each in manifests.values() if each.window_folder == folder and each.window not in gone]
    if not rest:
        root.delete([below(folder, "_SUCCESS"), below(folder, "manifest.json")])
    elif marked_window(folder, root=root) in gone:
        mark_success(max(rest, key=lambda each: each.finished_at), root=root)
