"""Where an export stands, and making it start again, whatever its mode.

Belongs here: which memory a mode has: a cursor, or a checkpoint. Not here: the stores (`rivet_resources/state/`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rivet_assets.modes.by_shard import chains_of, kept_as
from rivet_assets.modes.cdc import drain_of
from rivet_assets.run.drain import checkpoint_key, checkpoints_of
from rivet_resources.errors import CheckpointUnusable

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_assets.config.load import RivetConfig
    from rivet_resources.state.store import State


def standing(config: RivetConfig, export: Export, *, state: State) -> str | None:
    """Return how far an export has committed: its cursor, or its position in the log; None before the first run."""
    if (drain := drain_of(export)) is not None:
        store = checkpoints_of(drain, state=state, folder=config.folder)
        try:
            stored = store.load(checkpoint_key(drain, config.source_of(export)[0]))
        except CheckpointUnusable:
            return "(unreadable)"
        return stored.position if stored else None
    if export.is_apart:
        found = [(each.of_shard, standing(config, each, state=state)) for each in chains_of(export)]
        return ", ".join(f"{shard}: {each}" for shard, each in found if each is not None) or None
    cursor = state.cursor(export.name)
    return (cursor.value or "(reset)") if cursor else None


def forget(config: RivetConfig, export: Export, *, state: State) -> None:
    """Make the next run start from the beginning; what is published stays until that run replaces it."""
    if export.is_apart:
        for each in chains_of(export):
            forget(config, each, state=state)
        return
    state.note_action("reset", export.name, {"committed": standing(config, export, state=state) or ""})
    state.reset(export.name)
    for shard in export.shards or ():
        state.give_up_provenance(kept_as(export, shard))
    if (drain := drain_of(export)) is not None:
        store = checkpoints_of(drain, state=state, folder=config.folder)
        store.reset(checkpoint_key(drain, config.source_of(export)[0]), "rivet state reset")
        for folder in export.folders():
            state.reset(folder)
