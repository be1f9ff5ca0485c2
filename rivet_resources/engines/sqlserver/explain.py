"""How SQL Server would run the first page of a chunk: its estimated plan of the very statement, and what it means.

Belongs here: asking for the plan, its digest, and what stands in where this user may not see plans. Not here: judging
(`rivet_assets/preflight/verdict.py`).
Source: Microsoft, "SET SHOWPLAN_XML" (needs the right SHOWPLAN; under it nothing is run), and the schema
showplanxml.xsd. No real server was at hand: the digest is tested on plans written after that schema, and the emulator
refuses SHOWPLAN as a server does that has not granted it.
"""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree import ElementTree

from rivet_resources.contracts.evidence import Explained
from rivet_resources.contracts.relation import Chunk
from rivet_resources.contracts.settings import Pace
from rivet_resources.contracts.source import Page
from rivet_resources.contracts.types import Column
from rivet_resources.engines.shared.first_statement import first_statement, no_pause, tell
from rivet_resources.engines.sqlserver.catalog import Catalog
from rivet_resources.engines.sqlserver.connect import ConnectionParams
from rivet_resources.engines.sqlserver.pages import WAYS
from rivet_resources.engines.sqlserver.reader import Reader
from rivet_resources.errors import SourceError, SourceLost

XMLNS = "{http://schemas.microsoft.com/sqlserver/2004/07/showplan}"
# Elements of an operation that reads a table.
READS = tuple(XMLNS + name for name in ("IndexScan", "TableScan"))


class Rehearsal(Reader):
    """The reader of a chunk that says what it would send."""

    def ask(self, statement: str, *, what: str, can_shrink: bool) -> Page | None:
        """Raise the statement of a page."""
        tell(statement)

    def begin(self, statement: str) -> None:
        """Raise the statement of a stream."""
        tell(statement)


def explain(
    catalog: Catalog, conn_params: ConnectionParams, chunk: Chunk, columns: tuple[Column, ...], *, pace: Pace
) -> Explained:
    """Ask the planner about the first page of a chunk; see the protocol. Without SHOWPLAN, the catalog answers."""
    reader = Rehearsal(conn_params=conn_params, chunk=chunk, columns=columns, pace=pace, wait=no_pause)
    statement = first_statement(iter(WAYS[chunk.reader](reader)))
    doing = f"explaining the first page of {reader.name}"
    try:
        catalog.ask("SET SHOWPLAN_XML ON", doing=doing)
    except SourceLost:
        # Not a missing right: the line broke.
        raise
    except SourceError:
        return by_catalog(statement, chunk)
    try:
        # Under SHOWPLAN the server answers with the plan and runs
        # nothing; it stays on for the session, hence the `finally`.
        rows = catalog.ask(statement, doing=doing)
    finally:
        catalog.ask("SET SHOWPLAN_XML OFF", doing=doing)
    return digest(statement, str(rows[0][0]))


def by_catalog(statement: str, chunk: Chunk) -> Explained:
    """Return what the way of reading implies, where no plan may be seen."""
    text = "this user may not see plans (GRANT SHOWPLAN would let it); told by the catalog"
    if chunk.reader == "keyset":
        return Explained(statement, "index", text=text)
    return Explained(statement, "scan" if chunk.where or chunk.order_by else "other", text=text)


def digest(statement: str, plan: str) -> Explained:
    """Return what an estimated plan does: of its reads, the one of most rows decides; equal ones by the worst."""
    operations = list(ElementTree.fromstring(plan).iter(XMLNS + "RelOp"))
    sorts = any(operation.get("PhysicalOp") == "Sort" for operation in operations)
    found = [each for operation in operations for each in _reads(statement, operation)]
    text = "\n".join(_spell_operation(operation) for operation in operations)
    if not found:
        return Explained(statement, "other", sorts=sorts, text=text)
    main = min(found, key=lambda each: (-(each.rows or 0), each.scan != "scan"))
    return Explained(statement, main.scan, index=main.index, rows=main.rows, sorts=sorts, text=text)


def _reads(statement: str, operation: ElementTree.Element) -> Iterator[Explained]:
    """Yield what one operation reads by itself, if it reads a table.

    A seek is a range of an index. A scan in the order of its index, from which nothing is thrown away, is a walk that
    the page's TOP ends; any other goes through the table.
    """
    physical = operation.get("PhysicalOp", "")
    read = next((child for child in operation if child.tag in READS), None)
    if read is None:
        return
    # A predicate beside the order throws rows away, so the walk does not end with the page's rows.
    is_walk = read.get("Ordered") in ("true", "1") and read.find(XMLNS + "Predicate") is None
    is_index = "Seek" in physical or "Lookup" in physical or ("Index Scan" in physical and is_walk)
    named = read.find(XMLNS + "Object")
    index = "" if named is None else named.get("Index", "").strip("[]")
    rows = int(float(operation.get("EstimatedRowsRead") or operation.get("EstimateRows") or 0))
    yield Explained(statement, "index" if is_index else "scan", index=index, rows=rows)


def _spell_operation(operation: ElementTree.Element) -> str:
    rows = float(operation.get("EstimateRows") or 0)
    return f"{operation.get('PhysicalOp', '?')} (rows={rows:.0f})"
