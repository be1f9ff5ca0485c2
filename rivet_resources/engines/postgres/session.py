"""The planning session on PostgreSQL: one connection that holds an instant, describes relations and cuts chunks.

Belongs here: opening, the exported snapshot and what stands in for it, counts, bounds, statistics, chunks. Not
here: the horizon of incremental reads (horizon.py), pages (pages.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rivet_resources.contracts.evidence import Explained, Finding, TableFacts
from rivet_resources.contracts.provenance import DatabaseIdentity
from rivet_resources.contracts.relation import Chunk, Consistency, Relation
from rivet_resources.contracts.settings import Pace
from rivet_resources.contracts.source import Bounds, Horizon, TypeRules
from rivet_resources.contracts.types import Column
from rivet_resources.deadlines import SILENT
from rivet_resources.engines.postgres import (
    catalog as postgres_catalog,
)
from rivet_resources.engines.postgres import (
    discover as postgres_tables,
)
from rivet_resources.engines.postgres import (
    explain as postgres_explain,
)
from rivet_resources.engines.postgres import (
    horizon as postgres_horizon,
)
from rivet_resources.engines.postgres import (
    preflight as postgres_examine,
)
from rivet_resources.engines.postgres import sql
from rivet_resources.engines.postgres.chunks import block_chunks
from rivet_resources.engines.postgres.connect import ConnectionParams, borrow, connect, hand_back, pin
from rivet_resources.engines.postgres.errors import clean, fault
from rivet_resources.engines.shared.key_ranges import key_chunks
from rivet_resources.engines.shared.names import require_expression
from rivet_resources.errors import SourceAuth, SourceError, SourceLost, SourceUnreachable

if TYPE_CHECKING:
    import psycopg

Rows = list[tuple[Any, ...]]

# The right is asked for first: a call that is refused at every run would fill the server's log.
MAY_ASK = """SELECT coalesce(has_function_privilege(
    to_regprocedure('pg_catalog.pg_control_system()')::oid, 'EXECUTE'), false)"""
CLUSTER = "SELECT system_identifier::text FROM pg_catalog.pg_control_system()"

Export = Callable[["PostgresSession"], str]

BEGINNING = "beginning the planning transaction"


def open_session(conn_params: ConnectionParams, *, snapshot: bool, export: Export | None = None) -> PostgresSession:
    """Connect, begin, and export a snapshot that a second connection has proved it can import.

    `export` is for tests that need a server which cannot export one.
    """
    session = PostgresSession(conn_params, borrow(conn_params), export=export or export_snapshot)
    try:
        session.begin(snapshot=snapshot)
    except BaseException:
        session.close()
        raise
    return session


def export_snapshot(session: PostgresSession) -> str:
    """Export the transaction's snapshot, and import it once elsewhere: the one proof that tasks can.

    A pooler in front of several servers, or one that takes transactions apart, fails here and not in a task.
    """
    name = str(session.ask("SELECT pg_export_snapshot()", doing="exporting the snapshot")[0][0])
    probe = borrow(session.conn_params)
    try:
        probe.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        probe.execute(f"SET TRANSACTION SNAPSHOT '{name}'".encode())
        probe.execute("ROLLBACK")
    finally:
        hand_back(probe, session.conn_params)
    return name


class PostgresSession:
    """One driver-side connection; see the protocol. Not shared between threads.

    The activity of other transactions (`floor`) is read before the snapshot is taken: see horizon.py.
    """

    def __init__(self, conn_params: ConnectionParams, connection: psycopg.Connection[Any], *, export: Export) -> None:
        self.conn_params = conn_params
        self.user = conn_params.user or connection.info.user
        self.server_version = connection.info.server_version
        self.consistency: Consistency = "per_query"
        self.snapshot: str | None = None
        self.note = ""
        self.floor: postgres_horizon.Floor | None = None
        self._connection = connection
        self._export = export
        self._level = "REPEATABLE READ"
        self._is_closed = False

    # --- the transaction -------------------------------------------------------------------------

    def begin(self, *, snapshot: bool) -> None:
        """Begin the transaction everything is planned in, with a shared snapshot if asked and possible."""
        # The list of open transactions before the snapshot, never after: one that commits between would be in neither.
        self.floor = postgres_horizon.floor(self)
        # A transaction that only rests holds nothing back then.
        self._level = "REPEATABLE READ" if snapshot else "READ COMMITTED"
        self._start()
        if not snapshot:
            self.note = "no snapshot was asked for; each statement sees its own instant"
            return
        try:
            self.snapshot = self._export(self)
            self.consistency = "snapshot"
        except (SourceLost, SourceUnreachable, SourceAuth):
            # Of the second connection: it says nothing about snapshots.
            raise
        except Exception as error:  # any refusal leads to the same fallback, which the note reports
            # Silence is no refusal.
            if SILENT in str(error):
                raise fault(error, doing="proving the snapshot", secrets=self.conn_params.secrets) from None
            said = clean(error, secrets=self.conn_params.secrets)
            self.snapshot, self.consistency = None, "per_query"
            self.note = f"the server cannot share a snapshot ({said}); each statement sees its own instant"
            self.ask("ROLLBACK", doing=BEGINNING)
            self._start()

    def restart(self) -> None:
        """Let go of the snapshot and take a newer one, in place."""
        had = self.snapshot is not None
        self.ask("ROLLBACK", doing=BEGINNING)
        self.snapshot = None
        self.floor = postgres_horizon.floor(self)
        self._start()
        if had:
            self.snapshot = self._export(self)

    def _start(self) -> None:
        self.ask(f"BEGIN ISOLATION LEVEL {self._level} READ ONLY", doing=BEGINNING)
        self.ask(pin(self.conn_params.settings), doing="pinning the session")

    def ask(self, statement: str, values: Sequence[Any] = (), *, doing: str) -> Rows:
        """Run one statement and give its rows; `%s` are bound only when `values` are given.

        Raises:
            SourceError and its kin, by SQLSTATE.
        """
        import psycopg  # driver

        try:
            cursor = self._connection.execute(statement.encode(), tuple(values) or None)
            return cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            raise fault(error, doing=doing, user=self.user, secrets=self.conn_params.secrets) from None

    def prepare(self, statement: str, *, doing: str) -> list[tuple[str, int, int]]:
        """Describe a statement's columns as (name, type oid, modifier) without running it."""
        from psycopg import errors, generators, pq  # driver

        pgconn = self._connection.pgconn
        # A statement that is refused would end the transaction, and with it the snapshot that tasks share.
        self.ask("SAVEPOINT rivet", doing=doing)
        try:
            # Not `pgconn.prepare`: it waits in C and holds the interpreter's lock, so that no deadline could end it.
            pgconn.send_prepare(b"", statement.encode())
            (result,) = self._connection.wait(generators.execute(pgconn))
            if result.status == pq.ExecStatus.COMMAND_OK:
                pgconn.send_describe_prepared(b"")
                (result,) = self._connection.wait(generators.execute(pgconn))
        except errors.Error as error:
            raise fault(error, doing=doing, user=self.user, secrets=self.conn_params.secrets) from None
        if result.status != pq.ExecStatus.COMMAND_OK:
            refused = errors.error_from_result(result)
            self.ask("ROLLBACK TO rivet", doing=doing)
            raise fault(refused, doing=doing, user=self.user, secrets=self.conn_params.secrets) from None
        return [
            (bytes(result.fname(i) or b"").decode(), result.ftype(i), result.fmod(i)) for i in range(result.nfields)
        ]

    def find_policed(self, statement: str, *, doing: str) -> str | None:
        """Name a table of which policies of row security leave rows out of a statement's answer; None: there is none.

        The server knows through views and joins whose policies hold; what a function reads is nobody's to know.
        """
        import psycopg  # driver

        # Refused where a policy would hold (PostgreSQL documentation, "Client Connection Defaults", row_security). The
        # setting ends with the savepoint, and rows are read with the policies, as ever.
        self.ask("SAVEPOINT rivet; SET LOCAL row_security = off", doing=doing)
        try:
            self._connection.execute(f"EXPLAIN {statement}".encode())
        except psycopg.errors.InsufficientPrivilege as error:
            # Its text is in the server's language, and a missing right has the same code.
            if error.diag.source_function == "check_enable_rls":
                return "".join((error.diag.message_primary or "").rpartition('"')[0].rpartition('"')[2:]) or "a table"
        except psycopg.Error:
            pass  # reading it will say so
        finally:
            self.ask("ROLLBACK TO rivet", doing=doing)
        return None

    @contextmanager
    def beside(self) -> Iterator[PostgresSession]:
        """Open a second connection, for statements that must not run in this one's transaction."""
        session = PostgresSession(self.conn_params, borrow(self.conn_params), export=self._export)
        try:
            yield session
        finally:
            session.close()

    def close(self) -> None:
        """End the snapshot and the connection, which may wait for the next session; safe to call twice."""
        if not self._is_closed:
            self._is_closed = True
            hand_back(self._connection, self.conn_params)

    # --- describing ------------------------------------------------------------------------------

    def identity(self) -> DatabaseIdentity:
        """Return which cluster and database this is; a physical replica is its primary, a restored dump is another.

        Where the user may not call pg_control_system(), or a server speaking the protocol has none, the address
        stands in for the cluster: it is compared with addresses only.
        """
        doing = "asking which database this is"
        database = str(self.ask("SELECT current_database()", doing=doing)[0][0])
        self.ask("SAVEPOINT rivet", doing=doing)
        try:
            if self.ask(MAY_ASK, doing=doing)[0][0]:
                return DatabaseIdentity((f"system_identifier:{self.ask(CLUSTER, doing=doing)[0][0]}",), database)
        except SourceLost:
            raise
        except SourceError:  # a refusal would end the transaction that holds the snapshot
            self.ask("ROLLBACK TO rivet", doing=doing)
        return DatabaseIdentity((f"address:{self.conn_params.where}",), database)

    def describe(
        self, *, table: str | None, query: str | None, params: Mapping[str, str], rules: TypeRules
    ) -> Relation:
        """Look a table or query up in the catalog; see the protocol."""
        if table is not None:
            return postgres_catalog.describe_table(self, table, rules)
        return postgres_catalog.describe_query(self, query or "", params, rules)

    def examine(self, *, tables: Sequence[str] = (), connections: int = 0) -> tuple[Finding, ...]:
        """Judge the server as exports need it; see the protocol and preflight.py."""
        return postgres_examine.examine(
            self, self.conn_params, self._connection, two=self._two_others, tables=tables, connections=connections
        )

    @contextmanager
    def _two_others(self) -> Iterator[tuple[psycopg.Connection[Any], psycopg.Connection[Any]]]:
        """Open two connections beside this one, which lets go of its transaction: a pool may have no third."""
        is_free = self.snapshot is None
        if is_free:
            self.ask("ROLLBACK", doing=BEGINNING)
        with closing(connect(self.conn_params)) as first, closing(connect(self.conn_params)) as second:
            yield first, second
        if is_free:
            self._start()

    def tables(self, pattern: str = "") -> tuple[TableFacts, ...]:
        """List what this user may read; see the protocol."""
        return postgres_tables.tables(self, pattern)

    def now(self) -> datetime:
        """Return the database's clock, aware UTC."""
        found: datetime = self.ask("SELECT clock_timestamp()", doing="asking the clock")[0][0]
        return found.astimezone(UTC)

    # --- counting and bounds ---------------------------------------------------------------------

    def count(self, relation: Relation, *, where: str = "") -> int:
        """Count rows, under the snapshot."""
        statement = sql.select(["count(*)"], relation=relation.sql, where=[where])
        return int(self.ask(statement, doing=f"counting {relation.name}")[0][0])

    def bounds(self, relation: Relation, expression: str, *, where: str = "") -> Bounds:
        """Read MIN, MAX and whether NULLs exist; see the protocol. `nulls` is 0 or 1: more is never counted.

        Raises:
            SourceError: a bound is infinite.
        """
        spelled, base = self.typed(relation, expression)
        column = relation.column(expression)
        is_null = sql.select(["1"], relation=relation.sql, where=[where, f"{spelled} IS NULL"])
        # The catalog rules NULLs out, so nothing is looked for.
        nulls = "false" if column is not None and not column.nullable else f"EXISTS ({is_null})"
        statement = sql.extremes(spelled, base, relation=relation.sql, where=where)
        rows = self.ask(statement, doing=f"reading the bounds of {relation.name}")
        has_nulls = self.ask(f"SELECT {nulls}", doing=f"looking for NULLs in {relation.name}")[0][0]
        for bound in rows[0]:
            postgres_horizon.check_finite(bound, relation=relation.name, expression=expression)
        return Bounds(low=rows[0][0], high=rows[0][1], nulls=int(has_nulls))

    def typed(self, relation: Relation, expression: str) -> tuple[str, str]:
        """Return a column name quoted, or a parenthesised expression as it is, with the name of its base type.

        Raises:
            UnknownColumn: a bare name that is no column.
        """
        column = relation.column(expression)
        if column is not None:
            return sql.quote(expression), column.fact("base")
        require_expression(expression, relation)
        described = self.prepare(f"SELECT {expression} FROM {relation.sql}", doing=f"describing {expression}")
        rows = self.ask(
            "SELECT typname FROM pg_type WHERE oid = %s::int8::oid", (described[0][1],), doing="reading a type"
        )
        return expression, str(rows[0][0])

    # --- statistics ------------------------------------------------------------------------------

    def quantiles(self, relation: Relation, column: Column, pieces: int) -> tuple[str, ...]:
        """Return at most `pieces - 1` inner bounds from the histogram, else from a sample of blocks; () if unknown."""
        if pieces < 2 or not relation.is_table:
            return ()
        return self._histogram(relation, column, pieces) or self._sample(relation, column, pieces)

    def _histogram(self, relation: Relation, column: Column, pieces: int) -> tuple[str, ...]:
        schema, _, table = relation.name.partition(".")
        sql_type = sql.literal_type(column)
        bound = sql.canonical_sql("b", column.fact("base"))
        rows = self.ask(
            # pg_stats has the bounds as anyarray, and only its text leads out of that.
            f"SELECT {bound} FROM pg_stats s, unnest(s.histogram_bounds::text::{sql_type}[]) WITH ORDINALITY AS h "
            f"(b, n) "
            "WHERE schemaname = %s AND tablename = %s AND attname = %s "
            "AND s.inherited = (SELECT bool_or(inherited) FROM pg_stats WHERE schemaname = s.schemaname "
            "AND tablename = s.tablename AND attname = s.attname) ORDER BY n",
            (schema, table, column.name),
            doing=f"reading the statistics of {relation.name}",
        )
        found = [str(row[0]) for row in rows if row[0] is not None]
        # Two bounds are the smallest and the largest value: no place to cut between them.
        if len(found) < 3:
            return ()
        picked = (found[round(i * (len(found) - 1) / pieces)] for i in range(1, pieces))
        # The ends are no bounds: a range below the smallest value of the sample, or above its largest, would be
        # nearly empty.
        return tuple(bound for bound in dict.fromkeys(picked) if bound not in (found[0], found[-1]))

    def _sample(self, relation: Relation, column: Column, pieces: int) -> tuple[str, ...]:
        """Sample whole blocks: about 20 000 rows, all of a small table."""
        # About 20,000 rows, whatever the estimate is off by; a table that was never counted is taken for small.
        percent = min(100.0, 2_000_000 / max(relation.rows_estimate or 20_000, 1))
        name, base = sql.quote(column.name), column.fact("base")
        bound = sql.canonical_sql("q", base)
        shares = ",".join(str(i / pieces) for i in range(1, pieces))
        self.ask("SAVEPOINT rivet", doing=f"sampling {relation.name}")
        try:
            rows = self.ask(
                f"SELECT DISTINCT ON (q) {bound} FROM unnest((SELECT percentile_disc(ARRAY[{shares}]::float8[]) "
                f"WITHIN GROUP (ORDER BY {name}) FROM {relation.sql} TABLESAMPLE SYSTEM ({percent:.6f}))) AS q "
                "WHERE q IS NOT NULL ORDER BY q",
                doing=f"sampling {relation.name}",
            )
        except SourceLost:
            raise
        except SourceError:
            # Views and foreign tables cannot be sampled.
            self.ask("ROLLBACK TO rivet", doing=f"sampling {relation.name}")
            return ()
        return tuple(str(row[0]) for row in rows)

    def keyset_bounds(self, relation: Relation, key: tuple[str, ...], pieces: int) -> tuple[str, ...]:
        """Walk the index in equal steps, one short statement a bound; () for composite keys."""
        column = relation.column(key[0]) if len(key) == 1 else None
        if column is None or pieces < 2:
            return ()
        # Counted under the snapshot, so the pieces are equal exactly; statistics would make them about equal.
        step = -(-self.count(relation) // pieces)
        name, bounds, where = sql.quote(column.name), list[str](), ""
        rendered = sql.canonical_sql(name, column.fact("base"))
        while len(bounds) < pieces - 1 and step:
            inner = sql.select(
                [f"{rendered} AS _rivet_bound", name], relation=relation.sql, where=[where], order_by=[name]
            )
            rows = self.ask(
                # One more than the bound: without it nothing is left above.
                f"SELECT _rivet_bound FROM ({inner} OFFSET {step - 1} LIMIT 2) AS walk",
                doing=f"walking the key of {relation.name}",
            )
            # The last piece is open above.
            if len(rows) < 2:
                break
            bounds.append(str(rows[0][0]))
            where = f"{name} > {sql.literal(bounds[-1], column)}"
        return tuple(bounds)

    def horizon(
        self, relation: Relation, expression: str, column: Column, *, after: str | None, lag_seconds: float = 0.0
    ) -> Horizon:
        """Find how far an incremental read may go; see the protocol and horizon.py."""
        return postgres_horizon.horizon(self, relation, expression, column, after=after, lag_seconds=lag_seconds)

    # --- explaining ------------------------------------------------------------------------------

    def explain(self, chunk: Chunk, columns: tuple[Column, ...], *, pace: Pace) -> Explained:
        """Ask the planner about the first page of a chunk; see the protocol."""
        return postgres_explain.explain(self, self.conn_params, chunk, columns, pace=pace)

    # --- cutting ---------------------------------------------------------------------------------

    def chunks(
        self, relation: Relation, *, where: str = "", order_by: tuple[str, ...] = (), pieces: int = 1
    ) -> tuple[Chunk, ...]:
        """Cut the rows in the way that is kindest to the server; see the protocol."""
        if self.snapshot is not None:
            served = {sql.quote(name) for name in relation.indexed}
            # An index finds the few rows behind a cursor; ranges of blocks would go through the whole table for them.
            is_indexed = bool(where and order_by and order_by[0] in served)
            if relation.leaves and not is_indexed:
                return block_chunks(relation.leaves, where=where, pieces=pieces)
        elif relation.is_table and relation.key:
            return key_chunks(self, relation, sql, where=where, pieces=pieces)
        else:
            self.consistency = "single"
            self.note += "; without a key it is read as one stream in one transaction, which sees one instant"
        return (Chunk(index=0, reader="cursor", relation=relation.sql, where=where, order_by=order_by),)
