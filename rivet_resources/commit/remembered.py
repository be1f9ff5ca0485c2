"""What one window has read of its place, from its plan to its commit: an object is asked for once per version.

Belongs here: the memory. Not here: what is read and why (`listing.py`, `supersede.py`), the fence (`publish.py`).

A listing tells the store's own version of each object (ETag, generation). What was read at that version is what the
store holds, and what a listing of its span does not name is not there: S3, Google's and Azure's stores list every
finished write. It spares requests and replaces no fence: the swap of a manifest names the version that the window was
planned against, and the store compares it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rivet_resources.contracts.addressing import parent_of
from rivet_resources.contracts.destination import ReadableRoot

# A window looks at its own manifest and its neighbours; one that replaces thousands reads each once.
MOST_HELD = 16


@dataclass(frozen=True)
class _Span:
    """What a listing saw: all paths of a folder after one, up to another one; None: to the end."""

    after: str
    last: str | None

    def covers(self, path: str) -> bool:
        return (
            parent_of(path) == parent_of(self.after) and path > self.after and (self.last is None or path <= self.last)
        )


@dataclass
class Remembered:
    """A folder as one window knows it; make one for each, and keep none longer."""

    root: ReadableRoot
    _held: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    _told: dict[str, str | None] = field(default_factory=dict)  # by the listings since `look_again`
    _spans: list[_Span] = field(default_factory=list)

    @property
    def uri(self) -> str:
        """Address the folder."""
        return self.root.uri

    @property
    def keeps_manifests(self) -> bool:
        """Return whether it has a commit point."""
        return self.root.keeps_manifests

    def look_again(self) -> None:
        """Forget what listings told; what was read stays, with its version."""
        self._told.clear()
        self._spans.clear()

    def hold(self, path: str, content: bytes, version: str = "") -> None:
        """Remember an object that was written just now, or read by somebody else."""
        self._held[path] = content, version

    def only(self, path: str) -> Remembered:
        """Return a new memory of the same folder, with one object of this one."""
        return Remembered(self.root, {path: self._held[path]} if path in self._held else {})

    def held(self, folder: str) -> Iterator[tuple[str, bytes]]:
        """Return what was read of a folder, each object as it was then."""
        return ((path, content) for path, (content, _) in self._held.items() if path.startswith(folder))

    def list(self, prefix: str = "") -> dict[str, int]:
        """List what is there now."""
        return self.root.list(prefix)

    def list_after(self, path: str, *, most: int) -> Mapping[str, str | None]:
        """List what is there now, and remember which version of each."""
        found = self.root.list_after(path, most=most)
        self._told |= found
        self._spans.append(_Span(path, None if len(found) < most else next(reversed(list(found)), None)))
        return found

    def read(self, path: str) -> tuple[bytes, str] | None:
        """Return a small object as the latest listing tells of it; asked for where that version was not read yet."""
        if any(span.covers(path) for span in self._spans):
            # The listing covers the place of that name and does not show it, so it is not there: a GET for a 404 is
            # spared. That needs stores whose listings show every finished write at once.
            if path not in self._told:
                return None
            held = self._held.get(path)
            # Stores that list no version have None here, which equals no version, and are read.
            if held is not None and held[1] == self._told[path]:
                return held
        # Not kept beyond the limit, rather than the oldest dropped: who replaces thousands reads each of them once.
        found = self.root.read(path)
        if found is not None and len(self._held) < MOST_HELD:
            self._held[path] = found
        return found
