"""Rows that share a cursor value with the end of a window (`mode: incremental`): which are read, which are known.

A cursor need not be unique: batch numbers, versions, days and stamps of application clocks come again after a run has
committed them. So the next window reads `cursor >= last` and leaves out the rows that were exported already: by the
relation's key where it has one, else by all cells, equal rows as often as they were exported. A row that was changed
under the same cursor value is known by its key, and not exported again; without a key it is another row, and is.

Belongs here: what a window reads at its two ends and how its rows are told apart. Not here: the window
(`incremental.py`), finding the rows in pages (`rivet_resources/read/sieve.py`), what is remembered
(`rivet_resources/contracts/rows/boundary.py`).

The rows are left out here and not by the server (2026-11): a list of keys in SQL is short for few rows only, differs
per engine and collation, and cannot name equal rows of a table without a key. The server compares where cells cannot:
a text that it holds for equal may have other letters, so such a cursor is read in up to three chunks, the rows of the
highest value first. A row that moves between two of them is then in neither, is remembered by none, and comes with the
next run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rivet_assets.modes.protocol import Planning
from rivet_resources.contracts.extract import Extract
from rivet_resources.contracts.relation import Chunk, Relation
from rivet_resources.contracts.rows.boundary import MOST_REMEMBERED, Boundary, BoundaryEnds, Edge, End, Sift
from rivet_resources.contracts.types import Column
from rivet_resources.errors import SourceError
from rivet_resources.read.sieve import cell_of, scheme_of

NOTHING = "1 = 0"
Read = tuple[tuple[End | None, str], ...]  # predicates, each with the end of the window at which all its rows stand


@dataclass(frozen=True)
class CursorColumns:
    """The columns whose first non-NULL cell is the cursor, and how SQL says so."""

    columns: tuple[Column, ...]
    expression: str

    @property
    def names(self) -> tuple[str, ...]:
        """Name the columns."""
        return tuple(column.name for column in self.columns)


def ends_of(planning: Planning, cursor: CursorColumns, *, high: str | None, is_public: bool) -> BoundaryEnds:
    """Return how rows at the two ends of the next window are told apart; by nothing where no value comes a second time.

    Args:
        is_public: parts show all cells as the source has them.

    Raises:
        SourceError: more rows than are remembered have the committed value, and there are more of them by now.
    """
    relation, low = planning.relation, planning.cursor
    identity, scheme = identity_of(relation, cursor)
    before = planning.boundary if planning.boundary is not None else Boundary(0, scheme, Edge())
    is_known = bool(scheme) and before.scheme == scheme and before.edge.ids is not None
    if low is not None and is_too_large(before) and before.scheme == scheme:
        refuse_more(planning, cursor, before)
    return BoundaryEnds(
        scheme=scheme,
        identity=identity,
        low=low,
        high=high,
        reads_low=is_known and low is not None,
        cursor=cursor.names if scheme and is_comparable(cursor.columns, low, high) else (),
        low_sift=Sift(before.edge.ids or "") if is_known and low is not None else None,
        is_public=is_public,
        before=before,
    )


def identity_of(relation: Relation, cursor: CursorColumns) -> tuple[tuple[str, ...], str]:
    """Name the columns that tell rows apart, and the scheme; nothing and '' where none do, or none need to."""
    if is_unique(relation, cursor):
        return (), ""
    columns = [
        column for column in relation.columns if not relation.key or column.name in {*relation.key, *cursor.names}
    ]
    scheme = scheme_of(columns, is_key=bool(relation.key))
    return tuple(column.name for column in columns) if scheme else (), scheme


def is_unique(relation: Relation, cursor: CursorColumns) -> bool:
    """Return whether the cursor is the key: no value comes a second time."""
    return relation.key == cursor.names


def is_too_large(boundary: Boundary) -> bool:
    """Return whether more rows have the committed value than are remembered."""
    return boundary.edge.ids is None and boundary.edge.rows > MOST_REMEMBERED


def is_comparable(columns: Sequence[Column], *values: str | None) -> bool:
    """Return whether the cells of a page decide which rows have one of these values."""
    arrow = columns[0].arrow
    same = all(column.arrow == arrow for column in columns)
    return same and all(value is None or cell_of(value, arrow) is not None for value in values)


def refuse_more(planning: Planning, cursor: CursorColumns, before: Boundary) -> None:
    """See that no row came to a value that has too many rows to remember.

    Raises:
        SourceError
    """
    name, low = cursor.names[0], planning.cursor
    assert low is not None
    here = planning.source.literal(low, cursor.columns[0])
    now = planning.session.count(planning.relation, where=f"{cursor.expression} = {here}")
    if now > before.edge.rows:
        raise SourceError(
            f"{now} rows of {planning.relation.name} have the value of {name} at which the last run ended, and "
            f"{before.edge.rows} of them were exported. At most {MOST_REMEMBERED} rows of one value are remembered, so "
            f"the new ones cannot be told from the others. Name a `cursor_column` with finer values or use "
            f"`mode: time_window` or `chunked`; or `rivet state reset` exports all rows again."
        )


def note_before(planning: Planning, cursor: CursorColumns, ends: BoundaryEnds) -> str:
    """Return what the window will not see of the value at which the last one ended; '' when it sees all."""
    if planning.cursor is None or ends.reads_low or is_unique(planning.relation, cursor):
        return ""
    column = cursor.names[0]
    unseen = f"rows that came since the last run with the value of {column} at which it ended are not seen"
    if not ends.scheme:
        return f"{unseen}: the table has no key, and columns of types that cannot tell its rows apart"
    if is_too_large(ends.before):
        return note_after(ends.before, column=column)
    if ends.before.scheme:
        return f"{unseen} this time: the columns that tell its rows apart have changed"
    return f"{unseen} this time: nothing is remembered of it, as after an older Rivet or a lost state store"


def note_after(boundary: Boundary, *, column: str) -> str:
    """Warn that a committed value has too many rows to be remembered; '' when it has not."""
    if not is_too_large(boundary):
        return ""
    return (
        f"{boundary.edge.rows} rows share the last value of {column}, and at most {MOST_REMEMBERED} are remembered: a "
        f"run after more came with this very value will be refused. A cursor with finer values would not need that, "
        f"nor would mode time_window, chunked or poll"
    )


# --- what is read --------------------------------------------------------------------------------


def pieces(planning: Planning, cursor: CursorColumns, ends: BoundaryEnds | None, *, high: str | None) -> Read:
    """Return the predicates to read one after another."""
    low, literal = planning.cursor, planning.source.literal
    expression, column = cursor.expression, cursor.columns[0]
    reads_low = ends is not None and ends.reads_low
    if high is None:  # nothing is closed yet
        return ((None, f"{expression} IS NULL" if low is None else NOTHING),)
    at_high = f"{expression} = {literal(high, column)}"
    is_split = ends is not None and bool(ends.scheme) and not ends.cursor and planning.boundary is not None
    if high == low:  # nothing closed is new, but rows may have come to the last value
        return (("low" if is_split else None, at_high),) if reads_low else ((None, NOTHING),)
    upper = f"{expression} {'<' if is_split else '<='} {literal(high, column)}"
    if low is None:
        rest = f"({upper} OR {expression} IS NULL)"
        return (("high", at_high), (None, rest)) if is_split else ((None, rest),)
    at_low = literal(low, column)
    if not is_split:
        return ((None, f"{expression} {'>=' if reads_low else '>'} {at_low} AND {upper}"),)
    above: Read = (("high", at_high), (None, f"{expression} > {at_low} AND {upper}"))
    return (*above, ("low", f"{expression} = {at_low}")) if reads_low else above


def chunks_of(planning: Planning, read: Read, order_by: tuple[str, ...]) -> tuple[Chunk, ...]:
    """Cut what is read; equal rows of a table without a key are crossed off one list, so they stay in one stream."""
    found: list[Chunk] = []
    for end, where in read:
        if where == NOTHING:
            found.append(Chunk(len(found), "cursor", planning.relation.sql, where, order_by, is_empty=True))
            continue
        cut = planning.session.chunks(planning.relation, where=where, order_by=order_by, pieces=1)
        if not planning.relation.key and len(cut) > 1:
            cut = (Chunk(index=0, reader="cursor", relation=planning.relation.sql, where=where, order_by=order_by),)
        found += [replace(chunk, index=len(found) + place, edge=end) for place, chunk in enumerate(cut)]
    return tuple(found)


def in_turn(extract: Extract) -> Extract:
    """Read the chunks of several values one after another; without a shared snapshot they are of several instants."""
    if extract.snapshot is not None:
        return extract
    note = "rows of the last cursor value are read by a statement of their own, which sees its own instant"
    return replace(extract, consistency="per_query", parallel=1, notes=(*extract.notes, note))
