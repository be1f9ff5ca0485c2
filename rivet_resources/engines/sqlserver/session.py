"""The planning session on SQL Server: one connection that describes relations, finds bounds and cuts chunks.

Belongs here: opening, counts, bounds, statistics, chunks. Not here: the horizon of incremental reads
(horizon.py), pages (pages.py).

There is no snapshot that connections could share. One chunk may be read in one SNAPSHOT transaction, where the database
allows that; several see one instant each, and the note says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rivet_resources.contracts.evidence import Explained, Finding, TableFacts
from rivet_resources.contracts.provenance import DatabaseIdentity
from rivet_resources.contracts.relation import Chunk, Consistency, Relation
from rivet_resources.contracts.settings import Pace
from rivet_resources.contracts.source import Bounds, Horizon, TypeRules
from rivet_resources.contracts.types import Column
from rivet_resources.engines.shared.key_ranges import key_chunks
from rivet_resources.engines.shared.names import require_expression
from rivet_resources.engines.sqlserver import (
    catalog as sqlserver_catalog,
)
from rivet_resources.engines.sqlserver import (
    discover as sqlserver_tables,
)
from rivet_resources.engines.sqlserver import (
    driver as sqlserver_driver,
)
from rivet_resources.engines.sqlserver import (
    explain as sqlserver_explain,
)
from rivet_resources.engines.sqlserver import (
    horizon as sqlserver_horizon,
)
from rivet_resources.engines.sqlserver import (
    preflight as sqlserver_examine,
)
from rivet_resources.engines.sqlserver import sql
from rivet_resources.engines.sqlserver.connect import ConnectionParams, connect
from rivet_resources.engines.sqlserver.errors import fault
from rivet_resources.errors import SourceError, SourceLost

if TYPE_CHECKING:
    from rivet_resources.engines.sqlserver.driver import DriverRefused

Rows = list[tuple[Any, ...]]

ABOUT = """
SELECT SUSER_SNAME() AS login_name, COALESCE(SCHEMA_NAME(), N'dbo') AS default_schema,
       d.snapshot_isolation_state,
       CONVERT(nvarchar(60), DATABASEPROPERTYEX(DB_NAME(), N'Updateability')) AS updateability
FROM sys.databases AS d WHERE d.database_id = DB_ID()"""

IDENTITY = """
SELECT DB_NAME() AS name, LOWER(CONVERT(varchar(36), d.service_broker_guid)) AS broker_guid
FROM sys.databases AS d WHERE d.database_id = DB_ID()"""
OWN_GUID = """
SELECT LOWER(CONVERT(varchar(36), r.database_guid)) AS database_guid
FROM sys.database_recovery_status AS r WHERE r.database_id = DB_ID()"""

NO_SHARED = "SQL Server cannot share a snapshot between connections; each chunk sees its own instant"
NO_SNAPSHOT = (
    "the database does not allow SNAPSHOT isolation (ALTER DATABASE … SET ALLOW_SNAPSHOT_ISOLATION ON would), so each "
    "statement sees its own instant"
)
NO_KEY = "without a unique key it is read as one stream, in bites"


def open_session(conn_params: ConnectionParams, *, snapshot: bool) -> SqlServerSession:
    """Connect and learn what the database allows.

    Raises:
        SourceUnreachable, SourceAuth, SourceLost, SourceError
    """
    session = SqlServerSession(conn_params, connect(conn_params), snapshot=snapshot)
    try:
        session.begin()
    except BaseException:
        session.close()
        raise
    return session


class SqlServerSession:
    """One driver-side connection; see the protocol. Not shared between threads."""

    def __init__(self, conn_params: ConnectionParams, connection: Any, *, snapshot: bool) -> None:
        self.conn_params = conn_params
        self.user = conn_params.user
        self.snapshot: str | None = None
        self.consistency: Consistency = "per_query"
        self.note = NO_SHARED if snapshot else "no snapshot was asked for; each statement sees its own instant"
        self.is_replica = False
        self._allows_snapshot = False
        self._wants_snapshot = snapshot
        self._schema = "dbo"
        self._connection = connection

    def begin(self) -> None:
        """Learn who we are and what the database allows."""
        found = self.ask(ABOUT, doing="asking about the database")
        login, schema, state, updateability = found[0] if found else (self.user, "dbo", 0, "READ_WRITE")
        self.user, self._schema = str(login), str(schema)
        # Only where a secondary was asked for: a database may be read-only at its primary as well, and hide
        # nothing.
        self.is_replica = updateability == "READ_ONLY" and self.conn_params.is_read_only
        # 0 is off, 1 on; 2 and 3 are on the way to either, and give
        # no snapshot yet. Source: sys.databases, Microsoft Learn.
        self._allows_snapshot = state == 1
        if self._wants_snapshot and not self._allows_snapshot:
            self.note = NO_SNAPSHOT

    def ask(self, statement: str, *, doing: str) -> Rows:
        """Run one statement and give its rows.

        Raises:
            SourceError and its kin, by error number.
        """
        try:
            cursor = sqlserver_driver.execute(self._connection, statement, timeout=self.conn_params.statement_timeout_s)
            try:
                return sqlserver_driver.rows_of(cursor)
            finally:
                sqlserver_driver.close(cursor)
        except sqlserver_driver.DriverRefused as error:
            raise self._fault(error, doing) from None

    def _fault(self, error: DriverRefused, doing: str) -> Exception:
        return fault(error, doing=doing, user=self.user, secrets=self.conn_params.secrets)

    def close(self) -> None:
        """End the connection; safe to call twice."""
        sqlserver_driver.close(self._connection)

    # --- describing ------------------------------------------------------------------------------

    def identity(self) -> DatabaseIdentity:
        """Return which database this is: GUIDs that go with it to every replica of an availability group.

        A restored copy keeps the broker's GUID; the other one, which it does not keep, is shown to some users only.
        """
        doing = "asking which database this is"
        found = self.ask(IDENTITY, doing=doing)
        name, broker = found[0] if found else ("", None)
        try:
            own = self.ask(OWN_GUID, doing=doing)
        except SourceLost:
            raise
        except SourceError:
            # Azure SQL Database has no such view.
            own = []
        guids = {"broker_guid": broker, "database_guid": own[0][0] if own else None}
        return DatabaseIdentity(tuple(f"{kind}:{guid}" for kind, guid in guids.items() if guid), str(name or ""))

    def describe(
        self, *, table: str | None, query: str | None, params: Mapping[str, str], rules: TypeRules
    ) -> Relation:
        """Look a table or query up in the catalog; see the protocol."""
        if table is not None:
            return sqlserver_catalog.describe_table(self, table, rules, schema=self._schema)
        return sqlserver_catalog.describe_query(self, query or "", params, rules)

    def examine(self, *, tables: Sequence[str] = (), connections: int = 0) -> tuple[Finding, ...]:
        """Judge the server as exports need it; see the protocol and preflight.py."""
        return sqlserver_examine.examine(
            self,
            self.conn_params,
            driver=self._connection.version,
            is_replica=self.is_replica,
            allows_snapshot=self._allows_snapshot,
            schema=self._schema,
            tables=tables,
            connections=connections,
        )

    def tables(self, pattern: str = "") -> tuple[TableFacts, ...]:
        """List what this user may read; see the protocol."""
        return sqlserver_tables.tables(self, pattern)

    def now(self) -> datetime:
        """Return the database's clock, aware UTC."""
        text = self.ask("SELECT CONVERT(varchar(27), SYSUTCDATETIME(), 121) AS utc", doing="asking the clock")[0][0]
        # datetime2 has seven digits of a second, Python's datetime six.
        return datetime.fromisoformat(str(text)[:26]).replace(tzinfo=UTC)

    # --- counting and bounds ---------------------------------------------------------------------

    def count(self, relation: Relation, *, where: str = "") -> int:
        """Count rows."""
        statement = sql.select(["COUNT_BIG(*) AS n"], relation=relation.sql, where=[where])
        return int(self.ask(statement, doing=f"counting {relation.name}")[0][0])

    def bounds(self, relation: Relation, expression: str, *, where: str = "") -> Bounds:
        """Read MIN, MAX and whether NULLs exist; see the protocol. `nulls` is 0 or 1: more is never counted."""
        spelled, column = self.spelled(relation, expression), self._column(relation, expression)
        base = column.fact("base")
        ends = [f"{sql.canonical_sql(f'{end}({spelled})', base)} AS b{i}" for i, end in enumerate(("MIN", "MAX"))]
        row = self.ask(
            sql.select(ends, relation=relation.sql, where=[where]), doing=f"reading the bounds of {relation.name}"
        )[0]
        has_nulls = False
        # Whether an expression can be NULL is not told by its columns.
        if column.nullable or relation.column(expression) is None:
            probe = sql.select(["1 AS n"], relation=relation.sql, where=[where, f"{spelled} IS NULL"], limit=1)
            has_nulls = bool(self.ask(probe, doing=f"looking for NULLs in {relation.name}"))
        low, high = (sql.canonical_text(bound, base) for bound in row)
        return Bounds(low=low, high=high, nulls=int(has_nulls))

    def spelled(self, relation: Relation, expression: str) -> str:
        """Return a column name quoted, or a parenthesised expression as it is.

        Raises:
            UnknownColumn: a bare name that is no column.
        """
        if relation.column(expression) is not None:
            return sql.quote(expression)
        require_expression(expression, relation)
        return expression

    def _column(self, relation: Relation, expression: str) -> Column:
        """Return the column an expression is, or one that stands for its described type."""
        known = relation.column(expression)
        if known is not None:
            return known
        query = f"SELECT {expression} AS e FROM {relation.sql}"
        described = sqlserver_catalog.describe_query(self, query, {}, TypeRules(columns={}))
        return replace(described.columns[0], nullable=True)

    def greatest(self, relation: Relation, spelled: str, column: Column, *, where: Sequence[str] = ()) -> str | None:
        """Read the greatest non-NULL value as canonical text, from the end of its index where there is one."""
        base = column.fact("base")
        statement = sql.select(
            [f"{sql.canonical_sql(spelled, base)} AS _rivet_high"],
            relation=relation.sql,
            where=[*where, f"{spelled} IS NOT NULL"],
            order_by=[f"{spelled} DESC"],
            limit=1,
        )
        rows = self.ask(statement, doing=f"finding the newest row of {relation.name}")
        return sql.canonical_text(rows[0][0], base) if rows else None

    # --- statistics ------------------------------------------------------------------------------

    def quantiles(self, relation: Relation, column: Column, pieces: int) -> tuple[str, ...]:
        """Return at most `pieces - 1` inner bounds from a sample of pages; () if unknown."""
        if pieces < 2 or not relation.is_table:
            return ()
        name, base = sql.quote(column.name), column.fact("base")
        # About 20,000 rows, whatever the size of the table.
        percent = min(100.0, max(0.001, 2_000_000 / max(relation.rows_estimate or 20_000, 1)))
        tiles = (
            f"SELECT {name} AS b, NTILE({pieces}) OVER (ORDER BY {name}) AS tile "
            f"FROM {relation.sql} TABLESAMPLE SYSTEM ({percent:.4f} PERCENT) WHERE {name} IS NOT NULL"
        )
        bound = sql.canonical_sql("MAX(s.b)", base)
        try:
            rows = self.ask(
                # T-SQL has no percentile_disc that aggregates; the greatest value of each tile is the same.
                f"SELECT {bound} AS b FROM ({tiles}) AS s GROUP BY s.tile ORDER BY MAX(s.b)",
                doing=f"sampling {relation.name}",
            )
        except SourceError as error:
            # Views cannot be sampled.
            if error.retry:
                raise
            return ()
        # The last tile ends with the table, so its greatest value is no inner bound.
        found = [str(sql.canonical_text(row[0], base)) for row in rows[:-1]]
        # Values that are not unique may end several tiles.
        return tuple(dict.fromkeys(found))

    def keyset_bounds(self, relation: Relation, key: tuple[str, ...], pieces: int) -> tuple[str, ...]:
        """Walk the index in equal steps, one short statement a bound; () for composite keys."""
        column = relation.column(key[0]) if len(key) == 1 else None
        if column is None or pieces < 2:
            return ()
        step = -(-self.count(relation) // pieces)
        name, base, where = sql.quote(column.name), column.fact("base"), ""
        bounds: list[str] = []
        while len(bounds) < pieces - 1 and step:
            item = f"{sql.canonical_sql(name, base)} AS _rivet_b"
            walk = sql.select([item], relation=relation.sql, where=[where], order_by=[name])
            # The second row says whether anything follows.
            rows = self.ask(
                f"{walk} OFFSET {step - 1} ROWS FETCH NEXT 2 ROWS ONLY", doing=f"walking the key of {relation.name}"
            )
            # The last piece is open above.
            if len(rows) < 2:
                break
            bounds.append(str(sql.canonical_text(rows[0][0], base)))
            where = f"{name} > {sql.literal(bounds[-1], column)}"
        return tuple(bounds)

    def horizon(
        self, relation: Relation, expression: str, column: Column, *, after: str | None, lag_seconds: float = 0.0
    ) -> Horizon:
        """Find how far an incremental read may go; see the protocol and horizon.py."""
        return sqlserver_horizon.horizon(self, relation, expression, column, after=after, lag_seconds=lag_seconds)

    # --- explaining ------------------------------------------------------------------------------

    def explain(self, chunk: Chunk, columns: tuple[Column, ...], *, pace: Pace) -> Explained:
        """Ask the planner about the first page of a chunk; see the protocol."""
        return sqlserver_explain.explain(self, self.conn_params, chunk, columns, pace=pace)

    # --- cutting ---------------------------------------------------------------------------------

    def chunks(
        self, relation: Relation, *, where: str = "", order_by: tuple[str, ...] = (), pieces: int = 1
    ) -> tuple[Chunk, ...]:
        """Cut the rows by ranges of a key, or into one stream where there is none; see the protocol.

        One chunk is read at one instant where that was asked for and the database allows it.
        """
        if relation.is_table and relation.key:
            found = key_chunks(self, relation, sql, where=where, pieces=pieces)
        else:
            # Each part once: a session may cut chunks several times.
            self.note = "; ".join(part for part in dict.fromkeys((*self.note.split("; "), NO_KEY)) if part)
            found = (Chunk(index=0, reader="cursor", relation=relation.sql, where=where, order_by=order_by),)
        if len(found) == 1 and self._wants_snapshot and self._allows_snapshot:
            self.consistency = "single"
            self.note = NO_KEY if found[0].reader == "cursor" else ""
            return (replace(found[0], one_instant=True, identity=""),)
        return found
