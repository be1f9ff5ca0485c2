"""The tables of a drain, each admitted with its first change: whose rows its folder holds, its leftovers, its run.

Belongs here: what one table of a drain asks of the state store and of its destination before it gets changes. Not here:
the position, which all tables share (`drain/checkpoint_book.py`), exports of rows (`admission.py`).

"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rivet_assets.run.admit.admission import (
    POSITION,
    adopt,
    any_manifest,
    last_of_chain,
    refuse_destination,
    refuse_elsewhere,
)
from rivet_resources.commit.publish import sweep
from rivet_resources.commit.remembered import Remembered
from rivet_resources.contracts.messages import Topic
from rivet_resources.state.runs import RunRecord

if TYPE_CHECKING:
    from rivet_assets.modes.cdc import Cdc
    from rivet_resources.contracts.destination import Root
    from rivet_resources.contracts.provenance import Provenance
    from rivet_resources.state.provenances import KnownProvenance
    from rivet_resources.state.store import State


@dataclass(frozen=True)
class DrainedTables:
    """Admits the tables of one drain; `finish` ends the runs of those that have one of their own."""

    export: Cdc
    state: State
    roots: Mapping[str, Root]  # by table
    run: RunRecord  # of the drain
    run_of: Callable[[str], str]  # the run of a table, as it commits
    ends: Callable[[], Mapping[str, str]]  # where the last window of each table ended, as the checkpoint tells
    tell: Callable[[str], None]
    is_adopting: bool = False
    begun: list[str] = field(default_factory=list)

    def admit(self, table: str, found: Provenance) -> Remembered | None:
        """Refuse a folder that holds another source's rows, or take it over when asked to; then keep whose it is.

        Returns:
            What was read of the folder for that; None of a topic.

        Raises:
            ProvenanceRefused
        """
        name, root = self.export.folder_of(table), self.roots[table]
        # With the first change of a table, not with the drain: of fifty tables one has changes, most times. Looking at
        # all of them cost 851 statements and 54 reads of destinations beside the 214 and 3 of that one (measured
        # 2026-11).
        seen = None if isinstance(root, Topic) else Remembered(root)
        near = last_of_chain(self.state, name) if seen else None
        known, standing = self.state.provenance(name), any_manifest(seen or root, near=near)
        if self.is_adopting:
            self.state.adoptions().take_all(name)
            adopt(name, found, known, standing, destination=root.uri, state=self.state, tell=self.tell)
        else:
            refuse_destination(name, found, known, standing, root=root)
            if known.destination not in ("", root.uri):
                self._refuse_moved(table, known)
            self.state.remember(name, found, destination=root.uri)
        return seen

    def begin(self, table: str) -> None:
        """Begin the run of a table that gets rows, by which dead ones are noticed; then sweep what they left of it."""
        name = self.export.folder_of(table)
        if name != self.export.name:
            run_id = self.run_of(table)
            self.state.begin_run(RunRecord(run_id, name, self.run.window, self.run.started_at, mode=self.run.mode))
            self.begun.append(run_id)
        # Behind `begin_run`, which counts the run that was killed and so makes its sweep due.
        self._sweep(name, self.roots[table])

    def finish(self, outcome: Mapping[str, Any]) -> None:
        """End the tables' own rows; their figures came with their commits."""
        told: Any = {key: outcome[key] for key in ("error_code", "error_message") if key in outcome}
        for run_id in self.begun:
            self.state.finish_run(run_id, outcome["status"], finished_at=datetime.now(UTC), **told)

    def _refuse_moved(self, table: str, known: KnownProvenance) -> None:
        """Refuse to go on at a place to which the changes before the position never came.

        Raises:
            ProvenanceRefused
        """
        root, ends = self.roots[table], self.ends()
        if table in ends:
            refuse_elsewhere(self.export.name, ends[table], known, root=root, place=root.uri, what=POSITION)

    def _sweep(self, name: str, root: Root) -> None:
        """Remove what dead runs left of a table; only where a run did not end well, since it reads every manifest."""
        if self.state.failures_to_sweep(name, root.uri) is None:
            return
        if removed := sweep(root, export=name, state=self.state):
            self.tell(f"{name}: removed {removed} leftovers of dead runs.")
