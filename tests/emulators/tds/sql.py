"""One connection of the SQL Server emulator: T-SQL batches, statement by statement, run in DuckDB.

Belongs here: statements and their effects on the catalog. Not here: expressions (expressions.py), bytes
(protocol.py). What is not emulated says so in an error, never in a wrong answer.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import duckdb
from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from tests.emulators.tds import cdc as tds_cdc
from tests.emulators.tds import times as tds_times
from tests.emulators.tds.catalog import VIEWS, Column, Index, Session, Table, numbers
from tests.emulators.tds.catalog import type_ids as type_ids_of
from tests.emulators.tds.database import Database, session_numbers, transactions
from tests.emulators.tds.expressions import Fault, Rewriter, convert, declared, type_of
from tests.emulators.tds.types import Type, of_duckdb

Rows = list[tuple[Any, ...]]


@dataclass(frozen=True)
class Result:
    """What one statement answers: columns and rows, or a count."""

    columns: tuple[tuple[str, Type], ...] = ()
    rows: Rows = field(default_factory=list)
    count: int = 0


PIECES = re.compile(r"'(?:[^']|'')*'|\[(?:[^\]]|\]\])*\]|\"[^\"]*\"|--[^\n]*|/\*.*?\*/|;", re.DOTALL)


def statements(batch: str) -> Iterator[str]:
    """Cut a batch at its semicolons."""
    start = 0
    for match in PIECES.finditer(batch):
        if match[0] == ";":
            yield batch[start : match.start()].strip()
            start = match.end()
    yield batch[start:].strip()


@dataclass
class Executor:
    """Runs the statements of one connection."""

    databases: dict[str, Database]
    database: Database
    login: str
    is_snapshot: bool = False

    def __post_init__(self) -> None:
        self.session = Session(next(session_numbers), self.login)
        self.variables: dict[str, int] = {}
        self.changes: list[tds_cdc.Change] = []  # of the open transaction
        self._enter(self.database)

    def _enter(self, database: Database) -> None:
        self.database.sessions.pop(self.session.number, None)
        self.database = database
        self.cursor = database.root.cursor()
        database.sessions[self.session.number] = self.session

    def close(self) -> None:
        """End the connection; an open transaction is rolled back."""
        if self.session.transaction:
            self._rollback(None)
        locks = self.database.capturing.locks
        for name in [name for name, session in locks.items() if session == self.session.number]:
            del locks[name]
        self.database.sessions.pop(self.session.number, None)
        self.cursor.close()

    def run(self, batch: str) -> Iterator[Result]:
        """Run a batch; each statement's answer before the next one starts.

        Raises:
            Fault
        """
        for statement in statements(batch):
            if statement:
                result = self._one(statement)
                self.database.capturing.ran(statement)
                yield result

    def _one(self, statement: str) -> Result:
        for pattern, effect in EFFECTS:
            if match := re.match(pattern, statement, re.IGNORECASE | re.DOTALL):
                return effect(self, match) or Result()
        try:
            return self._parsed(_readable(statement))
        except SqlglotError:
            raise Fault(102, "Incorrect syntax near the statement.") from None
        except duckdb.Error as error:
            raise _fault(error) from None
        except tds_times.Unparsable:
            raise Fault(241, "Conversion failed when converting date and/or time from character string.") from None

    def _parsed(self, statement: str) -> Result:
        node = parse_one(statement, read="tsql")
        for kind, effect in NODES:
            if isinstance(node, kind):
                return effect(self, node)
        raise Fault(50000, f"The emulator does not know this statement: {type(node).__name__}.")

    # --- transactions and settings ---------------------------------------------------------------

    def _begin(self, match: re.Match[str]) -> None:
        if not self.session.transaction:
            self.session.first_rowversion = self.database.rowversion() + 1
            self.session.transaction = next(transactions)
            self.session.began_at = tds_times.now()
            self.cursor.execute("BEGIN TRANSACTION")

    def _commit(self, match: re.Match[str] | None) -> None:
        if self.session.transaction:
            self.cursor.execute("COMMIT")
            self.session.transaction = 0
            self._captured([])

    def _rollback(self, match: re.Match[str] | None) -> None:
        if self.session.transaction:
            self.cursor.execute("ROLLBACK")
            self.session.transaction = 0
            self.changes = []

    def _isolation(self, match: re.Match[str]) -> None:
        self.is_snapshot = match[1].upper() == "SNAPSHOT"

    def _context(self, match: re.Match[str]) -> None:
        self.session.context = bytes.fromhex(match[1])

    def _use(self, match: re.Match[str]) -> None:
        self._enter(self._known(match[1]))

    def _known(self, name: str) -> Database:
        if name.lower() not in self.databases:
            raise Fault(911, f"Database '{name}' does not exist. Make sure that the name is entered correctly.")
        return self.databases[name.lower()]

    def _create_database(self, match: re.Match[str]) -> None:
        self.databases[match[1].lower()] = Database(match[1])

    def _drop_database(self, match: re.Match[str]) -> None:
        self.databases.pop(match[1].lower(), None)

    def _alter_database(self, match: re.Match[str]) -> None:
        if "ALLOW_SNAPSHOT_ISOLATION" in match[2].upper():
            name = self.database.name if match[1].upper() == "CURRENT" else match[1]
            self._known(name).allows_snapshot = match[2].upper().endswith("ON")

    def _wait(self, match: re.Match[str]) -> None:
        hours, minutes, seconds = match[1].split(":")
        time.sleep(int(hours) * 3600 + int(minutes) * 60 + float(seconds))

    def _nothing(self, match: re.Match[str]) -> None:
        return

    def _no_plan(self, match: re.Match[str]) -> None:
        raise Fault(262, "SHOWPLAN permission denied in database 'master'.")

    def _schema(self, match: re.Match[str]) -> None:
        self.cursor.execute(f'CREATE SCHEMA IF NOT EXISTS "{match[1]}"')

    # --- queries ---------------------------------------------------------------------------------

    def _rewriter(self) -> Rewriter:
        facts = {
            "spid": self.session.number,
            "open": int(bool(self.session.transaction)),
            "login": self.login,
            "database": self.database.name,
            "databases": self.databases,
            "updateability": self.database.updateability,
            "rowversion": f"{self.database.least_active():016X}",
            "variables": self.variables,
        }
        return Rewriter(
            tables=self._columns, facts=facts, describe=self._describe, changes=self.database.capturing.function
        )

    def _columns(self, source: exp.Table) -> tuple[exp.Expression, Mapping[str, Type | None]]:
        schema = source.db.lower() or "dbo"
        alias = exp.to_identifier(source.alias_or_name, quoted=True)
        if schema == "sys":
            if "dm_tran" in source.name.lower() and self.login != "sa":
                raise Fault(300, "VIEW SERVER STATE permission was denied on object 'server', database 'master'.")
            if source.name.lower() not in VIEWS:
                raise Fault(208, f"Invalid object name 'sys.{source.name}'.")
            self.database.fill(self.cursor, source.name.lower())
            new = exp.to_table(f"temp.main.{source.name}")
            new.set("alias", exp.TableAlias(this=alias))
            return new, {}
        if source.catalog.lower() == "msdb":
            source = exp.to_table(f"cdc.{source.name}", alias=source.alias)
        table = self._table(source)
        if self.is_snapshot and self.session.transaction and not self.database.allows_snapshot:
            raise Fault(3952, f"Snapshot isolation transaction failed accessing database '{self.database.name}'.")
        if self.login != "sa" and "secret" in table.name:
            raise Fault(229, f"The SELECT permission was denied on the object '{table.name}'.")
        columns = {column.name.lower(): column.type for column in table.columns}
        if table.view:
            view = parse_one(_readable(table.view), read="tsql")
            self._rewriter().query(view)
            return exp.Subquery(this=view, alias=exp.TableAlias(this=alias)), columns
        new = exp.Table(
            this=exp.to_identifier(table.name, quoted=True),
            db=exp.to_identifier(table.schema, quoted=True),
            alias=exp.TableAlias(this=alias),
        )
        return new, columns

    def _table(self, source: exp.Table) -> Table:
        schema = source.db.lower() or "dbo"
        found = self.database.tables.get((schema, source.name.lower()))
        if found is None:
            name = f"{source.db}.{source.name}" if source.db else source.name
            raise Fault(208, f"Invalid object name '{name}'.")
        return found

    def _query(self, node: exp.Expression) -> Result:
        node, columns = self._translated(node)
        found = self.cursor.execute(node.sql("duckdb"))
        kinds = [
            (name, kind or of_duckdb(str(column[1])))
            for (name, kind), column in zip(columns, found.description or (), strict=True)
        ]
        rows = found.fetchall()
        return Result(tuple(kinds), rows, len(rows))

    def _translated(self, node: exp.Expression) -> tuple[exp.Expression, list[tuple[str, Type | None]]]:
        return node, self._rewriter().query(node)

    def _describe(self, text: str) -> exp.Expression:
        """Answer sys.dm_exec_describe_first_result_set as a list of values."""
        head = "name, column_ordinal, system_type_id, user_type_name, max_length, precision, scale, is_nullable, "
        head += "collation_name, error_number, error_message, is_hidden"
        try:
            node, columns = self._translated(parse_one(_readable(text), read="tsql"))
            found = self.cursor.execute(f"DESCRIBE {node.sql('duckdb')}").fetchall()
            kinds = [(name, kind or of_duckdb(row[1])) for (name, kind), row in zip(columns, found, strict=True)]
            values = [_described(place, name, kind) for place, (name, kind) in enumerate(kinds, 1)]
        except (Fault, duckdb.Error, SqlglotError) as error:
            fault = error if isinstance(error, Fault) else _fault(error)
            values = [f"(NULL, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, {fault.number}, 'refused', false)"]
        query = f"SELECT * FROM (VALUES {', '.join(values)}) AS v({head})"
        return exp.Subquery(this=parse_one(query, read="duckdb"))

    # --- rows ------------------------------------------------------------------------------------

    def _insert(self, node: exp.Expression) -> Result:
        target = node.this.this if isinstance(node.this, exp.Schema) else node.this
        table = self._table(target)
        given = [e.name for e in node.this.expressions] if isinstance(node.this, exp.Schema) else []
        if not given:
            given = [c.name for c in table.columns if not c.is_identity and c.type.name != "timestamp"]
        columns = [column for name in given if (column := table.column(name)) is not None]
        if len(columns) != len(given):
            raise Fault(207, "Invalid column name.")
        rewriter = self._rewriter()
        extra = self._extras(table, {name.lower() for name in given}, rewriter)
        names = ", ".join(f'"{name}"' for name in [*(c.name for c in columns), *extra])
        added = "".join(f", {value}" for value in extra.values())
        source = node.expression
        if isinstance(source, exp.Values):
            rows = [
                [_stored(rewriter.expression(e, {}), c) for e, c in zip(row.expressions, columns, strict=True)]
                for row in source.expressions
            ]
            body = "VALUES " + ", ".join(f"({', '.join(row)}{added})" for row in rows)
        else:
            if node.args.get("with_"):
                source.set("with_", node.args["with_"])
            kinds = rewriter.query(source)
            places = [exp.column(f"c{i}") for i in range(len(kinds))]
            for place, (_, kind) in zip(places, kinds, strict=True):
                place.meta["type"] = kind
            items = ", ".join(_stored(place, c) for place, c in zip(places, columns, strict=True))
            aliases = ", ".join(place.name for place in places)
            body = f"SELECT {items}{added} FROM ({source.sql('duckdb')}) AS s({aliases})"
        statement = f'INSERT INTO "{table.schema}"."{table.name}" ({names}) {body}'
        if not self.database.capturing.of(table):
            self.cursor.execute(statement)
            return self._counted()
        rows = self._images(table, f"{statement} RETURNING {_names(table)}")
        return self._captured([(None, row) for row in rows], table)

    def _images(self, table: Table, statement: str) -> list[dict[str, Any]]:
        """Run what gives whole rows; each by column name."""
        names = [column.name for column in table.columns]
        return [dict(zip(names, row, strict=True)) for row in self.cursor.execute(statement).fetchall()]

    def _captured(self, pairs: list[tuple[Any, Any]], table: Table | None = None) -> Result:
        """Note changed rows, (before, after) each; outside a transaction they are committed at once."""
        capturing = self.database.capturing
        shared = next(capturing.seqvals)
        for before, after in pairs if table is not None else []:
            self.changes += capturing.row(table, before, after, shared=shared)
        if not self.session.transaction:
            changes, self.changes = self.changes, []
            capturing.commit(changes)
        return Result(count=len(pairs))

    def _extras(self, table: Table, given: set[str], rewriter: Rewriter) -> dict[str, str]:
        extra = {}
        for column in table.columns:
            if column.type.name == "timestamp":
                extra[column.name] = NEXT_ROWVERSION
            elif column.default is not None and column.name.lower() not in given:
                extra[column.name] = _stored(rewriter.expression(column.default.copy(), {}), column)
        return extra

    def _counted(self) -> Result:
        found = self.cursor.fetchone()
        return Result(count=int(found[0]) if found else 0)

    def _update(self, node: exp.Expression) -> Result:
        table = self._table(node.this)
        scope = {table.name.lower(): {c.name.lower(): c.type for c in table.columns}}
        rewriter = self._rewriter()
        sets = []
        for assignment in node.expressions:
            column = table.column(assignment.this.name)
            if column is None:
                raise Fault(207, f"Invalid column name '{assignment.this.name}'.")
            value = rewriter.expression(assignment.expression, scope)
            sets.append(f'"{column.name}" = {_stored(value, column)}')
        sets += [f'"{c.name}" = {NEXT_ROWVERSION}' for c in table.columns if c.type.name == "timestamp"]
        where = self._where(node, rewriter, scope)
        name = f'"{table.schema}"."{table.name}"'
        statement = f"UPDATE {name} SET {', '.join(sets)}{where}"
        if not self.database.capturing.of(table):
            self.cursor.execute(statement)
            return self._counted()
        numbers_ = [row[0] for row in self.cursor.execute(f"SELECT rowid FROM {name}{where} ORDER BY rowid").fetchall()]
        which = (
            f"SELECT {_names(table)} FROM {name} WHERE rowid IN ({', '.join(map(str, numbers_)) or -1}) ORDER BY rowid"
        )
        before = self._images(table, which)
        self.cursor.execute(statement)
        return self._captured(list(zip(before, self._images(table, which), strict=True)), table)

    def _where(self, node: exp.Expression, rewriter: Rewriter, scope: Any) -> str:
        where = node.args.get("where")
        return f" {rewriter.expression(where, scope).sql('duckdb')}" if where else ""

    def _delete(self, node: exp.Expression) -> Result:
        table = self._table(node.this)
        scope = {table.name.lower(): {c.name.lower(): c.type for c in table.columns}}
        statement = f'DELETE FROM "{table.schema}"."{table.name}"{self._where(node, self._rewriter(), scope)}'
        if not self.database.capturing.of(table):
            self.cursor.execute(statement)
            return self._counted()
        rows = self._images(table, f"{statement} RETURNING {_names(table)}")
        return self._captured([(row, None) for row in rows], table)

    def _truncate(self, node: exp.Expression) -> Result:
        table = self._table(node.expressions[0])
        if self.database.capturing.of(table):
            raise Fault(4711, f"Cannot truncate table '{table.name}' because it is enabled for Change Data Capture.")
        self.cursor.execute(f'DELETE FROM "{table.schema}"."{table.name}"')
        return Result()

    # --- declarations ----------------------------------------------------------------------------

    def _create(self, node: exp.Expression) -> Result:
        kind = str(node.args["kind"]).upper()
        if kind == "INDEX":
            return self._create_index(node)
        if kind == "VIEW":
            return self._create_view(node)
        target = node.this.this
        schema = target.db.lower() or "dbo"
        key = (schema, target.name.lower())
        if key in self.database.tables:
            raise Fault(2714, f"There is already an object named '{target.name}' in the database.")
        table = Table(next(numbers), schema, target.name, [])
        for part in node.this.expressions:
            _declare(table, part)
        self.cursor.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
        columns = []
        for column in table.columns:
            default = ""
            if column.is_identity:
                self.cursor.execute(f"CREATE SEQUENCE tds_identity_{table.number}")
                default = f" DEFAULT nextval('tds_identity_{table.number}')"
            columns.append(f'"{column.name}" {column.type.storage}{default}{"" if column.nullable else " NOT NULL"}')
        self.cursor.execute(f'CREATE TABLE "{schema}"."{table.name}" ({", ".join(columns)})')
        self.database.tables[key] = table
        return Result()

    def _create_index(self, node: exp.Expression) -> Result:
        index = node.this
        table = self._table(index.args["table"])
        parameters = index.args["params"]
        names = tuple(e.find(exp.Identifier).name for e in parameters.args["columns"])
        has_filter = parameters.args.get("where") is not None
        table.indexes.append(Index(index.name, names, is_unique=bool(node.args.get("unique")), has_filter=has_filter))
        return Result()

    def _create_view(self, node: exp.Expression) -> Result:
        text = node.expression.sql("tsql")
        copy, columns = self._translated(parse_one(_readable(text), read="tsql"))
        found = self.cursor.execute(f"DESCRIBE {copy.sql('duckdb')}").fetchall()
        declared_columns = [
            Column(name, kind or of_duckdb(row[1])) for (name, kind), row in zip(columns, found, strict=True)
        ]
        schema, name = node.this.db.lower() or "dbo", node.this.name
        self.database.tables[(schema, name.lower())] = Table(next(numbers), schema, name, declared_columns, view=text)
        return Result()

    def _drop(self, node: exp.Expression) -> Result:
        for target in node.args.get("tables") or [node.this]:
            key = (target.db.lower() or "dbo", target.name.lower())
            found = self.database.tables.pop(key, None)
            if found is None and not node.args.get("exists"):
                raise Fault(3701, f"Cannot drop the table '{target.name}', because it does not exist.")
            if found is not None and not found.view:
                self.cursor.execute(f'DROP TABLE "{found.schema}"."{found.name}"')
        return Result()

    def _alter(self, node: exp.Expression) -> Result:
        table = self._table(node.this)
        name = f'"{table.schema}"."{table.name}"'
        for action in node.args["actions"]:
            if isinstance(action, exp.ColumnDef):
                before = len(table.columns)
                _declare(table, action)
                column = table.columns[before]
                self.cursor.execute(f'ALTER TABLE {name} ADD COLUMN "{column.name}" {column.type.storage}')
            elif isinstance(action, exp.Drop):
                dropped = action.args["tables"][0].name
                self.cursor.execute(f'ALTER TABLE {name} DROP COLUMN "{dropped}"')
                table.columns = [c for c in table.columns if c.name.lower() != dropped.lower()]
            elif isinstance(action, exp.AlterColumn):
                known = table.column(action.this.name)
                assert known is not None
                known.type = declared(action.args["dtype"])
                self.cursor.execute(f'ALTER TABLE {name} ALTER COLUMN "{known.name}" TYPE {known.type.storage}')
            else:
                raise Fault(50000, f"The emulator does not know ALTER TABLE … {type(action).__name__}.")
        return Result()


def _names(table: Table) -> str:
    return ", ".join(f'"{column.name}"' for column in table.columns)


NEXT_ROWVERSION = "unhex(lpad(hex(nextval('tds_rowversion')), 16, '0'))"


def _stored(node: exp.Expression, column: Column) -> str:
    """Write a value in its column's stored form."""
    kind = type_of(node)
    if kind is not None and kind.name == column.type.name and kind.scale == column.type.scale:
        return node.sql("duckdb")
    if isinstance(node, exp.Neg) and column.type.name == "sql_variant":
        node.meta["type"] = type_of(node.this)
    return convert(node, column.type).sql("duckdb")


def _readable(text: str) -> str:
    """Spell what the parser would otherwise mix up."""
    return re.sub(r"(?i)(?<![\w\[.])real(?![\w\]])", "float(24)", text)


def _described(place: int, name: str, kind: Type) -> str:
    system, _ = type_ids_of(kind)
    word = f"'{kind.name}'" if system == 240 else "NULL"
    collation = f"'{kind.collation}'" if kind.collation else "NULL"
    quoted = name.replace("'", "''")
    return (
        f"('{quoted}', {place}, {system}, {word}, {kind.length}, {kind.precision}, {kind.scale}, true, {collation}, "
        f"NULL, NULL, false)"
    )


def _declare(table: Table, part: exp.Expression) -> None:
    """Take one line of a CREATE TABLE in: a column with its constraints, or a constraint of the table."""
    if isinstance(part, exp.ColumnDef):
        constraints = [c.kind for c in part.args.get("constraints") or []]
        collation = next((c.this.name for c in constraints if isinstance(c, exp.CollateColumnConstraint)), "")
        column = Column(part.name, declared(part.args["kind"], collation))
        for constraint in constraints:
            if isinstance(constraint, exp.NotNullColumnConstraint):
                column.nullable = bool(constraint.args.get("allow_null"))
            elif isinstance(constraint, exp.DefaultColumnConstraint):
                column.default = constraint.this
            elif isinstance(constraint, exp.GeneratedAsIdentityColumnConstraint):
                column.is_identity, column.nullable = True, False
        table.columns.append(column)
        if column.type.name == "timestamp":
            column.nullable = False
        for constraint in constraints:
            _constrain(table, constraint, (part.name,))
        return
    for constraint in part.expressions if isinstance(part, exp.Constraint) else [part]:
        names = tuple(i.name for i in constraint.find_all(exp.Identifier))
        clustered = next((e for e in part.expressions if isinstance(e, exp.ClusteredColumnConstraint)), None)
        if not names and clustered is not None:
            names = tuple(i.name for i in clustered.find_all(exp.Identifier))
        _constrain(table, constraint, names)


def _constrain(table: Table, constraint: exp.Expression, names: tuple[str, ...]) -> None:
    is_primary = isinstance(constraint, (exp.PrimaryKey, exp.PrimaryKeyColumnConstraint))
    if not is_primary and not isinstance(constraint, exp.UniqueColumnConstraint):
        return
    table.indexes.append(Index(f"ix_{len(table.indexes)}", names, is_primary=is_primary, is_unique=True))
    for name in names if is_primary else ():
        column = table.column(name)
        if column is not None:
            column.nullable = False


def _fault(error: Exception) -> Fault:
    """Return the server's number for what DuckDB refuses."""
    text = str(error)
    for pattern, number, words in REFUSALS:
        if re.search(pattern, text):
            return Fault(number, words)
    return Fault(50000, "Emulator: " + text.splitlines()[0])


REFUSALS = (
    (r"Unparsable", 241, "Conversion failed when converting date and/or time from character string."),
    (r"(?i)table with name", 208, "Invalid object name."),
    (r"(?i)referenced column|column .* not found|does not have a column", 207, "Invalid column name."),
    (r"(?i)syntax error|parser error", 102, "Incorrect syntax."),
    (r"(?i)conversion error|could not convert", 245, "Conversion failed when converting the varchar value."),
    (r"(?i)not null constraint", 515, "Cannot insert the value NULL into a column that does not allow nulls."),
    (r"(?i)transaction.*conflict", 3960, "Snapshot isolation transaction aborted due to update conflict."),
    (r"(?i)division by zero", 8134, "Divide by zero error encountered."),
)

Effect = Callable[[Executor, "re.Match[str]"], "Result | None"]
NAME = r"\[?([\w$ -]+?)\]?"
EFFECTS: tuple[tuple[str, Effect], ...] = (
    (r"SET\s+TRANSACTION\s+ISOLATION\s+LEVEL\s+([\w ]+)$", Executor._isolation),
    (r"SET\s+CONTEXT_INFO\s+0x([0-9a-f]*)$", Executor._context),
    (r"SET\s+SHOWPLAN_XML\s+ON$", Executor._no_plan),
    (r"SET\s+", Executor._nothing),
    (r"BEGIN\s+TRAN", Executor._begin),
    (r"(?:IF\s+@@TRANCOUNT\s*>\s*0\s+)?COMMIT", Executor._commit),
    (r"(?:IF\s+@@TRANCOUNT\s*>\s*0\s+)?ROLLBACK", Executor._rollback),
    (rf"USE\s+{NAME}$", Executor._use),
    (rf"CREATE\s+DATABASE\s+{NAME}$", Executor._create_database),
    (rf"DROP\s+DATABASE\s+(?:IF\s+EXISTS\s+)?{NAME}$", Executor._drop_database),
    (rf"ALTER\s+DATABASE\s+{NAME}\s+SET\s+(.*)$", Executor._alter_database),
    (r"WAITFOR\s+DELAY\s+N?'([\d:.]+)'$", Executor._wait),
    (rf"CREATE\s+SCHEMA\s+{NAME}$", Executor._schema),
    (r"DECLARE\s+@\w+\s+int$", Executor._nothing),
    (r"EXEC(?:UTE)?\s+(@\w+)\s*=\s*sp_getapplock\s+(.*)$", tds_cdc.lock),
    (r"EXEC(?:UTE)?\s+(?:sys\.)?sp_cdc_enable_db$", tds_cdc.enable_database),
    (r"EXEC(?:UTE)?\s+(?:sys\.)?sp_cdc_enable_table\s+(.*)$", tds_cdc.enable_table),
    (r"EXEC(?:UTE)?\s+(?:sys\.)?sp_cdc_cleanup_change_table\s+(.*)$", tds_cdc.clean_table),
    (r"EXEC(?:UTE)?\s+(?:sys\.)?sp_cdc_start_job", tds_cdc.start_job),
    (r"EXEC(?:UTE)?\s+(?:sys\.)?sp_cdc_stop_job", tds_cdc.stop_job),
    (r"UPDATE\s+STATISTICS|EXEC(?:UTE)?\s+sp_", Executor._nothing),
)
NODES: tuple[tuple[Any, Callable[[Executor, Any], Result]], ...] = (
    (exp.Query, Executor._query),
    (exp.Insert, Executor._insert),
    (exp.Update, Executor._update),
    (exp.Delete, Executor._delete),
    (exp.TruncateTable, Executor._truncate),
    (exp.Create, Executor._create),
    (exp.Drop, Executor._drop),
    (exp.Alter, Executor._alter),
)
