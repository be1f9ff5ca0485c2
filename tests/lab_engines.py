"""The engines a laboratory can stand on: how each is started, spoken to, and addressed in a rivet.yaml.

Belongs here: one value per engine, facts only. Not here: what the tests do with them (`lab.py`), starting servers
(`servers/postgres.py`, `servers/mysql.py`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from decimal import Decimal

Execute = Callable[[str], None]


@dataclass(frozen=True)
class Open:
    """A transaction that stays open until it is told to commit."""

    execute: Execute
    commit: Callable[[], None]


@dataclass(frozen=True)
class Engine:
    """One database engine, as tests need it."""

    name: str
    fixture: str  # gives the URL, or the path, of an empty database
    source: Mapping[str, str]  # the `source:` block; LAB_URL holds the fixture's value
    types: Mapping[str, str]  # word of `lab.create` → DDL
    literal: Callable[[object], str]
    connect: Callable[[str], AbstractContextManager[Execute]]  # each statement commits by itself
    writer: Callable[[str], AbstractContextManager[Open]]
    quote: Callable[[str], str]
    analyze: str = "ANALYZE {}"
    settled_seconds: float = 0.5  # so old may the engine's word be on what is committed
    columns: Mapping[str, str] = field(default_factory=dict)  # `columns:` that give `lab.create`'s words their type


def quoted(mark: str) -> Callable[[str], str]:
    """Quote names with this mark, doubled inside."""
    return lambda name: f"{mark}{name.replace(mark, mark * 2)}{mark}"


def literal(value: object) -> str:
    """Write a value as standard SQL; instants with their offset."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int | Decimal | float):
        return str(value)
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if isinstance(value, datetime):
        offset = "" if value.tzinfo is None else "+00:00"
        return f"'{in_utc(value)}{offset}'"
    if isinstance(value, date):
        return f"'{value.isoformat()}'"
    return "'" + str(value).replace("'", "''") + "'"


def in_utc(value: datetime) -> str:
    """Write a time's digits, an instant's in UTC."""
    naive = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
    return naive.isoformat(sep=" ", timespec="microseconds")


def literal_of_postgres(value: object) -> str:
    """Write a value as PostgreSQL's SQL."""
    return rf"'\x{value.hex()}'" if isinstance(value, bytes) else literal(value)


def literal_in_utc(value: object) -> str:
    """Write a value for a session in UTC whose instants carry no offset, and whose backslashes escape."""
    if isinstance(value, datetime):
        return f"'{in_utc(value)}'"
    return literal(value).replace("\\", "\\\\")


def literal_in_iso(value: object) -> str:
    """Write an instant as the ISO text a column of text holds."""
    if isinstance(value, datetime):
        zone = "" if value.tzinfo is None else "Z"
        return f"'{in_utc(value).replace(' ', 'T')}{zone}'"
    return literal(value)


def literal_of_sqlserver(value: object) -> str:
    """Write a value as T-SQL."""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, bytes):
        return f"0x{value.hex()}" if value else "CAST('' AS varbinary(1))"  # the emulator has no bare 0x
    return f"N{literal(value)}" if isinstance(value, str) else literal(value)


# --- connections ---------------------------------------------------------------------------------


@contextmanager
def connect_postgres(url: str) -> Iterator[Execute]:
    """Run statements at PostgreSQL, each in its own transaction."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        yield lambda statement: connection.execute(statement.encode()) and None


@contextmanager
def write_postgres(url: str) -> Iterator[Open]:
    """Hold a transaction open at PostgreSQL."""
    import psycopg

    with psycopg.connect(url) as connection:
        yield Open(lambda statement: connection.execute(statement.encode()) and None, connection.commit)


@contextmanager
def connect_mysql(url: str) -> Iterator[Execute]:
    """Run statements at MySQL or MariaDB, each in its own transaction."""
    from tests.servers.mysql import connection

    with connection(url) as opened, opened.cursor() as cursor:
        yield lambda statement: cursor.execute(statement) and None


@contextmanager
def write_mysql(url: str) -> Iterator[Open]:
    """Hold a transaction open at MySQL or MariaDB."""
    from tests.servers.mysql import connection

    with connection(url, autocommit=False) as opened, opened.cursor() as cursor:
        yield Open(lambda statement: cursor.execute(statement) and None, opened.commit)


@contextmanager
def connect_sqlserver(url: str) -> Iterator[Execute]:
    """Run statements at SQL Server, each in its own transaction."""
    from tests.emulators.tds import server as tds

    with tds.connect(url) as execute:
        yield lambda statement: execute(statement) and None


@contextmanager
def write_sqlserver(url: str) -> Iterator[Open]:
    """Hold a transaction open at SQL Server."""
    from tests.emulators.tds import server as tds

    with tds.writer(url) as opened:
        yield Open(opened.execute, opened.commit)


@contextmanager
def connect_sqlite(path: str) -> Iterator[Execute]:
    """Run statements on a SQLite file, each in its own transaction."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield lambda statement: connection.execute(statement) and None


@contextmanager
def write_sqlite(path: str) -> Iterator[Open]:
    """Hold the one write transaction of a SQLite file open."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield Open(lambda statement: connection.execute(statement) and None, connection.commit)


# --- the engines ---------------------------------------------------------------------------------

POSTGRES = Engine(
    "postgres",
    "fresh_database",
    source={"type": "postgres", "url_env": "LAB_URL"},
    types={
        "whole": "bigint",
        "number": "integer",
        "ratio": "double precision",
        "amount": "numeric(12,2)",
        "note": "text",
        "payload": "bytea",
        "flag": "boolean",
        "day": "date",
        "moment": "timestamp",
        "instant": "timestamptz",
    },
    literal=literal_of_postgres,
    connect=connect_postgres,
    writer=write_postgres,
    quote=quoted('"'),
)
MYSQL_TYPES = {
    "whole": "bigint",
    "number": "int",
    "ratio": "double",
    "amount": "decimal(12,2)",
    "note": "varchar(200)",
    "payload": "varbinary(50)",
    "flag": "tinyint(1)",
    "day": "date",
    "moment": "datetime(6)",
    "instant": "timestamp(6) NULL",
}
MARIADB = Engine(
    "mariadb",
    "fresh_mariadb",
    source={"type": "mariadb", "url_env": "LAB_URL"},
    types=MYSQL_TYPES,
    literal=literal_in_utc,
    connect=connect_mysql,
    writer=write_mysql,
    quote=quoted("`"),
    analyze="ANALYZE TABLE {}",
    settled_seconds=3.5,
)
MYSQL = Engine(
    "mysql",
    "fresh_mysql",
    source={"type": "mysql", "url_env": "LAB_URL"},
    types=MYSQL_TYPES,
    literal=literal_in_utc,
    connect=connect_mysql,
    writer=write_mysql,
    quote=quoted("`"),
    analyze="ANALYZE TABLE {}",
    settled_seconds=3.5,
)
SQLSERVER = Engine(
    "sqlserver",
    "fresh_sqlserver",
    source={"type": "sqlserver", "url_env": "LAB_URL"},
    types={
        "whole": "bigint",
        "number": "int",
        "ratio": "float",
        "amount": "decimal(12,2)",
        "note": "nvarchar(200)",
        "payload": "varbinary(50)",
        "flag": "bit",
        "day": "date",
        "moment": "datetime2(6)",
        "instant": "datetimeoffset(6)",
    },
    literal=literal_of_sqlserver,
    connect=connect_sqlserver,
    writer=write_sqlserver,
    quote=lambda name: f"[{name.replace(']', ']]')}]",
    analyze="UPDATE STATISTICS {}",
)
# The same database by the second driver; what prepares it goes by the first.
SQLSERVER_ODBC = replace(
    SQLSERVER,
    name="sqlserver-odbc",
    fixture="fresh_sqlserver_odbc",
    source={**SQLSERVER.source, "driver": "odbc", "odbc_driver": "FreeTDS"},
)
SQLITE = Engine(
    "sqlite",
    "fresh_sqlite",
    source={"type": "sqlite", "path_env": "LAB_URL"},
    types={
        "whole": "INTEGER",
        "number": "INTEGER",
        "ratio": "REAL",
        "amount": "DECIMAL(12,2)",
        "note": "TEXT",
        "payload": "BLOB",
        "flag": "BOOLEAN",
        "day": "DATE",
        "moment": "DATETIME",
        "instant": "TIMESTAMP",
    },
    literal=literal_in_iso,
    connect=connect_sqlite,
    writer=write_sqlite,
    quote=quoted('"'),
    # Its declared types promise less than the other engines': these words do.
    columns={
        "number": "int4",
        "amount": "decimal(12,2)",
        "day": "date",
        "moment": "timestamp",
        "instant": "timestamp_tz",
    },
)
ENGINES = {engine.name: engine for engine in (POSTGRES, MARIADB, MYSQL, SQLSERVER, SQLITE)}
BY_DRIVER = ENGINES | {SQLSERVER_ODBC.name: SQLSERVER_ODBC}  # for what a driver decides
