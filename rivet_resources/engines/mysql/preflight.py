"""How a MySQL or MariaDB server looks to exports: version, proxy, replica, connections, line, rights.

Belongs here: asking and judging, each finding with what to run. Not here: what the binary log demands
(`binlog/preflight.py`), the line's own faults (errors.py).

A proxy names itself in the server's comment, or hands out connection numbers of its own: the one of the handshake is
not the one that CONNECTION_ID() gives, or that one changes between statements.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from rivet_resources.contracts.evidence import Finding
from rivet_resources.engines.mysql.catalog import Catalog
from rivet_resources.engines.mysql.connect import ConnectionParams
from rivet_resources.engines.mysql.sql import quote, quote_text
from rivet_resources.engines.shared.names import split_name
from rivet_resources.engines.shared.preflight import (
    connections_finding,
    grants_finding,
    line_finding,
    version_finding,
)
from rivet_resources.engines.shared.server import is_loopback
from rivet_resources.errors import SourceAuth, SourceError, SourcePermission

Shown = Mapping[str, str]

# Product → oldest and newest version that this is written for.
VERSIONS: Mapping[str, tuple[tuple[int, ...], int]] = {"MySQL": ((5, 7), 9), "MariaDB": ((10, 3), 12)}
PROXIES = re.compile(r"(?i)proxysql|maxscale|readyset|heimdall|vitess")
LAG_SECONDS = 300
VARIABLES = ("version", "version_comment", "proxy_version", "max_connections", "max_user_connections", "read_only",
             "super_read_only", "time_zone", "system_time_zone")  # fmt: skip
STATUSES = ("Threads_connected", "Ssl_cipher", "Ssl_version")
# Word of the status row → its column, by product.
BEHIND = ("Seconds_Behind_Source", "Seconds_Behind_Master")


class PreflightSession(Catalog, Protocol):
    """What this module needs from a session."""

    def named(self, statement: str, *, doing: str) -> list[dict[str, str | None]]: ...


def examine(
    session: PreflightSession,
    conn_params: ConnectionParams,
    *,
    told_id: int,
    tables: Sequence[str],
    connections: int,
    is_aligned: bool = False,
) -> tuple[Finding, ...]:
    """Judge the server by a few short statements.

    Args:
        told_id: the connection's number as the handshake gave it.
        is_aligned: tasks are to begin at one instant, under a lock.
    """
    shown = _show(session, "GLOBAL VARIABLES", VARIABLES)
    status = _show(session, "STATUS", STATUSES)
    is_near = "unix_socket" in conn_params.address.options or is_loopback(conn_params.address.host)
    mode = conn_params.tls.mode if conn_params.tls is not None else ""
    cipher = " ".join(word for word in (status.get("ssl_version"), status.get("ssl_cipher")) if word)
    return (
        _version(shown),
        line_finding(mode, cipher=cipher if status.get("ssl_cipher") else "", is_near=is_near),
        _zone(shown),
        _proxy(session, shown, told_id),
        _replica(session, shown),
        *_connections(shown, status, connections),
        _process(session),
        *([_lock(session)] if is_aligned else []),
        *_tables(session, tables),
    )


def _show(session: PreflightSession, what: str, names: Sequence[str]) -> Shown:
    wanted = ", ".join(quote_text(name) for name in names)
    rows = session.ask(f"SHOW {what} WHERE Variable_name IN ({wanted})", doing="looking at the server")
    return {str(row[0]).lower(): row[1] or "" for row in rows}


def _version(shown: Shown) -> Finding:
    text = shown.get("version", "")
    product = "MariaDB" if "mariadb" in f"{text} {shown.get('version_comment', '')}".lower() else "MySQL"
    # What MariaDB puts before its own version for old replicas.
    numbers = re.findall(r"\d+", text.removeprefix("5.5.5-"))[:3]
    oldest, newest = VERSIONS[product]
    return version_finding(product, tuple(map(int, numbers)) or (0,), oldest=oldest, newest=newest)


def _zone(shown: Shown) -> Finding:
    zone = shown.get("time_zone", "")
    theirs = shown.get("system_time_zone", "") if zone.upper() == "SYSTEM" else zone
    return Finding("time_zone", "ok", f"the server runs in {theirs or 'an unnamed zone'}, this session in +00:00")


def _proxy(session: PreflightSession, shown: Shown, told_id: int) -> Finding:
    words = " ".join(shown.get(name, "") for name in ("version_comment", "version", "proxy_version"))
    named = PROXIES.search(words) or ("proxy_version" in shown and re.search(r".+", shown["proxy_version"]))
    # Three times: a proxy that pools connections may give the same one twice.
    numbers = {session.ask("SELECT CONNECTION_ID()", doing="asking who answers")[0][0] for _ in range(3)}
    if not named and numbers == {str(told_id)}:
        return Finding("pooler", "ok", "none: the server itself answers")
    who = f"{named[0]} stands between" if named else "a proxy stands between"
    if len(numbers) > 1:
        text = f"{who} and spreads statements over several connections: settings and snapshots do not hold"
        fix = "Name the server's own host and port in the source, or let the proxy pin our sessions."
        return Finding("pooler", "fail", text, fix)
    text = f"{who} and keeps one connection for us: reading works, a binary log cannot be read through it"
    return Finding("pooler", "warn", text, "Name the server's own host and port in the source.")


def _replica(session: PreflightSession, shown: Shown) -> Finding:
    """Judge a replica by its lag, where the user may see it."""
    is_read_only = any(shown.get(name, "OFF").upper() in ("ON", "1") for name in ("read_only", "super_read_only"))
    what = "read-only" if is_read_only else "writable"
    refusal = ""
    for statement in ("SHOW REPLICA STATUS", "SHOW SLAVE STATUS"):
        try:
            rows = session.named(statement, doing="asking whether this is a replica")
        except SourcePermission as error:
            refusal = str(error)
            continue
        except SourceError:
            # The other product's word.
            continue
        if not rows:
            return Finding("replica", "ok", f"this is no replica; it is {what}")
        behind = next((rows[0][name] for name in BEHIND if name in rows[0]), None)
        return _lagging(behind, what)
    if refusal and is_read_only:
        text = "a read-only server, and its replication is hidden: what is read may be old by an unknown time"
        return Finding("replica", "warn", text, f"GRANT REPLICATION CLIENT ON *.* TO {session.user};")
    return Finding("replica", "ok", f"the server is {what}; whether it is a replica is not shown to this user")


def _lagging(behind: str | None, what: str) -> Finding:
    if behind is None:
        text = f"a {what} replica that does not follow its primary now: what is read is old, and gets older"
        return Finding("replica", "warn", text, "START REPLICA;  -- or START SLAVE; see SHOW REPLICA STATUS first")
    if int(behind) > LAG_SECONDS:
        text = f"a {what} replica {behind} s behind its primary"
        return Finding("replica", "warn", text, "Wait until it has caught up, or name the primary in the source.")
    return Finding("replica", "ok", f"a {what} replica, {behind} s behind its primary")


def _connections(shown: Shown, status: Shown, needed: int) -> Iterator[Finding]:
    """Judge the server's limit; MySQL keeps one connection beyond it for administrators."""
    used, limit = int(status.get("threads_connected") or 0), int(shown.get("max_connections") or 0)
    if limit:
        fix = f"SET GLOBAL max_connections = {max(2 * limit, 200)};  -- and in the server's file."
        yield connections_finding(used, limit, reserved=0, needed=needed, fix=fix)
    of_user = int(shown.get("max_user_connections") or 0)
    if of_user and of_user < needed + 2:
        text = f"one user may have {of_user} connections, and the widest export opens up to {needed + 2}"
        yield Finding("user_connections", "fail", text, "SET GLOBAL max_user_connections = 0;")


def _process(session: PreflightSession) -> Finding:
    """Look for PROCESS, which shows the transactions of others: InnoDB's own list is the proof."""
    try:
        session.ask("SELECT COUNT(*) FROM information_schema.innodb_trx", doing="looking for open transactions")
    except SourcePermission:
        text = (
            "open transactions of others are hidden: incremental reads stay behind by `cursor_lag` and may miss a late "
            "commit, and the governor sees no load"
        )
        return Finding("PROCESS", "warn", text, f"GRANT PROCESS ON *.* TO {session.user};")
    return Finding("PROCESS", "ok", "open transactions of others are visible: late commits are waited for")


# Rights by which a table, and the whole server, can be locked. FLUSH_TABLES is MySQL's, from 8.0.23 on.
LOCKS = re.compile(r"LOCK TABLES|ALL PRIVILEGES")
LOCKS_SERVER = re.compile(r"RELOAD|FLUSH_TABLES|ALL PRIVILEGES ON \*\.\*")


def _lock(session: PreflightSession) -> Finding:
    """Look for the rights that `consistency: aligned` needs; rights by roles are not seen."""
    grants = [str(row[0]).upper() for row in session.ask("SHOW GRANTS", doing="looking for the right to lock")]
    tables, server = (any(each.search(grant) for grant in grants) for each in (LOCKS, LOCKS_SERVER))
    if tables and server:
        return Finding("aligned", "ok", "the user may lock tables, and for queries the server")
    if tables:
        text = "the user may lock tables; a query needs the server's lock, and this user may not take it"
        return Finding("aligned", "warn", text, f"GRANT RELOAD ON *.* TO {session.user};")
    text = "aligned snapshots need a short lock, and the user has no right to lock tables"
    return Finding("aligned", "warn", text, f"GRANT LOCK TABLES ON <database>.* TO {session.user};")


def _tables(session: PreflightSession, tables: Sequence[str]) -> Iterator[Finding]:
    """Yield what the user may not read, with one script for all of it."""
    lacking = []
    for table in tables:
        schema, name = split_name(table)
        spelled = f"{quote(schema or session.database)}.{quote(name)}"
        try:
            session.ask(f"SELECT 1 FROM {spelled} LIMIT 0", doing=f"looking at {table}")
        except (SourcePermission, SourceAuth):
            lacking.append((table, spelled))
        except SourceError:
            # Its own row tells what is wrong with it.
            continue
    script = (f"GRANT SELECT ON {spelled} TO {session.user};" for _, spelled in lacking)
    yield from grants_finding(session.user, (table for table, _ in lacking), script)
