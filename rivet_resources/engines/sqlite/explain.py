"""How SQLite would run the first page of a chunk: EXPLAIN QUERY PLAN of the very statement, and what it means.

Belongs here: the statement, and the digest of a plan. Not here: judging it (`rivet_assets/preflight/verdict.py`).
Source: sqlite.org/eqp.html. SQLite estimates no rows there, and does not show what it filters.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence

from rivet_resources.contracts.evidence import Explained
from rivet_resources.contracts.relation import Chunk
from rivet_resources.contracts.settings import Pace
from rivet_resources.contracts.source import Page
from rivet_resources.contracts.types import Column
from rivet_resources.engines.shared.first_statement import first_statement, no_pause, tell
from rivet_resources.engines.sqlite import pages as sqlite_pages
from rivet_resources.engines.sqlite.catalog import Catalog
from rivet_resources.engines.sqlite.connect import ConnectionParams
from rivet_resources.engines.sqlite.reader import Reader

STEP = re.compile(r"(SCAN|SEARCH) (?:TABLE )?(?P<table>.+?)(?: USING (?:COVERING )?(?P<index>.+?)(?: \(.*)?)?$")


class Rehearsal(Reader):
    """The reader of a chunk that says what it would send."""

    def ask(self, statement: str, *, what: str, can_shrink: bool) -> Page | None:
        """Raise the statement of a page."""
        tell(statement)

    def stream(self, statement: str) -> sqlite3.Cursor:
        """Raise the statement whose rows are fetched page by page."""
        tell(statement)


def explain(
    catalog: Catalog, conn_params: ConnectionParams, chunk: Chunk, columns: tuple[Column, ...], *, pace: Pace
) -> Explained:
    """Ask the planner about the first page of a chunk; see the protocol."""
    reader = Rehearsal(conn_params=conn_params, chunk=chunk, columns=columns, pace=pace, wait=no_pause)
    statement = first_statement(sqlite_pages.ways(reader))
    rows = catalog.ask(f"EXPLAIN QUERY PLAN {statement}", doing=f"explaining the first page of {reader.name}")
    return digest(statement, [str(row[3]) for row in rows], filters=bool(chunk.where))


def digest(statement: str, steps: Sequence[str], *, filters: bool) -> Explained:
    """Return what a plan does; its first step is the outermost loop, which decides."""
    text = "\n".join(steps)
    sorts = any("TEMP B-TREE FOR ORDER BY" in step for step in steps)
    found = [match for step in steps if (match := STEP.match(step))]
    if not found:
        return Explained(statement, "other", sorts=sorts, text=text)
    outer = found[0]
    index = (outer["index"] or "").removeprefix("INDEX ")
    # SCAN … USING INDEX walks in the index's order, and a page's LIMIT ends it; with a filter it may walk to the end.
    is_scan = outer[1] == "SCAN" and (filters or not index)
    return Explained(statement, "scan" if is_scan else "index", index=index, sorts=sorts, text=text)
