"""Making a staged window visible, or gone: the order of effects, written once for every mode.

Belongs here: `publish`, `discard`, `sweep` and when one is due. Not here: how a store does each step (`destinations/`),
what a manifest holds (`manifest.py`), which older ones it replaces (`supersede.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Protocol

from rivet_resources.commit.manifest import (
    Manifest,
    build_manifest,
    collect_superseded,
    manifest_paths,
    read_manifest,
    read_manifests,
    success_marker,
)
from rivet_resources.commit.remembered import Remembered
from rivet_resources.commit.rerun import refuse_replacing
from rivet_resources.commit.retired import is_retired, read_retired
from rivet_resources.commit.supersede import Replacement, succession
from rivet_resources.contracts.addressing import nonce_of, part_nonce, read_start
from rivet_resources.contracts.destination import ReadableRoot, Root
from rivet_resources.contracts.extract import Staged, Window
from rivet_resources.contracts.messages import Registered, Topic
from rivet_resources.contracts.parts import Part
from rivet_resources.contracts.rows.boundary import Boundary, boundary_after
from rivet_resources.errors import WindowTaken
from rivet_resources.fan_out import in_threads

# Of runs that this state store does not know: they belong to another store, which may commit them still. Nothing tells
# whether they live, so their age must; a run that takes longer than this loses its staged parts to such a sweep.
UNKNOWN_RUN_GRACE = timedelta(days=1)
PART_THREADS = 8  # an object store answers each part in tenths of a second

Step = Callable[[str], None]  # told the name of the step that begins


class Ledger(Protocol):
    """What committing asks of the state store; `State` is one."""

    def advance_cursor(
        self, export: str, value: str, *, expected: str | None, visit: int = 0, boundary: Boundary | None = None
    ) -> None: ...
    def record_commit(self, manifest: Manifest) -> None: ...
    def live_runs(self, export: str) -> set[str]: ...
    def resumable_runs(self, export: str) -> set[str]: ...
    def known_runs(self, export: str) -> set[str]: ...
    def failures_to_sweep(self, export: str, place: str) -> int | None: ...


class SweepLedger(Ledger, Protocol):
    """What sweeping asks beside that."""

    def note_sweep(self, export: str, place: str, *, failures: int) -> None: ...
    def is_look_due(self, export: str) -> bool: ...
    def note_look(self, export: str) -> None: ...


def no_hook(name: str) -> None:
    """Begin a step without ado."""


def publish(
    staged: Staged,
    *,
    root: Root,
    state: Ledger,
    step: Step = no_hook,
    registered: Registered | None = None,
    seen: Remembered | None = None,
) -> Manifest | None:
    """Make a staged window visible, so that a death at any line loses no row and repeats none.

    Every step is durable before the next begins, and begins by calling `step` with its name:
      1. parts        get their final names; no manifest names them yet, so no reader takes them
      2. manifest     replaces the window's old one in one fenced write; from here on readers see the new rows
                      a topic gets rows and manifest in one transaction of its own (`append.py`)
         success      `manifest.json` and `_SUCCESS` for the original's readers; then what was replaced goes
      3. cursor       never ahead of a manifest
      4. acknowledge  from here on the source may forget the rows
      5. metrics      run history, file log, schema history, chunk progress

    Run again for the same window, by this run or by a later one, it ends in the same place. A stream keeps no
    manifests: its parts are written, and steps 3 to 5 follow.

    Args:
        registered: of a topic, the schema that rows with some columns are registered as; None: that of the window.
        seen: what the window has read of the place since it was planned; what changed since is read anew.

    Returns:
        The window's manifest; None when there is no row and `skip_empty`: then nothing is written at all.

    Raises:
        WindowTaken: another run committed this window since `staged` was planned; ours leaves nothing behind.
        WindowConflict: windows of another mode are there; ours leaves nothing visible.
    """
    # Before any look at what stands: `skip_empty` leaves the published window as it is, whoever committed it.
    if staged.is_nothing:
        discard(staged, root=root)
        return None
    seen = seen or Remembered(root)
    with withdrawn_if_taken(staged, root=root):
        # Asked before anything is visible: a window that may not stand here must leave nothing behind.
        old = succession(staged, root=_looked_at_again(seen, root)) if root.keeps_manifests else Replacement(None)
        if isinstance(root, Topic):
            refuse_replacing(staged, old, root=root)
        # Made while nothing has its final name yet (paths are settled by staging), so that a fault in it leaves nothing
        # visible.
        manifest = build_manifest(staged, staged.parts, supersedes=old.hides, is_alone=old.is_alone)
        # Parts first: a manifest that names a part which is not there yet would break every reader in between. Parts
        # that no manifest names are merely litter, which the next sweep finds by their names.
        step("parts")
        strangers = parts_of_strangers(manifest, root=root, state=state)
        publish_parts(staged.files, root=root)
        step("manifest")
        if isinstance(root, Topic):
            from rivet_resources.commit.append import Appended, append_windows  # start

            append_windows([Appended(staged, manifest, root, registered)], step=step)
        elif root.keeps_manifests:
            # The one moment that counts. `expected` is the version that was there when the window was planned: of two
            # runs of one window the store lets one through, even if lease and pool both failed.
            manifest, version = swap_manifest(manifest, expected=staged.previous, root=root)
            # The next window of the chain begins where this one ends.
            seen.hold(manifest.path, manifest.content, version)
    # Behind the swap: the marker says that the folder is whole, and a reader who finds it may read at once.
    step("success")
    # A topic's messages stay, and have no markers.
    if root.keeps_manifests and not isinstance(root, Topic):
        mark_success(manifest, root=root)
        remove_replaced(old, manifest, root=root)
        remove_fenced(strangers, root=root)
    # Behind the manifest: a cursor that is ahead of it would skip the rows of a run that dies here, for ever. One that
    # is behind makes the next run start at the same place, and replace this very window.
    step("cursor")
    # Windows of time have no cursor: a backfill must not move one.
    if manifest.cursor is not None and manifest.cursor.high is not None:
        state.advance_cursor(
            manifest.export_name,
            manifest.cursor.high,
            expected=manifest.cursor.low,
            visit=manifest.cursor.visit,
            boundary=boundary_to_keep(staged),
        )
    # Batch modes read tables, which forget nothing.
    step("acknowledge")
    # Last, as nothing depends on it; the manifests can make all of it again (`rivet state rebuild`).
    step("metrics")
    state.record_commit(manifest)
    # Not earlier: a step that is tried again after a failed publish reads these files once more.
    root.delete(sidecars(staged))
    # The dead run's unfinished chunks were kept until now.
    if staged.consistency == "resumed":
        root.sweep(keep=owned_runs(manifest.export_name, root=root, state=state), everywhere=False)
    return manifest


def _looked_at_again(seen: Remembered, root: Root) -> ReadableRoot:
    """Return the place as it is now: what its listings tell is not asked for twice. A topic has a fence of its own."""
    if isinstance(root, Topic):
        return root
    # What was listed when the window was planned may be minutes old. The contents stay, since each is held with the
    # version it was read at; only which versions are current is asked anew.
    seen.look_again()
    return seen


def discard(staged: Staged, *, root: Root) -> None:
    """Remove what a window staged and nobody saw. Safe to call twice, and after a publish that failed half-way."""
    root.discard(staged.files)
    root.delete(sidecars(staged))


def sweep_if_due(root: Root, *, export: str, state: SweepLedger) -> int:
    """Remove what dead runs left, as `sweep` does; where none can have left more, at most what is staged is looked at.

    What is staged is looked at once a day all the same: a task that Spark tried twice may have left something in a run
    that ended well, and so may runs of another state store.
    """
    # A whole look costs a listing of everything and a read of every manifest (`scale.md`), so only a failure buys one.
    if root.keeps_manifests and state.failures_to_sweep(export, root.uri) is not None:
        return sweep(root, export=export, state=state)
    if root.keeps_manifests:
        # Each run since the last whole look ended well, so none can have left more. A run costs what it commits, not
        # what is there.
        if not state.is_look_due(export):
            return 0
        state.note_look(export)
    return root.sweep(keep=owned_runs(export, root=root, state=state), everywhere=False)


def sweep(root: Root, *, export: str, state: SweepLedger) -> int:
    """Remove what dead runs left: staged parts, parts that no manifest names, manifests that another one hides.

    What a compaction or a retention replaced stays until its time has come: readers may still open it.

    Only files that carry this export's part names are touched. It lists every object and reads every manifest of the
    export.

    Returns:
        How many objects were removed.
    """
    # A generator: it asks the store after the root has listed, so that a run which begins in between has nothing to
    # lose.
    removed = root.sweep(keep=owned_runs(export, root=root, state=state))
    if not root.keeps_manifests:
        return removed
    # The number as it was before the look. A run that fails while we look adds to it, and stays to be swept.
    failures = state.failures_to_sweep(export, root.uri)
    # In this order: a run that is neither living nor finished when asked cannot have published anything listed before.
    listed = root.list()
    living = nonces_of(state.live_runs(export))
    owned = living | nonces_of(owned_runs(export, root=root, state=state))
    known = nonces_of(state.known_runs(export))
    # Read before anything is removed: a damaged record ends the sweep here, with every file still in place.
    waiting = [each for _, each in read_retired(root, filter(is_retired, listed)) if each.until > datetime.now(UTC)]
    manifests = read_manifests(root, manifest_paths(root))
    hidden = collect_superseded(manifests)
    # Hidden manifests name nothing any more. Those that a compaction hid are spared below, by the record of its swap.
    named = {part.path for manifest in manifests if manifest.entry not in hidden for part in manifest.files}
    named |= {path for each in waiting for path in each.parts}
    resting = {entry for each in waiting for entry in each.windows}
    unnamed = {
        path: nonce
        for path in listed
        if (nonce := part_nonce(path, export=export)) is not None and path not in named and nonce not in living
    }
    # A run that this store knows and that neither lives nor has chunks to keep is dead, whatever its age. Of one that
    # it does not know only the age tells.
    # Runs that share a destination should share a state store, which knows who lives: what a run that this store does
    # not know left stays for a day, since that run may be about to commit it.
    orphans = [path for path, by in unnamed.items() if by not in owned and (by in known or not is_fresh(path))]
    # Manifests before parts, as in `remove_replaced`: no manifest may name a part that is gone.
    remove_manifests([each for each in manifests if each.entry in hidden - resting], root=root)
    root.delete(orphans)
    # Living runs account for themselves; what else was spared, a later look has to find.
    if failures is not None and len(orphans) == len(unnamed):
        state.note_sweep(export, root.uri, failures=failures)
    return removed + len(orphans)


def is_fresh(run: str) -> bool:
    """Return whether a run, by its id or a part's path, began so lately that somebody may be about to commit it."""
    began = read_start(run)
    return began is not None and datetime.now(UTC) - began < UNKNOWN_RUN_GRACE


def nonces_of(runs: Iterable[str]) -> set[str]:
    """Return what the names of parts say of these runs."""
    return {nonce_of(run_id) for run_id in runs}


# --- steps ---------------------------------------------------------------------------------------


def publish_parts(parts: tuple[Part, ...], *, root: Root) -> None:
    """Move parts to their final names: several at a time in a store, in order on a stream."""
    # A stream has one order and no second place to write at; parts of a store do not see each other.
    in_threads(root.publish, parts, most=PART_THREADS if root.keeps_manifests else 1)


def swap_manifest(manifest: Manifest, *, expected: str | None, root: Root) -> tuple[Manifest, str]:
    """Write the manifest over the version that was there when the window was planned; what is there now, its version.

    A request that was answered with an error may still have been carried out, and its repetition then meets
    our own manifest: that is no other run.

    Raises:
        WindowTaken
    """
    try:
        return manifest, root.swap(manifest.path, manifest.content, expected=expected)
    except WindowTaken:
        # Clients of object stores repeat a PUT whose answer was lost. If the first one went through, the condition
        # fails on our own write, and taking that for a rival would remove the parts that readers see already.
        found = read_manifest(root, manifest.path)
        if found is None or found[0].run_id != manifest.run_id:
            raise
        return found


@contextmanager
def withdrawn_if_taken(staged: Staged, *, root: Root) -> Iterator[None]:
    """Take parts back when another run won the window; after any other error nobody knows who will win, so they stay.

    A resumed part may be the winner's too: those that its manifest names stay.
    """
    try:
        yield
    except WindowTaken:
        # Asked of all manifests, not of this window's alone, as the folder stands now that the rival is through.
        named = {part.path for manifest in read_manifests(root, manifest_paths(root)) for part in manifest.files}
        discard(staged, root=root)
        root.delete([part.path for part in staged.files if part.path not in named])
        raise


def mark_success(manifest: Manifest, *, root: Root) -> None:
    """Write the original's two files into the window's folder, the marker last."""
    content = manifest.folder_copy
    root.put(below(manifest.window_folder, "manifest.json"), content)
    # Holds the hash of `manifest.json`, so a death between the two puts shows as a stale marker, not as a wrong window.
    root.put(below(manifest.window_folder, "_SUCCESS"), success_marker(content))


def remove_replaced(old: Replacement, manifest: Manifest, *, root: Root) -> None:
    """Remove manifests and parts that the new manifest replaced; manifests first, so that none names a missing part."""
    remove_manifests(list(old.replaced), root=root)
    outgoing = [each for each in (old.previous, *old.replaced) if each is not None]
    folders = {each.window_folder for each in outgoing} - {manifest.window_folder}
    # A run that went on with finished chunks names parts that its predecessor named as well.
    kept = {part.path for part in manifest.files}
    root.delete([below(folder, name) for folder in folders for name in ("manifest.json", "_SUCCESS")])
    root.delete([part.path for each in outgoing for part in each.files if part.path not in kept])


def parts_of_strangers(manifest: Manifest, *, root: Root, state: Ledger) -> tuple[str, ...]:
    """List the young parts at a window's place that have their final names, of runs that this store does not know.

    Asked before the swap, so that whoever wrote them for this window planned it as it stood before: once the swap goes
    through, theirs cannot. Where a store was lost that knew of a run that died, its rows would show twice to readers of
    a glob until a sweep takes them for old.
    """
    # Only while something may lie there: it lists every object.
    export = manifest.export_name
    if not root.keeps_manifests or isinstance(root, Topic) or state.failures_to_sweep(export, root.uri) is None:
        return ()
    known = nonces_of({manifest.run_id, *state.known_runs(export)})
    beside = (path for path in root.list() if is_part_of(path, manifest) and is_fresh(path))
    found = ((path, part_nonce(path, export=export)) for path in beside)
    return tuple(path for path, nonce in found if nonce is not None and nonce not in known)


def is_part_of(path: str, manifest: Manifest) -> bool:
    """Return whether a part can be of this window only: by its folder, or by its name where changes have one folder.

    Parts of increments lie side by side, and do not say of which they are.
    """
    if manifest.window_folder:
        return path.startswith(f"{manifest.window_folder}/")
    window = Window(manifest.window)
    if window.kind == "after" and manifest.cursor is not None and manifest.cursor.low is not None:
        return path.rpartition("/")[2].startswith(f"cdc-{manifest.cursor.low}-")
    return window.kind == "all"


def remove_fenced(strangers: tuple[str, ...], *, root: Root) -> None:
    """Remove what runs wrote whose swap the window's new manifest has fenced out."""
    if not strangers:
        return
    # One of them may have been committed in between, had ours lost; and readers may still open what was retired.
    listed = filter(is_retired, root.list())
    named = {path for _, each in read_retired(root, listed) for path in each.parts}
    named |= {part.path for each in read_manifests(root, manifest_paths(root)) for part in each.files}
    root.delete([path for path in strangers if path not in named])


def remove_manifests(manifests: list[Manifest], *, root: Root) -> None:
    """Remove manifests that are hidden, unless a later run committed their window anew."""
    for manifest in manifests:
        found = read_manifest(root, manifest.path)
        # Two requests, not one: between the listing and now a run may have committed that window again, and its
        # manifest lies under the same name. What is left of the race is one that commits between these two lines.
        if found is not None and found[0].entry == manifest.entry:
            root.delete([manifest.path])


def sidecars(staged: Staged) -> list[str]:
    """List the files of cell hashes and profiles that measuring left beside the staged parts."""
    unique = [path for files in staged.measures.unique.values() for path in files]
    return [*unique, *staged.measures.profile]


def owned_runs(export: str, *, root: Root, state: Ledger) -> Iterator[str]:
    """Name the runs whose parts must stay: those that live, those whose chunks a later run may use, fresh strangers.

    The store is asked when the first name is taken, not before: a sweep lists first.
    """
    # Chunks of a dead run that a later one may use are its property, though nobody runs.
    yield from state.live_runs(export) | state.resumable_runs(export)
    # Runs of another state store: it is not asked, so what they staged stays for as long as they may still be reading.
    strangers = [run_id for run_id in root.staged_runs() if is_fresh(run_id)]
    known = state.known_runs(export) if strangers else set()
    yield from (run_id for run_id in strangers if run_id not in known)


def boundary_to_keep(staged: Staged) -> Boundary | None:
    """Return what to remember of the rows that have the cursor's new value; None where none of them can come later."""
    moved = staged.extract.cursor
    return None if moved is None or moved.ends is None else boundary_after(moved.ends, staged.measures)


def below(folder: str, name: str) -> str:
    """Name a file in a window's folder, relative to the export's."""
    return f"{folder}/{name}" if folder else name
