"""How a PostgreSQL server looks to exports: version, pooler, standby, connections, line, rights, limits, statistics.

Belongs here: asking and judging, each finding with what to run. Not here: what a change log demands
(`log/preflight.py`), the line's own faults (errors.py).

A pooler shows itself without its own commands: it hands out cancellation keys of its own, so the backend that libpq was
told of is not the one that answers. One that pools transactions answers two open connections from one backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from rivet_resources.contracts.evidence import Finding
from rivet_resources.engines.postgres.catalog import Catalog
from rivet_resources.engines.postgres.connect import ConnectionParams
from rivet_resources.engines.postgres.sql import quote
from rivet_resources.engines.shared.names import split_name
from rivet_resources.engines.shared.preflight import (
    SPARE,
    connections_finding,
    grants_finding,
    line_finding,
    version_finding,
)
from rivet_resources.engines.shared.server import is_loopback

if TYPE_CHECKING:
    import psycopg

OLDEST, NEWEST = (12,), 18
# A snapshot of a large table stays open that long.
SHORT_FEEDBACK_SECONDS = 1800
DAY_SECONDS = 86_400

# Asked for with `true`, a setting that the server does not have is NULL: reserved_connections came with version 16,
# transaction_timeout with 17, idle_session_timeout with 14; old_snapshot_threshold went with 17. Of role_settings
# the last one of a name counts in JSON, so they stand in the server's own order: for all, a database, a role, both.
SERVER = """
SELECT json_build_object(
    'user', current_user,
    'pid', pg_backend_pid(),
    'zone', (SELECT reset_val FROM pg_settings WHERE name = 'log_timezone'),
    'session_zone', current_setting('TimeZone'),
    'application', current_setting('application_name'),
    'limit', current_setting('max_connections')::int,
    'reserved', current_setting('superuser_reserved_connections')::int
                + coalesce(current_setting('reserved_connections', true), '0')::int,
    'used', (SELECT sum(numbackends) FROM pg_stat_database WHERE datid <> 0),
    'role_limit', (SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user),
    'of_role', (SELECT count(*) FROM pg_stat_activity WHERE usename = current_user),
    'tls', (SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid() AND ssl),
    'recovery', pg_is_in_recovery(),
    'feedback', current_setting('hot_standby_feedback'),
    'delay', current_setting('max_standby_streaming_delay'),
    'delay_ms', (SELECT setting::bigint FROM pg_settings WHERE name = 'max_standby_streaming_delay'),
    'replay_age', extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp())::float8,
    'may_see', pg_has_role('pg_read_all_stats', 'USAGE'),
    'old', current_setting('old_snapshot_threshold', true),
    'transaction_timeout', current_setting('transaction_timeout', true),
    'idle_session_timeout', current_setting('idle_session_timeout', true),
    'role_settings', (
        SELECT json_object_agg(split_part(s, '=', 1), substr(s, strpos(s, '=') + 1)) FROM (
            SELECT unnest(setconfig) AS s FROM pg_db_role_setting r
            WHERE (r.setrole = (SELECT oid FROM pg_roles WHERE rolname = current_user) OR r.setrole = 0)
              AND (r.setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
                   OR r.setdatabase = 0)
            ORDER BY r.setrole, r.setdatabase) AS of_role),
    'oldest', (SELECT extract(epoch FROM max(now() - xact_start))::float8 FROM pg_stat_activity
               WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid()))"""

# A partitioned table has no rows of its own to count; a view has none at all.
TABLES = """
SELECT u.configured, n.nspname, c.relname, has_schema_privilege(n.oid, 'USAGE'),
       has_any_column_privilege(c.oid, 'SELECT'),
       c.relkind IN ('r', 'm') AND s.last_analyze IS NULL AND s.last_autoanalyze IS NULL AND c.reltuples <= 0
       AND pg_relation_size(c.oid) > 0,
       pg_get_userbyid(c.relowner), row_security_active(c.oid), c.relkind::text
FROM unnest(%s::text[], %s::text[], %s::text[]) WITH ORDINALITY AS u (configured, schema, name, n)
JOIN pg_class c ON c.relname = u.name AND c.relkind IN ('r', 'p', 'm', 'v', 'f')
JOIN pg_namespace n ON n.oid = c.relnamespace
     AND CASE WHEN u.schema IS NULL THEN n.nspname = ANY (current_schemas(true)) ELSE n.nspname = u.schema END
LEFT JOIN pg_stat_all_tables s ON s.relid = c.oid ORDER BY u.n"""


Two = Callable[[], AbstractContextManager[tuple["psycopg.Connection[Any]", "psycopg.Connection[Any]"]]]


def examine(
    catalog: Catalog,
    conn_params: ConnectionParams,
    connection: psycopg.Connection[Any],
    *,
    two: Two,
    tables: Sequence[str],
    connections: int,
) -> tuple[Finding, ...]:
    """Judge the server by a few short statements, and by two connections more where a pooler shows.

    Args:
        connection: the session's own, in its transaction.
        two: opens two others like it, and closes them.
    """
    server = catalog.ask(SERVER, doing="looking at the server")[0][0]
    user = quote(server["user"])
    return (
        version_finding("PostgreSQL", _version(catalog.server_version), oldest=OLDEST, newest=NEWEST),
        _line(conn_params, server, is_protected=bool(connection.pgconn.ssl_in_use)),
        Finding("time_zone", "ok", f"the server writes its log in {server['zone']}, this session runs in "
                                   f"{server['session_zone']}"),
        *_pooler(conn_params, connection, server, two=two, connections=connections),
        *_standby(server),
        connections_finding(
            server["used"], server["limit"], reserved=server["reserved"], needed=connections,
            fix="ALTER SYSTEM SET max_connections = 200;  -- then restart.",
        ),
        *_role_limit(server, user, connections),
        *_rights(server, user),
        *_limits(catalog, conn_params, server, user),
        *_tables(catalog, tables, server["user"]),
    )  # fmt: skip


def _version(number: int) -> tuple[int, ...]:
    return number // 10_000, number % 10_000


def _line(conn_params: ConnectionParams, server: Mapping[str, Any], *, is_protected: bool) -> Finding:
    """Judge our own end of the line: behind a pooler the server tells of the pooler's."""
    parameters = conn_params.parameters
    hosts = (parameters.get("hostaddr") or parameters.get("host", "")).split(",")
    cipher = (server["tls"] or "TLS") if is_protected else ""
    is_near = all(is_loopback(host.strip()) for host in hosts)
    return line_finding(parameters.get("sslmode", ""), cipher=cipher, is_near=is_near)


# --- what stands between, and where we are -------------------------------------------------------


def _pooler(
    conn_params: ConnectionParams,
    connection: psycopg.Connection[Any],
    server: Mapping[str, Any],
    *,
    two: Two,
    connections: int,
) -> Iterator[Finding]:
    """Judge what stands between; an application name that got lost, too, hides us from the server's people."""
    # What was connected with in the end: without `options` where a pooler refused them (connect.py).
    took_options = "options" in connection.info.get_parameters()
    # libpq was told of a backend when it connected. A pooler gives out a number of its own.
    if connection.info.backend_pid == server["pid"] and took_options:
        yield Finding("pooler", "ok", "none: the server itself answers")
        return
    shares, keeps = _ask_twice(two)
    refused = "" if took_options and keeps else "; it drops session settings, so they are pinned in each transaction"
    name = conn_params.parameters["application_name"]
    lost = "" if server["application"] == name else "; it drops our application_name"
    if shares:
        text = (
            "a pooler (PgBouncer, RDS Proxy, Supavisor) hands each transaction to another backend: reading works "
            f"through it while its pool has {connections + SPARE} connections for us, a change log does not, and a "
            f"cancelled statement may run on{refused}{lost}"
        )
        yield Finding("pooler", "warn", text, "Name the server's own host and port in the source, or a session pool.")
        return
    text = f"a pooler stands between, and keeps a backend for each connection{refused}{lost}"
    direct = "Name the server's own host and port in the source."
    fix = "Take application_name out of ignore_startup_parameters in pgbouncer.ini." if lost else direct
    yield Finding("pooler", "warn" if refused or lost else "ok", text, fix)


def _ask_twice(two: Two) -> tuple[bool, bool]:
    """Return whether two connections open at once are answered by one backend, and keep what they were set to."""
    ask = "SELECT pg_backend_pid(), current_setting('default_transaction_read_only')"
    with two() as (first, second):
        pids, settings = zip(*(each.execute(ask).fetchall()[0] for each in (first, second, first)), strict=True)
    return pids[0] == pids[1] or pids[0] != pids[2], set(settings) == {"on"}


def _standby(server: Mapping[str, Any]) -> Iterator[Finding]:
    """Judge a standby by how long a snapshot lives there: replay waits so long for readers, then cancels them."""
    if not server["recovery"]:
        yield Finding("standby", "ok", "this is a primary")
        return
    delay = server["delay_ms"]
    age = server["replay_age"]
    lag = f", last replayed transaction {age:.0f} s ago" if age is not None else ""
    if server["feedback"] == "on":
        yield Finding("standby", "ok", f"a read-only standby; hot_standby_feedback keeps long snapshots alive{lag}")
        return
    if delay < 0 or delay >= SHORT_FEEDBACK_SECONDS * 1000:
        waits = "for ever" if delay < 0 else server["delay"]
        yield Finding("standby", "ok", f"a read-only standby whose replay waits {waits} for readers{lag}")
        return
    text = (
        "a read-only standby without hot_standby_feedback: once its primary removes rows that a snapshot still sees, a "
        f"reader is cancelled after max_standby_streaming_delay = {server['delay']} and has to start anew{lag}"
    )
    fix = "ALTER SYSTEM SET hot_standby_feedback = on; SELECT pg_reload_conf();  -- on the standby"
    yield Finding("standby", "warn", text, fix)


# --- the role ------------------------------------------------------------------------------------


def _role_limit(server: Mapping[str, Any], user: str, connections: int) -> Iterator[Finding]:
    if server["role_limit"] >= 0:
        found = connections_finding(
            server["of_role"], server["role_limit"], reserved=0, needed=connections,
            fix=f"ALTER ROLE {user} CONNECTION LIMIT -1;",
        )  # fmt: skip
        yield Finding("role_connections", found.status, f"of this role: {found.text}", found.fix)


def _rights(server: Mapping[str, Any], user: str) -> Iterator[Finding]:
    if server["may_see"]:
        yield Finding("pg_read_all_stats", "ok", "what other roles do is visible: late commits are waited for")
        return
    text = (
        "what other roles do is hidden: incremental reads cannot see open transactions, and the governor no load; set "
        "`cursor_lag` until then"
    )
    yield Finding("pg_read_all_stats", "warn", text, f"GRANT pg_read_all_stats TO {user};")


def _limits(catalog: Catalog, conn_params: ConnectionParams, server: Mapping[str, Any], user: str) -> Iterator[Finding]:
    """Judge limits that end a long snapshot in the middle, and the role's own, which a pooler lets through."""
    if server["old"] not in (None, "-1", "-1min"):
        text = f"old_snapshot_threshold is {server['old']}: a snapshot that is older fails with `snapshot too old`"
        yield Finding("old_snapshots", "warn", text, "ALTER SYSTEM SET old_snapshot_threshold = -1;  -- then restart")
    for name in ("transaction_timeout", "idle_session_timeout"):
        if server[name] not in (None, "0"):
            text = f"{name} is {server[name]}, and a snapshot is held until the last page is read"
            yield Finding(name, "warn", text, f"ALTER ROLE {user} SET {name} = 0;")
    role = server["role_settings"] or {}
    for name in ("statement_timeout", "idle_in_transaction_session_timeout"):
        if role.get(name) not in (None, "0"):
            ours = conn_params.settings[name]
            effective = catalog.ask("SELECT setting FROM pg_settings WHERE name = %s", (name,), doing=f"reading {name}")
            # What is in force, not what was set: a pooler may have dropped our own value.
            if str(effective[0][0]) == ours:
                yield Finding(name, "ok", f"the role's {role[name]} gives way to this session's {_speak(ours)}")
            else:
                text = f"the role's {role[name]} stands, although {_speak(ours)} was asked for"
                yield Finding(name, "warn", text, f"ALTER ROLE {user} RESET {name};")
    oldest = server["oldest"] or 0.0
    if oldest > DAY_SECONDS:
        text = f"a transaction has held an old snapshot for {oldest / 3600:.0f} h: tables cannot be cleaned meanwhile"
        fix = "SELECT pid, usename, state, xact_start FROM pg_stat_activity ORDER BY xact_start LIMIT 5;"
        yield Finding("long_transaction", "warn", text, fix)


def _speak(milliseconds: str) -> str:
    return "no limit" if milliseconds == "0" else f"{int(milliseconds) / 1000:.15g} s"


# --- the tables ----------------------------------------------------------------------------------


def _is_policed(catalog: Catalog, row: tuple[Any, ...]) -> bool:
    """Return whether policies hide rows of what a view reads."""
    if row[8] != "v" or not (row[3] and row[4]):
        return False
    view = f"{quote(row[1])}.{quote(row[2])}"
    return catalog.find_policed(f"SELECT * FROM {view}", doing=f"looking for policies below {view}") is not None


def _tables(catalog: Catalog, tables: Sequence[str], role: str) -> Iterator[Finding]:
    """Yield what the role may not read, with one script for all of it, and what was never analysed."""
    if not tables:
        return
    names = [split_name(table) for table in tables]
    values = (list(tables), [schema for schema, _ in names], [name for _, name in names])
    found: dict[str, tuple[Any, ...]] = {}
    for row in catalog.ask(TABLES, values, doing="looking at the tables"):
        # An unqualified name may be in several schemas of the path; the first one is meant, as in a read.
        found.setdefault(row[0], row)
    lacking = {table: row for table, row in found.items() if not (row[3] and row[4])}
    user = quote(role)
    script = [f"GRANT USAGE ON SCHEMA {quote(row[1])} TO {user};" for row in lacking.values() if not row[3]]
    closed = [f"{quote(row[1])}.{quote(row[2])}" for row in lacking.values() if not row[4]]
    script += [f"GRANT SELECT ON TABLE {', '.join(closed)} TO {user};"] if closed else []
    yield from grants_finding(role, lacking, script)
    filtered = [f"{quote(row[1])}.{quote(row[2])}" for row in found.values() if row[7] or _is_policed(catalog, row)]
    if filtered:
        text = f"row-level security decides which rows of {', '.join(filtered)} this role sees; only these are exported"
        yield Finding("row_security", "warn", text, f"ALTER ROLE {user} BYPASSRLS;  -- where all rows are wanted")
    unseen = [f"{quote(row[1])}.{quote(row[2])}" for row in found.values() if row[5]]
    if unseen:
        text = f"never analysed: {', '.join(unseen)}; chunks are cut by guesses"
        yield Finding("statistics", "warn", text, f"ANALYZE {', '.join(unseen)};")
