"""What every engine promises a full export; each check takes a source and the name of a table of it.

The table has some hundred rows, at least two columns and a key; nobody writes to it meanwhile. Cursors, time windows,
key pages and logs promise more: what they need of an engine is in `contracts/source.py` and `contracts/change_log.py`.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable
from datetime import timedelta

import pyarrow as pa

from rivet_resources.conformance.promises import hold
from rivet_resources.contracts.relation import Relation
from rivet_resources.contracts.settings import Pace, pace
from rivet_resources.contracts.source import Session, Source, TypeRules

APPLICATION = "rivet conformance"
GENTLE: Pace = pace(None, None)


def plain_relation(session: Session, table: str) -> Relation:
    """Describe a table as an export without overrides does."""
    return session.describe(table=table, query=None, params={}, rules=TypeRules({}))


def _rows(source: Source, table: str, *, pieces: int) -> tuple[Relation, list[pa.Table]]:
    """Read a table in pieces, as the tasks of a run would."""
    found = []
    with source.session(application=APPLICATION, pace=GENTLE) as session:
        relation = plain_relation(session, table)
        for chunk in session.chunks(relation, pieces=pieces):
            pages = source.pages(
                chunk, relation.columns, snapshot=session.snapshot, application=APPLICATION, pace=GENTLE,
                wait=lambda rows: None,
            )  # fmt: skip
            found += [page.table for page in pages]
    return relation, found


def tables_are_described(source: Source, table: str) -> None:
    """A relation has columns with types of Arrow, and names that SQL can be written with."""
    with source.session(application=APPLICATION, pace=GENTLE) as session:
        relation = plain_relation(session, table)
    names = [column.name for column in relation.columns]
    hold(relation.is_table and bool(names), "`describe` returns a table with its columns")
    hold(len(set(names)) == len(names), "a relation has no column twice")
    hold(set(relation.key) <= set(names), "the key's columns are columns of the relation")


def pages_are_typed(source: Source, table: str) -> None:
    """Every page has the columns that were planned, in order, with their types."""
    relation, pages = _rows(source, table, pieces=1)
    planned = [(column.name, column.arrow) for column in relation.columns]
    hold(bool(pages), "a table with rows has pages")
    for page in pages:
        hold([(field.name, field.type) for field in page.schema] == planned, "a page has the planned names and types")


def chunks_hold_each_row_once(source: Source, table: str) -> None:
    """In however many pieces a table is read: the same rows come, none twice."""
    counted = []
    for pieces in (1, 2, 5):
        _, pages = _rows(source, table, pieces=pieces)
        counted.append(Counter(repr(row) for page in pages for row in page.to_pylist()))
    hold(counted[0] == counted[1] == counted[2], "chunks hold each row once, whatever their number")


def pages_end_early(source: Source, table: str) -> None:
    """Who closes the iterator gets no further page, and the source can be asked again."""
    with source.session(application=APPLICATION, pace=GENTLE) as session:
        relation = plain_relation(session, table)
        (chunk, *_) = session.chunks(relation)
        pages = source.pages(
            chunk, relation.columns, snapshot=session.snapshot, application=APPLICATION, pace=GENTLE,
            wait=lambda rows: None,
        )  # fmt: skip
        next(pages)
        pages.close()
        hold(next(pages, None) is None, "a closed reader yields nothing more")
        hold(
            plain_relation(session, table).columns == relation.columns, "the session goes on after a reader was closed"
        )


def sessions_end_and_tell_the_time(source: Source, table: str) -> None:
    """A clock with a zone, an identity that stays, and `close` that can be called again."""
    with source.session(application=APPLICATION, pace=GENTLE) as session:
        hold(session.now().utcoffset() == timedelta(0), "`now` is aware, in UTC")
        first = session.identity()
    with source.session(application=APPLICATION, pace=GENTLE) as session:
        hold(session.identity() == first, "`identity` is the same for every session")
        session.close()
        session.close()


def sources_travel(source: Source, table: str) -> None:
    """A source is plain data: workers get it by pickle."""
    hold(pickle.loads(pickle.dumps(source)) == source, "a source comes out of a pickle as it went in")


ENGINE_PROMISES: tuple[Callable[[Source, str], None], ...] = (
    tables_are_described,
    pages_are_typed,
    chunks_hold_each_row_once,
    pages_end_early,
    sessions_end_and_tell_the_time,
    sources_travel,
)
