"""Replacing rows of a committed window that were read again, and nothing else: the order of effects of a repair.

Belongs here: `mend`, the manifest it swaps in, and the two files of the original's readers. Not here: an ordinary
commit (`commit/publish.py`), which rows are read again (`rivet_assets/prove/repair.py`).

A repair differs from a commit in what it leaves alone. It moves no cursor. It replaces no other window: a window
`after=X` that is committed anew begins its chain anew, a repaired one stays where it is in the chain. And where only
some chunks were read, the parts of the others are kept by their names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from rivet_resources.commit.manifest import Manifest, build_manifest, parse, success_marker, window_manifest
from rivet_resources.commit.manifest_entries import ColumnChecksum, ManifestChunk, ManifestMeasures, Quarantine
from rivet_resources.commit.publish import (
    Ledger,
    Step,
    below,
    mark_success,
    no_hook,
    publish_parts,
    remove_replaced,
    sidecars,
    swap_manifest,
    withdrawn_if_taken,
)
from rivet_resources.commit.supersede import Replacement
from rivet_resources.contracts.destination import Root
from rivet_resources.contracts.extract import Staged, Window
from rivet_resources.errors import ManifestUnreadable, WindowTaken
from rivet_resources.write.checksums.sums import WHOLE


def mend(
    staged: Staged,
    *,
    previous: Manifest,
    root: Root,
    state: Ledger,
    describe: Callable[[Staged, Manifest], Manifest] | None = None,
    step: Step = no_hook,
) -> Manifest:
    """Swap rows that were read again into their window, so that a reader sees the old ones or the new, whole.

    Every step is durable before the next begins, and begins by calling `step` with its name:
      1. parts        get their final names; no manifest names them yet
      2. manifest     over the very version that was looked at; it names the new parts, and those that were kept
      3. success      `manifest.json` and `_SUCCESS`, where they are of this window; then the replaced parts go
      4. metrics      run history, file log

    Args:
        describe: the window as it will be; None: its chunks that were read again in place of the old ones.

    Died at any line, the next repair, or run, of the export sweeps what is left over.

    Raises:
        WindowTaken: another run committed the window since it was looked at; ours leaves nothing behind.
    """
    manifest = (describe or describe_mended)(staged, previous)
    with withdrawn_if_taken(staged, root=root):
        # Before the parts: what was found wrong is of that commit, and a newer one was read anew anyway.
        refuse_newer(staged, previous, root=root)
        step("parts")
        publish_parts(staged.files, root=root)
        step("manifest")
        manifest, _ = swap_manifest(manifest, expected=staged.previous, root=root)
    step("success")
    # Several windows may share a folder; the marker of a later one stays its own.
    if marked_window(manifest.window_folder, root=root) in (manifest.window, None):
        mark_success(manifest, root=root)
    # No cursor and no acknowledgement: the rows between the window's two ends were read again, and its ends are where
    # they were.
    remove_replaced(Replacement(previous), manifest, root=root)
    step("metrics")
    state.record_commit(manifest)
    root.delete(sidecars(staged))
    return manifest


def refuse_newer(staged: Staged, previous: Manifest, *, root: Root) -> None:
    """See that the window's manifest is still the one that was looked at.

    Raises:
        WindowTaken
    """
    found = window_manifest(root, Window(previous.window))
    if found is None or found[0].run_id != previous.run_id or found[1] != staged.previous:
        raise WindowTaken(
            f"Window {previous.window} of export {previous.export_name} was committed by run "
            f"{found[0].run_id if found else '(removed since)'} while it was repaired. Reconcile again."
        )


# --- the manifest of a mended window -------------------------------------------------------------


def describe_mended(staged: Staged, previous: Manifest) -> Manifest:
    """Describe the window as it will be: read again whole, or in some of its chunks, the others as they are.

    What the old manifest hides stays hidden.
    """
    # What the old manifest hides stays hidden: its word goes with it.
    fresh = build_manifest(staged, staged.parts, supersedes=previous.supersedes)
    if fresh.cursor is not None and previous.cursor is not None:
        # The window keeps its place in the chain, which visits are a part of; planned anew it would begin at visit 0.
        place = {"visit": previous.cursor.visit, "high_visit": previous.cursor.high_visit}
        fresh = fresh.model_copy(update={"cursor": fresh.cursor.model_copy(update=place)})
    # Read again whole: nothing of the old parts stays.
    if not previous.chunks or not fresh.chunks or len(fresh.chunks) == len(previous.chunks):
        return fresh
    again = {chunk.chunk: chunk for chunk in fresh.chunks}
    chunks = [again.get(chunk.chunk, chunk) for chunk in previous.chunks]
    parts = [part for part in previous.parts if part.chunk not in again] + list(fresh.parts)
    # Stable: parts of a chunk stay in their order.
    parts.sort(key=lambda part: part.chunk or 0)
    extraction = fresh.source.extraction.model_copy(
        update={"source_row_count": sum(chunk.source_row_count for chunk in chunks)}
    )
    return fresh.model_copy(
        update={
            "consistency": "resumed",  # kept chunks are of an earlier instant
            "source": fresh.source.model_copy(update={"extraction": extraction}),
            "parts": tuple(part.model_copy(update={"part_id": number}) for number, part in enumerate(parts)),
            "part_count": len(parts),
            "row_count": sum(part.rows for part in parts),
            "chunks": tuple(chunks),
            "quarantine": quarantine_of(previous, fresh, again),
            "measures": measures_of(chunks, fresh.measures.nulls),
            "column_checksums": checksums_of(chunks),
        }
    )


def quarantine_of(previous: Manifest, fresh: Manifest, again: Collection[int]) -> Quarantine | None:
    """Return what could not be exported: of the chunks that were read again as it is now, of the others as it was."""
    before, now = previous.quarantine, fresh.quarantine
    kept = [chunk for chunk in before.chunks if chunk.chunk not in again] if before else []
    chunks = (*kept, *(now.chunks if now else ()))
    dropped = before.dropped if before else 0
    blocks = {each.block for each in (before, now) if each is not None}
    block = blocks.pop() if len(blocks) == 1 else ""
    return Quarantine(chunks=chunks, dropped=dropped, block=block) if chunks or dropped else None


def can_mend_chunks(manifest: Manifest, numbers: Collection[int]) -> bool:
    """Return whether these chunks can be read again by themselves: the others must tell what they hold."""
    known = {chunk.chunk for chunk in manifest.chunks}
    if len(known) < len(manifest.chunks):
        return False
    told = all(
        chunk.measures is not None and (chunk.column_checksums is not None or not chunk.rows)
        for chunk in manifest.chunks
    )
    # A part that no chunk owns might hold rows of those that are read again.
    tied = all(part.chunk in known for part in manifest.parts)
    return bool(numbers) and known.issuperset(numbers) and len(numbers) < len(known) and told and tied


def measures_of(chunks: Iterable[ManifestChunk], columns: Iterable[str]) -> ManifestMeasures:
    """Add up what the chunks counted."""
    nulls = dict.fromkeys(columns, 0)
    special: dict[str, dict[str, int]] = {}
    for measures in (chunk.measures for chunk in chunks if chunk.measures is not None):
        for name, count in measures.nulls.items():
            nulls[name] = nulls.get(name, 0) + count
        for name, kinds in measures.special_values.items():
            mine = special.setdefault(name, {})
            for kind, count in kinds.items():
                mine[kind] = mine.get(kind, 0) + count
    return ManifestMeasures(nulls=nulls, special_values=special)


def checksums_of(chunks: Iterable[ManifestChunk]) -> tuple[ColumnChecksum, ...] | None:
    """Add up the sums of the chunks; a chunk without rows adds nothing."""
    sums: dict[str, int] = {}
    for each in (each for chunk in chunks for each in chunk.column_checksums or ()):
        sums[each.name] = (sums.get(each.name, 0) + int(each.checksum)) % WHOLE
    return tuple(ColumnChecksum(name=name, checksum=str(value)) for name, value in sums.items()) or None


# --- the two files beside the manifests ----------------------------------------------------------


def marked_window(folder: str, *, root: Root) -> str | None:
    """Read which window a folder's `manifest.json` is of; None when it is absent or damaged."""
    found = root.read(below(folder, "manifest.json"))
    try:
        return parse(found[0], where="manifest.json").window if found else None
    except ManifestUnreadable:
        return None


def is_copy(copy: bytes, content: bytes, *, of: Manifest | None) -> bool:
    """Return whether a folder's `manifest.json` is of a committed manifest, in today's form or in the older one."""
    return copy == content or (of is not None and copy == of.folder_copy)


def stale_markers(manifests: Mapping[str, Manifest], *, root: Root) -> tuple[Manifest, ...]:
    """Find folders whose `manifest.json` or `_SUCCESS` a dead run left behind; of each the manifest they should be of.

    They are right when they are of any of the folder's current windows: normally of the newest.
    """
    folders: dict[str, list[Manifest]] = {}
    for manifest in manifests.values():
        folders.setdefault(manifest.window_folder, []).append(manifest)
    found = []
    for folder, members in folders.items():
        standing, marker = (root.read(below(folder, name)) for name in ("manifest.json", "_SUCCESS"))
        of = manifests.get(marked_window(folder, root=root) or "")
        current = root.read(of.path) if of is not None else None
        is_right = standing is not None and current is not None and is_copy(standing[0], current[0], of=of)
        if not is_right:
            found.append(max(members, key=lambda each: each.finished_at))
        elif of is not None and standing is not None and (marker is None or marker[0] != success_marker(standing[0])):
            found.append(of)
    return tuple(found)
