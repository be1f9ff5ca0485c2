"""Which manifests there are, as far as a run needs to know: a few names of a folder that may have very many.

Belongs here: bounded lists of names. Not here: what follows from them (`supersede.py`).

Names sort as their windows do: times by their digits, then `after=`, `all`, `snapshot=` and values of columns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from rivet_resources.commit.manifest import manifest_path, manifest_paths
from rivet_resources.contracts.addressing import MANIFESTS
from rivet_resources.contracts.destination import ReadableRoot
from rivet_resources.contracts.extract import Window

# An object store lists a thousand names per request, and a run of one hour must not pay for five years of hours.
MANY = 1000  # an object store lists no more names at once
# There since windows of the export were first joined or dropped; listed before all manifests, and none itself.
JOINED = f"{MANIFESTS}/+joined"
# Names of manifests lie between these: windows of time begin with a digit.
# The second of each pair is the byte behind the last of the first: `:` follows `9`, `,` follows `+`, `>` follows `=`.
FAMILIES = {"time": (("0", ":"),), "after": (("after+", "after,"), ("after=", "after>"))}
NOT_OF_TIME = f"{MANIFESTS}/:"  # names of windows of other kinds follow it
NOT_OF_CHAIN = f"{MANIFESTS}/after>"  # names of `all` and of snapshots follow it, and none of a chain
LONGEST_WINDOW = timedelta(days=33)  # a month, and what time zones add


@dataclass(frozen=True)
class FirstPaths:
    """The first manifests below an export's folder, in the order of their names."""

    paths: tuple[str, ...]
    are_all: bool
    has_joined: bool  # windows were joined or dropped: a chain may have no window where one was committed


def first_paths(root: ReadableRoot) -> FirstPaths:
    """List the first manifests; one request."""
    listed = tuple(root.list_after(f"{MANIFESTS}/", most=MANY))
    return FirstPaths(manifests_of(listed), len(listed) < MANY, JOINED in listed)


def has_strangers(kind: str, first: FirstPaths, *, root: ReadableRoot) -> bool:
    """Return whether there are manifests whose names are not of this family; one request for each place beside it.

    None where the first manifests are all there are.
    """
    # Its names may be anything.
    if kind not in FAMILIES:
        return True
    # A listing says what follows a name, so the first name behind each span of the family is enough to see a stranger;
    # what lies before the first span is among `first`.
    spans = [(f"{MANIFESTS}/{start}", f"{MANIFESTS}/{end}") for start, end in FAMILIES[kind]]
    beyond = [] if first.are_all else [path for _, end in spans for path in root.list_after(end, most=1)]
    return not all(any(start <= path < end for start, end in spans) for path in (*first.paths, *beyond))


@dataclass(frozen=True)
class NearPaths:
    """The manifests around a window of time, in the order of their names: all that may overlap it, and what follows."""

    paths: tuple[str, ...]
    are_last: bool  # nothing follows them

    @property
    def has_others(self) -> bool:
        """Return whether one of them is of no window of time."""
        return any(path >= NOT_OF_TIME for path in self.paths)


def paths_near(window: Window, *, root: ReadableRoot) -> NearPaths:
    """List the manifests from a month before a window of time on, at least to a month after it.

    Keys of windows of time begin with their days. The newest window of an export needs one request, however many are
    there: nothing follows it but the windows of other kinds.
    """
    # The window's own month is subtracted because a window of another granularity that overlaps this one may begin that
    # much earlier, and sorts by its beginning.
    start, end = window.start, window.end
    if start is None or end is None:
        return NearPaths(manifest_paths(root), are_last=True)
    found, beyond = list[str](), f"{MANIFESTS}/{end + LONGEST_WINDOW:%Y-%m-%d}"
    place = f"{MANIFESTS}/{start - LONGEST_WINDOW:%Y-%m-%d}"
    # Stops once names are beyond everything that may overlap: a backfill in the middle of five years must not page
    # through the years that follow.
    while page := tuple(root.list_after(place, most=MANY)):
        found += page
        place = page[-1]
        if len(page) < MANY or place >= beyond:
            return NearPaths(manifests_of(found), are_last=len(page) < MANY)
    return NearPaths(manifests_of(found), are_last=True)


def last_paths(root: ReadableRoot, *, now: datetime, near: Window | None = None) -> tuple[str, ...]:
    """List manifests of a place, the last by name among them: all, or of very many windows of time the latest.

    Args:
        near: a window of time that is about to be committed, and will look at what is around it; or the last window
            of a chain, which is enough to know the chain by.
    """
    if near is not None and near.kind == "after":
        # From its own name on: the listing then shows whether the window that follows it was committed as well.
        path = manifest_path(near)
        if path in root.list_after(path[:-1], most=MANY):
            return (path,)
    if near is not None and near.start is not None:
        around = paths_near(near, root=root)
        if around.are_last and around.paths:
            return around.paths
    # A chain alone, or few windows: one more listing has all of them, and the last of them with that.
    first = first_paths(root)
    if first.are_all:
        return first.paths
    recent = f"{now - LONGEST_WINDOW:%Y-%m-%d}"
    # Windows of time begin with a digit; those of all else follow them.
    found = root.list_after(NOT_OF_TIME, most=MANY) or root.list_after(f"{MANIFESTS}/{recent}", most=MANY)
    return manifests_of(found) or manifest_paths(root)


def manifests_of(paths: Iterable[str]) -> tuple[str, ...]:
    """Pick the manifests; what else somebody put beside them is none."""
    return tuple(path for path in paths if path.endswith(".json"))
