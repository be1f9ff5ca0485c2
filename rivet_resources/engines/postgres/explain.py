"""How PostgreSQL would run the first page of a chunk: EXPLAIN of the very statement, and what its plan means.

Belongs here: the statement, and the digest of a plan. Not here: judging it (`rivet_assets/preflight/verdict.py`).
Source: PostgreSQL documentation, "EXPLAIN" and "Using EXPLAIN"; node names as in src/backend/commands/explain.c.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from rivet_resources.contracts.evidence import Explained, Scan
from rivet_resources.contracts.relation import Chunk
from rivet_resources.contracts.settings import Pace
from rivet_resources.contracts.source import Page
from rivet_resources.contracts.types import Column
from rivet_resources.engines.postgres.catalog import Catalog
from rivet_resources.engines.postgres.connect import ConnectionParams
from rivet_resources.engines.postgres.pages import WAYS
from rivet_resources.engines.postgres.reader import Reader
from rivet_resources.engines.shared.first_statement import first_statement, no_pause, tell

Node = Mapping[str, Any]

# What a node that fetches rows does with its table.
SCANS: Mapping[str, Scan] = {
    "Seq Scan": "scan",
    "Sample Scan": "scan",
    "Index Scan": "index",
    "Index Only Scan": "index",
    "Bitmap Heap Scan": "index",
    "Tid Range Scan": "blocks",
    "Tid Scan": "blocks",
    "Foreign Scan": "other",
    "Function Scan": "other",
    "Table Function Scan": "other",
    "Values Scan": "other",
    "Result": "other",
}
WORST: tuple[Scan, ...] = ("scan", "other", "blocks", "index")


class Rehearsal(Reader):
    """The reader of a chunk that says what it would send."""

    def ask(self, statement: str, *, what: str, can_shrink: bool) -> Page | None:
        """Raise the statement of a page."""
        tell(statement)

    def run(self, statement: str, *, doing: str) -> NoReturn:
        """Raise the statement that opens a cursor."""
        tell(statement)


def explain(
    catalog: Catalog, conn_params: ConnectionParams, chunk: Chunk, columns: tuple[Column, ...], *, pace: Pace
) -> Explained:
    """Ask the planner about the first page of a chunk; see the protocol."""
    reader = Rehearsal(conn_params=conn_params, snapshot=None, chunk=chunk, columns=columns, pace=pace, wait=no_pause)
    statement = first_statement(iter(WAYS[chunk.reader](reader)))
    if not statement:
        return Explained("", "blocks", text="the table is empty: there is no page to ask for")
    rows = catalog.ask(f"EXPLAIN (FORMAT JSON) {statement}", doing=f"explaining the first page of {reader.name}")
    return digest(statement, rows[0][0][0]["Plan"])


def digest(statement: str, plan: Node) -> Explained:
    """Return what a plan does: of its scans, the one that returns most rows decides; equal ones by the worst."""
    nodes = list(_nodes(plan))
    # A scan of a table decides before one of a function or a list of values.
    scans = [node for node in nodes if node["Node Type"] in SCANS and "Relation Name" in node] or [
        node for node in nodes if node["Node Type"] in SCANS
    ]
    sorts = any(node["Node Type"] == "Sort" for node in nodes)
    text = "\n".join(_spell_node(node) for node in nodes)
    if not scans:
        return Explained(statement, "other", rows=_rows(plan), sorts=sorts, text=text)
    main = min(scans, key=lambda node: (-_rows(node), WORST.index(_scan(node))))
    index = str(main.get("Index Name") or _bitmap_index(main))
    kind = _scan(main)
    # The estimate of a page by blocks says nothing of the chunk.
    rows = None if kind == "blocks" else _rows(main)  # of the first blocks only
    return Explained(statement, kind, index=index if kind != "blocks" else "", rows=rows, sorts=sorts, text=text)


def _nodes(plan: Node) -> Iterator[Node]:
    """Walk a plan from its root down."""
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


def _scan(node: Node) -> Scan:
    """Classify a scan. One that goes along a whole index and throws rows away reads the table as a scan does."""
    kind = SCANS[node["Node Type"]]
    is_walk = node["Node Type"] in ("Index Scan", "Index Only Scan") and "Index Cond" not in node
    return "scan" if is_walk and "Filter" in node else kind


def _bitmap_index(node: Node) -> str:
    return next((str(child["Index Name"]) for child in _nodes(node) if "Index Name" in child), "")


def _rows(node: Node) -> int:
    return int(node.get("Plan Rows", 0))


def _spell_node(node: Node) -> str:
    """Write one node as EXPLAIN does, without its costs and its conditions, which may hold bounds."""
    words = [str(node["Node Type"])]
    if "Index Name" in node:
        words.append(f"using {node['Index Name']}")
    if "Relation Name" in node:
        words.append(f"on {node['Relation Name']}")
    return f"{' '.join(words)} (rows={_rows(node)})"
