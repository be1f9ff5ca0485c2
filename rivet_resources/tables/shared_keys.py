"""Keys that two rows of a table have at one moment: what the log, the copy and the last version prove of them.

Belongs here: the proof, over keys that are numbered and changes in log order. Not here: reading them (`buckets.py`),
the jobs (`places.py`).

A `key:` that no constraint keeps unique is the user's word. If it is wrong, one statement such as `SET id = id + 1`
(1→2, 2→3) leaves two rows under one key for a while, and the log no longer says which of the two later changes mean: a
table by key would lose rows without a word (2026-11). Two rows come to share a key only when one is inserted under, or
moved to, a key that another one has: that event is looked for. So is an update of a key that no row has: its row had
another key before, and the log was read by other columns (`key:` was edited since), so it would stay under that, too.
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
    repeats_until: str | None  # see `CursorMove`: up to here the base may hold a change already
    truncates: tuple[Truncate, ...] = ()  # between the changes, in log order
    is_of_versions: bool = False  # the base has closed versions, which are in nobody's way

    def refuse_shared(self, base: Numbers, events: Numbers, changes: pa.Table) -> None:
        """Refuse two rows of the base with one key, a row that gets another one's, and an update of nobody's.

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
        born, gone = changes["born"].to_numpy(), changes["gone"].to_numpy()
        # Most changes are updates of rows that the base has, and those are left unsorted.
        is_wanted = standing == 0
        is_wanted[events[born | gone]] = True
        (wanted,) = np.nonzero(is_wanted[events])
        order = wanted[np.argsort(events[wanted], kind="stable")]
        found = changes.select(["pos", "seq"]).take(pa.array(order))
        events, born, gone = events[order], born[order], gone[order]
        epoch = self._epochs(found)
        follows = _equals_last(events) & _equals_last(epoch)
        has_row = np.where(follows, ~np.concatenate([[True], gone[:-1]]), (standing[events] > 0) & (epoch == 0))
        is_known = follows | (epoch > 0) | self._is_beyond_copy(found)
        # What stands there twice, as after a drain that died behind its manifest, is one change.
        is_known &= ~(follows & _equals_last(found["seq"].to_numpy()) & _equals_last(_codes(found["pos"])))
        for is_fault, text in ((born & has_row, SHARED), (~born & ~gone & ~has_row, ABSENT)):
            (places,) = np.nonzero(is_fault & is_known)
            if len(places):
                raise self._at(min(found["pos"].take(pa.array(places)).to_pylist()), text)

    def _epochs(self, changes: pa.Table) -> Numbers:
        """Count the truncates before each change: no row is left from before one."""
        epoch = np.zeros(changes.num_rows, np.int64)
        for one in self.truncates:
            later = pc.and_(pc.equal(changes["pos"], one.pos), pc.greater(changes["seq"], one.seq))
            epoch += pc.or_(pc.greater(changes["pos"], one.pos), later).to_numpy().astype(np.int64)
        return epoch

    def _is_beyond_copy(self, changes: pa.Table) -> Numbers:
        """Return before which changes the base tells who had a key: it cannot hold these already."""
        if self.repeats_until is None:
            return np.zeros(changes.num_rows, bool)
        mask: Numbers = pc.greater(changes["pos"], self.repeats_until).to_numpy()
        return mask

    def _of_base(self, keys: int) -> KeyShared:
        return KeyShared(
            f"{self.export}: {keys} key(s) of the rows that it begins with (`key: {', '.join(self.key)}`) belong to "
            f"more than one row, and of these only one would be left. {WAY_OUT}"
        )

    def _at(self, position: str, text: str) -> KeyShared:
        told = text.format(position=position, key=f"`key: {', '.join(self.key)}`")
        return KeyShared(f"{self.export}: {told} {WAY_OUT}")


SHARED = (
    "at position {position} of the log a row gets a key ({key}) that another row still has. From there on nobody can "
    "tell which of the two a change means, and one of them would be lost."
)
ABSENT = (
    "at position {position} of the log a row is changed whose key ({key}) no row has. It had another one before, or "
    "two rows had it: the changes were read by another `key:`, or this one is not unique."
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
