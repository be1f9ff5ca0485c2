"""What a MySQL or MariaDB server must be set to before its binary log can be captured, judged one by one.

Belongs here: the demanded settings, grants, signs of a proxy, each with its fix. Not here: what is refused at the
event, since sessions override settings (transactions.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from rivet_resources.contracts.change_log import Capture
from rivet_resources.contracts.evidence import Finding
from rivet_resources.engines.mysql.binlog.ddl import has_cascades
from rivet_resources.engines.mysql.binlog.lag import DAY_SECONDS, retention_seconds
from rivet_resources.engines.mysql.preflight import PROXIES
from rivet_resources.engines.mysql.sql import quote, quote_text
from rivet_resources.engines.shared.names import split_name
from rivet_resources.errors import SourceError, SourceLost

Ask = Callable[[str], list[tuple[str | None, ...]]]

# Setting → demanded value and why (`cdc.md`, 5.5). One that a product does not have is no failure.
DEMANDED: Mapping[str, tuple[str, str]] = {
    "log_bin": ("ON", "there is no log to read"),
    "binlog_format": ("ROW", "changes are logged as statements, without rows"),
    "binlog_row_image": ("FULL", "rows lack columns, which then look like NULL"),
    "binlog_row_metadata": ("FULL", "the log has no names of columns"),
    "binlog_row_value_options": ("", "JSON updates are logged as differences"),
}
# Read all the same, at a price: worth knowing, no reason to stop.
COMPRESSED = ("binlog_transaction_compression", "log_bin_compress")
RESTARTED = frozenset({"log_bin"})  # cannot be set at run time
RECORDED = ("server_id", "server_uuid", "gtid_mode", "gtid_strict_mode", "binlog_expire_logs_seconds",
            "expire_logs_days", "log_replica_updates", "log_slave_updates", "read_only", "max_allowed_packet",
            "version", "version_comment", "proxy_version")  # fmt: skip
REPLICATION = re.compile(r"(?i)\b(REPLICATION (?:SLAVE|REPLICA)|ALL PRIVILEGES)\b")
STATUS = re.compile(r"(?i)\b(REPLICATION CLIENT|BINLOG MONITOR|SUPER|ALL PRIVILEGES)\b")
SHORT_DAYS = 1


# A key is what a mirror, and a copy that overlaps with the log, tell rows apart by: unique, and never NULL.
KEYLESS = """
SELECT COUNT(*) FROM (SELECT 1 FROM information_schema.statistics
WHERE table_schema = {schema} AND table_name = {name} AND non_unique = 0
GROUP BY index_name HAVING SUM(nullable = 'YES') = 0) AS keys_of"""
# Of each unique index its columns, and whether none may be NULL; one over an expression has a column without a name.
UNIQUE_INDEXES = """
SELECT index_name, column_name, nullable FROM information_schema.statistics
WHERE table_schema = {schema} AND table_name = {name} AND non_unique = 0"""
VERSION = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version', 'innodb_native_foreign_keys')"
# Of MySQL: from here on foreign keys are the server's business, and their changes are logged.
CASCADES_LOGGED = (9, 6)
FOREIGN_KEY = re.compile(r"(?is)CONSTRAINT (`(?:[^`]|``)+`) FOREIGN KEY[^\n]*")


def findings(
    ask: Ask, *, user: str, server_id: int, capture: Capture | None = None, database: str = ""
) -> tuple[Finding, ...]:
    """Judge every prerequisite; nothing is changed."""
    names = ", ".join(f"'{name}'" for name in (*DEMANDED, *COMPRESSED, *RECORDED))
    rows = ask(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})")
    shown = {str(name).lower(): str(text or "") for name, text in rows}
    return (
        *_proxy(ask, shown),
        *(_require_setting(name, shown[name]) for name in DEMANDED if name in shown),
        *(_judge_compression(name, shown[name]) for name in COMPRESSED if name in shown),
        _id(shown, server_id),
        _retention(shown),
        *_replica(ask, shown),
        *_grants(ask, user),
        *(_keyless(ask, capture, database) if capture is not None and capture.copies else ()),
        *(_shared_keys(ask, capture, database) if capture is not None and capture.is_applied else ()),
        *(cascading(ask, capture, database=database) if capture is not None else ()),
    )


def _keyless(ask: Ask, capture: Capture, database: str) -> Iterator[Finding]:
    """Find tables whose rows a first copy would show twice: what comes again from the log has no key to undo it."""
    for table in capture.tables:
        schema, name = split_name(table)
        words = {"schema": quote_text(schema or database), "name": quote_text(name)}
        if ask(KEYLESS.format(**words))[0][0] == "0":
            yield Finding(
                f"key {table}",
                "fail",
                f"{table} has no primary key and no unique one without NULLs: changes that are made during the first "
                "copy would be in it and in the log, with nothing to tell that they are the same",
                f"ALTER TABLE {table} ADD PRIMARY KEY (…); or leave out `initial: snapshot`",
            )


def _shared_keys(ask: Ask, capture: Capture, database: str) -> Iterator[Finding]:
    """Find a `key:` that nothing keeps unique: the copy overlaps with the log, and hides which keys were in use."""
    wanted = {name.lower() for name in capture.key}
    for table in capture.tables if wanted else ():
        schema, name = split_name(table)
        words = {"schema": quote_text(schema or database), "name": quote_text(name)}
        indexes: dict[str | None, list[bool]] = {}
        for index, column, nullable in ask(UNIQUE_INDEXES.format(**words)):
            is_kept = str(column).lower() in wanted and str(nullable).upper() != "YES"
            indexes.setdefault(index, []).append(is_kept)
        if not any(all(columns) for columns in indexes.values()):
            names = ", ".join(capture.key)
            yield Finding(
                f"key {table}",
                "fail",
                f"nothing keeps {names} of {table} unique, by which its rows are told apart here (`key`): of two rows "
                "that share a key for a moment, one would be lost",
                "name all columns of a unique index without NULLs, such as the primary key, in `key:`",
            )


def cascading(ask: Ask, capture: Capture, *, database: str) -> Iterator[Finding]:
    """Find tables whose rows a foreign key deletes or changes: the log does not have that.

    SHOW CREATE TABLE, since information_schema hides constraints from users that may only read.
    """
    if not hides_cascades(ask):
        return
    is_accepted = "cascades" in capture.accepts
    for table in capture.tables:
        schema, name = split_name(table)
        try:
            rows = ask(f"SHOW CREATE TABLE {quote(schema or database)}.{quote(name)}")
        except SourceLost:
            # A line that broke is no missing right, and must not pass for one.
            raise
        except SourceError:
            # Not there, or not to be read: the first copy says so.
            continue
        told = [match for match in FOREIGN_KEY.finditer(str(rows[0][1])) if has_cascades(match[0])]
        if told:
            yield Finding(
                f"cascades {table}",
                "warn" if is_accepted else "fail",
                f"{table} is changed by foreign keys ({', '.join(match[1].strip('`') for match in told)}) with ON "
                "DELETE or ON UPDATE, and such changes of its rows are not in the binary log"
                + (": accepted by `accept_untold`" if is_accepted else ""),
                "" if is_accepted else "let triggers or the application do it; or `cdc: {accept_untold: [cascades]}`",
            )


def hides_cascades(ask: Ask) -> bool:
    """Return whether changes that foreign keys make stay out of the log: all of MariaDB, and MySQL before 9.6."""
    shown = {str(name).lower(): str(text or "") for name, text in ask(VERSION)}
    version = shown.get("version", "")
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if "mariadb" in version.lower() or numbers < CASCADES_LOGGED:
        return True
    # From 9.6 on it depends on whose foreign keys they are: InnoDB's own still leave nothing in the log.
    return shown.get("innodb_native_foreign_keys", "OFF").upper() in ("ON", "1")


def _require_setting(name: str, found: str) -> Finding:
    wanted, why = DEMANDED[name]
    if found.upper() == wanted:
        return Finding(name, "ok", f"{name} is {found or 'empty'}")
    spelled = f"'{wanted}'" if name == "binlog_row_value_options" else wanted
    fix = f"[mysqld] {name}=binlog, then restart" if name in RESTARTED else f"SET GLOBAL {name} = {spelled}"
    return Finding(name, "fail", f"{name} is {found or 'empty'}: {why}. Write it to the server's file, too", fix)


def _judge_compression(name: str, found: str) -> Finding:
    if found.upper() in ("OFF", "0", ""):
        return Finding(name, "ok", f"{name} is OFF")
    return Finding(name, "ok", f"{name} is {found}: events are opened here, at the cost of some CPU")


def _id(shown: Mapping[str, str], server_id: int) -> Finding:
    theirs = shown.get("server_id", "0")
    if theirs == str(server_id):
        return Finding("server_id", "fail", f"the server has our id {server_id}", "set `cdc.server_id` to another one")
    if theirs == "0":
        return Finding("server_id", "fail", "the server has no server_id", "SET GLOBAL server_id = 1")
    return Finding("server_id", "ok", f"the server is {theirs}, we are {server_id}")


def _retention(shown: Mapping[str, str]) -> Finding:
    name, kept = "binlog_expire_logs_seconds", retention_seconds(shown)
    if not kept:
        return Finding(name, "ok", "the server keeps its log until somebody purges it")
    days = kept / DAY_SECONDS
    if days < SHORT_DAYS:
        fix = f"SET GLOBAL {name} = {7 * DAY_SECONDS}"
        return Finding(name, "warn", f"the log is kept {kept / 3600:.1f} h; a drain that fails longer loses it", fix)
    return Finding(name, "ok", f"the log is kept {days:.1f} days")


def _replica(ask: Ask, shown: Mapping[str, str]) -> tuple[Finding, ...]:
    """A replica logs what it replays only if it is told to."""
    name = "log_replica_updates" if "log_replica_updates" in shown else "log_slave_updates"
    if shown.get(name, "ON").upper() in ("ON", "1"):
        return (Finding(name, "ok", f"{name} is ON"),)
    fix = f"[mysqld] {name}=ON, then restart"
    for statement in ("SHOW REPLICA STATUS", "SHOW SLAVE STATUS"):
        try:
            if not ask(statement):
                return (Finding(name, "ok", f"{name} is OFF, and the server is no replica"),)
            return (Finding(name, "fail", f"{name} is OFF: what this replica replays is not in its log", fix),)
        except SourceError:
            # The other product's name, or no right to ask.
            continue
    return (Finding(name, "warn", f"{name} is OFF, and we may not ask whether the server is a replica", fix),)


def _grants(ask: Ask, user: str) -> tuple[Finding, ...]:
    """Look for the two rights; a role may hold them, so an absent one is only a warning where roles are granted."""
    given = [str(row[0]) for row in ask("SHOW GRANTS")]
    everywhere = " ".join(line for line in given if " ON *.* " in line)
    # A role has a line of its own, GRANT `role` TO `user`.
    has_roles = any(" ON " not in line.split(" TO ")[0] for line in given)
    found = []
    for name, pattern in (("REPLICATION SLAVE", REPLICATION), ("REPLICATION CLIENT", STATUS)):
        if pattern.search(everywhere):
            found.append(Finding(name, "ok", f"{user} has {name}"))
            continue
        fix = f"GRANT {name} ON *.* TO {_quote_user(ask)}"
        found.append(Finding(name, "warn" if has_roles else "fail", f"{user} lacks {name}", fix))
    return tuple(found)


def _quote_user(ask: Ask) -> str:
    name, _, host = str(ask("SELECT CURRENT_USER()")[0][0]).rpartition("@")
    return f"'{name}'@'{host}'"


def _proxy(ask: Ask, shown: Mapping[str, str]) -> tuple[Finding, ...]:
    """Find what stands between: a proxy serves statements from several connections, and a dump from none."""
    words = f"{shown.get('version_comment', '')} {shown.get('version', '')} {shown.get('proxy_version', '')}"
    # Three times: one that pools connections may give the same one twice.
    numbers = {ask("SELECT CONNECTION_ID()")[0][0] for _ in range(3)}
    is_between = bool(PROXIES.search(words)) or ("proxy_version" in shown and bool(shown["proxy_version"]))
    if is_between or len(numbers) > 1:
        why = "names itself" if is_between else "changes CONNECTION_ID() between statements"
        text = f"a proxy is between, which {why}; it cannot pass a binary log on"
        return (Finding("proxy", "fail", text, "let `url` name the server itself"),)
    return (Finding("proxy", "ok", "no proxy is between"),)
