"""Places in a table ordered by a stamp and a key: what lies between two of them, and where the n-th row stands.

Belongs here: predicates of a window, finding its end. Not here: SQL of one engine (`engines/*/sql.py`), which already
knows how it compares several columns best (`shared/statements.py`: row values, or the bounded nested form).

The end of a window is found before a row is read, and the window is closed: (low, high]. So pages may come in any
order, by blocks or along the key, and a run that ends inside a tie goes on behind the very row it ended with.
A plain `stamp > low` would lose the rest of the tie.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace

import pyarrow as pa

from rivet_resources.canonical import canonical
from rivet_resources.contracts.dialect import Dialect
from rivet_resources.contracts.relation import Chunk, Relation
from rivet_resources.contracts.settings import Pace
from rivet_resources.contracts.source import Session, Source
from rivet_resources.contracts.types import Column
from rivet_resources.engines.shared.statements import conjunction
from rivet_resources.poll.watermark import Mark, Place


@dataclass(frozen=True)
class Order:
    """A total order of a table's rows: a stamp, then a key that no two rows share."""

    source: Source
    relation: Relation
    columns: tuple[Column, ...]  # the stamp first; cells that do not fit their type always fail
    fallback: str = ""  # stands in where the stamp is NULL
    where: str = ""  # rows that have a place at all

    @property
    def dialect(self) -> Dialect:
        """Return how the engine spells statements.

        Raises:
            ConfigError: it takes none.
        """
        return self.source.dialect(self.relation.columns)

    @property
    def stamp(self) -> str:
        """Write what orders the rows first, as the engine compares it."""
        return self.expression if self.fallback else self.dialect.quote(self.columns[0].name)

    @property
    def expression(self) -> str:
        """Name the stamp as sessions take it: a column's bare name, or an expression in parentheses."""
        name, quote = self.columns[0].name, self.source.quote
        # In parentheses: sessions take a bare name for a column of the catalog, and anything in parentheses as it
        # stands.
        return f"(COALESCE({quote(name)}, {quote(self.fallback)}))" if self.fallback else name

    @property
    def spelled(self) -> tuple[str, ...]:
        """Write what orders the rows, ascending."""
        return (self.stamp, *(self.dialect.quote(column.name) for column in self.columns[1:]))

    def after(self, place: Place | None) -> str:
        """Write what holds for the rows behind a place; '' for all rows."""
        return "" if place is None else self.dialect.after_key(self.spelled, self._literals(place))

    def until(self, place: Place) -> str:
        """Write what holds for the rows up to a place, and for itself; the first half gives an index its range."""
        literals = self._literals(place)
        # `<=` alone would already hold for all rows of the end's own stamp; NOT behind the place leaves out those
        # above it in the tie.
        return f"{self.stamp} <= {literals[0]} AND NOT ({self.dialect.after_key(self.spelled, literals)})"

    def below(self, high: str) -> str:
        """Write what holds for the rows whose stamp is not above a canonical text."""
        return f"{self.stamp} <= {self.source.literal(high, self.columns[0])}"

    def within(self, low: Place | None, high: Place) -> str:
        """Write the predicate of the window (low, high]."""
        return conjunction([self.where, self.after(low), self.until(high)])

    def _literals(self, place: Place) -> list[str]:
        return [self.source.literal(mark.value, column) for mark, column in zip(place, self.columns, strict=True)]


def last_place(
    order: Order, *, after: Place | None, high: str, rows: int | None, session: Session, application: str, pace: Pace
) -> Place | None:
    """Find the place of the last of the first `rows` rows behind `after` whose stamp is not above `high`.

    None when there is no such row. It is read as cells of parts are read, so that it leads back to its row.
    """
    dialect, quote = order.dialect, order.source.quote
    names = [quote(column.name) for column in order.columns]
    # The stamp as it orders, under the name of its column, so that it is read with that column's type and no NULL.
    items = [f"{order.stamp} AS {names[0]}" if order.fallback else names[0], *names[1:]]
    where, relation = conjunction([order.where, order.after(after), order.below(high)]), order.relation.sql
    ordered = order.spelled
    # The first n in order, and of them the last: two sorts, but the outer one is of a page and not of the table.
    if rows is not None:
        first = dialect.select(items, relation=relation, where=[where], order_by=ordered, limit=rows)
        relation, where, items = f"({first}) AS _rivet_page", "", names
        ordered = tuple(dialect.quote(column.name) for column in order.columns)
    descending = [f"{expression} DESC" for expression in ordered]
    last = dialect.select(items, relation=relation, where=[where], order_by=descending, limit=1)
    chunk = Chunk(index=0, reader="cursor", relation=f"({last}) AS _rivet_last")
    # In the session's instant, which is the one whose upper bound was fixed: rows of a later instant could end the
    # window above it.
    found = read(order.source, chunk, order.columns, snapshot=session.snapshot, application=application, pace=pace)
    if not found.num_rows:
        return None
    return tuple(
        Mark(column.name, str(column.arrow), canonical(found.column(place)[0]))
        for place, column in enumerate(order.columns)
    )


def read(
    source: Source,
    chunk: Chunk,
    columns: tuple[Column, ...],
    *,
    snapshot: str | None,
    application: str,
    pace: Pace,
) -> pa.Table:
    """Read a chunk whole; without a snapshot, in an instant of its own."""
    pages = source.pages(chunk, columns, snapshot=snapshot, application=application, pace=pace, wait=lambda rows: None)
    # Closed at once, not when the generator is collected: it holds a connection of the source.
    with closing(pages) as open_pages:
        tables = [page.table for page in open_pages]
    empty = pa.schema([(column.name, column.arrow) for column in columns]).empty_table()
    return pa.concat_tables(tables) if tables else empty


def strict(column: Column) -> Column:
    """Return a column whose cells lead back to their rows: one that does not fit its type fails."""
    # A place that was replaced by NULL or cut would lead to no row, or to another one, and rows between would be
    # lost.
    return replace(column, policy="fail")
