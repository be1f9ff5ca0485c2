"""The catalog of the SQL Server emulator: what DDL declared, and the views of `sys` that show it.

Belongs here: tables, columns, indexes, sessions as rows. Not here: running SQL (sql.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.emulators.tds.types import CATALOG, Type

Row = tuple[Any, ...]


@dataclass
class Column:
    """One declared column."""

    name: str
    type: Type
    nullable: bool = True
    default: Any = None  # a sqlglot expression
    is_identity: bool = False


@dataclass
class Index:
    """One index, primary keys included."""

    name: str
    columns: tuple[str, ...]
    is_primary: bool = False
    is_unique: bool = False
    has_filter: bool = False


@dataclass
class Table:
    """One table, or view when `view` holds its text."""

    number: int
    schema: str
    name: str
    columns: list[Column]
    indexes: list[Index] = field(default_factory=list)
    view: str = ""

    def column(self, name: str) -> Column | None:
        """Find a column; names do not mind case."""
        return next((c for c in self.columns if c.name.lower() == name.lower()), None)


@dataclass
class Session:
    """One connection, as sys.dm_exec_sessions shows it."""

    number: int
    login: str
    context: bytes = b""
    transaction: int = 0
    began_at: str = ""
    first_rowversion: int = 0
    is_protected: bool = False  # its line is


numbers = itertools.count(1000)

# View → columns with their DuckDB types; filled by the functions below.
VIEWS: dict[str, str] = {
    "schemas": "name VARCHAR, schema_id INTEGER",
    "objects": "name VARCHAR, object_id INTEGER, schema_id INTEGER, type VARCHAR, is_ms_shipped BOOLEAN",
    "tables": "name VARCHAR, object_id INTEGER, schema_id INTEGER, type VARCHAR",
    "types": "name VARCHAR, system_type_id INTEGER, user_type_id INTEGER",
    "columns": "object_id INTEGER, name VARCHAR, column_id INTEGER, system_type_id INTEGER, user_type_id INTEGER, "
    "max_length INTEGER, precision INTEGER, scale INTEGER, is_nullable BOOLEAN, collation_name VARCHAR, "
    "is_identity BOOLEAN",
    "default_constraints": "parent_object_id INTEGER, parent_column_id INTEGER, definition VARCHAR",
    "extended_properties": "class INTEGER, major_id INTEGER, minor_id INTEGER, name VARCHAR, value VARCHAR",
    "indexes": "object_id INTEGER, index_id INTEGER, name VARCHAR, type INTEGER, is_primary_key BOOLEAN, "
    "is_unique BOOLEAN, has_filter BOOLEAN, is_disabled BOOLEAN, is_hypothetical BOOLEAN",
    "index_columns": "object_id INTEGER, index_id INTEGER, column_id INTEGER, key_ordinal INTEGER, "
    "is_included_column BOOLEAN",
    "dm_db_partition_stats": "object_id INTEGER, index_id INTEGER, row_count BIGINT, used_page_count BIGINT",
    "databases": "name VARCHAR, database_id INTEGER, snapshot_isolation_state INTEGER, is_cdc_enabled INTEGER, "
    "service_broker_guid VARCHAR",
    "database_recovery_status": "database_id INTEGER, database_guid VARCHAR",
    "dm_tran_active_transactions": "transaction_id BIGINT, transaction_type INTEGER, transaction_begin_time VARCHAR",
    "dm_tran_session_transactions": "transaction_id BIGINT, session_id INTEGER",
    "dm_exec_sessions": "session_id INTEGER, login_name VARCHAR, context_info BLOB, is_user_process INTEGER",
    "dm_exec_connections": "session_id INTEGER, encrypt_option VARCHAR",
}


def type_ids(kind: Type) -> tuple[int, int]:
    """Return system_type_id and user_type_id."""
    system, user, *_ = CATALOG[kind.name]
    return system, user


def rows(
    tables: Iterable[Table], sessions: Iterable[Session], *, counts: dict[int, int], database: Row
) -> dict[str, list[Row]]:
    """Return the rows of every view."""
    tables, sessions = list(tables), list(sessions)
    schemas = {name: i for i, name in enumerate(["dbo", "sys", *sorted({t.schema for t in tables} - {"dbo"})], 1)}
    found: dict[str, list[Row]] = {name: [] for name in VIEWS}
    found["schemas"] = [(name, number) for name, number in schemas.items()]
    found["types"] = [(name, system, user) for name, (system, user, *_) in CATALOG.items()]
    found["databases"] = [database]
    for table in tables:
        kind = "V" if table.view else "U"
        found["objects"].append((table.name, table.number, schemas[table.schema], kind, False))
        if not table.view:
            found["tables"].append((table.name, table.number, schemas[table.schema], kind))
            found["dm_db_partition_stats"].append((table.number, 0, counts.get(table.number, 0), 1))
        _describe(table, found)
    for session in sessions:
        found["dm_exec_sessions"].append((session.number, session.login, session.context or None, 1))
        found["dm_exec_connections"].append((session.number, "TRUE" if session.is_protected else "FALSE"))
        if session.transaction:
            found["dm_tran_active_transactions"].append((session.transaction, 1, session.began_at))
            found["dm_tran_session_transactions"].append((session.transaction, session.number))
    return found


def _describe(table: Table, found: dict[str, list[Row]]) -> None:
    for place, column in enumerate(table.columns, 1):
        kind = column.type
        system, user = type_ids(kind)
        found["columns"].append(
            (table.number, column.name, place, system, user, kind.length, kind.precision, kind.scale, column.nullable,
             kind.collation or None, column.is_identity)
        )  # fmt: skip
        if column.default is not None:
            found["default_constraints"].append((table.number, place, f"({column.default.sql('tsql')})"))
    places = {column.name.lower(): place for place, column in enumerate(table.columns, 1)}
    for number, index in enumerate(table.indexes, 1):
        found["indexes"].append(
            (table.number, number, index.name, 1 if index.is_primary else 2, index.is_primary, index.is_unique,
             index.has_filter, False, False)
        )  # fmt: skip
        for ordinal, name in enumerate(index.columns, 1):
            found["index_columns"].append((table.number, number, places[name.lower()], ordinal, False))
