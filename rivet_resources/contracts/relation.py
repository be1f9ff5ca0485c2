"""What a source has, and the pieces it is read in: relations, key ranges, chunks.

All frozen, all plain data: they are pickled by reference to this installed package, never as closures.
Belongs here: shapes and their small invariants. Not here: how they are made (engines), the whole of a window's plan
(extract.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rivet_resources.contracts.rows.boundary import End
from rivet_resources.contracts.types import Column

Reader = Literal["blocks", "cursor", "keyset"]
# snapshot: one instant for all tasks; single: one stream in one transaction; per_query: each statement its own
# instant; resumed: chunks of a dead run, of an earlier instant, were kept.
# log: whole transactions, in the order of their commits.
Consistency = Literal["snapshot", "single", "per_query", "resumed", "log"]

# Of columns. all: a column without one has none; own: of a view or a part of a table, where one that is missing may
# stand at the table; none: they cannot be read.
Comments = Literal["all", "own", "none"]


@dataclass(frozen=True)
class Leaf:
    """One physical table that can be read by block ranges."""

    sql: str  # quoted name, ready to stand after FROM
    blocks: int


@dataclass(frozen=True)
class Relation:
    """A table or query as its source describes it; columns in source order, with the types their cells will have."""

    name: str  # for people: public.orders, or `query of export x`
    sql: str  # ready to stand after FROM: a quoted table, or a parenthesised query with an alias
    columns: tuple[Column, ...]
    is_table: bool
    key: tuple[str, ...] = ()  # primary key, else a NOT NULL unique key; () when neither
    indexed: frozenset[str] = frozenset()  # leading columns of its usable indexes
    leaves: tuple[Leaf, ...] = ()  # () when it cannot be read by blocks
    rows_estimate: int | None = None
    bytes_estimate: int | None = None
    comments: Comments = "none"
    caution: str = ""  # why rows of it may be missing from what this user reads
    gone: frozenset[str] = (
        frozenset()
    )  # of these columns, which a log has, the table has none now; nobody knows comments

    def column(self, name: str) -> Column | None:
        """Find a column by its exact name."""
        return next((column for column in self.columns if column.name == name), None)


@dataclass(frozen=True)
class KeyRange:
    """Values of one column from `low` to `high`, canonical texts; None: open to that side."""

    column: str
    low: str | None
    high: str | None
    low_inclusive: bool = True
    high_inclusive: bool = True


@dataclass(frozen=True)
class Chunk:
    """A piece of a window that one Spark task reads. Plain SQL pieces, values already rendered; no secret.

    blocks: pages are ranges of heap blocks of `relation`, from `blocks[0]` up to, excluding, `blocks[1]`.
    cursor: pages are FETCHes of one server-side cursor over the whole predicate.
    keyset: pages are `key > last … ORDER BY key LIMIT n`, each its own statement.
    `identity` names it across runs (only key ranges outlive a run); '' when it must not be resumed.
    """

    index: int
    reader: Reader
    relation: str  # stands after FROM
    where: str = ""  # predicate without WHERE; '' for all rows
    order_by: tuple[str, ...] = ()  # quoted expressions, ascending
    blocks: tuple[int, int] = (0, 0)
    key: tuple[str, ...] = ()  # keyset: column names, in order
    identity: str = ""
    abreast: int = 1  # so many chunks of the window may be read at once, this one among them
    one_instant: bool = False  # read in one transaction of its own, which sees one instant; a broken line starts over
    range: KeyRange | None = None  # what `where` says as data, where it says just that: such a chunk can be read again
    # Two predicates more, of which each of its rows satisfies one: it is read by them when its statement runs into the
    # timeout. (): it cannot be parted, or not under one instant.
    halves: tuple[str, ...] = ()
    edge: End | None = None  # all its rows stand at this end of an incremental window, as the server compares
    is_empty: bool = False  # known to have no row when it was planned: the source is not asked for it
