"""What a drain keeps between runs: its checkpoint, and what the checkpoint's metadata says of the drain's life.

Belongs here: taking a checkpoint up, refusing one that would lose changes, saving the next. Not here: where
checkpoints lie (`state/`), what is done in between (`drain.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from rivet_resources.commit.manifest import current_manifests
from rivet_resources.contracts.change_log import Position
from rivet_resources.contracts.destination import Root
from rivet_resources.drain.plan import DrainPlan
from rivet_resources.errors import CheckpointUnusable
from rivet_resources.state.checkpoints.stores import Checkpoint, Checkpoints

# The slot may or may not be there.
BEGINNING = "beginning"
# The position is fixed; the first copy is not published.
COPYING = "copying"
DRAINING = "draining"
# It sorts before no other position, so any may follow.
NOWHERE = Position("", BEGINNING, "Custom")


@dataclass
class CheckpointBook:
    """The drain's memory during one run: `take` reads it, `save` makes it durable."""

    plan: DrainPlan
    checkpoints: Checkpoints
    identity: str = ""  # of the source, as surveyed
    generation: int = 0
    stored: Checkpoint | None = None
    chain: dict[str, str] = field(default_factory=dict)  # table → where its last window ended
    seen: str = ""  # what the first copy holds of the log, until the drain has passed it
    seen_until: str = ""

    def take(self, identity: str, *, roots: Mapping[str, Root]) -> None:
        """Take the checkpoint up for this run; whoever had it cannot save any more.

        Args:
            roots: destinations by table, which prove that what an earlier Rivet kept is this drain's.

        Raises:
            CheckpointUnusable: it cannot be read, is of another source, or of other tables.
        """
        self.identity = identity
        # Before `take`, which would make a row of our own, and what is waiting would then never be looked at.
        self._adopt(roots)
        # Taking raises the generation: a run that believes itself alone and still has the old one cannot save any
        # more.
        self.stored, self.generation = self.checkpoints.take(self.plan.key)
        if self.stored is None:
            return
        # Names of slots and log files repeat from server to server, so a position alone would be served by a
        # restored or another server, with other changes.
        if self.stored.source_identity != identity:
            raise CheckpointUnusable(
                f"Checkpoint {self.plan.key} in {self.checkpoints.name} is of source {self.stored.source_identity}, "
                f"and this one is {identity}: it was restored or replaced. Point the source back, or begin anew "
                f"with `rivet state reset -e {self.plan.export}`."
            )
        # Before the first window there is no chain, and every table of today gets its copy.
        if self.has_begun:
            self._take_up()

    def _adopt(self, roots: Mapping[str, Root]) -> None:
        """Take over what an earlier Rivet kept under the bare key, where destinations prove that it is this drain's.

        Where they do not, a first copy makes up for whatever happened since; without one, changes would be missing.

        Raises:
            CheckpointUnusable
        """
        waiting = self.checkpoints.waiting(self.plan.key)
        if waiting is None or waiting.source_identity != self.identity:
            return
        # The same server is not enough: two projects may drain it, and the windows at the destination are what only
        # one of them has.
        if has_windows(waiting, roots):
            self.checkpoints.adopt(self.plan.key, self.identity)
        elif not self.plan.initial:
            raise CheckpointUnusable(
                f"{self.checkpoints.name} has a position for {self.plan.key} that an earlier Rivet kept without its "
                f"project, and the destination of export {self.plan.export} has no window that ends there. Whose it "
                f"is cannot be told, and changes since then would be missing. Point `destination` at the earlier "
                f"windows; or set `cdc: {{initial: snapshot}}`, which copies the tables; or take only changes from "
                f"now on: run `rivet state reset -e {self.plan.export}`."
            )

    @property
    def has_begun(self) -> bool:
        """Return whether the first window was published by an earlier run."""
        return self.stored is not None and self.stored.metadata.get("state") not in (BEGINNING, COPYING)

    @property
    def is_copying(self) -> bool:
        """Return whether an earlier run fixed the position, and died before its first window."""
        return self.stored is not None and self.stored.metadata.get("state") == COPYING

    @property
    def position(self) -> Position:
        """Return the stored place; there must be one."""
        assert self.stored is not None
        return position_of(self.stored)

    def _take_up(self) -> None:
        """Read what goes with the position.

        Raises:
            CheckpointUnusable: a table joined since.
        """
        assert self.stored is not None
        facts = self.stored.metadata
        self.chain = chain_of(self.stored)
        self.seen, self.seen_until = facts.get("seen", ""), facts.get("seen_until", "")
        # A joined table has no first copy, and only its changes from now on would be there: a mirror without its
        # old rows.
        added = [table for table in self.plan.capture.tables if table not in self.chain]
        if added:
            raise CheckpointUnusable(
                f"Export {self.plan.export}: {', '.join(added)} joined the drain after it began, so their earlier "
                f"rows are not in it. Give them an export of their own, or begin anew with "
                f"`rivet state reset -e {self.plan.export}`."
            )

    def pass_by(self, position: Position) -> None:
        """Let go of what the first copy had seen, once the drain is past it."""
        # From here on no transaction can come again that the copy's snapshot showed; keeping the snapshot's text
        # would filter changes for nothing.
        if self.seen and position.key >= self.seen_until:
            self.seen = self.seen_until = ""

    def save(self, position: Position, state: str) -> None:
        """Make the position durable, with what the next run needs to go on."""
        # All in one record: chain, position and state become durable together, or none of them.
        facts: dict[str, Any] = {
            "state": state,
            "chain": json.dumps(self.chain, sort_keys=True),
            # What else an engine needs to find the place again, such as the GTID set beside file and position.
            "more": json.dumps(dict(position.more), sort_keys=True),
        }
        if self.seen:
            facts |= {"seen": self.seen, "seen_until": self.seen_until}
        self.checkpoints.save(
            Checkpoint(
                key=self.plan.key,
                source_type=self.plan.source.type,
                position_type=position.type,
                position=position.text,
                sort_key=position.key,
                metadata=facts,
                generation=self.generation,
                source_identity=self.identity,
                pipeline=self.plan.export,
                run_id=self.plan.run_id,
                timestamp=int(datetime.now(UTC).timestamp()),
                transaction_id=None,
            )
        )


def chain_of(stored: Checkpoint | None) -> dict[str, str]:
    """Read where the last window of each table ended; none before the first was published."""
    return json.loads(stored.metadata.get("chain", "{}")) if stored is not None else {}


def has_windows(stored: Checkpoint | None, roots: Mapping[str, Root]) -> bool:
    """Return whether destinations have the last windows that a checkpoint tells of; a stream keeps none."""
    # The source's identity is its server's. Without its windows, the position of another project's drain of that server
    # would be taken over, and the tables never be copied.
    ends = chain_of(stored)
    return bool(ends) and all(
        ends[table] in {each.cursor.high for each in current_manifests(root).values() if each.cursor}
        for table, root in roots.items()
        if table in ends and root.keeps_manifests
    )


def position_of(stored: Checkpoint) -> Position:
    """Read the place back that a checkpoint keeps."""
    more: dict[str, str] = json.loads(stored.metadata.get("more", "{}"))
    return Position(stored.sort_key, stored.position, stored.position_type, more)
