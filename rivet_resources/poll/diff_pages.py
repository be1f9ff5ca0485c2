"""The way of rows that a full diff found into the window of its run: as the pages of one more chunk.

Belongs here: a source that gives them beside its own. Not here: finding them (`full_diff.py`).

They come from a comparison and not from one read, so no chunk of the source could give them; and they take the way of
all rows, by task, transforms and parts, so nothing that happens to rows has to be written twice.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from rivet_resources.contracts.dialect import Dialect
from rivet_resources.contracts.engine_facts import EngineFacts
from rivet_resources.contracts.evidence import Effort, Gauge
from rivet_resources.contracts.mode_facts import ModeFacts
from rivet_resources.contracts.relation import Chunk
from rivet_resources.contracts.settings import Pace, Tuning
from rivet_resources.contracts.source import Page, Session, Source, Wait
from rivet_resources.contracts.types import Column


@dataclass(frozen=True)
class WithFound:
    """A source that also gives the rows a full diff found, as the pages of one more chunk."""

    source: Source
    rows: pa.Table
    chunk: int

    @property
    def type(self) -> str:
        """Name the engine."""
        return self.source.type

    @property
    def facts(self) -> EngineFacts:
        """Return what is known of the engine."""
        return self.source.facts

    def dialect(self, columns: Sequence[Column]) -> Dialect:
        """Return how it spells statements."""
        return self.source.dialect(columns)

    @property
    def tuning(self) -> Tuning | None:
        """Return the source's own tuning block."""
        return self.source.tuning

    def at(self, variable: str) -> Source:
        """Return the source elsewhere, where nothing was found yet."""
        # Without what was found here: rows of a diff belong to the database they were compared with.
        return self.source.at(variable)

    def session(self, *, application: str, pace: Pace, snapshot: bool = True) -> AbstractContextManager[Session]:
        """Connect for planning."""
        return self.source.session(application=application, pace=pace, snapshot=snapshot)

    def pages(
        self,
        chunk: Chunk,
        columns: tuple[Column, ...],
        *,
        snapshot: str | None,
        application: str,
        pace: Pace,
        wait: Wait,
    ) -> Generator[Page, None, Effort | None]:
        """Read a chunk page by page; the one of the diff is here already."""
        # By number: the chunk was added behind those of the plan, and its range would mean nothing to the source.
        if chunk.index == self.chunk:
            yield Page(table=self.rows, special={}, statement_ms=0.0)
            return None
        return (
            yield from self.source.pages(
                chunk, columns, snapshot=snapshot, application=application, pace=pace, wait=wait
            )
        )

    def gauge(self, *, application: str, pace: Pace) -> AbstractContextManager[Gauge]:
        """Connect for looking at the source."""
        return self.source.gauge(application=application, pace=pace)

    def refuses(self, mode: ModeFacts, relation: Literal["table", "query"]) -> str:
        """Return why this engine cannot do a mode."""
        return self.source.refuses(mode, relation)

    def quote(self, name: str) -> str:
        """Quote one identifier."""
        return self.source.quote(name)

    def no_bound(self, column: Column, *, is_paged: bool) -> str:
        """Return why the values of a column cannot be bounds; see the protocol."""
        return self.source.no_bound(column, is_paged=is_paged)

    def literal(self, text: str, column: Column) -> str:
        """Render a canonical text as a typed literal."""
        return self.source.literal(text, column)

    def lineage_name(self, table: str) -> tuple[str, str]:
        """Split a table as configured into (schema, name)."""
        return self.source.lineage_name(table)
