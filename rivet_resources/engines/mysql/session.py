"""The planning session on MySQL and MariaDB: one connection that describes relations and cuts chunks.

Belongs here: counts, bounds, walks along an index, chunks. Not here: the horizon of incremental
reads (horizon.py), pages (pages.py).

There is no snapshot that connections could share. A chunk takes an instant of its own: one chunk is one instant, of
several each sees its own, and `note` says so; unless the tasks are to begin together (aligned.py).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rivet_resources.contracts.evidence import Explained, Finding, TableFacts
from rivet_resources.contracts.provenance import DatabaseIdentity
from rivet_resources.contracts.relation import Chunk, Consistency, Relation
from rivet_resources.contracts.settings import Pace
from rivet_resources.contracts.source import Bounds, Horizon, TypeRules
from rivet_resources.contracts.types import Column
from rivet_resources.engines.mysql import (
    catalog as mysql_catalog,
)
from rivet_resources.engines.mysql import (
    discover as mysql_tables,
)
from rivet_resources.engines.mysql import (
    explain as mysql_explain,
)
from rivet_resources.engines.mysql import (
    horizon as mysql_horizon,
)
from rivet_resources.engines.mysql import (
    identity as mysql_identity,
)
from rivet_resources.engines.mysql import (
    preflight as mysql_examine,
)
from rivet_resources.engines.mysql import sql
from rivet_resources.engines.mysql.catalog import CatalogRows
from rivet_resources.engines.mysql.columns import is_key, read_definition
from rivet_resources.engines.mysql.connect import CHARSET, ConnectionParams, Row, borrow, cell_text, hand_back, rows_of
from rivet_resources.engines.mysql.errors import fault
from rivet_resources.engines.mysql.wire import packets as mysql_packets
from rivet_resources.engines.mysql.wire.packets import Definition
from rivet_resources.engines.shared.key_ranges import half_open, identity
from rivet_resources.engines.shared.names import require_expression
from rivet_resources.errors import SourceError, SourceLost

if TYPE_CHECKING:
    from pymysql.connections import Connection

# How many index entries one step of a walk passes, so that each of its statements is short.
STEP_ROWS = 50_000


# MySQL's list of processes knows three bytes a character: while any user runs a statement with a longer one, it is this
# error (ER_CANNOT_CONVERT_STRING; seen on 9.7). It passes with that statement.
UNLISTED, UNLISTED_LOOKS, UNLISTED_SECONDS = 3854, 50, 0.1


def open_session(conn_params: ConnectionParams, *, is_aligned: bool = False) -> MySqlSession:
    """Connect for planning."""
    return MySqlSession(conn_params, borrow(conn_params), is_aligned=is_aligned)


UNSERVED = "the rows of the window are looked for in the whole table, and a page of few of them is a long statement"
SEVERAL_INSTANTS = "MySQL cannot share a snapshot between connections; each chunk sees its own instant"


class MySqlSession:
    """One driver-side connection; see the protocol. Not shared between threads."""

    def __init__(self, conn_params: ConnectionParams, connection: Connection[Any], *, is_aligned: bool = False) -> None:
        self.conn_params = conn_params
        self.user = conn_params.address.user
        self.database = conn_params.address.database
        self._is_aligned = is_aligned
        # Until chunks are cut; then it is what the way of reading really gives.
        self.consistency: Consistency = "snapshot" if is_aligned else "per_query"
        self.snapshot: str | None = None
        self.note = ""
        self._connection = connection
        self._is_closed = False
        self._weakness = ""  # the storage engine of the relation, if it knows no snapshots
        name, _, host = str(self.ask("SELECT CURRENT_USER()", doing="asking who we are")[0][0]).rpartition("@")
        # As GRANT wants it.
        self.user = f"'{name}'@'{host}'"

    # --- statements ------------------------------------------------------------------------------

    def ask(self, statement: str, *, doing: str) -> list[Row]:
        """Run one statement and give its rows as texts.

        Raises:
            SourceError and its kin, by code.
        """
        import pymysql  # driver

        for look in range(1, UNLISTED_LOOKS + 1):
            try:
                return rows_of(self._connection, self.conn_params.comment + statement)
            except (pymysql.MySQLError, OSError) as error:
                if error.args[:1] != (UNLISTED,) or look == UNLISTED_LOOKS:
                    raise fault(error, doing=doing, user=self.user, secrets=self.conn_params.secrets) from None
            time.sleep(UNLISTED_SECONDS)
        raise AssertionError("the last look returns or raises")

    def named(self, statement: str, *, doing: str) -> list[dict[str, str | None]]:
        """Run one statement whose columns differ between servers, and give its rows by the columns' names.

        Raises:
            SourceError and its kin, by code.
        """
        import pymysql  # driver

        try:
            with self._connection.cursor() as cursor:
                cursor.execute(self.conn_params.comment + statement)
                names = [column[0] for column in cursor.description or ()]
                return [dict(zip(names, map(cell_text, row), strict=True)) for row in cursor.fetchall()]
        except (pymysql.MySQLError, OSError, *mysql_packets.MALFORMED) as error:
            raise fault(error, doing=doing, user=self.user, secrets=self.conn_params.secrets) from None

    def prepare(self, statement: str, *, doing: str) -> tuple[Definition, ...]:
        """Describe a statement's columns without reading a row; it must be able to take a LIMIT."""
        import pymysql  # driver

        try:
            # PyMySQL has no binary protocol, so nothing prepares; LIMIT 0 describes as well and reads no row.
            return mysql_packets.query(self._connection, f"{self.conn_params.comment}{statement} LIMIT 0").columns
        except (pymysql.MySQLError, OSError) as error:
            raise fault(error, doing=doing, user=self.user, secrets=self.conn_params.secrets) from None

    def prepare_unconverted(self, statement: str, *, doing: str) -> tuple[Definition, ...]:
        """Describe as `prepare`, each text with the collation it has in the source, not the one it is sent in."""
        import pymysql  # driver

        try:
            self._connection.query("SET character_set_results = NULL")
            return self.prepare(statement, doing=doing)
        except (pymysql.MySQLError, OSError) as error:
            raise fault(error, doing=doing, user=self.user, secrets=self.conn_params.secrets) from None
        finally:
            # A line that is lost is told by whoever uses it next.
            with suppress(pymysql.MySQLError, OSError):
                self._connection.query(f"SET character_set_results = {CHARSET}")

    def close(self) -> None:
        """End the session; its connection may wait for the next one. Safe to call twice."""
        if not self._is_closed:
            self._is_closed = True
            hand_back(self._connection, self.conn_params)

    # --- describing ------------------------------------------------------------------------------

    def identity(self) -> DatabaseIdentity:
        """Return which installation and database this is; see identity.py."""
        try:
            rows = self.ask(mysql_identity.VARIABLES, doing="asking which server this is")
        except SourceLost:
            raise
        except SourceError:
            # A proxy that knows its own statements only.
            rows = []
        told = {str(row[0]).lower(): row[1] or "" for row in rows if len(row) > 1}
        return DatabaseIdentity(mysql_identity.servers_of(told), self.database or "")

    def describe(
        self, *, table: str | None, query: str | None, params: Mapping[str, str], rules: TypeRules
    ) -> Relation:
        """Look a table or query up in the catalog; see the protocol."""
        found: CatalogRows
        if table is not None:
            found = mysql_catalog.describe_table(self, table, rules)
        else:
            found = mysql_catalog.describe_query(self, query or "", params, rules)
        self._weakness = found.weakness
        if self._weakness:
            # An engine without snapshots: even one transaction sees what others commit meanwhile.
            self.consistency = "per_query"
        return found.relation

    def examine(self, *, tables: Sequence[str] = (), connections: int = 0) -> tuple[Finding, ...]:
        """Judge the server as exports need it; see the protocol and preflight.py."""
        return mysql_examine.examine(
            self,
            self.conn_params,
            told_id=self._connection.thread_id(),
            tables=tables,
            connections=connections,
            is_aligned=self._is_aligned,
        )

    def tables(self, pattern: str = "") -> tuple[TableFacts, ...]:
        """List what this user may read; see the protocol."""
        return mysql_tables.tables(self, pattern)

    def now(self) -> datetime:
        """Return the database's clock, aware UTC."""
        told = self.ask("SELECT UTC_TIMESTAMP(6)", doing="asking the clock")[0][0]
        return datetime.fromisoformat(str(told)).replace(tzinfo=UTC)

    # --- counting and bounds ---------------------------------------------------------------------

    def count(self, relation: Relation, *, where: str = "") -> int:
        """Count rows, as of now."""
        statement = sql.select(["COUNT(*)"], relation=relation.sql, where=[where])
        return int(self.ask(statement, doing=f"counting {relation.name}")[0][0] or 0)

    def bounds(self, relation: Relation, expression: str, *, where: str = "") -> Bounds:
        """Read MIN, MAX and whether NULLs exist; see the protocol. `nulls` is 0 or 1: more is never counted.

        Raises:
            SourceError: a bound is a zero date.
        """
        spelled, base = self.typed(relation, expression)
        ends = [sql.canonical_sql(f"{end}({spelled})", base) for end in ("MIN", "MAX")]
        low, high = self.ask(
            sql.select(ends, relation=relation.sql, where=[where]), doing=f"reading the bounds of {relation.name}"
        )[0]
        mysql_horizon.check_real(low, base=base, relation=relation.name, expression=expression)
        column = relation.column(expression)
        # The catalog rules NULLs out, so nothing is asked.
        if column is not None and not column.nullable:
            return Bounds(low, high, 0)
        # Looked for, not counted: a count would walk the table.
        is_null = sql.select(["1"], relation=relation.sql, where=[where, f"{spelled} IS NULL"], limit=1)
        return Bounds(low, high, len(self.ask(is_null, doing=f"looking for NULLs in {relation.name}")))

    def typed(self, relation: Relation, expression: str) -> tuple[str, str]:
        """Return a column name quoted, or a parenthesised expression as it is, with the name of its base type.

        Raises:
            UnknownColumn: a bare name that is no column.
        """
        column = relation.column(expression)
        if column is not None:
            return sql.quote(expression), column.fact("base")
        require_expression(expression, relation)
        # Of an expression the server tells the type, as it would compare it.
        described = self.prepare(f"SELECT {expression} FROM {relation.sql}", doing=f"describing {expression}")
        return expression, read_definition(described[0]).base

    # --- walking an index ------------------------------------------------------------------------

    def quantiles(self, relation: Relation, column: Column, pieces: int) -> tuple[str, ...]:
        """Return at most `pieces - 1` inner bounds by a walk of the index that the column leads; () without one."""
        if pieces < 2 or column.name not in relation.indexed:
            return ()
        return self._even(relation, column, pieces)

    def keyset_bounds(self, relation: Relation, key: tuple[str, ...], pieces: int) -> tuple[str, ...]:
        """Walk the index, one short statement a step, to exactly equal pieces; () for composite keys."""
        column = relation.column(key[0]) if len(key) == 1 else None
        return () if column is None or pieces < 2 else self._even(relation, column, pieces)

    def _even(self, relation: Relation, column: Column, pieces: int) -> tuple[str, ...]:
        """Walk once in short steps, then go from the nearest step to each bound: exact where values are unique."""
        # No longer than a piece, or the walk would pass several bounds in one step.
        step = min(STEP_ROWS, max(1, (relation.rows_estimate or STEP_ROWS) // pieces))
        passed: list[str] = []
        while (value := self._walk(relation, column, passed[-1] if passed else None, step)) is not None:
            passed.append(value)
        # From the walk itself, since the statistics' estimate may be far off and pieces would be unequal.
        total = len(passed) * step + self._rest(relation, column, passed[-1] if passed else None, step)
        piece = max(1, -(-total // pieces))
        bounds = []
        for place in range(piece, total, piece):
            whole, more = divmod(place, step)
            start = passed[whole - 1] if whole else None
            bounds.append(self._walk(relation, column, start, more) if more else start)
        # Values that are not unique may give one bound twice: an empty range.
        return tuple(dict.fromkeys(bound for bound in bounds if bound is not None))

    def _walk(self, relation: Relation, column: Column, after: str | None, rows: int) -> str | None:
        """Return the value `rows` index entries after a value; None behind the last."""
        name = sql.quote(column.name)
        where = "" if after is None else f"{name} > {sql.literal(after, column)}"
        inner = sql.select([name], relation=relation.sql, where=[where], order_by=[name])
        value = sql.canonical_sql(name, column.fact("base"))
        found = self.ask(
            f"SELECT {value} FROM ({inner} LIMIT 1 OFFSET {rows - 1}) AS _rivet_walk",
            doing=f"walking the index of {relation.name}",
        )
        return found[0][0] if found else None

    def _rest(self, relation: Relation, column: Column, after: str | None, rows: int) -> int:
        """Count the entries behind the last step, fewer than one step."""
        name = sql.quote(column.name)
        where = "" if after is None else f"{name} > {sql.literal(after, column)}"
        inner = sql.select(["1"], relation=relation.sql, where=[where], limit=rows)
        counted = self.ask(f"SELECT COUNT(*) FROM ({inner}) AS _rivet_rest", doing=f"counting {relation.name}")
        return int(counted[0][0] or 0)

    def horizon(
        self, relation: Relation, expression: str, column: Column, *, after: str | None, lag_seconds: float = 0.0
    ) -> Horizon:
        """Find how far an incremental read may go; see the protocol and horizon.py."""
        return mysql_horizon.horizon(self, relation, expression, column, after=after, lag_seconds=lag_seconds)

    # --- explaining ------------------------------------------------------------------------------

    def explain(self, chunk: Chunk, columns: tuple[Column, ...], *, pace: Pace) -> Explained:
        """Ask the planner about the first page of a chunk; see the protocol."""
        return mysql_explain.explain(self, self.conn_params, chunk, columns, pace=pace)

    # --- cutting ---------------------------------------------------------------------------------

    def chunks(
        self, relation: Relation, *, where: str = "", order_by: tuple[str, ...] = (), pieces: int = 1
    ) -> tuple[Chunk, ...]:
        """Cut the rows in the way that is kindest to the server; see the protocol.

        One chunk is read in one transaction, so it is of one instant; where the relation has a key, in short pages.
        """
        key = self._page_key(relation, where, order_by)
        ranges = self._ranges(relation, where, pieces) if relation.key and pieces > 1 else (where,)
        is_one = len(ranges) == 1
        several: Consistency = "snapshot" if self._is_aligned else "per_query"
        self.consistency = "per_query" if self._weakness else "single" if is_one else several
        self.note = self._note(relation, key, is_one=is_one)
        # Pages along the key of a range on another column go through the whole table where no index finds the
        # range.
        if where and order_by and key == relation.key and not self._is_served(relation, order_by[0]):
            self.note = "; ".join(filter(None, (self.note, f"no index begins with {order_by[0]}: {UNSERVED}")))
        if not key:
            whole = Chunk(index=0, reader="cursor", relation=relation.sql, where=where, order_by=order_by)
            # Without a key it can be asked for only once, and that is one instant.
            return (replace(whole, one_instant=True),)
        made = Chunk(index=0, reader="keyset", relation=relation.sql, key=key, one_instant=is_one)
        return tuple(
            replace(made, index=i, where=part, identity=identity(relation, part)) for i, part in enumerate(ranges)
        )

    def _is_served(self, relation: Relation, expression: str) -> bool:
        """Return whether an index finds the rows of a range; of an expression nobody knows."""
        lead = next((c.name for c in relation.columns if sql.quote(c.name) == expression), None)
        return lead is None or lead in relation.indexed

    def _page_key(self, relation: Relation, where: str, order_by: Sequence[str]) -> tuple[str, ...]:
        """Choose what pages walk along: the wanted order where an index serves it, else the relation's own key.

        NULLs have no place in a walk, so a nullable column leads only where the predicate leaves them out.
        """
        lead = next((c for c in relation.columns if order_by and sql.quote(c.name) == order_by[0]), None)
        if not relation.key or lead is None or lead.name not in relation.indexed:
            return relation.key
        has_nulls = lead.nullable and (order_by[0] not in where or "IS NULL" in where.upper())
        if has_nulls or not is_key(lead):
            return relation.key
        return (lead.name, *(name for name in relation.key if name != lead.name))

    def _ranges(self, relation: Relation, where: str, pieces: int) -> tuple[str, ...]:
        """Cut by ranges of the key's first column, half-open (low, high], the first open below, the last above."""
        column = relation.column(relation.key[0])
        if column is None:
            return (where,)
        literals = [sql.literal(bound, column) for bound in self._even(relation, column, pieces)]
        return half_open(sql.quote(column.name), literals, where=where)

    def _note(self, relation: Relation, key: tuple[str, ...], *, is_one: bool) -> str:
        """Return what the reader of a plan would not expect."""
        said = []
        if not key:
            why = (
                f"{relation.name} has no unique key that pages can follow"
                if relation.is_table
                else "a query has no key"
            )
            said.append(f"{why}: it is read by one long statement; statement_timeout_s covers the whole of it")
        if not is_one and not self._is_aligned:
            said.append(SEVERAL_INSTANTS)
        if self._weakness:
            said.append(
                f"{relation.name} is stored by {self._weakness}, which has no snapshots; rows are of several instants"
            )
        return "; ".join(said)
