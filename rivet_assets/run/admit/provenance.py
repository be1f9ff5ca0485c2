"""What state and destination an export would meet: what its run would refuse, foreseen by `rivet check` and `doctor`.

Belongs here: asking before a run what is asked in it, in the same words. Not here: the rules and the words
(`admission.py`), asking databases who they are (`preflight/check.py`, `doctor/source.py`).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from typing import TYPE_CHECKING

from rivet_assets.modes.cdc import Cdc
from rivet_assets.run.admit.admission import (
    POSITION,
    any_manifest,
    manifest_of_shard,
    refuse,
    refuse_destination,
    refuse_elsewhere,
    refuse_same_database,
    refuse_unproven,
)
from rivet_resources.commit.manifest import current_manifests
from rivet_resources.contracts.evidence import Finding
from rivet_resources.contracts.provenance import Provenance
from rivet_resources.contracts.source import Source
from rivet_resources.drain.checkpoint_book import chain_of
from rivet_resources.drain.commit import provenance_of
from rivet_resources.errors import ProvenanceRefused, RivetError
from rivet_resources.fan_out import NoAnswer, into_lanes, side_by_side
from rivet_resources.state.checkpoints.stores import Checkpoint
from rivet_resources.state.provenances import KnownProvenance

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_resources.contracts.destination import Destination, Root
    from rivet_resources.state.store import State

NAME = "provenance"
LANES = 4  # side by side at one destination
EXPORTS_PER_LANE = 8
EACH_SECONDS = 30.0


@dataclass(frozen=True)
class ForeseenRead:
    """What a run would read, of one shard where there are any.

    `end` is where the last window of a drain's table ended, None where there is none.
    """

    provenance: Provenance
    end: str | None = None
    shard: str = ""


@dataclass(frozen=True)
class Foreseen:
    """A run that has not begun: what `admission.Claim` asks for."""

    export: Export
    state: State
    root: Root
    place: str
    shard: str = ""


def read_of_drain(
    export: Cdc, source: Source, source_name: str, *, identity: str, checkpoint: Checkpoint | None
) -> dict[str, ForeseenRead]:
    """Return whose changes a drain would read of each table, and where it goes on, by the table's folder.

    Args:
        identity: of the source, as its log tells it.
    """
    ends = chain_of(checkpoint)
    return {
        export.folder_of(table): ForeseenRead(provenance_of(source, source_name, identity, table), ends.get(table))
        for table in export.captured
    }


def provenance_findings(
    exports: Sequence[Export], read: Mapping[str, Mapping[str, ForeseenRead]], state: State | None
) -> dict[str, tuple[Finding, ...]]:
    """Return what runs of exports would refuse, by export; a warning where the destination cannot be read.

    Destinations are asked side by side, and one that is away is asked once.

    Args:
        read: what each export's run would read, by the name under which state and files of it are kept.
        state: None where there is no store yet.
    """
    # Another one may be under way in this process.
    call = secrets.token_hex(3)
    dealing = _lanes([export for export in exports if read.get(export.name)])
    # Several lanes at one destination: one by one, a hundred exports would wait for a hundred answers.
    lanes = {f"destination {call} {number}": lane for number, lane in enumerate(dealing)}
    told: dict[str, tuple[Finding, ...]] = {}
    asks = {ask: partial(_look, lane, read, state, told) for ask, lane in lanes.items()}
    longest = max(map(len, lanes.values()), default=0)
    for ask, answer in side_by_side(asks, seconds=EACH_SECONDS + longest).items():
        if isinstance(answer, Exception):
            for export in lanes[ask]:
                told.setdefault(export.name, (_unknown(answer),))
    return told


def _lanes(exports: Sequence[Export]) -> Iterator[list[Export]]:
    """Deal exports to threads, each for one destination."""
    places: dict[Destination, list[Export]] = {}
    for export in exports:
        places.setdefault(export.destination, []).append(export)
    for members in places.values():
        yield from into_lanes(members, most=LANES, each=EXPORTS_PER_LANE)


def _look(
    exports: Sequence[Export], read: Mapping[str, Mapping[str, ForeseenRead]], state: State | None,
    told: dict[str, tuple[Finding, ...]],
) -> None:  # fmt: skip
    """Look at the destinations of exports, one after the other.

    Raises:
        RivetError: of the first that cannot be read: the others are at the same place.
    """
    for export in exports:
        each = (_refusal(export, name, table, state) for name, table in read[export.name].items())
        told[export.name] = tuple(Finding(NAME, "fail", text) for text in each if text)


def _unknown(error: Exception) -> Finding:
    """Word that nobody could look; the text of an error that is not ours may hold a secret."""
    reason = str(error) if isinstance(error, RivetError | NoAnswer) else type(error).__name__
    text = f"not known whether state and destination are of this database: {reason}"
    return Finding(NAME, "warn", text, "rivet doctor")


def _refusal(export: Export, name: str, read: ForeseenRead, state: State | None) -> str:
    """Return why the export's run would refuse to work; '' when it would go on.

    Raises:
        RivetError: the destination, a manifest there or the store cannot be read.
    """
    try:
        _refuse(export, name, read, state)
    except ProvenanceRefused as refused:
        return str(refused)
    return ""


def _refuse(export: Export, name: str, read: ForeseenRead, state: State | None) -> None:
    """Refuse as the export's run would.

    Raises:
        ProvenanceRefused
    """
    if export.is_apart:
        export = export.alone(read.shard)
    is_among_others = bool(read.shard) and not export.of_shard
    found, folder = read.provenance, export.name if is_among_others else name
    root = export.destination.on(datetime.now(UTC).date()).root(folder)
    known = KnownProvenance() if state is None else state.provenance(name)
    standing = manifest_of_shard(root, read.shard) if is_among_others else any_manifest(root)
    if state is None or export.answers.follows_log:
        refuse_destination(name, found, known, standing, root=root)
        # The position of a drain knows its source by itself (`drain/checkpoint_book.py`); only the place can be wrong.
        if read.end is not None:
            refuse_elsewhere(export.name, read.end, known, root=root, place=root.uri, what=POSITION)
        return
    run = Foreseen(export, state, root, export.destination.on(date.min).root(folder).uri, read.shard)
    refuse(run, found, known, standing)
    if read.shard:
        refuse_same_database(run, found, known, {})
    if export.answers.keeps_cursor and state.cursor(name) is None:
        refuse_unproven(run, current_manifests(root).values() if root.keeps_manifests else ())
