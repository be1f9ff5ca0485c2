"""How MySQL or MariaDB would run the first page of a chunk: EXPLAIN of the very statement, and what it means.

Belongs here: the statement, and the digest of a plan. Not here: judging it (`rivet_assets/preflight/verdict.py`).
Three shapes of one answer. Source: MySQL 9 manual, "EXPLAIN Output Format" and `explain_json_format_version`; MariaDB,
"EXPLAIN FORMAT=JSON"; seen on MariaDB 10.11 and MySQL 9.7: `query_block` with `access_type` as in the table of EXPLAIN
(MariaDB, and MySQL's version 1), and `query_plan`, a tree of operations (MySQL's version 2, its default since 9.5).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rivet_resources.contracts.evidence import Explained, Scan
from rivet_resources.contracts.relation import Chunk
from rivet_resources.contracts.settings import Pace
from rivet_resources.contracts.source import Page
from rivet_resources.contracts.types import Column
from rivet_resources.engines.mysql import pages as mysql_pages
from rivet_resources.engines.mysql.catalog import Catalog
from rivet_resources.engines.mysql.connect import ConnectionParams
from rivet_resources.engines.mysql.reader import RawPage, Reader
from rivet_resources.engines.shared.first_statement import first_statement, no_pause, tell

Node = Mapping[str, Any]
# A walk along a whole index: as good as a range of it, unless most of what it finds is thrown away.
WALKS = frozenset({"index", "index_scan"})
TABLE_SCANS = frozenset({"ALL", "table"})
ROWS = ("rows_examined_per_scan", "rows", "estimated_rows")  # MySQL's version 1, MariaDB, MySQL's version 2
SORTED = frozenset({"filesort", "read_sorted_file"})  # MariaDB; MySQL says `using_filesort: true`, or `sort`


class Rehearsal(Reader):
    """The reader of a chunk that says what it would send."""

    def receive(self, statement: str, *, what: str, can_shrink: bool) -> RawPage | None:
        """Raise the statement of a page."""
        tell(statement)

    def bites(self, statement: str, *, target_bytes: int) -> Iterator[Page]:
        """Raise the one long statement."""
        tell(statement)


@dataclass(frozen=True)
class _Access:
    """How one table of a plan is read."""

    table: str
    scan: Scan
    index: str
    rows: int

    def __str__(self) -> str:
        along = f" using {self.index}" if self.index else ""
        return f"{self.scan} of {self.table}{along} (rows={self.rows})"


def explain(
    catalog: Catalog, conn_params: ConnectionParams, chunk: Chunk, columns: tuple[Column, ...], *, pace: Pace
) -> Explained:
    """Ask the planner about the first page of a chunk; see the protocol."""
    reader = Rehearsal(conn_params=conn_params, chunk=chunk, columns=columns, pace=pace, wait=no_pause)
    statement = first_statement(mysql_pages.ways(reader))
    doing = f"explaining the first page of {reader.name}"
    rows = catalog.ask(f"EXPLAIN FORMAT=JSON {statement}", doing=doing)
    try:
        plan: Node = json.loads(rows[0][0] or "{}")
    except ValueError:
        # MariaDB 10.11 does not escape a quote in a column's name.
        plan = plan_of_table(catalog.ask(f"EXPLAIN {statement}", doing=doing))
    return digest(statement, plan)


def plan_of_table(rows: Sequence[Sequence[str | None]]) -> Node:
    """Put the rows of MariaDB's plain EXPLAIN into the shape of its JSON."""
    tables = [
        {
            "table_name": row[2], "access_type": row[3], "key": row[5], "rows": row[8] or 0,
            **({"attached_condition": ""} if "Using where" in (row[9] or "") else {}),
            **({"using_filesort": True} if "Using filesort" in (row[9] or "") else {}),
        }
        for row in rows
        if row[2] is not None and row[3] is not None
    ]  # fmt: skip
    return {"query_block": {"nested_loop": tables}}


def digest(statement: str, plan: Node) -> Explained:
    """Return what a plan does: of its tables, the one with most rows decides; equal ones by the worst."""
    found = list(_accesses(plan, filters=False))
    sorts = _sorts(plan)
    if not found:
        return Explained(statement, "other", sorts=sorts, text="no table is read")
    # The largest table is what the statement costs. Of equal ones a scan is named, so that a bad plan never looks
    # good.
    main = min(found, key=lambda access: (-access.rows, access.scan != "scan"))
    lines = [*(["sorts all rows first"] if sorts else []), *map(str, found)]
    return Explained(statement, main.scan, index=main.index, rows=main.rows, sorts=sorts, text="\n".join(lines))


def _accesses(node: Any, *, filters: bool) -> Iterator[_Access]:
    """Walk a plan; `filters` says that an operation above throws rows away."""
    if isinstance(node, list):
        for each in node:
            yield from _accesses(each, filters=filters)
    if not isinstance(node, Mapping):
        return
    if "table_name" in node and "access_type" in node:
        yield _access(node, filters=filters or "attached_condition" in node)
    # Only directly below: a filter further up says nothing about how this table is read.
    below = node.get("access_type") == "filter"
    for value in node.values():
        yield from _accesses(value, filters=below)


def _access(node: Node, *, filters: bool) -> _Access:
    kind = str(node.get("index_access_type") or node["access_type"])
    index = str(node.get("index_name") or node.get("key") or "")
    # A walk along a whole index whose rows are thrown away reads all of them, as a scan does.
    is_scan = kind in TABLE_SCANS or (kind in WALKS and filters)
    rows = next((int(node[name]) for name in ROWS if name in node), 0)
    return _Access(str(node["table_name"]), "scan" if is_scan else "index", index, rows)


def _sorts(node: Any) -> bool:
    """Return whether rows are sorted before the first comes back."""
    if isinstance(node, list):
        return any(map(_sorts, node))
    if not isinstance(node, Mapping):
        return False
    is_sort = bool(SORTED & node.keys()) or node.get("using_filesort") is True or node.get("access_type") == "sort"
    return is_sort or any(map(_sorts, node.values()))
