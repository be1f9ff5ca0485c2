"""Where an export's windows lie, and which lease is held while they are looked after.

Belongs here: folders, leases, run ids. Not here: compaction (`compact.py`), retention (`retain.py`).

The lease is the one that a run of the export takes: of a drain the drain's, of windows that are partitions each its
own, of all else the export's one. So nothing is joined or dropped while a run works on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from rivet_assets.modes.cdc import drain_of
from rivet_assets.run.attempt import WHOLE, new_run_id
from rivet_assets.run.drain import LEASE
from rivet_resources.commit.manifest import (
    Manifest,
    collect_superseded,
    manifest_paths,
    read_manifests,
)
from rivet_resources.commit.manifest_entries import Superseded
from rivet_resources.contracts.addressing import nonce_of
from rivet_resources.errors import WORST_FIRST, ConfigError
from rivet_resources.upkeep.sweep import RetiredFiles, sweep_retired

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_resources.contracts.destination import Root
    from rivet_resources.state.store import State

GRACE = timedelta(days=1)  # how long what was replaced stays for readers in mid-scan


class UpkeepRefused(ConfigError):
    """What is asked for is not configured, or cannot be done for this export; the message says why."""


@dataclass(frozen=True)
class Folder:
    """One folder with windows, as it stands."""

    name: str
    root: Root
    manifests: tuple[Manifest, ...]  # hidden ones too

    @property
    def current(self) -> dict[str, Manifest]:
        """Return the windows that readers see."""
        hidden = collect_superseded(self.manifests)
        return {each.window: each for each in self.manifests if each.entry not in hidden}

    @property
    def there(self) -> frozenset[Superseded]:
        """Return the commits whose manifests are there."""
        return frozenset(each.entry for each in self.manifests)


def at_today(export: Export) -> Export:
    """Return the export with `{date}` of its destination filled.

    Raises:
        UpkeepRefused: its destination keeps nothing.
    """
    today = export.destination.on(datetime.now(UTC).date())
    if today.is_stream:
        raise UpkeepRefused(f"Export {export.name} writes to a stream, which keeps no window.")
    return export.model_copy(update={"destination": today})


def read_folder(export: Export, name: str) -> Folder:
    """Read all manifests of one of the export's folders.

    Raises:
        ManifestUnreadable, DestinationError
    """
    root = export.destination.root(name)
    return Folder(name, root, read_manifests(root, manifest_paths(root)))


def sweep_folder(
    export: Export, folder: Folder, state: State, *, is_dry: bool, mine: str = ""
) -> tuple[RetiredFiles, Folder]:
    """Remove what was replaced and whose time has come; return what, and the folder as it stands then.

    Args:
        mine: run id of who asks, once all its swaps are done; its own files may go too, where they have no grace.
    """
    living = state.live_runs(export.name)
    if mine:
        living = {each for each in living if nonce_of(each) != nonce_of(mine)}
    found = sweep_retired(folder.root, folder.manifests, living=living, is_dry=is_dry)
    return found, read_folder(export, folder.name) if found.removed and not is_dry else folder


def lease_key(export: Export) -> str | None:
    """Return the window key under which a run holds the whole export; None where it holds each window by itself."""
    if drain_of(export) is not None:
        return LEASE
    return None if export.has_partitions else WHOLE


@contextmanager
def held(export: Export, state: State, ids: Iterator[str], *, is_dry: bool) -> Iterator[Callable[[], None]]:
    """Hold the lease of the whole export until the block ends; yield what proves that it is still held.

    Nothing is held, and so proven, where each window has a lease of its own, and where nothing is written.

    Raises:
        WindowBusy: a run holds it.
    """
    key = lease_key(export)
    if key is None or is_dry:
        yield _nothing
        return
    with state.lease(export.name, key, next(ids)) as lease:
        yield lease.check


def _nothing() -> None:
    """Prove nothing."""


def worst_of(codes: Iterable[int]) -> int:
    """Answer for several windows together: the worst of what failed, 0 where nothing did."""
    found = {*codes}
    return next((code for code in WORST_FIRST if code in found), 0)


def run_ids(export: Export) -> Iterator[str]:
    """Yield ids for one swap after another: of one nonce, by which the first is known to live, each of a later time."""
    at = datetime.now(UTC)
    first = new_run_id(export.name, at)
    number = 0
    while True:
        each = new_run_id(export.name, at + timedelta(milliseconds=number))
        # The last six characters are the nonce.
        yield f"{each[:-6]}{nonce_of(first)}" if number else first
        number += 1
