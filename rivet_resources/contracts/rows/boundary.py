"""What is remembered of the rows at the two ends of an incremental window: values, and what follows from them.

An incremental window starts at one cursor value and ends at another. Rows may come later with the very value at which
a window ended (batch numbers, versions, days, stamps of application clocks), so the next one reads `cursor >= last`
and leaves out the rows that were exported already. For that each window remembers which rows at its ends are its own.

Belongs here: the values, and how the memory of an export moves with its cursor. Not here: finding the rows in pages
(`read/sieve.py`), which rows a window reads (`rivet_assets/modes/incremental.py`), keeping (`state/cursors.py`,
manifests).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

# Rows of one cursor value; 320 KB of a manifest, and of the state store.
MOST_REMEMBERED = 10_000
DIGITS = 32  # of one identity
End = Literal["low", "high"]  # of an incremental window: the cursor value it starts at, or ends at


@dataclass(frozen=True)
class Edge:
    """Rows that share one cursor value: how many, and what tells each of them apart (`boundary.py`)."""

    rows: int = 0
    ids: str | None = ""  # 32 hexadecimal digits each, one after another; None: too many, or not known

    def __add__(self, other: Edge) -> Edge:
        """Join two disjoint sets of rows; beyond MOST_REMEMBERED only their number is kept."""
        rows = self.rows + other.rows
        is_told = self.ids is not None and other.ids is not None and rows <= MOST_REMEMBERED
        return Edge(rows, f"{self.ids}{other.ids}" if is_told else None)


# Where it is kept (2026-11): in the state store, in the row of the cursor and moved by the same statement, so that no
# death can part the two; and in each window's manifest, so that a lost store costs no row. With both lost the next run
# goes on behind the last value, doubles nothing, and says that it does. Rejected: rows of one value in one window that
# is replaced again and again, which would lose what the source has deleted since.
@dataclass(frozen=True)
class Boundary:
    """What is remembered of the rows that were exported with the committed cursor's own value.

    `visit`: how many windows started at that value so far and found such rows. `scheme` names how the rows were told
    apart, '' when nothing is known.
    """

    visit: int = 0
    scheme: str = ""
    edge: Edge = Edge(0, None)


@dataclass(frozen=True)
class Sift:
    """Which rows of one end of a window are its own: all but these, or only these; each as often as it is listed."""

    ids: str = ""
    only: bool = False


@dataclass(frozen=True)
class BoundaryEnds:
    """How a page's rows at the two ends of an incremental window are found, sifted and remembered (`boundary.py`).

    `low` and `high` are canonical texts of the two cursor values; None: that end is open. Where they are the same
    value, its rows count as `low`. `cursor` names the columns whose first non-NULL cell is the cursor, () where only
    the server can compare: then chunks say at which end they are (`Chunk.edge`).
    """

    scheme: str
    identity: tuple[str, ...]  # columns that tell rows apart
    low: str | None
    high: str | None
    reads_low: bool  # rows of the value `low` are read, less those that were exported with it before
    cursor: tuple[str, ...] = ()
    low_sift: Sift | None = None  # None: every row is its own
    high_sift: Sift | None = None
    # A manifest may be read by people who must not see what a transform takes away, and an identity is a hash that can
    # be guessed back where there are few values (a salt beside it would not help): so exports with transforms keep it
    # in the store alone.
    is_public: bool = False  # parts show all the cells that identities are made of, so that a manifest may have them
    before: Boundary = Boundary()  # at `low`, when the window was planned


class Sifted(Protocol):
    """What was counted at the two ends; `Measures` has it."""

    @property
    def low_edge(self) -> Edge: ...
    @property
    def high_edge(self) -> Edge: ...


def boundary_after(ends: BoundaryEnds, found: Sifted) -> Boundary:
    """Return what to remember once a window with these ends is committed."""
    if ends.high != ends.low:
        # A window ends where a row was: one that is not among those read was changed meanwhile, or was not found.
        return Boundary(0, ends.scheme, found.high_edge if found.high_edge.rows else Edge(0, None))
    if not found.low_edge.rows:
        return ends.before
    # The cursor stays where it is, so only the visit says that a window was committed; without it the next one would
    # have the same name, and replace this one.
    return Boundary(ends.before.visit + 1, ends.scheme, ends.before.edge + found.low_edge)
