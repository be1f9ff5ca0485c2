"""Rows that have the very stamp at which a poll ended, and come later: stamps of applications, business times.

A place is a stamp and a key, so a row that gets the last stamp after it was polled, with a smaller key, stands before
the place, and nothing behind it would ever read it. So the watermark remembers the keys that had its stamp, and the
next run asks who has it now.

Belongs here: listing the keys of one stamp, what is remembered of them, which are new. Not here: the watermark's text
(`watermark.py`), the window (`rivet_assets/modes/poll.py`).

The keys are remembered in the watermark, which names a window (2026-11): so a few by a digest each, more by one digest
of all. Then a row that came later is known to be there but not by name, and the rows of that stamp are told once more,
which a mirror takes as they are. Rejected: hashes of whole rows, as mode incremental has them; a poll needs a stamp
that every update moves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from rivet_resources.canonical import canonical
from rivet_resources.contracts.relation import Chunk
from rivet_resources.contracts.settings import Pace
from rivet_resources.contracts.source import Session
from rivet_resources.engines.shared.statements import conjunction
from rivet_resources.poll.places import Order, read
from rivet_resources.poll.watermark import Place, Tie

# 800 letters of a watermark, which names a window.
MOST_NAMED = 50
MOST_LISTED = 10_000  # keys that are read to compare them, at each run
DIGITS = 16  # of one digest

Key = tuple[str, ...]  # canonical texts


@dataclass(frozen=True)
class LateRows:
    """Rows that came later with the last stamp: the predicate that finds them, what to tell of them."""

    where: str = ""
    note: str = ""


def list_keys(order: Order, at: Place, *, session: Session, application: str, pace: Pace) -> list[Key] | None:
    """Read the keys of the rows that have a place's stamp and do not stand behind it; None: too many to compare."""
    names = [order.source.quote(column.name) for column in order.columns[1:]]
    # Up to the place only: what stands behind it is read by the next window in any case.
    there = conjunction([order.where, _has_stamp(order, at), order.until(at)])
    # One more than are compared tells that there are more.
    few = order.dialect.select(names, relation=order.relation.sql, where=[there], limit=MOST_LISTED + 1)
    chunk = Chunk(index=0, reader="cursor", relation=f"({few}) AS _rivet_tie")
    found = read(order.source, chunk, order.columns[1:], snapshot=session.snapshot, application=application, pace=pace)
    if found.num_rows > MOST_LISTED:
        return None
    return [tuple(canonical(cell) for cell in row) for row in zip(*found.columns, strict=True)]


def tie_of(keys: Sequence[Key] | None) -> Tie | None:
    """Return what a watermark remembers of the keys that have its stamp; None: there are too many to compare."""
    if keys is None:
        return None
    # Sorted: a server may list the keys in any order, and one digest of all must not depend on it.
    digests = sorted(map(_digest, keys))
    return Tie(tuple(digests)) if len(digests) <= MOST_NAMED else Tie((), _digest(digests))


def find_late(order: Order, at: Place, remembered: Tie | None, keys: Sequence[Key] | None) -> LateRows:
    """Find the rows that came to a stamp since it was polled.

    Args:
        remembered: None: nothing is known of that stamp, as after an older Rivet.
        keys: those that have the stamp now.
    """
    if keys is None:
        return LateRows(
            note=f"more than {MOST_LISTED} rows have the last {order.columns[0].name}; those that come to it later, "
            f"with a smaller key, are not looked for"
        )
    # A watermark of an older Rivet says nothing of its stamp. Taking that for "nobody had it" would repeat the
    # whole tie.
    if remembered is None:
        return LateRows()
    stamp = _has_stamp(order, at)
    # Of many keys only one digest is kept: that there is a new one is known, which one is not, so all of them are
    # told again.
    if remembered.digest:
        if tie_of(keys) == remembered:
            return LateRows()
        where = conjunction([stamp, order.until(at)])
        return LateRows(where, f"rows came later with the last {order.columns[0].name}: its {len(keys)} are told again")
    late = [key for key in keys if _digest(key) not in remembered.ids]
    if not late:
        return LateRows()
    where = conjunction([stamp, f"({' OR '.join(_has_key(order, key) for key in late)})"])
    return LateRows(where, f"{len(late)} rows came later with the last {order.columns[0].name}")


def _has_stamp(order: Order, at: Place) -> str:
    return f"{order.stamp} = {order.source.literal(at[0].value, order.columns[0])}"


def _has_key(order: Order, key: Key) -> str:
    columns = zip(order.spelled[1:], key, order.columns[1:], strict=True)
    return conjunction([f"{name} = {order.source.literal(text, column)}" for name, text, column in columns])


def _digest(texts: Sequence[str]) -> str:
    # Each with its length, or the keys ("a", "bc") and ("ab", "c") would have one digest.
    framed = "".join(f"{len(text)}:{text}" for text in texts)
    return hashlib.blake2b(framed.encode(errors="surrogatepass"), digest_size=DIGITS // 2).hexdigest()
