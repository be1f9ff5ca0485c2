"""How a SQL Server looks to exports: version and edition, secondary, connections, line, rights, isolation.

Belongs here: asking and judging, each finding with what to run. Not here: what change tables demand
(`log/preflight.py`), the line's own faults (errors.py).

Written from Microsoft's documentation and tried on the emulator of the tests only; a statement that a server refuses
costs its finding, never the others'.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rivet_resources.contracts.evidence import Finding
from rivet_resources.engines.shared.names import split_name
from rivet_resources.engines.shared.preflight import (
    connections_finding,
    grants_finding,
    line_finding,
    version_finding,
)
from rivet_resources.engines.shared.server import is_loopback
from rivet_resources.engines.sqlserver.catalog import Catalog
from rivet_resources.engines.sqlserver.connect import ConnectionParams
from rivet_resources.engines.sqlserver.sql import quote, quote_text
from rivet_resources.errors import SourceError

OLDEST, NEWEST = (13,), 17  # SQL Server 2016 and 2025
# Source: Microsoft, "SERVERPROPERTY (Transact-SQL)", EngineEdition.
AZURE = {5: "Azure SQL Database", 6: "Azure Synapse", 8: "Azure SQL Managed Instance", 11: "Azure Synapse serverless"}

SERVER = """
SELECT CONVERT(nvarchar(128), SERVERPROPERTY(N'ProductVersion')) AS version,
       CONVERT(int, SERVERPROPERTY(N'EngineEdition')) AS engine,
       CONVERT(nvarchar(128), SERVERPROPERTY(N'Edition')) AS edition, DB_NAME() AS db"""
RIGHT = "SELECT HAS_PERMS_BY_NAME(NULL, NULL, N'VIEW SERVER STATE') AS may_see"
SESSIONS = "SELECT COUNT(*) AS used, @@MAX_CONNECTIONS AS most FROM sys.dm_exec_sessions WHERE is_user_process = 1"
LINE = "SELECT encrypt_option FROM sys.dm_exec_connections WHERE session_id = @@SPID"
MAY_READ = "SELECT HAS_PERMS_BY_NAME({}, N'OBJECT', N'SELECT') AS may_read"


def examine(
    catalog: Catalog,
    conn_params: ConnectionParams,
    *,
    driver: str,
    is_replica: bool,
    allows_snapshot: bool,
    schema: str,
    tables: Sequence[str],
    connections: int,
) -> tuple[Finding, ...]:
    """Judge the server by a few short statements.

    Args:
        driver: that this connection uses, with its version.
        is_replica: a readable secondary answers.
        allows_snapshot: of the database, SNAPSHOT isolation.
        schema: where a table without one is looked for.
    """
    may_see = _one(catalog, RIGHT) == (1,)
    server = _one(catalog, SERVER) or ("0", 0, "", "")
    return (
        _version(server),
        Finding("driver", "ok", driver),
        _line(catalog, conn_params),
        *_gateway(server),
        _secondary(is_replica),
        *_connections(catalog, connections),
        _right(catalog, may_see),
        _isolation(server, allows_snapshot=allows_snapshot),
        *_tables(catalog, tables, schema),
    )


def _one(catalog: Catalog, statement: str) -> tuple[Any, ...] | None:
    """Ask for one row; None where this server does not answer that."""
    try:
        rows = catalog.ask(statement, doing="looking at the server")
    except SourceError:
        # One view that is missing, or hidden, must not cost the other findings.
        return None
    return rows[0] if rows else None


def _version(server: tuple[Any, ...]) -> Finding:
    if server[1] in AZURE:
        return Finding("version", "ok", f"{AZURE[server[1]]} {server[0]}, {server[2]}")
    numbers = tuple(int(word) for word in str(server[0]).split(".")[:2] if word.isdigit())
    if not any(numbers):
        return Finding("version", "warn", "the server does not tell its version", "Look whether a proxy is between.")
    return version_finding("SQL Server", numbers, oldest=OLDEST, newest=NEWEST)


def _line(catalog: Catalog, conn_params: ConnectionParams) -> Finding:
    """Ask the server how the line is; where that is not shown, what the driver was made to insist on stands."""
    told = _one(catalog, LINE)
    is_asked_for = conn_params.tls_mode not in ("", "disable")
    is_protected = str(told[0]).upper() == "TRUE" if told is not None else is_asked_for
    is_near = is_loopback(conn_params.where.rpartition(":")[0])
    return line_finding(conn_params.tls_mode, cipher="TLS" if is_protected else "", is_near=is_near)


def _gateway(server: tuple[Any, ...]) -> Iterator[Finding]:
    if server[1] == 5:
        text = "a gateway answers and may move the line: port 1433 and, for redirected lines, 11000 to 11999 are needed"
        yield Finding("pooler", "ok", text)


def _secondary(is_replica: bool) -> Finding:
    if is_replica:
        text = "a readable secondary: it may be behind, and does not show its primary's open transactions"
        return Finding("replica", "warn", text, "application_intent: read_write  -- in the source, for the primary")
    return Finding("replica", "ok", "this is a primary")


def _connections(catalog: Catalog, needed: int) -> Iterator[Finding]:
    found = _one(catalog, SESSIONS)
    if found is not None and found[1]:
        fix = "EXEC sp_configure 'user connections', 0; RECONFIGURE;  -- then restart."
        yield connections_finding(int(found[0]), int(found[1]), reserved=0, needed=needed, fix=fix)


def _right(catalog: Catalog, may_see: bool) -> Finding:
    if may_see:
        return Finding(
            "VIEW SERVER STATE", "ok", "open transactions of others are visible: late commits are waited for"
        )
    text = (
        "open transactions of others are hidden: incremental reads stay behind by `cursor_lag` and may miss a late "
        "commit, and the governor sees no load"
    )
    return Finding("VIEW SERVER STATE", "warn", text, f"GRANT VIEW SERVER STATE TO {quote(catalog.user)};")


def _isolation(server: tuple[Any, ...], *, allows_snapshot: bool) -> Finding:
    if allows_snapshot:
        return Finding("snapshot", "ok", "the database allows SNAPSHOT isolation")
    text = (
        "the database does not allow SNAPSHOT isolation: each statement sees its own instant, and may wait for writers"
    )
    fix = f"ALTER DATABASE {quote(str(server[3]))} SET ALLOW_SNAPSHOT_ISOLATION ON;"
    return Finding("snapshot", "warn", text, fix)


def _tables(catalog: Catalog, tables: Sequence[str], default: str) -> Iterator[Finding]:
    """Yield what the login may not read, with one script; a table that is hidden looks like one that is not there."""
    lacking, script = [], []
    for table in tables:
        schema, name = split_name(table)
        spelled = f"{quote(schema or default)}.{quote(name)}"
        found = _one(catalog, MAY_READ.format(quote_text(spelled)))
        if found is not None and found[0] != 1:
            # Of an object that is not there, or hidden from the login, HAS_PERMS_BY_NAME gives NULL and not 0.
            lacking.append(table if found[0] == 0 else f"{table} (if it exists)")
            script.append(f"GRANT SELECT ON OBJECT::{spelled} TO {quote(catalog.user)};")
    yield from grants_finding(catalog.user, lacking, script)
