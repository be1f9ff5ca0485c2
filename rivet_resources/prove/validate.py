"""Prove that what is published is what was committed: manifests, markers, parts, cells (`contract.md`, 10.4).

Belongs here: the order of looking over one export's folder, and what the parts of a window come to. Not here: one
manifest (`manifest.py`), one part (`part.py`), which exports, and what the state store is told
(`rivet_assets/prove/validate.py`). Nothing is ever written at the destination.

    light    manifests parse and agree with themselves, `_SUCCESS` with `manifest.json`, that with a manifest
    sample   and every listed part is there with its size, and the checksum that its store keeps, where it keeps one;
             objects that nobody lists are told
    full     and bytes, rows, checksums of the cells, order of changes, the chain of windows

A run may publish meanwhile: a window whose manifest changed while it was looked at is looked at again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import xxhash

from rivet_resources.commit.chain import resolve_cursor
from rivet_resources.commit.manifest import READ_THREADS, Manifest, collect_superseded
from rivet_resources.commit.publish import Ledger, below, is_fresh, owned_runs
from rivet_resources.commit.retired import Retired, is_retired, read_retired
from rivet_resources.contracts.addressing import MANIFESTS, nonce_of, part_nonce
from rivet_resources.contracts.destination import Root
from rivet_resources.contracts.messages import Topic
from rivet_resources.errors import ManifestUnreadable, RivetError
from rivet_resources.prove.flaws import Depth, Flaw, Validated, WindowValidated
from rivet_resources.prove.manifest import ManifestFile, read, success_flaws, sums_of
from rivet_resources.prove.part import PartSeen, examine, follows
from rivet_resources.prove.topic import validate_topic
from rivet_resources.write.checksums.sums import WHOLE

PART_THREADS = 4  # each holds a row group of Arrow
LOOKS = 3  # at a window that is committed anew meanwhile
TOLD_OBJECTS = 20  # by name, of those that nobody lists
EMPTY_TEXT = xxhash.xxh3_64_intdigest(b"")

Pick = Callable[[Manifest], bool]


@dataclass(frozen=True)
class _Look:
    """What one listing and the manifests in it show."""

    listing: Mapping[str, int]
    living: frozenset[str]  # run ids whose files are theirs, when asked
    known: frozenset[str]  # run ids that the state store knows
    reads: tuple[ManifestFile, ...]
    retired: tuple[Retired, ...] = ()  # swaps whose replaced files still lie there for readers

    @property
    def current(self) -> tuple[ManifestFile, ...]:
        """Return the manifests that readers see."""
        hidden = collect_superseded(tuple(each.manifest for each in self.reads if each.manifest))
        return tuple(each for each in self.reads if each.manifest and each.manifest.entry not in hidden)

    def content(self, window: str) -> bytes | None:
        """Return the bytes of a window's current manifest; None without one."""
        return next((each.content for each in self.current if each.manifest and each.manifest.window == window), None)


def validate(
    root: Root,
    *,
    export: str,
    depth: Depth = "full",
    pick: Pick | None = None,
    state: Ledger | None = None,
    is_required: bool = False,
    cursor: str | None = None,
) -> Validated:
    """Look at one export's folder as far as `depth` says.

    Args:
        pick: says which windows; None: all, and then also what is about no window.
        state: knows which runs live, so that what they are about to commit is not told of; None: nobody does.
        is_required: the state store knows a successful run here, so that there must be a manifest.
        cursor: where the state store says the export stands; None: it does not say.
    """
    if not root.keeps_manifests:
        return Validated(export, root.uri, depth, note="it writes to a stream, which keeps no manifest")
    if isinstance(root, Topic):
        return validate_topic(root, export=export, depth=depth, pick=pick, is_required=is_required)
    try:
        look = _look(root, export, state)
    except RivetError as error:
        return Validated(export, root.uri, depth, flaws=(Flaw("LIST_ERROR", "", f"cannot be listed: {error}"),))
    if not look.reads:
        return _without_manifest(root, export, depth, is_required=is_required)
    validated = _judge_windows(root, look, depth, pick)
    # A run may publish meanwhile: what looked wrong because it was being replaced must not be told of.
    validated = _again(validated, look, depth, lambda: _look(root, export, state), root)
    flaws = [flaw for each in look.reads if each.manifest is None for flaw in each.flaws]
    # Only of all windows: with some of them picked, the parts of the others would count as listed by nobody.
    if pick is None and depth != "light":
        flaws += _untracked_objects(look, export)
    if pick is None and depth == "full":
        flaws += _boundary(look, cursor)
    return Validated(export, root.uri, depth, validated, tuple(flaws))


def _look(root: Root, export: str, state: Ledger | None) -> _Look:
    """List, ask who lives, read manifests, in this order."""
    # In this order (the listing, who lives, the manifests) a part that was removed since is one that a newer manifest
    # no longer lists, and a part of no manifest is not one whose run committed in between.
    listing = root.list()
    living = frozenset(owned_runs(export, root=root, state=state)) if state else frozenset[str]()
    known = frozenset(state.known_runs(export)) if state else frozenset[str]()
    paths = sorted(path for path in listing if path.startswith(f"{MANIFESTS}/") and path.endswith(".json"))
    with ThreadPoolExecutor(READ_THREADS) as pool:
        found = pool.map(lambda path: read(root, path, listing[path]), paths)
        reads = tuple(each for each in found if each is not None)
    retired = tuple(each for _, each in read_retired(root, filter(is_retired, listing)))
    return _Look(listing, living, known, reads, retired)


def _without_manifest(root: Root, export: str, depth: Depth, *, is_required: bool) -> Validated:
    if is_required:
        text = "has no manifest, and the state store knows a run that committed one here"
        return Validated(export, root.uri, depth, flaws=(Flaw("MANIFEST_REQUIRED", "", text),))
    return Validated(export, root.uri, depth, note="no manifest is there, and no run is known that wrote one")


# --- windows -------------------------------------------------------------------------------------


def _judge_windows(root: Root, look: _Look, depth: Depth, pick: Pick | None) -> tuple[WindowValidated, ...]:
    """Judge the windows that were picked, the parts of all of them side by side."""
    markers = _markers(root, look)
    chosen = [each for each in look.current if each.manifest and (pick is None or pick(each.manifest))]
    with ThreadPoolExecutor(PART_THREADS) as pool:

        def seen(manifest: Manifest) -> Iterable[PartSeen]:
            parts = [part for part in manifest.parts if part.status == "committed"]
            if depth == "light":
                return ()
            return pool.map(lambda part: examine(root, manifest, part, listing=look.listing, depth=depth), parts)

        def flaws_of_letters(manifest: Manifest) -> list[Flaw]:
            letters = manifest.quarantine.parts if manifest.quarantine and depth != "light" else ()
            look_at = partial(examine, root, manifest, listing=look.listing, depth=depth, is_read=False)
            return [flaw for seen in pool.map(look_at, letters) for flaw in seen.flaws]

        waiting = [(each, each.manifest, seen(each.manifest)) for each in chosen if each.manifest]
        return tuple(
            _window(
                each, manifest, list(parts), [*markers.get(manifest.window, ()), *flaws_of_letters(manifest)], depth
            )
            for each, manifest, parts in waiting
        )


def _window(
    found: ManifestFile, manifest: Manifest, parts: Sequence[PartSeen], markers: Sequence[Flaw], depth: Depth
) -> WindowValidated:
    """Join what was seen of one window."""
    flaws = [*found.flaws, *markers, *(flaw for part in parts for flaw in part.flaws)]
    sums = sums_of(manifest)
    compared: list[str] = []
    inexact = {name for part in parts for name in part.inexact}
    was_read = depth == "full" and all(part.sums is not None or part.inexact for part in parts)
    # Else a part is damaged or missing, and says so itself.
    if was_read:
        compared = [name for name in sums if name not in inexact]
        flaws += _values(manifest, parts, compared, sums)
        flaws += _positions(manifest, parts)
    return WindowValidated(
        window=manifest.window,
        run_id=manifest.run_id,
        rows=manifest.row_count,
        parts=manifest.part_count,
        size_bytes=manifest.size_bytes,
        flaws=tuple(flaws),
        compared=tuple(compared),
        not_compared=tuple(name for name in sums if name in inexact) if was_read else (),
        has_checksums=bool(sums),
    )


def _values(manifest: Manifest, parts: Sequence[PartSeen], names: Sequence[str], sums: Mapping[str, int]) -> list[Flaw]:
    """Compare the checksums of columns with those of the cells that were read back."""
    found: Counter[str] = Counter()
    empty: Counter[str] = Counter()
    for part in parts:
        found.update(part.sums or {})
        empty.update(part.empty_texts)
    for name in empty:  # in CSV, NULLs were read as empty texts
        found[name] -= EMPTY_TEXT * manifest.measures.nulls.get(name, 0)
    return [
        Flaw(
            "VALUE_CHECKSUM",
            manifest.path,
            f"column {name!r} of {manifest.row_count} rows has checksum {found[name] % WHOLE} in its parts, the "
            f"manifest says {sums[name]}",
            manifest.window,
        )
        for name in names
        if found[name] % WHOLE != sums[name]
    ]


def _positions(manifest: Manifest, parts: Sequence[PartSeen]) -> list[Flaw]:
    """See that changes stand in the order of their log, from part to part as well."""
    disorder = sum(part.disorder for part in parts)
    last = None
    for part in parts:
        disorder += last is not None and part.first is not None and not follows(last, part.first)
        last = part.last or last
    if not disorder:
        return []
    text = f"{disorder} of {manifest.row_count} changes do not stand above the one before, by __pos and __seq"
    return [Flaw("CDC_POSITION", manifest.path, text, manifest.window)]


def _markers(root: Root, look: _Look) -> dict[str, list[Flaw]]:
    """Compare the markers of all folders: {window: flaws}, at the window that was committed last in the folder.

    A run that lives may be between its manifest and its marker.
    """
    folders: dict[str, list[ManifestFile]] = {}
    for each in look.current:
        if each.manifest:
            folders.setdefault(each.manifest.window_folder, []).append(each)
    told: dict[str, list[Flaw]] = {}
    for folder, reads in folders.items():
        last = max((each.manifest for each in reads if each.manifest), key=lambda manifest: manifest.finished_at)
        # A run that lives may be between its manifest and its marker.
        if last.run_id not in look.living:
            flaws = success_flaws(root, folder, reads, look.listing)
            told[last.window] = [replace(flaw, window=last.window) for flaw in flaws]
    return told


def _again(
    validated: tuple[WindowValidated, ...], look: _Look, depth: Depth, look_anew: Callable[[], _Look], root: Root
) -> tuple[WindowValidated, ...]:
    """Look again at windows with flaws that were committed anew, or replaced, since they were listed.

    A marker may have been on its way: it is always looked at twice.
    """
    marked = {each.window for each in validated if any(flaw.short.startswith("SUCCESS") for flaw in each.flaws)}
    for _ in range(LOOKS - 1):
        flawed = {each.window for each in validated if each.flaws}
        if not flawed:
            break
        try:
            newer = look_anew()
        except RivetError:
            # What was seen is told; the next look would say no more.
            break
        # By the bytes of the manifest: a window that was committed anew has others, whatever it is called.
        moved = frozenset(window for window in flawed if newer.content(window) != look.content(window)) | marked
        if not moved:
            break
        anew = _judge_windows(root, newer, depth, _among(moved))
        validated = (*(each for each in validated if each.window not in moved), *anew)
        look, marked = newer, set()
    return tuple(sorted(validated, key=lambda each: each.window))


def _among(windows: Collection[str]) -> Pick:
    """Pick windows by key."""
    return lambda manifest: manifest.window in windows


# --- what is about no window ---------------------------------------------------------------------


def _untracked_objects(look: _Look, export: str) -> list[Flaw]:
    """Return a flaw for each object that no current manifest lists and no run is about to commit."""
    current = [each.manifest for each in look.current if each.manifest]
    known = {part.path for manifest in current for part in manifest.files}
    known |= {path for each in look.retired for path in each.parts}
    known |= {below(manifest.window_folder, name) for manifest in current for name in ("manifest.json", "_SUCCESS")}
    living, finished = ({nonce_of(run_id) for run_id in runs} for runs in (look.living, look.known))
    strays = []
    for path in sorted(look.listing):
        if path in known or path.startswith(f"{MANIFESTS}/"):
            continue
        nonce = part_nonce(path, export=export)
        # What lives is about to be named. Of runs that this store does not know only their age says that they are over.
        if nonce is None or (nonce not in living and (nonce in finished or not is_fresh(path))):
            strays.append(path)
    told = [
        Flaw("UNTRACKED_OBJECT", path, f"has {look.listing[path]} bytes and is listed by no manifest")
        for path in strays[:TOLD_OBJECTS]
    ]
    rest = strays[TOLD_OBJECTS:]
    if rest:
        size = sum(look.listing[path] for path in rest)
        told.append(
            Flaw("UNTRACKED_OBJECT", "", f"{len(rest)} more objects, of {size} bytes, are listed by no manifest")
        )
    return told


def _boundary(look: _Look, cursor: str | None) -> list[Flaw]:
    """See that the windows of an export form one chain, and that the state store says where it ends."""
    manifests = {each.manifest.window: each.manifest for each in look.current if each.manifest}
    try:
        end = resolve_cursor(manifests)
    except ManifestUnreadable as error:
        return [Flaw("MANIFEST_INCONSISTENT", MANIFESTS, str(error))]
    if cursor is None or end is None or end == cursor:
        return []
    text = "the chain of windows ends elsewhere than the state store says; the manifests are right"
    return [Flaw("BOUNDARY_DIFFERS", MANIFESTS, text)]
