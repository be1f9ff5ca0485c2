"""Whose state an export's is: its project and source, and what an earlier Rivet kept under its bare name.

Belongs here: what a project is called, which names a configuration keeps state under, the evidence at its destinations.
Not here: keys (`state/scopes.py`), moving rows (`state/adoption.py`).

A project is what `project:` says. Without that it is the name of the configuration's folder.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rivet_assets.modes.by_shard import kept_as
from rivet_assets.run.actor import command_line
from rivet_assets.run.admit.adoption_evidence import evidence_at
from rivet_resources.errors import RivetError
from rivet_resources.state.scopes import Scope
from rivet_resources.state.store import State, open_state, state_url

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_assets.config.load import RivetConfig
    from rivet_resources.dagster.resource import Rivet


def state_of(config: RivetConfig, *, rivet: Rivet | None = None) -> State:
    """Open the store that the exports of a configuration use; names in it are theirs.

    Args:
        rivet: the run's resource, which keeps stores open; None: it is the caller's to close.

    Raises:
        StateError: it cannot be opened.
    """
    url = state_url(config.state_url, folder=config.folder)
    if rivet is None:
        return bind(config, open_state(url))
    if (known := rivet.settled_state(config)) is not None:
        return known
    ours = _scoped(config, rivet.state(url))
    if waiting := ours.adoptions().waiting():
        _adopt_waiting(config, ours, waiting)
    else:
        # For all exports of this run: of a thousand, each would ask for all.
        rivet.settle(config, ours)
    return ours


def bind(config: RivetConfig, state: State) -> State:
    """Return a store whose names are those of a configuration; what an earlier Rivet kept for these is taken over."""
    ours = _scoped(config, state)
    _adopt_waiting(config, ours, ours.adoptions().waiting())
    return ours


def _scoped(config: RivetConfig, state: State) -> State:
    return state.of(scope_of(config, state)).used_by(command_line())


def _adopt_waiting(config: RivetConfig, ours: State, waiting: Collection[str]) -> None:
    """Take over what lies under bare names; what cannot be is tried again by the next who binds."""
    for export in config.exports if waiting else ():
        if not set(waiting).isdisjoint(names_of(export)):
            with suppress(RivetError):  # its run meets the same fault, and tells it
                _adopt(export, ours)


def scope_of(config: RivetConfig, state: State) -> Scope:
    """Return which project and sources the exports of a configuration have in a store."""
    project = config.project if config.project is not None else project_of(config.folder, state)
    sources = {name: config.source_of(export)[0] for export in config.exports for name in names_of(export)}
    return Scope(project, sources)


def project_of(folder: Path, state: State) -> str:
    """Name the project of a folder: '' where the store is a file in that same folder, else the folder's name."""
    # Beside a file of its own folder, the usual SQLite store, no name is needed, so that the folder may be moved and
    # renamed.
    if state.file is not None and os.path.realpath(state.file.parent) == os.path.realpath(folder):
        return ""
    # The name and not the path: a release, CI and production check one project out at different places and share its
    # state.
    return os.path.basename(os.path.abspath(folder))


def names_of(export: Export) -> Sequence[str]:
    """List the names under which an export keeps state: its own, and those of its tables and what is made of them."""
    shards = (kept_as(export, shard) for shard in export.shards or ())
    return tuple(dict.fromkeys((export.name, *export.all_folders(), *shards)))


# --- rows of an earlier Rivet --------------------------------------------------------------------


def _adopt(export: Export, state: State) -> None:
    """Take over what its destination proves to be its own; the drain of several tables goes with any of them."""
    destination = export.destination.on(datetime.now(UTC).date())
    folders = export.all_folders()
    adopted = [state.adoptions().take(name, evidence_at(destination.root(name))) for name in folders]
    if export.name not in folders and any(adopted):
        state.adoptions().take_all(export.name)
