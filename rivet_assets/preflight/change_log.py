"""What a check says of an export's change log: what the log demands, and whether a drain has been here.

Belongs here: two looks from outside, turned into findings. Not here: what one log demands (`Log.preflight`), how far
behind a drain is (`rivet doctor`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rivet_assets.modes.cdc import Cdc
from rivet_assets.run.admit.provenance import ForeseenRead, read_of_drain
from rivet_assets.run.drain import checkpoint_key, checkpoints_of
from rivet_assets.run.log_status import open_for_look
from rivet_resources.contracts.evidence import Finding
from rivet_resources.contracts.source import Source
from rivet_resources.errors import RivetError, SourceLost
from rivet_resources.state.checkpoints.stores import Checkpoint, Checkpoints, file_checkpoints
from rivet_resources.state.store import State

if TYPE_CHECKING:
    from rivet_assets.config.load import RivetConfig

ASK_DOCTOR = "rivet doctor"


@dataclass(frozen=True)
class LogLooked:
    """What a look at a log came to; `read` is what a drain would read, by the name under which each table is kept."""

    findings: tuple[Finding, ...]
    read: Mapping[str, ForeseenRead] = field(default_factory=dict)


def log_findings(export: Cdc, source: Source, config: RivetConfig, state: State | None) -> LogLooked:
    """Judge what the log demands, as `rivet doctor` does, and the checkpoint.

    Raises:
        SourceLost: the line broke.
    """
    deployment = state.name if state is not None else str(config.folder)
    identity = ""
    try:
        with open_for_look(export, source, deployment=deployment) as log:
            found = log.preflight()
            # A log that is not ready was judged; one that is busy knows its own source.
            with suppress(RivetError):
                identity = log.survey().identity
    except SourceLost:
        raise
    except RivetError as error:
        found = (Finding("log", "fail", str(error), ASK_DOCTOR),)
    held, judged = _checkpoint(export, config, state)
    name, _ = config.source_of(export)
    read = read_of_drain(export, source, name, identity=identity, checkpoint=held) if identity else {}
    return LogLooked((*found, *judged), read)


def _checkpoint(export: Cdc, config: RivetConfig, state: State | None) -> tuple[Checkpoint | None, tuple[Finding, ...]]:
    """Read the checkpoint; warn where a drain has no position yet and takes none of the rows that are there."""
    name, _ = config.source_of(export)
    try:
        kept = _checkpoints(export, config, state)
        held = kept.load(checkpoint_key(export, name)) if kept is not None else None
    except RivetError as error:
        return None, (Finding("cdc-checkpoint", "fail", str(error), ASK_DOCTOR),)
    if held is not None:
        return held, ()
    if export.cdc.initial:
        return None, (Finding("cdc-checkpoint", "ok", "none yet: the first drain copies the tables, then follows"),)
    text = "none yet, and no initial copy: rows that are there already are never exported, only their changes"
    return None, (Finding("cdc-checkpoint", "warn", text, "cdc: {initial: snapshot}"),)


def _checkpoints(export: Cdc, config: RivetConfig, state: State | None) -> Checkpoints | None:
    """Return the place of checkpoints; None where it would be a store that is not there yet."""
    if export.cdc.checkpoint is not None:
        return file_checkpoints(os.path.join(config.folder, export.cdc.checkpoint))
    return checkpoints_of(export, state=state, folder=config.folder) if state is not None else None
