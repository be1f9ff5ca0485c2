"""Paging along a key, whatever the engine: each page begins behind the last row of the one before.

Belongs here: how far a walk is, its next statement, the loop over its pages. Not here: sizes (`paging.py`), SQL of one
engine (`engines/*/sql.py`).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from rivet_resources.canonical import canonical
from rivet_resources.contracts.dialect import Dialect
from rivet_resources.contracts.source import Page
from rivet_resources.contracts.types import Column
from rivet_resources.engines.shared.page_size import Measured, Size, measured
from rivet_resources.engines.shared.paging import FIRST_ROWS, PageReader, rows_limit
from rivet_resources.errors import SourceError

NEXT_ROWS = "the next rows by key"


@dataclass
class KeyWalk:
    """How far a walk along a key is: `key > last … ORDER BY key LIMIT n`; each page stands alone."""

    reader: PageReader
    dialect: Dialect
    columns: list[Column]  # of the key
    size: Size
    after: str = ""
    last: Sequence[str] = ()
    is_steady: bool = False  # the next page is as large as the last one

    @classmethod
    def of(cls, reader: PageReader, dialect: Dialect) -> KeyWalk:
        """Begin at the first row of the reader's chunk."""
        rows = rows_limit(reader.pace, reader.columns) or reader.pace.batch_size
        columns = [next(c for c in reader.columns if c.name == name) for name in reader.chunk.key]
        return cls(reader, dialect, columns, Size(now=min(FIRST_ROWS, rows), most=rows, rows=None, pace=reader.pace))

    @property
    def statement(self) -> str:
        """Return the statement of the next page."""
        chunk = self.reader.chunk
        return self.dialect.select(
            self.reader.items,
            relation=chunk.relation,
            where=[chunk.where, self.after],
            order_by=self._key,
            limit=self.size.now,
        )

    @property
    def can_shrink(self) -> bool:
        """Return whether a smaller page could be asked for."""
        return self.size.now > 1

    def shrink(self) -> None:
        """Ask for a quarter: the page was far too large or too slow, and halving would cost several more tries."""
        self.size = replace(self.size, now=max(1, self.size.now // 4))

    def is_last(self, rows: int) -> bool:
        """Return whether the page just read is the last: one more question behind a page not full only confirms it."""
        return rows < self.size.now

    def go_on(self, last: Sequence[str], page: Measured, share: float | None) -> None:
        """Go on behind a page's last row, given by its key in canonical form.

        Args:
            share: what `wait` gave.

        Raises:
            SourceError: the walk stands still.
        """
        # Without this a server that orders a key otherwise than it compares
        # it (char(n) cast to one letter did) sends the same page for ever.
        if last == self.last:
            chunk = self.reader.chunk
            raise SourceError(
                f"A page of {chunk.relation} by {', '.join(chunk.key)} ended where the one before it did, so the "
                f"server does not compare this key as it orders it. Nothing was published; choose another key."
            )
        self.last = last
        # The bound goes back as it came, and the database alone compares it (`engine.md`, section 5): an order of
        # ours over texts could be another one.
        bounds = [self.dialect.literal(text, column) for text, column in zip(last, self.columns, strict=True)]
        self.after = self.dialect.after_key(self._key, bounds)
        before, self.size = self.size, self.size.after(self.size.now, page, share=share)
        self.is_steady = self.size.now <= before.now

    @property
    def _key(self) -> list[str]:
        return [self.dialect.quote(name) for name in self.reader.chunk.key]


def keyset(reader: PageReader, dialect: Dialect) -> Generator[Page]:
    """Walk a chunk along its key, page by page."""
    walk = KeyWalk.of(reader, dialect)
    while True:
        page = reader.ask(walk.statement, what=NEXT_ROWS, can_shrink=walk.can_shrink)
        if page is None:
            walk.shrink()
            continue
        yield page
        if walk.is_last(page.table.num_rows):
            return
        walk.go_on(last_key(page.table, walk.columns), measured(page), reader.wait(page.table.num_rows))


def last_key(table: pa.Table, columns: Sequence[Column]) -> list[str]:
    """Return the key of the last row in canonical form."""
    return [canonical(table.column(column.name)[-1]) for column in columns]
