"""Made-up changes: a pool of rows that are inserted, updated and deleted, the same ones for the same seed.

Belongs here: the rolls, the pool, the rows of events. Not here: how one record is made (datagen/rows.py), the
log's methods (log.py).

`connectors.md`, section 5, "cdc_mode": of 100 rolls 60 insert, 30 update a live row, 10 delete one; an empty pool
inserts. The pool holds at most 10000 rows: an insert that finds it full deletes a row first, which is an event of its
own. Event n rolls with bits of its own, eight events from one hash, so the pool at n follows from the seed and n,
by going through the rolls once more; no row is made for that.

An update is a new record, that of its event, for the same row: what tells the row stays (the pattern's identity, the
number it was born with in `_sequence` and in the pattern's own number), and `sequence`, of which nothing else could
change, counts `revision` up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rivet_resources.engines.datagen.rows import PATTERNS, Numbers, Recipe, numbers, records

POOL = 10_000
# Of 100 rolls: those below 60 insert, those below 90 update, the others delete.
INSERTS, UPDATES = 60, 90
INSERT, UPDATE, DELETE = 0, 1, 2
REVISION = "revision"
EVENTS_PER_HASH = 8
# Events gone through at once on the way to a position.
REPLAYED = 200_000

Entry = tuple[int, int, int]  # a live row: the events that made it and its newest record, how often it was updated
Event = tuple[int, int, int, int, int, int]  # operation, then the entry after it, then record and revision before it


def rolls(recipe: Recipe, events: range) -> tuple[list[int], list[int]]:
    """Return, for each event, a number below 100 and 32 bits that choose a row."""
    base = blake2b(f"{recipe.seed}\0{recipe.pattern}\0changes\0".encode(), digest_size=8 * EVENTS_PER_HASH)
    first, last = events.start // EVENTS_PER_HASH, -(-events.stop // EVENTS_PER_HASH)
    digests = []
    # A hash of its own for every eight events, and none that follows from the one before: rolls are the same
    # wherever a drain is cut.
    for number in range(first, last):
        block = base.copy()
        block.update(number.to_bytes(8, "little"))
        digests.append(block.digest())
    words = np.frombuffer(b"".join(digests), dtype=np.dtype("<u4")).reshape(-1, 2).astype(np.uint64)
    skipped = events.start - first * EVENTS_PER_HASH
    words = words[skipped : skipped + len(events)]
    # The upper half of the product: a number below 100 from 32 bits, without a division.
    kinds = (words[:, 0] * np.uint64(100)) >> np.uint64(32)
    return kinds.tolist(), words[:, 1].tolist()


@dataclass
class Cycles:
    """The pool right before event `n`. Not shared between threads."""

    recipe: Recipe
    n: int = 0
    pool: list[Entry] = field(default_factory=list)
    _owes_insert: bool = False  # a row was deleted for one that found the pool full

    def go_to(self, n: int) -> None:
        """Go through the events up to n without making a row."""
        # The pool can only be made forwards, so an earlier place means from the beginning.
        if n < self.n:
            self.n, self.pool, self._owes_insert = 0, [], False
        while self.n < n:
            self.take(min(REPLAYED, n - self.n))

    def take(self, count: int) -> list[Event]:
        """Go through the next events and tell them."""
        events = range(self.n, self.n + count)
        pool, told = self.pool, []
        for n, kind, spot in zip(events, *rolls(self.recipe, events), strict=True):
            size = len(pool)
            if self._owes_insert or not size or (kind < INSERTS and size < POOL):
                pool.append((n, n, 0))
                told.append((INSERT, n, n, 0, n, 0))
                self._owes_insert = False
                continue
            # The high half of a product, as in `rows.Draws.below`: 32 bits spread over the pool without a
            # remainder.
            place = (spot * size) >> 32
            born, record, revision = pool[place]
            if INSERTS <= kind < UPDATES:
                pool[place] = (born, n, revision + 1)
                told.append((UPDATE, born, n, revision + 1, record, revision))
                continue
            self._owes_insert = kind < INSERTS
            # The last one takes its place, so that a deletion moves one entry and not half of the pool.
            pool[place] = pool[-1]
            pool.pop()
            told.append((DELETE, born, record, revision, record, revision))
        self.n = events.stop
        return told


# --- rows ----------------------------------------------------------------------------------------


def has_revision(recipe: Recipe) -> bool:
    """Return whether rows count their updates: where nothing else of them would change."""
    return recipe.pattern == "sequence" and REVISION not in dict(recipe.custom)


def images(recipe: Recipe, born: Numbers, record: Numbers, revision: Numbers) -> pa.RecordBatch:
    """Make rows as they are after some updates: the record of one event, under the identity of another."""
    made = records(recipe, record)
    columns = dict(zip(made.schema.names, made.columns, strict=True))
    custom = dict(recipe.custom)
    # What tells a row stays over its updates; a custom field under that name is the same in every row anyway.
    kept = [name for name in (PATTERNS[recipe.pattern].identity, *numbers(recipe)) if name not in custom]
    older: npt.NDArray[np.bool_] = born != record
    # Inserts, most of the rows, are their own record: only the others are made a second time.
    if older.any():
        origin = records(recipe, born[older])
        places = np.arange(len(born))
        places[older] = len(born) + np.arange(int(older.sum()))
        for name in dict.fromkeys(kept):
            both = pa.concat_arrays([columns[name], origin.column(name)])
            columns[name] = both.take(pa.array(places))
    if has_revision(recipe):
        columns[REVISION] = pa.array(revision)
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
