"""Keys that two rows of a table have at one moment: what the log, the copy and the last version prove of them.

Belongs here: the proof, over keys that are numbered and changes in log order. Not here: reading them (`buckets.py`),
the jobs (`places.py`).

A `key:` that no constraint keeps unique is the user's word. If it is wrong, one statement such as `SET id = id + 1`
(1→2, 2→3) leaves two rows under one key for a while, and the log no longer says which of the two later changes mean: a
table by key would lose rows without a word (2026-11). Two rows come to share a key only when one is inserted under, or
moved to, a key that another one has: that event is looked for, and nothing else need be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rivet_resources.errors import KeyShared
from rivet_resources.tables.reading import Truncate

Numbers = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class KeyJudge:
    """Refuses a key that two rows have; see the module."""

    export: str
    key: tuple[str, ...]
    repeats_until: str | None  # see `CursorMove`: up to here an insert may be one that the base holds already
    truncates: tuple[Truncate, ...] = ()  # between the changes, in log order
    is_of_versions: bool = False  # the base has closed versions, which are in nobody's way

    def refuse_shared(self, base: Numbers, events: Numbers, changes: pa.Table) -> None:
        """Refuse two rows of the base with one key, and a row that gets a key which another one has.

        Args:
            base: the key's number of each row of the base.
            events: the key's number of each change, in log order.
            changes: their `pos`, `seq`, `gone` and `born`.

        Raises:
            KeyShared
        """
        standing = np.bincount(base, minlength=int(events.max(initial=-1)) + 1)
        if len(base) and int(standing.max()) > 1:
            raise self._of_base(int((standing > 1).sum()))
        born = changes["born"].to_numpy()
        # Only of keys that a row got: most windows have few, and updates and deletes are left unsorted.
        is_given = np.zeros(len(standing), bool)
        is_given[events[born]] = True
        (wanted,) = np.nonzero(is_given[events])
        order = wanted[np.argsort(events[wanted], kind="stable")]
        found = changes.select(["pos", "seq", "gone", "born"]).take(pa.array(order))
        events, born, gone = events[order], found["born"].to_numpy(), found["gone"].to_numpy()
        epoch = self._epochs(found)
        follows = _equals_last(events) & _equals_last(epoch)
        # What stands there twice, as after a drain that died behind its manifest, is one change.
        is_repeat = follows & _equals_last(found["seq"].to_numpy()) & _equals_last(_codes(found["pos"]))
        was_gone = np.concatenate([[True], gone[:-1]])
        is_taken = np.where(follows, ~was_gone, (standing[events] > 0) & (epoch == 0) & self._is_new(found))
        (shared,) = np.nonzero(born & is_taken & ~is_repeat)
        if len(shared):
            raise self._at(min(found["pos"].take(pa.array(shared)).to_pylist()))

    def _epochs(self, changes: pa.Table) -> Numbers:
        """Count the truncates before each change: no row is left from before one."""
        epoch = np.zeros(changes.num_rows, np.int64)
        for one in self.truncates:
            later = pc.and_(pc.equal(changes["pos"], one.pos), pc.greater(changes["seq"], one.seq))
            epoch += pc.or_(pc.greater(changes["pos"], one.pos), later).to_numpy().astype(np.int64)
        return epoch

    def _is_new(self, changes: pa.Table) -> Numbers:
        """Return which changes the base cannot hold already."""
        if self.repeats_until is None:
            return np.zeros(changes.num_rows, bool)
        mask: Numbers = pc.greater(changes["pos"], self.repeats_until).to_numpy()
        return mask

    def _of_base(self, keys: int) -> KeyShared:
        return KeyShared(
            f"{self.export}: {keys} key(s) of the rows that it begins with (`key: {', '.join(self.key)}`) belong to "
            f"more than one row, and of these only one would be left. {WAY_OUT}"
        )

    def _at(self, position: str) -> KeyShared:
        return KeyShared(
            f"{self.export}: at position {position} of the log a row gets a key (`key: {', '.join(self.key)}`) that "
            f"another row still has. From there on nobody can tell which of the two a change means, and one of them "
            f"would be lost. {WAY_OUT}"
        )


WAY_OUT = (
    "Nothing was published. Name columns in `key:` that are unique at every moment, such as the table's primary key; "
    "or let a constraint keep these so that is not DEFERRABLE. Then run `rivet state reset` for a new first copy."
)


def _equals_last(cells: Numbers) -> Numbers:
    """Return which cells are the same as the one before them."""
    same = np.zeros(len(cells), bool)
    same[1:] = cells[1:] == cells[:-1]
    return same


def _codes(texts: pa.ChunkedArray) -> Numbers:
    """Number texts, equal ones alike."""
    codes: Numbers = texts.combine_chunks().dictionary_encode().indices.to_numpy()
    return codes
