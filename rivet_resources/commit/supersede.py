"""Which older manifests a new one replaces, and which it may not stand beside.

Belongs here: the rule, and the few reads it needs. Not here: writing or removing anything (`publish.py`).

`all` replaces every other window of the export. `after=start` replaces `all` and every other `after=`.
`after=X` replaces what descended from the manifest it replaces: its chain begins anew at X. A window of time, or of
a value, replaces only itself; a snapshot also those that are too old to keep. Whatever else would show a row twice is
refused.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from rivet_resources.commit import listing
from rivet_resources.commit.chain import ends_at, starts_at
from rivet_resources.commit.listing import (
    NOT_OF_CHAIN,
    NOT_OF_TIME,
    FirstPaths,
    NearPaths,
    first_paths,
    has_strangers,
    paths_near,
)
from rivet_resources.commit.manifest import (
    Manifest,
    current_manifests,
    manifest_path,
    manifest_paths,
    parse,
    read_manifest,
    read_manifests,
    window_manifest,
)
from rivet_resources.commit.manifest_entries import Superseded
from rivet_resources.commit.remembered import Remembered
from rivet_resources.contracts.addressing import MANIFESTS
from rivet_resources.contracts.destination import ReadableRoot
from rivet_resources.contracts.extract import Extract, Staged, Window
from rivet_resources.contracts.messages import Topic
from rivet_resources.contracts.rows.value_windows import BESIDE, OTHERS, column_of_window, window_key
from rivet_resources.errors import WindowConflict, WindowTaken

# As `Window.file_name` writes what stands between a time and a value.
BESIDE_IN_PATHS = "~7C"


@dataclass(frozen=True)
class Replacement:
    """What goes when a window is committed: its own older manifest, and those of other windows."""

    previous: Manifest | None
    replaced: tuple[Manifest, ...] = ()
    is_alone: bool = False  # it was looked, and nothing but the window's own chain is there

    @property
    def hides(self) -> tuple[Superseded, ...]:
        """Name the commits of other windows that the new manifest supersedes."""
        # With the run's id, so that a later commit of the same window is not hidden.
        return tuple(manifest.entry for manifest in self.replaced)


def succession(staged: Staged, *, root: ReadableRoot) -> Replacement:
    """Find what a staged window replaces, as the destination stands now.

    Raises:
        WindowTaken: another run committed the window since `staged` was planned.
        WindowConflict: windows of another mode, or that overlap, are there and would not be replaced.
    """
    extract = staged.extract
    before = window_before(staged, root=root)
    if before is not None and goes_on(extract, before, root=root):
        return Replacement(None, is_alone=True)
    # First: what it tells is not asked for again.
    listed = list_around(extract.window, root=root)
    found = window_manifest(root, extract.window)
    previous = found[0] if found else None
    # A run that died behind its swap publishes again, and meets its own manifest.
    # A retry of the step stages under the same run id. Without this it would take itself for a rival, and withdraw
    # parts that readers see.
    ours_already = previous is not None and previous.run_id == extract.run_id
    if (found[1] if found else None) != staged.previous and not ours_already:
        raise WindowTaken(
            f"Window {extract.window.key} of export {extract.export} was committed by run "
            f"{previous.run_id if previous else '(removed since)'} while run {extract.run_id} read it. Run again."
        )
    # A window that is committed anew replaces what descends from it, and no request need be spent on it; unless the
    # window before ours, which was there when ours was planned, is gone now, or a compaction joined some.
    is_first = isinstance(listed, FirstPaths) and listed.are_all and not listed.paths
    is_new = found is None and not is_first
    if before is not None or is_new or (isinstance(listed, FirstPaths) and listed.has_joined):
        refuse_inside(extract, root=root)
    others = tuple(path for path in paths_beside(extract, listed, root=root) if path != manifest_path(extract.window))
    refuse_neighbours(extract, others, root=root)
    ruled = tuple(read_replaced(extract, previous, others, root=root))
    # As in `goes_on`: a chain that begins may have looked before somebody else was there.
    is_alone = extract.window.kind == "after" and not starts_anew(extract) and others == of_kinds(others, "after")
    return Replacement(previous, with_hidden(previous, ruled, root=root), is_alone=is_alone)


def window_before(staged: Staged, *, root: ReadableRoot) -> Manifest | None:
    """Return the window that ended where ours begins when ours was planned, if ours was not committed then.

    However long its chain is, ours then replaces nothing.
    """
    extract = staged.extract
    if extract.window.kind != "after" or starts_anew(extract) or staged.previous is not None:
        return None
    if not isinstance(root, Remembered):
        return None
    known = (parse(content, where=f"{root.uri}/{path}") for path, content in root.held(f"{MANIFESTS}/"))
    return next((each for each in known if _begins_at(extract, each) and each.window != extract.window.key), None)


def goes_on(extract: Extract, before: Manifest, *, root: ReadableRoot) -> bool:
    """Return whether a window still begins where one ends, and nothing is there but its chain; one request, mostly.

    It is then inside of no window that a compaction joined. That nobody commits it meanwhile is what the swap sees to.
    """
    # From the name of the window before on: in one listing the version of that, and mostly all that follows a chain.
    behind = root.list_after(before.path[:-1], most=listing.MANY)
    if len(behind) == listing.MANY:
        behind = root.list_after(NOT_OF_CHAIN, most=1)
    if any(path > NOT_OF_CHAIN for path in behind):
        return False
    # Not asked for again where the listing tells the version that was read. What joined or replaced it meanwhile took
    # it away, or ends elsewhere.
    found = read_manifest(root, before.path)
    if found is None or not _begins_at(extract, found[0]):
        return False
    # What comes before a chain is looked for once: windows of other kinds refuse to come beside a chain that is there.
    # Not when it begins, since then both may have looked before either was there.
    return bool(found[0].is_alone) or not has_strangers("after", first_paths(root), root=root)


def refuse_inside(extract: Extract, *, root: ReadableRoot) -> None:
    """Refuse a window of a chain that begins where no other one ends.

    That is where a state store stands which was restored from before a compaction, or from before a reset, whose first
    window began another chain; and a run whose chain was joined or replaced while it read. The newest commit beside the
    parts answers in one request.

    Raises:
        WindowConflict
    """
    # A topic keeps what was produced, and tells itself how far it reaches.
    if extract.window.kind != "after" or starts_anew(extract) or isinstance(root, Topic):
        return
    # The folder of chains is the export's own, so this is the newest window's. That the new one begins at its end is
    # the usual case; only else all manifests are read. Its rows would show twice, beside those of the windows there.
    copy = root.read("manifest.json")
    newest = parse(copy[0], where=f"{root.uri}/manifest.json") if copy else None
    if newest is not None and newest.cursor is not None and _begins_at(extract, newest):
        return
    current = {key: each for key, each in current_manifests(root).items() if each.cursor is not None}
    if current and extract.window.key not in current and not any(_begins_at(extract, m) for m in current.values()):
        raise WindowConflict(
            f"Window {extract.window.key} of export {extract.export} begins where no window at {root.uri} ends: the "
            f"windows there were joined by `rivet compact`, dropped by `rivet retain`, or began anew after `rivet "
            f"state reset`, and the state store is older than they are. {_newer_place(extract)}"
        )


def _newer_place(extract: Extract) -> str:
    """Return how a state store gets to where the windows end."""
    if extract.consistency == "log":
        return (
            "Restore a copy of the checkpoint from after that; or begin anew, which replaces what is published: run "
            "`rivet state reset`."
        )
    return f"Run `rivet state rebuild -e {extract.export}`, which reads the cursor from the manifests."


def _begins_at(extract: Extract, manifest: Manifest) -> bool:
    """Return whether the window that is committed begins where a committed one ends."""
    return manifest.cursor is not None and Window.after(*ends_at(manifest.cursor)).key == extract.window.key


def list_around(window: Window, *, root: ReadableRoot) -> FirstPaths | NearPaths:
    """List what decides about most windows in one request: of a time what is near it, of all else what comes first."""
    of_time_alone = window.kind == "time" and not value_of_path(manifest_path(window))
    return paths_near(window, root=root) if of_time_alone else first_paths(root)


def paths_beside(extract: Extract, listed: FirstPaths | NearPaths, *, root: ReadableRoot) -> tuple[str, ...]:
    """List the manifests that decide about a window: all there are, in the order of their names.

    Where windows of its family are too many to list for each new one, those near it: the windows of time that may
    overlap it, and nothing of a chain that it continues. Windows of a time and a value that are far from a window of
    time alone share no row with it.
    """
    if isinstance(listed, NearPaths):
        # A window of another kind may lie anywhere behind the times; one more name tells.
        is_alone = not listed.has_others and (listed.are_last or not root.list_after(NOT_OF_TIME, most=1))
        # Only names are read for the usual case, since an export may keep thousands of manifests.
        return listed.paths if is_alone and not any(map(_column_of_path, listed.paths)) else manifest_paths(root)
    if listed.are_all:
        return listed.paths
    kind = extract.window.kind
    # The first of a chain replaces all that is there, and who sees windows of another mode must judge each by its
    # content.
    if starts_anew(extract) or has_strangers(kind, listed, root=root):
        return manifest_paths(root)
    # A chain that goes on cannot overlap itself: what it replaces is found by following it from its own manifest.
    return () if kind == "after" else manifest_paths(root)


def starts_anew(extract: Extract) -> bool:
    """Return whether a window of a moved cursor is the first of its chain."""
    return extract.window.kind == "after" and (extract.cursor is None or extract.cursor.low is None)


def read_replaced(
    extract: Extract, previous: Manifest | None, others: tuple[str, ...], *, root: ReadableRoot
) -> Iterable[Manifest]:
    """Read the manifests of other windows that this window replaces."""
    if extract.window.kind == "all":
        return read_manifests(root, others)
    # Never another one: an overlap is refused instead, since nobody can say which of the two the user meant.
    if extract.window.kind in ("time", "value"):
        return ()
    if extract.window.kind == "snapshot":
        return read_manifests(root, outdated(extract, others))
    if extract.cursor is None or extract.cursor.low is None:
        return read_manifests(root, of_kinds(others, "all", "after"))
    return descendants(previous, root=root)


def outdated(extract: Extract, others: tuple[str, ...]) -> tuple[str, ...]:
    """Name the manifests of snapshots that are too many beside a new one, oldest first; days sort as their names do.

    Of snapshots by value those of the same value alone.
    """
    if extract.keep is None:
        return ()
    ours = value_of_path(manifest_path(extract.window))
    alike = (path for path in of_kinds(others, "snapshot") if value_of_path(path) == ours)
    # The new one counts among those to keep, also where an older day is run again.
    snapshots = sorted((*alike, manifest_path(extract.window)))
    return tuple(path for path in snapshots[: -extract.keep] if path != manifest_path(extract.window))


def descendants(manifest: Manifest | None, *, root: ReadableRoot) -> Iterator[Manifest]:
    """Follow a chain of `after=` windows onward from a manifest, without it."""
    passed = set[str]()
    while manifest is not None and manifest.cursor is not None and manifest.cursor.high is not None:
        place, manifest = ends_at(manifest.cursor), None
        path = manifest_path(Window.after(*place))
        # A damaged chain may lead in a circle.
        found = None if path in passed else read_manifest(root, path)
        # By content, not by name: names of long values are cut and hashed, and a damaged manifest may begin elsewhere.
        if found and found[0].cursor and starts_at(found[0].cursor) == place:
            manifest = found[0]
            passed.add(path)
            yield manifest


def with_hidden(previous: Manifest | None, ruled: tuple[Manifest, ...], *, root: ReadableRoot) -> tuple[Manifest, ...]:
    """Add the leftovers that the outgoing manifests hide."""
    gone = {manifest.entry: manifest for manifest in ruled}
    waiting = [entry for manifest in (previous, *ruled) if manifest for entry in manifest.supersedes]
    # Transitively: the outgoing manifest may itself hide leftovers of a run that died in the middle of its removals.
    # When it goes, its word goes with it, and rows of years ago would be visible again beside the new ones.
    while waiting:
        entry = waiting.pop()
        found = None if entry in gone else read_manifest(root, manifest_path(Window(entry.window)))
        if found and found[0].entry == entry:
            gone[entry] = found[0]
            waiting.extend(found[0].supersedes)
    return tuple(gone.values())


# --- what may not stand side by side -------------------------------------------------------------


def refuse_neighbours(extract: Extract, others: tuple[str, ...], *, root: ReadableRoot) -> None:
    """Refuse a window that would show rows a second time beside windows it does not replace.

    Raises:
        WindowConflict: naming both modes, or both windows.
    """
    kind = extract.window.kind
    foreign: tuple[str, ...] = {
        "all": (),
        "time": ("all", "after", "value", "snapshot"),
        "value": ("all", "after", "time", "snapshot"),
        "snapshot": ("all", "after", "time", "value"),
        "after": ("time", "value", "snapshot") if starts_anew(extract) else ("time", "value", "snapshot", "all"),
    }[kind]
    if of_kinds(others, *foreign):
        # A name may be that of a manifest which another one hides, and which shows no row.
        current = [each for each in current_manifests(root).values() if Window(each.window).kind in foreign]
        if current:
            raise WindowConflict(
                f"Export {extract.export} is committed at {root.uri} by mode {current[0].source.extraction.strategy} "
                f"(window {current[0].window}); mode {extract.mode} would show rows twice beside it (window "
                f"{extract.window.key}). {remedy(kind, current)}"
            )
    if kind == "time":
        ours = value_of_path(manifest_path(extract.window))
        refuse_overlap(extract, tuple(path for path in others if value_of_path(path) == ours), root=root)
        refuse_other_column(extract, others, root=root)
    if kind == "snapshot":
        refuse_other_split(extract, others, root=root)
    if kind == "value":
        refuse_other_column(extract, others, root=root)
        refuse_twice(extract, others, root=root)


def refuse_overlap(extract: Extract, others: tuple[str, ...], *, root: ReadableRoot) -> None:
    """Refuse a window of time that shares time with another one, as after a change of granularity or timezone.

    The windows that are there do not overlap, and their keys sort like their times: looking at the two beside
    the new one is enough.

    Raises:
        WindowConflict: naming both windows.
    """
    start, end = extract.window.start, extract.window.end
    # Two reads, however many windows there are. That holds because each was checked in this way when it was committed.
    place = bisect.bisect(others, manifest_path(extract.window))
    for other in read_manifests(root, others[max(0, place - 1) : place + 1]):
        bounds = (start, end, other.window_start, other.window_end)
        # Half-open on both sides: windows that only touch share no row.
        if None not in bounds and max(filter(None, bounds[::2])) < min(filter(None, bounds[1::2])):
            raise WindowConflict(
                f"Window {extract.window.key} of export {extract.export} overlaps window {other.window}, which is "
                f"committed at {root.uri} with another granularity or timezone; rows would show twice. Choose another "
                f"`destination`, or remove that folder and backfill."
            )


def refuse_other_column(extract: Extract, others: tuple[str, ...], *, root: ReadableRoot) -> None:
    """Refuse a window of a value beside windows of another column's values.

    Raises:
        WindowConflict: naming both windows.
    """
    other = _first_other(extract, others, _column_of_path, root)
    if other is not None:
        raise _beside(extract, other, root, stands="for values of another column", way_out="run all partitions")


def refuse_other_split(extract: Extract, others: tuple[str, ...], *, root: ReadableRoot) -> None:
    """Refuse a snapshot of all rows beside those of a column's values, one of values beside one of all rows.

    Raises:
        WindowConflict: naming both windows.
    """
    other = _first_other(extract, others, _split_of_path, root)
    if other is not None:
        raise _beside(extract, other, root, stands="of other rows of its day", way_out="begin anew")


def _first_other(
    extract: Extract, others: tuple[str, ...], trait: Callable[[str], str], root: ReadableRoot
) -> Manifest | None:
    """Read one window whose name differs from ours in a trait.

    From names alone: all windows of a kind were checked when they came, so one that differs is enough.
    """
    ours = trait(manifest_path(extract.window))
    return next(iter(read_manifests(root, tuple(path for path in others if trait(path) != ours)[:1])), None)


def _beside(extract: Extract, other: Manifest, root: ReadableRoot, *, stands: str, way_out: str) -> WindowConflict:
    return WindowConflict(
        f"Window {extract.window.key} of export {extract.export} would stand beside window {other.window}, which "
        f"is committed at {root.uri} {stands}; rows would show twice. Choose another "
        f"`destination`, or remove that folder and {way_out}."
    )


def _split_of_path(path: str) -> str:
    """Return the column by whose values a snapshot is split, '' of one of all rows."""
    return value_of_path(path).partition("=")[0]


def value_of_path(path: str) -> str:
    """Return which value the manifest of a window of a time and a value is of, as its name spells it; '' of others."""
    return path.rpartition("/")[2].partition(BESIDE_IN_PATHS)[2]


def time_of_path(path: str) -> str:
    """Return which time the manifest of a window of a time and a value is of, as its name spells it; '' of others."""
    time, found, _ = path.rpartition("/")[2].partition(BESIDE_IN_PATHS)
    return time if found else ""


def _column_of_path(path: str) -> str:
    """Return the column whose value a window of a value, or of a time and a value, is of; '' of a time alone."""
    name = path.rpartition("/")[2]
    return (value_of_path(path) or (name if "=" in name else "")).partition("=")[0]


def refuse_twice(extract: Extract, others: tuple[str, ...], *, root: ReadableRoot) -> None:
    """Refuse a value beside a window of all other values that has its rows too, and the other way round.

    Raises:
        WindowConflict: naming both windows.
    """
    window = extract.window
    column = column_of_window(window.key)
    rest = Window(window_key(column, OTHERS))
    # The window of all other values has the rows of every value that is not excluded from it. A value whose partition
    # was taken out of the YAML is such a one, and its old window still shows them.
    if window.key == rest.key:
        known = {manifest_path(Window(window_key(column, each))) for each in window.excludes or ()}
        stray = next(iter(read_manifests(root, tuple(path for path in others if path not in known)[:1])), None)
        if stray is not None:
            raise WindowConflict(
                f"Window {stray.window} of export {extract.export} is committed at {root.uri}, but its value is not "
                f"listed any more, so window {window.key} would show its rows a second time. Remove {stray.path} "
                f"there, or list the value again."
            )
    # The other way round: a value that was added to the YAML has been in the window of all others until that is run
    # again.
    elif manifest_path(rest) in others:
        found = read_manifest(root, manifest_path(rest))
        if found is not None and window.partition not in (found[0].window_excludes or ()):
            raise WindowConflict(
                f"Window {rest.key} of export {extract.export}, committed at {root.uri}, has the rows of window "
                f"{window.key} too; they would show twice. Run partition {OTHERS} first, which lets go of them."
            )


def remedy(kind: str, current: list[Manifest]) -> str:
    """Return what helps: an incremental export may start again and replace a full one."""
    if kind == "after" and all(manifest.window == "all" for manifest in current):
        return "Run `rivet state reset` for this export: it then starts from the beginning and replaces that window."
    return "Choose another `destination`, or remove that folder and run `rivet state reset`."


def of_kinds(paths: tuple[str, ...], *kinds: str) -> tuple[str, ...]:
    """Pick the manifests of some families by their names."""
    keys = {path: path.rpartition("/")[2].removesuffix(".json").replace(BESIDE_IN_PATHS, BESIDE) for path in paths}
    return tuple(path for path, key in keys.items() if Window(key).kind in kinds)
