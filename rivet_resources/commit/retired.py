"""What a compaction or a retention replaced, and may only be removed later: readers in mid-scan still open it.

Belongs here: the record of it at the destination, and which files it keeps from a sweep. Not here: removing them when
their time has come (`upkeep/sweep.py`), writing such a record (`upkeep/`).

A record's name begins with the time from which the files may go: one listing tells what is due.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from pydantic import ValidationError

from rivet_resources.commit.manifest_entries import Entry, Superseded
from rivet_resources.contracts.addressing import MANIFESTS, Place
from rivet_resources.contracts.destination import Root
from rivet_resources.errors import ManifestUnreadable

# One small object per swap below `_rivet/+retired/`, written before any effect, so that the place itself remembers and
# no state store has to. The `+` sorts before the names of all manifests, and the name does not end as theirs do, so no
# run lists or reads one.
RETIRED = f"{MANIFESTS}/+retired"


class Retired(Entry):
    """One swap: what it brought, what it replaced, and until when that must stay.

    `produced`: parts that nobody names if the swap never came. `parts` and `windows`: what readers of before may still
    open, and manifests that are hidden since, or were taken away.
    """

    run_id: str
    until: datetime
    produced: tuple[Place, ...] = ()
    parts: tuple[Place, ...] = ()
    windows: tuple[Superseded, ...] = ()

    @property
    def path(self) -> str:
        """Name its place below the export's folder."""
        # The time first, so that one listing, in the order of names, tells what is due.
        return f"{RETIRED}/{self.until:%Y%m%dT%H%M%SZ}_{self.run_id[-26:]}"

    @property
    def content(self) -> bytes:
        """Serialise, readable by eye."""
        return self.model_dump_json(indent=2).encode() + b"\n"


def is_retired(path: str) -> bool:
    """Return whether a path is that of such a record."""
    return path.startswith(f"{RETIRED}/")


def read_retired(root: Root, paths: Iterable[str]) -> tuple[tuple[str, Retired], ...]:
    """Read records with their paths; those that were removed since they were listed are left out.

    Raises:
        ManifestUnreadable: one is damaged, so nobody knows which files it keeps.
    """
    found = []
    for path in sorted(paths):
        content = root.read(path)
        if content is None:
            continue
        try:
            # Refused where it cannot be read: to pass over it would let a sweep remove files that readers have open.
            found.append((path, Retired.model_validate_json(content[0])))
        except ValidationError as error:
            raise ManifestUnreadable(
                f"{root.uri}/{path} cannot be read, and says which replaced files readers may still open. Remove it: "
                f"these files are then removed at once."
            ) from error
    return tuple(found)
