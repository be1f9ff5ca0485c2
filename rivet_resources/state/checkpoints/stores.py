"""Where the position of a change log is kept: what every store of checkpoints offers, and which ones there are.

Belongs here: the protocol, the two doors, the rows for `rivet` to print. Not here: the record and its rules
(`record.py`), the state store's tables (`table.py`), files (`files.py`).

A run takes its key once, compares the record with the source, and saves after every window, parts and manifest first.
`take` raises the generation, so a run that was believed dead cannot save any more: the last to take is the only one
to save. Nothing is cached: every call reads the disk or the database. A record that is damaged, cut, of another source
or gone is refused, and only `reset` gives it up: starting from now would skip what was written since.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from rivet_resources.errors import CheckpointUnusable
from rivet_resources.state.checkpoints.files import FileCheckpoints
from rivet_resources.state.checkpoints.record import Checkpoint, Listed, Reset
from rivet_resources.state.store import State

__all__ = ["Checkpoint", "Checkpoints", "Reset", "checkpoint_rows", "file_checkpoints", "state_checkpoints"]


class Checkpoints(Protocol):
    """A store of checkpoints by key; threads and processes may share it."""

    @property
    def name(self) -> str:
        """Name the store for people, without a password."""

    def take(self, key: str) -> tuple[Checkpoint | None, int]:
        """Return the stored record and our generation, durably above every earlier one.

        Raises:
            CheckpointUnusable: the record cannot be used; nothing changes then.
        """

    def save(self, record: Checkpoint) -> None:
        """Store a position; durable when this returns. The same again is fine.

        Raises:
            CheckpointUnusable: another run took the key since; the position lies behind the stored one, or is of
                another source identity.
        """

    def load(self, key: str) -> Checkpoint | None:
        """Read a record; None: there is none.

        Raises:
            CheckpointUnusable
        """

    def waiting(self, key: str) -> Checkpoint | None:
        """Read a record that an earlier Rivet kept under another key; None where there is none to be taken over."""

    def adopt(self, key: str, identity: str) -> None:
        """Take over what is waiting, if it is of this source identity."""

    def delete(self, key: str) -> None:
        """Forget a record and fence whoever has the key; without a record, do nothing."""

    def reset(self, key: str, reason: str) -> None:
        """Forget a record, readable or not, fence whoever has the key, and note why."""

    def list(self) -> Listed:
        """Return every record by key, sorted; None: it cannot be used, and `load` says why."""

    def all(self) -> dict[str, Checkpoint]:
        """Return every record by key.

        Raises:
            CheckpointUnusable: some cannot be used; the message names them.
        """

    def resets(self, key: str) -> tuple[Reset, ...]:
        """Return the audit of a key, oldest first."""


def state_checkpoints(state: State) -> Checkpoints:
    """Keep checkpoints in the state store, the default: several hosts share them through PostgreSQL."""
    return state.checkpoints()


def file_checkpoints(path: Path | str) -> Checkpoints:
    """Keep checkpoints in files: in a folder when `path` ends in a slash or is one, else in exactly that file.

    A `Path` has lost its slash: pass the text as the user wrote it.
    """
    return FileCheckpoints(path)


def checkpoint_rows(checkpoints: Checkpoints) -> list[dict[str, Any]]:
    """Return one row per key, sorted, for a table or JSON.

    Keys: key, source, position, age_seconds, generation, run_id, corrupt (why it cannot be used; None: it can).
    A position of type Custom is left out: a polling watermark is made of a row's values.
    """
    return [_row(checkpoints, key, record) for key, record in checkpoints.list()]


def _row(checkpoints: Checkpoints, key: str, record: Checkpoint | None) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(("source", "position", "age_seconds", "generation", "run_id", "corrupt"))
    if record is None:
        try:
            # It was unusable when listed; by now it may be reset or saved anew.
            record = checkpoints.load(key)
        except CheckpointUnusable as error:
            return {"key": key, **row, "corrupt": str(error)}
    if record is not None:
        # A watermark of a poll has cells of a row in it, and these lines are printed.
        shown = record.position if record.position_type != "Custom" else "(custom)"
        row |= {"source": record.source_type, "position": shown, "age_seconds": round(record.age())}
        row |= {"generation": record.generation, "run_id": record.run_id}
    return {"key": key, **row}
