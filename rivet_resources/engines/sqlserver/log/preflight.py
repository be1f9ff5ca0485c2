"""What change capture at SQL Server needs, judged, each with the T-SQL that mends it (`cdc.md`, 6.1).

Belongs here: findings. Not here: what a drain does about them (`drain/drain.py`, `rivet doctor`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rivet_resources.contracts.change_log import Capture
from rivet_resources.contracts.evidence import Finding
from rivet_resources.engines.shared.names import split_name
from rivet_resources.engines.sqlserver.catalog import INDEXES
from rivet_resources.engines.sqlserver.log import sql
from rivet_resources.engines.sqlserver.log.connection import Asking, OutOfRange
from rivet_resources.engines.sqlserver.log.tables import ChangeTables, Instance, enabling, instances_of, read_survey
from rivet_resources.engines.sqlserver.sql import quote, quote_text
from rivet_resources.errors import LogSetup, SourceError, SourcePermission

STALLED_SECONDS = 600
LEAST_RETENTION_MINUTES = 1440

ENABLED = "SELECT d.name, d.is_cdc_enabled FROM sys.databases AS d WHERE d.database_id = DB_ID()"
# What the source table has and the log lacks, and what the log has no values of.
LACKING = """
SELECT c.name, 0 AS is_computed FROM sys.columns AS c
LEFT JOIN cdc.captured_columns AS k ON k.object_id = {number} AND k.column_name = c.name
JOIN cdc.change_tables AS t ON t.object_id = {number} AND t.source_object_id = c.object_id
WHERE k.column_name IS NULL
UNION ALL
SELECT k.column_name, 1 AS is_computed FROM cdc.captured_columns AS k
WHERE k.object_id = {number} AND k.is_computed = 1"""
KEY = "SELECT COUNT(*) AS n FROM cdc.index_columns AS i WHERE i.object_id = {number}"
SOURCE = "i.object_id = (SELECT t.source_object_id FROM cdc.change_tables AS t WHERE t.object_id = {number})"
ROLE = "SELECT COALESCE(t.role_name, N'') AS role_name FROM cdc.change_tables AS t WHERE t.object_id = {number}"
PROBE = "SELECT TOP (1) c.[__$operation] FROM {changes} AS c"
MAY_COPY = "SELECT HAS_PERMS_BY_NAME({name}, N'OBJECT', N'SELECT') AS may_read"


def findings(capture: Capture, asking: Asking) -> Iterator[Finding]:
    """Judge the database, then each table; what cannot be judged without an earlier one is left out."""
    name, is_enabled = asking.ask(ENABLED, doing="asking whether capture is enabled")[0]
    if not is_enabled:
        yield Finding("cdc", "fail", f"Change capture is not enabled in database {name}.", "EXEC sys.sp_cdc_enable_db;")
        return
    yield Finding("cdc", "ok", f"Change capture is enabled in database {name}.")
    try:
        look = read_survey(asking.ask(sql.SURVEY, doing="looking at the change tables"))
    except SourcePermission as error:
        yield Finding("grants", "fail", str(error), f"GRANT SELECT ON SCHEMA::cdc TO {_user(asking)};")
        return
    except LogSetup as error:
        yield Finding("capture instance", "fail", str(error), _enabling_all(capture))
        return
    yield _job(look)
    yield _retention(asking)
    for place, table in enumerate(capture.tables):
        yield from _table(_only(capture, place), table, look, asking)


# Two tables of which one is not captured would otherwise both be judged by that one.
def _only(capture: Capture, place: int) -> Capture:
    """Narrow a capture to one of its tables, so that each is judged by itself."""
    instances = capture.capture_instances[place : place + 1]
    return replace(capture, tables=(capture.tables[place],), capture_instances=instances)


def _enabling_all(capture: Capture) -> str:
    names = [split_name(table) for table in capture.tables]
    return " ".join(enabling(schema or "dbo", table) for schema, table in names)


def _user(asking: Asking) -> str:
    return quote(asking.conn_params.user or "<user>")


def _job(look: ChangeTables) -> Finding:
    start = "EXEC sys.sp_cdc_start_job @job_type = N'capture'; (and start SQL Server Agent)"
    if look.high is None:
        return Finding("capture job", "fail", "The capture job has never run; nothing is captured yet.", start)
    if look.age_seconds is not None and look.age_seconds > STALLED_SECONDS:
        old = look.age_seconds // 60
        return Finding(
            "capture job", "fail", f"The capture job is not running: its newest mark is {old} min old.", start
        )
    return Finding("capture job", "ok", "The capture job runs.")


def _retention(asking: Asking) -> Finding:
    change = "EXEC sys.sp_cdc_change_job @job_type = N'cleanup', @retention = 4320;"
    try:
        rows = asking.ask(sql.RETENTION, doing="asking for the clean-up job")
    except SourceError as error:
        if error.retry:
            raise
        rows = []
    if not rows or rows[0][0] is None:
        return Finding("retention", "ok", "The clean-up job is not visible to this user; its default is 3 days.")
    minutes = int(rows[0][0])
    if minutes < LEAST_RETENTION_MINUTES:
        return Finding("retention", "warn", f"The clean-up leaves changes {minutes} min only.", change)
    return Finding("retention", "ok", f"The clean-up leaves changes {minutes} min.")


# --- one table -----------------------------------------------------------------------------------


def _table(capture: Capture, table: str, look: ChangeTables, asking: Asking) -> Iterator[Finding]:
    schema, bare = split_name(table)
    try:
        instance = instances_of(capture, look.instances)[0]
    except SourcePermission as error:
        yield Finding(f"grants {table}", "fail", str(error), _granting(asking, capture, look))
        return
    except LogSetup as error:
        yield Finding(f"capture instance {table}", "fail", str(error), enabling(schema or "dbo", bare))
        return
    yield Finding(f"capture instance {table}", "ok", f"{table} is captured by {instance.name}.")
    yield _readable(instance, look, asking)
    yield from _columns(instance, asking)
    yield from _unique(capture, instance, asking)
    yield _copyable(instance, asking)


def _granting(asking: Asking, capture: Capture, look: ChangeTables) -> str:
    """Write the grants of a table whose instance shows nothing."""
    bare = split_name(capture.tables[0])[1].lower()
    number = next((i.number for i in look.instances if i.table.lower() == bare), 0)
    return _grants(asking, number, quote(bare))


def _grants(asking: Asking, number: int, source: str) -> str:
    user = _user(asking)
    rows = asking.ask(ROLE.format(number=number), doing="asking for the gating role")
    role = f" ALTER ROLE {quote(rows[0][0])} ADD MEMBER {user};" if rows and rows[0][0] else ""
    return f"GRANT SELECT ON SCHEMA::cdc TO {user};{role} GRANT SELECT ON {source} TO {user};"


def _readable(instance: Instance, look: ChangeTables, asking: Asking) -> Finding:
    """Read one change at the log's end, as a drain would."""
    at = max(look.high or instance.low, instance.low)
    name = f"grants {instance.label}"
    if look.high is None or instance.low > look.high:
        return Finding(name, "ok", f"{instance.label} was captured a moment ago; nothing to read yet.")
    try:
        asking.ask(PROBE.format(changes=sql.changes_of(instance.name, at, at)), doing="reading one change")
    except SourcePermission as error:
        return Finding(name, "fail", str(error), _grants(asking, instance.number, _source(instance)))
    except OutOfRange:
        # The clean-up came between; the function itself may be used.
        return Finding(name, "ok", f"The changes of {instance.label} can be read.")
    return Finding(name, "ok", f"The changes of {instance.label} can be read.")


def _source(instance: Instance) -> str:
    return f"{quote(instance.schema or 'dbo')}.{quote(instance.table or instance.name)}"


def _columns(instance: Instance, asking: Asking) -> Iterator[Finding]:
    rows = asking.ask(LACKING.format(number=instance.number), doing="comparing the captured columns")
    added = [row[0] for row in rows if not row[1]]
    computed = [row[0] for row in rows if row[1]]
    if added:
        second = enabling(instance.schema, instance.table).replace(
            quote_text(f"{instance.schema}_{instance.table}"), quote_text(f"{instance.name}_2")
        )
        yield Finding(
            f"columns {instance.label}",
            "warn",
            f"{instance.name} does not capture {', '.join(added)}: drain it to its end, then switch to a second one.",
            second,
        )
    if computed:
        yield Finding(
            f"computed {instance.label}",
            "warn",
            f"The log has no values of computed columns, so changes lack {', '.join(computed)} of {instance.label}.",
        )
    keyed = asking.ask(KEY.format(number=instance.number), doing="asking for the key of the captured table")
    if not keyed[0][0]:
        yield Finding(
            f"key {instance.label}",
            "warn",
            f"{instance.name} was made without a unique index: a changed key shows as a plain update.",
            f"ALTER TABLE {_source(instance)} ADD PRIMARY KEY (<columns>); then capture it anew.",
        )


def _unique(capture: Capture, instance: Instance, asking: Asking) -> Iterator[Finding]:
    """Judge a `key:` that nothing keeps unique: the copy overlaps with the log, and hides which keys were in use."""
    if not capture.is_applied or not capture.key:
        return
    which = SOURCE.format(number=instance.number)
    indexes: dict[int, list[bool]] = {}
    for row in asking.ask(INDEXES.format(which=which), doing="reading the unique indexes"):
        if row[3]:
            indexes.setdefault(row[1], []).append(row[5] in capture.key and not row[6])
    if not any(all(columns) for columns in indexes.values()):
        yield Finding(
            f"key {instance.label}",
            "fail",
            f"Nothing keeps {', '.join(capture.key)} of {instance.label} unique, by which its rows are told apart here "
            "(`key`): of two rows that share a key for a moment, one would be lost.",
            "name all columns of a unique index without NULLs, such as the primary key, in `key:`",
        )


def _copyable(instance: Instance, asking: Asking) -> Finding:
    source = _source(instance)
    rows = asking.ask(MAY_COPY.format(name=quote_text(source)), doing="asking for the right to copy the table")
    if rows and rows[0][0]:
        return Finding(f"copy {instance.label}", "ok", f"{instance.label} itself can be read, for a first copy.")
    return Finding(
        f"copy {instance.label}",
        "warn",
        f"{instance.label} itself cannot be read, so `initial: snapshot` cannot copy it.",
        f"GRANT SELECT ON {source} TO {_user(asking)};",
    )
