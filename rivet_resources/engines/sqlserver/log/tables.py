"""The captured tables of a drain at SQL Server: which capture instance each has, and what its log's columns become.

Belongs here: the survey's rows read, instances found by source table, columns typed as a batch read types them. Not
here: rows of changes (rows.py), statements (sql.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rivet_resources.contracts.change_log import Capture
from rivet_resources.contracts.source import TypeRules
from rivet_resources.contracts.types import Column
from rivet_resources.engines.shared.names import split_name
from rivet_resources.engines.sqlserver.columns import Described, column_of
from rivet_resources.engines.sqlserver.sql import quote_text
from rivet_resources.errors import LogSetup, SourcePermission, UnknownColumn

Rows = list[tuple[Any, ...]]


@dataclass(frozen=True)
class Instance:
    """One capture instance, as the survey shows it."""

    name: str
    schema: str  # of the source table; '' where the user may not see it
    table: str
    number: int  # object_id of its change table
    low: int  # least LSN it still has; 0: not permitted

    @property
    def label(self) -> str:
        """Name the source table for people."""
        return f"{self.schema}.{self.table}" if self.schema else self.name


@dataclass(frozen=True)
class ChangeTables:
    """What one survey tells."""

    instances: tuple[Instance, ...]  # of the database, all
    high: int | None  # newest LSN of the log; None: the capture job has not run yet
    guid: str
    age_seconds: int | None  # of the newest transaction the log knows, markers included
    offset_minutes: int  # of the server's clock from UTC


@dataclass(frozen=True)
class CapturedTable:
    """One table of the drain with its capture instance and the columns that its log carries."""

    table: str  # as configured
    instance: Instance
    columns: tuple[Column, ...]
    ordinals: Mapping[str, int]  # of each column in the update mask, from 1
    key: tuple[str, ...]  # of the unique index the instance was made with; () without one


def read_survey(rows: Rows) -> ChangeTables:
    """Read the survey's rows.

    Raises:
        LogSetup: no table of the database is captured.
    """
    if not rows:
        raise LogSetup(
            "No table of this database is captured. Let its owner run, for each table: EXEC sys.sp_cdc_enable_table "
            "@source_schema = N'dbo', @source_name = N'<table>', @role_name = NULL;"
        )
    first = rows[0]
    instances = tuple(
        Instance(row[0], row[1] or "", row[2] or "", int(row[3]), int(row[5], 16) if row[5] else 0) for row in rows
    )
    # Two readings of the clock may lie on both sides of a minute; offsets are whole quarters of an hour.
    offset = round(int(first[9] or 0) / 15) * 15
    return ChangeTables(
        instances=instances,
        # All zero means that nothing was captured yet, as NULL does.
        high=int(first[6], 16) if first[6] and int(first[6], 16) else None,
        guid=first[7] or "",
        age_seconds=None if first[8] is None else int(first[8]),
        offset_minutes=offset,
    )


def instances_of(capture: Capture, known: Sequence[Instance]) -> tuple[Instance, ...]:
    """Find the capture instance of each table of the drain.

    Raises:
        LogSetup: there is none, or there are two and nobody said which.
        SourcePermission: the user may not read it.
    """
    named = dict(zip(capture.tables, capture.capture_instances, strict=False))
    found = tuple(_instance(table, named.get(table, ""), known) for table in capture.tables)
    for instance in found:
        # All zero: no such instance, or not permitted (`cdc.md`, 6.2); that it is there was seen above.
        if not instance.low:
            raise SourcePermission(
                f"Capture instance {instance.name} shows this user no changes. Its gating role is in "
                f"cdc.change_tables.role_name: ALTER ROLE <role> ADD MEMBER <user>; and GRANT SELECT on the captured "
                f"columns of {instance.label}."
            )
    return found


def _instance(table: str, name: str, known: Sequence[Instance]) -> Instance:
    schema, bare = split_name(table)
    mine = [i for i in known if i.table.lower() == bare.lower() and i.schema.lower() == (schema or i.schema).lower()]
    # As the server resolves a bare name.
    if len({i.schema for i in mine}) > 1:
        mine = [i for i in mine if i.schema == "dbo"] or mine
    if name:
        chosen = [i for i in known if i.name == name]
        if not chosen:
            there = ", ".join(i.name for i in mine) or "none"
            raise LogSetup(
                f"There is no capture instance {name} in this database; {table} has {there}. "
                f"Fix `cdc: {{capture_instance: …}}`."
            )
        if chosen[0].table and chosen[0] not in mine:
            raise LogSetup(
                f"Capture instance {name} captures {chosen[0].label}, and the export's table is {table}. "
                f"Fix `cdc: {{capture_instance: …}}`."
            )
        return chosen[0]
    if not mine:
        raise LogSetup(
            f"Table {table} is not captured. Let the database's owner run: {enabling(schema or 'dbo', bare)}"
        )
    if len(mine) > 1:
        names = " and ".join(i.name for i in mine)
        raise LogSetup(
            f"Table {table} has two capture instances, {names}. Say which with `cdc: {{capture_instance: …}}`: drain "
            f"the older to its end, then switch."
        )
    return mine[0]


def enabling(schema: str, table: str) -> str:
    """Write what captures a table."""
    return (
        f"EXEC sys.sp_cdc_enable_table @source_schema = {quote_text(schema)}, @source_name = {quote_text(table)}, "
        f"@role_name = NULL, @capture_instance = {quote_text(f'{schema}_{table}')}, @supports_net_changes = 0;"
    )


# --- columns -------------------------------------------------------------------------------------


def type_captured(capture: Capture, instances: Sequence[Instance], rows: Rows) -> tuple[CapturedTable, ...]:
    """Type the columns that each log carries. Computed ones are left out: the log has NULL for all of them.

    Raises:
        UnknownColumn: `columns:` names one that no table of the drain has.
        UnsupportedColumn, ConfigError
    """
    found = tuple(
        _capture_table(table, instance, [row for row in rows if row[0] == instance.number], capture)
        for table, instance in zip(capture.tables, instances, strict=True)
    )
    known = {name for each in found for c in each.columns for name in _names(each.instance, c.name)}
    for key in capture.rules.columns:
        if key not in known:
            names = [c.name for each in found for c in each.columns]
            raise UnknownColumn(key, relation=", ".join(i.label for i in instances), known=names, key="columns")
    return found


def _names(instance: Instance, column: str) -> tuple[str, ...]:
    return column, f"{instance.table}.{column}", f"{instance.label}.{column}"


def _capture_table(table: str, instance: Instance, rows: Rows, capture: Capture) -> CapturedTable:
    # Computed columns: the log has NULL for all of them.
    rows = [row for row in rows if not row[3]]
    columns = tuple(_column(row, capture.rules, instance.label) for row in rows)
    keyed = [name for _, name in sorted((row[10], row[1]) for row in rows if row[10])]
    # Those who go by other columns need the old row gone when these change, too.
    keyed += [row[1] for row in rows if row[1] in capture.key and row[1] not in keyed]
    return CapturedTable(
        table=table,
        instance=instance,
        columns=columns,
        ordinals={row[1]: int(row[2]) for row in rows},
        key=tuple(keyed),
    )


def _column(row: tuple[Any, ...], rules: TypeRules, relation: str) -> Column:
    """Type one column; any cell of a log may be missing, also of columns that are NOT NULL in their table."""
    # Its change table calls it binary(8).
    is_rowversion = row[9] == "timestamp"
    described = Described(
        name=row[1],
        base="timestamp" if is_rowversion else row[4],
        length=row[5],
        precision=row[6],
        scale=row[7],
        collation=row[8],
    )
    return replace(column_of(described, rules=rules, relation=relation), nullable=True)
