"""Change data capture of the SQL Server emulator: change tables filled at commit, a capture job, a clean-up.

Belongs here: the schema `cdc` of one database, its procedures and functions, what a test does to the job. Not here:
statements in general (sql.py). What the real job and clean-up do and when is not emulated: here a commit is in the
change tables at once, unless the job is stopped (`sp_cdc_stop_job`), and then when it starts again.

Source of shapes: Microsoft, "cdc.<capture_instance>_CT", "cdc.lsn_time_mapping", "cdc.change_tables".
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlglot import exp, parse_one

from tests.emulators.tds import times as tds_times
from tests.emulators.tds.catalog import Column, Table, numbers
from tests.emulators.tds.expressions import Fault
from tests.emulators.tds.types import Type, named

if TYPE_CHECKING:
    from tests.emulators.tds.database import Database
    from tests.emulators.tds.sql import Executor

FUNCTION = re.compile(r"fn_cdc_get_all_changes_(.+)", re.IGNORECASE)
STEP = 0x1_0001  # between two commits: room for what a real log has there
FIRST = 0x0000002A_00000100_0001
LARGE = frozenset({"text", "ntext", "image"})
LSN, LONG_BYTES = Type("binary", 10), Type("varbinary", 128)
INT, NAME, CLOCK = named("int"), named("sysname"), named("datetime")
# Tables of the schema; `cdc_jobs` is msdb's.
TABLES: dict[str, tuple[tuple[str, Type], ...]] = {
    "change_tables": (("object_id", INT), ("source_object_id", INT), ("capture_instance", NAME), ("start_lsn", LSN),
                      ("role_name", NAME)),
    "captured_columns": (("object_id", INT), ("column_name", NAME), ("column_id", INT), ("column_type", NAME),
                         ("column_ordinal", INT), ("is_computed", INT)),
    "index_columns": (("object_id", INT), ("column_name", NAME), ("index_ordinal", INT), ("column_id", INT)),
    "lsn_time_mapping": (("start_lsn", LSN), ("tran_begin_time", CLOCK), ("tran_end_time", CLOCK),
                         ("tran_id", LONG_BYTES), ("tran_begin_lsn", LSN)),
    "ddl_history": (("object_id", INT), ("ddl_command", named("nvarchar", "max")), ("ddl_lsn", LSN)),
    "cdc_jobs": (("database_id", INT), ("job_type", NAME), ("retention", named("bigint"))),
}  # fmt: skip


def lsn(number: int) -> bytes:
    """Return a log position's bytes."""
    return number.to_bytes(10, "big")


def table_of(schema: str, name: str, columns: Sequence[tuple[str, Type]]) -> Table:
    """Declare a table of the emulator's own."""
    return Table(next(numbers), schema, name, [Column(column, kind) for column, kind in columns])


@dataclass(frozen=True)
class Instance:
    """One capture instance: whose changes go into which table."""

    name: str
    source: Table
    changes: Table
    columns: tuple[str, ...]  # as captured
    key: tuple[str, ...]


@dataclass(frozen=True)
class Change:
    """One row to be, without its commit."""

    instance: Instance
    operation: int
    seqval: int
    mask: bytes
    cells: tuple[Any, ...]


@dataclass
class Capturing:
    """The capture of one database."""

    database: Database
    is_enabled: bool = False
    is_running: bool = True
    splits_key_updates: bool = True  # a changed key is written as 1 and 2, else as 3 and 4
    shares_seqval: bool = False  # all rows of a statement have one seqval
    clean_when: str = ""  # after the first statement that matches, the clean-up takes everything
    instances: dict[str, Instance] = field(default_factory=dict)
    locks: dict[str, int] = field(default_factory=dict)  # of sp_getapplock: name → session
    commits: Any = field(default_factory=lambda: itertools.count(FIRST, STEP))
    seqvals: Any = field(default_factory=lambda: itertools.count(1))
    waiting: list[list[Change]] = field(default_factory=list)

    # --- setting up ------------------------------------------------------------------------------

    def enable(self) -> None:
        """Make the schema `cdc`."""
        if self.is_enabled:
            return
        self.is_enabled = True
        cursor = self.database.root.cursor()
        cursor.execute("CREATE SCHEMA IF NOT EXISTS cdc")
        for name, columns in TABLES.items():
            self._create(cursor, table_of("cdc", name, columns))
        cursor.execute("INSERT INTO cdc.cdc_jobs VALUES (5, 'cleanup', 4320), (5, 'capture', NULL)")

    def _create(self, cursor: Any, table: Table) -> None:
        columns = ", ".join(f'"{column.name}" {column.type.storage}' for column in table.columns)
        cursor.execute(f'CREATE TABLE "{table.schema}"."{table.name}" ({columns})')
        self.database.tables[(table.schema, table.name.lower())] = table

    def capture(self, schema: str, name: str, instance: str, role: str, wanted: str) -> None:
        """Begin to capture a table."""
        if not self.is_enabled:
            raise Fault(22901, "The database is not enabled for Change Data Capture.")
        source = self.database.tables.get((schema.lower(), name.lower()))
        if source is None:
            raise Fault(22931, f"Source table '{schema}.{name}' does not exist in the current database.")
        instance = instance or f"{schema}_{name}"
        names = [n.strip(" []") for n in wanted.split(",")] if wanted else [c.name for c in source.columns]
        captured = [c for c in source.columns if c.name in names]
        head = [("__$start_lsn", LSN), ("__$end_lsn", LSN), ("__$seqval", LSN), ("__$operation", INT),
                ("__$update_mask", LONG_BYTES)]  # fmt: skip
        kinds = [(c.name, Type("binary", 8) if c.type.name == "timestamp" else c.type) for c in captured]
        changes = table_of("cdc", f"{instance}_CT", [*head, *kinds])
        cursor = self.database.root.cursor()
        self._create(cursor, changes)
        key = next((i.columns for i in source.indexes if i.is_primary), ())
        made = Instance(instance, source, changes, tuple(c.name for c in captured), key)
        self.instances[instance] = made
        begins = lsn(next(self.commits))
        cursor.execute(
            "INSERT INTO cdc.change_tables VALUES (?, ?, ?, ?, ?)",
            [changes.number, source.number, instance, begins, role or None],
        )
        for place, column in enumerate(captured, 1):
            cursor.execute(
                "INSERT INTO cdc.captured_columns VALUES (?, ?, ?, ?, ?, 0)",
                [changes.number, column.name, place, column.type.name, place],
            )
        for place, column_name in enumerate(key, 1):
            cursor.execute("INSERT INTO cdc.index_columns VALUES (?, ?, ?, 0)", [changes.number, column_name, place])
        if self.is_running:
            self.mark()

    # --- writing ---------------------------------------------------------------------------------

    def of(self, table: Table) -> list[Instance]:
        """Return the instances that capture a table."""
        return [instance for instance in self.instances.values() if instance.source is table]

    def row(self, table: Table, before: Any, after: Any, *, shared: int | None = None) -> list[Change]:
        """Return what one changed row writes; images are by column name, None where there is none."""
        seqval = shared if shared is not None and self.shares_seqval else next(self.seqvals)
        return [change for instance in self.of(table) for change in self._halves(instance, before, after, seqval)]

    def _halves(self, instance: Instance, before: Any, after: Any, seqval: int) -> list[Change]:
        whole = _mask(instance, instance.columns)
        if before is None or after is None:
            image, operation = (after, 2) if before is None else (before, 1)
            return [Change(instance, operation, seqval, whole, _image(instance, image, operation))]
        changed = [name for name in instance.columns if before[name] != after[name]]
        if self.splits_key_updates and set(changed) & set(instance.key):
            return [*self._halves(instance, before, None, seqval), *self._halves(instance, None, after, seqval)]
        mask = _mask(instance, changed)
        old = _image(instance, before, 3, changed=changed)
        return [Change(instance, 3, seqval, mask, old), Change(instance, 4, seqval, mask, _image(instance, after, 4))]

    def commit(self, changes: list[Change]) -> None:
        """Take a transaction in, or keep it until the job runs."""
        if changes:
            self.waiting.append(changes)
            if self.is_running:
                self.scan()

    def scan(self) -> None:
        """Do what the capture job does: write what waits."""
        waiting, self.waiting = self.waiting, []
        for changes in waiting:
            start = lsn(next(self.commits))
            cursor = self.database.root.cursor()
            for change in changes:
                names = change.instance.changes.columns
                marks = ", ".join("?" * len(names))
                cursor.execute(
                    f'INSERT INTO cdc."{change.instance.changes.name}" VALUES ({marks})',
                    [start, None, lsn(change.seqval), change.operation, change.mask, *change.cells],
                )
            self._map(start, lsn(int.from_bytes(start, "big"))[-6:])

    def mark(self) -> None:
        """Write the marker of an idle job."""
        self._map(lsn(next(self.commits)), b"\0")

    def _map(self, start: bytes, transaction: bytes) -> None:
        now = tds_times.stored(tds_times.now(), "datetime", 3)
        self.database.root.cursor().execute(
            "INSERT INTO cdc.lsn_time_mapping VALUES (?, ?, ?, ?, ?)", [start, now, now, transaction, start]
        )

    # --- cleaning --------------------------------------------------------------------------------

    def clean(self, instance: str, low: bytes) -> None:
        """Forget what lies below a position."""
        cursor = self.database.root.cursor()
        cursor.execute("UPDATE cdc.change_tables SET start_lsn = ? WHERE capture_instance = ?", [low, instance])
        cursor.execute(f'DELETE FROM cdc."{instance}_CT" WHERE "__$start_lsn" < ?', [low])

    def clean_all(self) -> None:
        """Forget everything up to now."""
        self.mark()
        newest = self.newest()
        for name in self.instances:
            self.clean(name, newest)

    def newest(self) -> bytes:
        """Return the newest position of the log."""
        found = self.database.root.cursor().execute("SELECT max(start_lsn) FROM cdc.lsn_time_mapping").fetchone()
        return bytes(found[0]) if found and found[0] is not None else b""

    def ran(self, statement: str) -> None:
        """Let the clean-up come right behind a statement, where a test asked for that."""
        if self.clean_when and re.search(self.clean_when, statement, re.DOTALL):
            self.clean_when = ""
            self.clean_all()

    # --- reading ---------------------------------------------------------------------------------

    def function(self, source: exp.Table) -> tuple[exp.Expression, dict[str, Type | None]]:
        """Answer cdc.fn_cdc_get_all_changes_… as a subquery over the change table."""
        match = FUNCTION.fullmatch(source.this.name)
        instance = self.instances.get(match[1]) if match else None
        if instance is None:
            raise Fault(208, f"Invalid object name 'cdc.{source.this.name}'.")
        low, high = (bytes.fromhex(e.name) for e in source.this.expressions[:2])
        lows = self.database.root.cursor().execute(
            "SELECT start_lsn FROM cdc.change_tables WHERE capture_instance = ?", [instance.name]
        ).fetchone()  # fmt: skip
        if not bytes(lows[0]) <= low <= high <= self.newest():
            words = "An insufficient number of arguments were supplied for the procedure or function"
            raise Fault(313, f"{words} cdc.fn_cdc_get_all_changes_ ... .")
        table = instance.changes
        names = ", ".join(f'"{column.name}"' for column in table.columns)
        body = (
            f'SELECT {names} FROM cdc."{table.name}" WHERE "__$start_lsn" BETWEEN unhex(\'{low.hex()}\') '
            f"AND unhex('{high.hex()}')"
        )
        alias = exp.TableAlias(this=exp.to_identifier(source.alias or "c", quoted=True))
        columns: dict[str, Type | None] = {column.name.lower(): column.type for column in table.columns}
        return exp.Subquery(this=parse_one(body, read="duckdb"), alias=alias), columns


def _mask(instance: Instance, changed: Sequence[str]) -> bytes:
    bits = sum(1 << place for place, name in enumerate(instance.columns) if name in changed)
    return bits.to_bytes((len(instance.columns) + 7) // 8, "big")


def _image(instance: Instance, image: Any, operation: int, *, changed: Sequence[str] = ()) -> tuple[Any, ...]:
    """Return a row as a change table has it: large cells are missing where the documentation says so."""
    cells = []
    for name in instance.columns:
        column = instance.source.column(name)
        assert column is not None
        is_large = column.type.name in LARGE
        is_wide = column.type.length == -1
        gone = (is_large and operation in (1, 3)) or (is_wide and operation == 3 and name not in changed)
        cells.append(None if gone else image[name])
    return tuple(cells)


# --- procedures ----------------------------------------------------------------------------------


def arguments(text: str) -> dict[str, str]:
    """Read `@name = value, …` of an EXEC."""
    pattern = r"@(\w+)\s*=\s*(?:N?'((?:[^']|'')*)'|(0x[0-9a-fA-F]+|NULL|-?\d+))"
    return {name.lower(): quoted.replace("''", "'") if quoted or not bare else bare.replace("NULL", "")
            for name, quoted, bare in re.findall(pattern, text)}  # fmt: skip


def enable_database(executor: Executor, match: re.Match[str]) -> None:
    """Run sys.sp_cdc_enable_db."""
    executor.database.capturing.enable()


def enable_table(executor: Executor, match: re.Match[str]) -> None:
    """Run sys.sp_cdc_enable_table."""
    given = arguments(match[1])
    executor.database.capturing.capture(
        given["source_schema"], given["source_name"], given.get("capture_instance", ""), given.get("role_name", ""),
        given.get("captured_column_list", ""),
    )  # fmt: skip


def clean_table(executor: Executor, match: re.Match[str]) -> None:
    """Run sys.sp_cdc_cleanup_change_table."""
    given = arguments(match[1])
    executor.database.capturing.clean(given["capture_instance"], bytes.fromhex(given["low_water_mark"][2:]))


def start_job(executor: Executor, match: re.Match[str]) -> None:
    """Run sys.sp_cdc_start_job: what waits is scanned, and an idle log gets its marker."""
    capturing = executor.database.capturing
    capturing.is_running = True
    capturing.scan()
    capturing.mark()


def stop_job(executor: Executor, match: re.Match[str]) -> None:
    """Run sys.sp_cdc_stop_job."""
    executor.database.capturing.is_running = False


def lock(executor: Executor, match: re.Match[str]) -> None:
    """Run sp_getapplock for the session, without waiting."""
    locks, resource = executor.database.capturing.locks, arguments(match[2])["resource"]
    is_taken = locks.get(resource, executor.session.number) != executor.session.number
    if not is_taken:
        locks[resource] = executor.session.number
    executor.variables[match[1].upper()] = -1 if is_taken else 0


def command(databases: dict[str, Database], asked: dict[str, Any]) -> None:
    """Do what a test asks of a database's capture: set one of its switches."""
    capturing = databases[asked["database"].lower()].capturing
    for name, value in asked["set"].items():
        assert hasattr(capturing, name), name
        setattr(capturing, name, value)
