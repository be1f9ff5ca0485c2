"""Databases of the SQL Server emulator: an in-process DuckDB each, the functions T-SQL needs there, and the catalog.

Belongs here: what lives as long as the server. Not here: one connection's statements (sql.py).
"""

from __future__ import annotations

import itertools
import struct
import threading
from typing import Any
from uuid import uuid4

import duckdb

from tests.emulators.tds import times
from tests.emulators.tds.catalog import VIEWS, Session, Table, rows
from tests.emulators.tds.cdc import Capturing
from tests.emulators.tds.types import CATALOG, stored_uuid, uuid_of

BASES = {system: name for name, (system, user, *_) in CATALOG.items() if system == user}
session_numbers = itertools.count(51)
transactions = itertools.count(10_000)


def _binary(content: bytes, size: int, is_fixed: int) -> bytes:
    return (content + b"\0" * (size - len(content)) if is_fixed else content)[:size]


def _wkb(text: str) -> bytes:
    """Return the WKB of a point, which is all that tests store."""
    x, y = text[text.index("(") + 1 : text.index(")")].split()
    return b"\x01" + struct.pack("<Idd", 1, float(x), float(y))


def _float(value: float, style: int) -> str:
    return repr(float(value)) if style == 3 else f"{value:g}"


def _may_read(login: str, name: str) -> int:
    return int(login == "sa" or "secret" not in name)


FUNCTIONS: tuple[tuple[str, Any, list[str], str], ...] = (
    ("tds_time", times.stored, ["VARCHAR", "VARCHAR", "INTEGER", "VARCHAR"], "VARCHAR"),
    ("tds_show", times.shown, ["VARCHAR", "VARCHAR", "INTEGER", "INTEGER"], "VARCHAR"),
    ("tds_part", times.part, ["VARCHAR", "VARCHAR", "VARCHAR"], "INTEGER"),
    ("tds_add", times.added, ["VARCHAR", "BIGINT", "VARCHAR"], "VARCHAR"),
    ("tds_between", times.between, ["VARCHAR", "VARCHAR", "VARCHAR"], "BIGINT"),
    ("tds_zone", lambda text, zone: times.in_zone(text, zone), ["VARCHAR", "VARCHAR"], "VARCHAR"),
    ("tds_utc", lambda text: text.rpartition(" ")[0] + " +0", ["VARCHAR"], "VARCHAR"),
    ("tds_uuid", stored_uuid, ["VARCHAR"], "VARCHAR"),
    ("tds_uuid_text", lambda stored: str(uuid_of(stored)).upper(), ["VARCHAR"], "VARCHAR"),
    ("tds_variant", lambda base, text: f"{base}:{text}", ["VARCHAR", "VARCHAR"], "VARCHAR"),
    ("tds_binary", _binary, ["BLOB", "INTEGER", "INTEGER"], "BLOB"),
    ("tds_wkb", _wkb, ["VARCHAR"], "BLOB"),
    ("tds_float", _float, ["DOUBLE", "INTEGER"], "VARCHAR"),
    ("tds_may_read", _may_read, ["VARCHAR", "VARCHAR"], "INTEGER"),
    ("tds_type_name", lambda number: BASES.get(number), ["INTEGER"], "VARCHAR"),
)


class Database:
    """One database: DuckDB's connection, the declared tables, and who is connected."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.root = duckdb.connect(":memory:")
        self.tables: dict[tuple[str, str], Table] = {}
        self.sessions: dict[int, Session] = {}
        self.allows_snapshot = True
        self.updateability = "READ_WRITE"
        self.lock = threading.RLock()
        self.guid = str(uuid4()).upper()
        self.broker_guid = str(uuid4()).upper()
        self.capturing = Capturing(self)
        self.root.execute("SET threads = 1")
        for function, body, given, result in FUNCTIONS:
            self.root.create_function(function, body, given, result, side_effects=True)
        clock = "strftime(get_current_timestamp() AT TIME ZONE 'UTC', '%Y-%m-%d %H:%M:%S.%f')"
        self.root.execute(f"CREATE MACRO tds_now() AS {clock} || '0'")
        self.root.execute("CREATE SCHEMA dbo; CREATE SCHEMA tdssys; CREATE SEQUENCE tds_rowversion START 2001")
        for view, columns in VIEWS.items():
            self.root.execute(f"CREATE TABLE tdssys.{view} ({columns})")

    def rowversion(self) -> int:
        """Return the last rowversion handed out."""
        found = (
            self.root.cursor()
            .execute("SELECT last_value FROM duckdb_sequences() WHERE sequence_name = 'tds_rowversion'")
            .fetchone()
        )
        return int(found[0]) if found and found[0] is not None else 2000

    def least_active(self) -> int:
        """Return MIN_ACTIVE_ROWVERSION(): the first one an open transaction may have used."""
        opened = [s.first_rowversion for s in self.sessions.values() if s.transaction]
        return min([*opened, self.rowversion() + 1])

    def fill(self, cursor: Any, view: str) -> None:
        """Write one of the catalog's views anew, as a temporary table of the session."""
        counts = {}
        if view == "dm_db_partition_stats":
            for (schema, name), table in self.tables.items():
                if not table.view:
                    counts[table.number] = cursor.execute(f'SELECT count(*) FROM "{schema}"."{name}"').fetchone()[0]
        state = 1 if self.allows_snapshot else 0
        database = (self.name, 5, state, int(self.capturing.is_enabled), self.broker_guid)
        found = rows(self.tables.values(), self.sessions.values(), counts=counts, database=database)
        found["database_recovery_status"] = [(5, self.guid)]
        cursor.execute(f"CREATE OR REPLACE TEMP TABLE {view} ({VIEWS[view]})")
        if records := found[view]:
            marks = f"({', '.join('?' * len(records[0]))})"
            values = [cell for record in records for cell in record]
            cursor.execute(f"INSERT INTO temp.main.{view} VALUES {', '.join([marks] * len(records))}", values)
