"""The planning session on SQLite: one connection that describes relations, finds bounds and cuts chunks.

Belongs here: counts, bounds, chunks. Not here: connecting (connect.py), the horizon of incremental reads
(horizon.py), pages (pages.py).

The driver is Python's own `sqlite3`, not ADBC, although ADBC is faster: 500 000 rows × 10 columns, cells of another
class flagged, took it 1.1 CPU s and these pages 2.3 (2026-11, side by side on a busy machine; 0.9 and 1.5 for the
bare drivers when it was idle). ADBC brings a second SQLite into the process, and two of them do not see each other's
locks: in our trial a writer of the same process committed under an ADBC reader's open transaction, which `sqlite3` held
off (sqlite.org/howtocorrupt.html, 2.2.1). Its statements cannot be cancelled (NOT_IMPLEMENTED), and it takes a column's
type from the first batch of values.

No transaction is held while planning: in the classic journal mode that would keep writers waiting for the whole run.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rivet_resources.canonical import canonical
from rivet_resources.contracts.evidence import Explained, Finding, TableFacts
from rivet_resources.contracts.provenance import DatabaseIdentity
from rivet_resources.contracts.relation import Chunk, Consistency, Relation
from rivet_resources.contracts.settings import Pace
from rivet_resources.contracts.source import Bounds, Horizon, TypeRules
from rivet_resources.contracts.types import Column
from rivet_resources.engines.shared.cells import Cells
from rivet_resources.engines.shared.key_ranges import identity
from rivet_resources.engines.shared.names import require_expression
from rivet_resources.engines.sqlite import (
    catalog as sqlite_catalog,
)
from rivet_resources.engines.sqlite import (
    discover as sqlite_tables,
)
from rivet_resources.engines.sqlite import (
    explain as sqlite_explain,
)
from rivet_resources.engines.sqlite import (
    horizon as sqlite_horizon,
)
from rivet_resources.engines.sqlite import (
    preflight as sqlite_examine,
)
from rivet_resources.engines.sqlite import sql
from rivet_resources.engines.sqlite.connect import ConnectionParams
from rivet_resources.engines.sqlite.errors import fault
from rivet_resources.engines.sqlite.values import READERS, as_text, batch

Rows = list[tuple[Any, ...]]


class SqliteSession:
    """One planning connection; see the protocol. Not shared between threads."""

    def __init__(self, conn_params: ConnectionParams) -> None:
        self.conn_params = conn_params
        self.consistency: Consistency = "per_query"
        self.snapshot: str | None = None
        self.note = ""
        self.rowids: dict[str, str] = {}  # relation → what its row number is called
        self._connection = conn_params.connect()
        self._views = 0
        try:
            self.ask("PRAGMA query_only = 1", doing="opening the database")
            self.journal = str(self.ask("PRAGMA journal_mode", doing="opening the database")[0][0])
        except BaseException:
            self.close()
            raise

    def ask(self, statement: str, values: Sequence[Any] = (), *, doing: str) -> Rows:
        """Run one statement and give its rows, text decoded.

        Raises:
            SourceError and its kin, by result code.
        """
        return [tuple(map(_decode, row)) for row in self.raw(statement, values, doing=doing)]

    def raw(self, statement: str, values: Sequence[Any] = (), *, doing: str) -> Rows:
        """Run one statement and give its rows as cells are read."""
        self.conn_params.begin_statement()
        try:
            return self._connection.execute(statement, tuple(values)).fetchall()
        except (sqlite3.Error, ValueError) as error:
            raise fault(error, doing=doing, path=str(self.conn_params.path)) from None

    def as_view(self, query: str, *, doing: str) -> str:
        """Keep a query as a temporary view, which lives in this connection's memory and not in the file."""
        self._views += 1
        name = f"_rivet_{self._views}"
        # query_only forbids temporary views as well; the file is open read-only all the same.
        self.raw("PRAGMA query_only = 0", doing=doing)
        try:
            # The newline ends a line comment that the query may end with.
            self.raw(f"CREATE TEMP VIEW {name} AS {query}\n", doing=doing)
            # A view's names are resolved when it is used, not when it is made.
            self.raw(f"SELECT 1 FROM {name} LIMIT 0", doing=doing)
        finally:
            self.raw("PRAGMA query_only = 1", doing=doing)
        return name

    def close(self) -> None:
        """End the connection; safe to call twice."""
        self._connection.close()

    # --- describing ------------------------------------------------------------------------------

    def identity(self) -> DatabaseIdentity:
        """Return the file's name, which stays when its folder is moved; the file itself has no identity."""
        return DatabaseIdentity((), self.conn_params.path.name)

    def describe(
        self, *, table: str | None, query: str | None, params: Mapping[str, str], rules: TypeRules
    ) -> Relation:
        """Look a table or query up in the catalog; see the protocol."""
        if table is not None:
            relation, keys = sqlite_catalog.describe_table(self, table, rules)
        else:
            relation, keys = sqlite_catalog.describe_query(self, query or "", params, rules)
        self.rowids[relation.sql] = keys.rowid
        return relation

    def examine(self, *, tables: Sequence[str] = (), connections: int = 0) -> tuple[Finding, ...]:
        """Judge the file as exports need it; see the protocol and preflight.py."""
        return sqlite_examine.examine(self.conn_params.path, journal=self.journal)

    def tables(self, pattern: str = "") -> tuple[TableFacts, ...]:
        """List the tables and views of the file; see the protocol."""
        return sqlite_tables.tables(self, pattern)

    def now(self) -> datetime:
        """Return the clock; the database has none but this machine's."""
        return datetime.now(UTC)

    # --- counting and bounds ---------------------------------------------------------------------

    def count(self, relation: Relation, *, where: str = "") -> int:
        """Count rows."""
        statement = sql.select(["count(*)"], relation=relation.sql, where=[where])
        return int(self.ask(statement, doing=f"counting {relation.name}")[0][0])

    def bounds(self, relation: Relation, expression: str, *, where: str = "") -> Bounds:
        """Read MIN, MAX and whether NULLs exist; see the protocol. `nulls` is 0 or 1: more is never counted."""
        spelled, column = self.typed(relation, expression)
        low, high = (
            self.end(relation, spelled, column, where=where, direction=direction) for direction in ("ASC", "DESC")
        )
        is_null = sql.select(["1"], relation=relation.sql, where=[where, f"{spelled} IS NULL"])
        found = self.ask(f"SELECT EXISTS ({is_null})", doing=f"looking for NULLs in {relation.name}")
        return Bounds(low=low, high=high, nulls=int(found[0][0]))

    def typed(self, relation: Relation, expression: str) -> tuple[str, Column | None]:
        """Return a column as it is ordered, or a parenthesised expression as it is.

        Raises:
            UnknownColumn: a bare name that is no column.
        """
        column = relation.column(expression)
        if column is not None:
            return sql.order_by(column), column
        require_expression(expression, relation)
        # An expression has no collation that could be asked for, so it is given the one that literals have.
        return f"{expression} COLLATE BINARY", None

    def end(self, relation: Relation, spelled: str, column: Column | None, *, where: str, direction: str) -> str | None:
        """Read the first value in an order as canonical text; None where there is none."""
        statement = sql.select(
            [spelled],
            relation=relation.sql,
            where=[where, f"{spelled} IS NOT NULL"],
            order_by=[f"{spelled} {direction}"],
            limit=1,
        )
        rows = self.raw(statement, doing=f"reading the bounds of {relation.name}")
        return self.canonical(rows, column)[0] if rows else None

    def canonical(self, rows: Rows, column: Column | None) -> list[str]:
        """Render the only cell of each row; through the column's own reader, so that a bound is what a cell is."""
        if column is None:
            return [_decode(as_text(row[0])) for row in rows]
        # Its cells must fit whatever the policy says: a bound that was replaced by NULL would be none.
        cells = Cells((column,), chunk=0, readers=READERS, strict=frozenset({column.name}))
        table, _ = cells.decode([batch((column,), rows)])
        return [canonical(cell) for cell in table.column(0)]

    def quantiles(self, relation: Relation, column: Column, pieces: int) -> tuple[str, ...]:
        """Return inner bounds of equal pieces: one pass over the column, along its index where there is one."""
        return self.keyset_bounds(relation, (column.name,), pieces)

    def keyset_bounds(self, relation: Relation, key: tuple[str, ...], pieces: int) -> tuple[str, ...]:
        """Return inner bounds of exactly equal pieces of a one-column key; () for composite keys."""
        column = relation.column(key[0]) if len(key) == 1 else None
        if column is None or pieces < 2:
            return ()
        rows = self._steps(relation, sql.quote(column.name), sql.order_by(column), pieces)
        return tuple(dict.fromkeys(self.canonical(rows, column)))

    def _steps(self, relation: Relation, selected: str, spelled: str, pieces: int) -> Rows:
        """Read every n-th value in order, the last left out."""
        # NULLs have no place in the order, so pieces are of the others.
        rows = self.count(relation, where=f"{selected} IS NOT NULL")
        step = -(-rows // pieces) or 1
        numbered = (
            # One pass in the key's order; OFFSET would count from the beginning again for each bound.
            f"SELECT {selected} AS v, row_number() OVER (ORDER BY {spelled}) AS n FROM {relation.sql} "
            f"WHERE {selected} IS NOT NULL"
        )
        return self.raw(
            f"SELECT v FROM ({numbered}) WHERE n % {step} = 0 AND n < {rows} ORDER BY n",
            doing=f"walking the key of {relation.name}",
        )

    def horizon(
        self, relation: Relation, expression: str, column: Column, *, after: str | None, lag_seconds: float = 0.0
    ) -> Horizon:
        """Find how far an incremental read may go; see the protocol and horizon.py."""
        return sqlite_horizon.horizon(self, relation, expression, column, after=after, lag_seconds=lag_seconds)

    # --- explaining ------------------------------------------------------------------------------

    def explain(self, chunk: Chunk, columns: tuple[Column, ...], *, pace: Pace) -> Explained:
        """Ask the planner about the first page of a chunk; see the protocol."""
        return sqlite_explain.explain(self, self.conn_params, chunk, columns, pace=pace)

    # --- cutting ---------------------------------------------------------------------------------

    def chunks(
        self, relation: Relation, *, where: str = "", order_by: tuple[str, ...] = (), pieces: int = 1
    ) -> tuple[Chunk, ...]:
        """Return one stream of one instant; or, where several are asked for, streams over ranges of row numbers."""
        # Of this call alone: a plan asks for each window.
        notes = []
        if self.journal != "wal":
            notes.append(f"journal_mode is {self.journal}: writers wait while a chunk is read (WAL would not let them)")
        ranges = self._ranges(relation, pieces) if pieces > 1 else [""]
        if len(ranges) > 1:
            notes.append("SQLite cannot share a snapshot between connections; each chunk sees its own instant")
        self.note = "; ".join(notes)
        self.consistency = "single" if len(ranges) == 1 else "per_query"
        return tuple(
            Chunk(
                index=i,
                reader="cursor",
                relation=relation.sql,
                where=sql.conjunction([where, part]),
                order_by=order_by,
                identity=identity(relation, where + part) if part else "",
                one_instant=True,
            )
            for i, part in enumerate(ranges)
        )

    def _ranges(self, relation: Relation, pieces: int) -> list[str]:
        """Cut by the row number, else by a one-column key, half-open, the first open below, the last above."""
        rowid = self.rowids.get(relation.sql, "")
        column = relation.column(relation.key[0]) if len(relation.key) == 1 else None
        if rowid:
            name = rowid
            bounds = [str(row[0]) for row in self._steps(relation, rowid, rowid, pieces)]
        elif column is not None:
            name = sql.quote(column.name)
            bounds = [sql.literal(text, column) for text in self.keyset_bounds(relation, relation.key, pieces)]
        else:
            return [""]
        return [
            " AND ".join([*([f"{name} > {low}"] if low else []), *([f"{name} <= {high}"] if high else [])])
            for low, high in zip(["", *bounds], [*bounds, ""], strict=True)
        ]


def _decode(cell: Any) -> Any:
    """Decode a text of the catalog; what is not UTF-8 there is shown as such."""
    return cell.decode("utf-8", "replace") if isinstance(cell, bytearray | bytes) else cell
