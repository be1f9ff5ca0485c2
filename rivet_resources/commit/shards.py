"""Windows of shards that have a chain each, as a reader of the whole export sees them.

Belongs here: where their folders are, and their manifests seen from the export's own folder. Not here: which shards
there are, and what each of them reads (`rivet_assets/modes/by_shard.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rivet_resources.commit.manifest import Manifest, current_manifests
from rivet_resources.contracts.destination import Destination, ReadableRoot
from rivet_resources.contracts.rows.value_windows import SHARD_COLUMN, window_key


def shard_roots(destination: Destination, export: str, shards: Iterable[str]) -> dict[str, ReadableRoot]:
    """Return the folder of each shard, by its window: `shard=eu`."""
    return {window_key(SHARD_COLUMN, each): destination.root(f"{export}/{SHARD_COLUMN}={each}") for each in shards}


def shard_manifests(roots: Mapping[str, ReadableRoot]) -> list[Manifest]:
    """Read the current manifests of shards, each as one of its shard's window, its parts below the export's folder.

    Raises:
        ManifestUnreadable, DestinationError
    """
    return [
        each.model_copy(
            update={
                "window": window,
                "parts": tuple(part.model_copy(update={"path": f"{window}/{part.path}"}) for part in each.parts),
            }
        )
        for window, root in roots.items()
        for each in current_manifests(root).values()
    ]
